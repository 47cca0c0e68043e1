-- SPDX-License-Identifier: PostgreSQL
-- A time, as the server reads it.
SELECT to_json($1::timestamptz)
