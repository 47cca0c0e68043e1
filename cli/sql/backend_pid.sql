-- SPDX-License-Identifier: PostgreSQL
SELECT pg_catalog.pg_backend_pid()
