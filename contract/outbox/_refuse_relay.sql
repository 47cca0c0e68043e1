-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_relay(code, relay, what, hint): raises an error about a relay, naming it.
CREATE FUNCTION once._refuse_relay(code text, relay text, what text, hint text DEFAULT NULL, detail text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    named text := regexp_replace('relay=' || quote_nullable(left(relay, 80)), '[[:cntrl:]]', '?', 'g');
BEGIN
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = 'pgonce: ' || what, DETAIL = concat_ws('; ', named, detail),
        HINT = coalesce(hint, '');
END $$;
