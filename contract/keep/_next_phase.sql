-- SPDX-License-Identifier: PostgreSQL
-- once._next_phase(day, phase): the retirement of a day enters a phase, or begins it again.
CREATE FUNCTION once._next_phase(day integer, phase text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    UPDATE once.closing AS c SET phase = phase, block = 0, moved = 0, held = NULL, held_since = NULL WHERE c.day = day;
END $$;
