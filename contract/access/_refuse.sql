-- SPDX-License-Identifier: PostgreSQL
-- once._refuse(code, tenant, scope, key, detail, cause, hint): raises one of once.errors(), naming the intent. cause, hint: where
-- one code has several causes, the sentence's end and what to do then. Its own function, so that the functions on the hot path
-- carry none of this.
CREATE FUNCTION once._refuse(code text, tenant text, scope text, key text, detail text DEFAULT NULL, cause text DEFAULT NULL,
    hint text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    known record;
    -- At most a glimpse of hostile input, and nothing that could break a line of a log.
    named text := format('tenant=%s scope=%s key=%s', quote_nullable(left(tenant, 80)), quote_nullable(left(scope, 80)),
                         quote_nullable(left(key, 80)));
BEGIN
    named := regexp_replace(named, '[[:cntrl:]]', '?', 'g');
    SELECT * INTO STRICT known FROM once.errors() AS e WHERE e.code = _refuse.code COLLATE "C";
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = concat_ws(': ', 'pgonce', known.message, cause),
        DETAIL = named || coalesce('; ' || detail, ''), HINT = coalesce(hint, known.hint);
END $$;
