-- SPDX-License-Identifier: PostgreSQL
-- once._json_text(value): the canonical form of a JSON value (docs/reference/fingerprint.md): its text, each number without trailing zeros
-- after the point, so that 1.0 is 1. Most values have no such number, and the first check finds that out in a microsecond.
CREATE FUNCTION once._json_text(value jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    written text := value::text;
BEGIN
    IF written COLLATE "C" ~ $re$[.][0-9]*0([],}]|$)$re$ THEN
        -- Each match takes everything up to such a number, or up to the end, so that no match begins inside a string.
        RETURN regexp_replace(written COLLATE "C", $re$((?:[^".]|"(?:[^"\\]|\\.)*"|[.][0-9]*[1-9](?:[],}]|$))*)$re$
            || $re$(?:(?:[.]0+|([.][0-9]*[1-9])0+)([],}]|$)|$)$re$, E'\\1\\2\\3', 'g');
    END IF;
    RETURN written;
END $$;
