-- SPDX-License-Identifier: PostgreSQL
-- once._move_replication_slot(): the name of the replication slot by which pgonce rehome reads this node: unique on the server, which may
-- have several nodes.
CREATE FUNCTION once._move_replication_slot() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT 'pgonce_rehome_' || d.oid FROM pg_database AS d WHERE d.datname = current_database()
$$;
