-- SPDX-License-Identifier: PostgreSQL
-- once.finish(scope, key, fingerprint, outcome..., state, tenant, traceparent): stores the outcome of an intent that this transaction has
-- started (once.start), and returns its body, so that a function can end with RETURN once.finish(...). state is 'succeeded',
-- 'failed_final', or 'failed_retryable' (the next start proceeds again). It writes one row version and never waits.
--
-- The body of the answer is response_text, response_json (stored as PostgreSQL writes jsonb) or response_body: bytes, of type bytea and
-- never an untyped literal, which PostgreSQL would read as escapes ('\x41' is an A). A parameter of a driver that sends no type needs a
-- cast: $5::bytea. An error_code is cut to 255 characters, an error_message to 4096: a failure can always be stored. traceparent (W3C) is
-- stored with the intent, unless an earlier attempt stored its own; a malformed one is ignored.
--
-- Call it outside of any savepoint that may still be rolled back: ROLLBACK TO would remove the outcome, and COMMIT would keep the effect
-- from before the savepoint.
--
-- Raises P4012 if this transaction has not started the intent: then nothing guards the effect; the DETAIL says what it has started. P4015
-- for another fingerprint than that of start, P4010 if the intent is finished already, P4060 for an outcome that is too large, 22023 for
-- an invalid outcome; 40001 if another transaction finished it first (isolation levels above READ COMMITTED): retry the transaction.
--
-- Why it is written so: one INSERT and no look-up; ON CONFLICT DO NOTHING turns a race under REPEATABLE READ into 40001 and needs no
-- EXCEPTION block, which would start a subtransaction. It does more only for a row left by a leased attempt. The INSERT is not plain, as
-- that of finish_new is: a second finish, or a claim, of the same transaction may have stored the row. The day is not checked again: it
-- was open at the start, and the look-up has locked its partition since. Small bodies skip the policy: response_bytes_max is never below
-- 8192. Each expression that a transaction reaches costs 2,000 instructions, so one asks all that is usual, and the INSERT supplies what
-- is the same for all keys of a kind. search_path is the only setting: each costs a call 3,000, and an INSERT of VALUES has only one plan.
-- What start has checked is checked again: its note is a setting, and a caller who sets it by hand would store invalid names.
CREATE FUNCTION once.finish(scope text, key text, fingerprint bytea, response_status integer DEFAULT NULL,
    response_text text DEFAULT NULL, response_json jsonb DEFAULT NULL, response_body anynonarray DEFAULT NULL::bytea,
    response_headers jsonb DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL, state text DEFAULT 'succeeded',
    error_code text DEFAULT NULL, error_message text DEFAULT NULL, tenant text DEFAULT '', traceparent text DEFAULT NULL) RETURNS bytea
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    bucket integer;
    now timestamptz := clock_timestamp();
    fence integer;
BEGIN
    -- expand: outcome_arguments()
    -- The check for the usual arguments, in one expression for each kind of key; once._check_and_lock for the others. A UUIDv7 of today
    -- leaves no fence: it is 1. Another key leaves no bucket: it is 0.
    IF key COLLATE "C" LIKE '________-____-7___-____-____________' THEN
        bucket := CASE WHEN once._quick_check(tenant, scope, fingerprint) AND once._is_trusted(tenant) AND once._is_dated(key)
                            AND once._has_started(tenant, scope, key, fingerprint)
                            AND state IN ('succeeded', 'failed_final', 'failed_retryable')
                            AND once._is_usual(response_status, response_body, result_type, result_id)
                       THEN once._match_day(key, once._today()) END;
    ELSE
        fence := CASE WHEN once._quick_check(tenant, scope, fingerprint) AND once._is_trusted(tenant) AND once._is_undated(key)
                           AND state IN ('succeeded', 'failed_final', 'failed_retryable')
                           AND once._is_usual(response_status, response_body, result_type, result_id)
                      THEN once._noted_start(tenant, scope, key, fingerprint) END;
    END IF;
    IF (bucket IS NULL AND fence IS NULL) OR response_headers IS NOT NULL THEN
        IF bucket IS NULL AND fence IS NULL THEN
            bucket := once._check_and_lock(tenant, scope, key, fingerprint, false);
            fence := once._start_of(tenant, scope, key, bucket, fingerprint);
        END IF;
        IF (state IN ('succeeded', 'failed_final', 'failed_retryable')
            AND once._is_plain(response_status, response_body, response_headers, result_type, result_id)) IS NOT TRUE THEN
            PERFORM once._check_outcome(tenant, scope, key,
                ROW(response_status, response_body, response_headers, result_type, result_id, NULL, NULL));
            IF (state IN ('succeeded', 'failed_final', 'failed_retryable')) IS NOT TRUE THEN
                RAISE EXCEPTION USING ERRCODE = '22023',
                    MESSAGE = format('pgonce: an intent cannot be finished as %s', quote_nullable(left(state, 80))),
                    DETAIL = format('tenant=%L scope=%L key=%L', tenant, scope, key),
                    HINT = 'Use succeeded, failed_final or failed_retryable.';
            END IF;
            PERFORM once._refuse_day(tenant, scope, key, coalesce(bucket, 0));
        END IF;
    END IF;
    -- expand: insert_outcome(bucket => coalesce(bucket, 0), fence => coalesce(fence, 1), then => ON CONFLICT DO NOTHING;)
    IF FOUND AND nextval('once.counted_new') IS NOT NULL THEN       -- counts it
        RETURN response_body;
    END IF;
    PERFORM once._finish_over(tenant, scope, key, coalesce(bucket, 0), fingerprint, state,
        ROW(response_status, response_body, response_headers, result_type, result_id, left(error_code, 255), left(error_message, 4096)),
        traceparent);
    RETURN response_body;
END $$;
