-- SPDX-License-Identifier: PostgreSQL
-- once.contract_version(): the version of the contract in this database: the number of its last migration. Clients compare it with
-- theirs.
CREATE FUNCTION once.contract_version() RETURNS integer LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT max(m.version) FROM once.migration AS m
$$;
