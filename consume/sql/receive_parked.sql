-- SPDX-License-Identifier: PostgreSQL
-- The inbox for a message that was parked; what it refuses is raised.
SELECT once.receive($1::text, $2::text, $3::bytea, $4::text, traceparent => $5::text, birthdays => true)
