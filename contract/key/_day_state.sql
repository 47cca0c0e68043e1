-- SPDX-License-Identifier: PostgreSQL
-- once._day_state(bucket): 'open', 'closed' (P4041), 'future' (P4001) or 'missing' (P4098) for the day of a UUIDv7 key. Called for keys
-- without a row, and only if their day is not plainly open. The clock is the database's.
CREATE FUNCTION once._day_state(bucket integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    setting once.setting;
BEGIN
    IF bucket = 0 THEN
        RETURN 'open';
    END IF;
    SELECT s.* INTO STRICT setting FROM once.setting AS s WHERE s.only_row;
    IF bucket < setting.closed_before THEN
        RETURN 'closed';
    END IF;
    IF bucket > floor(date_part('epoch', clock_timestamp() + setting.clock_skew) / 86400) THEN
        RETURN 'future';
    END IF;
    IF NOT once._has_day('intent', bucket) THEN
        RETURN 'missing';
    END IF;
    RETURN 'open';
END $$;
