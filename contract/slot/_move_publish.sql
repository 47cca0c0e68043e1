-- SPDX-License-Identifier: PostgreSQL
-- once._move_publish(slots): publishes the memory of these slots: what is inserted and updated, never what is deleted, since this node
-- deletes the memory once it has moved. The row filter is the body of once.slot_of, because a filter may call only built-in functions.
-- Raises 55000 if the server does not accept it. Events stay: this node's relays deliver them. Delayed events, parked messages and the
-- positions of consumers may also be deleted, so they move while the slot is closed (once._move_out). To whom a slot was handed over is a
-- fact of this node alone.
CREATE FUNCTION once._move_publish(slots integer[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    hash text := (SELECT regexp_replace(p.prosrc, E'^\\s*SELECT\\s|;\\s*$', '', 'gi') FROM pg_proc AS p
                   WHERE p.oid = 'once.slot_of(text)'::regprocedure);
    memory text := format('(%s) = ANY (%L::pg_catalog.int4[])', hash, slots);
    moves text := (SELECT string_agg(format('(slot = %s AND epoch > %s)', n, once._slot_state(n) / 2), ' OR ') FROM unnest(slots) AS n);
BEGIN
    PERFORM once._execute_ddl(format('CREATE PUBLICATION pgonce_rehome FOR TABLE once.intent WHERE (%1$s), once.archive WHERE (%1$s),'
        ' once.decision WHERE (%1$s), once.slot_move (slot, epoch, fence_floor, closed_at) WHERE (%2$s)'
        ' WITH (publish = ''insert, update'', publish_via_partition_root = true)', memory, moves));
EXCEPTION WHEN syntax_error OR undefined_column OR undefined_function OR feature_not_supported OR undefined_parameter
               OR invalid_object_definition OR invalid_parameter_value OR datatype_mismatch THEN
    RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: the memory of slots cannot be published',
        DETAIL = SQLERRM, HINT = 'once.slot_of must be one SELECT of built-in functions, and its parameter be called tenant.';
END $$;
