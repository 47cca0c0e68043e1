-- SPDX-License-Identifier: PostgreSQL
-- once.recover(take, scope, tenant, after, in_doubt): judges stale intents (their lease passed
-- without a report) by the policy and the verify function of their scope, at most take of them, for
-- a quarter of a second or so; with a scope or a tenant only those. With in_doubt, those that are
-- in doubt are judged instead, those of retired days among them: by the verify function alone. The
-- keeper judges what is stale only: a verify function that cannot tell would be asked in each
-- round. decided is
--   succeeded  verify found that the effect happened: its outcome is stored
--   retry      the next attempt runs. A stale intent stays so: the policy is to take over, or verify answered 'absent' or raised,
--              and is asked again then, since something may have happened meanwhile. One in doubt, of which verify answered
--              'absent', has failed retryably, and its old attempt is shut out
--   in_doubt   the outcome is unknown; see once.resolve. Nothing is asked while the doubt's lease lasts: its attempt may still be at work
--   abandoned  verify answered 'absent' and its attempts are used up: failed for good
-- found is what verify answered; NULL where it was not asked. Changes are recorded in
-- once.decision. next is to be passed as after to go on; NULL in the last row, or no rows: through.
-- A row without a key only says where to go on. An intent whose attempt is just reporting, or being
-- taken over, is left out.
CREATE FUNCTION once.recover(take integer DEFAULT 100, scope text DEFAULT NULL, tenant text DEFAULT NULL,
    after text DEFAULT NULL, in_doubt boolean DEFAULT false)
RETURNS TABLE (tenant text, scope text, key text, fence integer, found text, decided text, reason text, next text)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    -- Neither function is called where its condition, of no column, is false.
    SELECT r.tenant, r.scope, r.key, r.fence, r.answer, r.decided, r.reason, r.next
      FROM once._recover($1, $2, $3, $4) AS r WHERE $5 IS NOT TRUE
     UNION ALL
    SELECT r.tenant, r.scope, r.key, r.fence, r.answer, r.decided, r.reason, r.next
      FROM once._recover_doubt($1, $2, $3, $4) AS r WHERE $5
$$;
