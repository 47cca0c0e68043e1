-- SPDX-License-Identifier: PostgreSQL
-- pgonce doctor: the slots of a node that shares the tenants with others (once.divide). By the catalogs, and once.slots.
WITH sequences AS (
    SELECT count(*) AS there
      FROM generate_series(0, 63) AS n WHERE to_regclass(format('once.slot_%s_seq', n)) IS NOT NULL
), guard AS (
    SELECT p.prosrc <> ' SELECT true ' AS there FROM pg_catalog.pg_proc AS p WHERE p.oid = to_regprocedure('once._serves(text)')
)
SELECT 'slots', CASE WHEN s.there = 0 AND g.there IS NOT TRUE OR s.there = 64 AND g.there THEN 'ok' ELSE 'failed' END,
       CASE WHEN s.there = 0 AND g.there IS NOT TRUE
            THEN 'not divided: this node serves every tenant'
            WHEN s.there = 64 AND g.there
            THEN (SELECT format('%s of 64 are open here', count(*) FILTER (WHERE l.open)) FROM once.slots() AS l)
            WHEN s.there = 64 THEN 'the node is divided, and calls do not ask whether a slot is open: closed slots are served too'
            ELSE format('%s of 64 sequences once.slot_N_seq are missing', 64 - s.there) END,
       CASE WHEN s.there = 64 THEN 'CALL once.divide() as the owner of the contract puts the guard back (a restore loses it)'
            ELSE 'find out from the other nodes (once.slots()) whether the slot is open there, then create its sequence with the '
                 || 'state that it had: twice its epoch, plus one if it is open here' END
  FROM sequences AS s CROSS JOIN (SELECT bool_or(guard.there) AS there FROM guard) AS g
