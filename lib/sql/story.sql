-- SPDX-License-Identifier: PostgreSQL
SELECT once.story($1::text, $2::text, $3::text)::text
