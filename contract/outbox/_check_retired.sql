-- SPDX-License-Identifier: PostgreSQL
-- once._check_retired(day): raises 55006 if a day of the outbox is still needed (once._outbox_needed).
CREATE FUNCTION once._check_retired(day integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    needed record := once._outbox_needed(day);
BEGIN
    IF needed.why IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = format('pgonce: day %s of the outbox is still needed', day),
            DETAIL = needed.why, HINT = needed.hint;
    END IF;
END $$;
