-- SPDX-License-Identifier: PostgreSQL
-- once._check_outcome(tenant, scope, key, status, headers, body): raises what is wrong with an outcome: 22023 for a status or
-- headers that are none, P4060 where the body is larger than the scope allows.
CREATE FUNCTION once._check_outcome(tenant text, scope text, key text, status integer, headers jsonb, body bytea)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    bytes_max integer;
BEGIN
    IF (status BETWEEN 0 AND 999 AND jsonb_typeof(headers) = 'object') IS FALSE THEN      -- in short, what _wrong_outcome says
        PERFORM once._refuse_outcome(tenant, scope, key, once._wrong_outcome(status, headers));
    END IF;
    IF octet_length(body) > 8192 THEN
        bytes_max := (once._policy(scope)).response_bytes_max;
        IF octet_length(body) > bytes_max THEN
            PERFORM once._refuse('P4060', tenant, scope, key, format('%s bytes, at most %s', octet_length(body),
                bytes_max));
        END IF;
    END IF;
END $$;
