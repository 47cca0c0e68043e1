-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor --nodes: what a node still remembers of slots that are closed there, which a move deletes when it is done; and what a
-- move has made here and not removed. NULL: nothing. Reads all intents.
WITH closed AS (SELECT array_agg(s.slot) AS slots FROM once.slots() AS s WHERE NOT s.open),
     remembered AS (
    SELECT r.kind, once.slot_of(r.tenant) AS slot, count(*) AS rows
      FROM (SELECT 'intents' AS kind, i.tenant FROM once.intent AS i
            UNION ALL SELECT 'archived intents', a.tenant FROM once.archive AS a
            UNION ALL SELECT 'decisions', d.tenant FROM once.decision AS d
            UNION ALL SELECT 'positions of consumers', c.tenant FROM once.consumer_position AS c
            UNION ALL SELECT 'delayed events', d.tenant FROM once.delayed_event AS d
            UNION ALL SELECT 'parked messages', m.tenant FROM once.parked_message AS m) AS r
     WHERE once.slot_of(r.tenant) = ANY ((SELECT c.slots FROM closed AS c)::integer[])
     GROUP BY 1, 2
), made AS (
    SELECT 'publication ' || p.pubname AS name FROM pg_publication AS p WHERE p.pubname = 'pgonce_rehome'
    UNION ALL SELECT 'subscription ' || s.subname FROM pg_subscription AS s
     WHERE s.subname = 'pgonce_rehome' AND s.subdbid = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    UNION ALL SELECT 'replication slot ' || r.slot_name FROM pg_replication_slots AS r
     WHERE starts_with(r.slot_name, 'pgonce_rehome_') AND r.database = current_database()
)
SELECT (SELECT string_agg(k.text, ', ' ORDER BY k.text)
          FROM (SELECT sum(r.rows) || ' ' || r.kind AS text FROM remembered AS r GROUP BY r.kind) AS k)
           || ' of slots '
           || (SELECT string_agg(d.slot::text, ' ' ORDER BY d.slot) FROM (SELECT DISTINCT r.slot FROM remembered AS r) AS d),
       (SELECT string_agg(m.name, ', ' ORDER BY m.name) FROM made AS m)
