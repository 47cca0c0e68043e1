-- SPDX-License-Identifier: PostgreSQL
-- once._move_facts(): what pgonce rehome must know of a node, beside once._node. archive: the first days of the archive's months.
-- statement_timeout: that of a new connection, in milliseconds. slots: for each, its epoch, whether it is open, and the node that it was
-- handed over to with this epoch (null: none).
CREATE FUNCTION once._move_facts() RETURNS jsonb LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_build_object(
        'server_version', current_setting('server_version_num')::integer,
        'wal_level', current_setting('wal_level'),
        'standby', pg_is_in_recovery(),
        'now', date_part('epoch', clock_timestamp()),
        'skew', (SELECT date_part('epoch', s.clock_skew) FROM once.setting AS s WHERE s.only_row),
        'closed_before', (SELECT s.closed_before FROM once.setting AS s WHERE s.only_row),
        'closing', (SELECT coalesce(jsonb_agg(c.day ORDER BY c.day), '[]') FROM once.closing AS c WHERE c.phase <> 'look'),
        'archive', (SELECT coalesce(jsonb_agg(to_date(right(c.relname, 6), 'YYYYMM') - date '1970-01-01'), '[]')
                      FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
                     WHERE h.inhparent = 'once.archive'::regclass AND c.relname ~ '^archive_[0-9]{6}$'),
        'replicates', (SELECT r.rolsuper OR r.rolreplication FROM pg_roles AS r WHERE r.rolname = current_user),
        'subscribes', (SELECT r.rolsuper FROM pg_roles AS r WHERE r.rolname = current_user)
            OR coalesce((SELECT pg_has_role(r.oid, 'USAGE') FROM pg_roles AS r WHERE r.rolname = 'pg_create_subscription'), false),
        'sees_standbys', pg_has_role('pg_read_all_stats', 'USAGE'),
        'statement_timeout', (SELECT s.reset_val::bigint FROM pg_settings AS s WHERE s.name = 'statement_timeout'),
        'replication_slot', once._move_replication_slot(),
        'slots', (SELECT jsonb_agg(jsonb_build_array(s.epoch, s.open, m.handed_to) ORDER BY s.slot)
                    FROM once.slots() AS s LEFT JOIN once.slot_move AS m ON m.slot = s.slot AND m.epoch = s.epoch))
$$;
