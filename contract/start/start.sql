-- SPDX-License-Identifier: PostgreSQL
-- once.start(scope, key, fingerprint, tenant, traceparent): opens an intent whose effect happens in
-- this transaction.
--   proceed         do the effect, then once.finish(...), then COMMIT. ROLLBACK or a crash leaves no trace.
--   replay_success  the intent is finished: the stored outcome is in the other columns. Do not do the effect.
-- once.started is (verdict, state, response_status, response_body, response_headers, result_type,
-- result_id, error_code, error_message, fence, traceparent); in PL/pgSQL: answer once.started :=
-- once.start(...). Its traceparent is the trace that the intent was first attempted in, where it is
-- known, else the given one: pass it on to once.finish.
-- Everything else is raised, because a caller who forgets to look must not do the effect twice:
-- P4002 another request, P4029 running, P4030 failed for good, P4031 in doubt, P4041 expired, P4000
-- P4001 P4003 P4098 bad input; once.try_start returns these as verdicts. P4014: this transaction has
-- started the intent already, and neither finished it nor rolled back to a savepoint before.
-- Reads only; never waits. Holds the intent's advisory lock until the transaction ends.
-- A start that says proceed owes an outcome. With pgonce_native, or where the setting once.strict is
-- on (SET, ALTER ROLE, ALTER DATABASE: for development and CI at least), COMMIT and PREPARE TRANSACTION
-- fail without it (P4013), and take the effect back; once.strict = off asks nobody. A start in a
-- read-only transaction owes none. In SQL alone once.strict costs each start a row that is deleted
-- at once, and SET CONSTRAINTS ALL IMMEDIATE asks for the outcome there and then.
-- The transaction notes what it has started, so that each start costs a little more than the one
-- before: 1,000 of them take 0.05 s, 6,000 take 1.5 s. Commit long batches in parts.
CREATE FUNCTION once.start(scope text, key text, fingerprint bytea, tenant text DEFAULT '',
    traceparent text DEFAULT NULL) RETURNS once.started
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
-- expand: start_body(raises => true)
$$;
