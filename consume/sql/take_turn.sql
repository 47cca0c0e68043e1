-- SPDX-License-Identifier: PostgreSQL
-- If the broker does not keep the messages of a key together, one process at a time runs the consumer, under a session lock.
-- NULL, and no lock: another server process answers than the one that accepted the connection, so there is a pooler.
SELECT CASE WHEN pg_backend_pid() = $3::integer
            THEN pg_try_advisory_lock(hashtextextended('pgonce consume ' || $1::text, hashtext($2::text))) END
