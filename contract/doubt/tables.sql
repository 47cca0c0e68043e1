-- SPDX-License-Identifier: PostgreSQL
-- The decisions about intents.

-- Decisions by operators and by recovery: who, when, why, from which state to which. Takeovers and the first retries are recorded too.
-- before and after: see once._summary.
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
-- Without this, PostgreSQL refuses a DELETE from a table without a primary key if a publication is for all tables.
ALTER TABLE once.decision REPLICA IDENTITY FULL;
