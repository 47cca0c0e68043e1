-- SPDX-License-Identifier: PostgreSQL
-- A schema that is there already is another measurement's, or somebody's own: then this fails, and nothing is touched.
CREATE SCHEMA pgonce_bench
