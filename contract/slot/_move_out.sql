-- SPDX-License-Identifier: PostgreSQL
-- once._move_out(slot): the delayed events, parked messages and consumers' positions of this slot, for once._move_in at the other node.
-- bytes: their size.
CREATE FUNCTION once._move_out(slot integer, OUT memory jsonb, OUT bytes bigint) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET intervalstyle = 'postgres' SET bytea_output = hex SET extra_float_digits = 1 AS $$
#variable_conflict use_variable
BEGIN
    bytes := (SELECT coalesce(sum(pg_column_size(d.*)), 0) FROM once.delayed_event AS d WHERE once.slot_of(d.tenant) = slot)
           + (SELECT coalesce(sum(pg_column_size(p.*)), 0) FROM once.parked_message AS p WHERE once.slot_of(p.tenant) = slot);
    IF bytes <= 67108864 THEN
        memory := jsonb_build_object(
            'delayed_event', (SELECT coalesce(jsonb_agg(to_jsonb(d)), '[]') FROM once.delayed_event AS d
                               WHERE once.slot_of(d.tenant) = slot),
            'parked_message', (SELECT coalesce(jsonb_agg(to_jsonb(p) ORDER BY p.position), '[]') FROM once.parked_message AS p
                                WHERE once.slot_of(p.tenant) = slot),
            'consumer_position', (SELECT coalesce(jsonb_agg(to_jsonb(c)), '[]') FROM once.consumer_position AS c
                                   WHERE once.slot_of(c.tenant) = slot));
    END IF;
END $$;
