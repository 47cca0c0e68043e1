-- SPDX-License-Identifier: PostgreSQL
-- The first two statements of every installation, as tools/contract.py has them.
SET LOCAL search_path = pg_catalog, pg_temp;
