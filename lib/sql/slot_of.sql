-- SPDX-License-Identifier: PostgreSQL
SELECT once.slot_of($1::text)
