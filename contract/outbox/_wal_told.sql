-- SPDX-License-Identifier: PostgreSQL
-- once._wal_told(): whether the contract's owner may ask the server how far its WAL is written and flushed. Managed servers may revoke
-- that from everyone; Aurora has the functions and refuses them, unless wal_level is logical.
CREATE FUNCTION once._wal_told() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT has_function_privilege('pg_current_wal_insert_lsn()', 'execute')
           AND has_function_privilege('pg_current_wal_flush_lsn()', 'execute')
           AND (to_regproc('pg_catalog.aurora_version') IS NULL OR current_setting('wal_level') = 'logical')
$$;
