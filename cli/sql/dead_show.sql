-- SPDX-License-Identifier: PostgreSQL
SELECT once.dead_show($1, $2, $3)
