-- SPDX-License-Identifier: PostgreSQL
-- What the keeper remembers between its short transactions. Everything here may be lost with the
-- process at any moment and is picked up by the next keeper from these rows.

-- The one keeper: a lease in a row, since a session's lock does not live behind a pooler in
-- transaction mode.
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
    longest_pause  interval NOT NULL DEFAULT '0',     -- between two readings, of late
    steady         interval NOT NULL DEFAULT '0',     -- for how long it has been
    unsteady_since timestamptz NOT NULL,              -- the last surprise, and what it was
    why            text NOT NULL
);

-- The days that are being retired. 'look': still open, searched for attempts under a lease.
-- 'doubt', 'move': closed (the table is once.intent_closed_dN); what outlives the day goes to
-- once.archive. 'detach', 'drop': nothing of it is needed.
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

-- The events that no relay takes: what the last whole pass of the step 'untaken' found, by topic, and the one under way so far.
CREATE TABLE once.untaken (
    topic  text COLLATE "C" PRIMARY KEY,
    events bigint NOT NULL,
    oldest timestamptz NOT NULL
);
CREATE TABLE once.untaking (
    topic  text COLLATE "C" PRIMARY KEY,
    events bigint NOT NULL,
    oldest timestamptz NOT NULL
);

-- What one piece of a step answers.
CREATE TYPE once.kept AS (
    done    bigint,
    more    boolean,
    command text,
    detail  text
);

-- What decides which rows may be deleted: see once._limits.
CREATE TYPE once.limits AS (
    now                timestamptz,
    retention          interval,        -- of scopes without a policy of their own
    longest            interval,        -- retention of any scope
    needed             timestamptz,     -- relays need everything since
    consumers          boolean,         -- some report their positions
    skew               interval,        -- that the clocks of others may have
    decision_retention interval
);
