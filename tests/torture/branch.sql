-- SPDX-License-Identifier: PostgreSQL
-- The second database beside the shop's, on the same server and with the contract, as a database for another tenant would be. Its
-- events have the names of the shop's (tenant, scope, key, type, aggregate) and go to the same destination.
CREATE SCHEMA torture;
GRANT USAGE ON SCHEMA torture TO once_app;

CREATE TABLE torture.effect (
    tenant    text COLLATE "C",
    scope     text COLLATE "C",
    key       text COLLATE "C",
    aggregate text NOT NULL,
    step      integer NOT NULL,
    events    integer NOT NULL,
    PRIMARY KEY (tenant, scope, key)
);
CREATE INDEX ON torture.effect (aggregate);
GRANT SELECT, INSERT ON torture.effect TO once_app;

-- torture.repeat(...): what an effect of the shop is here, with its events; nothing, where it is there. One session at a time.
CREATE FUNCTION torture.repeat(tenant text, scope text, key text, name text, events integer) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    own text := 'branch/' || name;
    step integer := 1 + count(*) FROM torture.effect AS e WHERE e.aggregate = own;
BEGIN
    IF EXISTS (SELECT FROM torture.effect AS e WHERE e.tenant = tenant AND e.scope = scope AND e.key = key) THEN
        RETURN;
    END IF;
    INSERT INTO torture.effect VALUES (tenant, scope, key, own, step, events);
    FOR nth IN 1 .. events LOOP
        PERFORM once.emit('torture.' || CASE nth WHEN 1 THEN 'done' ELSE 'checked' END,
            jsonb_build_object('branch', true, 'tenant', tenant, 'scope', scope, 'key', key, 'aggregate', own, 'step', step, 'nth', nth),
            'account', name, scope => scope, key => key, tenant => tenant);
    END LOOP;
END $$;

SELECT once.set_scope('', lease => '4 s', retention => '1 day');
