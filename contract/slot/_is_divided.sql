-- SPDX-License-Identifier: PostgreSQL
-- once._is_divided(): whether once.divide has made this a node that shares the tenants with others.
CREATE FUNCTION once._is_divided() RETURNS boolean LANGUAGE sql AS $$ SELECT to_regclass('once.slot_0_seq') IS NOT NULL $$;
