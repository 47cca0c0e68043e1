-- SPDX-License-Identifier: PostgreSQL
-- What the database itself has to tell, sorted by family.
SELECT m.name, m.kind, m.help, m.labels, m.value FROM once.metrics() AS m
