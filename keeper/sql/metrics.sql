-- SPDX-License-Identifier: PostgreSQL
-- The database's own metrics, sorted by family. All texts: numbers as PostgreSQL prints them.
SELECT m.name, m.kind, m.help, m.labels::text, m.value::text FROM once.metrics() AS m
