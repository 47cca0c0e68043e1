-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: change data capture: slots that count as relays, and what is published. Reads tables of the contract: for its owner.
WITH captures AS (
    SELECT c.slot, c.state, c.why, c.wal_status, c.kept FROM once.capture_list() AS c
), published AS (
    -- One of all tables is for copies of the database, as a rule.
    SELECT DISTINCT p.pubname, p.pubviaroot
      FROM pg_catalog.pg_publication AS p
      JOIN pg_catalog.pg_publication_rel AS r ON r.prpubid = p.oid
     WHERE r.prrelid = 'once.outbox'::regclass
        OR r.prrelid IN (SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = 'once.outbox'::regclass)
), strangers AS (
    SELECT s.slot_name FROM pg_catalog.pg_replication_slots AS s
     WHERE s.database = current_database() AND NOT s.temporary AND EXISTS (SELECT FROM published)
       AND NOT EXISTS (SELECT FROM captures AS c WHERE c.slot = s.slot_name)
)
SELECT 'captures', CASE WHEN count(*) = 0 THEN 'ok' WHEN bool_or(state = 'broken') THEN 'failed' ELSE 'warning' END,
       coalesce(left(string_agg(format('%s: %s', slot, CASE WHEN state = 'broken' THEN why ELSE concat_ws(', ', CASE state WHEN 'idle'
           THEN 'no client is connected' END, 'WAL ' || wal_status, pg_size_pretty(kept) || ' kept') END), '; ' ORDER BY slot), 250),
           'each has its client'),
       'start its client. Broken: have the client create its slot again and read the table, then once.relay_adopt(slot, reason); '
           || 'until then the outbox is held. No longer needed: pg_drop_replication_slot, and once.drop_relay'
  FROM captures WHERE state <> 'active' OR wal_status NOT IN ('reserved', 'extended')
UNION ALL
SELECT 'slots that count', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce(left(string_agg(slot_name, ', ' ORDER BY slot_name), 200), 'all that may read the outbox'),
       'a publication has once.outbox, and a slot does not count as a relay: if it is for events, once.add_capture(slot), or days are '
           || 'dropped that it has not passed'
  FROM strangers
UNION ALL
SELECT 'publication', CASE count(*) WHEN 0 THEN 'ok' ELSE 'warning' END,
       coalesce(left(string_agg(pubname, ', ' ORDER BY pubname), 200), 'by the root, or not at all'),
       'ALTER PUBLICATION ... SET (publish_via_partition_root = true): otherwise events come from a table for each day'
  FROM published WHERE NOT pubviaroot
