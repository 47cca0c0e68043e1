-- SPDX-License-Identifier: PostgreSQL
-- once._keep_days(): the step 'days': creates partitions in advance.
CREATE FUNCTION once._keep_days() RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    made integer := once.add_days();
BEGIN
    RETURN ROW(made, false, NULL, CASE WHEN made > 0 THEN format('%s partitions made', made) END)::once.kept;
END $$;
