-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: days that are being retired, and the progress of consumers. Reads tables of the contract, so only its owner can run it.
SELECT 'closing days',
       CASE WHEN count(*) FILTER (WHERE c.started_at < clock_timestamp() - interval '1 day') > 0 THEN 'warning' ELSE 'ok' END,
       coalesce(left(string_agg(format('day %s (%s), %s since %s', c.day, date '1970-01-01' + c.day, c.phase,
           to_char(c.started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')), '; ' ORDER BY c.day), 250), 'none'),
       'a day takes minutes to retire: check the keeper, and what holds it up (long transactions, locks, a lease; the checks above)'
  FROM once.closing AS c
UNION ALL
SELECT 'consumers behind', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce(left(string_agg(format('%s %s: at %s, last report at %s', p.consumer, p.part,
           to_char(p.position AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI'),
           to_char(p.reported_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')), '; ' ORDER BY p.position), 250), 'none'),
       'its inbox is kept as long as its messages may come again: check that pgonce consume runs. If a part no longer exists: '
           || 'once.consumer_report(consumer, NULL, tenant, part)'
  FROM once.consumer_position AS p
 WHERE p.position < clock_timestamp() - interval '1 hour'
