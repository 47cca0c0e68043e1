-- SPDX-License-Identifier: PostgreSQL
-- The decisions about intents.

-- An operator's decisions, and those of recovery: who, when, why, from what to what. Takeovers and
-- the first retries are entries too. before and after: see once._summary.
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
