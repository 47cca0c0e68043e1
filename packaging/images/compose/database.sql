-- SPDX-License-Identifier: PostgreSQL
-- The database of compose.yaml, once, when its volume is new: logins, what each may do, and the example's table.
-- `pgonce init` comes after it.
\i /run/secrets/roles

-- The contract's roles. Made here, so that its owner need not be able to make roles.
CREATE ROLE once_app NOLOGIN;
CREATE ROLE once_tenant NOLOGIN;
CREATE ROLE once_relay NOLOGIN;
CREATE ROLE once_consumer NOLOGIN;
CREATE ROLE once_keeper NOLOGIN;
CREATE ROLE once_capture NOLOGIN;
CREATE ROLE once_reader NOLOGIN;
CREATE ROLE once_support NOLOGIN;
CREATE ROLE once_admin NOLOGIN;
GRANT once_app TO gateway, payments;
GRANT once_keeper TO keeper;
GRANT once_relay TO relay;
GRANT once_reader TO console;
GRANT CREATE ON DATABASE app TO owner, payments;

-- The example: its table, and an event for each charge.
SET ROLE payments;
\i /payments.sql
;
CREATE FUNCTION payments.tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once.emit('charge.made', to_jsonb(NEW), 'charge', NEW.charge_id::text);
    RETURN NULL;
END
$$;
CREATE TRIGGER tell AFTER INSERT ON payments.charge FOR EACH ROW EXECUTE FUNCTION payments.tell();
RESET ROLE;
