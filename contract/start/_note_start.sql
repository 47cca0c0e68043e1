-- SPDX-License-Identifier: PostgreSQL
-- once._note_start(tenant, scope, key, fingerprint, fence): notes that this transaction has started an intent, for which request
-- and under which fence, for once.finish. In a setting of the transaction: a rollback, also one to a savepoint, takes the note
-- away together with the intent's lock. The latest comes first. A guard against mistakes: whoever sets once.started by hand
-- fools only himself. Raises P4014 where the transaction has started this intent already, and not finished it.
-- once.strict: has the end of the transaction ask for the outcome. The row is gone at once, and what it has set off remains.
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
