-- SPDX-License-Identifier: PostgreSQL
-- One installation at a time in this database; held until the transaction ends. From then on no lock is waited for longer than 5 seconds,
-- unless lock_timeout is set: behind an upgrade that waits for a table, all who use that table wait.
SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('pgonce init', 20778)),
       pg_catalog.set_config('lock_timeout', CASE pg_catalog.current_setting('lock_timeout') WHEN '0' THEN '5s'
           ELSE pg_catalog.current_setting('lock_timeout') END, true)
