-- SPDX-License-Identifier: PostgreSQL
-- once._failure_text(...): 'code: message' of a stored failure, for the DETAIL of P4030.
CREATE FUNCTION once._failure_text(tenant text, scope text, key text,
    bucket integer) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws(': ', i.error_code, i.error_message) FROM once.intent AS i
     WHERE i.tenant = _failure_text.tenant COLLATE "C" AND i.scope = _failure_text.scope COLLATE "C"
       AND i.key = _failure_text.key COLLATE "C" AND i.bucket = _failure_text.bucket
$$;
