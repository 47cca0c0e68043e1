-- SPDX-License-Identifier: PostgreSQL
-- once.try_lock(resource): takes a lock on a name until this transaction ends, without waiting: false if another transaction has it. For
-- "one settlement per merchant and day", "one import per file". Works behind a transaction pooler. Never a substitute for a constraint.
--
CREATE FUNCTION once.try_lock(resource text) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (length(resource) > 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: a lock needs the name of a resource',
            HINT = 'For example once.try_lock(''settlement/'' || merchant || ''/'' || day).';
    END IF;
    RETURN pg_try_advisory_xact_lock(hashtextextended(resource COLLATE "C", 20780));
END $$;
