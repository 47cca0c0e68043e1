-- SPDX-License-Identifier: PostgreSQL
-- Intents: their states, their rows, and the type that a look at one returns. See policy/tables.sql.

CREATE TYPE once.state AS ENUM ('processing', 'succeeded', 'failed_retryable', 'failed_final', 'in_doubt');
COMMENT ON TYPE once.state IS 'what is known about an intent; once.transition lists the allowed changes';

-- All changes of state that the contract makes. tests/contract/test_transitions.py checks all combinations against this table.
CREATE TABLE once.transition (
    from_state once.state,                  -- NULL: no row yet
    event      text COLLATE "C" NOT NULL,   -- the function that makes the change
    to_state   once.state NOT NULL,
    guard      text NOT NULL,               -- what else must hold
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

-- What a look at an intent returns.
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

-- One row per intent. bucket is the day (from 1 on, since 1970) in a UUIDv7 key and 0 for every other key. It depends on the key alone,
-- so that this primary key keeps an intent unique over all partitions. In it the key comes before the tenant: a look-up compares column
-- after column until one differs, and tenants seldom differ. The scope comes first so that one scope can be scanned. There is no other
-- index, and half of each page is left free (fillfactor 50): completing a claim is a HOT update, even if a batch fills a page with claims
-- before the first is completed. The functions check the length of texts.
CREATE TABLE once.intent (
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    completed_at     timestamptz,
    expires_at       timestamptz,             -- NULL: completed_at plus the scope's retention at that time
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

-- The second (since 1970) in which a call last failed to create a partition: see once._make_days.
CREATE SEQUENCE once.days_failed_seq;
COMMENT ON SEQUENCE once.days_failed_seq IS 'when a call last failed to make a partition';

-- The highest fence that was deleted with an intent of bucket 0: see once._first_fence. Only the keeper changes it, and only upwards.
CREATE SEQUENCE once.fence_floor_seq AS integer MINVALUE 0 START WITH 0;
COMMENT ON SEQUENCE once.fence_floor_seq IS 'new intents of bucket 0 begin above this fence';

-- Rows that outlive their retired day, by the month of that day.
CREATE TABLE once.archive (LIKE once.intent INCLUDING DEFAULTS, PRIMARY KEY (scope, key, tenant,
    bucket)) PARTITION BY RANGE (bucket);
