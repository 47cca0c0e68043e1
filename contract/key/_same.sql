-- SPDX-License-Identifier: PostgreSQL
-- once._same(fingerprint, redirects, given): is this the intent's request, or one that an answer has redirected it to? Never NULL for a row
-- that is there; inlined.
CREATE FUNCTION once._same(fingerprint bytea, redirects bytea[], given bytea) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT fingerprint = given OR coalesce(given = ANY (redirects), false)
$$;
