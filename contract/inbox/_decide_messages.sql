-- SPDX-License-Identifier: PostgreSQL
-- once._decide_messages(what, reason, of_consumer, of_tenant, of_topic, of_type, of_error, of_state, before, dry_run, take, after): a
-- piece of once.dead_retry_many and once.dead_discard_many, as once._decide_many is of events. Looks at no more than 10,000 parked
-- messages of one consumer and tenant, without a lock, and decides about at most `take` that fit. It goes from key to key and within
-- each in order, so that a run that is interrupted has decided about the first of each key. What is parked later than its first piece
-- is not met, so that it ends however fast a consumer parks.
--
-- A consumer has locked what it is trying, until its handler ends: that is skipped and not waited for, since whoever waits here holds
-- up to a thousand others.
CREATE FUNCTION once._decide_messages(what text, reason text, of_consumer text, of_tenant text, of_topic text, of_type text,
    of_error text, of_state text, before timestamptz, dry_run boolean, take integer, after text)
RETURNS TABLE (met_consumer text, met_topic text, met_state text, skipped text, messages bigint, next text)
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    most CONSTANT integer := 1000;      -- an advisory lock each
    first CONSTANT bigint := -9223372036854775808;
    -- The key's hash ('-': behind all keys), the position in it, that of the last to be met, the tenant's length, tenant, consumer.
    place text[] := regexp_match(after, '^(-|-?[0-9]{1,19}):([0-9]{1,18}):([0-9]{1,18}):([0-9]{1,9}):(.*)$');
    keyless boolean := coalesce(place[1] = '-', false);
    lane bigint := CASE WHEN place IS NULL OR keyless THEN first ELSE place[1]::bigint END;
    behind bigint := coalesce(place[2]::bigint, 0);
    until bigint := place[3]::bigint;
    owner text := left(place[5], place[4]::integer);
    holder text := substr(place[5], place[4]::integer + 1);
    ids text[];
    locked text[];
    lanes bigint[];
    places bigint[];
    topics text[];
    states text[];
    looked bigint;
    last integer;
    codes text[];
    verdict text;
BEGIN
    PERFORM once._authorise(of_tenant);        -- NULL, all tenants: for roles that are not bound
    IF of_consumer IS NOT NULL THEN
        PERFORM once._check_consumer(coalesce(of_tenant, ''), of_consumer);
    END IF;
    PERFORM once._check_many(reason, of_state, dry_run, take, after,
        place IS NOT NULL AND owner = coalesce(of_tenant, owner) COLLATE "C" AND holder = coalesce(of_consumer, holder) COLLATE "C");
    take := least(take, most);
    IF until IS NULL THEN
        SELECT s.last_value INTO until FROM once.parked_message_position_seq AS s;
        SELECT p.consumer, p.tenant INTO holder, owner FROM once.parked_message AS p
         WHERE (of_consumer IS NULL OR p.consumer = of_consumer COLLATE "C") AND (of_tenant IS NULL OR p.tenant = of_tenant COLLATE "C")
         ORDER BY p.consumer, p.tenant LIMIT 1;
    END IF;
    WITH part AS MATERIALIZED (
        SELECT q.*, row_number() OVER (ORDER BY q.key_hash, q.position) AS row,
               (of_topic IS NULL OR q.topic = of_topic COLLATE "C") AND (of_state IS NULL OR q.state = of_state COLLATE "C")
               AND (before IS NULL OR q.parked_at < before)
               AND (of_error IS NULL OR q.sqlstate = of_error COLLATE "C" OR strpos(lower(q.error), lower(of_error)) > 0)
               AND (of_type IS NULL OR EXISTS (
                    SELECT FROM jsonb_each_text(CASE jsonb_typeof(q.headers) WHEN 'object' THEN q.headers END) AS h
                     WHERE h.value = of_type COLLATE "C"
                       AND lower(h.key) IN ('pgonce-event-type', 'ce-type', 'ce_type', 'cloudevents:type', 'type'))) AS fits
          FROM (SELECT u.* FROM (
               (SELECT p.message_id, p.topic, p.state, p.error, p.sqlstate, p.headers, p.parked_at, p.key_hash, p.position
                  FROM once.parked_message AS p
                 WHERE p.consumer = holder COLLATE "C" AND p.tenant = owner COLLATE "C"
                   AND (p.key_hash, p.position) > (lane, behind) AND NOT keyless AND p.position <= until
                 ORDER BY p.key_hash, p.position LIMIT 10000)
                UNION ALL
               (SELECT p.message_id, p.topic, p.state, p.error, p.sqlstate, p.headers, p.parked_at, p.key_hash, p.position
                  FROM once.parked_message AS p
                 WHERE p.consumer = holder COLLATE "C" AND p.tenant = owner COLLATE "C"
                   AND p.key_hash IS NULL AND p.position > CASE WHEN keyless THEN behind ELSE 0 END AND p.position <= until
                 ORDER BY p.key_hash, p.position LIMIT 10000)) AS u
                 ORDER BY u.key_hash, u.position LIMIT 10000) AS q),
    fit AS (SELECT p.* FROM part AS p WHERE p.fits ORDER BY p.row LIMIT take)
    SELECT (SELECT array_agg(f.message_id ORDER BY f.row) FROM fit AS f), (SELECT array_agg(f.topic ORDER BY f.row) FROM fit AS f),
           (SELECT array_agg(f.state ORDER BY f.row) FROM fit AS f), count(*),
           CASE WHEN (SELECT count(*) FROM fit) = take THEN (SELECT max(f.row) FROM fit AS f)
                WHEN count(*) = 10000 THEN max(p.row) END,
           array_agg(p.key_hash ORDER BY p.row), array_agg(p.position ORDER BY p.row)
      INTO ids, topics, states, looked, last, lanes, places FROM part AS p;
    IF dry_run THEN
        codes := array_fill(NULL::text, ARRAY[coalesce(cardinality(ids), 0)]);
    ELSIF cardinality(ids) > 0 THEN
        -- A fresh statement: their states count as they are now. By a look-up each and by address: see once._promote.
        SELECT array_agg(l.message_id), array_agg(l.topic), array_agg(l.state) INTO locked, topics, states
          FROM (SELECT p.message_id, p.topic, p.state
                  FROM unnest(ids) WITH ORDINALITY AS u (id, n)
                 CROSS JOIN LATERAL (SELECT k.ctid AS address FROM once.parked_message AS k
                                      WHERE k.consumer = holder COLLATE "C" AND k.tenant = owner COLLATE "C"
                                        AND k.message_id BETWEEN (u.id COLLATE "C") AND (u.id COLLATE "C")
                                      ORDER BY k.message_id LIMIT 1) AS a
                  JOIN once.parked_message AS p ON p.ctid = a.address
                 WHERE of_state IS NULL OR p.state = of_state COLLATE "C"
                 ORDER BY u.n FOR UPDATE OF p SKIP LOCKED) AS l;
        FOR n IN 1 .. coalesce(cardinality(locked), 0) LOOP
            verdict := once._decide_message(what, reason, holder, owner, locked[n]);
            codes := array_append(codes, verdict);
        END LOOP;
        SELECT topics || array_agg(p.topic), states || array_agg(p.state), codes || array_agg('P4029'::text)
          INTO topics, states, codes
          FROM unnest(ids) AS u (id)
         CROSS JOIN LATERAL (SELECT k.topic, k.state FROM once.parked_message AS k
                              WHERE k.consumer = holder COLLATE "C" AND k.tenant = owner COLLATE "C"
                                AND k.message_id BETWEEN (u.id COLLATE "C") AND (u.id COLLATE "C")
                                AND (of_state IS NULL OR k.state = of_state COLLATE "C")
                              ORDER BY k.message_id LIMIT 1) AS p
         WHERE NOT u.id = ANY (coalesce(locked, '{}'));
    END IF;
    IF last IS NOT NULL THEN
        next := format('%s:%s:%s:%s:%s%s', coalesce(lanes[last]::text, '-'), places[last], until, length(owner), owner, holder);
    ELSE
        SELECT format('%s:0:%s:%s:%s%s', first, until, length(p.tenant), p.tenant, p.consumer) INTO next
          FROM once.parked_message AS p
         WHERE (p.consumer, p.tenant) > (holder COLLATE "C", owner COLLATE "C")
           AND (of_consumer IS NULL OR p.consumer = of_consumer COLLATE "C") AND (of_tenant IS NULL OR p.tenant = of_tenant COLLATE "C")
         ORDER BY p.consumer, p.tenant LIMIT 1;
    END IF;
    RETURN QUERY SELECT holder, u.topic, u.state, u.code, count(*), next FROM unnest(topics, states, codes) AS u (topic, state, code)
                  WHERE u.topic IS NOT NULL GROUP BY u.topic, u.state, u.code ORDER BY u.topic, u.state, u.code NULLS FIRST;
    IF NOT FOUND THEN
        RETURN QUERY SELECT holder, NULL::text, NULL::text, NULL::text, 0::bigint, next;
    END IF;
END $$;
