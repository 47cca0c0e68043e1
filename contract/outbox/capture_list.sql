-- SPDX-License-Identifier: PostgreSQL
-- once.capture_list(): the replication slots that count as relays (once.add_capture), with their current state.
--   state       'active': a client is connected; 'idle': none is; 'broken': nothing follows the slot until once.relay_adopt
--   why         why it is broken: it is gone, invalidated, or that of another server
--   since       since when it is broken; else when it was last seen to have passed everything committed before
--   confirmed   how far the client has confirmed the WAL
--   behind      bytes of WAL that it has not confirmed
--   kept        bytes of WAL that the server keeps for it
--   wal_status  of pg_replication_slots; 'unreserved' is the last warning before 'lost'
CREATE FUNCTION once.capture_list() RETURNS TABLE (slot text, state text, why text, since timestamptz, confirmed pg_lsn,
    behind bigint, kept bigint, wal_status text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT c.slot::text, CASE WHEN coalesce(c.broken, s.why) IS NOT NULL THEN 'broken' WHEN s.active THEN 'active' ELSE 'idle' END,
           coalesce(c.broken, s.why), CASE WHEN c.broken IS NULL THEN r.progressed_at ELSE c.broken_since END, s.confirmed,
           (s.written - s.confirmed)::bigint,
           (s.written - s.restart)::bigint, s.wal_status
      FROM once.capture AS c
      JOIN once.relay AS r ON r.relay = c.slot
     CROSS JOIN LATERAL once._slot(c.slot, c.server) AS s
     ORDER BY c.slot;
END $$;
