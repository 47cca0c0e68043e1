-- SPDX-License-Identifier: PostgreSQL
-- The contract at version 4 (pgonce 1.0.0), as `tools/contract.py install` printed it then. Never changed: test_upgrade.py starts here.
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
-- The way out and the way in, version 2: how far each relay has read the outbox, the events and messages that wait
-- because they (or what stands before them) failed, and the type that handlers are called with.

-- One row per relay. What `seen` sees is done with: delivered, or parked. Between two snapshots `seen` and `reading` the
-- events are delivered in the order of their ids; those up to after_id are done. xids mean nothing in another cluster,
-- hence system_identifier.
CREATE TABLE once.relay (
    relay             text COLLATE "C" PRIMARY KEY CHECK (relay <> '' AND length(relay) <= 63),
    system_identifier bigint NOT NULL,
    topics            text[] COLLATE "C",           -- LIKE patterns of the topics that it takes; NULL: all
    seen              pg_snapshot NOT NULL,
    reading           pg_snapshot,                  -- NULL: no batch is under way
    after_id          bigint NOT NULL DEFAULT 0,
    started_at        timestamptz NOT NULL,
    progressed_at     timestamptz NOT NULL
);

-- Events that a relay has passed and not delivered: 'waiting' behind another of their aggregate (or for their first
-- attempt), 'retrying' at next_at, or 'dead' after the last attempt. The event itself stays in the outbox.
CREATE TABLE once.parked_event (
    relay          text COLLATE "C" NOT NULL REFERENCES once.relay ON DELETE CASCADE,
    id             bigint NOT NULL,
    xid            xid8 NOT NULL,
    day            integer NOT NULL,
    event_id       uuid NOT NULL,
    topic          text COLLATE "C" NOT NULL,
    tenant         text COLLATE "C" NOT NULL,
    aggregate_type text COLLATE "C",
    aggregate_id   text COLLATE "C",
    -- Its aggregate as a number, since names may be longer than an index takes; two aggregates that share one merely wait
    -- for each other. NULL: no aggregate, no order. once._aggregate is the same.
    aggregate      bigint GENERATED ALWAYS AS (CASE WHEN aggregate_id IS NOT NULL
        THEN hash_array_extended(ARRAY[tenant, coalesce(aggregate_type, ''), aggregate_id], 0) END) STORED,
    state          text COLLATE "C" NOT NULL CHECK (state IN ('waiting', 'retrying', 'dead')),
    attempts       integer NOT NULL DEFAULT 0,
    next_at        timestamptz NOT NULL,            -- 'infinity': not before what stands before it is gone
    error          text,
    parked_at      timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    PRIMARY KEY (relay, id)
);
CREATE INDEX parked_event_aggregate ON once.parked_event (relay, aggregate, id);
CREATE INDEX parked_event_due ON once.parked_event (relay, next_at) WHERE state <> 'dead';
CREATE INDEX parked_event_event ON once.parked_event (event_id);

-- An event on its way to a relay, and what a relay says of one that it parks.
CREATE TYPE once.outgoing AS (
    id             bigint,
    xid            xid8,
    day            integer,
    event_id       uuid,
    topic          text,
    event_type     text,
    aggregate_type text,
    aggregate_id   text,
    tenant         text,
    scope          text,
    key            text,
    traceparent    text,
    headers        jsonb,
    payload        jsonb,
    created_at     timestamptz,
    attempts       integer,     -- that failed before
    blocked        boolean      -- an earlier event of its aggregate is parked with this relay
);
CREATE TYPE once.parking AS (
    id             bigint,
    xid            xid8,
    day            integer,
    event_id       uuid,
    topic          text,
    tenant         text,
    aggregate_type text,
    aggregate_id   text,
    state          text,
    attempts       integer,
    wait_ms        bigint,      -- until next_at, by the database's clock
    error          text,
    known          boolean      -- it is parked already: where it is not any more, an operator has discarded it
);

-- What a handler is called with.
CREATE TYPE once.message AS (
    id      text,       -- what makes it one message, however often it is delivered
    topic   text,
    key     text,       -- messages of one key are handled in order; NULL: none
    headers jsonb,      -- an object; of a header that comes twice, the last
    payload bytea,
    body    jsonb       -- the payload, where it is JSON; else NULL
);

-- What a consumer says of a message that it parks.
CREATE TYPE once.parked AS (
    message_id  text,
    topic       text,
    key         text,
    headers     jsonb,
    payload     bytea,
    fingerprint bytea,
    state       text,
    attempts    integer,
    wait_ms     bigint,
    error       text,
    sqlstate    text
);

-- Messages that a consumer took from its broker and has not applied: as once.parked_event, but with their content, since
-- the broker may forget them.
CREATE TABLE once.parked_message (
    position    bigint GENERATED BY DEFAULT AS IDENTITY,  -- the order in which they came
    consumer    text COLLATE "C" NOT NULL,
    tenant      text COLLATE "C" NOT NULL,
    message_id  text COLLATE "C" NOT NULL,
    topic       text COLLATE "C" NOT NULL,
    key         text COLLATE "C",
    key_hash    bigint GENERATED ALWAYS AS (hashtextextended(key, 0)) STORED,    -- as once.parked_event.aggregate
    headers     jsonb,
    payload     bytea,
    fingerprint bytea NOT NULL,
    state       text COLLATE "C" NOT NULL CHECK (state IN ('waiting', 'retrying', 'dead')),
    attempts    integer NOT NULL DEFAULT 0,
    next_at     timestamptz NOT NULL,
    error       text,
    sqlstate    text COLLATE "C",
    parked_at   timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    PRIMARY KEY (consumer, tenant, message_id)
);
CREATE INDEX parked_message_key ON once.parked_message (consumer, tenant, key_hash, position);
CREATE INDEX parked_message_due ON once.parked_message (consumer, tenant, next_at) WHERE state <> 'dead';

-- What operators did with parked events and messages: who, when, why.
CREATE TABLE once.parked_decision (
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    decided_by text COLLATE "C" NOT NULL,
    reason     text NOT NULL CHECK (reason <> ''),
    what       text COLLATE "C" NOT NULL CHECK (what IN ('retry', 'discard', 'replay', 'adopt', 'drop')),
    relay      text COLLATE "C",          -- of events
    consumer   text COLLATE "C",          -- of messages
    tenant     text COLLATE "C",
    subject    text COLLATE "C" NOT NULL, -- the event's id, the message's id, from when, or the relay
    from_state text COLLATE "C",
    error      text                       -- the last error of what was decided on
);
CREATE INDEX parked_decision_subject ON once.parked_decision (subject);

-- What operators are shown of events and messages that are not delivered, or not applied.
CREATE TYPE once.listed_event AS (
    relay          text,
    state          text,        -- 'pending': the relay has not come to it yet; else as in once.parked_event
    topic          text,
    event_id       uuid,
    event_type     text,
    tenant         text,
    aggregate_type text,
    aggregate_id   text,
    attempts       integer,
    next_at        timestamptz, -- NULL: not before what stands before it is gone
    error          text,
    created_at     timestamptz
);
CREATE TYPE once.listed_message AS (
    consumer   text,
    state      text,
    message_id text,
    topic      text,
    key        text,
    tenant     text,
    attempts   integer,
    next_at    timestamptz,
    error      text,
    sqlstate   text,
    parked_at  timestamptz
);

INSERT INTO once.migration (version, name, checksum, pgonce) VALUES (2, '0002_delivery', '061aa9239ecbe8a55cf639f38f95d7002f84b6234a220f53162eae58dee3accd', '1.0.0');

-- SPDX-License-Identifier: PostgreSQL
-- Keeping, version 3: what the keeper remembers between its short transactions. Everything here may be lost with the
-- process at any moment and is picked up by the next keeper from these rows.

-- What is forgotten, and when.
ALTER TABLE once.setting
    ADD COLUMN clock_settle interval NOT NULL DEFAULT '1 hour' CHECK (clock_settle >= '0' AND clock_settle <= '7 days'),
    ADD COLUMN dead_retention interval NOT NULL DEFAULT '90 days' CHECK (dead_retention > '0'),
    ADD COLUMN decision_retention interval NOT NULL DEFAULT '400 days' CHECK (decision_retention > '0'),
    ADD COLUMN outbox_retention interval NOT NULL DEFAULT '1 day' CHECK (outbox_retention >= '0');

-- "schema.function", resolved whenever it is called: pg_upgrade refuses a database with a column of type regprocedure.
ALTER TABLE once.scope ALTER COLUMN verify TYPE text COLLATE "C" USING verify::oid::regproc::text;

INSERT INTO once.transition VALUES
    ('processing', 'recover',   'succeeded',    'the lease has passed and verify says: happened'),
    ('processing', 'recover',   'in_doubt',     'the lease has passed and policy, verify or used-up attempts say so'),
    ('processing', 'recover',   'failed_final',
        'the lease has passed, verify says: absent, and attempts are used up: abandoned'),
    ('processing', 'keep_step', 'in_doubt',     'the lease has passed and the key''s day is closed');

-- The one keeper: a lease in a row, since a session's lock does not live behind a pooler in transaction mode.
CREATE TABLE once.keeper (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    keeper      text COLLATE "C" NOT NULL,
    lease_until timestamptz NOT NULL,
    last_round  timestamptz
);

-- How each step fared, and where it goes on: the table that it reads through by blocks of the heap.
CREATE TABLE once.keeper_step (
    step          text COLLATE "C" PRIMARY KEY,
    last_started  timestamptz,
    last_success  timestamptz,
    last_error_at timestamptz,
    last_error    text,
    done_total    bigint NOT NULL DEFAULT 0,
    leaf          text COLLATE "C",           -- NULL: begin anew
    block         bigint NOT NULL DEFAULT 0,
    place         text COLLATE "C",           -- within these blocks: see once.recover's cursor
    ended_at      timestamptz                 -- the last whole pass
);

-- The readings of the clock that are judged by each other: see once._clock.
CREATE TABLE once.clock (
    only_row       boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    read_at        timestamptz NOT NULL,
    usual          interval NOT NULL,         -- between two readings, of late
    unsteady_since timestamptz NOT NULL,
    why            text NOT NULL
);

-- The days that are being retired. 'look': still open, searched for attempts under a lease. 'doubt', 'move': closed (the
-- table is once.intent_closed_dN); what outlives the day goes to once.archive. 'detach', 'drop': nothing of it is needed.
CREATE TABLE once.closing (
    day        integer PRIMARY KEY,
    phase      text COLLATE "C" NOT NULL DEFAULT 'look' CHECK (phase IN ('look', 'doubt', 'move', 'detach', 'drop')),
    block      bigint NOT NULL DEFAULT 0,     -- the phase goes on here
    moved      bigint NOT NULL DEFAULT 0,     -- in the pass that is under way: a pass that moves nothing is the last
    started_at timestamptz NOT NULL,
    held       text,                          -- what it waits for; NULL: nothing
    held_since timestamptz
);

-- What the last whole sweep found, by scope, and what the one under way has found so far.
CREATE TABLE once.swept (
    scope        text COLLATE "C" PRIMARY KEY,
    stale        bigint NOT NULL,
    in_doubt     bigint NOT NULL,
    oldest_stale timestamptz,                 -- when its lease passed
    as_of        timestamptz NOT NULL
);
CREATE TABLE once.sweeping (
    scope        text COLLATE "C" PRIMARY KEY,
    stale        bigint NOT NULL,
    in_doubt     bigint NOT NULL,
    oldest_stale timestamptz
);

-- How far consumers are: everything older than position was acknowledged to its broker and cannot come back.
CREATE TABLE once.consumer_position (
    consumer    text COLLATE "C" NOT NULL,
    tenant      text COLLATE "C" NOT NULL,
    part        text COLLATE "C" NOT NULL,    -- partition, queue or stream
    position    timestamptz NOT NULL,
    reported_at timestamptz NOT NULL,
    PRIMARY KEY (consumer, tenant, part)
);

-- What one piece of a step answers.
CREATE TYPE once.kept AS (
    done    bigint,
    more    boolean,
    command text,
    detail  text
);

INSERT INTO once.migration (version, name, checksum, pgonce) VALUES (3, '0003_keeping', 'f40d455079a4c43afdf7c324ff186bc975009912f79b3473148df03edd7c951f', '1.0.0');

-- SPDX-License-Identifier: PostgreSQL
-- Seeing, version 4: the trace that an intent belongs to is taken, kept and given back.

-- What a claim answers: a type of its own, for the reason that once.begun is one.
CREATE TYPE once.claimed AS (
    verdict          text,
    fence            integer,
    state            text,
    response_status  integer,
    response_headers jsonb,
    response_body    bytea,
    result_type      text,
    result_id        text,
    error_code       text,
    error_message    text,
    lease_until      timestamptz,
    attempts         integer,
    traceparent      text
);
ALTER TYPE once.begun ADD ATTRIBUTE traceparent text;

-- What the intent was before and after a decision (once._facts), and of which kind it was: takeovers and the first retries
-- are entries too.
ALTER TABLE once.decision ADD COLUMN kind text COLLATE "C" NOT NULL DEFAULT 'resolve', ADD COLUMN before jsonb,
    ADD COLUMN after jsonb;
UPDATE once.decision AS d SET kind = CASE WHEN d.reason LIKE 'verify: %' THEN 'verify'
                                          WHEN d.reason LIKE 'its day was retired%' THEN 'retire' ELSE d.kind END;

-- Those whose parameters or results have grown: CREATE OR REPLACE would put the new beside the old, and a call that leaves
-- out what has a default would not know which is meant.
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN SELECT p.oid::regprocedure AS name FROM pg_catalog.pg_proc AS p
                WHERE p.pronamespace = 'once'::regnamespace
                  AND p.proname IN ('begin', 'begin_new', '_begin_over', 'finish', 'finish_new', '_finish_over', 'claim', '_claim',
                                    '_take_over', 'claim_many', 'peek', 'peek_many', '_peek', 'receive', 'receive_many', 'emit',
                                    '_record')
    LOOP
        EXECUTE format('DROP FUNCTION %s', old.name);
    END LOOP;
END $$;

-- What attempts are told is counted by sequences, one for each thing that is said (once._counted): these are those of scopes
-- without a policy of their own; once._add_counters makes the others.
DO $$
DECLARE
    kind text := CASE WHEN current_setting('server_version_num')::integer >= 150000 THEN 'UNLOGGED' ELSE '' END;
    verdict text;
BEGIN
    FOREACH verdict IN ARRAY ARRAY['new', 'replay', 'mismatch', 'active', 'stale', 'retryable', 'final', 'in_doubt', 'expired',
                                   'process', 'duplicate', 'message_mismatch'] LOOP
        EXECUTE format('CREATE %s SEQUENCE once.counted_%s', kind, verdict);
    END LOOP;
END $$;

INSERT INTO once.migration (version, name, checksum, pgonce) VALUES (4, '0004_seeing', 'ae6f12f016040abb3bb0e59b1a4f99b8590ea599f3265fd67cafaff7d85ac0cc', '1.0.0');

-- SPDX-License-Identifier: PostgreSQL
-- once._add_counters(scope): makes the sequences that count for a scope, where they are missing. A sequence is counted up
-- without waiting for anybody and is not rolled back, so that a refusal is counted too. Unlogged where PostgreSQL can do so
-- (15): counting writes no WAL, and begins anew after a crash.
CREATE OR REPLACE FUNCTION once._add_counters(scope text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    kind text := CASE WHEN current_setting('server_version_num')::integer >= 150000 THEN 'UNLOGGED' ELSE '' END;
    counter record;
BEGIN
    FOR counter IN SELECT concat('counted_', v.verdict, '_',
                               to_hex(hashtextextended(scope COLLATE "C", 0))) AS name
                     FROM once._counted() AS v LOOP
        IF to_regclass(format('once.%I', counter.name)) IS NULL THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));   -- one creator at a time
            EXECUTE format('CREATE %s SEQUENCE IF NOT EXISTS once.%I', kind, counter.name);
            EXECUTE format('COMMENT ON SEQUENCE once.%I IS %L', counter.name, 'counts for the scope ' || quote_literal(scope));
        END IF;
    END LOOP;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._adopt_events(): gives the events that came with a restore from another cluster an xid that every snapshot of this
-- one has seen. Theirs would mean nothing here, or, once this cluster has counted so far, something wrong. An event that
-- can be read, though no transaction that could have written it has ended, is such a one. Both searches are by index, so
-- that a call that finds nothing costs nothing. What is parked follows its event.
CREATE OR REPLACE FUNCTION once._adopt_events() RETURNS bigint
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    adopted bigint;
BEGIN
    -- One statement and so one snapshot: what it can read, and what it says of xids, agree.
    WITH now AS MATERIALIZED (
        SELECT s.snapshot, pg_snapshot_xmax(s.snapshot) AS beyond,
               ARRAY(SELECT x FROM pg_snapshot_xip(s.snapshot) AS x) AS running,
               coalesce(pg_current_xact_id_if_assigned(), '1'::xid8) AS own
          FROM (SELECT pg_current_snapshot() AS snapshot) AS s),
    foreign_event AS MATERIALIZED (
        SELECT o.id, o.xid, o.day FROM now AS n, once.outbox AS o WHERE o.xid >= n.beyond AND o.xid <> n.own
         UNION ALL
        SELECT o.id, o.xid, o.day FROM now AS n, once.outbox AS o WHERE o.xid = ANY (n.running) AND o.xid <> n.own),
    parked AS (
        UPDATE once.parked_event AS p SET xid = '3' FROM foreign_event AS f WHERE p.id = f.id AND p.xid = f.xid),
    changed AS (
        UPDATE once.outbox AS o SET xid = '3' FROM foreign_event AS f
         WHERE o.day = f.day AND o.xid = f.xid AND o.id = f.id RETURNING 1)
    SELECT count(*) INTO adopted FROM changed;
    RETURN adopted;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._aggregate(tenant, aggregate_type, aggregate_id): the number of an aggregate, as once.parked_event has it; NULL
-- where an event has none. Inlined.
CREATE OR REPLACE FUNCTION once._aggregate(tenant text, aggregate_type text, aggregate_id text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN aggregate_id IS NOT NULL
        THEN hash_array_extended(ARRAY[tenant, coalesce(aggregate_type, ''), aggregate_id] COLLATE "C", 0) END
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once._archive_month(day): makes the partition of the archive for the month of this day, where it is missing. ATTACH, as in
-- once.add_days, so that no look-up waits.
CREATE OR REPLACE FUNCTION once._archive_month(day integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    month date := date_trunc('month', date '1970-01-01' + day);
    leaf text := 'archive_' || to_char(month, 'YYYYMM');
BEGIN
    IF to_regclass('once.' || leaf) IS NOT NULL THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
    IF to_regclass('once.' || leaf) IS NULL THEN
        EXECUTE format('CREATE TABLE once.%s (LIKE once.archive INCLUDING ALL)', leaf);
        EXECUTE format('ALTER TABLE once.archive ATTACH PARTITION once.%s FOR VALUES FROM (%s) TO (%s)', leaf,
            month - date '1970-01-01', (month + interval '1 month')::date - date '1970-01-01');
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._archived(tenant, scope, key, bucket): the row of an intent that once.intent does not show, where its day is closed: from the
-- archive, where it outlived its day, or from the day's table, which is detached before it is dropped; else NULL. Raises 40001 where the
-- snapshot is older than the end of that table: it may have been moved since, and an answer that is owed is not denied.
CREATE OR REPLACE FUNCTION once._archived(tenant text, scope text, key text,
    bucket integer) RETURNS once.intent LANGUAGE plpgsql STABLE AS $$
DECLARE
    kept once.intent;
    leaf regclass;
BEGIN
    SELECT a.* INTO kept FROM once.archive AS a
     WHERE a.tenant = _archived.tenant COLLATE "C" AND a.scope = _archived.scope COLLATE "C"
       AND a.key = _archived.key COLLATE "C" AND a.bucket = _archived.bucket;
    IF FOUND THEN
        RETURN kept;
    END IF;
    leaf := to_regclass('once.intent_closed_d' || bucket);          -- it sees what was dropped after the snapshot; tables do not
    IF leaf IS NOT NULL THEN
        BEGIN
            EXECUTE format('SELECT * FROM once.%I WHERE tenant = $1 AND scope = $2 AND key = $3', 'intent_closed_d' || bucket)
               INTO kept USING tenant, scope, key;
            RETURN kept;
        EXCEPTION WHEN undefined_table THEN
            leaf := NULL;                                           -- dropped right now
        END;
    END IF;
    IF EXISTS (SELECT FROM once.closing AS c WHERE c.day = bucket) THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'pgonce: the day of this key was retired just now',
            DETAIL = format('tenant=%L scope=%L key=%L', tenant, scope, key), HINT = 'Retry the transaction.';
    END IF;
    RETURN kept;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._ask(policy, tenant, scope, key): once._verify for recovery: where the verify function raises, the answer is 'unknown'
-- and failure says why, so that the others are asked nevertheless.
CREATE OR REPLACE FUNCTION once._ask(policy once.scope, tenant text, scope text, key text, OUT verified once.verification,
    OUT failure text)
LANGUAGE plpgsql AS $$
DECLARE
    code text;
    said text;
BEGIN
    verified := once._verify(policy, tenant, scope, key);
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, said = MESSAGE_TEXT;
    verified.answer := 'unknown';
    failure := left(format('verify raised %s: %s', code, said), 500);
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
-- once._backlog(): from when on relays and consumers need what is remembered. A relay: since its oldest event that is neither
-- delivered nor discarded was emitted, because whoever gets it again must know it again (to the day, where thousands wait or
-- one is parked). A consumer: its oldest position. Those that need nothing are left out.
CREATE OR REPLACE FUNCTION once._backlog() RETURNS TABLE (what text, name text, tenant text, needed_from timestamptz,
    since timestamptz)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    own bigint := (SELECT c.system_identifier FROM pg_control_system() AS c);
    days integer[] := ARRAY(SELECT once._days('once.outbox', 'outbox_d'));
    relay once.relay;
    day integer;
    oldest timestamptz;
    events bigint;
    parked integer;
BEGIN
    FOR relay IN SELECT r.* FROM once.relay AS r ORDER BY r.relay LOOP
        needed_from := NULL;
        IF relay.system_identifier <> own THEN
            needed_from := '-infinity';         -- nobody knows how far it is
        ELSE
            FOREACH day IN ARRAY days LOOP
                SELECT min(n.created_at), count(*) INTO oldest, events
                  FROM (SELECT o.created_at FROM once.outbox AS o
                         WHERE o.day = day
                           AND (o.xid >= pg_snapshot_xmax(relay.seen)
                                OR o.xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip(relay.seen) AS x)))
                           AND (relay.reading IS NULL OR o.id > relay.after_id
                                OR NOT pg_visible_in_snapshot(o.xid, relay.reading))
                           AND (relay.topics IS NULL OR o.topic LIKE ANY (relay.topics)) LIMIT 10000) AS n;
                IF events > 0 THEN
                    needed_from := CASE WHEN events < 10000 THEN oldest ELSE to_timestamp(day * 86400.0) END;
                    EXIT;
                END IF;
            END LOOP;
            SELECT min(p.day) INTO parked FROM once.parked_event AS p WHERE p.relay = relay.relay;
            needed_from := least(needed_from, to_timestamp(parked * 86400.0));
        END IF;
        IF needed_from IS NOT NULL THEN
            what := 'relay';
            name := relay.relay;
            tenant := NULL;
            since := relay.progressed_at;
            RETURN NEXT;
        END IF;
    END LOOP;
    RETURN QUERY
    SELECT 'consumer', c.consumer::text, c.tenant::text, min(c."position"), min(c.reported_at)
      FROM once.consumer_position AS c GROUP BY c.consumer, c.tenant ORDER BY c.consumer, c.tenant;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._begin_over(tenant, scope, key, fingerprint, traceparent): the thorough half of once.begin, for what its hot path leaves over: a
-- row that is no plain replay, a lock that another attempt has, a day that is not plainly open. Decides by the scope's
-- policy whether this attempt may run, and raises where it may not. The arguments are checked already. A stale or
-- retryable row is left as it is: finish() takes it over under the next fence.
CREATE OR REPLACE FUNCTION once._begin_over(tenant text, scope text, key text, fingerprint bytea, traceparent text) RETURNS once.begun
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
            PERFORM once._count(scope, 'active');
            PERFORM once._refuse('P4029', tenant, scope, key);
        END IF;
        answer.verdict := 'proceed';
        answer.fence := 1;
        answer.traceparent := once._trace(traceparent);
        RETURN answer;
    END IF;

    judged := once._verdict(stored.fingerprint = fingerprint, stored.state, stored.lease_until, clock_timestamp(),
        stored.attempts, policy.max_attempts, policy.on_stale);
    IF judged NOT IN ('retryable_failure', 'processing_stale', 'verify') THEN
        PERFORM once._count(scope, judged);
    END IF;
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
            answer.traceparent := stored.traceparent;
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
                PERFORM once._refuse_outdated(tenant, scope, key, bucket);
            END IF;
            PERFORM once._refuse_day(tenant, scope, key, bucket);       -- of a closed day: it may not run again
            IF NOT locked THEN
                PERFORM once._count(scope, 'active');
                PERFORM once._refuse('P4029', tenant, scope, key, 'another attempt is taking it over');
            ELSIF NOT once._hold(tenant, scope, key, bucket, stored.fence, stored.state, stored.lease_until) THEN
                PERFORM once._count(scope, 'active');
                PERFORM once._refuse('P4029', tenant, scope, key, 'its attempt is reporting right now');
            END IF;
        ELSE PERFORM once._refuse('P4099', tenant, scope, key, format('state=%s verdict=%s', stored.state, judged));
    END CASE;

    -- Held, and free to run: unless its policy wants the effect to be looked for first.
    answer.verdict := 'proceed';
    answer.fence := stored.fence + 1;
    answer.traceparent := coalesce(stored.traceparent, once._trace(traceparent));
    IF judged = 'verify' THEN
        verified := once._verify(policy, tenant, scope, key);
        IF verified.answer = 'unknown' OR (verified.answer = 'absent' AND stored.attempts >= policy.max_attempts) THEN
            PERFORM once._count(scope, 'in_doubt');
            PERFORM once._refuse('P4031', tenant, scope, key, format('verify answered %s', verified.answer));
        ELSIF verified.answer = 'happened' THEN
            PERFORM once._store_verified(tenant, scope, key, bucket, stored.fence, verified);
            answer := ROW('replay', 'succeeded', verified.response_status, verified.response_headers,
                verified.response_body, verified.result_type, verified.result_id, NULL, NULL, stored.fence,
                stored.traceparent)::once.begun;
        END IF;
    END IF;
    PERFORM once._count(scope, CASE WHEN answer.verdict = 'replay' THEN 'replay' WHEN judged = 'verify' THEN 'retryable'
        ELSE judged END);
    RETURN answer;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._blocks(leaf): how many blocks the heap of this table has now.
CREATE OR REPLACE FUNCTION once._blocks(leaf regclass) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT pg_relation_size(leaf) / current_setting('block_size')::integer
$$;

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
-- once._check_consumer(tenant, consumer): raises what is wrong with the names in a call about parked messages, or the
-- caller's right to the tenant.
CREATE OR REPLACE FUNCTION once._check_consumer(tenant text, consumer text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._enter(tenant, consumer, 'none', E'\\x00000000000000000000000000000000', false);
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
-- once._check_retired(day): raises 55006 where a day of the outbox is still needed (once._outbox_needed).
CREATE OR REPLACE FUNCTION once._check_retired(day integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    needed record := once._outbox_needed(day);
BEGIN
    IF needed.why IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = format('pgonce: day %s of the outbox is still needed', day),
            DETAIL = needed.why, HINT = needed.hint;
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
    lease interval, retention interval, traceparent text) RETURNS once.claimed
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    policy once.scope := once._policy(scope);
    locked boolean := pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key));
    day text := once._day_state(bucket);
    now timestamptz := clock_timestamp();
    stored once.intent;
    answer once.claimed;
BEGIN
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    IF locked AND day = 'open' THEN
        INSERT INTO once.intent AS i (created_at, updated_at, expires_at, lease_until, bucket, fence, attempts, state,
                                      tenant, scope, key, fingerprint, owner, traceparent)
        SELECT now, now, now + retention, now + coalesce(lease, policy.lease), bucket, 1, 1, 'processing',
               tenant, scope, key, fingerprint, claimant, traceparent
         WHERE NOT EXISTS (SELECT FROM once.intent AS i
                            WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C"
                              AND i.key = key COLLATE "C" AND i.bucket = bucket)
        ON CONFLICT DO NOTHING;
        IF FOUND AND nextval(once._counter('new', scope, 'once.counted_new')) IS NOT NULL THEN
            RETURN ROW('new_claim', 1, 'processing', NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                       now + coalesce(lease, policy.lease), 1, traceparent)::once.claimed;
        END IF;
    END IF;

    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND AND day = 'closed' THEN
        stored := once._archived(tenant, scope, key, bucket);
    END IF;
    IF stored.state IS NULL THEN
        answer.verdict := CASE day WHEN 'open' THEN 'processing_active' WHEN 'closed' THEN 'expired' ELSE day END;
        PERFORM once._count(scope, answer.verdict);
        RETURN answer;
    END IF;

    answer.verdict := once._verdict(stored.fingerprint = fingerprint, stored.state, stored.lease_until, now, stored.attempts,
                             policy.max_attempts, policy.on_stale);
    IF answer.verdict IN ('retryable_failure', 'processing_stale', 'verify', 'abandoned')
       OR (answer.verdict = 'in_doubt' AND stored.state = 'processing') THEN
        -- Once more: what was looked at since has locked the day's table, so that it is not being closed now.
        day := once._day_state(bucket);
        IF day = 'closed' THEN
            PERFORM once._refuse_outdated(tenant, scope, key, bucket);
        END IF;
        IF day <> 'open' THEN
            answer.verdict := CASE day WHEN 'closed' THEN 'expired' ELSE day END;
            PERFORM once._count(scope, answer.verdict);
            RETURN answer;
        ELSIF NOT locked
              OR NOT once._hold(tenant, scope, key, bucket, stored.fence, stored.state, stored.lease_until) THEN
            answer.verdict := 'processing_active';     -- somebody else is deciding about this intent, or reporting, right now
        ELSE
            answer.verdict := once._take_over(answer.verdict, stored, policy, claimant, lease, retention, traceparent);
            SELECT i.* INTO STRICT stored FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
               AND i.bucket = bucket;
        END IF;
    END IF;

    PERFORM once._count(scope, answer.verdict);
    IF answer.verdict = 'mismatch' THEN
        RETURN answer;     -- and learn nothing else of it
    END IF;
    answer.fence := stored.fence;
    answer.state := stored.state;
    answer.attempts := stored.attempts;
    answer.lease_until := stored.lease_until;
    answer.traceparent := stored.traceparent;
    IF answer.verdict <> 'processing_active' THEN
        answer.response_status := stored.response_status;
        answer.response_headers := stored.response_headers;
        answer.response_body := stored.response_body;
        answer.result_type := stored.result_type;
        answer.result_id := stored.result_id;
        answer.error_code := stored.error_code;
        answer.error_message := stored.error_message;
    END IF;
    RETURN answer;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._clock(): takes a reading of the database's clock and judges it by the last one. A clock that steps back, or leaps
-- forward by more than the time that passes between readings (three times the longest of late, at least five minutes), is
-- unsteady; so is one that was never read. A keeper that did not run for a while finds the same, and waits in vain: harmless.
-- While the clock is held (once._clock_held), a gap of more than five minutes that is usual may be a second leap that follows one
-- which looked like a long gap: no more of it counts as steady than a twelfth of clock_settle.
CREATE OR REPLACE FUNCTION once._clock() RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    last once.clock;
    settle interval := (SELECT s.clock_settle FROM once.setting AS s WHERE s.only_row);
    why text;
BEGIN
    INSERT INTO once.clock (read_at, usual, unsteady_since, why) VALUES (now, '1 minute', now, 'it was never read before')
    ON CONFLICT (only_row) DO NOTHING;
    SELECT c.* INTO STRICT last FROM once.clock AS c WHERE c.only_row FOR UPDATE;
    now := clock_timestamp();       -- after the lock: another's reading is behind this one
    IF now < last.read_at THEN
        why := format('it stepped back by %s', last.read_at - now);
    ELSIF now > last.read_at + greatest(interval '5 minutes', 3 * last.usual) THEN
        why := format('it leapt forward by %s', now - last.read_at);
    ELSIF now < last.read_at + interval '1 second' THEN
        RETURN;
    END IF;
    UPDATE once.clock AS c
       SET read_at = now,
           -- What a step back took says nothing of the time between readings; nor does the leap that it puts right, which was learnt.
           usual = CASE WHEN now < c.read_at THEN interval '1 minute'
                        ELSE greatest(least(now - c.read_at, interval '2 hours'), c.usual - (now - c.read_at) / 2) END,
           unsteady_since = CASE WHEN why IS NOT NULL THEN now
                                 WHEN now > c.read_at + interval '5 minutes' AND c.read_at < c.unsteady_since + settle
                                 THEN c.unsteady_since + (now - c.read_at) - least(interval '5 minutes', settle / 12)
                                 ELSE c.unsteady_since END,
           why = coalesce(why, c.why)
     WHERE c.only_row;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._clock_held(): why nothing may be forgotten by this clock: it has not gone steadily for once.setting.clock_settle.
-- NULL where it has.
CREATE OR REPLACE FUNCTION once._clock_held() RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    settle interval := (SELECT s.clock_settle FROM once.setting AS s WHERE s.only_row);
    clock once.clock;
BEGIN
    SELECT c.* INTO clock FROM once.clock AS c WHERE c.only_row;
    IF settle = interval '0' OR clock_timestamp() >= clock.unsteady_since + settle THEN
        RETURN NULL;
    END IF;
    RETURN format('the clock is not steady yet: %s at %s', coalesce(clock.why, 'it was never read'), clock.unsteady_since);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._close_day(day): closes an open day for new intents: see once._keep_close. No scan under its locks. What waits longer
-- than an instant comes before the lock on the day's table.
CREATE OR REPLACE FUNCTION once._close_day(day integer) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));    -- once.add_days makes it no more
    UPDATE once.setting AS s SET closed_before = greatest(s.closed_before, day + 1) WHERE s.only_row;
    PERFORM set_config('lock_timeout', '100ms', true);
    EXECUTE format('LOCK TABLE once.intent_d%s IN ACCESS EXCLUSIVE MODE', day);
    EXECUTE format('ALTER TABLE once.intent_d%1$s RENAME TO intent_closed_d%1$s', day);
    EXECUTE format('CREATE TRIGGER closed BEFORE INSERT ON once.intent_closed_d%s'
                   ' FOR EACH ROW EXECUTE FUNCTION once._refuse_closed()', day);
    PERFORM once._next_phase(day, 'doubt');
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._count(scope, verdict, times): counts what attempts of a scope were told, in the words of a claim's verdict or in those
-- of once._counted; nothing for a verdict that is not counted, or in a transaction that may not write.
CREATE OR REPLACE FUNCTION once._count(scope text, verdict text, times bigint DEFAULT 1) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    told text := CASE verdict WHEN 'new_claim' THEN 'new' WHEN 'replay_success' THEN 'replay' WHEN 'processing_active' THEN 'active'
        WHEN 'processing_stale' THEN 'stale' WHEN 'retryable_failure' THEN 'retryable' WHEN 'final_failure' THEN 'final'
        WHEN 'abandoned' THEN 'final' WHEN 'future' THEN NULL WHEN 'missing' THEN NULL WHEN 'unknown' THEN NULL ELSE verdict END;
    counter regclass;
    ticked bigint;
BEGIN
    IF told IS NOT NULL AND current_setting('transaction_read_only') = 'off' THEN
        counter := once._counter(told, scope, to_regclass('once.counted_' || told));
        FOR n IN 1 .. times LOOP
            ticked := nextval(counter);     -- an assignment is evaluated without starting a query
        END LOOP;
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._counted(): what is counted, of attempts and (inbox) of messages.
CREATE OR REPLACE FUNCTION once._counted() RETURNS TABLE (verdict text, inbox boolean) LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    VALUES ('new', false), ('replay', false), ('mismatch', false), ('active', false), ('stale', false), ('retryable', false),
           ('final', false), ('in_doubt', false), ('expired', false),
           ('process', true), ('duplicate', true), ('message_mismatch', true)
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once._counter(verdict, scope, other): the sequence that counts how often attempts of a scope were told this; `other`, that
-- of the default policy, for scopes without a policy of their own. A name made from the scope's hash, which the system's
-- cache answers: no table is read for it, begin and finish read no policy. Inlined. See once._add_counters.
CREATE OR REPLACE FUNCTION once._counter(verdict text, scope text, other regclass) RETURNS regclass
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT coalesce(to_regclass('once.counted_' || verdict || '_' || to_hex(hashtextextended(scope COLLATE "C", 0))), other)
$$;

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
-- once._days(parent, prefix): the days that have a partition whose name begins so, in their order. once.intent_dN are open
-- days, once.intent_closed_dN those that are being retired.
CREATE OR REPLACE FUNCTION once._days(parent regclass, prefix text) RETURNS SETOF integer LANGUAGE sql STABLE AS $$
    SELECT substr(c.relname, length(prefix) + 1)::integer AS day
      FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
     WHERE h.inhparent = parent AND c.relname ~ ('^' || prefix || '[1-9][0-9]*$')
     ORDER BY day
$$;

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
-- once._event_relays(event): what each relay that takes the event's topic has done with it, as a JSON array: 'pending',
-- 'waiting', 'retrying', 'dead', or 'passed': delivered, discarded, or from before the relay began.
CREATE OR REPLACE FUNCTION once._event_relays(event once.outbox) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    own bigint := (SELECT c.system_identifier FROM pg_control_system() AS c);
BEGIN
    RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object('relay', r.relay,
                       'state', CASE WHEN p.state IS NOT NULL THEN p.state
                                     WHEN r.system_identifier <> own THEN 'of another cluster'
                                     WHEN pg_visible_in_snapshot(event.xid, r.seen)
                                          OR (pg_visible_in_snapshot(event.xid, r.reading)
                                              AND event.id <= r.after_id) THEN 'passed'
                                     ELSE 'pending' END,
                       'attempts', p.attempts,
                       'next_at', CASE WHEN p.state <> 'dead' AND p.next_at < 'infinity' AND NOT EXISTS (
                                           SELECT FROM once.parked_event AS b WHERE b.relay = p.relay
                                              AND b.aggregate = p.aggregate AND b.id < p.id) THEN p.next_at END,
                       'error', p.error, 'parked_at', p.parked_at, 'updated_at', p.updated_at) ORDER BY r.relay), '[]')
              FROM once.relay AS r LEFT JOIN once.parked_event AS p ON p.relay = r.relay AND p.id = event.id
             WHERE p.id IS NOT NULL OR r.topics IS NULL OR event.topic COLLATE "C" LIKE ANY (r.topics));
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._facts(stored): what once.decision keeps of an intent before and after a decision: no fingerprint, and of the answer its
-- status and size only. NULL where there is no row.
CREATE OR REPLACE FUNCTION once._facts(stored once.intent) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN (stored).state IS NOT NULL THEN jsonb_strip_nulls(jsonb_build_object(
        'state', (stored).state, 'fence', (stored).fence, 'attempts', (stored).attempts, 'owner', (stored).owner,
        'lease_until', (stored).lease_until, 'response_status', (stored).response_status,
        'response_bytes', octet_length((stored).response_body), 'result_type', (stored).result_type,
        'result_id', (stored).result_id, 'error_code', (stored).error_code, 'error_message', (stored).error_message)) END
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once._find(...): once.find; its parameters have names that do not meet those of the columns.
CREATE OR REPLACE FUNCTION once._find(of_tenant text, of_scope text, of_state text, of_type text, of_result text, of_event uuid,
    of_trace text, of_owner text, since timestamptz, until timestamptz, take integer)
RETURNS TABLE (tenant text, scope text, key text, state text, verdict text, fence integer, attempts integer, owner text,
    created_at timestamptz, updated_at timestamptz, lease_until timestamptz, result_type text, result_id text,
    traceparent text, archived boolean)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_custom_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now timestamptz := clock_timestamp();
    trace_id text;
    names text[];       -- of the intents that an event or a trace has led to: their tenants, scopes and keys
    scopes text[];
    keys text[];
BEGIN
    PERFORM once._authorise(of_tenant);     -- NULL, all tenants: for roles that are not bound
    IF of_state <> ALL (enum_range(NULL::once.state)::text[]) OR (take >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: no such state, or take is missing: %s',
            quote_nullable(left(of_state, 80))),
            HINT = 'state is one of ' || array_to_string(enum_range(NULL::once.state), ', ')
            || '; NULL for all.';
    END IF;
    IF of_trace IS NOT NULL THEN
        trace_id := CASE WHEN of_trace ~ '^[0-9a-f]{32}$' THEN of_trace ELSE substr(once._trace(of_trace), 4, 32) END;
        IF trace_id IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: that is no trace',
                DETAIL = format('trace=%s', quote_literal(left(of_trace, 80))),
                HINT = 'A trace id is 32 hexadecimal digits in lower case; a traceparent is 00-<trace id>-<16 digits>-<2 digits>.';
        END IF;
    END IF;
    IF of_event IS NOT NULL OR trace_id IS NOT NULL THEN
        SELECT array_agg(o.tenant), array_agg(o.scope), array_agg(o.key) INTO names, scopes, keys
          FROM (SELECT DISTINCT e.tenant, e.scope, e.key FROM once.outbox AS e
                 WHERE e.key IS NOT NULL AND (of_event IS NULL OR e.event_id = of_event)
                   AND (trace_id IS NULL OR substr(e.traceparent, 4, 32) = trace_id COLLATE "C")) AS o;
    END IF;
    IF of_event IS NOT NULL THEN
        RETURN QUERY
        SELECT f.* FROM unnest(names, scopes, keys) AS u (tenant, scope, key)
         CROSS JOIN LATERAL once._find_among(u.tenant, u.scope, u.key, now) AS f
         WHERE (of_tenant IS NULL OR f.tenant = of_tenant COLLATE "C") AND (of_scope IS NULL OR f.scope = of_scope COLLATE "C")
           AND (of_state IS NULL OR f.state = of_state COLLATE "C") AND (of_type IS NULL OR f.result_type = of_type COLLATE "C")
           AND (of_result IS NULL OR f.result_id = of_result COLLATE "C") AND (of_owner IS NULL OR f.owner = of_owner COLLATE "C")
           AND (since IS NULL OR f.created_at >= since) AND (until IS NULL OR f.created_at < until)
         ORDER BY f.created_at DESC, f.tenant, f.scope, f.key LIMIT take;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT f.tenant::text, f.scope::text, f.key::text, f.state::text,
           once._verdict(true, f.state, f.lease_until, now, 0, NULL, 'takeover'), f.fence, f.attempts, f.owner::text,
           f.created_at, f.updated_at, f.lease_until, f.result_type::text, f.result_id::text, f.traceparent::text, f.archived
      FROM (SELECT i.tenant, i.scope, i.key, i.state, i.fence, i.attempts, i.owner, i.created_at, i.updated_at, i.lease_until,
                   i.result_type, i.result_id, i.traceparent, false AS archived FROM once.intent AS i
             UNION ALL
            SELECT a.tenant, a.scope, a.key, a.state, a.fence, a.attempts, a.owner, a.created_at, a.updated_at, a.lease_until,
                   a.result_type, a.result_id, a.traceparent, true FROM once.archive AS a) AS f
     WHERE (of_tenant IS NULL OR f.tenant = of_tenant COLLATE "C") AND (of_scope IS NULL OR f.scope = of_scope COLLATE "C")
       AND (of_state IS NULL OR f.state = of_state::once.state) AND (of_type IS NULL OR f.result_type = of_type COLLATE "C")
       AND (of_result IS NULL OR f.result_id = of_result COLLATE "C") AND (of_owner IS NULL OR f.owner = of_owner COLLATE "C")
       AND (since IS NULL OR f.created_at >= since) AND (until IS NULL OR f.created_at < until)
       AND (trace_id IS NULL OR substr(f.traceparent, 4, 32) = trace_id COLLATE "C"
            OR (f.tenant, f.scope, f.key) IN (SELECT u.tenant COLLATE "C", u.scope COLLATE "C", u.key COLLATE "C"
                                                FROM unnest(names, scopes, keys) AS u (tenant, scope, key)))
     ORDER BY f.created_at DESC, f.tenant, f.scope, f.key LIMIT take;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._find_among(tenant, scope, key, now): one intent as once.find shows it, or no row.
CREATE OR REPLACE FUNCTION once._find_among(of_tenant text, of_scope text, of_key text, now timestamptz)
RETURNS TABLE (tenant text, scope text, key text, state text, verdict text, fence integer, attempts integer, owner text,
    created_at timestamptz, updated_at timestamptz, lease_until timestamptz, result_type text, result_id text,
    traceparent text, archived boolean)
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    day integer := once._bucket(of_key);
    stored once.intent;
    from_archive boolean := false;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = of_tenant COLLATE "C" AND i.scope = of_scope COLLATE "C" AND i.key = of_key COLLATE "C" AND i.bucket = day;
    IF NOT FOUND THEN
        stored := once._archived(of_tenant, of_scope, of_key, day);
        from_archive := true;
    END IF;
    IF stored.state IS NOT NULL THEN
        RETURN QUERY SELECT stored.tenant::text, stored.scope::text, stored.key::text, stored.state::text,
            once._verdict(true, stored.state, stored.lease_until, now, 0, NULL, 'takeover'), stored.fence, stored.attempts,
            stored.owner::text, stored.created_at, stored.updated_at, stored.lease_until, stored.result_type::text,
            stored.result_id::text, stored.traceparent::text, from_archive;
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._finish_over(...): finishes an intent that has a row already: left by a leased attempt that failed retryably or
-- whose lease has passed. The WHERE clause is the whole guard: had that attempt reported or renewed since begin, it
-- finds no row.
CREATE OR REPLACE FUNCTION once._finish_over(tenant text, scope text, key text, bucket integer, fingerprint bytea, state text,
    response_status integer,
    response_headers jsonb, response_body bytea, result_type text, result_id text, error_code text, error_message text,
    traceparent text)
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    stored record;
    before once.intent;
BEGIN
    SELECT i.* INTO before FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    UPDATE once.intent AS i
       SET state = state::once.state, fence = i.fence + 1, attempts = i.attempts + 1, updated_at = now,
           completed_at = now,
           owner = NULL, lease_until = NULL, response_status = response_status, response_headers = response_headers,
           response_body = response_body, result_type = result_type, result_id = result_id, error_code = error_code,
           error_message = error_message, traceparent = coalesce(i.traceparent, traceparent)
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket
       AND i.fingerprint = fingerprint
       AND (i.state = 'failed_retryable' OR (i.state = 'processing' AND i.lease_until <= now));
    IF FOUND THEN
        PERFORM once._record_attempt(before, state::once.state, NULL);
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
-- once._forget(step, leaves, condition, shared, limits): a piece of a step that deletes rows: of these tables, by blocks, what
-- meets the condition (on row i; see once._past), some hundred rows or a tenth of a second, from where the last piece stopped.
-- With shared, rows of intents: each under its advisory lock, and never one that somebody is changing, so that no attempt is
-- disturbed. After a whole pass it rests, the longer the larger the tables are, so as not to read them all day long.
CREATE OR REPLACE FUNCTION once._forget(step text, leaves text[], condition text, shared boolean, limits record, OUT done bigint,
    OUT more boolean)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '100 milliseconds';
    stride bigint := once._stride();
    place once.keeper_step;
    nth integer;
    gone bigint;
    due bigint;
    worked boolean := false;
BEGIN
    done := 0;
    more := false;
    SELECT k.* INTO STRICT place FROM once.keeper_step AS k WHERE k.step = step COLLATE "C" FOR UPDATE;
    IF place.leaf IS NULL AND clock_timestamp() < place.ended_at
       + (SELECT sum(once._blocks(to_regclass('once.' || l))) FROM unnest(leaves) AS l) * interval '1 millisecond'
       AND clock_timestamp() >= place.ended_at THEN
        RETURN;
    END IF;
    nth := array_position(leaves, place.leaf::text);
    IF nth IS NULL THEN         -- a new pass, or the table is gone meanwhile
        nth := 1;
        place.block := 0;
    END IF;
    LOOP
        IF nth > cardinality(leaves) THEN
            place.ended_at := clock_timestamp();
            place.block := 0;
            EXIT;
        ELSIF place.block >= coalesce(once._blocks(to_regclass('once.' || leaves[nth])), 0) THEN
            nth := nth + 1;
            place.block := 0;
            CONTINUE;
        END IF;
        IF worked AND (clock_timestamp() > deadline OR done >= 500) THEN
            more := true;
            EXIT;
        END IF;
        worked := true;
        EXECUTE format('WITH due AS MATERIALIZED (SELECT i.* FROM (SELECT i.ctid AS address, i.* FROM once.%1$s AS i
                                                                    WHERE %2$s AND (%3$s) LIMIT 500) AS i),
                        held AS MATERIALIZED (SELECT d.address FROM due AS d WHERE %4$s),
                        free AS MATERIALIZED (SELECT i.ctid AS address FROM once.%1$s AS i
                                               WHERE i.ctid = ANY (ARRAY(SELECT h.address FROM held AS h)) AND (%3$s)
                                                 FOR UPDATE SKIP LOCKED),
                        gone AS (DELETE FROM once.%1$s AS i WHERE i.ctid = ANY (ARRAY(SELECT f.address FROM free AS f))
                                 RETURNING i.ctid)
                        SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM due)',
                       leaves[nth], once._range(place.block, place.block + stride), condition,
                       CASE WHEN shared THEN 'pg_try_advisory_xact_lock(once._lock_id(d.tenant, d.scope, d.key))'
                            ELSE 'true' END)
            INTO gone, due USING limits.now, limits.retention, limits.needed, limits.skew, limits.longest, limits.consumers;
        done := done + gone;
        IF due < 500 OR gone = 0 THEN     -- else there may be more of them in these blocks
            place.block := place.block + stride;
        END IF;
    END LOOP;
    UPDATE once.keeper_step AS k
       SET leaf = CASE WHEN more THEN leaves[nth] END, block = place.block, ended_at = place.ended_at
     WHERE k.step = step COLLATE "C";
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
-- once._keep_archive(): the step 'archive': what has expired goes from the archive; a month whose days are all retired and
-- that is empty is dropped. What is in doubt stays.
CREATE OR REPLACE FUNCTION once._keep_archive() RETURNS once.kept LANGUAGE plpgsql SET jit = off AS $$
DECLARE
    why text := once._clock_held();
    closed integer := (SELECT least(min(c.day), (SELECT s.closed_before FROM once.setting AS s WHERE s.only_row))
                         FROM once.closing AS c);
    leaves text[] := ARRAY(SELECT c.relname::text FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
                            WHERE h.inhparent = 'once.archive'::regclass ORDER BY c.relname);
    leaf text;
    piece record;
    filled boolean;
BEGIN
    IF why IS NOT NULL OR cardinality(leaves) = 0 THEN
        RETURN ROW(0, false, NULL, why)::once.kept;
    END IF;
    SELECT f.* INTO piece FROM once._forget('archive', leaves,
        'i.state IN (''succeeded'', ''failed_final'', ''failed_retryable'') AND ' || once._past(), true,
        once._limits()) AS f;
    IF piece.more OR piece.done > 0 THEN
        RETURN ROW(piece.done, true, NULL, format('%s archived intents forgotten', piece.done))::once.kept;
    END IF;
    FOREACH leaf IN ARRAY leaves LOOP
        CONTINUE WHEN leaf !~ '^archive_[0-9]{6}$'
                   OR (to_date(right(leaf, 6), 'YYYYMM') + interval '1 month')::date - date '1970-01-01' > closed;
        EXECUTE format('SELECT EXISTS (SELECT FROM once.%I)', leaf) INTO filled;
        -- Nobody fills it any more: all of its days are retired.
        IF NOT filled THEN
            PERFORM set_config('lock_timeout', '100ms', true);
            EXECUTE format('ALTER TABLE once.archive DETACH PARTITION once.%I', leaf);
            EXECUTE format('DROP TABLE once.%I', leaf);
            RETURN ROW(1, true, NULL, format('%s is dropped', leaf))::once.kept;
        END IF;
    END LOOP;
    RETURN ROW(0, false, NULL, NULL)::once.kept;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._keep_begin(keeper, step): raises where this keeper may not work on this step now; else reads the clock, as every
-- piece of every step does, and makes the step's row.
CREATE OR REPLACE FUNCTION once._keep_begin(keeper text, step text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = '25000', MESSAGE = 'pgonce: a keeper works in READ COMMITTED only',
            DETAIL = 'a snapshot from before a lock would not show the last intents of a day',
            HINT = 'SET default_transaction_isolation = ''read committed''';
    ELSIF NOT EXISTS (SELECT FROM once.keep_steps() AS s WHERE s.step = step COLLATE "C") THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: a keeper has no step %s',
            quote_nullable(left(step, 80)));
    ELSIF NOT EXISTS (SELECT FROM once.keeper AS k WHERE k.keeper = keeper COLLATE "C" AND k.lease_until > now) THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: keeper %s does not hold the lease',
            quote_nullable(left(keeper, 80))),
            HINT = 'once.keep_take first; false says that another keeper works.';
    END IF;
    INSERT INTO once.keeper_step (step) VALUES (step) ON CONFLICT ON CONSTRAINT keeper_step_pkey DO NOTHING;
    IF step = 'days' THEN
        UPDATE once.keeper AS k SET last_round = now WHERE k.keeper = keeper COLLATE "C";
    END IF;
    PERFORM once._clock();
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._keep_clock(): the step 'clock'. The reading itself is taken by every piece of every step; this one reports.
CREATE OR REPLACE FUNCTION once._keep_clock() RETURNS once.kept LANGUAGE plpgsql AS $$
BEGIN
    RETURN ROW(0, false, NULL, once._clock_held())::once.kept;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._keep_close(): the step 'close': the oldest open day, if it is past the horizon and nobody needs it. First a look,
-- without locks and piece by piece, for an attempt under a lease: then it stays open. To close it is one short transaction:
-- its table gets another name, by which the hot functions, that ask for the table by its name, find the day closed at no
-- cost; and a trigger, for those that have asked already. Whoever is inside the day is waited for, for a moment only: others
-- queue behind.
CREATE OR REPLACE FUNCTION once._keep_close() RETURNS once.kept LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    deadline timestamptz := clock_timestamp() + interval '100 milliseconds';
    today integer := floor(date_part('epoch', once._steady_now()) / 86400);
    due integer := (SELECT d FROM once._days('once.intent', 'intent_d') AS d LIMIT 1);
    why text;
    leaf text := 'intent_d' || due;
    closing once.closing;
    stride bigint := once._stride();
BEGIN
    IF (due < today - (SELECT s.horizon_days FROM once.setting AS s WHERE s.only_row)) IS NOT TRUE THEN
        DELETE FROM once.closing AS c WHERE c.phase = 'look';       -- the horizon was moved
        RETURN ROW(0, false, NULL, NULL)::once.kept;
    END IF;
    why := coalesce(once._clock_held(), once._needed(due));
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, format('day %s stays open: %s', due, why))::once.kept;
    END IF;
    DELETE FROM once.closing AS c WHERE c.phase = 'look' AND c.day <> due;
    INSERT INTO once.closing (day, started_at) VALUES (due, clock_timestamp()) ON CONFLICT DO NOTHING;
    SELECT c.* INTO closing FROM once.closing AS c WHERE c.day = due FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR to_regclass('once.' || leaf) IS NULL THEN
        RETURN ROW(0, false, NULL, format('another keeper is at day %s', due))::once.kept;
    END IF;
    WHILE closing.block < once._blocks(('once.' || leaf)::regclass) LOOP
        EXECUTE format('SELECT format(''an attempt holds its lease until %%s: tenant=%%L scope=%%L key=%%L'', i.lease_until,
                        i.tenant, i.scope, i.key) FROM once.%s AS i WHERE %s AND i.state = ''processing''
                        AND i.lease_until > clock_timestamp() LIMIT 1', leaf,
            once._range(closing.block, closing.block + stride)) INTO why;
        EXIT WHEN why IS NOT NULL;
        closing.block := closing.block + stride;
        EXIT WHEN clock_timestamp() > deadline;     -- at least one stride, however loaded the machine is
    END LOOP;
    IF why IS NOT NULL OR closing.block < once._blocks(('once.' || leaf)::regclass) THEN
        UPDATE once.closing AS c SET block = closing.block, held = why,
               held_since = CASE WHEN why IS NOT NULL THEN coalesce(c.held_since, clock_timestamp()) END
         WHERE c.day = due;
        RETURN ROW(0, why IS NULL, NULL, format('day %s stays open: %s', due, coalesce(why, 'looked through in part'))
            )::once.kept;
    END IF;
    PERFORM once._close_day(due);
    RETURN ROW(1, true, NULL, format('day %s is closed', due))::once.kept;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._keep_closed(phase): the steps 'doubt', 'move' and 'drop' are the same reading of the tables of closed days, and differ
-- in what follows. A day that is held does not stop the next. A table that is gone was retired by somebody else.
CREATE OR REPLACE FUNCTION once._keep_closed(phase text) RETURNS once.kept LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    closing once.closing;
    leaf regclass;
    piece record;
    again boolean;
    why text := CASE WHEN phase <> 'doubt' THEN once._clock_held() END;
BEGIN
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, why)::once.kept;
    END IF;
    FOR closing IN SELECT c.* FROM once.closing AS c WHERE c.phase = phase ORDER BY c.day FOR UPDATE SKIP LOCKED LOOP
        leaf := to_regclass('once.intent_closed_d' || closing.day);
        IF leaf IS NULL THEN
            DELETE FROM once.closing AS c WHERE c.day = closing.day;
            RETURN ROW(0, true, NULL, format('day %s is gone already', closing.day))::once.kept;
        ELSIF phase = 'drop' AND EXISTS (SELECT FROM pg_inherits AS h WHERE h.inhrelid = leaf) THEN
            PERFORM once._next_phase(closing.day, 'detach');
            RETURN ROW(0, true, NULL, NULL)::once.kept;
        END IF;
        SELECT w.* INTO piece FROM once._work_off(closing, leaf, phase <> 'doubt') AS w;
        IF piece.through THEN
            -- A report that was stored meanwhile may have moved a row to a block that was passed: only a pass that moves
            -- nothing is the last.
            SELECT c.moved > 0 INTO again FROM once.closing AS c WHERE c.day = closing.day;
            PERFORM once._next_phase(closing.day, CASE WHEN again THEN phase WHEN phase = 'doubt' THEN 'move'
                                                       WHEN phase = 'move' THEN 'detach' ELSE 'drop' END);
            IF phase = 'drop' AND NOT again THEN
                PERFORM set_config('lock_timeout', '100ms', true);
                EXECUTE format('DROP TABLE %s', leaf);
                DELETE FROM once.closing AS c WHERE c.day = closing.day;
                RETURN ROW(1, true, NULL, format('day %s is dropped', closing.day))::once.kept;
            END IF;
        END IF;
        IF piece.held IS NULL OR piece.done > 0 THEN
            RETURN ROW(piece.done, true, NULL, format('day %s: %s', closing.day, CASE WHEN piece.through THEN 'through'
                ELSE format('%s rows', piece.done) END))::once.kept;
        END IF;
        why := concat_ws('; ', why, format('day %s waits: %s', closing.day, piece.held));
    END LOOP;
    RETURN ROW(0, false, NULL, why)::once.kept;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._keep_days(): the step 'days': partitions ahead of need.
CREATE OR REPLACE FUNCTION once._keep_days() RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    made integer := once.add_days();
BEGIN
    RETURN ROW(made, false, NULL, CASE WHEN made > 0 THEN format('%s partitions made', made) END)::once.kept;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._keep_dead(): the step 'dead': gives up dead events and messages that nobody decided on for dead_retention, as
-- once.outbox_discard and once.dead_discard do, and forgets what was decided on parked ones that long ago.
CREATE OR REPLACE FUNCTION once._keep_dead() RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    why text := once._clock_held();
    keeps interval := (SELECT s.dead_retention FROM once.setting AS s WHERE s.only_row);
    before timestamptz := once._steady_now() - keeps;
    reason text := format('dead for longer than %s', keeps);
    event once.parked_event;
    message once.parked_message;
    done bigint := 0;
    forgotten bigint;
BEGIN
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, why)::once.kept;
    END IF;
    FOR event IN SELECT p.* FROM once.parked_event AS p WHERE p.state = 'dead' AND p.updated_at < before
                  ORDER BY p.relay, p.id LIMIT 100 FOR UPDATE SKIP LOCKED LOOP
        done := done + once.outbox_discard(event.event_id, event.relay, reason)::integer;
    END LOOP;
    FOR message IN SELECT p.* FROM once.parked_message AS p WHERE p.state = 'dead' AND p.updated_at < before
                    ORDER BY p.position LIMIT 100 FOR UPDATE SKIP LOCKED LOOP
        -- One that is just being received, or worked on under a lease, has its turn later.
        IF pg_try_advisory_xact_lock(once._lock_id(message.tenant, message.consumer, message.message_id))
           AND NOT EXISTS (SELECT FROM once.intent AS i
                            WHERE i.tenant = message.tenant COLLATE "C" AND i.scope = message.consumer COLLATE "C"
                              AND i.key = message.message_id COLLATE "C"
                              AND i.state = 'processing' AND i.lease_until > clock_timestamp()) THEN
            done := done + once.dead_discard(message.consumer, message.message_id, message.tenant, reason)::integer;
        END IF;
    END LOOP;
    DELETE FROM once.parked_decision AS d
     WHERE d.ctid = ANY (ARRAY(SELECT o.ctid FROM once.parked_decision AS o WHERE o.decided_at < before LIMIT 500));
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    done := done + forgotten;
    RETURN ROW(done, done > 0, NULL, CASE WHEN done > 0 THEN format('%s dead events, messages and decisions', done)
        END)::once.kept;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._keep_decisions(): the step 'decisions': entries of once.decision past their retention, but never one of an intent that
-- is still in doubt.
CREATE OR REPLACE FUNCTION once._keep_decisions() RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    why text := once._clock_held();
    keeps interval := (SELECT s.decision_retention FROM once.setting AS s WHERE s.only_row);
    piece record;
BEGIN
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, why)::once.kept;
    END IF;
    SELECT f.* INTO piece FROM once._forget('decisions', ARRAY['decision'], format(
        'i.decided_at < $1 - %L::interval AND NOT EXISTS (SELECT FROM once.intent AS o WHERE o.tenant = i.tenant'
        ' AND o.scope = i.scope AND o.key = i.key AND o.bucket = once._bucket(i.key) AND o.state = ''in_doubt'')'
        ' AND NOT EXISTS (SELECT FROM once.archive AS o WHERE o.tenant = i.tenant'
        ' AND o.scope = i.scope AND o.key = i.key AND o.bucket = once._bucket(i.key) AND o.state = ''in_doubt'')', keeps),
        false, once._limits()) AS f;
    RETURN ROW(piece.done, piece.more, NULL, CASE WHEN piece.done > 0 THEN format('%s decisions forgotten', piece.done)
        END)::once.kept;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._keep_detach(in_own_transaction): the step 'detach': takes the table of a day that holds nothing more out of
-- once.intent. Concurrently, by a statement of the caller's, where the caller can run it: no attempt waits then. Else with an
-- instant's lock on once.intent. A concurrent detaching that was interrupted is finished.
CREATE OR REPLACE FUNCTION once._keep_detach(in_own_transaction boolean) RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    closing once.closing;
    leaf regclass;
    attached boolean;
    pending boolean;
    statement text;
BEGIN
    SELECT c.* INTO closing FROM once.closing AS c WHERE c.phase = 'detach' ORDER BY c.day LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN ROW(0, false, NULL, NULL)::once.kept;
    END IF;
    leaf := to_regclass('once.intent_closed_d' || closing.day);
    SELECT true, coalesce((to_jsonb(h) ->> 'inhdetachpending')::boolean, false) INTO attached, pending
      FROM pg_inherits AS h WHERE h.inhrelid = leaf AND h.inhparent = 'once.intent'::regclass;
    IF attached IS NULL THEN
        PERFORM once._next_phase(closing.day, 'drop');
        RETURN ROW(1, true, NULL, format('day %s is detached', closing.day))::once.kept;
    END IF;
    statement := format('ALTER TABLE once.intent DETACH PARTITION once.intent_closed_d%s', closing.day);
    IF pending THEN
        statement := statement || ' FINALIZE';
    END IF;
    IF in_own_transaction AND current_setting('server_version_num')::integer >= 140000
       AND pg_has_role(coalesce(nullif(current_setting('role'), 'none'), session_user::text),
                       (SELECT c.relowner FROM pg_class AS c WHERE c.oid = 'once.intent'::regclass), 'USAGE') THEN
        RETURN ROW(0, true, statement || CASE WHEN pending THEN '' ELSE ' CONCURRENTLY' END,
            format('day %s is to be detached', closing.day))::once.kept;
    END IF;
    PERFORM set_config('lock_timeout', '100ms', true);
    EXECUTE statement;
    PERFORM once._next_phase(closing.day, 'drop');
    RETURN ROW(1, true, NULL, format('day %s is detached', closing.day))::once.kept;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._keep_doubt(): the step 'doubt'. In a closed day no attempt runs any more: what is stale is in doubt. A live lease holds the day.
CREATE OR REPLACE FUNCTION once._keep_doubt() RETURNS once.kept LANGUAGE plpgsql AS $$
BEGIN
    RETURN once._keep_closed('doubt');
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._keep_drop(): the step 'drop'. One last look at the detached table, and it is dropped.
CREATE OR REPLACE FUNCTION once._keep_drop() RETURNS once.kept LANGUAGE plpgsql AS $$
BEGIN
    RETURN once._keep_closed('drop');
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._keep_move(): the step 'move'. What outlives its day goes to the archive.
CREATE OR REPLACE FUNCTION once._keep_move() RETURNS once.kept LANGUAGE plpgsql AS $$
BEGIN
    RETURN once._keep_closed('move');
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._keep_outbox(): the step 'outbox': drops the oldest day of the outbox that is over for once.setting.outbox_retention
-- and that every relay has passed, by the conditions of once.retire_outbox, but without counting under the lock. A day that is
-- needed holds the later ones too: whoever catches up reads them in their order.
CREATE OR REPLACE FUNCTION once._keep_outbox() RETURNS once.kept LANGUAGE plpgsql SET jit = off AS $$
DECLARE
    why text := once._clock_held();
    due integer := (SELECT d FROM once._days('once.outbox', 'outbox_d') AS d LIMIT 1);
    keeps interval := (SELECT s.outbox_retention FROM once.setting AS s WHERE s.only_row);
BEGIN
    IF (once._steady_now() >= to_timestamp((due + 1) * 86400.0) + keeps) IS NOT TRUE THEN
        RETURN ROW(0, false, NULL, NULL)::once.kept;
    END IF;
    why := coalesce(why, (once._outbox_needed(due)).why);
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, format('day %s of the outbox stays: %s', due, why))::once.kept;
    END IF;
    PERFORM set_config('lock_timeout', '100ms', true);
    EXECUTE format('LOCK TABLE once.outbox, once.outbox_d%s IN ACCESS EXCLUSIVE MODE', due);
    PERFORM once._check_retired(due);
    EXECUTE format('ALTER TABLE once.outbox DETACH PARTITION once.outbox_d%s', due);
    EXECUTE format('DROP TABLE once.outbox_d%s', due);
    RETURN ROW(1, true, NULL, format('day %s of the outbox is dropped', due))::once.kept;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._keep_purge(): the step 'purge': expired intents of keys without a day, finished ones and such that had no effect.
-- What is processing or in doubt stays for as long as it is so.
CREATE OR REPLACE FUNCTION once._keep_purge() RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    why text := once._clock_held();
    piece record;
BEGIN
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, why)::once.kept;
    END IF;
    SELECT f.* INTO piece FROM once._forget('purge', ARRAY['intent_d0'],
        'i.state IN (''succeeded'', ''failed_final'', ''failed_retryable'') AND ' || once._past(), true,
        once._limits()) AS f;
    RETURN ROW(piece.done, piece.more, NULL, CASE WHEN piece.done > 0 THEN format('%s intents forgotten', piece.done)
        END)::once.kept;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._keep_sweep(): the step 'sweep': reads through the open tables by blocks, recovers what is stale (as once.recover does),
-- and counts what stays stale or in doubt, by scope: once.swept is of the last whole pass. Rests after a pass, the longer the
-- larger the tables are.
CREATE OR REPLACE FUNCTION once._keep_sweep() RETURNS once.kept LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '100 milliseconds';
    buckets integer[] := ARRAY(SELECT 0 UNION ALL SELECT d FROM once._days('once.intent', 'intent_d') AS d);
    stride bigint := once._stride();
    place once.keeper_step;
    recovered record;
    done bigint := 0;
    more boolean := false;
    nth integer;
    leaf text;
    blocks text;
    stale boolean;
    worked boolean := false;
BEGIN
    SELECT k.* INTO STRICT place FROM once.keeper_step AS k WHERE k.step = 'sweep' FOR UPDATE;
    IF place.leaf IS NULL AND clock_timestamp() >= place.ended_at AND clock_timestamp() < place.ended_at
       + (SELECT sum(once._blocks(to_regclass('once.intent_d' || b))) FROM unnest(buckets) AS b) * interval '1 millisecond' THEN
        RETURN ROW(0, false, NULL, NULL)::once.kept;
    END IF;
    nth := array_position(buckets, substr(place.leaf, length('intent_d') + 1)::integer);
    IF place.leaf IS NULL THEN
        DELETE FROM once.sweeping;
    END IF;
    IF nth IS NULL THEN         -- a new pass, or the day is closed meanwhile
        nth := coalesce((SELECT min(n) FROM unnest(buckets) WITH ORDINALITY AS u (b, n)
                          WHERE b > substr(place.leaf, length('intent_d') + 1)::integer), 1);
        place.block := 0;
        place.place := NULL;
    END IF;
    LOOP
        leaf := 'intent_d' || buckets[nth];
        IF nth > cardinality(buckets) THEN
            DELETE FROM once.swept;
            INSERT INTO once.swept SELECT s.*, clock_timestamp() FROM once.sweeping AS s;
            place.ended_at := clock_timestamp();
            place.block := 0;
            EXIT;
        ELSIF place.block >= coalesce(once._blocks(to_regclass('once.' || leaf)), 0) THEN
            nth := nth + 1;
            place.block := 0;
            place.place := NULL;
            CONTINUE;
        ELSIF worked AND clock_timestamp() > deadline THEN
            more := true;
            EXIT;
        END IF;
        worked := true;
        blocks := once._range(place.block, place.block + stride);
        IF place.place IS NULL THEN
            EXECUTE format('SELECT EXISTS (SELECT FROM once.%s AS i WHERE %s AND i.state = ''processing''
                            AND i.lease_until <= clock_timestamp())', leaf, blocks) INTO stale;
            place.place := CASE WHEN stale THEN format('%s:%s:0', buckets[nth], place.block) END;
        END IF;
        IF place.place IS NOT NULL THEN
            stale := false;
            FOR recovered IN SELECT r.* FROM once._recover(1000, NULL, NULL, place.place, place.block + stride) AS r LOOP
                place.place := recovered.next;
                stale := true;
                done := done + (recovered.decided <> 'retry' IS TRUE)::integer;
            END LOOP;
            CONTINUE WHEN stale AND place.place IS NOT NULL;
            place.place := NULL;
        END IF;
        EXECUTE format('INSERT INTO once.sweeping AS s
                        SELECT i.scope, count(*) FILTER (WHERE i.state = ''processing''),
                               count(*) FILTER (WHERE i.state = ''in_doubt''),
                               min(i.lease_until) FILTER (WHERE i.state = ''processing'')
                          FROM once.%s AS i
                         WHERE %s AND (i.state = ''in_doubt'' OR (i.state = ''processing'' AND i.lease_until <= $1))
                         GROUP BY i.scope
                        ON CONFLICT (scope) DO UPDATE SET stale = s.stale + excluded.stale,
                            in_doubt = s.in_doubt + excluded.in_doubt,
                            oldest_stale = least(s.oldest_stale, excluded.oldest_stale)', leaf, blocks)
            USING clock_timestamp();
        place.block := place.block + stride;
    END LOOP;
    UPDATE once.keeper_step AS k
       SET leaf = CASE WHEN more THEN leaf END, block = place.block, place = place.place, ended_at = place.ended_at
     WHERE k.step = 'sweep';
    RETURN ROW(done, more, NULL, CASE WHEN done > 0 THEN format('%s stale intents decided', done) END)::once.kept;
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
-- once._limits(): what once._past() is to be executed with; now is the keeper's (once._steady_now).
CREATE OR REPLACE FUNCTION once._limits(OUT now timestamptz, OUT retention interval, OUT needed timestamptz, OUT skew interval,
    OUT longest interval, OUT consumers boolean)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    now := once._steady_now();
    retention := (once._policy('')).retention;
    needed := coalesce((SELECT min(b.needed_from) FROM once._backlog() AS b WHERE b.what = 'relay'), 'infinity');
    longest := (SELECT max(p.retention) FROM once.scope AS p);
    consumers := EXISTS (SELECT FROM once.consumer_position);
    skew := (SELECT s.clock_skew FROM once.setting AS s WHERE s.only_row);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._lock_id(tenant, scope, key): the 64-bit number of an intent's advisory lock. A hash of the array and not of the
-- joined texts, so ('a','bc') and ('ab','c') differ. Two intents that share a number merely take turns: the second is
-- told "active" and comes again. Explicit collation: a hash needs a deterministic one.
CREATE OR REPLACE FUNCTION once._lock_id(tenant text, scope text, key text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT hash_array_extended(ARRAY[tenant, scope, key] COLLATE "C", 20778)
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once._metric_names(): the metrics of once.metrics: what they are. Alerts and dashboards go by these names.
CREATE OR REPLACE FUNCTION once._metric_names() RETURNS TABLE (name text, kind text, help text) LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    VALUES
    ('pgonce_intents', 'counter', 'Attempts by what they were told: new, replay, mismatch, active, stale (taken over), retryable'
     ' (taken over), final, in_doubt, expired. Scope "" is all scopes without a policy of their own.'),
    ('pgonce_inbox', 'counter', 'Messages by what their consumer was told: process, duplicate, mismatch.'),
    ('pgonce_stale', 'gauge', 'Attempts whose lease has passed without a word, at the last sweep.'),
    ('pgonce_stale_oldest_seconds', 'gauge', 'For how long the oldest of them has been so.'),
    ('pgonce_in_doubt', 'gauge', 'Intents of which nobody knows whether their effect happened, at the last sweep.'),
    ('pgonce_outbox_pending', 'gauge', 'Events that a relay has still to deliver and has not parked.'),
    ('pgonce_outbox_lag_seconds', 'gauge', 'The age of the oldest of them.'),
    ('pgonce_outbox_parked', 'gauge', 'Events that a relay has parked, by state: waiting, retrying, dead.'),
    ('pgonce_inbox_parked', 'gauge', 'Messages that a consumer has parked, by state: waiting, retrying, dead.'),
    ('pgonce_table_bytes', 'gauge', 'Size of a table with its indexes and partitions.'),
    ('pgonce_partition_bytes', 'gauge', 'Size of the partition of a day with its indexes.'),
    ('pgonce_days_ahead', 'gauge', 'Days after today that have their partition.'),
    ('pgonce_days_closing', 'gauge', 'Days that are being retired.'),
    ('pgonce_keeper_last_success_timestamp_seconds', 'gauge', 'When a step of the keeper succeeded last.'),
    ('pgonce_keeper_failing', 'gauge', '1: the last run of a step of the keeper failed.'),
    ('pgonce_retention_held', 'gauge', 'What keeps old rows from being forgotten: how many of them.'),
    ('pgonce_clock_held', 'gauge', '1: nothing is forgotten, because the clock does not go steadily.'),
    ('pgonce_contract_version', 'gauge', 'The version of the contract.'),
    ('pgonce_oldest_transaction_seconds', 'gauge', 'The age of the oldest open transaction, which holds back cleaning.'),
    ('pgonce_xid_age', 'gauge', 'Transactions since this database was frozen last.')
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once._metrics_of_delivery(): samples for once.metrics: what relays and consumers have still to do.
CREATE OR REPLACE FUNCTION once._metrics_of_delivery() RETURNS TABLE (name text, labels jsonb, value double precision)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH summary AS MATERIALIZED (SELECT s.relay, s.topic, s.state, s.events, s.oldest FROM once.outbox_summary() AS s)
    SELECT f.name, jsonb_build_object('relay', s.relay, 'topic', coalesce(s.topic, '')), f.value
      FROM summary AS s
     CROSS JOIN LATERAL (VALUES ('pgonce_outbox_pending', s.events::double precision),
                                ('pgonce_outbox_lag_seconds',
                                 coalesce(greatest(date_part('epoch', clock_timestamp() - s.oldest), 0), 0))) AS f (name, value)
     WHERE s.state IN ('pending', 'idle')
     UNION ALL
    SELECT 'pgonce_outbox_parked', jsonb_build_object('relay', r.relay, 'state', t.state),
           coalesce((SELECT sum(s.events) FROM summary AS s WHERE s.relay = r.relay AND s.state = t.state), 0)
      FROM once.relay AS r CROSS JOIN (VALUES ('waiting'), ('retrying'), ('dead')) AS t (state)
     UNION ALL
    SELECT 'pgonce_inbox_parked', jsonb_build_object('consumer', c.consumer, 'state', t.state), sum((c.state = t.state)::integer)
      FROM once.parked_message AS c CROSS JOIN (VALUES ('waiting'), ('retrying'), ('dead')) AS t (state)
     GROUP BY c.consumer, t.state;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._metrics_of_intents(): samples for once.metrics: what attempts and messages were told, what the last sweep found.
CREATE OR REPLACE FUNCTION once._metrics_of_intents() RETURNS TABLE (name text, labels jsonb, value double precision)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH counted AS (SELECT c.scope, v.verdict, v.inbox, c.count,
                            sum(c.count) OVER (PARTITION BY c.scope, v.inbox) > 0 AS used
                       FROM once.counts() AS c JOIN once._counted() AS v ON v.verdict = c.verdict)
    SELECT 'pgonce_intents', jsonb_build_object('scope', c.scope, 'verdict', c.verdict), c.count::double precision
      FROM counted AS c WHERE NOT c.inbox
     UNION ALL
    -- A scope is no consumer before its first message.
    SELECT 'pgonce_inbox', jsonb_build_object('consumer', c.scope, 'verdict', CASE c.verdict WHEN 'message_mismatch'
           THEN 'mismatch' ELSE c.verdict END), c.count
      FROM counted AS c WHERE c.inbox AND c.used
     UNION ALL
    SELECT f.name, jsonb_build_object('scope', s.scope), f.value
      FROM once.swept AS s
     CROSS JOIN LATERAL (VALUES ('pgonce_stale', s.stale), ('pgonce_in_doubt', s.in_doubt),
                                ('pgonce_stale_oldest_seconds', coalesce(date_part('epoch', clock_timestamp() - s.oldest_stale),
                                    0))) AS f (name, value);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._metrics_of_keeping(): samples for once.metrics: how the keeper fares, and what holds it.
CREATE OR REPLACE FUNCTION once._metrics_of_keeping() RETURNS TABLE (name text, labels jsonb, value double precision)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT f.name, jsonb_build_object('step', s.step), f.value
      FROM once.keeper_status() AS s
     CROSS JOIN LATERAL (VALUES ('pgonce_keeper_last_success_timestamp_seconds', date_part('epoch', s.last_success)),
                                ('pgonce_keeper_failing', coalesce((s.last_error_at > coalesce(s.last_success,
                                    '-infinity'))::integer, 0))) AS f (name, value)
     UNION ALL
    SELECT 'pgonce_retention_held', jsonb_build_object('what', h.what), count(*) FROM once.retention_held() AS h GROUP BY h.what
     UNION ALL
    SELECT 'pgonce_clock_held', NULL, (once._clock_held() IS NOT NULL)::integer
     UNION ALL
    SELECT 'pgonce_days_closing', NULL, count(*) FROM once.closing
     UNION ALL
    SELECT 'pgonce_days_ahead', jsonb_build_object('table', t.name),
           max(substr(c.relname, length(t.name) + 3)::integer) - floor(date_part('epoch', clock_timestamp()) / 86400)
      FROM (VALUES ('intent'), ('outbox')) AS t (name)
      JOIN pg_inherits AS h ON h.inhparent = to_regclass('once.' || t.name) JOIN pg_class AS c ON c.oid = h.inhrelid
     WHERE c.relname ~ ('^' || t.name || '_d[0-9]+$')
     GROUP BY t.name
     UNION ALL
    SELECT 'pgonce_contract_version', NULL, once.contract_version();
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._metrics_of_tables(): samples for once.metrics: sizes, and what the whole database suffers from. A partition that is
-- being dropped meanwhile has no size, and is left out.
CREATE OR REPLACE FUNCTION once._metrics_of_tables() RETURNS TABLE (name text, labels jsonb, value double precision)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH leaf AS MATERIALIZED (
        SELECT t.name AS of_table, substring(c.relname FROM '_d([0-9]+)$')::integer AS day,
               pg_total_relation_size(c.oid) AS bytes
          FROM (VALUES ('intent'), ('archive'), ('outbox'), ('decision'), ('parked_event'), ('parked_message')) AS t (name)
          JOIN pg_class AS c ON c.oid = to_regclass('once.' || t.name)
                             OR c.oid IN (SELECT h.inhrelid FROM pg_inherits AS h WHERE h.inhparent = to_regclass('once.' || t.name)))
    SELECT 'pgonce_table_bytes', jsonb_build_object('table', l.of_table), sum(l.bytes)::double precision
      FROM leaf AS l GROUP BY l.of_table
     UNION ALL
    SELECT 'pgonce_partition_bytes', jsonb_build_object('table', l.of_table, 'day',
               CASE WHEN l.day = 0 THEN 'none' ELSE (date '1970-01-01' + l.day)::text END), l.bytes
      FROM leaf AS l WHERE l.day IS NOT NULL
     UNION ALL
    SELECT 'pgonce_oldest_transaction_seconds', NULL,
           coalesce(greatest(max(date_part('epoch', clock_timestamp() - a.started)), 0), 0)
      FROM (SELECT s.xact_start AS started FROM pg_stat_activity AS s WHERE s.pid <> pg_backend_pid()
               AND s.datname = current_database()
             UNION ALL
            SELECT x.prepared FROM pg_prepared_xacts AS x WHERE x.database = current_database()) AS a
     UNION ALL
    SELECT 'pgonce_xid_age', NULL, age(d.datfrozenxid) FROM pg_database AS d WHERE d.datname = current_database();
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._needed(day): why this day may not be closed yet, since what it holds may still come back; NULL where nothing does.
-- A consumer counts where its message ids carry days: others lose nothing by it.
CREATE OR REPLACE FUNCTION once._needed(day integer) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT n.why
      FROM (SELECT format('%s %s needs what is of %s and later', b.what, quote_literal(b.name), b.needed_from) AS why
              FROM once._backlog() AS b
             WHERE b.needed_from - (SELECT s.clock_skew FROM once.setting AS s WHERE s.only_row)
                   < to_timestamp((day + 1) * 86400.0)
               AND (b.what = 'relay' OR EXISTS (SELECT FROM once.intent AS i
                                                 WHERE i.tenant = b.tenant COLLATE "C" AND i.scope = b.name COLLATE "C"
                                                   AND i.bucket > 0))
             UNION ALL
            SELECT format('consumer %s has parked message %s of an earlier day', quote_literal(p.consumer),
                          quote_literal(p.message_id))
              FROM once.parked_message AS p
             WHERE p.state <> 'dead' AND once._bucket(p.message_id) BETWEEN 1 AND day) AS n
     LIMIT 1
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once._next_phase(day, phase): the retiring of a day enters a phase, or begins it anew.
CREATE OR REPLACE FUNCTION once._next_phase(day integer, phase text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    UPDATE once.closing AS c SET phase = phase, block = 0, moved = 0, held = NULL, held_since = NULL WHERE c.day = day;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._outbox_needed(day): why a day of the outbox is still needed, and a hint: a relay has not passed all of it, an event of
-- it is parked, or there are events and nobody to publish them. NULL where it is not.
CREATE OR REPLACE FUNCTION once._outbox_needed(day integer, OUT why text, OUT hint text)
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    own bigint := (SELECT c.system_identifier FROM pg_control_system() AS c);
BEGIN
    SELECT format('relay %L has not passed all of it', r.relay), CASE WHEN r.system_identifier <> own
           THEN 'Its progress is of another cluster: see once.relay_adopt.'
           ELSE 'Start it, or once.drop_relay, if nobody waits for its events any more.' END
      INTO why, hint
      FROM once.relay AS r
     WHERE EXISTS (SELECT FROM once.outbox AS o
                    WHERE o.day = day AND (r.system_identifier <> own OR o.xid >= pg_snapshot_xmax(r.seen)))
        OR EXISTS (SELECT FROM once.outbox AS o
                    WHERE o.day = day AND o.xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip(r.seen) AS x)))
     ORDER BY r.relay LIMIT 1;
    IF why IS NULL THEN
        SELECT format('%s of its events are parked with relay %L', count(*), p.relay),
               'See once.outbox_list; deliver, retry or discard them.'
          INTO why, hint
          FROM once.parked_event AS p WHERE p.day = day GROUP BY p.relay ORDER BY p.relay LIMIT 1;
    END IF;
    IF why IS NULL AND NOT EXISTS (SELECT FROM once.relay) AND EXISTS (SELECT FROM once.outbox AS o WHERE o.day = day) THEN
        why := 'it holds events, and there is no relay that could have published them';
        hint := 'Start a relay. If nobody shall ever have these events, delete them from once.outbox as its owner.';
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._outlive(leaf, first, past, moving, limits): works on these blocks of the table of a closed day. Stale attempts become
-- in doubt, since nobody may take them over any more. With moving, what outlives its day goes to the archive: everything in
-- doubt, and outcomes that are not past (once._past). A row goes in one statement, so that whoever looks finds it in exactly
-- one place, and is never waited for. held says what is left in these blocks and why; NULL: nothing.
CREATE OR REPLACE FUNCTION once._outlive(leaf regclass, first bigint, past bigint, moving boolean, limits record, OUT doubted bigint,
    OUT moved bigint, OUT held text)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    blocks text := once._range(first, past);
    stale record;
    outlives text := format('(i.state = ''in_doubt'' OR (i.state IN (''succeeded'', ''failed_final'') AND NOT %s))',
        once._past());
    something boolean;
BEGIN
    doubted := 0;
    moved := 0;
    -- One reading, without a lock, for the many blocks in which there is nothing to do.
    EXECUTE format('SELECT EXISTS (SELECT FROM %s AS i WHERE %s AND (i.state = ''processing'' OR (%s)))', leaf, blocks,
                   CASE WHEN moving THEN outlives ELSE 'false' END)
        INTO something USING limits.now, limits.retention, limits.needed, limits.skew, limits.longest, limits.consumers;
    IF NOT something THEN
        RETURN;
    END IF;
    FOR stale IN EXECUTE format('SELECT i.ctid AS address, i.tenant, i.scope, i.key, i.fence FROM %s AS i WHERE %s
                                 AND i.state = ''processing'' AND i.lease_until <= $1 FOR UPDATE SKIP LOCKED', leaf, blocks)
                 USING limits.now LOOP
        EXECUTE format('UPDATE %s AS i SET state = ''in_doubt'', updated_at = $1, lease_until = NULL,
                        error_code = ''stale'', error_message = ''its day was retired while it was stale''
                        WHERE i.ctid = $2', leaf) USING limits.now, stale.address;
        PERFORM once._record(stale.tenant, stale.scope, stale.key, stale.fence, 'processing', 'in_doubt',
            'its day was retired while it was stale', 'retire');
        doubted := doubted + 1;
    END LOOP;
    EXECUTE format('SELECT format(''an attempt holds its lease until %%s: tenant=%%L scope=%%L key=%%L'', i.lease_until,
                    i.tenant, i.scope, i.key) FROM %s AS i WHERE %s AND i.state = ''processing'' LIMIT 1', leaf, blocks)
        INTO held;
    IF moving THEN
        EXECUTE format('WITH free AS MATERIALIZED (SELECT i.ctid AS address FROM %1$s AS i WHERE %2$s AND %3$s
                                                   FOR UPDATE SKIP LOCKED),
                        gone AS (DELETE FROM %1$s AS i WHERE i.ctid = ANY (ARRAY(SELECT f.address FROM free AS f))
                                 RETURNING i.*)
                        INSERT INTO once.archive SELECT g.* FROM gone AS g', leaf, blocks, outlives)
            USING limits.now, limits.retention, limits.needed, limits.skew, limits.longest, limits.consumers;
        GET DIAGNOSTICS moved = ROW_COUNT;
        IF held IS NULL THEN
            EXECUTE format('SELECT format(''a row is just being changed: tenant=%%L scope=%%L key=%%L'', i.tenant, i.scope,
                            i.key) FROM %s AS i WHERE %s AND %s LIMIT 1', leaf, blocks, outlives)
                INTO held USING limits.now, limits.retention, limits.needed, limits.skew, limits.longest, limits.consumers;
        END IF;
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._past(): the condition, as text, that row i of a finished intent may be forgotten: its retention has passed, and
-- neither a relay nor a consumer may still bring it back. The one place where that is said. With once._limits() it takes
-- $1 now, $2 the default retention, $3 since when relays need everything, $4 the allowed skew of other clocks, $5 the longest
-- retention of any scope and $6 whether any consumer reports: these two spare most rows their look-ups.
CREATE OR REPLACE FUNCTION once._past() RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT '((coalesce(i.expires_at, i.completed_at + $5) <= $1 OR coalesce(i.expires_at, i.completed_at + coalesce('
           '(SELECT p.retention FROM once.scope AS p WHERE p.scope = i.scope), $2)) <= $1) AND i.created_at < $3'
           ' AND (NOT $6 OR NOT EXISTS (SELECT FROM once.consumer_position AS c WHERE c.consumer = i.scope'
           ' AND c.tenant = i.tenant AND c."position" <= i.created_at + $4))) IS TRUE'::text
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once._peek(tenant, scope, key, bucket): what is stored of an intent, its arguments already checked. The common core
-- of peek and peek_many.
CREATE OR REPLACE FUNCTION once._peek(tenant text, scope text, key text, bucket integer,
    OUT verdict text, OUT fence integer, OUT state text, OUT response_status integer, OUT response_headers jsonb,
    OUT response_body bytea,
    OUT result_type text, OUT result_id text, OUT error_code text, OUT error_message text, OUT owner text,
    OUT lease_until timestamptz,
    OUT attempts integer, OUT created_at timestamptz, OUT completed_at timestamptz, OUT traceparent text)
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
    traceparent := stored.traceparent;
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
-- once._promote(relay, aggregates): of each of these aggregates, the first parked event that is not dead is due now, if it
-- waited for one before it. Called whenever something parked has gone or died; NULL: of all aggregates. What waits behind
-- another has next_at 'infinity', so that once.relay_due does not look through all of them each time.
--
-- Here and in its neighbours rows are found by a look-up each, written with LIMIT, BETWEEN and an order that only one index
-- has, and are changed by their address. While a table is empty all indexes look alike; a plan that was made then is still
-- a search when it has filled.
CREATE OR REPLACE FUNCTION once._promote(relay text, aggregates bigint[]) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    IF aggregates IS NULL THEN
        aggregates := ARRAY(SELECT DISTINCT p.aggregate FROM once.parked_event AS p
                             WHERE p.relay = relay COLLATE "C" AND p.next_at = 'infinity');
    END IF;
    UPDATE once.parked_event AS p SET next_at = now, updated_at = now
      FROM (SELECT h.address
              FROM (SELECT DISTINCT u.aggregate FROM unnest(aggregates) AS u (aggregate)) AS a
             CROSS JOIN LATERAL (SELECT e.ctid AS address, e.next_at FROM once.parked_event AS e
                                  WHERE e.relay = relay COLLATE "C" AND e.aggregate BETWEEN a.aggregate AND a.aggregate
                                    AND e.state <> 'dead'
                                  ORDER BY e.aggregate, e.id LIMIT 1) AS h
             WHERE h.next_at = 'infinity') AS f
     WHERE p.ctid = f.address;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._range(first, past): the condition, as text, that a row of table i lies in these blocks of its heap. The keeper reads
-- tables so, piece by piece, because no index leads to what is stale or expired: one that did would cost every completion its
-- HOT update. Needs enable_seqscan off. Before PostgreSQL 14 there is no scan of a range of addresses: they are listed.
CREATE OR REPLACE FUNCTION once._range(first bigint, past bigint) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN current_setting('server_version_num')::integer >= 140000
        THEN format('i.ctid >= ''(%s,0)''::tid AND i.ctid < ''(%s,0)''::tid', first, past)
        ELSE format('i.ctid = ANY (ARRAY(SELECT format(''(%%s,%%s)'', b, o)::tid FROM generate_series(%s, %s) AS b,'
                    ' generate_series(1, %s) AS o))', first, past - 1, (current_setting('block_size')::integer - 24) / 28)
    END
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once._reason(reason): raises 22023 where an operator's decision comes without a reason.
CREATE OR REPLACE FUNCTION once._reason(reason text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (reason ~ '[^[:space:]]') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: the reason is missing',
            HINT = 'It is kept with who and when in once.parked_decision, for those who ask later.';
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._receivable(tenant, consumer, message_id, bucket, fingerprint): the thorough look at one message, for what
-- once.receive_many leaves over: 'new' (and its lock is held), 'duplicate', or the SQLSTATE that once.receive would raise.
CREATE OR REPLACE FUNCTION once._receivable(tenant text, consumer text, message_id text, bucket integer, fingerprint bytea)
RETURNS text LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    locked boolean := pg_try_advisory_xact_lock(once._lock_id(tenant, consumer, message_id));
    stored once.intent;
    day text;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C" AND i.key = message_id COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND AND bucket <> 0 THEN
        stored := once._archived(tenant, consumer, message_id, bucket);
    END IF;
    IF stored.state IS NOT NULL THEN
        RETURN CASE WHEN stored.fingerprint <> fingerprint THEN 'P4050'
                    WHEN stored.state = 'succeeded' THEN 'duplicate' ELSE 'P4099' END;
    END IF;
    day := once._day_state(bucket);
    RETURN CASE WHEN day = 'closed' THEN 'P4041' WHEN day = 'future' THEN 'P4001' WHEN day = 'missing' THEN 'P4098'
                WHEN locked THEN 'new' ELSE 'P4029' END;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._record(tenant, scope, key, fence, from_state, to_state, reason, kind, before): notes in once.decision what was decided
-- about an intent: who, when, why, from what to what. To be called after the change; before: the row as it was. kind is
-- 'resolve' (an operator), 'verify', 'doubt' or 'abandon' (by verify, policy or used-up attempts), 'takeover' or 'retry' (a
-- new attempt), 'retire' (its day was).
CREATE OR REPLACE FUNCTION once._record(tenant text, scope text, key text, fence integer, from_state once.state,
    to_state once.state, reason text, kind text DEFAULT 'resolve', before once.intent DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    day integer := once._bucket(key);
    stored once.intent;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C" AND i.bucket = day;
    IF NOT FOUND THEN
        stored := once._archived(tenant, scope, key, day);
    END IF;
    INSERT INTO once.decision (decided_by, reason, tenant, scope, key, fence, from_state, to_state, kind, before, after)
    VALUES (session_user, reason, tenant, scope, key, fence, from_state, to_state, kind, once._facts(before),
            once._facts(stored));
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._record_attempt(before, to_state, verified): notes that a new attempt has begun (or, in the same transaction, ended) an
-- intent that had an attempt before: always where it took over from one that fell silent; of retries after a failure, which
-- may be many, the first ones and then ever fewer. verified: what verify answered, if it was asked.
CREATE OR REPLACE FUNCTION once._record_attempt(before once.intent, to_state once.state, verified text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    next_fence integer := before.fence + 1;
BEGIN
    IF before.state = 'processing' THEN
        PERFORM once._record(before.tenant, before.scope, before.key, next_fence, before.state, to_state,
            concat_ws(': ', format('attempt %s ended without a word', before.fence), 'verify answered ' || verified), 'takeover',
            before);
    ELSIF next_fence <= 3 OR next_fence & (next_fence - 1) = 0 THEN
        PERFORM once._record(before.tenant, before.scope, before.key, next_fence, before.state, to_state,
            concat_ws(': ', format('attempt %s failed', before.fence), before.error_code), 'retry', before);
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._recover(take, of_scope, of_tenant, after, upto): the work of once.recover; with upto, within one table up to that
-- block, for the sweep. A cursor is bucket:block:place, the address of the last row that was looked at.
-- First all are judged, each under its advisory lock and no row's, since a verify function may be slow and a report must not
-- wait for it; then what was found is stored, each row only if it still is what was judged.
CREATE OR REPLACE FUNCTION once._recover(take integer, of_scope text, of_tenant text, after text, upto bigint DEFAULT NULL)
RETURNS TABLE (tenant text, scope text, key text, fence integer, answer text, decided text, reason text, next text)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '250 milliseconds';
    limit_rows integer := least(greatest(coalesce(take, 100), 1), 1000);
    place bigint[] := coalesce(string_to_array(after, ':')::bigint[], ARRAY[0, 0, 0]);
    buckets integer[] := ARRAY(SELECT 0 UNION ALL SELECT d FROM once._days('once.intent', 'intent_d') AS d);
    stride bigint := once._stride();
    judged record;
    answers record;
    stored once.intent[] := '{}';
    verified once.verification[] := '{}';
    failures text[] := '{}';
    cursors text[] := '{}';
    through boolean := false;
    met integer;
    onward text;
    n integer;
BEGIN
    IF cardinality(place) <> 3 OR place[1] < 0 OR place[2] < 0 OR place[3] < 0 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: that is no place to go on from',
            HINT = 'Pass the column next of the last row, or NULL to begin.';
    END IF;
    <<tables>>
    LOOP
        -- The table that the cursor names, or the next one where it is gone.
        place := (SELECT CASE WHEN b = place[1] THEN place ELSE ARRAY[b, 0, 0]::bigint[] END
                    FROM unnest(buckets) AS b WHERE b >= place[1] ORDER BY b LIMIT 1);
        IF place IS NULL OR (upto IS NOT NULL AND place[2] >= upto) THEN
            through := true;
            EXIT;
        ELSIF place[2] >= once._blocks(to_regclass('once.intent_d' || place[1])) THEN
            IF upto IS NOT NULL THEN
                through := true;
                EXIT;
            END IF;
            place := ARRAY[place[1] + 1, 0, 0];
            CONTINUE;
        ELSIF (met IS NOT NULL AND clock_timestamp() > deadline) OR cardinality(stored) >= limit_rows THEN
            EXIT;
        END IF;
        met := 0;
        FOR judged IN EXECUTE format('SELECT i.ctid AS address, i::once.intent AS stored FROM once.intent_d%s AS i
                                       WHERE %s AND i.ctid > $1 AND i.state = ''processing'' AND i.lease_until <= $2
                                         AND ($3 IS NULL OR i.scope COLLATE "C" = $3) AND ($4 IS NULL OR i.tenant COLLATE "C" = $4)
                                       ORDER BY i.ctid LIMIT $5', place[1],
                                     once._range(place[2], least(place[2] - place[2] % stride + stride, upto)))
                      USING format('(%s,%s)', place[2], place[3])::tid, clock_timestamp(), of_scope, of_tenant,
                            limit_rows LOOP
            met := met + 1;
            place := ARRAY[place[1]] || string_to_array(btrim(judged.address::text, '()'), ',')::bigint[];
            IF pg_try_advisory_xact_lock(once._lock_id((judged.stored).tenant, (judged.stored).scope, (judged.stored).key)) THEN
                SELECT NULL::once.verification AS verified, NULL::text AS failure INTO answers;
                IF (once._policy((judged.stored).scope)).on_stale = 'verify' THEN
                    SELECT a.* INTO answers FROM once._ask(once._policy((judged.stored).scope), (judged.stored).tenant,
                        (judged.stored).scope, (judged.stored).key) AS a;
                END IF;
                stored := array_append(stored, judged.stored);
                verified := array_append(verified, answers.verified);
                failures := array_append(failures, answers.failure);
                cursors := array_append(cursors, array_to_string(place, ':'));
            END IF;
            EXIT tables WHEN clock_timestamp() > deadline OR cardinality(stored) >= limit_rows;
        END LOOP;
        IF met < limit_rows THEN
            place := ARRAY[place[1], place[2] - place[2] % stride + stride, 0];
        END IF;
    END LOOP;

    onward := CASE WHEN NOT through THEN array_to_string(place, ':') END;
    next := onward;
    FOR n IN 1 .. cardinality(stored) LOOP
        tenant := (stored[n]).tenant;
        scope := (stored[n]).scope;
        key := (stored[n]).key;
        fence := (stored[n]).fence;
        answer := (verified[n]).answer;
        SELECT r.* INTO decided, reason FROM once._recover_one(stored[n], once._policy(scope), verified[n], failures[n]) AS r;
        CONTINUE WHEN decided IS NULL;
        IF n < cardinality(stored) THEN
            next := cursors[n];
        ELSE
            next := onward;
        END IF;
        RETURN NEXT;
    END LOOP;
    -- Where to go on, if the last row does not say so.
    IF next IS DISTINCT FROM onward OR (cardinality(stored) = 0 AND NOT through) THEN
        tenant := NULL; scope := NULL; key := NULL; fence := NULL; answer := NULL; decided := NULL; reason := NULL;
        next := onward;
        RETURN NEXT;
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._recover_one(stored, policy, verified, failure): stores what was found out about a stale intent, if it still is what was
-- judged: its attempt may have reported since, or renewed its lease. decided is NULL then.
CREATE OR REPLACE FUNCTION once._recover_one(stored once.intent, policy once.scope, verified once.verification, failure text,
    OUT decided text, OUT reason text)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    used_up boolean := (stored.attempts >= policy.max_attempts) IS TRUE;
    to_state once.state := 'in_doubt';
BEGIN
    IF failure IS NOT NULL THEN
        decided := 'retry';             -- nothing was found out, and the next attempt asks again
        reason := failure;
    ELSIF verified.answer = 'happened' THEN
        decided := 'succeeded';
        reason := 'verify: the effect happened';
    ELSIF verified.answer = 'absent' THEN
        decided := CASE WHEN used_up THEN 'abandoned' ELSE 'retry' END;
        reason := 'verify answered absent' || CASE WHEN used_up THEN format(', and %s attempts are used up',
            stored.attempts) ELSE '' END;
        to_state := 'failed_final';
    ELSIF verified.answer IS NOT NULL OR used_up OR policy.on_stale = 'in_doubt' THEN
        decided := 'in_doubt';
        reason := concat_ws(', and ', coalesce('verify answered ' || verified.answer, 'its lease passed without a word'),
            CASE WHEN used_up THEN format('%s attempts are used up', stored.attempts) END);
    ELSE
        decided := 'retry';
        reason := 'its lease passed without a word: the next attempt takes over';
    END IF;
    IF decided = 'retry' THEN
        RETURN;
    ELSIF once._day_state(stored.bucket) <> 'open'
          OR NOT once._hold(stored.tenant, stored.scope, stored.key, stored.bucket, stored.fence, stored.state,
                            stored.lease_until) THEN
        decided := NULL;
    ELSIF decided = 'succeeded' THEN
        PERFORM once._store_verified(stored.tenant, stored.scope, stored.key, stored.bucket, stored.fence, verified);
    ELSE
        UPDATE once.intent AS i
           SET state = to_state, updated_at = now, completed_at = CASE WHEN to_state = 'failed_final' THEN now END,
               lease_until = NULL, error_code = CASE WHEN to_state = 'failed_final' THEN 'abandoned' ELSE 'stale' END,
               error_message = reason
         WHERE i.tenant = stored.tenant COLLATE "C" AND i.scope = stored.scope COLLATE "C"
           AND i.key = stored.key COLLATE "C" AND i.bucket = stored.bucket;
        PERFORM once._record(stored.tenant, stored.scope, stored.key, stored.fence, 'processing', to_state, reason,
            CASE to_state WHEN 'failed_final' THEN 'abandon' ELSE 'doubt' END, stored);
    END IF;
END $$;

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
-- once._refuse_closed(): the trigger on the table of a closed day: an attempt that found the day open, and inserts after it
-- was closed, is to try again; its retry is told that the key is expired.
CREATE OR REPLACE FUNCTION once._refuse_closed() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'pgonce: the day of this key was closed just now',
        HINT = 'Retry the transaction.';
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_day(tenant, scope, key, bucket): raises where the day of a new key is closed, future or missing.
CREATE OR REPLACE FUNCTION once._refuse_day(tenant text, scope text, key text, bucket integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    day text := to_char(date '1970-01-01' + bucket, 'YYYY-MM-DD');
BEGIN
    CASE once._day_state(bucket)
        WHEN 'open' THEN RETURN;
        WHEN 'closed' THEN
            PERFORM once._count(scope, 'expired');
            PERFORM once._refuse('P4041', tenant, scope, key, 'the key was made on ' || day);
        WHEN 'future' THEN PERFORM once._refuse('P4001', tenant, scope, key, 'the key claims to be made on ' || day);
        ELSE PERFORM once._refuse('P4098', tenant, scope, key, 'no partition for ' || day);
    END CASE;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_outdated(tenant, scope, key, bucket): for a row of a closed day that has no answer, before its key is said to be expired:
-- raises 40001 where the transaction's snapshot is older than the row. A report or a decision may have been stored since.
-- Locks the row until the transaction ends; a read-only transaction cannot, and is told what its snapshot shows.
CREATE OR REPLACE FUNCTION once._refuse_outdated(tenant text, scope text, key text, bucket integer) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off AS $$
#variable_conflict use_variable
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable')
       OR current_setting('transaction_read_only') = 'on' THEN
        RETURN;
    END IF;
    PERFORM FROM once.intent AS i
      WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
        AND i.bucket = bucket
        FOR SHARE SKIP LOCKED;                          -- raises 40001 by itself where it has changed
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'pgonce: the intent is being changed, or moved, right now',
            DETAIL = format('tenant=%L scope=%L key=%L', tenant, scope, key), HINT = 'Retry the transaction.';
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._refuse_relay(code, relay, what, hint): raises what is wrong with a call about a relay, naming it.
CREATE OR REPLACE FUNCTION once._refuse_relay(code text, relay text, what text, hint text DEFAULT NULL, detail text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    named text := regexp_replace('relay=' || quote_nullable(left(relay, 80)), '[[:cntrl:]]', '?', 'g');
BEGIN
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = 'pgonce: ' || what, DETAIL = concat_ws('; ', named, detail),
        HINT = coalesce(hint, '');
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._relay_held(relay): whether this session holds the relay's lock. The catalogue of locks is the only one who knows:
-- to try the lock once more succeeds for its holder and for everybody when it is free.
CREATE OR REPLACE FUNCTION once._relay_held(relay text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    number bigint := once._relay_lock(relay);
BEGIN
    RETURN EXISTS (SELECT FROM pg_locks AS l
                    WHERE l.pid = pg_backend_pid() AND l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted
                      AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
                      AND l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = number);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._relay_lock(relay): the 64-bit number of a relay's advisory lock, which the one session that works for it holds.
CREATE OR REPLACE FUNCTION once._relay_lock(relay text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashtextextended(relay COLLATE "C", 20781)
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once._relay_row(relay): the row of a relay, held until the transaction ends: whoever changes what is parked with a relay
-- does so under its row, so that an event that is parked behind another and the other's end never miss each other. An
-- UPDATE and no mere lock: above READ COMMITTED a change that the snapshot does not show then ends in 40001. Raises 22023
-- where there is no such relay.
CREATE OR REPLACE FUNCTION once._relay_row(relay text) RETURNS once.relay LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    stored once.relay;
BEGIN
    UPDATE once.relay AS r SET after_id = r.after_id WHERE r.relay = relay COLLATE "C" RETURNING r.* INTO stored;
    IF NOT FOUND THEN
        PERFORM once._refuse_relay('22023', relay, 'there is no such relay', 'once.outbox_summary() names those there are.');
    END IF;
    RETURN stored;
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
-- once._steady_now(): the time by which a keeper decides what is past: that of the reading that was judged when its piece of work
-- began (once._clock keeps one a second). A leap of the clock between that reading and its use would let it forget what nobody
-- has judged.
CREATE OR REPLACE FUNCTION once._steady_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT least(clock_timestamp(), (SELECT c.read_at + interval '1 second' FROM once.clock AS c WHERE c.only_row))
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once._store_verified(...): a verify function said that the effect of a stale attempt happened: stores its outcome. The
-- caller holds the row (once._hold).
CREATE OR REPLACE FUNCTION once._store_verified(tenant text, scope text, key text, bucket integer, fence integer,
    verified once.verification)
RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    was timestamptz := clock_timestamp();
    stored once.intent;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    UPDATE once.intent AS i
       SET state = 'succeeded', updated_at = was, completed_at = was, lease_until = NULL,
           response_status = verified.response_status, response_headers = verified.response_headers,
               response_body = verified.response_body,
           result_type = verified.result_type, result_id = verified.result_id
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket
       AND i.fence = fence AND i.state = 'processing';
    PERFORM once._record(tenant, scope, key, fence, 'processing', 'succeeded', 'verify: the effect happened',
        'verify', stored);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._stride(): how many blocks the keeper reads in one statement; the time of a piece is looked at in between.
CREATE OR REPLACE FUNCTION once._stride() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN current_setting('server_version_num')::integer >= 140000 THEN 256 ELSE 32 END::bigint
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once._take_over(verdict, stored, policy, claimant, lease, retention, traceparent): acts on a verdict that changes the row, which
-- the caller holds (once._hold): the claim goes to the next attempt under the next fence, or the intent becomes final, in
-- doubt, or what its verify function says. Returns the verdict that the attempt is told.
CREATE OR REPLACE FUNCTION once._take_over(verdict text, stored once.intent, policy once.scope, claimant text, lease interval,
    retention interval, traceparent text) RETURNS text LANGUAGE plpgsql AS $$
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
        PERFORM once._record(stored.tenant, stored.scope, stored.key, stored.fence, stored.state, 'in_doubt', reason,
            'doubt', stored);
        RETURN 'in_doubt';
    ELSIF verdict = 'abandoned' THEN
        UPDATE once.intent AS i
           SET state = 'failed_final', updated_at = now, completed_at = now, error_code = 'abandoned',
               error_message = concat_ws(': ', format('abandoned after %s attempts', stored.attempts), stored.error_message)
         WHERE i.tenant = stored.tenant AND i.scope = stored.scope AND i.key = stored.key AND i.bucket = stored.bucket;
        PERFORM once._record(stored.tenant, stored.scope, stored.key, stored.fence, stored.state, 'failed_final',
            format('abandoned after %s attempts', stored.attempts), 'abandon', stored);
        RETURN 'final_failure';
    END IF;
    UPDATE once.intent AS i
       SET state = 'processing', fence = i.fence + 1, attempts = i.attempts + 1, owner = claimant, updated_at = now,
           completed_at = NULL, lease_until = now + coalesce(lease, policy.lease),
           expires_at = coalesce(now + retention, i.expires_at),
           response_status = NULL, response_headers = NULL, response_body = NULL,
           result_type = NULL, result_id = NULL, error_code = NULL, error_message = NULL,
           traceparent = coalesce(i.traceparent, traceparent)
     WHERE i.tenant = stored.tenant AND i.scope = stored.scope AND i.key = stored.key AND i.bucket = stored.bucket;
    PERFORM once._record_attempt(stored, 'processing', verified.answer);
    RETURN verdict;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._timeline(stored, archived, expires_at, decisions, events): what happened to an intent, in order, as once.story tells
-- it: an array of {at, what, by, fence, text}; what is one of created, attempt, takeover, decision, outcome, event, delivered,
-- waiting, parked, dead, archived, expires. at is NULL where nobody noted the time (a delivery leaves no trace but the relay's
-- progress); such an entry stands after what it follows from.
CREATE OR REPLACE FUNCTION once._timeline(stored once.intent, archived boolean, expires_at timestamptz, decisions jsonb, events jsonb)
RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT jsonb_agg(jsonb_build_object('at', t.at, 'what', t.what, 'by', t.by, 'fence', t.fence, 'text', t.text)
                             ORDER BY t.place, t.rank, t.at, t.text)
      FROM (SELECT stored.created_at AS at, stored.created_at AS place, 1 AS rank, 'created' AS what,
                   CASE WHEN stored.attempts = 1 THEN stored.owner
                        ELSE (SELECT d#>>'{before,owner}' FROM jsonb_array_elements(decisions) AS d
                               WHERE d#>>'{before,attempts}' = '1' LIMIT 1) END AS by, 1 AS fence, 'the first attempt' AS text
             UNION ALL
            SELECT (d->>'at')::timestamptz, (d->>'at')::timestamptz, 3,
                   CASE d->>'kind' WHEN 'takeover' THEN 'takeover' WHEN 'retry' THEN 'attempt' ELSE 'decision' END,
                   CASE WHEN d->>'kind' IN ('takeover', 'retry') THEN coalesce(d#>>'{after,owner}', d->>'by')
                        ELSE d->>'by' END,
                   (d->>'fence')::integer,
                   CASE WHEN d->>'kind' IN ('takeover', 'retry') THEN d->>'reason'
                        ELSE format('%s -> %s: %s', d->>'from', d->>'to', d->>'reason') END
              FROM jsonb_array_elements(decisions) AS d
             UNION ALL
            -- A takeover is noted a moment after the row's time.
            SELECT stored.updated_at, greatest(stored.updated_at, (SELECT max((d->>'at')::timestamptz)
                                                                     FROM jsonb_array_elements(decisions) AS d)), 4, 'attempt',
                   stored.owner, stored.fence,
                   format('the last sign of attempt %s; its lease %s %s', stored.attempts,
                          CASE WHEN stored.lease_until > clock_timestamp() THEN 'ends' ELSE 'ended' END,
                          date_trunc('second', stored.lease_until))
             WHERE stored.state = 'processing'
             UNION ALL
            SELECT stored.completed_at, stored.completed_at, 5, 'outcome', stored.owner, stored.fence,
                   concat_ws(', ', stored.state::text || CASE WHEN stored.attempts > 1
                                                              THEN format(' at attempt %s', stored.attempts) ELSE '' END,
                             'status ' || stored.response_status,
                             nullif(concat_ws(' ', stored.result_type, stored.result_id), ''),
                             nullif(concat_ws(': ', stored.error_code, stored.error_message), ''))
             WHERE stored.completed_at IS NOT NULL AND stored.state <> 'processing'
             UNION ALL
            SELECT (e->>'at')::timestamptz, (e->>'at')::timestamptz, 2, 'event', NULL, NULL,
                   concat_ws(' ', e->>'topic', e->>'id',
                             'of ' || nullif(concat_ws(' ', e->>'aggregate_type', e->>'aggregate_id'), ''))
              FROM jsonb_array_elements(events) AS e
             UNION ALL
            SELECT r.at, coalesce(r.at, (e->>'at')::timestamptz), 6, r.what, 'relay ' || (r.one->>'relay'), NULL,
                   concat_ws(': ', format('event %s', e->>'id'), r.text, r.one->>'error')
              FROM jsonb_array_elements(events) AS e
             CROSS JOIN LATERAL (
                   SELECT o AS one,
                          CASE o->>'state' WHEN 'passed' THEN 'delivered' WHEN 'dead' THEN 'dead' WHEN 'retrying' THEN 'parked'
                                           ELSE 'waiting' END AS what,
                          CASE o->>'state' WHEN 'dead' THEN (o->>'updated_at')::timestamptz
                                           ELSE (o->>'parked_at')::timestamptz END AS at,
                          CASE o->>'state' WHEN 'passed' THEN 'delivered, or discarded, or older than the relay'
                                           WHEN 'pending' THEN 'the relay has not come to it yet'
                                           WHEN 'waiting' THEN 'behind another of its aggregate'
                                           WHEN 'of another cluster' THEN 'the progress of this relay is of another cluster'
                                           ELSE format('refused %s times', o->>'attempts') END AS text
                     FROM jsonb_array_elements(coalesce(e->'relays', '[]')) AS o) AS r
             UNION ALL
            SELECT NULL, coalesce(stored.completed_at, stored.updated_at), 7, 'archived', NULL, NULL,
                   'its day is retired; it is kept in the archive'
             WHERE archived
             UNION ALL
            SELECT expires_at, expires_at, 8, 'expires', NULL, NULL,
                   CASE WHEN expires_at > clock_timestamp() THEN 'then its outcome may be forgotten'
                        ELSE 'its outcome may be forgotten since then' END
             WHERE expires_at IS NOT NULL) AS t);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once._trace(traceparent): a traceparent as W3C Trace Context (version 00) writes it: 00-<32 hex>-<16 hex>-<2 hex>, lower
-- case, neither id all zero; NULL for anything else: a tracer's mistake must never be an application's. Inlined; written as
-- once._bucket is, for the same reason.
CREATE OR REPLACE FUNCTION once._trace(traceparent text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN traceparent COLLATE "C" LIKE '00-________________________________-________________-__'
             AND traceparent COLLATE "C" NOT LIKE '%-%-%-%-%'
             AND traceparent COLLATE "C" !~ '[^0-9a-f-]'
             AND traceparent COLLATE "C" NOT LIKE '00-00000000000000000000000000000000-%'
             AND traceparent COLLATE "C" NOT LIKE '%-0000000000000000-__'
        THEN traceparent
    END
$$;

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
    EXECUTE format('SELECT * FROM %s($1, $2, $3)', (policy.verify || '(text,text,text)')::regprocedure::oid::regproc)
        INTO found_out USING tenant, scope, key;
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
-- once._work_off(closing, leaf, moving): a piece of work on a closed day, from where the last one stopped: about a tenth of a
-- second of once._outlive. through: the end of the table is reached; held: what it stopped at.
CREATE OR REPLACE FUNCTION once._work_off(closing once.closing, leaf regclass, moving boolean, OUT done bigint, OUT through boolean,
    OUT held text)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '100 milliseconds';
    limits record := once._limits();
    block bigint := closing.block;
    stride bigint := once._stride();
    piece record;
    moved bigint := 0;
BEGIN
    done := 0;
    IF moving THEN
        PERFORM once._archive_month(closing.day);
    END IF;
    -- At least once, however loaded the machine is: it must come to an end.
    WHILE block < once._blocks(leaf) LOOP
        SELECT o.* INTO piece FROM once._outlive(leaf, block, block + stride, moving, limits) AS o;
        done := done + piece.doubted + piece.moved;
        moved := moved + piece.moved;
        held := piece.held;
        EXIT WHEN held IS NOT NULL;
        block := block + stride;
        EXIT WHEN clock_timestamp() > deadline;
    END LOOP;
    through := held IS NULL AND block >= once._blocks(leaf);
    UPDATE once.closing AS c
       SET block = block, moved = c.moved + moved, held = held,
           held_since = CASE WHEN held IS NOT NULL THEN coalesce(c.held_since, clock_timestamp()) END
     WHERE c.day = closing.day;
END $$;

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
        -- A day that the keeper has closed meanwhile stays closed; nobody closes one while this transaction is open.
        SELECT s.* INTO STRICT setting FROM once.setting AS s WHERE s.only_row FOR SHARE;
        IF to_regclass('once.intent_d' || day) IS NULL AND day >= setting.closed_before THEN
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
    -- Of scopes that were there before anything was counted.
    PERFORM once._add_counters(p.scope) FROM once.scope AS p
      WHERE p.scope <> '' AND once._counter('new', p.scope, NULL) IS NULL;
    RETURN made;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.any_tenant(): does nothing. The right to EXECUTE it is the right to name any tenant; a role without it may name
-- only those that once.bind gave it. A privilege, because asking for one costs no table look-up.
CREATE OR REPLACE FUNCTION once.any_tenant() RETURNS void LANGUAGE sql IMMUTABLE SET search_path = pg_catalog,
    pg_temp AS $$ SELECT $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.begin(scope, key, fingerprint, tenant, traceparent): opens an intent whose effect happens in this transaction.
--   proceed  do the effect, then once.finish(...), then COMMIT. ROLLBACK or a crash leaves no trace.
--   replay   the intent is finished: the stored outcome is in the other columns. Do not do the effect.
-- once.begun is (verdict, state, response_status, response_headers, response_body, result_type, result_id, error_code,
-- error_message, fence, traceparent); in PL/pgSQL: answer once.begun := once.begin(...). Its traceparent is the trace that
-- the intent was first attempted in, where it is known, else the given one: pass it on to once.finish.
-- Everything else is raised, because a caller who forgets to look must not do the effect twice: P4002 another request,
-- P4029 running, P4030 failed for good, P4031 in doubt, P4041 expired, P4000 P4001 P4003 P4098 bad input. Reads only;
-- never waits. Holds the intent's advisory lock until the transaction ends.
--
-- Why it is written so: this is the hot path, for an intent that is new or has succeeded; everything else is
-- once._begin_over's. The lock is taken in a statement before the look-up, so that the look-up's snapshot (READ
-- COMMITTED) sees whatever the last holder committed. The generic plan is forced: for a partitioned table the planner
-- would otherwise plan each call anew; and without sequential scans, because a plan made while the table was empty would
-- stay one. Bucket 0 is written as a constant, so that its plan locks one partition and not all.
CREATE OR REPLACE FUNCTION once.begin(scope text, key text, fingerprint bytea, tenant text DEFAULT '',
    traceparent text DEFAULT NULL) RETURNS once.begun
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
                             i.result_type, i.result_id, i.error_code, i.error_message, i.fence,
                             i.traceparent)::once.begun
               END AS replay INTO stored
          FROM once.intent AS i
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
           AND i.bucket = bucket;
    ELSIF bucket = 0 THEN
        SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded'
                    THEN ROW('replay', 'succeeded', i.response_status, i.response_headers, i.response_body,
                             i.result_type, i.result_id, i.error_code, i.error_message, i.fence,
                             i.traceparent)::once.begun
               END AS replay INTO stored
          FROM once.intent AS i
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
           AND i.bucket = 0;
    END IF;
    IF FOUND THEN
        IF NOT stored.replay IS NULL AND (current_setting('transaction_read_only') = 'on'
                OR nextval(once._counter('replay', scope, 'once.counted_replay')) IS NOT NULL) THEN
            RETURN stored.replay;
        END IF;
    ELSIF bucket = 0 OR once._is_open(bucket) THEN
        IF traceparent IS NOT NULL THEN
            traceparent := once._trace(traceparent);
        END IF;
        RETURN ROW('proceed', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, traceparent)::once.begun;
    END IF;
    RETURN once._begin_over(tenant, scope, key, fingerprint, traceparent);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.begin_new(scope, key, fingerprint, tenant, traceparent): once.begin for pipelines: returns the fence where the effect may go
-- on, and raises P4020 where begin would return a replay. Sent first in a pipeline, it stops everything that is queued
-- behind it. traceparent is taken for the sake of likeness: pass it to once.finish. Written as begin is, for the same reasons.
CREATE OR REPLACE FUNCTION once.begin_new(scope text, key text, fingerprint bytea, tenant text DEFAULT '',
    traceparent text DEFAULT NULL) RETURNS integer
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
    begun := once._begin_over(tenant, scope, key, fingerprint, traceparent);
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
-- once.claim(scope, key, fingerprint, owner, lease, retention, tenant, traceparent): claims an intent whose effect is made
-- elsewhere. COMMIT it, do the work, then call once.complete or once.fail with the fence. owner says who works, for
-- people; lease and retention default to the scope's. traceparent (W3C) is stored with the intent, unless an earlier attempt
-- has left its own; a malformed one is ignored. once.claimed is (verdict, fence, state, response_status, response_headers,
-- response_body, result_type, result_id, error_code, error_message, lease_until, attempts, traceparent): the intent's.
--   new_claim, retryable_failure, processing_stale   do the work: the claim is yours, under the returned fence.
--                                                    retryable_failure: earlier attempts certainly had no effect (so they
--                                                    reported, or the verify function answered 'absent');
--                                                    processing_stale: the last one fell silent, and may have had one
--   replay_success, final_failure                    finished: the stored outcome is in the other columns
--   processing_active                                another attempt is at work; lease_until says until when at least
--   in_doubt, expired                                no attempt may run: see once.resolve
-- Raises P4002 for another fingerprint, P4000 P4001 P4003 P4098 for bad input, 22023 for a bad lease. Never waits.
CREATE OR REPLACE FUNCTION once.claim(scope text, key text, fingerprint bytea, owner text DEFAULT NULL,
    lease interval DEFAULT NULL, retention interval DEFAULT NULL, tenant text DEFAULT '', traceparent text DEFAULT NULL)
RETURNS once.claimed
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    claimed once.claimed;
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, fingerprint);
    PERFORM once._check_term('lease', lease, '7 days');
    PERFORM once._check_term('retention', retention, '100 years');
    claimed := once._claim(tenant, scope, key, bucket, fingerprint, left(owner, 255), lease, retention, traceparent);
    IF claimed.verdict = 'mismatch' THEN
        PERFORM once._refuse('P4002', tenant, scope, key);
    ELSIF claimed.verdict IN ('future', 'missing') THEN
        PERFORM once._refuse_day(tenant, scope, key, bucket);
    ELSIF claimed.verdict = 'unknown' THEN
        PERFORM once._refuse('P4099', tenant, scope, key);
    END IF;
    RETURN claimed;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.claim_many(scope[], key[], fingerprint[], owner, lease, retention, tenant, traceparents[]): once.claim for many intents in one
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
    retention interval DEFAULT NULL, tenant text DEFAULT '', traceparents text[] DEFAULT NULL)
RETURNS TABLE (ord integer, verdict text, fence integer, state text, response_status integer, response_headers jsonb,
    response_body bytea,
    result_type text, result_id text, error_code text, error_message text, lease_until timestamptz, attempts integer,
    traceparent text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0),
    once._length(fingerprint, 0), once._length(traceparents, once._length(key, 0)));
    buckets integer[];
    first_bucket integer;
    last_bucket integer;
    codes text[];
    takeable boolean[];
    now timestamptz := clock_timestamp();
    today integer := floor(date_part('epoch', now) / 86400);
    today_open boolean := to_regclass('once.intent_d' || today) IS NOT NULL;    -- once, since most keys are of today
    alike boolean := scope[1] COLLATE "C" = ALL (scope);       -- one scope, as a rule
    fresh bigint := 0;
    told text[] := '{}';        -- what else is to be counted, and of which scope
    told_scopes text[] := '{}';
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
        error_code, error_message, lease_until, attempts, traceparent IN
        WITH element AS MATERIALIZED (
            SELECT u.*, s.fingerprint = u.fingerprint AS same, s.fence, s.state, s.response_status, s.response_headers,
                   s.response_body, s.result_type, s.result_id, s.error_code, s.error_message, s.lease_until, s.attempts,
                   s.traceparent, CASE WHEN u.given IS NOT NULL THEN once._trace(u.given) END AS trace
              FROM unnest(scope, key, fingerprint, buckets, codes, takeable, traceparents)
                   WITH ORDINALITY AS u (scope, key, fingerprint, bucket, code, takeable, given, ord)
              -- The range is known when the look-up starts, so that only the leaves of this batch are opened.
              -- LIMIT keeps this a look-up per element: as a join, a plan made on an empty table would read it whole.
              LEFT JOIN LATERAL (SELECT i.* FROM once.intent AS i
                                  WHERE i.tenant = tenant COLLATE "C" AND i.scope = u.scope COLLATE "C"
                                    AND i.key = u.key COLLATE "C" AND i.bucket = u.bucket
                                    AND i.bucket BETWEEN first_bucket AND last_bucket LIMIT 1) AS s
                     ON u.code IS NULL),
        fresh AS (
            INSERT INTO once.intent AS i (created_at, updated_at, expires_at, lease_until, bucket, fence, attempts,
                                          state, tenant, scope, key, fingerprint, owner, traceparent)
            SELECT now, now, now + retention,
                   now + coalesce(lease, p.lease, (SELECT d.lease FROM once.scope AS d WHERE d.scope = '')), e.bucket, 1, 1,
                   'processing', tenant, e.scope, e.key, e.fingerprint, owner, e.trace
              FROM element AS e LEFT JOIN once.scope AS p ON p.scope = e.scope COLLATE "C"
             WHERE e.takeable AND e.state IS NULL
            ON CONFLICT DO NOTHING
            RETURNING i.scope, i.key, i.lease_until)
        SELECT e.ord, CASE WHEN f.key IS NOT NULL THEN 'new_claim'
                           WHEN e.state IS NOT NULL
                           THEN once._verdict(e.same, e.state, e.lease_until, now, NULL, NULL, NULL) END,
               coalesce(e.fence, 1), coalesce(e.state, 'processing'), e.response_status, e.response_headers,
               e.response_body, e.result_type, e.result_id, e.error_code, e.error_message,
               coalesce(e.lease_until, f.lease_until), coalesce(e.attempts, 1),
               CASE WHEN f.key IS NOT NULL THEN e.trace ELSE e.traceparent END
          FROM element AS e LEFT JOIN fresh AS f
            ON e.takeable AND f.scope = e.scope COLLATE "C" AND f.key = e.key COLLATE "C"
         ORDER BY e.ord
    LOOP
        IF (verdict IN ('new_claim', 'replay_success', 'final_failure', 'in_doubt', 'processing_active')) IS NOT TRUE THEN
            fence := NULL; state := NULL; attempts := NULL; lease_until := NULL;
            response_status := NULL; response_headers := NULL; response_body := NULL;
            result_type := NULL; result_id := NULL; error_code := NULL; error_message := NULL;
            traceparent := NULL;
            IF codes[ord] IS NULL AND verdict = 'mismatch' THEN
                told := told || verdict;
                told_scopes := told_scopes || scope[ord];
            ELSIF codes[ord] IS NULL THEN
                SELECT c.* INTO verdict, fence, state, response_status, response_headers, response_body, result_type,
                                result_id, error_code, error_message, lease_until, attempts, traceparent
                  FROM once._claim(tenant, scope[ord], key[ord], buckets[ord], fingerprint[ord], owner, lease,
                                   retention, traceparents[ord]) AS c;
            END IF;
            IF codes[ord] IS NOT NULL OR verdict IN ('future', 'missing', 'unknown') THEN
                error_code := coalesce(codes[ord], CASE verdict WHEN 'future' THEN 'P4001'
                                                                WHEN 'missing' THEN 'P4098' ELSE 'P4099' END);
                SELECT e.message INTO error_message FROM once.errors() AS e WHERE e.code = error_code COLLATE "C";
                verdict := 'invalid';
            END IF;
        ELSIF alike AND verdict = 'new_claim' THEN
            fresh := fresh + 1;
        ELSE
            told := told || verdict;
            told_scopes := told_scopes || scope[ord];
        END IF;
        RETURN NEXT;
    END LOOP;
    IF fresh > 0 THEN
        PERFORM once._count(scope[1], 'new_claim', fresh);
    END IF;
    IF told <> '{}' THEN
        PERFORM once._count(t.scope, t.verdict, t.times)
           FROM (SELECT u.scope, u.verdict, count(*) AS times FROM unnest(told_scopes, told) AS u (scope, verdict)
                  GROUP BY u.scope, u.verdict OFFSET 0) AS t;
    END IF;
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
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
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
-- once.consumer_report(consumer, position, tenant, part): a consumer says how far it is: whatever its broker has delivered
-- or may still deliver from before position was acknowledged, and cannot come back. part names what the position is of: a
-- partition, a queue. Nothing is forgotten that a consumer's oldest position still needs: see once.retention_held. NULL for
-- position: this part is no more. A consumer that never reports holds nothing back. Cheap: writes only where the position
-- moved by a second. Raises P4000, P4003.
CREATE OR REPLACE FUNCTION once.consumer_report(consumer text, "position" timestamptz, tenant text DEFAULT '', part text DEFAULT '')
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    reached timestamptz := consumer_report."position";
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    part := left(coalesce(part, ''), 255);
    IF reached IS NULL THEN
        DELETE FROM once.consumer_position AS c
         WHERE c.consumer = consumer COLLATE "C" AND c.tenant = tenant COLLATE "C" AND c.part = part COLLATE "C";
        RETURN;
    END IF;
    INSERT INTO once.consumer_position AS c (consumer, tenant, part, "position", reported_at)
    VALUES (consumer, tenant, part, reached, now)
    ON CONFLICT ON CONSTRAINT consumer_position_pkey DO UPDATE
       SET "position" = excluded."position", reported_at = excluded.reported_at
     -- Backwards at once: what may come back again must not be forgotten.
     WHERE excluded."position" < c."position" OR excluded."position" > c."position" + interval '1 second';
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.contract_version(): the version of the contract in this database: the number of its last migration. For clients,
-- which compare it with theirs.
CREATE OR REPLACE FUNCTION once.contract_version() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT max(m.version) FROM once.migration AS m
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once.counts(): how often attempts were told what, by scope, since the counters began: 'new', 'replay', 'mismatch', 'active',
-- 'stale' and 'retryable' (taken over), 'final', 'in_doubt', 'expired'; and of messages, by consumer: 'process', 'duplicate',
-- 'message_mismatch'. Scopes without a policy of their own (once.set_scope) are counted together, as ''. An attempt that is
-- rolled back later was told so all the same. The counters begin anew after a crash and in a restored copy; a standby has
-- none (no rows).
CREATE OR REPLACE FUNCTION once.counts() RETURNS TABLE (scope text, verdict text, count bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT p.scope::text, v.verdict, coalesce(pg_sequence_last_value(c.oid), 0)
      FROM once.scope AS p CROSS JOIN once._counted() AS v
      JOIN pg_class AS c ON c.oid = CASE WHEN p.scope = '' THEN to_regclass('once.counted_' || v.verdict)
                                         ELSE once._counter(v.verdict, p.scope, NULL) END
     WHERE NOT (pg_is_in_recovery() AND c.relpersistence = 'u')
     ORDER BY p.scope, v.verdict
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once.dead_discard(consumer, message_id, tenant, reason): gives up a parked message: it will not be applied, and it is
-- entered in the inbox, so that it is a duplicate should the broker deliver it again. Messages of its key that are parked
-- behind it go on. Recorded in once.parked_decision. False where it is not parked. Waits while an attempt at it is under
-- way, and is false where that succeeded. Raises 22023 for a missing reason, P4029 where another transaction is receiving it,
-- P4000 for the consumer, P4003 for the tenant.
CREATE OR REPLACE FUNCTION once.dead_discard(consumer text, message_id text, tenant text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    bucket integer := once._bucket(message_id);
    stored once.parked_message;
    known text;
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    PERFORM once._reason(reason);
    DELETE FROM once.parked_message AS p
     WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" AND p.message_id = message_id COLLATE "C"
    RETURNING p.* INTO stored;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- A malformed id, or one of a closed day, can never be applied: there is nothing to enter.
    IF bucket >= 0 THEN
        known := once._receivable(tenant, consumer, message_id, bucket, stored.fingerprint);
        IF known = 'P4029' OR EXISTS (SELECT FROM once.peek(consumer, message_id, tenant) AS i
                                       WHERE i.verdict = 'processing_active') THEN
            PERFORM once._refuse('P4029', tenant, consumer, message_id);
        ELSIF known = 'P4099' THEN
            -- A consumer under leases left it unfinished: nobody shall take it up again.
            PERFORM once.resolve(consumer, message_id, 'succeeded', reason, tenant => tenant)
               FROM once.peek(consumer, message_id, tenant) AS i
              WHERE i.state IN ('processing', 'failed_retryable', 'in_doubt');
        ELSIF known = 'new' THEN
            INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant,
                scope, key, fingerprint)
            VALUES (now, now, now, bucket, 1, 1, 'succeeded', tenant, consumer, message_id, stored.fingerprint)
            ON CONFLICT DO NOTHING;     -- above READ COMMITTED, where a race was lost: 40001
        END IF;
    END IF;
    INSERT INTO once.parked_decision (decided_by, reason, what, consumer, tenant, subject, from_state, error)
    VALUES (session_user, reason, 'discard', stored.consumer, stored.tenant, stored.message_id, stored.state, stored.error);
    RETURN true;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.dead_list(consumer, state, take): messages that consumers have parked, at most `take`, by consumer and in the order
-- in which they came: the 'dead' ones, or those that are 'waiting' or 'retrying'; state NULL: all. consumer NULL: of all.
CREATE OR REPLACE FUNCTION once.dead_list(consumer text DEFAULT NULL, state text DEFAULT 'dead', take integer DEFAULT 100)
RETURNS SETOF once.listed_message
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF state NOT IN ('waiting', 'retrying', 'dead') OR (take >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: no such state of a message, or take is missing: %s',
            quote_nullable(left(state, 80))), HINT = 'state is one of waiting, retrying, dead; NULL for all.';
    END IF;
    RETURN QUERY
    SELECT p.consumer::text, p.state::text, p.message_id::text, p.topic::text, p.key::text, p.tenant::text, p.attempts,
           CASE WHEN p.state <> 'dead' THEN p.next_at END, p.error, p.sqlstate::text, p.parked_at
      FROM once.parked_message AS p
     WHERE (consumer IS NULL OR p.consumer = consumer COLLATE "C") AND (state IS NULL OR p.state = state COLLATE "C")
     ORDER BY p.consumer, p.position LIMIT take;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.dead_retry(consumer, message_id, tenant, reason): lets a parked message be tried again now, with all its attempts
-- before it. Messages of its key that are parked behind it follow. Recorded in once.parked_decision. False where it is not
-- parked. Raises 22023 for a missing reason, P4000 for the consumer, P4003 for the tenant.
CREATE OR REPLACE FUNCTION once.dead_retry(consumer text, message_id text, tenant text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    stored once.parked_message;
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    PERFORM once._reason(reason);
    SELECT p.* INTO stored FROM once.parked_message AS p
     WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" AND p.message_id = message_id COLLATE "C"
       FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE once.parked_message AS p SET state = 'retrying', attempts = 0, next_at = now, updated_at = now
     WHERE p.consumer = stored.consumer AND p.tenant = stored.tenant AND p.message_id = stored.message_id;
    INSERT INTO once.parked_decision (decided_by, reason, what, consumer, tenant, subject, from_state, error)
    VALUES (session_user, reason, 'retry', stored.consumer, stored.tenant, stored.message_id, stored.state, stored.error);
    RETURN true;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.dead_show(consumer, message_id, tenant): all that is known of one parked message as one JSON document: its content
-- (the payload as base64), its state, and the decisions about it. NULL where it is not parked. For people and tools; its
-- members may grow. Raises P4000 for the consumer, P4003 for the tenant.
CREATE OR REPLACE FUNCTION once.dead_show(consumer text, message_id text, tenant text DEFAULT '') RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    stored once.parked_message;
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    SELECT p.* INTO stored FROM once.parked_message AS p
     WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" AND p.message_id = message_id COLLATE "C";
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN jsonb_build_object(
        'consumer', stored.consumer, 'tenant', stored.tenant, 'message_id', stored.message_id, 'topic', stored.topic,
        'key', stored.key, 'headers', stored.headers,
        'payload', translate(encode(stored.payload, 'base64'), E'\n', ''), 'payload_bytes', octet_length(stored.payload),
        'state', stored.state, 'attempts', stored.attempts,
        'next_at', CASE WHEN stored.state <> 'dead' THEN stored.next_at END,
        'error', stored.error, 'sqlstate', stored.sqlstate, 'position', stored.position, 'parked_at', stored.parked_at,
        'updated_at', stored.updated_at,
        'decisions', (SELECT coalesce(jsonb_agg(jsonb_build_object('at', d.decided_at, 'by', d.decided_by, 'what', d.what,
                                 'from', d.from_state, 'reason', d.reason, 'error', d.error) ORDER BY d.decided_at), '[]')
                        FROM once.parked_decision AS d
                       WHERE d.subject = message_id COLLATE "C" AND d.consumer = consumer COLLATE "C"
                         AND d.tenant = tenant COLLATE "C"));
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.drop_relay(relay, reason): forgets a relay: its progress and what is parked with it. The events stay in the outbox,
-- and no longer wait for it. Recorded in once.parked_decision. False where there is none. Raises 55006 while a session
-- works for it, 22023 for a missing reason.
CREATE OR REPLACE FUNCTION once.drop_relay(relay text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM once._reason(reason);
    IF NOT pg_try_advisory_xact_lock(once._relay_lock(relay)) THEN
        PERFORM once._refuse_relay('55006', relay, 'a session works for this relay', 'Stop it first.');
    END IF;
    DELETE FROM once.relay AS r WHERE r.relay = relay COLLATE "C";
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO once.parked_decision (decided_by, reason, what, relay, subject)
    VALUES (session_user, reason, 'drop', relay, relay);
    RETURN true;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.emit(topic, payload, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent): appends an event to
-- the outbox, in the effect's own transaction: it exists if and only if the effect does. Returns its id. event_type
-- defaults to the topic. With scope and key (the intent that causes it), a second emit of the same event_type is the
-- same event, and raises P4051 where its payload differs; the id is derived from the intent, so that consumers can tell
-- a repetition even across attempts. Events of one aggregate are published in order. Raises 22023 for a missing topic
-- or payload, P4098 where the day has no partition. No NOTIFY: its lock serialises commits. traceparent (W3C): the trace
-- that the event belongs to, where it is not that of its intent; a malformed one is ignored.
--
-- Why it is written so: today's partition keeps an event single by its unique index, so only the days before have to be
-- looked at, and as a rule they are gone: the plan opens no partition that the comparison of day rules out. Plans are
-- pinned as in once.begin.
CREATE OR REPLACE FUNCTION once.emit(topic text, payload jsonb, aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL,
    event_type text DEFAULT NULL,
    scope text DEFAULT NULL, key text DEFAULT NULL, headers jsonb DEFAULT NULL, tenant text DEFAULT '',
    traceparent text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    day integer := floor(date_part('epoch', now) / 86400);
    kind text := coalesce(event_type, topic);
    bucket integer := once._enter(tenant, coalesce(scope, 'none'), coalesce(key, 'none'),
        E'\\x00000000000000000000000000000000', false);
    event_id uuid;
BEGIN
    IF (topic <> '' AND kind <> '' AND octet_length(topic || kind) <= 255 AND payload IS NOT NULL
        AND (scope IS NULL) = (key IS NULL) AND (headers IS NULL OR jsonb_typeof(headers) = 'object')
        AND to_regclass(concat('once.outbox_d', day)) IS NOT NULL) IS NOT TRUE THEN
        PERFORM once._check_event(tenant, scope, key, topic, kind, payload, headers, day);
    END IF;
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    IF key IS NULL THEN
        event_id := gen_random_uuid();
    ELSE
        -- A UUID of version 8 (RFC 9562: "vendor specific"), from the names that make the event unique.
        event_id := encode(overlay(substring(sha256(convert_to(ARRAY[tenant, scope, key, kind]::text, 'UTF8'))
            FROM 1 FOR 16) PLACING E'\\x800080' FROM 7), 'hex')::uuid;
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
        key, traceparent, headers, payload)
    VALUES (day, now, event_id, topic, kind, aggregate_type, aggregate_id, tenant, scope, key,
        traceparent, headers, payload)
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
    ('P4080', 'relay_of_another_cluster', false, 'the relay''s progress is of another PostgreSQL cluster',
     'Decide with once.relay_adopt(relay, reason) where it goes on from here.'),
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
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
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
-- once.find(tenant, scope, state, result_type, result_id, event, trace, owner, since, until, take): intents by what is known of
-- them, the newest first, at most take, those of the archive among them. Each argument narrows the search; NULL does not.
-- event: the id of an event that the intent emitted; trace: a traceparent, or the trace id in it, of the intent or of one of
-- its events; since and until: when it was created. With an event the intent is looked up; all other searches read the
-- tables. Raises 22023 for a state that there is not, or a trace that is none.
CREATE OR REPLACE FUNCTION once.find(tenant text DEFAULT NULL, scope text DEFAULT NULL, state text DEFAULT NULL,
    result_type text DEFAULT NULL, result_id text DEFAULT NULL, event uuid DEFAULT NULL, trace text DEFAULT NULL,
    owner text DEFAULT NULL, since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL, take integer DEFAULT 100)
RETURNS TABLE (tenant text, scope text, key text, state text, verdict text, fence integer, attempts integer, owner text,
    created_at timestamptz, updated_at timestamptz, lease_until timestamptz, result_type text, result_id text,
    traceparent text, archived boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT f.tenant, f.scope, f.key, f.state, f.verdict, f.fence, f.attempts, f.owner, f.created_at, f.updated_at, f.lease_until,
           f.result_type, f.result_id, f.traceparent, f.archived
      FROM once._find($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) AS f
$$;

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
-- once.finish(scope, key, fingerprint, outcome..., state, tenant, traceparent): stores the outcome of an intent that this
-- transaction began, and returns response_body, so that a function can end with RETURN once.finish(...). state is
-- 'succeeded', 'failed_final', or 'failed_retryable' (the next begin proceeds again). Raises P4010 where the intent is
-- not this transaction's to finish (a leased attempt holds it, or it is finished), P4002 for another fingerprint, P4060
-- for too large a body. 40001 where another transaction finished it first (isolation levels above READ COMMITTED, or no
-- begin): retry the transaction. Writes one row version; waits for nobody. traceparent (W3C) is stored with the intent,
-- unless an earlier attempt has left its own; a malformed one is ignored.
--
-- Why it is written so: one INSERT and no look-up; ON CONFLICT DO NOTHING turns a race under REPEATABLE READ into 40001
-- and needs no EXCEPTION block, which would start a subtransaction. Only a row left by a leased attempt makes it go
-- further. Small bodies skip the policy: response_bytes_max is never below 8192. No setting but search_path: each costs
-- a call 3,000 instructions, and an INSERT of VALUES has but one plan.
CREATE OR REPLACE FUNCTION once.finish(scope text, key text, fingerprint bytea, response_status integer DEFAULT NULL,
    response_body bytea DEFAULT NULL,
    response_headers jsonb DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL,
    state text DEFAULT 'succeeded',
    error_code text DEFAULT NULL, error_message text DEFAULT NULL, tenant text DEFAULT '', traceparent text DEFAULT NULL)
RETURNS bytea LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._enter(tenant, scope, key, fingerprint, true);
    now timestamptz := clock_timestamp();
BEGIN
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    IF ((bucket = 0 OR once._is_open(bucket)) AND state IN ('succeeded', 'failed_final', 'failed_retryable')
        AND octet_length(response_body) > 8192 IS NOT TRUE) IS NOT TRUE THEN
        bucket := once._check_finish(tenant, scope, key, state, response_body);
    END IF;
    INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, response_status, state,
        tenant, scope, key, fingerprint, result_type, result_id, error_code, error_message, traceparent,
        response_headers, response_body)
    VALUES (now, now, now, bucket, 1, 1, response_status, state::once.state, tenant, scope, key, fingerprint,
        result_type, result_id, error_code, error_message, traceparent, response_headers, response_body)
    ON CONFLICT DO NOTHING;
    IF FOUND AND nextval(once._counter('new', scope, 'once.counted_new')) IS NOT NULL THEN
        RETURN response_body;
    END IF;
    PERFORM once._finish_over(tenant, scope, key, bucket, fingerprint, state, response_status, response_headers,
        response_body, result_type, result_id, error_code, error_message, traceparent);
    RETURN response_body;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.finish_new(scope, key, fingerprint, outcome..., state, tenant, traceparent): once.begin_new and once.finish in one call, for
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
    error_code text DEFAULT NULL, error_message text DEFAULT NULL, tenant text DEFAULT '', traceparent text DEFAULT NULL)
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._enter(tenant, scope, key, fingerprint, true);
    now timestamptz := clock_timestamp();
    fence integer;
    body bytea;
BEGIN
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
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
            tenant, scope, key, fingerprint, result_type, result_id, error_code, error_message, traceparent,
            response_headers, response_body)
        VALUES (now, now, now, bucket, 1, 1, response_status, state::once.state, tenant, scope, key, fingerprint,
            result_type, result_id, error_code, error_message, traceparent, response_headers, response_body)
        ON CONFLICT DO NOTHING;
        IF FOUND AND nextval(once._counter('new', scope, 'once.counted_new')) IS NOT NULL THEN
            RETURN 1;
        END IF;
    END IF;
    fence := once.begin_new(scope, key, fingerprint, tenant);
    body := once.finish(scope, key, fingerprint, response_status, response_body, response_headers, result_type,
        result_id, state, error_code, error_message, tenant, traceparent);
    RETURN fence;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.keep(seconds): one round of the keeper's steps, for pg_cron and the like: CALL once.keep(). Works for about this many
-- seconds at most and goes on where it stopped when it is called again. Each piece of work is a transaction of its own, so it
-- cannot be called within one. Does nothing where another keeper holds the lease. A step that fails is noted
-- (once.keeper_status) and does not stop the others. Call it at least once an hour: after a longer gap the clock counts as
-- unsteady for a while.
-- Not SECURITY DEFINER and without settings, since such a procedure could not commit: it calls public functions only.
CREATE OR REPLACE PROCEDURE once.keep(seconds integer DEFAULT 50) LANGUAGE plpgsql AS $$
DECLARE
    me text := pg_catalog.format('once.keep of backend %s', pg_catalog.pg_backend_pid());
    until timestamptz := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => seconds);
    steps text[];
    each text;
    again boolean;
    began timestamptz;
    took interval;
    code text;
    said text;
BEGIN
    SELECT pg_catalog.array_agg(s.step ORDER BY s.ord) INTO steps FROM once.keep_steps() AS s;
    FOREACH each IN ARRAY steps LOOP
        LOOP
            COMMIT;
            SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
            IF NOT once.keep_take(me) THEN
                RETURN;
            END IF;
            began := pg_catalog.clock_timestamp();
            BEGIN
                SELECT k.more INTO again FROM once.keep_step(me, each) AS k;
            EXCEPTION WHEN OTHERS THEN      -- the next step has its turn
                GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, said = MESSAGE_TEXT;
                again := false;
                BEGIN
                    PERFORM once.keep_failed(me, each, code, said);
                EXCEPTION WHEN OTHERS THEN      -- a full disk takes no note either
                    RAISE WARNING 'pgonce: step % failed: % %', each, code, said;
                END;
            END;
            EXIT WHEN NOT again OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>) until;
            -- A fifth of a core at most: the rest is for the attempts.
            took := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) began;
            COMMIT;
            PERFORM pg_catalog.pg_sleep_for(least(took OPERATOR(pg_catalog.*) 4::double precision, interval '1 second'));
        END LOOP;
    END LOOP;
    PERFORM once.keep_release(me);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.keep_failed(keeper, step, sqlstate, message): a keeper notes that a step failed: once.keep_step cannot, since what
-- it wrote was rolled back. once.keeper_status shows it until the step succeeds.
CREATE OR REPLACE FUNCTION once.keep_failed(keeper text, step text, sqlstate text, message text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    IF NOT EXISTS (SELECT FROM once.keep_steps() AS s WHERE s.step = step COLLATE "C") THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: a keeper has no step %s',
            quote_nullable(left(step, 80)));
    END IF;
    INSERT INTO once.keeper_step AS k (step, last_started, last_error_at, last_error)
    VALUES (step, now, now, left(concat_ws(': ', keeper, sqlstate, message), 1000))
    ON CONFLICT ON CONSTRAINT keeper_step_pkey DO UPDATE
       SET last_error_at = excluded.last_error_at, last_error = excluded.last_error;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.keep_release(keeper): a keeper that stops lets the next one work at once. False where it did not hold the lease.
CREATE OR REPLACE FUNCTION once.keep_release(keeper text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    UPDATE once.keeper AS k SET lease_until = now WHERE k.keeper = keep_release.keeper COLLATE "C" AND k.lease_until > now;
    RETURN FOUND;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.keep_step(keeper, step, concurrently): one short piece of one step of the keeper's work (see once.keep_steps), in one
-- short transaction.
--   done     rows or partitions that it worked on
--   more     there is more to do now: call again
--   command  not NULL: a statement that the caller runs by itself, outside of a transaction, before it calls again. Only
--            with concurrently, for a caller who owns the contract's tables, from PostgreSQL 14 on
--   detail   what was done, or what holds the step back, for a log
-- Raises 55000 where the keeper does not hold the lease (once.keep_take), 22023 for an unknown step, 25000 above READ
-- COMMITTED, and what the step meets: 55P03 where a lock was not to be had, for example. Note that with once.keep_failed, go
-- on with the next step, and come back to this one in the next round.
CREATE OR REPLACE FUNCTION once.keep_step(keeper text, step text, concurrently boolean DEFAULT false, OUT done bigint,
    OUT more boolean, OUT command text, OUT detail text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    kept once.kept;
BEGIN
    PERFORM once._keep_begin(keeper, step);
    kept := CASE step
        WHEN 'days' THEN once._keep_days()
        WHEN 'clock' THEN once._keep_clock()
        WHEN 'close' THEN once._keep_close()
        WHEN 'doubt' THEN once._keep_doubt()
        WHEN 'move' THEN once._keep_move()
        WHEN 'detach' THEN once._keep_detach(keep_step."concurrently")
        WHEN 'drop' THEN once._keep_drop()
        WHEN 'outbox' THEN once._keep_outbox()
        WHEN 'purge' THEN once._keep_purge()
        WHEN 'sweep' THEN once._keep_sweep()
        WHEN 'archive' THEN once._keep_archive()
        WHEN 'dead' THEN once._keep_dead()
        WHEN 'decisions' THEN once._keep_decisions()
    END;
    UPDATE once.keeper_step AS k SET last_started = now, last_success = clock_timestamp(), done_total = k.done_total + kept.done
     WHERE k.step = step COLLATE "C";
    done := kept.done;
    more := kept.more;
    command := kept.command;
    detail := kept.detail;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.keep_steps(): the steps of a keeper's round, in their order. Each is worked off with once.keep_step, piece by piece;
-- one that fails does not stop the others.
CREATE OR REPLACE FUNCTION once.keep_steps() RETURNS TABLE (ord integer, step text, what text)
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    VALUES
    (1,  'days',      'make the partitions of the days to come'),
    (2,  'clock',     'read the clock: while it is unsteady, nothing is forgotten'),
    (3,  'close',     'close the days that are past the horizon'),
    (4,  'doubt',     'in closed days, put stale attempts in doubt'),
    (5,  'move',      'move what outlives its day to the archive'),
    (6,  'detach',    'detach the partitions of closed days'),
    (7,  'drop',      'drop them'),
    (8,  'outbox',    'drop the days of the outbox that every relay has passed'),
    (9,  'purge',     'delete the expired intents of keys without a day'),
    (10, 'sweep',     'count the stale and the doubtful, and recover the stale'),
    (11, 'archive',   'delete what has expired from the archive'),
    (12, 'dead',      'give up dead events and messages past their retention'),
    (13, 'decisions', 'delete decisions past their retention')
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once.keep_take(keeper, lease): makes this keeper the one that works, for the length of the lease; called again it renews
-- it. False: another keeper works. A lease in a row and not a lock, so that it holds behind a pooler in transaction mode.
-- Raises 22023 for a bad name or lease. Two keepers at once, one of them past its lease, would do no harm: each step is
-- safe beside itself.
CREATE OR REPLACE FUNCTION once.keep_take(keeper text, lease interval DEFAULT '60 seconds') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    IF (length(keeper) BETWEEN 1 AND 255 AND lease > '0' AND lease <= '1 day') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: a keeper has a name of 1 to 255 characters and a lease of'
            ' at most a day';
    END IF;
    -- Who stands by only looks. A lease that ends later than any could, or whose holder began a round well after now, is of a
    -- clock that was ahead: nobody waits for it.
    PERFORM FROM once.keeper AS k WHERE k.keeper <> keeper COLLATE "C" AND k.lease_until > now
        AND k.lease_until <= now + interval '1 day' AND (k.last_round > now + interval '1 minute') IS NOT TRUE;
    IF FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO once.keeper AS k (keeper, lease_until) VALUES (keeper, now + lease)
    ON CONFLICT (only_row) DO UPDATE SET keeper = excluded.keeper, lease_until = excluded.lease_until
     WHERE k.keeper = excluded.keeper OR k.lease_until <= now OR k.lease_until > now + interval '1 day'
        OR k.last_round > now + interval '1 minute';
    RETURN FOUND;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.keeper_lease(): who keeps, until when it has said so, and when a round was begun last. No row: nobody ever did.
CREATE OR REPLACE FUNCTION once.keeper_lease() RETURNS TABLE (keeper text, lease_until timestamptz, last_round timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT k.keeper, k.lease_until, k.last_round FROM once.keeper AS k
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once.keeper_status(): how each of the keeper's steps fared: when it was begun and succeeded last, its last failure, and
-- how many rows or partitions it has worked on in all. NULLs: it never ran.
CREATE OR REPLACE FUNCTION once.keeper_status() RETURNS TABLE (step text, ord integer, last_started timestamptz,
    last_success timestamptz, last_error_at timestamptz, last_error text, done_total bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.step, s.ord, k.last_started, k.last_success, k.last_error_at, k.last_error, coalesce(k.done_total, 0)
      FROM once.keep_steps() AS s LEFT JOIN once.keeper_step AS k ON k.step = s.step COLLATE "C"
     ORDER BY s.ord
$$;

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
-- once.message_applied(consumer, tenant, message_ids): forgets parked messages, in the transaction of their effect (after
-- once.receive said process, or duplicate). Returns how many were parked. Raises P4000 for the consumer, P4003 for the
-- tenant.
CREATE OR REPLACE FUNCTION once.message_applied(consumer text, tenant text, message_ids text[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    forgotten integer;
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    -- A look-up each, and then by address: see once._promote.
    DELETE FROM once.parked_message AS p
     USING (SELECT a.address FROM unnest(message_ids) AS u (id)
             CROSS JOIN LATERAL (SELECT k.ctid AS address FROM once.parked_message AS k
                                  WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                                    AND k.message_id BETWEEN (u.id COLLATE "C") AND (u.id COLLATE "C")
                                  ORDER BY k.message_id LIMIT 1) AS a) AS f
     WHERE p.ctid = f.address;
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.message_count(consumer, tenant, most): how many messages a consumer has parked; counts no further than `most`
-- (NULL: all). Raises P4000 for the consumer, P4003 for the tenant.
CREATE OR REPLACE FUNCTION once.message_count(consumer text, tenant text DEFAULT '', most bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    RETURN (SELECT count(*) FROM (SELECT FROM once.parked_message AS p
                                   WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" LIMIT most) AS l);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.message_due(consumer, tenant, take, skip_dead): parked messages whose turn it is, at most `take`, in the order in
-- which they came: those whose time has come and before which none of their key is parked (with skip_dead: none that is
-- not dead). They are locked until your transaction ends, and what another transaction has locked is left out: two
-- processes of one consumer never take the same. Then for each: once.receive, the effect, once.message_applied, COMMIT; or
-- once.message_park with one attempt more. Raises P4000 for the consumer, P4003 for the tenant.
--
-- Why it is written so: of what is due by its time most may stand behind another. Where that are many, the first of each
-- key is looked for by stepping from key to key in the index, so that ten thousand behind one dead message are one step.
CREATE OR REPLACE FUNCTION once.message_due(consumer text, tenant text, take integer, skip_dead boolean DEFAULT false)
RETURNS TABLE (message_id text, topic text, key text, headers jsonb, payload bytea, fingerprint bytea, attempts integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
#variable_conflict use_variable
DECLARE
    few CONSTANT integer := 500;
    now timestamptz := clock_timestamp();
    due integer;
    heads text[];
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    IF (take > 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: take is how many messages to take, at least 1';
    END IF;
    -- A clock that was ahead has stepped back: the waits that it began mean nothing any more. The longest is looked at.
    IF (SELECT p.updated_at FROM once.parked_message AS p
         WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" AND p.state <> 'dead' AND p.next_at > now
         ORDER BY p.next_at DESC LIMIT 1) > now + interval '1 second' THEN
        UPDATE once.parked_message AS p SET next_at = now, updated_at = now
         WHERE p.ctid = ANY (ARRAY(SELECT e.ctid FROM once.parked_message AS e
                                    WHERE e.consumer = consumer COLLATE "C" AND e.tenant = tenant COLLATE "C"
                                      AND e.state <> 'dead' AND e.next_at > now AND e.updated_at > now + interval '1 second'
                                      FOR UPDATE SKIP LOCKED));
    END IF;
    SELECT count(*) INTO due
      FROM (SELECT FROM once.parked_message AS p
             WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" AND p.state <> 'dead'
               AND p.next_at <= now LIMIT few) AS l;
    IF due = 0 THEN
        RETURN;
    ELSIF due < few THEN
        SELECT array_agg(p.message_id) INTO heads
          FROM once.parked_message AS p
         WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" AND p.state <> 'dead'
           AND p.next_at <= now
           AND p.position <= ALL (ARRAY(SELECT e.position FROM once.parked_message AS e
                                         WHERE e.consumer = consumer COLLATE "C" AND e.tenant = tenant COLLATE "C"
                                           AND e.key_hash = p.key_hash AND NOT (skip_dead AND e.state = 'dead')
                                         ORDER BY e.key_hash, e.position LIMIT 1));
    ELSE
        WITH RECURSIVE lane AS (
            SELECT (SELECT m.key_hash FROM once.parked_message AS m
                     WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C" AND m.key_hash IS NOT NULL
                     ORDER BY m.key_hash LIMIT 1) AS key_hash
             UNION ALL
            SELECT (SELECT m.key_hash FROM once.parked_message AS m
                     WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C" AND m.key_hash > l.key_hash
                     ORDER BY m.key_hash LIMIT 1)
              FROM lane AS l WHERE l.key_hash IS NOT NULL),
        head AS (
            SELECT h.message_id, h.position FROM lane AS l
             CROSS JOIN LATERAL (SELECT m.message_id, m.position, m.state, m.next_at FROM once.parked_message AS m
                                  WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C"
                                    AND m.key_hash = l.key_hash AND NOT (skip_dead AND m.state = 'dead')
                                  ORDER BY m.position LIMIT 1) AS h
             WHERE h.state <> 'dead' AND h.next_at <= now
             UNION ALL
            (SELECT m.message_id, m.position FROM once.parked_message AS m
              WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C" AND m.key_hash IS NULL
                AND m.state <> 'dead' AND m.next_at <= now ORDER BY m.key_hash, m.position LIMIT take + few))
        -- Some more than wanted, since others may be working on the first of them.
        SELECT array_agg(f.message_id) INTO heads
          FROM (SELECT h.message_id FROM head AS h ORDER BY h.position LIMIT take + few) AS f;
    END IF;
    -- A fresh statement: what has ended meanwhile is not taken, what is being worked on is left out. By a look-up each and
    -- by address: see once._promote.
    RETURN QUERY
    SELECT p.message_id::text, p.topic::text, p.key::text, p.headers, p.payload, p.fingerprint, p.attempts
      FROM (SELECT a.address FROM unnest(heads) AS u (id)
             CROSS JOIN LATERAL (SELECT k.ctid AS address FROM once.parked_message AS k
                                  WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                                    AND k.message_id BETWEEN (u.id COLLATE "C") AND (u.id COLLATE "C")
                                  ORDER BY k.message_id LIMIT 1) AS a) AS f
      JOIN once.parked_message AS p ON p.ctid = f.address
     WHERE p.state <> 'dead' AND p.next_at <= now
     ORDER BY p.position LIMIT take
       FOR UPDATE OF p SKIP LOCKED;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.message_look(consumer, tenant, message_ids[], keys[], skip_dead): what is parked says of messages, without the
-- inbox: for a consumer that works under leases (once.claim_many) and so cannot call once.receive_many. One row per
-- element, in order (ordinal from 1): 'parked' (it is itself), 'blocked' (one of its key is; with skip_dead: and not dead),
-- or 'free'. Writes nothing. Raises 22023 for arrays of unequal length or more than 10,000 elements, P4000 for the
-- consumer, P4003 for the tenant.
CREATE OR REPLACE FUNCTION once.message_look(consumer text, tenant text, message_ids text[], keys text[],
    skip_dead boolean DEFAULT false) RETURNS TABLE (ordinal integer, verdict text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._check_batch(tenant, once._length(message_ids, 0),
        once._length(keys, once._length(message_ids, 0)));
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    RETURN QUERY
    SELECT u.ord::integer,
           CASE WHEN (SELECT true FROM once.parked_message AS m
                              WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C"
                                AND m.message_id BETWEEN (u.id COLLATE "C") AND (u.id COLLATE "C")
                              ORDER BY m.message_id LIMIT 1) THEN 'parked'
                WHEN (SELECT true FROM once.parked_message AS k
                              WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                                AND k.key_hash = hashtextextended(u.key COLLATE "C", 0)
                                AND NOT (skip_dead AND k.state = 'dead')
                              ORDER BY k.key_hash, k.position LIMIT 1) THEN 'blocked'
                ELSE 'free' END
      FROM unnest(message_ids, keys) WITH ORDINALITY AS u (id, key, ord)
     ORDER BY u.ord;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.message_park(consumer, tenant, messages): keeps messages that cannot be applied now, whole, so that the broker may
-- forget them: state 'waiting' (behind another of its key), 'retrying' (after wait_ms, by the database's clock) or 'dead'
-- (after the last attempt). One that is parked already gets the new state, attempts and error, and keeps its place and
-- content. One that was applied is not parked. In the caller's transaction; acknowledge them after COMMIT. Returns how many
-- are parked now. message_id: any text of 1 to 512 bytes; fingerprint: 16 to 64 bytes. Raises 22023 for a message that
-- is none, P4000 for the consumer, P4003 for the tenant.
CREATE OR REPLACE FUNCTION once.message_park(consumer text, tenant text, messages once.parked[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    bad text;
    parked integer;
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    SELECT format('message_id=%s state=%s', quote_nullable(left(m.message_id, 80)), quote_nullable(left(m.state, 80)))
      INTO bad
      FROM unnest(messages) AS m
     WHERE (octet_length(m.message_id) BETWEEN 1 AND 512 AND m.topic IS NOT NULL
            AND octet_length(m.fingerprint) BETWEEN 16 AND 64 AND m.state IN ('waiting', 'retrying', 'dead')) IS NOT TRUE
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: a message to park is incomplete',
            DETAIL = regexp_replace(format('consumer=%s %s', quote_nullable(left(consumer, 80)), bad), '[[:cntrl:]]', '?',
                'g'),
            HINT = 'message_id: 1 to 512 bytes; topic; fingerprint: 16 to 64 bytes; state: waiting, retrying or dead.';
    END IF;
    INSERT INTO once.parked_message AS p (consumer, tenant, message_id, topic, key, headers, payload, fingerprint, state,
                                          attempts, next_at, error, sqlstate, parked_at, updated_at)
    SELECT consumer, tenant, e.message_id, e.topic, e.key, e.headers, e.payload, e.fingerprint, e.state,
           coalesce(e.attempts, 0), now + coalesce(e.wait_ms, 0) * interval '1 ms', left(e.error, 2000), e.sqlstate, now, now
      FROM (SELECT DISTINCT ON (u.message_id COLLATE "C") u.*, min(u.ord) OVER (PARTITION BY u.message_id COLLATE "C") AS place,
                   once._bucket(u.message_id) AS bucket
              FROM unnest(messages) WITH ORDINALITY AS u (message_id, topic, key, headers, payload, fingerprint, state,
                                                          attempts, wait_ms, error, sqlstate, ord)
             ORDER BY u.message_id COLLATE "C", u.ord DESC) AS e
     WHERE (SELECT i.fingerprint = e.fingerprint AND i.state = 'succeeded' FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C"
               AND i.key = e.message_id COLLATE "C" AND i.bucket = e.bucket LIMIT 1) IS NOT TRUE
     ORDER BY e.place
    ON CONFLICT ON CONSTRAINT parked_message_pkey DO UPDATE
       SET state = EXCLUDED.state, attempts = EXCLUDED.attempts, next_at = EXCLUDED.next_at, error = EXCLUDED.error,
           sqlstate = EXCLUDED.sqlstate, updated_at = EXCLUDED.updated_at;
    GET DIAGNOSTICS parked = ROW_COUNT;
    RETURN parked;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.metrics(): what the database knows about itself, for OpenMetrics: a row per sample, sorted by name; kind is 'counter' (its
-- name without the suffix _total) or 'gauge'; labels an object of texts. Stale and in-doubt figures are those of the keeper's
-- last whole sweep. Reads catalogues, the backlog of the relays and what is parked, and not the intents. Without the rights of
-- pg_monitor the age of the oldest transaction is that of the owner's own sessions. On a standby the counters are left out.
CREATE OR REPLACE FUNCTION once.metrics() RETURNS TABLE (name text, kind text, help text, labels jsonb, value double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
    SELECT k.name, k.kind, k.help, coalesce(s.labels, '{}'), s.value
      FROM (SELECT * FROM once._metrics_of_intents() UNION ALL SELECT * FROM once._metrics_of_delivery()
             UNION ALL SELECT * FROM once._metrics_of_keeping() UNION ALL SELECT * FROM once._metrics_of_tables()) AS s
      JOIN once._metric_names() AS k ON k.name = s.name COLLATE "C"
     WHERE s.value IS NOT NULL
     ORDER BY k.name COLLATE "C", s.labels
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_discard(event_id, relay, reason): gives up a parked event: this relay (NULL: none that has it parked) will
-- not deliver it any more, and what was parked behind it goes on. The event itself stays in the outbox. Recorded in
-- once.parked_decision. False where it is not parked. An attempt that is under way at this moment may still succeed.
-- Raises 22023 for a missing reason or an unknown relay.
CREATE OR REPLACE FUNCTION once.outbox_discard(event_id uuid, relay text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    place record;
    before once.parked_event;
    discarded boolean := false;
BEGIN
    PERFORM once._reason(reason);
    FOR place IN SELECT p.relay FROM once.parked_event AS p
                  WHERE relay IS NULL AND p.event_id = event_id ORDER BY p.relay LOOP
        discarded := once.outbox_discard(event_id, place.relay, reason) OR discarded;
    END LOOP;
    IF relay IS NULL THEN
        RETURN discarded;
    END IF;
    PERFORM once._relay_row(relay);
    DELETE FROM once.parked_event AS p WHERE p.relay = relay COLLATE "C" AND p.event_id = event_id
    RETURNING p.* INTO before;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM once._promote(before.relay, ARRAY[before.aggregate]);
    INSERT INTO once.parked_decision (decided_by, reason, what, relay, tenant, subject, from_state, error)
    VALUES (session_user, reason, 'discard', before.relay, before.tenant, before.event_id, before.state, before.error);
    RETURN true;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_event(event_id): all that is known of one event as one JSON document: the event (its payload as JSON text,
-- see once.story), its state with each relay that takes its topic ('pending', 'waiting', 'retrying', 'dead', or 'passed':
-- delivered, discarded, or from before the relay began), and the decisions about it. NULL where there is no such event. An
-- event that is parked nowhere is searched for through the whole outbox. For people and tools; its members may grow.
CREATE OR REPLACE FUNCTION once.outbox_event(event_id uuid) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    event once.outbox;
BEGIN
    SELECT o.* INTO event
      FROM (SELECT p.xid, p.id, p.day FROM once.parked_event AS p WHERE p.event_id = event_id LIMIT 1) AS f,
           once.outbox AS o
     WHERE o.xid = f.xid AND o.id = f.id AND o.day = f.day;
    IF NOT FOUND THEN
        SELECT o.* INTO event FROM once.outbox AS o WHERE o.event_id = event_id LIMIT 1;
    END IF;
    IF event.id IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN jsonb_build_object(
        'event_id', event.event_id, 'id', event.id, 'xid', event.xid::text, 'day', (date '1970-01-01' + event.day)::text,
        'created_at', event.created_at, 'topic', event.topic, 'event_type', event.event_type, 'tenant', event.tenant,
        'aggregate_type', event.aggregate_type, 'aggregate_id', event.aggregate_id, 'scope', event.scope,
        'key', event.key, 'traceparent', event.traceparent, 'headers', event.headers, 'payload', event.payload::text,
        'relays', once._event_relays(event),
        'decisions', (SELECT coalesce(jsonb_agg(jsonb_build_object('at', d.decided_at, 'by', d.decided_by, 'what', d.what,
                                 'relay', d.relay, 'from', d.from_state, 'reason', d.reason, 'error', d.error)
                                                ORDER BY d.decided_at), '[]')
                        FROM once.parked_decision AS d
                       WHERE d.relay IS NOT NULL AND d.subject = event_id::text COLLATE "C"));
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_list(relay, topic, state, take): events that relays have still to deliver, at most `take`, by relay, and the
-- oldest first: 'pending' (the relay has not come to it yet), 'waiting' (behind another of its aggregate, or for its first
-- attempt), 'retrying' at next_at, 'dead' (after the last attempt: decide with once.outbox_retry or once.outbox_discard).
-- Each argument narrows the list; NULL does not. next_at NULL: not before what stands before it is gone.
CREATE OR REPLACE FUNCTION once.outbox_list(relay text DEFAULT NULL, topic text DEFAULT NULL, state text DEFAULT NULL,
    take integer DEFAULT 100) RETURNS SETOF once.listed_event
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    own bigint := (SELECT c.system_identifier FROM pg_control_system() AS c);
BEGIN
    IF state NOT IN ('pending', 'waiting', 'retrying', 'dead') OR (take >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: no such state of an event, or take is missing: %s',
            quote_nullable(left(state, 80))), HINT = 'state is one of pending, waiting, retrying, dead; NULL for all.';
    END IF;
    RETURN QUERY
    SELECT l.relay, l.state, l.topic, l.event_id, l.event_type, l.tenant, l.aggregate_type, l.aggregate_id, l.attempts,
           l.next_at, l.error, l.created_at
      FROM (
        (SELECT p.relay::text, p.state::text, p.topic::text, p.event_id, o.event_type::text, p.tenant::text,
                p.aggregate_type::text, p.aggregate_id::text, p.attempts,
                CASE WHEN p.state = 'retrying' OR (p.state = 'waiting' AND NOT EXISTS (
                              SELECT FROM once.parked_event AS b
                               WHERE b.relay = p.relay AND b.aggregate = p.aggregate AND b.id < p.id))
                     THEN p.next_at END AS next_at, p.error, o.created_at, p.id
           FROM (SELECT q.* FROM once.parked_event AS q
                  WHERE (relay IS NULL OR q.relay = relay COLLATE "C") AND (topic IS NULL OR q.topic = topic COLLATE "C")
                    AND (state IS NULL OR q.state = state COLLATE "C")
                  ORDER BY q.relay, q.id LIMIT take) AS p
           LEFT JOIN LATERAL (SELECT e.event_type, e.created_at FROM once.outbox AS e
                               WHERE e.xid = p.xid AND e.id = p.id AND e.day = p.day LIMIT 1) AS o ON true)
        UNION ALL
        (SELECT r.relay::text, 'pending', n.topic::text, n.event_id, n.event_type::text, n.tenant::text,
                n.aggregate_type::text, n.aggregate_id::text, 0, NULL, NULL, n.created_at, n.id
           FROM once.relay AS r
          -- In the order of their transactions, so that a few of a long backlog are had at once.
          CROSS JOIN LATERAL (
                (SELECT o.* FROM once.outbox AS o
                  WHERE o.xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip(r.seen) AS x))
                    AND (r.reading IS NULL OR o.id > r.after_id OR NOT pg_visible_in_snapshot(o.xid, r.reading))
                    AND (r.topics IS NULL OR o.topic LIKE ANY (r.topics))
                    AND (topic IS NULL OR o.topic = topic COLLATE "C")
                  ORDER BY o.xid, o.id LIMIT take)
                UNION ALL
                (SELECT o.* FROM once.outbox AS o
                  WHERE o.xid >= pg_snapshot_xmax(r.seen)
                    AND (r.reading IS NULL OR o.id > r.after_id OR NOT pg_visible_in_snapshot(o.xid, r.reading))
                    AND (r.topics IS NULL OR o.topic LIKE ANY (r.topics))
                    AND (topic IS NULL OR o.topic = topic COLLATE "C")
                  ORDER BY o.xid, o.id LIMIT take)) AS n
          WHERE (relay IS NULL OR r.relay = relay COLLATE "C") AND coalesce(state, 'pending') = 'pending'
            AND r.system_identifier = own)) AS l
     ORDER BY l.relay COLLATE "C", l.id LIMIT take;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_replay(relay, from_time, topic, reason): has a relay deliver again what it has passed: every event that the
-- outbox still holds, emitted since from_time (of this topic; NULL: of all that the relay takes), is parked as 'waiting',
-- in order, and newer events of their aggregates wait behind them. Receivers see the same event ids again. What is parked
-- already stays as it is. Returns how many it parked; recorded in once.parked_decision. Newer events that a running
-- relay has already in its hands are not held back. Raises 22023 for a missing reason or time, or an unknown relay.
CREATE OR REPLACE FUNCTION once.outbox_replay(relay text, from_time timestamptz, topic text, reason text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    stored once.relay;
    parked bigint;
BEGIN
    PERFORM once._reason(reason);
    IF from_time IS NULL THEN
        PERFORM once._refuse_relay('22023', relay, 'from when shall events be replayed?', 'Give from_time.');
    END IF;
    stored := once._relay_row(relay);
    INSERT INTO once.parked_event AS p (relay, id, xid, day, event_id, topic, tenant, aggregate_type, aggregate_id, state,
                                        next_at, parked_at, updated_at)
    SELECT stored.relay, o.id, o.xid, o.day, o.event_id, o.topic, o.tenant, o.aggregate_type, o.aggregate_id, 'waiting',
           CASE WHEN o.aggregate_id IS NULL THEN now ELSE 'infinity' END, now, now
      FROM once.outbox AS o
     WHERE o.day >= floor(date_part('epoch', from_time) / 86400) AND o.created_at >= from_time
       AND (topic IS NULL OR o.topic = topic COLLATE "C")
       AND (stored.topics IS NULL OR o.topic LIKE ANY (stored.topics))
       AND (pg_visible_in_snapshot(o.xid, stored.seen)
            OR (coalesce(pg_visible_in_snapshot(o.xid, stored.reading), false) AND o.id <= stored.after_id))
     ORDER BY o.id
    ON CONFLICT ON CONSTRAINT parked_event_pkey DO NOTHING;
    GET DIAGNOSTICS parked = ROW_COUNT;
    PERFORM once._promote(stored.relay, NULL);
    INSERT INTO once.parked_decision (decided_by, reason, what, relay, subject)
    VALUES (session_user, reason, 'replay', stored.relay, concat_ws(' ', from_time, topic));
    RETURN parked;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_retry(event_id, relay, reason): lets a parked event be tried again now, with all its attempts before it;
-- relay NULL: with every relay that has it parked. What is parked behind it follows when it is delivered. Recorded in
-- once.parked_decision. False where it is not parked (delivered, discarded, or not passed yet). Raises 22023 for a missing
-- reason or an unknown relay.
CREATE OR REPLACE FUNCTION once.outbox_retry(event_id uuid, relay text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    place record;
    before once.parked_event;
    retried boolean := false;
BEGIN
    PERFORM once._reason(reason);
    FOR place IN SELECT p.relay FROM once.parked_event AS p
                  WHERE relay IS NULL AND p.event_id = event_id ORDER BY p.relay LOOP
        retried := once.outbox_retry(event_id, place.relay, reason) OR retried;
    END LOOP;
    IF relay IS NULL THEN
        RETURN retried;
    END IF;
    PERFORM once._relay_row(relay);
    SELECT p.* INTO before FROM once.parked_event AS p WHERE p.relay = relay COLLATE "C" AND p.event_id = event_id;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE once.parked_event AS p SET state = 'retrying', attempts = 0, next_at = now, updated_at = now
     WHERE p.relay = before.relay AND p.id = before.id;
    INSERT INTO once.parked_decision (decided_by, reason, what, relay, tenant, subject, from_state, error)
    VALUES (session_user, reason, 'retry', before.relay, before.tenant, before.event_id, before.state, before.error);
    RETURN true;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_summary(): how many events each relay has still to deliver, by topic and state (see once.outbox_list), and
-- when the oldest of them was emitted. A relay with nothing to do has one row: topic NULL, state 'idle', 0 events. One
-- whose progress is of another cluster: state 'of another cluster', and no pending ones. Counts, and so reads, all of them.
CREATE OR REPLACE FUNCTION once.outbox_summary() RETURNS TABLE (relay text, topic text, state text, events bigint, oldest timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    own bigint := (SELECT c.system_identifier FROM pg_control_system() AS c);
BEGIN
    RETURN QUERY
    WITH counted AS (
        SELECT r.relay, n.topic, 'pending' AS state, count(*) AS events, min(n.created_at) AS oldest
          FROM once.relay AS r
         CROSS JOIN LATERAL (
               SELECT o.topic, o.created_at, o.id, o.xid FROM once.outbox AS o
                WHERE o.xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip(r.seen) AS x))
                UNION ALL
               SELECT o.topic, o.created_at, o.id, o.xid FROM once.outbox AS o
                WHERE o.xid >= pg_snapshot_xmax(r.seen)) AS n
         WHERE r.system_identifier = own
           AND (r.reading IS NULL OR n.id > r.after_id OR NOT pg_visible_in_snapshot(n.xid, r.reading))
           AND (r.topics IS NULL OR n.topic LIKE ANY (r.topics))
         GROUP BY r.relay, n.topic
         UNION ALL
        SELECT p.relay, p.topic, p.state, p.events, o.created_at
          FROM (SELECT q.relay, q.topic, q.state, count(*) AS events, min(q.id) AS id
                  FROM once.parked_event AS q GROUP BY q.relay, q.topic, q.state) AS p
          JOIN once.parked_event AS f ON f.relay = p.relay AND f.id = p.id
          LEFT JOIN LATERAL (SELECT e.created_at FROM once.outbox AS e
                              WHERE e.xid = f.xid AND e.id = f.id AND e.day = f.day LIMIT 1) AS o ON true)
    SELECT s.relay::text, s.topic::text, s.state::text, s.events, s.oldest
      FROM (SELECT c.relay, c.topic, c.state, c.events, c.oldest FROM counted AS c
             UNION ALL
            SELECT r.relay, NULL, CASE WHEN r.system_identifier = own THEN 'idle' ELSE 'of another cluster' END, 0, NULL
              FROM once.relay AS r
             WHERE r.system_identifier <> own OR NOT EXISTS (SELECT FROM counted AS c WHERE c.relay = r.relay)) AS s
     ORDER BY s.relay, s.topic, s.state;
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
    OUT attempts integer, OUT created_at timestamptz, OUT completed_at timestamptz, OUT traceparent text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
    SELECT p.* INTO verdict, fence, state, response_status, response_headers, response_body, result_type, result_id,
        error_code, error_message,
                    owner, lease_until, attempts, created_at, completed_at, traceparent
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
    created_at timestamptz, completed_at timestamptz, traceparent text)
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
                        error_message, owner, lease_until, attempts, created_at, completed_at, traceparent
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
-- once.receive(consumer, message_id, fingerprint, tenant, traceparent): the inbox, in the consumer's own transaction. 'process':
-- apply the message, then COMMIT; 'duplicate': it was applied before, acknowledge it. A message is an intent whose
-- scope is the consumer. Use the natural business id, never a broker offset. Raises P4050 where the id came with
-- another payload, P4029 where another transaction is applying it now, P4041 where it is older than what is remembered,
-- 40001 where isolation above READ COMMITTED met a race.
CREATE OR REPLACE FUNCTION once.receive(consumer text, message_id text, fingerprint bytea, tenant text DEFAULT '',
    traceparent text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._enter(tenant, consumer, message_id, fingerprint, false);
    now timestamptz := clock_timestamp();
    stored record;
BEGIN
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    IF pg_try_advisory_xact_lock(once._lock_id(tenant, consumer, message_id)) THEN
        IF bucket = 0 OR once._is_open(bucket) OR once._day_state(bucket) = 'open' THEN
            INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant,
                scope, key, fingerprint, traceparent)
            VALUES (now, now, now, bucket, 1, 1, 'succeeded', tenant, consumer, message_id, fingerprint,
                traceparent)
            ON CONFLICT DO NOTHING;
            IF FOUND AND nextval(once._counter('process', consumer, 'once.counted_process')) IS NOT NULL THEN
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
        PERFORM once._count(consumer, 'message_mismatch');
        PERFORM once._refuse('P4050', tenant, consumer, message_id);
    ELSIF stored.state <> 'succeeded' THEN
        PERFORM once._refuse('P4099', tenant, consumer, message_id,
            format('an attempt under a lease left it %s: use claim throughout', stored.state));
    END IF;
    PERFORM once._count(consumer, 'duplicate');
    RETURN 'duplicate';
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.receive_many(consumer, message_ids[], keys[], fingerprints[], tenant, skip_dead, traceparents[]): the inbox for a batch of messages
-- (see once.receive) in one statement, in the consumer's own transaction. keys: messages with the same key are handled in
-- order (NULL: in none). One row per element, in order (ordinal from 1):
--   process    apply it, then COMMIT
--   duplicate  it was applied before, or stands earlier in this batch: acknowledge it
--   parked     it is parked (once.message_park): acknowledge it
--   blocked    one of its key is parked (with skip_dead: and not dead), or fails earlier in this batch: park it behind
--   mismatch   P4050: its id came with another payload
--   active     P4029: another transaction is applying it now; try again
--   invalid    code says why: P4001, P4003, P4041, P4098 (run the keeper and try again), P4099
-- code is NULL where there is no error. A bad element never spoils its neighbours. Raises only for the batch as a whole:
-- 22023 for arrays of unequal length or more than 10,000 elements, P4000 for the consumer, P4003 for the tenant, 40001
-- where isolation above READ COMMITTED met a race.
--
-- Three statements for a whole batch: check and lock, look, enter what is new. The locks are taken before the look, so no
-- INSERT waits for another transaction. Only where something is out of the ordinary is each element decided by itself.
-- The settings pin the plans, as in once.claim_many.
CREATE OR REPLACE FUNCTION once.receive_many(consumer text, message_ids text[], keys text[], fingerprints bytea[],
    tenant text DEFAULT '', skip_dead boolean DEFAULT false, traceparents text[] DEFAULT NULL)
    RETURNS TABLE (ordinal integer, verdict text, code text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._check_batch(tenant, once._length(message_ids, 0),
        once._length(keys, once._length(message_ids, 0)), once._length(fingerprints, 0),
        once._length(traceparents, once._length(message_ids, 0)));
    now timestamptz := clock_timestamp();
    today integer := floor(date_part('epoch', now) / 86400);
    today_open boolean := to_regclass('once.intent_d' || today) IS NOT NULL;
    buckets integer[];
    first_bucket integer;
    last_bucket integer;
    codes text[];           -- what is wrong with an element by itself
    firsts integer[];       -- where its id stands first in this batch
    takeable boolean[];     -- its lock is held, and its day is plainly open
    plain boolean;          -- all of them are
    stored text[];          -- what the inbox says: NULL nothing, 'duplicate', or an SQLSTATE
    held text[];            -- what is parked says: NULL nothing, 'parked', 'P4050', 'blocked'
    chosen boolean[];
    fresh integer;
    entered integer;
    behind text[] := '{}';
    verdicts text[];
BEGIN
    IF (length(consumer) BETWEEN 1 AND 255) IS NOT TRUE THEN
        PERFORM once._refuse('P4000', tenant, consumer, NULL);
    ELSIF size = 0 THEN
        RETURN;
    END IF;

    SELECT array_agg(c.bucket ORDER BY c.ord), min(c.bucket), max(c.bucket), array_agg(c.code ORDER BY c.ord),
           array_agg(c.first_ord ORDER BY c.ord), array_agg(c.takeable ORDER BY c.ord), bool_and(c.takeable)
      INTO buckets, first_bucket, last_bucket, codes, firsts, takeable, plain
      FROM (SELECT n.ord, n.bucket, n.code, n.first_ord,
                   CASE WHEN n.code IS NULL AND n.first_ord = n.ord
                             AND CASE WHEN n.bucket = today THEN today_open
                                      ELSE n.bucket = 0 OR (n.bucket < today
                                           AND to_regclass('once.intent_d' || n.bucket) IS NOT NULL) END
                        THEN pg_try_advisory_xact_lock(once._lock_id(tenant, consumer, n.id))
                        ELSE false END AS takeable
              FROM (SELECT b.*, min(b.ord) OVER (PARTITION BY b.id COLLATE "C", b.code IS NULL)::integer AS first_ord
                      FROM (SELECT u.id, u.ord, u.bucket,
                                   CASE WHEN (u.bucket >= 0) IS NOT TRUE THEN 'P4001'
                                        WHEN (octet_length(u.fingerprint) BETWEEN 16 AND 64) IS NOT TRUE
                                        THEN 'P4003' END AS code
                              FROM (SELECT e.*, once._bucket(e.id) AS bucket
                                      FROM unnest(message_ids, fingerprints) WITH ORDINALITY AS e (id, fingerprint, ord)
                                    OFFSET 0) AS u) AS b) AS n) AS c;

    -- A fresh statement, now that the locks are held.
    SELECT array_agg(CASE WHEN s.state IS NULL THEN NULL WHEN s.fingerprint <> u.fingerprint THEN 'P4050'
                          WHEN s.state = 'succeeded' THEN 'duplicate' ELSE 'P4099' END ORDER BY u.ord),
           count(*) FILTER (WHERE s.state IS NULL)
      INTO stored, fresh
      FROM unnest(message_ids, fingerprints, buckets, codes)
           WITH ORDINALITY AS u (id, fingerprint, bucket, code, ord)
      LEFT JOIN LATERAL (SELECT i.state, i.fingerprint FROM once.intent AS i
                          WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C"
                            AND i.key = u.id COLLATE "C" AND i.bucket = u.bucket
                            AND i.bucket BETWEEN first_bucket AND last_bucket LIMIT 1) AS s ON u.code IS NULL;
    IF EXISTS (SELECT FROM once.parked_message AS p WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C")
    THEN
        plain := false;
        SELECT array_agg(CASE WHEN p.state IS NOT NULL
                              THEN CASE WHEN p.fingerprint = u.fingerprint THEN 'parked' ELSE 'P4050' END
                              WHEN (SELECT true FROM once.parked_message AS k
                                            WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                                              AND k.key_hash = hashtextextended(u.key COLLATE "C", 0)
                                              AND NOT (skip_dead AND k.state = 'dead')
                                            ORDER BY k.key_hash, k.position LIMIT 1) THEN 'blocked' END ORDER BY u.ord)
          INTO held
          -- BETWEEN, LIMIT and the order: see once._promote.
          FROM unnest(message_ids, keys, fingerprints) WITH ORDINALITY AS u (id, key, fingerprint, ord)
          LEFT JOIN LATERAL (SELECT m.state, m.fingerprint FROM once.parked_message AS m
                              WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C"
                                AND m.message_id BETWEEN (u.id COLLATE "C") AND (u.id COLLATE "C")
                              ORDER BY m.message_id LIMIT 1) AS p ON true;
    END IF;

    IF plain AND NOT ('P4050' = ANY (stored) OR 'P4099' = ANY (stored)) IS TRUE THEN
        chosen := NULL;
        RETURN QUERY SELECT u.ord::integer, coalesce(u.stored, 'process'), NULL
                       FROM unnest(stored) WITH ORDINALITY AS u (stored, ord);
    ELSE
        verdicts := array_fill(NULL::text, ARRAY[size]);
        chosen := array_fill(false, ARRAY[size]);
        fresh := 0;
        FOR n IN 1 .. size LOOP
            ordinal := n;
            verdict := stored[n];
            code := codes[n];
            IF code IS NULL AND verdict IS NULL AND NOT takeable[n]
               AND (firsts[n] = n OR verdicts[firsts[n]] NOT IN ('process', 'blocked', 'parked')) THEN
                -- Locked by another, or of a day that is not plainly open.
                verdict := once._receivable(tenant, consumer, message_ids[n], buckets[n], fingerprints[n]);
                IF verdict = 'new' THEN
                    verdict := CASE WHEN firsts[n] < n THEN 'P4029' END;
                ELSIF verdict = 'P4029' AND held[n] IN ('parked', 'P4050') THEN
                    verdict := NULL;
                END IF;
            END IF;
            IF code IS NULL AND verdict IS NULL THEN
                IF held[n] IN ('parked', 'P4050') THEN
                    verdict := held[n];
                ELSIF firsts[n] < n THEN
                    -- The same message again, of which there is no trace yet that could be looked up.
                    verdict := CASE WHEN verdicts[firsts[n]] = 'blocked' THEN 'blocked'
                                    WHEN fingerprints[n] = fingerprints[firsts[n]] THEN 'duplicate' ELSE 'P4050' END;
                ELSIF held[n] = 'blocked' OR keys[n] = ANY (behind) THEN
                    verdict := 'blocked';
                ELSE
                    verdict := 'process';
                    chosen[n] := true;
                    fresh := fresh + 1;
                END IF;
            END IF;
            code := coalesce(code, CASE WHEN verdict LIKE 'P4%' THEN verdict END);
            verdicts[n] := coalesce(code, verdict);
            verdict := CASE code WHEN 'P4050' THEN 'mismatch' WHEN 'P4029' THEN 'active' ELSE
                       CASE WHEN code IS NULL THEN verdict ELSE 'invalid' END END;
            IF keys[n] IS NOT NULL AND verdict NOT IN ('process', 'duplicate', 'parked')
               AND NOT (skip_dead AND verdict IN ('mismatch', 'invalid')) THEN
                behind := behind || keys[n];
            END IF;
            RETURN NEXT;
        END LOOP;
    END IF;

    INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key,
        fingerprint, traceparent)
    SELECT now, now, now, u.bucket, 1, 1, 'succeeded', tenant, consumer, u.id, u.fingerprint,
           CASE WHEN u.traceparent IS NOT NULL THEN once._trace(u.traceparent) END
      FROM unnest(message_ids, fingerprints, buckets, stored, chosen, traceparents)
           AS u (id, fingerprint, bucket, stored, chosen, traceparent)
     WHERE coalesce(u.chosen, u.stored IS NULL)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS entered = ROW_COUNT;
    IF entered <> fresh THEN
        -- Their locks were held and nothing was there: only a caller who wrote to the table himself gets here.
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'pgonce: the inbox has changed under its locks',
            DETAIL = format('consumer=%s: %s of %s messages were entered', quote_nullable(left(consumer, 80)), entered, fresh),
            HINT = 'Roll back and receive the batch again.';
    END IF;
    PERFORM once._count(consumer, 'process', fresh);
    IF verdicts IS NULL THEN
        PERFORM once._count(consumer, 'duplicate', size - fresh);
    ELSE
        PERFORM once._count(consumer, 'duplicate', cardinality(array_positions(verdicts, 'duplicate')));
        PERFORM once._count(consumer, 'message_mismatch', cardinality(array_positions(verdicts, 'P4050')));
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.recover(take, scope, tenant, after): judges stale intents (their lease passed without a word) by the policy and the
-- verify function of their scope, at most take of them, for a quarter of a second or so; with a scope or a tenant only
-- those. decided is
--   succeeded  verify found that the effect happened: its outcome is stored
--   retry      it stays stale: the policy is to take over, or verify answered 'absent' or raised. The next attempt runs (and
--              asks verify again: something may have happened after this question)
--   in_doubt   nobody knows; see once.resolve
--   abandoned  verify answered 'absent' and its attempts are used up: failed for good
-- found is what verify answered; NULL where the policy alone decided. Changes are recorded in once.decision. next is to be
-- passed as after to go on; NULL in the last row, or no rows: through. A row without a key only says where to go on. An
-- intent whose attempt is just reporting, or being taken over, is left out.
CREATE OR REPLACE FUNCTION once.recover(take integer DEFAULT 100, scope text DEFAULT NULL, tenant text DEFAULT NULL,
    after text DEFAULT NULL)
RETURNS TABLE (tenant text, scope text, key text, fence integer, found text, decided text, reason text, next text)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.tenant, r.scope, r.key, r.fence, r.answer, r.decided, r.reason, r.next
      FROM once._recover($1, $2, $3, $4) AS r
$$;

-- SPDX-License-Identifier: PostgreSQL
-- once.relay_adopt(relay, reason, xids_continue): makes a relay whose progress is of another PostgreSQL cluster (P4080) one
-- of this cluster. After a restore (pg_dump, logical replication) nobody knows what was published since the dump: it goes
-- on with what commits from now on, and what the outbox held before is published only where once.outbox_replay says so;
-- what was parked stays parked. After pg_upgrade, which changes the cluster's identifier and keeps its transaction ids,
-- pass xids_continue => true: it goes on where it was, and nothing is left out. Recorded in once.parked_decision. Raises
-- 55006 while a session works for the relay, 22023 for a missing reason or an unknown relay.
CREATE OR REPLACE FUNCTION once.relay_adopt(relay text, reason text, xids_continue boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    stored once.relay;
BEGIN
    PERFORM once._reason(reason);
    stored := once._relay_row(relay);
    IF NOT pg_try_advisory_xact_lock(once._relay_lock(relay)) THEN
        PERFORM once._refuse_relay('55006', relay, 'a session works for this relay', 'Stop it first.');
    END IF;
    IF xids_continue THEN
        UPDATE once.relay AS r SET system_identifier = (SELECT c.system_identifier FROM pg_control_system() AS c)
         WHERE r.relay = stored.relay;
    ELSE
        PERFORM once._adopt_events();
        UPDATE once.relay AS r
           SET system_identifier = (SELECT c.system_identifier FROM pg_control_system() AS c),
               seen = pg_current_snapshot(), reading = NULL, after_id = 0, progressed_at = clock_timestamp()
         WHERE r.relay = stored.relay;
    END IF;
    INSERT INTO once.parked_decision (decided_by, reason, what, relay, subject)
    VALUES (session_user, reason, 'adopt', stored.relay, stored.relay);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.relay_due(relay, take, skip_dead): parked events whose turn it is, at most `take`, in the order of their ids: those
-- whose time has come and before which nothing of their aggregate is parked with this relay (with skip_dead: nothing that
-- is not dead), the longest due first; and behind each of them those of its aggregate that wait for nothing else, so that
-- a chain can be worked off in one go. An event without an aggregate waits for no other. attempts: how often it failed
-- before. blocked is false for all. traceparent: see once.relay_fetch.
--
-- Why it is written so: what waits behind another is never due by its own time (once._promote), so the first statement meets
-- hardly a row that it does not return, however many wait.
CREATE OR REPLACE FUNCTION once.relay_due(relay text, take integer, skip_dead boolean DEFAULT false) RETURNS SETOF once.outgoing
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    heads bigint[];
    followers integer;
BEGIN
    IF (take > 0) IS NOT TRUE THEN
        PERFORM once._refuse_relay('22023', relay, 'take is how many events to take, at least 1');
    END IF;
    -- A clock that was ahead has stepped back: the waits that it began mean nothing any more. The longest is looked at.
    IF (SELECT p.updated_at FROM once.parked_event AS p
         WHERE p.relay = relay COLLATE "C" AND p.state <> 'dead' AND p.next_at > now AND p.next_at < 'infinity'
         ORDER BY p.next_at DESC LIMIT 1) > now + interval '1 second' THEN
        UPDATE once.parked_event AS p SET next_at = now, updated_at = now
         WHERE p.ctid = ANY (ARRAY(SELECT e.ctid FROM once.parked_event AS e
                                    WHERE e.relay = relay COLLATE "C" AND e.state <> 'dead' AND e.next_at > now
                                      AND e.next_at < 'infinity' AND e.updated_at > now + interval '1 second'
                                      FOR UPDATE SKIP LOCKED));
    END IF;
    SELECT array_agg(h.id) INTO heads
      FROM (SELECT p.id FROM once.parked_event AS p
             WHERE p.relay = relay COLLATE "C" AND p.state <> 'dead' AND p.next_at <= now
               AND p.id <= ALL (ARRAY(SELECT e.id FROM once.parked_event AS e
                                       WHERE e.relay = relay COLLATE "C" AND e.aggregate BETWEEN p.aggregate AND p.aggregate
                                         AND NOT (skip_dead AND e.state = 'dead')
                                       ORDER BY e.aggregate, e.id LIMIT 1))
             ORDER BY p.next_at, p.id LIMIT take) AS h;
    IF heads IS NULL THEN
        RETURN;
    END IF;
    followers := (take - cardinality(heads)) / cardinality(heads);      -- of each
    RETURN QUERY
    SELECT o.id, o.xid, o.day, o.event_id, o.topic::text, o.event_type::text, o.aggregate_type::text, o.aggregate_id::text,
           o.tenant::text, o.scope::text, o.key::text, coalesce(o.traceparent,
               (SELECT i.traceparent FROM once.intent AS i
                 WHERE i.tenant = o.tenant COLLATE "C" AND i.scope = o.scope COLLATE "C" AND i.key = o.key COLLATE "C"
                   AND i.bucket = once._bucket(o.key) LIMIT 1))::text,
           o.headers, o.payload, o.created_at, c.attempts,
           false
      FROM unnest(heads) AS h (id)
     CROSS JOIN LATERAL (
           SELECT p.id, p.xid, p.day, p.aggregate, p.attempts FROM once.parked_event AS p
            WHERE p.relay = relay COLLATE "C" AND p.id BETWEEN h.id AND h.id ORDER BY p.id LIMIT 1) AS first
     CROSS JOIN LATERAL (
           SELECT first.id, first.xid, first.day, first.attempts
            UNION ALL
           (SELECT f.id, f.xid, f.day, f.attempts
              FROM (SELECT n.*, bool_and(n.state = 'waiting' AND (n.next_at = 'infinity' OR n.next_at <= now))
                                    OVER (ORDER BY n.id) AS free
                      FROM (SELECT e.* FROM once.parked_event AS e
                             WHERE e.relay = relay COLLATE "C" AND e.aggregate BETWEEN first.aggregate AND first.aggregate
                               AND e.id > first.id AND NOT (skip_dead AND e.state = 'dead')
                             ORDER BY e.aggregate, e.id LIMIT followers) AS n) AS f
             WHERE f.free)) AS c
     CROSS JOIN LATERAL (SELECT e.* FROM once.outbox AS e
                          WHERE e.xid = c.xid AND e.id = c.id AND e.day = c.day LIMIT 1) AS o
     ORDER BY o.id;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.relay_fetch(relay, ids, xids, days, skip_dead): the events that once.relay_list listed, whole, in the order given.
-- blocked: an earlier event of its aggregate is parked with this relay (with skip_dead: and not dead): it must be parked
-- behind. traceparent: the event's own, or else that of its intent. At most
-- 10,000 at once (22023). An event that is no longer there has no row.
CREATE OR REPLACE FUNCTION once.relay_fetch(relay text, ids bigint[], xids xid8[], days integer[], skip_dead boolean DEFAULT false)
RETURNS SETOF once.outgoing
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._check_batch('', once._length(ids, 0), once._length(xids, 0), once._length(days, 0));
    first_day integer;
    last_day integer;
    any_parked boolean := EXISTS (SELECT FROM once.parked_event AS p WHERE p.relay = relay COLLATE "C");
BEGIN
    SELECT min(d), max(d) INTO first_day, last_day FROM unnest(days) AS d;
    RETURN QUERY
    SELECT o.id, o.xid, o.day, o.event_id, o.topic::text, o.event_type::text, o.aggregate_type::text, o.aggregate_id::text,
           o.tenant::text, o.scope::text, o.key::text, coalesce(o.traceparent,
               (SELECT i.traceparent FROM once.intent AS i
                 WHERE i.tenant = o.tenant COLLATE "C" AND i.scope = o.scope COLLATE "C" AND i.key = o.key COLLATE "C"
                   AND i.bucket = once._bucket(o.key) LIMIT 1))::text,
           o.headers, o.payload, o.created_at, 0,
           any_parked AND o.id > ANY (ARRAY(
               SELECT p.id FROM once.parked_event AS p
                WHERE p.relay = relay COLLATE "C" AND NOT (skip_dead AND p.state = 'dead')
                  AND p.aggregate BETWEEN once._aggregate(o.tenant, o.aggregate_type, o.aggregate_id)
                                      AND once._aggregate(o.tenant, o.aggregate_type, o.aggregate_id)
                ORDER BY p.aggregate, p.id LIMIT 1))
      FROM unnest(ids, xids, days) WITH ORDINALITY AS u (id, xid, day, ord)
      -- LIMIT keeps this a look-up per element, and the range opens only the days of this batch: see once.claim_many.
     CROSS JOIN LATERAL (SELECT e.* FROM once.outbox AS e
                          WHERE e.xid = u.xid AND e.id = u.id AND e.day = u.day
                            AND e.day BETWEEN first_day AND last_day LIMIT 1) AS o
     ORDER BY u.ord;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.relay_flush(): makes durable whatever is visible now: writes a few bytes to the WAL, so that the COMMIT of this
-- transaction (yours, right afterwards) waits until they and all that precedes them are on disk, and on the synchronous
-- standby where there is one.
CREATE OR REPLACE FUNCTION once.relay_flush() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);       -- until the transaction ends
    END IF;
    PERFORM pg_logical_emit_message(true, 'pgonce', ''::text);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.relay_list(relay, seen, reading, after_id, take): the batch between two snapshots: the events of the relay's topics
-- that `reading` sees and `seen` did not, after after_id, in the order of their ids, at most `take`. Each committed event
-- falls into exactly one batch, and one that waited for another's lock comes after it. Narrow, so that a backlog is listed
-- by ten thousands; once.relay_fetch brings the events.
--
-- Why it is written so: what is new are the transactions from seen's end to reading's, and those that were running when
-- `seen` was taken and are not any more. Both are searched by index, so that neither what was published nor a transaction
-- that stays open for hours is read again each time. While a long batch is worked off, the ids of the next piece lie
-- close to after_id as a rule: they are looked for there first, and what is beyond is skipped within the index. Plans are
-- pinned, since one made while the outbox was empty would stay.
CREATE OR REPLACE FUNCTION once.relay_list(relay text, seen text, reading text, after_id bigint, take integer)
RETURNS TABLE (id bigint, xid xid8, day integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
#variable_conflict use_variable
DECLARE
    before pg_snapshot := seen;
    now pg_snapshot := reading;
    first_xid xid8 := pg_snapshot_xmax(before);
    end_xid xid8 := pg_snapshot_xmax(now);
    late xid8[] := ARRAY(SELECT x FROM pg_snapshot_xip(before) AS x WHERE pg_visible_in_snapshot(x, now));
    patterns text[];
    above bigint := coalesce(after_id, 0);
    upto bigint := 9223372036854775807;
    listed integer;
BEGIN
    SELECT r.topics INTO patterns FROM once.relay AS r WHERE r.relay = relay COLLATE "C";
    IF NOT FOUND OR before IS NULL OR now IS NULL OR (take > 0) IS NOT TRUE THEN
        PERFORM once._refuse_relay('22023', relay, 'nothing can be listed',
            'Name a relay that once.relay_take has made, two snapshots, and how many to list.');
    END IF;
    IF above > 0 THEN
        upto := least(above::numeric + 4::bigint * take, upto)::bigint;
    END IF;
    LOOP
        RETURN QUERY
        SELECT n.id, n.xid, n.day
          FROM (SELECT o.id, o.xid, o.day FROM once.outbox AS o
                 WHERE o.xid >= first_xid AND o.xid < end_xid AND o.id > above AND o.id <= upto
                   AND pg_visible_in_snapshot(o.xid, now)
                   AND (patterns IS NULL OR o.topic COLLATE "C" LIKE ANY (patterns))
                 UNION ALL
                SELECT o.id, o.xid, o.day FROM once.outbox AS o
                 WHERE o.xid = ANY (late) AND o.id > above AND o.id <= upto
                   AND (patterns IS NULL OR o.topic COLLATE "C" LIKE ANY (patterns))) AS n
         ORDER BY n.id LIMIT take;
        GET DIAGNOSTICS listed = ROW_COUNT;
        take := take - listed;
        EXIT WHEN take = 0 OR upto = 9223372036854775807;
        above := upto;
        upto := 9223372036854775807;
    END LOOP;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.relay_look(relay, seen): whether there may be something to read: `reading` is what is committed now; changed false:
-- no transaction has ended since `seen`, so there is nothing. flushed: what `reading` sees is also on disk (a producer with
-- synchronous_commit off is seen before it is), and with a synchronous standby nothing is known to be there; where false,
-- call once.relay_flush before anything of this snapshot is published. Writes nothing. Raises 55000 where the relay was
-- dropped.
CREATE OR REPLACE FUNCTION once.relay_look(relay text, seen text) RETURNS TABLE (reading text, changed boolean, flushed boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    written pg_lsn;
BEGIN
    PERFORM FROM once.relay AS r WHERE r.relay = relay COLLATE "C";
    IF NOT FOUND OR seen IS NULL THEN
        PERFORM once._refuse_relay('55000', relay, 'there is no such relay, or its progress is not given',
            'Call once.relay_take first.');
    END IF;
    reading := pg_current_snapshot();
    -- Beyond the first xid that `seen` did not know, or with fewer transactions running: in both cases the texts differ.
    changed := reading <> seen::pg_snapshot::text;
    -- In this order: what is in the snapshot was written to the WAL before.
    written := pg_current_wal_insert_lsn();
    flushed := pg_current_wal_flush_lsn() >= written AND current_setting('synchronous_standby_names') = '';
    RETURN NEXT;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.relay_parked(relay, most): how many events are parked with a relay; counts no further than `most` (NULL: all).
CREATE OR REPLACE FUNCTION once.relay_parked(relay text, most bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
BEGIN
    RETURN (SELECT count(*) FROM (SELECT FROM once.parked_event AS p WHERE p.relay = relay COLLATE "C" LIMIT most) AS l);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.relay_settle(relay, seen, reading, after_id, delivered, parked): stores how far a relay has come and what became
-- of its events, in one commit. reading NULL: the batch is done, and `seen` is the new one; else the batch between `seen`
-- and `reading` is done up to after_id. delivered: parked events that were delivered at last (ids that are not parked do no
-- harm). parked: events that were not delivered: state 'waiting' (behind another, or for their first attempt), 'retrying'
-- or 'dead'; wait_ms from now, by the database's clock. known true: it was parked already (it came from once.relay_due):
-- should it not be any more, an operator has discarded it, and it stays discarded.
-- Raises 55000 where this session does not hold the relay (once.relay_take): a relay that lost its connection cannot
-- write over its successor. 22023 for a parking that is none.
CREATE OR REPLACE FUNCTION once.relay_settle(relay text, seen text, reading text, after_id bigint, delivered bigint[] DEFAULT NULL,
    parked once.parking[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    touched bigint[] := '{}';
BEGIN
    IF seen IS NULL OR (reading IS NOT NULL AND after_id IS NULL)
       OR EXISTS (SELECT FROM unnest(parked) AS p
                   WHERE (p.id IS NOT NULL AND p.xid IS NOT NULL AND p.day IS NOT NULL AND p.event_id IS NOT NULL
                          AND p.topic IS NOT NULL AND p.tenant IS NOT NULL
                          AND p.state IN ('waiting', 'retrying', 'dead')) IS NOT TRUE) THEN
        PERFORM once._refuse_relay('22023', relay, 'the progress or a parked event is incomplete',
            'Give seen, with reading also after_id, and of each parked event id, xid, day, event_id, topic, tenant, state.');
    END IF;
    IF NOT once._relay_held(relay) THEN
        PERFORM once._refuse_relay('55000', relay, 'this session does not hold the relay',
            'Another session may have taken it: forget what is in memory and call once.relay_take.');
    END IF;
    UPDATE once.relay AS r
       SET seen = seen::pg_snapshot, reading = reading::pg_snapshot, progressed_at = now,
           after_id = CASE WHEN reading IS NULL THEN 0 ELSE after_id END
     WHERE r.relay = relay COLLATE "C";
    IF NOT FOUND THEN
        PERFORM once._refuse_relay('55000', relay, 'the relay was dropped', 'Call once.relay_take to begin anew.');
    END IF;

    IF cardinality(delivered) > 0 THEN
        WITH gone AS (
            DELETE FROM once.parked_event AS p
             USING (SELECT a.address FROM unnest(delivered) AS u (id)
                     CROSS JOIN LATERAL (SELECT k.ctid AS address FROM once.parked_event AS k
                                          WHERE k.relay = relay COLLATE "C" AND k.id BETWEEN u.id AND u.id ORDER BY k.id LIMIT 1) AS a) AS f
             WHERE p.ctid = f.address RETURNING p.aggregate)
        SELECT array_agg(g.aggregate) INTO touched FROM gone AS g WHERE g.aggregate IS NOT NULL;
    END IF;
    IF cardinality(parked) > 0 THEN
        WITH element AS MATERIALIZED (
            SELECT DISTINCT ON (u.id) u.*, once._aggregate(u.tenant, u.aggregate_type, u.aggregate_id) AS aggregate,
                   (SELECT k.ctid FROM once.parked_event AS k
                     WHERE k.relay = relay COLLATE "C" AND k.id BETWEEN u.id AND u.id ORDER BY k.id LIMIT 1) AS address
              FROM unnest(parked) WITH ORDINALITY AS u (id, xid, day, event_id, topic, tenant, aggregate_type, aggregate_id,
                                                        state, attempts, wait_ms, error, known, ord)
             ORDER BY u.id, u.ord DESC),
        again AS (
            UPDATE once.parked_event AS p
               SET state = e.state, attempts = coalesce(e.attempts, p.attempts), error = left(e.error, 2000),
                   next_at = now + coalesce(e.wait_ms, 0) * interval '1 ms', updated_at = now
              FROM element AS e WHERE p.ctid = e.address)
        INSERT INTO once.parked_event AS p (relay, id, xid, day, event_id, topic, tenant, aggregate_type, aggregate_id,
                                            state, attempts, next_at, error, parked_at, updated_at)
        SELECT relay, e.id, e.xid, e.day, e.event_id, e.topic, e.tenant, e.aggregate_type, e.aggregate_id, e.state,
               coalesce(e.attempts, 0),
               CASE WHEN e.state = 'waiting' AND coalesce(e.wait_ms, 0) = 0 AND (e.behind OR e.id > ANY (ARRAY(
                             SELECT b.id FROM once.parked_event AS b
                              WHERE b.relay = relay COLLATE "C" AND b.aggregate BETWEEN e.aggregate AND e.aggregate
                                AND b.state <> 'dead'
                              ORDER BY b.aggregate, b.id LIMIT 1)))
                    THEN 'infinity' ELSE now + coalesce(e.wait_ms, 0) * interval '1 ms' END,
               left(e.error, 2000), now, now
          FROM (SELECT f.*, f.aggregate IS NOT NULL AND coalesce(bool_or(f.state <> 'dead') OVER (
                                PARTITION BY f.aggregate ORDER BY f.id
                                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), false) AS behind
                  FROM element AS f) AS e
         WHERE e.known IS NOT TRUE AND e.address IS NULL
         ORDER BY e.id;
        touched := touched || ARRAY(SELECT once._aggregate(u.tenant, u.aggregate_type, u.aggregate_id)
                                      FROM unnest(parked) AS u WHERE u.aggregate_id IS NOT NULL);
    END IF;
    IF cardinality(touched) > 0 THEN
        PERFORM once._promote(relay, touched);
    END IF;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.relay_take(relay, topics, from_now): makes this session the one that works for a relay, until it ends: it takes a
-- session-level advisory lock, without waiting. taken false: another session has it; ask again later. Else the relay's
-- progress: `seen` is done with; where `reading` is not NULL, of what it sees besides, the events up to after_id are done
-- too. A relay that is new begins with everything that the outbox holds, or, with from_now, with what commits from now on.
-- topics: LIKE patterns of the topics that it takes, NULL for all; what it has passed with other patterns stays passed.
-- Not through a pooler in transaction mode, which would hand the lock to others. Raises P4080 where the progress is of
-- another PostgreSQL cluster (the database was restored into a new one): it means nothing here.
CREATE OR REPLACE FUNCTION once.relay_take(relay text, topics text[] DEFAULT NULL, from_now boolean DEFAULT false)
RETURNS TABLE (taken boolean, seen text, reading text, after_id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    own bigint := (SELECT c.system_identifier FROM pg_control_system() AS c);
    held boolean;
    stored once.relay;
BEGIN
    IF (length(relay) BETWEEN 1 AND 63) IS NOT TRUE THEN
        PERFORM once._refuse_relay('22023', relay, 'a relay has a name of 1 to 63 characters');
    ELSIF cardinality(topics) = 0
          OR EXISTS (SELECT FROM unnest(topics) AS t (pattern)
                      WHERE (t.pattern <> '' AND t.pattern COLLATE "C" !~ E'(^|[^\\\\])(\\\\\\\\)*\\\\$') IS NOT TRUE) THEN
        PERFORM once._refuse_relay('22023', relay, 'topics is a list of LIKE patterns',
            'Leave it out (NULL) to take all topics. No pattern may be empty, NULL, or end in a lone backslash.');
    END IF;
    held := once._relay_held(relay);
    IF NOT held AND NOT pg_try_advisory_lock(once._relay_lock(relay)) THEN
        taken := false;
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT r.* INTO stored FROM once.relay AS r WHERE r.relay = relay COLLATE "C";
    IF NOT FOUND THEN
        PERFORM once._adopt_events();
        INSERT INTO once.relay AS r (relay, system_identifier, topics, seen, started_at, progressed_at)
        VALUES (relay, own, topics, CASE WHEN from_now THEN pg_current_snapshot() ELSE '3:3:' END, now, now)
        RETURNING r.* INTO stored;
    ELSIF stored.system_identifier <> own THEN
        IF NOT held THEN
            PERFORM pg_advisory_unlock(once._relay_lock(relay));    -- a session lock outlives the error
        END IF;
        PERFORM once._refuse_relay('P4080', relay, e.message, e.hint, format(
            'its progress is of cluster %s, this is cluster %s', stored.system_identifier, own))
           FROM once.errors() AS e WHERE e.code = 'P4080';
    ELSE
        PERFORM once._relay_row(relay);
        IF stored.topics IS DISTINCT FROM topics THEN
            UPDATE once.relay AS r SET topics = topics WHERE r.relay = relay COLLATE "C";
        END IF;
        PERFORM once._promote(relay, NULL);
    END IF;
    taken := true;
    seen := stored.seen;
    reading := stored.reading;
    after_id := stored.after_id;
    RETURN NEXT;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.release(scope, key, fence, tenant): gives back a claim whose work certainly never started: the next attempt may
-- run at once, and this one is not counted. false: the intent is no longer this attempt's. The row and its fence stay,
-- so a zombie of this attempt stays shut out. What was put in doubt meanwhile is not released: once.fail, retryable, lifts
-- the doubt as long as nobody else has decided.
CREATE OR REPLACE FUNCTION once.release(scope text, key text, fence integer, tenant text DEFAULT '')
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    now timestamptz := clock_timestamp();
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
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
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
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
    changed bigint;
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
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
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed = 0 THEN
        PERFORM once._refuse('P4070', tenant, scope, key, 'it is being moved to the archive right now');
    END IF;
    PERFORM once._record(tenant, scope, key, stored.fence, stored.state, as_state::once.state, reason, 'resolve', stored);
    RETURN stored.state;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.retention_held(): what holds retention back now, and from when on everything is kept therefore (held_before). what is
--   clock     it is not steady for long enough yet (once.setting.clock_settle)
--   relay     its oldest undelivered event is older than what would be forgotten
--   consumer  its oldest position is
--   day       a closing day waits: for an attempt under a lease, or for a row that is just being changed
-- Nothing where everything goes its way.
CREATE OR REPLACE FUNCTION once.retention_held() RETURNS TABLE (what text, name text, tenant text, since timestamptz,
    held_before timestamptz, hint text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    why text := once._clock_held();
    shortest timestamptz;
BEGIN
    IF why IS NOT NULL THEN
        RETURN QUERY SELECT 'clock', 'database', NULL::text, (SELECT c.unsteady_since FROM once.clock AS c), NULL::timestamptz,
            why || '. It settles by itself; if not, look at the server''s time synchronisation.';
    END IF;
    SELECT clock_timestamp() - least(min(p.retention), (SELECT make_interval(days => s.horizon_days) FROM once.setting AS s))
      INTO shortest FROM once.scope AS p;
    RETURN QUERY
    SELECT b.what, b.name, b.tenant, b.since, b.needed_from, CASE b.what
           WHEN 'relay' THEN 'Let it deliver, retry or discard what is parked (once.outbox_list), or once.drop_relay.'
           ELSE 'Start it. Of a part that is no more: once.consumer_report(consumer, NULL, tenant, part).' END
      FROM once._backlog() AS b WHERE b.needed_from < shortest;
    RETURN QUERY
    SELECT 'day', (date '1970-01-01' + c.day)::text, NULL::text, c.held_since, to_timestamp(c.day * 86400.0), c.held
      FROM once.closing AS c WHERE c.held IS NOT NULL ORDER BY c.day;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.retire_day(bucket): closes a day of UUIDv7 keys for good, and all days before it, and drops their partitions, in one
-- transaction; the keeper does the same in short ones. Rows that must outlive their day move to once.archive: outcomes whose
-- retention has not passed or that a relay or a consumer may still bring back, and everything in doubt (a stale attempt
-- becomes in doubt: nobody knows). Returns how many moved. Refused (55006) while an attempt of such a day holds a lease, and
-- for days within the horizon (22023). Afterwards a late retry is answered from the archive or with P4041; it never runs
-- again. Waits for open transactions, at most lock_timeout. Call it in READ COMMITTED (55000): an older snapshot would not
-- show the last intents.
CREATE OR REPLACE FUNCTION once.retire_day(bucket integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_variable
DECLARE
    setting once.setting;
    today integer := floor(date_part('epoch', clock_timestamp()) / 86400);
    older integer;
    piece record;
    leaf regclass;
    moved bigint := 0;
    block bigint := 0;
    limits record;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: a day is retired in READ COMMITTED only',
            DETAIL = 'a snapshot from before the lock would not show its last intents';
    END IF;
    -- In the order in which once.keep_step and once.add_days take them: else each would wait for the other, and all claims
    -- for both.
    PERFORM FROM once.closing AS c WHERE c.day <= bucket ORDER BY c.day FOR UPDATE;
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
    SELECT s.* INTO STRICT setting FROM once.setting AS s WHERE s.only_row FOR UPDATE;
    IF (bucket BETWEEN 1 AND today - setting.horizon_days - 1) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: day %s cannot be retired', bucket),
            DETAIL = format('days up to %s are past the horizon of %s days', today - setting.horizon_days - 1,
                setting.horizon_days);
    END IF;
    -- Days close in their order: what is before a closed day must not be open.
    FOR older IN SELECT d FROM once._days('once.intent', 'intent_d') AS d WHERE d < bucket
                  UNION SELECT c.day FROM once.closing AS c WHERE c.day < bucket ORDER BY 1 LOOP
        moved := moved + once.retire_day(older);
    END LOOP;
    leaf := coalesce(to_regclass('once.intent_d' || bucket), to_regclass('once.intent_closed_d' || bucket));
    IF leaf IS NOT NULL THEN
        -- Before anything is read: from here on nobody is inside the day, and who waits finds it closed.
        EXECUTE format('LOCK TABLE once.intent, %s IN ACCESS EXCLUSIVE MODE', leaf);
        PERFORM once._archive_month(bucket);
        limits := once._limits();
        limits.now := clock_timestamp();        -- somebody has decided about the day, and no keeper reads the clock for it
        WHILE block < once._blocks(leaf) LOOP
            SELECT o.* INTO piece FROM once._outlive(leaf, block, block + once._stride(), true, limits) AS o;
            IF piece.held IS NOT NULL THEN
                RAISE EXCEPTION USING ERRCODE = '55006',
                    MESSAGE = format('pgonce: an attempt of day %s still holds its lease', bucket), DETAIL = piece.held,
                    HINT = 'Try again later.';
            END IF;
            moved := moved + piece.moved;
            block := block + once._stride();
        END LOOP;
        IF EXISTS (SELECT FROM pg_inherits AS h WHERE h.inhrelid = leaf) THEN
            EXECUTE format('ALTER TABLE once.intent DETACH PARTITION %s%s', leaf,
                (SELECT CASE WHEN (to_jsonb(h) ->> 'inhdetachpending')::boolean THEN ' FINALIZE' ELSE '' END
                   FROM pg_inherits AS h WHERE h.inhrelid = leaf));
        END IF;
        EXECUTE format('DROP TABLE %s', leaf);
    END IF;
    DELETE FROM once.closing AS c WHERE c.day = bucket;
    UPDATE once.setting AS s SET closed_before = greatest(s.closed_before, bucket + 1) WHERE s.only_row;
    RETURN moved;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.retire_outbox(day): drops the outbox of a past day (days since 1970), once every relay has passed all of it.
-- Returns how many events went, 0 where the day has no partition. Refused with 55006 while a relay is behind, while an
-- event of the day is parked, and where there are events and no relay at all; the DETAIL names them. 22023 for today and
-- later. Waits for open transactions, prepared ones among them, at most lock_timeout: set it, since new emits wait behind
-- it. Nothing can be lost: from then on nobody is inside the day, and a late emit fails aloud (P4098). Call it in READ
-- COMMITTED (55000): an older snapshot would not show the last events.
CREATE OR REPLACE FUNCTION once.retire_outbox(day integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    today integer := floor(date_part('epoch', clock_timestamp()) / 86400);
    retired bigint;
BEGIN
    IF (day BETWEEN 1 AND today - 1) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: day %s of the outbox cannot be retired', day),
            DETAIL = format('today is day %s; only days before it are over', today);
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: a day of the outbox is retired in READ COMMITTED only',
            DETAIL = 'a snapshot from before the lock would not show its last events';
    ELSIF to_regclass('once.outbox_d' || day) IS NULL THEN
        RETURN 0;
    END IF;
    -- Before the lock, so that a day that cannot go yet stops nobody; and once more under it, which is what counts.
    PERFORM once._check_retired(day);
    EXECUTE format('LOCK TABLE once.outbox, once.outbox_d%s IN ACCESS EXCLUSIVE MODE', day);
    PERFORM once._check_retired(day);
    EXECUTE format('SELECT count(*) FROM once.outbox_d%s', day) INTO retired;
    EXECUTE format('ALTER TABLE once.outbox DETACH PARTITION once.outbox_d%s', day);
    EXECUTE format('DROP TABLE once.outbox_d%s', day);
    RETURN retired;
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
        PERFORM once._check(tenant, 'salt', 'salt', 0, E'\\x00000000000000000000000000000000');
    END IF;
    RETURN (SELECT sha256(s.salt || convert_to(salt.tenant, 'UTF8')) FROM once.setting AS s WHERE s.only_row);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.set_keeping(horizon_days, days_ahead, clock_skew, clock_settle, dead_retention, decision_retention,
-- outbox_retention): what holds for the whole installation, returned as it is then. What is left out (NULL) stays.
--   horizon_days        past days whose UUIDv7 keys are taken; later ones are expired. What is closed stays closed
--   days_ahead          days whose partitions are made in advance
--   clock_skew          how far in the future a UUIDv7 key may be
--   clock_settle        how long the database's clock must go steadily before anything is forgotten
--   dead_retention      dead events and messages are given up after it, and their decisions forgotten
--   decision_retention  entries of once.decision are forgotten after it; never those of an intent that is in doubt
--   outbox_retention    days of the outbox stay at least so long after they are over
-- Raises 23514 or 22023 for a value out of range.
CREATE OR REPLACE FUNCTION once.set_keeping(horizon_days integer DEFAULT NULL, days_ahead integer DEFAULT NULL,
    clock_skew interval DEFAULT NULL, clock_settle interval DEFAULT NULL, dead_retention interval DEFAULT NULL,
    decision_retention interval DEFAULT NULL, outbox_retention interval DEFAULT NULL) RETURNS once.setting
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    setting once.setting;
BEGIN
    UPDATE once.setting AS s
       SET horizon_days = coalesce(horizon_days, s.horizon_days), days_ahead = coalesce(days_ahead, s.days_ahead),
           clock_skew = coalesce(clock_skew, s.clock_skew), clock_settle = coalesce(clock_settle, s.clock_settle),
           dead_retention = coalesce(dead_retention, s.dead_retention),
           decision_retention = coalesce(decision_retention, s.decision_retention),
           outbox_retention = coalesce(outbox_retention, s.outbox_retention)
     WHERE s.only_row
    RETURNING s.* INTO STRICT setting;
    setting.salt := NULL;       -- nobody's business
    RETURN setting;
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
    policy.verify := CASE WHEN policy.on_stale = 'verify' THEN coalesce(
        (SELECT format('%I.%I', n.nspname, p.proname) FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
          WHERE p.oid = (verify || '(text,text,text)')::regprocedure), policy.verify) END;
    policy.response_bytes_max := coalesce(response_bytes_max, policy.response_bytes_max);
    IF policy.verify IS NOT NULL AND (SELECT p.prorettype <> 'once.verification'::regtype FROM pg_proc AS p
        WHERE p.oid = (policy.verify || '(text,text,text)')::regprocedure) THEN
        RAISE EXCEPTION USING ERRCODE = '42P13', MESSAGE = format('pgonce: %s does not return once.verification',
            policy.verify);
    END IF;
    DELETE FROM once.scope AS s WHERE s.scope = scope COLLATE "C";
    INSERT INTO once.scope SELECT policy.*;
    IF scope <> '' THEN
        PERFORM once._add_counters(scope);      -- from now on it is counted by itself
    END IF;
    RETURN policy;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.story(scope, key, tenant): all that is known of one intent as one JSON document: its row (without the fingerprint;
-- the body as base64), its decisions, its events (a payload as JSON text, because a reader that parses numbers as doubles
-- would show other amounts) with what each relay has done with them, and all of it as a "timeline": see once._timeline. NULL
-- where nothing is stored. For people and tools; its members may grow. Raises P4000, P4001, P4003.
CREATE OR REPLACE FUNCTION once.story(scope text, key text, tenant text DEFAULT '') RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    stored once.intent;
    archived boolean := false;
    expires_at timestamptz;
    decisions jsonb;
    events jsonb;
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
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
    expires_at := coalesce(stored.expires_at, stored.completed_at + (once._policy(scope)).retention);
    SELECT coalesce(jsonb_agg(jsonb_build_object('at', d.decided_at, 'by', d.decided_by, 'reason', d.reason, 'fence', d.fence,
               'from', d.from_state, 'to', d.to_state, 'kind', to_jsonb(d)->'kind', 'before', to_jsonb(d)->'before',
               'after', to_jsonb(d)->'after') ORDER BY d.decided_at), '[]') INTO decisions
      FROM once.decision AS d
     WHERE d.tenant = tenant COLLATE "C" AND d.scope = scope COLLATE "C" AND d.key = key COLLATE "C";
    SELECT coalesce(jsonb_agg(jsonb_build_object('id', o.event_id, 'topic', o.topic, 'type', o.event_type, 'at', o.created_at,
               'aggregate_type', o.aggregate_type, 'aggregate_id', o.aggregate_id, 'payload', o.payload::text,
               'relays', once._event_relays(o)) ORDER BY o.id), '[]') INTO events
      FROM once.outbox AS o
     WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C";
    RETURN jsonb_build_object(
        'tenant', tenant, 'scope', scope, 'key', key, 'archived', archived,
        'day', CASE WHEN bucket > 0 THEN (date '1970-01-01' + bucket)::text END,
        'state', stored.state, 'verdict', once._verdict(true, stored.state, stored.lease_until, clock_timestamp(), 0,
            NULL, 'takeover'),
        'fence', stored.fence, 'attempts', stored.attempts, 'owner', stored.owner, 'lease_until', stored.lease_until,
        'created_at', stored.created_at, 'updated_at', stored.updated_at, 'completed_at', stored.completed_at,
        'expires_at', expires_at,
        'response_status', stored.response_status, 'response_headers', stored.response_headers,
        'response_body', translate(encode(stored.response_body, 'base64'), E'\n', ''), 'response_bytes',
            octet_length(stored.response_body),
        'result_type', stored.result_type, 'result_id', stored.result_id,
        'error_code', stored.error_code, 'error_message', stored.error_message, 'traceparent', stored.traceparent,
        'decisions', decisions, 'events', events,
        'timeline', once._timeline(stored, archived, expires_at, decisions, events));
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.top(): what is going on now, by scope: attempts in flight, stale ones (their lease has passed), intents in doubt, and
-- for how long the oldest attempt in flight or stale has run. No row for a scope at rest. Reads the whole table.
CREATE OR REPLACE FUNCTION once.top() RETURNS TABLE (scope text, in_flight bigint, stale bigint, in_doubt bigint,
    oldest_seconds double precision)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    SELECT i.scope::text, count(*) FILTER (WHERE i.state = 'processing' AND i.lease_until > now),
           count(*) FILTER (WHERE i.state = 'processing' AND i.lease_until <= now),
           count(*) FILTER (WHERE i.state = 'in_doubt'),
           greatest(date_part('epoch', now - min(i.updated_at) FILTER (WHERE i.state = 'processing')), 0)
      FROM once.intent AS i WHERE i.state IN ('processing', 'in_doubt')
     GROUP BY i.scope ORDER BY i.scope;
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
-- once.verify(scope, key, tenant): asks the scope's verify function whether the effect of this intent happened, and changes
-- nothing: what an operator wants to know before once.resolve. NULL where the scope has no verify function; an exception of
-- the function is the caller's. Raises P4000, P4001, P4003.
CREATE OR REPLACE FUNCTION once.verify(scope text, key text, tenant text DEFAULT '') RETURNS once.verification
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    policy once.scope := once._policy(scope);
BEGIN
    PERFORM once._check(tenant, scope, key, once._bucket(key), E'\\x00000000000000000000000000000000');
    IF policy.verify IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN once._verify(policy, tenant, scope, key);
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- Views carry no state: they are made anew with the functions, whatever columns they had before.
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN SELECT c.relname FROM pg_catalog.pg_class AS c
                WHERE c.relnamespace = 'once'::regnamespace AND c.relkind = 'v' LOOP
        EXECUTE format('DROP VIEW once.%I', old.relname);
    END LOOP;
END $$;

-- SPDX-License-Identifier: PostgreSQL
-- once.in_doubt: intents of which nobody knows whether their effect happened, those of retired days among them; each waits
-- for once.resolve. since: when that was said. Reads the whole table and the archive.
CREATE VIEW once.in_doubt (tenant, scope, key, fence, attempts, owner, created_at, lease_until, since, error_code, error_message,
    traceparent, archived) AS
SELECT i.tenant::text, i.scope::text, i.key::text, i.fence, i.attempts, i.owner::text, i.created_at, i.lease_until,
       i.updated_at, i.error_code::text, i.error_message::text, i.traceparent::text, false
  FROM once.intent AS i WHERE i.state = 'in_doubt'
 UNION ALL
SELECT a.tenant::text, a.scope::text, a.key::text, a.fence, a.attempts, a.owner::text, a.created_at, a.lease_until,
       a.updated_at, a.error_code::text, a.error_message::text, a.traceparent::text, true
  FROM once.archive AS a WHERE a.state = 'in_doubt';

-- SPDX-License-Identifier: PostgreSQL
-- once.outbox_pending: what each relay has still to deliver, by topic and state (see once.outbox_summary), and how old the
-- oldest of it is. No row for a relay with nothing to do. Counts, and so reads, all of the backlog.
CREATE VIEW once.outbox_pending (relay, topic, state, events, oldest, lag) AS
SELECT s.relay, s.topic, s.state, s.events, s.oldest, clock_timestamp() - s.oldest
  FROM once.outbox_summary() AS s
 WHERE s.events > 0;

-- SPDX-License-Identifier: PostgreSQL
-- once.retried: intents that needed more than one attempt, or whose fence an operator has raised. Reads the whole table.
CREATE VIEW once.retried (tenant, scope, key, state, fence, attempts, owner, created_at, updated_at, lease_until, error_code, error_message,
    traceparent) AS
SELECT i.tenant::text, i.scope::text, i.key::text, i.state::text, i.fence, i.attempts, i.owner::text, i.created_at, i.updated_at,
       i.lease_until, i.error_code::text, i.error_message::text, i.traceparent::text
  FROM once.intent AS i
 WHERE i.fence > 1;

-- SPDX-License-Identifier: PostgreSQL
-- once.scope_stats: a row per scope that has a policy, '' for all others together: its policy; how many attempts were told
-- what (once.counts); and what the keeper's last sweep found: stale and in_doubt intents, when the oldest lease passed.
CREATE VIEW once.scope_stats (scope, lease, retention, max_attempts, on_stale, new, replay, mismatch, active, taken_over, retryable,
    final, told_in_doubt, expired, process, duplicate, stale, in_doubt, oldest_stale, as_of) AS
SELECT p.scope::text, p.lease, p.retention, p.max_attempts, p.on_stale::text,
       c.new, c.replay, c.mismatch, c.active, c.stale, c.retryable, c.final, c.in_doubt, c.expired,
       c.process, c.duplicate, s.stale, s.in_doubt, s.oldest_stale, s.as_of
  FROM once.scope AS p
  LEFT JOIN (SELECT n.scope, (sum(n.count) FILTER (WHERE n.verdict = 'new'))::bigint AS new,
                    (sum(n.count) FILTER (WHERE n.verdict = 'replay'))::bigint AS replay,
                    (sum(n.count) FILTER (WHERE n.verdict IN ('mismatch', 'message_mismatch')))::bigint AS mismatch,
                    (sum(n.count) FILTER (WHERE n.verdict = 'active'))::bigint AS active,
                    (sum(n.count) FILTER (WHERE n.verdict = 'stale'))::bigint AS stale,
                    (sum(n.count) FILTER (WHERE n.verdict = 'retryable'))::bigint AS retryable,
                    (sum(n.count) FILTER (WHERE n.verdict = 'final'))::bigint AS final,
                    (sum(n.count) FILTER (WHERE n.verdict = 'in_doubt'))::bigint AS in_doubt,
                    (sum(n.count) FILTER (WHERE n.verdict = 'expired'))::bigint AS expired,
                    (sum(n.count) FILTER (WHERE n.verdict = 'process'))::bigint AS process,
                    (sum(n.count) FILTER (WHERE n.verdict = 'duplicate'))::bigint AS duplicate
               FROM once.counts() AS n GROUP BY n.scope) AS c ON c.scope = p.scope
  LEFT JOIN once.swept AS s ON s.scope = p.scope;

-- SPDX-License-Identifier: PostgreSQL
-- once.stuck: attempts that fell silent: their lease has passed and nobody has taken over. on_stale says what their scope's
-- policy does with the next attempt; 'in_doubt' and used-up attempts wait for once.resolve. Reads the whole table.
CREATE VIEW once.stuck (tenant, scope, key, fence, attempts, owner, created_at, updated_at, lease_until, stale_for, on_stale, max_attempts,
    traceparent) AS
SELECT i.tenant::text, i.scope::text, i.key::text, i.fence, i.attempts, i.owner::text, i.created_at, i.updated_at, i.lease_until,
       clock_timestamp() - i.lease_until, p.on_stale::text, p.max_attempts, i.traceparent::text
  FROM once.intent AS i
 CROSS JOIN LATERAL (SELECT s.on_stale, s.max_attempts FROM once.scope AS s WHERE s.scope IN (i.scope, '')
                      ORDER BY s.scope DESC LIMIT 1) AS p
 WHERE i.state = 'processing' AND i.lease_until <= clock_timestamp();

-- SPDX-License-Identifier: PostgreSQL
-- Who may do what. Nobody but the owner touches a table; each role below may EXECUTE the functions listed for it, and
-- once_reader and once_admin may read the views, which show all tenants. The roles are made where the installer may make
-- roles; where not, a notice says so, and pgonce doctor shows what an administrator has to run. Ends without a role of
-- its own: it is run again at every upgrade.

REVOKE ALL ON ALL TABLES IN SCHEMA once FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA once FROM PUBLIC;

DO $$
DECLARE
    -- role, what it is for, its functions. once_tenant is once_app for one tenant's roles: see once.bind.
    app text[] := ARRAY['begin', 'begin_new', 'finish', 'finish_new', 'claim', 'claim_many', 'complete', 'complete_many', 'fail',
    'fail_many', 'renew', 'renew_many',
                        'release', 'peek', 'peek_many', 'salt', 'fingerprint', 'receive', 'emit', 'try_lock', 'lock',
                            'errors', 'contract_version', 'receive_many', 'message_park', 'message_due',
                            'message_applied', 'message_look', 'message_count', 'consumer_report'];
    shown text[] := ARRAY['counts', 'metrics', 'find', 'top', 'outbox_list', 'outbox_summary', 'outbox_event', 'dead_list', 'dead_show'];
    keeping text[] := ARRAY['keep_steps', 'keeper_status', 'keeper_lease', 'retention_held'];
    kept text[] := keeping || ARRAY['keep', 'keep_take', 'keep_release', 'keep_step', 'keep_failed', 'recover'];
    granted record;
    target text;
BEGIN
    FOR granted IN
        SELECT * FROM (VALUES
            ('once_app',    app || ARRAY['any_tenant']),
            ('once_tenant', app),
            ('once_relay',  ARRAY['errors', 'contract_version', 'add_days', 'any_tenant', 'relay_take', 'relay_look',
                'relay_flush', 'relay_list', 'relay_fetch', 'relay_due', 'relay_settle',
                'relay_parked', 'metrics']),
            ('once_consumer', ARRAY['errors', 'contract_version', 'add_days', 'any_tenant', 'receive', 'receive_many',
                'message_park', 'message_due', 'message_applied', 'message_look', 'message_count', 'salt', 'claim_many',
                'complete_many', 'fail_many', 'renew_many', 'peek_many', 'release', 'consumer_report',
                'metrics']),
            ('once_keeper', kept || ARRAY['counts', 'metrics', 'errors', 'contract_version', 'add_days', 'retire_day', 'retire_outbox',
                'any_tenant']),
            ('once_reader', shown || keeping || ARRAY['errors', 'contract_version', 'peek', 'peek_many', 'story',
                'any_tenant']),
            ('once_admin',  app || shown || kept || ARRAY['set_keeping', 'any_tenant', 'story', 'verify', 'resolve', 'set_scope', 'bind',
                'unbind', 'add_days',
                'retire_day', 'retire_outbox', 'outbox_retry', 'outbox_discard', 'outbox_replay', 'relay_adopt',
                'drop_relay', 'dead_retry', 'dead_discard'])) AS g (role_name, functions)
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
        EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA once FROM %I', granted.role_name);
        EXECUTE format('GRANT USAGE ON SCHEMA once TO %I', granted.role_name);
        FOR target IN
            SELECT format('%I.%I(%s)', 'once', p.proname, pg_get_function_identity_arguments(p.oid))
              FROM pg_catalog.pg_proc AS p
             WHERE p.pronamespace = 'once'::regnamespace AND p.proname = ANY (granted.functions)
        LOOP
            EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %I', target, granted.role_name);
        END LOOP;
        IF granted.role_name IN ('once_reader', 'once_admin') THEN
            FOR target IN SELECT format('%I.%I', 'once', c.relname) FROM pg_catalog.pg_class AS c
                           WHERE c.relnamespace = 'once'::regnamespace AND c.relkind = 'v' LOOP
                EXECUTE format('GRANT SELECT ON %s TO %I', target, granted.role_name);
            END LOOP;
        END IF;
    END LOOP;
END $$;

INSERT INTO once.migration (version, name, checksum, pgonce) VALUES (0, 'functions and grants', '2b64ee91cb53553e5d89de86fa47302b4e2ab53fb9a94bcfd1e8090612f2e28b', '1.0.0');

-- SPDX-License-Identifier: PostgreSQL
-- The first partitions; every daemon tops them up in passing.
SELECT once.add_days();

COMMIT;
