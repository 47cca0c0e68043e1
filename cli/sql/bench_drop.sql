-- SPDX-License-Identifier: PostgreSQL
DROP SCHEMA pgonce_bench CASCADE
