-- SPDX-License-Identifier: PostgreSQL
-- once._decide_one(what, id, reason, relay, consumer, tenant): once.parked_retry and once.parked_discard: a decision about one event,
-- with one relay or (NULL) with each relay that has it parked, or while it is delayed; or about one message.
CREATE FUNCTION once._decide_one(what text, id text, reason text, relay text, consumer text, tenant text) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    event uuid := once._event_id(id);
    refused text;
    holder text;
    piece once.parked_piece;
    decided integer := 0;
BEGIN
    PERFORM once._parked_filter(NULL, relay, consumer, tenant, NULL, NULL, NULL, NULL, NULL, NULL);
    PERFORM once._reason(reason);
    IF consumer IS NOT NULL THEN
        refused := once._decide_message(what, reason, consumer, coalesce(tenant, ''), id);
        IF refused IN ('P4001', 'P4098') THEN
            PERFORM once._refuse_day(coalesce(tenant, ''), consumer, id, once._bucket(id));
            PERFORM once._refuse('P4098', tenant, consumer, id, 'its day was made just now');      -- since it was looked at
        ELSIF refused <> '' THEN
            PERFORM once._refuse(refused, tenant, consumer, id);
        END IF;
        RETURN refused IS NULL;
    END IF;
    IF relay IS NULL THEN
        piece.ids := ARRAY(SELECT d.event_id FROM once.delayed_event AS d
                            WHERE d.event_id = event AND (tenant IS NULL OR d.tenant = tenant COLLATE "C"));
        IF cardinality(piece.ids) > 0 THEN
            piece := once._decide_delayed(what, reason, piece);
            decided := coalesce(cardinality(piece.topics), 0);
        END IF;
    END IF;
    FOR holder IN SELECT DISTINCT p.relay FROM once.parked_event AS p WHERE relay IS NULL AND p.event_id = event
                   UNION ALL SELECT relay COLLATE "C" WHERE relay IS NOT NULL ORDER BY 1 LOOP
        PERFORM once._relay_row(holder);
        piece.holder := holder;
        -- As a rule one; but an event that came twice into the outbox is parked twice.
        piece.ids := ARRAY(SELECT p.id FROM once.parked_event AS p WHERE p.relay = holder COLLATE "C" AND p.event_id = event
                              AND (tenant IS NULL OR p.tenant = tenant COLLATE "C") ORDER BY p.id);
        IF cardinality(piece.ids) > 0 THEN
            piece := once._decide_events(what, reason, NULL, piece);
            decided := decided + coalesce(cardinality(piece.topics), 0);
        END IF;
    END LOOP;
    RETURN decided > 0;
END $$;
