-- SPDX-License-Identifier: PostgreSQL
-- The inbox's verdict on a message that was parked; a refusal is raised.
SELECT once.receive($1::text, $2::text, $3::bytea, $4::text, traceparent => $5::text, birthdays => true)
