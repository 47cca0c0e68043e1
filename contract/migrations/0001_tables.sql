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
