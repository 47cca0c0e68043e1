-- SPDX-License-Identifier: PostgreSQL
SELECT d.datname FROM pg_catalog.pg_database AS d WHERE d.datname = $1
