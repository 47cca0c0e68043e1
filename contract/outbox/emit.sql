-- SPDX-License-Identifier: PostgreSQL
-- once.emit(topic, payload, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent): appends an event to the
-- outbox, in the effect's own transaction: it exists if and only if the effect does. Returns its id. event_type defaults to the topic.
-- Events of one aggregate are published in order. traceparent (W3C): the trace of the event, if it is not that of its intent; a malformed
-- one is ignored.
--
-- With scope and key (the intent that causes it), a second emit of the same event_type is the same event, and raises P4051 if its payload
-- differs. Its id is derived from the intent and the installation's salt, so that consumers recognise a repetition even across attempts,
-- and no event of another installation has the same id.
--
-- Raises 22023 for a missing topic or payload, and if tenant, scope, key and event_type have more than 2600 bytes in total; P4060 if the
-- payload, as text, is larger than event_bytes_max of its scope (else of the default policy), or the headers are larger than 64 KiB; P4098
-- if the day has no partition; 40001 if a transaction above READ COMMITTED began on another day. A transaction that began today does not
-- see an event of yesterday that was committed after its snapshot: there finish, complete or receive, in the same transaction, raises
-- 40001. It sends no NOTIFY, whose lock serialises commits.
CREATE FUNCTION once.emit(topic text, payload jsonb, aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL,
    event_type text DEFAULT NULL, scope text DEFAULT NULL, key text DEFAULT NULL, headers jsonb DEFAULT NULL, tenant text DEFAULT '',
    traceparent text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
-- expand: emit_body(usual => octet_length(payload::text) <= 8192, given => payload, json => payload, bytes => NULL, NULL)
$$;
