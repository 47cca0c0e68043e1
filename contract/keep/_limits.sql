-- SPDX-License-Identifier: PostgreSQL
-- once._limits(): the values that decide which rows may be deleted now; now is the keeper's (once._steady_now).
CREATE FUNCTION once._limits() RETURNS once.limits LANGUAGE plpgsql STABLE AS $$
DECLARE
    limits once.limits;
BEGIN
    limits.now := once._steady_now();
    limits.retention := (once._policy('')).retention;
    limits.longest := (SELECT max(p.retention) FROM once.scope AS p);
    limits.needed := coalesce((SELECT min(b.needed_from) FROM once._backlog() AS b WHERE b.what = 'relay'), 'infinity');
    limits.consumers := EXISTS (SELECT FROM once.consumer_position);
    SELECT s.clock_skew, s.decision_retention INTO limits.skew, limits.decision_retention FROM once.setting AS s WHERE s.only_row;
    RETURN limits;
END $$;
