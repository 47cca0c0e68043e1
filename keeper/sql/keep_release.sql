-- SPDX-License-Identifier: PostgreSQL
-- The lease, given back.
SELECT once.keep_release($1::text)
