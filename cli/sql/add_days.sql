-- SPDX-License-Identifier: PostgreSQL
SELECT once.add_days() AS made
