-- SPDX-License-Identifier: PostgreSQL
-- once._look_at_messages(wanted, take, after): one part of the matching parked messages: at most `take` (1,000), of one consumer and
-- tenant. Reads no more than 10,000 of them, without a lock. It goes from key to key and within each in order, so that an interrupted run
-- has decided the first messages of each key. Messages parked after the first part are not included, so that it ends however fast a
-- consumer parks. after 'message:': from the beginning.
CREATE FUNCTION once._look_at_messages(wanted once.parked_filter, take integer, after text) RETURNS once.parked_piece
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    most CONSTANT integer := 1000;      -- one advisory lock for each
    first CONSTANT bigint := -9223372036854775808;
    -- The key's hash ('-': after all keys), the position in it, the position to stop at, the tenant's length, tenant, consumer.
    place text[] := regexp_match(nullif(after, 'message:'), '^message:(-|-?[0-9]{1,19}):([0-9]{1,18}):([0-9]{1,18}):([0-9]{1,9}):(.*)$');
    keyless boolean := coalesce(place[1] = '-', false);
    lane bigint := CASE WHEN place IS NULL OR keyless THEN first ELSE place[1]::bigint END;
    behind bigint := coalesce(place[2]::bigint, 0);
    until bigint := place[3]::bigint;
    owner text := left(place[5], place[4]::integer);
    holder text := substr(place[5], place[4]::integer + 1);
    piece once.parked_piece;
    lanes bigint[];
    places bigint[];
    last integer;
BEGIN
    IF after <> 'message:' AND (place IS NOT NULL AND owner = coalesce(wanted.tenant, owner) COLLATE "C"
                                AND holder = coalesce(wanted.consumer, holder) COLLATE "C") IS NOT TRUE THEN
        PERFORM once._refuse_place(after);
    END IF;
    take := least(take, most);
    IF until IS NULL THEN
        SELECT s.last_value INTO until FROM once.parked_message_position_seq AS s;
        SELECT p.consumer, p.tenant INTO holder, owner FROM once.parked_message AS p
         WHERE (wanted.consumer IS NULL OR p.consumer = wanted.consumer COLLATE "C")
           AND (wanted.tenant IS NULL OR p.tenant = wanted.tenant COLLATE "C")
         ORDER BY p.consumer, p.tenant LIMIT 1;
    END IF;
    WITH part AS MATERIALIZED (
        SELECT q.*, row_number() OVER (ORDER BY q.key_hash, q.position) AS row,
               -- expand: parked_fits(row => q, sqlstate => q.sqlstate, since => q.parked_at,
               --   type => wanted.event_type = ANY (once._types_of(q.headers)))
               AS fits
          FROM (SELECT u.* FROM (
               (SELECT p.message_id, p.tenant, p.topic, p.state, p.error, p.sqlstate, p.headers, p.parked_at, p.key_hash, p.position
                  FROM once.parked_message AS p
                 WHERE p.consumer = holder COLLATE "C" AND p.tenant = owner COLLATE "C"
                   AND (p.key_hash, p.position) > (lane, behind) AND NOT keyless AND p.position <= until
                 ORDER BY p.key_hash, p.position LIMIT 10000)
                UNION ALL
               (SELECT p.message_id, p.tenant, p.topic, p.state, p.error, p.sqlstate, p.headers, p.parked_at, p.key_hash, p.position
                  FROM once.parked_message AS p
                 WHERE p.consumer = holder COLLATE "C" AND p.tenant = owner COLLATE "C"
                   AND p.key_hash IS NULL AND p.position > CASE WHEN keyless THEN behind ELSE 0 END AND p.position <= until
                 ORDER BY p.key_hash, p.position LIMIT 10000)) AS u
                 ORDER BY u.key_hash, u.position LIMIT 10000) AS q),
    fit AS (SELECT p.* FROM part AS p WHERE p.fits ORDER BY p.row LIMIT take)
    SELECT (SELECT array_agg(f.message_id ORDER BY f.row) FROM fit AS f), (SELECT array_agg(f.topic ORDER BY f.row) FROM fit AS f),
           (SELECT array_agg(f.state ORDER BY f.row) FROM fit AS f),
           CASE WHEN (SELECT count(*) FROM fit) = take THEN (SELECT max(f.row) FROM fit AS f)
                WHEN count(*) = 10000 THEN max(p.row) END,
           array_agg(p.key_hash ORDER BY p.row), array_agg(p.position ORDER BY p.row)
      INTO piece.ids, piece.topics, piece.states, last, lanes, places FROM part AS p;
    piece.holder := holder;
    piece.tenant := owner;
    IF last IS NOT NULL THEN
        piece.next := format('message:%s:%s:%s:%s:%s%s', coalesce(lanes[last]::text, '-'), places[last], until, length(owner), owner,
            holder);
    ELSE
        SELECT format('message:%s:0:%s:%s:%s%s', first, until, length(p.tenant), p.tenant, p.consumer) INTO piece.next
          FROM once.parked_message AS p
         WHERE (p.consumer, p.tenant) > (holder COLLATE "C", owner COLLATE "C")
           AND (wanted.consumer IS NULL OR p.consumer = wanted.consumer COLLATE "C")
           AND (wanted.tenant IS NULL OR p.tenant = wanted.tenant COLLATE "C")
         ORDER BY p.consumer, p.tenant LIMIT 1;
    END IF;
    RETURN piece;
END $$;
