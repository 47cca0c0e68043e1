-- SPDX-License-Identifier: PostgreSQL
-- Intents: their states, the policies of scopes, what calls answer, the rows themselves, and the
-- decisions about them. Only the owner touches a table; everybody else calls functions. Text is
-- COLLATE "C" in all tables: comparisons are of bytes, and an index can serve them whatever the
-- caller's collation.

CREATE TYPE once.state AS ENUM ('processing', 'succeeded', 'failed_retryable', 'failed_final', 'in_doubt');
COMMENT ON TYPE once.state IS 'what is known of an intent; the allowed changes are in once.transition';

-- Every change of state that the contract makes, and no other. tests/contract/test_transitions.py
-- walks all combinations against this table.
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
    ('processing',       'claim',   'succeeded',        'the lease has passed and verify answers: happened'),
    ('processing',       'start',   'succeeded',        'the lease has passed and verify answers: happened'),
    ('processing',       'claim',   'in_doubt',
        'the lease has passed and policy, verify or used-up attempts say so'),
    ('processing',       'retire_day', 'in_doubt',      'the lease has passed; the row moves to the archive'),
    ('processing',       'recover', 'succeeded',        'the lease has passed and verify answers: happened'),
    ('processing',       'recover', 'in_doubt',
        'the lease has passed and policy, verify or used-up attempts say so'),
    ('processing',       'recover', 'failed_final',
        'the lease has passed, verify answers: absent, and attempts are used up: abandoned'),
    ('in_doubt',         'recover', 'succeeded',        'verify answers: happened; the fence rises'),
    ('in_doubt',         'recover', 'failed_retryable', 'verify answers: absent; the fence rises'),
    ('in_doubt',         'recover', 'failed_final',
        'verify answers: absent, and attempts are used up: abandoned; the fence rises'),
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
    ('in_doubt',         'claim',   'succeeded',        'verify answers: happened'),
    ('in_doubt',         'claim',   'processing',
        'attempts are left, and verify answers: absent, or it fell silent and the claim takes over; the fence rises'),
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

-- One row: what holds for the whole installation. Made, like the default policy, by the first
-- once.add_days() and not here: a restored dump of an extension brings its own. An interval is
-- compared as if a month had 30 days, and added by the calendar: '-12 months 361 days' is more than
-- nothing, and ends before it began. So terms are judged by the calendar too, from a February,
-- where months are shortest. None is longer than 100 years: one that leads beyond what a timestamp
-- holds would stop the keeper for all scopes.
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
    on_stale           text COLLATE "C" NOT NULL DEFAULT 'in_doubt' CHECK (on_stale IN ('in_doubt', 'takeover',
        'verify')),
    -- "schema.function", of f(tenant text, scope text, key text) RETURNS once.verification,
    -- resolved whenever it is called: pg_upgrade refuses a database with a column of type
    -- regprocedure.
    verify             text COLLATE "C",
    -- The floors let finish() and emit() skip this table for nearly all answers and events.
    response_bytes_max integer NOT NULL DEFAULT 1048576 CHECK (response_bytes_max BETWEEN 8192 AND 67108864),
    event_bytes_max    integer NOT NULL DEFAULT 1048576 CHECK (event_bytes_max BETWEEN 8192 AND 67108864),    -- of a payload, as text
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
    response_body    bytea,
    response_headers jsonb,
    result_type      text,
    result_id        text
);

-- What an attempt leaves: the answer that retries get, what it points to, and the error of one that
-- failed.
CREATE TYPE once.outcome AS (
    response_status  integer,
    response_body    bytea,
    response_headers jsonb,
    result_type      text,
    result_id        text,
    error_code       text,
    error_message    text
);

-- What once.start answers. A type of its own, because a function with as many OUT parameters builds
-- its row type anew at each call.
CREATE TYPE once.started AS (
    verdict          text,      -- 'proceed' | 'replay'
    state            text,
    response_status  integer,
    response_body    bytea,
    response_headers jsonb,
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
    response_body    bytea,
    response_headers jsonb,
    result_type      text,
    result_id        text,
    error_code       text,
    error_message    text,
    lease_until      timestamptz,
    attempts         integer,
    traceparent      text
);

-- What a look at an intent answers.
CREATE TYPE once.peeked AS (
    verdict          text,
    fence            integer,
    state            text,
    response_status  integer,
    response_body    bytea,
    response_headers jsonb,
    result_type      text,
    result_id        text,
    error_code       text,
    error_message    text,
    owner            text,
    lease_until      timestamptz,
    attempts         integer,
    created_at       timestamptz,
    completed_at     timestamptz,
    traceparent      text
);

-- One row per intent. bucket is the day (from 1 on, since 1970) in a UUIDv7 key and 0 for every
-- other key: a pure function of the key, so that this primary key alone keeps an intent unique over
-- all partitions. The key comes before the tenant in it: a look-up compares column after column until
-- one differs, and a tenant seldom does; the scope comes first for the sake of who looks through one.
-- No index but the primary key, and half of each page left free (fillfactor 50):
-- completing a claim is a HOT update, also where a batch fills a page with claims before the first
-- is completed. Bounds on text are the functions' business.
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
    redirects        bytea[],                 -- fingerprints of the requests that this one was redirected to: see once.fail
    owner            text COLLATE "C",
    result_type      text COLLATE "C",
    result_id        text COLLATE "C",
    error_code       text COLLATE "C",
    error_message    text COLLATE "C",
    traceparent      text COLLATE "C",
    response_body    bytea,
    response_headers jsonb,
    PRIMARY KEY (scope, key, tenant, bucket)
) PARTITION BY RANGE (bucket);
-- An ordinary range, not DEFAULT: a default partition forbids DETACH CONCURRENTLY.
CREATE TABLE once.intent_d0 PARTITION OF once.intent FOR VALUES FROM (0) TO (1) WITH (fillfactor = 50);

-- The second (since 1970) of the last failure to make a partition in passing: see once._make_days.
CREATE SEQUENCE once.days_failed_seq;
COMMENT ON SEQUENCE once.days_failed_seq IS 'when the calls last failed to make a partition';

-- Where once.strict is set: what a transaction has started, for as long as it takes to note that its end is to ask for the
-- outcome: at COMMIT, at PREPARE TRANSACTION, or where somebody sets all constraints immediate. No row is ever committed.
CREATE UNLOGGED TABLE once.unfinished (
    tenant text COLLATE "C" NOT NULL,
    scope  text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    fence  integer NOT NULL
);
ALTER TABLE once.unfinished REPLICA IDENTITY FULL;      -- as once.decision, should anybody set it LOGGED; pgonce doctor asks for it
CREATE FUNCTION once._ask_unfinished() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM once._check_finished(NEW.tenant, NEW.scope, NEW.key, NEW.fence);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER an_outcome_is_owed AFTER INSERT ON once.unfinished DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION once._ask_unfinished();

-- The highest fence that was deleted with an intent of bucket 0: see once._first_fence. Only the
-- keeper moves it, and only forwards.
CREATE SEQUENCE once.fence_floor_seq AS integer MINVALUE 0 START WITH 0;
COMMENT ON SEQUENCE once.fence_floor_seq IS 'new intents of bucket 0 begin above this fence';

-- Rows of retired days that outlive them, by the month of their day.
CREATE TABLE once.archive (LIKE once.intent INCLUDING DEFAULTS, PRIMARY KEY (scope, key, tenant,
    bucket)) PARTITION BY RANGE (bucket);

-- An operator's decisions, and those of recovery: who, when, why, from what to what. Takeovers and
-- the first retries are entries too. before and after: see once._facts.
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
-- Where a publication names all tables, PostgreSQL refuses a DELETE from one without a primary key,
-- without this.
ALTER TABLE once.decision REPLICA IDENTITY FULL;
