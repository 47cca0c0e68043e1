-- SPDX-License-Identifier: PostgreSQL
-- once._guard(divided): replaces once._serves by the guard of a divided node, or by the installed function. The caller holds the lock of
-- once._divide, because two sessions cannot replace one function at the same time.
--
-- Why the guard is written so: it first takes the slot's lock, then looks at the slot; CASE keeps this order. once_job.close_slot first
-- closes the slot, then waits for the lock. So it waits for each caller that has the lock and found the slot open, and every later caller
-- finds it closed. A sequence always shows its present value, independent of snapshots and caches. A look at the catalogue, or a replaced
-- function, would let a caller pass that was waiting while the slot closed. The guard never waits: if the lock is not free, the slot is
-- closing.
CREATE FUNCTION once._guard(divided boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    sequences text := '[0:63]=' || (SELECT array_agg(format('once.slot_%s_seq', n) ORDER BY n)::text FROM generate_series(0, 63) AS n);
BEGIN
    PERFORM once._execute_ddl(format('CREATE OR REPLACE FUNCTION once._serves(tenant text) RETURNS boolean LANGUAGE sql AS %L',
        CASE WHEN divided THEN format($guard$
    SELECT CASE WHEN pg_try_advisory_xact_lock_shared(20790, once.slot_of(tenant))
                THEN pg_sequence_last_value((%L::regclass[])[once.slot_of(tenant)]) %% 2 = 1
                ELSE false END
$guard$, sequences) ELSE ' SELECT true ' END));
END $$;
