-- SPDX-License-Identifier: PostgreSQL
-- once._clock(): takes a reading of the database's clock and judges it by the last one. A clock that steps back, or leaps
-- forward by more than the time that passes between readings (three times the longest of late, at least five minutes), is
-- unsteady; so is one that was never read. A keeper that did not run for a while finds the same, and waits in vain: harmless.
-- While the clock is held (once._clock_held), a gap of more than five minutes that is usual may be a second leap that follows one
-- which looked like a long gap: no more of it counts as steady than a twelfth of clock_settle.
CREATE FUNCTION once._clock() RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    last once.clock;
    settle interval := (SELECT s.clock_settle FROM once.setting AS s WHERE s.only_row);
    why text;
BEGIN
    INSERT INTO once.clock (read_at, usual, unsteady_since, why) VALUES (now, '1 minute', now, 'it was never read before')
    ON CONFLICT (only_row) DO NOTHING;
    SELECT c.* INTO STRICT last FROM once.clock AS c WHERE c.only_row FOR UPDATE;
    now := clock_timestamp();       -- after the lock: another's reading is behind this one
    IF now < last.read_at THEN
        why := format('it stepped back by %s', last.read_at - now);
    ELSIF now > last.read_at + greatest(interval '5 minutes', 3 * last.usual) THEN
        why := format('it leapt forward by %s', now - last.read_at);
    ELSIF now < last.read_at + interval '1 second' THEN
        RETURN;
    END IF;
    UPDATE once.clock AS c
       SET read_at = now,
           -- What a step back took says nothing of the time between readings; nor does the leap that it puts right, which was learnt.
           usual = CASE WHEN now < c.read_at THEN interval '1 minute'
                        ELSE greatest(least(now - c.read_at, interval '2 hours'), c.usual - (now - c.read_at) / 2) END,
           unsteady_since = CASE WHEN why IS NOT NULL THEN now
                                 WHEN now > c.read_at + interval '5 minutes' AND c.read_at < c.unsteady_since + settle
                                 THEN c.unsteady_since + (now - c.read_at) - least(interval '5 minutes', settle / 12)
                                 ELSE c.unsteady_since END,
           why = coalesce(why, c.why)
     WHERE c.only_row;
END $$;
