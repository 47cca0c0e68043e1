-- SPDX-License-Identifier: PostgreSQL
-- One installation at a time in this database; held until the transaction ends.
SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('pgonce init', 20778))
