-- SPDX-License-Identifier: PostgreSQL
-- once._open_day(bucket): once._day_state, for a new intent of this day: where its partition is missing, it is made, or waited for while
-- another session makes it. 'missing' remains where neither was possible.
CREATE FUNCTION once._open_day(bucket integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    state text := once._day_state(bucket);
BEGIN
    FOR attempt IN 1 .. 2 LOOP          -- the session that was waited for may have rolled back
        EXIT WHEN state <> 'missing';
        PERFORM once._make_days(bucket);
        state := once._day_state(bucket);
        EXIT WHEN state <> 'missing' OR NOT once._wait_for_days();
        state := once._day_state(bucket);
    END LOOP;
    RETURN state;
END $$;
