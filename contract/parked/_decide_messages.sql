-- SPDX-License-Identifier: PostgreSQL
-- once._decide_messages(what, reason, of_state, piece): 'retry' or 'discard' for these parked messages of one consumer and tenant, if
-- they are still parked and in of_state (NULL: any). See once._decide_message.
--
-- A consumer locks the message that it is trying until its handler ends: such a message is skipped (P4029), because waiting for it would
-- hold up to a thousand others.
CREATE FUNCTION once._decide_messages(what text, reason text, of_state text, piece once.parked_piece) RETURNS once.parked_piece
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    holder text := piece.holder;
    owner text := piece.tenant;
    ids text[] := piece.ids;
    locked text[];
    topics text[];
    states text[];
    codes text[];
    verdict text;
BEGIN
    -- A new statement: their states are those of now. One look-up each, and by address: see once._promote.
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
    piece.topics := topics;
    piece.states := states;
    piece.codes := codes;
    RETURN piece;
END $$;
