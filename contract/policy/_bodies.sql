-- SPDX-License-Identifier: PostgreSQL
-- once._bodies(response_text[], response_json[], response_body[]): once._body for a batch. Raises 22023 if an element gives its body in
-- more than one way.
CREATE FUNCTION once._bodies(response_text text[], response_json jsonb[], response_body bytea[]) RETURNS bytea[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF response_text IS NULL AND response_json IS NULL THEN
        RETURN response_body;
    END IF;
    IF EXISTS (SELECT FROM unnest(response_text, response_json, response_body) AS u (text, json, bytes)
                WHERE num_nonnulls(u.text, u.json, u.bytes) > 1) THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: the body of an answer is given in more than one way',
            HINT = 'Give each element of the batch response_text, response_json or response_body.';
    END IF;
    RETURN ARRAY(SELECT coalesce(u.bytes, convert_to(coalesce(u.text, u.json::text), 'UTF8'))
                   FROM unnest(response_text, response_json, response_body) WITH ORDINALITY AS u (text, json, bytes, ord)
                  ORDER BY u.ord);
END $$;
