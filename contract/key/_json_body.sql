-- SPDX-License-Identifier: PostgreSQL
-- once._json_body(body): the canonical form of a JSON text (docs/reference/fingerprint.md), byte for byte as lib/src/json.c writes it, or
-- NULL if it has none. Patterns decide whether it is JSON that jsonb accepts: the cast would raise an error, and nothing here catches one.
-- Of two members with one name jsonb keeps only the last, so members are counted before and after.
CREATE FUNCTION once._json_body(body bytea) RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    string constant text := E'\x01';
    scalar constant text := E'\x02';
    long constant text := repeat('0', 101);     -- a number that is too long, after each of its characters became a 0
    given text;
    shape text;
    before text;
    members integer;
    canonical text;
BEGIN
    -- Well-formed UTF-8 (RFC 3629) without NUL, its bytes beyond ASCII as \ooo.
    IF octet_length(body) > 1024 * 1024 OR encode(body, 'escape') COLLATE "C" !~ ($re$^(?:[^\\]|\\\\$re$
        || $re$|\\(?:30[2-7]|3[123][0-7]|340\\2[4-7][0-7]|355\\2[0-3][0-7]|(?:34[1-7]|35[0-4]|35[67])\\2[0-7][0-7]$re$
        || $re$|360\\2[2-7][0-7]\\2[0-7][0-7]|36[123]\\2[0-7][0-7]\\2[0-7][0-7]|364\\2[01][0-7]\\2[0-7][0-7])$re$
        || $re$\\2[0-7][0-7])*\Z$re$) THEN
        RETURN NULL;
    END IF;
    given := convert_from(body, 'UTF8');
    IF given COLLATE "C" ~ $re$[\u0001-\u0008\u000b\u000c\u000e-\u001f]$re$ THEN
        RETURN NULL;
    END IF;
    -- Its shape: one character for each string and each other scalar; any other text stays and is refused below.
    shape := regexp_replace(given COLLATE "C", $re$"(?:[^"\\\u0001-\u001f]|\\["\\/bfnrt]|\\u(?!0000)(?:$re$
        || '[0-9a-cefA-CEF][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F]|[dD][0-7][0-9a-fA-F][0-9a-fA-F]'
        || $re$|[dD][89abAB][0-9a-fA-F][0-9a-fA-F]\\u[dD][c-fC-F][0-9a-fA-F][0-9a-fA-F]))*"$re$, string, 'g');
    members := length(shape) - length(replace(shape, ':', ''));
    IF strpos(translate(shape, '123456789.-+eE', '00000000000000'), long) > 0
        OR shape COLLATE "C" ~ '[eE][-+]?0*[1-9][0-9][0-9]' THEN
        RETURN NULL;
    END IF;
    shape := regexp_replace(shape COLLATE "C",
        'true|false|null|-?(?:0|[1-9][0-9]*)(?:[.][0-9]+)?(?:[eE][-+]?[0-9]+)?', scalar, 'g');
    shape := translate(shape, E' \t\n\r', '');
    shape := regexp_replace(shape, string || '(?!:)', scalar, 'g');
    -- A value without an inner array or object becomes one character, repeated for each level of nesting.
    FOR depth IN 1..64 LOOP
        before := shape;
        shape := regexp_replace(shape COLLATE "C",
            $re$\[(?:\u0002(?:,\u0002)*)?\]|\{(?:\u0001:\u0002(?:,\u0001:\u0002)*)?\}$re$, scalar, 'g');
        EXIT WHEN shape = before;
    END LOOP;
    IF shape <> scalar THEN
        RETURN NULL;
    END IF;
    canonical := once._json_text(given::jsonb);
    shape := regexp_replace(canonical COLLATE "C", $re$"(?:[^"\\]|\\.)*"$re$, '', 'g');
    RETURN CASE WHEN length(shape) - length(replace(shape, ':', '')) = members
                    AND strpos(translate(shape, '123456789.-', '00000000000'), long) = 0
        THEN convert_to(canonical, 'UTF8') END;
END $$;
