-- SPDX-License-Identifier: PostgreSQL
-- start_body(raises): the body of once.start, which raises if the effect may not run, and of once.try_start, which returns the verdict. A
-- function that both call would cost each start 8,500 instructions.
-- Why it is written so: this is the hot path, for an intent that is new or has succeeded; once._start_over handles everything else. The
-- lock is taken in a statement before the look-up, so that the look-up's snapshot (READ COMMITTED) sees everything that the last holder
-- committed. The generic plan is forced: for a partitioned table the planner would otherwise plan each call again; and without sequential
-- scans, because a plan made while the table was empty would stay one. Bucket 0 and today (once._today) are constants, so that their
-- plans open and lock one partition and not all. Code in a branch of its own is prepared only when it is first reached.
-- A replay needs only the right to the tenant: the stored values were checked when they were stored. So start first looks in the
-- partition that the key's shape suggests, and checks the arguments only if it finds nothing there. A shape can mislead, such as a UUIDv7
-- in another spelling: once._start_over then looks in the right partition.
#variable_conflict use_variable
DECLARE
    answer once.started;
    bucket integer;
    likely integer;
    fence integer;
    noted text;
BEGIN
    IF (once._is_trusted(tenant) AND pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key))) IS NOT TRUE THEN
        bucket := once._check_and_lock(tenant, scope, key, fingerprint, true);
        IF bucket IS NULL THEN
            RETURN once._start_over(tenant, scope, key, fingerprint, traceparent, {raises});
        END IF;
    END IF;
    IF key COLLATE "C" NOT LIKE '________-____-7___-____-____________' THEN
        -- expand: look_up(bucket => 0)
        IF FOUND THEN
            IF answer.verdict IS NOT NULL        -- and count it
               AND (current_setting('transaction_read_only') <> 'off' OR nextval('once.counted_replay') IS NOT NULL) THEN
                RETURN answer;
            END IF;
        ELSE
            fence := CASE WHEN once._is_undated(key) AND once._quick_check(tenant, scope, fingerprint) THEN once._first_fence() END;
        END IF;
    ELSE
        likely := once._match_day(key, once._today());
        IF likely IS NOT NULL THEN
            -- expand: look_up(bucket => once._today())
            IF FOUND THEN
                IF answer.verdict IS NOT NULL        -- and count it
                   AND (current_setting('transaction_read_only') <> 'off' OR nextval('once.counted_replay') IS NOT NULL) THEN
                    RETURN answer;
                END IF;
            ELSE    -- still today? The look-up may have been made on another day
                IF once._is_today(likely) AND once._is_dated(key) AND once._quick_check(tenant, scope, fingerprint)
                   AND once._note_first(tenant, scope, key, fingerprint, '1') IS NOT NULL THEN
                    IF traceparent IS NULL THEN
                        RETURN once._proceed();
                    END IF;
                    RETURN ROW('proceed', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, once._trace(traceparent))::once.started;
                END IF;
                fence := CASE WHEN once._is_today(likely) AND once._is_dated(key) AND once._quick_check(tenant, scope, fingerprint)
                              THEN 1 END;
            END IF;
        ELSE
            bucket := coalesce(bucket, once._check_and_lock(tenant, scope, key, fingerprint, false));
            -- expand: look_up(bucket => bucket)
            IF FOUND THEN
                IF answer.verdict IS NOT NULL        -- and count it
                   AND (current_setting('transaction_read_only') <> 'off' OR nextval('once.counted_replay') IS NOT NULL) THEN
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
        bucket := coalesce(bucket, once._check_and_lock(tenant, scope, key, fingerprint, false));
        RETURN once._start_over(tenant, scope, key, fingerprint, traceparent, {raises});
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
END;
