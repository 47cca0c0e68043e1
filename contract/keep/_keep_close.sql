-- SPDX-License-Identifier: PostgreSQL
-- once._keep_close(): the step 'close': closes the oldest open day, if it is past the horizon and no relay or consumer needs it. It first
-- searches, without locks and in parts, for an attempt under a lease: then the day stays open. Closing is one short transaction: it
-- renames the day's table, so that the hot functions, which use the table by its name, find the day closed at no cost; and it adds a
-- trigger, for calls that have found the table already. It waits for transactions inside the day only for a moment, because others queue
-- behind it.
CREATE FUNCTION once._keep_close() RETURNS once.kept LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    deadline timestamptz := clock_timestamp() + interval '100 milliseconds';
    today integer := floor(date_part('epoch', once._steady_now()) / 86400);
    due integer := (SELECT d FROM once._days('once.intent', 'intent_d') AS d LIMIT 1);
    why text;
    leaf text := 'intent_d' || due;
    closing once.closing;
    stride bigint := once._stride();
BEGIN
    IF (due < today - (SELECT s.horizon_days FROM once.setting AS s WHERE s.only_row)) IS NOT TRUE THEN
        DELETE FROM once.closing AS c WHERE c.phase = 'look';       -- the horizon has changed
        RETURN ROW(0, false, NULL, NULL)::once.kept;
    END IF;
    why := coalesce(once._deletion_held(), once._needed(due));
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, format('day %s stays open: %s', due, why))::once.kept;
    END IF;
    DELETE FROM once.closing AS c WHERE c.phase = 'look' AND c.day <> due;
    INSERT INTO once.closing (day, started_at) VALUES (due, clock_timestamp()) ON CONFLICT DO NOTHING;
    SELECT c.* INTO closing FROM once.closing AS c WHERE c.day = due FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR to_regclass('once.' || leaf) IS NULL THEN
        RETURN ROW(0, false, NULL, format('another keeper is at day %s', due))::once.kept;
    END IF;
    WHILE closing.block < once._blocks(('once.' || leaf)::regclass) LOOP
        EXECUTE once._sql_for_blocks(('once.' || leaf)::regclass, closing.block, closing.block + stride, $sql$
            SELECT format('an attempt holds its lease until %s: tenant=%L scope=%L key=%L', i.lease_until, i.tenant, i.scope, i.key)
              FROM {leaf} AS i WHERE {here} AND i.state = 'processing' AND i.lease_until > clock_timestamp() LIMIT 1
            $sql$) INTO why;
        EXIT WHEN why IS NOT NULL;
        closing.block := closing.block + stride;
        EXIT WHEN clock_timestamp() > deadline;     -- at least one stride, however loaded the machine is
    END LOOP;
    IF why IS NOT NULL OR closing.block < once._blocks(('once.' || leaf)::regclass) THEN
        UPDATE once.closing AS c SET block = closing.block, held = why,
               held_since = CASE WHEN why IS NOT NULL THEN coalesce(c.held_since, clock_timestamp()) END
         WHERE c.day = due;
        RETURN ROW(0, why IS NULL, NULL, format('day %s stays open: %s', due, coalesce(why, 'searched in part'))
            )::once.kept;
    END IF;
    PERFORM once._close_day(due);
    RETURN ROW(1, true, NULL, format('day %s is closed', due))::once.kept;
END $$;
