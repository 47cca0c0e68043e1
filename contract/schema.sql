-- SPDX-License-Identifier: PostgreSQL
-- The schema of the tables and of the functions that applications and people call. `pgonce init` runs this once, before the migrations;
-- CREATE EXTENSION creates the schema itself and starts at the table.
CREATE SCHEMA once;
COMMENT ON SCHEMA once IS 'pgonce: one durable effect and one answer per intent';
