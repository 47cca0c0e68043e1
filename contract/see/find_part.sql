-- SPDX-License-Identifier: PostgreSQL
-- once.find_part(q, tenant, scope, state, since, until, take, after): finds intents by anything that is known of them, the newest first,
-- in parts: at most take (500) of them, reading for about 30 milliseconds. q is a key or its beginning, a result ('charge:ch_17', or only
-- 'ch_17'), an owner, a tenant, an error code or a part of an error's text, a traceparent or its trace id, or the id of an event; NULL:
-- any intent. First comes the key, by the primary key in every scope. Then the tables are read by blocks, from their ends: the events (if
-- q is a trace or a UUID), the days of the keys, the newest first, the keys without a day, and what is archived. So the order is roughly
-- that of time. tenant, scope, state, since and until (of created_at) narrow it; NULL does not. found_by is key, result, owner, tenant,
-- error, trace or event; NULL without q. To continue, pass next of the last row as after; NULL means done. The last row has no intent,
-- but understood, what q may be; share, what part of the tables has been read; and reached, when an intent there was created. An intent
-- that was there at the first call is listed, even if others are inserted and days are closed meanwhile; and once, unless an attempt
-- changes it or its day is closed while the search stands in it. Raises 22023 for an unknown state or an invalid cursor, P4003 for the
-- tenant.
CREATE FUNCTION once.find_part(q text DEFAULT NULL, tenant text DEFAULT NULL, scope text DEFAULT NULL, state text DEFAULT NULL,
    since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL, take integer DEFAULT 50, after text DEFAULT NULL)
RETURNS TABLE (tenant text, scope text, key text, state text, verdict text, fence integer, attempts integer, owner text,
    created_at timestamptz, updated_at timestamptz, completed_at timestamptz, lease_until timestamptz, response_status integer,
    result_type text, result_id text, error_code text, error_message text, traceparent text, archived boolean, found_by text, next text,
    share double precision, reached timestamptz, understood text[])
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT (f.stored).tenant, (f.stored).scope, (f.stored).key, (f.stored).state::text,
           CASE WHEN (f.stored).state IS NOT NULL
                THEN once._verdict(true, (f.stored).state, (f.stored).lease_until, clock_timestamp(), 0, NULL, 'takeover') END,
           (f.stored).fence, (f.stored).attempts, (f.stored).owner, (f.stored).created_at, (f.stored).updated_at,
           (f.stored).completed_at, (f.stored).lease_until, (f.stored).response_status, (f.stored).result_type, (f.stored).result_id,
           (f.stored).error_code, (f.stored).error_message, (f.stored).traceparent, f.archived, f.found_by, f.next, f.share, f.reached,
           f.understood
      FROM once._find_part($1, $2, $3, $4, $5, $6, $7, $8) AS f
$$;
