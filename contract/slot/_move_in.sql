-- SPDX-License-Identifier: PostgreSQL
-- once._move_in(memory): stores at this node what once._move_out has returned at the other. Parked messages keep their order.
CREATE FUNCTION once._move_in(memory jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO once.delayed_event
    SELECT d.* FROM jsonb_populate_recordset(NULL::once.delayed_event, memory -> 'delayed_event') AS d;
    INSERT INTO once.parked_message (consumer, tenant, message_id, topic, key, headers, payload, fingerprint, state, attempts,
        next_at, error, sqlstate, parked_at, updated_at)
    SELECT p.consumer, p.tenant, p.message_id, p.topic, p.key, p.headers, p.payload, p.fingerprint, p.state, p.attempts, p.next_at, p.error,
           p.sqlstate, p.parked_at, p.updated_at
      FROM jsonb_populate_recordset(NULL::once.parked_message, memory -> 'parked_message') AS p ORDER BY p.position;
    INSERT INTO once.consumer_position
    SELECT c.* FROM jsonb_populate_recordset(NULL::once.consumer_position, memory -> 'consumer_position') AS c;
END $$;
