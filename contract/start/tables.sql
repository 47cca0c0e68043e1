-- SPDX-License-Identifier: PostgreSQL
-- The type that once.start returns, and the table of starts without an outcome.

-- What once.start and once.try_start return. It is a type because a function with as many OUT parameters builds its row type again at
-- each call.
CREATE TYPE once.started AS (
    verdict          text,      -- 'proceed' or 'replay_success'; once.try_start also returns the verdicts that forbid the effect
    state            text,
    response_status  integer,   -- this and the next six: the stored outcome, in a replay
    response_body    bytea,
    response_headers jsonb,
    result_type      text,
    result_id        text,
    error_code       text,
    error_message    text,
    fence            integer,
    traceparent      text       -- of the first attempt that had one
);

-- If once.strict is set: each intent that a transaction has started. The row exists only long enough to set off the deferred trigger,
-- which checks for the outcome at COMMIT, at PREPARE TRANSACTION, or when all constraints are set immediate. No row is ever committed.
CREATE UNLOGGED TABLE once.unfinished (
    tenant text COLLATE "C" NOT NULL,
    scope  text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    fence  integer NOT NULL
);
ALTER TABLE once.unfinished REPLICA IDENTITY FULL;      -- as for once.decision, in case it is set LOGGED; pgonce doctor checks it
CREATE FUNCTION once._ask_unfinished() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM once._check_finished(NEW.tenant, NEW.scope, NEW.key, NEW.fence);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER an_outcome_is_owed AFTER INSERT ON once.unfinished DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION once._ask_unfinished();
