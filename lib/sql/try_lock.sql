-- SPDX-License-Identifier: PostgreSQL
SELECT once.try_lock($1::text)
