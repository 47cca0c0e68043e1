-- SPDX-License-Identifier: PostgreSQL
-- once._note_start(tenant, scope, key, fingerprint, fence): notes, for once.finish, that this transaction has started an intent, for
-- which request and under which fence. The note is in a setting of the transaction: a rollback, also one to a savepoint, removes it
-- together with the intent's lock. The latest comes first. It guards against mistakes: a caller who sets once.started by hand harms only
-- itself. Raises P4014 if the transaction has started this intent already and not finished it. once.strict: makes the end of the
-- transaction check for the outcome. The inserted row is deleted at once, and its deferred trigger remains.
CREATE FUNCTION once._note_start(tenant text, scope text, key text, fingerprint bytea, fence text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    started text := nullif(current_setting('once.started', true), '');
    of_intent text := concat_ws(E'\x1f', E'\x1e', tenant, scope, key, '');
    made tid;
BEGIN
    IF strpos(started, of_intent) > 0 THEN
        IF NOT once._has_outcome(tenant, scope, key, split_part(split_part(started, of_intent, 2), E'\x1f', 2)::integer) THEN
            PERFORM once._refuse('P4014', tenant, scope, key);
        END IF;
    END IF;
    IF nullif(current_setting('once.strict', true), '')::boolean AND current_setting('transaction_read_only') = 'off' THEN
        INSERT INTO once.unfinished VALUES (tenant, scope, key, fence::integer) RETURNING ctid INTO made;
        DELETE FROM once.unfinished AS u WHERE u.ctid = made;
    END IF;
    RETURN set_config('once.started', concat_ws(E'\x1f', E'\x1e', tenant, scope, key, fingerprint, fence, started), true);
END $$;
