-- SPDX-License-Identifier: PostgreSQL
-- once.anchor(): for a node of a Citus cluster: from now on the memory commits together with an effect on any node. Adds triggers to the
-- tables of the memory. Call it first on the coordinator, which creates the distributed table public.once_anchor, then on every node with a
-- contract, and again when Citus has moved the shards of that table: until then the node refuses to write (P4097). Returns the shard that
-- it uses; NULL with a NOTICE if the coordinator has no shard. For the owner of the contract. Raises 55000 without Citus, without the
-- table, or on a worker without a shard. Waits for open transactions that have written.
CREATE FUNCTION once.anchor() RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    here integer;
    place record;
    memory text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce slots', 20778));
    IF NOT EXISTS (SELECT FROM pg_extension AS e WHERE e.extname = 'citus') THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: there is no Citus in this database',
            HINT = 'Without it memory and effect are on one node and commit together: there is nothing to do.';
    END IF;
    EXECUTE 'SELECT l.groupid FROM pg_dist_local_group AS l' INTO here;
    IF to_regclass('public.once_anchor') IS NULL THEN
        IF here <> 0 THEN
            RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: there is no table public.once_anchor',
                HINT = 'SELECT once.anchor() on the coordinator first.';
        END IF;
        CREATE TABLE public.once_anchor (n integer PRIMARY KEY);
        EXECUTE 'SELECT create_distributed_table(''public.once_anchor'', ''n'', colocate_with => ''none'', shard_count => 64)';
    END IF;
    EXECUTE 'SELECT n.n, s.shard
               FROM generate_series(1, 10000) AS n (n)
              CROSS JOIN LATERAL get_shard_id_for_distribution_column(''public.once_anchor'', n.n) AS s (shard)
               JOIN pg_dist_placement AS p ON p.shardid = s.shard AND p.groupid = $1
              ORDER BY n.n LIMIT 1' INTO place USING here;
    IF place.shard IS NULL AND here = 0 THEN      -- a coordinator has shards only if it is told to
        RAISE NOTICE 'pgonce: no shard of public.once_anchor is on the coordinator, so its own memory is not anchored';
        RETURN NULL;
    ELSIF place.shard IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: no shard of public.once_anchor is on this node',
            HINT = 'On the coordinator: SELECT citus_set_node_property(host, port, ''shouldhaveshards'', true), then '
                'citus_move_shard_placement of one shard of it to this node, and the property back.';
    END IF;
    PERFORM once._execute_ddl(format('CREATE OR REPLACE FUNCTION once._anchor() RETURNS trigger LANGUAGE plpgsql'
        ' SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS %L', format($body$
BEGIN
    DELETE FROM public.once_anchor AS a WHERE a.n = %s;
    IF NOT EXISTS (SELECT FROM pg_dist_placement AS p WHERE p.shardid = %s AND p.groupid = %s)
       OR current_setting('citus.enable_local_execution') <> 'on' THEN
        PERFORM once._refuse('P4097', NULL, NULL, NULL, 'the anchor''s shard is %s',
            'its anchor has moved, or Citus may not execute locally',
            'SELECT once.anchor() as the owner of the contract; citus.enable_local_execution must be on.');
    END IF;
    RETURN NULL;
END $body$, place.n, place.shard, here, place.shard)));
    -- once.intent_d0 too: batches name it, and a statement that names a partition fires no trigger of the whole table.
    FOREACH memory IN ARRAY ARRAY['intent', 'intent_d0', 'archive', 'outbox', 'delayed_event', 'parked_message'] LOOP
        IF NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = ('once.' || memory)::regclass AND t.tgname = 'anchor') THEN
            PERFORM once._execute_ddl(format('CREATE TRIGGER anchor AFTER INSERT OR UPDATE OR DELETE ON once.%s'
                ' FOR EACH STATEMENT EXECUTE FUNCTION once._anchor()', memory));
        END IF;
    END LOOP;
    RETURN place.shard;
END $$;
