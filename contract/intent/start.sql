-- SPDX-License-Identifier: PostgreSQL
-- once.start(scope, key, fingerprint, tenant, traceparent): opens an intent whose effect happens in
-- this transaction.
--   proceed  do the effect, then once.finish(...), then COMMIT. ROLLBACK or a crash leaves no trace.
--   replay   the intent is finished: the stored outcome is in the other columns. Do not do the effect.
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
--
-- Why it is written so: this is the hot path, for an intent that is new or has succeeded;
-- everything else is once._start_over's. The lock is taken in a statement before the look-up, so
-- that the look-up's snapshot (READ COMMITTED) sees whatever the last holder committed. The generic
-- plan is forced: for a partitioned table the planner would otherwise plan each call anew; and
-- without sequential scans, because a plan made while the table was empty would stay one. Bucket 0
-- and today (once._today) are constants, so that their plans open and lock one partition and not all.
-- What is in a branch of its own is prepared only where it is met.
-- A replay needs no more than the right to the tenant: what is stored was checked when it was
-- stored. So start looks first where the key's shape says that it would be; what is wrong with the
-- arguments is asked of what is not found there. A shape may deceive, as that of a UUIDv7 in another
-- spelling: such a key is once._start_over's, which looks where it belongs.
CREATE FUNCTION once.start(scope text, key text, fingerprint bytea, tenant text DEFAULT '',
    traceparent text DEFAULT NULL) RETURNS once.started
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    answer once.started;
    bucket integer;
    likely integer;
    fence integer;
    noted text;
    counted bigint;
BEGIN
    IF (once._is_trusted() AND pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key))) IS NOT TRUE THEN
        bucket := once._enter(tenant, scope, key, fingerprint, true);
        IF bucket IS NULL THEN
            RETURN once._start_over(tenant, scope, key, fingerprint, traceparent, true);
        END IF;
    END IF;
    IF key COLLATE "C" NOT LIKE '________-____-7___-____-____________' THEN
        SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded' THEN 'replay' END, 'succeeded', i.response_status,
               i.response_body, i.response_headers, i.result_type, i.result_id, i.error_code, i.error_message, i.fence, i.traceparent
          INTO answer FROM once.intent AS i
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
           AND i.bucket = 0;
        IF FOUND THEN
            IF answer.verdict IS NOT NULL THEN
                counted := CASE WHEN current_setting('transaction_read_only') = 'off' THEN nextval('once.counted_replay') END;
                RETURN answer;
            END IF;
        ELSE
            fence := CASE WHEN once._is_undated(key) AND once._is_usual_call(tenant, scope, fingerprint) THEN once._first_fence() END;
        END IF;
    ELSE
        likely := once._within(key, once._today());
        IF likely IS NOT NULL THEN
            SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded' THEN 'replay' END, 'succeeded', i.response_status,
                   i.response_body, i.response_headers, i.result_type, i.result_id, i.error_code, i.error_message, i.fence, i.traceparent
              INTO answer FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
               AND i.bucket = once._today();
            IF FOUND THEN
                IF answer.verdict IS NOT NULL THEN
                    counted := CASE WHEN current_setting('transaction_read_only') = 'off' THEN nextval('once.counted_replay') END;
                    RETURN answer;
                END IF;
            ELSE    -- still today: else the look-up may have been made on another day
                IF once._is_today(likely) AND once._is_dated(key) AND once._is_usual_call(tenant, scope, fingerprint)
                   AND once._note_first(tenant, scope, key, fingerprint, '1') IS NOT NULL THEN
                    IF traceparent IS NULL THEN
                        RETURN once._proceed();
                    END IF;
                    RETURN ROW('proceed', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, once._trace(traceparent))::once.started;
                END IF;
                fence := CASE WHEN once._is_today(likely) AND once._is_dated(key) AND once._is_usual_call(tenant, scope, fingerprint)
                              THEN 1 END;
            END IF;
        ELSE
            bucket := coalesce(bucket, once._enter(tenant, scope, key, fingerprint, false));
            SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded' THEN 'replay' END, 'succeeded', i.response_status,
                   i.response_body, i.response_headers, i.result_type, i.result_id, i.error_code, i.error_message, i.fence, i.traceparent
              INTO answer FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
               AND i.bucket = bucket;
            IF FOUND THEN
                IF answer.verdict IS NOT NULL THEN
                    counted := CASE WHEN current_setting('transaction_read_only') = 'off' THEN nextval('once.counted_replay') END;
                    RETURN answer;
                END IF;
            ELSE
                IF bucket = 0 THEN
                    fence := once._first_fence();
                ELSIF once._is_open(bucket) THEN
                    fence := 1;
                END IF;
            END IF;
        END IF;
    END IF;
    IF fence IS NULL THEN
        bucket := coalesce(bucket, once._enter(tenant, scope, key, fingerprint, false));
        RETURN once._start_over(tenant, scope, key, fingerprint, traceparent, true);
    ELSIF fence > 1 THEN
        noted := once._note_start(tenant, scope, key, fingerprint, fence::text);
    ELSE
        IF once._note_first(tenant, scope, key, fingerprint, '1') IS NULL THEN
            noted := once._note_start(tenant, scope, key, fingerprint, '1');
        END IF;
        IF traceparent IS NULL THEN
            RETURN once._proceed();
        END IF;
    END IF;
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    RETURN ROW('proceed', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, fence, traceparent)::once.started;
END $$;
