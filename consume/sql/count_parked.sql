-- SPDX-License-Identifier: PostgreSQL
SELECT once.message_count($1::text, $2::text)
