-- SPDX-License-Identifier: PostgreSQL
-- once._keep_decisions(): the step 'decisions': entries of once.decision past their retention, but never one of an intent that
-- is still in doubt.
CREATE FUNCTION once._keep_decisions() RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    why text := once._clock_held();
    keeps interval := (SELECT s.decision_retention FROM once.setting AS s WHERE s.only_row);
    piece record;
BEGIN
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, why)::once.kept;
    END IF;
    SELECT f.* INTO piece FROM once._forget('decisions', ARRAY['decision'], format(
        'i.decided_at < $1 - %L::interval AND NOT EXISTS (SELECT FROM once.intent AS o WHERE o.tenant = i.tenant'
        ' AND o.scope = i.scope AND o.key = i.key AND o.bucket = once._bucket(i.key) AND o.state = ''in_doubt'')'
        ' AND NOT EXISTS (SELECT FROM once.archive AS o WHERE o.tenant = i.tenant'
        ' AND o.scope = i.scope AND o.key = i.key AND o.bucket = once._bucket(i.key) AND o.state = ''in_doubt'')', keeps),
        false, once._limits()) AS f;
    RETURN ROW(piece.done, piece.more, NULL, CASE WHEN piece.done > 0 THEN format('%s decisions forgotten', piece.done)
        END)::once.kept;
END $$;
