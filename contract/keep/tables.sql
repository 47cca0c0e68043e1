-- SPDX-License-Identifier: PostgreSQL
-- What the keeper stores between its short transactions. Its process may die at any moment, and the next keeper continues from these
-- rows.

-- The one keeper: a lease in a row, since a session's lock does not work behind a pooler in transaction mode.
CREATE TABLE once.keeper (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    keeper      text COLLATE "C" NOT NULL,
    lease_until timestamptz NOT NULL,
    last_round  timestamptz
);

-- The state of each step, and where it continues: the table that it reads by blocks of the heap.
CREATE TABLE once.keeper_step (
    step          text COLLATE "C" PRIMARY KEY,
    last_started  timestamptz,
    last_success  timestamptz,
    last_error_at timestamptz,
    last_error    text,
    done_total    bigint NOT NULL DEFAULT 0,
    leaf          text COLLATE "C",           -- NULL: begin again
    block         bigint NOT NULL DEFAULT 0,
    place         text COLLATE "C",           -- within these blocks: see the cursor of once.recover
    ended_at      timestamptz                 -- the last complete pass
);

-- The clock's readings, which are compared with each other: see once._clock.
CREATE TABLE once.clock (
    only_row       boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    read_at        timestamptz NOT NULL,
    longest_pause  interval NOT NULL DEFAULT '0',     -- the longest recent pause between two readings
    steady         interval NOT NULL DEFAULT '0',     -- for how long it has been steady
    unsteady_since timestamptz NOT NULL,              -- the last jump; why describes it
    why            text NOT NULL
);

-- The days that are being retired. 'look': still open, searched for attempts under a lease. 'doubt', 'move': closed (the table is
-- once.intent_closed_dN); rows that outlive the day move to once.archive. 'detach', 'drop': no row of it is needed.
CREATE TABLE once.closing (
    day        integer PRIMARY KEY,
    phase      text COLLATE "C" NOT NULL DEFAULT 'look' CHECK (phase IN ('look', 'doubt', 'move', 'detach', 'drop')),
    block      bigint NOT NULL DEFAULT 0,     -- the phase continues here
    moved      bigint NOT NULL DEFAULT 0,     -- in the current pass: a pass that moves nothing is the last
    started_at timestamptz NOT NULL,
    held       text,                          -- what it waits for; NULL: nothing
    held_since timestamptz
);

-- The results of the last complete sweep, by scope, and those of the current one so far.
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

-- The events that no relay takes: the results of the last complete pass of the step 'untaken', by topic, and those of the current one so
-- far.
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

-- The result of one part of a step.
CREATE TYPE once.kept AS (
    done    bigint,
    more    boolean,
    command text,
    detail  text
);

-- The values that decide which rows may be deleted: see once._limits.
CREATE TYPE once.limits AS (
    now                timestamptz,
    retention          interval,        -- of scopes without a policy
    longest            interval,        -- retention of any scope
    needed             timestamptz,     -- relays need everything since
    consumers          boolean,         -- some report their positions
    skew               interval,        -- allowed for other clocks
    decision_retention interval
);
