-- SPDX-License-Identifier: PostgreSQL
-- once.set_scope(scope, lease, retention, max_attempts, on_stale, verify, response_bytes_max, event_bytes_max, dry_run): sets the policy
-- of a scope; '' is the default policy, for all scopes without one. A NULL argument keeps the present value, or takes the default
-- policy's. Initial defaults in brackets.
--   lease               (1 minute; at most 7 days) how long a claim holds its intent without a report or a renewal
--   retention           (7 days; at most 100 years) how long an outcome is replayed
--   max_attempts        (0: no limit) after so many attempts a retryable failure becomes final, and a silent attempt leaves a doubt
--   on_stale            ('in_doubt') what becomes of an intent whose lease has passed without a report: 'in_doubt', it waits for a
--                       decision; 'takeover', the next attempt runs: only for effects that are safe to repeat; 'verify', verify is asked
--   verify              (none) a function f(tenant text, scope text, key text) RETURNS once.verification. It runs as the owner of the
--                       contract, so only administrators may set it
--   response_bytes_max  (1048576; 8192 to 67108864) the largest answer that is stored
--   event_bytes_max     (1048576; 8192 to 67108864) the largest payload, of once.emit as text, of once.emit_bytes as it is
-- Raises 23514 for a value out of range, P4000 for a scope that is too long or contains a control character. Returns the policy; a dry
-- run checks it in the same way, and changes nothing.
CREATE FUNCTION once.set_scope(scope text, lease interval DEFAULT NULL, retention interval DEFAULT NULL,
    max_attempts integer DEFAULT NULL, on_stale text DEFAULT NULL, verify text DEFAULT NULL, response_bytes_max integer DEFAULT NULL,
    event_bytes_max integer DEFAULT NULL, dry_run boolean DEFAULT false)
RETURNS once.scope LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    policy once.scope;
BEGIN
    IF scope IS NULL OR length(scope) > 255 THEN
        PERFORM once._refuse('P4000', NULL, scope, NULL);
    ELSIF scope COLLATE "C" ~ E'[\\x01-\\x1f\\x7f]' THEN
        PERFORM once._refuse('P4000', NULL, scope, NULL, 'the scope contains a control character');
    END IF;
    LOCK TABLE once.scope IN SHARE ROW EXCLUSIVE MODE;      -- one writer at a time; readers do not wait
    policy := once._policy(scope);
    policy.scope := scope;
    policy.lease := coalesce(lease, policy.lease);
    policy.retention := coalesce(retention, policy.retention);
    policy.max_attempts := CASE WHEN max_attempts = 0 THEN NULL ELSE coalesce(max_attempts, policy.max_attempts) END;
    policy.on_stale := coalesce(on_stale, CASE WHEN verify IS NOT NULL THEN 'verify' ELSE policy.on_stale END);
    policy.verify := CASE WHEN policy.on_stale = 'verify' THEN coalesce(
        (SELECT format('%I.%I', n.nspname, p.proname) FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
          WHERE p.oid = (verify || '(text,text,text)')::regprocedure), policy.verify) END;
    policy.response_bytes_max := coalesce(response_bytes_max, policy.response_bytes_max);
    policy.event_bytes_max := coalesce(event_bytes_max, policy.event_bytes_max);
    IF policy.verify IS NOT NULL AND (SELECT p.prorettype <> 'once.verification'::regtype FROM pg_proc AS p
        WHERE p.oid = (policy.verify || '(text,text,text)')::regprocedure) THEN
        RAISE EXCEPTION USING ERRCODE = '42P13', MESSAGE = format('pgonce: %s does not return once.verification',
            policy.verify);
    END IF;
    BEGIN
        DELETE FROM once.scope AS s WHERE s.scope = scope COLLATE "C";
        INSERT INTO once.scope SELECT policy.*;
        IF dry_run THEN
            RAISE EXCEPTION USING ERRCODE = 'P4000', MESSAGE = 'a dry run';
        END IF;
    EXCEPTION WHEN SQLSTATE 'P4000' THEN
        NULL;
    END;
    RETURN policy;
END $$;
