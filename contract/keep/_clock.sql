-- SPDX-License-Identifier: PostgreSQL
-- once._clock(): reads the database's clock and judges it. The clock is steady once its readings cover clock_settle without a jump; each
-- pause between two readings counts at most five minutes or a twelfth of clock_settle. A jump is a reading before the last one, or one
-- after a pause of more than five minutes that is also more than three times the longest recent pause (of at most two hours). A keeper
-- that was down for long looks like a jump, too: it then waits without need, which is harmless.
CREATE FUNCTION once._clock() RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    settle interval := (SELECT s.clock_settle FROM once.setting AS s WHERE s.only_row);
    now timestamptz := clock_timestamp();
    last once.clock;
    pause interval;
    why text;
BEGIN
    INSERT INTO once.clock (read_at, unsteady_since, why) VALUES (now, now, 'it was first read') ON CONFLICT DO NOTHING;
    SELECT c.* INTO STRICT last FROM once.clock AS c WHERE c.only_row FOR UPDATE;
    now := clock_timestamp();       -- after the lock, so that no other reading is later
    pause := now - last.read_at;
    IF pause < interval '0' THEN
        why := format('it stepped back by %s', -pause);
        pause := interval '0';
        last.longest_pause := interval '0';     -- it may come from the jump that this corrects
    ELSIF pause > greatest(interval '5 minutes', 3 * last.longest_pause) THEN
        why := format('it leapt forward by %s', pause);
    ELSIF pause < interval '1 second' THEN
        RETURN;
    END IF;
    UPDATE once.clock AS c
       SET read_at = now,
           longest_pause = greatest(least(pause, interval '2 hours'), last.longest_pause - pause / 2),      -- recent: it decreases
           steady = CASE WHEN why IS NULL THEN last.steady + least(pause, settle / 12, interval '5 minutes') ELSE interval '0' END,
           unsteady_since = CASE WHEN why IS NULL THEN last.unsteady_since ELSE now END,
           why = coalesce(why, last.why)
     WHERE c.only_row;
END $$;
