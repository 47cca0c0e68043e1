-- SPDX-License-Identifier: PostgreSQL
-- once._decide_many(what, wanted, reason, dry_run, take, after): one part of once.parked_retry_many and once.parked_discard_many: events
-- of one relay, delayed events, or messages of one consumer and tenant; the events come first. First a look finds them without a lock.
-- Then each is decided, by its state at that moment. A dry run ends after the look.
CREATE FUNCTION once._decide_many(what text, wanted once.parked_filter, reason text, dry_run boolean, take integer, after text)
RETURNS TABLE (met_kind text, met_holder text, met_topic text, met_state text, skipped text, items bigint, next text)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    part text := CASE WHEN after IS NOT NULL THEN split_part(after, ':', 1) WHEN wanted.state = 'delayed' THEN 'delayed'
                      ELSE coalesce(wanted.kind, 'event') END;
    piece once.parked_piece;
BEGIN
    IF (take > 0) IS NOT TRUE OR dry_run IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: take=%s or dry_run=%s is invalid',
            coalesce(take::text, 'NULL'), coalesce(dry_run::text, 'NULL')), HINT = 'take: at least 1; dry_run: true or false.';
    ELSIF part NOT IN ('event', 'delayed', 'message') OR (part = 'delayed') <> (wanted.state IS NOT DISTINCT FROM 'delayed')
       OR (part = 'message') <> (coalesce(wanted.kind, part) = 'message') THEN
        PERFORM once._refuse_place(after);
    END IF;
    IF NOT dry_run THEN
        PERFORM once._reason(reason);
    END IF;
    piece := CASE part WHEN 'event' THEN once._look_at_events(wanted, take, after)
                       WHEN 'delayed' THEN once._look_at_delayed(wanted, take, after)
                       ELSE once._look_at_messages(wanted, take, after) END;
    next := piece.next;
    IF next IS NULL AND part = 'event' AND wanted.kind IS NULL AND EXISTS (
           SELECT FROM once.parked_message AS p WHERE wanted.tenant IS NULL OR p.tenant = wanted.tenant COLLATE "C") THEN
        next := 'message:';
    END IF;
    IF NOT dry_run AND cardinality(piece.ids) > 0 THEN
        piece := CASE part WHEN 'event' THEN once._decide_events(what, reason, wanted.state, piece)
                           WHEN 'delayed' THEN once._decide_delayed(what, reason, piece)
                           ELSE once._decide_messages(what, reason, wanted.state, piece) END;
    END IF;
    part := CASE part WHEN 'message' THEN part ELSE 'event' END;
    RETURN QUERY SELECT part, piece.holder, u.topic, u.state, u.code, count(*), next
                   FROM unnest(piece.topics, piece.states, piece.codes) AS u (topic, state, code)
                  WHERE u.topic IS NOT NULL GROUP BY u.topic, u.state, u.code ORDER BY u.topic, u.state, u.code NULLS FIRST;
    IF NOT FOUND THEN
        RETURN QUERY SELECT part, piece.holder, NULL::text, NULL::text, NULL::text, 0::bigint, next;
    END IF;
END $$;
