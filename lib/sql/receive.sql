-- SPDX-License-Identifier: PostgreSQL
SELECT once.receive($1::text, $2::text, $3::bytea, $4::text, traceparent => $5::text) = 'process'
