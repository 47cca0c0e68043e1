-- SPDX-License-Identifier: PostgreSQL
-- CREATE EXTENSION pgonce_native: C functions that replace the contract's in plans. They cannot be
-- called by name (no value has the type internal), and they name no object of the contract, so the
-- extension can be created before it, as in a restored dump, or after it. Their arguments and
-- results are those of the call that they replace; a set's columns come from the declaration here.
\echo Use "CREATE EXTENSION pgonce_native" to load this file. \quit
CREATE SCHEMA once_native;
COMMENT ON SCHEMA once_native IS 'pgonce_native: the plain path of pgonce''s hot functions in C';

CREATE FUNCTION once_native.start(internal, anyelement) RETURNS anyelement LANGUAGE c AS 'MODULE_PATHNAME', 'native_start';
CREATE FUNCTION once_native.try_start(internal, anyelement) RETURNS anyelement LANGUAGE c AS 'MODULE_PATHNAME', 'native_try_start';
CREATE FUNCTION once_native.finish(internal, anyelement) RETURNS anyelement LANGUAGE c AS 'MODULE_PATHNAME', 'native_finish';
CREATE FUNCTION once_native.finish_new(internal, anyelement) RETURNS anyelement LANGUAGE c AS 'MODULE_PATHNAME', 'native_finish_new';
CREATE FUNCTION once_native.claim(internal, anyelement) RETURNS anyelement LANGUAGE c AS 'MODULE_PATHNAME', 'native_claim';
CREATE FUNCTION once_native.complete(internal, anyelement) RETURNS anyelement LANGUAGE c AS 'MODULE_PATHNAME', 'native_complete';
CREATE FUNCTION once_native.receive(internal, anyelement) RETURNS anyelement LANGUAGE c AS 'MODULE_PATHNAME', 'native_receive';
CREATE FUNCTION once_native.emit(internal, anyelement) RETURNS anyelement LANGUAGE c AS 'MODULE_PATHNAME', 'native_emit';
CREATE FUNCTION once_native.claim_many(internal, anyelement) RETURNS TABLE (ord integer, verdict text, fence integer, state text,
    response_status integer, response_body bytea, response_headers jsonb, result_type text, result_id text, error_code text,
    error_message text, lease_until timestamptz, attempts integer, traceparent text, kept_ms integer)
    LANGUAGE c AS 'MODULE_PATHNAME', 'native_claim_many';
CREATE FUNCTION once_native.complete_many(internal, anyelement) RETURNS TABLE (ord integer, verdict text, error_code text,
    error_message text) LANGUAGE c AS 'MODULE_PATHNAME', 'native_complete_many';
CREATE FUNCTION once_native.receive_many(internal, anyelement) RETURNS TABLE (ordinal integer, verdict text, code text)
    LANGUAGE c AS 'MODULE_PATHNAME', 'native_receive_many';
-- STABLE, like the contract's function, and with as few arguments.
CREATE FUNCTION once_native.salt(internal) RETURNS bytea LANGUAGE c STABLE AS 'MODULE_PATHNAME', 'native_salt';

-- Loads the library into a session; see once._find_native.
CREATE FUNCTION once_native.load() RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'native_load';
-- How many calls of this session the library has answered itself; the others went to SQL.
CREATE FUNCTION once_native.answered() RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'native_answered';
-- Why the plain calls of this session go to SQL, those of once.emit (of_events) or all others; NULL: this library answers them.
CREATE FUNCTION once_native.obstacle(of_events boolean) RETURNS text LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'native_obstacle';

GRANT USAGE ON SCHEMA once_native TO PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA once_native TO PUBLIC;
