-- SPDX-License-Identifier: PostgreSQL
-- once._check(tenant, scope, key, bucket, fingerprint): raises if a call's arguments are invalid or the caller has no right to the
-- tenant. The hot functions call it only after their one combined check has failed.
CREATE FUNCTION once._check(tenant text, scope text, key text, bucket integer, fingerprint bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._check_tenant(tenant, scope, key);
    PERFORM once._refuse_slot(tenant, scope, key);
    IF scope IS NULL OR length(scope) NOT BETWEEN 1 AND 255 THEN
        PERFORM once._refuse('P4000', tenant, scope, key);
    END IF;
    IF bucket IS NULL OR bucket < 0 THEN
        PERFORM once._refuse('P4001', tenant, scope, key, CASE
            WHEN key IS NULL THEN 'the key is NULL'
            WHEN length(key) = 0 THEN 'the key is empty'
            WHEN length(key) > 255 THEN format('the key has %s characters', length(key))
            ELSE 'the key holds a character outside printable ASCII' END);
    END IF;
    IF fingerprint IS NULL OR octet_length(fingerprint) NOT BETWEEN 16 AND 64 THEN
        PERFORM once._refuse('P4003', tenant, scope, key, NULL, 'the fingerprint is missing or of another length',
            'Pass once.fingerprint(...) of the request: a fingerprint is 16 to 64 bytes.');
    END IF;
END $$;
