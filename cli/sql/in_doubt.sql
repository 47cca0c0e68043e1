-- SPDX-License-Identifier: PostgreSQL
-- The intents in doubt, the oldest first. $1 scope, $2 tenant (each NULL: all), $3 how many, $4 only of these slots (NULL: all).
SELECT coalesce(json_agg(to_jsonb(d) || jsonb_build_object('reason', d.error_message,
           'age_ms', floor(extract(epoch FROM clock_timestamp() - d.since) * 1000)::bigint) ORDER BY d.since, d.scope, d.key),
           '[]'::json)
  FROM (SELECT v.* FROM once.in_doubt AS v
         WHERE ($1::text IS NULL OR v.scope = $1) AND ($2::text IS NULL OR v.tenant = $2)
           AND ($4::integer[] IS NULL OR once.slot_of(v.tenant) = ANY ($4::integer[]))
         ORDER BY v.since, v.scope, v.key LIMIT $3::integer) AS d
