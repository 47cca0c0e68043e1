-- SPDX-License-Identifier: PostgreSQL
-- once._join(node): makes this database a node like the one that returned node (once._node): the same settings with the salt, the same
-- policies, bindings and days, and no slot open. joined: false if it had joined before. Raises 55000 if the other node is not divided, if
-- the contracts differ, or if this database remembers something: its fingerprints have another salt, and other nodes may serve its
-- tenants. For pgonce init --join. Afterwards CALL once.divide() waits for older transactions.
CREATE FUNCTION once._join(node jsonb, OUT joined boolean, OUT policies bigint, OUT bindings bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET intervalstyle = 'postgres' AS $$
DECLARE
    own jsonb := once._node();
    theirs once.setting;
    day integer;
    missing text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce slots', 20778));
    IF (node ->> 'divided' = 'true') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: the node to join is not divided',
            HINT = 'CALL once.divide(true) there, as the owner of its contract.';
    ELSIF own -> 'contract' IS DISTINCT FROM node -> 'contract' THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: the contract of the node to join is of another version',
            HINT = 'Upgrade it with this pgonce first: pgonce init.';
    ELSIF once._is_divided() THEN
        IF own -> 'setting' ->> 'salt' = node -> 'setting' ->> 'salt' THEN
            joined := false;
            SELECT count(*) INTO policies FROM once.scope;
            SELECT count(*) INTO bindings FROM once.binding;
            RETURN;
        END IF;
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: this node is divided already, and has another salt',
            HINT = 'It shares the tenants with other nodes. Install into another database.';
    END IF;
    PERFORM once._refuse_memory();
    -- In the order in which once.add_days takes them.
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
    SELECT s.* INTO STRICT theirs FROM jsonb_populate_record(NULL::once.setting, node -> 'setting') AS s;
    DELETE FROM once.setting;
    INSERT INTO once.setting SELECT theirs.*;
    DELETE FROM once.scope;
    INSERT INTO once.scope SELECT s.* FROM jsonb_populate_recordset(NULL::once.scope, node -> 'scopes') AS s;
    INSERT INTO once.binding SELECT b.* FROM jsonb_populate_recordset(NULL::once.binding, node -> 'bindings') AS b ON CONFLICT DO NOTHING;
    IF own ->> 'slot_of' <> node ->> 'slot_of' THEN
        PERFORM once._execute_ddl(node ->> 'slot_of');
    END IF;
    PERFORM once.add_days();
    FOR day IN SELECT d FROM once._days('once.intent', 'intent_d') AS d WHERE d < theirs.closed_before LOOP
        PERFORM once._execute_ddl(format('ALTER TABLE once.intent DETACH PARTITION once.intent_d%s', day));
        PERFORM once._execute_ddl(format('DROP TABLE once.intent_d%s', day));
    END LOOP;
    PERFORM once._divide(false);
    SELECT string_agg(v.verify, ', ' ORDER BY v.verify) INTO missing
      FROM (SELECT DISTINCT s.verify FROM once.scope AS s WHERE s.verify IS NOT NULL) AS v
     WHERE to_regprocedure(v.verify || '(text,text,text)') IS NULL;
    IF missing IS NOT NULL THEN
        RAISE NOTICE 'pgonce: verify functions are missing on this node, and their intents stay in doubt: %', missing;
    END IF;
    SELECT string_agg(DISTINCT b.role_name, ', ' ORDER BY b.role_name) INTO missing
      FROM once.binding AS b WHERE NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = b.role_name);
    IF missing IS NOT NULL THEN
        RAISE NOTICE 'pgonce: roles that are bound to a tenant are missing on this node: %', missing;
    END IF;
    joined := true;
    SELECT count(*) INTO policies FROM once.scope;
    SELECT count(*) INTO bindings FROM once.binding;
END $$;
