-- SPDX-License-Identifier: PostgreSQL
-- Seeing, version 4: the trace that an intent belongs to is taken, kept and given back.

-- What a claim answers: a type of its own, for the reason that once.begun is one.
CREATE TYPE once.claimed AS (
    verdict          text,
    fence            integer,
    state            text,
    response_status  integer,
    response_headers jsonb,
    response_body    bytea,
    result_type      text,
    result_id        text,
    error_code       text,
    error_message    text,
    lease_until      timestamptz,
    attempts         integer,
    traceparent      text
);
ALTER TYPE once.begun ADD ATTRIBUTE traceparent text;

-- What the intent was before and after a decision (once._facts), and of which kind it was: takeovers and the first retries
-- are entries too.
ALTER TABLE once.decision ADD COLUMN kind text COLLATE "C" NOT NULL DEFAULT 'resolve', ADD COLUMN before jsonb,
    ADD COLUMN after jsonb;
UPDATE once.decision AS d SET kind = CASE WHEN d.reason LIKE 'verify: %' THEN 'verify'
                                          WHEN d.reason LIKE 'its day was retired%' THEN 'retire' ELSE d.kind END;

-- Those whose parameters or results have grown: CREATE OR REPLACE would put the new beside the old, and a call that leaves
-- out what has a default would not know which is meant.
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN SELECT p.oid::regprocedure AS name FROM pg_catalog.pg_proc AS p
                WHERE p.pronamespace = 'once'::regnamespace
                  AND p.proname IN ('begin', 'begin_new', '_begin_over', 'finish', 'finish_new', '_finish_over', 'claim', '_claim',
                                    '_take_over', 'claim_many', 'peek', 'peek_many', '_peek', 'receive', 'receive_many', 'emit',
                                    '_record')
    LOOP
        EXECUTE format('DROP FUNCTION %s', old.name);
    END LOOP;
END $$;

-- What attempts are told is counted by sequences, one for each thing that is said (once._counted): these are those of scopes
-- without a policy of their own; once._add_counters makes the others.
DO $$
DECLARE
    kind text := CASE WHEN current_setting('server_version_num')::integer >= 150000 THEN 'UNLOGGED' ELSE '' END;
    verdict text;
BEGIN
    FOREACH verdict IN ARRAY ARRAY['new', 'replay', 'mismatch', 'active', 'stale', 'retryable', 'final', 'in_doubt', 'expired',
                                   'process', 'duplicate', 'message_mismatch'] LOOP
        EXECUTE format('CREATE %s SEQUENCE once.counted_%s', kind, verdict);
    END LOOP;
END $$;
