-- SPDX-License-Identifier: PostgreSQL
SELECT once.salt($1::text)
