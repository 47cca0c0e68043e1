-- SPDX-License-Identifier: PostgreSQL
-- What once.start answers, and what it notes.

-- What once.start answers. A type of its own, because a function with as many OUT parameters builds
-- its row type anew at each call.
CREATE TYPE once.started AS (
    verdict          text,      -- 'proceed' | 'replay_success', and of once.try_start what forbids the effect
    state            text,
    response_status  integer,
    response_body    bytea,
    response_headers jsonb,
    result_type      text,
    result_id        text,
    error_code       text,
    error_message    text,
    fence            integer,
    traceparent      text
);

-- Where once.strict is set: what a transaction has started, for as long as it takes to note that its end is to ask for the
-- outcome: at COMMIT, at PREPARE TRANSACTION, or where somebody sets all constraints immediate. No row is ever committed.
CREATE UNLOGGED TABLE once.unfinished (
    tenant text COLLATE "C" NOT NULL,
    scope  text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    fence  integer NOT NULL
);
ALTER TABLE once.unfinished REPLICA IDENTITY FULL;      -- as once.decision, should anybody set it LOGGED; pgonce doctor asks for it
CREATE FUNCTION once._ask_unfinished() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM once._check_finished(NEW.tenant, NEW.scope, NEW.key, NEW.fence);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER an_outcome_is_owed AFTER INSERT ON once.unfinished DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION once._ask_unfinished();
