-- SPDX-License-Identifier: PostgreSQL
-- once._too_large(scope, outcome): the part of an outcome that is larger than allowed, in words; NULL if none is. The body has the
-- scope's limit, the other parts have fixed limits.
CREATE FUNCTION once._too_large(scope text, outcome once.outcome) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT format('%s: %s bytes, at most %s', part, size, most)
      FROM (VALUES ('response_body', octet_length(outcome.response_body),
                    CASE WHEN octet_length(outcome.response_body) > 8192 THEN (once._policy(scope)).response_bytes_max END),
                   ('response_headers', octet_length(outcome.response_headers::text), 65536),
                   ('result_type', octet_length(outcome.result_type), 255),
                   ('result_id', octet_length(outcome.result_id), 2048)) AS p (part, size, most)
     WHERE size > most LIMIT 1
$$;
