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
