-- SPDX-License-Identifier: PostgreSQL
-- once._start_of(tenant, scope, key, bucket, fingerprint): once._noted_start for once.finish, with errors: raises P4012 if this
-- transaction has not started the intent, and P4015 if it has started it for another request. It compares bytes and not their text, whose
-- form bytea_output may change in between. The DETAIL of P4012 says what is known about the intent, if this is its request, and which
-- intents this transaction has started instead, the latest three.
CREATE FUNCTION once._start_of(tenant text, scope text, key text, bucket integer, fingerprint bytea) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    noted text := current_setting('once.started', true);
    of_intent text := concat_ws(E'\x1f', E'\x1e', tenant, scope, key, '');
    note text := split_part(noted, of_intent, 2);         -- and the older ones
    known text;
    others text;
BEGIN
    IF coalesce(strpos(noted, of_intent), 0) = 0 THEN
        SELECT CASE i.state
                   WHEN 'processing' THEN format('it is claimed, under fence %s: once.complete and once.fail report a claim', i.fence)
                   ELSE format('it is %s: where once.start said replay_success there is nothing to finish', i.state) END
          INTO known FROM once.intent AS i
         WHERE i.tenant = _start_of.tenant COLLATE "C" AND i.scope = _start_of.scope COLLATE "C"
           AND i.key = _start_of.key COLLATE "C" AND i.bucket = _start_of.bucket
           AND once._same(i.fingerprint, i.redirects, _start_of.fingerprint);
        SELECT string_agg(regexp_replace(format('tenant=%L scope=%L key=%L', left(split_part(n.one, E'\x1f', 2), 80),
                                                left(split_part(n.one, E'\x1f', 3), 80), left(split_part(n.one, E'\x1f', 4), 80)),
                                         '[[:cntrl:]]', '?', 'g'), ', ' ORDER BY n.number)
               || CASE WHEN max(n.count) > 3 THEN format(' and %s more', max(n.count) - 3) ELSE '' END
          INTO others
          FROM (SELECT s.one, s.number, count(*) OVER () AS count
                  FROM unnest(string_to_array(noted, E'\x1e')) WITH ORDINALITY AS s (one, number)
                 WHERE s.number > 1) AS n
         WHERE n.number <= 4;
        PERFORM once._refuse('P4012', tenant, scope, key,
                             concat_ws('; ', known, 'this transaction has started ' || coalesce(others, 'no intent')));
    ELSIF split_part(note, E'\x1f', 1)::bytea <> fingerprint THEN
        PERFORM once._refuse('P4015', tenant, scope, key);
    END IF;
    RETURN split_part(note, E'\x1f', 2)::integer;
END $$;
