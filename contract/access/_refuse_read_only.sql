-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_read_only(tenant, scope, key): raises 25006 if a claim would have to be stored in a read-only transaction.
CREATE FUNCTION once._refuse_read_only(tenant text, scope text, key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_read_only') = 'on' THEN
        RAISE EXCEPTION USING ERRCODE = '25006', MESSAGE = 'pgonce: an intent cannot be claimed in a read-only transaction',
            DETAIL = format('tenant=%L scope=%L key=%L', tenant, scope, key),
            HINT = 'Claim on the primary, in a transaction that may write. A read-only transaction gets stored outcomes only.';
    END IF;
END $$;
