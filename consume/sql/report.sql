-- SPDX-License-Identifier: PostgreSQL
-- How far each part is acknowledged: the database's time minus behind_ms, or the broker's time, which may be ahead of it. A look at
-- the broker is some seconds old when it is reported, so the time is at least 10 seconds in the past.
SELECT once.consumer_report($1::text, least(coalesce(to_timestamp(p.at_ms / 1000.0), clock_timestamp()
           - p.behind_ms * interval '1 millisecond'), clock_timestamp() - interval '10 seconds'), $2::text, p.part)
  FROM unnest($3::text[], $4::bigint[], $5::bigint[]) AS p (part, at_ms, behind_ms)
