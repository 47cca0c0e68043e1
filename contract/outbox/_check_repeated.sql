-- SPDX-License-Identifier: PostgreSQL
-- once._check_repeated(...): raises P4051 if an intent emits an event of this type again with another content.
CREATE FUNCTION once._check_repeated(tenant text, scope text, key text, kind text, topic text, payload jsonb,
    payload_bytes bytea, content_type text, headers jsonb) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    first once.outbox;
BEGIN
    SELECT o.* INTO first FROM once.outbox AS o
     WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
       AND o.event_type = kind COLLATE "C";
    IF first.topic <> topic COLLATE "C" OR first.payload_bytes IS DISTINCT FROM payload_bytes
       OR first.content_type IS DISTINCT FROM content_type COLLATE "C" OR (payload_bytes IS NULL AND first.payload <> payload)
       OR first.headers IS DISTINCT FROM headers THEN
        PERFORM once._refuse('P4051', tenant, scope, key, format('event_type=%s event_id=%s', kind, first.event_id));
    END IF;
END $$;
