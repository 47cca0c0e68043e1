-- SPDX-License-Identifier: PostgreSQL
-- once._past(): the condition, as text, that row i of a finished intent may be forgotten: its retention has passed since it
-- was completed, and neither a relay nor a consumer may still bring it back. A claim's own retention is expires_at - created_at:
-- what it is counted from is known only when the outcome is there. The one place where that is said. With once._limits() it takes
-- $1 now, $2 the default retention, $3 since when relays need everything, $4 the allowed skew of other clocks, $5 the longest
-- retention of any scope and $6 whether any consumer reports: these two spare most rows their look-ups.
CREATE FUNCTION once._past() RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT '((i.completed_at + coalesce(i.expires_at - i.created_at, $5) <= $1'
           ' OR i.completed_at + coalesce(i.expires_at - i.created_at,'
           ' (SELECT p.retention FROM once.scope AS p WHERE p.scope = i.scope), $2) <= $1) AND i.created_at < $3'
           ' AND (NOT $6 OR NOT EXISTS (SELECT FROM once.consumer_position AS c WHERE c.consumer = i.scope'
           ' AND c.tenant = i.tenant AND c."position" <= i.created_at + $4))) IS TRUE'::text
$$;
