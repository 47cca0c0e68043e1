-- SPDX-License-Identifier: PostgreSQL
-- once._emitted_later(tenant, scope, key, kind, day): whether an intent's event was emitted on a later day than the clock says now,
-- because the clock was set back. Called if once.outbox_day_seq is not at this day. Leaves it at this day or later before the event is
-- inserted, so that an emit on an earlier day also calls this function.
CREATE FUNCTION once._emitted_later(tenant text, scope text, key text, kind text, day integer) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    WHILE (pg_sequence_last_value('once.outbox_day_seq') >= day * 256) IS NOT TRUE LOOP
        PERFORM nextval('once.outbox_day_seq');
    END LOOP;
    RETURN EXISTS (SELECT FROM once.outbox AS o
                    WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
                      AND o.event_type = kind COLLATE "C" AND o.day > day);
END $$;
