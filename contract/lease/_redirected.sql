-- SPDX-License-Identifier: PostgreSQL
-- once._redirected(redirects, fingerprint, next_state, redirect): the row's redirects after a report, see once.fail. Keeps the latest
-- twenty, as many as a client follows: an older one is another request again.
CREATE FUNCTION once._redirected(redirects bytea[], fingerprint bytea, next_state once.state, redirect bytea) RETURNS bytea[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN redirect IS NULL OR next_state <> 'failed_retryable' OR once._same(fingerprint, redirects, redirect)
                THEN redirects ELSE redirects[greatest(cardinality(redirects) - 18, 1):] || redirect END
$$;
