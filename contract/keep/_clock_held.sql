-- SPDX-License-Identifier: PostgreSQL
-- once._clock_held(): why nothing may be deleted by this clock: it has not been steady for once.setting.clock_settle (once._clock). NULL
-- if it has.
CREATE FUNCTION once._clock_held() RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    settle interval := (SELECT s.clock_settle FROM once.setting AS s WHERE s.only_row);
    clock once.clock;
BEGIN
    SELECT c.* INTO clock FROM once.clock AS c WHERE c.only_row;
    IF settle = interval '0' OR clock.steady >= settle THEN
        RETURN NULL;
    END IF;
    RETURN CASE WHEN clock.read_at IS NULL THEN 'no keeper has read the clock yet'
                ELSE format('the clock is not steady yet: %s at %s', clock.why, clock.unsteady_since) END;
END $$;
