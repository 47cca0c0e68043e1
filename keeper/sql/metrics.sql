-- SPDX-License-Identifier: PostgreSQL
-- What the database itself has to tell, sorted by family. Texts: numbers as PostgreSQL prints them.
SELECT m.name, m.kind, m.help, m.labels::text, m.value::text FROM once.metrics() AS m
