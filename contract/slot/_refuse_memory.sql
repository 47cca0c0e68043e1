-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_memory(): raises 55000 if this database remembers an intent, an event or a message: then it cannot join other nodes.
CREATE FUNCTION once._refuse_memory() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    found text;
BEGIN
    SELECT string_agg(r.name, ', ') INTO found
      FROM (SELECT 'intents' WHERE EXISTS (SELECT FROM once.intent)
            UNION ALL SELECT 'archived intents' WHERE EXISTS (SELECT FROM once.archive)
            UNION ALL SELECT 'events' WHERE EXISTS (SELECT FROM once.outbox) OR EXISTS (SELECT FROM once.delayed_event)
            UNION ALL SELECT 'parked messages' WHERE EXISTS (SELECT FROM once.parked_message)) AS r (name);
    IF found IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: a node that joins others must remember nothing',
            DETAIL = format('this database has %s', found), HINT = 'Join with a new database.';
    END IF;
END $$;
