-- SPDX-License-Identifier: PostgreSQL
-- once._same(fingerprint, redirects, given): whether this is the intent's request, or one that an answer redirected it to. Never NULL for
-- an existing row; inlined.
CREATE FUNCTION once._same(fingerprint bytea, redirects bytea[], given bytea) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT fingerprint = given OR coalesce(given = ANY (redirects), false)
$$;
