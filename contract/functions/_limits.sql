-- SPDX-License-Identifier: PostgreSQL
-- once._limits(): what once._past() is to be executed with; now is the keeper's (once._steady_now).
CREATE FUNCTION once._limits(OUT now timestamptz, OUT retention interval, OUT needed timestamptz, OUT skew interval,
    OUT longest interval, OUT consumers boolean)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    now := once._steady_now();
    retention := (once._policy('')).retention;
    needed := coalesce((SELECT min(b.needed_from) FROM once._backlog() AS b WHERE b.what = 'relay'), 'infinity');
    longest := (SELECT max(p.retention) FROM once.scope AS p);
    consumers := EXISTS (SELECT FROM once.consumer_position);
    skew := (SELECT s.clock_skew FROM once.setting AS s WHERE s.only_row);
END $$;
