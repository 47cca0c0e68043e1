-- SPDX-License-Identifier: PostgreSQL
-- One process at a time is at work for a consumer whose broker does not keep the messages of a key together. The lock is
-- the session's: NULL, and none is taken, where another process answers than greeted, that of a pooler.
SELECT CASE WHEN pg_backend_pid() = $3::integer
            THEN pg_try_advisory_lock(hashtextextended('pgonce consume ' || $1::text, hashtext($2::text))) END
