-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_delayed(): the number of delayed events (once.emit_later) by topic, and when the first of them is due. If that was some
-- seconds ago, neither a relay nor the keeper is running, or today's partition is missing. Counts, and so reads, all of them.
CREATE FUNCTION once.outbox_delayed() RETURNS TABLE (topic text, events bigint, next_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT d.topic::text, count(*), min(d.not_before) FROM once.delayed_event AS d GROUP BY d.topic ORDER BY d.topic
$$;
