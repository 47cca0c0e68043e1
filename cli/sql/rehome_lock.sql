-- SPDX-License-Identifier: PostgreSQL
-- pgonce rehome: one at a time for each node, until the connection ends. False: another runs, or both nodes are one. Also sets what
-- it needs in place of the role's own settings.
SELECT pg_try_advisory_lock(hashtextextended('pgonce rehome', 20778)),
       set_config('default_transaction_isolation', 'read committed', false), set_config('statement_timeout', '0', false),
       set_config('lock_timeout', '0', false),
       CASE WHEN current_setting('idle_session_timeout', true) IS NOT NULL THEN set_config('idle_session_timeout', '0', false) END
