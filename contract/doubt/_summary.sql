-- SPDX-License-Identifier: PostgreSQL
-- once._summary(stored): what once.decision keeps of an intent before and after a decision: without the fingerprint, and of the answer
-- only its status and size. NULL if there is no row.
CREATE FUNCTION once._summary(stored once.intent) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN (stored).state IS NOT NULL THEN jsonb_strip_nulls(jsonb_build_object(
        'state', (stored).state, 'fence', (stored).fence, 'attempts', (stored).attempts, 'owner', (stored).owner,
        'updated_at', (stored).updated_at,
        'lease_until', (stored).lease_until, 'response_status', (stored).response_status,
        'response_bytes', octet_length((stored).response_body), 'result_type', (stored).result_type,
        'result_id', (stored).result_id, 'error_code', (stored).error_code, 'error_message', (stored).error_message)) END
$$;
