-- SPDX-License-Identifier: PostgreSQL
-- once.parked_summary(): how many events and messages wait, by relay or consumer, topic and state, and since when the oldest of them:
-- once.outbox_summary (which includes pending events), the events that no relay takes (once.outbox_untaken; state 'untaken'), the delayed
-- ones (once.outbox_delayed; next_at: when the first is due), and the parked messages. Counts, and so reads, all of them.
CREATE FUNCTION once.parked_summary() RETURNS TABLE (kind text, holder text, topic text, state text, items bigint, oldest timestamptz,
    next_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'event', s.relay, s.topic, s.state, s.events, s.oldest, NULL::timestamptz FROM once.outbox_summary() AS s
     UNION ALL
    SELECT 'event', NULL, u.topic, 'untaken', u.events, u.oldest, NULL FROM once.outbox_untaken() AS u
     UNION ALL
    SELECT 'event', NULL, d.topic, 'delayed', d.events, NULL, d.next_at FROM once.outbox_delayed() AS d
     UNION ALL
    SELECT 'message', m.consumer, m.topic, m.state, count(*), min(m.parked_at), NULL
      FROM once.parked_message AS m GROUP BY m.consumer, m.topic, m.state
$$;
