-- SPDX-License-Identifier: PostgreSQL
-- First in a pipeline: raises for a replay too.
SELECT once.begin_new($1::text, $2::text, $3::bytea, $4::text)
