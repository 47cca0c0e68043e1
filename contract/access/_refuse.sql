-- SPDX-License-Identifier: PostgreSQL
-- once._refuse(code, tenant, scope, key, detail, cause, hint): raises one of once.errors(), naming the intent. cause, hint: if one code
-- has several causes, the end of the sentence and its own hint. A separate function, so that the functions on the hot path contain none
-- of this.
CREATE FUNCTION once._refuse(code text, tenant text, scope text, key text, detail text DEFAULT NULL, cause text DEFAULT NULL,
    hint text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    known record;
    -- At most the beginning of hostile input, and nothing that could break a log line.
    named text := format('tenant=%s scope=%s key=%s', quote_nullable(left(tenant, 80)), quote_nullable(left(scope, 80)),
                         quote_nullable(left(key, 80)));
BEGIN
    named := regexp_replace(named, '[[:cntrl:]]', '?', 'g');
    SELECT * INTO STRICT known FROM once.errors() AS e WHERE e.code = _refuse.code COLLATE "C";
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = concat_ws(': ', 'pgonce', known.message, cause),
        DETAIL = named || coalesce('; ' || detail, ''), HINT = coalesce(hint, known.hint);
END $$;
