-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_outcome(tenant, scope, key, wrong): raises 22023 for an outcome that cannot be stored, with the reason.
CREATE FUNCTION once._refuse_outcome(tenant text, scope text, key text, wrong text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: ' || wrong,
        DETAIL = format('tenant=%L scope=%L key=%L', left(tenant, 80), left(scope, 80), left(key, 80)),
        HINT = 'Nothing was stored. Give response_text, response_json or response_body, no status or one from 0 to 999, and '
            'headers as a JSON object.';
END $$;
