-- SPDX-License-Identifier: PostgreSQL
-- once.claim(scope, key, fingerprint, owner, lease, retention, tenant, traceparent, takeover): claims an intent whose effect is made
-- elsewhere. COMMIT it, do the work, then call once.complete or once.fail with the fence. Verdicts:
--   new_claim                       do the work: the claim is yours, under the returned fence
--   retryable_failure               the same; earlier attempts certainly had no effect: they reported so, or the verify function
--                                   answered 'absent'
--   processing_stale                the same; the last attempt fell silent and may have had its effect. Only if the scope's on_stale,
--                                   or takeover, says that repeating is harmless
--   replay_success, final_failure   finished: the stored outcome is in the other columns
--   processing_active               another attempt is at work, at least until lease_until
--   in_doubt, expired               no attempt may run: see once.resolve. An attempt that fell silent is a doubt unless the scope's
--                                   on_stale says otherwise; the scope's verify function, if there is one, was asked first
-- owner names the worker, for people; lease and retention (how long its outcome is kept once it is stored) default to the scope's.
-- traceparent (W3C) is stored with the intent, unless an earlier attempt stored its own; a malformed one is ignored.
--
-- takeover overrides the scope's on_stale in this call, unless that is 'verify'. true: this work is safe to repeat; the claim takes over
-- from an attempt that fell silent, even if that was recorded as a doubt since, but not from a doubt that was reported. false: an attempt
-- that fell silent is in doubt.
--
-- Raises P4002 for another fingerprint, P4000 P4001 P4003 P4098 for bad input, 22023 for a bad lease. Never waits. In a read-only
-- transaction, for example on a standby, it returns what is stored, and raises 25006 if it would have to claim.
CREATE FUNCTION once.claim(scope text, key text, fingerprint bytea, owner text DEFAULT NULL, lease interval DEFAULT NULL,
    retention interval DEFAULT NULL, tenant text DEFAULT '', traceparent text DEFAULT NULL, takeover boolean DEFAULT NULL)
RETURNS once.claimed
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._check_and_lock(tenant, scope, key, fingerprint, false);
    claimed once.claimed;
BEGIN
    IF lease IS NOT NULL THEN
        PERFORM once._check_term('lease', lease, '7 days');
    END IF;
    IF retention IS NOT NULL THEN
        PERFORM once._check_term('retention', retention, '100 years');
    END IF;
    claimed := once._claim(tenant, scope, key, bucket, fingerprint, left(owner, 255), lease, retention, traceparent,
        takeover);
    IF claimed.verdict = 'new_claim' THEN       -- in its own branch: an expression is prepared as a whole
        RETURN claimed;
    ELSIF claimed.verdict = 'mismatch' THEN
        PERFORM once._refuse('P4002', tenant, scope, key);
    ELSIF claimed.verdict IN ('future', 'missing') THEN
        PERFORM once._refuse_day(tenant, scope, key, bucket);
        PERFORM once._refuse('P4098', tenant, scope, key, 'its day was made just now');     -- since the claim looked
    ELSIF claimed.verdict = 'unknown' THEN
        PERFORM once._refuse('P4099', tenant, scope, key);
    END IF;
    RETURN claimed;
END $$;
