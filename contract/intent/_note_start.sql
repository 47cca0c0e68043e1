-- SPDX-License-Identifier: PostgreSQL
-- once._note_start(tenant, scope, key, fence): notes that this transaction has started an intent, and under which fence, for
-- once.finish. In a setting of the transaction: a rollback, also one to a savepoint, takes the note away together with the
-- intent's lock. The latest comes first. A guard against mistakes: whoever sets once.started by hand fools only himself.
-- Inlined; each operator more would cost every start 2,000 instructions.
CREATE FUNCTION once._note_start(tenant text, scope text, key text, fence text) RETURNS text LANGUAGE sql AS $$
    SELECT set_config('once.started', concat_ws(E'\x1f', E'\x1e', tenant, scope, key, fence, current_setting('once.started', true)), true)
$$;
