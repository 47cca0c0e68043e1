-- SPDX-License-Identifier: PostgreSQL
-- once._find_of_event(event, wanted, trace, event_id): the intent of an event that once.find_part has met, whose day and id are in bucket
-- and owner. No row if the intent itself matches, so that it is listed anyway, or if a newer event of it has this trace.
CREATE FUNCTION once._find_of_event(event once.intent, wanted text, trace text, event_id uuid)
RETURNS TABLE (stored once.intent, archived boolean, found_by text) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    day integer := once._bucket(event.key);
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = event.tenant COLLATE "C" AND i.scope = event.scope COLLATE "C" AND i.key = event.key COLLATE "C" AND i.bucket = day;
    archived := NOT FOUND;
    IF archived THEN
        stored := once._archived(event.tenant, event.scope, event.key, day);
    END IF;
    stored.response_body := NULL;
    found_by := CASE WHEN event_id IS NULL THEN 'trace' ELSE 'event' END;
    IF stored.state IS NULL OR wanted IN (stored.result_id, stored.owner, stored.tenant, stored.error_code)
       OR starts_with(stored.key, wanted) OR strpos(lower(stored.error_message), lower(wanted)) > 0
       OR substr(stored.traceparent, 4, 32) = trace COLLATE "C"
       OR (event_id IS NULL AND EXISTS (
           SELECT FROM once.outbox AS o
            WHERE o.tenant = event.tenant COLLATE "C" AND o.scope = event.scope COLLATE "C" AND o.key = event.key COLLATE "C"
              AND substr(o.traceparent, 4, 32) = trace COLLATE "C" AND (o.day, o.id) > (event.bucket, event.owner::bigint))) THEN
        RETURN;
    END IF;
    RETURN NEXT;
END $$;
