-- SPDX-License-Identifier: PostgreSQL
-- Notes the failure of a step.
SELECT once.keep_failed($1::text, $2::text, $3::text, $4::text)
