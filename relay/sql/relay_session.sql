-- SPDX-License-Identifier: PostgreSQL
-- Settings of the relay's session, which override those of the role and the database: no time limit that ends it while
-- it is idle, flushed commits, and a server that notices within seconds that the client is gone, so that another can
-- take over. Settings that this server does not have are left out. Also the server process: a pooler shows by it.
SELECT pg_backend_pid() AS pid, count(set_config(s.name, v.value, false)) AS set
  FROM (VALUES ('statement_timeout', '10min'), ('lock_timeout', '0'), ('idle_in_transaction_session_timeout', '60s'),
               ('idle_session_timeout', '0'), ('transaction_timeout', '0'), ('synchronous_commit', 'on'),
               ('default_transaction_isolation', 'read committed'), ('default_transaction_read_only', 'off'),
               ('tcp_keepalives_idle', '2'), ('tcp_keepalives_interval', '2'), ('tcp_keepalives_count', '3'),
               ('tcp_user_timeout', '8000'), ('client_encoding', 'UTF8'), ('TimeZone', 'UTC'),
               ('client_min_messages', 'warning'), ('application_name', 'pgonce relay ' || $1::text)) AS v (name, value)
  JOIN pg_settings AS s ON s.name = v.name
