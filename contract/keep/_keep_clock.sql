-- SPDX-License-Identifier: PostgreSQL
-- once._keep_clock(): the step 'clock'. Every part of every step reads the clock; this step only reports.
CREATE FUNCTION once._keep_clock() RETURNS once.kept LANGUAGE plpgsql AS $$
BEGIN
    RETURN ROW(0, false, NULL, once._clock_held())::once.kept;
END $$;
