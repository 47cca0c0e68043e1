-- SPDX-License-Identifier: PostgreSQL
-- once_job.message_due(consumer, tenant, take, skip_dead, lines): parked messages to try now, at most `take`, in the order in which they
-- came: those that are due and before which none of their key is parked (with skip_dead: none that is not dead). With `lines` also, after
-- each of them, those of its key that wait for nothing else, the same number for each key, so that a line is applied in few transactions:
-- apply them in order, and none after one that failed. They are locked until your transaction ends. A message locked by another
-- transaction is left out, and so are those behind it: two processes of one consumer never take the same message. Then for each:
-- once.receive, the effect, once_job.message_applied, COMMIT; or once_job.message_park with one more attempt. Raises P4000 for the
-- consumer, P4003 for the tenant.
--
-- Why it is written so: most of the due messages may be behind another one. If there are many, the search for the first of each key steps
-- from key to key in the index, so that ten thousand behind one dead message are one step.
CREATE FUNCTION once_job.message_due(consumer text, tenant text, take integer, skip_dead boolean DEFAULT false,
    lines boolean DEFAULT false)
RETURNS TABLE (message_id text, topic text, key text, headers jsonb, payload bytea, fingerprint bytea, attempts integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
#variable_conflict use_variable
DECLARE
    few CONSTANT integer := 500;
    bytes_most CONSTANT integer := 4194304;     -- of the payloads of all followers
    now timestamptz := clock_timestamp();
    due integer;
    heads text[];
    taken tid[];
    followers integer;      -- of each
    followed tid[];
    lanes bigint[];
    places bigint[];
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    IF (take > 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: take is how many messages to take, at least 1';
    END IF;
    -- A clock that was ahead has been set back: waits that began before are too long. Checks the longest.
    IF (SELECT p.updated_at FROM once.parked_message AS p
         WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" AND p.state <> 'dead' AND p.next_at > now
         ORDER BY p.next_at DESC LIMIT 1) > now + interval '1 second' THEN
        UPDATE once.parked_message AS p SET next_at = now, updated_at = now
         WHERE p.ctid = ANY (ARRAY(SELECT e.ctid FROM once.parked_message AS e
                                    WHERE e.consumer = consumer COLLATE "C" AND e.tenant = tenant COLLATE "C"
                                      AND e.state <> 'dead' AND e.next_at > now AND e.updated_at > now + interval '1 second'
                                      FOR UPDATE SKIP LOCKED));
    END IF;
    SELECT count(*) INTO due
      FROM (SELECT FROM once.parked_message AS p
             WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" AND p.state <> 'dead'
               AND p.next_at <= now LIMIT few) AS l;
    IF due = 0 THEN
        RETURN;
    ELSIF due < few THEN
        SELECT array_agg(p.message_id) INTO heads
          FROM once.parked_message AS p
         WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" AND p.state <> 'dead'
           AND p.next_at <= now
           AND p.position <= ALL (ARRAY(SELECT e.position FROM once.parked_message AS e
                                         WHERE e.consumer = consumer COLLATE "C" AND e.tenant = tenant COLLATE "C"
                                           AND e.key_hash = p.key_hash AND NOT (skip_dead AND e.state = 'dead')
                                         ORDER BY e.key_hash, e.position LIMIT 1));
    ELSE
        WITH RECURSIVE lane AS (
            SELECT (SELECT m.key_hash FROM once.parked_message AS m
                     WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C" AND m.key_hash IS NOT NULL
                     ORDER BY m.key_hash LIMIT 1) AS key_hash
             UNION ALL
            SELECT (SELECT m.key_hash FROM once.parked_message AS m
                     WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C" AND m.key_hash > l.key_hash
                     ORDER BY m.key_hash LIMIT 1)
              FROM lane AS l WHERE l.key_hash IS NOT NULL),
        head AS (
            SELECT h.message_id, h.position FROM lane AS l
             CROSS JOIN LATERAL (SELECT m.message_id, m.position, m.state, m.next_at FROM once.parked_message AS m
                                  WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C"
                                    AND m.key_hash = l.key_hash AND NOT (skip_dead AND m.state = 'dead')
                                  ORDER BY m.position LIMIT 1) AS h
             WHERE h.state <> 'dead' AND h.next_at <= now
             UNION ALL
            (SELECT m.message_id, m.position FROM once.parked_message AS m
              WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C" AND m.key_hash IS NULL
                AND m.state <> 'dead' AND m.next_at <= now ORDER BY m.key_hash, m.position LIMIT take + few))
        -- More than wanted, since other sessions may be working on the first of them.
        SELECT array_agg(f.message_id) INTO heads
          FROM (SELECT h.message_id FROM head AS h ORDER BY h.position LIMIT take + few) AS f;
    END IF;
    -- A new statement: it takes no message that has gone meanwhile, and skips those that are being worked on. One look-up each, and by
    -- address: see once._promote.
    SELECT array_agg(t.address) INTO taken
      FROM (SELECT p.ctid AS address
              FROM (SELECT a.address FROM unnest(heads) AS u (id)
                     CROSS JOIN LATERAL (SELECT k.ctid AS address FROM once.parked_message AS k
                                          WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                                            AND k.message_id BETWEEN (u.id COLLATE "C") AND (u.id COLLATE "C")
                                          ORDER BY k.message_id LIMIT 1) AS a) AS f
              JOIN once.parked_message AS p ON p.ctid = f.address
             WHERE p.state <> 'dead' AND p.next_at <= now
             ORDER BY p.position LIMIT take
               FOR UPDATE OF p SKIP LOCKED) AS t;
    followers := (take - cardinality(taken)) / cardinality(taken);
    IF lines AND followers > 0 THEN
        SELECT array_agg(c.address), array_agg(c.key_hash), array_agg(c.place) INTO followed, lanes, places
          FROM unnest(taken) AS u (address)
          JOIN once.parked_message AS p ON p.ctid = u.address
         CROSS JOIN LATERAL (
               SELECT n.address, n.key_hash, n.place
                 FROM (SELECT e.address, e.key_hash, row_number() OVER line AS place,
                              bool_and(e.state <> 'dead' AND e.next_at <= now) OVER line AS free,
                              sum(e.bytes) OVER line AS bytes
                         FROM (SELECT m.ctid AS address, m.key_hash, m.position, m.state, m.next_at,
                                      coalesce(octet_length(m.payload), 0) AS bytes
                                 FROM once.parked_message AS m
                                WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C"
                                  AND m.key_hash = p.key_hash AND m.position > p.position
                                  AND NOT (skip_dead AND m.state = 'dead')
                                ORDER BY m.key_hash, m.position LIMIT followers) AS e
                       WINDOW line AS (ORDER BY e.position)) AS n
                WHERE n.free AND n.bytes <= bytes_most / cardinality(taken)) AS c;
        -- Locked too, so that no operator decides on one meanwhile; the line ends before one that another session has locked.
        SELECT taken || array_agg(f.address) INTO taken
          FROM (SELECT l.address, l.place = row_number() OVER (PARTITION BY l.lane ORDER BY l.place) AS follows
                  FROM (SELECT p.ctid AS address, u.lane, u.place
                          FROM unnest(followed, lanes, places) AS u (address, lane, place)
                          JOIN once.parked_message AS p ON p.ctid = u.address
                         WHERE p.state <> 'dead' AND p.next_at <= now
                           FOR UPDATE OF p SKIP LOCKED) AS l) AS f
         WHERE f.follows;
    END IF;
    RETURN QUERY
    SELECT p.message_id::text, p.topic::text, p.key::text, p.headers, p.payload, p.fingerprint, p.attempts
      FROM unnest(taken) AS u (address) JOIN once.parked_message AS p ON p.ctid = u.address
     ORDER BY p.position;
END $$;
