-- SPDX-License-Identifier: PostgreSQL
-- Whether this role may run ALTER TABLE .. DETACH PARTITION .. CONCURRENTLY on the intents, and this server can.
SELECT pg_has_role(c.relowner, 'USAGE') AND current_setting('server_version_num')::integer >= 140000
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = 'once' AND c.relname = 'intent'
