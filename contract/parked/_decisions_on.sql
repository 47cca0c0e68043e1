-- SPDX-License-Identifier: PostgreSQL
-- once._decisions_on(id, consumer, tenant): what operators have decided about an event (consumer NULL) or a message, as a JSON array.
CREATE FUNCTION once._decisions_on(id text, consumer text, tenant text) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_variable
BEGIN
    RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object('at', d.decided_at, 'by', d.decided_by, 'what', d.what, 'relay', d.relay,
                       'from', d.from_state, 'reason', d.reason, 'error', d.error) ORDER BY d.decided_at), '[]')
              FROM once.parked_decision AS d
             WHERE d.subject = id COLLATE "C" AND d.consumer IS NOT DISTINCT FROM consumer COLLATE "C"
               AND (consumer IS NULL OR d.tenant = tenant COLLATE "C"));
END $$;
