-- SPDX-License-Identifier: PostgreSQL
-- once._clock(): reads the database's clock and judges it. The clock is steady once its readings
-- cover clock_settle without a surprise, each pause between two of them counted as five minutes or
-- a twelfth of clock_settle at most; a surprise is a reading before the last one, or after a pause
-- of more than five minutes and more than three times the longest of late (of at most two hours).
-- A keeper that was down for long is such a surprise too: it waits in vain, which is harmless.
CREATE FUNCTION once._clock() RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    settle interval := (SELECT s.clock_settle FROM once.setting AS s WHERE s.only_row);
    now timestamptz := clock_timestamp();
    last once.clock;
    pause interval;
    why text;
BEGIN
    INSERT INTO once.clock (read_at, unsteady_since, why) VALUES (now, now, 'it was never read before') ON CONFLICT DO NOTHING;
    SELECT c.* INTO STRICT last FROM once.clock AS c WHERE c.only_row FOR UPDATE;
    now := clock_timestamp();       -- after the lock: another's reading is behind this one
    pause := now - last.read_at;
    IF pause < interval '0' THEN
        why := format('it stepped back by %s', -pause);
        pause := interval '0';
        last.longest_pause := interval '0';     -- learnt, perhaps, from the leap that this puts right
    ELSIF pause > greatest(interval '5 minutes', 3 * last.longest_pause) THEN
        why := format('it leapt forward by %s', pause);
    ELSIF pause < interval '1 second' THEN
        RETURN;
    END IF;
    UPDATE once.clock AS c
       SET read_at = now,
           longest_pause = greatest(least(pause, interval '2 hours'), last.longest_pause - pause / 2),      -- of late: it fades
           steady = CASE WHEN why IS NULL THEN last.steady + least(pause, settle / 12, interval '5 minutes') ELSE interval '0' END,
           unsteady_since = CASE WHEN why IS NULL THEN last.unsteady_since ELSE now END,
           why = coalesce(why, last.why)
     WHERE c.only_row;
END $$;
