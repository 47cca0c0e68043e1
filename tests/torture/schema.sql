-- SPDX-License-Identifier: PostgreSQL
-- The database in which the torture's effects happen, beside the contract. None of the tables of effects has a unique constraint:
-- a second effect must show.
CREATE SCHEMA torture;
GRANT USAGE ON SCHEMA torture TO once_app;

-- What effects count on: each takes the next step of its aggregate, so that their events have an order.
CREATE TABLE torture.aggregate (
    id   text PRIMARY KEY,
    step integer NOT NULL DEFAULT 0
) WITH (fillfactor = 20);
INSERT INTO torture.aggregate (id) SELECT 'a' || n FROM generate_series(1, 81) AS n;
GRANT SELECT, UPDATE ON torture.aggregate TO once_app;

-- The effects that commit together with their outcome, and emit events.
CREATE TABLE torture.effect (
    position  bigint GENERATED ALWAYS AS IDENTITY,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    tenant    text NOT NULL,
    scope     text NOT NULL,
    key       text NOT NULL,
    payload   text NOT NULL,
    intent    integer NOT NULL,     -- the history's numbers
    attempt   integer NOT NULL,
    door      text NOT NULL,
    fence     integer,
    aggregate text NOT NULL,
    step      integer NOT NULL,
    events    integer NOT NULL,
    body      bytea NOT NULL
);
GRANT SELECT, INSERT ON torture.effect TO once_app;

-- The effects that stand for something elsewhere: made in transactions of their own.
CREATE TABLE torture.ledger (
    position  bigint GENERATED ALWAYS AS IDENTITY,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    tenant    text NOT NULL,
    scope     text NOT NULL,
    key       text NOT NULL,
    payload   text NOT NULL,
    intent    integer NOT NULL,
    attempt   integer NOT NULL,
    door      text NOT NULL,
    fence     integer,
    body      bytea NOT NULL
);
CREATE INDEX ON torture.ledger (key);   -- for verify
GRANT SELECT, INSERT ON torture.ledger TO once_app;

-- Who asks "did it happen?" and is told no must know that it will not happen later either. So a ledger that is asked has a gate:
-- attempts whose fence is not above it are shut out.
CREATE TABLE torture.gate (
    tenant text COLLATE "C",
    scope  text COLLATE "C",
    key    text COLLATE "C",
    fence  integer NOT NULL,
    PRIMARY KEY (tenant, scope, key)
);
GRANT SELECT, INSERT, UPDATE ON torture.gate TO once_app;

-- torture.answer(payload, step): what an execution answers; no two are equal, but for empty ones. "pad" in the payload makes it long.
-- "style" makes it what somebody who reads it by other rules than UTF-8's takes for something else. Where it is JSON, it is as
-- jsonb writes it.
CREATE FUNCTION torture.answer(payload jsonb, step integer) RETURNS bytea LANGUAGE sql AS $$
    SELECT convert_to(CASE payload ->> 'style'
        WHEN 'hex' THEN '\x41' || replace(nonce, '-', '')
        WHEN 'octal' THEN '\101 \\ ' || nonce
        WHEN 'backslash' THEN 'C:\new\' || nonce || '\'
        WHEN 'quotes' THEN $q$it's "quoted" $1 {0}$q$ || E'\r\n\t' || nonce
        WHEN 'unicode' THEN 'Größe ☃ ' || chr(128512) || nonce
        WHEN 'string' THEN to_jsonb('\x41 "ü" \\ ' || nonce)::text
        WHEN 'empty' THEN ''
        ELSE jsonb_build_object('intent', payload -> 'i', 'step', step, 'nonce', nonce,
                                'pad', repeat('x', coalesce((payload ->> 'pad')::integer, 0)))::text END, 'UTF8')
    FROM CAST(gen_random_uuid() AS text) AS nonce
$$;

-- torture.advance(...): the effect of an intent whose outcome commits with it, without its events. Returns the step of its aggregate,
-- and the body of the answer.
CREATE FUNCTION torture.advance(tenant text, scope text, key text, payload text, attempt integer, door text,
    fence integer DEFAULT NULL, OUT step integer, OUT body bytea) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    said jsonb := payload::jsonb;
    name text := said ->> 'aggregate';
BEGIN
    UPDATE torture.aggregate AS a SET step = a.step + 1 WHERE a.id = name RETURNING a.step INTO STRICT step;
    body := torture.answer(said, step);
    INSERT INTO torture.effect (tenant, scope, key, payload, intent, attempt, door, fence, aggregate, step, events, body)
    VALUES (tenant, scope, key, payload, (said ->> 'i')::integer, attempt, door, fence, name, step, (said ->> 'events')::integer, body);
END $$;

-- torture.act(...): the same with its events. Returns the body of the answer.
CREATE FUNCTION torture.act(tenant text, scope text, key text, payload text, attempt integer, door text,
    fence integer DEFAULT NULL) RETURNS bytea LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    said jsonb := payload::jsonb;
    name text := said ->> 'aggregate';
    caused boolean := (said ->> 'caused')::boolean;     -- the event's id is the intent's
    step integer;
    body bytea;
BEGIN
    SELECT made.step, made.body INTO step, body FROM torture.advance(tenant, scope, key, payload, attempt, door, fence) AS made;
    FOR nth IN 1 .. (said ->> 'events')::integer LOOP
        PERFORM once.emit('torture.' || CASE nth WHEN 1 THEN 'done' ELSE 'checked' END,
            jsonb_build_object('tenant', tenant, 'scope', scope, 'key', key, 'aggregate', name, 'step', step, 'nth', nth),
            'account', name, scope => CASE WHEN caused THEN scope END, key => CASE WHEN caused THEN key END, tenant => tenant);
    END LOOP;
    RETURN body;
END $$;

-- torture.write(...): an effect elsewhere. gated: refused (55000) where the gate has shut out the fence. Returns the body of
-- the answer.
CREATE FUNCTION torture.write(tenant text, scope text, key text, payload text, attempt integer, door text,
    fence integer DEFAULT NULL, gated boolean DEFAULT false) RETURNS bytea LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    body bytea := torture.answer(payload::jsonb, NULL);
BEGIN
    IF gated AND torture.pass(tenant, scope, key, 0) >= fence THEN
        RAISE EXCEPTION 'fence % is shut out', fence USING ERRCODE = '55000';
    END IF;
    INSERT INTO torture.ledger (tenant, scope, key, payload, intent, attempt, door, fence, body)
    VALUES (tenant, scope, key, payload, (payload::jsonb ->> 'i')::integer, attempt, door, fence, body);
    RETURN body;
END $$;

-- torture.pass(tenant, scope, key, fence): locks the gate until the transaction ends, raises it to the fence, and returns where
-- it stands.
CREATE FUNCTION torture.pass(tenant text, scope text, key text, fence integer) RETURNS integer LANGUAGE sql AS $$
    INSERT INTO torture.gate AS g VALUES (tenant, scope, key, fence)
    ON CONFLICT ON CONSTRAINT gate_pkey DO UPDATE SET fence = greatest(g.fence, excluded.fence)
    RETURNING g.fence
$$;

-- torture.verify(tenant, scope, key): did it happen? Whoever is told no has shut out all attempts until now.
CREATE FUNCTION torture.verify(tenant text, scope text, key text) RETURNS once.verification LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    verified once.verification;
BEGIN
    PERFORM torture.pass(tenant, scope, key, (once.peek(scope, key, tenant)).fence);
    SELECT l.body INTO verified.response_body FROM torture.ledger AS l
     WHERE l.tenant = tenant AND l.scope = scope AND l.key = key ORDER BY l.position LIMIT 1;
    verified.answer := CASE WHEN FOUND THEN 'happened' ELSE 'absent' END;
    verified.response_status := CASE WHEN FOUND THEN 201 END;
    RETURN verified;
END $$;

-- What verify_asked was asked, and what it said. began: the transaction, by the same clock.
CREATE TABLE torture.question (
    position    bigint GENERATED ALWAYS AS IDENTITY,
    began       timestamptz NOT NULL DEFAULT transaction_timestamp(),
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    tenant      text NOT NULL,
    scope       text NOT NULL,
    key         text NOT NULL,
    fence       integer NOT NULL,
    state       text NOT NULL,
    lease_until timestamptz,
    answer      text NOT NULL
);
CREATE INDEX ON torture.question (key);

-- torture.verify_asked(tenant, scope, key): as verify, but of one key in three it cannot tell at first, which leaves a doubt that the
-- next claim asks about. Whoever cannot tell shuts nobody out.
CREATE FUNCTION torture.verify_asked(tenant text, scope text, key text) RETURNS once.verification LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    stored record := once.peek(scope, key, tenant);
    verified once.verification;
BEGIN
    PERFORM torture.pass(tenant, scope, key, 0);
    IF hashtext(key) % 3 = 0 AND NOT EXISTS (SELECT FROM torture.question AS q WHERE q.tenant = tenant AND q.scope = scope AND q.key = key
                                                AND q.fence = stored.fence) THEN
        verified.answer := 'unknown';
    ELSE
        verified := torture.verify(tenant, scope, key);
    END IF;
    INSERT INTO torture.question (tenant, scope, key, fence, state, lease_until, answer)
    VALUES (tenant, scope, key, stored.fence, stored.state, stored.lease_until, verified.answer);
    RETURN verified;
END $$;

-- The scopes. Leases are short, so that faults outlast them. Two scopes forget soon: 'brief' has keys without a day, whose promise
-- ends with their retention; 'aged' has keys of past days, which are retired while it is used. 'reborn' forgets at once: its keys come
-- again and again, and have no effects. Scopes whose effect is elsewhere ('doubtful', 'naive', 'endpoints', 'leases', 'jobs') have the
-- defaults alone;
-- those whose effect is under the fence may take over.
SELECT once.set_scope('', lease => '4 s', retention => '1 day');
SELECT once.set_scope('accounts');
SELECT once.set_scope('requests');
SELECT once.set_scope('deliveries');
SELECT once.set_scope('endpoints');
SELECT once.set_scope('leases');
SELECT once.set_scope('brief', retention => '45 s');
SELECT once.set_scope('aged', retention => '10 s');
SELECT once.set_scope('reborn', retention => '1 s', on_stale => 'takeover');
SELECT once.set_scope('fenced', on_stale => 'takeover');
SELECT once.set_scope('verified', on_stale => 'verify', verify => 'torture.verify');
SELECT once.set_scope('asked', on_stale => 'verify', verify => 'torture.verify_asked');
SELECT once.set_scope('handoff', on_stale => 'takeover');
