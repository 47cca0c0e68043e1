-- SPDX-License-Identifier: PostgreSQL
-- once._why_not_started(tenant, scope, key, bucket, fingerprint): for the DETAIL of P4012: what is known of the intent, where the
-- request is its own, and what this transaction has started instead, the latest three.
CREATE FUNCTION once._why_not_started(tenant text, scope text, key text, bucket integer, fingerprint bytea) RETURNS text
LANGUAGE sql AS $$
    SELECT concat_ws('; ',
        (SELECT CASE i.state
                    WHEN 'processing' THEN format('it is claimed, under fence %s: once.complete and once.fail report of a claim', i.fence)
                    ELSE format('it is %s: where once.start said replay there is nothing to finish', i.state) END
           FROM once.intent AS i
          WHERE i.tenant = _why_not_started.tenant COLLATE "C" AND i.scope = _why_not_started.scope COLLATE "C"
            AND i.key = _why_not_started.key COLLATE "C" AND i.bucket = _why_not_started.bucket
            AND once._same(i.fingerprint, i.redirects, _why_not_started.fingerprint)),
        'this transaction has started ' || coalesce((
            SELECT string_agg(regexp_replace(format('tenant=%L scope=%L key=%L', left(split_part(n.note, E'\x1f', 2), 80),
                                                    left(split_part(n.note, E'\x1f', 3), 80), left(split_part(n.note, E'\x1f', 4), 80)),
                                             '[[:cntrl:]]', '?', 'g'), ', ' ORDER BY n.number)
                   || CASE WHEN max(n.count) > 3 THEN format(' and %s more', max(n.count) - 3) ELSE '' END
              FROM (SELECT s.note, s.number, count(*) OVER () AS count
                      FROM unnest(string_to_array(current_setting('once.started', true), E'\x1e')) WITH ORDINALITY AS s (note, number)
                     WHERE s.number > 1) AS n
             WHERE n.number <= 4), 'no intent'))
$$;
