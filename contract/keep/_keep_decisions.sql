-- SPDX-License-Identifier: PostgreSQL
-- once._keep_decisions(): the step 'decisions': deletes entries of once.decision past their
-- retention (once._delete_decisions).
CREATE FUNCTION once._keep_decisions() RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    why text := once._clock_held();
    piece record;
BEGIN
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, why)::once.kept;
    END IF;
    piece := once._delete_past('decisions', ARRAY['decision']);
    RETURN ROW(piece.done, piece.more, NULL, CASE WHEN piece.done > 0 THEN format('%s decisions deleted', piece.done)
        END)::once.kept;
END $$;
