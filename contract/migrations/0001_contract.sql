-- SPDX-License-Identifier: PostgreSQL
-- The tables and types of the contract, version 1. Only the owner touches them; everybody else calls functions. Text is
-- COLLATE "C" throughout: comparisons are of bytes, and an index can serve them whatever the caller's collation.
-- First intents, then the outbox and its relays, the inbox, keeping, and what is counted.

CREATE TYPE once.state AS ENUM ('processing', 'succeeded', 'failed_retryable', 'failed_final', 'in_doubt');
COMMENT ON TYPE once.state IS 'what is known of an intent; the allowed changes are in once.transition';

-- Every change of state that the contract makes, and no other. tests/contract/test_transitions.py walks all
-- combinations against this table.
CREATE TABLE once.transition (
    from_state once.state,                  -- NULL: no row yet
    event      text COLLATE "C" NOT NULL,   -- the function that makes the change
    to_state   once.state NOT NULL,
    guard      text NOT NULL,               -- what must hold besides
    UNIQUE (from_state, event, to_state)
);
ALTER TABLE once.transition REPLICA IDENTITY FULL;
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
    ('processing',       'start',   'succeeded',        'the lease has passed and verify says: happened'),
    ('processing',       'claim',   'in_doubt',
        'the lease has passed and policy, verify or used-up attempts say so'),
    ('processing',       'retire_day', 'in_doubt',      'the lease has passed; the row moves to the archive'),
    ('processing',       'recover', 'succeeded',        'the lease has passed and verify says: happened'),
    ('processing',       'recover', 'in_doubt',
        'the lease has passed and policy, verify or used-up attempts say so'),
    ('processing',       'recover', 'failed_final',
        'the lease has passed, verify says: absent, and attempts are used up: abandoned'),
    ('in_doubt',         'recover', 'succeeded',        'verify says: happened; the fence rises'),
    ('in_doubt',         'recover', 'failed_retryable', 'verify says: absent; the fence rises'),
    ('in_doubt',         'recover', 'failed_final',
        'verify says: absent, and attempts are used up: abandoned; the fence rises'),
    ('processing',       'keep_step', 'in_doubt',       'the lease has passed and the key''s day is closed'),
    ('processing',       'finish',  'succeeded',        'the lease has passed; the fence rises'),
    ('processing',       'finish',  'failed_retryable', 'the lease has passed; the fence rises'),
    ('processing',       'finish',  'failed_final',     'the lease has passed; the fence rises'),
    ('processing',       'renew',   'processing',       'the fence is current'),
    ('processing',       'release', 'failed_retryable', 'the fence is current'),
    ('processing',       'complete', 'succeeded',       'the fence is current'),
    ('processing',       'fail',    'failed_retryable', 'the fence is current'),
    ('processing',       'fail',    'failed_final',     'the fence is current'),
    ('processing',       'fail',    'in_doubt',         'the fence is current'),
    ('in_doubt',         'claim',   'succeeded',        'verify says: happened'),
    ('in_doubt',         'claim',   'processing',       'verify says: absent, and attempts are left; the fence rises'),
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
-- An interval is compared as if a month had 30 days, and added by the calendar: '-12 months 361 days' is more than nothing,
-- and ends before it began. So terms are judged by the calendar too, from a February, where months are shortest. None is
-- longer than 100 years: one that leads beyond what a timestamp holds would stop the keeper for all scopes.
CREATE TABLE once.setting (
    only_row           boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    closed_before      integer NOT NULL,                      -- UUIDv7 keys of days before this one are expired
    horizon_days       integer NOT NULL DEFAULT 7 CHECK (horizon_days BETWEEN 1 AND 366),  -- past days kept as partitions
    days_ahead         integer NOT NULL DEFAULT 2 CHECK (days_ahead BETWEEN 1 AND 366),
    clock_skew         interval NOT NULL DEFAULT '5 minutes' CHECK (clock_skew >= '0' AND clock_skew <= '12 hours'),
    salt               bytea NOT NULL DEFAULT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())),
    clock_settle       interval NOT NULL DEFAULT '1 hour' CHECK (clock_settle >= '0' AND clock_settle <= '7 days'),
    dead_retention     interval NOT NULL DEFAULT '90 days' CHECK (dead_retention > '0'),
    decision_retention interval NOT NULL DEFAULT '400 days' CHECK (decision_retention > '0'),
    outbox_retention   interval NOT NULL DEFAULT '1 day' CHECK (outbox_retention >= '0'),
    CONSTRAINT dead_retention_is_at_most_100_years CHECK (dead_retention <= '100 years'
        AND timestamp '2001-02-01' + dead_retention > '2001-02-01'
        AND timestamp '2001-02-01' + dead_retention <= '2101-02-01'),
    CONSTRAINT decision_retention_is_at_most_100_years CHECK (decision_retention <= '100 years'
        AND timestamp '2001-02-01' + decision_retention > '2001-02-01'
        AND timestamp '2001-02-01' + decision_retention <= '2101-02-01'),
    CONSTRAINT outbox_retention_is_at_most_100_years CHECK (outbox_retention <= '100 years'
        AND timestamp '2001-02-01' + outbox_retention >= '2001-02-01'
        AND timestamp '2001-02-01' + outbox_retention <= '2101-02-01'),
    CONSTRAINT clock_settle_is_at_most_7_days CHECK (timestamp '2001-02-01' + clock_settle >= '2001-02-01'
        AND timestamp '2001-02-01' + clock_settle <= '2001-02-08'),
    CONSTRAINT clock_skew_is_at_most_12_hours CHECK (timestamp '2001-02-01' + clock_skew >= '2001-02-01'
        AND timestamp '2001-02-01' + clock_skew <= '2001-02-01 12:00')
);

-- The policy of a scope; the row '' is the default for scopes that have none of their own.
CREATE TABLE once.scope (
    scope              text COLLATE "C" PRIMARY KEY CHECK (length(scope) <= 255),
    lease              interval NOT NULL DEFAULT '60 seconds' CHECK (lease > '0' AND lease <= '7 days'),
    retention          interval NOT NULL DEFAULT '7 days' CHECK (retention > '0'),
    max_attempts       integer CHECK (max_attempts >= 1),     -- NULL: no limit
    on_stale           text COLLATE "C" NOT NULL DEFAULT 'takeover' CHECK (on_stale IN ('takeover', 'in_doubt',
        'verify')),
    -- "schema.function", of f(tenant text, scope text, key text) RETURNS once.verification, resolved whenever it is called:
    -- pg_upgrade refuses a database with a column of type regprocedure.
    verify             text COLLATE "C",
    -- The floor lets finish() skip this table for the small bodies that nearly all answers have.
    response_bytes_max integer NOT NULL DEFAULT 1048576 CHECK (response_bytes_max BETWEEN 8192 AND 67108864),
    CHECK ((on_stale = 'verify') = (verify IS NOT NULL)),
    CONSTRAINT lease_is_at_most_7_days CHECK (timestamp '2001-02-01' + lease > '2001-02-01'
        AND timestamp '2001-02-01' + lease <= '2001-02-08'),
    CONSTRAINT retention_is_at_most_100_years CHECK (retention <= '100 years'
        AND timestamp '2001-02-01' + retention > '2001-02-01' AND timestamp '2001-02-01' + retention <= '2101-02-01')
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

-- What once.start answers. A type of its own, because a function with as many OUT parameters builds its row type anew at
-- each call.
CREATE TYPE once.started AS (
    verdict          text,      -- 'proceed' | 'replay'
    state            text,
    response_status  integer,
    response_headers jsonb,
    response_body    bytea,
    result_type      text,
    result_id        text,
    error_code       text,
    error_message    text,
    fence            integer,
    traceparent      text
);

-- What a claim answers.
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

-- The tenants that a bound role may name. A role with EXECUTE on once.any_tenant() is not bound.
CREATE TABLE once.binding (
    role_name text COLLATE "C",
    tenant    text COLLATE "C",
    PRIMARY KEY (role_name, tenant)
);

-- One row per intent. bucket is the day (from 1 on, since 1970) in a UUIDv7 key and 0 for every other key: a pure function of the
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

-- The highest fence that was deleted with an intent of bucket 0: see once._first_fence. Only the keeper moves it, and only forwards.
CREATE SEQUENCE once.fence_floor_seq AS integer MINVALUE 0 START WITH 0;
COMMENT ON SEQUENCE once.fence_floor_seq IS 'new intents of bucket 0 begin above this fence';

-- Rows of retired days that outlive them, by the month of their day.
CREATE TABLE once.archive (LIKE once.intent INCLUDING DEFAULTS, PRIMARY KEY (tenant, scope, key,
    bucket)) PARTITION BY RANGE (bucket);

-- An operator's decisions, and those of recovery: who, when, why, from what to what. Takeovers and the first retries are
-- entries too. before and after: see once._facts.
CREATE TABLE once.decision (
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    decided_by text COLLATE "C" NOT NULL,
    reason     text NOT NULL CHECK (reason <> ''),
    tenant     text COLLATE "C" NOT NULL,
    scope      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    fence      integer NOT NULL,
    from_state once.state NOT NULL,
    to_state   once.state NOT NULL,
    kind       text COLLATE "C" NOT NULL DEFAULT 'resolve',
    before     jsonb,
    after      jsonb
);
CREATE INDEX decision_intent ON once.decision (tenant, scope, key);
-- Where a publication names all tables, PostgreSQL refuses a DELETE from one without a primary key, unless it is told this.
ALTER TABLE once.decision REPLICA IDENTITY FULL;

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

-- The latest day on which an intent's event may have been emitted, times 256: where it is today's, once.emit has not to look
-- into the partitions of the days to come. nextval alone moves it on: that never goes back, whoever does it at once, and a
-- crash adds 32 at most, as each attempt that moves it at the same time adds one. Hence the 256.
DO $$
BEGIN
    EXECUTE format('CREATE SEQUENCE once.outbox_day_seq MINVALUE 0 START WITH %s',
        256 * floor(date_part('epoch', clock_timestamp()) / 86400)::integer);
END $$;
COMMENT ON SEQUENCE once.outbox_day_seq IS 'the latest day of which there may be events, times 256';

-- One row per relay. What `seen` sees is done with: delivered, or parked. Between two snapshots `seen` and `reading` the
-- events are delivered in the order of their ids; those up to after_id are done. xids mean nothing where a dump or logical
-- replication brings them, hence written_by: the transaction that wrote the row, which a copy by rows cannot be. See
-- once._relay_sign.
CREATE TABLE once.relay (
    relay         text COLLATE "C" PRIMARY KEY CHECK (relay <> '' AND length(relay) <= 63),
    written_by    xid NOT NULL DEFAULT pg_current_xact_id()::xid,
    topics        text[] COLLATE "C",           -- LIKE patterns of the topics that it takes; NULL: all
    seen          pg_snapshot NOT NULL,
    reading       pg_snapshot,                  -- NULL: no batch is under way
    after_id      bigint NOT NULL DEFAULT 0,
    started_at    timestamptz NOT NULL,
    progressed_at timestamptz NOT NULL
);

-- Set by once.relay_flush, always to the same: what counts is that this is written.
CREATE SEQUENCE once.relay_flush_seq;

-- Events that a relay has passed and not delivered: 'waiting' behind another of their aggregate (or for their first
-- attempt), 'retrying' at next_at, or 'dead' after the last attempt. The event itself stays in the outbox. No foreign key:
-- whoever parks does so under the relay's row, and pg_restore -j fills the tables of an extension in any order.
CREATE TABLE once.parked_event (
    relay          text COLLATE "C" NOT NULL,
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
ALTER TABLE once.parked_decision REPLICA IDENTITY FULL;

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

-- What the keeper remembers between its short transactions. Everything here may be lost with the process at any moment and
-- is picked up by the next keeper from these rows.

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
