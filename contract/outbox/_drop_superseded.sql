-- SPDX-License-Identifier: PostgreSQL
-- once._drop_superseded(day): deletes the delayed events that once.emit has published on this day: once the day is dropped, nothing would
-- show that they were published. One look-up for each delayed event with a key.
CREATE FUNCTION once._drop_superseded(day integer) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
BEGIN
    DELETE FROM once.delayed_event AS d
     WHERE d.key IS NOT NULL
       AND EXISTS (SELECT FROM once.outbox AS o WHERE o.day = day AND o.tenant = d.tenant AND o.scope = d.scope AND o.key = d.key
                      AND o.event_type = d.event_type);
END $$;
