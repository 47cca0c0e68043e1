-- SPDX-License-Identifier: PostgreSQL
-- once._intent_without_answer(): an expression for row i of once.intent or once.archive as once.intent, without its fingerprints, body and
-- headers, so that a look at many intents reads no bodies.
CREATE FUNCTION once._intent_without_answer() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT format('ROW(%s)::once.intent', string_agg(
               CASE WHEN a.attname IN ('fingerprint', 'redirects', 'response_body', 'response_headers') THEN 'NULL'
                    ELSE format('i.%I', a.attname) END, ', ' ORDER BY a.attnum))
      FROM pg_attribute AS a WHERE a.attrelid = 'once.intent'::regclass AND a.attnum > 0 AND NOT a.attisdropped
$$;
