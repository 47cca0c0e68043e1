-- SPDX-License-Identifier: PostgreSQL
-- once._kept_ms(...): for how many milliseconds an outcome is kept at least, at most a day: a copy may be given for so long. NULL for
-- what may still change, and for an intent with other fingerprints besides: a copy could not tell a mismatch from them. Inlined.
CREATE FUNCTION once._kept_ms(state once.state, redirects bytea[], created_at timestamptz, completed_at timestamptz,
    expires_at timestamptz, retention interval, now timestamptz) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN state IN ('succeeded', 'failed_final') AND redirects IS NULL
                THEN least(86400000, greatest(0, 1000 * date_part('epoch', completed_at - now
                     + coalesce(expires_at - created_at, retention))))::integer END
$$;
