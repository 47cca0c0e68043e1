-- SPDX-License-Identifier: PostgreSQL
-- The contract at version 1 (pgonce 1.0.0), as `tools/contract.py install` printed it then. Never changed: test_upgrade.py starts here.
BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL check_function_bodies = off;
-- SPDX-License-Identifier: PostgreSQL
-- The schema and the record of what was installed in it. `pgonce init` runs this once, before the migrations; CREATE
-- EXTENSION makes the schema itself and starts at the table.
CREATE SCHEMA once;
COMMENT ON SCHEMA once IS 'pgonce: one durable effect and one answer per intent';

-- SPDX-License-Identifier: PostgreSQL
-- Which migrations ran, and with which text; version 0 stands for the functions, views and grants as a whole.
CREATE TABLE once.migration (
    version      integer PRIMARY KEY CHECK (version >= 0),
    name         text NOT NULL,
    checksum     text NOT NULL,
    pgonce       text NOT NULL,
    installed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    installed_by text NOT NULL DEFAULT session_user
);

-- SPDX-License-Identifier: PostgreSQL
-- The tables of the contract, version 1. Only the owner touches them; everybody else calls functions. Text is COLLATE
-- "C" throughout: comparisons are of bytes, and an index can serve them whatever the caller's collation.

CREATE TYPE once.state AS ENUM ('processing', 'succeeded', 'failed_retryable', 'failed_final', 'in_doubt');
COMMENT ON TYPE once.state IS 'what is known of an intent; the allowed changes are in once.transition';

-- Every change of state that the contract makes, and no other. tests/contract/test_transitions.py walks all
-- combinations against this table, and lib/src/state.c holds the same words.
CREATE TABLE once.transition (
    from_state once.state,                  -- NULL: no row yet
    event      text COLLATE "C" NOT NULL,   -- the function that makes the change
    to_state   once.state NOT NULL,
    guard      text NOT NULL,               -- what must hold besides
    UNIQUE (from_state, event, to_state)
);
INSERT INTO once.transition VALUES
    (NULL,               'claim',   'processing',       'the key''s day is open'),
    (NULL,               'finish',  'succeeded',        'the key''s day is open'),
    (NULL,               'finish',  'failed_retryable', 'the key''s day is open'),
    (NULL,               'finish',  'failed_final',     'the key''s day is open'),
    (NULL,               'receive', 'succeeded',        'the key''s day is open'),
    ('failed_retryable', 'claim',   'processing',       'attempts are left; the fence rises'),
    ('failed_retryable', 'claim',   'failed_final',     'attempts are used up: abandoned'),
    ('failed_retryable', 'finish',  'succeeded',        'the fence rises'),
    ('failed_retryable', 'finish',  'failed_retryable', 'the fence rises'),
    ('failed_retryable', 'finish',  'failed_final',     'the fence rises'),
    ('processing',       'claim',   'processing',       'the lease has passed and attempts are left; the fence rises'),
    ('processing',       'claim',   'succeeded',        'the lease has passed and verify says: happened'),
    ('processing',       'begin',   'succeeded',        'the lease has passed and verify says: happened'),
    ('processing',       'claim',   'in_doubt',
        'the lease has passed and policy, verify or used-up attempts say so'),
    ('processing',       'retire_day', 'in_doubt',      'the lease has passed; the row moves to the archive'),
    ('processing',       'finish',  'succeeded',        'the lease has passed; the fence rises'),
    ('processing',       'finish',  'failed_retryable', 'the lease has passed; the fence rises'),
    ('processing',       'finish',  'failed_final',     'the lease has passed; the fence rises'),
    ('processing',       'renew',   'processing',       'the fence is current'),
    ('processing',       'release', 'failed_retryable', 'the fence is current'),
    ('processing',       'complete', 'succeeded',       'the fence is current'),
    ('processing',       'fail',    'failed_retryable', 'the fence is current'),
    ('processing',       'fail',    'failed_final',     'the fence is current'),
    ('processing',       'fail',    'in_doubt',         'the fence is current'),
    ('in_doubt',         'complete', 'succeeded',       'the fence is current: the attempt itself knows'),
    ('in_doubt',         'fail',    'failed_retryable', 'the fence is current: the attempt itself knows'),
    ('in_doubt',         'fail',    'failed_final',     'the fence is current: the attempt itself knows'),
    ('processing',       'resolve', 'succeeded',        'the lease has passed; recorded in once.decision'),
    ('processing',       'resolve', 'failed_retryable', 'the lease has passed; recorded in once.decision'),
    ('processing',       'resolve', 'failed_final',     'the lease has passed; recorded in once.decision'),
    ('in_doubt',         'resolve', 'succeeded',        'recorded in once.decision'),
    ('in_doubt',         'resolve', 'failed_retryable', 'recorded in once.decision'),
    ('in_doubt',         'resolve', 'failed_final',     'recorded in once.decision'),
    ('failed_retryable', 'resolve', 'succeeded',        'recorded in once.decision'),
    ('failed_retryable', 'resolve', 'failed_final',     'recorded in once.decision');

-- One row: what holds for the whole installation. Made, like the default policy, by the first once.add_days() and not here:
-- a restored dump of an extension brings its own.
CREATE TABLE once.setting (
    only_row          boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    closed_before     integer NOT NULL,                       -- UUIDv7 keys of days before this one are expired
    horizon_days      integer NOT NULL DEFAULT 7 CHECK (horizon_days BETWEEN 1 AND 366),  -- past days kept as partitions
    days_ahead        integer NOT NULL DEFAULT 2 CHECK (days_ahead BETWEEN 1 AND 366),
    clock_skew        interval NOT NULL DEFAULT '5 minutes' CHECK (clock_skew >= '0' AND clock_skew <= '12 hours'),
    salt              bytea NOT NULL DEFAULT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))
);

-- The policy of a scope; the row '' is the default for scopes that have none of their own.
CREATE TABLE once.scope (
    scope              text COLLATE "C" PRIMARY KEY CHECK (length(scope) <= 255),
    lease              interval NOT NULL DEFAULT '60 seconds' CHECK (lease > '0' AND lease <= '7 days'),
    retention          interval NOT NULL DEFAULT '7 days' CHECK (retention > '0'),
    max_attempts       integer CHECK (max_attempts >= 1),     -- NULL: no limit
    on_stale           text COLLATE "C" NOT NULL DEFAULT 'takeover' CHECK (on_stale IN ('takeover', 'in_doubt',
        'verify')),
    verify             regprocedure,                          -- f(tenant text, scope text, key text) RETURNS once.verification
    -- The floor lets finish() skip this table for the small bodies that nearly all answers have.
    response_bytes_max integer NOT NULL DEFAULT 1048576 CHECK (response_bytes_max BETWEEN 8192 AND 67108864),
    CHECK ((on_stale = 'verify') = (verify IS NOT NULL))
);

-- What a verify function answers: did the effect of this intent happen?
CREATE TYPE once.verification AS (
    answer           text,      -- 'happened' | 'absent' | 'unknown'
    response_status  integer,
    response_headers jsonb,
    response_body    bytea,
    result_type      text,
    result_id        text
);

-- What once.begin answers. A type of its own, because a function with as many OUT parameters builds its row type anew at
-- each call.
CREATE TYPE once.begun AS (
    verdict          text,      -- 'proceed' | 'replay'
    state            text,
    response_status  integer,
    response_headers jsonb,
    response_body    bytea,
    result_type      text,
    result_id        text,
    error_code       text,
    error_message    text,
    fence            integer
);

-- The tenants that a bound role may name. A role with EXECUTE on once.any_tenant() is not bound.
CREATE TABLE once.binding (
    role_name text COLLATE "C",
    tenant    text COLLATE "C",
    PRIMARY KEY (role_name, tenant)
);

-- One row per intent. bucket is the day (since 1970) in a UUIDv7 key and 0 for every other key: a pure function of the
-- key, so that this primary key alone keeps an intent unique over all partitions. No index but the primary key, and half
-- of each page left free (fillfactor 50): completing a claim is a HOT update, also where a batch fills a page with claims
-- before the first is completed. Bounds on text are the functions' business.
CREATE TABLE once.intent (
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    completed_at     timestamptz,
    expires_at       timestamptz,             -- NULL: completed_at plus the scope's retention, whatever that is by then
    lease_until      timestamptz,
    bucket           integer NOT NULL,
    fence            integer NOT NULL,
    attempts         integer NOT NULL,
    response_status  integer,
    state            once.state NOT NULL,
    format_version   smallint NOT NULL DEFAULT 1,
    tenant           text COLLATE "C" NOT NULL,
    scope            text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    fingerprint      bytea NOT NULL,
    owner            text COLLATE "C",
    result_type      text COLLATE "C",
    result_id        text COLLATE "C",
    error_code       text COLLATE "C",
    error_message    text COLLATE "C",
    traceparent      text COLLATE "C",
    response_headers jsonb,
    response_body    bytea,
    PRIMARY KEY (tenant, scope, key, bucket)
) PARTITION BY RANGE (bucket);
-- An ordinary range, not DEFAULT: a default partition forbids DETACH CONCURRENTLY.
CREATE TABLE once.intent_d0 PARTITION OF once.intent FOR VALUES FROM (0) TO (1) WITH (fillfactor = 50);

-- Rows of retired days that outlive them, by the month of their day.
CREATE TABLE once.archive (LIKE once.intent INCLUDING DEFAULTS, PRIMARY KEY (tenant, scope, key,
    bucket)) PARTITION BY RANGE (bucket);

-- An operator's decisions, and those of recovery: who, when, why, from what to what.
CREATE TABLE once.decision (
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    decided_by text COLLATE "C" NOT NULL,
    reason     text NOT NULL CHECK (reason <> ''),
    tenant     text COLLATE "C" NOT NULL,
    scope      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    fence      integer NOT NULL,
    from_state once.state NOT NULL,
    to_state   once.state NOT NULL
);
CREATE INDEX decision_intent ON once.decision (tenant, scope, key);

-- Events, written in the transaction of their effect. A published event is never updated. day and xid are what a reader
-- searches by: a batch is what one snapshot sees and the one before did not.
CREATE TABLE once.outbox (
    id             bigint GENERATED BY DEFAULT AS IDENTITY,
    day            integer NOT NULL,                            -- days since 1970 by the database's clock
    xid            xid8 NOT NULL DEFAULT pg_current_xact_id(),
    created_at     timestamptz NOT NULL,
    event_id       uuid NOT NULL,
    topic          text COLLATE "C" NOT NULL,
    event_type     text COLLATE "C" NOT NULL,
    aggregate_type text COLLATE "C",
    aggregate_id   text COLLATE "C",
    tenant         text COLLATE "C" NOT NULL,
    scope          text COLLATE "C",
    key            text COLLATE "C",
    traceparent    text COLLATE "C",
    headers        jsonb,
    payload        jsonb NOT NULL,
    -- Keeps an intent's event of a type single, and finds the events of an intent. Events without an intent have NULLs.
    UNIQUE (tenant, scope, key, event_type, day)
) PARTITION BY RANGE (day);
CREATE INDEX outbox_xid ON once.outbox (xid, id);

INSERT INTO once.migration (version, name, checksum, pgonce) VALUES (1, '0001_tables', '727977eb65c68986b12dcda2a42a34926fb4b7ac5b579551b2277ffae497b501', '1.0.0');

-- SPDX-License-Identifier: PostgreSQL
-- once._archived(tenant, scope, key, bucket): the row of an intent whose day is retired, where it outlived its day;
-- else NULL.
CREATE OR REPLACE FUNCTION once._archived(tenant text, scope text, key text,
    bucket integer) RETURNS once.intent LANGUAGE plpgsql STABLE AS $$
DECLARE
    kept once.intent;
BEGIN
    SELECT a.* INTO kept FROM once.archive AS a
     WHERE a.tenant = _archived.tenant COLLATE "C" AND a.scope = _archived.scope COLLATE "C"
       AND a.key = _archived.key COLLATE "C" AND a.bucket = _archived.bucket;
    RETURN kept;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._authorise(tenant): raises P4003 unless the caller may name this tenant. The caller is the role that the session
-- has SET, else the one that logged in (current_user is the owner here: SECURITY DEFINER). Raises before anything is
-- read, so a refused caller cannot learn whether a key exists.
CREATE OR REPLACE FUNCTION once._authorise(tenant text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    caller text := coalesce(nullif(current_setting('role'), 'none'), session_user::text);
BEGIN
    IF has_function_privilege(caller, 'once.any_tenant()'::regprocedure, 'execute') THEN
        RETURN;
    END IF;
    PERFORM FROM once.binding AS b WHERE b.role_name = caller COLLATE "C" AND b.tenant = _authorise.tenant COLLATE "C";
    IF NOT FOUND THEN
        PERFORM once._refuse('P4003', tenant, NULL, NULL, format('role %I is not bound to this tenant', caller));
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._begin_over(tenant, scope, key, fingerprint): the thorough half of once.begin, for what its hot path leaves over: a
-- row that is no plain replay, a lock that another attempt has, a day that is not plainly open. Decides by the scope's
-- policy whether this attempt may run, and raises where it may not. The arguments are checked already. A stale or
-- retryable row is left as it is: finish() takes it over under the next fence.
CREATE OR REPLACE FUNCTION once._begin_over(tenant text, scope text, key text, fingerprint bytea) RETURNS once.begun
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    locked boolean := pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key));
    policy once.scope := once._policy(scope);
    answer once.begun;
    stored once.intent;
    verified once.verification;
    judged text;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND AND bucket <> 0 THEN
        stored := once._archived(tenant, scope, key, bucket);
    END IF;
    IF stored.state IS NULL THEN
        PERFORM once._refuse_day(tenant, scope, key, bucket);
        IF NOT locked THEN
            PERFORM once._refuse('P4029', tenant, scope, key);
        END IF;
        answer.verdict := 'proceed';
        answer.fence := 1;
        RETURN answer;
    END IF;

    judged := once._verdict(stored.fingerprint = fingerprint, stored.state, stored.lease_until, clock_timestamp(),
        stored.attempts, policy.max_attempts, policy.on_stale);
    CASE judged
        WHEN 'replay_success' THEN
            answer.verdict := 'replay';
            answer.state := 'succeeded';
            answer.response_status := stored.response_status;
            answer.response_headers := stored.response_headers;
            answer.response_body := stored.response_body;
            answer.result_type := stored.result_type;
            answer.result_id := stored.result_id;
            answer.error_code := stored.error_code;
            answer.error_message := stored.error_message;
            answer.fence := stored.fence;
            RETURN answer;
        WHEN 'mismatch' THEN PERFORM once._refuse('P4002', tenant, scope, key);
        WHEN 'final_failure' THEN PERFORM once._refuse('P4030', tenant, scope, key,
            concat_ws(': ', stored.error_code, stored.error_message));
        WHEN 'in_doubt' THEN PERFORM once._refuse('P4031', tenant, scope, key,
            CASE WHEN stored.state = 'processing' THEN format('attempt %s ended without a word', stored.fence) END);
        WHEN 'abandoned' THEN PERFORM once._refuse('P4030', tenant, scope, key, format('abandoned after %s attempts',
            stored.attempts));
        WHEN 'processing_active' THEN PERFORM once._refuse('P4029', tenant, scope, key, format('its lease ends at %s',
            stored.lease_until));
        WHEN 'retryable_failure', 'processing_stale', 'verify' THEN
            IF once._day_state(bucket) = 'closed' THEN
                PERFORM once._refuse_day(tenant, scope, key, bucket);       -- from the archive: it may not run again
            ELSIF NOT locked THEN
                PERFORM once._refuse('P4029', tenant, scope, key, 'another attempt is taking it over');
            ELSIF NOT once._hold(tenant, scope, key, bucket, stored.fence, stored.state, stored.lease_until) THEN
                PERFORM once._refuse('P4029', tenant, scope, key, 'its attempt is reporting right now');
            END IF;
        ELSE PERFORM once._refuse('P4099', tenant, scope, key, format('state=%s verdict=%s', stored.state, judged));
    END CASE;

    -- Held, and free to run: unless its policy wants the effect to be looked for first.
    answer.verdict := 'proceed';
    answer.fence := stored.fence + 1;
    IF judged = 'verify' THEN
        verified := once._verify(policy, tenant, scope, key);
        IF verified.answer = 'unknown' OR (verified.answer = 'absent' AND stored.attempts >= policy.max_attempts) THEN
            PERFORM once._refuse('P4031', tenant, scope, key, format('verify answered %s', verified.answer));
        ELSIF verified.answer = 'happened' THEN
            PERFORM once._store_verified(tenant, scope, key, bucket, stored.fence, verified);
            answer := ROW('replay', 'succeeded', verified.response_status, verified.response_headers,
                verified.response_body, verified.result_type, verified.result_id, NULL, NULL, stored.fence)::once.begun;
        END IF;
    END IF;
    RETURN answer;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._bucket(key): the partition that a key belongs to, or -1 where the key is malformed. A UUIDv7 key (RFC 9562)
-- carries its creation time in milliseconds: its bucket is that day, counted from 1970-01-01. Any other key of 1 to 255
-- printable ASCII characters has bucket 0. A pure function of the text: the same key always falls into the same bucket,
-- so the primary key keeps it unique across partitions without probing the others.
-- Inlined into its callers. LIKE puts the four dashes and the version in their places, NOT LIKE rules out a fifth dash;
-- the regular expressions are single character classes, because a bounded repetition costs 60 us where these cost 0.2.
-- "bit" in quotes is a bit string of any length: bit(48) would cut it once more.
CREATE OR REPLACE FUNCTION once._bucket(key text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN key COLLATE "C" LIKE '________-____-7___-____-____________'
             AND key COLLATE "C" NOT LIKE '%-%-%-%-%-%'
             AND key COLLATE "C" !~ '[^0-9a-fA-F-]'
        THEN (('x' || replace(left(key, 13) COLLATE "C", '-', ''))::"bit"::bigint / 86400000)::integer
        WHEN octet_length(key) <= 255 AND key COLLATE "C" ~ '^[ -~]+$' THEN 0
        ELSE -1
    END
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once._check(tenant, scope, key, bucket, fingerprint): raises what is wrong with a call's arguments, or the caller's
-- right to the tenant; returns where nothing is. The hot functions call it only after their one combined test has
-- failed.
CREATE OR REPLACE FUNCTION once._check(tenant text, scope text, key text, bucket integer,
    fingerprint bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF tenant IS NULL OR length(tenant) > 255 THEN
        PERFORM once._refuse('P4003', tenant, scope, key,
            'a tenant is 0 to 255 characters, '''' where there is only one');
    END IF;
    PERFORM once._authorise(tenant);
    IF scope IS NULL OR length(scope) NOT BETWEEN 1 AND 255 THEN
        PERFORM once._refuse('P4000', tenant, scope, key);
    END IF;
    IF bucket IS NULL OR bucket < 0 THEN
        PERFORM once._refuse('P4001', tenant, scope, key, CASE
            WHEN key IS NULL THEN 'the key is NULL'
            WHEN length(key) = 0 THEN 'the key is empty'
            WHEN length(key) > 255 THEN format('the key has %s characters', length(key))
            ELSE 'the key holds a character outside printable ASCII' END);
    END IF;
    IF fingerprint IS NULL OR octet_length(fingerprint) NOT BETWEEN 16 AND 64 THEN
        PERFORM once._refuse('P4003', tenant, scope, key, 'a fingerprint is 16 to 64 bytes');
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._check_batch(tenant, sizes): raises where a batch as a whole cannot be taken: the tenant, arrays of unequal
-- length, too many elements. Bad elements are not its business: each gets its own verdict. A claim holds one lock per
-- element until its transaction ends.
CREATE OR REPLACE FUNCTION once._check_batch(tenant text, VARIADIC sizes integer[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    size integer;
BEGIN
    IF tenant IS NULL OR length(tenant) > 255 THEN
        PERFORM once._refuse('P4003', tenant, NULL, NULL,
            'a tenant is 0 to 255 characters, '''' where there is only one');
    END IF;
    PERFORM once._authorise(tenant);
    FOREACH size IN ARRAY sizes LOOP
        IF size < 0 THEN
            RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: an array of a batch has an unusual shape',
                DETAIL = 'one dimension, numbered from 1', HINT = 'Pass ARRAY[...], or ARRAY(SELECT unnest(...)).';
        END IF;
        IF size IS DISTINCT FROM sizes[1] THEN
            RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: the arrays of a batch differ in length',
                DETAIL = array_to_string(sizes, ' ', 'NULL'),
                    HINT = 'Pass one element per intent in every array; use NULL elements for what is absent.';
        END IF;
    END LOOP;
    IF coalesce(sizes[1], 0) > 10000 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: a batch has at most 10000 elements',
            DETAIL = format('this one has %s', sizes[1]),
                HINT = 'Split it; 64 to 256 elements already cost next to nothing each.';
    END IF;
    RETURN coalesce(sizes[1], 0);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._check_event(...): raises what is wrong with an event, or that its day has no partition; returns where nothing is
-- (names that are long and yet within bounds).
CREATE OR REPLACE FUNCTION once._check_event(tenant text, scope text, key text, topic text, kind text, payload jsonb,
    headers jsonb, day integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (length(topic) BETWEEN 1 AND 255 AND payload IS NOT NULL AND length(kind) BETWEEN 1 AND 255
        AND (scope IS NULL) = (key IS NULL) AND coalesce(jsonb_typeof(headers), 'object') = 'object') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: an event needs a topic and a payload',
            DETAIL = format('topic=%s payload %s scope=%s key=%s', quote_nullable(left(topic, 80)),
                            CASE WHEN payload IS NULL THEN 'missing' ELSE 'given' END, quote_nullable(left(scope, 80)),
                                quote_nullable(left(key, 80))),
            HINT = 'topic and event_type: 1 to 255 characters; scope and key: both or neither; headers: a JSON object.';
    END IF;
    IF to_regclass('once.outbox_d' || day) IS NULL THEN
        PERFORM once._refuse('P4098', tenant, scope, key, 'no outbox partition for ' || (date '1970-01-01' + day));
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._check_finish(...): the thorough half of once.finish's checks: raises what is wrong, and returns the key's bucket
-- where nothing is (a large body that its scope allows).
CREATE OR REPLACE FUNCTION once._check_finish(tenant text, scope text, key text, state text, body bytea) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    bucket integer := once._bucket(key);
BEGIN
    PERFORM once._check_size(tenant, scope, key, body);
    IF (state IN ('succeeded', 'failed_final', 'failed_retryable')) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = format('pgonce: an intent cannot be finished as %s', quote_nullable(left(state, 80))),
            DETAIL = format('tenant=%L scope=%L key=%L', tenant, scope, key),
            HINT = 'state is one of succeeded, failed_final, failed_retryable.';
    END IF;
    IF NOT pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key)) THEN
        PERFORM once._refuse('P4010', tenant, scope, key, 'another attempt is running: call once.begin first');
    END IF;
    PERFORM once._refuse_day(tenant, scope, key, bucket);
    RETURN bucket;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._check_repeated(...): raises P4051 where an intent emits an event of this type again with another content.
CREATE OR REPLACE FUNCTION once._check_repeated(tenant text, scope text, key text, kind text, topic text, payload jsonb,
    headers jsonb) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    first once.outbox;
BEGIN
    SELECT o.* INTO first FROM once.outbox AS o
     WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
       AND o.event_type = kind COLLATE "C";
    IF first.topic <> topic COLLATE "C" OR first.payload <> payload OR first.headers IS DISTINCT FROM headers THEN
        PERFORM once._refuse('P4051', tenant, scope, key, format('event_type=%s event_id=%s', kind, first.event_id));
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._check_size(tenant, scope, key, body): raises P4060 where a body is larger than its scope allows.
CREATE OR REPLACE FUNCTION once._check_size(tenant text, scope text, key text, body bytea) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    bytes_max integer;
BEGIN
    IF octet_length(body) > 8192 THEN
        bytes_max := (once._policy(scope)).response_bytes_max;
        IF octet_length(body) > bytes_max THEN
            PERFORM once._refuse('P4060', tenant, scope, key, format('%s bytes, at most %s', octet_length(body),
                bytes_max));
        END IF;
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._check_term(name, term, term_max): raises 22023 for a lease or a retention that is not positive or is too long.
CREATE OR REPLACE FUNCTION once._check_term(name text, term interval, term_max interval) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF term <= interval '0' OR term > term_max THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: %s is out of range: %s', name, term),
            DETAIL = format('more than 0, at most %s', term_max), HINT = 'Leave it out to use the policy of the scope.';
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._claim(...): one claim, its arguments already checked: the common core of once.claim and once.claim_many. Raises
-- nothing of its own; every outcome is a verdict, and 'mismatch', 'future' and 'missing' are for the caller to raise or
-- to return. Looks before it inserts, in one statement: ON CONFLICT alone would wait for a report of this intent that is
-- part of an open transaction. Nobody can insert in between, since the advisory lock is held.
CREATE OR REPLACE FUNCTION once._claim(tenant text, scope text, key text, bucket integer, fingerprint bytea, claimant text,
    lease interval, retention interval,
    OUT verdict text, OUT fence integer, OUT state text, OUT response_status integer, OUT response_headers jsonb,
    OUT response_body bytea, OUT result_type text, OUT result_id text, OUT error_code text, OUT error_message text,
    OUT lease_until timestamptz, OUT attempts integer)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    policy once.scope := once._policy(scope);
    locked boolean := pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key));
    day text := once._day_state(bucket);
    now timestamptz := clock_timestamp();
    stored once.intent;
BEGIN
    IF locked AND day = 'open' THEN
        INSERT INTO once.intent AS i (created_at, updated_at, expires_at, lease_until, bucket, fence, attempts, state,
                                      tenant, scope, key, fingerprint, owner)
        SELECT now, now, now + retention, now + coalesce(lease, policy.lease), bucket, 1, 1, 'processing',
               tenant, scope, key, fingerprint, claimant
         WHERE NOT EXISTS (SELECT FROM once.intent AS i
                            WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C"
                              AND i.key = key COLLATE "C" AND i.bucket = bucket)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            verdict := 'new_claim';
            fence := 1;
            state := 'processing';
            attempts := 1;
            lease_until := now + coalesce(lease, policy.lease);
            RETURN;
        END IF;
    END IF;

    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND AND day = 'closed' THEN
        stored := once._archived(tenant, scope, key, bucket);
    END IF;
    IF stored.state IS NULL THEN
        verdict := CASE day WHEN 'open' THEN 'processing_active' WHEN 'closed' THEN 'expired' ELSE day END;
        RETURN;
    END IF;

    verdict := once._verdict(stored.fingerprint = fingerprint, stored.state, stored.lease_until, now, stored.attempts,
                             policy.max_attempts, policy.on_stale);
    IF verdict IN ('retryable_failure', 'processing_stale', 'verify', 'abandoned')
       OR (verdict = 'in_doubt' AND stored.state = 'processing') THEN
        IF day = 'closed' THEN
            verdict := 'expired';
        ELSIF NOT locked
              OR NOT once._hold(tenant, scope, key, bucket, stored.fence, stored.state, stored.lease_until) THEN
            verdict := 'processing_active';     -- somebody else is deciding about this intent, or reporting, right now
        ELSE
            verdict := once._take_over(verdict, stored, policy, claimant, lease, retention);
            SELECT i.* INTO STRICT stored FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
               AND i.bucket = bucket;
        END IF;
    END IF;

    IF verdict = 'mismatch' THEN
        RETURN;     -- and learn nothing else of it
    END IF;
    fence := stored.fence;
    state := stored.state;
    attempts := stored.attempts;
    lease_until := stored.lease_until;
    IF verdict <> 'processing_active' THEN
        response_status := stored.response_status;
        response_headers := stored.response_headers;
        response_body := stored.response_body;
        result_type := stored.result_type;
        result_id := stored.result_id;
        error_code := stored.error_code;
        error_message := stored.error_message;
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._day_state(bucket): 'open', 'closed' (P4041), 'future' (P4001) or 'missing' (P4098) for the day of a UUIDv7 key.
-- Called for keys that have no row, and only when their day is not plainly open. The clock is the database's.
CREATE OR REPLACE FUNCTION once._day_state(bucket integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    setting once.setting;
BEGIN
    IF bucket = 0 THEN
        RETURN 'open';
    END IF;
    SELECT s.* INTO STRICT setting FROM once.setting AS s WHERE s.only_row;
    IF bucket < setting.closed_before THEN
        RETURN 'closed';
    END IF;
    IF bucket > floor(date_part('epoch', clock_timestamp() + setting.clock_skew) / 86400) THEN
        RETURN 'future';
    END IF;
    IF to_regclass('once.intent_d' || bucket) IS NULL THEN
        RETURN 'missing';
    END IF;
    RETURN 'open';
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._enter(tenant, scope, key, fingerprint, holding): the gate of the hot functions. Raises what is wrong with a
-- call's arguments or the caller's right to the tenant; returns the key's bucket. holding: also takes the intent's
-- advisory lock, without waiting, and returns NULL where another transaction has it.
--
-- Why it is written so: PL/pgSQL prepares an expression when a transaction first meets it, which costs far more than to
-- evaluate it. begin, emit and finish of one transaction all pass through here, so that only the first of them pays; and
-- each function or operator that an expression does without saves nearly 2,000 instructions. The quick test lets nothing
-- wrong through; what it does not know (a bound role, a long name) is left to once._check.
CREATE OR REPLACE FUNCTION once._enter(tenant text, scope text, key text, fingerprint bytea, holding boolean) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    bucket integer := once._bucket(key);
BEGIN
    IF (bucket >= 0 AND scope <> '' AND octet_length(tenant || scope) <= 255
        AND octet_length(fingerprint) IN (16, 20, 28, 32, 48, 64)       -- of the usual hashes
        AND current_setting('role') = 'none'
        AND has_function_privilege(session_user, 'once.any_tenant()'::regprocedure, 'execute')) IS NOT TRUE THEN
        PERFORM once._check(tenant, scope, key, bucket, fingerprint);
    END IF;
    IF holding AND NOT pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key)) THEN
        RETURN NULL;
    END IF;
    RETURN bucket;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._finish_over(...): finishes an intent that has a row already: left by a leased attempt that failed retryably or
-- whose lease has passed. The WHERE clause is the whole guard: had that attempt reported or renewed since begin, it
-- finds no row.
CREATE OR REPLACE FUNCTION once._finish_over(tenant text, scope text, key text, bucket integer, fingerprint bytea, state text,
    response_status integer,
    response_headers jsonb, response_body bytea, result_type text, result_id text, error_code text, error_message text)
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    stored record;
BEGIN
    UPDATE once.intent AS i
       SET state = state::once.state, fence = i.fence + 1, attempts = i.attempts + 1, updated_at = now,
           completed_at = now,
           owner = NULL, lease_until = NULL, response_status = response_status, response_headers = response_headers,
           response_body = response_body, result_type = result_type, result_id = result_id, error_code = error_code,
           error_message = error_message
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket
       AND i.fingerprint = fingerprint
       AND (i.state = 'failed_retryable' OR (i.state = 'processing' AND i.lease_until <= now));
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT i.state, i.fingerprint, i.fence INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF stored.fingerprint <> fingerprint THEN
        PERFORM once._refuse('P4002', tenant, scope, key);
    END IF;
    PERFORM once._refuse('P4010', tenant, scope, key, format('the intent is %s, fence %s', stored.state, stored.fence));
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._hold(...): locks the row of an intent that is about to be taken over, if it still is what was read. False where it
-- has moved on, or where another transaction is changing it: a report of the old attempt, which may be part of a longer
-- transaction. Never waits. From here on such a report waits for this transaction, and is refused if that commits.
CREATE OR REPLACE FUNCTION once._hold(tenant text, scope text, key text, bucket integer, fence integer, state once.state,
    lease_until timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    PERFORM FROM once.intent AS i
      WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
        AND i.bucket = bucket AND i.fence = fence AND i.state = state
        AND i.lease_until IS NOT DISTINCT FROM lease_until
        FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._is_open(bucket): whether a UUIDv7 key's day is plainly open for a new intent: it has begun, and has its
-- partition. Where not, once._day_state knows why, or allows it for the sake of clock skew. To be asked after the look-up,
-- which locks the table against once.retire_day; a function of its own, so that no other key and no replay pays for it.
CREATE OR REPLACE FUNCTION once._is_open(bucket integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN bucket <= date_part('epoch', clock_timestamp()) / 86400
           AND to_regclass(concat('once.intent_d', bucket)) IS NOT NULL;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._length(elements, absent): the number of elements of an array; absent where it is NULL; -1 where its elements are not
-- numbered from 1 in one dimension, so that an index would find another element than the caller meant. Inlined.
CREATE OR REPLACE FUNCTION once._length(elements anyarray, absent integer) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN elements IS NULL THEN absent
                WHEN cardinality(elements) = 0 THEN 0
                WHEN array_ndims(elements) = 1 AND array_lower(elements, 1) = 1 THEN cardinality(elements)
                ELSE -1 END
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once._lock_id(tenant, scope, key): the 64-bit number of an intent's advisory lock. A hash of the array and not of the
-- joined texts, so ('a','bc') and ('ab','c') differ. Two intents that share a number merely take turns: the second is
-- told "active" and comes again. Explicit collation: a hash needs a deterministic one.
CREATE OR REPLACE FUNCTION once._lock_id(tenant text, scope text, key text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT hash_array_extended(ARRAY[tenant, scope, key] COLLATE "C", 20778)
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once._peek(tenant, scope, key, bucket): what is stored of an intent, its arguments already checked. The common core
-- of peek and peek_many.
CREATE OR REPLACE FUNCTION once._peek(tenant text, scope text, key text, bucket integer,
    OUT verdict text, OUT fence integer, OUT state text, OUT response_status integer, OUT response_headers jsonb,
    OUT response_body bytea,
    OUT result_type text, OUT result_id text, OUT error_code text, OUT error_message text, OUT owner text,
    OUT lease_until timestamptz,
    OUT attempts integer, OUT created_at timestamptz, OUT completed_at timestamptz)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_variable
DECLARE
    stored once.intent;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND AND bucket <> 0 THEN
        stored := once._archived(tenant, scope, key, bucket);
    END IF;
    IF stored.state IS NULL THEN
        verdict := CASE once._day_state(bucket) WHEN 'closed' THEN 'expired' ELSE 'absent' END;
        RETURN;
    END IF;
    verdict := once._verdict(true, stored.state, stored.lease_until, clock_timestamp(), 0, NULL, 'takeover');
    fence := stored.fence;
    state := stored.state;
    response_status := stored.response_status;
    response_headers := stored.response_headers;
    response_body := stored.response_body;
    result_type := stored.result_type;
    result_id := stored.result_id;
    error_code := stored.error_code;
    error_message := stored.error_message;
    owner := stored.owner;
    lease_until := stored.lease_until;
    attempts := stored.attempts;
    created_at := stored.created_at;
    completed_at := stored.completed_at;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._policy(scope): the policy of a scope: its own row, or the default row ''. A tiny table: both rows are on one
-- page.
CREATE OR REPLACE FUNCTION once._policy(scope text) RETURNS once.scope LANGUAGE plpgsql STABLE AS $$
DECLARE
    policy once.scope;
BEGIN
    SELECT p.* INTO policy FROM once.scope AS p WHERE p.scope = _policy.scope COLLATE "C";
    IF NOT FOUND THEN
        SELECT p.* INTO STRICT policy FROM once.scope AS p WHERE p.scope = '';
    END IF;
    RETURN policy;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._record(...): notes a decision about an intent: who, when, why, from what to what.
CREATE OR REPLACE FUNCTION once._record(tenant text, scope text, key text, fence integer, from_state once.state,
    to_state once.state, reason text)
RETURNS void LANGUAGE sql AS $$
    INSERT INTO once.decision (decided_by, reason, tenant, scope, key, fence, from_state, to_state)
    VALUES (session_user, reason, tenant, scope, key, fence, from_state, to_state)
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once._refuse(code, tenant, scope, key, detail): raises one of once.errors(), naming the intent. Its own function, so
-- that the functions on the hot path carry none of this.
CREATE OR REPLACE FUNCTION once._refuse(code text, tenant text, scope text, key text, detail text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    known record;
    -- At most a glimpse of hostile input, and nothing that could break a line of a log.
    named text := format('tenant=%s scope=%s key=%s', quote_nullable(left(tenant, 80)), quote_nullable(left(scope, 80)),
                         quote_nullable(left(key, 80)));
BEGIN
    named := regexp_replace(named, '[[:cntrl:]]', '?', 'g');
    SELECT * INTO STRICT known FROM once.errors() AS e WHERE e.code = _refuse.code COLLATE "C";
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = 'pgonce: ' || known.message,
        DETAIL = named || coalesce('; ' || detail, ''), HINT = known.hint;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_day(tenant, scope, key, bucket): raises where the day of a new key is closed, future or missing.
CREATE OR REPLACE FUNCTION once._refuse_day(tenant text, scope text, key text, bucket integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    day text := to_char(date '1970-01-01' + bucket, 'YYYY-MM-DD');
BEGIN
    CASE once._day_state(bucket)
        WHEN 'open' THEN RETURN;
        WHEN 'closed' THEN PERFORM once._refuse('P4041', tenant, scope, key, 'the key was made on ' || day);
        WHEN 'future' THEN PERFORM once._refuse('P4001', tenant, scope, key, 'the key claims to be made on ' || day);
        ELSE PERFORM once._refuse('P4098', tenant, scope, key, 'no partition for ' || day);
    END CASE;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._renew(...): one renewal, its arguments already checked: the common core of renew and renew_many. An UPDATE of
-- one unindexed column: HOT.
CREATE OR REPLACE FUNCTION once._renew(tenant text, scope text, key text, bucket integer, fence integer,
    lease interval) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    term interval := coalesce(lease, (once._policy(scope)).lease);
BEGIN
    UPDATE once.intent AS i SET lease_until = now + term, updated_at = now
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket
       AND i.fence = fence AND i.state = 'processing';
    RETURN FOUND;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._report(...): an attempt reports how its work ended: the common core of complete, fail and their batches. Stores
-- the outcome where the fence is current and the intent is processing or in doubt (the attempt itself knows best), even
-- if the lease has passed, as long as nobody took over. Returns 'stored', 'repeated' where this very outcome is stored
-- already under this fence, or 'refused'. No advisory lock: the fence in the WHERE clause is the guard, and a duplicate
-- that is merely looking cannot hold up the one report that matters. Waits only for another change of the same row,
-- which is one short transaction of the contract.
CREATE OR REPLACE FUNCTION once._report(tenant text, scope text, key text, bucket integer, fence integer, next_state once.state,
    response_status integer,
    response_body bytea, response_headers jsonb, result_type text, result_id text, error_code text, error_message text)
RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    stored once.intent;
BEGIN
    UPDATE once.intent AS i
       SET state = next_state, updated_at = now, completed_at = CASE WHEN next_state <> 'in_doubt' THEN now END,
           lease_until = NULL,
           response_status = response_status, response_headers = response_headers, response_body = response_body,
           result_type = result_type, result_id = result_id, error_code = error_code, error_message = error_message
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket
       AND i.fence = fence AND (i.state = 'processing' OR (i.state = 'in_doubt' AND next_state <> 'in_doubt'));
    IF FOUND THEN
        RETURN 'stored';
    END IF;
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF stored.fence = fence AND stored.state = next_state
       AND stored.response_status IS NOT DISTINCT FROM response_status
       AND stored.response_body IS NOT DISTINCT FROM response_body
       AND stored.response_headers IS NOT DISTINCT FROM response_headers
       AND stored.result_type IS NOT DISTINCT FROM result_type AND stored.result_id IS NOT DISTINCT FROM result_id
       AND stored.error_code IS NOT DISTINCT FROM error_code
       AND stored.error_message IS NOT DISTINCT FROM error_message THEN
        RETURN 'repeated';
    END IF;
    RETURN 'refused';
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._report_many(...): reports of many attempts in one statement: the common core of complete_many and fail_many.
-- One statement for all that is plain; what it did not store goes through once._report, one by one, which says why.
-- Rows are found by a look-up per element (LIMIT: see once.claim_many) and then updated by their address: joined to the
-- batch by its key, a plan that was made while a partition was empty searches the index by tenant alone and stays so. If
-- a row moves in between, because somebody else has changed it, the address leads nowhere and once._report looks again.
CREATE OR REPLACE FUNCTION once._report_many(refusal text, scope text[], key text[], fence integer[], next_state once.state[],
    response_status integer[],
    response_body bytea[], response_headers jsonb[], result_type text[], result_id text[], error_code text[],
    error_message text[], tenant text)
RETURNS TABLE (ord integer, verdict text, refused_code text, refused_message text) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    buckets integer[];
    first_bucket integer;
    last_bucket integer;
    size integer := once._length(key, 0);
    n integer;
    stored integer[];
    verdicts text[] := array_fill(NULL::text, ARRAY[size]);
    codes text[] := verdicts;
BEGIN
    -- A range that is known when the look-up starts, so that only the leaves of this batch are opened.
    SELECT array_agg(b.bucket ORDER BY b.ord), min(b.bucket), max(b.bucket) INTO buckets, first_bucket, last_bucket
      FROM (SELECT u.ord, once._bucket(u.key) AS bucket FROM unnest(key) WITH ORDINALITY AS u (key, ord)) AS b;
    -- In the order of their keys, so that two batches over the same intents cannot deadlock; of two reports on one
    -- intent the first is stored and the second is judged against it.
    WITH changed AS (
        UPDATE once.intent AS i
           SET state = e.next_state, updated_at = e.now, lease_until = NULL,
               completed_at = CASE WHEN e.next_state <> 'in_doubt' THEN e.now END,
               response_status = e.response_status, response_headers = e.response_headers,
               response_body = e.response_body, result_type = e.result_type, result_id = e.result_id,
               error_code = e.error_code, error_message = e.error_message
          FROM (SELECT u.*, clock_timestamp() AS now, a.address
                  FROM unnest(scope, key, buckets, fence, next_state, response_status, response_body, response_headers,
                              result_type, result_id, error_code, error_message)
                       WITH ORDINALITY AS u (scope, key, bucket, fence, next_state, response_status, response_body,
                                             response_headers, result_type, result_id, error_code, error_message, ord),
                       LATERAL (SELECT i.ctid AS address FROM once.intent AS i
                                 WHERE i.tenant = tenant COLLATE "C" AND i.scope = u.scope COLLATE "C"
                                   AND i.key = u.key COLLATE "C" AND i.bucket = u.bucket
                                   AND i.bucket BETWEEN first_bucket AND last_bucket LIMIT 1) AS a
                 WHERE (octet_length(u.response_body) > 8192) IS NOT TRUE
                 ORDER BY u.scope COLLATE "C", u.key COLLATE "C", u.ord) AS e
         WHERE i.bucket = e.bucket AND i.ctid = e.address AND i.bucket BETWEEN first_bucket AND last_bucket
           AND i.fence = e.fence AND (i.state = 'processing' OR (i.state = 'in_doubt' AND e.next_state <> 'in_doubt'))
        RETURNING e.ord)
    SELECT array_agg(c.ord) INTO stored FROM changed AS c;

    IF cardinality(stored) = size THEN
        RETURN QUERY SELECT g.ord, 'stored', NULL, NULL FROM generate_series(1, size) AS g (ord);
        RETURN;
    END IF;
    -- The rest, in the same order.
    FOR n IN SELECT u.ord FROM unnest(scope, key) WITH ORDINALITY AS u (scope, key, ord)
              WHERE (u.ord = ANY (stored)) IS NOT TRUE
              ORDER BY u.scope COLLATE "C", u.key COLLATE "C", u.ord LOOP
        IF (length(scope[n]) BETWEEN 1 AND 255) IS NOT TRUE THEN
            codes[n] := 'P4000';
        ELSIF (buckets[n] >= 0) IS NOT TRUE THEN
            codes[n] := 'P4001';
        ELSIF octet_length(response_body[n]) > 8192
              AND octet_length(response_body[n]) > (once._policy(scope[n])).response_bytes_max THEN
            codes[n] := 'P4060';
        ELSE
            verdicts[n] := once._report(tenant, scope[n], key[n], buckets[n], fence[n], next_state[n],
                                        response_status[n], response_body[n], response_headers[n], result_type[n],
                                        result_id[n], error_code[n], error_message[n]);
            IF verdicts[n] = 'refused' THEN
                codes[n] := refusal;
            END IF;
        END IF;
    END LOOP;
    RETURN QUERY SELECT u.ord::integer,
                        CASE WHEN u.ord = ANY (stored) THEN 'stored' ELSE coalesce(u.verdict, 'invalid') END, u.code,
                        (SELECT e.message FROM once.errors() AS e WHERE e.code = u.code COLLATE "C")
                   FROM unnest(verdicts, codes) WITH ORDINALITY AS u (verdict, code, ord) ORDER BY u.ord;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._store_verified(...): a verify function said that the effect of a stale attempt happened: stores its outcome. The
-- caller holds the row (once._hold).
CREATE OR REPLACE FUNCTION once._store_verified(tenant text, scope text, key text, bucket integer, fence integer,
    verified once.verification)
RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    was timestamptz := clock_timestamp();
BEGIN
    UPDATE once.intent AS i
       SET state = 'succeeded', updated_at = was, completed_at = was, lease_until = NULL,
           response_status = verified.response_status, response_headers = verified.response_headers,
               response_body = verified.response_body,
           result_type = verified.result_type, result_id = verified.result_id
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket
       AND i.fence = fence AND i.state = 'processing';
    PERFORM once._record(tenant, scope, key, fence, 'processing', 'succeeded', 'verify: the effect happened');
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._take_over(verdict, stored, policy, claimant, lease, retention): acts on a verdict that changes the row, which
-- the caller holds (once._hold): the claim goes to the next attempt under the next fence, or the intent becomes final, in
-- doubt, or what its verify function says. Returns the verdict that the attempt is told.
CREATE OR REPLACE FUNCTION once._take_over(verdict text, stored once.intent, policy once.scope, claimant text, lease interval,
    retention interval) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    exhausted boolean := stored.attempts >= policy.max_attempts;
    reason text := 'its lease passed without a word';
    verified once.verification;
BEGIN
    IF verdict = 'verify' THEN
        verified := once._verify(policy, stored.tenant, stored.scope, stored.key);
        IF verified.answer = 'happened' THEN
            PERFORM once._store_verified(stored.tenant, stored.scope, stored.key, stored.bucket, stored.fence, verified);
            RETURN 'replay_success';
        ELSIF verified.answer = 'absent' AND exhausted IS NOT TRUE THEN
            verdict := 'retryable_failure';     -- certainly no effect: 'processing_stale' would leave that open
        ELSE
            verdict := 'in_doubt';
            reason := 'verify answered ' || verified.answer;
        END IF;
    END IF;
    IF exhausted THEN
        reason := format('%s, and %s attempts are used up', reason, stored.attempts);
    END IF;

    IF verdict = 'in_doubt' THEN
        UPDATE once.intent AS i
           SET state = 'in_doubt', updated_at = now, lease_until = NULL, error_code = 'stale', error_message = reason
         WHERE i.tenant = stored.tenant AND i.scope = stored.scope AND i.key = stored.key AND i.bucket = stored.bucket;
        RETURN 'in_doubt';
    ELSIF verdict = 'abandoned' THEN
        UPDATE once.intent AS i
           SET state = 'failed_final', updated_at = now, completed_at = now, error_code = 'abandoned',
               error_message = concat_ws(': ', format('abandoned after %s attempts', stored.attempts), stored.error_message)
         WHERE i.tenant = stored.tenant AND i.scope = stored.scope AND i.key = stored.key AND i.bucket = stored.bucket;
        RETURN 'final_failure';
    END IF;
    UPDATE once.intent AS i
       SET state = 'processing', fence = i.fence + 1, attempts = i.attempts + 1, owner = claimant, updated_at = now,
           completed_at = NULL, lease_until = now + coalesce(lease, policy.lease),
           expires_at = coalesce(now + retention, i.expires_at),
           response_status = NULL, response_headers = NULL, response_body = NULL,
           result_type = NULL, result_id = NULL, error_code = NULL, error_message = NULL
     WHERE i.tenant = stored.tenant AND i.scope = stored.scope AND i.key = stored.key AND i.bucket = stored.bucket;
    RETURN verdict;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._verdict(...): what an attempt that meets this row is told. The one place where that is decided; inlined. A
-- mismatch is found before everything else; 'verify' and 'abandoned' are for the caller to act on.
CREATE OR REPLACE FUNCTION once._verdict(same boolean, state once.state, lease_until timestamptz, now timestamptz,
    attempts integer,
                              max_attempts integer,
                                  on_stale text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN NOT same THEN 'mismatch'
        WHEN state = 'succeeded' THEN 'replay_success'
        WHEN state = 'failed_final' THEN 'final_failure'
        WHEN state = 'in_doubt' THEN 'in_doubt'
        WHEN state = 'failed_retryable' THEN CASE WHEN attempts >= max_attempts
            THEN 'abandoned' ELSE 'retryable_failure' END
        WHEN state = 'processing' AND lease_until > now THEN 'processing_active'
        WHEN state = 'processing' THEN CASE
            WHEN on_stale = 'verify' THEN 'verify'
            WHEN on_stale = 'in_doubt' OR attempts >= max_attempts THEN 'in_doubt'
            ELSE 'processing_stale' END
        ELSE 'unknown'
    END
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once._verify(policy, tenant, scope, key): asks the scope's verify function whether the effect of a stale intent
-- happened. An answer outside the three words is 'unknown'; an exception of the function is the caller's exception.
CREATE OR REPLACE FUNCTION once._verify(policy once.scope, tenant text, scope text,
    key text) RETURNS once.verification LANGUAGE plpgsql AS $$
DECLARE
    found_out once.verification;
BEGIN
    EXECUTE format('SELECT * FROM %s($1, $2, $3)', policy.verify::regproc) INTO found_out USING tenant, scope, key;
    IF found_out.answer IS NULL OR found_out.answer NOT IN ('happened', 'absent', 'unknown') THEN
        found_out.answer := 'unknown';
    END IF;
    RETURN found_out;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._where_is(tenant, scope, key, bucket, fence): says, for the DETAIL of a refusal, what an intent is now and what
-- fence was offered.
CREATE OR REPLACE FUNCTION once._where_is(tenant text, scope text, key text, bucket integer,
    fence integer) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT format('the intent is %s under fence %s, the attempt has fence %s', i.state, i.fence, fence)
        FROM once.intent AS i
                      WHERE i.tenant = _where_is.tenant COLLATE "C" AND i.scope = _where_is.scope COLLATE "C"
                        AND i.key = _where_is.key COLLATE "C" AND i.bucket = _where_is.bucket),
                            'there is no such intent')
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once.add_days(ahead): makes the partitions that are missing, from the oldest open day to today plus ahead days
-- (default: once.setting.days_ahead), for intents and for the outbox; on its first run also the row of settings and the
-- default policy. Returns how many partitions it made. Safe to call at any time and by many at once. ATTACH, because
-- CREATE TABLE ... PARTITION OF would take an ACCESS EXCLUSIVE lock on the parent and stop every claim.
CREATE OR REPLACE FUNCTION once.add_days(ahead integer DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    setting once.setting;
    today integer := floor(date_part('epoch', clock_timestamp()) / 86400);
    made integer := 0;
    day integer;
BEGIN
    INSERT INTO once.setting (closed_before) VALUES (today - 7) ON CONFLICT DO NOTHING;
    INSERT INTO once.scope (scope) VALUES ('') ON CONFLICT DO NOTHING;
    SELECT s.* INTO STRICT setting FROM once.setting AS s WHERE s.only_row;
    ahead := coalesce(ahead, setting.days_ahead);
    IF ahead NOT BETWEEN 1 AND 366 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: ahead is 1 to 366 days';
    END IF;
    FOR day IN greatest(setting.closed_before, today - setting.horizon_days) .. today + ahead LOOP
        IF to_regclass('once.intent_d' || day) IS NOT NULL THEN
            CONTINUE;
        END IF;
        -- One creator at a time; the others then find the work done.
        PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
        IF to_regclass('once.intent_d' || day) IS NULL THEN
            EXECUTE format('CREATE TABLE once.intent_d%s (LIKE once.intent INCLUDING ALL) WITH (fillfactor = 50)', day);
            EXECUTE format('ALTER TABLE once.intent ATTACH PARTITION once.intent_d%s FOR VALUES FROM (%s) TO (%s)', day,
                day, day + 1);
            EXECUTE format('COMMENT ON TABLE once.intent_d%s IS %L', day,
                'UUIDv7 keys of ' || (date '1970-01-01' + day));
            made := made + 1;
        END IF;
    END LOOP;
    FOR day IN today .. today + ahead LOOP
        IF to_regclass('once.outbox_d' || day) IS NULL THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
            IF to_regclass('once.outbox_d' || day) IS NULL THEN
                EXECUTE format('CREATE TABLE once.outbox_d%s (LIKE once.outbox INCLUDING ALL EXCLUDING IDENTITY)', day);
                EXECUTE format('ALTER TABLE once.outbox ATTACH PARTITION once.outbox_d%s FOR VALUES FROM (%s) TO (%s)',
                    day, day, day + 1);
                EXECUTE format('COMMENT ON TABLE once.outbox_d%s IS %L', day,
                    'events of ' || (date '1970-01-01' + day));
                made := made + 1;
            END IF;
        END IF;
    END LOOP;
    RETURN made;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.any_tenant(): does nothing. The right to EXECUTE it is the right to name any tenant; a role without it may name
-- only those that once.bind gave it. A privilege, because asking for one costs no table look-up.
CREATE OR REPLACE FUNCTION once.any_tenant() RETURNS void LANGUAGE sql IMMUTABLE SET search_path = pg_catalog,
    pg_temp AS $$ SELECT $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.begin(scope, key, fingerprint, tenant): opens an intent whose effect happens in this transaction.
--   proceed  do the effect, then once.finish(...), then COMMIT. ROLLBACK or a crash leaves no trace.
--   replay   the intent is finished: the stored outcome is in the other columns. Do not do the effect.
-- once.begun is (verdict, state, response_status, response_headers, response_body, result_type, result_id, error_code,
-- error_message, fence); in PL/pgSQL: answer once.begun := once.begin(...).
-- Everything else is raised, because a caller who forgets to look must not do the effect twice: P4002 another request,
-- P4029 running, P4030 failed for good, P4031 in doubt, P4041 expired, P4000 P4001 P4003 P4098 bad input. Reads only;
-- never waits. Holds the intent's advisory lock until the transaction ends.
--
-- Why it is written so: this is the hot path, for an intent that is new or has succeeded; everything else is
-- once._begin_over's. The lock is taken in a statement before the look-up, so that the look-up's snapshot (READ
-- COMMITTED) sees whatever the last holder committed. The generic plan is forced: for a partitioned table the planner
-- would otherwise plan each call anew; and without sequential scans, because a plan made while the table was empty would
-- stay one. Bucket 0 is written as a constant, so that its plan locks one partition and not all.
CREATE OR REPLACE FUNCTION once.begin(scope text, key text, fingerprint bytea, tenant text DEFAULT '') RETURNS once.begun
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._enter(tenant, scope, key, fingerprint, true);
    stored record;
BEGIN
    IF bucket > 0 THEN
        SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded'
                    THEN ROW('replay', 'succeeded', i.response_status, i.response_headers, i.response_body,
                             i.result_type, i.result_id, i.error_code, i.error_message, i.fence)::once.begun
               END AS replay INTO stored
          FROM once.intent AS i
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
           AND i.bucket = bucket;
    ELSIF bucket = 0 THEN
        SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded'
                    THEN ROW('replay', 'succeeded', i.response_status, i.response_headers, i.response_body,
                             i.result_type, i.result_id, i.error_code, i.error_message, i.fence)::once.begun
               END AS replay INTO stored
          FROM once.intent AS i
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
           AND i.bucket = 0;
    END IF;
    IF FOUND THEN
        IF NOT stored.replay IS NULL THEN
            RETURN stored.replay;
        END IF;
    ELSIF bucket = 0 OR once._is_open(bucket) THEN
        RETURN ROW('proceed', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1)::once.begun;
    END IF;
    RETURN once._begin_over(tenant, scope, key, fingerprint);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.begin_new(scope, key, fingerprint, tenant): once.begin for pipelines: returns the fence where the effect may go
-- on, and raises P4020 where begin would return a replay. Sent first in a pipeline, it stops everything that is queued
-- behind it. Written as begin is, for the same reasons.
CREATE OR REPLACE FUNCTION once.begin_new(scope text, key text, fingerprint bytea, tenant text DEFAULT '') RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._enter(tenant, scope, key, fingerprint, true);
    begun once.begun;
BEGIN
    IF bucket > 0 THEN
        PERFORM FROM once.intent AS i
          WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
            AND i.bucket = bucket;
    ELSIF bucket = 0 THEN
        PERFORM FROM once.intent AS i
          WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
            AND i.bucket = 0;
    END IF;
    IF NOT FOUND AND (bucket = 0 OR once._is_open(bucket)) THEN
        RETURN 1;
    END IF;
    begun := once._begin_over(tenant, scope, key, fingerprint);
    IF begun.verdict <> 'proceed' THEN
        PERFORM once._refuse('P4020', tenant, scope, key);
    END IF;
    RETURN begun.fence;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.bind(role_name, tenant): lets a role name this tenant; once.unbind takes it back. For roles that are granted
-- once_tenant. A role that may name any tenant (once_app, a superuser) cannot be bound: 42501 says so, rather than
-- giving a bond that does not hold.
CREATE OR REPLACE FUNCTION once.bind(role_name text, tenant text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF has_function_privilege(role_name, 'once.any_tenant()'::regprocedure, 'execute') THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = format('pgonce: role %I may name any tenant: binding it would bind nothing', role_name),
            HINT = format('REVOKE once_app FROM %I; GRANT once_tenant TO %I;', role_name, role_name);
    END IF;
    IF tenant IS NULL OR length(tenant) > 255 THEN
        PERFORM once._refuse('P4003', tenant, NULL, NULL, 'a tenant is 0 to 255 characters');
    END IF;
    INSERT INTO once.binding AS b VALUES (role_name, tenant) ON CONFLICT DO NOTHING;
END $$;
CREATE OR REPLACE FUNCTION once.unbind(role_name text, tenant text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM once.binding AS b WHERE b.role_name = unbind.role_name COLLATE "C"
        AND b.tenant = unbind.tenant COLLATE "C";
    RETURN FOUND;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.claim(scope, key, fingerprint, owner, lease, retention, tenant): claims an intent whose effect is made
-- elsewhere. COMMIT it, do the work, then call once.complete or once.fail with the fence. owner says who works, for
-- people; lease and retention default to the scope's.
--   new_claim, retryable_failure, processing_stale   do the work: the claim is yours, under the returned fence.
--                                                    retryable_failure: earlier attempts certainly had no effect (so they
--                                                    reported, or the verify function answered 'absent');
--                                                    processing_stale: the last one fell silent, and may have had one
--   replay_success, final_failure                    finished: the stored outcome is in the other columns
--   processing_active                                another attempt is at work; lease_until says until when at least
--   in_doubt, expired                                no attempt may run: see once.resolve
-- Raises P4002 for another fingerprint, P4000 P4001 P4003 P4098 for bad input, 22023 for a bad lease. Never waits.
CREATE OR REPLACE FUNCTION once.claim(scope text, key text, fingerprint bytea, owner text DEFAULT NULL,
    lease interval DEFAULT NULL,
    retention interval DEFAULT NULL, tenant text DEFAULT '',
    OUT verdict text, OUT fence integer, OUT state text, OUT response_status integer, OUT response_headers jsonb,
    OUT response_body bytea,
    OUT result_type text, OUT result_id text, OUT error_code text, OUT error_message text, OUT lease_until timestamptz,
    OUT attempts integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, fingerprint);
    PERFORM once._check_term('lease', lease, '7 days');
    PERFORM once._check_term('retention', retention, '100 years');
    SELECT c.* INTO verdict, fence, state, response_status, response_headers, response_body, result_type, result_id,
        error_code, error_message,
                    lease_until, attempts
      FROM once._claim(tenant, scope, key, bucket, fingerprint, left(owner, 255), lease, retention) AS c;
    IF verdict = 'mismatch' THEN
        PERFORM once._refuse('P4002', tenant, scope, key);
    ELSIF verdict IN ('future', 'missing') THEN
        PERFORM once._refuse_day(tenant, scope, key, bucket);
    ELSIF verdict = 'unknown' THEN
        PERFORM once._refuse('P4099', tenant, scope, key);
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.claim_many(scope[], key[], fingerprint[], owner, lease, retention, tenant): once.claim for many intents in one
-- statement and so one commit. Returns one row per element, in order (ord from 1), with the verdicts of once.claim, and
-- besides: 'mismatch', and 'invalid' with the SQLSTATE in error_code. A bad element never spoils its neighbours. The
-- same key twice is one claim: the second finds the first ('processing_active', or 'mismatch'). Raises only for the
-- batch as a whole (22023, P4003).
--
-- Two statements for the whole batch, however large, and only for what is left one call each. The first checks and
-- locks; the locks are taken before the statement that inserts, so no insert ever waits for another transaction. The
-- second looks, inserts what is new, and says what is plain: a new claim, a replay, somebody at work, a mismatch. What
-- needs a decision under the row's lock (a takeover, a closed day) is left to once._claim.
-- The settings pin the plans to index look-ups: one made while the table was empty would stay a sequential scan.
-- jit: a disabled scan looks expensive enough to be compiled.
CREATE OR REPLACE FUNCTION once.claim_many(scope text[], key text[], fingerprint bytea[], owner text DEFAULT NULL,
    lease interval DEFAULT NULL,
    retention interval DEFAULT NULL, tenant text DEFAULT '')
RETURNS TABLE (ord integer, verdict text, fence integer, state text, response_status integer, response_headers jsonb,
    response_body bytea,
    result_type text, result_id text, error_code text, error_message text, lease_until timestamptz, attempts integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0),
    once._length(fingerprint, 0));
    buckets integer[];
    first_bucket integer;
    last_bucket integer;
    codes text[];
    takeable boolean[];
    now timestamptz := clock_timestamp();
    today integer := floor(date_part('epoch', now) / 86400);
    today_open boolean := to_regclass('once.intent_d' || today) IS NOT NULL;    -- once, since most keys are of today
BEGIN
    IF lease IS NOT NULL OR retention IS NOT NULL THEN
        PERFORM once._check_term('lease', lease, '7 days');
        PERFORM once._check_term('retention', retention, '100 years');
    END IF;
    owner := left(owner, 255);

    SELECT array_agg(c.bucket ORDER BY c.ord), min(c.bucket), max(c.bucket), array_agg(c.code ORDER BY c.ord),
           array_agg(CASE WHEN c.code IS NULL AND c.nth = 1
                               AND CASE WHEN c.bucket = today THEN today_open
                                        ELSE c.bucket = 0 OR (c.bucket < today
                                             AND to_regclass('once.intent_d' || c.bucket) IS NOT NULL) END
                          THEN pg_try_advisory_xact_lock(once._lock_id(tenant, c.scope, c.key))
                          ELSE false END ORDER BY c.ord)
      INTO buckets, first_bucket, last_bucket, codes, takeable
      FROM (SELECT b.*, CASE WHEN (length(b.scope) BETWEEN 1 AND 255) IS NOT TRUE THEN 'P4000'
                             WHEN (b.bucket >= 0) IS NOT TRUE THEN 'P4001'
                             WHEN (octet_length(b.fingerprint) BETWEEN 16 AND 64) IS NOT TRUE THEN 'P4003' END AS code,
                   row_number() OVER (PARTITION BY b.scope COLLATE "C", b.key COLLATE "C" ORDER BY b.ord) AS nth
              FROM (SELECT u.*, once._bucket(u.key) AS bucket
                      FROM unnest(scope, key, fingerprint)
                           WITH ORDINALITY AS u (scope, key, fingerprint, ord) OFFSET 0) AS b) AS c;

    FOR ord, verdict, fence, state, response_status, response_headers, response_body, result_type, result_id,
        error_code, error_message, lease_until, attempts IN
        WITH element AS MATERIALIZED (
            SELECT u.*, s.fingerprint = u.fingerprint AS same, s.fence, s.state, s.response_status, s.response_headers,
                   s.response_body, s.result_type, s.result_id, s.error_code, s.error_message, s.lease_until, s.attempts
              FROM unnest(scope, key, fingerprint, buckets, codes, takeable)
                   WITH ORDINALITY AS u (scope, key, fingerprint, bucket, code, takeable, ord)
              -- The range is known when the look-up starts, so that only the leaves of this batch are opened.
              -- LIMIT keeps this a look-up per element: as a join, a plan made on an empty table would read it whole.
              LEFT JOIN LATERAL (SELECT i.* FROM once.intent AS i
                                  WHERE i.tenant = tenant COLLATE "C" AND i.scope = u.scope COLLATE "C"
                                    AND i.key = u.key COLLATE "C" AND i.bucket = u.bucket
                                    AND i.bucket BETWEEN first_bucket AND last_bucket LIMIT 1) AS s
                     ON u.code IS NULL),
        fresh AS (
            INSERT INTO once.intent AS i (created_at, updated_at, expires_at, lease_until, bucket, fence, attempts,
                                          state, tenant, scope, key, fingerprint, owner)
            SELECT now, now, now + retention,
                   now + coalesce(lease, p.lease, (SELECT d.lease FROM once.scope AS d WHERE d.scope = '')), e.bucket, 1, 1,
                   'processing', tenant, e.scope, e.key, e.fingerprint, owner
              FROM element AS e LEFT JOIN once.scope AS p ON p.scope = e.scope COLLATE "C"
             WHERE e.takeable AND e.state IS NULL
            ON CONFLICT DO NOTHING
            RETURNING i.scope, i.key, i.lease_until)
        SELECT e.ord, CASE WHEN f.key IS NOT NULL THEN 'new_claim'
                           WHEN e.state IS NOT NULL
                           THEN once._verdict(e.same, e.state, e.lease_until, now, NULL, NULL, NULL) END,
               coalesce(e.fence, 1), coalesce(e.state, 'processing'), e.response_status, e.response_headers,
               e.response_body, e.result_type, e.result_id, e.error_code, e.error_message,
               coalesce(e.lease_until, f.lease_until), coalesce(e.attempts, 1)
          FROM element AS e LEFT JOIN fresh AS f
            ON e.takeable AND f.scope = e.scope COLLATE "C" AND f.key = e.key COLLATE "C"
         ORDER BY e.ord
    LOOP
        IF (verdict IN ('new_claim', 'replay_success', 'final_failure', 'in_doubt', 'processing_active')) IS NOT TRUE THEN
            fence := NULL; state := NULL; attempts := NULL; lease_until := NULL;
            response_status := NULL; response_headers := NULL; response_body := NULL;
            result_type := NULL; result_id := NULL; error_code := NULL; error_message := NULL;
            IF codes[ord] IS NULL AND (verdict <> 'mismatch') IS NOT FALSE THEN
                SELECT c.* INTO verdict, fence, state, response_status, response_headers, response_body, result_type,
                                result_id, error_code, error_message, lease_until, attempts
                  FROM once._claim(tenant, scope[ord], key[ord], buckets[ord], fingerprint[ord], owner, lease,
                                   retention) AS c;
            END IF;
            IF codes[ord] IS NOT NULL OR verdict IN ('future', 'missing', 'unknown') THEN
                error_code := coalesce(codes[ord], CASE verdict WHEN 'future' THEN 'P4001'
                                                                WHEN 'missing' THEN 'P4098' ELSE 'P4099' END);
                SELECT e.message INTO error_message FROM once.errors() AS e WHERE e.code = error_code COLLATE "C";
                verdict := 'invalid';
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.complete(scope, key, fence, outcome..., tenant): stores the outcome of a claimed intent that succeeded. true:
-- stored now; false: this very outcome was stored already by this attempt (a report sent twice). Raises P4010 where the
-- fence is lost or the intent is finished otherwise: discard the result then. P4060 for too large a body, P4000 P4001
-- P4003 for bad input. Can run in the transaction of the effect itself: then the outcome exists if and only if the
-- effect does.
CREATE OR REPLACE FUNCTION once.complete(scope text, key text, fence integer, response_status integer DEFAULT NULL,
    response_body bytea DEFAULT NULL,
    response_headers jsonb DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL,
    tenant text DEFAULT '')
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    reported text;
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, '\x00000000000000000000000000000000');
    PERFORM once._check_size(tenant, scope, key, response_body);
    reported := once._report(tenant, scope, key, bucket, fence, 'succeeded', response_status, response_body,
        response_headers, result_type,
                             result_id, NULL, NULL);
    IF reported = 'refused' THEN
        PERFORM once._refuse('P4010', tenant, scope, key, once._where_is(tenant, scope, key, bucket, fence));
    END IF;
    RETURN reported = 'stored';
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.complete_many(scope[], key[], fence[], outcome[]..., tenant): once.complete for many intents in one statement.
-- One row per element, in order: verdict 'stored', 'repeated', 'refused' (error_code P4010) or 'invalid' (its own
-- SQLSTATE). An array that is NULL stands for all NULL. Raises only for the batch as a whole (22023, P4003).
CREATE OR REPLACE FUNCTION once.complete_many(scope text[], key text[], fence integer[], response_status integer[] DEFAULT NULL,
    response_body bytea[] DEFAULT NULL,
    response_headers jsonb[] DEFAULT NULL, result_type text[] DEFAULT NULL, result_id text[] DEFAULT NULL,
    tenant text DEFAULT '')
RETURNS TABLE (ord integer, verdict text, error_code text, error_message text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET random_page_cost = 0 AS $$
#variable_conflict use_variable
DECLARE
    absent integer := coalesce(cardinality(key), 0);    -- what a NULL array of outcomes stands for: as many NULLs
    size integer := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0), once._length(fence, 0),
        once._length(response_status, absent), once._length(response_body, absent),
        once._length(response_headers, absent), once._length(result_type, absent), once._length(result_id, absent));
BEGIN
    RETURN QUERY SELECT r.ord, r.verdict, r.refused_code, r.refused_message
      FROM once._report_many('P4010', scope, key, fence, array_fill('succeeded'::once.state, ARRAY[size]),
          response_status, response_body,
                             response_headers, result_type, result_id, NULL, NULL, tenant) AS r;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.contract_version(): the version of the contract in this database: the number of its last migration. For clients,
-- which compare it with theirs.
CREATE OR REPLACE FUNCTION once.contract_version() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT max(m.version) FROM once.migration AS m
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once.emit(topic, payload, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant): appends an event to
-- the outbox, in the effect's own transaction: it exists if and only if the effect does. Returns its id. event_type
-- defaults to the topic. With scope and key (the intent that causes it), a second emit of the same event_type is the
-- same event, and raises P4051 where its payload differs; the id is derived from the intent, so that consumers can tell
-- a repetition even across attempts. Events of one aggregate are published in order. Raises 22023 for a missing topic
-- or payload, P4098 where the day has no partition. No NOTIFY: its lock serialises commits.
--
-- Why it is written so: today's partition keeps an event single by its unique index, so only the days before have to be
-- looked at, and as a rule they are gone: the plan opens no partition that the comparison of day rules out. Plans are
-- pinned as in once.begin.
CREATE OR REPLACE FUNCTION once.emit(topic text, payload jsonb, aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL,
    event_type text DEFAULT NULL,
    scope text DEFAULT NULL, key text DEFAULT NULL, headers jsonb DEFAULT NULL, tenant text DEFAULT '') RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    day integer := floor(date_part('epoch', now) / 86400);
    kind text := coalesce(event_type, topic);
    bucket integer := once._enter(tenant, coalesce(scope, 'none'), coalesce(key, 'none'),
        '\x00000000000000000000000000000000', false);
    event_id uuid;
BEGIN
    IF (topic <> '' AND kind <> '' AND octet_length(topic || kind) <= 255 AND payload IS NOT NULL
        AND (scope IS NULL) = (key IS NULL) AND (headers IS NULL OR jsonb_typeof(headers) = 'object')
        AND to_regclass(concat('once.outbox_d', day)) IS NOT NULL) IS NOT TRUE THEN
        PERFORM once._check_event(tenant, scope, key, topic, kind, payload, headers, day);
    END IF;
    IF key IS NULL THEN
        event_id := gen_random_uuid();
    ELSE
        -- A UUID of version 8 (RFC 9562: "vendor specific"), from the names that make the event unique.
        event_id := encode(overlay(substring(sha256(convert_to(ARRAY[tenant, scope, key, kind]::text, 'UTF8'))
            FROM 1 FOR 16) PLACING '\x800080' FROM 7), 'hex')::uuid;
        -- Under the event's own lock, so that no INSERT waits for another transaction; a fresh statement then looks.
        IF NOT pg_try_advisory_xact_lock(uuid_hash_extended(event_id, 20779)) THEN
            PERFORM once._refuse('P4029', tenant, scope, key, format('another transaction is emitting its event %s',
                kind));
        END IF;
        PERFORM FROM once.outbox AS o
          WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
            AND o.event_type = kind COLLATE "C" AND o.day < day;
        IF FOUND THEN
            PERFORM once._check_repeated(tenant, scope, key, kind, topic, payload, headers);
            RETURN event_id;
        END IF;
    END IF;
    INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, aggregate_type, aggregate_id, tenant, scope,
        key, headers, payload)
    VALUES (day, now, event_id, topic, kind, aggregate_type, aggregate_id, tenant, scope, key, headers, payload)
    ON CONFLICT DO NOTHING;     -- above READ COMMITTED, where a race was lost: 40001
    IF NOT FOUND THEN
        PERFORM once._check_repeated(tenant, scope, key, kind, topic, payload, headers);
    END IF;
    RETURN event_id;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.errors(): every SQLSTATE that the contract raises: its name, sentence, hint, and whether the same call may be
-- tried again as it is. Clients branch on the code and never on text. docs/sql.md and lib/src/error.c are checked
-- against it.
CREATE OR REPLACE FUNCTION once.errors(OUT code text, OUT name text, OUT retry boolean, OUT message text, OUT hint text)
RETURNS SETOF record LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    VALUES
    ('P4000', 'scope_required', false, 'a scope of 1 to 255 characters is required',
     'Name the kind of operation, for example ''orders''.'),
    ('P4001', 'key_malformed', false, 'the key is missing or malformed',
     'Send 1 to 255 printable ASCII characters; a UUIDv7 must not come from the future.'),
    ('P4002', 'mismatch', false, 'the key was first used with another request',
     'Use a key for one request only. The first request and its answer are untouched.'),
    ('P4003', 'refused', false, 'the fingerprint is missing or the tenant is refused',
     'Pass once.fingerprint(...) of the request, and a tenant that this role is bound to (once.bind).'),
    ('P4010', 'completion_refused', false, 'the completion is refused',
     'The attempt no longer holds the intent: discard its result. once.peek tells what is stored.'),
    ('P4011', 'failure_refused', false, 'the failure is refused',
     'The attempt no longer holds the intent: discard its result. once.peek tells what is stored.'),
    ('P4020', 'already_finished', false, 'the intent is finished and has an outcome',
     'Read the outcome with once.peek or once.begin.'),
    ('P4029', 'active', true, 'another attempt of this intent is running',
     'Try again after a short delay, with the same key.'),
    ('P4030', 'final_failure', false, 'the intent failed for good',
     'The stored outcome is in once.peek. A new intent needs a new key.'),
    ('P4031', 'in_doubt', false, 'nobody knows whether the effect of this intent happened',
     'Find out, then decide with once.resolve. Until then no attempt runs.'),
    ('P4041', 'expired', false, 'the key is older than what is remembered',
     'This retry comes too late to be answered; it was not run. Look for the effect itself.'),
    ('P4050', 'message_mismatch', false, 'the message id was first used with another payload',
     'Message ids must name one message. The first message''s effect is untouched.'),
    ('P4051', 'event_mismatch', false, 'this intent has already emitted this event with another payload',
     'One event of a type per intent: give the second one an event_type of its own.'),
    ('P4060', 'too_large', false, 'the response body is larger than the scope allows',
     'Raise response_bytes_max with once.set_scope, or store a reference to the result.'),
    ('P4070', 'resolution_refused', false, 'the decision is refused',
     'Only a stale, in-doubt or retryable intent can be decided, with a reason.'),
    ('P4098', 'partition_missing', true, 'the partition for this day is missing',
     'Run the keeper: pgonce keep, or select once.add_days().'),
    ('P4099', 'unknown_state', false, 'the intent is in a state that this function does not know',
     'The contract and its callers may be of different versions: run pgonce doctor.')
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once.fail(scope, key, fence, retryable, error..., outcome..., tenant): stores that a claimed intent failed. retryable
-- true: certainly no effect, the next attempt may run; false: failed for good, retries get this outcome; NULL: nobody
-- knows whether the effect happened: in doubt. Returns as once.complete does. Raises P4011 where the fence is lost or
-- the intent is finished otherwise; P4060, P4000 P4001 P4003.
CREATE OR REPLACE FUNCTION once.fail(scope text, key text, fence integer, retryable boolean, error_code text DEFAULT NULL,
    error_message text DEFAULT NULL,
    response_status integer DEFAULT NULL, response_body bytea DEFAULT NULL, response_headers jsonb DEFAULT NULL,
    tenant text DEFAULT '')
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    next_state once.state := CASE retryable WHEN true THEN 'failed_retryable' WHEN false
        THEN 'failed_final' ELSE 'in_doubt' END;
    reported text;
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, '\x00000000000000000000000000000000');
    PERFORM once._check_size(tenant, scope, key, response_body);
    reported := once._report(tenant, scope, key, bucket, fence, next_state, response_status, response_body,
        response_headers, NULL, NULL,
                             error_code, error_message);
    IF reported = 'refused' THEN
        PERFORM once._refuse('P4011', tenant, scope, key, once._where_is(tenant, scope, key, bucket, fence));
    END IF;
    RETURN reported = 'stored';
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.fail_many(scope[], key[], fence[], retryable[], error[]..., outcome[]..., tenant): once.fail for many intents in
-- one statement; a NULL in retryable means in doubt. Returns as once.complete_many does, with P4011 for what is
-- refused.
CREATE OR REPLACE FUNCTION once.fail_many(scope text[], key text[], fence integer[], retryable boolean[],
    error_code text[] DEFAULT NULL,
    error_message text[] DEFAULT NULL, response_status integer[] DEFAULT NULL, response_body bytea[] DEFAULT NULL,
    response_headers jsonb[] DEFAULT NULL, tenant text DEFAULT '')
RETURNS TABLE (ord integer, verdict text, refused_code text, refused_message text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET random_page_cost = 0 AS $$
#variable_conflict use_variable
DECLARE
    absent integer := coalesce(cardinality(key), 0);    -- what a NULL array of outcomes stands for: as many NULLs
    size integer := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0), once._length(fence, 0),
        once._length(retryable, 0), once._length(error_code, absent), once._length(error_message, absent),
        once._length(response_status, absent), once._length(response_body, absent),
        once._length(response_headers, absent));
    next_state once.state[] := ARRAY(SELECT CASE u.retryable WHEN true THEN 'failed_retryable'
                                                             WHEN false THEN 'failed_final'
                                                             ELSE 'in_doubt' END::once.state
                                       FROM unnest(retryable) WITH ORDINALITY AS u (retryable, ord) ORDER BY u.ord);
BEGIN
    RETURN QUERY SELECT r.ord, r.verdict, r.refused_code, r.refused_message
      FROM once._report_many('P4011', scope, key, fence, next_state, response_status, response_body, response_headers,
          NULL, NULL,
                             error_code, error_message, tenant) AS r;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.fingerprint(request, tenant): the salted SHA-256 of a request, to pass to begin or claim. jsonb: of its
-- canonical form, so that a re-serialised body is the same request; bytea and text: of exactly these bytes. The three
-- never coincide (each has its own tag), and two tenants' never do. Cast a literal: once.fingerprint('...'::jsonb).
-- NULL gives NULL, which begin refuses (P4003). PL/pgSQL: a function in LANGUAGE sql is planned anew at each call.
CREATE OR REPLACE FUNCTION once.fingerprint(request jsonb, tenant text DEFAULT '') RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN sha256(once.salt(tenant) || 'j'::bytea || convert_to(request::text, 'UTF8'));
END $$;
CREATE OR REPLACE FUNCTION once.fingerprint(request bytea, tenant text DEFAULT '') RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN sha256(once.salt(tenant) || 'b'::bytea || request);
END $$;
CREATE OR REPLACE FUNCTION once.fingerprint(request text, tenant text DEFAULT '') RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN sha256(once.salt(tenant) || 't'::bytea || convert_to(request, 'UTF8'));
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.finish(scope, key, fingerprint, outcome..., state, tenant): stores the outcome of an intent that this
-- transaction began, and returns response_body, so that a function can end with RETURN once.finish(...). state is
-- 'succeeded', 'failed_final', or 'failed_retryable' (the next begin proceeds again). Raises P4010 where the intent is
-- not this transaction's to finish (a leased attempt holds it, or it is finished), P4002 for another fingerprint, P4060
-- for too large a body. 40001 where another transaction finished it first (isolation levels above READ COMMITTED, or no
-- begin): retry the transaction. Writes one row version; waits for nobody.
--
-- Why it is written so: one INSERT and no look-up; ON CONFLICT DO NOTHING turns a race under REPEATABLE READ into 40001
-- and needs no EXCEPTION block, which would start a subtransaction. Only a row left by a leased attempt makes it go
-- further. Small bodies skip the policy: response_bytes_max is never below 8192. No setting but search_path: each costs
-- a call 3,000 instructions, and an INSERT of VALUES has but one plan.
CREATE OR REPLACE FUNCTION once.finish(scope text, key text, fingerprint bytea, response_status integer DEFAULT NULL,
    response_body bytea DEFAULT NULL,
    response_headers jsonb DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL,
    state text DEFAULT 'succeeded',
    error_code text DEFAULT NULL, error_message text DEFAULT NULL, tenant text DEFAULT '')
RETURNS bytea LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._enter(tenant, scope, key, fingerprint, true);
    now timestamptz := clock_timestamp();
BEGIN
    IF ((bucket = 0 OR once._is_open(bucket)) AND state IN ('succeeded', 'failed_final', 'failed_retryable')
        AND octet_length(response_body) > 8192 IS NOT TRUE) IS NOT TRUE THEN
        bucket := once._check_finish(tenant, scope, key, state, response_body);
    END IF;
    INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, response_status, state,
        tenant, scope, key, fingerprint, result_type, result_id, error_code, error_message, response_headers,
        response_body)
    VALUES (now, now, now, bucket, 1, 1, response_status, state::once.state, tenant, scope, key, fingerprint,
        result_type, result_id, error_code, error_message, response_headers, response_body)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        PERFORM once._finish_over(tenant, scope, key, bucket, fingerprint, state, response_status, response_headers,
            response_body, result_type, result_id, error_code, error_message);
    END IF;
    RETURN response_body;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.finish_new(scope, key, fingerprint, outcome..., state, tenant): once.begin_new and once.finish in one call, for
-- pipelines whose outcome is known before the effect: sent first, it stops everything that is queued behind it where the
-- effect may not run, and with the effect it commits or vanishes. Returns the fence; raises what these two raise,
-- P4020 for a replay among it.
--
-- Why it is written so: the hot path is that of begin_new and of finish, with one gate; what it leaves over, those two do.
-- It looks before it inserts, because ON CONFLICT alone would wait for a report of this intent in an open transaction.
CREATE OR REPLACE FUNCTION once.finish_new(scope text, key text, fingerprint bytea, response_status integer DEFAULT NULL,
    response_body bytea DEFAULT NULL,
    response_headers jsonb DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL,
    state text DEFAULT 'succeeded',
    error_code text DEFAULT NULL, error_message text DEFAULT NULL, tenant text DEFAULT '')
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._enter(tenant, scope, key, fingerprint, true);
    now timestamptz := clock_timestamp();
    fence integer;
    body bytea;
BEGIN
    IF bucket > 0 THEN
        PERFORM FROM once.intent AS i
          WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
            AND i.bucket = bucket;
    ELSIF bucket = 0 THEN
        PERFORM FROM once.intent AS i
          WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
            AND i.bucket = 0;
    END IF;
    IF NOT FOUND AND (bucket = 0 OR once._is_open(bucket)) AND octet_length(response_body) > 8192 IS NOT TRUE
        AND state IN ('succeeded', 'failed_final', 'failed_retryable') THEN
        INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, response_status, state,
            tenant, scope, key, fingerprint, result_type, result_id, error_code, error_message, response_headers,
            response_body)
        VALUES (now, now, now, bucket, 1, 1, response_status, state::once.state, tenant, scope, key, fingerprint,
            result_type, result_id, error_code, error_message, response_headers, response_body)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN 1;
        END IF;
    END IF;
    fence := once.begin_new(scope, key, fingerprint, tenant);
    body := once.finish(scope, key, fingerprint, response_status, response_body, response_headers, result_type,
        result_id, state, error_code, error_message, tenant);
    RETURN fence;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.lock(resource, wait): once.try_lock that waits, at most wait (0 to 1 day); false where the lock was not to be
-- had by then. A deadlock with other locks is PostgreSQL's 40P01. The caller's own lock_timeout is as it was
-- afterwards.
CREATE OR REPLACE FUNCTION once.lock(resource text, wait interval) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 AS $$
DECLARE
    wait_ms numeric := extract(epoch FROM wait) * 1000;
BEGIN
    IF (wait_ms BETWEEN 0 AND 86400000) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: wait is out of range: %s', wait),
            DETAIL = '0 to 1 day';
    END IF;
    IF once.try_lock(resource) THEN
        RETURN true;
    ELSIF wait_ms < 1 THEN
        RETURN false;
    END IF;
    PERFORM set_config('lock_timeout', ceil(wait_ms)::text, true);
    PERFORM pg_advisory_xact_lock(hashtextextended(resource COLLATE "C", 20780));
    RETURN true;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN false;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.peek(scope, key, tenant): what is stored of an intent; changes nothing, locks nothing. verdict:
-- 'replay_success', 'final_failure', 'retryable_failure', 'processing_active', 'processing_stale', 'in_doubt',
-- 'expired' (its day is retired), or 'absent': nothing is stored (an attempt in an open transaction does not show).
-- Raises P4000, P4001, P4003.
CREATE OR REPLACE FUNCTION once.peek(scope text, key text, tenant text DEFAULT '',
    OUT verdict text, OUT fence integer, OUT state text, OUT response_status integer, OUT response_headers jsonb,
    OUT response_body bytea,
    OUT result_type text, OUT result_id text, OUT error_code text, OUT error_message text, OUT owner text,
    OUT lease_until timestamptz,
    OUT attempts integer, OUT created_at timestamptz, OUT completed_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, '\x00000000000000000000000000000000');
    SELECT p.* INTO verdict, fence, state, response_status, response_headers, response_body, result_type, result_id,
        error_code, error_message,
                    owner, lease_until, attempts, created_at, completed_at
      FROM once._peek(tenant, scope, key, bucket) AS p;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.peek_many(scope[], key[], tenant): once.peek for many intents. One row per element, in order; a malformed
-- element has verdict 'invalid' and its SQLSTATE in error_code. Raises only for the batch as a whole (22023, P4003).
CREATE OR REPLACE FUNCTION once.peek_many(scope text[], key text[], tenant text DEFAULT '')
RETURNS TABLE (ord integer, verdict text, fence integer, state text, response_status integer, response_headers jsonb,
    response_body bytea,
    result_type text, result_id text, error_code text, error_message text, owner text, lease_until timestamptz,
    attempts integer,
    created_at timestamptz, completed_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0));
    bucket integer;
BEGIN
    FOR n IN 1 .. size LOOP
        ord := n;
        bucket := once._bucket(key[ord]);
        SELECT p.* INTO verdict, fence, state, response_status, response_headers, response_body, result_type, result_id,
            error_code,
                        error_message, owner, lease_until, attempts, created_at, completed_at
          FROM once._peek(tenant, scope[ord], key[ord], bucket) AS p
         WHERE bucket >= 0 AND length(scope[ord]) BETWEEN 1 AND 255;
        IF NOT FOUND THEN
            verdict := 'invalid';
            error_code := CASE WHEN (length(scope[ord]) BETWEEN 1 AND 255) IS NOT TRUE THEN 'P4000' ELSE 'P4001' END;
            SELECT e.message INTO error_message FROM once.errors() AS e WHERE e.code = error_code COLLATE "C";
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.receive(consumer, message_id, fingerprint, tenant): the inbox, in the consumer's own transaction. 'process':
-- apply the message, then COMMIT; 'duplicate': it was applied before, acknowledge it. A message is an intent whose
-- scope is the consumer. Use the natural business id, never a broker offset. Raises P4050 where the id came with
-- another payload, P4029 where another transaction is applying it now, P4041 where it is older than what is remembered,
-- 40001 where isolation above READ COMMITTED met a race.
CREATE OR REPLACE FUNCTION once.receive(consumer text, message_id text, fingerprint bytea, tenant text DEFAULT '') RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._enter(tenant, consumer, message_id, fingerprint, false);
    now timestamptz := clock_timestamp();
    stored record;
BEGIN
    IF pg_try_advisory_xact_lock(once._lock_id(tenant, consumer, message_id)) THEN
        IF bucket = 0 OR once._is_open(bucket) OR once._day_state(bucket) = 'open' THEN
            INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant,
                scope, key, fingerprint)
            VALUES (now, now, now, bucket, 1, 1, 'succeeded', tenant, consumer, message_id, fingerprint)
            ON CONFLICT DO NOTHING;
            IF FOUND THEN
                RETURN 'process';
            END IF;
        END IF;
    END IF;
    SELECT i.state, i.fingerprint INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C" AND i.key = message_id COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND THEN
        SELECT a.state, a.fingerprint INTO stored FROM once._archived(tenant, consumer, message_id, bucket) AS a
            WHERE a.state IS NOT NULL;
        IF NOT FOUND THEN
            PERFORM once._refuse_day(tenant, consumer, message_id, bucket);
            PERFORM once._refuse('P4029', tenant, consumer, message_id, 'another transaction is applying this message');
        END IF;
    END IF;
    IF stored.fingerprint <> fingerprint THEN
        PERFORM once._refuse('P4050', tenant, consumer, message_id);
    ELSIF stored.state <> 'succeeded' THEN
        PERFORM once._refuse('P4099', tenant, consumer, message_id,
            format('an attempt under a lease left it %s: use claim throughout', stored.state));
    END IF;
    RETURN 'duplicate';
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.release(scope, key, fence, tenant): gives back a claim whose work certainly never started: the next attempt may
-- run at once, and this one is not counted. false: the intent is no longer this attempt's. The row and its fence stay,
-- so a zombie of this attempt stays shut out.
CREATE OR REPLACE FUNCTION once.release(scope text, key text, fence integer, tenant text DEFAULT '')
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    now timestamptz := clock_timestamp();
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, '\x00000000000000000000000000000000');
    UPDATE once.intent AS i
       SET state = 'failed_retryable', attempts = i.attempts - 1, lease_until = NULL, updated_at = now,
           completed_at = now,
           error_code = 'released', error_message = 'the work never started'
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket
       AND i.fence = fence AND i.state = 'processing';
    RETURN FOUND;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.renew(scope, key, fence, lease, tenant): the heartbeat of a claimed attempt: its lease ends lease (default: the
-- scope's) from now. false: the intent is no longer this attempt's; stop the work if that is possible. A lease that has
-- passed can be renewed as long as nobody took over.
CREATE OR REPLACE FUNCTION once.renew(scope text, key text, fence integer, lease interval DEFAULT NULL, tenant text DEFAULT '')
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, '\x00000000000000000000000000000000');
    PERFORM once._check_term('lease', lease, '7 days');
    RETURN once._renew(tenant, scope, key, bucket, fence, lease);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.renew_many(scope[], key[], fence[], lease, tenant): once.renew for many attempts. One row per element, in order;
-- a malformed element is false. Raises only for the batch as a whole (22023, P4003).
CREATE OR REPLACE FUNCTION once.renew_many(scope text[], key text[], fence integer[], lease interval DEFAULT NULL,
    tenant text DEFAULT '')
RETURNS TABLE (ord integer, renewed boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0),
    once._length(fence, 0));
    renewed_many boolean[];
    n integer;
BEGIN
    PERFORM once._check_term('lease', lease, '7 days');
    renewed_many := array_fill(false, ARRAY[size]);
    -- In the order of their keys: two batches over the same intents cannot deadlock.
    FOR n IN SELECT u.ord FROM unnest(scope, key) WITH ORDINALITY AS u (scope, key, ord)
              WHERE once._bucket(u.key) >= 0 AND length(u.scope) BETWEEN 1 AND 255
              ORDER BY u.scope COLLATE "C", u.key COLLATE "C", u.ord LOOP
        renewed_many[n] := once._renew(tenant, scope[n], key[n], once._bucket(key[n]), fence[n], lease);
    END LOOP;
    RETURN QUERY SELECT u.ord::integer, u.renewed FROM unnest(renewed_many) WITH ORDINALITY AS u (renewed,
        ord) ORDER BY u.ord;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.resolve(scope, key, as_state, reason, outcome..., tenant): an operator's decision on an intent that is in doubt,
-- stale, or failed retryably: as_state is 'succeeded' (the effect happened; give its outcome), 'failed_retryable' (it
-- did not; the next attempt may run) or 'failed_final' (it did not and shall not). Raises the fence, so that a zombie
-- of the old attempt is shut out; recorded in once.decision with who and why. Returns the state before. Raises P4070
-- where the intent is running, finished or unknown, or the reason is missing; P4060, P4000, P4001, P4003.
CREATE OR REPLACE FUNCTION once.resolve(scope text, key text, as_state text, reason text, response_status integer DEFAULT NULL,
    response_body bytea DEFAULT NULL,
    response_headers jsonb DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL,
    error_code text DEFAULT NULL,
    error_message text DEFAULT NULL, tenant text DEFAULT '') RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    now timestamptz := clock_timestamp();
    stored once.intent;
    source regclass := 'once.intent';
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, '\x00000000000000000000000000000000');
    PERFORM once._check_size(tenant, scope, key, response_body);
    IF (btrim(reason) <> '') IS NOT TRUE THEN
        PERFORM once._refuse('P4070', tenant, scope, key, 'the reason is missing');
    ELSIF (as_state IN ('succeeded', 'failed_retryable', 'failed_final')) IS NOT TRUE THEN
        PERFORM once._refuse('P4070', tenant, scope, key,
            format('as_state=%s: one of succeeded, failed_retryable, failed_final', quote_nullable(as_state)));
    ELSIF NOT pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key)) THEN
        PERFORM once._refuse('P4070', tenant, scope, key, 'an attempt is running right now');
    END IF;
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND THEN
        stored := once._archived(tenant, scope, key, bucket);
        source := 'once.archive';
    END IF;
    IF stored.state IS NULL THEN
        PERFORM once._refuse('P4070', tenant, scope, key, 'there is no such intent');
    ELSIF stored.state = 'processing' AND stored.lease_until > now THEN
        PERFORM once._refuse('P4070', tenant, scope, key, format('an attempt is running: its lease ends at %s',
            stored.lease_until));
    ELSIF NOT EXISTS (SELECT FROM once.transition AS t WHERE t.from_state = stored.state AND t.event = 'resolve'
        AND t.to_state = as_state::once.state) THEN
        PERFORM once._refuse('P4070', tenant, scope, key, format('the intent is %s', stored.state));
    ELSIF source = 'once.intent'::regclass
          AND NOT once._hold(tenant, scope, key, bucket, stored.fence, stored.state, stored.lease_until) THEN
        PERFORM once._refuse('P4070', tenant, scope, key, 'its attempt is reporting right now');
    END IF;
    -- format() and not two statements: an archived row has the same columns in another table.
    EXECUTE format('UPDATE %s SET state = $1, fence = fence + 1, updated_at = $2, completed_at = $2,
                    lease_until = NULL, response_status = $3,
                    response_body = $4, response_headers = $5, result_type = $6, result_id = $7, error_code = $8,
                        error_message = $9
                    WHERE tenant = $10 AND scope = $11 AND key = $12 AND bucket = $13', source)
      USING as_state::once.state, now, response_status, response_body, response_headers, result_type, result_id,
          error_code, error_message,
            tenant, scope, key, bucket;
    PERFORM once._record(tenant, scope, key, stored.fence, stored.state, as_state::once.state, reason);
    RETURN stored.state;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.retire_day(bucket): closes a day of UUIDv7 keys for good, and all days before it, and drops their partitions. Rows
-- that must outlive their day move to once.archive in the same transaction: outcomes whose retention has not passed, and
-- everything in doubt (a stale attempt becomes in doubt: nobody knows). Returns how many moved. Refused (55006) while an
-- attempt of such a day holds a lease, and for days within the horizon (22023). Afterwards a late retry is answered from
-- the archive or with P4041; it never runs again. Waits for open transactions, at most lock_timeout.
CREATE OR REPLACE FUNCTION once.retire_day(bucket integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_variable
DECLARE
    setting once.setting;
    today integer := floor(date_part('epoch', clock_timestamp()) / 86400);
    now timestamptz := clock_timestamp();
    month date;
    busy once.intent;
    moved bigint := 0;
    older integer;
    survivors bigint;
BEGIN
    SELECT s.* INTO STRICT setting FROM once.setting AS s WHERE s.only_row FOR UPDATE;
    IF (bucket BETWEEN 1 AND today - setting.horizon_days - 1) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: day %s cannot be retired', bucket),
            DETAIL = format('days up to %s are past the horizon of %s days', today - setting.horizon_days - 1,
                setting.horizon_days);
    END IF;
    month := date_trunc('month', date '1970-01-01' + bucket);
    -- Days close in their order: what is before a closed day must not be open.
    FOR older IN SELECT substr(c.relname, length('intent_d') + 1)::integer AS day
                   FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
                  WHERE h.inhparent = 'once.intent'::regclass AND c.relname ~ '^intent_d[1-9][0-9]*$'
                    AND substr(c.relname, length('intent_d') + 1)::integer < bucket
                  ORDER BY day LOOP
        moved := moved + once.retire_day(older);
    END LOOP;
    IF to_regclass('once.intent_d' || bucket) IS NOT NULL THEN
        -- Before anything is read: from here on nobody is inside the day, and who waits finds it closed.
        EXECUTE format('LOCK TABLE once.intent, once.intent_d%s IN ACCESS EXCLUSIVE MODE', bucket);
        SELECT i.* INTO busy FROM once.intent AS i WHERE i.bucket = bucket AND i.state = 'processing'
            AND i.lease_until > now LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION USING ERRCODE = '55006',
                MESSAGE = format('pgonce: an attempt of day %s still holds its lease', bucket),
                DETAIL = format('tenant=%L scope=%L key=%L until %s', busy.tenant, busy.scope, busy.key,
                    busy.lease_until), HINT = 'Try again later.';
        END IF;
        IF to_regclass('once.archive_' || to_char(month, 'YYYYMM')) IS NULL THEN
            EXECUTE format('CREATE TABLE once.archive_%s PARTITION OF once.archive FOR VALUES FROM (%s) TO (%s)',
                to_char(month, 'YYYYMM'),
                           month - date '1970-01-01', (month + interval '1 month')::date - date '1970-01-01');
        END IF;
        INSERT INTO once.archive AS a
        SELECT i.* FROM once.intent AS i LEFT JOIN once.scope AS p ON p.scope = i.scope
         WHERE i.bucket = bucket
           AND (i.state IN ('processing', 'in_doubt')
                OR (i.state IN ('succeeded', 'failed_final')
                    AND coalesce(i.expires_at, i.completed_at + coalesce(p.retention,
                        (once._policy('')).retention)) > now));
        GET DIAGNOSTICS survivors = ROW_COUNT;
        moved := moved + survivors;
        UPDATE once.archive AS a
           SET state = 'in_doubt', updated_at = now, lease_until = NULL, error_code = 'stale',
               error_message = 'its day was retired while it was stale'
         WHERE a.bucket = bucket AND a.state = 'processing';
        EXECUTE format('ALTER TABLE once.intent DETACH PARTITION once.intent_d%s', bucket);
        EXECUTE format('DROP TABLE once.intent_d%s', bucket);
    END IF;
    UPDATE once.setting AS s SET closed_before = greatest(s.closed_before, bucket + 1) WHERE s.only_row;
    RETURN moved;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.salt(tenant): the 32-byte salt of a tenant's fingerprints, for clients that compute them themselves. Derived
-- from the installation's random salt, so that a new tenant needs no row (and no wait for whoever is writing it).
-- Raises P4003.
CREATE OR REPLACE FUNCTION once.salt(tenant text DEFAULT '') RETURNS bytea
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- The test of once.begin, in line: a call costs more than the rest of it.
    IF (length(tenant) <= 255 AND current_setting('role') = 'none'
        AND has_function_privilege(session_user, 'once.any_tenant()'::regprocedure, 'execute')) IS NOT TRUE THEN
        PERFORM once._check(tenant, 'salt', 'salt', 0, '\x00000000000000000000000000000000');
    END IF;
    RETURN (SELECT sha256(s.salt || convert_to(salt.tenant, 'UTF8')) FROM once.setting AS s WHERE s.only_row);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.set_scope(scope, lease, retention, max_attempts, on_stale, verify, response_bytes_max): sets the policy of a
-- scope; '' is the default policy of all scopes that have none. What is left out (NULL) stays, or comes from the
-- default. max_attempts 0 means no limit. verify names a function f(tenant text, scope text, key text) RETURNS
-- once.verification, called as the owner of the contract: for administrators only.
CREATE OR REPLACE FUNCTION once.set_scope(scope text, lease interval DEFAULT NULL, retention interval DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    on_stale text DEFAULT NULL, verify text DEFAULT NULL, response_bytes_max integer DEFAULT NULL) RETURNS once.scope
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    policy once.scope;
BEGIN
    IF scope IS NULL OR length(scope) > 255 THEN
        PERFORM once._refuse('P4000', NULL, scope, NULL);
    END IF;
    LOCK TABLE once.scope IN SHARE ROW EXCLUSIVE MODE;      -- one writer at a time; readers do not wait
    policy := once._policy(scope);
    policy.scope := scope;
    policy.lease := coalesce(lease, policy.lease);
    policy.retention := coalesce(retention, policy.retention);
    policy.max_attempts := CASE WHEN max_attempts = 0 THEN NULL ELSE coalesce(max_attempts, policy.max_attempts) END;
    policy.on_stale := coalesce(on_stale, CASE WHEN verify IS NOT NULL THEN 'verify' ELSE policy.on_stale END);
    policy.verify := CASE WHEN policy.on_stale = 'verify' THEN coalesce((verify || '(text,text,text)')::regprocedure,
        policy.verify) END;
    policy.response_bytes_max := coalesce(response_bytes_max, policy.response_bytes_max);
    IF policy.verify IS NOT NULL AND (SELECT p.prorettype <> 'once.verification'::regtype FROM pg_proc AS p
        WHERE p.oid = policy.verify) THEN
        RAISE EXCEPTION USING ERRCODE = '42P13', MESSAGE = format('pgonce: %s does not return once.verification',
            policy.verify);
    END IF;
    DELETE FROM once.scope AS s WHERE s.scope = scope COLLATE "C";
    INSERT INTO once.scope SELECT policy.*;
    RETURN policy;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.story(scope, key, tenant): all that is known of one intent as one JSON document: its row (without the fingerprint;
-- the body as base64), its decisions, its events (a payload as JSON text, because a reader that parses numbers as doubles
-- would show other amounts). NULL where nothing is stored. For people and tools; its members may grow. Raises P4000,
-- P4001, P4003.
CREATE OR REPLACE FUNCTION once.story(scope text, key text, tenant text DEFAULT '') RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    stored once.intent;
    archived boolean := false;
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, '\x00000000000000000000000000000000');
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND THEN
        stored := once._archived(tenant, scope, key, bucket);
        archived := true;
        IF stored.state IS NULL THEN
            RETURN NULL;
        END IF;
    END IF;
    RETURN jsonb_build_object(
        'tenant', tenant, 'scope', scope, 'key', key, 'archived', archived,
        'day', CASE WHEN bucket > 0 THEN (date '1970-01-01' + bucket)::text END,
        'state', stored.state, 'verdict', once._verdict(true, stored.state, stored.lease_until, clock_timestamp(), 0,
            NULL, 'takeover'),
        'fence', stored.fence, 'attempts', stored.attempts, 'owner', stored.owner, 'lease_until', stored.lease_until,
        'created_at', stored.created_at, 'updated_at', stored.updated_at, 'completed_at', stored.completed_at,
        'expires_at', coalesce(stored.expires_at, stored.completed_at + (once._policy(scope)).retention),
        'response_status', stored.response_status, 'response_headers', stored.response_headers,
        'response_body', translate(encode(stored.response_body, 'base64'), E'\n', ''), 'response_bytes',
            octet_length(stored.response_body),
        'result_type', stored.result_type, 'result_id', stored.result_id,
        'error_code', stored.error_code, 'error_message', stored.error_message, 'traceparent', stored.traceparent,
        'decisions', (SELECT coalesce(jsonb_agg(jsonb_build_object('at', d.decided_at, 'by', d.decided_by, 'reason',
            d.reason, 'fence', d.fence,
                                                                   'from', d.from_state, 'to',
                                                                       d.to_state) ORDER BY d.decided_at), '[]')
                        FROM once.decision AS d
                       WHERE d.tenant = tenant COLLATE "C" AND d.scope = scope COLLATE "C" AND d.key = key COLLATE "C"),
        'events', (SELECT coalesce(jsonb_agg(jsonb_build_object('id', o.event_id, 'topic', o.topic, 'type',
            o.event_type, 'at', o.created_at,
                                                                'aggregate_type', o.aggregate_type, 'aggregate_id',
                                                                    o.aggregate_id,
                                                                'payload', o.payload::text) ORDER BY o.id), '[]')
                     FROM once.outbox AS o
                    WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"));
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.try_lock(resource): takes a lock on a name until this transaction ends, without waiting: false where another
-- transaction has it. For "one settlement per merchant and day", "one import per file". Works behind a transaction
-- pooler. Never a substitute for a constraint.
CREATE OR REPLACE FUNCTION once.try_lock(resource text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (length(resource) > 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: a lock needs the name of a resource',
            HINT = 'For example once.try_lock(''settlement/'' || merchant || ''/'' || day).';
    END IF;
    RETURN pg_try_advisory_xact_lock(hashtextextended(resource COLLATE "C", 20780));
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- Who may do what. Nobody but the owner touches a table; each role below may EXECUTE the functions listed for it. The
-- roles are made where the installer may make roles; where not, a notice says so, and pgonce doctor shows what an
-- administrator has to run. Ends without a role of its own: it is run again at every upgrade.

REVOKE ALL ON ALL TABLES IN SCHEMA once FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA once FROM PUBLIC;

DO $$
DECLARE
    -- role, what it is for, its functions. once_tenant is once_app for one tenant's roles: see once.bind.
    app text[] := ARRAY['begin', 'begin_new', 'finish', 'finish_new', 'claim', 'claim_many', 'complete', 'complete_many', 'fail',
    'fail_many', 'renew', 'renew_many',
                        'release', 'peek', 'peek_many', 'salt', 'fingerprint', 'receive', 'emit', 'try_lock', 'lock',
                            'errors', 'contract_version'];
    granted record;
    target text;
BEGIN
    FOR granted IN
        SELECT * FROM (VALUES
            ('once_app',    app || ARRAY['any_tenant']),
            ('once_tenant', app),
            ('once_relay',  ARRAY['errors', 'contract_version', 'add_days', 'any_tenant']),
            ('once_keeper', ARRAY['errors', 'contract_version', 'add_days', 'retire_day', 'any_tenant']),
            ('once_reader', ARRAY['errors', 'contract_version', 'peek', 'peek_many', 'story', 'any_tenant']),
            ('once_admin',  app || ARRAY['any_tenant', 'story', 'resolve', 'set_scope', 'bind', 'unbind', 'add_days',
                'retire_day'])) AS g (role_name, functions)
    LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.rolname = granted.role_name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', granted.role_name);
            EXCEPTION
                WHEN insufficient_privilege THEN
                    RAISE NOTICE 'pgonce: role % is missing, and % may not make it: have an administrator do so, then init again',
                                 granted.role_name, current_user;
                    CONTINUE;
                WHEN duplicate_object OR unique_violation THEN NULL;    -- another installation in this cluster made it just now
            END;
        END IF;
        EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA once FROM %I', granted.role_name);
        EXECUTE format('GRANT USAGE ON SCHEMA once TO %I', granted.role_name);
        FOR target IN
            SELECT format('%I.%I(%s)', 'once', p.proname, pg_get_function_identity_arguments(p.oid))
              FROM pg_catalog.pg_proc AS p
             WHERE p.pronamespace = 'once'::regnamespace AND p.proname = ANY (granted.functions)
        LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', target, granted.role_name);
        END LOOP;
    END LOOP;
END $$;

INSERT INTO once.migration (version, name, checksum, pgonce) VALUES (0, 'functions and grants', '522eff49bd94e986135d943a5d8b84618b0a53802d28a654b61ae1d4aa4ed1ef', '1.0.0');

-- SPDX-License-Identifier: PostgreSQL
-- The first partitions; every daemon tops them up in passing.
SELECT once.add_days();

COMMIT;
