-- SPDX-License-Identifier: PostgreSQL
-- once._keep_purge(): the step 'purge': deletes expired intents of keys without a day (once._delete_intents).
CREATE FUNCTION once._keep_purge() RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    why text := once._deletion_held();
    piece record;
BEGIN
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, why)::once.kept;
    END IF;
    piece := once._delete_past('purge', ARRAY['intent_d0']);
    -- Their locks are held until the deletion is committed, and no other session purges meanwhile. See once._first_fence.
    IF piece.highest >= once._first_fence() THEN
        PERFORM setval('once.fence_floor_seq', piece.highest);
    END IF;
    RETURN ROW(piece.done, piece.more, NULL, CASE WHEN piece.done > 0 THEN format('%s intents deleted', piece.done)
        END)::once.kept;
END $$;
