-- SPDX-License-Identifier: PostgreSQL
SELECT once.fingerprint($1::text::jsonb, $2::text)
