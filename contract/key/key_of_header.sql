-- SPDX-License-Identifier: PostgreSQL
-- once.key_of_header(value): the key in the value of an Idempotency-Key header, as the gateway reads it: a quoted string (RFC 8941), its
-- parameters checked and ignored, or a bare key. `abc` and `"abc"` are one key. NULL gives NULL, which start refuses. Raises P4001 if the
-- gateway would answer 400, with the gateway's sentence in the detail. Specified in docs/reference/fingerprint.md.
CREATE FUNCTION once.key_of_header(value text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given text := btrim(value, ' ');
    quoted boolean := left(given, 1) = '"';
    -- The longest prefix that can be a key. If it is not the whole value, the text after it gives the reason.
    written text := substring(given COLLATE "C"
        FROM CASE WHEN quoted THEN $re$^"(?:[^"\\]|\\["\\])*$re$ ELSE $re$^[^ "\\,;]*$re$ END);
    rest text := substr(given, length(written) + 1);
    key text := CASE WHEN quoted THEN regexp_replace(substr(written, 2) COLLATE "C", $re$\\(.)$re$, E'\\1', 'g') ELSE written END;
    fault text;
BEGIN
    fault := CASE
        WHEN value COLLATE "C" ~ '[^ -~]' THEN 'The key''s header holds a control character or one that is not ASCII.'
        WHEN given = '' THEN 'The key is empty.'
        WHEN length(key) > 255 THEN 'The key is too long.'
        WHEN NOT quoted AND rest <> '' THEN
            'The key must be a quoted string, such as "8e03978e-40d5-43dd-bc93-6894a57f9324"; '
            || 'without quotes it holds characters that are not allowed there, or quotes are required.'
        WHEN quoted AND length(rest) > 1 AND left(rest, 1) = E'\\' THEN
            'In a quoted key a backslash must be followed by a quote or a backslash.'
        WHEN quoted AND left(rest, 1) <> '"' THEN 'The key begins with a quote and has no closing one.' END;
    IF fault IS NULL AND quoted THEN
        -- RFC 8941, section 3.1.2: parameters, each a name and an optional number, token, string, boolean or bytes.
        rest := regexp_replace(substr(rest, 2) COLLATE "C", '^(?:; *[a-z*][a-z0-9_.*-]*(?:(?![a-z0-9_.*=-])|=(?:'
            || '-?[0-9]{1,15}(?![0-9.])|-?[0-9]{1,12}[.][0-9]{1,3}(?![0-9])|[A-Za-z*][A-Za-z0-9!#$%&''*+.^_`|~:/-]*'
            || $re$|"(?:[^"\\]|\\["\\])*"|[?][01]|$re$
            || ':(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?:)))*', '');
        fault := CASE
            WHEN left(rest, 1) = ';' THEN 'A parameter after the quoted key is malformed.'
            WHEN rest <> '' THEN
                'After the quoted key comes something that is not a parameter; a list of keys is not allowed.'
            WHEN key = '' THEN 'The key is empty.' END;
    END IF;
    IF fault IS NOT NULL THEN
        PERFORM once._refuse('P4001', NULL, NULL, value, fault);
    END IF;
    RETURN key;
END $$;
