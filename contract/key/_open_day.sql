-- SPDX-License-Identifier: PostgreSQL
-- once._open_day(bucket): once._day_state for a new intent of this day: creates a missing partition, or waits while another session
-- creates it. Returns 'missing' if neither was possible.
CREATE FUNCTION once._open_day(bucket integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    state text := once._day_state(bucket);
BEGIN
    FOR attempt IN 1 .. 2 LOOP          -- the other session may have rolled back
        EXIT WHEN state <> 'missing';
        PERFORM once._make_days(bucket);
        state := once._day_state(bucket);
        EXIT WHEN state <> 'missing' OR NOT once._wait_for_days();
        state := once._day_state(bucket);
    END LOOP;
    RETURN state;
END $$;
