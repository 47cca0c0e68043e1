-- SPDX-License-Identifier: PostgreSQL
-- once.latency(): how long recent intents took from their first attempt to their outcome: among those at the ends of the tables, a few
-- thousand at most, that were completed in the last hour. since: the first of these. One row; NULLs if there are no outcomes.
CREATE FUNCTION once.latency() RETURNS TABLE (outcomes bigint, p50_ms double precision, p95_ms double precision, p99_ms double precision,
    since timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    leaf regclass;
    size bigint;
    met double precision[];
    taken double precision[] := '{}';
    first_at timestamptz;
BEGIN
    FOR leaf IN SELECT c.oid::regclass FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
                 WHERE h.inhparent = 'once.intent'::regclass AND c.relname ~ '^intent_d[0-9]+$'
                 ORDER BY c.relname <> 'intent_d0', substring(c.relname FROM '[0-9]+$')::bigint DESC LIMIT 5 LOOP
        size := once._blocks(leaf);
        CONTINUE WHEN size = 0;
        EXECUTE once._sql_for_blocks(leaf, greatest(size - least(once._stride(), 64), 0), size, $sql$
            SELECT array_agg(1000 * date_part('epoch', i.completed_at - i.created_at)), min(i.completed_at)
              FROM {leaf} AS i WHERE {here} AND i.completed_at > clock_timestamp() - interval '1 hour'
            $sql$) INTO met, first_at;
        taken := taken || met;
        since := least(since, first_at);
    END LOOP;
    outcomes := cardinality(taken);
    SELECT p.at[1], p.at[2], p.at[3] INTO p50_ms, p95_ms, p99_ms
      FROM (SELECT percentile_disc(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY t) AS at FROM unnest(taken) AS t) AS p;
    RETURN NEXT;
END $$;
