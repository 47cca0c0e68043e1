-- SPDX-License-Identifier: PostgreSQL
-- Settings for an installation or an upgrade, until its transaction ends: no other search_path decides which object a name means, and a
-- function body may use objects that are created later. Citus does not repeat the DDL on other nodes: each node has a separate contract.
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL check_function_bodies = off;
SET LOCAL citus.enable_ddl_propagation = off;
