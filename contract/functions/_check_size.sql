-- SPDX-License-Identifier: PostgreSQL
-- once._check_size(tenant, scope, key, body): raises P4060 where a body is larger than its scope allows.
CREATE FUNCTION once._check_size(tenant text, scope text, key text, body bytea) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    bytes_max integer;
BEGIN
    IF octet_length(body) > 8192 THEN
        bytes_max := (once._policy(scope)).response_bytes_max;
        IF octet_length(body) > bytes_max THEN
            PERFORM once._refuse('P4060', tenant, scope, key, format('%s bytes, at most %s', octet_length(body),
                bytes_max));
        END IF;
    END IF;
END $$;
