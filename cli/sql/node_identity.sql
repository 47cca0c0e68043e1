-- SPDX-License-Identifier: PostgreSQL
-- --nodes: which database a connection has reached. database: equal for all copies of it, such as a standby; started: when this server
-- started, so both are equal only for two connections to one node; recovers: it is a standby.
SELECT c.system_identifier || ' ' || d.oid AS database, extract(epoch FROM pg_postmaster_start_time()) AS started,
       pg_is_in_recovery() AS recovers
  FROM pg_control_system() AS c CROSS JOIN pg_database AS d WHERE d.datname = current_database()
