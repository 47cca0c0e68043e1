-- SPDX-License-Identifier: PostgreSQL
-- Parked events and parked messages, for operators: which are meant, what is shown of them, and what was decided.

-- What operators did with parked events and messages: who, when, why.
CREATE TABLE once.parked_decision (
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    decided_by text COLLATE "C" NOT NULL,
    reason     text NOT NULL CHECK (reason <> ''),
    what       text COLLATE "C" NOT NULL CHECK (what IN ('retry', 'discard', 'replay', 'adopt', 'drop')),
    relay      text COLLATE "C",          -- of events; NULL: of one that was delayed
    consumer   text COLLATE "C",          -- of messages
    tenant     text COLLATE "C",
    subject    text COLLATE "C" NOT NULL, -- the event's id, the message's id, from when, or the relay
    from_state text COLLATE "C",
    error      text                       -- the last error of what was decided on
);
CREATE INDEX parked_decision_subject ON once.parked_decision (subject);
ALTER TABLE once.parked_decision REPLICA IDENTITY FULL;

-- Which are meant; NULL: all.
CREATE TYPE once.parked_filter AS (
    kind       text,
    relay      text,            -- of events
    consumer   text,            -- of messages
    tenant     text,
    topic      text,
    event_type text,
    error      text,            -- a part of it, or its SQLSTATE
    state      text,
    before     timestamptz      -- events that were emitted before then, messages that were parked before then
);

-- What operators are shown of one.
CREATE TYPE once.parked_item AS (
    kind           text,        -- 'event' or 'message'
    holder         text,        -- the relay or the consumer; NULL: none, a delayed event
    state          text,        -- 'waiting', 'retrying', 'dead'; 'pending': the relay has not reached it; 'delayed': it is not due
    id             text,
    topic          text,
    event_type     text,
    tenant         text,
    aggregate_type text,        -- of an event
    aggregate_id   text,
    key            text,        -- of a message
    attempts       integer,
    next_at        timestamptz, -- NULL: not before what stands before it is gone
    error          text,
    sqlstate       text,        -- of a message
    since          timestamptz  -- when an event was emitted, when a message was parked
);

-- Some of many, of one holder: what a look has found, then what was decided about them.
CREATE TYPE once.parked_piece AS (
    holder text,                -- the relay or the consumer
    tenant text,                -- of messages
    ids    text[],
    topics text[],
    states text[],              -- before the decision
    codes  text[],              -- NULL: decided about; else why it stays as it was
    next   text                 -- after which the next piece begins; NULL: through
);
