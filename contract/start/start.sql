-- SPDX-License-Identifier: PostgreSQL
-- once.start(scope, key, fingerprint, tenant, traceparent): opens an intent whose effect happens in this transaction. Verdicts:
--   proceed         do the effect, then once.finish(...), then COMMIT. ROLLBACK or a crash leaves no trace
--   replay_success  the intent is finished: the stored outcome is in the other columns. Do not do the effect
-- All other verdicts are raised, because a caller that forgets to check must not repeat the effect: P4002 another request, P4029 running,
-- P4030 failed for good, P4031 in doubt, P4041 expired; P4000 P4001 P4003 P4098 for bad input. once.try_start returns them instead. P4014:
-- this transaction has started the intent already, and neither finished it nor rolled back to an earlier savepoint.
--
-- In PL/pgSQL: answer once.started := once.start(...). Its traceparent is the trace of the intent's first attempt, if it is known, else
-- the given one: pass it on to once.finish. It reads only and never waits. It holds the intent's advisory lock until the transaction ends.
--
-- After proceed, an outcome is required. With pgonce_native, or if the setting once.strict is on (SET, ALTER ROLE, ALTER DATABASE: at
-- least for development and CI), COMMIT and PREPARE TRANSACTION fail without it (P4013) and roll the effect back; once.strict = off turns
-- this check off. A start in a read-only transaction requires no outcome. In SQL alone once.strict costs each start a row that is deleted
-- at once, and SET CONSTRAINTS ALL IMMEDIATE checks for the outcome at that point.
--
-- Each start in a transaction costs a little more than the one before: 1,000 of them take 0.05 s, 6,000 take 1.5 s. Commit long batches
-- in parts.
CREATE FUNCTION once.start(scope text, key text, fingerprint bytea, tenant text DEFAULT '',
    traceparent text DEFAULT NULL) RETURNS once.started
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
-- expand: start_body(raises => true)
$$;
