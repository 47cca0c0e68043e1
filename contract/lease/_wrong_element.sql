-- SPDX-License-Identifier: PostgreSQL
-- once._wrong_element(scope, bucket, fingerprint): the SQLSTATE for an element of a batch that cannot be an intent; NULL if it can.
-- Inlined.
CREATE FUNCTION once._wrong_element(scope text, bucket integer, fingerprint bytea) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN (length(scope) BETWEEN 1 AND 255) IS NOT TRUE THEN 'P4000'
                WHEN (bucket >= 0) IS NOT TRUE THEN 'P4001'
                WHEN (octet_length(fingerprint) BETWEEN 16 AND 64) IS NOT TRUE THEN 'P4003' END
$$;
