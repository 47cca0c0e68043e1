-- SPDX-License-Identifier: PostgreSQL
-- once._divide(open): the part of once.divide that is one transaction: creates the sequences and replaces once._serves by the guard. If the
-- node is already divided, the slots stay as they are, and the guard is put back if it is missing (after the restore of an extension's
-- dump).
CREATE FUNCTION once._divide(open boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    slot integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce slots', 20778));
    SELECT s.n INTO slot FROM generate_series(0, 63) AS s (n) WHERE to_regclass('once.slot_' || s.n || '_seq') IS NULL LIMIT 1;
    IF slot IS NOT NULL THEN
        IF slot > 0 THEN
            RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: the sequence once.slot_%s_seq is missing', slot),
                DETAIL = 'The others exist, so it was dropped, and this node no longer knows whether the slot is open here.',
                HINT = format('Find out from the other nodes (pgonce doctor --nodes), then CREATE SEQUENCE once.slot_%s_seq MINVALUE 0 and '
                    'setval it to twice the epoch, plus one if the slot is open here.', slot);
        ELSIF open IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: open is missing',
                HINT = 'true for the first node, which serves all tenants; false for a node that joins others.';
        END IF;
        FOR slot IN 0 .. 63 LOOP
            PERFORM once._execute_ddl(format('CREATE SEQUENCE once.slot_%s_seq MINVALUE 0', slot));
            PERFORM once._close(format('once.slot_%s_seq', slot)::regclass);
            PERFORM setval(format('once.slot_%s_seq', slot)::regclass, CASE WHEN open THEN 3 ELSE 0 END);
        END LOOP;
    END IF;
    PERFORM once._guard(true);
END $$;
