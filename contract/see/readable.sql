-- SPDX-License-Identifier: PostgreSQL
-- once.readable(bytes, bytes_max): bytes for people, as one JSON document: text, if they are text without control characters; json, the
-- same indented, if it is JSON; hex, a dump, if it is no text. NULL if it is not so. bytes: how many there are; shown_bytes: the first that
-- are shown; cut: there are more. Only the first bytes_max are looked at, and a sixteenth of that in hex.
CREATE FUNCTION once.readable(bytes bytea, bytes_max integer DEFAULT 65536) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    size integer := octet_length(bytes);
    shown bytea := substr(bytes, 1, greatest(bytes_max, 16));
    plain text;
    json text;
    hex text;
BEGIN
    FOR less IN 0 .. 3 LOOP         -- a character may be cut in two
        BEGIN
            plain := convert_from(substr(shown, 1, octet_length(shown) - less), 'UTF8');
            shown := substr(shown, 1, octet_length(shown) - less);
            EXIT;
        EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
            EXIT WHEN octet_length(shown) = size OR octet_length(shown) <= less;
        END;
    END LOOP;
    IF plain COLLATE "C" ~ E'[\\x01-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f]' THEN
        plain := NULL;
    END IF;
    IF plain IS NOT NULL AND octet_length(shown) = size THEN
        BEGIN
            json := jsonb_pretty(plain::jsonb);
        EXCEPTION WHEN OTHERS THEN
            NULL;
        END;
    END IF;
    IF plain IS NULL AND bytes IS NOT NULL THEN
        shown := substr(bytes, 1, greatest(bytes_max / 16, 16));
        hex := (SELECT string_agg(format('%s  %s |%s|', lpad(to_hex(l.n), 8, '0'),
                           rpad(regexp_replace(encode(l.line, 'hex'), '(..)', E'\\1 ', 'g'), 48),
                           regexp_replace(encode(l.line, 'escape'), E'\\\\[0-7]{3}|\\\\\\\\|[\\x01-\\x1f\\x7f]', '.', 'g')), E'\n'
                           ORDER BY l.n)
                  FROM (SELECT n, substr(shown, n + 1, 16) AS line FROM generate_series(0, octet_length(shown) - 1, 16) AS n) AS l);
    END IF;
    RETURN jsonb_build_object('bytes', size, 'shown_bytes', octet_length(shown), 'cut', octet_length(shown) < size, 'json', json,
                              'text', plain, 'hex', hex);
END $$;
