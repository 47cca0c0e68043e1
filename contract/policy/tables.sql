-- SPDX-License-Identifier: PostgreSQL
-- What is allowed: the settings of the installation, the policies of scopes, and the fields of an outcome and of a verify function's
-- answer. Only the owner accesses tables; all other roles call functions. Text is COLLATE "C" in all tables: comparisons are by bytes,
-- and an index can serve them under any collation of the caller.

-- One row: the settings of the whole installation. Like the default policy, the first once.add_days() creates it, not this file: a
-- restored dump of an extension brings its own. PostgreSQL compares intervals as if a month had 30 days, and adds them by the calendar:
-- '-12 months 361 days' is greater than 0, and yet ends before it begins. So the checks also add each term to a February, the shortest
-- month. No term is longer than 100 years: one beyond the range of timestamps would stop the keeper for all scopes.
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

-- The policy of a scope; the row '' is the default for scopes without a row.
CREATE TABLE once.scope (
    scope              text COLLATE "C" PRIMARY KEY CHECK (length(scope) <= 255),
    lease              interval NOT NULL DEFAULT '60 seconds' CHECK (lease > '0' AND lease <= '7 days'),
    retention          interval NOT NULL DEFAULT '7 days' CHECK (retention > '0'),
    max_attempts       integer CHECK (max_attempts >= 1),     -- NULL: no limit
    on_stale           text COLLATE "C" NOT NULL DEFAULT 'in_doubt' CHECK (on_stale IN ('in_doubt', 'takeover',
        'verify')),
    -- "schema.function", of f(tenant text, scope text, key text) RETURNS once.verification, resolved at each call: pg_upgrade refuses a
    -- database with a column of type regprocedure.
    verify             text COLLATE "C",
    -- The lower bounds let finish() and emit() skip this table for nearly all answers and events.
    response_bytes_max integer NOT NULL DEFAULT 1048576 CHECK (response_bytes_max BETWEEN 8192 AND 67108864),
    event_bytes_max    integer NOT NULL DEFAULT 1048576 CHECK (event_bytes_max BETWEEN 8192 AND 67108864),  -- of a payload
    CHECK ((on_stale = 'verify') = (verify IS NOT NULL)),
    CONSTRAINT lease_is_at_most_7_days CHECK (timestamp '2001-02-01' + lease > '2001-02-01'
        AND timestamp '2001-02-01' + lease <= '2001-02-08'),
    CONSTRAINT retention_is_at_most_100_years CHECK (retention <= '100 years'
        AND timestamp '2001-02-01' + retention > '2001-02-01' AND timestamp '2001-02-01' + retention <= '2101-02-01')
);

-- What a verify function returns: did the effect of this intent happen? The other fields are read only if it did: they are its outcome.
CREATE TYPE once.verification AS (
    answer           text,      -- 'happened', 'absent' or 'unknown'; anything else counts as 'unknown'
    response_status  integer,   -- of replays; NULL: over HTTP, finished without an answer to repeat
    response_body    bytea,
    response_headers jsonb,     -- a flat object of texts: {"Content-Type": "application/json"}
    result_type      text,      -- with result_id, a reference to the result: pgonce find --result looks for it
    result_id        text
);

-- What an attempt leaves: the answer for its retries, the result that it refers to, and the error if it failed.
CREATE TYPE once.outcome AS (
    response_status  integer,
    response_body    bytea,
    response_headers jsonb,
    result_type      text,
    result_id        text,
    error_code       text,
    error_message    text
);
