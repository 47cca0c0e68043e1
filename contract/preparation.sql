-- SPDX-License-Identifier: PostgreSQL
-- Under what an installation and an upgrade are made, until their transaction ends: nobody's search_path decides what is meant, and a
-- body may name what only comes after it.
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL check_function_bodies = off;
