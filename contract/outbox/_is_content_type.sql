-- SPDX-License-Identifier: PostgreSQL
-- once._is_content_type(content_type): whether it is type/subtype and valid in a header of every broker: at most 255 visible ASCII
-- characters and inner spaces. Inlined.
CREATE FUNCTION once._is_content_type(content_type text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT octet_length(content_type) <= 255 AND content_type COLLATE "C" ~ '^[!-~]+/[!-~]([ -~]*[!-~])?$'
$$;
