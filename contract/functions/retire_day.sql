-- SPDX-License-Identifier: PostgreSQL
-- once.retire_day(bucket): closes a day of UUIDv7 keys for good, and all days before it, and drops their partitions. Rows
-- that must outlive their day move to once.archive in the same transaction: outcomes whose retention has not passed, and
-- everything in doubt (a stale attempt becomes in doubt: nobody knows). Returns how many moved. Refused (55006) while an
-- attempt of such a day holds a lease, and for days within the horizon (22023). Afterwards a late retry is answered from
-- the archive or with P4041; it never runs again. Waits for open transactions, at most lock_timeout. Call it in READ
-- COMMITTED (55000): an older snapshot would not show the last intents.
CREATE FUNCTION once.retire_day(bucket integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_variable
DECLARE
    setting once.setting;
    today integer := floor(date_part('epoch', clock_timestamp()) / 86400);
    now timestamptz := clock_timestamp();
    month date;
    busy once.intent;
    moved bigint := 0;
    older integer;
    survivors bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: a day is retired in READ COMMITTED only',
            DETAIL = 'a snapshot from before the lock would not show its last intents';
    END IF;
    SELECT s.* INTO STRICT setting FROM once.setting AS s WHERE s.only_row FOR UPDATE;
    IF (bucket BETWEEN 1 AND today - setting.horizon_days - 1) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: day %s cannot be retired', bucket),
            DETAIL = format('days up to %s are past the horizon of %s days', today - setting.horizon_days - 1,
                setting.horizon_days);
    END IF;
    month := date_trunc('month', date '1970-01-01' + bucket);
    -- Days close in their order: what is before a closed day must not be open.
    FOR older IN SELECT substr(c.relname, length('intent_d') + 1)::integer AS day
                   FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
                  WHERE h.inhparent = 'once.intent'::regclass AND c.relname ~ '^intent_d[1-9][0-9]*$'
                    AND substr(c.relname, length('intent_d') + 1)::integer < bucket
                  ORDER BY day LOOP
        moved := moved + once.retire_day(older);
    END LOOP;
    IF to_regclass('once.intent_d' || bucket) IS NOT NULL THEN
        -- Before anything is read: from here on nobody is inside the day, and who waits finds it closed.
        EXECUTE format('LOCK TABLE once.intent, once.intent_d%s IN ACCESS EXCLUSIVE MODE', bucket);
        SELECT i.* INTO busy FROM once.intent AS i WHERE i.bucket = bucket AND i.state = 'processing'
            AND i.lease_until > now LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION USING ERRCODE = '55006',
                MESSAGE = format('pgonce: an attempt of day %s still holds its lease', bucket),
                DETAIL = format('tenant=%L scope=%L key=%L until %s', busy.tenant, busy.scope, busy.key,
                    busy.lease_until), HINT = 'Try again later.';
        END IF;
        IF to_regclass('once.archive_' || to_char(month, 'YYYYMM')) IS NULL THEN
            EXECUTE format('CREATE TABLE once.archive_%s PARTITION OF once.archive FOR VALUES FROM (%s) TO (%s)',
                to_char(month, 'YYYYMM'),
                           month - date '1970-01-01', (month + interval '1 month')::date - date '1970-01-01');
        END IF;
        INSERT INTO once.archive AS a
        SELECT i.* FROM once.intent AS i LEFT JOIN once.scope AS p ON p.scope = i.scope
         WHERE i.bucket = bucket
           AND (i.state IN ('processing', 'in_doubt')
                OR (i.state IN ('succeeded', 'failed_final')
                    AND coalesce(i.expires_at, i.completed_at + coalesce(p.retention,
                        (once._policy('')).retention)) > now));
        GET DIAGNOSTICS survivors = ROW_COUNT;
        moved := moved + survivors;
        UPDATE once.archive AS a
           SET state = 'in_doubt', updated_at = now, lease_until = NULL, error_code = 'stale',
               error_message = 'its day was retired while it was stale'
         WHERE a.bucket = bucket AND a.state = 'processing';
        EXECUTE format('ALTER TABLE once.intent DETACH PARTITION once.intent_d%s', bucket);
        EXECUTE format('DROP TABLE once.intent_d%s', bucket);
    END IF;
    UPDATE once.setting AS s SET closed_before = greatest(s.closed_before, bucket + 1) WHERE s.only_row;
    RETURN moved;
END $$;
