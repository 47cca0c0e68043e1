-- SPDX-License-Identifier: PostgreSQL
-- once._execute_ddl(statement): executes DDL on this node only. Citus would repeat it on its other nodes, which have contracts of their
-- own, or refuse it on a worker. The setting has its former value afterwards; after an error, the rollback restores it.
CREATE FUNCTION once._execute_ddl(statement text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    propagated text := current_setting('citus.enable_ddl_propagation', true);      -- NULL: no Citus
BEGIN
    IF propagated IS NOT NULL THEN
        PERFORM set_config('citus.enable_ddl_propagation', 'off', true);
    END IF;
    EXECUTE statement;
    IF propagated IS NOT NULL THEN
        PERFORM set_config('citus.enable_ddl_propagation', propagated, true);
    END IF;
END $$;
