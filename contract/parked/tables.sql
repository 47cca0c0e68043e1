-- SPDX-License-Identifier: PostgreSQL
-- Parked events and parked messages, for operators: the filter, the listed columns, and the decisions.

-- Operators' decisions on parked events and messages: who, when, why.
CREATE TABLE once.parked_decision (
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    decided_by text COLLATE "C" NOT NULL,
    reason     text NOT NULL CHECK (reason <> ''),
    what       text COLLATE "C" NOT NULL CHECK (what IN ('retry', 'discard', 'replay', 'adopt', 'drop')),
    relay      text COLLATE "C",          -- of events; NULL: of a delayed event
    consumer   text COLLATE "C",          -- of messages
    tenant     text COLLATE "C",
    subject    text COLLATE "C" NOT NULL, -- the event's id, the message's id, from when, or the relay
    from_state text COLLATE "C",
    error      text                       -- its last error before the decision
);
CREATE INDEX parked_decision_subject ON once.parked_decision (subject);
ALTER TABLE once.parked_decision REPLICA IDENTITY FULL;

-- A filter for parked events and messages; NULL: all.
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

-- What operators see of one event or message.
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
    next_at        timestamptz, -- NULL: not before the earlier ones are gone
    error          text,
    sqlstate       text,        -- of a message
    since          timestamptz, -- when an event was emitted, when a message was parked
    place          text         -- its place in the list, to continue after it
);

-- One part of many, of one holder: found by a look, then decided.
CREATE TYPE once.parked_piece AS (
    holder text,                -- the relay or the consumer
    tenant text,                -- of messages
    ids    text[],
    topics text[],
    states text[],              -- before the decision
    codes  text[],              -- NULL: decided; else why it stays as it was
    next   text                 -- where the next part begins; NULL: done
);
