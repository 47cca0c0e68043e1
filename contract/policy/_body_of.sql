-- SPDX-License-Identifier: PostgreSQL
-- once._body_of(response_text, response_json): the bytes of an answer given as text or JSON, in UTF-8. Inlined.
CREATE FUNCTION once._body_of(response_text text, response_json jsonb) RETURNS bytea LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT convert_to(coalesce(response_text, response_json::text), 'UTF8')
$$;
