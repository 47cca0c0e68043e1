-- SPDX-License-Identifier: PostgreSQL
-- once._is_content_type(content_type): whether it is type/subtype, and a header may hold it at each broker: at most 255 visible ASCII
-- characters, with spaces within. Inlined.
CREATE FUNCTION once._is_content_type(content_type text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT octet_length(content_type) <= 255 AND content_type COLLATE "C" ~ '^[!-~]+/[!-~]([ -~]*[!-~])?$'
$$;
