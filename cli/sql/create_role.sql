-- SPDX-License-Identifier: PostgreSQL
-- What gives pgonce dev a role of the caller's name, so that programs which name no role get in; no row where it is there. $1: the name.
SELECT pg_catalog.format('CREATE ROLE %I SUPERUSER LOGIN', $1::name)
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.rolname = $1::name)
