-- SPDX-License-Identifier: PostgreSQL
-- once.recover(take, scope, tenant, after, in_doubt): judges stale intents (their lease passed without a report) by the policy and the
-- verify function of their scope, at most take of them, for about a quarter of a second; with a scope or a tenant only those. With
-- in_doubt it judges the intents in doubt instead, including those of retired days, by the verify function alone. The keeper judges stale
-- intents only: it would otherwise ask a verify function that has no answer again in each round. decided is
--   succeeded  verify found that the effect happened: its outcome is stored
--   retry      the next attempt runs. A stale intent stays stale: its policy is takeover, or verify answered 'absent' or raised.
--              The next attempt asks verify again, since something may have happened meanwhile. An intent in doubt for which
--              verify answered 'absent' has now failed retryably, and its old attempt is shut out
--   in_doubt   the outcome is unknown; see once.resolve. Nothing is asked while the doubt's lease lasts: its attempt may still be at work
--   abandoned  verify answered 'absent' and its attempts are used up: failed for good
-- found is the answer of verify; NULL if it was not asked. Changes are recorded in once.decision. To continue, pass next as after; NULL
-- in the last row, or no rows, means done. A row without a key only has the cursor for the next call. An intent whose attempt is just
-- reporting or being taken over is left out.
CREATE FUNCTION once.recover(take integer DEFAULT 100, scope text DEFAULT NULL, tenant text DEFAULT NULL,
    after text DEFAULT NULL, in_doubt boolean DEFAULT false)
RETURNS TABLE (tenant text, scope text, key text, fence integer, found text, decided text, reason text, next text)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    -- A function is not called if its condition, which uses no column, is false.
    SELECT r.tenant, r.scope, r.key, r.fence, r.answer, r.decided, r.reason, r.next
      FROM once._recover($1, $2, $3, $4) AS r WHERE $5 IS NOT TRUE
     UNION ALL
    SELECT r.tenant, r.scope, r.key, r.fence, r.answer, r.decided, r.reason, r.next
      FROM once._recover_doubt($1, $2, $3, $4) AS r WHERE $5
$$;
