-- SPDX-License-Identifier: PostgreSQL
-- once._keep_delayed(): the step 'delayed': moves delayed events that are due to the outbox, as relays do: for captures, and so that due
-- events count as pending while no relay runs.
CREATE FUNCTION once._keep_delayed() RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    moved record := once_job.relay_release(500);
BEGIN
    RETURN ROW(moved.released, moved.released > 0, NULL,
        CASE WHEN moved.released > 0 THEN format('%s delayed events are due', moved.released) END)::once.kept;
END $$;
