-- SPDX-License-Identifier: PostgreSQL
-- once.recover(take, scope, tenant, after): judges stale intents (their lease passed without a word) by the policy and the
-- verify function of their scope, at most take of them, for a quarter of a second or so; with a scope or a tenant only
-- those. decided is
--   succeeded  verify found that the effect happened: its outcome is stored
--   retry      it stays stale: the policy is to take over, or verify answered 'absent' or raised. The next attempt runs (and
--              asks verify again: something may have happened after this question)
--   in_doubt   nobody knows; see once.resolve
--   abandoned  verify answered 'absent' and its attempts are used up: failed for good
-- found is what verify answered; NULL where the policy alone decided. Changes are recorded in once.decision. next is to be
-- passed as after to go on; NULL in the last row, or no rows: through. A row without a key only says where to go on. An
-- intent whose attempt is just reporting, or being taken over, is left out.
CREATE FUNCTION once.recover(take integer DEFAULT 100, scope text DEFAULT NULL, tenant text DEFAULT NULL,
    after text DEFAULT NULL)
RETURNS TABLE (tenant text, scope text, key text, fence integer, found text, decided text, reason text, next text)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.tenant, r.scope, r.key, r.fence, r.answer, r.decided, r.reason, r.next
      FROM once._recover($1, $2, $3, $4) AS r
$$;
