-- SPDX-License-Identifier: PostgreSQL
UPDATE once.migration AS m
   SET name = $1, checksum = $2, pgonce = $3, installed_at = pg_catalog.clock_timestamp(), installed_by = session_user
 WHERE m.version = 0
