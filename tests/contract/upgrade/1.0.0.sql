-- SPDX-License-Identifier: PostgreSQL
-- pgonce 1.0.0: installs version 1 of the contract, for a database that has none.
-- Made by packaging/sql/build from what pgonce init runs. Do not edit it.
-- Run it with any tool, as the owner of the database or as a role that may CREATE in it. It is one statement, so it does all or nothing,
-- in a transaction or without one. It has no parameters: give it to the driver as it is, without values. Where all is done already, it
-- does nothing. It leaves the settings of the session and of the transaction as they were.
DO $pgonce$
DECLARE
    this_release constant text := '1.0.0';
    origin constant integer := 0;    -- the version of the contract that it upgrades; 0: it installs
    goal constant integer := 1;
    code constant text := '2052a519f461a29f44f3eff3c02f82f4a452d92746a1159bf8dc48bb6c812a60';
    settings constant text[] := ARRAY['search_path', 'check_function_bodies', 'citus.enable_ddl_propagation', 'lock_timeout'];
    before constant text[] := ARRAY(SELECT pg_catalog.current_setting(s.name, true) FROM pg_catalog.unnest(settings) AS s (name));
    place record;
    present boolean;
    recorded integer := 0;
    release_here text;
    code_current boolean := false;
    rows_here integer := 0;
    migrations integer := 0;
    changed integer;
    whole boolean := false;
    problem text;
BEGIN
    EXECUTE $file$
-- Settings for an installation or an upgrade, until its transaction ends: no other search_path decides which object a name means, and a
-- function body may use objects that are created later. Citus does not repeat the DDL on other nodes: each node has a separate contract.
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL check_function_bodies = off;
SET LOCAL citus.enable_ddl_propagation = off;
$file$;
    EXECUTE $file$
SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('pgonce init', 20778)),
       pg_catalog.set_config('lock_timeout', CASE pg_catalog.current_setting('lock_timeout') WHEN '0' THEN '5s'
           ELSE pg_catalog.current_setting('lock_timeout') END, true)
$file$;
    EXECUTE $file$
SELECT n.oid IS NOT NULL AS schema_exists,
       c.oid IS NOT NULL AS record_exists,
       EXISTS (SELECT FROM pg_catalog.pg_extension AS e WHERE e.extname = 'pgonce') AS is_extension,
       pg_catalog.current_setting('server_version_num') AS server_version,
       pg_catalog.current_database() AS database,
       current_user AS role,
       pg_catalog.pg_get_userbyid(n.nspowner) AS owner,
       coalesce(pg_catalog.has_schema_privilege(n.oid, 'usage') AND pg_catalog.has_table_privilege(c.oid, 'select'),
           false) AS readable
  FROM (VALUES (1)) AS one (row)
  LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = 'once'
  LEFT JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = 'migration' AND c.relkind = 'r'
$file$ INTO place;
    present := place.record_exists;
    IF present AND place.readable THEN
        SELECT count(*), coalesce(max(m.version), 0), count(*) FILTER (WHERE m.version > 0), min(m.pgonce) FILTER (WHERE m.version = 0),
               coalesce(bool_or(m.checksum = code) FILTER (WHERE m.version = 0), false),
               min(m.version) FILTER (WHERE m.checksum <> k.checksum)
          INTO rows_here, recorded, migrations, release_here, code_current, changed
          FROM once.migration AS m LEFT JOIN (VALUES (1, 'd76334504e1d55523474bdabfd6078de86af998160a78dadada0a963b7d8b9fe')) AS k (version, checksum) USING (version);
        whole := code_current AND recorded = goal AND migrations = recorded AND changed IS NULL;
    END IF;
    problem := CASE
        WHEN place.server_version::integer < 130000 THEN
            format('this server is PostgreSQL %s: use PostgreSQL 13 to 18', place.server_version::integer / 10000)
        WHEN place.schema_exists AND NOT present THEN
            format('there is a schema "once" of %s without a table once.migration, so it is not pgonce''s: %s', place.owner,
                   'rename it, or use another database')
        WHEN NOT present AND origin > 0 THEN
            format('there is no pgonce here: run pgonce.sql of pgonce %s instead of this file', this_release)
        WHEN NOT present AND NOT has_database_privilege(current_database(), 'CREATE') THEN
            format('role %s may not create a schema here: run it as the owner of the database, or GRANT CREATE ON DATABASE %I TO %I',
                   current_user, current_database(), current_user)
        WHEN NOT present OR place.is_extension AND whole THEN NULL
        WHEN place.is_extension THEN 'it was made by CREATE EXTENSION: use ALTER EXTENSION pgonce UPDATE'
        WHEN NOT place.readable OR NOT pg_has_role(place.owner, 'USAGE') THEN
            format('the contract here belongs to %s, and this is role %s: run it as %s', place.owner, current_user, place.owner)
        WHEN rows_here = 0 THEN
            'once.migration has no rows, as after a dump of the schema alone: load the rows of that dump; only if all tables are '
            'empty, DROP SCHEMA once, once_job CASCADE, then run pgonce.sql'
        WHEN recorded > goal OR recorded = goal AND NOT code_current
             AND string_to_array(substring(release_here, '^[0-9]+[0-9.]*[0-9]'), '.')::integer[]
                 > string_to_array(substring(this_release, '^[0-9]+[0-9.]*[0-9]'), '.')::integer[] THEN
            format('contract %s of pgonce %s is here, newer than this file of pgonce %s: leave it out, a contract is never taken back',
                   recorded, release_here, this_release)
        WHEN changed IS NOT NULL OR migrations <> recorded THEN
            format('migration %s is not recorded as pgonce %s knows it: restore the database, since what else was changed is unknown',
                   coalesce(changed, recorded), this_release)
        WHEN NOT whole AND recorded <> origin THEN
            format('contract %s of pgonce %s is here: run upgrade-%s.sql of pgonce %s instead of this file',
                   recorded, release_here, recorded, this_release)
    END;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('pgonce: nothing was changed in database %s: %s', current_database(), problem);
    END IF;

    IF whole AND NOT place.is_extension THEN    -- a role may have been made since, which was missing then
        EXECUTE $file$
SELECT g.state = 'ok' FROM (WITH roles AS (
    SELECT wanted.role_name, r.oid, wanted.functions
      FROM (VALUES
          ('once_app', ARRAY['start', 'finish', 'claim', 'claim_many', 'complete', 'fail', 'renew', 'release', 'peek', 'receive', 'emit',
              'errors', 'any_tenant']),
          ('once_tenant', ARRAY['start', 'finish', 'claim', 'complete', 'fail', 'renew', 'release', 'peek', 'errors']),
          ('once_relay', ARRAY['relay_take', 'relay_fetch', 'relay_settle', 'relay_due', 'add_days', 'errors']),
          ('once_capture', ARRAY['errors']),
          ('once_consumer', ARRAY['receive', 'receive_many', 'message_park', 'message_due', 'errors']),
          ('once_keeper', ARRAY['keep_steps', 'keep_take', 'keep_step', 'add_days', 'retire_day', 'retire_outbox', 'errors']),
          ('once_reader', ARRAY['story', 'peek', 'parked_summary', 'parked_list', 'errors']),
          ('once_admin', ARRAY['resolve', 'set_scope', 'bind', 'story', 'parked_retry', 'parked_replay', 'errors']))
          AS wanted (role_name, functions)
      LEFT JOIN pg_catalog.pg_roles AS r ON r.rolname = wanted.role_name
), lacking AS (
    SELECT format('%s to %s', f.name, r.role_name) AS what
      FROM roles AS r, unnest(r.functions) AS f (name)
     WHERE r.oid IS NOT NULL
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_proc AS p
                        WHERE p.pronamespace IN (to_regnamespace('once'), to_regnamespace('once_job')) AND p.proname = f.name
                          AND has_schema_privilege(r.oid, p.pronamespace, 'usage') AND has_function_privilege(r.oid, p.oid, 'execute'))
    UNION ALL
    SELECT 'anything of the schema once_job, which is gone' WHERE to_regnamespace('once_job') IS NULL
)
SELECT 'grants', CASE count(*) WHEN 0 THEN 'ok' ELSE 'failed' END,
       coalesce('not granted: '
           || left(string_agg(what, ', ' ORDER BY what), 200), 'the default'),
       'run pgonce init as the owner of the contract'
  FROM lacking) AS g (name, state, detail, hint)
$file$ INTO whole;
    END IF;

    IF NOT present THEN
        EXECUTE $file$
-- The schema of the tables and of the functions that applications and people call. `pgonce init` runs this once, before the migrations;
-- CREATE EXTENSION creates the schema itself and starts at the table.
CREATE SCHEMA once;
COMMENT ON SCHEMA once IS 'pgonce: one durable effect and one answer per intent';
$file$;
        EXECUTE $file$
-- Which migrations ran, and with which text; version 0 is the functions, views and grants as a whole.
CREATE TABLE once.migration (
    version      integer PRIMARY KEY CHECK (version >= 0),
    name         text NOT NULL,
    checksum     text NOT NULL,
    pgonce       text NOT NULL,
    installed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    installed_by text NOT NULL DEFAULT session_user
);
$file$;
    END IF;

    IF recorded < 1 THEN
        EXECUTE $file$
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
$file$;
        EXECUTE $file$
-- Intents: their states, their rows, and the type that a look at one returns. See policy/tables.sql.

CREATE TYPE once.state AS ENUM ('processing', 'succeeded', 'failed_retryable', 'failed_final', 'in_doubt');
COMMENT ON TYPE once.state IS 'what is known about an intent; once.transition lists the allowed changes';

-- All changes of state that the contract makes. tests/contract/test_transitions.py checks all combinations against this table.
CREATE TABLE once.transition (
    from_state once.state,                  -- NULL: no row yet
    event      text COLLATE "C" NOT NULL,   -- the function that makes the change
    to_state   once.state NOT NULL,
    guard      text NOT NULL,               -- what else must hold
    UNIQUE (from_state, event, to_state)
);
ALTER TABLE once.transition REPLICA IDENTITY FULL;
INSERT INTO once.transition VALUES
    (NULL,               'claim',   'processing',       'the key''s day is open'),
    (NULL,               'finish',  'succeeded',        'the key''s day is open'),
    (NULL,               'finish',  'failed_retryable', 'the key''s day is open'),
    (NULL,               'finish',  'failed_final',     'the key''s day is open'),
    (NULL,               'receive', 'succeeded',        'the key''s day is open'),
    ('failed_retryable', 'claim',   'processing',       'attempts are left; the fence rises'),
    ('failed_retryable', 'claim',   'failed_final',     'attempts are used up: abandoned'),
    ('failed_retryable', 'finish',  'succeeded',        'the fence rises'),
    ('failed_retryable', 'finish',  'failed_retryable', 'the fence rises'),
    ('failed_retryable', 'finish',  'failed_final',     'the fence rises'),
    ('processing',       'claim',   'processing',       'the lease has passed and attempts are left; the fence rises'),
    ('processing',       'claim',   'succeeded',        'the lease has passed and verify answers: happened'),
    ('processing',       'start',   'succeeded',        'the lease has passed and verify answers: happened'),
    ('processing',       'claim',   'in_doubt',
        'the lease has passed and policy, verify or used-up attempts say so'),
    ('processing',       'retire_day', 'in_doubt',      'the lease has passed; the row moves to the archive'),
    ('processing',       'recover', 'succeeded',        'the lease has passed and verify answers: happened'),
    ('processing',       'recover', 'in_doubt',
        'the lease has passed and policy, verify or used-up attempts say so'),
    ('processing',       'recover', 'failed_final',
        'the lease has passed, verify answers: absent, and attempts are used up: abandoned'),
    ('in_doubt',         'recover', 'succeeded',        'verify answers: happened; the fence rises'),
    ('in_doubt',         'recover', 'failed_retryable', 'verify answers: absent; the fence rises'),
    ('in_doubt',         'recover', 'failed_final',
        'verify answers: absent, and attempts are used up: abandoned; the fence rises'),
    ('processing',       'keep_step', 'in_doubt',       'the lease has passed and the key''s day is closed'),
    ('processing',       'finish',  'succeeded',        'the lease has passed; the fence rises'),
    ('processing',       'finish',  'failed_retryable', 'the lease has passed; the fence rises'),
    ('processing',       'finish',  'failed_final',     'the lease has passed; the fence rises'),
    ('processing',       'renew',   'processing',       'the fence is current'),
    ('processing',       'release', 'failed_retryable', 'the fence is current'),
    ('processing',       'complete', 'succeeded',       'the fence is current'),
    ('processing',       'fail',    'failed_retryable', 'the fence is current'),
    ('processing',       'fail',    'failed_final',     'the fence is current'),
    ('processing',       'fail',    'in_doubt',         'the fence is current'),
    ('in_doubt',         'claim',   'succeeded',        'verify answers: happened'),
    ('in_doubt',         'claim',   'processing',
        'attempts are left, and verify answers: absent, or it fell silent and the claim takes over; the fence rises'),
    ('in_doubt',         'complete', 'succeeded',       'the fence is current: the attempt itself knows'),
    ('in_doubt',         'fail',    'failed_retryable', 'the fence is current: the attempt itself knows'),
    ('in_doubt',         'fail',    'failed_final',     'the fence is current: the attempt itself knows'),
    ('processing',       'resolve', 'succeeded',        'the lease has passed; recorded in once.decision'),
    ('processing',       'resolve', 'failed_retryable', 'the lease has passed; recorded in once.decision'),
    ('processing',       'resolve', 'failed_final',     'the lease has passed; recorded in once.decision'),
    ('in_doubt',         'resolve', 'succeeded',        'recorded in once.decision'),
    ('in_doubt',         'resolve', 'failed_retryable', 'recorded in once.decision'),
    ('in_doubt',         'resolve', 'failed_final',     'recorded in once.decision'),
    ('failed_retryable', 'resolve', 'succeeded',        'recorded in once.decision'),
    ('failed_retryable', 'resolve', 'failed_final',     'recorded in once.decision');

-- What a look at an intent returns.
CREATE TYPE once.peeked AS (
    verdict          text,
    fence            integer,
    state            text,
    response_status  integer,
    response_body    bytea,
    response_headers jsonb,
    result_type      text,
    result_id        text,
    error_code       text,
    error_message    text,
    owner            text,
    lease_until      timestamptz,
    attempts         integer,
    created_at       timestamptz,
    completed_at     timestamptz,
    traceparent      text
);

-- One row per intent. bucket is the day (from 1 on, since 1970) in a UUIDv7 key and 0 for every other key. It depends on the key alone,
-- so that this primary key keeps an intent unique over all partitions. In it the key comes before the tenant: a look-up compares column
-- after column until one differs, and tenants seldom differ. The scope comes first so that one scope can be scanned. There is no other
-- index, and half of each page is left free (fillfactor 50): completing a claim is a HOT update, even if a batch fills a page with claims
-- before the first is completed. The functions check the length of texts.
CREATE TABLE once.intent (
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    completed_at     timestamptz,
    expires_at       timestamptz,             -- NULL: completed_at plus the scope's retention at that time
    lease_until      timestamptz,
    bucket           integer NOT NULL,
    fence            integer NOT NULL,
    attempts         integer NOT NULL,
    response_status  integer,
    state            once.state NOT NULL,
    format_version   smallint NOT NULL DEFAULT 1,
    tenant           text COLLATE "C" NOT NULL,
    scope            text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    fingerprint      bytea NOT NULL,
    redirects        bytea[],                 -- fingerprints of the requests that this one was redirected to: see once.fail
    owner            text COLLATE "C",
    result_type      text COLLATE "C",
    result_id        text COLLATE "C",
    error_code       text COLLATE "C",
    error_message    text COLLATE "C",
    traceparent      text COLLATE "C",
    response_body    bytea,
    response_headers jsonb,
    PRIMARY KEY (scope, key, tenant, bucket)
) PARTITION BY RANGE (bucket);
-- An ordinary range, not DEFAULT: a default partition forbids DETACH CONCURRENTLY.
CREATE TABLE once.intent_d0 PARTITION OF once.intent FOR VALUES FROM (0) TO (1) WITH (fillfactor = 50);

-- The second (since 1970) in which a call last failed to create a partition: see once._make_days.
CREATE SEQUENCE once.days_failed_seq;
COMMENT ON SEQUENCE once.days_failed_seq IS 'when a call last failed to make a partition';

-- The highest fence that was deleted with an intent of bucket 0: see once._first_fence. Only the keeper changes it, and only upwards.
CREATE SEQUENCE once.fence_floor_seq AS integer MINVALUE 0 START WITH 0;
COMMENT ON SEQUENCE once.fence_floor_seq IS 'new intents of bucket 0 begin above this fence';

-- Rows that outlive their retired day, by the month of that day.
CREATE TABLE once.archive (LIKE once.intent INCLUDING DEFAULTS, PRIMARY KEY (scope, key, tenant,
    bucket)) PARTITION BY RANGE (bucket);
$file$;
        EXECUTE $file$
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
$file$;
        EXECUTE $file$
-- The types that the calls of leased attempts return.

-- What once.claim returns.
CREATE TYPE once.claimed AS (
    verdict          text,
    fence            integer,       -- pass it to each report and renewal
    state            text,
    response_status  integer,
    response_body    bytea,
    response_headers jsonb,
    result_type      text,
    result_id        text,
    error_code       text,
    error_message    text,
    lease_until      timestamptz,
    attempts         integer,
    traceparent      text
);
$file$;
        EXECUTE $file$
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
$file$;
        EXECUTE $file$
-- Events, the relays that deliver them, and operators' decisions about parked ones.

-- Events, written in the transaction of their effect. A published event is never updated. Readers search by day and xid: a batch is what
-- one snapshot sees and the one before did not. payload stays NOT NULL even if there are payload_bytes: a CHECK that one of the two is
-- set would cost each once.emit 16,000 instructions.
CREATE TABLE once.outbox (
    id             bigint GENERATED BY DEFAULT AS IDENTITY,
    day            integer NOT NULL,                            -- days since 1970 by the database's clock
    xid            xid8 NOT NULL DEFAULT pg_current_xact_id(),
    created_at     timestamptz NOT NULL,
    event_id       uuid NOT NULL,
    topic          text COLLATE "C" NOT NULL,
    event_type     text COLLATE "C" NOT NULL,
    aggregate_type text COLLATE "C",
    aggregate_id   text COLLATE "C",
    tenant         text COLLATE "C" NOT NULL,
    scope          text COLLATE "C",
    key            text COLLATE "C",
    traceparent    text COLLATE "C",
    headers        jsonb,
    payload        jsonb NOT NULL,                              -- JSON's null, and ignored, if there are payload_bytes
    payload_bytes  bytea,
    content_type   text COLLATE "C",                            -- of payload_bytes
    -- Keeps an intent's event of a type unique, and finds the events of an intent. Events without an intent have NULLs.
    UNIQUE (tenant, scope, key, event_type, day)
) PARTITION BY RANGE (day);
CREATE INDEX outbox_xid ON once.outbox (xid, id);

-- The latest day on which an intent's event may have been emitted, times 256: if it is today's, once.emit need not look into the
-- partitions of later days. Only nextval changes it: it never goes back even under concurrent calls, and a crash adds at most 32, as each
-- concurrent attempt adds one. Hence the 256.
DO $$
BEGIN
    EXECUTE format('CREATE SEQUENCE once.outbox_day_seq MINVALUE 0 START WITH %s',
        256 * floor(date_part('epoch', clock_timestamp()) / 86400)::integer);
END $$;
COMMENT ON SEQUENCE once.outbox_day_seq IS 'the latest day of which there may be events, times 256';

-- Events to be published later: once.emit_later. once_job.relay_release moves them to the outbox when they are due, and they have a day,
-- an id and a place in the order from then on. So they hold back no event, no day of the outbox and no replication slot.
CREATE TABLE once.delayed_event (
    event_id       uuid PRIMARY KEY,
    not_before     timestamptz NOT NULL,
    emitted_at     timestamptz NOT NULL,
    topic          text COLLATE "C" NOT NULL,
    event_type     text COLLATE "C" NOT NULL,
    aggregate_type text COLLATE "C",
    aggregate_id   text COLLATE "C",
    tenant         text COLLATE "C" NOT NULL,
    scope          text COLLATE "C",
    key            text COLLATE "C",
    traceparent    text COLLATE "C",
    headers        jsonb,
    payload        jsonb NOT NULL
);
CREATE INDEX delayed_event_due ON once.delayed_event (not_before, emitted_at);
CREATE INDEX delayed_event_intent ON once.delayed_event (tenant, scope, key) WHERE key IS NOT NULL;

-- One row per relay. All events that `seen` sees are done: delivered, or parked. The events between the two snapshots `seen` and
-- `reading` are delivered in the order of their ids; those up to after_id are done. xids that come by a dump or logical replication are
-- invalid here, hence written_by: the transaction that wrote the row, which a copied row cannot match. See once._relay_sign.
CREATE TABLE once.relay (
    relay         text COLLATE "C" PRIMARY KEY CHECK (relay <> '' AND length(relay) <= 63),
    written_by    xid NOT NULL DEFAULT pg_current_xact_id()::xid,
    topics        text[] COLLATE "C",           -- LIKE patterns of the topics that it takes; NULL: all
    seen          pg_snapshot NOT NULL,
    reading       pg_snapshot,                  -- NULL: no batch is in progress
    after_id      bigint NOT NULL DEFAULT 0,
    started_at    timestamptz NOT NULL,
    progressed_at timestamptz NOT NULL
);

-- Logical replication slots whose clients read events directly: change data capture. Each counts as a relay: its row in once.relay has
-- the slot's name, and `seen` follows it (once._follow_slots). Everything that `mark` sees was committed, and so written to the WAL,
-- before mark_lsn: once the slot has confirmed mark_lsn, all of that is done.
CREATE TABLE once.capture (
    slot         text COLLATE "C" PRIMARY KEY,
    mark         pg_snapshot NOT NULL,
    mark_lsn     pg_lsn NOT NULL,
    server       text COLLATE "C",        -- its WAL's timeline and cluster; after a failover it is another one
    broken       text,                    -- why the slot cannot be trusted; `seen` then stays until once.relay_adopt
    broken_since timestamptz
);

-- once_job.relay_flush sets it, always to the same value: only the write matters.
CREATE SEQUENCE once.relay_flush_seq;

-- Events that a relay has passed and not delivered: 'waiting' behind another of their aggregate (or for their first attempt), 'retrying'
-- at next_at, or 'dead' after the last attempt. The event itself stays in the outbox. There is no foreign key: events are parked under
-- the relay's row, and pg_restore -j fills the tables of an extension in any order.
CREATE TABLE once.parked_event (
    relay          text COLLATE "C" NOT NULL,
    id             bigint NOT NULL,
    xid            xid8 NOT NULL,
    day            integer NOT NULL,
    event_id       uuid NOT NULL,
    topic          text COLLATE "C" NOT NULL,
    tenant         text COLLATE "C" NOT NULL,
    aggregate_type text COLLATE "C",
    aggregate_id   text COLLATE "C",
    -- Its aggregate as a number, since names may be too long for an index; two aggregates with the same number only wait for each other.
    -- NULL: no aggregate, no order. once._aggregate computes the same.
    aggregate      bigint GENERATED ALWAYS AS (CASE WHEN aggregate_id IS NOT NULL
        THEN hash_array_extended(ARRAY[tenant, coalesce(aggregate_type, ''), aggregate_id], 0) END) STORED,
    state          text COLLATE "C" NOT NULL CHECK (state IN ('waiting', 'retrying', 'dead')),
    attempts       integer NOT NULL DEFAULT 0,
    next_at        timestamptz NOT NULL,            -- 'infinity': not before the earlier event is gone
    error          text,
    parked_at      timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    PRIMARY KEY (relay, id)
);
CREATE INDEX parked_event_aggregate ON once.parked_event (relay, aggregate, id);
CREATE INDEX parked_event_due ON once.parked_event (relay, next_at) WHERE state <> 'dead';
CREATE INDEX parked_event_event ON once.parked_event (event_id);

-- An event on its way to a relay, and a relay's report about one that it parks.
CREATE TYPE once.outgoing AS (
    id             bigint,
    xid            xid8,
    day            integer,
    event_id       uuid,
    topic          text,
    event_type     text,
    aggregate_type text,
    aggregate_id   text,
    tenant         text,
    scope          text,
    key            text,
    traceparent    text,
    headers        jsonb,
    payload        jsonb,
    payload_bytes  bytea,       -- instead of payload
    content_type   text,        -- of payload_bytes
    created_at     timestamptz,
    attempts       integer,     -- failed attempts so far
    blocked        boolean      -- an earlier event of its aggregate is parked with this relay
);
CREATE TYPE once.parking AS (
    id             bigint,
    xid            xid8,
    day            integer,
    event_id       uuid,
    topic          text,
    tenant         text,
    aggregate_type text,
    aggregate_id   text,
    state          text,
    attempts       integer,
    wait_ms        bigint,      -- until next_at, by the database's clock
    error          text,
    known          boolean      -- it was parked already: if it no longer is, an operator has discarded it
);
$file$;
        EXECUTE $file$
-- Messages: the type that handlers receive, the parked ones, and the progress of consumers.

-- The argument of a consumer's handler.
CREATE TYPE once.message AS (
    id      text,       -- the same for each delivery of the message
    topic   text,
    key     text,       -- messages of one key are handled in order; NULL: the message has no key
    headers jsonb,      -- an object; of a repeated header the last
    payload bytea,      -- NULL: a Kafka record without a value
    body    jsonb       -- the payload if it is JSON; else NULL
);

-- A message that a consumer parks.
CREATE TYPE once.parked AS (
    message_id  text,
    topic       text,
    key         text,
    headers     jsonb,
    payload     bytea,
    fingerprint bytea,
    state       text,
    attempts    integer,
    wait_ms     bigint,
    error       text,
    sqlstate    text
);

-- Messages that a consumer took from its broker and has not applied: as once.parked_event, but with
-- their content, since the broker may delete them.
CREATE TABLE once.parked_message (
    position    bigint GENERATED BY DEFAULT AS IDENTITY,  -- the order in which they came
    consumer    text COLLATE "C" NOT NULL,
    tenant      text COLLATE "C" NOT NULL,
    message_id  text COLLATE "C" NOT NULL,
    topic       text COLLATE "C" NOT NULL,
    key         text COLLATE "C",
    key_hash    bigint GENERATED ALWAYS AS (hashtextextended(key, 0)) STORED,    -- as once.parked_event.aggregate
    headers     jsonb,
    payload     bytea,
    fingerprint bytea NOT NULL,
    state       text COLLATE "C" NOT NULL CHECK (state IN ('waiting', 'retrying', 'dead')),
    attempts    integer NOT NULL DEFAULT 0,
    next_at     timestamptz NOT NULL,
    error       text,
    sqlstate    text COLLATE "C",
    parked_at   timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    PRIMARY KEY (consumer, tenant, message_id)
);
CREATE INDEX parked_message_key ON once.parked_message (consumer, tenant, key_hash, position);
CREATE INDEX parked_message_due ON once.parked_message (consumer, tenant, next_at) WHERE state <> 'dead';

-- The progress of consumers: everything older than position was acknowledged to its broker and cannot come back.
CREATE TABLE once.consumer_position (
    consumer    text COLLATE "C" NOT NULL,
    tenant      text COLLATE "C" NOT NULL,
    part        text COLLATE "C" NOT NULL,    -- partition, queue or stream
    position    timestamptz NOT NULL,
    reported_at timestamptz NOT NULL,
    PRIMARY KEY (consumer, tenant, part)
);
$file$;
        EXECUTE $file$
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
$file$;
        EXECUTE $file$
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
$file$;
        EXECUTE $file$
-- The answers to attempts and messages are counted for the whole database, by one sequence for each answer (once._count). A sequence
-- never waits and is not rolled back, so a refusal is counted too. Unlogged if PostgreSQL supports that (15): counting then writes no
-- WAL, and restarts at 0 after a crash.
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
$file$;
        EXECUTE $file$
-- The moves of slots to other nodes (pgonce rehome).

-- One row for each time that a slot has closed to move. It is replicated to the other node after everything that the slot's transactions
-- have written: if the row has arrived there, so has the slot's whole memory.
CREATE TABLE once.slot_move (
    slot        integer NOT NULL,
    epoch       bigint NOT NULL,                                -- with which the slot opens at the other node
    fence_floor integer NOT NULL,                               -- of this node: see once._first_fence
    closed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    handed_to   text,                                           -- the node that may open it; NULL: none, and it may open here again
    PRIMARY KEY (slot, epoch)
);
$file$;
        EXECUTE $file$
-- The tenants that a bound role may name. A role with EXECUTE on once.any_tenant() is not bound.
CREATE TABLE once.binding (
    role_name text COLLATE "C",
    tenant    text COLLATE "C",
    PRIMARY KEY (role_name, tenant)
);
$file$;
        EXECUTE $file$INSERT INTO once.migration (version, name, checksum, pgonce) VALUES ($1, $2, $3, $4)$file$ USING 1, 'tables', 'd76334504e1d55523474bdabfd6078de86af998160a78dadada0a963b7d8b9fe', this_release;
        whole := false;
    END IF;
    IF NOT whole THEN
        EXECUTE $file$
-- The schema of the functions that only relays, consumers and keepers call. Created with the functions and not with the schema once:
-- CREATE EXTENSION creates that schema itself, and a dump of it alone does not contain this one. It gets the same owner.
DO $$
DECLARE
    owner oid := (SELECT n.nspowner FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'once');
    present record;
BEGIN
    SELECT n.oid, n.nspowner INTO present FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'once_job';
    IF present.oid IS NULL THEN
        EXECUTE format('CREATE SCHEMA once_job AUTHORIZATION %I', pg_get_userbyid(owner));
    ELSIF present.nspowner <> owner
          OR EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE c.relnamespace = present.oid)
          OR (EXISTS (SELECT FROM pg_catalog.pg_proc AS p WHERE p.pronamespace = present.oid)
              AND NOT EXISTS (SELECT FROM pg_catalog.pg_proc AS p WHERE p.pronamespace = present.oid AND p.proname = 'keep_step')) THEN
        RAISE EXCEPTION USING ERRCODE = '3F000', MESSAGE = 'pgonce: a schema "once_job" exists that is not pgonce''s',
            HINT = 'Rename that schema (or drop it, if an earlier pgonce left it), or install into another database.';
    END IF;
    COMMENT ON SCHEMA once_job IS 'pgonce: the functions that only its relays, consumers and keepers call';
END $$;
$file$;
        EXECUTE $file$
-- Before an upgrade replaces the functions: remembers those that this node has replaced: slot_of, if it is divided, and the anchor.
-- slot/restore.sql puts them back.
DO $$
BEGIN
    PERFORM pg_catalog.set_config('once.slot_of', CASE WHEN pg_catalog.to_regclass('once.slot_0_seq') IS NOT NULL
        THEN pg_catalog.pg_get_functiondef(pg_catalog.to_regprocedure('once.slot_of(text)')) ELSE '' END, true);
    PERFORM pg_catalog.set_config('once.anchor', CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_trigger AS t
                                                                    WHERE t.tgfoid = pg_catalog.to_regprocedure('once._anchor()'))
        THEN pg_catalog.pg_get_functiondef(pg_catalog.to_regprocedure('once._anchor()')) ELSE '' END, true);
END $$;
$file$;
        EXECUTE $file$
-- once.set_scope(scope, lease, retention, max_attempts, on_stale, verify, response_bytes_max, event_bytes_max, dry_run): sets the policy
-- of a scope; '' is the default policy, for all scopes without one. A NULL argument keeps the present value, or takes the default
-- policy's. Initial defaults in brackets.
--   lease               (1 minute; at most 7 days) how long a claim holds its intent without a report or a renewal
--   retention           (7 days; at most 100 years) how long an outcome is replayed
--   max_attempts        (0: no limit) after so many attempts a retryable failure becomes final, and a silent attempt leaves a doubt
--   on_stale            ('in_doubt') what becomes of an intent whose lease has passed without a report: 'in_doubt', it waits for a
--                       decision; 'takeover', the next attempt runs: only for effects that are safe to repeat; 'verify', verify is asked
--   verify              (none) a function f(tenant text, scope text, key text) RETURNS once.verification. It runs as the owner of the
--                       contract, so only administrators may set it
--   response_bytes_max  (1048576; 8192 to 67108864) the largest answer that is stored
--   event_bytes_max     (1048576; 8192 to 67108864) the largest payload, of once.emit as text, of once.emit_bytes as it is
-- Raises 23514 for a value out of range, P4000 for a scope that is too long or contains a control character. Returns the policy; a dry
-- run checks it in the same way, and changes nothing.
CREATE OR REPLACE FUNCTION once.set_scope(scope text, lease interval DEFAULT NULL, retention interval DEFAULT NULL,
    max_attempts integer DEFAULT NULL, on_stale text DEFAULT NULL, verify text DEFAULT NULL, response_bytes_max integer DEFAULT NULL,
    event_bytes_max integer DEFAULT NULL, dry_run boolean DEFAULT false)
RETURNS once.scope LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    policy once.scope;
BEGIN
    IF scope IS NULL OR length(scope) > 255 THEN
        PERFORM once._refuse('P4000', NULL, scope, NULL);
    ELSIF scope COLLATE "C" ~ E'[\\x01-\\x1f\\x7f]' THEN
        PERFORM once._refuse('P4000', NULL, scope, NULL, 'the scope contains a control character');
    END IF;
    LOCK TABLE once.scope IN SHARE ROW EXCLUSIVE MODE;      -- one writer at a time; readers do not wait
    policy := once._policy(scope);
    policy.scope := scope;
    policy.lease := coalesce(lease, policy.lease);
    policy.retention := coalesce(retention, policy.retention);
    policy.max_attempts := CASE WHEN max_attempts = 0 THEN NULL ELSE coalesce(max_attempts, policy.max_attempts) END;
    policy.on_stale := coalesce(on_stale, CASE WHEN verify IS NOT NULL THEN 'verify' ELSE policy.on_stale END);
    policy.verify := CASE WHEN policy.on_stale = 'verify' THEN coalesce(
        (SELECT format('%I.%I', n.nspname, p.proname) FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
          WHERE p.oid = (verify || '(text,text,text)')::regprocedure), policy.verify) END;
    policy.response_bytes_max := coalesce(response_bytes_max, policy.response_bytes_max);
    policy.event_bytes_max := coalesce(event_bytes_max, policy.event_bytes_max);
    IF policy.verify IS NOT NULL AND (SELECT p.prorettype <> 'once.verification'::regtype FROM pg_proc AS p
        WHERE p.oid = (policy.verify || '(text,text,text)')::regprocedure) THEN
        RAISE EXCEPTION USING ERRCODE = '42P13', MESSAGE = format('pgonce: %s does not return once.verification',
            policy.verify);
    END IF;
    BEGIN
        DELETE FROM once.scope AS s WHERE s.scope = scope COLLATE "C";
        INSERT INTO once.scope SELECT policy.*;
        IF dry_run THEN
            RAISE EXCEPTION USING ERRCODE = 'P4000', MESSAGE = 'a dry run';
        END IF;
    EXCEPTION WHEN SQLSTATE 'P4000' THEN
        NULL;
    END;
    RETURN policy;
END $$;
$file$;
        EXECUTE $file$
-- once._bodies(response_text[], response_json[], response_body[]): once._body for a batch. Raises 22023 if an element gives its body in
-- more than one way.
CREATE OR REPLACE FUNCTION once._bodies(response_text text[], response_json jsonb[], response_body bytea[]) RETURNS bytea[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF response_text IS NULL AND response_json IS NULL THEN
        RETURN response_body;
    END IF;
    IF EXISTS (SELECT FROM unnest(response_text, response_json, response_body) AS u (text, json, bytes)
                WHERE num_nonnulls(u.text, u.json, u.bytes) > 1) THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: the body of an answer is given in more than one way',
            HINT = 'Give each element of the batch response_text, response_json or response_body.';
    END IF;
    RETURN ARRAY(SELECT coalesce(u.bytes, convert_to(coalesce(u.text, u.json::text), 'UTF8'))
                   FROM unnest(response_text, response_json, response_body) WITH ORDINALITY AS u (text, json, bytes, ord)
                  ORDER BY u.ord);
END $$;
$file$;
        EXECUTE $file$
-- once._body(tenant, scope, key, response_text, response_json, response_body): the bytes of an answer given as text or JSON, in UTF-8.
-- Raises 22023 if it is given in more than one way. Callers with bytes alone do not call it, so it costs them nothing.
CREATE OR REPLACE FUNCTION once._body(tenant text, scope text, key text, response_text text, response_json jsonb, response_body bytea)
RETURNS bytea LANGUAGE plpgsql AS $$
BEGIN
    IF num_nonnulls(response_text, response_json, response_body) > 1 THEN
        PERFORM once._refuse_outcome(tenant, scope, key, 'the body of an answer is given in more than one way');
    END IF;
    RETURN once._body_of(response_text, response_json);
END $$;
$file$;
        EXECUTE $file$
-- once._body_of(response_text, response_json): the bytes of an answer given as text or JSON, in UTF-8. Inlined.
CREATE OR REPLACE FUNCTION once._body_of(response_text text, response_json jsonb) RETURNS bytea LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT convert_to(coalesce(response_text, response_json::text), 'UTF8')
$$;
$file$;
        EXECUTE $file$
-- once._check_outcome(tenant, scope, key, outcome): raises 22023 for an invalid status or invalid headers, and P4060 if a part of the
-- outcome is too large.
CREATE OR REPLACE FUNCTION once._check_outcome(tenant text, scope text, key text, outcome once.outcome) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._refuse_outcome(tenant, scope, key, wrong)
       FROM once._wrong_outcome(outcome.response_status, outcome.response_headers) AS wrong WHERE wrong IS NOT NULL;
    PERFORM once._refuse('P4060', tenant, scope, key, part) FROM once._too_large(scope, outcome) AS part WHERE part IS NOT NULL;
END $$;
$file$;
        EXECUTE $file$
-- once._check_term(name, term, term_max): raises 22023 for an invalid lease or retention: see once._is_term.
CREATE OR REPLACE FUNCTION once._check_term(name text, term interval, term_max interval) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT once._is_term(term, term_max) THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: %s is out of range: %s', name, term),
            DETAIL = format('more than 0, at most %s', term_max), HINT = 'Leave it out to use the policy of the scope.';
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._is_plain(status, body, headers, result_type, result_id): whether this outcome can be stored without reading the scope's policy:
-- once._wrong_outcome finds nothing wrong, every scope allows a body of this size, and no other part is too large. If false, call
-- once._check_outcome. Inlined.
CREATE OR REPLACE FUNCTION once._is_plain(status integer, body bytea, headers jsonb, result_type text, result_id text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT once._is_usual(status, body, result_type, result_id)
       AND (jsonb_typeof(headers) = 'object' AND octet_length(headers::text) <= 65536) IS NOT FALSE
$$;
$file$;
        EXECUTE $file$
-- once._is_term(term, term_max): whether a lease or a retention is positive and not too long. PostgreSQL compares intervals as if a month
-- had 30 days, and adds them by the calendar: '-12 months 361 days' is greater than 0, and yet ends before it begins. So this also adds
-- the term: to a February, the shortest month, as the bounds of once.scope do, and to the current time in the session's time zone, as the
-- caller will. Inlined.
CREATE OR REPLACE FUNCTION once._is_term(term interval, term_max interval) RETURNS boolean LANGUAGE sql AS $$
    SELECT term > '0' AND term <= term_max
       AND timestamp '2001-02-01' + term > timestamp '2001-02-01' AND timestamp '2001-02-01' + term <= timestamp '2001-02-01' + term_max
       AND clock_timestamp() + term > clock_timestamp()
$$;
$file$;
        EXECUTE $file$
-- once._is_usual(status, body, result_type, result_id): once._is_plain for an outcome without headers. Inlined.
CREATE OR REPLACE FUNCTION once._is_usual(status integer, body bytea, result_type text, result_id text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT octet_length(body) > 8192 IS NOT TRUE AND (status BETWEEN 0 AND 999) IS NOT FALSE
       AND (octet_length(result_type) > 255 OR octet_length(result_id) > 2048) IS NOT TRUE
$$;
$file$;
        EXECUTE $file$
-- once._outcome_of(stored | verified): the outcome in an intent's row, or the one that a verify function found. Inlined.
CREATE OR REPLACE FUNCTION once._outcome_of(stored once.intent) RETURNS once.outcome LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ROW(stored.response_status, stored.response_body, stored.response_headers, stored.result_type, stored.result_id,
               stored.error_code, stored.error_message)::once.outcome
$$;

CREATE OR REPLACE FUNCTION once._outcome_of(verified once.verification) RETURNS once.outcome LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ROW(verified.response_status, verified.response_body, verified.response_headers, verified.result_type, verified.result_id,
               NULL, NULL)::once.outcome
$$;
$file$;
        EXECUTE $file$
-- once._policy(scope): the policy of a scope: its own row, or the default row ''. The table is tiny: both rows are on one page.
CREATE OR REPLACE FUNCTION once._policy(scope text) RETURNS once.scope LANGUAGE plpgsql STABLE AS $$
DECLARE
    policy once.scope;
BEGIN
    -- '' sorts before every other name.
    SELECT p.* INTO STRICT policy FROM once.scope AS p WHERE p.scope IN ('', _policy.scope COLLATE "C") ORDER BY p.scope DESC LIMIT 1;
    RETURN policy;
END $$;
$file$;
        EXECUTE $file$
-- once._refuse_outcome(tenant, scope, key, wrong): raises 22023 for an outcome that cannot be stored, with the reason.
CREATE OR REPLACE FUNCTION once._refuse_outcome(tenant text, scope text, key text, wrong text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: ' || wrong,
        DETAIL = format('tenant=%L scope=%L key=%L', left(tenant, 80), left(scope, 80), left(key, 80)),
        HINT = 'Nothing was stored. Give response_text, response_json or response_body, no status or one from 0 to 999, and '
            'headers as a JSON object.';
END $$;
$file$;
        EXECUTE $file$
-- once._refuse_type(tenant, scope, key, given): raises 22023 for a response_body that is not bytea. That parameter takes any type, so
-- that PostgreSQL does not parse an untyped literal as bytea escapes. A function with this parameter checks its type first, in a
-- statement of its own: a type that the caller created may have a cast to bytea, or a check, which would run with the owner's rights.
CREATE OR REPLACE FUNCTION once._refuse_type(tenant text, scope text, key text, given regtype) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._refuse_outcome(tenant, scope, key, format('response_body must be of type bytea, not %s', given));
END $$;
$file$;
        EXECUTE $file$
-- once._too_large(scope, outcome): the part of an outcome that is larger than allowed, in words; NULL if none is. The body has the
-- scope's limit, the other parts have fixed limits.
CREATE OR REPLACE FUNCTION once._too_large(scope text, outcome once.outcome) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT format('%s: %s bytes, at most %s', part, size, most)
      FROM (VALUES ('response_body', octet_length(outcome.response_body),
                    CASE WHEN octet_length(outcome.response_body) > 8192 THEN (once._policy(scope)).response_bytes_max END),
                   ('response_headers', octet_length(outcome.response_headers::text), 65536),
                   ('result_type', octet_length(outcome.result_type), 255),
                   ('result_id', octet_length(outcome.result_id), 2048)) AS p (part, size, most)
     WHERE size > most LIMIT 1
$$;
$file$;
        EXECUTE $file$
-- once._wrong_outcome(status, headers): what is wrong with an outcome, in words; NULL if nothing is. A status is an HTTP status or a
-- command's exit status; headers are an object. Inlined, so it must not be more than STABLE, as format is.
CREATE OR REPLACE FUNCTION once._wrong_outcome(status integer, headers jsonb) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN status NOT BETWEEN 0 AND 999 THEN format('%s is not the status of an answer', status)
        WHEN jsonb_typeof(headers) <> 'object' THEN format('the headers of an answer must be an object, not of type %s',
            jsonb_typeof(headers))
    END
$$;
$file$;
        EXECUTE $file$
-- once.fingerprint(request, tenant): the salted SHA-256 of a request, to pass to start or claim. bytea and text: of exactly these bytes,
-- text in UTF-8, so that both give one hash: drivers differ in the type that they give a parameter. jsonb: of its canonical form
-- (docs/reference/fingerprint.md), so that a re-serialised body is the same request; cast a literal: once.fingerprint('...'::jsonb). It
-- never equals the fingerprint of bytes, and fingerprints of two tenants are never equal. NULL gives NULL, which start refuses (P4003).
--
-- Why it is written so: in PL/pgSQL, because a function in LANGUAGE sql is planned again at each call.
CREATE OR REPLACE FUNCTION once.fingerprint(request jsonb, tenant text DEFAULT '') RETURNS bytea
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN sha256(once.salt(tenant) || 'j'::bytea || convert_to(once._json_text(request), 'UTF8'));
END $$;
CREATE OR REPLACE FUNCTION once.fingerprint(request bytea, tenant text DEFAULT '') RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN sha256(once.salt(tenant) || 'b'::bytea || request);
END $$;
CREATE OR REPLACE FUNCTION once.fingerprint(request text, tenant text DEFAULT '') RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN sha256(once.salt(tenant) || 'b'::bytea || convert_to(request, 'UTF8'));
END $$;
$file$;
        EXECUTE $file$
-- once.key_of_header(value): the key in the value of an Idempotency-Key header, as the gateway reads it: a quoted string (RFC 8941), its
-- parameters checked and ignored, or a bare key. `abc` and `"abc"` are one key. NULL gives NULL, which start refuses. Raises P4001 if the
-- gateway would answer 400, with the gateway's sentence in the detail. Specified in docs/reference/fingerprint.md.
CREATE OR REPLACE FUNCTION once.key_of_header(value text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given text := btrim(value, ' ');
    quoted boolean := left(given, 1) = '"';
    -- The longest prefix that can be a key. If it is not the whole value, the text after it gives the reason.
    written text := substring(given COLLATE "C"
        FROM CASE WHEN quoted THEN $re$^"(?:[^"\\]|\\["\\])*$re$ ELSE $re$^[^ "\\,;]*$re$ END);
    rest text := substr(given, length(written) + 1);
    key text := CASE WHEN quoted THEN regexp_replace(substr(written, 2) COLLATE "C", $re$\\(.)$re$, E'\\1', 'g') ELSE written END;
    fault text;
BEGIN
    fault := CASE
        WHEN value COLLATE "C" ~ '[^ -~]' THEN 'The key''s header holds a control character or one that is not ASCII.'
        WHEN given = '' THEN 'The key is empty.'
        WHEN length(key) > 255 THEN 'The key is too long.'
        WHEN NOT quoted AND rest <> '' THEN
            'The key must be a quoted string, such as "8e03978e-40d5-43dd-bc93-6894a57f9324"; '
            || 'without quotes it holds characters that are not allowed there, or quotes are required.'
        WHEN quoted AND length(rest) > 1 AND left(rest, 1) = E'\\' THEN
            'In a quoted key a backslash must be followed by a quote or a backslash.'
        WHEN quoted AND left(rest, 1) <> '"' THEN 'The key begins with a quote and has no closing one.' END;
    IF fault IS NULL AND quoted THEN
        -- RFC 8941, section 3.1.2: parameters, each a name and an optional number, token, string, boolean or bytes.
        rest := regexp_replace(substr(rest, 2) COLLATE "C", '^(?:; *[a-z*][a-z0-9_.*-]*(?:(?![a-z0-9_.*=-])|=(?:'
            || '-?[0-9]{1,15}(?![0-9.])|-?[0-9]{1,12}[.][0-9]{1,3}(?![0-9])|[A-Za-z*][A-Za-z0-9!#$%&''*+.^_`|~:/-]*'
            || $re$|"(?:[^"\\]|\\["\\])*"|[?][01]|$re$
            || ':(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?:)))*', '');
        fault := CASE
            WHEN left(rest, 1) = ';' THEN 'A parameter after the quoted key is malformed.'
            WHEN rest <> '' THEN
                'After the quoted key comes something that is not a parameter; a list of keys is not allowed.'
            WHEN key = '' THEN 'The key is empty.' END;
    END IF;
    IF fault IS NOT NULL THEN
        PERFORM once._refuse('P4001', NULL, NULL, value, fault);
    END IF;
    RETURN key;
END $$;
$file$;
        EXECUTE $file$
-- once.lock(resource, wait): once.try_lock that waits, at most wait (0 to 1 day); false if the lock could not be acquired in that time. A
-- deadlock with other locks is PostgreSQL's 40P01. The caller's own lock_timeout is unchanged afterwards.
CREATE OR REPLACE FUNCTION once.lock(resource text, wait interval) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 AS $$
DECLARE
    wait_ms numeric := extract(epoch FROM wait) * 1000;
BEGIN
    IF (wait_ms BETWEEN 0 AND 86400000) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: wait is out of range: %s', wait),
            DETAIL = '0 to 1 day';
    END IF;
    IF once.try_lock(resource) THEN
        RETURN true;
    ELSIF wait_ms < 1 THEN
        RETURN false;
    END IF;
    PERFORM set_config('lock_timeout', ceil(wait_ms)::text, true);
    PERFORM pg_advisory_xact_lock(hashtextextended(resource COLLATE "C", 20780));
    RETURN true;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN false;
END $$;
$file$;
        EXECUTE $file$
-- once.peek(scope, key, tenant): the stored state of an intent; changes nothing, locks nothing. Verdicts:
--   replay_success, final_failure  it is finished: the outcome is in the other columns
--   retryable_failure              it failed without an effect: the next attempt may run
--   processing_active              an attempt holds the lease
--   processing_stale               the lease has passed without a report
--   in_doubt                       the outcome is unknown
--   expired                        the key's day is retired
--   absent                         nothing is stored; an attempt in an open transaction does not show
-- Raises P4000, P4001, P4003.
CREATE OR REPLACE FUNCTION once.peek(scope text, key text, tenant text DEFAULT '') RETURNS once.peeked
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
    RETURN once._peek(tenant, scope, key, bucket);
END $$;
$file$;
        EXECUTE $file$
-- once.peek_many(scope[], key[], tenant): once.peek for many intents. One row per element, in order; a malformed
-- element has verdict 'invalid' and its SQLSTATE in error_code. Raises only for the batch as a whole (22023, P4003).
CREATE OR REPLACE FUNCTION once.peek_many(scope text[], key text[], tenant text DEFAULT '')
RETURNS TABLE (ord integer, verdict text, fence integer, state text, response_status integer, response_body bytea,
    response_headers jsonb, result_type text, result_id text, error_code text, error_message text, owner text, lease_until timestamptz,
    attempts integer, created_at timestamptz, completed_at timestamptz, traceparent text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0));
    bucket integer;
BEGIN
    FOR n IN 1 .. size LOOP
        ord := n;
        bucket := once._bucket(key[ord]);
        SELECT p.* INTO verdict, fence, state, response_status, response_body, response_headers, result_type, result_id,
            error_code,
                        error_message, owner, lease_until, attempts, created_at, completed_at, traceparent
          FROM once._peek(tenant, scope[ord], key[ord], bucket) AS p
         WHERE bucket >= 0 AND length(scope[ord]) BETWEEN 1 AND 255;
        IF NOT FOUND THEN
            verdict := 'invalid';
            error_code := CASE WHEN (length(scope[ord]) BETWEEN 1 AND 255) IS NOT TRUE THEN 'P4000' ELSE 'P4001' END;
            SELECT e.message INTO error_message FROM once.errors() AS e WHERE e.code = error_code COLLATE "C";
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
$file$;
        EXECUTE $file$
-- once.request_fingerprint(method, target, content_type, body, tenant, canonical_json): the fingerprint that the gateway stores of an
-- HTTP request, byte for byte, so that a retry may use either door. target: the Host header in lower case, then path and query as in the
-- request line, 'shop.test/pay?dry=0'; content_type: the header's value, or NULL if there is no such header; body: NULL if there is none.
-- Pass '' for a part that the location's once_fingerprint leaves out. canonical_json: as the location's once_canonical_json. A body given
-- as text is hashed as its bytes in UTF-8, so a driver's string is never parsed as bytea escapes. Specified, with examples, in
-- docs/reference/fingerprint.md.
CREATE OR REPLACE FUNCTION once.request_fingerprint(method text, target text, content_type text, body bytea, tenant text DEFAULT '',
    canonical_json boolean DEFAULT false) RETURNS bytea
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts bytea[] := ARRAY[convert_to(method, 'UTF8'), convert_to(coalesce(content_type, ''), 'UTF8'),
        coalesce(CASE WHEN canonical_json THEN once._json_body(body) END, body, ''::bytea), convert_to(target, 'UTF8')];
    hashed bytea := once.salt(tenant) || 'r'::bytea;
    part bytea;
BEGIN
    -- Each part follows its length, so that no two different requests give the same bytes.
    FOREACH part IN ARRAY parts LOOP
        hashed := hashed || int8send(octet_length(part)) || part;
    END LOOP;
    RETURN sha256(hashed);
END $$;
CREATE OR REPLACE FUNCTION once.request_fingerprint(method text, target text, content_type text, body text, tenant text DEFAULT '',
    canonical_json boolean DEFAULT false) RETURNS bytea LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN once.request_fingerprint(method, target, content_type, convert_to(body, 'UTF8'), tenant, canonical_json);
END $$;
$file$;
        EXECUTE $file$
-- once.salt(tenant): the 32-byte salt of a tenant's fingerprints, for clients that compute them. Derived from the installation's random
-- salt, so that a new tenant needs no row (and no wait for another session that writes it). Raises P4003.
CREATE OR REPLACE FUNCTION once.salt(tenant text DEFAULT '') RETURNS bytea
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- The check of once.start, inlined: a call costs more than the rest of this function.
    IF (length(tenant) <= 255 AND current_setting('role') = 'none'
        AND has_function_privilege(session_user, 'once.any_tenant()'::regprocedure, 'execute')) IS NOT TRUE THEN
        PERFORM once._check_tenant(tenant, 'salt', 'salt');
    END IF;
    RETURN (SELECT sha256(s.salt || convert_to(salt.tenant, 'UTF8')) FROM once.setting AS s WHERE s.only_row);
END $$;
$file$;
        EXECUTE $file$
-- once.try_lock(resource): takes a lock on a name until this transaction ends, without waiting: false if another transaction has it. For
-- "one settlement per merchant and day", "one import per file". Works behind a transaction pooler. Never a substitute for a constraint.
--
CREATE OR REPLACE FUNCTION once.try_lock(resource text) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (length(resource) > 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: a lock needs the name of a resource',
            HINT = 'For example once.try_lock(''settlement/'' || merchant || ''/'' || day).';
    END IF;
    RETURN pg_try_advisory_xact_lock(hashtextextended(resource COLLATE "C", 20780));
END $$;
$file$;
        EXECUTE $file$
-- once._archived(tenant, scope, key, bucket): the row of an intent whose day is closed, which once.intent no longer shows: from the
-- archive if it outlived its day, or from the day's table, which is detached before it is dropped; NULL if it is in neither. Raises 40001
-- if the snapshot is older than the end of that table: the row may have moved since, and a stored answer must not be denied. The same if
-- the snapshot is older than the whole retirement, and so shows the day as open: then it also shows the table in the catalogue. No
-- snapshot shows a table for a day that never existed or whose table was lost.
CREATE OR REPLACE FUNCTION once._archived(tenant text, scope text, key text, bucket integer) RETURNS once.intent LANGUAGE plpgsql STABLE AS $$
DECLARE
    kept once.intent;
    leaf regclass;
BEGIN
    SELECT a.* INTO kept FROM once.archive AS a
     WHERE a.tenant = _archived.tenant COLLATE "C" AND a.scope = _archived.scope COLLATE "C"
       AND a.key = _archived.key COLLATE "C" AND a.bucket = _archived.bucket;
    IF FOUND THEN
        RETURN kept;
    END IF;
    leaf := to_regclass('once.intent_closed_d' || bucket);          -- sees a drop that is later than the snapshot; tables do not
    IF leaf IS NOT NULL THEN
        BEGIN
            EXECUTE format('SELECT * FROM once.%I WHERE tenant = $1 AND scope = $2 AND key = $3', 'intent_closed_d' || bucket)
               INTO kept USING tenant, scope, key;
            RETURN kept;
        EXCEPTION WHEN undefined_table THEN
            leaf := NULL;                                           -- dropped right now
        END;
    END IF;
    IF EXISTS (SELECT FROM once.closing AS c WHERE c.day = bucket)
       OR (bucket > 0 AND to_regclass('once.intent_d' || bucket) IS NULL
           AND EXISTS (SELECT FROM pg_class AS c WHERE c.relnamespace = 'once'::regnamespace
                          AND c.relname IN ('intent_d' || bucket, 'intent_closed_d' || bucket))) THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'pgonce: the day of this key was retired just now',
            DETAIL = format('tenant=%L scope=%L key=%L', tenant, scope, key), HINT = 'Retry the transaction.';
    END IF;
    RETURN kept;
END $$;
$file$;
        EXECUTE $file$
-- once._bucket(key): the partition that a key belongs to, or -1 if the key is malformed. A UUIDv7 key (RFC 9562) contains its creation
-- time in milliseconds: its bucket is that day, counted from 1970-01-01. A device without a clock makes keys of the first day, which
-- count as the second: 0 is the bucket of any other key of 1 to 255 printable ASCII characters. The bucket depends on the text alone: the
-- same key always falls into the same bucket, so the primary key keeps it unique across partitions without probing the others. So
-- anything before a UUIDv7, such as a prefix, makes it another key.
-- Inlined into its callers. LIKE checks the positions of the four dashes and of the version, NOT LIKE excludes a fifth dash; the regular
-- expressions are single character classes, because a bounded repetition costs 60 us where these cost 0.2. "bit" in quotes is a bit
-- string of any length: bit(48) would truncate it again.
CREATE OR REPLACE FUNCTION once._bucket(key text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN key COLLATE "C" LIKE '________-____-7___-____-____________'
             AND key COLLATE "C" NOT LIKE '%-%-%-%-%-%'
             AND key COLLATE "C" !~ '[^0-9a-fA-F-]'
        THEN greatest((('x' || replace(left(key, 13) COLLATE "C", '-', ''))::"bit"::bigint / 86400000)::integer, 1)
        ELSE once._bucket_of_other(key)
    END
$$;
$file$;
        EXECUTE $file$
-- once._bucket_of_other(key): the bucket (once._bucket) of a key that is not a UUIDv7 in the usual spelling. once._respelled handles
-- other spellings: LIKE avoids that call for nearly all other keys. Inlined.
CREATE OR REPLACE FUNCTION once._bucket_of_other(key text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN octet_length(key) <= 255 AND key COLLATE "C" ~ '^[ -~]+$'
        THEN CASE WHEN key COLLATE "C" LIKE ANY (ARRAY['01%', '{01%', '___:____:01%']) THEN once._respelled(key) ELSE 0 END
        ELSE -1
    END
$$;
$file$;
        EXECUTE $file$
-- once._count(verdict, times): counts the answers that attempts got, by the verdict of a claim or the name of a counter (once.counts).
-- Does nothing for a verdict without a counter, and in a read-only transaction.
CREATE OR REPLACE FUNCTION once._count(verdict text, times bigint DEFAULT 1) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    counter regclass := to_regclass('once.counted_' || CASE verdict WHEN 'new_claim' THEN 'new' WHEN 'replay_success' THEN 'replay'
        WHEN 'processing_active' THEN 'active' WHEN 'processing_stale' THEN 'stale' WHEN 'retryable_failure' THEN 'retryable'
        WHEN 'final_failure' THEN 'final' WHEN 'abandoned' THEN 'final' ELSE verdict END);
    counted bigint;
BEGIN
    IF counter IS NOT NULL AND current_setting('transaction_read_only') = 'off' THEN
        FOR n IN 1 .. times LOOP
            counted := nextval(counter);        -- an assignment starts no query
        END LOOP;
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._day_state(bucket): 'open', 'closed' (P4041), 'future' (P4001) or 'missing' (P4098) for the day of a UUIDv7 key. Called for keys
-- without a row, and only if their day is not plainly open. The clock is the database's.
CREATE OR REPLACE FUNCTION once._day_state(bucket integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    setting once.setting;
BEGIN
    IF bucket = 0 THEN
        RETURN 'open';
    END IF;
    SELECT s.* INTO STRICT setting FROM once.setting AS s WHERE s.only_row;
    IF bucket < setting.closed_before THEN
        RETURN 'closed';
    END IF;
    IF bucket > floor(date_part('epoch', clock_timestamp() + setting.clock_skew) / 86400) THEN
        RETURN 'future';
    END IF;
    IF NOT once._has_day('intent', bucket) THEN
        RETURN 'missing';
    END IF;
    RETURN 'open';
END $$;
$file$;
        EXECUTE $file$
-- once._first_fence(): the fence of a new intent of bucket 0. An earlier intent with its key may have been deleted. So the fence is above
-- every fence that was deleted with an intent of that bucket (once._keep_purge), and a late report of an earlier attempt never finds its
-- own fence. A UUIDv7 key cannot be used again once its day is retired: such an intent begins at 1, without a look-up. Call it while you
-- hold the intent's advisory lock: the purge holds that lock until its deletion is committed. A sequence, because no snapshot hides its
-- value: a transaction above READ COMMITTED may be older than the purge. Inlined.
CREATE OR REPLACE FUNCTION once._first_fence() RETURNS integer LANGUAGE sql AS $$
    SELECT coalesce(pg_sequence_last_value('once.fence_floor_seq'), 0)::integer + 1
$$;
$file$;
        EXECUTE $file$
-- once._hold(...): locks the row of an intent before a takeover, if it is still as it was read. False if it has changed, or if another
-- transaction is changing it: a report of the old attempt, which may be part of a longer transaction. Never waits. From here on such a
-- report waits for this transaction, and is refused if this one commits.
CREATE OR REPLACE FUNCTION once._hold(tenant text, scope text, key text, bucket integer, fence integer, state once.state,
    lease_until timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    PERFORM FROM once.intent AS i
      WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
        AND i.bucket = bucket AND i.fence = fence AND i.state = state
        AND i.lease_until IS NOT DISTINCT FROM lease_until
        FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END $$;
$file$;
        EXECUTE $file$
-- once._is_dated(key): whether a key with the length, the dashes and the version of a UUIDv7 (LIKE) is certainly one, in lower case.
-- False is not final: once._bucket decides. Inlined.
CREATE OR REPLACE FUNCTION once._is_dated(key text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT key COLLATE "C" NOT LIKE '%-%-%-%-%-%' AND key COLLATE "C" !~ '[^0-9a-f-]'
$$;
$file$;
        EXECUTE $file$
-- once._is_open(bucket): whether a UUIDv7 key's day is plainly open for a new intent: it has begun and has its partition. If not,
-- once._open_day finds the reason, creates the partition, or allows the key because of clock skew. Call it after the look-up, which locks
-- the table against once.retire_day. It is a separate function so that no other key and no replay pays for it.
CREATE OR REPLACE FUNCTION once._is_open(bucket integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF once._is_new_day() THEN
        PERFORM once._make_days(NULL);
    END IF;
    RETURN bucket <= date_part('epoch', clock_timestamp()) / 86400 AND once._has_day('intent', bucket);
END $$;
$file$;
        EXECUTE $file$
-- once._is_today(bucket): once._is_open for a key of once._today(): whether that is still the day, has also begun by the clock, and has
-- its partition. Call it after the look-up, like once._is_open. Inlined, with the table's name as a constant.
CREATE OR REPLACE FUNCTION once._is_today(bucket integer) RETURNS boolean LANGUAGE sql AS $$
    SELECT bucket = once._today() AND clock_timestamp() >= to_timestamp(once._today() * 86400::double precision)
       AND to_regclass('once.intent_d' || once._today()::text) IS NOT NULL
$$;
$file$;
        EXECUTE $file$
-- once._is_undated(key): whether a key that does not look like a UUIDv7 in the usual spelling certainly belongs to bucket 0. False is not
-- final: once._bucket decides. Inlined.
CREATE OR REPLACE FUNCTION once._is_undated(key text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT octet_length(key) <= 255 AND key COLLATE "C" ~ '^[ -~]+$'
       AND key COLLATE "C" NOT LIKE ALL (ARRAY['01%', '{01%', '___:____:01%'])
$$;
$file$;
        EXECUTE $file$
-- once._json_body(body): the canonical form of a JSON text (docs/reference/fingerprint.md), byte for byte as lib/src/json.c writes it, or
-- NULL if it has none. Patterns decide whether it is JSON that jsonb accepts: the cast would raise an error, and nothing here catches one.
-- Of two members with one name jsonb keeps only the last, so members are counted before and after.
CREATE OR REPLACE FUNCTION once._json_body(body bytea) RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    string constant text := E'\x01';
    scalar constant text := E'\x02';
    long constant text := repeat('0', 101);     -- a number that is too long, after each of its characters became a 0
    given text;
    shape text;
    before text;
    members integer;
    canonical text;
BEGIN
    -- Well-formed UTF-8 (RFC 3629) without NUL, its bytes beyond ASCII as \ooo.
    IF octet_length(body) > 1024 * 1024 OR encode(body, 'escape') COLLATE "C" !~ ($re$^(?:[^\\]|\\\\$re$
        || $re$|\\(?:30[2-7]|3[123][0-7]|340\\2[4-7][0-7]|355\\2[0-3][0-7]|(?:34[1-7]|35[0-4]|35[67])\\2[0-7][0-7]$re$
        || $re$|360\\2[2-7][0-7]\\2[0-7][0-7]|36[123]\\2[0-7][0-7]\\2[0-7][0-7]|364\\2[01][0-7]\\2[0-7][0-7])$re$
        || $re$\\2[0-7][0-7])*\Z$re$) THEN
        RETURN NULL;
    END IF;
    given := convert_from(body, 'UTF8');
    IF given COLLATE "C" ~ $re$[\u0001-\u0008\u000b\u000c\u000e-\u001f]$re$ THEN
        RETURN NULL;
    END IF;
    -- Its shape: one character for each string and each other scalar; any other text stays and is refused below.
    shape := regexp_replace(given COLLATE "C", $re$"(?:[^"\\\u0001-\u001f]|\\["\\/bfnrt]|\\u(?!0000)(?:$re$
        || '[0-9a-cefA-CEF][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F]|[dD][0-7][0-9a-fA-F][0-9a-fA-F]'
        || $re$|[dD][89abAB][0-9a-fA-F][0-9a-fA-F]\\u[dD][c-fC-F][0-9a-fA-F][0-9a-fA-F]))*"$re$, string, 'g');
    members := length(shape) - length(replace(shape, ':', ''));
    IF strpos(translate(shape, '123456789.-+eE', '00000000000000'), long) > 0
        OR shape COLLATE "C" ~ '[eE][-+]?0*[1-9][0-9][0-9]' THEN
        RETURN NULL;
    END IF;
    shape := regexp_replace(shape COLLATE "C",
        'true|false|null|-?(?:0|[1-9][0-9]*)(?:[.][0-9]+)?(?:[eE][-+]?[0-9]+)?', scalar, 'g');
    shape := translate(shape, E' \t\n\r', '');
    shape := regexp_replace(shape, string || '(?!:)', scalar, 'g');
    -- A value without an inner array or object becomes one character, repeated for each level of nesting.
    FOR depth IN 1..64 LOOP
        before := shape;
        shape := regexp_replace(shape COLLATE "C",
            $re$\[(?:\u0002(?:,\u0002)*)?\]|\{(?:\u0001:\u0002(?:,\u0001:\u0002)*)?\}$re$, scalar, 'g');
        EXIT WHEN shape = before;
    END LOOP;
    IF shape <> scalar THEN
        RETURN NULL;
    END IF;
    canonical := once._json_text(given::jsonb);
    shape := regexp_replace(canonical COLLATE "C", $re$"(?:[^"\\]|\\.)*"$re$, '', 'g');
    RETURN CASE WHEN length(shape) - length(replace(shape, ':', '')) = members
                    AND strpos(translate(shape, '123456789.-', '00000000000'), long) = 0
        THEN convert_to(canonical, 'UTF8') END;
END $$;
$file$;
        EXECUTE $file$
-- once._json_text(value): the canonical form of a JSON value (docs/reference/fingerprint.md): its text, each number without trailing zeros
-- after the point, so that 1.0 is 1. Most values have no such number, and the first check finds that out in a microsecond.
CREATE OR REPLACE FUNCTION once._json_text(value jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    written text := value::text;
BEGIN
    IF written COLLATE "C" ~ $re$[.][0-9]*0([],}]|$)$re$ THEN
        -- Each match takes everything up to such a number, or up to the end, so that no match begins inside a string.
        RETURN regexp_replace(written COLLATE "C", $re$((?:[^".]|"(?:[^"\\]|\\.)*"|[.][0-9]*[1-9](?:[],}]|$))*)$re$
            || $re$(?:(?:[.]0+|([.][0-9]*[1-9])0+)([],}]|$)|$)$re$, E'\\1\\2\\3', 'g');
    END IF;
    RETURN written;
END $$;
$file$;
        EXECUTE $file$
-- once._length(elements, absent): the number of elements of an array; absent if the array is NULL; -1 if its elements are not numbered
-- from 1 in one dimension, since an index would then find another element than the caller meant. Inlined.
CREATE OR REPLACE FUNCTION once._length(elements anyarray, absent integer) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN elements IS NULL THEN absent
                WHEN cardinality(elements) = 0 THEN 0
                WHEN array_ndims(elements) = 1 AND array_lower(elements, 1) = 1 THEN cardinality(elements)
                ELSE -1 END
$$;
$file$;
        EXECUTE $file$
-- once._lock_id(tenant, scope, key): the 64-bit number of an intent's advisory lock. A hash of the array and not of the joined texts, so
-- that ('a','bc') and ('ab','c') differ. Two intents with the same number only take turns: the second gets processing_active and tries
-- again. The explicit collation: a hash needs a deterministic one.
CREATE OR REPLACE FUNCTION once._lock_id(tenant text, scope text, key text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hash_array_extended(ARRAY[tenant, scope, key] COLLATE "C", 20778)
$$;
$file$;
        EXECUTE $file$
-- once._match_day(key, day): the day if this UUIDv7 key, in lower case and in the usual groups, was made on it; else NULL. The planner
-- computes the bounds as texts from a constant day, so that only two comparisons remain. Inlined.
CREATE OR REPLACE FUNCTION once._match_day(key text, day integer) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN key COLLATE "C" >= overlay(lpad(to_hex(day * 86400000::bigint), 12, '0') PLACING '-' FROM 9 FOR 0)
                 AND key COLLATE "C" < overlay(lpad(to_hex((day + 1) * 86400000::bigint), 12, '0') PLACING '-' FROM 9 FOR 0)
                THEN day END
$$;
$file$;
        EXECUTE $file$
-- once._open_day(bucket): once._day_state for a new intent of this day: creates a missing partition, or waits while another session
-- creates it. Returns 'missing' if neither was possible.
CREATE OR REPLACE FUNCTION once._open_day(bucket integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    state text := once._day_state(bucket);
BEGIN
    FOR attempt IN 1 .. 2 LOOP          -- the other session may have rolled back
        EXIT WHEN state <> 'missing';
        PERFORM once._make_days(bucket);
        state := once._day_state(bucket);
        EXIT WHEN state <> 'missing' OR NOT once._wait_for_days();
        state := once._day_state(bucket);
    END LOOP;
    RETURN state;
END $$;
$file$;
        EXECUTE $file$
-- once._peek(tenant, scope, key, bucket): the stored state of an intent, for arguments that are already checked. The common core of peek
-- and peek_many.
CREATE OR REPLACE FUNCTION once._peek(tenant text, scope text, key text, bucket integer) RETURNS once.peeked LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_variable
DECLARE
    stored once.intent;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND AND bucket <> 0 THEN
        stored := once._archived(tenant, scope, key, bucket);
    END IF;
    RETURN ROW(CASE WHEN stored.state IS NOT NULL
                    THEN once._verdict(true, stored.state, stored.lease_until, clock_timestamp(), 0, NULL, 'takeover')
                    WHEN once._day_state(bucket) = 'closed' THEN 'expired' ELSE 'absent' END,
               stored.fence, stored.state, (once._outcome_of(stored)).*, stored.owner, stored.lease_until, stored.attempts,
               stored.created_at, stored.completed_at, stored.traceparent)::once.peeked;
END $$;
$file$;
        EXECUTE $file$
-- once._refuse_day(tenant, scope, key, bucket): raises if the day of a new key is closed, future or missing; raises 40001 if it was
-- retired after the snapshot (once._archived).
CREATE OR REPLACE FUNCTION once._refuse_day(tenant text, scope text, key text, bucket integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    day text := to_char(date '1970-01-01' + bucket, 'YYYY-MM-DD');
BEGIN
    CASE once._day_state(bucket)
        WHEN 'open' THEN RETURN;
        WHEN 'closed' THEN
            PERFORM once._count('expired');
            PERFORM once._refuse('P4041', tenant, scope, key, 'the key was made on ' || day);
        WHEN 'future' THEN PERFORM once._refuse('P4001', tenant, scope, key, 'the key claims to be made on ' || day);
        ELSE
            PERFORM once._archived(tenant, scope, key, bucket);
            PERFORM once._refuse('P4098', tenant, scope, key, 'no partition for ' || day);
    END CASE;
END $$;
$file$;
        EXECUTE $file$
-- once._respelled(key): the bucket of a key that is not written in groups of 8-4-4-4-12: its day if it is a UUIDv7 without hyphens, with
-- others, in braces, or after urn:uuid:; else 0. It counts as a UUIDv7 by its version, its variant and a date from 2022 to 2039, because
-- 32 hexadecimal digits may also be a hash: one hash in 32,768 passes for a UUIDv7. The dates are fixed, since a key must never change
-- its bucket. COLLATE "C": in Turkish the I of URN:UUID: is another letter.
CREATE OR REPLACE FUNCTION once._respelled(key text) RETURNS integer LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    digits text;
BEGIN
    IF octet_length(key) > 45 OR key COLLATE "C" !~* '^(urn:uuid:|[{])?01[89a-f]' THEN
        RETURN 0;
    END IF;
    digits := regexp_replace(lower(key COLLATE "C"), '^urn:uuid:|[{}-]', '', 'g');
    RETURN CASE WHEN digits COLLATE "C" LIKE '____________7___________________' AND digits COLLATE "C" !~ '[^0-9a-f]'
                     AND substr(digits, 17, 1) IN ('8', '9', 'a', 'b')
                THEN ('x' || left(digits, 12))::"bit"::bigint / 86400000 ELSE 0 END;
END $$;
$file$;
        EXECUTE $file$
-- once._same(fingerprint, redirects, given): whether this is the intent's request, or one that an answer redirected it to. Never NULL for
-- an existing row; inlined.
CREATE OR REPLACE FUNCTION once._same(fingerprint bytea, redirects bytea[], given bytea) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT fingerprint = given OR coalesce(given = ANY (redirects), false)
$$;
$file$;
        EXECUTE $file$
-- once._today(): the day, counted from 1970-01-01, whose partition the hot functions open alone; NULL at first: no day. Once a day's
-- partitions exist, once.add_days replaces this function by one that returns that day as a constant. It affects plans only: if it is a
-- day behind, because no keeper has run yet, and for keys of other days, calls take the general path, which is slower.
--
-- Why it is written so: a plan that uses it contains the number, so that it opens and locks one partition and not all. Because it is
-- STABLE and inlined, the planner notes that the plan depends on this function, and plans again when it is replaced. It would not if the
-- function were IMMUTABLE and called through another inlined function.
CREATE OR REPLACE FUNCTION once._today() RETURNS integer LANGUAGE sql STABLE PARALLEL SAFE AS $$ SELECT NULL::integer $$;
$file$;
        EXECUTE $file$
-- once._trace(traceparent): a traceparent in the form of W3C Trace Context (version 00): 00-<32 hex>-<16 hex>-<2 hex>, in lower case,
-- neither id all zero; NULL for anything else: a tracer's mistake must never become the application's. Inlined; written like
-- once._bucket, for the same reason.
CREATE OR REPLACE FUNCTION once._trace(traceparent text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN traceparent COLLATE "C" LIKE '00-________________________________-________________-__'
             AND traceparent COLLATE "C" NOT LIKE '%-%-%-%-%'
             AND traceparent COLLATE "C" !~ '[^0-9a-f-]'
             AND traceparent COLLATE "C" NOT LIKE '00-00000000000000000000000000000000-%'
             AND traceparent COLLATE "C" NOT LIKE '%-0000000000000000-__'
        THEN traceparent
    END
$$;
$file$;
        EXECUTE $file$
-- once._verdict(...): the verdict for an attempt that finds this row. Only this function decides it; inlined. A mismatch takes precedence
-- over everything else. For 'verify' and 'abandoned' the caller must act.
CREATE OR REPLACE FUNCTION once._verdict(same boolean, state once.state, lease_until timestamptz, now timestamptz, attempts integer,
    max_attempts integer, on_stale text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN NOT same THEN 'mismatch'
        WHEN state = 'succeeded' THEN 'replay_success'
        WHEN state = 'failed_final' THEN 'final_failure'
        WHEN state = 'in_doubt' THEN 'in_doubt'
        WHEN state = 'failed_retryable' THEN CASE WHEN attempts >= max_attempts
            THEN 'abandoned' ELSE 'retryable_failure' END
        WHEN state = 'processing' AND lease_until > now THEN 'processing_active'
        WHEN state = 'processing' THEN CASE
            WHEN on_stale = 'verify' THEN 'verify'
            WHEN on_stale = 'in_doubt' OR attempts >= max_attempts THEN 'in_doubt'
            ELSE 'processing_stale' END
        ELSE 'unknown'
    END
$$;
$file$;
        EXECUTE $file$
-- once.ask(scope, key, tenant): once.verify for a page: if the verify function raises, failure contains the error. Only who may call
-- once.verify gets an answer; for others, and for a scope without a verify function, answer is NULL. Raises P4000, P4001, P4003.
CREATE OR REPLACE FUNCTION once.ask(scope text, key text, tenant text DEFAULT '', OUT answer text, OUT response_status integer,
    OUT response_body bytea, OUT result_type text, OUT result_id text, OUT failure text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    policy once.scope := once._policy(scope);
    asked record;
BEGIN
    PERFORM once._check(tenant, scope, key, once._bucket(key), E'\\x00000000000000000000000000000000');
    IF policy.verify IS NOT NULL AND has_function_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user::text),
        'once.verify(text, text, text)', 'execute') THEN
        asked := once._ask(policy, tenant, scope, key);
        answer := (asked.verified).answer;
        response_status := (asked.verified).response_status;
        response_body := (asked.verified).response_body;
        result_type := (asked.verified).result_type;
        result_id := (asked.verified).result_id;
        failure := asked.failure;
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once.doubts_part(tenant, scope, error, take, after): the intents in doubt, as in the view once.in_doubt, in parts: at most take (500) of
-- them, reading for about 50 milliseconds. The tables are read by blocks, from their beginnings: so the order is roughly that of time,
-- the oldest first, and the archive comes last. tenant, scope and error (the error_code they were put in doubt with) narrow it; NULL does
-- not. To continue, pass next of the last row as after; NULL means done. The last row has no intent, but share: what part of the tables
-- has been read. An intent that is in doubt at the first call, and stays so, is listed once. Raises 22023 for an invalid cursor, P4003
-- for the tenant.
CREATE OR REPLACE FUNCTION once.doubts_part(tenant text DEFAULT NULL, scope text DEFAULT NULL, error text DEFAULT NULL, take integer DEFAULT 50,
    after text DEFAULT NULL)
RETURNS TABLE (tenant text, scope text, key text, fence integer, attempts integer, owner text, created_at timestamptz,
    lease_until timestamptz, since timestamptz, error_code text, error_message text, traceparent text, archived boolean, next text,
    share double precision)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT once._authorise($1);         -- NULL, all tenants: for roles that are not bound
    SELECT (d.stored).tenant, (d.stored).scope, (d.stored).key, (d.stored).fence, (d.stored).attempts, (d.stored).owner,
           (d.stored).created_at, (d.stored).lease_until, (d.stored).updated_at, (d.stored).error_code, (d.stored).error_message,
           (d.stored).traceparent, d.source = 'once.archive'::regclass, d.next, d.share
      FROM once._doubtful($1, $2, $3, NULL, NULL, least(greatest(coalesce($4, 50), 0), 500), $5, '50 milliseconds') AS d
$$;
$file$;
        EXECUTE $file$
-- once.recover(take, scope, tenant, after, in_doubt): judges stale intents (their lease passed without a report) by the policy and the
-- verify function of their scope, at most take of them, for about a quarter of a second; with a scope or a tenant only those. With
-- in_doubt it judges the intents in doubt instead, including those of retired days, by the verify function alone. The keeper judges stale
-- intents only: it would otherwise ask a verify function that has no answer again in each round. decided is
--   succeeded  verify found that the effect happened: its outcome is stored
--   retry      the next attempt runs. A stale intent stays stale: its policy is takeover, or verify answered 'absent' or raised.
--              The next attempt asks verify again, since something may have happened meanwhile. An intent in doubt for which
--              verify answered 'absent' has now failed retryably, and its old attempt is shut out
--   in_doubt   the outcome is unknown; see once.resolve. Nothing is asked while the doubt's lease lasts: its attempt may still be at work
--   abandoned  verify answered 'absent' and its attempts are used up: failed for good
-- found is the answer of verify; NULL if it was not asked. Changes are recorded in once.decision. To continue, pass next as after; NULL
-- in the last row, or no rows, means done. A row without a key only has the cursor for the next call. An intent whose attempt is just
-- reporting or being taken over is left out.
CREATE OR REPLACE FUNCTION once.recover(take integer DEFAULT 100, scope text DEFAULT NULL, tenant text DEFAULT NULL,
    after text DEFAULT NULL, in_doubt boolean DEFAULT false)
RETURNS TABLE (tenant text, scope text, key text, fence integer, found text, decided text, reason text, next text)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    -- A function is not called if its condition, which uses no column, is false.
    SELECT r.tenant, r.scope, r.key, r.fence, r.answer, r.decided, r.reason, r.next
      FROM once._recover($1, $2, $3, $4) AS r WHERE $5 IS NOT TRUE
     UNION ALL
    SELECT r.tenant, r.scope, r.key, r.fence, r.answer, r.decided, r.reason, r.next
      FROM once._recover_doubt($1, $2, $3, $4) AS r WHERE $5
$$;
$file$;
        EXECUTE $file$
-- once.resolve(scope, key, as_state, reason, outcome..., tenant): an operator's decision on an intent that is in doubt, stale, or failed
-- retryably: as_state is 'succeeded' (the effect happened; give its outcome), 'failed_retryable' (it did not; the next attempt may run)
-- or 'failed_final' (it did not and must not). Raises the fence, which shuts out a zombie of the old attempt. Records in once.decision
-- who decided and why. Returns the state before. A lease that ends in more than 8 days, longer than any lease is, was taken while the
-- clock was ahead, and counts as passed. Raises P4070 if the intent is running, finished or unknown, or the reason is missing; P4060,
-- P4000, P4001, P4003.
CREATE OR REPLACE FUNCTION once.resolve(scope text, key text, as_state text, reason text, response_status integer DEFAULT NULL,
    response_text text DEFAULT NULL, response_json jsonb DEFAULT NULL, response_body anynonarray DEFAULT NULL::bytea,
    response_headers jsonb DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL, error_code text DEFAULT NULL,
    error_message text DEFAULT NULL, tenant text DEFAULT '') RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    now timestamptz := clock_timestamp();
    stored once.intent;
    source regclass := 'once.intent';
    outcome once.outcome;
BEGIN
    IF pg_typeof(response_body) <> 'bytea'::regtype THEN        -- alone and first: see once._refuse_type
        PERFORM once._refuse_type(tenant, scope, key, pg_typeof(response_body));
    END IF;
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
    IF response_text IS NOT NULL OR response_json IS NOT NULL THEN
        response_body := once._body(tenant, scope, key, response_text, response_json, response_body);
    END IF;
    outcome := ROW(response_status, response_body, response_headers, result_type, result_id, left(error_code, 255),
        left(error_message, 4096));
    PERFORM once._check_outcome(tenant, scope, key, outcome);
    IF (btrim(reason) <> '') IS NOT TRUE THEN
        PERFORM once._refuse('P4070', tenant, scope, key, 'the reason is missing');
    ELSIF (as_state IN ('succeeded', 'failed_retryable', 'failed_final')) IS NOT TRUE THEN
        PERFORM once._refuse('P4070', tenant, scope, key,
            format('as_state=%s: one of succeeded, failed_retryable, failed_final', quote_nullable(as_state)));
    ELSIF NOT pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key)) THEN
        PERFORM once._refuse('P4070', tenant, scope, key, 'an attempt is running right now');
    END IF;
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND THEN
        stored := once._archived(tenant, scope, key, bucket);
        source := 'once.archive';
    END IF;
    IF stored.state IS NULL THEN
        PERFORM once._refuse('P4070', tenant, scope, key, 'there is no such intent');
    ELSIF stored.state = 'processing' AND once._is_live(stored.lease_until, now) THEN
        PERFORM once._refuse('P4070', tenant, scope, key, format('an attempt is running: its lease ends at %s',
            stored.lease_until));
    ELSIF NOT EXISTS (SELECT FROM once.transition AS t WHERE t.from_state = stored.state AND t.event = 'resolve'
        AND t.to_state = as_state::once.state) THEN
        PERFORM once._refuse('P4070', tenant, scope, key, format('the intent is %s', stored.state));
    END IF;
    IF NOT once._decide(source, stored, as_state::once.state, reason, 'resolve', outcome) THEN
        PERFORM once._refuse('P4070', tenant, scope, key, CASE source WHEN 'once.intent'::regclass
            THEN 'its attempt is reporting right now' ELSE 'it is being moved to the archive right now' END);
    END IF;
    RETURN stored.state;
END $$;
$file$;
        EXECUTE $file$
-- once.resolve_many(scope, as_state, reason, outcome..., tenant, error, since, until, dry_run, take, after): once.resolve for all intents
-- of a scope that are in doubt, in parts: at most take in a call, for about a quarter of a second. Narrow it by tenant (NULL: all), by
-- error (the error_code they were put in doubt with), and by since and until: an intent matches if it was first tried since and was in
-- doubt before until, so that all its attempts lie between. All get the same outcome. An intent that is decided or reported meanwhile is
-- skipped. A dry run counts and changes nothing. Returns a row for each error among them, or one row if there are no intents; next is the
-- same in each: pass it as after in the next transaction; NULL means done. A decided intent is no longer in doubt, so after an
-- interruption just start again. Raises P4070 for a missing reason or an unknown state, 22023, P4060, P4000, P4003.
CREATE OR REPLACE FUNCTION once.resolve_many(scope text, as_state text, reason text, response_status integer DEFAULT NULL,
    response_text text DEFAULT NULL, response_json jsonb DEFAULT NULL, response_body anynonarray DEFAULT NULL::bytea,
    response_headers jsonb DEFAULT NULL, error_code text DEFAULT NULL, error_message text DEFAULT NULL, tenant text DEFAULT NULL,
    error text DEFAULT NULL, since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL, dry_run boolean DEFAULT false,
    take integer DEFAULT 100, after text DEFAULT NULL) RETURNS TABLE (met text, decided bigint, skipped bigint, next text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '250 milliseconds';
    outcome once.outcome;
    doubt record;
    done boolean;
    errors text[] := '{}';
    dones boolean[] := '{}';
    onward text;
BEGIN
    IF pg_typeof(response_body) <> 'bytea'::regtype THEN        -- alone and first: see once._refuse_type
        PERFORM once._refuse_type(tenant, scope, NULL, pg_typeof(response_body));
    END IF;
    PERFORM once._authorise(tenant);        -- NULL, all tenants: for roles that are not bound
    IF scope IS NULL OR length(scope) NOT BETWEEN 1 AND 255 THEN
        PERFORM once._refuse('P4000', tenant, scope, NULL);
    ELSIF (btrim(reason) <> '') IS NOT TRUE THEN
        PERFORM once._refuse('P4070', tenant, scope, NULL, 'the reason is missing');
    ELSIF (as_state IN ('succeeded', 'failed_retryable', 'failed_final')) IS NOT TRUE THEN
        PERFORM once._refuse('P4070', tenant, scope, NULL,
            format('as_state=%s: one of succeeded, failed_retryable, failed_final', quote_nullable(as_state)));
    END IF;
    IF response_text IS NOT NULL OR response_json IS NOT NULL THEN
        response_body := once._body(tenant, scope, NULL, response_text, response_json, response_body);
    END IF;
    outcome := ROW(response_status, response_body, response_headers, NULL, NULL, left(error_code, 255), left(error_message, 4096));
    PERFORM once._check_outcome(tenant, scope, NULL, outcome);
    FOR doubt IN SELECT d.* FROM once._doubtful(tenant, scope, error, since, until,
            least(greatest(coalesce(take, 100), 1), 1000), after) AS d LOOP
        onward := doubt.next;
        EXIT WHEN doubt.source IS NULL;
        CONTINUE WHEN once._serves((doubt.stored).tenant) IS NOT TRUE;
        done := dry_run IS TRUE;
        IF NOT done AND pg_try_advisory_xact_lock(once._lock_id((doubt.stored).tenant, scope, (doubt.stored).key)) THEN
            done := once._decide(doubt.source, doubt.stored, as_state::once.state, reason, 'resolve', outcome);
        END IF;
        errors := array_append(errors, (doubt.stored).error_code::text);
        dones := array_append(dones, done);
        EXIT WHEN clock_timestamp() > deadline;
    END LOOP;
    RETURN QUERY SELECT u.error, count(*) FILTER (WHERE u.done), count(*) FILTER (WHERE NOT u.done), onward
                   FROM unnest(errors, dones) AS u (error, done) GROUP BY u.error ORDER BY u.error;
    IF NOT FOUND THEN
        RETURN QUERY SELECT NULL::text, 0::bigint, 0::bigint, onward;
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once.resolve_seen(scope, key, seen_fence, seen_state, as_state, reason, outcome..., tenant, dry_run): once.resolve, if the intent's
-- fence and state are still those that the operator has seen: of two who decide at once the second changes nothing, and is told about the
-- first. Returns one JSON document: decided; fence and state, as they are now; and why it was not decided: 'changed', 'running' (an
-- attempt or another decision holds the intent), 'gone' (nothing is stored), NULL if it was or would be; first: the latest decision on
-- it since then, as once.story shows it. It waits up to a second for another decision. A dry run, the default, changes nothing. Raises
-- 22023 for a missing reason or state, P4070 as once.resolve does, P4060, P4000, P4001, P4003.
CREATE OR REPLACE FUNCTION once.resolve_seen(scope text, key text, seen_fence integer, seen_state text, as_state text, reason text,
    response_status integer DEFAULT NULL, response_text text DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL,
    tenant text DEFAULT '', dry_run boolean DEFAULT true) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    stored once.intent;
    first jsonb;
    why text;
    decided boolean := false;
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
    IF (btrim(reason) <> '') IS NOT TRUE OR seen_fence IS NULL OR dry_run IS NULL
       OR (as_state IN ('succeeded', 'failed_retryable', 'failed_final')) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: the reason, the fence or the decision is missing or unknown',
            DETAIL = format('as_state=%s: one of succeeded, failed_retryable, failed_final', quote_nullable(left(as_state, 80))),
            HINT = 'Say how the outcome is known, and pass fence and state as they were shown.';
    END IF;
    PERFORM once._check_outcome(tenant, scope, key, ROW(response_status, convert_to(response_text, 'UTF8'), NULL, result_type, result_id,
        NULL, NULL)::once.outcome);
    IF NOT dry_run THEN
        why := 'running';
        FOR n IN 1 .. 20 LOOP
            IF pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key)) THEN
                why := NULL;
                EXIT;
            END IF;
            PERFORM pg_sleep(0.05);
        END LOOP;
    END IF;
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C" AND i.bucket = bucket;
    IF NOT FOUND THEN
        stored := once._archived(tenant, scope, key, bucket);
    END IF;
    IF stored.state IS NULL THEN
        why := 'gone';
    ELSIF stored.fence <> seen_fence OR (stored.state::text = seen_state) IS NOT TRUE THEN
        why := 'changed';
        SELECT jsonb_build_object('at', d.decided_at, 'by', d.decided_by, 'reason', d.reason, 'fence', d.fence, 'from', d.from_state,
                   'to', d.to_state, 'kind', d.kind, 'before', d.before, 'after', d.after) INTO first
          FROM once.decision AS d
         WHERE d.tenant = tenant COLLATE "C" AND d.scope = scope COLLATE "C" AND d.key = key COLLATE "C" AND d.fence >= seen_fence
         ORDER BY d.decided_at DESC LIMIT 1;
    ELSIF why IS NULL AND stored.state = 'processing' AND once._is_live(stored.lease_until, clock_timestamp()) THEN
        why := 'running';
    ELSIF why IS NULL AND NOT dry_run THEN
        PERFORM once.resolve(scope => scope, key => key, as_state => as_state, reason => reason, response_status => response_status,
            response_text => response_text, result_type => result_type, result_id => result_id, tenant => tenant);
        decided := true;
        stored.fence := stored.fence + 1;
        stored.state := as_state::once.state;
    END IF;
    RETURN jsonb_build_object('decided', decided, 'why', why, 'first', first, 'fence', stored.fence, 'state', stored.state);
END $$;
$file$;
        EXECUTE $file$
-- once.verify(scope, key, tenant): asks the scope's verify function whether the effect of this intent happened, and changes nothing: for
-- operators, before once.resolve. NULL if the scope has no verify function; an exception of the function is raised to the caller. Raises
-- P4000, P4001, P4003.
CREATE OR REPLACE FUNCTION once.verify(scope text, key text, tenant text DEFAULT '') RETURNS once.verification
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    policy once.scope := once._policy(scope);
BEGIN
    PERFORM once._check(tenant, scope, key, once._bucket(key), E'\\x00000000000000000000000000000000');
    IF policy.verify IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN once._verify(policy, tenant, scope, key);
END $$;
$file$;
        EXECUTE $file$
-- once._abandoned(stored): why an intent without attempts left is not tried again.
CREATE OR REPLACE FUNCTION once._abandoned(stored once.intent) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws(': ', format('abandoned after %s attempts', stored.attempts), stored.error_message)
$$;
$file$;
        EXECUTE $file$
-- once._ask(policy, tenant, scope, key): once._verify for recovery, and for intents that are in doubt already: if the verify function
-- raises, the answer is 'unknown' and failure contains the error, so that the other intents are still checked.
CREATE OR REPLACE FUNCTION once._ask(policy once.scope, tenant text, scope text, key text, OUT verified once.verification, OUT failure text)
LANGUAGE plpgsql AS $$
DECLARE
    code text;
    said text;
BEGIN
    verified := once._verify(policy, tenant, scope, key);
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, said = MESSAGE_TEXT;
    verified.answer := 'unknown';
    failure := left(format('verify raised %s: %s', code, said), 500);
END $$;
$file$;
        EXECUTE $file$
-- once._decide(source, stored, to_state, reason, kind, outcome): stores a decision on an intent if its row is unchanged since it was
-- read. Raises the fence, which shuts out a zombie of the old attempt. Records in once.decision who decided and why. source is the table
-- of the row, once.intent or once.archive. Returns false if the attempt is reporting at this moment, or if the row was changed or moved
-- meanwhile. The caller holds the intent's advisory lock.
CREATE OR REPLACE FUNCTION once._decide(source regclass, stored once.intent, to_state once.state, reason text, kind text,
    outcome once.outcome) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := clock_timestamp();
    changed bigint;
BEGIN
    IF source = 'once.intent'::regclass AND NOT once._hold(stored.tenant, stored.scope, stored.key, stored.bucket,
        stored.fence, stored.state, stored.lease_until) THEN
        RETURN false;
    END IF;
    -- format() and not two statements: an archived row has the same columns in another table.
    EXECUTE format('UPDATE %s SET state = $1, fence = fence + 1, updated_at = $2, completed_at = $2, lease_until = NULL,
                    (response_status, response_body, response_headers, result_type, result_id, error_code, error_message)
                        = (SELECT ($3).*)
                    WHERE tenant = $4 AND scope = $5 AND key = $6 AND bucket = $7 AND fence = $8 AND state = $9', source)
      USING to_state, now, outcome, stored.tenant, stored.scope, stored.key, stored.bucket, stored.fence, stored.state;
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed > 0 THEN
        PERFORM once._record(stored.tenant, stored.scope, stored.key, stored.fence, stored.state, to_state, reason, kind, stored);
    END IF;
    RETURN changed > 0;
END $$;
$file$;
        EXECUTE $file$
-- once._doubtful(of_tenant, of_scope, of_error, since, until, take, after, patience): the intents in doubt, at most take of them, reading
-- for about as long as patience; each with its table (once.intent or once.archive) and the cursor of the position after it. since and
-- until select intents that were first tried since, and in doubt before until: nothing of them happened outside that period. NULL: any. A
-- last row without an intent only has the cursor for the next call, NULL if done, and the share of the tables that was read. The archive
-- comes last, so that a row that moves there meanwhile is still found.
CREATE OR REPLACE FUNCTION once._doubtful(of_tenant text, of_scope text, of_error text, since timestamptz, until timestamptz, take integer,
    after text, patience interval DEFAULT '100 milliseconds')
RETURNS TABLE (source regclass, stored once.intent, next text, share double precision) LANGUAGE plpgsql AS $$
DECLARE
    statement text := $sql$
        SELECT i.ctid AS address, ROW(i.*)::once.intent AS stored, NULL::text AS note FROM {leaf} AS i
         WHERE {here} AND i.ctid > $1 AND i.state = 'in_doubt'
           AND ($3 IS NULL OR i.tenant COLLATE "C" = $3) AND ($4 IS NULL OR i.scope COLLATE "C" = $4)
           AND (($5)[1] IS NULL OR i.error_code COLLATE "C" = ($5)[1])
           AND ($6 IS NULL OR i.created_at >= $6) AND ($7 IS NULL OR i.updated_at < $7)
         ORDER BY i.ctid LIMIT $2
        $sql$;
BEGIN
    RETURN QUERY
    SELECT w.source, w.stored, w.next, w.share
      FROM once._walk(ARRAY['once.intent', 'once.archive']::regclass[], ARRAY['{n}', '1000000000 + {n}'], ARRAY[statement, statement],
                      false, of_tenant, of_scope, ARRAY[of_error], since, until, take, after, patience) AS w;
END $$;
$file$;
        EXECUTE $file$
-- once._give_up(stored, to_state, code, reason, kind): ends an attempt without an answer: in doubt, or failed for good. Deletes an answer
-- that an earlier attempt left, since no retry may get it. The caller holds the row (once._hold).
CREATE OR REPLACE FUNCTION once._give_up(stored once.intent, to_state once.state, code text, reason text, kind text) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    UPDATE once.intent AS i
       SET state = to_state, updated_at = now, completed_at = CASE WHEN to_state = 'failed_final' THEN now END, lease_until = NULL,
           (response_status, response_body, response_headers, result_type, result_id, error_code, error_message)
               = ROW(NULL, NULL, NULL, NULL, NULL, code, reason)
     WHERE i.tenant = stored.tenant AND i.scope = stored.scope AND i.key = stored.key AND i.bucket = stored.bucket;
    PERFORM once._record(stored.tenant, stored.scope, stored.key, stored.fence, stored.state, to_state, reason, kind, stored);
END $$;
$file$;
        EXECUTE $file$
-- once._is_live(lease_until, now): whether a lease may still be held. False for a lease that has passed, and for one that ends later than
-- any lease taken now could: the longest is 7 days, and one more day allows for a clock that was just set back. Such a lease was taken
-- while the clock was far ahead, and no caller should have to wait for its end. Inlined. once.stuck applies the same rule.
CREATE OR REPLACE FUNCTION once._is_live(lease_until timestamptz, now timestamptz) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT lease_until > now AND lease_until <= now + interval '8 days'
$$;
$file$;
        EXECUTE $file$
-- once._is_unchanged(source, stored): whether an intent, in once.intent or once.archive, is still as it was read. For a caller that read
-- it without its advisory lock and holds the lock now: no verify function may be asked about an attempt that began meanwhile.
CREATE OR REPLACE FUNCTION once._is_unchanged(source regclass, stored once.intent) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    found_it boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE tenant = $1 AND scope = $2 AND key = $3 AND bucket = $4 AND fence = $5
                                    AND state = $6)', source)
       INTO found_it USING stored.tenant, stored.scope, stored.key, stored.bucket, stored.fence, stored.state;
    RETURN found_it;
END $$;
$file$;
        EXECUTE $file$
-- once._parse_cursor(after): the cursor of a function that reads through the tables, table:block:row, the address of the last row that it
-- looked at; NULL: before the first row.
CREATE OR REPLACE FUNCTION once._parse_cursor(after text) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    place bigint[] := CASE WHEN after COLLATE "C" ~ '^[0-9]{1,18}:[0-9]{1,10}:[0-9]{1,5}$' THEN string_to_array(after, ':')::bigint[] END;
BEGIN
    IF (place[3] <= 65535) IS NOT TRUE AND after IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: after is not a cursor',
            HINT = 'Pass the column next of the last row, or NULL to begin.';
    END IF;
    RETURN coalesce(place, ARRAY[0, 0, 0]);
END $$;
$file$;
        EXECUTE $file$
-- once._record(tenant, scope, key, fence, from_state, to_state, reason, kind, before): records a decision about an intent in
-- once.decision: who, when, why, from which state to which. Call it after the change; before is the row as it was. kind is 'resolve' (an
-- operator), 'verify', 'doubt' or 'abandon' (by verify, policy or used-up attempts), 'takeover' or 'retry' (a new attempt), 'retire' (the
-- intent's day was retired).
CREATE OR REPLACE FUNCTION once._record(tenant text, scope text, key text, fence integer, from_state once.state, to_state once.state, reason text,
    kind text DEFAULT 'resolve', before once.intent DEFAULT NULL) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    day integer := once._bucket(key);
    stored once.intent;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C" AND i.bucket = day;
    IF NOT FOUND THEN
        stored := once._archived(tenant, scope, key, day);
    END IF;
    INSERT INTO once.decision (decided_by, reason, tenant, scope, key, fence, from_state, to_state, kind, before, after)
    VALUES (session_user, reason, tenant, scope, key, fence, from_state, to_state, kind, once._summary(before),
            once._summary(stored));
END $$;
$file$;
        EXECUTE $file$
-- once._record_attempt(before, to_state, verified): records that a new attempt began an intent that had an attempt before, or ended it in
-- the same transaction. A takeover from an attempt that fell silent or is in doubt is always recorded. Of retries after a failure, which
-- may be many, the first three are recorded and then fewer and fewer. Work that never started (once.release) is not recorded, and not
-- counted either. verified: the answer of verify, if it was asked.
CREATE OR REPLACE FUNCTION once._record_attempt(before once.intent, to_state once.state, verified text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    nth integer := before.attempts + 1;     -- not the fence: the first attempt may have any (once._first_fence)
BEGIN
    IF before.state IN ('processing', 'in_doubt') THEN
        PERFORM once._record(before.tenant, before.scope, before.key, before.fence + 1, before.state, to_state,
            concat_ws(': ', format(CASE before.state WHEN 'processing' THEN 'attempt %s ended without a report'
                ELSE 'attempt %s was in doubt' END, before.attempts), 'verify answered ' || verified), 'takeover', before);
    ELSIF before.error_code IS DISTINCT FROM 'released' AND (nth <= 3 OR nth & (nth - 1) = 0) THEN
        PERFORM once._record(before.tenant, before.scope, before.key, before.fence + 1, before.state, to_state,
            concat_ws(': ', format('attempt %s failed', before.attempts), before.error_code), 'retry', before);
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._recover(take, of_scope, of_tenant, after, upto): the work of once.recover; with upto, within one table up to that block, for the
-- sweep. A cursor is bucket:block:place, the address of the last row that was looked at. It first judges all intents, each under its
-- advisory lock and without a row lock, since a verify function may be slow and a report must not wait for it. Then it stores the
-- decisions, each only if the row is still as it was judged.
CREATE OR REPLACE FUNCTION once._recover(take integer, of_scope text, of_tenant text, after text, upto bigint DEFAULT NULL)
RETURNS TABLE (tenant text, scope text, key text, fence integer, answer text, decided text, reason text, next text)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '250 milliseconds';
    limit_rows integer := least(greatest(coalesce(take, 100), 1), 1000);
    place bigint[] := once._parse_cursor(after);
    buckets integer[] := ARRAY(SELECT 0 UNION ALL SELECT d FROM once._days('once.intent', 'intent_d') AS d);
    stride bigint := once._stride();
    judged record;
    answers record;
    stored once.intent[] := '{}';
    verified once.verification[] := '{}';
    failures text[] := '{}';
    cursors text[] := '{}';
    through boolean := false;
    met integer;
    onward text;
    n integer;
BEGIN
    <<tables>>
    LOOP
        -- The table that the cursor names, or the next one if that is gone.
        place := (SELECT CASE WHEN b = place[1] THEN place ELSE ARRAY[b, 0, 0]::bigint[] END
                    FROM unnest(buckets) AS b WHERE b >= place[1] ORDER BY b LIMIT 1);
        IF place IS NULL OR (upto IS NOT NULL AND place[2] >= upto) THEN
            through := true;
            EXIT;
        ELSIF place[2] >= once._blocks(to_regclass('once.intent_d' || place[1])) THEN
            IF upto IS NOT NULL THEN
                through := true;
                EXIT;
            END IF;
            place := ARRAY[place[1] + 1, 0, 0];
            CONTINUE;
        ELSIF (met IS NOT NULL AND clock_timestamp() > deadline) OR cardinality(stored) >= limit_rows THEN
            EXIT;
        END IF;
        met := 0;
        FOR judged IN EXECUTE once._sql_for_blocks(('once.intent_d' || place[1])::regclass, place[2],
                                         least(place[2] - place[2] % stride + stride, upto), $sql$
                          SELECT i.ctid AS address, i::once.intent AS stored FROM {leaf} AS i
                           WHERE {here} AND i.ctid > $1 AND i.state = 'processing' AND i.lease_until <= $2
                             AND ($3 IS NULL OR i.scope COLLATE "C" = $3) AND ($4 IS NULL OR i.tenant COLLATE "C" = $4)
                           ORDER BY i.ctid LIMIT $5
                          $sql$)
                      USING format('(%s,%s)', place[2], place[3])::tid, clock_timestamp(), of_scope, of_tenant,
                            limit_rows LOOP
            met := met + 1;
            place := ARRAY[place[1]] || string_to_array(btrim(judged.address::text, '()'), ',')::bigint[];
            IF once._serves((judged.stored).tenant)
               AND pg_try_advisory_xact_lock(once._lock_id((judged.stored).tenant, (judged.stored).scope, (judged.stored).key))
               AND once._is_unchanged('once.intent', judged.stored) THEN
                SELECT NULL::once.verification AS verified, NULL::text AS failure INTO answers;
                IF (once._policy((judged.stored).scope)).on_stale = 'verify' THEN
                    SELECT a.* INTO answers FROM once._ask(once._policy((judged.stored).scope), (judged.stored).tenant,
                        (judged.stored).scope, (judged.stored).key) AS a;
                END IF;
                stored := array_append(stored, judged.stored);
                verified := array_append(verified, answers.verified);
                failures := array_append(failures, answers.failure);
                cursors := array_append(cursors, array_to_string(place, ':'));
            END IF;
            EXIT tables WHEN clock_timestamp() > deadline OR cardinality(stored) >= limit_rows;
        END LOOP;
        IF met < limit_rows THEN
            place := ARRAY[place[1], place[2] - place[2] % stride + stride, 0];
        END IF;
    END LOOP;

    onward := CASE WHEN NOT through THEN array_to_string(place, ':') END;
    next := onward;
    FOR n IN 1 .. cardinality(stored) LOOP
        tenant := (stored[n]).tenant;
        scope := (stored[n]).scope;
        key := (stored[n]).key;
        fence := (stored[n]).fence;
        answer := (verified[n]).answer;
        SELECT r.* INTO decided, reason FROM once._recover_one(stored[n], once._policy(scope), verified[n], failures[n]) AS r;
        CONTINUE WHEN decided IS NULL;
        IF n < cardinality(stored) THEN
            next := cursors[n];
        ELSE
            next := onward;
        END IF;
        RETURN NEXT;
    END LOOP;
    -- The cursor for the next call, if the last row does not have it.
    IF next IS DISTINCT FROM onward OR (cardinality(stored) = 0 AND NOT through) THEN
        tenant := NULL; scope := NULL; key := NULL; fence := NULL; answer := NULL; decided := NULL; reason := NULL;
        next := onward;
        RETURN NEXT;
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._recover_doubt(take, of_scope, of_tenant, after): the work of once.recover for intents in doubt: asks the verify function of each
-- scope that has one, unless the doubt still has a lease: until that has passed its attempt may still be at work, and an effect that is
-- absent now may still happen. As in once._recover, it first judges all intents without locking a row; then it stores each decision if
-- the row is still as it was judged.
CREATE OR REPLACE FUNCTION once._recover_doubt(take integer, of_scope text, of_tenant text, after text)
RETURNS TABLE (tenant text, scope text, key text, fence integer, answer text, decided text, reason text, next text)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '250 milliseconds';
    policy once.scope;
    doubt record;
    answers record;
    sources regclass[] := '{}';
    stored once.intent[] := '{}';
    verified once.verification[] := '{}';
    failures text[] := '{}';
    cursors text[] := '{}';
    onward text;
    n integer;
BEGIN
    FOR doubt IN SELECT d.* FROM once._doubtful(of_tenant, of_scope, NULL, NULL, NULL,
            least(greatest(coalesce(take, 100), 1), 1000), after) AS d LOOP
        onward := doubt.next;
        EXIT WHEN doubt.source IS NULL;
        policy := once._policy((doubt.stored).scope);
        CONTINUE WHEN once._serves((doubt.stored).tenant) IS NOT TRUE
                      OR NOT pg_try_advisory_xact_lock(once._lock_id((doubt.stored).tenant, (doubt.stored).scope,
                                                                  (doubt.stored).key))
                      OR NOT once._is_unchanged(doubt.source, doubt.stored);
        SELECT NULL::once.verification AS verified, 'its scope has no verify function' AS failure INTO answers;
        IF (doubt.stored).lease_until > clock_timestamp() THEN
            answers.failure := format('its attempt may still be at work until %s', (doubt.stored).lease_until);
        ELSIF policy.verify IS NOT NULL THEN
            SELECT a.* INTO answers FROM once._ask(policy, (doubt.stored).tenant, (doubt.stored).scope, (doubt.stored).key) AS a;
        END IF;
        sources := array_append(sources, doubt.source);
        stored := array_append(stored, doubt.stored);
        verified := array_append(verified, answers.verified);
        failures := array_append(failures, answers.failure);
        cursors := array_append(cursors, doubt.next);
        EXIT WHEN clock_timestamp() > deadline;
    END LOOP;
    FOR n IN 1 .. cardinality(stored) LOOP
        tenant := (stored[n]).tenant;
        scope := (stored[n]).scope;
        key := (stored[n]).key;
        fence := (stored[n]).fence;
        answer := (verified[n]).answer;
        next := cursors[n];
        IF answer = 'happened' THEN
            decided := 'succeeded';
            reason := 'verify: the effect happened';
            CONTINUE WHEN NOT once._decide(sources[n], stored[n], 'succeeded', reason, 'verify', once._outcome_of(verified[n]));
        ELSIF answer = 'absent' AND (stored[n]).attempts >= (once._policy(scope)).max_attempts THEN
            decided := 'abandoned';
            reason := format('verify answered absent, and %s attempts are used up', (stored[n]).attempts);
            CONTINUE WHEN NOT once._decide(sources[n], stored[n], 'failed_final', reason, 'abandon',
                ROW(NULL, NULL, NULL, NULL, NULL, 'abandoned', reason));
        ELSIF answer = 'absent' THEN
            decided := 'retry';
            reason := CASE WHEN once._day_state((stored[n]).bucket) = 'closed'
                           THEN 'verify answered absent, but its day is retired: nothing runs with this key again; use a new one'
                           ELSE 'verify answered absent' END;
            CONTINUE WHEN NOT once._decide(sources[n], stored[n], 'failed_retryable', reason, 'verify',
                ROW(NULL, NULL, NULL, NULL, NULL, 'verified', reason));
        ELSE
            decided := 'in_doubt';
            reason := coalesce(failures[n], 'verify answered unknown');
        END IF;
        RETURN NEXT;
    END LOOP;
    tenant := NULL; scope := NULL; key := NULL; fence := NULL; answer := NULL; decided := NULL; reason := NULL;
    next := onward;
    RETURN NEXT;
END $$;
$file$;
        EXECUTE $file$
-- once._recover_one(stored, policy, verified, failure): stores the decision on a stale intent, if its row is still as it was judged: its
-- attempt may have reported since, or renewed its lease. In that case decided is NULL.
CREATE OR REPLACE FUNCTION once._recover_one(stored once.intent, policy once.scope, verified once.verification, failure text, OUT decided text,
    OUT reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    used_up boolean := (stored.attempts >= policy.max_attempts) IS TRUE;
BEGIN
    IF failure IS NOT NULL THEN
        decided := 'retry';             -- no answer: the next attempt asks again
        reason := failure;
    ELSIF verified.answer = 'happened' THEN
        decided := 'succeeded';
        reason := 'verify: the effect happened';
    ELSIF verified.answer = 'absent' THEN
        decided := CASE WHEN used_up THEN 'abandoned' ELSE 'retry' END;
        reason := 'verify answered absent' || CASE WHEN used_up THEN format(', and %s attempts are used up',
            stored.attempts) ELSE '' END;
    ELSIF verified.answer IS NOT NULL OR used_up OR policy.on_stale = 'in_doubt' THEN
        decided := 'in_doubt';
        reason := concat_ws(', and ', coalesce('verify answered ' || verified.answer, 'its lease passed without a report'),
            CASE WHEN used_up THEN format('%s attempts are used up', stored.attempts) END);
    ELSE
        decided := 'retry';
        reason := 'its lease passed without a report: the next attempt takes over';
    END IF;
    IF decided = 'retry' THEN
        RETURN;
    ELSIF once._day_state(stored.bucket) <> 'open'
          OR NOT once._hold(stored.tenant, stored.scope, stored.key, stored.bucket, stored.fence, stored.state,
                            stored.lease_until) THEN
        decided := NULL;
    ELSIF decided = 'succeeded' THEN
        PERFORM once._store_verified(stored.tenant, stored.scope, stored.key, stored.bucket, stored.fence, verified);
    ELSIF decided = 'abandoned' THEN
        PERFORM once._give_up(stored, 'failed_final', 'abandoned', reason, 'abandon');
    ELSE
        PERFORM once._give_up(stored, 'in_doubt', 'stale', reason, 'doubt');
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._store_verified(...): stores the outcome of an attempt that is stale or in doubt after a verify function answered that its effect
-- happened. The caller holds the row (once._hold).
CREATE OR REPLACE FUNCTION once._store_verified(tenant text, scope text, key text, bucket integer, fence integer, verified once.verification)
RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    was timestamptz := clock_timestamp();
    stored once.intent;
    outcome once.outcome := once._outcome_of(verified);
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    UPDATE once.intent AS i
       SET state = 'succeeded', updated_at = was, completed_at = was, lease_until = NULL,
           (response_status, response_body, response_headers, result_type, result_id, error_code, error_message)
               = ROW(outcome.*)
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket
       AND i.fence = fence AND i.state IN ('processing', 'in_doubt');
    PERFORM once._record(tenant, scope, key, fence, stored.state, 'succeeded', 'verify: the effect happened',
        'verify', stored);
END $$;
$file$;
        EXECUTE $file$
-- once._summary(stored): what once.decision keeps of an intent before and after a decision: without the fingerprint, and of the answer
-- only its status and size. NULL if there is no row.
CREATE OR REPLACE FUNCTION once._summary(stored once.intent) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN (stored).state IS NOT NULL THEN jsonb_strip_nulls(jsonb_build_object(
        'state', (stored).state, 'fence', (stored).fence, 'attempts', (stored).attempts, 'owner', (stored).owner,
        'updated_at', (stored).updated_at,
        'lease_until', (stored).lease_until, 'response_status', (stored).response_status,
        'response_bytes', octet_length((stored).response_body), 'result_type', (stored).result_type,
        'result_id', (stored).result_id, 'error_code', (stored).error_code, 'error_message', (stored).error_message)) END
$$;
$file$;
        EXECUTE $file$
-- once._verify(policy, tenant, scope, key): asks the scope's verify function whether the effect of a stale or doubtful intent happened.
-- An answer other than the three words counts as 'unknown'. An exception of the function, and an outcome that cannot be stored, are
-- raised to the caller.
CREATE OR REPLACE FUNCTION once._verify(policy once.scope, tenant text, scope text, key text) RETURNS once.verification LANGUAGE plpgsql AS $$
DECLARE
    found_out once.verification;
BEGIN
    EXECUTE format('SELECT * FROM %s($1, $2, $3)', (policy.verify || '(text,text,text)')::regprocedure::oid::regproc)
        INTO found_out USING tenant, scope, key;
    IF found_out.answer IS NULL OR found_out.answer NOT IN ('happened', 'absent', 'unknown') THEN
        found_out.answer := 'unknown';
    ELSIF found_out.answer = 'happened' THEN
        PERFORM once._check_outcome(tenant, scope, key, once._outcome_of(found_out));
    END IF;
    RETURN found_out;
END $$;
$file$;
        EXECUTE $file$
-- once.claim(scope, key, fingerprint, owner, lease, retention, tenant, traceparent, takeover): claims an intent whose effect is made
-- elsewhere. COMMIT it, do the work, then call once.complete or once.fail with the fence. Verdicts:
--   new_claim                       do the work: the claim is yours, under the returned fence
--   retryable_failure               the same; earlier attempts certainly had no effect: they reported so, or the verify function
--                                   answered 'absent'
--   processing_stale                the same; the last attempt fell silent and may have had its effect. Only if the scope's on_stale,
--                                   or takeover, says that repeating is harmless
--   replay_success, final_failure   finished: the stored outcome is in the other columns
--   processing_active               another attempt is at work, at least until lease_until
--   in_doubt, expired               no attempt may run: see once.resolve. An attempt that fell silent is a doubt unless the scope's
--                                   on_stale says otherwise; the scope's verify function, if there is one, was asked first
-- owner names the worker, for people; lease and retention (how long its outcome is kept once it is stored) default to the scope's.
-- traceparent (W3C) is stored with the intent, unless an earlier attempt stored its own; a malformed one is ignored.
--
-- takeover overrides the scope's on_stale in this call, unless that is 'verify'. true: this work is safe to repeat; the claim takes over
-- from an attempt that fell silent, even if that was recorded as a doubt since, but not from a doubt that was reported. false: an attempt
-- that fell silent is in doubt.
--
-- Raises P4002 for another fingerprint, P4000 P4001 P4003 P4098 for bad input, 22023 for a bad lease. Never waits. In a read-only
-- transaction, for example on a standby, it returns what is stored, and raises 25006 if it would have to claim.
CREATE OR REPLACE FUNCTION once.claim(scope text, key text, fingerprint bytea, owner text DEFAULT NULL, lease interval DEFAULT NULL,
    retention interval DEFAULT NULL, tenant text DEFAULT '', traceparent text DEFAULT NULL, takeover boolean DEFAULT NULL)
RETURNS once.claimed
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._check_and_lock(tenant, scope, key, fingerprint, false);
    claimed once.claimed;
BEGIN
    IF lease IS NOT NULL THEN
        PERFORM once._check_term('lease', lease, '7 days');
    END IF;
    IF retention IS NOT NULL THEN
        PERFORM once._check_term('retention', retention, '100 years');
    END IF;
    claimed := once._claim(tenant, scope, key, bucket, fingerprint, left(owner, 255), lease, retention, traceparent,
        takeover);
    IF claimed.verdict = 'new_claim' THEN       -- in its own branch: an expression is prepared as a whole
        RETURN claimed;
    ELSIF claimed.verdict = 'mismatch' THEN
        PERFORM once._refuse('P4002', tenant, scope, key);
    ELSIF claimed.verdict IN ('future', 'missing') THEN
        PERFORM once._refuse_day(tenant, scope, key, bucket);
        PERFORM once._refuse('P4098', tenant, scope, key, 'its day was made just now');     -- since the claim looked
    ELSIF claimed.verdict = 'unknown' THEN
        PERFORM once._refuse('P4099', tenant, scope, key);
    END IF;
    RETURN claimed;
END $$;
$file$;
        EXECUTE $file$
-- once.claim_many(scope[], key[], fingerprint[], owner, lease, retention, tenant, traceparents[], takeover): once.claim for many intents
-- in one statement and so one commit. Returns one row per element, in order (ord from 1), with the verdicts of once.claim, and two more:
-- 'mismatch', and 'invalid' with the SQLSTATE in error_code. A bad element never affects its neighbours, except if its scope has a verify
-- function that raises when it is asked about a stale attempt: then the whole batch fails with that error. The same key twice is one
-- claim: the second finds the first ('processing_active', or 'mismatch'). Otherwise it raises only for the batch as a whole (22023,
-- P4003). kept_ms, for a replay: how many milliseconds the outcome is kept at least, at most a day; a caller may serve a copy for that
-- long. NULL if the intent has other fingerprints too (a copy could not tell a mismatch from them), or is in the archive.
--
-- Why it is written so: in the plain case one statement suffices for any size (two if the scope's policy gives the lease). First a loop
-- checks and locks; the locks are taken before the statement that inserts, so no insert ever waits for another transaction. The statement
-- inserts the new intents, all or nothing: under READ COMMITTED its snapshot is later than the locks, so it sees every row that exists, and
-- it needs no ON CONFLICT, which costs each row a third look at the index. Keys of bucket 0 go to their table by name, and a plan for
-- today's keys opens one partition. Otherwise a statement looks, inserts the new intents, and returns the plain verdicts: a new claim, a
-- replay, another attempt at work, a mismatch. A case that needs a decision under the row's lock (a takeover, a doubt, a closed day) goes
-- to once._claim. The settings pin the plans to index look-ups: a plan made while the table was empty would stay a sequential scan. jit is
-- off because a disabled scan looks expensive enough to be compiled.
CREATE OR REPLACE FUNCTION once.claim_many(scope text[], key text[], fingerprint bytea[], owner text DEFAULT NULL, lease interval DEFAULT NULL,
    retention interval DEFAULT NULL, tenant text DEFAULT '', traceparents text[] DEFAULT NULL, takeover boolean DEFAULT NULL)
RETURNS TABLE (ord integer, verdict text, fence integer, state text, response_status integer, response_body bytea,
    response_headers jsonb, result_type text, result_id text, error_code text, error_message text, lease_until timestamptz,
    attempts integer, traceparent text, kept_ms integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := cardinality(key);
    plain boolean;              -- all locks are held, all keys are of one bucket, and of an open day
    first_bucket integer;
    last_bucket integer;
    of_today boolean;
    buckets integer[];
    codes text[];
    takeable boolean[];
    now timestamptz := clock_timestamp();
    today integer;
    today_open boolean;
    fresh bigint;
    counted bigint;
    others text[];              -- the other verdicts to count
BEGIN
    IF once._quick_check_batch(tenant, size, array_dims(scope), array_dims(key), array_dims(fingerprint),
                      CASE WHEN traceparents IS NULL THEN array_dims(key) ELSE array_dims(traceparents) END) IS NOT TRUE THEN
        size := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0), once._length(fingerprint, 0),
                                  once._length(traceparents, once._length(key, 0)));
        IF size = 0 THEN
            RETURN;
        END IF;
    END IF;
    IF lease IS NOT NULL OR retention IS NOT NULL THEN
        IF retention IS NOT NULL OR NOT once._is_term(lease, '7 days') THEN
            PERFORM once._check_term('lease', lease, '7 days');
            PERFORM once._check_term('retention', retention, '100 years');
        END IF;
    END IF;
    owner := left(owner, 255);

    IF traceparents IS NOT NULL THEN
        FOR n IN 1 .. size LOOP
            traceparents[n] := once._trace(traceparents[n]);
        END LOOP;
    END IF;

    <<short>>       -- A scope of up to 255 bytes is short enough; in a longer one the characters are counted.
    BEGIN
        EXIT short WHEN (current_setting('transaction_isolation') = 'read committed' AND current_setting('transaction_read_only') = 'off'
                         AND (lease IS NOT NULL OR scope[1] = ALL (scope))) IS NOT TRUE;
        IF key[1] COLLATE "C" NOT LIKE '________-____-7%' THEN
            first_bucket := 0;
            FOR n IN 1 .. size LOOP
                EXIT short WHEN (octet_length(fingerprint[n]) BETWEEN 16 AND 64 AND scope[n] <> '' AND octet_length(scope[n]) <= 255 AND once._is_undated(key[n])
                                 AND pg_try_advisory_xact_lock(once._lock_id(tenant, scope[n], key[n]))) IS NOT TRUE;
            END LOOP;
        ELSE
            first_bucket := once._match_day(key[1], once._today());
            of_today := first_bucket IS NOT NULL;
            IF of_today THEN
                FOR n IN 1 .. size LOOP
                    EXIT short WHEN (octet_length(fingerprint[n]) BETWEEN 16 AND 64 AND scope[n] <> '' AND octet_length(scope[n]) <= 255 AND key[n] COLLATE "C" LIKE '________-____-7___-____-____________' AND once._is_dated(key[n]) AND once._match_day(key[n], once._today()) = first_bucket
                                     AND pg_try_advisory_xact_lock(once._lock_id(tenant, scope[n], key[n]))) IS NOT TRUE;
                END LOOP;
                of_today := once._is_today(first_bucket);
            ELSE
                first_bucket := once._bucket(key[1]);
                FOR n IN 1 .. size LOOP
                    EXIT short WHEN (octet_length(fingerprint[n]) BETWEEN 16 AND 64 AND scope[n] <> '' AND octet_length(scope[n]) <= 255 AND once._bucket(key[n]) = first_bucket AND first_bucket >= 0
                                     AND pg_try_advisory_xact_lock(once._lock_id(tenant, scope[n], key[n]))) IS NOT TRUE;
                END LOOP;
            END IF;
        END IF;
        IF size <= 4000 THEN
            EXIT short WHEN length(array_to_tsvector(key)) <> size;
        ELSE
            EXIT short WHEN (SELECT count(DISTINCT name COLLATE "C") FROM unnest(key) AS name) <> size;
        END IF;
        IF first_bucket > 0 AND NOT of_today THEN
            EXIT short WHEN NOT once._is_open(first_bucket);
        END IF;
        plain := true;
        IF lease IS NULL THEN       -- as once._policy
            SELECT now + p.lease INTO STRICT lease_until
              FROM once.scope AS p WHERE p.scope IN ('', scope[1] COLLATE "C") ORDER BY p.scope DESC LIMIT 1;
        ELSE
            lease_until := now + lease;
        END IF;
        IF first_bucket = 0 THEN
            fence := once._first_fence();
            INSERT INTO once.intent_d0 AS i (created_at, updated_at, expires_at, lease_until, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                                     owner, traceparent)
            SELECT now, now, now + retention, lease_until, 0, fence, 1, 'processing', tenant, scope[n], key[n], fingerprint[n],
                   owner, traceparents[n]
              FROM generate_series(1, size) AS n
             WHERE first_bucket = 0
               AND NOT EXISTS (SELECT FROM generate_series(1, size) AS n
                                WHERE (SELECT true FROM once.intent_d0 AS i
                                        WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope[n] COLLATE "C"
                                          AND i.key = key[n] COLLATE "C" AND i.bucket = 0));
        ELSE
            fence := 1;
            IF of_today THEN
                INSERT INTO once.intent AS i (created_at, updated_at, expires_at, lease_until, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                                         owner, traceparent)
                SELECT now, now, now + retention, lease_until, once._today(), fence, 1, 'processing', tenant, scope[n], key[n], fingerprint[n],
                       owner, traceparents[n]
                  FROM generate_series(1, size) AS n
                 WHERE first_bucket = once._today()
                   AND NOT EXISTS (SELECT FROM generate_series(1, size) AS n
                                    WHERE (SELECT true FROM once.intent AS i
                                            WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope[n] COLLATE "C"
                                              AND i.key = key[n] COLLATE "C" AND i.bucket = once._today()));
            ELSE
                INSERT INTO once.intent AS i (created_at, updated_at, expires_at, lease_until, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                                         owner, traceparent)
                SELECT now, now, now + retention, lease_until, first_bucket, fence, 1, 'processing', tenant, scope[n], key[n], fingerprint[n],
                       owner, traceparents[n]
                  FROM generate_series(1, size) AS n
                 WHERE first_bucket = first_bucket
                   AND NOT EXISTS (SELECT FROM generate_series(1, size) AS n
                                    WHERE (SELECT true FROM once.intent AS i
                                            WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope[n] COLLATE "C"
                                              AND i.key = key[n] COLLATE "C" AND i.bucket = first_bucket));
            END IF;
        END IF;
        IF FOUND THEN
            verdict := 'new_claim';
            state := 'processing';
            attempts := 1;
            FOR n IN 1 .. size LOOP
                ord := n;
                traceparent := traceparents[n];
                counted := nextval('once.counted_new');     -- an assignment starts no query
                RETURN NEXT;
            END LOOP;
            RETURN;
        END IF;
    END;

    fresh := 0;
    others := '{}';
    IF plain THEN
        last_bucket := first_bucket;
        buckets := array_fill(first_bucket, ARRAY[size]);
        codes := array_fill(NULL::text, ARRAY[size]);
        takeable := array_fill(true, ARRAY[size]);
    ELSE
        today := floor(date_part('epoch', now) / 86400);
        IF once._is_new_day() THEN
            PERFORM once._make_days(NULL);
        END IF;
        today_open := once._has_day('intent', today);       -- computed once, since most keys are of today
        SELECT array_agg(c.bucket ORDER BY c.ord), min(c.bucket), max(c.bucket), array_agg(c.code ORDER BY c.ord),
               array_agg(CASE WHEN c.code IS NULL AND c.nth = 1
                                   AND CASE WHEN c.bucket = today THEN today_open
                                            ELSE c.bucket = 0 OR (c.bucket < today
                                                 AND once._has_day('intent', c.bucket)) END
                              THEN pg_try_advisory_xact_lock(once._lock_id(tenant, c.scope, c.key))
                              ELSE false END ORDER BY c.ord)
          INTO buckets, first_bucket, last_bucket, codes, takeable
          FROM (SELECT b.*, once._wrong_element(b.scope, b.bucket, b.fingerprint) AS code,
                       row_number() OVER (PARTITION BY b.scope COLLATE "C", b.key COLLATE "C" ORDER BY b.ord) AS nth
                  FROM (SELECT u.*, once._bucket(u.key) AS bucket
                          FROM unnest(scope, key, fingerprint)
                               WITH ORDINALITY AS u (scope, key, fingerprint, ord) OFFSET 0) AS b) AS c;
    END IF;

    FOR ord, verdict, fence, state, response_status, response_body, response_headers, result_type, result_id,
        error_code, error_message, lease_until, attempts, traceparent, kept_ms IN
        WITH element AS MATERIALIZED (
            SELECT u.*, once._same(s.fingerprint, s.redirects, u.fingerprint) AS same, s.fence, s.state, s.response_status,
                   s.response_body, s.response_headers, s.result_type, s.result_id, s.error_code, s.error_message, s.lease_until,
                   s.attempts,
                   s.traceparent,
                   CASE WHEN s.state IN ('succeeded', 'failed_final') AND s.redirects IS NULL
                        THEN least(86400000, greatest(0, 1000 * date_part('epoch', s.completed_at - now + coalesce(
                                 s.expires_at - s.created_at,
                                 (SELECT p.retention FROM once.scope AS p WHERE p.scope = u.scope COLLATE "C"),
                                 (SELECT d.retention FROM once.scope AS d WHERE d.scope = '')))))::integer END AS kept_ms
              FROM unnest(scope, key, fingerprint, buckets, codes, takeable, traceparents)
                   WITH ORDINALITY AS u (scope, key, fingerprint, bucket, code, takeable, trace, ord)
              -- The range is known when the look-up starts, so that only the leaves of this batch
              -- are opened. LIMIT keeps this a look-up per element: as a join, a plan made on an
              -- empty table would read it whole.
              LEFT JOIN LATERAL (SELECT i.* FROM once.intent AS i
                                  WHERE i.tenant = tenant COLLATE "C" AND i.scope = u.scope COLLATE "C"
                                    AND i.key = u.key COLLATE "C" AND i.bucket = u.bucket
                                    AND i.bucket BETWEEN first_bucket AND last_bucket LIMIT 1) AS s
                     ON u.code IS NULL),
        fresh AS (
            INSERT INTO once.intent AS i (created_at, updated_at, expires_at, lease_until, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                                     owner, traceparent)
            SELECT now, now, now + retention,
                   now + coalesce(lease, p.lease, (SELECT d.lease FROM once.scope AS d WHERE d.scope = '')), e.bucket,
                   CASE WHEN e.bucket > 0 THEN 1 ELSE once._first_fence() END, 1, 'processing', tenant, e.scope, e.key,
                   e.fingerprint, owner, e.trace
              FROM element AS e LEFT JOIN once.scope AS p ON p.scope = e.scope COLLATE "C"
             WHERE e.takeable AND e.state IS NULL
            ON CONFLICT DO NOTHING
            RETURNING i.scope, i.key, i.fence, i.lease_until)
        SELECT e.ord, CASE WHEN f.key IS NOT NULL THEN 'new_claim'
                           WHEN e.state IS NOT NULL
                           THEN once._verdict(e.same, e.state, e.lease_until, now, NULL, NULL, NULL) END,
               coalesce(e.fence, f.fence), coalesce(e.state, 'processing'), e.response_status, e.response_body,
               e.response_headers, e.result_type, e.result_id, e.error_code, e.error_message,
               coalesce(e.lease_until, f.lease_until), coalesce(e.attempts, 1),
               CASE WHEN f.key IS NOT NULL THEN e.trace ELSE e.traceparent END, e.kept_ms
          FROM element AS e LEFT JOIN fresh AS f
            ON e.takeable AND f.scope = e.scope COLLATE "C" AND f.key = e.key COLLATE "C"
         ORDER BY e.ord
    LOOP
        IF (verdict IN ('new_claim', 'replay_success', 'final_failure', 'processing_active')) IS NOT TRUE THEN
            fence := NULL; state := NULL; attempts := NULL; lease_until := NULL;
            response_status := NULL; response_body := NULL; response_headers := NULL;
            result_type := NULL; result_id := NULL; error_code := NULL; error_message := NULL;
            traceparent := NULL; kept_ms := NULL;
            IF codes[ord] IS NULL AND verdict = 'mismatch' THEN
                others := others || verdict;
            ELSE
                SELECT c.* INTO verdict, fence, state, response_status, response_body, response_headers, result_type,
                                result_id, error_code, error_message, lease_until, attempts, traceparent
                  FROM once._claim_element(tenant, scope[ord], key[ord], buckets[ord], fingerprint[ord], owner, lease,
                                           retention, traceparents[ord], takeover) AS c;
            END IF;
        ELSIF verdict = 'new_claim' THEN
            fresh := fresh + 1;
        ELSE
            others := others || verdict;
        END IF;
        RETURN NEXT;
    END LOOP;
    IF fresh > 0 THEN
        PERFORM once._count('new_claim', fresh);
    END IF;
    IF others <> '{}' THEN
        PERFORM once._count(u.verdict, count(*)) FROM unnest(others) AS u (verdict) GROUP BY u.verdict;
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once.complete(scope, key, fence, outcome..., tenant): stores the outcome of a claimed intent that succeeded. true: stored now; false:
-- this attempt had already stored this very outcome (a report sent twice). Raises P4010 if the fence is lost or the intent has another
-- outcome: discard the result then. P4060 for an outcome that is too large, P4000 P4001 P4003 for bad input. It can run in the
-- transaction of the effect itself: then the outcome exists if and only if the effect does.
--
-- Why it is written so: an UPDATE that names a constant bucket opens one partition. It is the UPDATE of once._report, for a success; if
-- it finds no row, once._report does, or finds out why not.
CREATE OR REPLACE FUNCTION once.complete(scope text, key text, fence integer, response_status integer DEFAULT NULL,
    response_text text DEFAULT NULL, response_json jsonb DEFAULT NULL, response_body anynonarray DEFAULT NULL::bytea,
    response_headers jsonb DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL, tenant text DEFAULT '')
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer;
    now timestamptz := clock_timestamp();
    stored boolean;
    outcome once.outcome;
    reported text;
BEGIN
    IF pg_typeof(response_body) <> 'bytea'::regtype THEN        -- alone and first: see once._refuse_type
        PERFORM once._refuse_type(tenant, scope, key, pg_typeof(response_body));
    END IF;
    bucket := once._check_and_lock(tenant, scope, key, E'\\x00000000000000000000000000000000', false);
    IF response_text IS NOT NULL OR response_json IS NOT NULL THEN
        response_body := once._body(tenant, scope, key, response_text, response_json, response_body);
    END IF;
    IF NOT once._is_plain(response_status, response_body, response_headers, result_type, result_id) THEN
        PERFORM once._check_outcome(tenant, scope, key,
            ROW(response_status, response_body, response_headers, result_type, result_id, NULL, NULL));
    END IF;
    IF bucket = once._today() THEN
        UPDATE once.intent AS i
           SET state = 'succeeded', updated_at = now, completed_at = now, lease_until = NULL, response_status = response_status,
               response_body = response_body, response_headers = response_headers, result_type = result_type, result_id = result_id,
               error_code = NULL, error_message = NULL
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
           AND i.bucket = once._today() AND i.fence = fence AND i.state IN ('processing', 'in_doubt');
        stored := FOUND;
    ELSIF bucket = 0 THEN
        UPDATE once.intent AS i
           SET state = 'succeeded', updated_at = now, completed_at = now, lease_until = NULL, response_status = response_status,
               response_body = response_body, response_headers = response_headers, result_type = result_type, result_id = result_id,
               error_code = NULL, error_message = NULL
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
           AND i.bucket = 0 AND i.fence = fence AND i.state IN ('processing', 'in_doubt');
        stored := FOUND;
    END IF;
    IF stored THEN
        RETURN true;
    END IF;
    outcome := ROW(response_status, response_body, response_headers, result_type, result_id, NULL, NULL);
    reported := once._report(tenant, scope, key, bucket, fence, 'succeeded', outcome);
    IF reported = 'refused' THEN
        PERFORM once._refuse_report('P4010', tenant, scope, key, bucket, fence);
    END IF;
    RETURN reported = 'stored';
END $$;
$file$;
        EXECUTE $file$
-- once.complete_many(scope[], key[], fence[], outcome[]..., tenant): once.complete for many intents in one statement. One row per
-- element, in order: verdict 'stored', 'repeated', 'refused' (error_code P4010) or 'invalid' (its own SQLSTATE). A NULL array means that
-- all its elements are NULL. Raises only for the batch as a whole (22023, P4003).
CREATE OR REPLACE FUNCTION once.complete_many(scope text[], key text[], fence integer[], response_status integer[] DEFAULT NULL,
    response_text text[] DEFAULT NULL, response_json jsonb[] DEFAULT NULL, response_body anyarray DEFAULT NULL::bytea[],
    response_headers jsonb[] DEFAULT NULL, result_type text[] DEFAULT NULL, result_id text[] DEFAULT NULL, tenant text DEFAULT '')
RETURNS TABLE (ord integer, verdict text, error_code text, error_message text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := cardinality(key);
    absent integer;             -- the length of a NULL array of outcomes
    dims text := array_dims(key);
    now timestamptz := clock_timestamp();
    next_state once.state[];
    stored integer[];
BEGIN
    IF once._quick_check_batch(tenant, size, dims, array_dims(scope), array_dims(fence),
            CASE WHEN response_status IS NULL THEN dims ELSE array_dims(response_status) END,
            CASE WHEN response_text IS NULL THEN dims ELSE array_dims(response_text) END,
            CASE WHEN response_json IS NULL THEN dims ELSE array_dims(response_json) END,
            CASE WHEN response_body IS NULL THEN dims ELSE array_dims(response_body) END,
            CASE WHEN response_headers IS NULL THEN dims ELSE array_dims(response_headers) END,
            CASE WHEN result_type IS NULL THEN dims ELSE array_dims(result_type) END, CASE WHEN result_id IS NULL THEN dims ELSE array_dims(result_id) END) IS NOT TRUE THEN
        absent := coalesce(size, 0);
        size := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0), once._length(fence, 0),
            once._length(response_status, absent), once._length(response_text, absent), once._length(response_json, absent),
            once._length(response_body, absent), once._length(response_headers, absent), once._length(result_type, absent), once._length(result_id, absent));
    END IF;
    IF pg_typeof(response_body) <> 'bytea[]'::regtype THEN        -- alone and first: see once._refuse_type
        PERFORM once._refuse_type(tenant, NULL, NULL, pg_typeof(response_body));
    END IF;
    IF response_text IS NOT NULL OR response_json IS NOT NULL THEN
        response_body := once._bodies(response_text, response_json, response_body);
    END IF;
    IF size = 1 THEN        -- once._store_undated for one element; if it finds no row, once._report does, or finds out why not
        IF key[1] COLLATE "C" NOT LIKE '________-____-7%' AND scope[1] IS NOT NULL
           AND once._is_plain(response_status[1], response_body[1], response_headers[1], result_type[1], result_id[1]) THEN
            UPDATE once.intent_d0 AS i
               SET state = 'succeeded', updated_at = now, completed_at = now, lease_until = NULL, response_status = response_status[1],
                   response_body = response_body[1], response_headers = response_headers[1], result_type = result_type[1],
                   result_id = result_id[1], error_code = NULL, error_message = NULL
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope[1] COLLATE "C" AND i.key = key[1] COLLATE "C" AND i.bucket = 0
               AND i.fence = fence[1] AND i.state IN ('processing', 'in_doubt');
            IF FOUND THEN
                ord := 1;
                verdict := 'stored';
                RETURN NEXT;
                RETURN;
            END IF;
        END IF;
    END IF;
    IF size > 1 THEN
        IF key[1] COLLATE "C" NOT LIKE '________-____-7%' THEN
            WITH changed AS (
                UPDATE once.intent_d0 AS i
                   SET state = 'succeeded', updated_at = now, completed_at = now, lease_until = NULL, response_status = response_status[e.n],
                       response_body = response_body[e.n], response_headers = response_headers[e.n], result_type = result_type[e.n],
                       result_id = result_id[e.n], error_code = NULL, error_message = NULL
                  FROM (SELECT n, (SELECT i.ctid FROM once.intent_d0 AS i
                                    WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope[n] COLLATE "C"
                                      AND i.key = key[n] COLLATE "C" AND i.bucket = 0) AS address
                          FROM generate_series(1, size) AS n
                         WHERE once._is_plain(response_status[n], response_body[n], response_headers[n], result_type[n], result_id[n])
                         ORDER BY scope[n] COLLATE "C", key[n] COLLATE "C", n) AS e
                 WHERE i.bucket = 0 AND i.ctid = e.address AND i.fence = fence[e.n] AND i.state IN ('processing', 'in_doubt')
                RETURNING e.n)
            SELECT coalesce(array_agg(c.n), '{}') INTO stored FROM changed AS c;
        ELSIF once._match_day(key[1], once._today()) IS NOT NULL THEN
            <<all_of_today>>        -- else their rows would not be taken in the order of once._store_many
            BEGIN
                FOR n IN 2 .. size LOOP
                    EXIT all_of_today WHEN once._match_day(key[n], once._today()) IS NULL;
                END LOOP;
                WITH changed AS (
                    UPDATE once.intent AS i
                       SET state = 'succeeded', updated_at = now, completed_at = now, lease_until = NULL, response_status = response_status[e.n],
                           response_body = response_body[e.n], response_headers = response_headers[e.n], result_type = result_type[e.n],
                           result_id = result_id[e.n], error_code = NULL, error_message = NULL
                      FROM (SELECT n, (SELECT i.ctid FROM once.intent AS i
                                        WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope[n] COLLATE "C"
                                          AND i.key = key[n] COLLATE "C" AND i.bucket = once._today()) AS address
                              FROM generate_series(1, size) AS n
                             WHERE once._is_plain(response_status[n], response_body[n], response_headers[n], result_type[n], result_id[n])
                             ORDER BY scope[n] COLLATE "C", key[n] COLLATE "C", n) AS e
                     WHERE i.bucket = once._today() AND i.ctid = e.address AND i.fence = fence[e.n] AND i.state IN ('processing', 'in_doubt')
                    RETURNING e.n)
                SELECT coalesce(array_agg(c.n), '{}') INTO stored FROM changed AS c;
            END;
        END IF;
    END IF;
    IF (cardinality(stored) = size) IS NOT TRUE THEN
        next_state := array_fill('succeeded'::once.state, ARRAY[size]);
    END IF;
    IF size > 1 THEN
        IF (cardinality(stored) = size) IS NOT TRUE THEN
            stored := once._store_many(stored, tenant, scope, key, fence, next_state, response_status, response_body, response_headers,
                                       result_type, result_id, NULL, NULL, NULL);
        END IF;
        IF cardinality(stored) = size THEN
            verdict := 'stored';
            FOR n IN 1 .. size LOOP
                ord := n;
                RETURN NEXT;
            END LOOP;
            RETURN;
        END IF;
    END IF;
    RETURN QUERY SELECT r.ord, r.verdict, r.refused_code, r.refused_message
      FROM once._report_many('P4010', stored, tenant, scope, key, fence, next_state, response_status, response_body, response_headers,
                             result_type, result_id, NULL, NULL, NULL) AS r;
END $$;
$file$;
        EXECUTE $file$
-- once.fail(scope, key, fence, retryable, error..., outcome..., tenant, redirect): stores that a claimed intent failed. retryable:
--   true   certainly no effect: the next attempt may run. An attempt that took over from a silent one (processing_stale) reports this for
--          that one as well
--   false  failed for good: retries get this outcome
--   NULL   the outcome is unknown: in doubt. The next claim asks the scope's verify function: at once if a response_status shows that the
--          work has ended, otherwise after the lease, since the work may still go on
-- redirect, with retryable true: the fingerprint of the request that the answer sends the caller to (HTTP's 307 and 308). From then on
-- that request is this intent, too: it may run, and both requests get its outcome. An error_code is cut to 255 characters, an
-- error_message to 4096.
--
-- Returns as once.complete does. Raises P4011 if the fence is lost or the intent has another outcome; P4060, P4000 P4001 P4003.
CREATE OR REPLACE FUNCTION once.fail(scope text, key text, fence integer, retryable boolean, error_code text DEFAULT NULL,
    error_message text DEFAULT NULL, response_status integer DEFAULT NULL, response_text text DEFAULT NULL,
    response_json jsonb DEFAULT NULL, response_body anynonarray DEFAULT NULL::bytea, response_headers jsonb DEFAULT NULL,
    tenant text DEFAULT '', redirect bytea DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    next_state once.state := CASE retryable WHEN true THEN 'failed_retryable' WHEN false
        THEN 'failed_final' ELSE 'in_doubt' END;
    outcome once.outcome;
    reported text;
BEGIN
    IF pg_typeof(response_body) <> 'bytea'::regtype THEN        -- alone and first: see once._refuse_type
        PERFORM once._refuse_type(tenant, scope, key, pg_typeof(response_body));
    END IF;
    PERFORM once._check(tenant, scope, key, bucket, coalesce(redirect, E'\\x00000000000000000000000000000000'));
    IF response_text IS NOT NULL OR response_json IS NOT NULL THEN
        response_body := once._body(tenant, scope, key, response_text, response_json, response_body);
    END IF;
    outcome := ROW(response_status, response_body, response_headers, NULL, NULL, left(error_code, 255), left(error_message, 4096));
    IF NOT once._is_plain(response_status, response_body, response_headers, NULL, NULL) THEN
        PERFORM once._check_outcome(tenant, scope, key, outcome);
    END IF;
    reported := once._report(tenant, scope, key, bucket, fence, next_state, outcome, redirect);
    IF reported = 'refused' THEN
        PERFORM once._refuse_report('P4011', tenant, scope, key, bucket, fence);
    END IF;
    RETURN reported = 'stored';
END $$;
$file$;
        EXECUTE $file$
-- once.fail_many(scope[], key[], fence[], retryable[], error[]..., outcome[]..., tenant, redirect[]): once.fail for many intents in one
-- statement; a NULL in retryable means in doubt. Returns as once.complete_many does, with P4011 for a refused report.
CREATE OR REPLACE FUNCTION once.fail_many(scope text[], key text[], fence integer[], retryable boolean[], error_code text[] DEFAULT NULL,
    error_message text[] DEFAULT NULL, response_status integer[] DEFAULT NULL, response_text text[] DEFAULT NULL,
    response_json jsonb[] DEFAULT NULL, response_body anyarray DEFAULT NULL::bytea[], response_headers jsonb[] DEFAULT NULL,
    tenant text DEFAULT '', redirect bytea[] DEFAULT NULL)
RETURNS TABLE (ord integer, verdict text, refused_code text, refused_message text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := cardinality(key);
    absent integer;             -- the length of a NULL array of outcomes
    dims text := array_dims(key);
    next_state once.state[];
    stored integer[];
BEGIN
    IF once._quick_check_batch(tenant, size, dims, array_dims(scope), array_dims(fence),
            CASE WHEN response_status IS NULL THEN dims ELSE array_dims(response_status) END,
            CASE WHEN response_text IS NULL THEN dims ELSE array_dims(response_text) END,
            CASE WHEN response_json IS NULL THEN dims ELSE array_dims(response_json) END,
            CASE WHEN response_body IS NULL THEN dims ELSE array_dims(response_body) END,
            CASE WHEN response_headers IS NULL THEN dims ELSE array_dims(response_headers) END,
            array_dims(retryable), CASE WHEN error_code IS NULL THEN dims ELSE array_dims(error_code) END, CASE WHEN error_message IS NULL THEN dims ELSE array_dims(error_message) END, CASE WHEN redirect IS NULL THEN dims ELSE array_dims(redirect) END) IS NOT TRUE THEN
        absent := coalesce(size, 0);
        size := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0), once._length(fence, 0),
            once._length(response_status, absent), once._length(response_text, absent), once._length(response_json, absent),
            once._length(response_body, absent), once._length(response_headers, absent), once._length(retryable, 0), once._length(error_code, absent), once._length(error_message, absent), once._length(redirect, absent));
    END IF;
    IF pg_typeof(response_body) <> 'bytea[]'::regtype THEN        -- alone and first: see once._refuse_type
        PERFORM once._refuse_type(tenant, NULL, NULL, pg_typeof(response_body));
    END IF;
    IF response_text IS NOT NULL OR response_json IS NOT NULL THEN
        response_body := once._bodies(response_text, response_json, response_body);
    END IF;
    next_state := ARRAY(SELECT CASE retryable[n] WHEN true THEN 'failed_retryable'
                                                 WHEN false THEN 'failed_final'
                                                 ELSE 'in_doubt' END::once.state
                          FROM generate_series(1, size) AS n);
    IF size > 1 THEN
        IF (cardinality(stored) = size) IS NOT TRUE THEN
            stored := once._store_many(stored, tenant, scope, key, fence, next_state, response_status, response_body, response_headers,
                                       NULL, NULL, error_code, error_message, redirect);
        END IF;
        IF cardinality(stored) = size THEN
            verdict := 'stored';
            FOR n IN 1 .. size LOOP
                ord := n;
                RETURN NEXT;
            END LOOP;
            RETURN;
        END IF;
    END IF;
    RETURN QUERY SELECT r.ord, r.verdict, r.refused_code, r.refused_message
      FROM once._report_many('P4011', stored, tenant, scope, key, fence, next_state, response_status, response_body, response_headers,
                             NULL, NULL, error_code, error_message, redirect) AS r;
END $$;
$file$;
        EXECUTE $file$
-- once.release(scope, key, fence, tenant): gives back a claim whose work certainly never started: the next attempt may run at once, and
-- this one is not counted. false: the intent is no longer this attempt's. The row and its fence stay, so a zombie of this attempt stays
-- shut out. A claim that took over from an attempt that fell silent (processing_stale) is left as it was found, stale: about the silent
-- one nothing new is known. An intent that was put in doubt meanwhile is not released: once.fail, retryable, ends the doubt as long as it
-- was not decided otherwise.
CREATE OR REPLACE FUNCTION once.release(scope text, key text, fence integer, tenant text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    now timestamptz := clock_timestamp();
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
    UPDATE once.intent AS i
       SET state = CASE WHEN i.error_code = 'stale' THEN i.state ELSE 'failed_retryable' END, attempts = i.attempts - 1,
           lease_until = CASE WHEN i.error_code = 'stale' THEN now END, updated_at = now,
           completed_at = CASE WHEN i.error_code = 'stale' THEN NULL ELSE now END,
           error_code = CASE WHEN i.error_code = 'stale' THEN i.error_code ELSE 'released' END,
           error_message = 'the work never started'
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket
       AND i.fence = fence AND i.state = 'processing';
    RETURN FOUND;
END $$;
$file$;
        EXECUTE $file$
-- once.renew(scope, key, fence, lease, tenant): the heartbeat of a claimed attempt: its lease ends lease (default: the scope's) from now.
-- false: the intent is no longer this attempt's; stop the work if that is possible. A lease that has passed can be renewed as long as no
-- other attempt took over.
CREATE OR REPLACE FUNCTION once.renew(scope text, key text, fence integer, lease interval DEFAULT NULL, tenant text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
    PERFORM once._check_term('lease', lease, '7 days');
    RETURN once._renew(tenant, scope, key, bucket, fence, lease);
END $$;
$file$;
        EXECUTE $file$
-- once.renew_many(scope[], key[], fence[], lease, tenant): once.renew for many attempts. One row per element, in order; a malformed
-- element is false. Raises only for the batch as a whole (22023, P4003).
CREATE OR REPLACE FUNCTION once.renew_many(scope text[], key text[], fence integer[], lease interval DEFAULT NULL, tenant text DEFAULT '')
RETURNS TABLE (ord integer, renewed boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._check_batch(tenant, once._length(scope, 0), once._length(key, 0),
    once._length(fence, 0));
    renewed_many boolean[];
    n integer;
BEGIN
    PERFORM once._check_term('lease', lease, '7 days');
    renewed_many := array_fill(false, ARRAY[size]);
    -- In the order of their keys: two batches over the same intents cannot deadlock.
    FOR n IN SELECT u.ord FROM unnest(scope, key) WITH ORDINALITY AS u (scope, key, ord)
              WHERE once._bucket(u.key) >= 0 AND length(u.scope) BETWEEN 1 AND 255
              ORDER BY u.scope COLLATE "C", u.key COLLATE "C", u.ord LOOP
        renewed_many[n] := once._renew(tenant, scope[n], key[n], once._bucket(key[n]), fence[n], lease);
    END LOOP;
    RETURN QUERY SELECT u.ord::integer, u.renewed FROM unnest(renewed_many) WITH ORDINALITY AS u (renewed,
        ord) ORDER BY u.ord;
END $$;
$file$;
        EXECUTE $file$
-- once._claim(...): one claim, for arguments that are already checked: the common core of once.claim and once.claim_many. Raises nothing
-- on purpose; every outcome is a verdict, and the caller raises or returns 'mismatch', 'future' and 'missing'. Looks before it inserts,
-- in one statement: ON CONFLICT alone would wait for a report of this intent in an open transaction. No other session can insert in
-- between, since the advisory lock is held. For bucket 0 and for today each plan opens one partition: see once.start.
CREATE OR REPLACE FUNCTION once._claim(tenant text, scope text, key text, bucket integer, fingerprint bytea, claimant text, lease interval,
    retention interval, traceparent text, takeover boolean) RETURNS once.claimed LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    policy once.scope := once._policy(scope);
    locked boolean := pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key));
    of_today boolean := bucket = once._today();
    day text;
    now timestamptz := clock_timestamp();
    fence integer := 1;
    stored once.intent;
    answer once.claimed;
    outcome once.outcome;
    counted bigint;
BEGIN
    lease := coalesce(lease, policy.lease);
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    IF bucket = 0 THEN
        day := 'open';
    ELSIF of_today THEN
        IF once._is_today(bucket) THEN
            day := 'open';
        END IF;
    END IF;
    IF day IS NULL THEN
        IF once._is_new_day() THEN
            PERFORM once._make_days(NULL);
        END IF;
        day := once._open_day(bucket);
    END IF;
    IF locked AND day = 'open' AND current_setting('transaction_read_only') = 'off' THEN
        IF bucket = 0 THEN
            fence := once._first_fence();
            INSERT INTO once.intent AS i (created_at, updated_at, expires_at, lease_until, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                                     owner, traceparent)
            SELECT now, now, now + retention, now + lease, bucket, fence, 1, 'processing',
                   tenant, scope, key, fingerprint, claimant, traceparent
             WHERE NOT EXISTS (SELECT FROM once.intent AS i
                                WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C"
                                  AND i.key = key COLLATE "C" AND i.bucket = 0)
            ON CONFLICT DO NOTHING;
        ELSIF of_today THEN
            -- If today has changed by now, the look-up is in the wrong partition, but ON CONFLICT still finds the row.
            INSERT INTO once.intent AS i (created_at, updated_at, expires_at, lease_until, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                                     owner, traceparent)
            SELECT now, now, now + retention, now + lease, bucket, fence, 1, 'processing',
                   tenant, scope, key, fingerprint, claimant, traceparent
             WHERE NOT EXISTS (SELECT FROM once.intent AS i
                                WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C"
                                  AND i.key = key COLLATE "C" AND i.bucket = once._today())
            ON CONFLICT DO NOTHING;
        ELSE
            INSERT INTO once.intent AS i (created_at, updated_at, expires_at, lease_until, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                                     owner, traceparent)
            SELECT now, now, now + retention, now + lease, bucket, fence, 1, 'processing',
                   tenant, scope, key, fingerprint, claimant, traceparent
             WHERE NOT EXISTS (SELECT FROM once.intent AS i
                                WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C"
                                  AND i.key = key COLLATE "C" AND i.bucket = bucket)
            ON CONFLICT DO NOTHING;
        END IF;
        IF FOUND THEN
            counted := nextval('once.counted_new');     -- an assignment starts no query
            RETURN ROW('new_claim', fence, 'processing', NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                       now + lease, 1, traceparent)::once.claimed;
        END IF;
    END IF;

    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND AND day IN ('closed', 'missing') THEN
        stored := once._archived(tenant, scope, key, bucket);
    END IF;
    IF stored.state IS NULL THEN
        IF day = 'open' THEN
            PERFORM once._refuse_read_only(tenant, scope, key);
        END IF;
        answer.verdict := CASE day WHEN 'open' THEN 'processing_active' WHEN 'closed' THEN 'expired' ELSE day END;
        PERFORM once._count(answer.verdict);
        RETURN answer;
    END IF;

    IF takeover IS NOT NULL AND policy.on_stale <> 'verify' THEN
        policy.on_stale := CASE WHEN takeover THEN 'takeover' ELSE 'in_doubt' END;
    END IF;
    answer.verdict := once._verdict(once._same(stored.fingerprint, stored.redirects, fingerprint), stored.state,
                             stored.lease_until, now, stored.attempts, policy.max_attempts, policy.on_stale);
    -- A doubt that was reported without an answer keeps its lease: until that has passed its attempt may still be at work. A doubt that
    -- was not reported has no lease and no answer: its attempt only fell silent.
    IF stored.state = 'in_doubt' AND answer.verdict = 'in_doubt' AND (stored.lease_until > now) IS NOT TRUE
       AND (policy.on_stale = 'verify'
            OR (takeover AND stored.error_code = 'stale' AND stored.lease_until IS NULL AND stored.response_status IS NULL
                AND (stored.attempts >= policy.max_attempts) IS NOT TRUE))
       AND once._day_state(bucket) = 'open' AND current_setting('transaction_read_only') = 'off' THEN
        answer.verdict := CASE policy.on_stale WHEN 'verify' THEN 'verify' ELSE 'processing_stale' END;
    END IF;
    IF answer.verdict IN ('retryable_failure', 'processing_stale', 'verify', 'abandoned')
       OR (answer.verdict = 'in_doubt' AND stored.state = 'processing') THEN
        -- Check again: the look-up has locked the day's table since, so that it is not being closed now.
        day := once._day_state(bucket);
        IF day = 'closed' THEN
            PERFORM once._refuse_outdated(tenant, scope, key, bucket);
        ELSIF day = 'open' THEN
            PERFORM once._refuse_read_only(tenant, scope, key);
        END IF;
        IF day <> 'open' THEN
            answer.verdict := CASE day WHEN 'closed' THEN 'expired' ELSE day END;
            PERFORM once._count(answer.verdict);
            RETURN answer;
        ELSIF NOT locked
              OR NOT once._hold(tenant, scope, key, bucket, stored.fence, stored.state, stored.lease_until) THEN
            answer.verdict := 'processing_active';     -- another session is deciding about this intent, or reporting
        ELSE
            answer.verdict := once._take_over(answer.verdict, stored, policy, claimant, lease, retention, traceparent);
            SELECT i.* INTO STRICT stored FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
               AND i.bucket = bucket;
        END IF;
    END IF;

    PERFORM once._count(answer.verdict);
    IF answer.verdict = 'mismatch' THEN
        RETURN answer;     -- without any other column
    END IF;
    IF answer.verdict <> 'processing_active' THEN
        outcome := once._outcome_of(stored);
    END IF;
    RETURN ROW(answer.verdict, stored.fence, stored.state, outcome.*, stored.lease_until, stored.attempts,
               stored.traceparent)::once.claimed;
END $$;
$file$;
        EXECUTE $file$
-- once._claim_element(...): one element of a batch, as once.claim_many returns it: an error of once.claim becomes a verdict here.
CREATE OR REPLACE FUNCTION once._claim_element(tenant text, scope text, key text, bucket integer, fingerprint bytea, claimant text,
    lease interval, retention interval, traceparent text, takeover boolean) RETURNS once.claimed LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    code text := once._wrong_element(scope, bucket, fingerprint);
    claimed once.claimed;
BEGIN
    IF code IS NULL THEN
        claimed := once._claim(tenant, scope, key, bucket, fingerprint, claimant, lease, retention, traceparent, takeover);
        IF (claimed.verdict IN ('future', 'missing', 'unknown')) IS NOT TRUE THEN
            RETURN claimed;
        END IF;
        code := CASE claimed.verdict WHEN 'future' THEN 'P4001' WHEN 'missing' THEN 'P4098' ELSE 'P4099' END;
    END IF;
    SELECT 'invalid', e.code, e.message INTO claimed.verdict, claimed.error_code, claimed.error_message
      FROM once.errors() AS e WHERE e.code = code COLLATE "C";
    RETURN claimed;
END $$;
$file$;
        EXECUTE $file$
-- once._redirected(redirects, fingerprint, next_state, redirect): the row's redirects after a report, see once.fail. Keeps the latest
-- twenty, as many as a client follows: an older one is another request again.
CREATE OR REPLACE FUNCTION once._redirected(redirects bytea[], fingerprint bytea, next_state once.state, redirect bytea) RETURNS bytea[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN redirect IS NULL OR next_state <> 'failed_retryable' OR once._same(fingerprint, redirects, redirect)
                THEN redirects ELSE redirects[greatest(cardinality(redirects) - 18, 1):] || redirect END
$$;
$file$;
        EXECUTE $file$
-- once._refuse_report(code, tenant, scope, key, bucket, fence): raises P4010 or P4011, with the cause: there is no such claim, another
-- attempt has taken over, or the intent is finished. Also looks in the archive.
CREATE OR REPLACE FUNCTION once._refuse_report(code text, tenant text, scope text, key text, bucket integer, fence integer) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    started text := concat_ws(E'\x1f', E'\x1e', tenant, scope, key, '');
    stored once.intent;
    retired text := '';
    cause text;
    hint text := 'The attempt no longer holds the intent: discard its result. once.peek returns what is stored.';
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND AND bucket <> 0 THEN
        stored := once._archived(tenant, scope, key, bucket);
        retired := ', its day is retired';
    END IF;
    IF strpos(current_setting('once.started', true), started) > 0 AND (stored.fence >= fence) IS NOT TRUE THEN
        cause := 'this transaction started the intent and did not claim it';
        hint := 'Finish an intent of once.start with once.finish, in the same transaction. once.complete and once.fail are for once.claim.';
    ELSIF stored.state IS NULL THEN
        cause := 'there is no such claim';
        hint := 'Report with the tenant, scope and key of once.claim, after its COMMIT. Finish an intent of once.start with once.finish.';
    ELSIF stored.fence > fence THEN
        cause := 'another attempt has taken over';
    ELSIF stored.fence < fence THEN
        cause := 'this fence was never given';
        hint := 'Report with the fence that once.claim returned.';
    ELSIF stored.state = 'processing' THEN
        cause := 'another attempt is taking over';
    ELSE
        cause := 'the intent has another outcome already';
    END IF;
    PERFORM once._refuse(code, tenant, scope, key,
        CASE WHEN stored.state IS NOT NULL
             THEN format('the intent is %s under fence %s%s; the attempt has fence %s', stored.state, stored.fence, retired, fence) END,
        cause, hint);
END $$;
$file$;
        EXECUTE $file$
-- once._renew(...): one renewal, for arguments that are already checked: the common core of renew and renew_many. An UPDATE of one
-- unindexed column: HOT.
CREATE OR REPLACE FUNCTION once._renew(tenant text, scope text, key text, bucket integer, fence integer, lease interval) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    term interval := coalesce(lease, (once._policy(scope)).lease);
BEGIN
    UPDATE once.intent AS i SET lease_until = now + term, updated_at = now
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket
       AND i.fence = fence AND i.state = 'processing';
    RETURN FOUND;
END $$;
$file$;
        EXECUTE $file$
-- once._report(...): an attempt reports how its work ended: the common core of complete, fail and their batches. Stores the outcome if
-- the fence is current and the intent is processing or in doubt (the attempt itself knows best), even after its lease, as long as no
-- other attempt took over. Returns 'stored', 'repeated' if this very outcome is already stored under this fence, or 'refused'. Takes no
-- advisory lock: the fence in the WHERE clause is the guard, and a duplicate that only looks cannot hold up the one report that matters.
-- Waits only for another change of the same row, which is one short transaction of the contract. A doubt without an answer keeps its
-- lease, since the work may go on: until it has passed no verify function is asked. redirect: see once.fail.
CREATE OR REPLACE FUNCTION once._report(tenant text, scope text, key text, bucket integer, fence integer, next_state once.state,
    outcome once.outcome, redirect bytea DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    stored once.intent;
BEGIN
    UPDATE once.intent AS i
       SET state = next_state, updated_at = now, completed_at = CASE WHEN next_state <> 'in_doubt' THEN now END,
           lease_until = CASE WHEN next_state = 'in_doubt' AND outcome.response_status IS NULL THEN i.lease_until END,
           -- Column by column: ROW(outcome.*) would cost every report 10,000 instructions.
           response_status = outcome.response_status, response_body = outcome.response_body,
           response_headers = outcome.response_headers, result_type = outcome.result_type, result_id = outcome.result_id,
           error_code = outcome.error_code, error_message = outcome.error_message,
           redirects = once._redirected(i.redirects, i.fingerprint, next_state, redirect),
           -- A redirect is not an attempt. For at most twenty of them, so that the attempts do run out.
           attempts = CASE WHEN redirect IS NULL OR next_state <> 'failed_retryable' OR cardinality(i.redirects) >= 20
                                OR once._same(i.fingerprint, i.redirects, redirect)
                           THEN i.attempts ELSE i.attempts - 1 END
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket
       AND i.fence = fence AND (i.state = 'processing' OR (i.state = 'in_doubt' AND next_state <> 'in_doubt'));
    IF FOUND THEN
        RETURN 'stored';
    END IF;
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF stored.fence = fence AND stored.state = next_state
       AND once._outcome_of(stored) IS NOT DISTINCT FROM outcome
       AND once._redirected(stored.redirects, stored.fingerprint, next_state, redirect) IS NOT DISTINCT FROM stored.redirects THEN
        RETURN 'repeated';
    END IF;
    RETURN 'refused';
END $$;
$file$;
        EXECUTE $file$
-- once._report_element(...): one report of a batch, as complete_many and fail_many return it: an error of once.complete or once.fail
-- becomes a verdict here.
CREATE OR REPLACE FUNCTION once._report_element(refusal text, tenant text, scope text, key text, bucket integer, fence integer, next_state once.state,
    outcome once.outcome, redirect bytea, OUT verdict text, OUT refused_code text, OUT refused_message text) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    IF (length(scope) BETWEEN 1 AND 255) IS NOT TRUE THEN
        refused_code := 'P4000';
    ELSIF (bucket >= 0) IS NOT TRUE THEN
        refused_code := 'P4001';
    ELSIF NOT once._is_plain(outcome.response_status, outcome.response_body, outcome.response_headers, outcome.result_type,
                             outcome.result_id) THEN
        refused_code := CASE WHEN once._wrong_outcome(outcome.response_status, outcome.response_headers) IS NOT NULL THEN '22023'
                             WHEN once._too_large(scope, outcome) IS NOT NULL THEN 'P4060' END;
    END IF;
    IF refused_code IS NOT NULL THEN
        NULL;
    ELSIF octet_length(redirect) NOT BETWEEN 16 AND 64 THEN
        refused_code := 'P4003';
    ELSE
        verdict := once._report(tenant, scope, key, bucket, fence, next_state, outcome, redirect);
        IF verdict <> 'refused' THEN
            RETURN;
        END IF;
        refused_code := refusal;
    END IF;
    verdict := coalesce(verdict, 'invalid');
    refused_message := coalesce((SELECT e.message FROM once.errors() AS e WHERE e.code = refused_code COLLATE "C"),
        once._wrong_outcome(outcome.response_status, outcome.response_headers));
END $$;
$file$;
        EXECUTE $file$
-- once._report_many(refusal, stored, ...): the reports of a complete_many or fail_many batch that once._store_many left over: each
-- separately, to find out why it was not stored, in the order that once._store_many describes. Returns all elements. For a batch of one
-- element this alone is cheaper, too.
CREATE OR REPLACE FUNCTION once._report_many(refusal text, stored integer[], tenant text, scope text[], key text[], fence integer[],
    next_state once.state[], response_status integer[], response_body bytea[], response_headers jsonb[], result_type text[],
    result_id text[], error_code text[], error_message text[], redirect bytea[])
RETURNS TABLE (ord integer, verdict text, refused_code text, refused_message text) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._length(key, 0);
    n integer;
    bucket integer;
    told record;
    verdicts text[] := array_fill(NULL::text, ARRAY[size]);
    codes text[] := verdicts;
    messages text[] := verdicts;
BEGIN
    IF size = 1 THEN
        RETURN QUERY SELECT 1, r.*
          FROM once._report_element(refusal, tenant, scope[1], key[1], once._bucket(key[1]), fence[1], next_state[1],
                                    ROW(response_status[1], response_body[1], response_headers[1], result_type[1], result_id[1],
                                        left(error_code[1], 255), left(error_message[1], 4096)), redirect[1]) AS r;
        RETURN;
    END IF;
    FOR n, bucket IN SELECT u.ord, u.bucket
                       FROM (SELECT r.*, once._bucket(r.key) AS bucket
                               FROM unnest(scope, key) WITH ORDINALITY AS r (scope, key, ord)
                              WHERE (r.ord = ANY (stored)) IS NOT TRUE OFFSET 0) AS u
                      ORDER BY u.bucket > 0, u.bucket DESC, u.scope COLLATE "C", u.key COLLATE "C", u.ord LOOP
        told := once._report_element(refusal, tenant, scope[n], key[n], bucket, fence[n], next_state[n],
                                     ROW(response_status[n], response_body[n], response_headers[n], result_type[n], result_id[n],
                                         left(error_code[n], 255), left(error_message[n], 4096)), redirect[n]);
        verdicts[n] := told.verdict;
        codes[n] := told.refused_code;
        messages[n] := told.refused_message;
    END LOOP;
    RETURN QUERY SELECT u.ord::integer, coalesce(u.verdict, 'stored'), u.code, u.message
                   FROM unnest(verdicts, codes, messages) WITH ORDINALITY AS u (verdict, code, message, ord) ORDER BY u.ord;
END $$;
$file$;
        EXECUTE $file$
-- once._store_many(stored, ...): stores the plain reports of a batch and returns their positions: the row exists under this fence, the
-- outcome needs no second check, and the key is of bucket 0 or of the batch's latest day. once._report_many handles the rest one by one.
-- stored: the positions that the caller has stored, of bucket 0, or of a batch of one day; NULL: it has not tried. A batch whose first key
-- is not a UUIDv7 is first treated as one of bucket 0, which is nearly always right. The two functions that store are separate because each
-- plan is for one table: that of bucket 0, which is named, is the only one that it opens and locks. All reports take their rows in one
-- order, so that two batches over the same intents cannot deadlock: bucket 0, then the days, the latest first; within each by scope and
-- key. Of two reports on one intent the first is stored, and the second is compared with it.
CREATE OR REPLACE FUNCTION once._store_many(stored integer[], tenant text, scope text[], key text[], fence integer[], next_state once.state[],
    response_status integer[], response_body bytea[], response_headers jsonb[], result_type text[], result_id text[], error_code text[],
    error_message text[], redirect bytea[]) RETURNS integer[] LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    dated boolean := coalesce(key[1] LIKE '________-____-7%', false);
    first_bucket integer;
    last_bucket integer;
BEGIN
    IF dated AND stored IS NOT NULL THEN        -- all are of one day
        RETURN stored;
    END IF;
    IF NOT dated AND stored IS NULL THEN
        stored := once._store_undated(tenant, scope, key, fence, next_state, response_status, response_body, response_headers,
                                      result_type, result_id, error_code, error_message, redirect);
        IF cardinality(stored) = cardinality(key) THEN
            RETURN stored;
        END IF;
    END IF;
    SELECT min(b.bucket), max(b.bucket) INTO first_bucket, last_bucket
      FROM (SELECT once._bucket(k) AS bucket FROM unnest(key) AS k OFFSET 0) AS b;
    IF dated AND first_bucket <= 0 THEN
        stored := once._store_undated(tenant, scope, key, fence, next_state, response_status, response_body, response_headers,
                                      result_type, result_id, error_code, error_message, redirect);
    END IF;
    IF last_bucket > 0 THEN
        stored := stored || once._store_of_day(last_bucket, tenant, scope, key, fence, next_state, response_status, response_body,
                                               response_headers, result_type, result_id, error_code, error_message, redirect);
    END IF;
    RETURN stored;
END $$;
$file$;
        EXECUTE $file$
-- once._store_of_day(day, ...): once._store_undated for the UUIDv7 keys of one day. One day only: if the bucket differs between elements,
-- the executor selects the partition for each element again, which doubles the cost.
CREATE OR REPLACE FUNCTION once._store_of_day(day integer, tenant text, scope text[], key text[], fence integer[], next_state once.state[],
    response_status integer[], response_body bytea[], response_headers jsonb[], result_type text[], result_id text[], error_code text[],
    error_message text[], redirect bytea[]) RETURNS integer[] LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    stored integer[];
BEGIN
    WITH changed AS (
        UPDATE once.intent AS i
           SET state = next_state[e.n], updated_at = now,
               lease_until = CASE WHEN next_state[e.n] = 'in_doubt' AND response_status[e.n] IS NULL THEN i.lease_until END,
               completed_at = CASE WHEN next_state[e.n] <> 'in_doubt' THEN now END,
               response_status = response_status[e.n], response_body = response_body[e.n],
               response_headers = response_headers[e.n], result_type = result_type[e.n], result_id = result_id[e.n],
               error_code = left(error_code[e.n], 255), error_message = left(error_message[e.n], 4096)
          FROM (SELECT n, (SELECT i.ctid FROM once.intent AS i
                            WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope[n] COLLATE "C"
                              AND i.key = key[n] COLLATE "C" AND i.bucket = day) AS address
                  FROM generate_series(1, cardinality(key)) AS n
                 WHERE redirect[n] IS NULL AND once._is_plain(response_status[n], response_body[n], response_headers[n],
                                                               result_type[n], result_id[n])
                 ORDER BY scope[n] COLLATE "C", key[n] COLLATE "C", n) AS e
         WHERE i.bucket = day AND i.ctid = e.address
           AND i.fence = fence[e.n] AND (i.state = 'processing' OR (i.state = 'in_doubt' AND next_state[e.n] <> 'in_doubt'))
        RETURNING e.n)
    SELECT array_agg(c.n) INTO stored FROM changed AS c;
    RETURN stored;
END $$;
$file$;
        EXECUTE $file$
-- once._store_undated(...): stores the plain reports of a batch whose keys are of bucket 0, in that bucket's table by name, and returns
-- their positions.
CREATE OR REPLACE FUNCTION once._store_undated(tenant text, scope text[], key text[], fence integer[], next_state once.state[],
    response_status integer[], response_body bytea[], response_headers jsonb[], result_type text[], result_id text[], error_code text[],
    error_message text[], redirect bytea[]) RETURNS integer[] LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    stored integer[];
BEGIN
    WITH changed AS (
        UPDATE once.intent_d0 AS i
           SET state = next_state[e.n], updated_at = now,
               lease_until = CASE WHEN next_state[e.n] = 'in_doubt' AND response_status[e.n] IS NULL THEN i.lease_until END,
               completed_at = CASE WHEN next_state[e.n] <> 'in_doubt' THEN now END,
               response_status = response_status[e.n], response_body = response_body[e.n],
               response_headers = response_headers[e.n], result_type = result_type[e.n], result_id = result_id[e.n],
               error_code = left(error_code[e.n], 255), error_message = left(error_message[e.n], 4096)
          FROM (SELECT n, (SELECT i.ctid FROM once.intent_d0 AS i
                            WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope[n] COLLATE "C"
                              AND i.key = key[n] COLLATE "C" AND i.bucket = 0) AS address
                  FROM generate_series(1, cardinality(key)) AS n
                 WHERE redirect[n] IS NULL AND once._is_plain(response_status[n], response_body[n], response_headers[n],
                                                               result_type[n], result_id[n])
                 ORDER BY scope[n] COLLATE "C", key[n] COLLATE "C", n) AS e
         WHERE i.bucket = 0 AND i.ctid = e.address
           AND i.fence = fence[e.n] AND (i.state = 'processing' OR (i.state = 'in_doubt' AND next_state[e.n] <> 'in_doubt'))
        RETURNING e.n)
    SELECT array_agg(c.n) INTO stored FROM changed AS c;
    RETURN stored;
END $$;
$file$;
        EXECUTE $file$
-- once._take_over(verdict, stored, policy, claimant, lease, retention, traceparent): acts on a verdict that changes the row, which the
-- caller holds (once._hold): the next attempt gets the claim under the next fence, or the intent becomes final, in doubt, or what its
-- verify function answers. Returns the attempt's verdict. If the verify function raises for an intent that is already in doubt, that
-- counts as no answer: each retry asks it again, and must not fail the other claims of its batch.
CREATE OR REPLACE FUNCTION once._take_over(verdict text, stored once.intent, policy once.scope, claimant text, lease interval,
    retention interval, traceparent text) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    exhausted boolean := stored.attempts >= policy.max_attempts;
    reason text := 'its lease passed without a report';
    verified once.verification;
BEGIN
    IF verdict = 'verify' THEN
        IF stored.state = 'in_doubt' THEN
            verified := (once._ask(policy, stored.tenant, stored.scope, stored.key)).verified;
        ELSE
            verified := once._verify(policy, stored.tenant, stored.scope, stored.key);
        END IF;
        IF verified.answer = 'happened' THEN
            PERFORM once._store_verified(stored.tenant, stored.scope, stored.key, stored.bucket, stored.fence, verified);
            RETURN 'replay_success';
        ELSIF verified.answer = 'absent' AND exhausted IS NOT TRUE THEN
            verdict := 'retryable_failure';     -- certainly no effect; 'processing_stale' would mean that one is possible
        ELSIF stored.state = 'in_doubt' THEN
            RETURN 'in_doubt';                  -- unchanged, with its own reason
        ELSE
            verdict := 'in_doubt';
            reason := 'verify answered ' || verified.answer;
        END IF;
    END IF;
    IF exhausted THEN
        reason := format('%s, and %s attempts are used up', reason, stored.attempts);
    END IF;

    IF verdict = 'in_doubt' THEN
        PERFORM once._give_up(stored, 'in_doubt', 'stale', reason, 'doubt');
        RETURN 'in_doubt';
    ELSIF verdict = 'abandoned' THEN
        PERFORM once._give_up(stored, 'failed_final', 'abandoned', once._abandoned(stored), 'abandon');
        RETURN 'final_failure';
    END IF;
    UPDATE once.intent AS i
       SET state = 'processing', fence = i.fence + 1, attempts = i.attempts + 1, owner = claimant, updated_at = now,
           completed_at = NULL, lease_until = now + coalesce(lease, policy.lease),
           expires_at = coalesce(i.created_at + retention, i.expires_at),
           traceparent = coalesce(i.traceparent, traceparent),
           (response_status, response_body, response_headers, result_type, result_id, error_code, error_message)
               = ROW(NULL, NULL, NULL, NULL, NULL, CASE WHEN verdict = 'processing_stale' THEN 'stale' END, NULL)   -- see once.release
     WHERE i.tenant = stored.tenant AND i.scope = stored.scope AND i.key = stored.key AND i.bucket = stored.bucket;
    PERFORM once._record_attempt(stored, 'processing', verified.answer);
    RETURN verdict;
END $$;
$file$;
        EXECUTE $file$
-- once._wrong_element(scope, bucket, fingerprint): the SQLSTATE for an element of a batch that cannot be an intent; NULL if it can.
-- Inlined.
CREATE OR REPLACE FUNCTION once._wrong_element(scope text, bucket integer, fingerprint bytea) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN (length(scope) BETWEEN 1 AND 255) IS NOT TRUE THEN 'P4000'
                WHEN (bucket >= 0) IS NOT TRUE THEN 'P4001'
                WHEN (octet_length(fingerprint) BETWEEN 16 AND 64) IS NOT TRUE THEN 'P4003' END
$$;
$file$;
        EXECUTE $file$
-- once.finish(scope, key, fingerprint, outcome..., state, tenant, traceparent): stores the outcome of an intent that this transaction has
-- started (once.start), and returns its body, so that a function can end with RETURN once.finish(...). state is 'succeeded',
-- 'failed_final', or 'failed_retryable' (the next start proceeds again). It writes one row version and never waits.
--
-- The body of the answer is response_text, response_json (stored as PostgreSQL writes jsonb) or response_body: bytes, of type bytea and
-- never an untyped literal, which PostgreSQL would read as escapes ('\x41' is an A). A parameter of a driver that sends no type needs a
-- cast: $5::bytea. An error_code is cut to 255 characters, an error_message to 4096: a failure can always be stored. traceparent (W3C) is
-- stored with the intent, unless an earlier attempt stored its own; a malformed one is ignored.
--
-- Call it outside of any savepoint that may still be rolled back: ROLLBACK TO would remove the outcome, and COMMIT would keep the effect
-- from before the savepoint.
--
-- Raises P4012 if this transaction has not started the intent: then nothing guards the effect; the DETAIL says what it has started. P4015
-- for another fingerprint than that of start, P4010 if the intent is finished already, P4060 for an outcome that is too large, 22023 for
-- an invalid outcome; 40001 if another transaction finished it first (isolation levels above READ COMMITTED): retry the transaction.
--
-- Why it is written so: one INSERT and no look-up; ON CONFLICT DO NOTHING turns a race under REPEATABLE READ into 40001 and needs no
-- EXCEPTION block, which would start a subtransaction. It does more only for a row left by a leased attempt. The INSERT is not plain, as
-- that of finish_new is: a second finish, or a claim, of the same transaction may have stored the row. The day is not checked again: it
-- was open at the start, and the look-up has locked its partition since. Small bodies skip the policy: response_bytes_max is never below
-- 8192. Each expression that a transaction reaches costs 2,000 instructions, so one asks all that is usual, and the INSERT supplies what
-- is the same for all keys of a kind. search_path is the only setting: each costs a call 3,000, and an INSERT of VALUES has only one plan.
-- What start has checked is checked again: its note is a setting, and a caller who sets it by hand would store invalid names.
CREATE OR REPLACE FUNCTION once.finish(scope text, key text, fingerprint bytea, response_status integer DEFAULT NULL,
    response_text text DEFAULT NULL, response_json jsonb DEFAULT NULL, response_body anynonarray DEFAULT NULL::bytea,
    response_headers jsonb DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL, state text DEFAULT 'succeeded',
    error_code text DEFAULT NULL, error_message text DEFAULT NULL, tenant text DEFAULT '', traceparent text DEFAULT NULL) RETURNS bytea
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    bucket integer;
    now timestamptz := clock_timestamp();
    fence integer;
BEGIN
    IF pg_typeof(response_body) <> 'bytea'::regtype THEN        -- alone and first: see once._refuse_type
        PERFORM once._refuse_type(tenant, scope, key, pg_typeof(response_body));
    END IF;
    IF response_text IS NOT NULL OR response_json IS NOT NULL THEN
        IF (response_text IS NULL OR response_json IS NULL) AND response_body IS NULL THEN
            response_body := once._body_of(response_text, response_json);
        ELSE
            response_body := once._body(tenant, scope, key, response_text, response_json, response_body);
        END IF;
    END IF;
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    -- The check for the usual arguments, in one expression for each kind of key; once._check_and_lock for the others. A UUIDv7 of today
    -- leaves no fence: it is 1. Another key leaves no bucket: it is 0.
    IF key COLLATE "C" LIKE '________-____-7___-____-____________' THEN
        bucket := CASE WHEN once._quick_check(tenant, scope, fingerprint) AND once._is_trusted(tenant) AND once._is_dated(key)
                            AND once._has_started(tenant, scope, key, fingerprint)
                            AND state IN ('succeeded', 'failed_final', 'failed_retryable')
                            AND once._is_usual(response_status, response_body, result_type, result_id)
                       THEN once._match_day(key, once._today()) END;
    ELSE
        fence := CASE WHEN once._quick_check(tenant, scope, fingerprint) AND once._is_trusted(tenant) AND once._is_undated(key)
                           AND state IN ('succeeded', 'failed_final', 'failed_retryable')
                           AND once._is_usual(response_status, response_body, result_type, result_id)
                      THEN once._noted_start(tenant, scope, key, fingerprint) END;
    END IF;
    IF (bucket IS NULL AND fence IS NULL) OR response_headers IS NOT NULL THEN
        IF bucket IS NULL AND fence IS NULL THEN
            bucket := once._check_and_lock(tenant, scope, key, fingerprint, false);
            fence := once._start_of(tenant, scope, key, bucket, fingerprint);
        END IF;
        IF (state IN ('succeeded', 'failed_final', 'failed_retryable')
            AND once._is_plain(response_status, response_body, response_headers, result_type, result_id)) IS NOT TRUE THEN
            PERFORM once._check_outcome(tenant, scope, key,
                ROW(response_status, response_body, response_headers, result_type, result_id, NULL, NULL));
            IF (state IN ('succeeded', 'failed_final', 'failed_retryable')) IS NOT TRUE THEN
                RAISE EXCEPTION USING ERRCODE = '22023',
                    MESSAGE = format('pgonce: an intent cannot be finished as %s', quote_nullable(left(state, 80))),
                    DETAIL = format('tenant=%L scope=%L key=%L', tenant, scope, key),
                    HINT = 'Use succeeded, failed_final or failed_retryable.';
            END IF;
            PERFORM once._refuse_day(tenant, scope, key, coalesce(bucket, 0));
        END IF;
    END IF;
    INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                                  traceparent, response_status, response_body, response_headers, result_type, result_id, error_code,
                                  error_message)
    VALUES (now, now, now, coalesce(bucket, 0), coalesce(fence, 1), 1, state::once.state, tenant, scope, key, fingerprint,
            traceparent, response_status, response_body, response_headers, result_type, result_id, left(error_code, 255),
            left(error_message, 4096)) ON CONFLICT DO NOTHING;
    IF FOUND AND nextval('once.counted_new') IS NOT NULL THEN       -- counts it
        RETURN response_body;
    END IF;
    PERFORM once._finish_over(tenant, scope, key, coalesce(bucket, 0), fingerprint, state,
        ROW(response_status, response_body, response_headers, result_type, result_id, left(error_code, 255), left(error_message, 4096)),
        traceparent);
    RETURN response_body;
END $$;
$file$;
        EXECUTE $file$
-- once.finish_new(scope, key, fingerprint, outcome..., state, tenant, traceparent): once.start and once.finish in one call, for pipelines
-- that know the outcome before the effect. Send it first: it aborts all statements queued behind it unless the effect may run, and it
-- commits or rolls back with the effect. Returns the fence; raises the errors of both functions, including P4020 for a replay.
--
-- Why it is written so: the hot path is that of start and of finish, with one check; those two functions handle the other cases. It looks
-- before it inserts, because ON CONFLICT alone would wait for a report of this intent in an open transaction. In READ COMMITTED the
-- INSERT is plain: the look-up was made under the lock and saw everything committed before, so there can be no conflict, and ON CONFLICT
-- costs 15,000 instructions. An older snapshot may have missed a row: then it raises 40001.
CREATE OR REPLACE FUNCTION once.finish_new(scope text, key text, fingerprint bytea, response_status integer DEFAULT NULL,
    response_text text DEFAULT NULL, response_json jsonb DEFAULT NULL, response_body anynonarray DEFAULT NULL::bytea,
    response_headers jsonb DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL,
    state text DEFAULT 'succeeded',
    error_code text DEFAULT NULL, error_message text DEFAULT NULL, tenant text DEFAULT '', traceparent text DEFAULT NULL)
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer;
    now timestamptz := clock_timestamp();
    fence integer;
    started once.started;
    stored bytea;
BEGIN
    IF pg_typeof(response_body) <> 'bytea'::regtype THEN        -- alone and first: see once._refuse_type
        PERFORM once._refuse_type(tenant, scope, key, pg_typeof(response_body));
    END IF;
    IF response_text IS NOT NULL OR response_json IS NOT NULL THEN
        IF (response_text IS NULL OR response_json IS NULL) AND response_body IS NULL THEN
            response_body := once._body_of(response_text, response_json);
        ELSE
            response_body := once._body(tenant, scope, key, response_text, response_json, response_body);
        END IF;
    END IF;
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    -- The check for the usual arguments, in one expression for each kind of key; once._check_and_lock for the others.
    IF key COLLATE "C" LIKE '________-____-7___-____-____________' THEN
        bucket := CASE WHEN once._quick_check(tenant, scope, fingerprint) AND once._is_trusted(tenant) AND once._is_dated(key)
                            AND pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key)) THEN once._match_day(key, once._today()) END;
    ELSE
        bucket := CASE WHEN once._quick_check(tenant, scope, fingerprint) AND once._is_trusted(tenant) AND once._is_undated(key)
                            AND pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key)) THEN 0 END;
    END IF;
    IF bucket IS NULL THEN
        bucket := once._check_and_lock(tenant, scope, key, fingerprint, true);
    END IF;
    IF bucket = once._today() THEN
        PERFORM FROM once.intent AS i
          WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
            AND i.bucket = once._today();
        fence := CASE WHEN NOT FOUND AND once._is_first(state, response_status, response_body, result_type, result_id)
                           AND once._is_today(bucket) THEN 1 END;       -- see once.start
    ELSIF bucket = 0 THEN
        PERFORM FROM once.intent AS i
          WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
            AND i.bucket = 0;
        fence := CASE WHEN NOT FOUND AND once._is_first(state, response_status, response_body, result_type, result_id)
                      THEN once._first_fence() END;
    ELSIF bucket > 0 THEN
        PERFORM FROM once.intent AS i
          WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
            AND i.bucket = bucket;
        fence := CASE WHEN NOT FOUND AND once._is_first(state, response_status, response_body, result_type, result_id)
                           AND once._is_open(bucket) THEN 1 END;
    END IF;
    IF response_headers IS NOT NULL THEN
        IF jsonb_typeof(response_headers) <> 'object' OR octet_length(response_headers::text) > 65536 THEN
            fence := NULL;
        END IF;
    END IF;
    IF fence IS NOT NULL AND current_setting('transaction_isolation') = 'read committed' THEN
        INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                                      traceparent, response_status, response_body, response_headers, result_type, result_id, error_code,
                                      error_message)
        VALUES (now, now, now, bucket, fence, 1, state::once.state, tenant, scope, key, fingerprint,
                traceparent, response_status, response_body, response_headers, result_type, result_id, left(error_code, 255),
                left(error_message, 4096)) ;
        RETURN CASE WHEN nextval('once.counted_new') IS NOT NULL THEN fence END;        -- counts it
    ELSIF fence IS NOT NULL THEN
        INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                                      traceparent, response_status, response_body, response_headers, result_type, result_id, error_code,
                                      error_message)
        VALUES (now, now, now, bucket, fence, 1, state::once.state, tenant, scope, key, fingerprint,
                traceparent, response_status, response_body, response_headers, result_type, result_id, left(error_code, 255),
                left(error_message, 4096)) ON CONFLICT DO NOTHING;
        IF FOUND AND nextval('once.counted_new') IS NOT NULL THEN
            RETURN fence;
        END IF;
    END IF;
    started := once.start(scope, key, fingerprint, tenant);
    IF started.verdict <> 'proceed' THEN
        PERFORM once._refuse('P4020', tenant, scope, key);
    END IF;
    stored := once.finish(scope, key, fingerprint, response_status, NULL, NULL, response_body, response_headers, result_type,
        result_id, state, error_code, error_message, tenant, traceparent);
    RETURN started.fence;
END $$;
$file$;
        EXECUTE $file$
-- once.start(scope, key, fingerprint, tenant, traceparent): opens an intent whose effect happens in this transaction. Verdicts:
--   proceed         do the effect, then once.finish(...), then COMMIT. ROLLBACK or a crash leaves no trace
--   replay_success  the intent is finished: the stored outcome is in the other columns. Do not do the effect
-- All other verdicts are raised, because a caller that forgets to check must not repeat the effect: P4002 another request, P4029 running,
-- P4030 failed for good, P4031 in doubt, P4041 expired; P4000 P4001 P4003 P4098 for bad input. once.try_start returns them instead. P4014:
-- this transaction has started the intent already, and neither finished it nor rolled back to an earlier savepoint.
--
-- In PL/pgSQL: answer once.started := once.start(...). Its traceparent is the trace of the intent's first attempt, if it is known, else
-- the given one: pass it on to once.finish. It reads only and never waits. It holds the intent's advisory lock until the transaction ends.
--
-- After proceed, an outcome is required. With pgonce_native, or if the setting once.strict is on (SET, ALTER ROLE, ALTER DATABASE: at
-- least for development and CI), COMMIT and PREPARE TRANSACTION fail without it (P4013) and roll the effect back; once.strict = off turns
-- this check off. A start in a read-only transaction requires no outcome. In SQL alone once.strict costs each start a row that is deleted
-- at once, and SET CONSTRAINTS ALL IMMEDIATE checks for the outcome at that point.
--
-- Each start in a transaction costs a little more than the one before: 1,000 of them take 0.05 s, 6,000 take 1.5 s. Commit long batches
-- in parts.
CREATE OR REPLACE FUNCTION once.start(scope text, key text, fingerprint bytea, tenant text DEFAULT '',
    traceparent text DEFAULT NULL) RETURNS once.started
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    answer once.started;
    bucket integer;
    likely integer;
    fence integer;
    noted text;
BEGIN
    IF (once._is_trusted(tenant) AND pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key))) IS NOT TRUE THEN
        bucket := once._check_and_lock(tenant, scope, key, fingerprint, true);
        IF bucket IS NULL THEN
            RETURN once._start_over(tenant, scope, key, fingerprint, traceparent, true);
        END IF;
    END IF;
    IF key COLLATE "C" NOT LIKE '________-____-7___-____-____________' THEN
        SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded' THEN 'replay_success' END, 'succeeded', i.response_status,
               i.response_body, i.response_headers, i.result_type, i.result_id, i.error_code, i.error_message, i.fence, i.traceparent
          INTO answer FROM once.intent AS i
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
           AND i.bucket = 0;
        IF FOUND THEN
            IF answer.verdict IS NOT NULL        -- and count it
               AND (current_setting('transaction_read_only') <> 'off' OR nextval('once.counted_replay') IS NOT NULL) THEN
                RETURN answer;
            END IF;
        ELSE
            fence := CASE WHEN once._is_undated(key) AND once._quick_check(tenant, scope, fingerprint) THEN once._first_fence() END;
        END IF;
    ELSE
        likely := once._match_day(key, once._today());
        IF likely IS NOT NULL THEN
            SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded' THEN 'replay_success' END, 'succeeded', i.response_status,
                   i.response_body, i.response_headers, i.result_type, i.result_id, i.error_code, i.error_message, i.fence, i.traceparent
              INTO answer FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
               AND i.bucket = once._today();
            IF FOUND THEN
                IF answer.verdict IS NOT NULL        -- and count it
                   AND (current_setting('transaction_read_only') <> 'off' OR nextval('once.counted_replay') IS NOT NULL) THEN
                    RETURN answer;
                END IF;
            ELSE    -- still today? The look-up may have been made on another day
                IF once._is_today(likely) AND once._is_dated(key) AND once._quick_check(tenant, scope, fingerprint)
                   AND once._note_first(tenant, scope, key, fingerprint, '1') IS NOT NULL THEN
                    IF traceparent IS NULL THEN
                        RETURN once._proceed();
                    END IF;
                    RETURN ROW('proceed', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, once._trace(traceparent))::once.started;
                END IF;
                fence := CASE WHEN once._is_today(likely) AND once._is_dated(key) AND once._quick_check(tenant, scope, fingerprint)
                              THEN 1 END;
            END IF;
        ELSE
            bucket := coalesce(bucket, once._check_and_lock(tenant, scope, key, fingerprint, false));
            SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded' THEN 'replay_success' END, 'succeeded', i.response_status,
                   i.response_body, i.response_headers, i.result_type, i.result_id, i.error_code, i.error_message, i.fence, i.traceparent
              INTO answer FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
               AND i.bucket = bucket;
            IF FOUND THEN
                IF answer.verdict IS NOT NULL        -- and count it
                   AND (current_setting('transaction_read_only') <> 'off' OR nextval('once.counted_replay') IS NOT NULL) THEN
                    RETURN answer;
                END IF;
            ELSE
                IF bucket = 0 THEN
                    fence := once._first_fence();
                ELSIF once._is_open(bucket) THEN
                    fence := 1;
                END IF;
            END IF;
        END IF;
    END IF;
    IF fence IS NULL THEN
        bucket := coalesce(bucket, once._check_and_lock(tenant, scope, key, fingerprint, false));
        RETURN once._start_over(tenant, scope, key, fingerprint, traceparent, true);
    ELSIF fence > 1 THEN
        noted := once._note_start(tenant, scope, key, fingerprint, fence::text);
    ELSE
        IF once._note_first(tenant, scope, key, fingerprint, '1') IS NULL THEN
            noted := once._note_start(tenant, scope, key, fingerprint, '1');
        END IF;
        IF traceparent IS NULL THEN
            RETURN once._proceed();
        END IF;
    END IF;
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    RETURN ROW('proceed', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, fence, traceparent)::once.started;
END;
$$;
$file$;
        EXECUTE $file$
-- once.try_start(scope, key, fingerprint, tenant, traceparent): once.start for callers that cannot use an error, since an error aborts
-- their transaction: it returns every decision in the row, and raises only for bad input and races (P4000 P4001 P4003, P4014, P4098,
-- 40001).
--   proceed            do the effect, then once.finish(...), then COMMIT
--   replay_success     the intent succeeded: the stored outcome is in the other columns
--   final_failure      it failed for good: the stored outcome is in the other columns. A new intent needs a new key
--   processing_active  another attempt is running: try again after a short delay
--   in_doubt           the outcome is unknown: see once.resolve. No attempt runs
--   mismatch           the key was first used with another request
--   expired            the key is older than the retention
-- Check the verdict: only 'proceed' allows the effect, and once.finish refuses all others.
CREATE OR REPLACE FUNCTION once.try_start(scope text, key text, fingerprint bytea, tenant text DEFAULT '',
    traceparent text DEFAULT NULL) RETURNS once.started
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    answer once.started;
    bucket integer;
    likely integer;
    fence integer;
    noted text;
BEGIN
    IF (once._is_trusted(tenant) AND pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key))) IS NOT TRUE THEN
        bucket := once._check_and_lock(tenant, scope, key, fingerprint, true);
        IF bucket IS NULL THEN
            RETURN once._start_over(tenant, scope, key, fingerprint, traceparent, false);
        END IF;
    END IF;
    IF key COLLATE "C" NOT LIKE '________-____-7___-____-____________' THEN
        SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded' THEN 'replay_success' END, 'succeeded', i.response_status,
               i.response_body, i.response_headers, i.result_type, i.result_id, i.error_code, i.error_message, i.fence, i.traceparent
          INTO answer FROM once.intent AS i
         WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
           AND i.bucket = 0;
        IF FOUND THEN
            IF answer.verdict IS NOT NULL        -- and count it
               AND (current_setting('transaction_read_only') <> 'off' OR nextval('once.counted_replay') IS NOT NULL) THEN
                RETURN answer;
            END IF;
        ELSE
            fence := CASE WHEN once._is_undated(key) AND once._quick_check(tenant, scope, fingerprint) THEN once._first_fence() END;
        END IF;
    ELSE
        likely := once._match_day(key, once._today());
        IF likely IS NOT NULL THEN
            SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded' THEN 'replay_success' END, 'succeeded', i.response_status,
                   i.response_body, i.response_headers, i.result_type, i.result_id, i.error_code, i.error_message, i.fence, i.traceparent
              INTO answer FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
               AND i.bucket = once._today();
            IF FOUND THEN
                IF answer.verdict IS NOT NULL        -- and count it
                   AND (current_setting('transaction_read_only') <> 'off' OR nextval('once.counted_replay') IS NOT NULL) THEN
                    RETURN answer;
                END IF;
            ELSE    -- still today? The look-up may have been made on another day
                IF once._is_today(likely) AND once._is_dated(key) AND once._quick_check(tenant, scope, fingerprint)
                   AND once._note_first(tenant, scope, key, fingerprint, '1') IS NOT NULL THEN
                    IF traceparent IS NULL THEN
                        RETURN once._proceed();
                    END IF;
                    RETURN ROW('proceed', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, once._trace(traceparent))::once.started;
                END IF;
                fence := CASE WHEN once._is_today(likely) AND once._is_dated(key) AND once._quick_check(tenant, scope, fingerprint)
                              THEN 1 END;
            END IF;
        ELSE
            bucket := coalesce(bucket, once._check_and_lock(tenant, scope, key, fingerprint, false));
            SELECT CASE WHEN i.fingerprint = fingerprint AND i.state = 'succeeded' THEN 'replay_success' END, 'succeeded', i.response_status,
                   i.response_body, i.response_headers, i.result_type, i.result_id, i.error_code, i.error_message, i.fence, i.traceparent
              INTO answer FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
               AND i.bucket = bucket;
            IF FOUND THEN
                IF answer.verdict IS NOT NULL        -- and count it
                   AND (current_setting('transaction_read_only') <> 'off' OR nextval('once.counted_replay') IS NOT NULL) THEN
                    RETURN answer;
                END IF;
            ELSE
                IF bucket = 0 THEN
                    fence := once._first_fence();
                ELSIF once._is_open(bucket) THEN
                    fence := 1;
                END IF;
            END IF;
        END IF;
    END IF;
    IF fence IS NULL THEN
        bucket := coalesce(bucket, once._check_and_lock(tenant, scope, key, fingerprint, false));
        RETURN once._start_over(tenant, scope, key, fingerprint, traceparent, false);
    ELSIF fence > 1 THEN
        noted := once._note_start(tenant, scope, key, fingerprint, fence::text);
    ELSE
        IF once._note_first(tenant, scope, key, fingerprint, '1') IS NULL THEN
            noted := once._note_start(tenant, scope, key, fingerprint, '1');
        END IF;
        IF traceparent IS NULL THEN
            RETURN once._proceed();
        END IF;
    END IF;
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    RETURN ROW('proceed', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, fence, traceparent)::once.started;
END;
$$;
$file$;
        EXECUTE $file$
-- once._check_finished(tenant, scope, key, fence): raises P4013 if an intent that this transaction started under this fence has no
-- outcome. Called at the end of the transaction, by the trigger of once.unfinished and by pgonce_native. For a tenant that the caller may
-- not name it returns without a check, as once._authorise would refuse: a caller who sets once.started by hand learns nothing from it.
CREATE OR REPLACE FUNCTION once._check_finished(tenant text, scope text, key text, fence integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
DECLARE
    caller text := coalesce(nullif(current_setting('role'), 'none'), session_user::text);
BEGIN
    IF NOT has_function_privilege(caller, 'once.any_tenant()'::regprocedure, 'execute') THEN
        PERFORM FROM once.binding AS b WHERE b.role_name = caller COLLATE "C" AND b.tenant = _check_finished.tenant COLLATE "C";
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF NOT once._has_outcome(tenant, scope, key, fence) THEN
        PERFORM once._refuse('P4013', tenant, scope, key);
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._finish_over(...): finishes an intent that already has a row: left by a leased attempt that failed retryably or whose lease has
-- passed, and taken over by once.start under this fence. The WHERE clause is the whole guard: if that attempt has reported or renewed
-- since, it finds no row.
CREATE OR REPLACE FUNCTION once._finish_over(tenant text, scope text, key text, bucket integer, fingerprint bytea, state text,
    outcome once.outcome, traceparent text) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    fence integer := once._start_of(tenant, scope, key, bucket, fingerprint);
    now timestamptz := clock_timestamp();
    stored record;
    before once.intent;
BEGIN
    SELECT i.* INTO before FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    UPDATE once.intent AS i
       SET state = state::once.state, fence = fence, attempts = i.attempts + 1, updated_at = now, completed_at = now,
           owner = NULL, lease_until = NULL, traceparent = coalesce(i.traceparent, traceparent),
           (response_status, response_body, response_headers, result_type, result_id, error_code, error_message)
               = ROW(outcome.*)
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket
       AND once._same(i.fingerprint, i.redirects, fingerprint) AND i.fence = fence - 1
       AND (i.state = 'failed_retryable' OR (i.state = 'processing' AND i.lease_until <= now));
    IF FOUND THEN
        PERFORM once._record_attempt(before, state::once.state, NULL);
        RETURN;
    END IF;
    SELECT i.state, i.fingerprint, i.redirects, i.fence INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT once._same(stored.fingerprint, stored.redirects, fingerprint) THEN
        PERFORM once._refuse('P4002', tenant, scope, key);
    END IF;
    PERFORM once._refuse('P4010', tenant, scope, key, format('the intent is %s, fence %s', stored.state, stored.fence));
END $$;
$file$;
        EXECUTE $file$
-- once._has_outcome(tenant, scope, key, fence): whether an intent that this transaction started under this fence has an outcome under
-- this fence or a later one.
CREATE OR REPLACE FUNCTION once._has_outcome(tenant text, scope text, key text, fence integer) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
BEGIN
    PERFORM FROM once.intent AS i
      WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
        AND i.bucket = bucket AND i.fence >= fence AND i.state <> 'processing';
    RETURN FOUND;
END $$;
$file$;
        EXECUTE $file$
-- once._has_started(tenant, scope, key, fingerprint): whether this transaction has started an intent for this request (once._note_start),
-- and so holds its lock. Inlined.
CREATE OR REPLACE FUNCTION once._has_started(tenant text, scope text, key text, fingerprint bytea) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT strpos(current_setting('once.started', true), concat_ws(E'\x1f', E'\x1e', tenant, scope, key, fingerprint, '')) > 0
$$;
$file$;
        EXECUTE $file$
-- once._is_first(state, status, body, result_type, result_id): whether once.finish_new may store this outcome itself: nothing is wrong with
-- it, apart from its headers (once._is_usual), and this transaction has started no intent (once._note_start). Inlined.
CREATE OR REPLACE FUNCTION once._is_first(state text, status integer, body bytea, result_type text, result_id text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT state IN ('succeeded', 'failed_final', 'failed_retryable') AND once._is_usual(status, body, result_type, result_id)
       AND coalesce(current_setting('once.started', true), '') = ''
$$;
$file$;
        EXECUTE $file$
-- once._note_first(tenant, scope, key, fingerprint, fence): once._note_start for the first start of a transaction, if once.strict is not
-- set. Otherwise returns NULL and notes nothing. Inlined; each additional operator would cost every start 2,000 instructions.
CREATE OR REPLACE FUNCTION once._note_first(tenant text, scope text, key text, fingerprint bytea, fence text) RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN concat(current_setting('once.started', true), current_setting('once.strict', true)) = ''
        THEN set_config('once.started', concat_ws(E'\x1f', E'\x1e', tenant, scope, key, fingerprint, fence), true) END
$$;
$file$;
        EXECUTE $file$
-- once._note_start(tenant, scope, key, fingerprint, fence): notes, for once.finish, that this transaction has started an intent, for
-- which request and under which fence. The note is in a setting of the transaction: a rollback, also one to a savepoint, removes it
-- together with the intent's lock. The latest comes first. It guards against mistakes: a caller who sets once.started by hand harms only
-- itself. Raises P4014 if the transaction has started this intent already and not finished it. once.strict: makes the end of the
-- transaction check for the outcome. The inserted row is deleted at once, and its deferred trigger remains.
CREATE OR REPLACE FUNCTION once._note_start(tenant text, scope text, key text, fingerprint bytea, fence text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    started text := nullif(current_setting('once.started', true), '');
    of_intent text := concat_ws(E'\x1f', E'\x1e', tenant, scope, key, '');
    made tid;
BEGIN
    IF strpos(started, of_intent) > 0 THEN
        IF NOT once._has_outcome(tenant, scope, key, split_part(split_part(started, of_intent, 2), E'\x1f', 2)::integer) THEN
            PERFORM once._refuse('P4014', tenant, scope, key);
        END IF;
    END IF;
    IF nullif(current_setting('once.strict', true), '')::boolean AND current_setting('transaction_read_only') = 'off' THEN
        INSERT INTO once.unfinished VALUES (tenant, scope, key, fence::integer) RETURNING ctid INTO made;
        DELETE FROM once.unfinished AS u WHERE u.ctid = made;
    END IF;
    RETURN set_config('once.started', concat_ws(E'\x1f', E'\x1e', tenant, scope, key, fingerprint, fence, started), true);
END $$;
$file$;
        EXECUTE $file$
-- once._noted_start(tenant, scope, key, fingerprint): the fence under which this transaction has started an intent for this request
-- (once._note_start), the latest if there are several; NULL if it has not, or not for this request. Inlined.
CREATE OR REPLACE FUNCTION once._noted_start(tenant text, scope text, key text, fingerprint bytea) RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT nullif(split_part(split_part(current_setting('once.started', true),
        concat_ws(E'\x1f', E'\x1e', tenant, scope, key, fingerprint, ''), 2), E'\x1f', 1), '')::integer
$$;
$file$;
        EXECUTE $file$
-- once._proceed(): what once.start answers of a new intent that has the first fence and no trace. The planner takes the row itself
-- into the expression that has it, which spares each start the making of it.
CREATE OR REPLACE FUNCTION once._proceed() RETURNS once.started LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ROW('proceed', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, NULL)::once.started
$$;
$file$;
        EXECUTE $file$
-- once._start_of(tenant, scope, key, bucket, fingerprint): once._noted_start for once.finish, with errors: raises P4012 if this
-- transaction has not started the intent, and P4015 if it has started it for another request. It compares bytes and not their text, whose
-- form bytea_output may change in between. The DETAIL of P4012 says what is known about the intent, if this is its request, and which
-- intents this transaction has started instead, the latest three.
CREATE OR REPLACE FUNCTION once._start_of(tenant text, scope text, key text, bucket integer, fingerprint bytea) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    noted text := current_setting('once.started', true);
    of_intent text := concat_ws(E'\x1f', E'\x1e', tenant, scope, key, '');
    note text := split_part(noted, of_intent, 2);         -- and the older ones
    known text;
    others text;
BEGIN
    IF coalesce(strpos(noted, of_intent), 0) = 0 THEN
        SELECT CASE i.state
                   WHEN 'processing' THEN format('it is claimed, under fence %s: once.complete and once.fail report a claim', i.fence)
                   ELSE format('it is %s: where once.start said replay_success there is nothing to finish', i.state) END
          INTO known FROM once.intent AS i
         WHERE i.tenant = _start_of.tenant COLLATE "C" AND i.scope = _start_of.scope COLLATE "C"
           AND i.key = _start_of.key COLLATE "C" AND i.bucket = _start_of.bucket
           AND once._same(i.fingerprint, i.redirects, _start_of.fingerprint);
        SELECT string_agg(regexp_replace(format('tenant=%L scope=%L key=%L', left(split_part(n.one, E'\x1f', 2), 80),
                                                left(split_part(n.one, E'\x1f', 3), 80), left(split_part(n.one, E'\x1f', 4), 80)),
                                         '[[:cntrl:]]', '?', 'g'), ', ' ORDER BY n.number)
               || CASE WHEN max(n.count) > 3 THEN format(' and %s more', max(n.count) - 3) ELSE '' END
          INTO others
          FROM (SELECT s.one, s.number, count(*) OVER () AS count
                  FROM unnest(string_to_array(noted, E'\x1e')) WITH ORDINALITY AS s (one, number)
                 WHERE s.number > 1) AS n
         WHERE n.number <= 4;
        PERFORM once._refuse('P4012', tenant, scope, key,
                             concat_ws('; ', known, 'this transaction has started ' || coalesce(others, 'no intent')));
    ELSIF split_part(note, E'\x1f', 1)::bytea <> fingerprint THEN
        PERFORM once._refuse('P4015', tenant, scope, key);
    END IF;
    RETURN split_part(note, E'\x1f', 2)::integer;
END $$;
$file$;
        EXECUTE $file$
-- once._start_over(tenant, scope, key, fingerprint, traceparent, raising): the thorough half of once.start, for the cases that its hot
-- path does not handle: a row that is not a plain replay, a lock that another attempt has, a day that is not plainly open. Decides by the
-- scope's policy whether this attempt may run. If it may not: raises, or returns the name of the error (once.errors) as the verdict. The
-- arguments are already checked. A stale or retryable row stays as it is: once.finish takes it over under the next fence.
CREATE OR REPLACE FUNCTION once._start_over(tenant text, scope text, key text, fingerprint bytea, traceparent text, raising boolean)
RETURNS once.started LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    locked boolean := pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key));
    policy once.scope := once._policy(scope);
    answer once.started;
    outcome once.outcome;
    stored once.intent;
    verified once.verification;
    judged text := 'new';
    code text;              -- why this attempt may not run; NULL: it may, or there is an answer
    why text;
    noted text;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND AND bucket <> 0 THEN
        stored := once._archived(tenant, scope, key, bucket);
    END IF;
    IF stored.state IS NOT NULL THEN
        judged := once._verdict(once._same(stored.fingerprint, stored.redirects, fingerprint), stored.state,
            stored.lease_until, clock_timestamp(), stored.attempts, policy.max_attempts, policy.on_stale);
        IF judged NOT IN ('retryable_failure', 'processing_stale', 'verify') THEN
            PERFORM once._count(judged);
        END IF;
    END IF;

    CASE judged
        WHEN 'replay_success' THEN NULL;
        WHEN 'mismatch' THEN code := 'P4002';
        WHEN 'final_failure' THEN
            code := 'P4030';
            why := concat_ws(': ', stored.error_code, stored.error_message);
        WHEN 'abandoned' THEN
            code := 'P4030';
            why := once._abandoned(stored);
        WHEN 'in_doubt' THEN
            code := 'P4031';
            why := CASE WHEN stored.state = 'processing' THEN format('attempt %s ended without a report', stored.fence) END;
        WHEN 'processing_active' THEN
            code := 'P4029';
            why := format('its lease ends at %s', stored.lease_until);
        WHEN 'new' THEN
            IF once._open_day(bucket) = 'closed' AND NOT raising THEN
                PERFORM once._count('expired');
                code := 'P4041';
            ELSE
                PERFORM once._refuse_day(tenant, scope, key, bucket);
            END IF;
            IF code IS NULL AND NOT locked THEN
                PERFORM once._count('active');
                code := 'P4029';
            END IF;
        WHEN 'retryable_failure', 'processing_stale', 'verify' THEN
            IF once._day_state(bucket) = 'closed' THEN                  -- it may not run again
                PERFORM once._refuse_outdated(tenant, scope, key, bucket);
                IF NOT raising THEN
                    PERFORM once._count('expired');
                    code := 'P4041';
                END IF;
            END IF;
            IF code IS NULL THEN
                PERFORM once._refuse_day(tenant, scope, key, bucket);
                IF NOT locked THEN
                    code := 'P4029';
                    why := 'another attempt is taking it over';
                ELSIF NOT once._hold(tenant, scope, key, bucket, stored.fence, stored.state, stored.lease_until) THEN
                    code := 'P4029';
                    why := 'its attempt is reporting right now';
                END IF;
                IF code = 'P4029' THEN
                    PERFORM once._count('active');
                END IF;
            END IF;
        ELSE PERFORM once._refuse('P4099', tenant, scope, key, format('state=%s verdict=%s', stored.state, judged));
    END CASE;

    IF code IS NULL AND judged = 'verify' THEN      -- held, and may run unless verify finds that the effect happened
        IF raising THEN
            verified := once._verify(policy, tenant, scope, key);
        ELSE                                        -- an exception is a doubt like any other
            SELECT (a.verified).* INTO verified FROM once._ask(policy, tenant, scope, key) AS a;
        END IF;
        IF verified.answer = 'unknown' OR (verified.answer = 'absent' AND stored.attempts >= policy.max_attempts) THEN
            PERFORM once._count('in_doubt');
            code := 'P4031';
            why := format('verify answered %s', verified.answer);
        ELSIF verified.answer = 'happened' THEN
            PERFORM once._store_verified(tenant, scope, key, bucket, stored.fence, verified);
            PERFORM once._count('replay');
            SELECT i.* INTO STRICT stored FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
               AND i.bucket = bucket;
            judged := 'replay_success';
        END IF;
    END IF;

    IF code IS NULL AND judged <> 'replay_success' THEN
        IF stored.state IS NOT NULL THEN
            PERFORM once._count(CASE judged WHEN 'verify' THEN 'retryable' ELSE judged END);
        END IF;
        answer.verdict := 'proceed';
        answer.fence := CASE WHEN stored.state IS NOT NULL THEN stored.fence + 1 WHEN bucket > 0 THEN 1 ELSE once._first_fence() END;
        answer.traceparent := coalesce(stored.traceparent, once._trace(traceparent));
        noted := once._note_start(tenant, scope, key, fingerprint, answer.fence::text);
        RETURN answer;
    ELSIF raising AND code IS NOT NULL THEN
        PERFORM once._refuse(code, tenant, scope, key, why);
    END IF;
    answer.verdict := CASE WHEN code IS NULL THEN 'replay_success' WHEN code = 'P4029' THEN 'processing_active'
                           ELSE (SELECT e.name FROM once.errors() AS e WHERE e.code = code COLLATE "C") END;
    IF code IS DISTINCT FROM 'P4002' THEN           -- else the row is another request's, and is not shown
        answer.state := stored.state;
        answer.fence := stored.fence;
        answer.traceparent := stored.traceparent;
    END IF;
    IF judged = 'abandoned' THEN
        outcome := ROW(NULL, NULL, NULL, NULL, NULL, 'abandoned', why);
    ELSIF code IS NULL OR code = 'P4030' THEN
        outcome := once._outcome_of(stored);
    END IF;
    RETURN ROW(answer.verdict, answer.state, outcome.*, answer.fence, answer.traceparent)::once.started;
END $$;
$file$;
        EXECUTE $file$
-- once.add_capture(slot): from now on a logical replication slot of this database, by which Debezium or another client of pgoutput reads
-- events from once.outbox, counts as a relay: no day of the outbox is dropped before the slot has passed it, and nothing is deleted that
-- it may send again. The relay has the slot's name. All events in the outbox count as not yet read: if the client reads the table first
-- (a snapshot), they are kept for that, too. False if the slot is a capture already. Let the client create its slot first. To end it,
-- call once.drop_relay. Raises 55000 if there is no such slot, or it cannot be trusted; 22023 if a relay has this name, 55006 if another
-- session is creating one; P4080 if events arrive by logical replication.
CREATE OR REPLACE FUNCTION once.add_capture(slot text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    found record;
BEGIN
    IF (length(slot) BETWEEN 1 AND 63) IS NOT TRUE THEN
        PERFORM once._refuse_relay('22023', slot, 'a slot has a name of 1 to 63 characters');
    END IF;
    IF EXISTS (SELECT FROM once.capture AS c WHERE c.slot = slot COLLATE "C") THEN
        RETURN false;
    ELSIF EXISTS (SELECT FROM once.relay AS r WHERE r.relay = slot COLLATE "C") THEN
        PERFORM once._refuse_relay('22023', slot, 'a relay has this name', 'Give the slot another one.');
    ELSIF NOT pg_try_advisory_xact_lock(once._relay_lock(slot)) THEN
        PERFORM once._refuse_relay('55006', slot, 'another session is using this name', 'Try again.');
    ELSIF once._outbox_subscribed() THEN
        PERFORM once._refuse_foreign(slot, 'the events arrive by a subscription');
    END IF;
    found := once._slot(slot, NULL);
    IF found.why IS NOT NULL THEN
        PERFORM once._refuse_relay('55000', slot, 'the slot cannot be trusted', 'Start its client, which creates it, and call again.',
            found.why);
    END IF;
    PERFORM once._adopt_events();
    INSERT INTO once.relay (relay, seen, started_at, progressed_at) VALUES (slot, '3:3:', now, now);
    PERFORM once._relay_sign(slot);
    INSERT INTO once.capture (slot, mark, mark_lsn) VALUES (slot, '3:3:', '0/0');
    PERFORM once._mark_slot(slot, found.now_on);
    RETURN true;
END $$;
$file$;
        EXECUTE $file$
-- once.cancel_event(event_id, tenant): cancels an event of once.emit_later, in the transaction that makes the event unnecessary: if that
-- commits, the event is not published. False if it is no longer delayed (it is published, about to be, or was cancelled) or belongs to
-- another tenant. For applications; operators have once.parked_discard, which is recorded. Raises P4003.
CREATE OR REPLACE FUNCTION once.cancel_event(event_id uuid, tenant text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM once._check_and_lock(tenant, 'none', 'none', E'\\x00000000000000000000000000000000', false);
    DELETE FROM once.delayed_event AS d WHERE d.event_id = event_id AND d.tenant = tenant COLLATE "C";
    RETURN FOUND;
END $$;
$file$;
        EXECUTE $file$
-- once.capture_list(): the replication slots that count as relays (once.add_capture), with their current state.
--   state       'active': a client is connected; 'idle': none is; 'broken': nothing follows the slot until once.relay_adopt
--   why         why it is broken: it is gone, invalidated, or that of another server
--   since       since when it is broken; else when it was last seen to have passed everything committed before
--   confirmed   how far the client has confirmed the WAL
--   behind      bytes of WAL that it has not confirmed
--   kept        bytes of WAL that the server keeps for it
--   wal_status  of pg_replication_slots; 'unreserved' is the last warning before 'lost'
CREATE OR REPLACE FUNCTION once.capture_list() RETURNS TABLE (slot text, state text, why text, since timestamptz, confirmed pg_lsn,
    behind bigint, kept bigint, wal_status text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT c.slot::text, CASE WHEN coalesce(c.broken, s.why) IS NOT NULL THEN 'broken' WHEN s.active THEN 'active' ELSE 'idle' END,
           coalesce(c.broken, s.why), CASE WHEN c.broken IS NULL THEN r.progressed_at ELSE c.broken_since END, s.confirmed,
           (s.written - s.confirmed)::bigint,
           (s.written - s.restart)::bigint, s.wal_status
      FROM once.capture AS c
      JOIN once.relay AS r ON r.relay = c.slot
     CROSS JOIN LATERAL once._slot(c.slot, c.server) AS s
     ORDER BY c.slot;
END $$;
$file$;
        EXECUTE $file$
-- once.drop_relay(relay, reason): deletes a relay: its progress and its parked events. For a capture (once.add_capture) the slot remains;
-- drop it with pg_drop_replication_slot. The events stay in the outbox, and no longer wait for this relay. Recorded in
-- once.parked_decision. False if there is no such relay. Raises 55006 while a session works for it, 22023 for a missing reason.
CREATE OR REPLACE FUNCTION once.drop_relay(relay text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM once._reason(reason);
    IF NOT pg_try_advisory_xact_lock(once._relay_lock(relay)) THEN
        PERFORM once._refuse_relay('55006', relay, 'a session works for this relay', 'Stop it first.');
    END IF;
    DELETE FROM once.capture AS c WHERE c.slot = relay COLLATE "C";      -- first, as once._follow_slots locks
    DELETE FROM once.relay AS r WHERE r.relay = relay COLLATE "C";
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM once.parked_event AS p WHERE p.relay = relay COLLATE "C";
    INSERT INTO once.parked_decision (decided_by, reason, what, relay, subject)
    VALUES (session_user, reason, 'drop', relay, relay);
    RETURN true;
END $$;
$file$;
        EXECUTE $file$
-- once.emit(topic, payload, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent): appends an event to the
-- outbox, in the effect's own transaction: it exists if and only if the effect does. Returns its id. event_type defaults to the topic.
-- Events of one aggregate are published in order. traceparent (W3C): the trace of the event, if it is not that of its intent; a malformed
-- one is ignored.
--
-- With scope and key (the intent that causes it), a second emit of the same event_type is the same event, and raises P4051 if its payload
-- differs. Its id is derived from the intent and the installation's salt, so that consumers recognise a repetition even across attempts,
-- and no event of another installation has the same id.
--
-- Raises 22023 for a missing topic or payload, and if tenant, scope, key and event_type have more than 2600 bytes in total; P4060 if the
-- payload, as text, is larger than event_bytes_max of its scope (else of the default policy), or the headers are larger than 64 KiB; P4098
-- if the day has no partition; 40001 if a transaction above READ COMMITTED began on another day. A transaction that began today does not
-- see an event of yesterday that was committed after its snapshot: there finish, complete or receive, in the same transaction, raises
-- 40001. It sends no NOTIFY, whose lock serialises commits.
CREATE OR REPLACE FUNCTION once.emit(topic text, payload jsonb, aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL,
    event_type text DEFAULT NULL, scope text DEFAULT NULL, key text DEFAULT NULL, headers jsonb DEFAULT NULL, tenant text DEFAULT '',
    traceparent text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    day integer := once._day_at(now, once._today());
    usual boolean;
    there boolean;
    repeated boolean;
    event_id uuid;
BEGIN
    -- pg_column_size() is above the length of each name. The last three parts of the second: see below.
    IF key IS NULL THEN
        usual := day IS NOT NULL AND tenant IS NOT NULL AND scope IS NULL AND '' <> ALL (ARRAY[topic, coalesce(event_type, topic)])
            AND pg_column_size(ARRAY[tenant, topic, event_type]) <= 255 AND octet_length(payload::text) <= 8192
            AND to_regclass('once.outbox_d' || once._today()::text) IS NOT NULL AND once._is_trusted(tenant);
    ELSE
        usual := day IS NOT NULL AND tenant IS NOT NULL AND '' <> ALL (ARRAY[topic, coalesce(event_type, topic), scope])
            AND pg_column_size(ARRAY[tenant, scope, topic, event_type]) <= 255 AND octet_length(payload::text) <= 8192
            AND octet_length(key) <= 255 AND key COLLATE "C" ~ '^[ -~]+$'
            AND to_regclass('once.outbox_d' || once._today()::text) IS NOT NULL AND once._is_trusted(tenant)
            AND transaction_timestamp() >= to_timestamp(once._today() * 86400::double precision)
            AND pg_try_advisory_xact_lock(once._event_lock(tenant, scope, key, coalesce(event_type, topic)))
            AND pg_sequence_last_value('once.outbox_day_seq') / 256 = once._today();
    END IF;
    IF usual IS NOT TRUE OR headers IS NOT NULL OR traceparent IS NOT NULL THEN
        event_type := coalesce(event_type, topic);
        IF usual IS NOT TRUE THEN
            PERFORM once._check_and_lock(tenant, coalesce(scope, 'none'), coalesce(key, 'none'), E'\\x00000000000000000000000000000000',
                false);
            there := day IS NOT NULL;
            IF day IS NULL THEN
                day := floor(date_part('epoch', now) / 86400);
                IF once._is_new_day() THEN
                    PERFORM once._make_days(NULL);
                END IF;
            END IF;
            IF (there AND to_regclass('once.outbox_d' || once._today()::text) IS NOT NULL AND topic <> '' AND event_type <> ''
                AND octet_length(topic || event_type) <= 255 AND octet_length(payload::text) <= 8192 AND (scope IS NULL) = (key IS NULL)) IS NOT TRUE THEN
                PERFORM once._check_event(tenant, scope, key, topic, event_type, payload, NULL, NULL, headers, day);
            END IF;
        END IF;
        IF headers IS NOT NULL THEN
            IF jsonb_typeof(headers) <> 'object' OR octet_length(headers::text) > 65536 THEN
                PERFORM once._check_event(tenant, scope, key, topic, event_type, payload, NULL, NULL, headers, day);
            END IF;
        END IF;
        traceparent := once._trace(traceparent);
        IF usual IS NOT TRUE AND key IS NOT NULL THEN
            -- An event committed after the snapshot does not show: today's index finds it, but the index of another day is not checked.
            IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
                IF floor(date_part('epoch', transaction_timestamp()) / 86400) <> day THEN
                    RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'pgonce: this transaction began on another day',
                        DETAIL = format('an event of that day may be hidden from it: tenant=%L scope=%L key=%L event_type=%L', tenant,
                            scope, key, event_type), HINT = 'Retry the transaction.';
                END IF;
            END IF;
            -- Under the event's own lock, so that no INSERT waits for another transaction; then a new statement looks.
            IF NOT pg_try_advisory_xact_lock(once._event_lock(tenant, scope, key, event_type)) THEN
                PERFORM once._refuse('P4029', tenant, scope, key, format('another transaction is emitting its event %s',
                    event_type));
            END IF;
            IF NOT there THEN           -- else the INSERT looks
                PERFORM FROM once.outbox AS o
                  WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
                    AND o.event_type = event_type COLLATE "C" AND o.day < day;
                repeated := FOUND;
            END IF;
            IF (pg_sequence_last_value('once.outbox_day_seq') / 256 = day) IS NOT TRUE THEN
                repeated := once._emitted_later(tenant, scope, key, event_type, day) OR repeated;
            END IF;
        END IF;
    END IF;
    IF key IS NULL THEN
        event_id := gen_random_uuid();
        INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, aggregate_type, aggregate_id, tenant, traceparent, headers,
            payload, payload_bytes, content_type)
        VALUES (day, now, event_id, topic, coalesce(event_type, topic), aggregate_type, aggregate_id, tenant, traceparent, headers,
            payload, NULL, NULL);
        RETURN event_id;
    END IF;
    IF repeated IS NOT TRUE THEN
        INSERT INTO once.outbox AS e (day, created_at, event_id, topic, event_type, aggregate_type, aggregate_id, tenant, scope,
            key, traceparent, headers, payload, payload_bytes, content_type)
        SELECT day, now, once._derived_id(s.salt, tenant, scope, key, coalesce(event_type, topic)), topic, coalesce(event_type, topic),
            aggregate_type, aggregate_id, tenant, scope, key, traceparent, headers, payload, NULL, NULL
          FROM once.setting AS s
         WHERE s.only_row AND NOT EXISTS (
            SELECT FROM once.outbox AS o
             WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
               AND o.event_type = coalesce(event_type, topic) COLLATE "C" AND o.day < coalesce(once._today(), day))
        ON CONFLICT DO NOTHING      -- above READ COMMITTED, after a lost race: 40001
        RETURNING e.event_id INTO event_id;
        IF event_id IS NOT NULL THEN
            RETURN event_id;
        END IF;
    END IF;
    PERFORM once._check_repeated(tenant, scope, key, coalesce(event_type, topic), topic, payload, NULL, NULL, headers);
    SELECT once._derived_id(s.salt, tenant, scope, key, coalesce(event_type, topic)) INTO STRICT event_id
      FROM once.setting AS s WHERE s.only_row;
    RETURN event_id;
END;
$$;
$file$;
        EXECUTE $file$
-- once.emit_bytes(topic, payload, content_type, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent):
-- once.emit for a payload of bytes in the application's own format (Avro, Protobuf, an image), which are published unchanged, with their
-- content type. The payload may be empty. A second emit of the same event_type with other bytes or another content type, or with a JSON
-- payload, raises P4051. Raises what once.emit raises; 22023 if content_type is missing, longer than 255 characters, not of the form
-- type/subtype, or contains anything but visible ASCII and inner spaces. event_bytes_max counts the bytes. PostgreSQL reads a text given
-- as payload as an escaped bytea, in which two backslashes are one: write convert_to(text, 'UTF8').
CREATE OR REPLACE FUNCTION once.emit_bytes(topic text, payload bytea, content_type text, aggregate_type text DEFAULT NULL,
    aggregate_id text DEFAULT NULL, event_type text DEFAULT NULL, scope text DEFAULT NULL, key text DEFAULT NULL,
    headers jsonb DEFAULT NULL, tenant text DEFAULT '', traceparent text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    day integer := once._day_at(now, once._today());
    usual boolean;
    there boolean;
    repeated boolean;
    event_id uuid;
BEGIN
    -- pg_column_size() is above the length of each name. The last three parts of the second: see below.
    IF key IS NULL THEN
        usual := day IS NOT NULL AND tenant IS NOT NULL AND scope IS NULL AND '' <> ALL (ARRAY[topic, coalesce(event_type, topic)])
            AND pg_column_size(ARRAY[tenant, topic, event_type]) <= 255 AND once._are_usual_bytes(payload, content_type)
            AND to_regclass('once.outbox_d' || once._today()::text) IS NOT NULL AND once._is_trusted(tenant);
    ELSE
        usual := day IS NOT NULL AND tenant IS NOT NULL AND '' <> ALL (ARRAY[topic, coalesce(event_type, topic), scope])
            AND pg_column_size(ARRAY[tenant, scope, topic, event_type]) <= 255 AND once._are_usual_bytes(payload, content_type)
            AND octet_length(key) <= 255 AND key COLLATE "C" ~ '^[ -~]+$'
            AND to_regclass('once.outbox_d' || once._today()::text) IS NOT NULL AND once._is_trusted(tenant)
            AND transaction_timestamp() >= to_timestamp(once._today() * 86400::double precision)
            AND pg_try_advisory_xact_lock(once._event_lock(tenant, scope, key, coalesce(event_type, topic)))
            AND pg_sequence_last_value('once.outbox_day_seq') / 256 = once._today();
    END IF;
    IF usual IS NOT TRUE OR headers IS NOT NULL OR traceparent IS NOT NULL THEN
        event_type := coalesce(event_type, topic);
        IF usual IS NOT TRUE THEN
            PERFORM once._check_and_lock(tenant, coalesce(scope, 'none'), coalesce(key, 'none'), E'\\x00000000000000000000000000000000',
                false);
            there := day IS NOT NULL;
            IF day IS NULL THEN
                day := floor(date_part('epoch', now) / 86400);
                IF once._is_new_day() THEN
                    PERFORM once._make_days(NULL);
                END IF;
            END IF;
            IF (there AND to_regclass('once.outbox_d' || once._today()::text) IS NOT NULL AND topic <> '' AND event_type <> ''
                AND octet_length(topic || event_type) <= 255 AND once._are_usual_bytes(payload, content_type) AND (scope IS NULL) = (key IS NULL)) IS NOT TRUE THEN
                PERFORM once._check_event(tenant, scope, key, topic, event_type, NULL, payload, content_type, headers, day);
            END IF;
        END IF;
        IF headers IS NOT NULL THEN
            IF jsonb_typeof(headers) <> 'object' OR octet_length(headers::text) > 65536 THEN
                PERFORM once._check_event(tenant, scope, key, topic, event_type, NULL, payload, content_type, headers, day);
            END IF;
        END IF;
        traceparent := once._trace(traceparent);
        IF usual IS NOT TRUE AND key IS NOT NULL THEN
            -- An event committed after the snapshot does not show: today's index finds it, but the index of another day is not checked.
            IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
                IF floor(date_part('epoch', transaction_timestamp()) / 86400) <> day THEN
                    RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'pgonce: this transaction began on another day',
                        DETAIL = format('an event of that day may be hidden from it: tenant=%L scope=%L key=%L event_type=%L', tenant,
                            scope, key, event_type), HINT = 'Retry the transaction.';
                END IF;
            END IF;
            -- Under the event's own lock, so that no INSERT waits for another transaction; then a new statement looks.
            IF NOT pg_try_advisory_xact_lock(once._event_lock(tenant, scope, key, event_type)) THEN
                PERFORM once._refuse('P4029', tenant, scope, key, format('another transaction is emitting its event %s',
                    event_type));
            END IF;
            IF NOT there THEN           -- else the INSERT looks
                PERFORM FROM once.outbox AS o
                  WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
                    AND o.event_type = event_type COLLATE "C" AND o.day < day;
                repeated := FOUND;
            END IF;
            IF (pg_sequence_last_value('once.outbox_day_seq') / 256 = day) IS NOT TRUE THEN
                repeated := once._emitted_later(tenant, scope, key, event_type, day) OR repeated;
            END IF;
        END IF;
    END IF;
    IF key IS NULL THEN
        event_id := gen_random_uuid();
        INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, aggregate_type, aggregate_id, tenant, traceparent, headers,
            payload, payload_bytes, content_type)
        VALUES (day, now, event_id, topic, coalesce(event_type, topic), aggregate_type, aggregate_id, tenant, traceparent, headers,
            'null', payload, content_type);
        RETURN event_id;
    END IF;
    IF repeated IS NOT TRUE THEN
        INSERT INTO once.outbox AS e (day, created_at, event_id, topic, event_type, aggregate_type, aggregate_id, tenant, scope,
            key, traceparent, headers, payload, payload_bytes, content_type)
        SELECT day, now, once._derived_id(s.salt, tenant, scope, key, coalesce(event_type, topic)), topic, coalesce(event_type, topic),
            aggregate_type, aggregate_id, tenant, scope, key, traceparent, headers, 'null', payload, content_type
          FROM once.setting AS s
         WHERE s.only_row AND NOT EXISTS (
            SELECT FROM once.outbox AS o
             WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
               AND o.event_type = coalesce(event_type, topic) COLLATE "C" AND o.day < coalesce(once._today(), day))
        ON CONFLICT DO NOTHING      -- above READ COMMITTED, after a lost race: 40001
        RETURNING e.event_id INTO event_id;
        IF event_id IS NOT NULL THEN
            RETURN event_id;
        END IF;
    END IF;
    PERFORM once._check_repeated(tenant, scope, key, coalesce(event_type, topic), topic, NULL, payload, content_type, headers);
    SELECT once._derived_id(s.salt, tenant, scope, key, coalesce(event_type, topic)) INTO STRICT event_id
      FROM once.setting AS s WHERE s.only_row;
    RETURN event_id;
END;
$$;
$file$;
        EXECUTE $file$
-- once.emit_later(not_before, topic, payload, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent):
-- once.emit for an event that is published at not_before and not sooner, by the database's clock; a running relay publishes it within
-- about a second. not_before in the past: at once. Until then it is in once.delayed_event; see once.parked_list(state => 'delayed') and
-- once.cancel_event. It takes its place in the order of its aggregate when it is released, as if it were emitted then: an event emitted
-- meanwhile is published before it and does not wait. created_at is then, too. Events of one aggregate come in the order in which they
-- are due, and those due at the same time in the order in which they were emitted. With scope and key a second call with this event_type
-- is the same event and changes nothing: the first not_before remains, and another topic, payload or headers raise P4051. once.emit of
-- the same event publishes it at once, with the content given there; the delayed one is dropped. Raises what once.emit raises, except for
-- partitions; 22023 if not_before is missing, infinite, or more than 100 years away: probably seconds and milliseconds were confused.
CREATE OR REPLACE FUNCTION once.emit_later(not_before timestamptz, topic text, payload jsonb, aggregate_type text DEFAULT NULL,
    aggregate_id text DEFAULT NULL, event_type text DEFAULT NULL, scope text DEFAULT NULL, key text DEFAULT NULL,
    headers jsonb DEFAULT NULL, tenant text DEFAULT '', traceparent text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    kind text := coalesce(event_type, topic);
    event_id uuid := gen_random_uuid();
    held once.delayed_event;
BEGIN
    IF (isfinite(not_before) AND not_before < now + interval '100 years') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: a delayed event needs a time',
            DETAIL = format('not_before=%s', quote_nullable(not_before)),
            HINT = 'not_before: a timestamptz, not infinity, and at most 100 years from now. to_timestamp() takes seconds.';
    END IF;
    PERFORM once._check_and_lock(tenant, coalesce(scope, 'none'), coalesce(key, 'none'), E'\\x00000000000000000000000000000000', false);
    PERFORM once._check_event(tenant, scope, key, topic, kind, payload, NULL, NULL, headers, NULL);
    IF key IS NOT NULL THEN
        -- The id that once.emit gives it.
        SELECT once._derived_id(s.salt, tenant, scope, key, kind) INTO STRICT event_id FROM once.setting AS s WHERE s.only_row;
        IF NOT pg_try_advisory_xact_lock(once._event_lock(tenant, scope, key, kind)) THEN
            PERFORM once._refuse('P4029', tenant, scope, key, format('another transaction is emitting its event %s', kind));
        END IF;
        SELECT d.* INTO held FROM once.delayed_event AS d WHERE d.event_id = event_id;
        IF FOUND THEN
            IF held.topic <> topic COLLATE "C" OR held.payload <> payload OR held.headers IS DISTINCT FROM headers THEN
                PERFORM once._refuse('P4051', tenant, scope, key, format('event_type=%s event_id=%s', kind, event_id));
            END IF;
            RETURN event_id;
        END IF;
        PERFORM FROM once.outbox AS o
          WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
            AND o.event_type = kind COLLATE "C";
        IF FOUND THEN
            PERFORM once._check_repeated(tenant, scope, key, kind, topic, payload, NULL, NULL, headers);
            RETURN event_id;
        END IF;
    END IF;
    -- Not before an event of its aggregate that is due and not released yet.
    IF not_before <= now AND (aggregate_id IS NULL OR NOT EXISTS (
        SELECT FROM once.delayed_event AS d
         WHERE d.not_before <= now AND d.tenant = tenant COLLATE "C" AND d.aggregate_id = aggregate_id COLLATE "C"
           AND d.aggregate_type IS NOT DISTINCT FROM aggregate_type COLLATE "C")) THEN
        RETURN once.emit(topic, payload, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent);
    END IF;
    INSERT INTO once.delayed_event (event_id, not_before, emitted_at, topic, event_type, aggregate_type, aggregate_id, tenant, scope,
        key, traceparent, headers, payload)
    VALUES (event_id, not_before, now, topic, kind, aggregate_type, aggregate_id, tenant, scope, key, once._trace(traceparent),
        headers, payload)
    ON CONFLICT DO NOTHING;     -- above READ COMMITTED, if another was first: 40001
    RETURN event_id;
END $$;
$file$;
        EXECUTE $file$
-- once.outbox_delayed(): the number of delayed events (once.emit_later) by topic, and when the first of them is due. If that was some
-- seconds ago, neither a relay nor the keeper is running, or today's partition is missing. Counts, and so reads, all of them.
CREATE OR REPLACE FUNCTION once.outbox_delayed() RETURNS TABLE (topic text, events bigint, next_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT d.topic::text, count(*), min(d.not_before) FROM once.delayed_event AS d GROUP BY d.topic ORDER BY d.topic
$$;
$file$;
        EXECUTE $file$
-- once.outbox_summary(): each relay's undelivered events, by topic and state (see once.parked_list), and when the oldest of them was
-- emitted. A relay without any has one row: topic NULL, state 'idle', 0 events. A relay whose progress was not written in this
-- database (P4080) has state 'foreign', and no pending events. Counts, and so reads, all of them.
CREATE OR REPLACE FUNCTION once.outbox_summary() RETURNS TABLE (relay text, topic text, state text, events bigint, oldest timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH counted AS (
        SELECT r.relay, n.topic, 'pending' AS state, count(*) AS events, min(n.created_at) AS oldest
          FROM once.relay AS r
         CROSS JOIN LATERAL (
               SELECT o.topic, o.created_at, o.id, o.xid FROM once.outbox AS o
                WHERE o.xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip(r.seen) AS x))
                UNION ALL
               SELECT o.topic, o.created_at, o.id, o.xid FROM once.outbox AS o
                WHERE o.xid >= pg_snapshot_xmax(r.seen)) AS n
         WHERE r.written_by = r.xmin
           AND (r.reading IS NULL OR n.id > r.after_id OR NOT pg_visible_in_snapshot(n.xid, r.reading))
           AND (r.topics IS NULL OR n.topic LIKE ANY (r.topics))
         GROUP BY r.relay, n.topic
         UNION ALL
        SELECT p.relay, p.topic, p.state, p.events, o.created_at
          FROM (SELECT q.relay, q.topic, q.state, count(*) AS events, min(q.id) AS id
                  FROM once.parked_event AS q GROUP BY q.relay, q.topic, q.state) AS p
          JOIN once.parked_event AS f ON f.relay = p.relay AND f.id = p.id
          LEFT JOIN LATERAL (SELECT e.created_at FROM once.outbox AS e
                              WHERE e.xid = f.xid AND e.id = f.id AND e.day = f.day LIMIT 1) AS o ON true)
    SELECT s.relay::text, s.topic::text, s.state::text, s.events, s.oldest
      FROM (SELECT c.relay, c.topic, c.state, c.events, c.oldest FROM counted AS c
             UNION ALL
            SELECT r.relay, NULL, CASE WHEN r.written_by = r.xmin THEN 'idle' ELSE 'foreign' END, 0, NULL
              FROM once.relay AS r
             WHERE r.written_by <> r.xmin OR NOT EXISTS (SELECT FROM counted AS c WHERE c.relay = r.relay)) AS s
     ORDER BY s.relay, s.topic, s.state;
END $$;
$file$;
        EXECUTE $file$
-- once.outbox_untaken(): the events that no relay takes, by topic: they will not be published, and are deleted with their day. Looks at
-- the newest 10,000 events, and at the keeper's count from its last pass through the whole outbox (its step 'untaken'); returns the
-- larger count of the two. No rows if a relay takes all topics. A replication slot counts as a relay from once.add_capture on.
CREATE OR REPLACE FUNCTION once.outbox_untaken() RETURNS TABLE (topic text, events bigint, oldest timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM once.relay AS r WHERE r.topics IS NULL) THEN
        RETURN QUERY
        SELECT t.topic::text, max(t.events), min(t.oldest)
          FROM (SELECT n.topic, count(*) AS events, min(n.created_at) AS oldest
                  FROM (SELECT o.topic, o.created_at FROM once.outbox AS o ORDER BY o.xid DESC, o.id DESC LIMIT 10000) AS n
                 GROUP BY n.topic
                 UNION ALL
                SELECT u.topic, u.events, u.oldest FROM once.untaken AS u) AS t
         WHERE NOT EXISTS (SELECT FROM once.relay AS r WHERE t.topic LIKE ANY (r.topics))
         GROUP BY t.topic ORDER BY t.topic;
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once.relay_adopt(relay, reason, xids_continue): makes a relay whose progress was not written in this database (P4080) a relay of this
-- database. xids_continue: whether the transactions named in its progress are this database's. true: they are, and only the row was
-- written again, by pg_repack, or by a dump that was restored into its own cluster; the relay continues where it was, and skips nothing.
-- false: they are another database's, because everything came by a dump or by logical replication, and it is unknown what was published
-- since. The relay then begins with the events that commit from now on; only once.parked_replay publishes the older events of the outbox;
-- parked events stay parked, and new events get numbers above all present ones. If the relay is a broken replication slot
-- (once.add_capture), the slot is trusted again, and the events that it had not passed are kept until it has passed this moment: first
-- have its client create the slot and, if events may be missing, read the table; xids_continue may be omitted in this case. Recorded in
-- once.parked_decision. Raises 55006 while a session works for the relay, 55000 if its slot cannot be trusted, P4080 while events arrive
-- by logical replication, 22023 for a missing reason, an unknown relay, a missing xids_continue, and for true if its progress is ahead of
-- all transactions here.
CREATE OR REPLACE FUNCTION once.relay_adopt(relay text, reason text, xids_continue boolean DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    stored once.relay;
    captured boolean;
    slot record;
BEGIN
    PERFORM once._reason(reason);
    IF NOT pg_try_advisory_xact_lock(once._relay_lock(relay)) THEN
        PERFORM once._refuse_relay('55006', relay, 'a session works for this relay', 'Stop it first.');
    END IF;
    IF once._outbox_subscribed() THEN
        PERFORM once._refuse_foreign(relay, 'the events arrive by a subscription: drop it first');
    END IF;
    -- In the order in which once._follow_slots locks.
    PERFORM FROM once.capture AS c WHERE c.slot = relay COLLATE "C" FOR UPDATE;
    captured := FOUND;
    IF captured THEN
        slot := once._slot(relay, NULL);
        IF slot.why IS NOT NULL THEN
            PERFORM once._refuse_relay('55000', relay, 'the slot cannot be trusted', 'Start its client, which creates it, and call again.',
                slot.why);
        END IF;
        xids_continue := coalesce(xids_continue, false) OR once._relay_own(relay);
    END IF;
    stored := once._relay_row(relay);
    IF xids_continue IS NULL THEN
        PERFORM once._refuse_relay('22023', relay,
            'xids_continue is missing: are the transactions that its progress names this database''s?',
            'true goes on where it was, after pg_repack or a dump restored into the cluster that it is of. false begins now, after a '
            || 'restore from elsewhere: what the outbox holds is then published by once.parked_replay alone.');
    ELSIF xids_continue AND NOT captured AND pg_snapshot_xmax(stored.seen) > pg_snapshot_xmax(pg_current_snapshot()) THEN
        PERFORM once._refuse_relay('22023', relay, 'its progress is ahead of all transactions of this database, so it is another''s',
            'Pass xids_continue => false, then replay what was not published: once.parked_replay.');
    END IF;
    IF NOT xids_continue THEN
        PERFORM once._adopt_events();
        UPDATE once.relay AS r
           SET seen = pg_current_snapshot(), reading = NULL, after_id = 0, progressed_at = clock_timestamp()
         WHERE r.relay = stored.relay;
    END IF;
    -- Its xmin is ours since once._relay_row.
    UPDATE once.relay AS r SET written_by = r.xmin WHERE r.relay = stored.relay;
    IF captured THEN
        PERFORM once._mark_slot(relay, slot.now_on);
    END IF;
    INSERT INTO once.parked_decision (decided_by, reason, what, relay, subject)
    VALUES (session_user, reason, 'adopt', stored.relay, stored.relay);
END $$;
$file$;
        EXECUTE $file$
-- once_job.relay_due(relay, take, skip_dead): parked events to try now, at most `take`, in the order of their ids: those that are due and
-- before which no event of their aggregate is parked with this relay (with skip_dead: none that is not dead), the longest due first; and
-- after each of them those of its aggregate that wait for nothing else, so that a chain can be delivered at once. An event without an
-- aggregate waits for no other. attempts: how many attempts have failed. skip_dead stays the same as long as a session holds the relay:
-- another value needs once_job.relay_take again. blocked is always false. traceparent: see once_job.relay_fetch.
--
-- Why it is written so: an event that waits behind another is never due by its own time (once._promote), so the first statement reads
-- hardly a row that it does not return, however many wait. A due event behind a dead one would be read each time until an operator
-- decides, so once._demote makes it wait like the others. It searches as far as this function has read, and only if there was such an
-- event: otherwise the first due events are the ones returned.
CREATE OR REPLACE FUNCTION once_job.relay_due(relay text, take integer, skip_dead boolean DEFAULT false) RETURNS SETOF once.outgoing
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    heads bigint[];
    due bigint[];
    until timestamptz;
    followers integer;
BEGIN
    IF (take > 0) IS NOT TRUE THEN
        PERFORM once._refuse_relay('22023', relay, 'take is how many events to take, at least 1');
    END IF;
    -- A clock that was ahead has been set back: waits that began before are too long. Checks the longest.
    IF (SELECT p.updated_at FROM once.parked_event AS p
         WHERE p.relay = relay COLLATE "C" AND p.state <> 'dead' AND p.next_at > now AND p.next_at < 'infinity'
         ORDER BY p.next_at DESC LIMIT 1) > now + interval '1 second' THEN
        UPDATE once.parked_event AS p SET next_at = now, updated_at = now
         WHERE p.ctid = ANY (ARRAY(SELECT e.ctid FROM once.parked_event AS e
                                    WHERE e.relay = relay COLLATE "C" AND e.state <> 'dead' AND e.next_at > now
                                      AND e.next_at < 'infinity' AND e.updated_at > now + interval '1 second'
                                      FOR UPDATE SKIP LOCKED));
    END IF;
    SELECT array_agg(h.id), max(h.next_at) INTO heads, until
      FROM (SELECT p.id, p.next_at FROM once.parked_event AS p
             WHERE p.relay = relay COLLATE "C" AND p.state <> 'dead' AND p.next_at <= now
               AND p.id <= ALL (ARRAY(SELECT e.id FROM once.parked_event AS e
                                       WHERE e.relay = relay COLLATE "C" AND e.aggregate BETWEEN p.aggregate AND p.aggregate
                                         AND NOT (skip_dead AND e.state = 'dead')
                                       ORDER BY e.aggregate, e.id LIMIT 1))
             ORDER BY p.next_at, p.id LIMIT take) AS h;
    IF NOT skip_dead THEN
        SELECT array_agg(d.id) INTO due
          FROM (SELECT p.id FROM once.parked_event AS p
                 WHERE p.relay = relay COLLATE "C" AND p.state <> 'dead' AND p.next_at <= now
                 ORDER BY p.next_at, p.id LIMIT take) AS d;
        IF due IS DISTINCT FROM heads THEN
            PERFORM once._demote(relay, now, CASE WHEN cardinality(heads) = take THEN until END);
        END IF;
    END IF;
    IF heads IS NULL THEN
        RETURN;
    END IF;
    followers := (take - cardinality(heads)) / cardinality(heads);      -- of each
    RETURN QUERY
    SELECT o.id, o.xid, o.day, o.event_id, o.topic::text, o.event_type::text, o.aggregate_type::text, o.aggregate_id::text,
           o.tenant::text, o.scope::text, o.key::text, coalesce(o.traceparent,
               (SELECT i.traceparent FROM once.intent AS i
                 WHERE i.tenant = o.tenant COLLATE "C" AND i.scope = o.scope COLLATE "C" AND i.key = o.key COLLATE "C"
                   AND i.bucket = once._bucket(o.key) LIMIT 1))::text,
           o.headers, CASE WHEN o.payload_bytes IS NULL THEN o.payload END, o.payload_bytes, o.content_type::text, o.created_at, c.attempts,
           false
      FROM unnest(heads) AS h (id)
     CROSS JOIN LATERAL (
           SELECT p.id, p.xid, p.day, p.aggregate, p.attempts FROM once.parked_event AS p
            WHERE p.relay = relay COLLATE "C" AND p.id BETWEEN h.id AND h.id ORDER BY p.id LIMIT 1) AS first
     CROSS JOIN LATERAL (
           SELECT first.id, first.xid, first.day, first.attempts
            UNION ALL
           (SELECT f.id, f.xid, f.day, f.attempts
              FROM (SELECT n.*, bool_and(n.state = 'waiting' AND (n.next_at = 'infinity' OR n.next_at <= now))
                                    OVER (ORDER BY n.id) AS free
                      FROM (SELECT e.* FROM once.parked_event AS e
                             WHERE e.relay = relay COLLATE "C" AND e.aggregate BETWEEN first.aggregate AND first.aggregate
                               AND e.id > first.id AND NOT (skip_dead AND e.state = 'dead')
                             ORDER BY e.aggregate, e.id LIMIT followers) AS n) AS f
             WHERE f.free)) AS c
     CROSS JOIN LATERAL (SELECT e.* FROM once.outbox AS e
                          WHERE e.xid = c.xid AND e.id = c.id AND e.day = c.day LIMIT 1) AS o
     ORDER BY o.id;
END $$;
$file$;
        EXECUTE $file$
-- once_job.relay_fetch(relay, ids, xids, days, skip_dead): the complete events that once_job.relay_list listed, in the given order.
-- blocked: an earlier event of its aggregate is parked with this relay (with skip_dead: and not dead): park this one behind it.
-- traceparent: the event's own, or else that of its intent. At most 10,000 at once (22023). An event that no longer exists has no row.
CREATE OR REPLACE FUNCTION once_job.relay_fetch(relay text, ids bigint[], xids xid8[], days integer[], skip_dead boolean DEFAULT false)
RETURNS SETOF once.outgoing
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._check_sizes(once._length(ids, 0), once._length(xids, 0), once._length(days, 0));
    first_day integer;
    last_day integer;
    any_parked boolean := EXISTS (SELECT FROM once.parked_event AS p WHERE p.relay = relay COLLATE "C");
BEGIN
    PERFORM once._authorise(NULL);       -- all tenants
    SELECT min(d), max(d) INTO first_day, last_day FROM unnest(days) AS d;
    RETURN QUERY
    SELECT o.id, o.xid, o.day, o.event_id, o.topic::text, o.event_type::text, o.aggregate_type::text, o.aggregate_id::text,
           o.tenant::text, o.scope::text, o.key::text, coalesce(o.traceparent,
               (SELECT i.traceparent FROM once.intent AS i
                 WHERE i.tenant = o.tenant COLLATE "C" AND i.scope = o.scope COLLATE "C" AND i.key = o.key COLLATE "C"
                   AND i.bucket = once._bucket(o.key) LIMIT 1))::text,
           o.headers, CASE WHEN o.payload_bytes IS NULL THEN o.payload END, o.payload_bytes, o.content_type::text, o.created_at, 0,
           any_parked AND o.id > ANY (ARRAY(
               SELECT p.id FROM once.parked_event AS p
                WHERE p.relay = relay COLLATE "C" AND NOT (skip_dead AND p.state = 'dead')
                  AND p.aggregate BETWEEN once._aggregate(o.tenant, o.aggregate_type, o.aggregate_id)
                                      AND once._aggregate(o.tenant, o.aggregate_type, o.aggregate_id)
                ORDER BY p.aggregate, p.id LIMIT 1))
      FROM unnest(ids, xids, days) WITH ORDINALITY AS u (id, xid, day, ord)
      -- LIMIT keeps this a look-up per element, and the range opens only the days of this batch: see once.claim_many.
     CROSS JOIN LATERAL (SELECT e.* FROM once.outbox AS e
                          WHERE e.xid = u.xid AND e.id = u.id AND e.day = u.day
                            AND e.day BETWEEN first_day AND last_day LIMIT 1) AS o
     ORDER BY u.ord;
END $$;
$file$;
        EXECUTE $file$
-- once_job.relay_flush(): makes everything visible now durable: writes a few bytes to the WAL, so that the COMMIT of this transaction
-- (which you send right afterwards) waits until they and all WAL before them are on disk, and on the synchronous standby if there is one.
-- setval writes to the WAL even if the value is unchanged, leaves no dead row, and is not shown to readers of logical replication; and
-- every owner may call it, unlike pg_logical_emit_message on a managed server.
CREATE OR REPLACE FUNCTION once_job.relay_flush() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);       -- until the transaction ends
    END IF;
    PERFORM setval('once.relay_flush_seq', 1);
END $$;
$file$;
        EXECUTE $file$
-- once_job.relay_list(relay, seen, reading, after_id, take): the batch between two snapshots: the events of the relay's topics that
-- `reading` sees and `seen` did not, after after_id, in the order of their ids, at most `take`. Each committed event is in exactly one
-- batch, and an event that waited for another's lock comes after it. It returns few columns, so that a backlog is listed by ten
-- thousands; once_job.relay_fetch returns the events.
--
-- Why it is written so: the new transactions are those from seen's end to reading's, and those that were running when `seen` was taken
-- and have ended since. Both are searched by index, so that neither published events nor a transaction that stays open for hours are read
-- again each time. While a long batch is being delivered, the ids of the next part are normally close to after_id: it looks for them
-- there first, and skips later ones within the index. Plans are pinned, since a plan made while the outbox was empty would stay.
CREATE OR REPLACE FUNCTION once_job.relay_list(relay text, seen text, reading text, after_id bigint, take integer)
RETURNS TABLE (id bigint, xid xid8, day integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
#variable_conflict use_variable
DECLARE
    before pg_snapshot := seen;
    now pg_snapshot := reading;
    first_xid xid8 := pg_snapshot_xmax(before);
    end_xid xid8 := pg_snapshot_xmax(now);
    late xid8[] := ARRAY(SELECT x FROM pg_snapshot_xip(before) AS x WHERE pg_visible_in_snapshot(x, now));
    patterns text[];
    above bigint := coalesce(after_id, 0);
    upto bigint := 9223372036854775807;
    listed integer;
BEGIN
    SELECT r.topics INTO patterns FROM once.relay AS r WHERE r.relay = relay COLLATE "C";
    IF NOT FOUND OR before IS NULL OR now IS NULL OR (take > 0) IS NOT TRUE THEN
        PERFORM once._refuse_relay('22023', relay, 'nothing can be listed',
            'Pass a relay that once_job.relay_take has created, two snapshots, and how many to list.');
    END IF;
    IF above > 0 THEN
        upto := least(above::numeric + 4::bigint * take, upto)::bigint;
    END IF;
    LOOP
        RETURN QUERY
        SELECT n.id, n.xid, n.day
          FROM (SELECT o.id, o.xid, o.day FROM once.outbox AS o
                 WHERE o.xid >= first_xid AND o.xid < end_xid AND o.id > above AND o.id <= upto
                   AND pg_visible_in_snapshot(o.xid, now)
                   AND (patterns IS NULL OR o.topic COLLATE "C" LIKE ANY (patterns))
                 UNION ALL
                SELECT o.id, o.xid, o.day FROM once.outbox AS o
                 WHERE o.xid = ANY (late) AND o.id > above AND o.id <= upto
                   AND (patterns IS NULL OR o.topic COLLATE "C" LIKE ANY (patterns))) AS n
         ORDER BY n.id LIMIT take;
        GET DIAGNOSTICS listed = ROW_COUNT;
        take := take - listed;
        EXIT WHEN take = 0 OR upto = 9223372036854775807;
        above := upto;
        upto := 9223372036854775807;
    END LOOP;
END $$;
$file$;
        EXECUTE $file$
-- once_job.relay_look(relay, seen): whether there may be something to read: `reading` is what is committed now; changed false: no
-- transaction has ended since `seen`, so there is nothing. flushed: everything that `reading` sees is also on disk (other sessions see a
-- transaction with synchronous_commit off before it is). With a synchronous standby that is unknown, and some managed servers do not tell
-- it (once._wal_told). If false, call once_job.relay_flush before you publish anything of this snapshot. Writes nothing. Raises 55000 if
-- the relay was dropped.
CREATE OR REPLACE FUNCTION once_job.relay_look(relay text, seen text) RETURNS TABLE (reading text, changed boolean, flushed boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    written pg_lsn;
BEGIN
    PERFORM FROM once.relay AS r WHERE r.relay = relay COLLATE "C";
    IF NOT FOUND OR seen IS NULL THEN
        PERFORM once._refuse_relay('55000', relay, 'there is no such relay, or its progress is not given',
            'Call once_job.relay_take first.');
    END IF;
    reading := pg_current_snapshot();
    -- Compares the transactions from the first xid that `seen` did not know, and those still running: if either changed, the texts
    -- differ.
    changed := reading <> seen::pg_snapshot::text;
    IF changed THEN
        -- A partition created just now may have events of this snapshot, while this session does not know it yet. Its creator has a lock
        -- on it until all sessions do.
        LOCK TABLE once.outbox IN ACCESS SHARE MODE;
    END IF;
    flushed := false;
    IF once._wal_told() THEN
        -- In this order: what is in the snapshot was written to the WAL before it.
        written := pg_current_wal_insert_lsn();
        flushed := pg_current_wal_flush_lsn() >= written AND current_setting('synchronous_standby_names') = '';
    END IF;
    RETURN NEXT;
END $$;
$file$;
        EXECUTE $file$
-- once_job.relay_parked(relay, most, weighed): how many events are parked with a relay; counts no further than `most` (NULL: all).
-- weighed: an event that waits, for its first attempt or behind another of its aggregate, counts a tenth, as it costs no attempts: many
-- events of a host that hangs can then be parked before the others have to wait.
CREATE OR REPLACE FUNCTION once_job.relay_parked(relay text, most bigint DEFAULT NULL, weighed boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
BEGIN
    IF weighed THEN
        RETURN (SELECT least(most, count(*) FILTER (WHERE l.state <> 'waiting') + count(*) FILTER (WHERE l.state = 'waiting') / 10)
                  FROM (SELECT p.state FROM once.parked_event AS p WHERE p.relay = relay COLLATE "C" LIMIT 10 * most) AS l);
    END IF;
    RETURN (SELECT count(*) FROM (SELECT FROM once.parked_event AS p WHERE p.relay = relay COLLATE "C" LIMIT most) AS l);
END $$;
$file$;
        EXECUTE $file$
-- once_job.relay_release(take): moves delayed events that are due to the outbox, the earliest first, at most `take`. Relays call it about
-- once a second and the keeper in each round, so captures get them too. released: how many it has moved. wait_ms: when to call again: 0:
-- at once; NULL: nothing is delayed, or due events cannot be moved now. One session does it at a time, so that the order is kept; the
-- others continue without it. It never waits: an event about which an operator or an application is deciding is left for the next call,
-- and so is one that once.emit is emitting. If the outbox has the event already, from once.emit, the delayed one is dropped. If nothing
-- is due, it costs one look into an index. Does nothing while events arrive by logical replication, or if today has no partition.
CREATE OR REPLACE FUNCTION once_job.relay_release(take integer DEFAULT 500, OUT released bigint, OUT wait_ms bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    day integer := floor(date_part('epoch', now) / 86400);
    next_at timestamptz;
    due tid[];
BEGIN
    IF (take > 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: take is how many events to release, at least 1';
    END IF;
    released := 0;
    SELECT d.not_before INTO next_at FROM once.delayed_event AS d ORDER BY d.not_before, d.emitted_at LIMIT 1;
    IF next_at > now THEN
        wait_ms := ceil(date_part('epoch', next_at - now) * 1000);
    END IF;
    IF (next_at <= now) IS NOT TRUE OR once._outbox_subscribed()
       OR NOT pg_try_advisory_xact_lock(hashtextextended('pgonce delayed', 20778)) THEN
        RETURN;
    END IF;
    IF NOT once._has_day('outbox', day) THEN
        PERFORM once._make_days(NULL);
        IF NOT once._has_day('outbox', day) THEN
            RETURN;
        END IF;
    END IF;
    -- Each statement has its own snapshot: this one sees what the previous releaser has left, the next one sees the events emitted before
    -- this session got the event's lock.
    due := ARRAY(
        SELECT l.address
          FROM (SELECT d.ctid AS address, d.tenant, d.scope, d.key, d.event_type FROM once.delayed_event AS d
                 WHERE d.not_before <= now AND once._serves(d.tenant)
                 ORDER BY d.not_before, d.emitted_at LIMIT take FOR UPDATE SKIP LOCKED) AS l
         WHERE l.key IS NULL OR pg_try_advisory_xact_lock(once._event_lock(l.tenant, l.scope, l.key, l.event_type)));
    WHILE (pg_sequence_last_value('once.outbox_day_seq') >= day * 256) IS NOT TRUE LOOP      -- see once._emitted_later
        PERFORM nextval('once.outbox_day_seq');
    END LOOP;
    WITH gone AS (
        DELETE FROM once.delayed_event AS d WHERE d.ctid = ANY (due) RETURNING d.*)
    INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, aggregate_type, aggregate_id, tenant, scope, key,
        traceparent, headers, payload)
    SELECT day, now, g.event_id, g.topic, g.event_type, g.aggregate_type, g.aggregate_id, g.tenant, g.scope, g.key, g.traceparent,
           g.headers, g.payload
      FROM gone AS g
     WHERE NOT EXISTS (SELECT FROM once.outbox AS o
                        WHERE o.tenant = g.tenant AND o.scope = g.scope AND o.key = g.key AND o.event_type = g.event_type)
     ORDER BY g.not_before, g.emitted_at
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS released = ROW_COUNT;
    -- Even if all due events have been emitted already.
    IF cardinality(due) > 0 THEN
        wait_ms := 0;
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once_job.relay_settle(relay, seen, reading, after_id, delivered, parked): stores a relay's progress and the result for each of its
-- events, in one commit. reading NULL: the batch is done, and `seen` is the new one; otherwise the batch between `seen` and `reading` is
-- done up to after_id. delivered: parked events that have now been delivered (ids that are not parked do no harm). parked: events that
-- were not delivered: state 'waiting' (behind another, or for their first attempt), 'retrying' or 'dead'; wait_ms from now, by the
-- database's clock. known true: it was parked already (it came from once_job.relay_due): if it no longer is, an operator has discarded
-- it, and it stays discarded. attempts: how many attempts have failed, including this one. If that is more than one above the stored
-- number, an operator had it retried while this attempt was under way: this attempt is then the first of its new attempts, and the event
-- is not dead. Raises 55000 if this session does not hold the relay (once_job.relay_take): a relay that lost its connection cannot
-- overwrite its successor. 22023 for an invalid parked event.
CREATE OR REPLACE FUNCTION once_job.relay_settle(relay text, seen text, reading text, after_id bigint, delivered bigint[] DEFAULT NULL,
    parked once.parking[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    touched bigint[] := '{}';
BEGIN
    IF seen IS NULL OR (reading IS NOT NULL AND after_id IS NULL)
       OR EXISTS (SELECT FROM unnest(parked) AS p
                   WHERE (p.id IS NOT NULL AND p.xid IS NOT NULL AND p.day IS NOT NULL AND p.event_id IS NOT NULL
                          AND p.topic IS NOT NULL AND p.tenant IS NOT NULL
                          AND p.state IN ('waiting', 'retrying', 'dead')) IS NOT TRUE) THEN
        PERFORM once._refuse_relay('22023', relay, 'the progress or a parked event is incomplete',
            'Pass seen, with reading also after_id, and for each parked event id, xid, day, event_id, topic, tenant, state.');
    END IF;
    IF NOT once._relay_held(relay) THEN
        PERFORM once._refuse_relay('55000', relay, 'this session does not hold the relay',
            'Another session may have taken it: discard what is in memory and call once_job.relay_take.');
    END IF;
    UPDATE once.relay AS r
       SET seen = seen::pg_snapshot, reading = reading::pg_snapshot, progressed_at = now,
           after_id = CASE WHEN reading IS NULL THEN 0 ELSE after_id END, written_by = pg_current_xact_id()::xid
     WHERE r.relay = relay COLLATE "C" AND r.written_by = r.xmin;
    IF NOT FOUND THEN
        PERFORM once._refuse_relay('55000', relay, 'the relay was dropped, or its progress replaced',
            'Call once_job.relay_take to start again.');
    END IF;
    PERFORM once._relay_sign(relay);

    IF cardinality(delivered) > 0 THEN
        WITH gone AS (
            DELETE FROM once.parked_event AS p
             USING (SELECT a.address FROM unnest(delivered) AS u (id)
                     CROSS JOIN LATERAL (SELECT k.ctid AS address FROM once.parked_event AS k
                                          WHERE k.relay = relay COLLATE "C" AND k.id BETWEEN u.id AND u.id ORDER BY k.id LIMIT 1) AS a) AS f
             WHERE p.ctid = f.address RETURNING p.aggregate)
        SELECT array_agg(g.aggregate) INTO touched FROM gone AS g WHERE g.aggregate IS NOT NULL;
    END IF;
    IF cardinality(parked) > 0 THEN
        WITH element AS MATERIALIZED (
            SELECT DISTINCT ON (u.id) u.*, once._aggregate(u.tenant, u.aggregate_type, u.aggregate_id) AS aggregate,
                   (u.state <> 'waiting')::integer AS failed,
                   (SELECT k.ctid FROM once.parked_event AS k
                     WHERE k.relay = relay COLLATE "C" AND k.id BETWEEN u.id AND u.id ORDER BY k.id LIMIT 1) AS address
              FROM unnest(parked) WITH ORDINALITY AS u (id, xid, day, event_id, topic, tenant, aggregate_type, aggregate_id,
                                                        state, attempts, wait_ms, error, known, ord)
             ORDER BY u.id, u.ord DESC),
        again AS (
            UPDATE once.parked_event AS p
               SET state = CASE WHEN e.state = 'dead' AND e.known AND e.attempts > p.attempts + 1 THEN 'retrying' ELSE e.state END,
                   attempts = CASE WHEN e.known AND e.attempts > p.attempts + e.failed THEN p.attempts + e.failed
                                   ELSE coalesce(e.attempts, p.attempts) END,
                   error = left(e.error, 2000), next_at = now + coalesce(e.wait_ms, 0) * interval '1 ms', updated_at = now
              FROM element AS e WHERE p.ctid = e.address)
        INSERT INTO once.parked_event AS p (relay, id, xid, day, event_id, topic, tenant, aggregate_type, aggregate_id,
                                            state, attempts, next_at, error, parked_at, updated_at)
        SELECT relay, e.id, e.xid, e.day, e.event_id, e.topic, e.tenant, e.aggregate_type, e.aggregate_id, e.state,
               coalesce(e.attempts, 0),
               CASE WHEN e.state = 'waiting' AND coalesce(e.wait_ms, 0) = 0 AND (e.behind OR e.id > ANY (ARRAY(
                             SELECT b.id FROM once.parked_event AS b
                              WHERE b.relay = relay COLLATE "C" AND b.aggregate BETWEEN e.aggregate AND e.aggregate
                                AND b.state <> 'dead'
                              ORDER BY b.aggregate, b.id LIMIT 1)))
                    THEN 'infinity' ELSE now + coalesce(e.wait_ms, 0) * interval '1 ms' END,
               left(e.error, 2000), now, now
          FROM (SELECT f.*, f.aggregate IS NOT NULL AND coalesce(bool_or(f.state <> 'dead') OVER (
                                PARTITION BY f.aggregate ORDER BY f.id
                                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), false) AS behind
                  FROM element AS f) AS e
         WHERE e.known IS NOT TRUE AND e.address IS NULL
         ORDER BY e.id;
        touched := touched || ARRAY(SELECT once._aggregate(u.tenant, u.aggregate_type, u.aggregate_id)
                                      FROM unnest(parked) AS u WHERE u.aggregate_id IS NOT NULL);
    END IF;
    IF cardinality(touched) > 0 THEN
        PERFORM once._promote(relay, touched);
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once_job.relay_take(relay, topics, from_now): makes this session the only one that works for a relay, until the session ends: it takes
-- a session-level advisory lock, without waiting. taken false: another session has it; try again later. Otherwise returns the relay's
-- progress: everything in `seen` is done; if `reading` is not NULL, so are the events up to after_id among those that only `reading`
-- sees. A new relay begins with all events in the outbox, or, with from_now, with those that commit from now on. topics: LIKE patterns of
-- the topics that it takes, NULL for all; events that it has passed with other patterns stay passed. Do not use it through a pooler in
-- transaction mode, which would give the lock to other clients. Raises 22023 for the name of a replication slot (once.add_capture); P4080
-- if the progress was not written in this database (it came from a dump or by logical replication), if it is ahead of all transactions of
-- this cluster, and while events arrive by logical replication: in these cases the numbers of transactions are invalid here. A promoted
-- standby, a restored base backup and a cluster after pg_upgrade continue: there the numbers are valid.
CREATE OR REPLACE FUNCTION once_job.relay_take(relay text, topics text[] DEFAULT NULL, from_now boolean DEFAULT false)
RETURNS TABLE (taken boolean, seen text, reading text, after_id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    held boolean;
    foreign_by text;
    stored once.relay;
BEGIN
    IF (length(relay) BETWEEN 1 AND 63) IS NOT TRUE THEN
        PERFORM once._refuse_relay('22023', relay, 'a relay has a name of 1 to 63 characters');
    ELSIF cardinality(topics) = 0
          OR EXISTS (SELECT FROM unnest(topics) AS t (pattern)
                      WHERE (t.pattern <> '' AND t.pattern COLLATE "C" !~ E'(^|[^\\\\])(\\\\\\\\)*\\\\$') IS NOT TRUE) THEN
        PERFORM once._refuse_relay('22023', relay, 'topics is a list of LIKE patterns',
            'Leave it out (NULL) to take all topics. No pattern may be empty, NULL, or end in a lone backslash.');
    END IF;
    IF EXISTS (SELECT FROM once.capture AS c WHERE c.slot = relay COLLATE "C") THEN
        PERFORM once._refuse_relay('22023', relay, 'this relay is a replication slot', 'Give the relay another name, or once.drop_relay.');
    END IF;
    held := once._relay_held(relay);
    IF NOT held AND NOT pg_try_advisory_lock(once._relay_lock(relay)) THEN
        taken := false;
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT r.* INTO stored FROM once.relay AS r WHERE r.relay = relay COLLATE "C";
    foreign_by := CASE
        WHEN once._outbox_subscribed() THEN 'the events arrive by a subscription'
        WHEN stored.relay IS NULL THEN NULL
        WHEN NOT once._relay_own(relay) THEN 'it was not written in this database'
        WHEN pg_snapshot_xmax(coalesce(stored.reading, stored.seen)) > pg_snapshot_xmax(pg_current_snapshot())
            THEN 'it is ahead of all transactions of this cluster' END;
    IF foreign_by IS NOT NULL THEN
        IF NOT held THEN
            PERFORM pg_advisory_unlock(once._relay_lock(relay));    -- a session lock outlives the error
        END IF;
        PERFORM once._refuse_foreign(relay, foreign_by);
    ELSIF stored.relay IS NULL THEN
        PERFORM once._adopt_events();
        INSERT INTO once.relay AS r (relay, topics, seen, started_at, progressed_at)
        VALUES (relay, topics, CASE WHEN from_now THEN pg_current_snapshot() ELSE '3:3:' END, now, now)
        RETURNING r.* INTO stored;
        PERFORM once._relay_sign(relay);
    ELSE
        PERFORM once._relay_row(relay);
        IF stored.topics IS DISTINCT FROM topics THEN
            UPDATE once.relay AS r SET topics = topics WHERE r.relay = relay COLLATE "C";
        END IF;
        PERFORM once._promote(relay, NULL);
    END IF;
    taken := true;
    seen := stored.seen;
    reading := stored.reading;
    after_id := stored.after_id;
    RETURN NEXT;
END $$;
$file$;
        EXECUTE $file$
-- once.retire_outbox(day): drops the outbox of a past day (days since 1970), once every relay has passed all of it. Returns how many
-- events were dropped, 0 if the day has no partition. Refused with 55006 while a relay is behind, while an event of the day is parked,
-- and if there are events and no relay at all; the DETAIL names them. 22023 for today and later. Waits for open transactions, including
-- prepared ones, at most lock_timeout: set it, since new emits wait behind it. No event can be lost: after the lock no transaction is
-- writing to the day, and a late emit fails with P4098. Call it in READ COMMITTED (55000): an older snapshot would not show the last
-- events.
CREATE OR REPLACE FUNCTION once.retire_outbox(day integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    today integer := floor(date_part('epoch', clock_timestamp()) / 86400);
    retired bigint;
BEGIN
    IF (day BETWEEN 1 AND today - 1) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: day %s of the outbox cannot be retired', day),
            DETAIL = format('today is day %s; only days before it are over', today);
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: a day of the outbox is retired in READ COMMITTED only',
            DETAIL = 'a snapshot from before the lock would not show its last events';
    ELSIF to_regclass('once.outbox_d' || day) IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM once._follow_slots();
    -- Checks before the lock, so that a day that is still needed stops no other transaction; then again under the lock, which decides.
    PERFORM once._check_retired(day);
    PERFORM once._drop_superseded(day);
    EXECUTE format('LOCK TABLE once.outbox, once.outbox_d%s IN ACCESS EXCLUSIVE MODE', day);
    PERFORM once._check_retired(day);
    EXECUTE format('SELECT count(*) FROM once.outbox_d%s', day) INTO retired;
    PERFORM once._execute_ddl(format('ALTER TABLE once.outbox DETACH PARTITION once.outbox_d%s', day));
    PERFORM once._execute_ddl(format('DROP TABLE once.outbox_d%s', day));
    RETURN retired;
END $$;
$file$;
        EXECUTE $file$
-- once._adopt_events(): gives events restored from another cluster an xid that every snapshot of this cluster has seen. Their own xids
-- mean nothing here and would be wrong once this cluster has counted that far. An event is from elsewhere if it can be read although no
-- transaction that could have written it here has ended. Both searches use an index, so that a call that finds nothing costs nothing.
-- Parked rows follow their event. Logical replication does not copy sequences: those that number events and parked messages continue
-- after the highest number in use, because an event with the number of a parked one would be mistaken for it. That reads every number,
-- once for a relay.
CREATE OR REPLACE FUNCTION once._adopt_events() RETURNS bigint
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    adopted bigint;
BEGIN
    -- One statement and so one snapshot, so that the rows it reads and the xids that it compares agree.
    WITH now AS MATERIALIZED (
        SELECT s.snapshot, pg_snapshot_xmax(s.snapshot) AS beyond,
               ARRAY(SELECT x FROM pg_snapshot_xip(s.snapshot) AS x) AS running,
               coalesce(pg_current_xact_id_if_assigned(), '1'::xid8) AS own
          FROM (SELECT pg_current_snapshot() AS snapshot) AS s),
    foreign_event AS MATERIALIZED (
        SELECT o.id, o.xid, o.day FROM now AS n, once.outbox AS o WHERE o.xid >= n.beyond AND o.xid <> n.own
         UNION ALL
        SELECT o.id, o.xid, o.day FROM now AS n, once.outbox AS o WHERE o.xid = ANY (n.running) AND o.xid <> n.own),
    parked AS (
        UPDATE once.parked_event AS p SET xid = '3' FROM foreign_event AS f WHERE p.id = f.id AND p.xid = f.xid),
    changed AS (
        UPDATE once.outbox AS o SET xid = '3' FROM foreign_event AS f
         WHERE o.day = f.day AND o.xid = f.xid AND o.id = f.id RETURNING 1)
    SELECT count(*) INTO adopted FROM changed;
    -- Only forwards: other sessions may be using it.
    PERFORM setval('once.outbox_id_seq', n.last)
       FROM (SELECT greatest((SELECT max(o.id) FROM once.outbox AS o), (SELECT max(p.id) FROM once.parked_event AS p)) AS last) AS n
      WHERE n.last >= (SELECT s.last_value + s.is_called::integer FROM once.outbox_id_seq AS s);
    PERFORM setval('once.parked_message_position_seq', n.last)
       FROM (SELECT max(p."position") AS last FROM once.parked_message AS p) AS n
      WHERE n.last >= (SELECT s.last_value + s.is_called::integer FROM once.parked_message_position_seq AS s);
    PERFORM setval('once.outbox_day_seq', 256 * n.last)
       FROM (SELECT max(o.day) AS last FROM once.outbox AS o) AS n
      WHERE 256 * n.last > (SELECT s.last_value FROM once.outbox_day_seq AS s);
    RETURN adopted;
END $$;
$file$;
        EXECUTE $file$
-- once._aggregate(tenant, aggregate_type, aggregate_id): the number of an aggregate, as in once.parked_event; NULL if the event has none.
-- Inlined.
CREATE OR REPLACE FUNCTION once._aggregate(tenant text, aggregate_type text, aggregate_id text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN aggregate_id IS NOT NULL
        THEN hash_array_extended(ARRAY[tenant, coalesce(aggregate_type, ''), aggregate_id] COLLATE "C", 0) END
$$;
$file$;
        EXECUTE $file$
-- once._are_usual_bytes(payload, content_type): whether bytes can skip once._check_event. Inlined.
CREATE OR REPLACE FUNCTION once._are_usual_bytes(payload bytea, content_type text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT octet_length(payload) <= 8192 AND once._is_content_type(content_type)
$$;
$file$;
        EXECUTE $file$
-- once._check_event(...): raises if an event is invalid, or if its day has no partition and cannot have one. Returns otherwise (for long
-- names within the limits, and if the day exists by now). day NULL: it has no partition yet.
CREATE OR REPLACE FUNCTION once._check_event(tenant text, scope text, key text, topic text, kind text, payload jsonb,
    payload_bytes bytea, content_type text, headers jsonb, day integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (length(topic) BETWEEN 1 AND 255 AND num_nonnulls(payload, payload_bytes) = 1 AND length(kind) BETWEEN 1 AND 255
        AND (scope IS NULL) = (key IS NULL) AND coalesce(jsonb_typeof(headers), 'object') = 'object') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: an event needs a topic and a payload',
            DETAIL = format('topic=%s payload %s scope=%s key=%s', quote_nullable(left(topic, 80)),
                            CASE num_nonnulls(payload, payload_bytes) WHEN 0 THEN 'missing' ELSE 'given' END,
                            quote_nullable(left(scope, 80)), quote_nullable(left(key, 80))),
            HINT = 'topic and event_type: 1 to 255 characters; scope and key: both or neither; headers: a JSON object.';
    END IF;
    IF payload_bytes IS NOT NULL AND once._is_content_type(content_type) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: the content type is missing or invalid',
            DETAIL = format('topic=%s content_type=%s', quote_nullable(left(topic, 80)), quote_nullable(left(content_type, 80))),
            HINT = 'content_type: type/subtype, such as application/x-protobuf, in at most 255 visible ASCII characters.';
    END IF;
    -- The most that the index for unique events can hold.
    IF key IS NOT NULL AND octet_length(concat(tenant, scope, key, kind)) > 2600 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: tenant, scope, key and event_type are too long in total',
            DETAIL = format('they have %s bytes', octet_length(concat(tenant, scope, key, kind))),
            HINT = 'They may have 2600 bytes in total.';
    END IF;
    PERFORM once._refuse('P4060', tenant, scope, key, format('%s: %s bytes, at most %s', part, size, most))
       FROM (VALUES ('payload', coalesce(octet_length(payload_bytes), octet_length(payload::text)),
                        (once._policy(coalesce(scope, ''))).event_bytes_max),
                    ('headers', octet_length(headers::text), 65536)) AS p (part, size, most)
      WHERE size > most LIMIT 1;
    IF day IS NULL THEN
        RETURN;
    END IF;
    FOR attempt IN 1 .. 2 LOOP          -- see once._open_day
        EXIT WHEN once._has_day('outbox', day);
        PERFORM once._make_days(NULL);
        EXIT WHEN once._has_day('outbox', day) OR NOT once._wait_for_days();
    END LOOP;
    IF NOT once._has_day('outbox', day) THEN
        PERFORM once._refuse('P4098', tenant, scope, key, 'no outbox partition for ' || (date '1970-01-01' + day));
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._check_repeated(...): raises P4051 if an intent emits an event of this type again with another content.
CREATE OR REPLACE FUNCTION once._check_repeated(tenant text, scope text, key text, kind text, topic text, payload jsonb,
    payload_bytes bytea, content_type text, headers jsonb) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    first once.outbox;
BEGIN
    SELECT o.* INTO first FROM once.outbox AS o
     WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
       AND o.event_type = kind COLLATE "C";
    IF first.topic <> topic COLLATE "C" OR first.payload_bytes IS DISTINCT FROM payload_bytes
       OR first.content_type IS DISTINCT FROM content_type COLLATE "C" OR (payload_bytes IS NULL AND first.payload <> payload)
       OR first.headers IS DISTINCT FROM headers THEN
        PERFORM once._refuse('P4051', tenant, scope, key, format('event_type=%s event_id=%s', kind, first.event_id));
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._check_retired(day): raises 55006 if a day of the outbox is still needed (once._outbox_needed).
CREATE OR REPLACE FUNCTION once._check_retired(day integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    needed record := once._outbox_needed(day);
BEGIN
    IF needed.why IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = format('pgonce: day %s of the outbox is still needed', day),
            DETAIL = needed.why, HINT = needed.hint;
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._day_at(now, day): the day, if this time is in it; else NULL. For a constant day only two comparisons remain. Inlined.
CREATE OR REPLACE FUNCTION once._day_at(now timestamptz, day integer) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN now >= to_timestamp(day * 86400::double precision)
                 AND now < to_timestamp((day + 1) * 86400::double precision) THEN day END
$$;
$file$;
        EXECUTE $file$
-- once._demote(relay, now, until): makes parked events that are due by their time (NULL: now) but behind another event of their
-- aggregate, normally a dead one, wait for once._promote, 1000 at a time. It searches again under the relay's row, because it could
-- otherwise miss that the other event has gone. If another session holds that row, perhaps an operator with an open decision, the next
-- call does it. It does nothing in a session that does not hold the relay, which cannot know how the holder treats dead events.
CREATE OR REPLACE FUNCTION once._demote(relay text, now timestamptz, until timestamptz DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    behind tid[];
BEGIN
    FOR round IN 1 .. 2 LOOP
        behind := ARRAY(
            SELECT p.ctid FROM once.parked_event AS p
             WHERE p.relay = relay COLLATE "C" AND p.state <> 'dead' AND p.next_at <= coalesce(until, now)
               AND p.id > ANY (ARRAY(SELECT e.id FROM once.parked_event AS e
                                      WHERE e.relay = relay COLLATE "C" AND e.aggregate BETWEEN p.aggregate AND p.aggregate
                                      ORDER BY e.aggregate, e.id LIMIT 1))
             ORDER BY p.next_at LIMIT 1000);
        IF cardinality(behind) = 0 THEN
            RETURN;
        ELSIF round = 1 THEN
            IF NOT once._relay_held(relay) THEN
                RETURN;
            END IF;
            PERFORM FROM once.relay AS r WHERE r.relay = relay COLLATE "C" FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                RETURN;
            END IF;
            PERFORM once._relay_row(relay);
        END IF;
    END LOOP;
    UPDATE once.parked_event AS p SET next_at = 'infinity', updated_at = now WHERE p.ctid = ANY (behind);
END $$;
$file$;
        EXECUTE $file$
-- once._derived_id(salt, tenant, scope, key, kind): the id of an intent's event: a UUID of version 8 (RFC 9562: "vendor specific"), from
-- the names that make the event unique here and from the tenant's salt: two databases with the same names may share a broker, which drops
-- an event whose id it knows. salt: once.setting.salt. Inlined.
CREATE OR REPLACE FUNCTION once._derived_id(salt bytea, tenant text, scope text, key text, kind text) RETURNS uuid
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT encode(overlay(substring(sha256(sha256(salt || convert_to(tenant, 'UTF8')) || 'e'::bytea
        || convert_to(ARRAY[tenant, scope, key, kind]::text, 'UTF8')) FROM 1 FOR 16) PLACING E'\\x800080' FROM 7), 'hex')::uuid
$$;
$file$;
        EXECUTE $file$
-- once._drop_superseded(day): deletes the delayed events that once.emit has published on this day: once the day is dropped, nothing would
-- show that they were published. One look-up for each delayed event with a key.
CREATE OR REPLACE FUNCTION once._drop_superseded(day integer) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
BEGIN
    DELETE FROM once.delayed_event AS d
     WHERE d.key IS NOT NULL
       AND EXISTS (SELECT FROM once.outbox AS o WHERE o.day = day AND o.tenant = d.tenant AND o.scope = d.scope AND o.key = d.key
                      AND o.event_type = d.event_type);
END $$;
$file$;
        EXECUTE $file$
-- once._emitted_later(tenant, scope, key, kind, day): whether an intent's event was emitted on a later day than the clock says now,
-- because the clock was set back. Called if once.outbox_day_seq is not at this day. Leaves it at this day or later before the event is
-- inserted, so that an emit on an earlier day also calls this function.
CREATE OR REPLACE FUNCTION once._emitted_later(tenant text, scope text, key text, kind text, day integer) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    WHILE (pg_sequence_last_value('once.outbox_day_seq') >= day * 256) IS NOT TRUE LOOP
        PERFORM nextval('once.outbox_day_seq');
    END LOOP;
    RETURN EXISTS (SELECT FROM once.outbox AS o
                    WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
                      AND o.event_type = kind COLLATE "C" AND o.day > day);
END $$;
$file$;
        EXECUTE $file$
-- once._event_lock(tenant, scope, key, kind): the 64-bit number of the advisory lock of an intent's event, as once._lock_id makes that of
-- an intent. A transaction that inserts the event holds it, so that no other waits for its INSERT. Inlined.
CREATE OR REPLACE FUNCTION once._event_lock(tenant text, scope text, key text, kind text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hash_array_extended(ARRAY[tenant, scope, key, kind] COLLATE "C", 20779)
$$;
$file$;
        EXECUTE $file$
-- once._event_relays(event): the event's state with each relay that takes its topic, as a JSON array: 'pending', 'waiting', 'retrying',
-- 'dead', 'foreign' (P4080), or 'passed': delivered, discarded, or from before the relay began.
CREATE OR REPLACE FUNCTION once._event_relays(event once.outbox) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object('relay', r.relay,
                       'state', CASE WHEN p.state IS NOT NULL THEN p.state
                                     WHEN r.written_by <> r.xmin THEN 'foreign'
                                     WHEN pg_visible_in_snapshot(event.xid, r.seen)
                                          OR (pg_visible_in_snapshot(event.xid, r.reading)
                                              AND event.id <= r.after_id) THEN 'passed'
                                     ELSE 'pending' END,
                       'attempts', p.attempts,
                       'next_at', CASE WHEN p.state <> 'dead' AND p.next_at < 'infinity' AND NOT EXISTS (
                                           SELECT FROM once.parked_event AS b WHERE b.relay = p.relay
                                              AND b.aggregate = p.aggregate AND b.id < p.id) THEN p.next_at END,
                       'error', p.error, 'parked_at', p.parked_at, 'updated_at', p.updated_at) ORDER BY r.relay), '[]')
              FROM once.relay AS r LEFT JOIN once.parked_event AS p ON p.relay = r.relay AND p.id = event.id
             WHERE p.id IS NOT NULL OR r.topics IS NULL OR event.topic COLLATE "C" LIKE ANY (r.topics));
END $$;
$file$;
        EXECUTE $file$
-- once._follow_slots(): makes the relay's row of each capture follow its slot: once the slot has confirmed the mark, everything that the
-- mark sees is done, and a new mark is set. If the slot cannot be trusted, that is recorded, and nothing follows it until
-- once.relay_adopt, even if it recovers: a slot that was gone and exists again is another slot. Called by the keeper in each round, and
-- by once.retire_outbox.
CREATE OR REPLACE FUNCTION once._follow_slots() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := clock_timestamp();
    capture once.capture;
    slot record;
BEGIN
    FOR capture IN SELECT c.* FROM once.capture AS c WHERE c.broken IS NULL ORDER BY c.slot FOR UPDATE LOOP
        slot := once._slot(capture.slot, capture.server);
        IF slot.why IS NOT NULL THEN
            UPDATE once.capture AS c SET broken = slot.why, broken_since = now WHERE c.slot = capture.slot;
        ELSIF slot.confirmed >= capture.mark_lsn THEN
            UPDATE once.relay AS r
               SET seen = capture.mark, progressed_at = now, written_by = pg_current_xact_id()::xid
             WHERE r.relay = capture.slot AND r.written_by = r.xmin;
            IF FOUND THEN
                PERFORM once._relay_sign(capture.slot);
                PERFORM once._mark_slot(capture.slot, slot.now_on);
            END IF;
        END IF;
    END LOOP;
END $$;
$file$;
        EXECUTE $file$
-- once._is_content_type(content_type): whether it is type/subtype and valid in a header of every broker: at most 255 visible ASCII
-- characters and inner spaces. Inlined.
CREATE OR REPLACE FUNCTION once._is_content_type(content_type text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT octet_length(content_type) <= 255 AND content_type COLLATE "C" ~ '^[!-~]+/[!-~]([ -~]*[!-~])?$'
$$;
$file$;
        EXECUTE $file$
-- once._mark_slot(slot, server): sets the mark of a capture at everything committed now. Call it once the slot exists and this
-- transaction has written something: then the mark lies after the point where the slot began, and a slot that a connector has just
-- created, and whose first snapshot it is still reading, has not passed it.
CREATE OR REPLACE FUNCTION once._mark_slot(slot text, server text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    -- The snapshot is older than this reading of the WAL: everything that it sees was written before.
    UPDATE once.capture AS c
       SET mark = pg_current_snapshot(), mark_lsn = pg_current_wal_insert_lsn(), server = server, broken = NULL, broken_since = NULL
     WHERE c.slot = slot COLLATE "C";
END $$;
$file$;
        EXECUTE $file$
-- once._outbox_needed(day): why a day of the outbox is still needed, and a hint: a relay has not passed all of it, one of its events is
-- parked, or there are events and no relay to publish them. NULL if it is not needed.
CREATE OR REPLACE FUNCTION once._outbox_needed(day integer, OUT why text, OUT hint text)
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
BEGIN
    SELECT format('relay %L has not passed all of it', r.relay), CASE WHEN r.written_by <> r.xmin
           THEN 'Its progress was not written in this database: see once.relay_adopt.'
           WHEN EXISTS (SELECT FROM once.capture AS c WHERE c.slot = r.relay)
           THEN 'It is a replication slot: see once.capture_list, or call once.drop_relay if its events are no longer needed.'
           ELSE 'Start it, or call once.drop_relay if its events are no longer needed.' END
      INTO why, hint
      FROM once.relay AS r
     WHERE EXISTS (SELECT FROM once.outbox AS o
                    WHERE o.day = day AND (r.written_by <> r.xmin OR o.xid >= pg_snapshot_xmax(r.seen)))
        OR EXISTS (SELECT FROM once.outbox AS o
                    WHERE o.day = day AND o.xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip(r.seen) AS x)))
     ORDER BY r.relay LIMIT 1;
    IF why IS NULL THEN
        SELECT format('%s of its events are parked with relay %L', count(*), p.relay),
               'See once.parked_list; deliver, retry or discard them.'
          INTO why, hint
          FROM once.parked_event AS p WHERE p.day = day GROUP BY p.relay ORDER BY p.relay LIMIT 1;
    END IF;
    IF why IS NULL AND NOT EXISTS (SELECT FROM once.relay) AND EXISTS (SELECT FROM once.outbox AS o WHERE o.day = day) THEN
        why := 'it has events, and no relay has existed that could publish them';
        hint := 'Start a relay. If these events are not needed, delete them from once.outbox as its owner.';
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._outbox_subscribed(): whether events arrive in this database by logical replication: then their xids are the publisher's, and
-- snapshots of this database do not apply to them. A disabled subscription counts.
CREATE OR REPLACE FUNCTION once._outbox_subscribed() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM pg_subscription_rel AS s
                    WHERE s.srrelid = 'once.outbox'::regclass
                       OR s.srrelid IN (SELECT i.inhrelid FROM pg_inherits AS i WHERE i.inhparent = 'once.outbox'::regclass))
$$;
$file$;
        EXECUTE $file$
-- once._promote(relay, aggregates): makes the first parked event of each of these aggregates that is not dead due now, if it waited for
-- an earlier one. Called whenever a parked event has gone or died; NULL: for all aggregates. An event that waits behind another has
-- next_at 'infinity', so that once_job.relay_due does not read all of them each time.
--
-- Here and in the neighbouring functions rows are found by one look-up each, written with LIMIT, BETWEEN and an order that only one index
-- has, and are changed by their address. While a table is empty all indexes look alike, and a plan made then stays in use when the table
-- has filled. There is no sort: while all parked events are dead, the index of due events would look like the cheapest.
CREATE OR REPLACE FUNCTION once._promote(relay text, aggregates bigint[]) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    IF aggregates IS NULL THEN
        aggregates := ARRAY(SELECT DISTINCT p.aggregate FROM once.parked_event AS p
                             WHERE p.relay = relay COLLATE "C" AND p.next_at = 'infinity');
    END IF;
    UPDATE once.parked_event AS p SET next_at = now, updated_at = now
      FROM (SELECT h.address
              FROM (SELECT DISTINCT u.aggregate FROM unnest(aggregates) AS u (aggregate)) AS a
             CROSS JOIN LATERAL (SELECT e.ctid AS address, e.next_at FROM once.parked_event AS e
                                  WHERE e.relay = relay COLLATE "C" AND e.aggregate BETWEEN a.aggregate AND a.aggregate
                                    AND e.state <> 'dead'
                                  ORDER BY e.aggregate, e.id LIMIT 1) AS h
             WHERE h.next_at = 'infinity') AS f
     WHERE p.ctid = f.address;
END $$;
$file$;
        EXECUTE $file$
-- once._refuse_foreign(relay, detail): raises P4080: the relay's progress means nothing in this database.
CREATE OR REPLACE FUNCTION once._refuse_foreign(relay text, detail text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    PERFORM once._refuse_relay('P4080', relay, e.message, e.hint, detail) FROM once.errors() AS e WHERE e.code = 'P4080';
END $$;
$file$;
        EXECUTE $file$
-- once._refuse_relay(code, relay, what, hint): raises an error about a relay, naming it.
CREATE OR REPLACE FUNCTION once._refuse_relay(code text, relay text, what text, hint text DEFAULT NULL, detail text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    named text := regexp_replace('relay=' || quote_nullable(left(relay, 80)), '[[:cntrl:]]', '?', 'g');
BEGIN
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = 'pgonce: ' || what, DETAIL = concat_ws('; ', named, detail),
        HINT = coalesce(hint, '');
END $$;
$file$;
        EXECUTE $file$
-- once._relay_held(relay): whether this session holds the relay's lock. Only the catalogue of locks shows that: trying the lock again
-- succeeds for its holder, and for every session while it is free.
CREATE OR REPLACE FUNCTION once._relay_held(relay text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    number bigint := once._relay_lock(relay);
BEGIN
    RETURN EXISTS (SELECT FROM pg_locks AS l
                    WHERE l.pid = pg_backend_pid() AND l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted
                      AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
                      AND l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = number);
END $$;
$file$;
        EXECUTE $file$
-- once._relay_lock(relay): the 64-bit number of a relay's advisory lock, which the one session that works for it holds.
CREATE OR REPLACE FUNCTION once._relay_lock(relay text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashtextextended(relay COLLATE "C", 20781)
$$;
$file$;
        EXECUTE $file$
-- once._relay_own(relay): whether a transaction of this database wrote the relay's progress, so that it is valid here. See
-- once._relay_sign.
CREATE OR REPLACE FUNCTION once._relay_own(relay text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM once.relay AS r WHERE r.relay = _relay_own.relay COLLATE "C" AND r.written_by = r.xmin)
$$;
$file$;
        EXECUTE $file$
-- once._relay_row(relay): the row of a relay, held until the transaction ends: every change of a relay's parked events is made under its
-- row, so that parking an event behind another and the end of that other never miss each other. An UPDATE and not only a lock: above READ
-- COMMITTED a change that the snapshot does not show then ends in 40001. Raises 22023 if there is no such relay.
CREATE OR REPLACE FUNCTION once._relay_row(relay text) RETURNS once.relay LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    stored once.relay;
BEGIN
    UPDATE once.relay AS r
       SET written_by = CASE WHEN r.written_by = r.xmin THEN pg_current_xact_id()::xid ELSE '0' END
     WHERE r.relay = relay COLLATE "C" RETURNING r.* INTO stored;
    IF NOT FOUND THEN
        PERFORM once._refuse_relay('22023', relay, 'there is no such relay', 'once.outbox_summary() lists the relays.');
    END IF;
    PERFORM once._relay_sign(relay);
    RETURN stored;
END $$;
$file$;
        EXECUTE $file$
-- once._relay_sign(relay): call it right after you have written a relay's row. written_by names the transaction that wrote the row, and
-- so does its xmin, until the row is copied by pg_restore, COPY or logical replication. Then the two differ, and the snapshots are
-- another database's. A copy of the files keeps both, and the transactions with them: pg_basebackup, a standby, pg_upgrade, also VACUUM
-- FULL. A row is written with the number of the transaction; within a savepoint it gets another xmin, which is not known before, so it is
-- written again. 0 is not a transaction: a foreign row stays foreign, even if it is changed here.
CREATE OR REPLACE FUNCTION once._relay_sign(relay text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    UPDATE once.relay AS r SET written_by = r.xmin
     WHERE r.relay = relay COLLATE "C" AND r.written_by NOT IN (r.xmin, '0');
END $$;
$file$;
        EXECUTE $file$
-- once._slot(slot, server): the state of a replication slot of this database. why: the reason why it may have lost or may never deliver
-- something that it confirmed; NULL: it can be trusted. server: the server on which the slot was last trusted (its WAL's timeline and its
-- cluster's identifier, in the form of now_on; NULL: not yet); written: how far this server's WAL is written. A slot does not move to a
-- promoted standby unless the server synchronises it; a slot of that name there is a new one, and the events between the two are never
-- delivered. A standby has slots of its own, about which this function says nothing.
CREATE OR REPLACE FUNCTION once._slot(slot text, server text, OUT why text, OUT confirmed pg_lsn, OUT active boolean, OUT wal_status text,
    OUT restart pg_lsn, OUT written pg_lsn, OUT now_on text) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_variable
DECLARE
    found jsonb := (SELECT to_jsonb(s) FROM pg_replication_slots AS s
                     WHERE s.slot_name = slot AND s.database = current_database());
BEGIN
    active := coalesce((found ->> 'active')::boolean, false);
    confirmed := (found ->> 'confirmed_flush_lsn')::pg_lsn;
    restart := (found ->> 'restart_lsn')::pg_lsn;
    wal_status := found ->> 'wal_status';
    IF once._wal_told() AND has_function_privilege('pg_walfile_name(pg_lsn)', 'execute') AND NOT pg_is_in_recovery() THEN
        written := pg_current_wal_insert_lsn();
        now_on := left(pg_walfile_name(written), 8);
        IF has_function_privilege('pg_control_system()', 'execute') THEN
            now_on := now_on || ' of ' || (SELECT s.system_identifier FROM pg_control_system() AS s);
        END IF;
    END IF;
    why := CASE
        WHEN pg_is_in_recovery() THEN NULL
        WHEN found IS NULL THEN 'there is no such logical slot in this database'
        WHEN (found ->> 'temporary')::boolean THEN 'the slot is temporary'
        WHEN wal_status = 'lost' OR found ->> 'invalidation_reason' IS NOT NULL
            THEN concat_ws(': ', 'the server has invalidated the slot', found ->> 'invalidation_reason')
        WHEN now_on IS NULL THEN 'the server does not tell how far its WAL is'
        WHEN server <> now_on AND (found ->> 'synced')::boolean IS NOT TRUE
            THEN format('the server was promoted, restored or upgraded (timeline %s, and before %s), and the slot was not'
                        || ' synchronised', now_on, server) END;
END $$;
$file$;
        EXECUTE $file$
-- once._wal_told(): whether the contract's owner may ask the server how far its WAL is written and flushed. Managed servers may revoke
-- that from everyone; Aurora has the functions and refuses them, unless wal_level is logical.
CREATE OR REPLACE FUNCTION once._wal_told() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT has_function_privilege('pg_current_wal_insert_lsn()', 'execute')
           AND has_function_privilege('pg_current_wal_flush_lsn()', 'execute')
           AND (to_regproc('pg_catalog.aurora_version') IS NULL OR current_setting('wal_level') = 'logical')
$$;
$file$;
        EXECUTE $file$
-- once.consumer_ids(consumer, tenant): how the inbox stores the messages of a consumer whose ids are UUIDv7, including parked ones:
-- 'opaque', with the prefix pgonce:id: and so without a day; 'uuidv7', unchanged, by their days. Empty if there are none. After a change
-- of birthdays (see once.receive) a message would be applied again, so pgonce consume checks this before it starts, and a program that
-- calls once.receive for a consumer must not change it. Raises P4000 for the consumer, P4003 for the tenant.
CREATE OR REPLACE FUNCTION once.consumer_ids(consumer text, tenant text DEFAULT '') RETURNS text[]
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    RETURN array_remove(ARRAY[
        CASE WHEN EXISTS (SELECT FROM once.intent AS i
                           WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C"
                             AND i.key >= 'pgonce:id:' COLLATE "C" AND i.key < 'pgonce:id;' COLLATE "C" AND i.bucket = 0)
                  OR EXISTS (SELECT FROM once.parked_message AS p
                              WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C"
                                AND p.message_id >= 'pgonce:id:' COLLATE "C" AND p.message_id < 'pgonce:id;' COLLATE "C")
             THEN 'opaque' END,
        CASE WHEN EXISTS (SELECT FROM once.intent AS i
                           WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C" AND i.bucket > 0)
                  OR EXISTS (SELECT FROM once.archive AS a
                              WHERE a.tenant = tenant COLLATE "C" AND a.scope = consumer COLLATE "C" AND a.bucket > 0)
                  OR EXISTS (SELECT FROM once.parked_message AS p
                              WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C"
                                AND once._bucket(p.message_id) > 0)
             THEN 'uuidv7' END], NULL);
END $$;
$file$;
        EXECUTE $file$
-- once.consumer_list(): the consumers, each part of each tenant: position, up to when all its messages were acknowledged, and when that
-- was reported (once.consumer_report). So the part lagged by reported_at - position then.
CREATE OR REPLACE FUNCTION once.consumer_list() RETURNS TABLE (consumer text, tenant text, part text, "position" timestamptz, reported_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.consumer, c.tenant, c.part, c."position", c.reported_at FROM once.consumer_position AS c ORDER BY 1, 2, 3
$$;
$file$;
        EXECUTE $file$
-- once_job.consumer_remembers(consumer, tenant): how long, at least, the inbox remembers a message of a consumer after it was applied
-- (its scope's retention), and whether the consumer has applied, parked or reported anything here yet. If it has, and its broker restarts
-- from messages older than that, they would be applied a second time, so pgonce consume checks this before it lets its broker do that.
-- Raises P4000 for the consumer, P4003 for the tenant.
CREATE OR REPLACE FUNCTION once_job.consumer_remembers(consumer text, tenant text DEFAULT '') RETURNS TABLE (retention interval, has_run boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    retention := (once._policy(consumer)).retention;
    has_run := EXISTS (SELECT FROM once.consumer_position AS c WHERE c.consumer = consumer COLLATE "C" AND c.tenant = tenant COLLATE "C")
        OR EXISTS (SELECT FROM once.parked_message AS p WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C")
        OR EXISTS (SELECT FROM once.intent AS i WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C");
    RETURN NEXT;
END $$;
$file$;
        EXECUTE $file$
-- once.consumer_report(consumer, position, tenant, part): a consumer reports its progress: all messages that its broker has delivered or
-- may still deliver from before position were acknowledged, and cannot come back. part names what the position belongs to: a partition, a
-- queue. Nothing that a consumer's oldest position still needs is deleted: see once.retention_held. NULL for position: this part no
-- longer exists. A consumer that never reports holds nothing back. Cheap: writes only if the position moved by a second. Raises P4000,
-- P4003, and 22023 for names of more than 2600 bytes in total.
CREATE OR REPLACE FUNCTION once.consumer_report(consumer text, "position" timestamptz, tenant text DEFAULT '', part text DEFAULT '')
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    reached timestamptz := consumer_report."position";
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    part := left(coalesce(part, ''), 255);
    IF octet_length(concat(consumer, tenant, part)) > 2600 THEN     -- the most that the primary key can hold
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: consumer, tenant and part are too long in total',
            DETAIL = format('they have %s bytes', octet_length(concat(consumer, tenant, part))),
            HINT = 'They may have 2600 bytes in total.';
    END IF;
    IF reached IS NULL THEN
        DELETE FROM once.consumer_position AS c
         WHERE c.consumer = consumer COLLATE "C" AND c.tenant = tenant COLLATE "C" AND c.part = part COLLATE "C";
        RETURN;
    END IF;
    INSERT INTO once.consumer_position AS c (consumer, tenant, part, "position", reported_at)
    VALUES (consumer, tenant, part, reached, now)
    ON CONFLICT ON CONSTRAINT consumer_position_pkey DO UPDATE
       SET "position" = excluded."position", reported_at = excluded.reported_at
     -- Backwards at once: messages that may come again must not be deleted.
     WHERE excluded."position" < c."position" OR excluded."position" > c."position" + interval '1 second';
END $$;
$file$;
        EXECUTE $file$
-- once_job.message_applied(consumer, tenant, message_ids): deletes parked messages, in the transaction of their effect (after
-- once.receive returned process, or duplicate). Returns how many were parked. Raises P4000 for the consumer, P4003 for the tenant.
CREATE OR REPLACE FUNCTION once_job.message_applied(consumer text, tenant text, message_ids text[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    deleted integer;
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    -- One look-up each, and then by address: see once._promote.
    DELETE FROM once.parked_message AS p
     USING (SELECT a.address FROM unnest(message_ids) AS u (id)
             CROSS JOIN LATERAL (SELECT k.ctid AS address FROM once.parked_message AS k
                                  WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                                    AND k.message_id BETWEEN (u.id COLLATE "C") AND (u.id COLLATE "C")
                                  ORDER BY k.message_id LIMIT 1) AS a) AS f
     WHERE p.ctid = f.address;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END $$;
$file$;
        EXECUTE $file$
-- once_job.message_count(consumer, tenant, most): how many messages a consumer has parked; counts no further than `most`
-- (NULL: all). Raises P4000 for the consumer, P4003 for the tenant.
CREATE OR REPLACE FUNCTION once_job.message_count(consumer text, tenant text DEFAULT '', most bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    RETURN (SELECT count(*) FROM (SELECT FROM once.parked_message AS p
                                   WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" LIMIT most) AS l);
END $$;
$file$;
        EXECUTE $file$
-- once_job.message_due(consumer, tenant, take, skip_dead, lines): parked messages to try now, at most `take`, in the order in which they
-- came: those that are due and before which none of their key is parked (with skip_dead: none that is not dead). With `lines` also, after
-- each of them, those of its key that wait for nothing else, the same number for each key, so that a line is applied in few transactions:
-- apply them in order, and none after one that failed. They are locked until your transaction ends. A message locked by another
-- transaction is left out, and so are those behind it: two processes of one consumer never take the same message. Then for each:
-- once.receive, the effect, once_job.message_applied, COMMIT; or once_job.message_park with one more attempt. Raises P4000 for the
-- consumer, P4003 for the tenant.
--
-- Why it is written so: most of the due messages may be behind another one. If there are many, the search for the first of each key steps
-- from key to key in the index, so that ten thousand behind one dead message are one step.
CREATE OR REPLACE FUNCTION once_job.message_due(consumer text, tenant text, take integer, skip_dead boolean DEFAULT false,
    lines boolean DEFAULT false)
RETURNS TABLE (message_id text, topic text, key text, headers jsonb, payload bytea, fingerprint bytea, attempts integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
#variable_conflict use_variable
DECLARE
    few CONSTANT integer := 500;
    bytes_most CONSTANT integer := 4194304;     -- of the payloads of all followers
    now timestamptz := clock_timestamp();
    due integer;
    heads text[];
    taken tid[];
    followers integer;      -- of each
    followed tid[];
    lanes bigint[];
    places bigint[];
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    IF (take > 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: take is how many messages to take, at least 1';
    END IF;
    -- A clock that was ahead has been set back: waits that began before are too long. Checks the longest.
    IF (SELECT p.updated_at FROM once.parked_message AS p
         WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" AND p.state <> 'dead' AND p.next_at > now
         ORDER BY p.next_at DESC LIMIT 1) > now + interval '1 second' THEN
        UPDATE once.parked_message AS p SET next_at = now, updated_at = now
         WHERE p.ctid = ANY (ARRAY(SELECT e.ctid FROM once.parked_message AS e
                                    WHERE e.consumer = consumer COLLATE "C" AND e.tenant = tenant COLLATE "C"
                                      AND e.state <> 'dead' AND e.next_at > now AND e.updated_at > now + interval '1 second'
                                      FOR UPDATE SKIP LOCKED));
    END IF;
    SELECT count(*) INTO due
      FROM (SELECT FROM once.parked_message AS p
             WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" AND p.state <> 'dead'
               AND p.next_at <= now LIMIT few) AS l;
    IF due = 0 THEN
        RETURN;
    ELSIF due < few THEN
        SELECT array_agg(p.message_id) INTO heads
          FROM once.parked_message AS p
         WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" AND p.state <> 'dead'
           AND p.next_at <= now
           AND p.position <= ALL (ARRAY(SELECT e.position FROM once.parked_message AS e
                                         WHERE e.consumer = consumer COLLATE "C" AND e.tenant = tenant COLLATE "C"
                                           AND e.key_hash = p.key_hash AND NOT (skip_dead AND e.state = 'dead')
                                         ORDER BY e.key_hash, e.position LIMIT 1));
    ELSE
        WITH RECURSIVE lane AS (
            SELECT (SELECT m.key_hash FROM once.parked_message AS m
                     WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C" AND m.key_hash IS NOT NULL
                     ORDER BY m.key_hash LIMIT 1) AS key_hash
             UNION ALL
            SELECT (SELECT m.key_hash FROM once.parked_message AS m
                     WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C" AND m.key_hash > l.key_hash
                     ORDER BY m.key_hash LIMIT 1)
              FROM lane AS l WHERE l.key_hash IS NOT NULL),
        head AS (
            SELECT h.message_id, h.position FROM lane AS l
             CROSS JOIN LATERAL (SELECT m.message_id, m.position, m.state, m.next_at FROM once.parked_message AS m
                                  WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C"
                                    AND m.key_hash = l.key_hash AND NOT (skip_dead AND m.state = 'dead')
                                  ORDER BY m.position LIMIT 1) AS h
             WHERE h.state <> 'dead' AND h.next_at <= now
             UNION ALL
            (SELECT m.message_id, m.position FROM once.parked_message AS m
              WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C" AND m.key_hash IS NULL
                AND m.state <> 'dead' AND m.next_at <= now ORDER BY m.key_hash, m.position LIMIT take + few))
        -- More than wanted, since other sessions may be working on the first of them.
        SELECT array_agg(f.message_id) INTO heads
          FROM (SELECT h.message_id FROM head AS h ORDER BY h.position LIMIT take + few) AS f;
    END IF;
    -- A new statement: it takes no message that has gone meanwhile, and skips those that are being worked on. One look-up each, and by
    -- address: see once._promote.
    SELECT array_agg(t.address) INTO taken
      FROM (SELECT p.ctid AS address
              FROM (SELECT a.address FROM unnest(heads) AS u (id)
                     CROSS JOIN LATERAL (SELECT k.ctid AS address FROM once.parked_message AS k
                                          WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                                            AND k.message_id BETWEEN (u.id COLLATE "C") AND (u.id COLLATE "C")
                                          ORDER BY k.message_id LIMIT 1) AS a) AS f
              JOIN once.parked_message AS p ON p.ctid = f.address
             WHERE p.state <> 'dead' AND p.next_at <= now
             ORDER BY p.position LIMIT take
               FOR UPDATE OF p SKIP LOCKED) AS t;
    followers := (take - cardinality(taken)) / cardinality(taken);
    IF lines AND followers > 0 THEN
        SELECT array_agg(c.address), array_agg(c.key_hash), array_agg(c.place) INTO followed, lanes, places
          FROM unnest(taken) AS u (address)
          JOIN once.parked_message AS p ON p.ctid = u.address
         CROSS JOIN LATERAL (
               SELECT n.address, n.key_hash, n.place
                 FROM (SELECT e.address, e.key_hash, row_number() OVER line AS place,
                              bool_and(e.state <> 'dead' AND e.next_at <= now) OVER line AS free,
                              sum(e.bytes) OVER line AS bytes
                         FROM (SELECT m.ctid AS address, m.key_hash, m.position, m.state, m.next_at,
                                      coalesce(octet_length(m.payload), 0) AS bytes
                                 FROM once.parked_message AS m
                                WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C"
                                  AND m.key_hash = p.key_hash AND m.position > p.position
                                  AND NOT (skip_dead AND m.state = 'dead')
                                ORDER BY m.key_hash, m.position LIMIT followers) AS e
                       WINDOW line AS (ORDER BY e.position)) AS n
                WHERE n.free AND n.bytes <= bytes_most / cardinality(taken)) AS c;
        -- Locked too, so that no operator decides on one meanwhile; the line ends before one that another session has locked.
        SELECT taken || array_agg(f.address) INTO taken
          FROM (SELECT l.address, l.place = row_number() OVER (PARTITION BY l.lane ORDER BY l.place) AS follows
                  FROM (SELECT p.ctid AS address, u.lane, u.place
                          FROM unnest(followed, lanes, places) AS u (address, lane, place)
                          JOIN once.parked_message AS p ON p.ctid = u.address
                         WHERE p.state <> 'dead' AND p.next_at <= now
                           FOR UPDATE OF p SKIP LOCKED) AS l) AS f
         WHERE f.follows;
    END IF;
    RETURN QUERY
    SELECT p.message_id::text, p.topic::text, p.key::text, p.headers, p.payload, p.fingerprint, p.attempts
      FROM unnest(taken) AS u (address) JOIN once.parked_message AS p ON p.ctid = u.address
     ORDER BY p.position;
END $$;
$file$;
        EXECUTE $file$
-- once_job.message_look(consumer, tenant, message_ids[], keys[], skip_dead): the parked state of messages, without the inbox: for a
-- consumer that works under leases (once.claim_many) and so cannot call once.receive_many. One row per element, in order (ordinal from
-- 1): 'parked' (the message itself is), 'blocked' (one of its key is; with skip_dead: and not dead), or 'free'. Writes nothing. Raises
-- 22023 for arrays of unequal length or more than 10,000 elements, P4000 for the consumer, P4003 for the tenant.
CREATE OR REPLACE FUNCTION once_job.message_look(consumer text, tenant text, message_ids text[], keys text[],
    skip_dead boolean DEFAULT false) RETURNS TABLE (ordinal integer, verdict text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._check_batch(tenant, once._length(message_ids, 0),
        once._length(keys, once._length(message_ids, 0)));
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    RETURN QUERY
    SELECT u.ord::integer,
           CASE WHEN (SELECT true FROM once.parked_message AS m
                              WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C"
                                AND m.message_id BETWEEN (u.id COLLATE "C") AND (u.id COLLATE "C")
                              ORDER BY m.message_id LIMIT 1) THEN 'parked'
                WHEN (SELECT true FROM once.parked_message AS k
                              WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                                AND k.key_hash = hashtextextended(u.key COLLATE "C", 0)
                                AND NOT (skip_dead AND k.state = 'dead')
                              ORDER BY k.key_hash, k.position LIMIT 1) THEN 'blocked'
                ELSE 'free' END
      FROM unnest(message_ids, keys) WITH ORDINALITY AS u (id, key, ord)
     ORDER BY u.ord;
END $$;
$file$;
        EXECUTE $file$
-- once_job.message_park(consumer, tenant, messages): stores messages that cannot be applied now, with their content, so that the broker
-- may delete them: state 'waiting' (behind another of its key), 'retrying' (after wait_ms, by the database's clock) or 'dead' (after the
-- last attempt). A message that is parked already gets the new state, attempts and error, and keeps its place and content. A message that
-- was applied is not parked. Runs in the caller's transaction; acknowledge them after COMMIT. Returns how many are parked now.
-- message_id: 1 to 512 bytes, the key of the message in the inbox, here and in all functions for parked messages: so 'pgonce:id:' || id
-- for a UUIDv7, unless it is received with birthdays (once.receive). fingerprint: 16 to 64 bytes. Raises 22023 for an incomplete message,
-- P4000 for the consumer, P4003 for the tenant.
CREATE OR REPLACE FUNCTION once_job.message_park(consumer text, tenant text, messages once.parked[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    bad text;
    parked integer;
BEGIN
    PERFORM once._check_consumer(tenant, consumer);
    SELECT format('message_id=%s state=%s', quote_nullable(left(m.message_id, 80)), quote_nullable(left(m.state, 80)))
      INTO bad
      FROM unnest(messages) AS m
     WHERE (octet_length(m.message_id) BETWEEN 1 AND 512 AND m.topic IS NOT NULL
            AND octet_length(m.fingerprint) BETWEEN 16 AND 64 AND m.state IN ('waiting', 'retrying', 'dead')) IS NOT TRUE
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: a message to park is incomplete',
            DETAIL = regexp_replace(format('consumer=%s %s', quote_nullable(left(consumer, 80)), bad), '[[:cntrl:]]', '?',
                'g'),
            HINT = 'message_id: 1 to 512 bytes; topic; fingerprint: 16 to 64 bytes; state: waiting, retrying or dead.';
    END IF;
    -- Another process may be applying a parked one. A separate statement waits until that has ended, so that the snapshot of the next one
    -- sees the result. One look-up each, and by address: see once._promote.
    PERFORM FROM once.parked_message AS p
      WHERE p.ctid = ANY (ARRAY(SELECT a.address FROM unnest(messages) AS u
                                 CROSS JOIN LATERAL (SELECT k.ctid AS address FROM once.parked_message AS k
                                                      WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                                                        AND k.message_id BETWEEN (u.message_id COLLATE "C") AND (u.message_id COLLATE "C")
                                                      ORDER BY k.message_id LIMIT 1) AS a))
      ORDER BY p.message_id FOR UPDATE;
    INSERT INTO once.parked_message AS p (consumer, tenant, message_id, topic, key, headers, payload, fingerprint, state,
                                          attempts, next_at, error, sqlstate, parked_at, updated_at)
    SELECT consumer, tenant, e.message_id, e.topic, e.key, e.headers, e.payload, e.fingerprint, e.state,
           coalesce(e.attempts, 0), now + coalesce(e.wait_ms, 0) * interval '1 ms', left(e.error, 2000), e.sqlstate, now, now
      FROM (SELECT DISTINCT ON (u.message_id COLLATE "C") u.*, min(u.ord) OVER (PARTITION BY u.message_id COLLATE "C") AS place,
                   once._bucket(u.message_id) AS bucket
              FROM unnest(messages) WITH ORDINALITY AS u (message_id, topic, key, headers, payload, fingerprint, state,
                                                          attempts, wait_ms, error, sqlstate, ord)
             ORDER BY u.message_id COLLATE "C", u.ord DESC) AS e
     WHERE (SELECT i.fingerprint = e.fingerprint AND i.state = 'succeeded' FROM once.intent AS i
             WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C"
               AND i.key = e.message_id COLLATE "C" AND i.bucket = e.bucket LIMIT 1) IS NOT TRUE
     ORDER BY e.place
    ON CONFLICT ON CONSTRAINT parked_message_pkey DO UPDATE
       SET state = EXCLUDED.state, attempts = EXCLUDED.attempts, next_at = EXCLUDED.next_at, error = EXCLUDED.error,
           sqlstate = EXCLUDED.sqlstate, updated_at = EXCLUDED.updated_at;
    GET DIAGNOSTICS parked = ROW_COUNT;
    RETURN parked;
END $$;
$file$;
        EXECUTE $file$
-- once.receive(consumer, message_id, fingerprint, tenant, traceparent, birthdays): the inbox, in the consumer's own transaction. Returns:
--   process    apply the message, then COMMIT
--   duplicate  it was applied before: acknowledge it
-- A message is an intent whose scope is the consumer. Use the natural business id, never a broker offset. An id is only a name, and a
-- message of any age is applied: the intent's key is the id, or 'pgonce:id:' || id if that is a UUIDv7, as in pgonce consume.
--
-- With birthdays => true a UUIDv7 is its own key and is kept with its day, which is deleted as a whole; a message of a retired day is then
-- refused, even if it was never applied. A consumer must not change between the two: see once.consumer_ids.
--
-- Raises P4050 if the id came with another payload, P4029 if another transaction is applying it now, 40001 after a race above READ
-- COMMITTED; with birthdays P4041 if it is older than the retention, P4001 if its day has not begun, P4098.
CREATE OR REPLACE FUNCTION once.receive(consumer text, message_id text, fingerprint bytea, tenant text DEFAULT '',
    traceparent text DEFAULT NULL, birthdays boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._check_and_lock(tenant, consumer, message_id, fingerprint, false);
    now timestamptz := clock_timestamp();
    open boolean;
    stored record;
    counted bigint;
BEGIN
    IF bucket > 0 THEN
        IF birthdays IS NOT TRUE THEN
            message_id := 'pgonce:id:' || message_id;
            bucket := 0;
        END IF;
    END IF;
    IF traceparent IS NOT NULL THEN
        traceparent := once._trace(traceparent);
    END IF;
    IF pg_try_advisory_xact_lock(once._lock_id(tenant, consumer, message_id)) THEN
        IF bucket = 0 OR once._is_today(bucket) THEN
            open := true;
        ELSE                            -- in its own branch: an expression is prepared as a whole
            open := once._is_open(bucket) OR once._open_day(bucket) = 'open';
        END IF;
        IF open THEN
            INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                                     traceparent)
            VALUES (now, now, now, bucket, CASE WHEN bucket > 0 THEN 1 ELSE once._first_fence() END, 1, 'succeeded', tenant,
                consumer, message_id, fingerprint, traceparent)
            ON CONFLICT DO NOTHING;
            IF FOUND THEN
                counted := nextval('once.counted_process');     -- an assignment starts no query
                RETURN 'process';
            END IF;
        END IF;
    END IF;
    SELECT i.state, i.fingerprint INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C" AND i.key = message_id COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND THEN
        SELECT a.state, a.fingerprint INTO stored FROM once._archived(tenant, consumer, message_id, bucket) AS a
            WHERE a.state IS NOT NULL;
        IF NOT FOUND THEN
            PERFORM once._refuse_day(tenant, consumer, message_id, bucket);
            PERFORM once._refuse('P4029', tenant, consumer, message_id, 'another transaction is applying this message');
        END IF;
    END IF;
    IF stored.fingerprint <> fingerprint THEN
        PERFORM once._count('message_mismatch');
        PERFORM once._refuse('P4050', tenant, consumer, message_id);
    ELSIF stored.state <> 'succeeded' THEN
        PERFORM once._refuse('P4099', tenant, consumer, message_id,
            format('an attempt under a lease left it %s: use claim throughout', stored.state));
    END IF;
    PERFORM once._count('duplicate');
    RETURN 'duplicate';
END $$;
$file$;
        EXECUTE $file$
-- once.receive_many(consumer, message_ids[], keys[], fingerprints[], tenant, skip_dead, traceparents[], birthdays): the inbox for a batch
-- of messages (see once.receive) in one statement, in the consumer's own transaction. keys: messages with the same key are handled in
-- order (NULL: in no order). One row per element, in order (ordinal from 1):
--   process            apply it, then COMMIT
--   duplicate          it was applied before, or is earlier in this batch: acknowledge it
--   parked             it is parked (once_job.message_park): acknowledge it
--   blocked            one of its key is parked (with skip_dead: and not dead), or fails earlier in this batch: park it behind
--   mismatch           P4050: its id came with another payload
--   processing_active  P4029: another transaction is applying it now; try again
--   invalid            code gives the reason: P4001, P4003, P4099; with birthdays P4041, P4098 (try again)
-- code is NULL if there is no error. A bad element never affects its neighbours. Raises only for the batch as a whole: 22023 for arrays
-- of unequal length or more than 10,000 elements, P4000 for the consumer, P4003 for the tenant, 40001 after a race above READ COMMITTED.
--
-- Why it is written so: if all messages are new and nothing is parked, one statement suffices: see once.claim_many. Otherwise three: check
-- and lock, look, insert the new ones. The locks are taken before the look, so no INSERT waits for another transaction. Elements are
-- decided one by one only if something is unusual. The settings pin the plans, as in once.claim_many.
CREATE OR REPLACE FUNCTION once.receive_many(consumer text, message_ids text[], keys text[], fingerprints bytea[], tenant text DEFAULT '',
    skip_dead boolean DEFAULT false, traceparents text[] DEFAULT NULL, birthdays boolean DEFAULT false)
RETURNS TABLE (ordinal integer, verdict text, code text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    size integer := cardinality(message_ids);
    now timestamptz := clock_timestamp();
    today integer;
    today_open boolean;
    counted bigint;
    buckets integer[];
    first_fence integer;
    first_bucket integer;
    last_bucket integer;
    codes text[];           -- what is wrong with an element alone
    firsts integer[];       -- the first position of its id in this batch
    opaque boolean := birthdays IS NOT TRUE;
    renamed boolean;        -- the ids are UUIDv7s, and opaque
    of_today boolean;
    takeable boolean[];     -- its lock is held, and its day is plainly open
    plain boolean;          -- all of them are
    stored text[];          -- from the inbox: NULL nothing, 'duplicate', or an SQLSTATE
    held text[];            -- from the parked messages: NULL nothing, 'parked', 'P4050', 'blocked'
    chosen boolean[];
    fresh integer;
    entered integer;
    behind text[];
    verdicts text[];
BEGIN
    IF once._quick_check_batch(tenant, size, array_dims(message_ids), array_dims(fingerprints),
                      CASE WHEN keys IS NULL THEN array_dims(message_ids) ELSE array_dims(keys) END,
                      CASE WHEN traceparents IS NULL THEN array_dims(message_ids) ELSE array_dims(traceparents) END) IS NOT TRUE THEN
        size := once._check_batch(tenant, once._length(message_ids, 0), once._length(keys, once._length(message_ids, 0)),
                                  once._length(fingerprints, 0), once._length(traceparents, once._length(message_ids, 0)));
    END IF;
    IF traceparents IS NOT NULL THEN
        FOR n IN 1 .. size LOOP
            traceparents[n] := once._trace(traceparents[n]);
        END LOOP;
    END IF;
    IF (length(consumer) BETWEEN 1 AND 255) IS NOT TRUE THEN
        PERFORM once._refuse('P4000', tenant, consumer, NULL);
    ELSIF size = 0 THEN
        RETURN;
    END IF;

    <<short>>
    BEGIN
        EXIT short WHEN current_setting('transaction_isolation') <> 'read committed';
        IF message_ids[1] COLLATE "C" NOT LIKE '________-____-7%' THEN
            first_bucket := 0;
            FOR n IN 1 .. size LOOP
                EXIT short WHEN (octet_length(fingerprints[n]) BETWEEN 16 AND 64 AND once._is_undated(message_ids[n])
                                 AND pg_try_advisory_xact_lock(once._lock_id(tenant, consumer, message_ids[n]))) IS NOT TRUE;
            END LOOP;
        ELSIF opaque THEN
            first_bucket := 0;
            renamed := true;
            FOR n IN 1 .. size LOOP
                EXIT short WHEN (octet_length(fingerprints[n]) BETWEEN 16 AND 64 AND message_ids[n] COLLATE "C" LIKE '________-____-7___-____-____________' AND once._is_dated(message_ids[n])
                                 AND pg_try_advisory_xact_lock(once._lock_id(tenant, consumer, 'pgonce:id:' || message_ids[n]))) IS NOT TRUE;
            END LOOP;
        ELSE
            first_bucket := once._match_day(message_ids[1], once._today());
            of_today := first_bucket IS NOT NULL;
            IF of_today THEN
                FOR n IN 1 .. size LOOP
                    EXIT short WHEN (octet_length(fingerprints[n]) BETWEEN 16 AND 64 AND message_ids[n] COLLATE "C" LIKE '________-____-7___-____-____________' AND once._is_dated(message_ids[n]) AND once._match_day(message_ids[n], once._today()) = first_bucket
                                     AND pg_try_advisory_xact_lock(once._lock_id(tenant, consumer, message_ids[n]))) IS NOT TRUE;
                END LOOP;
                of_today := once._is_today(first_bucket);
            ELSE
                first_bucket := once._bucket(message_ids[1]);
                FOR n IN 1 .. size LOOP
                    EXIT short WHEN (octet_length(fingerprints[n]) BETWEEN 16 AND 64 AND once._bucket(message_ids[n]) = first_bucket AND first_bucket >= 0
                                     AND pg_try_advisory_xact_lock(once._lock_id(tenant, consumer, message_ids[n]))) IS NOT TRUE;
                END LOOP;
            END IF;
        END IF;
        IF size <= 4000 THEN
            EXIT short WHEN length(array_to_tsvector(message_ids)) <> size;
        ELSE
            EXIT short WHEN (SELECT count(DISTINCT name COLLATE "C") FROM unnest(message_ids) AS name) <> size;
        END IF;
        IF first_bucket > 0 AND NOT of_today THEN
            EXIT short WHEN NOT once._is_open(first_bucket);
        END IF;
        IF renamed THEN     -- no such id has a comma
            message_ids := string_to_array('pgonce:id:' || array_to_string(message_ids, ',pgonce:id:'), ',');
        END IF;
        plain := true;
        IF first_bucket = 0 THEN
            first_fence := once._first_fence();
            INSERT INTO once.intent_d0 AS i (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                                     traceparent)
            SELECT now, now, now, 0, first_fence, 1, 'succeeded', tenant, consumer, message_ids[n], fingerprints[n], traceparents[n]
              FROM generate_series(1, size) AS n
             WHERE first_bucket = 0
               AND NOT EXISTS (SELECT FROM generate_series(1, size) AS n
                                WHERE (SELECT true FROM once.intent_d0 AS i
                                        WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C"
                                          AND i.key = message_ids[n] COLLATE "C" AND i.bucket = 0))
               AND NOT EXISTS (SELECT FROM once.parked_message AS p
                                WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C");
        ELSIF of_today THEN
            INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                                     traceparent)
            SELECT now, now, now, once._today(), 1, 1, 'succeeded', tenant, consumer, message_ids[n], fingerprints[n], traceparents[n]
              FROM generate_series(1, size) AS n
             WHERE first_bucket = once._today()
               AND NOT EXISTS (SELECT FROM generate_series(1, size) AS n
                                WHERE (SELECT true FROM once.intent AS i
                                        WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C"
                                          AND i.key = message_ids[n] COLLATE "C" AND i.bucket = once._today()))
               AND NOT EXISTS (SELECT FROM once.parked_message AS p
                                WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C");
        ELSE
            INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                                     traceparent)
            SELECT now, now, now, first_bucket, 1, 1, 'succeeded', tenant, consumer, message_ids[n], fingerprints[n], traceparents[n]
              FROM generate_series(1, size) AS n
             WHERE first_bucket = first_bucket
               AND NOT EXISTS (SELECT FROM generate_series(1, size) AS n
                                WHERE (SELECT true FROM once.intent AS i
                                        WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C"
                                          AND i.key = message_ids[n] COLLATE "C" AND i.bucket = first_bucket))
               AND NOT EXISTS (SELECT FROM once.parked_message AS p
                                WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C");
        END IF;
        IF FOUND THEN
            verdict := 'process';
            FOR n IN 1 .. size LOOP
                ordinal := n;
                counted := nextval('once.counted_process');     -- an assignment starts no query
                RETURN NEXT;
            END LOOP;
            RETURN;
        END IF;
    END;

    behind := '{}';
    IF plain THEN
        last_bucket := first_bucket;
        buckets := array_fill(first_bucket, ARRAY[size]);
        codes := array_fill(NULL::text, ARRAY[size]);
        firsts := ARRAY(SELECT generate_series(1, size));
        takeable := array_fill(true, ARRAY[size]);
    ELSE
        IF opaque THEN
            message_ids := ARRAY(SELECT CASE WHEN once._bucket(u.id) > 0 THEN 'pgonce:id:' || u.id ELSE u.id END
                                   FROM unnest(message_ids) WITH ORDINALITY AS u (id, n) ORDER BY u.n);
        END IF;
        today := floor(date_part('epoch', now) / 86400);
        IF once._is_new_day() THEN
            PERFORM once._make_days(NULL);
        END IF;
        today_open := once._has_day('intent', today);       -- computed once, since most keys are of today
        SELECT array_agg(c.bucket ORDER BY c.ord), min(c.bucket), max(c.bucket), array_agg(c.code ORDER BY c.ord),
               array_agg(c.first_ord ORDER BY c.ord), array_agg(c.takeable ORDER BY c.ord), bool_and(c.takeable)
          INTO buckets, first_bucket, last_bucket, codes, firsts, takeable, plain
          FROM (SELECT n.ord, n.bucket, n.code, n.first_ord,
                       CASE WHEN n.code IS NULL AND n.first_ord = n.ord
                                 AND CASE WHEN n.bucket = today THEN today_open
                                          ELSE n.bucket = 0 OR (n.bucket < today
                                               AND once._has_day('intent', n.bucket)) END
                            THEN pg_try_advisory_xact_lock(once._lock_id(tenant, consumer, n.id))
                            ELSE false END AS takeable
                  FROM (SELECT b.*, min(b.ord) OVER (PARTITION BY b.id COLLATE "C", b.code IS NULL)::integer AS first_ord
                          FROM (SELECT u.id, u.ord, u.bucket,
                                       CASE WHEN (u.bucket >= 0) IS NOT TRUE THEN 'P4001'
                                            WHEN (octet_length(u.fingerprint) BETWEEN 16 AND 64) IS NOT TRUE
                                            THEN 'P4003' END AS code
                                  FROM (SELECT e.*, once._bucket(e.id) AS bucket
                                          FROM unnest(message_ids, fingerprints) WITH ORDINALITY AS e (id, fingerprint, ord)
                                        OFFSET 0) AS u) AS b) AS n) AS c;
    END IF;

    -- A new statement, now that the locks are held.
    SELECT array_agg(CASE WHEN s.state IS NULL THEN NULL WHEN s.fingerprint <> u.fingerprint THEN 'P4050'
                          WHEN s.state = 'succeeded' THEN 'duplicate' ELSE 'P4099' END ORDER BY u.ord),
           count(*) FILTER (WHERE s.state IS NULL)
      INTO stored, fresh
      FROM unnest(message_ids, fingerprints, buckets, codes)
           WITH ORDINALITY AS u (id, fingerprint, bucket, code, ord)
      LEFT JOIN LATERAL (SELECT i.state, i.fingerprint FROM once.intent AS i
                          WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C"
                            AND i.key = u.id COLLATE "C" AND i.bucket = u.bucket
                            AND i.bucket BETWEEN first_bucket AND last_bucket LIMIT 1) AS s ON u.code IS NULL;
    IF EXISTS (SELECT FROM once.parked_message AS p WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C")
    THEN
        plain := false;
        SELECT array_agg(CASE WHEN p.state IS NOT NULL
                              THEN CASE WHEN p.fingerprint = u.fingerprint THEN 'parked' ELSE 'P4050' END
                              WHEN (SELECT true FROM once.parked_message AS k
                                            WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                                              AND k.key_hash = hashtextextended(u.key COLLATE "C", 0)
                                              AND NOT (skip_dead AND k.state = 'dead')
                                            ORDER BY k.key_hash, k.position LIMIT 1) THEN 'blocked' END ORDER BY u.ord)
          INTO held
          -- BETWEEN, LIMIT and the order: see once._promote.
          FROM unnest(message_ids, keys, fingerprints) WITH ORDINALITY AS u (id, key, fingerprint, ord)
          LEFT JOIN LATERAL (SELECT m.state, m.fingerprint FROM once.parked_message AS m
                              WHERE m.consumer = consumer COLLATE "C" AND m.tenant = tenant COLLATE "C"
                                AND m.message_id BETWEEN (u.id COLLATE "C") AND (u.id COLLATE "C")
                              ORDER BY m.message_id LIMIT 1) AS p ON true;
    END IF;

    IF plain AND NOT ('P4050' = ANY (stored) OR 'P4099' = ANY (stored)) IS TRUE THEN
        chosen := NULL;
        RETURN QUERY SELECT u.ord::integer, coalesce(u.stored, 'process'), NULL
                       FROM unnest(stored) WITH ORDINALITY AS u (stored, ord);
    ELSE
        verdicts := array_fill(NULL::text, ARRAY[size]);
        chosen := array_fill(false, ARRAY[size]);
        fresh := 0;
        FOR n IN 1 .. size LOOP
            ordinal := n;
            verdict := stored[n];
            code := codes[n];
            IF code IS NULL AND verdict IS NULL AND NOT takeable[n]
               AND (firsts[n] = n OR verdicts[firsts[n]] NOT IN ('process', 'blocked', 'parked')) THEN
                -- Locked by another, or of a day that is not plainly open.
                verdict := once._receivable(tenant, consumer, message_ids[n], buckets[n], fingerprints[n]);
                IF verdict = 'new' THEN
                    verdict := CASE WHEN firsts[n] < n THEN 'P4029' END;
                ELSIF verdict = 'P4029' AND held[n] IN ('parked', 'P4050') THEN
                    verdict := NULL;
                END IF;
            END IF;
            IF code IS NULL AND verdict IS NULL THEN
                IF held[n] IN ('parked', 'P4050') THEN
                    verdict := held[n];
                ELSIF firsts[n] < n THEN
                    -- The same message again, which cannot be looked up yet.
                    verdict := CASE WHEN verdicts[firsts[n]] = 'blocked' THEN 'blocked'
                                    WHEN fingerprints[n] = fingerprints[firsts[n]] THEN 'duplicate' ELSE 'P4050' END;
                ELSIF held[n] = 'blocked' OR keys[n] = ANY (behind) THEN
                    verdict := 'blocked';
                ELSE
                    verdict := 'process';
                    chosen[n] := true;
                    fresh := fresh + 1;
                END IF;
            END IF;
            code := coalesce(code, CASE WHEN verdict LIKE 'P4%' THEN verdict END);
            verdicts[n] := coalesce(code, verdict);
            verdict := CASE code WHEN 'P4050' THEN 'mismatch' WHEN 'P4029' THEN 'processing_active' ELSE
                       CASE WHEN code IS NULL THEN verdict ELSE 'invalid' END END;
            IF keys[n] IS NOT NULL AND verdict NOT IN ('process', 'duplicate', 'parked')
               AND NOT (skip_dead AND verdict IN ('mismatch', 'invalid')) THEN
                behind := behind || keys[n];
            END IF;
            RETURN NEXT;
        END LOOP;
    END IF;

    INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                             traceparent)
    SELECT now, now, now, u.bucket, CASE WHEN u.bucket > 0 THEN 1 ELSE once._first_fence() END, 1, 'succeeded', tenant, consumer,
           u.id, u.fingerprint, u.traceparent
      FROM unnest(message_ids, fingerprints, buckets, stored, chosen, traceparents)
           AS u (id, fingerprint, bucket, stored, chosen, traceparent)
     WHERE coalesce(u.chosen, u.stored IS NULL)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS entered = ROW_COUNT;
    IF entered <> fresh THEN
        -- Their locks were held and no row existed: only a caller that wrote to the table directly gets here.
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'pgonce: the inbox has changed under its locks',
            DETAIL = format('consumer=%s: %s of %s messages were entered', quote_nullable(left(consumer, 80)), entered, fresh),
            HINT = 'Roll back and receive the batch again.';
    END IF;
    PERFORM once._count('process', fresh);
    IF verdicts IS NULL THEN
        PERFORM once._count('duplicate', size - fresh);
    ELSE
        PERFORM once._count('duplicate', cardinality(array_positions(verdicts, 'duplicate')));
        PERFORM once._count('message_mismatch', cardinality(array_positions(verdicts, 'P4050')));
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._check_consumer(tenant, consumer): raises if the names in a call about parked messages are invalid, or the caller has no right to
-- the tenant.
CREATE OR REPLACE FUNCTION once._check_consumer(tenant text, consumer text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._check_and_lock(tenant, consumer, 'none', E'\\x00000000000000000000000000000000', false);
END $$;
$file$;
        EXECUTE $file$
-- once._receivable(tenant, consumer, message_id, bucket, fingerprint): the thorough check of one message, for those that
-- once.receive_many leaves over: 'new' (and its lock is held), 'duplicate', or the SQLSTATE that once.receive would raise.
CREATE OR REPLACE FUNCTION once._receivable(tenant text, consumer text, message_id text, bucket integer, fingerprint bytea)
RETURNS text LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    locked boolean := pg_try_advisory_xact_lock(once._lock_id(tenant, consumer, message_id));
    stored once.intent;
    day text;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = consumer COLLATE "C" AND i.key = message_id COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND AND bucket <> 0 THEN
        stored := once._archived(tenant, consumer, message_id, bucket);
    END IF;
    IF stored.state IS NOT NULL THEN
        RETURN CASE WHEN stored.fingerprint <> fingerprint THEN 'P4050'
                    WHEN stored.state = 'succeeded' THEN 'duplicate' ELSE 'P4099' END;
    END IF;
    day := once._open_day(bucket);
    RETURN CASE WHEN day = 'closed' THEN 'P4041' WHEN day = 'future' THEN 'P4001' WHEN day = 'missing' THEN 'P4098'
                WHEN locked THEN 'new' ELSE 'P4029' END;
END $$;
$file$;
        EXECUTE $file$
-- once.parked_discard(id, reason, relay, consumer, tenant): gives up a parked event or message; those parked behind it, of its aggregate
-- or key, continue. The arguments are those of once.parked_retry. An event: this relay (NULL: each relay that has it parked) no longer
-- delivers it, and it stays in the outbox; an attempt that is under way at this moment may still succeed. A delayed event is deleted; see
-- once.cancel_event for applications. A message: it will not be applied, and it is entered in the inbox, so that it is a duplicate if the
-- broker delivers it again. Waits while an attempt at it is under way, and returns false if that succeeded. Recorded in
-- once.parked_decision. False if it is neither parked nor delayed. Raises 22023 for a missing reason or an unknown relay, P4029 for a
-- message that another transaction is receiving, P4000 for the consumer, P4003 for the tenant; and, as once.receive would, P4098 or P4001
-- for a message whose id is a UUIDv7 of a day that has no partition or has not begun: no row could then prevent that it is applied.
CREATE OR REPLACE FUNCTION once.parked_discard(id text, reason text, relay text DEFAULT NULL, consumer text DEFAULT NULL, tenant text DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN once._decide_one('discard', $1, $2, $3, $4, $5);
END $$;
$file$;
        EXECUTE $file$
-- once.parked_discard_many(reason, kind, relay, consumer, tenant, topic, event_type, error, state, before, dry_run, take, after):
-- once.parked_discard for all matching parked events and messages, in parts; arguments and results are those of once.parked_retry_many.
-- By default a dry run. Those parked behind them continue. state 'delayed': the events of once.emit_later, which are cancelled.
-- skipped, for messages: P4029, another session is trying or deciding them now; P4098 or P4001, the day of their UUIDv7 has no partition
-- or has not begun, so that no row could prevent that they are applied. Raises what once.parked_retry_many does.
CREATE OR REPLACE FUNCTION once.parked_discard_many(reason text DEFAULT NULL, kind text DEFAULT NULL, relay text DEFAULT NULL,
    consumer text DEFAULT NULL, tenant text DEFAULT NULL, topic text DEFAULT NULL, event_type text DEFAULT NULL,
    error text DEFAULT NULL, state text DEFAULT NULL, before timestamptz DEFAULT NULL, dry_run boolean DEFAULT true,
    take integer DEFAULT 1000, after text DEFAULT NULL)
RETURNS TABLE (met_kind text, met_holder text, met_topic text, met_state text, skipped text, items bigint, next text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT * FROM once._decide_many('discard', once._parked_filter($2, $3, $4, $5, $6, $7, $8, $9, $10,
        ARRAY['waiting', 'retrying', 'dead', 'delayed']), $1, $11, $12, $13);
END $$;
$file$;
        EXECUTE $file$
-- once.parked_list(kind, relay, consumer, tenant, topic, event_type, error, state, before, id, take, after): parked events and messages, at
-- most `take`: 'dead' (after the last attempt: decide with once.parked_retry or once.parked_discard), then 'retrying' (at next_at), then
-- 'waiting' (behind another of its aggregate or key, or for its first attempt); in each state the events by relay, and then the messages
-- by consumer, the oldest first. Each argument narrows the list, as for once.parked_retry_many; NULL does not. Two states, of events, are
-- listed only if state names them: 'pending' (the relay has not reached it yet) and 'delayed' (once.emit_later; no relay has it yet), the
-- first due first. next_at NULL: not before the earlier ones are gone. To continue, pass place of the last row as after, with the same
-- filter. Raises 22023 for a filter that matches nothing and for an invalid place, P4000 for the consumer, P4003 for the tenant.
CREATE OR REPLACE FUNCTION once.parked_list(kind text DEFAULT NULL, relay text DEFAULT NULL, consumer text DEFAULT NULL, tenant text DEFAULT NULL,
    topic text DEFAULT NULL, event_type text DEFAULT NULL, error text DEFAULT NULL, state text DEFAULT NULL,
    before timestamptz DEFAULT NULL, id text DEFAULT NULL, take integer DEFAULT 100, after text DEFAULT NULL)
RETURNS SETOF once.parked_item
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    wanted once.parked_filter := once._parked_filter(kind, relay, consumer, tenant, topic, event_type, error, state, before,
        ARRAY['waiting', 'retrying', 'dead', 'pending', 'delayed']);
    event uuid := once._event_id(id);
    -- The number of the state, the kind, the place in it (of a delayed event: its times and its id), and the relay or consumer.
    part text[] := regexp_match(after, '^([1-5]):(event|message):([0-9]{1,18}|[0-9]{1,18}[.][0-9]{1,18}(?:[.][0-9a-f-]{36})?):(.*)$');
    nth integer := part[1]::integer;
    at text[] := string_to_array(part[3], '.');
BEGIN
    IF after IS NOT NULL AND (nth = coalesce(array_position('{delayed,pending}'::text[], state) + 3, least(nth, 3))
       AND cardinality(at) = CASE nth WHEN 4 THEN 3 WHEN 5 THEN 2 ELSE 1 END) IS NOT TRUE THEN
        PERFORM once._refuse_place(after);
    END IF;
    IF (take >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: take=%s is invalid', coalesce(take::text, 'NULL')),
            HINT = 'take: the most rows to list, at least 0.';
    ELSIF state = 'delayed' THEN
        RETURN QUERY
        SELECT 'event', NULL::text, d.state, d.event_id::text, d.topic::text, d.event_type::text, d.tenant::text, d.aggregate_type::text,
               d.aggregate_id::text, NULL::text, 0, d.not_before, d.error, NULL::text, d.emitted_at,
               format('4:event:%s.%s.%s:', (1000000 * extract(epoch FROM d.not_before))::bigint,
                      (1000000 * extract(epoch FROM d.emitted_at))::bigint, d.event_id)
          FROM (SELECT h.*, 'delayed' AS state, NULL AS error FROM once.delayed_event AS h) AS d
         WHERE wanted.relay IS NULL AND (id IS NULL OR d.event_id = event)
           AND (nth IS NULL OR (d.not_before, d.emitted_at, d.event_id) >
                (to_timestamp(0) + at[1]::bigint * interval '1 microsecond',
                 to_timestamp(0) + at[2]::bigint * interval '1 microsecond', at[3]::uuid)) AND
               (wanted.topic IS NULL OR d.topic = wanted.topic COLLATE "C") AND (wanted.tenant IS NULL OR d.tenant = wanted.tenant COLLATE "C")
               AND (wanted.state IS NULL OR d.state = wanted.state COLLATE "C")
               AND (wanted.error IS NULL OR NULL = wanted.error COLLATE "C" OR strpos(lower(d.error), lower(wanted.error)) > 0)
               AND (wanted.event_type IS NULL OR d.event_type = wanted.event_type COLLATE "C") AND (wanted.before IS NULL OR d.emitted_at < wanted.before)
         ORDER BY d.not_before, d.emitted_at, d.event_id LIMIT take;
        RETURN;
    ELSIF state = 'pending' THEN
        RETURN QUERY
        SELECT 'event', r.relay::text, n.state, n.event_id::text, n.topic::text, n.event_type::text, n.tenant::text, n.aggregate_type::text,
               n.aggregate_id::text, NULL::text, 0, NULL::timestamptz, n.error, NULL::text, n.created_at,
               format('5:event:%s.%s:%s', n.xid, n.id, r.relay)
          FROM once.relay AS r
          -- In the order of their transactions, so that the first few of a long backlog are found at once.
         CROSS JOIN LATERAL (
                (SELECT e.* FROM (SELECT o.*, 'pending' AS state, NULL AS error FROM once.outbox AS o) AS e
                  WHERE e.xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip(r.seen) AS x))
                    AND (r.topics IS NULL OR e.topic LIKE ANY (r.topics))
                    AND (r.reading IS NULL OR e.id > r.after_id OR NOT pg_visible_in_snapshot(e.xid, r.reading))
                    AND (id IS NULL OR e.event_id = event)
                    AND (nth IS NULL OR r.relay > part[4] COLLATE "C" OR (e.xid, e.id) > (at[1]::xid8, at[2]::bigint)) AND
                        (wanted.topic IS NULL OR e.topic = wanted.topic COLLATE "C") AND (wanted.tenant IS NULL OR e.tenant = wanted.tenant COLLATE "C")
                        AND (wanted.state IS NULL OR e.state = wanted.state COLLATE "C")
                        AND (wanted.error IS NULL OR NULL = wanted.error COLLATE "C" OR strpos(lower(e.error), lower(wanted.error)) > 0)
                        AND (wanted.event_type IS NULL OR e.event_type = wanted.event_type COLLATE "C") AND (wanted.before IS NULL OR e.created_at < wanted.before)
                  ORDER BY e.xid, e.id LIMIT take)
                UNION ALL
                (SELECT e.* FROM (SELECT o.*, 'pending' AS state, NULL AS error FROM once.outbox AS o) AS e
                  WHERE e.xid >= pg_snapshot_xmax(r.seen) AND (r.topics IS NULL OR e.topic LIKE ANY (r.topics))
                    AND (r.reading IS NULL OR e.id > r.after_id OR NOT pg_visible_in_snapshot(e.xid, r.reading))
                    AND (id IS NULL OR e.event_id = event)
                    AND (nth IS NULL OR r.relay > part[4] COLLATE "C" OR (e.xid, e.id) > (at[1]::xid8, at[2]::bigint)) AND
                        (wanted.topic IS NULL OR e.topic = wanted.topic COLLATE "C") AND (wanted.tenant IS NULL OR e.tenant = wanted.tenant COLLATE "C")
                        AND (wanted.state IS NULL OR e.state = wanted.state COLLATE "C")
                        AND (wanted.error IS NULL OR NULL = wanted.error COLLATE "C" OR strpos(lower(e.error), lower(wanted.error)) > 0)
                        AND (wanted.event_type IS NULL OR e.event_type = wanted.event_type COLLATE "C") AND (wanted.before IS NULL OR e.created_at < wanted.before)
                  ORDER BY e.xid, e.id LIMIT take)) AS n
         WHERE (wanted.relay IS NULL OR r.relay = wanted.relay COLLATE "C") AND r.written_by = r.xmin
           AND (nth IS NULL OR r.relay >= part[4] COLLATE "C")
         ORDER BY r.relay, n.xid, n.id LIMIT take;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT l.kind, l.holder, w.state, l.id, l.topic, l.event_type, l.tenant, l.aggregate_type, l.aggregate_id, l.key, l.attempts,
           l.next_at, l.error, l.sqlstate, l.since, format('%s:%s:%s:%s', w.nth, l.kind, l.place, l.holder)
      FROM (VALUES (1, 'dead'), (2, 'retrying'), (3, 'waiting')) AS w (nth, state)
     CROSS JOIN LATERAL (
          (SELECT 'event' AS kind, p.relay::text AS holder, p.event_id::text AS id, p.topic::text, o.event_type::text, p.tenant::text,
                  p.aggregate_type::text, p.aggregate_id::text, NULL::text AS key, p.attempts,
                  CASE WHEN p.state = 'retrying' OR (p.state = 'waiting' AND NOT EXISTS (
                                SELECT FROM once.parked_event AS b
                                 WHERE b.relay = p.relay AND b.aggregate = p.aggregate AND b.id < p.id))
                       THEN p.next_at END AS next_at, p.error, NULL::text AS sqlstate, o.created_at AS since, p.id AS place
             FROM (SELECT q.* FROM once.parked_event AS q
                    WHERE wanted.kind IS DISTINCT FROM 'message' AND (wanted.relay IS NULL OR q.relay = wanted.relay COLLATE "C")
                      AND (id IS NULL OR q.event_id = event) AND q.state = w.state COLLATE "C"
                      AND (nth IS NULL OR w.nth > nth OR (w.nth = nth AND part[2] = 'event'
                           AND (q.relay, q.id) > (part[4] COLLATE "C", part[3]::bigint))) AND
                          (wanted.topic IS NULL OR q.topic = wanted.topic COLLATE "C") AND (wanted.tenant IS NULL OR q.tenant = wanted.tenant COLLATE "C")
                          AND (wanted.state IS NULL OR q.state = wanted.state COLLATE "C")
                          AND (wanted.error IS NULL OR NULL = wanted.error COLLATE "C" OR strpos(lower(q.error), lower(wanted.error)) > 0)
                          AND (wanted.event_type IS NULL OR (SELECT e.event_type = wanted.event_type COLLATE "C" FROM once.outbox AS e WHERE e.xid = q.xid AND e.id = q.id AND e.day = q.day LIMIT 1)) AND (wanted.before IS NULL OR coalesce((SELECT e.created_at FROM once.outbox AS e WHERE e.xid = q.xid AND e.id = q.id AND e.day = q.day LIMIT 1), q.parked_at) < wanted.before)
                    ORDER BY q.relay, q.id LIMIT take) AS p
             LEFT JOIN LATERAL (SELECT e.event_type, e.created_at FROM once.outbox AS e
                                 WHERE e.xid = p.xid AND e.id = p.id AND e.day = p.day LIMIT 1) AS o ON true)
          UNION ALL
          (SELECT 'message', m.consumer, m.message_id, m.topic, (once._types_of(m.headers))[1], m.tenant, NULL, NULL, m.key, m.attempts,
                  CASE WHEN m.state <> 'dead' THEN m.next_at END, m.error, m.sqlstate, m.parked_at, m.position
             FROM once.parked_message AS m
            WHERE wanted.kind IS DISTINCT FROM 'event' AND (wanted.consumer IS NULL OR m.consumer = wanted.consumer COLLATE "C")
              AND (id IS NULL OR m.message_id = id COLLATE "C") AND m.state = w.state COLLATE "C"
              AND (nth IS NULL OR w.nth > nth OR (w.nth = nth AND (part[2] = 'event'
                   OR (m.consumer, m.position) > (part[4] COLLATE "C", part[3]::bigint)))) AND
                  (wanted.topic IS NULL OR m.topic = wanted.topic COLLATE "C") AND (wanted.tenant IS NULL OR m.tenant = wanted.tenant COLLATE "C")
                  AND (wanted.state IS NULL OR m.state = wanted.state COLLATE "C")
                  AND (wanted.error IS NULL OR m.sqlstate = wanted.error COLLATE "C" OR strpos(lower(m.error), lower(wanted.error)) > 0)
                  AND (wanted.event_type IS NULL OR wanted.event_type = ANY (once._types_of(m.headers))) AND (wanted.before IS NULL OR m.parked_at < wanted.before)
            ORDER BY m.consumer, m.position LIMIT take)) AS l
     WHERE (state IS NULL OR w.state = state) AND (nth IS NULL OR w.nth >= nth)
     ORDER BY w.nth, l.kind, l.holder COLLATE "C", l.place LIMIT take;
END $$;
$file$;
        EXECUTE $file$
-- once.parked_outline(id, consumer, tenant, scope, key, body): once.parked_show for people who may not see payloads: payload and
-- payload_base64 are there only if they are asked for and the caller may call once.parked_show. payload_bytes is there always, and
-- may_see_body says whether it may. Raises as once.parked_show does.
CREATE OR REPLACE FUNCTION once.parked_outline(id text, consumer text DEFAULT NULL, tenant text DEFAULT NULL, scope text DEFAULT NULL,
    key text DEFAULT NULL, body boolean DEFAULT false) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    shown jsonb := once.parked_show(id, consumer, tenant, scope, key);
    may_see boolean := has_function_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user::text),
        'once.parked_show(text, text, text, text, text)', 'execute');
BEGIN
    RETURN CASE WHEN body AND may_see THEN shown ELSE shown - '{payload,payload_base64}'::text[] END
        || jsonb_build_object('may_see_body', may_see, 'payload_bytes',
               coalesce((shown->>'payload_bytes')::integer, octet_length(shown->>'payload')));
END $$;
$file$;
        EXECUTE $file$
-- once.parked_replay(relay, from_time, topic, reason, forgotten, dry_run): makes a relay deliver events again that it has passed: every
-- event still in the outbox that was emitted since from_time (of this topic; NULL: of all that the relay takes) is parked as 'waiting', in
-- order, and newer events of their aggregates wait behind them. Receivers see the same event ids again. Events that are parked already
-- stay as they are. Returns how many it parked; recorded in once.parked_decision. Newer events that a running relay has already read are
-- not held back. Events older than the inboxes' memory would be applied a second time, so they are refused unless forgotten is true:
-- older than the retention of this database's default policy, or of a consumer that reports to this database. About consumers elsewhere
-- nothing is known here: compare with their scopes' retention. Raises 22023 for such events, for a missing reason or time, for an unknown
-- relay, and for a replication slot. A dry run counts and changes nothing.
CREATE OR REPLACE FUNCTION once.parked_replay(relay text, from_time timestamptz, topic text, reason text, forgotten boolean DEFAULT false,
    dry_run boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    stored once.relay;
    parked bigint;
    oldest timestamptz;
    remembered interval;
BEGIN
    PERFORM once._reason(reason);
    IF from_time IS NULL THEN
        PERFORM once._refuse_relay('22023', relay, 'from_time is missing', 'Events since then are replayed.');
    END IF;
    IF EXISTS (SELECT FROM once.capture AS c WHERE c.slot = relay COLLATE "C") THEN
        PERFORM once._refuse_relay('22023', relay, 'this relay is a replication slot, which sends nothing again',
            'Have its client read the table: Debezium by a snapshot.');
    END IF;
    stored := once._relay_row(relay);
    WITH passed AS MATERIALIZED (
        SELECT o.id, o.xid, o.day, o.event_id, o.topic, o.tenant, o.aggregate_type, o.aggregate_id, o.created_at
          FROM once.outbox AS o
         WHERE o.day >= floor(date_part('epoch', from_time) / 86400) AND o.created_at >= from_time
           AND (topic IS NULL OR o.topic = topic COLLATE "C")
           AND (stored.topics IS NULL OR o.topic LIKE ANY (stored.topics))
           AND (pg_visible_in_snapshot(o.xid, stored.seen)
                OR (coalesce(pg_visible_in_snapshot(o.xid, stored.reading), false) AND o.id <= stored.after_id))
    ), made AS (
        INSERT INTO once.parked_event AS p (relay, id, xid, day, event_id, topic, tenant, aggregate_type, aggregate_id, state,
                                            next_at, parked_at, updated_at)
        SELECT stored.relay, o.id, o.xid, o.day, o.event_id, o.topic, o.tenant, o.aggregate_type, o.aggregate_id, 'waiting',
               CASE WHEN o.aggregate_id IS NULL THEN now ELSE 'infinity' END, now, now
          FROM passed AS o WHERE dry_run IS NOT TRUE ORDER BY o.id
        ON CONFLICT ON CONSTRAINT parked_event_pkey DO NOTHING
        RETURNING p.id
    )
    SELECT count(*), min(o.created_at) INTO parked, oldest
      FROM passed AS o LEFT JOIN made AS m ON m.id = o.id
      LEFT JOIN once.parked_event AS p ON p.relay = stored.relay AND p.id = o.id
     WHERE m.id IS NOT NULL OR (dry_run AND p.id IS NULL);
    IF parked > 0 AND forgotten IS NOT TRUE THEN
        SELECT min(s.retention) INTO remembered FROM once.scope AS s
         WHERE s.scope = '' OR s.scope IN (SELECT c.consumer FROM once.consumer_position AS c);
        IF oldest < now - remembered THEN
            PERFORM once._refuse_relay('22023', relay, 'these events are older than an inbox remembers',
                'A consumer that has forgotten them applies them again. Begin later, or, if that is harmless or every consumer '
                    || 'remembers longer, pass forgotten => true (pgonce parked replay --force).',
                format('the oldest was emitted at %s, and the retention is %s', oldest, remembered));
        END IF;
    END IF;
    IF dry_run THEN
        RETURN parked;
    END IF;
    PERFORM once._promote(stored.relay, NULL);
    INSERT INTO once.parked_decision (decided_by, reason, what, relay, subject)
    VALUES (session_user, reason, 'replay', stored.relay, concat_ws(' ', from_time, topic));
    RETURN parked;
END $$;
$file$;
        EXECUTE $file$
-- once.parked_retry(id, reason, relay, consumer, tenant): lets a parked event or message be retried now, with a full set of attempts.
-- Those parked behind it, of its aggregate or key, follow. consumer NULL: the event of this id, with this relay (NULL: with every relay
-- that has it parked); a delayed event (once.emit_later) is due now. A relay's attempt that is under way counts as the first of them.
-- consumer given: its message of this id, of this tenant (NULL: ''); while an attempt at it is under way, the call waits. Recorded in
-- once.parked_decision. False if it is neither parked nor delayed. Raises P4041 for a message whose id is a UUIDv7 of a retired day: no
-- attempt may run; 22023 for a missing reason or an unknown relay, P4000 for the consumer, P4003 for the tenant.
CREATE OR REPLACE FUNCTION once.parked_retry(id text, reason text, relay text DEFAULT NULL, consumer text DEFAULT NULL, tenant text DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN once._decide_one('retry', $1, $2, $3, $4, $5);
END $$;
$file$;
        EXECUTE $file$
-- once.parked_retry_many(reason, kind, relay, consumer, tenant, topic, event_type, error, state, before, dry_run, take, after):
-- once.parked_retry for all matching parked events and messages, in parts: at most `take` (10,000 events of one relay, or 1,000 messages
-- of one consumer and tenant). Narrow it by kind ('event', 'message'), relay (events), consumer (messages), tenant, topic, event_type (of
-- a message in a header: Pgonce-Event-Type, a CloudEvent's type, AMQP's type), error (a part of its text, ignoring case, or its
-- SQLSTATE), state ('waiting', 'retrying', 'dead') and before (events emitted, messages parked before then); NULL does not narrow it.
-- state 'delayed': the events of once.emit_later instead, which are then due now; no relay has them yet.
-- Each is retried with a full set of attempts, in the order of its aggregate or key: the first of each now. A dry run, the default,
-- counts and changes nothing; it needs no reason. Returns a row for each topic and state among them, or one row if nothing matches;
-- met_holder: the relay or consumer. next is the same in each: pass it as after in the next transaction; NULL means done. Commit each
-- part, since a running relay waits for it.
-- skipped: NULL, or why these messages stay as they were: P4029, another session is trying or deciding them now; P4041, the day of their
-- UUIDv7 is retired, so that no attempt may run.
-- Each decision is recorded in once.parked_decision. Events parked after the first part of their relay, and messages parked after the
-- first part of the messages, are not included. Raises 22023 for a missing reason, an unknown state or relay, P4000 for the consumer,
-- P4003 for the tenant.
CREATE OR REPLACE FUNCTION once.parked_retry_many(reason text DEFAULT NULL, kind text DEFAULT NULL, relay text DEFAULT NULL,
    consumer text DEFAULT NULL, tenant text DEFAULT NULL, topic text DEFAULT NULL, event_type text DEFAULT NULL,
    error text DEFAULT NULL, state text DEFAULT NULL, before timestamptz DEFAULT NULL, dry_run boolean DEFAULT true,
    take integer DEFAULT 1000, after text DEFAULT NULL)
RETURNS TABLE (met_kind text, met_holder text, met_topic text, met_state text, skipped text, items bigint, next text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT * FROM once._decide_many('retry', once._parked_filter($2, $3, $4, $5, $6, $7, $8, $9, $10,
        ARRAY['waiting', 'retrying', 'dead', 'delayed']), $1, $11, $12, $13);
END $$;
$file$;
        EXECUTE $file$
-- once.parked_show(id, consumer, tenant, scope, key): everything known about one event or message as one JSON document, with the
-- decisions about it. For people and tools; members may be added.
-- consumer NULL: the event of this id: the event (its payload as JSON text, see once.story; bytes as base64), and its state with each
-- relay that takes its topic ('pending', 'waiting', 'retrying', 'dead', or 'passed': delivered, discarded, or from before the relay
-- began). A delayed event has not_before, and no place in the outbox and no relays yet; created_at is when it was emitted. NULL if there
-- is no such event, or it belongs to another tenant (NULL: any). An event that is parked nowhere is looked up among the events of the
-- intent that scope and key name, or else searched for through the whole outbox. consumer given: its message of this id and tenant (NULL:
-- ''): its content (the payload as base64) and its state. NULL if it is not parked. Raises P4000 for the consumer, P4003 for the tenant.
CREATE OR REPLACE FUNCTION once.parked_show(id text, consumer text DEFAULT NULL, tenant text DEFAULT NULL, scope text DEFAULT NULL,
    key text DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM once._parked_filter(NULL, NULL, $2, $3, NULL, NULL, NULL, NULL, NULL, NULL);
    RETURN CASE WHEN $2 IS NULL THEN once._show_event(once._event_id($1), $3, $4, $5)
               ELSE once._show_message($2, coalesce($3, ''), $1) END;
END $$;
$file$;
        EXECUTE $file$
-- once.parked_summary(): how many events and messages wait, by relay or consumer, topic and state, and since when the oldest of them:
-- once.outbox_summary (which includes pending events), the events that no relay takes (once.outbox_untaken; state 'untaken'), the delayed
-- ones (once.outbox_delayed; next_at: when the first is due), and the parked messages. Counts, and so reads, all of them.
CREATE OR REPLACE FUNCTION once.parked_summary() RETURNS TABLE (kind text, holder text, topic text, state text, items bigint, oldest timestamptz,
    next_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'event', s.relay, s.topic, s.state, s.events, s.oldest, NULL::timestamptz FROM once.outbox_summary() AS s
     UNION ALL
    SELECT 'event', NULL, u.topic, 'untaken', u.events, u.oldest, NULL FROM once.outbox_untaken() AS u
     UNION ALL
    SELECT 'event', NULL, d.topic, 'delayed', d.events, NULL, d.next_at FROM once.outbox_delayed() AS d
     UNION ALL
    SELECT 'message', m.consumer, m.topic, m.state, count(*), min(m.parked_at), NULL
      FROM once.parked_message AS m GROUP BY m.consumer, m.topic, m.state
$$;
$file$;
        EXECUTE $file$
-- once._decide_delayed(what, reason, piece): 'retry' (due now) or 'discard' for these delayed events, if they are still delayed. Recorded
-- in once.parked_decision.
CREATE OR REPLACE FUNCTION once._decide_delayed(what text, reason text, piece once.parked_piece) RETURNS once.parked_piece
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    chosen uuid[] := piece.ids;
BEGIN
    WITH gone AS (
        DELETE FROM once.delayed_event AS d WHERE what = 'discard' AND d.event_id = ANY (chosen) RETURNING d.tenant, d.event_id, d.topic),
    changed AS (
        UPDATE once.delayed_event AS d SET not_before = least(d.not_before, now) WHERE what <> 'discard' AND d.event_id = ANY (chosen)
        RETURNING d.tenant, d.event_id, d.topic),
    decided AS (SELECT g.* FROM gone AS g UNION ALL SELECT c.* FROM changed AS c),
    noted AS (
        INSERT INTO once.parked_decision (decided_by, reason, what, tenant, subject, from_state)
        SELECT session_user, reason, what, d.tenant, d.event_id, 'delayed' FROM decided AS d)
    SELECT array_agg(d.topic), array_agg('delayed'::text) INTO piece.topics, piece.states FROM decided AS d;
    RETURN piece;
END $$;
$file$;
        EXECUTE $file$
-- once._decide_events(what, reason, of_state, piece): 'retry' or 'discard' for these parked events of one relay, if they are still parked
-- and in of_state (NULL: any). Recorded in once.parked_decision. Holds the relay's row: a running relay waits, and neither overwrites the
-- other.
--
-- An event behind another of its aggregate waits for that one, and has no time of its own: see once._promote and once_job.relay_due.
CREATE OR REPLACE FUNCTION once._decide_events(what text, reason text, of_state text, piece once.parked_piece) RETURNS once.parked_piece
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz;
    holder text := piece.holder;
    chosen bigint[] := piece.ids;
    aggregates bigint[];
BEGIN
    PERFORM once._relay_row(holder);
    now := clock_timestamp();
    -- The returned rows are found by their address, as in once._promote; the states are those from before.
    WITH gone AS (
        DELETE FROM once.parked_event AS p
         WHERE what = 'discard' AND p.relay = holder COLLATE "C" AND p.id = ANY (chosen)
           AND (of_state IS NULL OR p.state = of_state COLLATE "C")
        RETURNING p.tenant, p.event_id, p.topic, p.state, p.error, p.aggregate),
    given AS MATERIALIZED (
        SELECT p.ctid AS address, (SELECT true FROM once.parked_event AS e
                                    WHERE e.relay = holder COLLATE "C" AND e.aggregate BETWEEN p.aggregate AND p.aggregate AND e.id < p.id
                                    ORDER BY e.aggregate, e.id LIMIT 1) AS behind, p.*
          FROM once.parked_event AS p
         WHERE what <> 'discard' AND p.relay = holder COLLATE "C" AND p.id = ANY (chosen)
           AND (of_state IS NULL OR p.state = of_state COLLATE "C")),
    changed AS (
        UPDATE once.parked_event AS p
           SET attempts = 0, updated_at = now, state = CASE WHEN g.behind THEN 'waiting' ELSE 'retrying' END,
               next_at = CASE WHEN g.behind THEN 'infinity' ELSE now END
          FROM given AS g WHERE p.ctid = g.address
        RETURNING g.tenant, g.event_id, g.topic, g.state, g.error, g.aggregate),
    decided AS (SELECT g.* FROM gone AS g UNION ALL SELECT c.* FROM changed AS c),
    noted AS (
        INSERT INTO once.parked_decision (decided_by, reason, what, relay, tenant, subject, from_state, error)
        SELECT session_user, reason, what, holder, d.tenant, d.event_id, d.state, d.error FROM decided AS d)
    SELECT array_agg(d.topic), array_agg(d.state), array_agg(DISTINCT d.aggregate) FILTER (WHERE d.aggregate IS NOT NULL)
      INTO piece.topics, piece.states, aggregates FROM decided AS d;
    IF cardinality(aggregates) > 0 THEN
        PERFORM once._promote(holder, aggregates);
    END IF;
    RETURN piece;
END $$;
$file$;
        EXECUTE $file$
-- once._decide_many(what, wanted, reason, dry_run, take, after): one part of once.parked_retry_many and once.parked_discard_many: events
-- of one relay, delayed events, or messages of one consumer and tenant; the events come first. First a look finds them without a lock.
-- Then each is decided, by its state at that moment. A dry run ends after the look.
CREATE OR REPLACE FUNCTION once._decide_many(what text, wanted once.parked_filter, reason text, dry_run boolean, take integer, after text)
RETURNS TABLE (met_kind text, met_holder text, met_topic text, met_state text, skipped text, items bigint, next text)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    part text := CASE WHEN after IS NOT NULL THEN split_part(after, ':', 1) WHEN wanted.state = 'delayed' THEN 'delayed'
                      ELSE coalesce(wanted.kind, 'event') END;
    piece once.parked_piece;
BEGIN
    IF (take > 0) IS NOT TRUE OR dry_run IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: take=%s or dry_run=%s is invalid',
            coalesce(take::text, 'NULL'), coalesce(dry_run::text, 'NULL')), HINT = 'take: at least 1; dry_run: true or false.';
    ELSIF part NOT IN ('event', 'delayed', 'message') OR (part = 'delayed') <> (wanted.state IS NOT DISTINCT FROM 'delayed')
       OR (part = 'message') <> (coalesce(wanted.kind, part) = 'message') THEN
        PERFORM once._refuse_place(after);
    END IF;
    IF NOT dry_run THEN
        PERFORM once._reason(reason);
    END IF;
    piece := CASE part WHEN 'event' THEN once._look_at_events(wanted, take, after)
                       WHEN 'delayed' THEN once._look_at_delayed(wanted, take, after)
                       ELSE once._look_at_messages(wanted, take, after) END;
    next := piece.next;
    IF next IS NULL AND part = 'event' AND wanted.kind IS NULL AND EXISTS (
           SELECT FROM once.parked_message AS p WHERE wanted.tenant IS NULL OR p.tenant = wanted.tenant COLLATE "C") THEN
        next := 'message:';
    END IF;
    IF NOT dry_run AND cardinality(piece.ids) > 0 THEN
        piece := CASE part WHEN 'event' THEN once._decide_events(what, reason, wanted.state, piece)
                           WHEN 'delayed' THEN once._decide_delayed(what, reason, piece)
                           ELSE once._decide_messages(what, reason, wanted.state, piece) END;
    END IF;
    part := CASE part WHEN 'message' THEN part ELSE 'event' END;
    RETURN QUERY SELECT part, piece.holder, u.topic, u.state, u.code, count(*), next
                   FROM unnest(piece.topics, piece.states, piece.codes) AS u (topic, state, code)
                  WHERE u.topic IS NOT NULL GROUP BY u.topic, u.state, u.code ORDER BY u.topic, u.state, u.code NULLS FIRST;
    IF NOT FOUND THEN
        RETURN QUERY SELECT part, piece.holder, NULL::text, NULL::text, NULL::text, 0::bigint, next;
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._decide_message(what, reason, consumer, tenant, message_id): 'retry' or 'discard' for a parked message, recorded in
-- once.parked_decision. NULL: done; '': it is not parked; otherwise the SQLSTATE of the reason why not, and nothing was changed. Waits
-- while an attempt at it is under way.
CREATE OR REPLACE FUNCTION once._decide_message(what text, reason text, consumer text, tenant text, message_id text) RETURNS text
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz;
    bucket integer := once._bucket(message_id);
    place bigint;
    lane bigint;
    print bytea;
    state text;
    error text;
    known text;
BEGIN
    -- Without its payload, which may be large. One look-up each, and then by address: see once._promote.
    SELECT p.position, p.key_hash, p.fingerprint, p.state, p.error INTO place, lane, print, state, error
      FROM once.parked_message AS p
     WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C"
       AND p.message_id BETWEEN (message_id COLLATE "C") AND (message_id COLLATE "C")
     ORDER BY p.message_id LIMIT 1 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN '';
    END IF;
    now := clock_timestamp();
    IF what = 'retry' THEN
        IF bucket > 0 AND once._receivable(tenant, consumer, message_id, bucket, print) = 'P4041' THEN
            RETURN 'P4041';
        END IF;
        UPDATE once.parked_message AS p
           SET attempts = 0, next_at = now, updated_at = now,
               state = CASE WHEN (SELECT true FROM once.parked_message AS e
                                   WHERE e.consumer = consumer COLLATE "C" AND e.tenant = tenant COLLATE "C" AND e.key_hash = lane
                                     AND e.position < place ORDER BY e.key_hash, e.position LIMIT 1)
                            THEN 'waiting' ELSE 'retrying' END
         WHERE p.ctid = (SELECT k.ctid FROM once.parked_message AS k
                          WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                            AND k.message_id BETWEEN (message_id COLLATE "C") AND (message_id COLLATE "C")
                          ORDER BY k.message_id LIMIT 1);
    ELSE
        -- A malformed id, or one of a closed day, can never be applied: no row is needed.
        IF bucket >= 0 THEN
            known := once._receivable(tenant, consumer, message_id, bucket, print);
            IF known = 'P4029' OR EXISTS (SELECT FROM once.peek(consumer, message_id, tenant) AS i
                                           WHERE i.verdict = 'processing_active') THEN
                RETURN 'P4029';
            ELSIF known IN ('P4001', 'P4098') THEN
                RETURN known;
            ELSIF known = 'P4099' THEN
                -- A consumer that works under leases left it unfinished: no attempt may continue it.
                PERFORM once.resolve(consumer, message_id, 'succeeded', reason, tenant => tenant)
                   FROM once.peek(consumer, message_id, tenant) AS i
                  WHERE i.state IN ('processing', 'failed_retryable', 'in_doubt');
            ELSIF known = 'new' THEN
                INSERT INTO once.intent AS i (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint,
                                         traceparent)
                VALUES (now, now, now, bucket, 1, 1, 'succeeded', tenant, consumer, message_id, print, NULL)
                ON CONFLICT DO NOTHING;     -- above READ COMMITTED, after a lost race: 40001
            END IF;
        END IF;
        DELETE FROM once.parked_message AS p
         WHERE p.ctid = (SELECT k.ctid FROM once.parked_message AS k
                          WHERE k.consumer = consumer COLLATE "C" AND k.tenant = tenant COLLATE "C"
                            AND k.message_id BETWEEN (message_id COLLATE "C") AND (message_id COLLATE "C")
                          ORDER BY k.message_id LIMIT 1);
    END IF;
    INSERT INTO once.parked_decision (decided_by, reason, what, consumer, tenant, subject, from_state, error)
    VALUES (session_user, reason, what, consumer, tenant, message_id, state, error);
    RETURN NULL;
END $$;
$file$;
        EXECUTE $file$
-- once._decide_messages(what, reason, of_state, piece): 'retry' or 'discard' for these parked messages of one consumer and tenant, if
-- they are still parked and in of_state (NULL: any). See once._decide_message.
--
-- A consumer locks the message that it is trying until its handler ends: such a message is skipped (P4029), because waiting for it would
-- hold up to a thousand others.
CREATE OR REPLACE FUNCTION once._decide_messages(what text, reason text, of_state text, piece once.parked_piece) RETURNS once.parked_piece
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    holder text := piece.holder;
    owner text := piece.tenant;
    ids text[] := piece.ids;
    locked text[];
    topics text[];
    states text[];
    codes text[];
    verdict text;
BEGIN
    -- A new statement: their states are those of now. One look-up each, and by address: see once._promote.
    SELECT array_agg(l.message_id), array_agg(l.topic), array_agg(l.state) INTO locked, topics, states
      FROM (SELECT p.message_id, p.topic, p.state
              FROM unnest(ids) WITH ORDINALITY AS u (id, n)
             CROSS JOIN LATERAL (SELECT k.ctid AS address FROM once.parked_message AS k
                                  WHERE k.consumer = holder COLLATE "C" AND k.tenant = owner COLLATE "C"
                                    AND k.message_id BETWEEN (u.id COLLATE "C") AND (u.id COLLATE "C")
                                  ORDER BY k.message_id LIMIT 1) AS a
              JOIN once.parked_message AS p ON p.ctid = a.address
             WHERE of_state IS NULL OR p.state = of_state COLLATE "C"
             ORDER BY u.n FOR UPDATE OF p SKIP LOCKED) AS l;
    FOR n IN 1 .. coalesce(cardinality(locked), 0) LOOP
        verdict := once._decide_message(what, reason, holder, owner, locked[n]);
        codes := array_append(codes, verdict);
    END LOOP;
    SELECT topics || array_agg(p.topic), states || array_agg(p.state), codes || array_agg('P4029'::text)
      INTO topics, states, codes
      FROM unnest(ids) AS u (id)
     CROSS JOIN LATERAL (SELECT k.topic, k.state FROM once.parked_message AS k
                          WHERE k.consumer = holder COLLATE "C" AND k.tenant = owner COLLATE "C"
                            AND k.message_id BETWEEN (u.id COLLATE "C") AND (u.id COLLATE "C")
                            AND (of_state IS NULL OR k.state = of_state COLLATE "C")
                          ORDER BY k.message_id LIMIT 1) AS p
     WHERE NOT u.id = ANY (coalesce(locked, '{}'));
    piece.topics := topics;
    piece.states := states;
    piece.codes := codes;
    RETURN piece;
END $$;
$file$;
        EXECUTE $file$
-- once._decide_one(what, id, reason, relay, consumer, tenant): once.parked_retry and once.parked_discard: a decision about one event,
-- with one relay or (NULL) with each relay that has it parked, or while it is delayed; or about one message.
CREATE OR REPLACE FUNCTION once._decide_one(what text, id text, reason text, relay text, consumer text, tenant text) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    event uuid := once._event_id(id);
    refused text;
    holder text;
    piece once.parked_piece;
    decided integer := 0;
BEGIN
    PERFORM once._parked_filter(NULL, relay, consumer, tenant, NULL, NULL, NULL, NULL, NULL, NULL);
    PERFORM once._reason(reason);
    IF consumer IS NOT NULL THEN
        refused := once._decide_message(what, reason, consumer, coalesce(tenant, ''), id);
        IF refused IN ('P4001', 'P4098') THEN
            PERFORM once._refuse_day(coalesce(tenant, ''), consumer, id, once._bucket(id));
            PERFORM once._refuse('P4098', tenant, consumer, id, 'its day was made just now');      -- since it was looked at
        ELSIF refused <> '' THEN
            PERFORM once._refuse(refused, tenant, consumer, id);
        END IF;
        RETURN refused IS NULL;
    END IF;
    IF relay IS NULL THEN
        piece.ids := ARRAY(SELECT d.event_id FROM once.delayed_event AS d
                            WHERE d.event_id = event AND (tenant IS NULL OR d.tenant = tenant COLLATE "C"));
        IF cardinality(piece.ids) > 0 THEN
            piece := once._decide_delayed(what, reason, piece);
            decided := coalesce(cardinality(piece.topics), 0);
        END IF;
    END IF;
    FOR holder IN SELECT DISTINCT p.relay FROM once.parked_event AS p WHERE relay IS NULL AND p.event_id = event
                   UNION ALL SELECT relay COLLATE "C" WHERE relay IS NOT NULL ORDER BY 1 LOOP
        PERFORM once._relay_row(holder);
        piece.holder := holder;
        -- As a rule one; but an event that came twice into the outbox is parked twice.
        piece.ids := ARRAY(SELECT p.id FROM once.parked_event AS p WHERE p.relay = holder COLLATE "C" AND p.event_id = event
                              AND (tenant IS NULL OR p.tenant = tenant COLLATE "C") ORDER BY p.id);
        IF cardinality(piece.ids) > 0 THEN
            piece := once._decide_events(what, reason, NULL, piece);
            decided := decided + coalesce(cardinality(piece.topics), 0);
        END IF;
    END LOOP;
    RETURN decided > 0;
END $$;
$file$;
        EXECUTE $file$
-- once._decisions_on(id, consumer, tenant): what operators have decided about an event (consumer NULL) or a message, as a JSON array.
CREATE OR REPLACE FUNCTION once._decisions_on(id text, consumer text, tenant text) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_variable
BEGIN
    RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object('at', d.decided_at, 'by', d.decided_by, 'what', d.what, 'relay', d.relay,
                       'from', d.from_state, 'reason', d.reason, 'error', d.error) ORDER BY d.decided_at), '[]')
              FROM once.parked_decision AS d
             WHERE d.subject = id COLLATE "C" AND d.consumer IS NOT DISTINCT FROM consumer COLLATE "C"
               AND (consumer IS NULL OR d.tenant = tenant COLLATE "C"));
END $$;
$file$;
        EXECUTE $file$
-- once._event_id(id): the id of an event, from text; NULL if it is not a UUID, so that no event has it.
CREATE OR REPLACE FUNCTION once._event_id(id text) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN id ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN id::uuid END
$$;
$file$;
        EXECUTE $file$
-- once._look_at_delayed(wanted, take, after): one part of the matching delayed events, which no relay has yet: at most `take` (10,000) in
-- the order of their ids. Events emitted after the first part are not included.
CREATE OR REPLACE FUNCTION once._look_at_delayed(wanted once.parked_filter, take integer, after text) RETURNS once.parked_piece
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    place text[] := regexp_match(after, '^delayed:([0-9]{1,18}):([0-9a-f-]{36})$');
    until timestamptz := coalesce(to_timestamp(place[1]::bigint / 1e6), clock_timestamp());
    piece once.parked_piece;
BEGIN
    IF after IS NOT NULL AND place IS NULL THEN
        PERFORM once._refuse_place(after);
    END IF;
    SELECT array_agg(p.event_id ORDER BY p.event_id), array_agg(p.topic ORDER BY p.event_id), array_agg(p.state ORDER BY p.event_id)
      INTO piece.ids, piece.topics, piece.states
      FROM (SELECT d.event_id, d.topic, d.state
              FROM (SELECT h.event_id, h.emitted_at, h.topic, h.tenant, h.event_type, 'delayed' AS state, NULL AS error
                      FROM once.delayed_event AS h) AS d
             WHERE (place IS NULL OR d.event_id > place[2]::uuid) AND d.emitted_at <= until AND wanted.relay IS NULL AND
                   (wanted.topic IS NULL OR d.topic = wanted.topic COLLATE "C") AND (wanted.tenant IS NULL OR d.tenant = wanted.tenant COLLATE "C")
                   AND (wanted.state IS NULL OR d.state = wanted.state COLLATE "C")
                   AND (wanted.error IS NULL OR NULL = wanted.error COLLATE "C" OR strpos(lower(d.error), lower(wanted.error)) > 0)
                   AND (wanted.event_type IS NULL OR d.event_type = wanted.event_type COLLATE "C") AND (wanted.before IS NULL OR d.emitted_at < wanted.before)
             ORDER BY d.event_id LIMIT least(take, 10000)) AS p;
    IF cardinality(piece.ids) = least(take, 10000) THEN
        piece.next := format('delayed:%s:%s', (date_part('epoch', until) * 1e6)::bigint, piece.ids[cardinality(piece.ids)]);
    END IF;
    RETURN piece;
END $$;
$file$;
        EXECUTE $file$
-- once._look_at_events(wanted, take, after): one part of the matching parked events: at most `take` (10,000), of one relay. Reads no more
-- than 10,000 of them, without a lock. Events parked after the relay's first part are not included, so that it ends however fast a relay
-- parks. Raises 22023 for an unknown relay.
CREATE OR REPLACE FUNCTION once._look_at_events(wanted once.parked_filter, take integer, after text) RETURNS once.parked_piece
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    -- The id of the last event read, the id to stop at, the relay.
    place text[] := regexp_match(after, '^event:([0-9]{1,18}):([0-9]{1,18}):(.*)$');
    behind bigint := coalesce(place[1]::bigint, 0);
    until bigint := place[2]::bigint;
    piece once.parked_piece;
    looked bigint;
BEGIN
    IF after IS NOT NULL AND (place[3] = coalesce(wanted.relay, place[3]) COLLATE "C") IS NOT TRUE THEN
        PERFORM once._refuse_place(after);
    ELSIF wanted.relay IS NOT NULL AND NOT EXISTS (SELECT FROM once.relay AS r WHERE r.relay = wanted.relay COLLATE "C") THEN
        PERFORM once._refuse_relay('22023', wanted.relay, 'there is no such relay', 'once.outbox_summary() lists the relays.');
    END IF;
    piece.holder := coalesce(place[3], wanted.relay, (SELECT min(r.relay) FROM once.relay AS r));
    IF until IS NULL THEN
        SELECT coalesce(max(p.id), 0) INTO until FROM once.parked_event AS p WHERE p.relay = piece.holder COLLATE "C";
    END IF;
    WITH part AS MATERIALIZED (
        SELECT p.id, p.topic, p.state,
               (wanted.topic IS NULL OR p.topic = wanted.topic COLLATE "C") AND (wanted.tenant IS NULL OR p.tenant = wanted.tenant COLLATE "C")
               AND (wanted.state IS NULL OR p.state = wanted.state COLLATE "C")
               AND (wanted.error IS NULL OR NULL = wanted.error COLLATE "C" OR strpos(lower(p.error), lower(wanted.error)) > 0)
               AND (wanted.event_type IS NULL OR (SELECT o.event_type = wanted.event_type COLLATE "C" FROM once.outbox AS o WHERE o.xid = p.xid AND o.id = p.id AND o.day = p.day LIMIT 1)) AND (wanted.before IS NULL OR coalesce((SELECT o.created_at FROM once.outbox AS o WHERE o.xid = p.xid AND o.id = p.id AND o.day = p.day LIMIT 1), p.parked_at) < wanted.before)
               AS fits
          FROM (SELECT q.* FROM once.parked_event AS q
                 WHERE q.relay = piece.holder COLLATE "C" AND q.id > behind AND q.id <= until ORDER BY q.relay, q.id LIMIT 10000) AS p),
    fit AS (SELECT p.id, p.topic, p.state FROM part AS p WHERE p.fits ORDER BY p.id LIMIT least(take, 10000))
    SELECT (SELECT array_agg(f.id ORDER BY f.id) FROM fit AS f), (SELECT array_agg(f.topic ORDER BY f.id) FROM fit AS f),
           (SELECT array_agg(f.state ORDER BY f.id) FROM fit AS f), count(*), max(p.id)
      INTO piece.ids, piece.topics, piece.states, looked, behind FROM part AS p;
    IF cardinality(piece.ids) = least(take, 10000) THEN
        piece.next := format('event:%s:%s:%s', piece.ids[cardinality(piece.ids)], until, piece.holder);
    ELSIF looked = 10000 THEN
        piece.next := format('event:%s:%s:%s', behind, until, piece.holder);
    ELSIF wanted.relay IS NULL THEN
        SELECT format('event:0:%s:%s', coalesce(max(p.id), 0), r.relay) INTO piece.next
          FROM once.relay AS r LEFT JOIN once.parked_event AS p ON p.relay = r.relay
         WHERE r.relay > piece.holder COLLATE "C" GROUP BY r.relay ORDER BY r.relay LIMIT 1;
    END IF;
    RETURN piece;
END $$;
$file$;
        EXECUTE $file$
-- once._look_at_messages(wanted, take, after): one part of the matching parked messages: at most `take` (1,000), of one consumer and
-- tenant. Reads no more than 10,000 of them, without a lock. It goes from key to key and within each in order, so that an interrupted run
-- has decided the first messages of each key. Messages parked after the first part are not included, so that it ends however fast a
-- consumer parks. after 'message:': from the beginning.
CREATE OR REPLACE FUNCTION once._look_at_messages(wanted once.parked_filter, take integer, after text) RETURNS once.parked_piece
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    most CONSTANT integer := 1000;      -- one advisory lock for each
    first CONSTANT bigint := -9223372036854775808;
    -- The key's hash ('-': after all keys), the position in it, the position to stop at, the tenant's length, tenant, consumer.
    place text[] := regexp_match(nullif(after, 'message:'), '^message:(-|-?[0-9]{1,19}):([0-9]{1,18}):([0-9]{1,18}):([0-9]{1,9}):(.*)$');
    keyless boolean := coalesce(place[1] = '-', false);
    lane bigint := CASE WHEN place IS NULL OR keyless THEN first ELSE place[1]::bigint END;
    behind bigint := coalesce(place[2]::bigint, 0);
    until bigint := place[3]::bigint;
    owner text := left(place[5], place[4]::integer);
    holder text := substr(place[5], place[4]::integer + 1);
    piece once.parked_piece;
    lanes bigint[];
    places bigint[];
    last integer;
BEGIN
    IF after <> 'message:' AND (place IS NOT NULL AND owner = coalesce(wanted.tenant, owner) COLLATE "C"
                                AND holder = coalesce(wanted.consumer, holder) COLLATE "C") IS NOT TRUE THEN
        PERFORM once._refuse_place(after);
    END IF;
    take := least(take, most);
    IF until IS NULL THEN
        SELECT s.last_value INTO until FROM once.parked_message_position_seq AS s;
        SELECT p.consumer, p.tenant INTO holder, owner FROM once.parked_message AS p
         WHERE (wanted.consumer IS NULL OR p.consumer = wanted.consumer COLLATE "C")
           AND (wanted.tenant IS NULL OR p.tenant = wanted.tenant COLLATE "C")
         ORDER BY p.consumer, p.tenant LIMIT 1;
    END IF;
    WITH part AS MATERIALIZED (
        SELECT q.*, row_number() OVER (ORDER BY q.key_hash, q.position) AS row,
               (wanted.topic IS NULL OR q.topic = wanted.topic COLLATE "C") AND (wanted.tenant IS NULL OR q.tenant = wanted.tenant COLLATE "C")
               AND (wanted.state IS NULL OR q.state = wanted.state COLLATE "C")
               AND (wanted.error IS NULL OR q.sqlstate = wanted.error COLLATE "C" OR strpos(lower(q.error), lower(wanted.error)) > 0)
               AND (wanted.event_type IS NULL OR wanted.event_type = ANY (once._types_of(q.headers))) AND (wanted.before IS NULL OR q.parked_at < wanted.before)
               AS fits
          FROM (SELECT u.* FROM (
               (SELECT p.message_id, p.tenant, p.topic, p.state, p.error, p.sqlstate, p.headers, p.parked_at, p.key_hash, p.position
                  FROM once.parked_message AS p
                 WHERE p.consumer = holder COLLATE "C" AND p.tenant = owner COLLATE "C"
                   AND (p.key_hash, p.position) > (lane, behind) AND NOT keyless AND p.position <= until
                 ORDER BY p.key_hash, p.position LIMIT 10000)
                UNION ALL
               (SELECT p.message_id, p.tenant, p.topic, p.state, p.error, p.sqlstate, p.headers, p.parked_at, p.key_hash, p.position
                  FROM once.parked_message AS p
                 WHERE p.consumer = holder COLLATE "C" AND p.tenant = owner COLLATE "C"
                   AND p.key_hash IS NULL AND p.position > CASE WHEN keyless THEN behind ELSE 0 END AND p.position <= until
                 ORDER BY p.key_hash, p.position LIMIT 10000)) AS u
                 ORDER BY u.key_hash, u.position LIMIT 10000) AS q),
    fit AS (SELECT p.* FROM part AS p WHERE p.fits ORDER BY p.row LIMIT take)
    SELECT (SELECT array_agg(f.message_id ORDER BY f.row) FROM fit AS f), (SELECT array_agg(f.topic ORDER BY f.row) FROM fit AS f),
           (SELECT array_agg(f.state ORDER BY f.row) FROM fit AS f),
           CASE WHEN (SELECT count(*) FROM fit) = take THEN (SELECT max(f.row) FROM fit AS f)
                WHEN count(*) = 10000 THEN max(p.row) END,
           array_agg(p.key_hash ORDER BY p.row), array_agg(p.position ORDER BY p.row)
      INTO piece.ids, piece.topics, piece.states, last, lanes, places FROM part AS p;
    piece.holder := holder;
    piece.tenant := owner;
    IF last IS NOT NULL THEN
        piece.next := format('message:%s:%s:%s:%s:%s%s', coalesce(lanes[last]::text, '-'), places[last], until, length(owner), owner,
            holder);
    ELSE
        SELECT format('message:%s:0:%s:%s:%s%s', first, until, length(p.tenant), p.tenant, p.consumer) INTO piece.next
          FROM once.parked_message AS p
         WHERE (p.consumer, p.tenant) > (holder COLLATE "C", owner COLLATE "C")
           AND (wanted.consumer IS NULL OR p.consumer = wanted.consumer COLLATE "C")
           AND (wanted.tenant IS NULL OR p.tenant = wanted.tenant COLLATE "C")
         ORDER BY p.consumer, p.tenant LIMIT 1;
    END IF;
    RETURN piece;
END $$;
$file$;
        EXECUTE $file$
-- once._parked_filter(kind, relay, consumer, tenant, topic, event_type, error, state, before, states): the filter for parked events or
-- messages in these states. Raises 22023 for a filter that matches nothing, P4000 for the consumer, P4003 for the tenant.
CREATE OR REPLACE FUNCTION once._parked_filter(kind text, relay text, consumer text, tenant text, topic text, event_type text, error text,
    state text, before timestamptz, states text[]) RETURNS once.parked_filter LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM once._authorise(tenant);        -- NULL, all tenants: for roles that are not bound
    IF consumer IS NOT NULL THEN
        PERFORM once._check_consumer(coalesce(tenant, ''), consumer);
    END IF;
    IF kind NOT IN ('event', 'message') OR NOT state = ANY (states) OR (relay IS NOT NULL AND (consumer IS NOT NULL OR kind = 'message'))
       OR (kind = 'event' AND consumer IS NOT NULL)
       OR (state IN ('pending', 'delayed') AND (consumer IS NOT NULL OR kind = 'message')) THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = format('pgonce: no parked event or message can match kind=%s state=%s relay=%s consumer=%s',
                quote_nullable(left(kind, 80)), quote_nullable(left(state, 80)), quote_nullable(left(relay, 80)),
                quote_nullable(left(consumer, 80))),
            HINT = format('kind is event (with a relay) or message (with a consumer). state is one of %s; '
                || 'only events are pending or delayed.', array_to_string(states, ', '));
    END IF;
    RETURN ROW(CASE WHEN relay IS NOT NULL OR state IN ('pending', 'delayed') THEN 'event' WHEN consumer IS NOT NULL THEN 'message'
                    ELSE kind END, relay, consumer, tenant, topic, event_type, error, state, before);
END $$;
$file$;
        EXECUTE $file$
-- once._refuse_place(after): raises 22023: a decision about many cannot continue there.
CREATE OR REPLACE FUNCTION once._refuse_place(after text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '22023',
        MESSAGE = format('pgonce: after=%s is not a position to continue from', quote_nullable(left(after, 80))),
        HINT = 'Pass the next of the previous call as after, with the same filters.';
END $$;
$file$;
        EXECUTE $file$
-- once._show_event(event_id, tenant, scope, key): once.parked_show for an event.
CREATE OR REPLACE FUNCTION once._show_event(event_id uuid, tenant text, scope text, key text) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_variable
DECLARE
    event once.outbox;
    held once.delayed_event;
    decisions jsonb := once._decisions_on(event_id::text, NULL, NULL);
BEGIN
    SELECT d.* INTO held FROM once.delayed_event AS d WHERE d.event_id = event_id AND (tenant IS NULL OR d.tenant = tenant COLLATE "C");
    IF FOUND THEN
        RETURN jsonb_build_object(
            'event_id', held.event_id, 'created_at', held.emitted_at, 'not_before', held.not_before, 'topic', held.topic,
            'event_type', held.event_type, 'tenant', held.tenant, 'aggregate_type', held.aggregate_type,
            'aggregate_id', held.aggregate_id, 'scope', held.scope, 'key', held.key, 'traceparent', held.traceparent,
            'headers', held.headers, 'payload', held.payload::text, 'relays', jsonb_build_array(), 'decisions', decisions);
    END IF;
    SELECT o.* INTO event
      FROM (SELECT p.xid, p.id, p.day FROM once.parked_event AS p WHERE p.event_id = event_id LIMIT 1) AS f,
           once.outbox AS o
     WHERE o.xid = f.xid AND o.id = f.id AND o.day = f.day;
    IF NOT FOUND AND key IS NOT NULL THEN
        SELECT o.* INTO event FROM once.outbox AS o
         WHERE o.tenant = coalesce(tenant, '') COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C"
           AND o.event_id = event_id LIMIT 1;
    ELSIF NOT FOUND THEN
        SELECT o.* INTO event FROM once.outbox AS o WHERE o.event_id = event_id LIMIT 1;
    END IF;
    IF event.id IS NULL OR event.tenant <> tenant COLLATE "C" THEN
        RETURN NULL;
    END IF;
    RETURN jsonb_build_object(
        'event_id', event.event_id, 'id', event.id, 'xid', event.xid::text, 'day', (date '1970-01-01' + event.day)::text,
        'created_at', event.created_at, 'topic', event.topic, 'event_type', event.event_type, 'tenant', event.tenant,
        'aggregate_type', event.aggregate_type, 'aggregate_id', event.aggregate_id, 'scope', event.scope,
        'key', event.key, 'traceparent', event.traceparent, 'headers', event.headers,
        'payload', CASE WHEN event.payload_bytes IS NULL THEN event.payload::text END,
        'payload_base64', translate(encode(event.payload_bytes, 'base64'), E'\n', ''), 'payload_bytes', octet_length(event.payload_bytes),
        'content_type', event.content_type,
        'relays', once._event_relays(event),
        'decisions', decisions);
END $$;
$file$;
        EXECUTE $file$
-- once._show_message(consumer, tenant, message_id): once.parked_show for a message.
CREATE OR REPLACE FUNCTION once._show_message(consumer text, tenant text, message_id text) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_variable
DECLARE
    stored once.parked_message;
BEGIN
    SELECT p.* INTO stored FROM once.parked_message AS p
     WHERE p.consumer = consumer COLLATE "C" AND p.tenant = tenant COLLATE "C" AND p.message_id = message_id COLLATE "C";
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN jsonb_build_object(
        'consumer', stored.consumer, 'tenant', stored.tenant, 'message_id', stored.message_id, 'topic', stored.topic,
        'key', stored.key, 'headers', stored.headers,
        'payload', translate(encode(stored.payload, 'base64'), E'\n', ''), 'payload_bytes', octet_length(stored.payload),
        'state', stored.state, 'attempts', stored.attempts,
        'next_at', CASE WHEN stored.state <> 'dead' THEN stored.next_at END,
        'error', stored.error, 'sqlstate', stored.sqlstate, 'position', stored.position, 'parked_at', stored.parked_at,
        'updated_at', stored.updated_at,
        'decisions', once._decisions_on(message_id, consumer, tenant));
END $$;
$file$;
        EXECUTE $file$
-- once._types_of(headers): the types named in a message's headers: Pgonce-Event-Type, a CloudEvent's type, AMQP's type.
CREATE OR REPLACE FUNCTION once._types_of(headers jsonb) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(h.value ORDER BY array_position(n.names, lower(h.key)))
      FROM (VALUES (ARRAY['pgonce-event-type', 'ce-type', 'ce_type', 'cloudevents:type', 'type'])) AS n (names)
     CROSS JOIN LATERAL jsonb_each_text(CASE jsonb_typeof(headers) WHEN 'object' THEN headers END) AS h
     WHERE lower(h.key) = ANY (n.names)
$$;
$file$;
        EXECUTE $file$
-- once.add_days(ahead): creates the missing partitions from the oldest open day to today plus ahead days (default:
-- once.setting.days_ahead), for intents and for the outbox; on its first run also the row of settings and the default policy. Returns how
-- many partitions it created. Safe to call at any time and concurrently. You need not call it: a call that finds a day without a
-- partition creates that partition, and the next day's (once._make_days). Waits while another transaction does so, at most lock_timeout.
-- Updates once._today() if that is another day.
CREATE OR REPLACE FUNCTION once.add_days(ahead integer DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    setting once.setting;
    today integer := floor(date_part('epoch', clock_timestamp()) / 86400);
    made integer := 0;
    day integer;
BEGIN
    INSERT INTO once.setting (closed_before) VALUES (today - 7) ON CONFLICT DO NOTHING;
    INSERT INTO once.scope (scope) VALUES ('') ON CONFLICT DO NOTHING;
    SELECT s.* INTO STRICT setting FROM once.setting AS s WHERE s.only_row;
    ahead := coalesce(ahead, setting.days_ahead);
    IF ahead NOT BETWEEN 1 AND 366 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: ahead is 1 to 366 days';
    END IF;
    FOR day IN greatest(setting.closed_before, today - setting.horizon_days) .. today + ahead LOOP
        IF to_regclass('once.intent_d' || day) IS NOT NULL THEN
            CONTINUE;
        END IF;
        -- One creator at a time; the others then find the work done.
        PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
        -- A day that the keeper has closed meanwhile stays closed; no session closes one while this transaction is open.
        SELECT s.* INTO STRICT setting FROM once.setting AS s WHERE s.only_row FOR SHARE;
        IF to_regclass('once.intent_d' || day) IS NULL AND day >= setting.closed_before THEN
            PERFORM once._make_day('intent', day);
            made := made + 1;
        END IF;
    END LOOP;
    FOR day IN today .. today + ahead LOOP
        IF to_regclass('once.outbox_d' || day) IS NULL THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
            IF to_regclass('once.outbox_d' || day) IS NULL THEN
                PERFORM once._make_day('outbox', day);
                made := made + 1;
            END IF;
        END IF;
    END LOOP;
    IF (once._today() >= today) IS NOT TRUE THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
        IF once._today() IS NULL THEN       -- not set yet
            PERFORM once._set_today(today);
        ELSE
            PERFORM once._move_today(today);
        END IF;
    END IF;
    RETURN made;
END $$;
$file$;
        EXECUTE $file$
-- once.keep(seconds): one round of the keeper's steps, for pg_cron and the like: CALL once.keep(). Works for at most about this many
-- seconds, and continues where it stopped when it is called again. Each part of work is a transaction of its own, so it cannot be called
-- inside one. Does nothing, without a message, if another keeper holds the lease: see once.keeper_lease. A step that fails is recorded
-- (once.keeper_status) and does not stop the others. Call it at least once an hour: after a longer gap the clock counts as unsteady for a
-- while.
--
-- Why it is written so: it is not SECURITY DEFINER and has no settings, since such a procedure could not commit: it calls public functions
-- only.
CREATE OR REPLACE PROCEDURE once.keep(seconds integer DEFAULT 50) LANGUAGE plpgsql AS $$
DECLARE
    me text := pg_catalog.format('once.keep of backend %s', pg_catalog.pg_backend_pid());
    until timestamptz := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => seconds);
    steps text[];
    each text;
    again boolean;
    began timestamptz;
    took interval;
    code text;
    said text;
BEGIN
    SELECT pg_catalog.array_agg(s.step ORDER BY s.ord) INTO steps FROM once_job.keep_steps() AS s;
    FOREACH each IN ARRAY steps LOOP
        LOOP
            COMMIT;
            SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
            IF NOT once_job.keep_take(me) THEN
                RETURN;
            END IF;
            began := pg_catalog.clock_timestamp();
            BEGIN
                SELECT k.more INTO again FROM once_job.keep_step(me, each) AS k;
            EXCEPTION WHEN OTHERS THEN      -- continue with the next step
                GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, said = MESSAGE_TEXT;
                again := false;
                BEGIN
                    PERFORM once_job.keep_failed(me, each, code, said);
                EXCEPTION WHEN OTHERS THEN      -- a full disk cannot store it either
                    RAISE WARNING 'pgonce: step % failed: % %', each, code, said;
                END;
            END;
            EXIT WHEN NOT again OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>) until;
            -- At most a fifth of a core: the rest is for the attempts.
            took := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) began;
            COMMIT;
            PERFORM pg_catalog.pg_sleep_for(least(took OPERATOR(pg_catalog.*) 4::double precision, interval '1 second'));
        END LOOP;
    END LOOP;
    PERFORM once_job.keep_release(me);
END $$;
$file$;
        EXECUTE $file$
-- once_job.keep_failed(keeper, step, sqlstate, message): a keeper records that a step failed: once_job.keep_step cannot, since its own
-- writes were rolled back. once.keeper_status shows it until the step succeeds.
CREATE OR REPLACE FUNCTION once_job.keep_failed(keeper text, step text, sqlstate text, message text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    IF NOT EXISTS (SELECT FROM once_job.keep_steps() AS s WHERE s.step = step COLLATE "C") THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: a keeper has no step %s',
            quote_nullable(left(step, 80)));
    END IF;
    INSERT INTO once.keeper_step AS k (step, last_started, last_error_at, last_error)
    VALUES (step, now, now, left(concat_ws(': ', keeper, sqlstate, message), 1000))
    ON CONFLICT ON CONSTRAINT keeper_step_pkey DO UPDATE
       SET last_error_at = excluded.last_error_at, last_error = excluded.last_error;
END $$;
$file$;
        EXECUTE $file$
-- once_job.keep_release(keeper): a keeper that stops releases its lease, so that the next one can work at once. False if it did not hold
-- the lease.
CREATE OR REPLACE FUNCTION once_job.keep_release(keeper text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    UPDATE once.keeper AS k SET lease_until = now WHERE k.keeper = keep_release.keeper COLLATE "C" AND k.lease_until > now;
    RETURN FOUND;
END $$;
$file$;
        EXECUTE $file$
-- once_job.keep_step(keeper, step, concurrently): one short part of one step of the keeper's work (see once_job.keep_steps), in one short
-- transaction.
--   done     rows or partitions that it worked on
--   more     there is more to do now: call again
--   command  not NULL: a statement that the caller runs alone, outside of a transaction, before it calls again. Only
--            with concurrently, for a caller that owns the contract's tables, from PostgreSQL 14 on
--   detail   what was done, or what holds the step up, for a log
-- Raises 55000 if the keeper does not hold the lease (once_job.keep_take), 22023 for an unknown step, 25000 above READ COMMITTED, and any
-- error of the step itself: for example 55P03 if a lock could not be acquired. Record such an error with once_job.keep_failed, continue
-- with the next step, and try this one again in the next round.
CREATE OR REPLACE FUNCTION once_job.keep_step(keeper text, step text, concurrently boolean DEFAULT false, OUT done bigint,
    OUT more boolean, OUT command text, OUT detail text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
    kept once.kept;
BEGIN
    PERFORM once._keep_begin(keeper, step);
    kept := CASE step
        WHEN 'days' THEN once._keep_days()
        WHEN 'clock' THEN once._keep_clock()
        WHEN 'close' THEN once._keep_close()
        WHEN 'doubt' THEN once._keep_doubt()
        WHEN 'move' THEN once._keep_move()
        WHEN 'detach' THEN once._keep_detach(keep_step."concurrently")
        WHEN 'drop' THEN once._keep_drop()
        WHEN 'delayed' THEN once._keep_delayed()
        WHEN 'untaken' THEN once._keep_untaken()
        WHEN 'outbox' THEN once._keep_outbox()
        WHEN 'purge' THEN once._keep_purge()
        WHEN 'sweep' THEN once._keep_sweep()
        WHEN 'archive' THEN once._keep_archive()
        WHEN 'dead' THEN once._keep_dead()
        WHEN 'decisions' THEN once._keep_decisions()
    END;
    UPDATE once.keeper_step AS k SET last_started = now, last_success = clock_timestamp(), done_total = k.done_total + kept.done
     WHERE k.step = step COLLATE "C";
    done := kept.done;
    more := kept.more;
    command := kept.command;
    detail := kept.detail;
END $$;
$file$;
        EXECUTE $file$
-- once_job.keep_steps(): the steps of a keeper's round, in order. Run each with once_job.keep_step, part by part; one that fails does not
-- stop the others.
CREATE OR REPLACE FUNCTION once_job.keep_steps() RETURNS TABLE (ord integer, step text, what text)
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    VALUES
    (1,  'days',      'make the partitions of the days to come'),
    (2,  'clock',     'read the clock: while it is not steady, nothing is deleted'),
    (3,  'close',     'close the days that are past the horizon'),
    (4,  'doubt',     'in closed days, put stale attempts in doubt'),
    (5,  'move',      'move what outlives its day to the archive'),
    (6,  'detach',    'detach the partitions of closed days'),
    (7,  'drop',      'drop them'),
    (8,  'delayed',   'move the delayed events that are due to the outbox'),
    (9,  'untaken',   'count the events that no relay takes'),
    (10, 'outbox',    'drop the days of the outbox that every relay has passed'),
    (11, 'purge',     'delete the expired intents of keys without a day'),
    (12, 'sweep',     'count what is stale or in doubt, and recover what is stale'),
    (13, 'archive',   'delete what has expired from the archive'),
    (14, 'dead',      'give up dead events and messages past their retention'),
    (15, 'decisions', 'delete decisions past their retention')
$$;
$file$;
        EXECUTE $file$
-- once_job.keep_take(keeper, lease): makes this keeper the one that works, for the length of the lease; call it again to renew the lease.
-- False: another keeper works. The lease is a row and not a lock, so that it works behind a pooler in transaction mode. Raises 22023 for
-- a bad name or lease. Two keepers at once, one of them past its lease, would do no harm: each step is safe to run concurrently with
-- itself.
CREATE OR REPLACE FUNCTION once_job.keep_take(keeper text, lease interval DEFAULT '60 seconds') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    IF (length(keeper) BETWEEN 1 AND 255 AND lease > '0' AND lease <= '1 day') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: a keeper has a name of 1 to 255 characters and a lease of'
            ' at most a day';
    END IF;
    -- A standby keeper only reads. A lease that ends later than any could, or whose holder began a round well after now, was taken while
    -- the clock was ahead: it is ignored.
    PERFORM FROM once.keeper AS k WHERE k.keeper <> keeper COLLATE "C" AND k.lease_until > now
        AND k.lease_until <= now + interval '1 day' AND (k.last_round > now + interval '1 minute') IS NOT TRUE;
    IF FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO once.keeper AS k (keeper, lease_until) VALUES (keeper, now + lease)
    ON CONFLICT (only_row) DO UPDATE SET keeper = excluded.keeper, lease_until = excluded.lease_until
     WHERE k.keeper = excluded.keeper OR k.lease_until <= now OR k.lease_until > now + interval '1 day'
        OR k.last_round > now + interval '1 minute';
    RETURN FOUND;
END $$;
$file$;
        EXECUTE $file$
-- once.keeper_lease(): which keeper works, when its lease ends, and when the last round began. No row: no keeper has ever worked.
CREATE OR REPLACE FUNCTION once.keeper_lease() RETURNS TABLE (keeper text, lease_until timestamptz, last_round timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT k.keeper, k.lease_until, k.last_round FROM once.keeper AS k
$$;
$file$;
        EXECUTE $file$
-- once.keeper_status(): the state of each of the keeper's steps: when it last began and last succeeded, its last failure, and how many
-- rows or partitions it has worked on in total. NULLs: it never ran.
CREATE OR REPLACE FUNCTION once.keeper_status() RETURNS TABLE (step text, ord integer, last_started timestamptz,
    last_success timestamptz, last_error_at timestamptz, last_error text, done_total bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.step, s.ord, k.last_started, k.last_success, k.last_error_at, k.last_error, coalesce(k.done_total, 0)
      FROM once_job.keep_steps() AS s LEFT JOIN once.keeper_step AS k ON k.step = s.step COLLATE "C"
     ORDER BY s.ord
$$;
$file$;
        EXECUTE $file$
-- once.retention_held(): what prevents deletion now, and the time since when everything is therefore kept (held_before). what is
--   move      slots are moving to or from this node (pgonce rehome); since is NULL
--   clock     it is not steady for long enough yet (once.setting.clock_settle), or no keeper has read it (since is NULL)
--   relay     its oldest undelivered event is older than what would be deleted
--   consumer  its oldest position is
--   day       a closing day waits: for an attempt under a lease, or for a row that is being changed
-- No rows if nothing does.
CREATE OR REPLACE FUNCTION once.retention_held() RETURNS TABLE (what text, name text, tenant text, since timestamptz,
    held_before timestamptz, hint text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    why text := once._clock_held();
    shortest timestamptz;
BEGIN
    IF why IS NOT NULL THEN
        RETURN QUERY SELECT 'clock', 'database', NULL::text, (SELECT c.unsteady_since FROM once.clock AS c), NULL::timestamptz,
            why || CASE WHEN EXISTS (SELECT FROM once.clock)
                        THEN '. It becomes steady without help; if not, check the server''s time synchronisation.'
                        ELSE ', and nothing is deleted before: start pgonce keep.' END;
    END IF;
    IF once._is_moving() THEN
        RETURN QUERY SELECT 'move', 'slots', NULL::text, NULL::timestamptz, NULL::timestamptz,
            'They are moving to or from this node. If no pgonce rehome runs, start it again: it finishes or undoes the move. '
            'In a restored copy of a node: DROP PUBLICATION pgonce_rehome.';
    END IF;
    SELECT clock_timestamp() - least(min(p.retention), (SELECT make_interval(days => s.horizon_days) FROM once.setting AS s))
      INTO shortest FROM once.scope AS p;
    RETURN QUERY
    SELECT b.what, b.name, b.tenant, b.since, b.needed_from, CASE b.what
           WHEN 'relay' THEN CASE WHEN EXISTS (SELECT FROM once.capture AS k WHERE k.slot = b.name)
               THEN 'It is a replication slot: see once.capture_list. ' ELSE '' END
               || 'Let it deliver, retry or discard its parked events (once.parked_list), or call once.drop_relay.'
           ELSE 'Start it. If a part no longer exists: once.consumer_report(consumer, NULL, tenant, part).' END
      FROM once._backlog() AS b WHERE b.needed_from < shortest;
    RETURN QUERY
    SELECT 'day', (date '1970-01-01' + c.day)::text, NULL::text, c.held_since, to_timestamp(c.day * 86400.0), c.held
      FROM once.closing AS c WHERE c.held IS NOT NULL ORDER BY c.day;
END $$;
$file$;
        EXECUTE $file$
-- once.retire_day(bucket): closes a day of UUIDv7 keys for good, and all days before it, and drops their partitions, in one transaction;
-- the keeper does the same in short ones. Rows that must outlive their day move to once.archive: outcomes whose retention has not passed
-- or that a relay or a consumer may still bring back, and everything in doubt (a stale attempt becomes in doubt). Returns how many moved.
-- Refused (55006) while an attempt of such a day holds a lease or slots are moving, and for days within the horizon (22023). Afterwards a
-- late retry gets the archived answer or P4041; it never runs again. Waits for open transactions, at most lock_timeout. Call it in READ
-- COMMITTED (55000): an older snapshot would not show the last intents.
CREATE OR REPLACE FUNCTION once.retire_day(bucket integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_variable
DECLARE
    setting once.setting;
    today integer := floor(date_part('epoch', clock_timestamp()) / 86400);
    older integer;
    piece record;
    leaf regclass;
    moved bigint := 0;
    block bigint := 0;
    limits once.limits;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: a day is retired in READ COMMITTED only',
            DETAIL = 'a snapshot from before the lock would not show its last intents';
    END IF;
    -- In the order in which once_job.keep_step and once.add_days take them: otherwise each would wait for the other, and all claims for
    -- both.
    PERFORM FROM once.closing AS c WHERE c.day <= bucket ORDER BY c.day FOR UPDATE;
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
    IF once._is_moving() THEN
        RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = format('pgonce: day %s cannot be retired while slots are moving', bucket),
            HINT = 'Wait for pgonce rehome; if it does not run, start it again.';
    END IF;
    SELECT s.* INTO STRICT setting FROM once.setting AS s WHERE s.only_row FOR UPDATE;
    IF (bucket BETWEEN 1 AND today - setting.horizon_days - 1) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: day %s cannot be retired', bucket),
            DETAIL = format('days up to %s are past the horizon of %s days', today - setting.horizon_days - 1,
                setting.horizon_days);
    END IF;
    -- Days close in order: no day before a closed one may be open.
    FOR older IN SELECT d FROM once._days('once.intent', 'intent_d') AS d WHERE d < bucket
                  UNION SELECT c.day FROM once.closing AS c WHERE c.day < bucket ORDER BY 1 LOOP
        moved := moved + once.retire_day(older);
    END LOOP;
    leaf := coalesce(to_regclass('once.intent_d' || bucket), to_regclass('once.intent_closed_d' || bucket));
    IF leaf IS NOT NULL THEN
        -- Before anything is read: from here on no other transaction is inside the day, and one that waits finds it closed.
        EXECUTE format('LOCK TABLE once.intent, %s IN ACCESS EXCLUSIVE MODE', leaf);
        PERFORM once._archive_month(bucket);
        limits := once._limits();
        limits.now := clock_timestamp();        -- an operator has decided about the day, so no keeper judges the clock
        WHILE block < once._blocks(leaf) LOOP
            piece := once._retire_blocks(leaf, block, block + once._stride(), true, limits);
            IF piece.held IS NOT NULL THEN
                RAISE EXCEPTION USING ERRCODE = '55006',
                    MESSAGE = format('pgonce: an attempt of day %s still holds its lease', bucket), DETAIL = piece.held,
                    HINT = 'Try again later.';
            END IF;
            moved := moved + piece.moved;
            block := block + once._stride();
        END LOOP;
        IF EXISTS (SELECT FROM pg_inherits AS h WHERE h.inhrelid = leaf) THEN
            PERFORM once._execute_ddl(format('ALTER TABLE once.intent DETACH PARTITION %s%s', leaf,
                (SELECT CASE WHEN (to_jsonb(h) ->> 'inhdetachpending')::boolean THEN ' FINALIZE' ELSE '' END
                   FROM pg_inherits AS h WHERE h.inhrelid = leaf)));
        END IF;
        PERFORM once._execute_ddl(format('DROP TABLE %s', leaf));
    END IF;
    DELETE FROM once.closing AS c WHERE c.day = bucket;
    UPDATE once.setting AS s SET closed_before = greatest(s.closed_before, bucket + 1) WHERE s.only_row;
    RETURN moved;
END $$;
$file$;
        EXECUTE $file$
-- once.set_keeping(horizon_days, days_ahead, clock_skew, clock_settle, dead_retention, decision_retention, outbox_retention): changes the
-- settings of the whole installation, and returns them. A NULL argument changes nothing; defaults in brackets.
--   horizon_days        (7) past days whose UUIDv7 keys are accepted; older ones are expired. A closed day stays closed
--   days_ahead          (2) days whose partitions are created in advance
--   clock_skew          (5 minutes) how far in the future the day of a UUIDv7 key may begin
--   clock_settle        (1 hour) for how long the clock must be steady before anything is deleted
--   dead_retention      (90 days) dead events and messages are given up after it, and their decisions deleted
--   decision_retention  (400 days) entries of once.decision are deleted after it; never those of an intent that is in doubt
--   outbox_retention    (1 day) days of the outbox stay at least so long after they are over
-- Raises 23514 or 22023 for a value out of range; no retention is longer than 100 years.
CREATE OR REPLACE FUNCTION once.set_keeping(horizon_days integer DEFAULT NULL, days_ahead integer DEFAULT NULL,
    clock_skew interval DEFAULT NULL, clock_settle interval DEFAULT NULL, dead_retention interval DEFAULT NULL,
    decision_retention interval DEFAULT NULL, outbox_retention interval DEFAULT NULL) RETURNS once.setting
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    setting once.setting;
BEGIN
    UPDATE once.setting AS s
       SET horizon_days = coalesce(horizon_days, s.horizon_days), days_ahead = coalesce(days_ahead, s.days_ahead),
           clock_skew = coalesce(clock_skew, s.clock_skew), clock_settle = coalesce(clock_settle, s.clock_settle),
           dead_retention = coalesce(dead_retention, s.dead_retention),
           decision_retention = coalesce(decision_retention, s.decision_retention),
           outbox_retention = coalesce(outbox_retention, s.outbox_retention)
     WHERE s.only_row
    RETURNING s.* INTO STRICT setting;
    setting.salt := NULL;       -- secret
    RETURN setting;
END $$;
$file$;
        EXECUTE $file$
-- once._archive_month(day): creates the archive's partition for the month of this day, if it is missing. With ATTACH, as in
-- once.add_days, so that no look-up waits.
CREATE OR REPLACE FUNCTION once._archive_month(day integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    month date := date_trunc('month', date '1970-01-01' + day);
    leaf text := 'archive_' || to_char(month, 'YYYYMM');
BEGIN
    IF to_regclass('once.' || leaf) IS NOT NULL THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
    IF to_regclass('once.' || leaf) IS NULL THEN
        PERFORM once._execute_ddl(format('CREATE TABLE once.%s (LIKE once.archive INCLUDING ALL)', leaf));
        PERFORM once._close(('once.' || leaf)::regclass);
        PERFORM once._execute_ddl(format('ALTER TABLE once.archive ATTACH PARTITION once.%s FOR VALUES FROM (%s) TO (%s)', leaf,
            month - date '1970-01-01', (month + interval '1 month')::date - date '1970-01-01'));
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._backlog(): from which time on relays and consumers need the stored answers. A relay: since its oldest event that is neither
-- delivered nor discarded was emitted, because a receiver that gets it again must recognise it (to the day, if thousands wait or one is
-- parked). A consumer: its oldest position. Relays and consumers that need nothing are left out.
CREATE OR REPLACE FUNCTION once._backlog() RETURNS TABLE (what text, name text, tenant text, needed_from timestamptz, since timestamptz)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    days integer[] := ARRAY(SELECT once._days('once.outbox', 'outbox_d'));
    relay once.relay;
    day integer;
    oldest timestamptz;
    events bigint;
    parked integer;
BEGIN
    FOR relay IN SELECT r.* FROM once.relay AS r ORDER BY r.relay LOOP
        needed_from := NULL;
        IF NOT once._relay_own(relay.relay) THEN
            needed_from := '-infinity';         -- its progress is unknown
        ELSE
            FOREACH day IN ARRAY days LOOP
                SELECT min(n.created_at), count(*) INTO oldest, events
                  FROM (SELECT o.created_at FROM once.outbox AS o
                         WHERE o.day = day
                           AND (o.xid >= pg_snapshot_xmax(relay.seen)
                                OR o.xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip(relay.seen) AS x)))
                           AND (relay.reading IS NULL OR o.id > relay.after_id
                                OR NOT pg_visible_in_snapshot(o.xid, relay.reading))
                           AND (relay.topics IS NULL OR o.topic LIKE ANY (relay.topics)) LIMIT 10000) AS n;
                IF events > 0 THEN
                    needed_from := CASE WHEN events < 10000 THEN oldest ELSE to_timestamp(day * 86400.0) END;
                    EXIT;
                END IF;
            END LOOP;
            SELECT min(p.day) INTO parked FROM once.parked_event AS p WHERE p.relay = relay.relay;
            needed_from := least(needed_from, to_timestamp(parked * 86400.0));
        END IF;
        IF needed_from IS NOT NULL THEN
            what := 'relay';
            name := relay.relay;
            tenant := NULL;
            since := relay.progressed_at;
            RETURN NEXT;
        END IF;
    END LOOP;
    RETURN QUERY
    SELECT 'consumer', c.consumer::text, c.tenant::text, min(c."position"), min(c.reported_at)
      FROM once.consumer_position AS c GROUP BY c.consumer, c.tenant ORDER BY c.consumer, c.tenant;
END $$;
$file$;
        EXECUTE $file$
-- once._blocks(leaf): the current number of blocks of this table's heap.
CREATE OR REPLACE FUNCTION once._blocks(leaf regclass) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT pg_relation_size(leaf) / current_setting('block_size')::integer
$$;
$file$;
        EXECUTE $file$
-- once._clock(): reads the database's clock and judges it. The clock is steady once its readings cover clock_settle without a jump; each
-- pause between two readings counts at most five minutes or a twelfth of clock_settle. A jump is a reading before the last one, or one
-- after a pause of more than five minutes that is also more than three times the longest recent pause (of at most two hours). A keeper
-- that was down for long looks like a jump, too: it then waits without need, which is harmless.
CREATE OR REPLACE FUNCTION once._clock() RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    settle interval := (SELECT s.clock_settle FROM once.setting AS s WHERE s.only_row);
    now timestamptz := clock_timestamp();
    last once.clock;
    pause interval;
    why text;
BEGIN
    INSERT INTO once.clock (read_at, unsteady_since, why) VALUES (now, now, 'it was first read') ON CONFLICT DO NOTHING;
    SELECT c.* INTO STRICT last FROM once.clock AS c WHERE c.only_row FOR UPDATE;
    now := clock_timestamp();       -- after the lock, so that no other reading is later
    pause := now - last.read_at;
    IF pause < interval '0' THEN
        why := format('it stepped back by %s', -pause);
        pause := interval '0';
        last.longest_pause := interval '0';     -- it may come from the jump that this corrects
    ELSIF pause > greatest(interval '5 minutes', 3 * last.longest_pause) THEN
        why := format('it leapt forward by %s', pause);
    ELSIF pause < interval '1 second' THEN
        RETURN;
    END IF;
    UPDATE once.clock AS c
       SET read_at = now,
           longest_pause = greatest(least(pause, interval '2 hours'), last.longest_pause - pause / 2),      -- recent: it decreases
           steady = CASE WHEN why IS NULL THEN last.steady + least(pause, settle / 12, interval '5 minutes') ELSE interval '0' END,
           unsteady_since = CASE WHEN why IS NULL THEN last.unsteady_since ELSE now END,
           why = coalesce(why, last.why)
     WHERE c.only_row;
END $$;
$file$;
        EXECUTE $file$
-- once._clock_held(): why nothing may be deleted by this clock: it has not been steady for once.setting.clock_settle (once._clock). NULL
-- if it has.
CREATE OR REPLACE FUNCTION once._clock_held() RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    settle interval := (SELECT s.clock_settle FROM once.setting AS s WHERE s.only_row);
    clock once.clock;
BEGIN
    SELECT c.* INTO clock FROM once.clock AS c WHERE c.only_row;
    IF settle = interval '0' OR clock.steady >= settle THEN
        RETURN NULL;
    END IF;
    RETURN CASE WHEN clock.read_at IS NULL THEN 'no keeper has read the clock yet'
                ELSE format('the clock is not steady yet: %s at %s', clock.why, clock.unsteady_since) END;
END $$;
$file$;
        EXECUTE $file$
-- once._close_day(day): closes an open day for new intents: see once._keep_close. No scan under its locks. Everything that may wait
-- longer than an instant comes before the lock on the day's table. Days close in order, or it raises 55000: once.start sees by the table
-- whether a day is open, once.claim by the last closed day, and both must agree.
CREATE OR REPLACE FUNCTION once._close_day(day integer) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    oldest integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));    -- once.add_days no longer creates it
    oldest := (SELECT d FROM once._days('once.intent', 'intent_d') AS d LIMIT 1);
    IF oldest < day THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: day %s cannot be closed while day %s is open', day, oldest),
            DETAIL = 'all days before a closed day count as closed, too',
            HINT = format('Close day %s first. once_job.keep_step and once.retire_day close days in their order.', oldest);
    END IF;
    UPDATE once.setting AS s SET closed_before = greatest(s.closed_before, day + 1) WHERE s.only_row;
    PERFORM set_config('lock_timeout', '100ms', true);
    EXECUTE format('LOCK TABLE once.intent_d%s IN ACCESS EXCLUSIVE MODE', day);
    PERFORM once._execute_ddl(format('ALTER TABLE once.intent_d%1$s RENAME TO intent_closed_d%1$s', day));
    -- A restore inserts the old rows, with an empty search_path, as pg_dump and pg_restore set it: after --schema-only the trigger exists
    -- before the rows. No function of the contract runs with an empty search_path.
    PERFORM once._execute_ddl(format('CREATE TRIGGER closed BEFORE INSERT ON once.intent_closed_d%s FOR EACH ROW'
                   ' WHEN (current_setting(''search_path'') <> '''') EXECUTE FUNCTION once._refuse_closed()', day));
    PERFORM once._next_phase(day, 'doubt');
END $$;
$file$;
        EXECUTE $file$
-- once._days(parent, prefix): the days that have a partition whose name begins with prefix, in order. once.intent_dN are open days,
-- once.intent_closed_dN those that are being retired.
CREATE OR REPLACE FUNCTION once._days(parent regclass, prefix text) RETURNS SETOF integer LANGUAGE sql STABLE AS $$
    SELECT substr(c.relname, length(prefix) + 1)::integer AS day
      FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
     WHERE h.inhparent = parent AND c.relname ~ ('^' || prefix || '[1-9][0-9]*$')
     ORDER BY day
$$;
$file$;
        EXECUTE $file$
-- once._delete_decisions(first, past, limits): deletes up to 500 entries of once.decision in these blocks that are past their retention,
-- but none of an intent that is still in doubt. Returns the same as once._delete_intents; a decision has no fence to keep.
CREATE OR REPLACE FUNCTION once._delete_decisions(first bigint, past bigint, limits once.limits, OUT number bigint, OUT highest integer,
    OUT due bigint) LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
BEGIN
    EXECUTE once._sql_for_blocks('once.decision', first, past, $sql$
        WITH due AS MATERIALIZED (
            SELECT i.ctid AS address FROM {leaf} AS i
             WHERE {here} AND i.decided_at < ($1).now - ($1).decision_retention
               AND NOT EXISTS (SELECT FROM once.intent AS o WHERE o.tenant = i.tenant AND o.scope = i.scope AND o.key = i.key
                                                              AND o.bucket = once._bucket(i.key) AND o.state = 'in_doubt')
               AND NOT EXISTS (SELECT FROM once.archive AS o WHERE o.tenant = i.tenant AND o.scope = i.scope AND o.key = i.key
                                                               AND o.bucket = once._bucket(i.key) AND o.state = 'in_doubt')
             LIMIT 500
        ), free AS MATERIALIZED (
            SELECT i.ctid AS address FROM {leaf} AS i WHERE i.ctid = ANY (ARRAY(SELECT d.address FROM due AS d))
               FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM {leaf} AS i WHERE i.ctid = ANY (ARRAY(SELECT f.address FROM free AS f)) RETURNING i.fence
        )
        SELECT count(*), NULL::integer, (SELECT count(*) FROM due) FROM gone AS g
        $sql$) INTO number, highest, due USING limits;
END $$;
$file$;
        EXECUTE $file$
-- once._delete_intents(leaf, first, past, limits): deletes up to 500 finished intents in these blocks that are past their retention, and
-- expired ones that had no effect. Each under its advisory lock, and none that another session is changing, so that no attempt is
-- disturbed. Intents that are processing or in doubt stay. due: how many there were.
CREATE OR REPLACE FUNCTION once._delete_intents(leaf regclass, first bigint, past bigint, limits once.limits, OUT number bigint,
    OUT highest integer, OUT due bigint) LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
BEGIN
    EXECUTE once._sql_for_blocks(leaf, first, past, $sql$
        WITH due AS MATERIALIZED (
            SELECT i.ctid AS address, i.tenant, i.scope, i.key FROM {leaf} AS i
             WHERE {here} AND i.state IN ('succeeded', 'failed_final', 'failed_retryable') AND {deletable} LIMIT 500
        ), held AS MATERIALIZED (
            SELECT d.address FROM due AS d WHERE pg_try_advisory_xact_lock(once._lock_id(d.tenant, d.scope, d.key))
        ), free AS MATERIALIZED (
            SELECT i.ctid AS address FROM {leaf} AS i
             WHERE i.ctid = ANY (ARRAY(SELECT h.address FROM held AS h))
               AND i.state IN ('succeeded', 'failed_final', 'failed_retryable') AND {deletable} FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM {leaf} AS i WHERE i.ctid = ANY (ARRAY(SELECT f.address FROM free AS f)) RETURNING i.fence
        )
        SELECT count(*), max(g.fence), (SELECT count(*) FROM due) FROM gone AS g
        $sql$) INTO number, highest, due USING limits;
END $$;
$file$;
        EXECUTE $file$
-- once._delete_past(step, leaves): one part of a step that deletes rows: the due rows of these tables, by blocks, some hundred rows or a
-- tenth of a second, from where the last part stopped. highest: the highest fence among the deleted rows. After a complete pass it rests,
-- longer for larger tables, so as not to read them all day.
CREATE OR REPLACE FUNCTION once._delete_past(step text, leaves text[], OUT done bigint, OUT more boolean, OUT highest integer)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '100 milliseconds';
    limits once.limits := once._limits();
    stride bigint := once._stride();
    place once.keeper_step;
    nth integer;
    gone record;
    worked boolean := false;
BEGIN
    done := 0;
    more := false;
    SELECT k.* INTO STRICT place FROM once.keeper_step AS k WHERE k.step = step COLLATE "C" FOR UPDATE;
    IF place.leaf IS NULL AND clock_timestamp() < place.ended_at
       + (SELECT sum(once._blocks(to_regclass('once.' || l))) FROM unnest(leaves) AS l) * interval '1 millisecond'
       AND clock_timestamp() >= place.ended_at THEN
        RETURN;
    END IF;
    nth := array_position(leaves, place.leaf::text);
    IF nth IS NULL THEN         -- a new pass, or the table has gone
        nth := 1;
        place.block := 0;
    END IF;
    LOOP
        IF nth > cardinality(leaves) THEN
            place.ended_at := clock_timestamp();
            place.block := 0;
            EXIT;
        ELSIF place.block >= coalesce(once._blocks(to_regclass('once.' || leaves[nth])), 0) THEN
            nth := nth + 1;
            place.block := 0;
            CONTINUE;
        END IF;
        IF worked AND (clock_timestamp() > deadline OR done >= 500) THEN
            more := true;
            EXIT;
        END IF;
        worked := true;
        IF leaves[nth] = 'decision' THEN
            gone := once._delete_decisions(place.block, place.block + stride, limits);
        ELSE
            gone := once._delete_intents(to_regclass('once.' || leaves[nth]), place.block, place.block + stride, limits);
        END IF;
        done := done + gone.number;
        highest := greatest(highest, gone.highest);
        IF gone.due < 500 OR gone.number = 0 THEN     -- else there may be more of them in these blocks
            place.block := place.block + stride;
        END IF;
    END LOOP;
    UPDATE once.keeper_step AS k
       SET leaf = CASE WHEN more THEN leaves[nth] END, block = place.block, ended_at = place.ended_at
     WHERE k.step = step COLLATE "C";
END $$;
$file$;
        EXECUTE $file$
-- once._deletion_held(): why no intent may be deleted or archived now: the clock (once._clock_held), or slots that are moving. NULL:
-- nothing prevents it.
CREATE OR REPLACE FUNCTION once._deletion_held() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(once._clock_held(), CASE WHEN once._is_moving() THEN 'slots are moving: pgonce rehome has not ended' END)
$$;
$file$;
        EXECUTE $file$
-- once._has_day(parent, day): whether there is a partition of this day, of 'intent' or 'outbox', that this session can use. The name of a
-- new table is visible an instant before all sessions know that it is a partition: until then an INSERT into its parent would fail with
-- 23514. The session that creates it holds a lock on it for just that time, so the lock that pg_relation_size takes waits for that, and
-- makes this session know of it.
CREATE OR REPLACE FUNCTION once._has_day(parent text, day integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN pg_relation_size(to_regclass(concat('once.', parent, '_d', day))) IS NOT NULL;
END $$;
$file$;
        EXECUTE $file$
-- once._is_new_day(): whether once._today() is behind the clock, which it is until the partitions of today and of tomorrow exist. The
-- first calls of a day find that out, since they cannot use the plans for today, and have the partitions created (once._make_days); no
-- other call pays for it. Inlined.
CREATE OR REPLACE FUNCTION once._is_new_day() RETURNS boolean LANGUAGE sql AS $$
    SELECT (clock_timestamp() < to_timestamp((once._today() + 1) * 86400::double precision)) IS NOT TRUE
$$;
$file$;
        EXECUTE $file$
-- once._keep_archive(): the step 'archive': deletes expired rows from the archive; drops a month that is empty and whose days are all
-- retired. Intents in doubt stay.
CREATE OR REPLACE FUNCTION once._keep_archive() RETURNS once.kept LANGUAGE plpgsql SET jit = off AS $$
DECLARE
    why text := once._deletion_held();
    closed integer := (SELECT least(min(c.day), (SELECT s.closed_before FROM once.setting AS s WHERE s.only_row))
                         FROM once.closing AS c);
    leaves text[] := ARRAY(SELECT c.relname::text FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
                            WHERE h.inhparent = 'once.archive'::regclass ORDER BY c.relname);
    leaf text;
    piece record;
    filled boolean;
BEGIN
    IF why IS NOT NULL OR cardinality(leaves) = 0 THEN
        RETURN ROW(0, false, NULL, why)::once.kept;
    END IF;
    piece := once._delete_past('archive', leaves);
    IF piece.more OR piece.done > 0 THEN
        RETURN ROW(piece.done, true, NULL, format('%s archived intents deleted', piece.done))::once.kept;
    END IF;
    FOREACH leaf IN ARRAY leaves LOOP
        CONTINUE WHEN leaf !~ '^archive_[0-9]{6}$'
                   OR (to_date(right(leaf, 6), 'YYYYMM') + interval '1 month')::date - date '1970-01-01' > closed;
        EXECUTE format('SELECT EXISTS (SELECT FROM once.%I)', leaf) INTO filled;
        -- No row can be added: all of its days are retired.
        IF NOT filled THEN
            PERFORM set_config('lock_timeout', '100ms', true);
            PERFORM once._execute_ddl(format('ALTER TABLE once.archive DETACH PARTITION once.%I', leaf));
            PERFORM once._execute_ddl(format('DROP TABLE once.%I', leaf));
            RETURN ROW(1, true, NULL, format('%s is dropped', leaf))::once.kept;
        END IF;
    END LOOP;
    RETURN ROW(0, false, NULL, NULL)::once.kept;
END $$;
$file$;
        EXECUTE $file$
-- once._keep_begin(keeper, step): raises if this keeper may not work on this step now; otherwise reads the clock, as every part of every
-- step does, and inserts the step's row.
CREATE OR REPLACE FUNCTION once._keep_begin(keeper text, step text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = '25000', MESSAGE = 'pgonce: a keeper works in READ COMMITTED only',
            DETAIL = 'a snapshot from before a lock would not show the last intents of a day',
            HINT = 'SET default_transaction_isolation = ''read committed''';
    ELSIF NOT EXISTS (SELECT FROM once_job.keep_steps() AS s WHERE s.step = step COLLATE "C") THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: a keeper has no step %s',
            quote_nullable(left(step, 80)));
    ELSIF NOT EXISTS (SELECT FROM once.keeper AS k WHERE k.keeper = keeper COLLATE "C" AND k.lease_until > now) THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: keeper %s does not hold the lease',
            quote_nullable(left(keeper, 80))),
            HINT = 'Call once_job.keep_take first; false means that another keeper is at work.';
    END IF;
    INSERT INTO once.keeper_step (step) VALUES (step) ON CONFLICT ON CONSTRAINT keeper_step_pkey DO NOTHING;
    IF step = 'days' THEN
        UPDATE once.keeper AS k SET last_round = now WHERE k.keeper = keeper COLLATE "C";
    END IF;
    PERFORM once._clock();
END $$;
$file$;
        EXECUTE $file$
-- once._keep_clock(): the step 'clock'. Every part of every step reads the clock; this step only reports.
CREATE OR REPLACE FUNCTION once._keep_clock() RETURNS once.kept LANGUAGE plpgsql AS $$
BEGIN
    RETURN ROW(0, false, NULL, once._clock_held())::once.kept;
END $$;
$file$;
        EXECUTE $file$
-- once._keep_close(): the step 'close': closes the oldest open day, if it is past the horizon and no relay or consumer needs it. It first
-- searches, without locks and in parts, for an attempt under a lease: then the day stays open. Closing is one short transaction: it
-- renames the day's table, so that the hot functions, which use the table by its name, find the day closed at no cost; and it adds a
-- trigger, for calls that have found the table already. It waits for transactions inside the day only for a moment, because others queue
-- behind it.
CREATE OR REPLACE FUNCTION once._keep_close() RETURNS once.kept LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    deadline timestamptz := clock_timestamp() + interval '100 milliseconds';
    today integer := floor(date_part('epoch', once._steady_now()) / 86400);
    due integer := (SELECT d FROM once._days('once.intent', 'intent_d') AS d LIMIT 1);
    why text;
    leaf text := 'intent_d' || due;
    closing once.closing;
    stride bigint := once._stride();
BEGIN
    IF (due < today - (SELECT s.horizon_days FROM once.setting AS s WHERE s.only_row)) IS NOT TRUE THEN
        DELETE FROM once.closing AS c WHERE c.phase = 'look';       -- the horizon has changed
        RETURN ROW(0, false, NULL, NULL)::once.kept;
    END IF;
    why := coalesce(once._deletion_held(), once._needed(due));
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, format('day %s stays open: %s', due, why))::once.kept;
    END IF;
    DELETE FROM once.closing AS c WHERE c.phase = 'look' AND c.day <> due;
    INSERT INTO once.closing (day, started_at) VALUES (due, clock_timestamp()) ON CONFLICT DO NOTHING;
    SELECT c.* INTO closing FROM once.closing AS c WHERE c.day = due FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR to_regclass('once.' || leaf) IS NULL THEN
        RETURN ROW(0, false, NULL, format('another keeper is at day %s', due))::once.kept;
    END IF;
    WHILE closing.block < once._blocks(('once.' || leaf)::regclass) LOOP
        EXECUTE once._sql_for_blocks(('once.' || leaf)::regclass, closing.block, closing.block + stride, $sql$
            SELECT format('an attempt holds its lease until %s: tenant=%L scope=%L key=%L', i.lease_until, i.tenant, i.scope, i.key)
              FROM {leaf} AS i WHERE {here} AND i.state = 'processing' AND i.lease_until > clock_timestamp() LIMIT 1
            $sql$) INTO why;
        EXIT WHEN why IS NOT NULL;
        closing.block := closing.block + stride;
        EXIT WHEN clock_timestamp() > deadline;     -- at least one stride, however loaded the machine is
    END LOOP;
    IF why IS NOT NULL OR closing.block < once._blocks(('once.' || leaf)::regclass) THEN
        UPDATE once.closing AS c SET block = closing.block, held = why,
               held_since = CASE WHEN why IS NOT NULL THEN coalesce(c.held_since, clock_timestamp()) END
         WHERE c.day = due;
        RETURN ROW(0, why IS NULL, NULL, format('day %s stays open: %s', due, coalesce(why, 'searched in part'))
            )::once.kept;
    END IF;
    PERFORM once._close_day(due);
    RETURN ROW(1, true, NULL, format('day %s is closed', due))::once.kept;
END $$;
$file$;
        EXECUTE $file$
-- once._keep_closed(phase): the steps 'doubt', 'move' and 'drop' read the tables of closed days in the same way, and differ in what they
-- then do. A day that is held up does not stop the next one. If a table is gone, another session has retired the day.
CREATE OR REPLACE FUNCTION once._keep_closed(phase text) RETURNS once.kept LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    closing once.closing;
    leaf regclass;
    piece record;
    again boolean;
    why text := CASE WHEN phase <> 'doubt' THEN once._deletion_held() END;
BEGIN
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, why)::once.kept;
    END IF;
    FOR closing IN SELECT c.* FROM once.closing AS c WHERE c.phase = phase ORDER BY c.day FOR UPDATE SKIP LOCKED LOOP
        leaf := to_regclass('once.intent_closed_d' || closing.day);
        IF leaf IS NULL THEN
            DELETE FROM once.closing AS c WHERE c.day = closing.day;
            RETURN ROW(0, true, NULL, format('day %s is gone already', closing.day))::once.kept;
        ELSIF phase = 'drop' AND EXISTS (SELECT FROM pg_inherits AS h WHERE h.inhrelid = leaf) THEN
            PERFORM once._next_phase(closing.day, 'detach');
            RETURN ROW(0, true, NULL, NULL)::once.kept;
        END IF;
        SELECT w.* INTO piece FROM once._work_off(closing, leaf, phase <> 'doubt') AS w;
        IF piece.through THEN
            -- A report stored meanwhile may have moved a row to a block that was already read: only a pass that moves nothing is the
            -- last.
            SELECT c.moved > 0 INTO again FROM once.closing AS c WHERE c.day = closing.day;
            PERFORM once._next_phase(closing.day, CASE WHEN again THEN phase WHEN phase = 'doubt' THEN 'move'
                                                       WHEN phase = 'move' THEN 'detach' ELSE 'drop' END);
            IF phase = 'drop' AND NOT again THEN
                PERFORM set_config('lock_timeout', '100ms', true);
                PERFORM once._execute_ddl(format('DROP TABLE %s', leaf));
                DELETE FROM once.closing AS c WHERE c.day = closing.day;
                RETURN ROW(1, true, NULL, format('day %s is dropped', closing.day))::once.kept;
            END IF;
        END IF;
        IF piece.held IS NULL OR piece.done > 0 THEN
            RETURN ROW(piece.done, true, NULL, format('day %s: %s', closing.day, CASE WHEN piece.through THEN 'through'
                ELSE format('%s rows', piece.done) END))::once.kept;
        END IF;
        why := concat_ws('; ', why, format('day %s waits: %s', closing.day, piece.held));
    END LOOP;
    RETURN ROW(0, false, NULL, why)::once.kept;
END $$;
$file$;
        EXECUTE $file$
-- once._keep_days(): the step 'days': creates partitions in advance.
CREATE OR REPLACE FUNCTION once._keep_days() RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    made integer := once.add_days();
BEGIN
    RETURN ROW(made, false, NULL, CASE WHEN made > 0 THEN format('%s partitions made', made) END)::once.kept;
END $$;
$file$;
        EXECUTE $file$
-- once._keep_dead(): the step 'dead': gives up dead events and messages that no operator has decided for dead_retention, as
-- once.parked_discard does, and deletes decisions on parked ones of that age.
CREATE OR REPLACE FUNCTION once._keep_dead() RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    why text := once._clock_held();
    keeps interval := (SELECT s.dead_retention FROM once.setting AS s WHERE s.only_row);
    before timestamptz := once._steady_now() - keeps;
    reason text := format('dead for longer than %s', keeps);
    event once.parked_event;
    message once.parked_message;
    piece once.parked_piece;
    done bigint := 0;
    deleted bigint;
BEGIN
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, why)::once.kept;
    END IF;
    FOR event IN SELECT p.* FROM once.parked_event AS p WHERE p.state = 'dead' AND p.updated_at < before
                  ORDER BY p.relay, p.id LIMIT 100 LOOP
        -- The relay's row before the event's, like every decision; if another session has it, the next round does this.
        PERFORM FROM once.relay AS r WHERE r.relay = event.relay COLLATE "C" FOR UPDATE SKIP LOCKED;
        IF FOUND AND EXISTS (SELECT FROM once.parked_event AS p WHERE p.relay = event.relay COLLATE "C" AND p.id = event.id
                                AND p.state = 'dead' AND p.updated_at < before) THEN
            piece.holder := event.relay;
            piece.ids := ARRAY[event.id];
            piece := once._decide_events('discard', reason, 'dead', piece);
            done := done + coalesce(cardinality(piece.topics), 0);
        END IF;
    END LOOP;
    -- Without those that once.parked_discard refuses because their day is not open.
    FOR message IN SELECT p.* FROM once.parked_message AS p WHERE p.state = 'dead' AND p.updated_at < before
                      AND once._day_state(once._bucket(p.message_id)) IN ('open', 'closed')
                    ORDER BY p.position LIMIT 100 FOR UPDATE SKIP LOCKED LOOP
        -- A message that is being received, or worked on under a lease, is left for later.
        IF pg_try_advisory_xact_lock(once._lock_id(message.tenant, message.consumer, message.message_id))
           AND NOT EXISTS (SELECT FROM once.intent AS i
                            WHERE i.tenant = message.tenant COLLATE "C" AND i.scope = message.consumer COLLATE "C"
                              AND i.key = message.message_id COLLATE "C"
                              AND i.state = 'processing' AND i.lease_until > clock_timestamp()) THEN
            done := done + (once._decide_message('discard', reason, message.consumer, message.tenant, message.message_id) IS NULL)::integer;
        END IF;
    END LOOP;
    DELETE FROM once.parked_decision AS d
     WHERE d.ctid = ANY (ARRAY(SELECT o.ctid FROM once.parked_decision AS o WHERE o.decided_at < before LIMIT 500));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    done := done + deleted;
    RETURN ROW(done, done > 0, NULL, CASE WHEN done > 0 THEN format('%s dead events, messages and decisions', done)
        END)::once.kept;
END $$;
$file$;
        EXECUTE $file$
-- once._keep_decisions(): the step 'decisions': deletes entries of once.decision past their
-- retention (once._delete_decisions).
CREATE OR REPLACE FUNCTION once._keep_decisions() RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    why text := once._clock_held();
    piece record;
BEGIN
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, why)::once.kept;
    END IF;
    piece := once._delete_past('decisions', ARRAY['decision']);
    RETURN ROW(piece.done, piece.more, NULL, CASE WHEN piece.done > 0 THEN format('%s decisions deleted', piece.done)
        END)::once.kept;
END $$;
$file$;
        EXECUTE $file$
-- once._keep_delayed(): the step 'delayed': moves delayed events that are due to the outbox, as relays do: for captures, and so that due
-- events count as pending while no relay runs.
CREATE OR REPLACE FUNCTION once._keep_delayed() RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    moved record := once_job.relay_release(500);
BEGIN
    RETURN ROW(moved.released, moved.released > 0, NULL,
        CASE WHEN moved.released > 0 THEN format('%s delayed events are due', moved.released) END)::once.kept;
END $$;
$file$;
        EXECUTE $file$
-- once._keep_detach(in_own_transaction): the step 'detach': detaches the table of a day without remaining rows from once.intent.
-- Concurrently, by a statement that the caller runs, if the caller can: then no attempt waits. Otherwise under a lock of an instant on
-- once.intent. It finishes a concurrent detach that was interrupted.
CREATE OR REPLACE FUNCTION once._keep_detach(in_own_transaction boolean) RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    closing once.closing;
    leaf regclass;
    attached boolean;
    pending boolean;
    statement text;
BEGIN
    SELECT c.* INTO closing FROM once.closing AS c WHERE c.phase = 'detach' ORDER BY c.day LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN ROW(0, false, NULL, NULL)::once.kept;
    END IF;
    leaf := to_regclass('once.intent_closed_d' || closing.day);
    SELECT true, coalesce((to_jsonb(h) ->> 'inhdetachpending')::boolean, false) INTO attached, pending
      FROM pg_inherits AS h WHERE h.inhrelid = leaf AND h.inhparent = 'once.intent'::regclass;
    IF attached IS NULL THEN
        PERFORM once._next_phase(closing.day, 'drop');
        RETURN ROW(1, true, NULL, format('day %s is detached', closing.day))::once.kept;
    END IF;
    statement := format('ALTER TABLE once.intent DETACH PARTITION once.intent_closed_d%s', closing.day);
    IF pending THEN
        statement := statement || ' FINALIZE';
    END IF;
    IF in_own_transaction AND current_setting('server_version_num')::integer >= 140000
       AND pg_has_role(coalesce(nullif(current_setting('role'), 'none'), session_user::text),
                       (SELECT c.relowner FROM pg_class AS c WHERE c.oid = 'once.intent'::regclass), 'USAGE') THEN
        RETURN ROW(0, true, statement || CASE WHEN pending THEN '' ELSE ' CONCURRENTLY' END,
            format('day %s can be detached', closing.day))::once.kept;
    END IF;
    PERFORM set_config('lock_timeout', '100ms', true);
    EXECUTE statement;
    PERFORM once._next_phase(closing.day, 'drop');
    RETURN ROW(1, true, NULL, format('day %s is detached', closing.day))::once.kept;
END $$;
$file$;
        EXECUTE $file$
-- once._keep_doubt(): the step 'doubt'. In a closed day no attempt can run: stale ones become in doubt. A live lease holds the day up.
CREATE OR REPLACE FUNCTION once._keep_doubt() RETURNS once.kept LANGUAGE plpgsql AS $$
BEGIN
    RETURN once._keep_closed('doubt');
END $$;
$file$;
        EXECUTE $file$
-- once._keep_drop(): the step 'drop'. Checks the detached table a last time and drops it.
CREATE OR REPLACE FUNCTION once._keep_drop() RETURNS once.kept LANGUAGE plpgsql AS $$
BEGIN
    RETURN once._keep_closed('drop');
END $$;
$file$;
        EXECUTE $file$
-- once._keep_move(): the step 'move'. Rows that outlive their day move to the archive.
CREATE OR REPLACE FUNCTION once._keep_move() RETURNS once.kept LANGUAGE plpgsql AS $$
BEGIN
    RETURN once._keep_closed('move');
END $$;
$file$;
        EXECUTE $file$
-- once._keep_outbox(): the step 'outbox': drops the oldest day of the outbox that ended more than once.setting.outbox_retention ago and
-- that every relay has passed, by the conditions of once.retire_outbox, but without counting under the lock. A day that is needed also
-- keeps the later ones: a relay that catches up reads them in order. Each part checks the replication slots first.
CREATE OR REPLACE FUNCTION once._keep_outbox() RETURNS once.kept LANGUAGE plpgsql SET jit = off AS $$
DECLARE
    why text := once._clock_held();
    due integer := (SELECT d FROM once._days('once.outbox', 'outbox_d') AS d LIMIT 1);
    keeps interval := (SELECT s.outbox_retention FROM once.setting AS s WHERE s.only_row);
BEGIN
    PERFORM once._follow_slots();
    IF (once._steady_now() >= to_timestamp((due + 1) * 86400.0) + keeps) IS NOT TRUE THEN
        RETURN ROW(0, false, NULL, NULL)::once.kept;
    END IF;
    why := coalesce(why, (once._outbox_needed(due)).why);
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, format('day %s of the outbox stays: %s', due, why))::once.kept;
    END IF;
    PERFORM once._drop_superseded(due);
    PERFORM set_config('lock_timeout', '100ms', true);
    EXECUTE format('LOCK TABLE once.outbox, once.outbox_d%s IN ACCESS EXCLUSIVE MODE', due);
    PERFORM once._check_retired(due);
    PERFORM once._execute_ddl(format('ALTER TABLE once.outbox DETACH PARTITION once.outbox_d%s', due));
    PERFORM once._execute_ddl(format('DROP TABLE once.outbox_d%s', due));
    RETURN ROW(1, true, NULL, format('day %s of the outbox is dropped', due))::once.kept;
END $$;
$file$;
        EXECUTE $file$
-- once._keep_purge(): the step 'purge': deletes expired intents of keys without a day (once._delete_intents).
CREATE OR REPLACE FUNCTION once._keep_purge() RETURNS once.kept LANGUAGE plpgsql AS $$
DECLARE
    why text := once._deletion_held();
    piece record;
BEGIN
    IF why IS NOT NULL THEN
        RETURN ROW(0, false, NULL, why)::once.kept;
    END IF;
    piece := once._delete_past('purge', ARRAY['intent_d0']);
    -- Their locks are held until the deletion is committed, and no other session purges meanwhile. See once._first_fence.
    IF piece.highest >= once._first_fence() THEN
        PERFORM setval('once.fence_floor_seq', piece.highest);
    END IF;
    RETURN ROW(piece.done, piece.more, NULL, CASE WHEN piece.done > 0 THEN format('%s intents deleted', piece.done)
        END)::once.kept;
END $$;
$file$;
        EXECUTE $file$
-- once._keep_sweep(): the step 'sweep': reads the open tables by blocks, recovers stale intents (as once.recover does), and counts those
-- that stay stale or in doubt, by scope: once.swept has the results of the last complete pass. Rests after a pass, longer for larger
-- tables.
CREATE OR REPLACE FUNCTION once._keep_sweep() RETURNS once.kept LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '100 milliseconds';
    buckets integer[] := ARRAY(SELECT 0 UNION ALL SELECT d FROM once._days('once.intent', 'intent_d') AS d);
    stride bigint := once._stride();
    place once.keeper_step;
    recovered record;
    done bigint := 0;
    more boolean := false;
    nth integer;
    leaf text;
    stale boolean;
    worked boolean := false;
BEGIN
    SELECT k.* INTO STRICT place FROM once.keeper_step AS k WHERE k.step = 'sweep' FOR UPDATE;
    IF place.leaf IS NULL AND clock_timestamp() >= place.ended_at AND clock_timestamp() < place.ended_at
       + (SELECT sum(once._blocks(to_regclass('once.intent_d' || b))) FROM unnest(buckets) AS b) * interval '1 millisecond' THEN
        RETURN ROW(0, false, NULL, NULL)::once.kept;
    END IF;
    nth := array_position(buckets, substr(place.leaf, length('intent_d') + 1)::integer);
    IF place.leaf IS NULL THEN
        DELETE FROM once.sweeping;
    END IF;
    IF nth IS NULL THEN         -- a new pass, or the day has been closed
        nth := coalesce((SELECT min(n) FROM unnest(buckets) WITH ORDINALITY AS u (b, n)
                          WHERE b > substr(place.leaf, length('intent_d') + 1)::integer), 1);
        place.block := 0;
        place.place := NULL;
    END IF;
    LOOP
        leaf := 'intent_d' || buckets[nth];
        IF nth > cardinality(buckets) THEN
            DELETE FROM once.swept;
            INSERT INTO once.swept SELECT s.*, clock_timestamp() FROM once.sweeping AS s;
            place.ended_at := clock_timestamp();
            place.block := 0;
            EXIT;
        ELSIF place.block >= coalesce(once._blocks(to_regclass('once.' || leaf)), 0) THEN
            nth := nth + 1;
            place.block := 0;
            place.place := NULL;
            CONTINUE;
        ELSIF worked AND clock_timestamp() > deadline THEN
            more := true;
            EXIT;
        END IF;
        worked := true;
        IF place.place IS NULL THEN
            EXECUTE once._sql_for_blocks(('once.' || leaf)::regclass, place.block, place.block + stride, $sql$
                SELECT EXISTS (SELECT FROM {leaf} AS i
                                WHERE {here} AND i.state = 'processing' AND i.lease_until <= clock_timestamp())
                $sql$) INTO stale;
            place.place := CASE WHEN stale THEN format('%s:%s:0', buckets[nth], place.block) END;
        END IF;
        IF place.place IS NOT NULL THEN
            stale := false;
            FOR recovered IN SELECT r.* FROM once._recover(1000, NULL, NULL, place.place, place.block + stride) AS r LOOP
                place.place := recovered.next;
                stale := true;
                done := done + (recovered.decided <> 'retry' IS TRUE)::integer;
            END LOOP;
            CONTINUE WHEN stale AND place.place IS NOT NULL;
            place.place := NULL;
        END IF;
        EXECUTE once._sql_for_blocks(('once.' || leaf)::regclass, place.block, place.block + stride, $sql$
            INSERT INTO once.sweeping AS s
            SELECT i.scope, count(*) FILTER (WHERE i.state = 'processing'), count(*) FILTER (WHERE i.state = 'in_doubt'),
                   min(i.lease_until) FILTER (WHERE i.state = 'processing')
              FROM {leaf} AS i
             WHERE {here} AND (i.state = 'in_doubt' OR (i.state = 'processing' AND i.lease_until <= $1))
             GROUP BY i.scope
            ON CONFLICT (scope) DO UPDATE SET stale = s.stale + excluded.stale, in_doubt = s.in_doubt + excluded.in_doubt,
                oldest_stale = least(s.oldest_stale, excluded.oldest_stale)
            $sql$) USING clock_timestamp();
        place.block := place.block + stride;
    END LOOP;
    UPDATE once.keeper_step AS k
       SET leaf = CASE WHEN more THEN leaf END, block = place.block, place = place.place, ended_at = place.ended_at
     WHERE k.step = 'sweep';
    RETURN ROW(done, more, NULL, CASE WHEN done > 0 THEN format('%s stale intents decided', done) END)::once.kept;
END $$;
$file$;
        EXECUTE $file$
-- once._keep_untaken(): the step 'untaken': reads the days of the outbox by blocks, and counts by topic the events that no relay takes:
-- once.untaken has the results of the last complete pass. The newest events alone (once.outbox_untaken) would not show a rare topic
-- beside a busy one. Rests after a pass, longer for a larger outbox. Reads nothing if a relay takes all topics, or none has run.
CREATE OR REPLACE FUNCTION once._keep_untaken() RETURNS once.kept LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '100 milliseconds';
    days integer[] := ARRAY(SELECT d FROM once._days('once.outbox', 'outbox_d') AS d);
    stride bigint := once._stride();
    place once.keeper_step;
    more boolean := false;
    nth integer;
    leaf text;
    worked boolean := false;
BEGIN
    SELECT k.* INTO STRICT place FROM once.keeper_step AS k WHERE k.step = 'untaken' FOR UPDATE;
    IF (SELECT coalesce(bool_or(r.topics IS NULL), true) FROM once.relay AS r) THEN
        DELETE FROM once.untaken;
        UPDATE once.keeper_step AS k SET leaf = NULL, ended_at = NULL
         WHERE k.step = 'untaken' AND (k.leaf IS NOT NULL OR k.ended_at IS NOT NULL);
        RETURN ROW(0, false, NULL, NULL)::once.kept;
    ELSIF place.leaf IS NULL AND clock_timestamp() >= place.ended_at AND clock_timestamp() < place.ended_at
       + (SELECT sum(once._blocks(to_regclass('once.outbox_d' || d))) FROM unnest(days) AS d) * interval '1 millisecond' THEN
        RETURN ROW(0, false, NULL, NULL)::once.kept;
    END IF;
    IF place.leaf IS NULL THEN
        DELETE FROM once.untaking;
        place.block := 0;
    END IF;
    -- The day where the last part stopped, or the next one if that is gone.
    nth := coalesce((SELECT min(n) FROM unnest(days) WITH ORDINALITY AS u (d, n)
                      WHERE place.leaf IS NULL OR d >= substr(place.leaf, length('outbox_d') + 1)::integer), cardinality(days) + 1);
    IF place.leaf <> 'outbox_d' || days[nth] THEN
        place.block := 0;
    END IF;
    LOOP
        leaf := 'outbox_d' || days[nth];
        IF nth > cardinality(days) THEN
            DELETE FROM once.untaken;
            INSERT INTO once.untaken SELECT u.* FROM once.untaking AS u;
            place.ended_at := clock_timestamp();
            EXIT;
        ELSIF place.block >= coalesce(once._blocks(to_regclass('once.' || leaf)), 0) THEN
            nth := nth + 1;
            place.block := 0;
            CONTINUE;
        ELSIF worked AND clock_timestamp() > deadline THEN
            more := true;
            EXIT;
        END IF;
        worked := true;
        EXECUTE once._sql_for_blocks(('once.' || leaf)::regclass, place.block, place.block + stride, $sql$
            INSERT INTO once.untaking AS u
            SELECT t.topic, t.events, t.oldest
              FROM (SELECT i.topic, count(*) AS events, min(i.created_at) AS oldest FROM {leaf} AS i WHERE {here} GROUP BY i.topic) AS t
             WHERE NOT EXISTS (SELECT FROM once.relay AS r WHERE r.topics IS NULL OR t.topic LIKE ANY (r.topics))
            ON CONFLICT (topic) DO UPDATE SET events = u.events + excluded.events, oldest = least(u.oldest, excluded.oldest)
            $sql$);
        place.block := place.block + stride;
    END LOOP;
    UPDATE once.keeper_step AS k
       SET leaf = CASE WHEN more THEN leaf END, block = CASE WHEN more THEN place.block ELSE 0 END, ended_at = place.ended_at
     WHERE k.step = 'untaken';
    RETURN ROW(0, more, NULL, NULL)::once.kept;
END $$;
$file$;
        EXECUTE $file$
-- once._limits(): the values that decide which rows may be deleted now; now is the keeper's (once._steady_now).
CREATE OR REPLACE FUNCTION once._limits() RETURNS once.limits LANGUAGE plpgsql STABLE AS $$
DECLARE
    limits once.limits;
BEGIN
    limits.now := once._steady_now();
    limits.retention := (once._policy('')).retention;
    limits.longest := (SELECT max(p.retention) FROM once.scope AS p);
    limits.needed := coalesce((SELECT min(b.needed_from) FROM once._backlog() AS b WHERE b.what = 'relay'), 'infinity');
    limits.consumers := EXISTS (SELECT FROM once.consumer_position);
    SELECT s.clock_skew, s.decision_retention INTO limits.skew, limits.decision_retention FROM once.setting AS s WHERE s.only_row;
    RETURN limits;
END $$;
$file$;
        EXECUTE $file$
-- once._make_day(parent, day): creates the partition of one day, of 'intent' or 'outbox'. The caller holds the lock under which
-- partitions are created. With ATTACH, because CREATE TABLE ... PARTITION OF would take an ACCESS EXCLUSIVE lock on the parent and stop
-- every claim.
CREATE OR REPLACE FUNCTION once._make_day(parent text, day integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    leaf text := format('once.%s_d%s', parent, day);
BEGIN
    IF parent = 'intent' THEN
        PERFORM once._execute_ddl(format('CREATE TABLE %s (LIKE once.intent INCLUDING ALL) WITH (fillfactor = 50)', leaf));
    ELSE
        PERFORM once._execute_ddl(format('CREATE TABLE %s (LIKE once.outbox INCLUDING ALL EXCLUDING IDENTITY)', leaf));
        PERFORM once._execute_ddl(format('ALTER TABLE %s REPLICA IDENTITY FULL', leaf));      -- see once.decision
    END IF;
    PERFORM once._close(leaf::regclass);
    PERFORM once._execute_ddl(format('ALTER TABLE once.%s ATTACH PARTITION %s FOR VALUES FROM (%s) TO (%s)', parent, leaf, day, day + 1));
    EXECUTE format('COMMENT ON TABLE %s IS %L', leaf,
        CASE parent WHEN 'intent' THEN 'UUIDv7 keys of ' ELSE 'events of ' END || (date '1970-01-01' + day));
END $$;
$file$;
        EXECUTE $file$
-- once._make_days(needed): lets the contract run without a daemon: creates the partitions of today and of tomorrow if they are missing,
-- and that of the day `needed`, which has none yet (NULL: no other), unless that day is closed; and updates once._today(). Called by a
-- call that finds a day without a partition, and by the first calls of a day, which find once._today() out of date (once._is_new_day).
-- Raises nothing itself: a partition that cannot be created now stays missing, and the caller checks again.
--
-- Why it is written so: it runs in any caller's transaction, which may have another purpose. So it does nothing in a read-only
-- transaction; it takes no lock that a call waits for (ATTACH PARTITION lets other sessions read and write), and the locks that it needs
-- only for a moment; and a failure is rolled back to a savepoint: DDL may be forbidden, once.intent in use by a statement of this
-- session, or another lock in the way. One session at a time creates days, until its transaction ends, however long that takes. Other
-- sessions continue without; those that need a day that they cannot see wait a little (once._wait_for_days). After a failure no session
-- tries again for a second: see once.days_failed_seq. once._today() changes to a day only after the transaction that created its
-- partition, so that every session that sees the change knows of the partition.
CREATE OR REPLACE FUNCTION once._make_days(needed integer) RETURNS void LANGUAGE plpgsql
SET lock_timeout = '100ms' SET default_tablespace = '' SET default_table_access_method = heap AS $$
DECLARE
    seconds bigint := floor(date_part('epoch', clock_timestamp()));
    today integer := seconds / 86400;
    before integer;
    day integer;
    made boolean := false;
BEGIN
    IF current_setting('transaction_read_only') = 'on' OR pg_sequence_last_value('once.days_failed_seq') IN (seconds, seconds - 1) THEN
        RETURN;
    END IF;
    BEGIN
        IF NOT pg_try_advisory_xact_lock(hashtextextended('pgonce partitions', 20778)) THEN
            RETURN;
        END IF;
        -- As ATTACH does; it also makes partitions of other sessions visible.
        LOCK TABLE ONLY once.intent, ONLY once.outbox IN SHARE UPDATE EXCLUSIVE MODE;
        -- A closed day stays closed, even today if the clock was set back, and no session closes a day while this transaction is open.
        SELECT s.closed_before INTO STRICT before FROM once.setting AS s WHERE s.only_row;
        IF needed < today THEN          -- 40001 if the snapshot is too old
            SELECT s.closed_before INTO STRICT before FROM once.setting AS s WHERE s.only_row FOR SHARE;
        END IF;
        FOREACH day IN ARRAY CASE WHEN needed < today THEN ARRAY[needed] ELSE '{}' END || ARRAY[today, today + 1] LOOP
            IF day >= before AND to_regclass('once.intent_d' || day) IS NULL THEN
                PERFORM once._make_day('intent', day);
                made := true;
            END IF;
            IF day >= today AND to_regclass('once.outbox_d' || day) IS NULL THEN
                PERFORM once._make_day('outbox', day);
                made := true;
            END IF;
        END LOOP;
        IF once._move_today(today) THEN
            made := true;
        END IF;
        IF NOT made THEN
            RAISE EXCEPTION USING ERRCODE = '02000', MESSAGE = 'pgonce: the locks are released';
        END IF;
    EXCEPTION
        WHEN SQLSTATE '02000' OR object_in_use OR serialization_failure THEN     -- nothing to do, or not in this transaction
            NULL;
        WHEN OTHERS THEN
            PERFORM setval('once.days_failed_seq', seconds);
    END;
END $$;
$file$;
        EXECUTE $file$
-- once._move_today(today): makes once._today() return this day, if it is behind, the day's partition exists, and this transaction has not
-- created it: a session that finds once._today() changed then also knows of the partition. Returns whether it was changed. The caller
-- holds the lock under which partitions are created.
CREATE OR REPLACE FUNCTION once._move_today(today integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF once._today() >= today OR NOT once._has_day('intent', today)
       OR EXISTS (SELECT FROM pg_locks AS l                             -- its creator holds it until its transaction ends
                   WHERE l.relation = to_regclass('once.intent_d' || today) AND l.pid = pg_backend_pid()
                     AND l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'
                     AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())) THEN
        RETURN false;
    END IF;
    PERFORM once._set_today(today);
    RETURN true;
END $$;
$file$;
        EXECUTE $file$
-- once._needed(day): why this day may not be closed yet: messages or events of it may still come back; NULL if none can. A consumer
-- counts only if its message ids have days: others lose nothing by it.
CREATE OR REPLACE FUNCTION once._needed(day integer) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT n.why
      FROM (SELECT format('%s %s needs what is of %s and later', b.what, quote_literal(b.name), b.needed_from) AS why
              FROM once._backlog() AS b
             WHERE b.needed_from - (SELECT s.clock_skew FROM once.setting AS s WHERE s.only_row)
                   < to_timestamp((day + 1) * 86400.0)
               AND (b.what = 'relay' OR EXISTS (SELECT FROM once.intent AS i
                                                 WHERE i.tenant = b.tenant COLLATE "C" AND i.scope = b.name COLLATE "C"
                                                   AND i.bucket > 0))
             UNION ALL
            SELECT format('consumer %s has parked message %s of an earlier day', quote_literal(p.consumer),
                          quote_literal(p.message_id))
              FROM once.parked_message AS p
             WHERE p.state <> 'dead' AND once._bucket(p.message_id) BETWEEN 1 AND day) AS n
     LIMIT 1
$$;
$file$;
        EXECUTE $file$
-- once._next_phase(day, phase): the retirement of a day enters a phase, or begins it again.
CREATE OR REPLACE FUNCTION once._next_phase(day integer, phase text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    UPDATE once.closing AS c SET phase = phase, block = 0, moved = 0, held = NULL, held_since = NULL WHERE c.day = day;
END $$;
$file$;
        EXECUTE $file$
-- once._refuse_closed(): the trigger on the table of a closed day: an attempt that found the day open, and inserts after it was closed,
-- must retry; its retry then gets that the key is expired.
CREATE OR REPLACE FUNCTION once._refuse_closed() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'pgonce: the day of this key was closed just now',
        HINT = 'Retry the transaction.';
END $$;
$file$;
        EXECUTE $file$
-- once._retire_blocks(leaf, first, past, moving, limits): works on these blocks of the table of a closed day. Stale attempts become in
-- doubt, since no other attempt may take over. With moving, rows that outlive the day move to the archive: everything in doubt, and
-- outcomes that are not past their retention (once._sql_deletable). A row moves in one statement, so that every session finds it in
-- exactly one place, and never waits for it. held: the rows left in these blocks and why; NULL: none.
CREATE OR REPLACE FUNCTION once._retire_blocks(leaf regclass, first bigint, past bigint, moving boolean, limits once.limits, OUT doubted bigint,
    OUT moved bigint, OUT held text) LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    outlives CONSTANT text := $sql$(i.state = 'in_doubt' OR (i.state IN ('succeeded', 'failed_final') AND NOT {deletable}))$sql$;
    something boolean;
    stale record;
BEGIN
    doubted := 0;
    moved := 0;
    -- One read without a lock, for the many blocks in which there is nothing to do.
    EXECUTE once._sql_for_blocks(leaf, first, past, $sql$
        SELECT EXISTS (SELECT FROM {leaf} AS i WHERE {here} AND (i.state = 'processing' OR ($2 AND $sql$ || outlives || $sql$)))
        $sql$) INTO something USING limits, moving;
    IF NOT something THEN
        RETURN;
    END IF;
    FOR stale IN EXECUTE once._sql_for_blocks(leaf, first, past, $sql$
                     SELECT i.ctid AS address, i.tenant, i.scope, i.key, i.fence FROM {leaf} AS i
                      WHERE {here} AND i.state = 'processing' AND i.lease_until <= $1 FOR UPDATE SKIP LOCKED
                     $sql$) USING limits.now LOOP
        EXECUTE once._sql_for_blocks(leaf, first, past, $sql$
            UPDATE {leaf} AS i SET state = 'in_doubt', updated_at = $1, lease_until = NULL, error_code = 'stale',
                                   error_message = 'its day was retired while it was stale'
             WHERE i.ctid = $2
            $sql$) USING limits.now, stale.address;
        PERFORM once._record(stale.tenant, stale.scope, stale.key, stale.fence, 'processing', 'in_doubt',
            'its day was retired while it was stale', 'retire');
        doubted := doubted + 1;
    END LOOP;
    EXECUTE once._sql_for_blocks(leaf, first, past, $sql$
        SELECT format('an attempt holds its lease until %s: tenant=%L scope=%L key=%L', i.lease_until, i.tenant, i.scope, i.key)
          FROM {leaf} AS i WHERE {here} AND i.state = 'processing' LIMIT 1
        $sql$) INTO held;
    IF NOT moving THEN
        RETURN;
    END IF;
    EXECUTE once._sql_for_blocks(leaf, first, past, $sql$
        WITH free AS MATERIALIZED (
            SELECT i.ctid AS address FROM {leaf} AS i WHERE {here} AND $sql$ || outlives || $sql$ FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM {leaf} AS i WHERE i.ctid = ANY (ARRAY(SELECT f.address FROM free AS f)) RETURNING i.*
        )
        INSERT INTO once.archive SELECT g.* FROM gone AS g
        $sql$) USING limits;
    GET DIAGNOSTICS moved = ROW_COUNT;
    IF held IS NULL THEN
        EXECUTE once._sql_for_blocks(leaf, first, past, $sql$
            SELECT format('a row is being changed: tenant=%L scope=%L key=%L', i.tenant, i.scope, i.key)
              FROM {leaf} AS i WHERE {here} AND $sql$ || outlives || $sql$ LIMIT 1
            $sql$) INTO held USING limits;
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._set_today(day): makes once._today() return this day. The caller holds the lock under which partitions are created, so only one
-- session at a time replaces the function. Only forwards: a session that finds the same day before and after a look-up knows that the day
-- did not change in between.
CREATE OR REPLACE FUNCTION once._set_today(day integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._execute_ddl(format('CREATE OR REPLACE FUNCTION once._today() RETURNS integer LANGUAGE sql STABLE PARALLEL SAFE AS %L',
        'SELECT ' || day));
END $$;
$file$;
        EXECUTE $file$
-- once._sql_deletable(): the condition, as text, that row i of a finished intent may be deleted: its retention has passed since it was
-- completed, and neither a relay nor a consumer may still bring it back. Only this function decides that. $1 is once._limits(). A claim's
-- own retention is expires_at - created_at: it starts when the outcome is stored, which is not known before. A row that is past the
-- longest retention of all scopes needs no look at its own scope's.
CREATE OR REPLACE FUNCTION once._sql_deletable() RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT $sql$((
        (i.completed_at + coalesce(i.expires_at - i.created_at, ($1).longest) <= ($1).now
         OR i.completed_at + coalesce(i.expires_at - i.created_at,
                                      (SELECT p.retention FROM once.scope AS p WHERE p.scope = i.scope),
                                      ($1).retention) <= ($1).now)
        AND i.created_at < ($1).needed
        AND NOT (($1).consumers
                 AND EXISTS (SELECT FROM once.consumer_position AS c
                              WHERE c.consumer = i.scope AND c.tenant = i.tenant AND c."position" <= i.created_at + ($1).skew))
    ) IS TRUE)$sql$
$$;
$file$;
        EXECUTE $file$
-- once._sql_for_blocks(leaf, first, past, statement): a statement, ready to EXECUTE, for rows i of this table: {leaf} becomes the table,
-- {here} the condition that a row is in these blocks of its heap, {deletable} that of once._sql_deletable. The keeper reads tables in
-- this way, part by part, because no index finds stale or expired rows: such an index would prevent the HOT update of every completion.
-- Needs enable_seqscan off. Before PostgreSQL 14 there is no scan of a range of addresses: they are listed.
CREATE OR REPLACE FUNCTION once._sql_for_blocks(leaf regclass, first bigint, past bigint, statement text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT replace(replace(replace(statement, '{leaf}', leaf::text), '{deletable}', once._sql_deletable()), '{here}',
        CASE WHEN current_setting('server_version_num')::integer >= 140000
             THEN format($sql$i.ctid >= '(%s,0)'::tid AND i.ctid < '(%s,0)'::tid$sql$, first, past)
             ELSE format($sql$i.ctid = ANY (ARRAY(SELECT format('(%%s,%%s)', b, o)::tid
                                                    FROM generate_series(%s, %s) AS b, generate_series(1, %s) AS o))$sql$,
                         first, past - 1, (current_setting('block_size')::integer - 24) / 28)
        END)
$$;
$file$;
        EXECUTE $file$
-- once._steady_now(): the time by which a keeper decides what is past: that of the reading that was judged when its part of work began
-- (once._clock stores one a second). If the clock jumped between that reading and its use, an unjudged time could delete rows.
CREATE OR REPLACE FUNCTION once._steady_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT least(clock_timestamp(), (SELECT c.read_at + interval '1 second' FROM once.clock AS c WHERE c.only_row))
$$;
$file$;
        EXECUTE $file$
-- once._stride(): how many blocks the keeper reads in one statement; between statements it checks the time that its part of work has
-- taken.
CREATE OR REPLACE FUNCTION once._stride() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN current_setting('server_version_num')::integer >= 140000 THEN 256 ELSE 32 END::bigint
$$;
$file$;
        EXECUTE $file$
-- once._wait_for_days(): waits, for at most half a second, for a session that is creating partitions, and keeps no lock. Returns whether
-- none is left. The caller checks again. A transaction waits in vain only once, although a batch calls this for each of its elements.
CREATE OR REPLACE FUNCTION once._wait_for_days() RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
BEGIN
    IF current_setting('once.waited_in_vain', true) <> '' THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('pgonce partitions', 20778));
    RAISE EXCEPTION USING ERRCODE = '02000', MESSAGE = 'pgonce: the lock is released';
EXCEPTION
    WHEN SQLSTATE '02000' THEN
        RETURN true;
    WHEN lock_not_available THEN
        PERFORM set_config('once.waited_in_vain', 'yes', true);
        RETURN false;
END $$;
$file$;
        EXECUTE $file$
-- once._walk(parents, numbers, statements, newest, tenant, scope, words, since, until, take, after, patience): reads tables by blocks, at
-- most take rows, for about as long as patience; once._doubtful and once.find_part say which rows. parents are the tables; numbers[n] is
-- an expression for the place in the walk of a partition with the number {n} of parents[n]; statements[n] selects address (ctid), stored
-- and note from {leaf} AS i WHERE {here} in the order of the walk, LIMIT $2. $1 is the address of the last row that was looked at; $3 to $7
-- are tenant, scope, words, since and until. newest: from the end of each table to its beginning. Each row has its table and the cursor
-- of the position after it. A last row without an intent has the cursor for the next call, NULL if done, and the share of the blocks that
-- the walk has passed.
CREATE OR REPLACE FUNCTION once._walk(parents regclass[], numbers text[], statements text[], newest boolean, of_tenant text, of_scope text,
    words text[], since timestamptz, until timestamptz, take integer, after text, patience interval)
RETURNS TABLE (source regclass, leaf regclass, stored once.intent, note text, next text, share double precision)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    deadline timestamptz := clock_timestamp() + patience;
    place bigint[] := once._parse_cursor(after);
    far bigint := CASE WHEN newest THEN 4294967295 ELSE 0 END;     -- where the walk enters a table
    stride bigint := CASE WHEN newest THEN least(8, once._stride()) ELSE once._stride() END;
    has_read boolean := false;
    leaves text := (SELECT string_agg(format($sql$SELECT c.oid::regclass AS name, %s AS nth, %s::bigint AS number
                                                    FROM pg_class AS c
                                                   WHERE c.oid IN (SELECT h.inhrelid FROM pg_inherits AS h WHERE h.inhparent = %s)
                                                     AND c.relname ~ '_d?[0-9]+$'$sql$,
                        u.nth, replace(u.number, '{n}', $sql$substring(c.relname FROM '[0-9]+$')::bigint$sql$), u.parent::oid),
                        ' UNION ALL ')
                      FROM unnest(parents, numbers) WITH ORDINALITY AS u (parent, number, nth));
    names regclass[];
    nths integer[];
    numbers_of bigint[];
    n integer := 0;
    nth integer;
    here regclass;
    size bigint;
    edge bigint;
    met record;
    count integer;
BEGIN
    IF after IS NULL THEN
        place[2] := far;
    END IF;
    LOOP
        -- The table that the cursor names, or the next one if that is gone. When all are read, there may be a new one in the archive.
        n := n + 1;
        IF n > coalesce(cardinality(names), 0) THEN
            EXECUTE format('SELECT array_agg(l.name ORDER BY l.number), array_agg(l.nth ORDER BY l.number),
                                   array_agg(l.number ORDER BY l.number) FROM (%s) AS l WHERE l.number >= $1', leaves)
               INTO names, nths, numbers_of USING place[1];
            EXIT WHEN names IS NULL;
            n := 1;
        END IF;
        here := names[n];
        nth := nths[n];
        IF numbers_of[n] > place[1] THEN
            place := ARRAY[numbers_of[n], far, 0];
        END IF;
        size := coalesce(once._blocks(here), 0);        -- 0: dropped since it was listed
        IF newest AND place[2] >= size THEN
            place := ARRAY[place[1], size, 0];
        END IF;
        IF (newest AND place[2] = 0 AND place[3] = 0) OR (NOT newest AND place[2] >= size) THEN
            place := ARRAY[place[1] + 1, far, 0];
            CONTINUE;
        END IF;
        n := n - 1;             -- the same table again, until it is read
        IF take <= 0 OR (has_read AND clock_timestamp() > deadline) THEN
            next := array_to_string(place, ':');
            EXIT;
        END IF;
        has_read := true;
        count := 0;
        IF newest THEN
            edge := greatest(place[2] - stride, 0);
        ELSE
            edge := place[2] - place[2] % stride + stride;
        END IF;
        FOR met IN EXECUTE once._sql_for_blocks(here, least(place[2], edge),
                                                greatest(place[2] + (place[3] > 0)::integer, edge),
                                                statements[nth])
                   USING format('(%s,%s)', place[2], place[3])::tid, take, of_tenant, of_scope, words, since, until LOOP
            count := count + 1;
            place := ARRAY[place[1]] || string_to_array(btrim(met.address::text, '()'), ',')::bigint[];
            source := parents[nth];
            leaf := here;
            stored := met.stored;
            note := met.note;
            next := array_to_string(place, ':');
            RETURN NEXT;
        END LOOP;
        take := take - count;
        next := NULL;
        IF take > 0 THEN
            place := ARRAY[place[1], edge, 0];
        END IF;
        stride := least(stride * 2, once._stride());
    END LOOP;
    leaf := CASE WHEN next IS NOT NULL THEN here END;
    share := 1;
    IF next IS NOT NULL THEN
        EXECUTE format('SELECT sum(CASE WHEN l.number < $1 THEN l.size WHEN l.number > $1 THEN 0 WHEN $3 THEN l.size - $2 ELSE $2 END)
                               / greatest(sum(l.size), 1)::double precision
                          FROM (SELECT k.number, once._blocks(k.name) AS size FROM (%s) AS k) AS l', leaves)
           INTO share USING place[1], place[2], newest;
    END IF;
    source := NULL;
    stored := NULL;
    note := NULL;
    RETURN NEXT;
END $$;
$file$;
        EXECUTE $file$
-- once._work_off(closing, leaf, moving): one part of work on a closed day, from where the last one stopped: about a tenth of a second of
-- once._retire_blocks. through: the end of the table is reached; held: what it stopped at.
CREATE OR REPLACE FUNCTION once._work_off(closing once.closing, leaf regclass, moving boolean, OUT done bigint, OUT through boolean, OUT held text)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := clock_timestamp() + interval '100 milliseconds';
    limits once.limits := once._limits();
    block bigint := closing.block;
    stride bigint := once._stride();
    piece record;
    moved bigint := 0;
BEGIN
    done := 0;
    IF moving THEN
        PERFORM once._archive_month(closing.day);
    END IF;
    -- At least once, even on a loaded machine, so that it makes progress.
    WHILE block < once._blocks(leaf) LOOP
        piece := once._retire_blocks(leaf, block, block + stride, moving, limits);
        done := done + piece.doubted + piece.moved;
        moved := moved + piece.moved;
        held := piece.held;
        EXIT WHEN held IS NOT NULL;
        block := block + stride;
        EXIT WHEN clock_timestamp() > deadline;
    END LOOP;
    through := held IS NULL AND block >= once._blocks(leaf);
    UPDATE once.closing AS c
       SET block = block, moved = c.moved + moved, held = held,
           held_since = CASE WHEN held IS NOT NULL THEN coalesce(c.held_since, clock_timestamp()) END
     WHERE c.day = closing.day;
END $$;
$file$;
        EXECUTE $file$
-- once.attempt_counts(): the counts of once.counts() in five kinds, of attempts and messages together: 'new' (it may run, also by a
-- takeover), 'replay' (it got the stored answer), 'mismatch', 'active' (another attempt was running) and 'refused'. pgonce top and the
-- console show these. On a standby it returns no rows.
CREATE OR REPLACE FUNCTION once.attempt_counts() RETURNS TABLE (kind text, count bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN c.verdict IN ('stale', 'retryable', 'process') THEN 'new'
                WHEN c.verdict = 'duplicate' THEN 'replay'
                WHEN c.verdict = 'message_mismatch' THEN 'mismatch'
                WHEN c.verdict IN ('final', 'in_doubt', 'expired') THEN 'refused'
                ELSE c.verdict END, sum(c.count)::bigint
      FROM once.counts() AS c GROUP BY 1 ORDER BY 1
$$;
$file$;
        EXECUTE $file$
-- once.count_cached(replays, finals, mismatches): counts attempts that a gateway has answered from copies in its own memory, so that
-- once.counts() includes them: at most a million of each in one call. Returns what such a gateway must know of this server: a text that
-- changes after a restart, when a standby is promoted (so after each failover and restore), in another database and for another role; and
-- the shortest retention of all scopes, in milliseconds, at most a day: an outcome without its own retention is kept for at least that.
CREATE OR REPLACE FUNCTION once.count_cached(replays bigint, finals bigint, mismatches bigint, OUT server text, OUT retention_ms integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    identifier text := '';
    counted bigint;
BEGIN
    IF replays + finals + mismatches > 0 AND current_setting('transaction_read_only') = 'off' THEN
        SELECT sum(CASE WHEN nextval('once.counted_replay') > 0 THEN 1 END) INTO counted FROM generate_series(1, least(replays, 1000000));
        SELECT sum(CASE WHEN nextval('once.counted_final') > 0 THEN 1 END) INTO counted FROM generate_series(1, least(finals, 1000000));
        SELECT sum(CASE WHEN nextval('once.counted_mismatch') > 0 THEN 1 END) INTO counted
          FROM generate_series(1, least(mismatches, 1000000));
    END IF;
    -- Separately: PostgreSQL checks the right to call a function when a statement begins, even if the call is never reached.
    IF has_function_privilege('pg_control_system()', 'execute') THEN
        identifier := (SELECT c.system_identifier FROM pg_control_system() AS c);
    END IF;
    server := concat_ws('/', identifier, pg_is_in_recovery(), extract(epoch FROM pg_postmaster_start_time()),
                        (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()), session_user);
    retention_ms := (SELECT least(86400000, min(extract(epoch FROM s.retention)) * 1000) FROM once.scope AS s);
END $$;
$file$;
        EXECUTE $file$
-- once.counts(): how often attempts in this database got each answer, since the counters began: 'new', 'replay', 'mismatch', 'active',
-- 'stale' and 'retryable' (taken over), 'final', 'in_doubt', 'expired'; and messages: 'process', 'duplicate', 'message_mismatch'. An
-- attempt that is rolled back later is counted, too. The counters restart at 0 after a crash and in a restored copy; a standby has none
-- (no rows). By scope: once.scope_stats.
CREATE OR REPLACE FUNCTION once.counts() RETURNS TABLE (verdict text, count bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT substr(c.relname, length('counted_') + 1), coalesce(pg_sequence_last_value(c.oid), 0)
      FROM pg_class AS c
     WHERE c.relnamespace = 'once'::regnamespace AND c.relkind = 'S' AND c.relname ~ '^counted_'
       AND NOT (pg_is_in_recovery() AND c.relpersistence = 'u')
     ORDER BY 1
$$;
$file$;
        EXECUTE $file$
-- once.find(tenant, scope, state, result_type, result_id, event, trace, owner, since, until, take): finds intents, the newest first, at
-- most take, including archived ones. Each argument narrows the search; NULL does not. event: the id of an event that the intent emitted;
-- trace: a traceparent, or the trace id in it, of the intent or of one of its events; since and until: when it was created. With an event
-- the intent is looked up; all other searches read the tables. Raises 22023 for an unknown state or an invalid trace.
CREATE OR REPLACE FUNCTION once.find(tenant text DEFAULT NULL, scope text DEFAULT NULL, state text DEFAULT NULL, result_type text DEFAULT NULL,
    result_id text DEFAULT NULL, event uuid DEFAULT NULL, trace text DEFAULT NULL, owner text DEFAULT NULL,
    since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL, take integer DEFAULT 100)
RETURNS TABLE (tenant text, scope text, key text, state text, verdict text, fence integer, attempts integer, owner text,
    created_at timestamptz, updated_at timestamptz, lease_until timestamptz, result_type text, result_id text, traceparent text,
    archived boolean) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT f.tenant, f.scope, f.key, f.state, f.verdict, f.fence, f.attempts, f.owner, f.created_at, f.updated_at, f.lease_until,
           f.result_type, f.result_id, f.traceparent, f.archived
      FROM once._find($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) AS f
$$;
$file$;
        EXECUTE $file$
-- once.find_part(q, tenant, scope, state, since, until, take, after): finds intents by anything that is known of them, the newest first,
-- in parts: at most take (500) of them, reading for about 30 milliseconds. q is a key or its beginning, a result ('charge:ch_17', or only
-- 'ch_17'), an owner, a tenant, an error code or a part of an error's text, a traceparent or its trace id, or the id of an event; NULL:
-- any intent. First comes the key, by the primary key in every scope. Then the tables are read by blocks, from their ends: the events (if
-- q is a trace or a UUID), the days of the keys, the newest first, the keys without a day, and what is archived. So the order is roughly
-- that of time. tenant, scope, state, since and until (of created_at) narrow it; NULL does not. found_by is key, result, owner, tenant,
-- error, trace or event; NULL without q. To continue, pass next of the last row as after; NULL means done. The last row has no intent,
-- but understood, what q may be; share, what part of the tables has been read; and reached, when an intent there was created. An intent
-- that was there at the first call is listed, even if others are inserted and days are closed meanwhile; and once, unless an attempt
-- changes it or its day is closed while the search stands in it. Raises 22023 for an unknown state or an invalid cursor, P4003 for the
-- tenant.
CREATE OR REPLACE FUNCTION once.find_part(q text DEFAULT NULL, tenant text DEFAULT NULL, scope text DEFAULT NULL, state text DEFAULT NULL,
    since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL, take integer DEFAULT 50, after text DEFAULT NULL)
RETURNS TABLE (tenant text, scope text, key text, state text, verdict text, fence integer, attempts integer, owner text,
    created_at timestamptz, updated_at timestamptz, completed_at timestamptz, lease_until timestamptz, response_status integer,
    result_type text, result_id text, error_code text, error_message text, traceparent text, archived boolean, found_by text, next text,
    share double precision, reached timestamptz, understood text[])
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT (f.stored).tenant, (f.stored).scope, (f.stored).key, (f.stored).state::text,
           CASE WHEN (f.stored).state IS NOT NULL
                THEN once._verdict(true, (f.stored).state, (f.stored).lease_until, clock_timestamp(), 0, NULL, 'takeover') END,
           (f.stored).fence, (f.stored).attempts, (f.stored).owner, (f.stored).created_at, (f.stored).updated_at,
           (f.stored).completed_at, (f.stored).lease_until, (f.stored).response_status, (f.stored).result_type, (f.stored).result_id,
           (f.stored).error_code, (f.stored).error_message, (f.stored).traceparent, f.archived, f.found_by, f.next, f.share, f.reached,
           f.understood
      FROM once._find_part($1, $2, $3, $4, $5, $6, $7, $8) AS f
$$;
$file$;
        EXECUTE $file$
-- once.latency(): how long recent intents took from their first attempt to their outcome: among those at the ends of the tables, a few
-- thousand at most, that were completed in the last hour. since: the first of these. One row; NULLs if there are no outcomes.
CREATE OR REPLACE FUNCTION once.latency() RETURNS TABLE (outcomes bigint, p50_ms double precision, p95_ms double precision, p99_ms double precision,
    since timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    leaf regclass;
    size bigint;
    met double precision[];
    taken double precision[] := '{}';
    first_at timestamptz;
BEGIN
    FOR leaf IN SELECT c.oid::regclass FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
                 WHERE h.inhparent = 'once.intent'::regclass AND c.relname ~ '^intent_d[0-9]+$'
                 ORDER BY c.relname <> 'intent_d0', substring(c.relname FROM '[0-9]+$')::bigint DESC LIMIT 5 LOOP
        size := once._blocks(leaf);
        CONTINUE WHEN size = 0;
        EXECUTE once._sql_for_blocks(leaf, greatest(size - least(once._stride(), 64), 0), size, $sql$
            SELECT array_agg(1000 * date_part('epoch', i.completed_at - i.created_at)), min(i.completed_at)
              FROM {leaf} AS i WHERE {here} AND i.completed_at > clock_timestamp() - interval '1 hour'
            $sql$) INTO met, first_at;
        taken := taken || met;
        since := least(since, first_at);
    END LOOP;
    outcomes := cardinality(taken);
    SELECT p.at[1], p.at[2], p.at[3] INTO p50_ms, p95_ms, p99_ms
      FROM (SELECT percentile_disc(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY t) AS at FROM unnest(taken) AS t) AS p;
    RETURN NEXT;
END $$;
$file$;
        EXECUTE $file$
-- once.metrics(): figures about the contract in this database, for OpenMetrics: a row per sample, sorted by name; kind is 'counter' (its
-- name without the suffix _total) or 'gauge'; labels is an object of texts. Stale and in-doubt figures are those of the keeper's last
-- complete sweep. Reads catalogues, the backlog of the relays and the parked events and messages, but not the intents. Without the rights
-- of pg_monitor the age of the oldest transaction is that of the owner's own sessions. On a standby the counters are left out.
CREATE OR REPLACE FUNCTION once.metrics() RETURNS TABLE (name text, kind text, help text, labels jsonb, value double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
    SELECT k.name, k.kind, k.help, coalesce(s.labels, '{}'), s.value
      FROM (SELECT * FROM once._metrics_of_intents() UNION ALL SELECT * FROM once._metrics_of_delivery()
             UNION ALL SELECT * FROM once._metrics_of_keeping() UNION ALL SELECT * FROM once._metrics_of_tables()) AS s
      JOIN once._metric_names() AS k ON k.name = s.name COLLATE "C"
     WHERE s.value IS NOT NULL
     ORDER BY k.name COLLATE "C", s.labels
$$;
$file$;
        EXECUTE $file$
-- once.outline(scope, key, tenant, body): once.story for people who may not see what was answered: without the payloads of its events
-- (payload_bytes says how long they are), and with the stored body only if it is asked for and the caller may call once.peek.
-- may_see_body says whether it may. If nothing is stored it has the verdict of once.peek, and missing is true. Raises P4000, P4001,
-- P4003.
CREATE OR REPLACE FUNCTION once.outline(scope text, key text, tenant text DEFAULT '', body boolean DEFAULT false) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    story jsonb := once.story(scope, key, tenant);
    may_see boolean := has_function_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user::text),
        'once.peek(text, text, text)', 'execute');
BEGIN
    IF story IS NULL THEN
        RETURN jsonb_build_object('tenant', tenant, 'scope', scope, 'key', key, 'missing', true,
                                  'verdict', (once._peek(tenant, scope, key, once._bucket(key))).verdict);
    END IF;
    RETURN story || jsonb_build_object('missing', false, 'may_see_body', may_see,
        'response_body', CASE WHEN body AND may_see THEN story->'response_body' END,
        'events', (SELECT coalesce(jsonb_agg(e.one - '{payload,payload_base64}'::text[] || jsonb_build_object('payload_bytes',
                              coalesce((e.one->>'payload_bytes')::integer, octet_length(e.one->>'payload'))) ORDER BY e.nth), '[]')
                     FROM jsonb_array_elements(story->'events') WITH ORDINALITY AS e (one, nth)));
END $$;
$file$;
        EXECUTE $file$
-- once.readable(bytes, bytes_max): bytes for people, as one JSON document: text, if they are text without control characters; json, the
-- same indented, if it is JSON; hex, a dump, if it is no text. NULL if it is not so. bytes: how many there are; shown_bytes: the first that
-- are shown; cut: there are more. Only the first bytes_max are looked at, and a sixteenth of that in hex.
CREATE OR REPLACE FUNCTION once.readable(bytes bytea, bytes_max integer DEFAULT 65536) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    size integer := octet_length(bytes);
    shown bytea := substr(bytes, 1, greatest(bytes_max, 16));
    plain text;
    json text;
    hex text;
BEGIN
    FOR less IN 0 .. 3 LOOP         -- a character may be cut in two
        BEGIN
            plain := convert_from(substr(shown, 1, octet_length(shown) - less), 'UTF8');
            shown := substr(shown, 1, octet_length(shown) - less);
            EXIT;
        EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
            EXIT WHEN octet_length(shown) = size OR octet_length(shown) <= less;
        END;
    END LOOP;
    IF plain COLLATE "C" ~ E'[\\x01-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f]' THEN
        plain := NULL;
    END IF;
    IF plain IS NOT NULL AND octet_length(shown) = size THEN
        BEGIN
            json := jsonb_pretty(plain::jsonb);
        EXCEPTION WHEN OTHERS THEN
            NULL;
        END;
    END IF;
    IF plain IS NULL AND bytes IS NOT NULL THEN
        shown := substr(bytes, 1, greatest(bytes_max / 16, 16));
        hex := (SELECT string_agg(format('%s  %s |%s|', lpad(to_hex(l.n), 8, '0'),
                           rpad(regexp_replace(encode(l.line, 'hex'), '(..)', E'\\1 ', 'g'), 48),
                           regexp_replace(encode(l.line, 'escape'), E'\\\\[0-7]{3}|\\\\\\\\|[\\x01-\\x1f\\x7f]', '.', 'g')), E'\n'
                           ORDER BY l.n)
                  FROM (SELECT n, substr(shown, n + 1, 16) AS line FROM generate_series(0, octet_length(shown) - 1, 16) AS n) AS l);
    END IF;
    RETURN jsonb_build_object('bytes', size, 'shown_bytes', octet_length(shown), 'cut', octet_length(shown) < size, 'json', json,
                              'text', plain, 'hex', hex);
END $$;
$file$;
        EXECUTE $file$
-- once.scope_list(): the policies: a row for the default policy (''), for each scope that has its own, and for each that the keeper's last
-- sweep found stale intents or doubts in. own: it has its own policy. stale, in_doubt, oldest_stale (when its lease passed) and as_of are
-- those of the sweep; NULL if no sweep has ended yet. Reads no intents.
CREATE OR REPLACE FUNCTION once.scope_list() RETURNS TABLE (scope text, own boolean, lease interval, retention interval, max_attempts integer,
    on_stale text, verify text, response_bytes_max integer, event_bytes_max integer, stale bigint, in_doubt bigint,
    oldest_stale timestamptz, as_of timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT n.scope, s.scope IS NOT NULL, p.lease, p.retention, p.max_attempts, p.on_stale, p.verify, p.response_bytes_max,
           p.event_bytes_max, coalesce(w.stale, k.none), coalesce(w.in_doubt, k.none), w.oldest_stale, coalesce(w.as_of, k.ended_at)
      FROM (SELECT a.scope FROM once.scope AS a UNION SELECT b.scope FROM once.swept AS b) AS n
      LEFT JOIN once.scope AS s ON s.scope = n.scope
      LEFT JOIN once.swept AS w ON w.scope = n.scope
      LEFT JOIN (SELECT 0 AS none, t.ended_at FROM once.keeper_step AS t WHERE t.step = 'sweep' AND t.ended_at IS NOT NULL) AS k ON true
      JOIN once.scope AS p ON p.scope = coalesce(s.scope, '')
     ORDER BY n.scope
$$;
$file$;
        EXECUTE $file$
-- once.story(scope, key, tenant): everything known about one intent as one JSON document: its row (without the fingerprint; the body as
-- base64), its decisions, its events (a payload as JSON text, because a reader that parses numbers as doubles would show other amounts)
-- with each relay's progress on them, and all of it as a "timeline": see once._timeline. NULL if nothing is stored. For people and tools;
-- members may be added. Raises P4000, P4001, P4003.
CREATE OR REPLACE FUNCTION once.story(scope text, key text, tenant text DEFAULT '') RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    bucket integer := once._bucket(key);
    stored once.intent;
    archived boolean := false;
    expires_at timestamptz;
    decisions jsonb;
    events jsonb;
BEGIN
    PERFORM once._check(tenant, scope, key, bucket, E'\\x00000000000000000000000000000000');
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
       AND i.bucket = bucket;
    IF NOT FOUND THEN
        stored := once._archived(tenant, scope, key, bucket);
        archived := true;
        IF stored.state IS NULL THEN
            RETURN NULL;
        END IF;
    END IF;
    expires_at := stored.completed_at + coalesce(stored.expires_at - stored.created_at, (once._policy(scope)).retention);
    SELECT coalesce(jsonb_agg(jsonb_build_object('at', d.decided_at, 'by', d.decided_by, 'reason', d.reason, 'fence', d.fence,
               'from', d.from_state, 'to', d.to_state, 'kind', to_jsonb(d)->'kind', 'before', to_jsonb(d)->'before',
               'after', to_jsonb(d)->'after') ORDER BY d.decided_at), '[]') INTO decisions
      FROM once.decision AS d
     WHERE d.tenant = tenant COLLATE "C" AND d.scope = scope COLLATE "C" AND d.key = key COLLATE "C";
    SELECT coalesce(jsonb_agg(jsonb_build_object('id', o.event_id, 'topic', o.topic, 'type', o.event_type, 'at', o.created_at,
               'aggregate_type', o.aggregate_type, 'aggregate_id', o.aggregate_id,
               'payload', CASE WHEN o.payload_bytes IS NULL THEN o.payload::text END,
               'payload_base64', translate(encode(o.payload_bytes, 'base64'), E'\n', ''), 'payload_bytes', octet_length(o.payload_bytes),
               'content_type', o.content_type,
               'relays', once._event_relays(o)) ORDER BY o.id), '[]') INTO events
      FROM once.outbox AS o
     WHERE o.tenant = tenant COLLATE "C" AND o.scope = scope COLLATE "C" AND o.key = key COLLATE "C";
    events := events || (SELECT coalesce(jsonb_agg(jsonb_build_object('id', d.event_id, 'topic', d.topic, 'type', d.event_type,
                   'at', d.emitted_at, 'not_before', d.not_before, 'aggregate_type', d.aggregate_type, 'aggregate_id', d.aggregate_id,
                   'payload', d.payload::text, 'relays', jsonb_build_array()) ORDER BY d.not_before, d.emitted_at), '[]')
              FROM once.delayed_event AS d
             WHERE d.tenant = tenant COLLATE "C" AND d.scope = scope COLLATE "C" AND d.key = key COLLATE "C");
    RETURN jsonb_build_object(
        'tenant', tenant, 'scope', scope, 'key', key, 'archived', archived,
        'day', CASE WHEN bucket > 0 THEN (date '1970-01-01' + bucket)::text END,
        'state', stored.state, 'verdict', once._verdict(true, stored.state, stored.lease_until, clock_timestamp(), 0,
            NULL, 'takeover'),
        'fence', stored.fence, 'attempts', stored.attempts, 'owner', stored.owner, 'lease_until', stored.lease_until,
        'created_at', stored.created_at, 'updated_at', stored.updated_at, 'completed_at', stored.completed_at,
        'expires_at', expires_at,
        'response_status', stored.response_status, 'response_headers', stored.response_headers,
        'response_body', translate(encode(stored.response_body, 'base64'), E'\n', ''), 'response_bytes',
            octet_length(stored.response_body),
        'result_type', stored.result_type, 'result_id', stored.result_id,
        'error_code', stored.error_code, 'error_message', stored.error_message, 'traceparent', stored.traceparent,
        'decisions', decisions, 'events', events,
        'timeline', once._timeline(stored, archived, expires_at, decisions, events));
END $$;
$file$;
        EXECUTE $file$
-- once.top(): the current activity by scope: attempts in flight, stale ones (their lease has passed, or ends in more than 8 days: see
-- once.resolve), intents in doubt, and how long the oldest attempt in flight or stale has been running. No row for a scope without any.
-- Reads the whole table.
CREATE OR REPLACE FUNCTION once.top() RETURNS TABLE (scope text, in_flight bigint, stale bigint, in_doubt bigint, oldest_seconds double precision)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    SELECT i.scope::text, count(*) FILTER (WHERE i.state = 'processing' AND once._is_live(i.lease_until, now)),
           count(*) FILTER (WHERE i.state = 'processing' AND NOT once._is_live(i.lease_until, now)),
           count(*) FILTER (WHERE i.state = 'in_doubt'),
           greatest(date_part('epoch', now - min(i.updated_at) FILTER (WHERE i.state = 'processing')), 0)
      FROM once.intent AS i WHERE i.state IN ('processing', 'in_doubt')
     GROUP BY i.scope ORDER BY i.scope;
END $$;
$file$;
        EXECUTE $file$
-- once._find(...): once.find, with parameter names that differ from those of the columns.
CREATE OR REPLACE FUNCTION once._find(of_tenant text, of_scope text, of_state text, of_type text, of_result text, of_event uuid, of_trace text,
    of_owner text, since timestamptz, until timestamptz, take integer)
RETURNS TABLE (tenant text, scope text, key text, state text, verdict text, fence integer, attempts integer, owner text,
    created_at timestamptz, updated_at timestamptz, lease_until timestamptz, result_type text, result_id text, traceparent text,
    archived boolean) LANGUAGE plpgsql STABLE SET plan_cache_mode = force_custom_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now timestamptz := clock_timestamp();
    trace_id text;
    names text[];       -- of the intents that an event or a trace has led to: their tenants, scopes and keys
    scopes text[];
    keys text[];
BEGIN
    PERFORM once._authorise(of_tenant);     -- NULL, all tenants: for roles that are not bound
    IF of_state <> ALL (enum_range(NULL::once.state)::text[]) OR (take >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: unknown state, or take is NULL: %s',
            quote_nullable(left(of_state, 80))),
            HINT = 'state is one of ' || array_to_string(enum_range(NULL::once.state), ', ')
            || '; NULL for all.';
    END IF;
    IF of_trace IS NOT NULL THEN
        trace_id := CASE WHEN of_trace ~ '^[0-9a-f]{32}$' THEN of_trace ELSE substr(once._trace(of_trace), 4, 32) END;
        IF trace_id IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: trace is neither a traceparent nor a trace id',
                DETAIL = format('trace=%s', quote_literal(left(of_trace, 80))),
                HINT = 'A trace id is 32 hexadecimal digits in lower case; a traceparent is 00-<trace id>-<16 digits>-<2 digits>.';
        END IF;
    END IF;
    IF of_event IS NOT NULL OR trace_id IS NOT NULL THEN
        SELECT array_agg(o.tenant), array_agg(o.scope), array_agg(o.key) INTO names, scopes, keys
          FROM (SELECT DISTINCT e.tenant, e.scope, e.key FROM once.outbox AS e
                 WHERE e.key IS NOT NULL AND (of_event IS NULL OR e.event_id = of_event)
                   AND (trace_id IS NULL OR substr(e.traceparent, 4, 32) = trace_id COLLATE "C")
                UNION
                SELECT e.tenant, e.scope, e.key FROM once.delayed_event AS e
                 WHERE e.key IS NOT NULL AND (of_event IS NULL OR e.event_id = of_event)
                   AND (trace_id IS NULL OR substr(e.traceparent, 4, 32) = trace_id COLLATE "C")) AS o;
    END IF;
    IF of_event IS NOT NULL THEN
        RETURN QUERY
        SELECT f.* FROM unnest(names, scopes, keys) AS u (tenant, scope, key)
         CROSS JOIN LATERAL once._find_among(u.tenant, u.scope, u.key, now) AS f
         WHERE (of_tenant IS NULL OR f.tenant = of_tenant COLLATE "C") AND (of_scope IS NULL OR f.scope = of_scope COLLATE "C")
           AND (of_state IS NULL OR f.state = of_state COLLATE "C") AND (of_type IS NULL OR f.result_type = of_type COLLATE "C")
           AND (of_result IS NULL OR f.result_id = of_result COLLATE "C") AND (of_owner IS NULL OR f.owner = of_owner COLLATE "C")
           AND (since IS NULL OR f.created_at >= since) AND (until IS NULL OR f.created_at < until)
         ORDER BY f.created_at DESC, f.tenant, f.scope, f.key LIMIT take;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT f.tenant::text, f.scope::text, f.key::text, f.state::text,
           once._verdict(true, f.state, f.lease_until, now, 0, NULL, 'takeover'), f.fence, f.attempts, f.owner::text,
           f.created_at, f.updated_at, f.lease_until, f.result_type::text, f.result_id::text, f.traceparent::text, f.archived
      FROM (SELECT i.tenant, i.scope, i.key, i.state, i.fence, i.attempts, i.owner, i.created_at, i.updated_at, i.lease_until,
                   i.result_type, i.result_id, i.traceparent, false AS archived FROM once.intent AS i
             UNION ALL
            SELECT a.tenant, a.scope, a.key, a.state, a.fence, a.attempts, a.owner, a.created_at, a.updated_at, a.lease_until,
                   a.result_type, a.result_id, a.traceparent, true FROM once.archive AS a) AS f
     WHERE (of_tenant IS NULL OR f.tenant = of_tenant COLLATE "C") AND (of_scope IS NULL OR f.scope = of_scope COLLATE "C")
       AND (of_state IS NULL OR f.state = of_state::once.state) AND (of_type IS NULL OR f.result_type = of_type COLLATE "C")
       AND (of_result IS NULL OR f.result_id = of_result COLLATE "C") AND (of_owner IS NULL OR f.owner = of_owner COLLATE "C")
       AND (since IS NULL OR f.created_at >= since) AND (until IS NULL OR f.created_at < until)
       AND (trace_id IS NULL OR substr(f.traceparent, 4, 32) = trace_id COLLATE "C"
            OR (f.tenant, f.scope, f.key) IN (SELECT u.tenant COLLATE "C", u.scope COLLATE "C", u.key COLLATE "C"
                                                FROM unnest(names, scopes, keys) AS u (tenant, scope, key)))
     ORDER BY f.created_at DESC, f.tenant, f.scope, f.key LIMIT take;
END $$;
$file$;
        EXECUTE $file$
-- once._find_among(tenant, scope, key, now): one intent as once.find shows it, or no row.
CREATE OR REPLACE FUNCTION once._find_among(of_tenant text, of_scope text, of_key text, now timestamptz)
RETURNS TABLE (tenant text, scope text, key text, state text, verdict text, fence integer, attempts integer, owner text,
    created_at timestamptz, updated_at timestamptz, lease_until timestamptz, result_type text, result_id text, traceparent text,
    archived boolean) LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    day integer := once._bucket(of_key);
    stored once.intent;
    from_archive boolean := false;
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = of_tenant COLLATE "C" AND i.scope = of_scope COLLATE "C" AND i.key = of_key COLLATE "C" AND i.bucket = day;
    IF NOT FOUND THEN
        stored := once._archived(of_tenant, of_scope, of_key, day);
        from_archive := true;
    END IF;
    IF stored.state IS NOT NULL THEN
        RETURN QUERY SELECT stored.tenant::text, stored.scope::text, stored.key::text, stored.state::text,
            once._verdict(true, stored.state, stored.lease_until, now, 0, NULL, 'takeover'), stored.fence, stored.attempts,
            stored.owner::text, stored.created_at, stored.updated_at, stored.lease_until, stored.result_type::text,
            stored.result_id::text, stored.traceparent::text, from_archive;
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._find_key(of_key, of_tenant, of_scope, take, after_scope, after_tenant): the intents with this key, in each scope, by the primary
-- key, in the order of scope and tenant; at most take, after this scope and tenant. Their scopes are found by the same index, from one to
-- the next. Without their bodies and headers.
CREATE OR REPLACE FUNCTION once._find_key(of_key text, of_tenant text, of_scope text, take integer, after_scope text, after_tenant text)
RETURNS TABLE (archived boolean, stored once.intent) LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    day integer := once._bucket(of_key);
    leaves text;
BEGIN
    IF (day >= 0) IS NOT TRUE THEN
        RETURN;
    END IF;
    leaves := (SELECT string_agg(format($sql$
        (WITH RECURSIVE s (scope) AS (
             (SELECT i.scope FROM %1$s AS i WHERE i.scope >= coalesce($3, $5) COLLATE "C" ORDER BY i.scope LIMIT 1)
              UNION ALL
             SELECT (SELECT i.scope FROM %1$s AS i WHERE i.scope > s.scope ORDER BY i.scope LIMIT 1) FROM s
              WHERE s.scope IS NOT NULL AND $3 IS NULL)
         SELECT %2$L::boolean AS archived, r.stored, (r.stored).scope, (r.stored).tenant
           FROM s CROSS JOIN LATERAL (
                SELECT %3$s AS stored FROM %1$s AS i
                 WHERE i.scope COLLATE "C" = s.scope AND i.key COLLATE "C" = $1 AND ($2 IS NULL OR i.tenant COLLATE "C" = $2)
                   AND ($3 IS NULL OR i.scope COLLATE "C" = $3)
                   AND (i.scope COLLATE "C" > $5 OR i.tenant COLLATE "C" > $6 OR $6 IS NULL) AND i.bucket = %4$s
                 ORDER BY i.scope, i.key, i.tenant LIMIT $4) AS r
          LIMIT $4)$sql$, c.oid::regclass, c.relname ~ '^archive', once._intent_without_answer(), day), ' UNION ALL ')
      FROM pg_class AS c
     WHERE c.relnamespace = 'once'::regnamespace AND c.relkind = 'r'
       AND c.relname IN ('intent_d' || day, 'intent_closed_d' || day,
                         'archive_' || to_char(date_trunc('month', date '1970-01-01' + day), 'YYYYMM')));
    IF leaves IS NOT NULL THEN
        RETURN QUERY EXECUTE format('SELECT u.archived, u.stored FROM (%s) AS u ORDER BY u.scope, u.tenant LIMIT $4', leaves)
               USING of_key, of_tenant, of_scope, take, coalesce(after_scope, ''), after_tenant;
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._find_of_event(event, wanted, trace, event_id): the intent of an event that once.find_part has met, whose day and id are in bucket
-- and owner. No row if the intent itself matches, so that it is listed anyway, or if a newer event of it has this trace.
CREATE OR REPLACE FUNCTION once._find_of_event(event once.intent, wanted text, trace text, event_id uuid)
RETURNS TABLE (stored once.intent, archived boolean, found_by text) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    day integer := once._bucket(event.key);
BEGIN
    SELECT i.* INTO stored FROM once.intent AS i
     WHERE i.tenant = event.tenant COLLATE "C" AND i.scope = event.scope COLLATE "C" AND i.key = event.key COLLATE "C" AND i.bucket = day;
    archived := NOT FOUND;
    IF archived THEN
        stored := once._archived(event.tenant, event.scope, event.key, day);
    END IF;
    stored.response_body := NULL;
    found_by := CASE WHEN event_id IS NULL THEN 'trace' ELSE 'event' END;
    IF stored.state IS NULL OR wanted IN (stored.result_id, stored.owner, stored.tenant, stored.error_code)
       OR starts_with(stored.key, wanted) OR strpos(lower(stored.error_message), lower(wanted)) > 0
       OR substr(stored.traceparent, 4, 32) = trace COLLATE "C"
       OR (event_id IS NULL AND EXISTS (
           SELECT FROM once.outbox AS o
            WHERE o.tenant = event.tenant COLLATE "C" AND o.scope = event.scope COLLATE "C" AND o.key = event.key COLLATE "C"
              AND substr(o.traceparent, 4, 32) = trace COLLATE "C" AND (o.day, o.id) > (event.bucket, event.owner::bigint))) THEN
        RETURN;
    END IF;
    RETURN NEXT;
END $$;
$file$;
        EXECUTE $file$
-- once._find_part(...): the work of once.find_part. A cursor is key:scope:tenant (in hexadecimal digits) while it looks up the key. Then
-- it is lowest/table:block:row: that of once._walk, after the lowest day that was read while it was open. Archived rows of that day or a
-- later one were listed then, and are left out. The tables of closed days come after those of open days and just before the archive,
-- where the keeper moves their rows: so a day that is closed meanwhile is not lost. If the search stands in that day, it begins there
-- again.
CREATE OR REPLACE FUNCTION once._find_part(q text, of_tenant text, of_scope text, of_state text, since timestamptz, until timestamptz, take integer,
    after text) RETURNS TABLE (stored once.intent, archived boolean, found_by text, next text, share double precision,
    reached timestamptz, understood text[])
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    wanted text := nullif(q, '');
    remaining integer := least(greatest(coalesce(take, 50), 0), 500);
    event uuid := CASE WHEN wanted COLLATE "C" ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN wanted::uuid END;
    trace text := CASE WHEN wanted COLLATE "C" ~ '^[0-9a-f]{32}$' THEN wanted ELSE substr(once._trace(wanted), 4, 32) END;
    place text[] := CASE WHEN after COLLATE "C" ~ '^key:([0-9a-f]{2})*:([0-9a-f]{2})*$' THEN string_to_array(after, ':') END;
    -- Why a row matches. A row with this key is left out: it was looked up.
    reason text := $sql$CASE WHEN ($5)[1] IS NULL THEN '' WHEN i.key COLLATE "C" = ($5)[1] THEN NULL
        WHEN ($5)[2] IS NOT NULL AND substr(i.traceparent, 4, 32) COLLATE "C" = ($5)[2] THEN 'trace'
        WHEN starts_with(i.key COLLATE "C", ($5)[1]) THEN 'key'
        WHEN i.result_id COLLATE "C" = ($5)[1] OR (i.result_type || ':' || i.result_id) COLLATE "C" = ($5)[1] THEN 'result'
        WHEN i.owner COLLATE "C" = ($5)[1] THEN 'owner' WHEN i.tenant COLLATE "C" = ($5)[1] THEN 'tenant'
        WHEN i.error_code COLLATE "C" = ($5)[1] OR strpos(lower(i.error_message COLLATE "default"), ($5)[3]) > 0 THEN 'error' END$sql$;
    intents text;
    events text := $sql$
        SELECT i.ctid AS address, ($5)[4] AS note,
               (SELECT e FROM jsonb_populate_record(NULL::once.intent, jsonb_build_object('tenant', i.tenant, 'scope', i.scope,
                   'key', i.key, 'bucket', i.day, 'owner', i.id)) AS e) AS stored
          FROM {leaf} AS i
         WHERE {here} AND i.ctid < $1 AND i.key IS NOT NULL
           AND ($3 IS NULL OR i.tenant COLLATE "C" = $3) AND ($4 IS NULL OR i.scope COLLATE "C" = $4)
           AND (i.event_id = ($5)[4]::uuid OR substr(i.traceparent, 4, 32) COLLATE "C" = ($5)[2])
         ORDER BY i.ctid DESC LIMIT $2
        $sql$;
    lowest integer := coalesce(substring(after FROM '^([0-9]{1,6})/')::integer, 999999);
    tables integer := CASE WHEN event IS NULL AND trace IS NULL THEN 2 ELSE 3 END;       -- the outbox has its events
    open_days integer[];
    met record;
    one record;
BEGIN
    PERFORM once._authorise(of_tenant);     -- NULL, all tenants: for roles that are not bound
    IF of_state <> ALL (enum_range(NULL::once.state)::text[]) THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: unknown state: %s', quote_literal(left(of_state, 80))),
            HINT = 'state is one of ' || array_to_string(enum_range(NULL::once.state), ', ') || '; NULL for all.';
    END IF;
    IF wanted IS NOT NULL THEN
        understood := array_remove(ARRAY['key', CASE WHEN event IS NOT NULL THEN 'event' END,
            CASE WHEN trace IS NOT NULL THEN 'trace' END, 'result', 'owner', 'tenant', 'error'], NULL);
    END IF;

    IF wanted IS NOT NULL AND (after IS NULL OR place IS NOT NULL) THEN
        FOR met IN SELECT k.* FROM once._find_key(wanted, of_tenant, of_scope, remaining + 1,
                convert_from(decode(place[2], 'hex'), getdatabaseencoding()),
                convert_from(decode(place[3], 'hex'), getdatabaseencoding())) AS k LOOP
            IF remaining = 0 THEN
                stored := NULL; archived := NULL; found_by := NULL;
                share := 0;
                next := coalesce(next, 'key::');
                RETURN NEXT;
                RETURN;
            END IF;
            remaining := remaining - 1;
            next := format('key:%s:%s', encode(convert_to((met.stored).scope, getdatabaseencoding()), 'hex'),
                           encode(convert_to((met.stored).tenant, getdatabaseencoding()), 'hex'));
            CONTINUE WHEN (met.stored).state::text <> of_state OR (met.stored).created_at < since OR (met.stored).created_at >= until;
            stored := met.stored;
            archived := met.archived;
            found_by := 'key';
            RETURN NEXT;
        END LOOP;
        after := NULL;
    END IF;
    after := regexp_replace(after, '^[0-9]{1,6}/', '');

    -- The limit comes before the row is built: it shows no bodies, and none is read.
    intents := format($sql$
        SELECT i.address, i.note, %s AS stored
          FROM (SELECT i.ctid AS address, %s AS note, i.* FROM {leaf} AS i
                 WHERE {here} AND i.ctid < $1 AND ($3 IS NULL OR i.tenant COLLATE "C" = $3) AND ($4 IS NULL OR i.scope COLLATE "C" = $4)
                   AND ($6 IS NULL OR i.created_at >= $6) AND ($7 IS NULL OR i.created_at < $7) AND %s AND %s IS NOT NULL {more}
                 ORDER BY i.ctid DESC LIMIT $2) AS i
        $sql$, once._intent_without_answer(), reason, coalesce('i.state = ' || quote_literal(of_state), 'true'), reason);
    FOR met IN SELECT w.*
                 FROM once._walk((ARRAY['once.intent', 'once.archive', 'once.outbox'])[:tables]::regclass[],
                          (ARRAY[format($sql$CASE WHEN {n} = 0 THEN 500000 WHEN c.relname ~ 'closed' AND {n} < %s THEN 600000 - {n}
                                             ELSE 200000 - {n} END$sql$, lowest), '1000000000 - {n}', '100000 - {n}'])[:tables],
                          (ARRAY[replace(intents, '{more}', ''), replace(intents, '{more}', 'AND i.bucket < ' || lowest), events])[:tables],
                          true, of_tenant, of_scope,
                          ARRAY[wanted, trace, lower(wanted), event::text], since, until, remaining, after, '30 milliseconds') AS w LOOP
        open_days := coalesce(open_days, ARRAY(SELECT d FROM once._days('once.intent', 'intent_d') AS d));     -- after the walk
        next := least(lowest, (SELECT min(d) FROM unnest(open_days) AS d WHERE 200000 - d < split_part(met.next, ':', 1)::bigint))
                || '/' || met.next;
        stored := met.stored;
        archived := met.source = 'once.archive'::regclass;
        found_by := nullif(met.note, '');
        IF met.source = 'once.outbox'::regclass THEN
            SELECT e.* INTO one FROM once._find_of_event(met.stored, wanted, trace, event) AS e;
            stored := one.stored;
            archived := one.archived;
            found_by := one.found_by;
            CONTINUE WHEN stored.state IS NULL OR stored.state::text <> of_state OR stored.created_at < since OR stored.created_at >= until;
        ELSIF met.source IS NULL THEN
            share := met.share;
            IF (SELECT h.inhparent <> 'once.outbox'::regclass FROM pg_inherits AS h WHERE h.inhrelid = met.leaf) THEN
                EXECUTE once._sql_for_blocks(met.leaf, greatest(split_part(met.next, ':', 2)::bigint, 1) - 1,
                                             greatest(split_part(met.next, ':', 2)::bigint, 1),
                                             'SELECT max(i.created_at) FROM {leaf} AS i WHERE {here}') INTO reached;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
$file$;
        EXECUTE $file$
-- once._intent_without_answer(): an expression for row i of once.intent or once.archive as once.intent, without its fingerprints, body and
-- headers, so that a look at many intents reads no bodies.
CREATE OR REPLACE FUNCTION once._intent_without_answer() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT format('ROW(%s)::once.intent', string_agg(
               CASE WHEN a.attname IN ('fingerprint', 'redirects', 'response_body', 'response_headers') THEN 'NULL'
                    ELSE format('i.%I', a.attname) END, ', ' ORDER BY a.attnum))
      FROM pg_attribute AS a WHERE a.attrelid = 'once.intent'::regclass AND a.attnum > 0 AND NOT a.attisdropped
$$;
$file$;
        EXECUTE $file$
-- once._metric_names(): the metrics of once.metrics, with their descriptions. Alerts and dashboards use these names.
CREATE OR REPLACE FUNCTION once._metric_names() RETURNS TABLE (name text, kind text, help text) LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    VALUES
    ('pgonce_intents', 'counter', 'Attempts in the database by their answer: new, replay, mismatch, active, stale (taken over),'
     ' retryable (taken over), final, in_doubt, expired.'),
    ('pgonce_inbox', 'counter', 'Messages in the database by the inbox''s answer: process, duplicate, mismatch.'),
    ('pgonce_stale', 'gauge', 'Attempts whose lease has passed without a report, at the last sweep.'),
    ('pgonce_stale_oldest_seconds', 'gauge', 'For how long the oldest stale attempt has been stale.'),
    ('pgonce_in_doubt', 'gauge', 'Intents with an unknown outcome, at the last sweep.'),
    ('pgonce_outbox_pending', 'gauge', 'Events that a relay has neither delivered nor parked yet.'),
    ('pgonce_outbox_lag_seconds', 'gauge', 'The age of the oldest pending event.'),
    ('pgonce_outbox_untaken', 'gauge', 'Events that no relay takes, by topic: they will not be published. Among the newest 10,000, or'
     ' in the keeper''s last pass through the outbox.'),
    ('pgonce_outbox_delayed', 'gauge', 'Events of once.emit_later that are not due yet, by topic. No other metric counts them.'),
    ('pgonce_outbox_delayed_late_seconds', 'gauge', 'For how long the first delayed event has been due. If longer than a round of'
     ' the keeper, neither a relay nor the keeper releases it.'),
    ('pgonce_outbox_parked', 'gauge', 'Events that a relay has parked, by state: waiting, retrying, dead.'),
    ('pgonce_capture_active', 'gauge', '1: a client is connected to the replication slot, which counts as a relay.'),
    ('pgonce_capture_broken', 'gauge', '1: the slot is gone, invalidated or another server''s, so nothing follows it; the outbox is kept.'),
    ('pgonce_capture_behind_bytes', 'gauge', 'WAL that the slot''s client has not confirmed.'),
    ('pgonce_capture_kept_bytes', 'gauge', 'WAL that the server keeps for the slot.'),
    ('pgonce_inbox_parked', 'gauge', 'Messages that a consumer has parked, by state: waiting, retrying, dead.'),
    ('pgonce_table_bytes', 'gauge', 'Size of a table with its indexes and partitions.'),
    ('pgonce_partition_bytes', 'gauge', 'Size of the partition of a day with its indexes.'),
    ('pgonce_partitions_ahead', 'gauge', 'Days after today that have their partition.'),
    ('pgonce_partitions_closing', 'gauge', 'Days that are being retired.'),
    ('pgonce_keeper_last_success_timestamp_seconds', 'gauge', 'When a step of the keeper last succeeded.'),
    ('pgonce_keeper_failing', 'gauge', '1: the last run of a step of the keeper failed.'),
    ('pgonce_retention_held', 'gauge', 'How many causes prevent the deletion of old rows.'),
    ('pgonce_clock_held', 'gauge', '1: nothing is deleted, because the clock is not steady.'),
    ('pgonce_contract_version', 'gauge', 'The version of the contract.'),
    ('pgonce_oldest_transaction_seconds', 'gauge', 'The age of the oldest open transaction, which holds back vacuum.'),
    ('pgonce_xid_age', 'gauge', 'Transactions since this database was last frozen.')
$$;
$file$;
        EXECUTE $file$
-- once._metrics_of_delivery(): samples for once.metrics: the backlog of relays and consumers.
CREATE OR REPLACE FUNCTION once._metrics_of_delivery() RETURNS TABLE (name text, labels jsonb, value double precision)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH summary AS MATERIALIZED (SELECT s.relay, s.topic, s.state, s.events, s.oldest FROM once.outbox_summary() AS s)
    SELECT f.name, jsonb_build_object('relay', s.relay, 'topic', coalesce(s.topic, '')), f.value
      FROM summary AS s
     CROSS JOIN LATERAL (VALUES ('pgonce_outbox_pending', s.events::double precision),
                                ('pgonce_outbox_lag_seconds',
                                 coalesce(greatest(date_part('epoch', clock_timestamp() - s.oldest), 0), 0))) AS f (name, value)
     WHERE s.state IN ('pending', 'idle')
     UNION ALL
    SELECT 'pgonce_outbox_untaken', jsonb_build_object('topic', coalesce(u.topic, '')), coalesce(u.events, 0)
      FROM (VALUES (0)) AS one (row) LEFT JOIN once.outbox_untaken() AS u ON true
     UNION ALL
    SELECT 'pgonce_outbox_delayed', jsonb_build_object('topic', coalesce(d.topic, '')), coalesce(d.events, 0)
      FROM (VALUES (0)) AS one (row) LEFT JOIN once.outbox_delayed() AS d ON true
     UNION ALL
    SELECT 'pgonce_outbox_delayed_late_seconds', '{}', coalesce(greatest(date_part('epoch', clock_timestamp() - (
           SELECT d.not_before FROM once.delayed_event AS d ORDER BY d.not_before LIMIT 1)), 0), 0)
     UNION ALL
    SELECT 'pgonce_outbox_parked', jsonb_build_object('relay', r.relay, 'state', t.state),
           coalesce((SELECT sum(s.events) FROM summary AS s WHERE s.relay = r.relay AND s.state = t.state), 0)
      FROM once.relay AS r CROSS JOIN (VALUES ('waiting'), ('retrying'), ('dead')) AS t (state)
     UNION ALL
    SELECT f.name, jsonb_build_object('relay', c.slot), f.value
      FROM once.capture_list() AS c
     CROSS JOIN LATERAL (VALUES ('pgonce_capture_active', (c.state = 'active')::integer::double precision),
                                ('pgonce_capture_broken', (c.state = 'broken')::integer),
                                ('pgonce_capture_behind_bytes', c.behind), ('pgonce_capture_kept_bytes', c.kept)) AS f (name, value)
     WHERE f.value IS NOT NULL
     UNION ALL
    SELECT 'pgonce_inbox_parked', jsonb_build_object('consumer', c.consumer, 'state', t.state), sum((c.state = t.state)::integer)
      FROM once.parked_message AS c CROSS JOIN (VALUES ('waiting'), ('retrying'), ('dead')) AS t (state)
     GROUP BY c.consumer, t.state;
END $$;
$file$;
        EXECUTE $file$
-- once._metrics_of_intents(): samples for once.metrics: the verdicts for attempts and messages, and the results of the last sweep.
CREATE OR REPLACE FUNCTION once._metrics_of_intents() RETURNS TABLE (name text, labels jsonb, value double precision) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT CASE WHEN c.verdict IN ('process', 'duplicate', 'message_mismatch') THEN 'pgonce_inbox' ELSE 'pgonce_intents' END,
           jsonb_build_object('verdict', replace(c.verdict, 'message_', '')), c.count::double precision
      FROM once.counts() AS c
     UNION ALL
    SELECT f.name, jsonb_build_object('scope', s.scope), f.value
      FROM once.swept AS s
     CROSS JOIN LATERAL (VALUES ('pgonce_stale', s.stale), ('pgonce_in_doubt', s.in_doubt),
                                ('pgonce_stale_oldest_seconds', coalesce(date_part('epoch', clock_timestamp() - s.oldest_stale),
                                    0))) AS f (name, value);
END $$;
$file$;
        EXECUTE $file$
-- once._metrics_of_keeping(): samples for once.metrics: the keeper's progress, and what holds it up.
CREATE OR REPLACE FUNCTION once._metrics_of_keeping() RETURNS TABLE (name text, labels jsonb, value double precision) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT f.name, jsonb_build_object('step', s.step), f.value
      FROM once.keeper_status() AS s
     CROSS JOIN LATERAL (VALUES ('pgonce_keeper_last_success_timestamp_seconds', date_part('epoch', s.last_success)),
                                ('pgonce_keeper_failing', coalesce((s.last_error_at > coalesce(s.last_success,
                                    '-infinity'))::integer, 0))) AS f (name, value)
     UNION ALL
    SELECT 'pgonce_retention_held', jsonb_build_object('what', h.what), count(*) FROM once.retention_held() AS h GROUP BY h.what
     UNION ALL
    SELECT 'pgonce_clock_held', NULL, (once._clock_held() IS NOT NULL)::integer
     UNION ALL
    SELECT 'pgonce_partitions_closing', NULL, count(*) FROM once.closing
     UNION ALL
    SELECT 'pgonce_partitions_ahead', jsonb_build_object('table', t.name),
           max(substr(c.relname, length(t.name) + 3)::integer) - floor(date_part('epoch', clock_timestamp()) / 86400)
      FROM (VALUES ('intent'), ('outbox')) AS t (name)
      JOIN pg_inherits AS h ON h.inhparent = to_regclass('once.' || t.name) JOIN pg_class AS c ON c.oid = h.inhrelid
     WHERE c.relname ~ ('^' || t.name || '_d[0-9]+$')
     GROUP BY t.name
     UNION ALL
    SELECT 'pgonce_contract_version', NULL, once.contract_version();
END $$;
$file$;
        EXECUTE $file$
-- once._metrics_of_tables(): samples for once.metrics: sizes, and conditions that slow down the whole database. A partition that is being
-- dropped meanwhile has no size, and is left out.
CREATE OR REPLACE FUNCTION once._metrics_of_tables() RETURNS TABLE (name text, labels jsonb, value double precision) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH leaf AS MATERIALIZED (
        SELECT t.name AS of_table, substring(c.relname FROM '_d([0-9]+)$')::integer AS day,
               pg_total_relation_size(c.oid) AS bytes
          FROM (VALUES ('intent'), ('archive'), ('outbox'), ('decision'), ('parked_event'), ('parked_message')) AS t (name)
         CROSS JOIN LATERAL (SELECT to_regclass('once.' || t.name) AS oid
                              UNION ALL SELECT h.inhrelid FROM pg_inherits AS h WHERE h.inhparent = to_regclass('once.' || t.name)) AS m
          JOIN pg_class AS c ON c.oid = m.oid)
    SELECT 'pgonce_table_bytes', jsonb_build_object('table', l.of_table), sum(l.bytes)::double precision
      FROM leaf AS l GROUP BY l.of_table
     UNION ALL
    SELECT 'pgonce_partition_bytes', jsonb_build_object('table', l.of_table, 'day',
               CASE WHEN l.day = 0 THEN 'none' ELSE (date '1970-01-01' + l.day)::text END), l.bytes
      FROM leaf AS l WHERE l.day IS NOT NULL
     UNION ALL
    SELECT 'pgonce_oldest_transaction_seconds', NULL,
           coalesce(greatest(max(date_part('epoch', clock_timestamp() - a.started)), 0), 0)
      FROM (SELECT s.xact_start AS started FROM pg_stat_activity AS s WHERE s.pid <> pg_backend_pid()
               AND s.datname = current_database()
             UNION ALL
            SELECT x.prepared FROM pg_prepared_xacts AS x WHERE x.database = current_database()) AS a
     UNION ALL
    SELECT 'pgonce_xid_age', NULL, age(d.datfrozenxid) FROM pg_database AS d WHERE d.datname = current_database();
END $$;
$file$;
        EXECUTE $file$
-- once._timeline(stored, archived, expires_at, decisions, events): the history of an intent, in order, for once.story: an array of {at,
-- what, by, fence, text}; what is one of created, attempt, takeover, doubt, decision, outcome, event, delivered, waiting, parked, dead,
-- archived, expires. at is NULL if the time is unknown (a delivery leaves only the relay's progress); such an entry follows the one that
-- it results from.
CREATE OR REPLACE FUNCTION once._timeline(stored once.intent, archived boolean, expires_at timestamptz, decisions jsonb, events jsonb)
RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT jsonb_agg(jsonb_build_object('at', t.at, 'what', t.what, 'by', t.by, 'fence', t.fence, 'text', t.text)
                             ORDER BY t.place, t.rank, t.at, t.text)
      FROM (SELECT stored.created_at AS at, stored.created_at AS place, 1 AS rank, 'created' AS what,
                   first.facts->>'owner' AS by, (first.facts->>'fence')::integer AS fence, 'the first attempt' AS text
              FROM (SELECT coalesce((SELECT d->'before' FROM jsonb_array_elements(decisions) AS d
                                      WHERE d#>>'{before,attempts}' = '1' AND (d->>'at')::timestamptz >= stored.created_at LIMIT 1),
                                    CASE WHEN stored.attempts <= 1 THEN once._summary(stored) END) AS facts) AS first
             UNION ALL
            SELECT (d->>'at')::timestamptz, (d->>'at')::timestamptz, 3,
                   CASE d->>'kind' WHEN 'takeover' THEN 'takeover' WHEN 'retry' THEN 'attempt' ELSE 'decision' END,
                   CASE WHEN d->>'kind' IN ('takeover', 'retry') THEN coalesce(d#>>'{after,owner}', d->>'by')
                        ELSE d->>'by' END,
                   (d->>'fence')::integer,
                   CASE WHEN d->>'kind' IN ('takeover', 'retry') THEN d->>'reason'
                        ELSE format('%s -> %s: %s', d->>'from', d->>'to', d->>'reason') END
              FROM jsonb_array_elements(decisions) AS d
             UNION ALL
            -- A takeover is recorded a moment after the row's time.
            SELECT stored.updated_at, greatest(stored.updated_at, (SELECT max((d->>'at')::timestamptz)
                                                                     FROM jsonb_array_elements(decisions) AS d)), 4, 'attempt',
                   stored.owner, stored.fence,
                   format('the last sign of attempt %s; its lease %s %s', stored.attempts,
                          CASE WHEN stored.lease_until > clock_timestamp() THEN 'ends' ELSE 'ended' END,
                          date_trunc('second', stored.lease_until))
             WHERE stored.state = 'processing'
             UNION ALL
            -- A doubt that an attempt reported. If policy, verify or the keeper put the intent in doubt, that is a decision.
            SELECT (f.facts->>'updated_at')::timestamptz, (f.facts->>'updated_at')::timestamptz, 2, 'doubt', f.facts->>'owner',
                   (f.facts->>'fence')::integer, concat_ws(': ', f.facts->>'error_code', f.facts->>'error_message')
              FROM (SELECT d->'before' AS facts FROM jsonb_array_elements(decisions) AS d WHERE d#>>'{before,state}' = 'in_doubt'
                     UNION
                    SELECT once._summary(stored) WHERE stored.state = 'in_doubt') AS f
             WHERE NOT EXISTS (SELECT FROM jsonb_array_elements(decisions) AS d
                                WHERE d#>>'{after,state}' = 'in_doubt' AND d#>'{after,fence}' = f.facts->'fence')
             UNION ALL
            SELECT stored.completed_at, stored.completed_at, 5, 'outcome', coalesce(decided.by, stored.owner), stored.fence,
                   concat_ws(', ', stored.state::text || CASE WHEN stored.attempts > 1
                                                              THEN format(' at attempt %s', stored.attempts) ELSE '' END,
                             'status ' || stored.response_status,
                             nullif(concat_ws(' ', stored.result_type, stored.result_id), ''),
                             nullif(concat_ws(': ', stored.error_code, stored.error_message), ''))
              FROM (SELECT max(d->>'by') AS by FROM jsonb_array_elements(decisions) AS d     -- who stored it, if not the attempt
                     WHERE d->>'kind' NOT IN ('takeover', 'retry') AND d#>>'{after,state}' = stored.state::text
                       AND (d#>>'{after,fence}')::integer = stored.fence) AS decided
             WHERE stored.completed_at IS NOT NULL AND stored.state <> 'processing'
             UNION ALL
            SELECT (e->>'at')::timestamptz, (e->>'at')::timestamptz, 2, 'event', NULL, NULL,
                   concat_ws(' ', e->>'topic', e->>'id',
                             'of ' || nullif(concat_ws(' ', e->>'aggregate_type', e->>'aggregate_id'), ''),
                             'delayed until ' || date_trunc('second', (e->>'not_before')::timestamptz))
              FROM jsonb_array_elements(events) AS e
             UNION ALL
            SELECT r.at, coalesce(r.at, (e->>'at')::timestamptz), 6, r.what, 'relay ' || (r.one->>'relay'), NULL,
                   concat_ws(': ', format('event %s', e->>'id'), r.text, r.one->>'error')
              FROM jsonb_array_elements(events) AS e
             CROSS JOIN LATERAL (
                   SELECT o AS one,
                          CASE o->>'state' WHEN 'passed' THEN 'delivered' WHEN 'dead' THEN 'dead' WHEN 'retrying' THEN 'parked'
                                           ELSE 'waiting' END AS what,
                          CASE o->>'state' WHEN 'dead' THEN (o->>'updated_at')::timestamptz
                                           ELSE (o->>'parked_at')::timestamptz END AS at,
                          CASE o->>'state' WHEN 'passed' THEN 'delivered, or discarded, or older than the relay'
                                           WHEN 'pending' THEN 'the relay has not reached it yet'
                                           WHEN 'waiting' THEN 'behind another of its aggregate'
                                           WHEN 'foreign' THEN 'this relay''s progress was not written in this database'
                                           ELSE format('refused %s times', o->>'attempts') END AS text
                     FROM jsonb_array_elements(coalesce(e->'relays', '[]')) AS o) AS r
             UNION ALL
            SELECT NULL, coalesce(stored.completed_at, stored.updated_at), 7, 'archived', NULL, NULL,
                   'its day is retired; it is kept in the archive'
             WHERE archived
             UNION ALL
            SELECT expires_at, expires_at, 8, 'expires', NULL, NULL,
                   CASE WHEN expires_at > clock_timestamp() THEN 'then its outcome may be deleted'
                        ELSE 'its outcome may be deleted since then' END
             WHERE expires_at IS NOT NULL) AS t);
END $$;
$file$;
        EXECUTE $file$
-- once.anchor(): for a node of a Citus cluster: from now on the memory commits together with an effect on any node. Adds triggers to the
-- tables of the memory. Call it first on the coordinator, which creates the distributed table public.once_anchor, then on every node with a
-- contract, and again when Citus has moved the shards of that table: until then the node refuses to write (P4097). Returns the shard that
-- it uses; NULL with a NOTICE if the coordinator has no shard. For the owner of the contract. Raises 55000 without Citus, without the
-- table, or on a worker without a shard. Waits for open transactions that have written.
CREATE OR REPLACE FUNCTION once.anchor() RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    here integer;
    place record;
    memory text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce slots', 20778));
    IF NOT EXISTS (SELECT FROM pg_extension AS e WHERE e.extname = 'citus') THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: there is no Citus in this database',
            HINT = 'Without it memory and effect are on one node and commit together: there is nothing to do.';
    END IF;
    EXECUTE 'SELECT l.groupid FROM pg_dist_local_group AS l' INTO here;
    IF to_regclass('public.once_anchor') IS NULL THEN
        IF here <> 0 THEN
            RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: there is no table public.once_anchor',
                HINT = 'SELECT once.anchor() on the coordinator first.';
        END IF;
        CREATE TABLE public.once_anchor (n integer PRIMARY KEY);
        EXECUTE 'SELECT create_distributed_table(''public.once_anchor'', ''n'', colocate_with => ''none'', shard_count => 64)';
    END IF;
    EXECUTE 'SELECT n.n, s.shard
               FROM generate_series(1, 10000) AS n (n)
              CROSS JOIN LATERAL get_shard_id_for_distribution_column(''public.once_anchor'', n.n) AS s (shard)
               JOIN pg_dist_placement AS p ON p.shardid = s.shard AND p.groupid = $1
              ORDER BY n.n LIMIT 1' INTO place USING here;
    IF place.shard IS NULL AND here = 0 THEN      -- a coordinator has shards only if it is told to
        RAISE NOTICE 'pgonce: no shard of public.once_anchor is on the coordinator, so its own memory is not anchored';
        RETURN NULL;
    ELSIF place.shard IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: no shard of public.once_anchor is on this node',
            HINT = 'On the coordinator: SELECT citus_set_node_property(host, port, ''shouldhaveshards'', true), then '
                'citus_move_shard_placement of one shard of it to this node, and the property back.';
    END IF;
    PERFORM once._execute_ddl(format('CREATE OR REPLACE FUNCTION once._anchor() RETURNS trigger LANGUAGE plpgsql'
        ' SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS %L', format($body$
BEGIN
    DELETE FROM public.once_anchor AS a WHERE a.n = %s;
    IF NOT EXISTS (SELECT FROM pg_dist_placement AS p WHERE p.shardid = %s AND p.groupid = %s)
       OR current_setting('citus.enable_local_execution') <> 'on' THEN
        PERFORM once._refuse('P4097', NULL, NULL, NULL, 'the anchor''s shard is %s',
            'its anchor has moved, or Citus may not execute locally',
            'SELECT once.anchor() as the owner of the contract; citus.enable_local_execution must be on.');
    END IF;
    RETURN NULL;
END $body$, place.n, place.shard, here, place.shard)));
    -- once.intent_d0 too: batches name it, and a statement that names a partition fires no trigger of the whole table.
    FOREACH memory IN ARRAY ARRAY['intent', 'intent_d0', 'archive', 'outbox', 'delayed_event', 'parked_message'] LOOP
        IF NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = ('once.' || memory)::regclass AND t.tgname = 'anchor') THEN
            PERFORM once._execute_ddl(format('CREATE TRIGGER anchor AFTER INSERT OR UPDATE OR DELETE ON once.%s'
                ' FOR EACH STATEMENT EXECUTE FUNCTION once._anchor()', memory));
        END IF;
    END LOOP;
    RETURN place.shard;
END $$;
$file$;
        EXECUTE $file$
-- once_job.close_slot(slot, wait): closes a slot on this node, for pgonce rehome. At once, every call for its tenants raises P4097. Then it
-- waits, at most this long, for the transactions that were let in before, prepared ones included. True: they have all ended, and the slot
-- stays closed once this transaction has committed. False: some are still open, and the slot is open again, as before. If the slot is
-- already closed, it waits in the same way and never opens it. Raises 22023 if there is no such slot or the node is not divided; 55006
-- while another session closes or opens the slot.
CREATE OR REPLACE FUNCTION once_job.close_slot(slot integer, wait interval DEFAULT '5 seconds') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 AS $$
DECLARE
    state bigint := once._hold_slot(slot);
    wait_ms numeric := extract(epoch FROM wait) * 1000;
BEGIN
    IF (wait_ms BETWEEN 1 AND 86400000) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: wait is out of range: %s', coalesce(wait::text, 'NULL')),
            HINT = '1 millisecond to 1 day.';
    END IF;
    BEGIN
        PERFORM setval(to_regclass('once.slot_' || slot || '_seq'), state - state % 2);
        PERFORM set_config('lock_timeout', ceil(wait_ms)::text, true);
        PERFORM pg_advisory_xact_lock(20790, slot);
        RETURN true;
    EXCEPTION WHEN OTHERS OR query_canceled THEN
        PERFORM setval(to_regclass('once.slot_' || slot || '_seq'), state);
        IF SQLSTATE <> '55P03' THEN
            RAISE;
        END IF;
        RETURN false;
    END;
END $$;
$file$;
        EXECUTE $file$
-- once.divide(open): makes this database a node that shares the tenants with others. Each of the 64 slots gets a state, and every call
-- that may write checks first that its tenant's slot is open here; otherwise it raises P4097. open: true for the first node, which has all
-- slots open; false for a node that joins others. Returns when all transactions that began without the guard have ended, prepared ones
-- included; a NOTICE names them once a second. If it was interrupted while it waited, call it again: a divided node keeps its slots
-- unchanged. For the owner of the contract, outside a transaction block. Raises 22023 if open is missing, 55000 if some of the sequences
-- are missing. once.undivide reverts it.
--
-- Why it is written so: it is not SECURITY DEFINER and has no settings, since such a procedure could not commit.
CREATE OR REPLACE PROCEDURE once.divide(open boolean DEFAULT NULL) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._divide(open);
    COMMIT;
    PERFORM once._wait_for_older();
END $$;
$file$;
        EXECUTE $file$
-- once_job.open_slot(slot, epoch): opens a slot on this node, for pgonce rehome. epoch: greater than any epoch that the slot has had on any
-- node. It takes effect at once, and a rollback does not undo it, since the state is a sequence. Raises 22023 if there is no such slot,
-- the node is not divided, or the epoch is not greater than the present one here; 55000 if the slot is already open, or if this node has
-- handed it over and its memory has not come back; 55006 while another session closes or opens it.
CREATE OR REPLACE FUNCTION once_job.open_slot(slot integer, epoch bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    state bigint := once._hold_slot(slot);
BEGIN
    IF state % 2 = 1 THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: slot %s is open here', slot),
            DETAIL = format('epoch=%s', state / 2);
    ELSIF (epoch BETWEEN state / 2 + 1 AND 4611686018427387903) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = format('pgonce: slot %s cannot open with epoch %s', slot, coalesce(epoch::text, 'NULL')),
            DETAIL = format('its epoch here is %s', state / 2),
            HINT = 'Each opening needs a greater epoch than the slot has had on any node.';
    ELSIF once._handed_to(slot) IS NOT NULL
          AND NOT EXISTS (SELECT FROM once.slot_move AS m WHERE m.slot = open_slot.slot AND m.epoch = open_slot.epoch) THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: slot %s was handed over to %s', slot, once._handed_to(slot)),
            DETAIL = format('epoch=%s', state / 2),
            HINT = 'Run pgonce rehome again, with the same --from and --to. Only if that node is lost for good, and what it has done '
                'since with it: set handed_to to NULL in once.slot_move first.';
    END IF;
    PERFORM setval(to_regclass('once.slot_' || slot || '_seq'), epoch * 2 + 1);
END $$;
$file$;
        EXECUTE $file$
-- once.slot_of(tenant): the slot of a tenant, 0 to 63: one of 64 equal ranges of the hash by which PostgreSQL and Citus spread text.
-- If several nodes share the tenants, all tenants of a slot move together. Before an installation is divided, it may replace this
-- function by another that matches its router: IMMUTABLE, 0 to 63 for every text, and the same on every node. After that it must never
-- change.
--
-- Why it is written so: it is inlined, so it has no settings, and names the schema of everything instead.
CREATE OR REPLACE FUNCTION once.slot_of(tenant text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (pg_catalog.hashtext(tenant) OPERATOR(pg_catalog.>>) 26) OPERATOR(pg_catalog.+) 32
$$;
$file$;
        EXECUTE $file$
-- once.slots(): which slots are open on this node, and their epochs. Among several nodes, the node that has a slot open with the highest
-- epoch serves it. No rows: the node is not divided and serves every tenant. These are present values, independent of the snapshot. Doors
-- call it when they start and after P4097.
CREATE OR REPLACE FUNCTION once.slots() RETURNS TABLE (slot integer, epoch bigint, open boolean)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.n, s.state / 2, s.state % 2 = 1
      FROM (SELECT g.n, once._slot_state(g.n) AS state FROM generate_series(0, 63) AS g (n) WHERE once._is_divided()) AS s
     ORDER BY s.n
$$;
$file$;
        EXECUTE $file$
-- once.undivide(): makes a divided node an ordinary installation again, which serves every tenant. Raises 55000 unless every slot is open
-- here: other nodes may remember keys of a closed slot, and their effects would happen again. Returns when all transactions that began with
-- the guard have ended. For the owner of the contract, outside a transaction block. Does nothing if the node is not divided.
CREATE OR REPLACE PROCEDURE once.undivide() LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._undivide(false);
    COMMIT;
    PERFORM once._wait_for_older();
    PERFORM once._undivide(true);
END $$;
$file$;
        EXECUTE $file$
-- once._anchor(): the trigger of an anchored Citus node (once.anchor), after each statement that writes the memory. Citus does not see
-- writes to local tables. If a transaction has changed one other node, Citus commits that node first, alone; if the local commit then
-- fails, the effect stays without its memory. A change of a local shard, even of no row, makes it commit in two phases, with the memory
-- in the deciding transaction. As installed, the function refuses; once.anchor replaces it by a function that knows this node's shard.
CREATE OR REPLACE FUNCTION once._anchor() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._refuse('P4097', NULL, NULL, NULL, NULL, 'it has lost its anchor', 'As the owner of the contract: SELECT once.anchor().');
    RETURN NULL;
END $$;
$file$;
        EXECUTE $file$
-- once._divide(open): the part of once.divide that is one transaction: creates the sequences and replaces once._serves by the guard. If the
-- node is already divided, the slots stay as they are, and the guard is put back if it is missing (after the restore of an extension's
-- dump).
CREATE OR REPLACE FUNCTION once._divide(open boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    slot integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce slots', 20778));
    SELECT s.n INTO slot FROM generate_series(0, 63) AS s (n) WHERE to_regclass('once.slot_' || s.n || '_seq') IS NULL LIMIT 1;
    IF slot IS NOT NULL THEN
        IF slot > 0 THEN
            RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: the sequence once.slot_%s_seq is missing', slot),
                DETAIL = 'The others exist, so it was dropped, and this node no longer knows whether the slot is open here.',
                HINT = format('Find out from the other nodes (pgonce doctor --nodes), then CREATE SEQUENCE once.slot_%s_seq MINVALUE 0 and '
                    'setval it to twice the epoch, plus one if the slot is open here.', slot);
        ELSIF open IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: open is missing',
                HINT = 'true for the first node, which serves all tenants; false for a node that joins others.';
        END IF;
        FOR slot IN 0 .. 63 LOOP
            PERFORM once._execute_ddl(format('CREATE SEQUENCE once.slot_%s_seq MINVALUE 0', slot));
            PERFORM once._close(format('once.slot_%s_seq', slot)::regclass);
            PERFORM setval(format('once.slot_%s_seq', slot)::regclass, CASE WHEN open THEN 3 ELSE 0 END);
        END LOOP;
    END IF;
    PERFORM once._guard(true);
END $$;
$file$;
        EXECUTE $file$
-- once._guard(divided): replaces once._serves by the guard of a divided node, or by the installed function. The caller holds the lock of
-- once._divide, because two sessions cannot replace one function at the same time.
--
-- Why the guard is written so: it first takes the slot's lock, then looks at the slot; CASE keeps this order. once_job.close_slot first
-- closes the slot, then waits for the lock. So it waits for each caller that has the lock and found the slot open, and every later caller
-- finds it closed. A sequence always shows its present value, independent of snapshots and caches. A look at the catalogue, or a replaced
-- function, would let a caller pass that was waiting while the slot closed. The guard never waits: if the lock is not free, the slot is
-- closing.
CREATE OR REPLACE FUNCTION once._guard(divided boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    sequences text := '[0:63]=' || (SELECT array_agg(format('once.slot_%s_seq', n) ORDER BY n)::text FROM generate_series(0, 63) AS n);
BEGIN
    PERFORM once._execute_ddl(format('CREATE OR REPLACE FUNCTION once._serves(tenant text) RETURNS boolean LANGUAGE sql AS %L',
        CASE WHEN divided THEN format($guard$
    SELECT CASE WHEN pg_try_advisory_xact_lock_shared(20790, once.slot_of(tenant))
                THEN pg_sequence_last_value((%L::regclass[])[once.slot_of(tenant)]) %% 2 = 1
                ELSE false END
$guard$, sequences) ELSE ' SELECT true ' END));
END $$;
$file$;
        EXECUTE $file$
-- once._handed_to(slot): the node to which this one has handed the slot over with its present epoch; NULL: none.
CREATE OR REPLACE FUNCTION once._handed_to(slot integer) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    RETURN (SELECT m.handed_to FROM once.slot_move AS m WHERE m.slot = slot AND m.epoch = once._slot_state(slot) / 2);
END $$;
$file$;
        EXECUTE $file$
-- once._hold_slot(slot): what closing and opening a slot have in common: holds its state until the transaction ends, and returns it
-- (once._slot_state). Another node relies on this transaction's commit, so the commit must reach the disk. Raises 22023 if there is no such
-- slot or the node is not divided; 55006 while another session holds the slot, or once.undivide runs; 25000 above READ COMMITTED, where a
-- snapshot from before the lock would not show that the slot was handed over.
CREATE OR REPLACE FUNCTION once._hold_slot(slot integer) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = '25000', MESSAGE = 'pgonce: slots close and open in READ COMMITTED only',
            HINT = 'SET default_transaction_isolation = ''read committed''';
    ELSIF once._slot_state(slot) IS NULL OR NOT once._is_guarded() THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: there is no slot %s on this node', coalesce(slot::text, 'NULL')),
            HINT = 'A divided node has the slots 0 to 63: CALL once.divide(...).';
    ELSIF NOT pg_try_advisory_xact_lock_shared(hashtextextended('pgonce slots', 20778)) OR NOT pg_try_advisory_xact_lock(20791, slot) THEN
        RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = format('pgonce: another session is closing or opening slot %s', slot),
            HINT = 'Let it end, then look at once.slots().';
    ELSIF NOT once._is_guarded() THEN       -- since once.undivide has ended
        RETURN once._hold_slot(NULL);
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'local', true);
    END IF;
    RETURN once._slot_state(slot);
END $$;
$file$;
        EXECUTE $file$
-- once._is_divided(): whether once.divide has made this a node that shares the tenants with others.
CREATE OR REPLACE FUNCTION once._is_divided() RETURNS boolean LANGUAGE sql AS $$ SELECT to_regclass('once.slot_0_seq') IS NOT NULL $$;
$file$;
        EXECUTE $file$
-- once._is_guarded(): whether once._serves is the guard of a divided node, not the installed function.
CREATE OR REPLACE FUNCTION once._is_guarded() RETURNS boolean LANGUAGE sql AS $$
    SELECT p.prosrc <> ' SELECT true ' FROM pg_proc AS p WHERE p.oid = 'once._serves(text)'::regprocedure
$$;
$file$;
        EXECUTE $file$
-- once._is_moving(): whether slots are being copied from or to this node (pgonce rehome), or a copy was left unfinished. Meanwhile nothing
-- is deleted or archived: only inserts and updates are replicated.
CREATE OR REPLACE FUNCTION once._is_moving() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM pg_publication AS p WHERE p.pubname = 'pgonce_rehome')
        OR EXISTS (SELECT FROM pg_subscription AS s
                    WHERE s.subname = 'pgonce_rehome'
                      AND s.subdbid = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()))
$$;
$file$;
        EXECUTE $file$
-- once._join(node): makes this database a node like the one that returned node (once._node): the same settings with the salt, the same
-- policies, bindings and days, and no slot open. joined: false if it had joined before. Raises 55000 if the other node is not divided, if
-- the contracts differ, or if this database remembers something: its fingerprints have another salt, and other nodes may serve its
-- tenants. For pgonce init --join. Afterwards CALL once.divide() waits for older transactions.
CREATE OR REPLACE FUNCTION once._join(node jsonb, OUT joined boolean, OUT policies bigint, OUT bindings bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET intervalstyle = 'postgres' AS $$
DECLARE
    own jsonb := once._node();
    theirs once.setting;
    day integer;
    missing text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce slots', 20778));
    IF (node ->> 'divided' = 'true') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: the node to join is not divided',
            HINT = 'CALL once.divide(true) there, as the owner of its contract.';
    ELSIF own -> 'contract' IS DISTINCT FROM node -> 'contract' THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: the contract of the node to join is of another version',
            HINT = 'Upgrade it with this pgonce first: pgonce init.';
    ELSIF once._is_divided() THEN
        IF own -> 'setting' ->> 'salt' = node -> 'setting' ->> 'salt' THEN
            joined := false;
            SELECT count(*) INTO policies FROM once.scope;
            SELECT count(*) INTO bindings FROM once.binding;
            RETURN;
        END IF;
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: this node is divided already, and has another salt',
            HINT = 'It shares the tenants with other nodes. Install into another database.';
    END IF;
    PERFORM once._refuse_memory();
    -- In the order in which once.add_days takes them.
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
    SELECT s.* INTO STRICT theirs FROM jsonb_populate_record(NULL::once.setting, node -> 'setting') AS s;
    DELETE FROM once.setting;
    INSERT INTO once.setting SELECT theirs.*;
    DELETE FROM once.scope;
    INSERT INTO once.scope SELECT s.* FROM jsonb_populate_recordset(NULL::once.scope, node -> 'scopes') AS s;
    INSERT INTO once.binding SELECT b.* FROM jsonb_populate_recordset(NULL::once.binding, node -> 'bindings') AS b ON CONFLICT DO NOTHING;
    IF own ->> 'slot_of' <> node ->> 'slot_of' THEN
        PERFORM once._execute_ddl(node ->> 'slot_of');
    END IF;
    PERFORM once.add_days();
    FOR day IN SELECT d FROM once._days('once.intent', 'intent_d') AS d WHERE d < theirs.closed_before LOOP
        PERFORM once._execute_ddl(format('ALTER TABLE once.intent DETACH PARTITION once.intent_d%s', day));
        PERFORM once._execute_ddl(format('DROP TABLE once.intent_d%s', day));
    END LOOP;
    PERFORM once._divide(false);
    SELECT string_agg(v.verify, ', ' ORDER BY v.verify) INTO missing
      FROM (SELECT DISTINCT s.verify FROM once.scope AS s WHERE s.verify IS NOT NULL) AS v
     WHERE to_regprocedure(v.verify || '(text,text,text)') IS NULL;
    IF missing IS NOT NULL THEN
        RAISE NOTICE 'pgonce: verify functions are missing on this node, and their intents stay in doubt: %', missing;
    END IF;
    SELECT string_agg(DISTINCT b.role_name, ', ' ORDER BY b.role_name) INTO missing
      FROM once.binding AS b WHERE NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = b.role_name);
    IF missing IS NOT NULL THEN
        RAISE NOTICE 'pgonce: roles that are bound to a tenant are missing on this node: %', missing;
    END IF;
    joined := true;
    SELECT count(*) INTO policies FROM once.scope;
    SELECT count(*) INTO bindings FROM once.binding;
END $$;
$file$;
        EXECUTE $file$
-- once._move_arrived(slot, epoch, wait): whether the other node's row of this move has arrived within this time, and with it everything
-- that the slot's transactions have written there.
CREATE OR REPLACE FUNCTION once._move_arrived(slot integer, epoch bigint, wait interval) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    until timestamptz := clock_timestamp() + wait;
BEGIN
    WHILE NOT EXISTS (SELECT FROM once.slot_move AS m WHERE m.slot = slot AND m.epoch = epoch) LOOP
        IF clock_timestamp() > until THEN
            RETURN false;
        END IF;
        PERFORM pg_sleep(0.001);
    END LOOP;
    RETURN true;
END $$;
$file$;
        EXECUTE $file$
-- once._move_back(slot): opens a slot again that has closed to move and was not handed over. Returns its epoch; NULL: it was handed over,
-- and only the other node may open it.
CREATE OR REPLACE FUNCTION once._move_back(slot integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    state bigint := once._hold_slot(slot);
BEGIN
    IF state % 2 = 0 AND once._handed_to(slot) IS NOT NULL THEN
        RETURN NULL;
    ELSIF state % 2 = 0 THEN
        PERFORM once_job.open_slot(slot, state / 2 + 1);
    END IF;
    RETURN once._slot_state(slot) / 2;
END $$;
$file$;
        EXECUTE $file$
-- once._move_begin(archive): call it at both nodes when publication and subscription are committed, first at the old one: waits for the
-- keeper's present step and for once.retire_day, which may have looked before; later ones find that slots are moving, and delete nothing.
-- Then makes the coming days and these months of the archive (once._move_facts), and enables the subscription, if it is here.
CREATE OR REPLACE FUNCTION once._move_begin(archive jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE once.clock IN EXCLUSIVE MODE;        -- each step of a keeper locks its row
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778));
    PERFORM once.add_days();
    PERFORM once._archive_month(m.day::integer) FROM jsonb_array_elements_text(archive) AS m (day);
    IF EXISTS (SELECT FROM pg_subscription AS s JOIN pg_database AS d ON d.oid = s.subdbid
                WHERE s.subname = 'pgonce_rehome' AND d.datname = current_database()) THEN
        PERFORM once._execute_ddl('ALTER SUBSCRIPTION pgonce_rehome ENABLE');
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._move_behind(slot, before): why the events of this slot that were emitted before this time hold up its move: a relay has not passed
-- them, one is parked, or there is no relay. Its later events come from another node, and would overtake them. NULL: nothing does.
CREATE OR REPLACE FUNCTION once._move_behind(slot integer, before timestamptz) RETURNS text
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    why text;
BEGIN
    PERFORM once._follow_slots();
    SELECT format('%s events are parked with relay %L: retry or discard them (pgonce parked)', count(*), p.relay) INTO why
      FROM once.parked_event AS p WHERE once.slot_of(p.tenant) = slot GROUP BY p.relay ORDER BY p.relay LIMIT 1;
    IF why IS NOT NULL THEN
        RETURN why;
    END IF;
    SELECT CASE WHEN r.written_by <> r.xmin
                THEN format('the progress of relay %L was not written in this database: see once.relay_adopt', r.relay)
                ELSE format('relay %L has not passed the event %s', r.relay, e.event_id) END
      INTO why
      FROM once.relay AS r
     CROSS JOIN LATERAL (
           SELECT n.event_id
             FROM (SELECT o.tenant, o.topic, o.created_at, o.id, o.xid, o.event_id FROM once.outbox AS o
                    WHERE o.xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip(r.seen) AS x))
                    UNION ALL
                   SELECT o.tenant, o.topic, o.created_at, o.id, o.xid, o.event_id FROM once.outbox AS o
                    WHERE o.xid >= pg_snapshot_xmax(r.seen)) AS n
            WHERE once.slot_of(n.tenant) = slot AND n.created_at < before
              AND (r.reading IS NULL OR n.id > r.after_id OR NOT pg_visible_in_snapshot(n.xid, r.reading))
              AND (r.topics IS NULL OR n.topic LIKE ANY (r.topics))
            LIMIT 1) AS e
     ORDER BY r.relay LIMIT 1;
    IF why IS NULL AND NOT EXISTS (SELECT FROM once.relay)
       AND EXISTS (SELECT FROM once.outbox AS o WHERE once.slot_of(o.tenant) = slot) THEN
        why := 'it has events, and no relay has existed that could publish them: start one (pgonce relay)';
    END IF;
    RETURN why;
END $$;
$file$;
        EXECUTE $file$
-- once._move_close(slot, wait): closes an open slot to move it (once_job.close_slot), and leaves the row that tells the other node that it
-- has everything. Returns the epoch with which it opens there. NULL: transactions are still inside, and it is open as before. Raises 55000
-- if it is not open here.
CREATE OR REPLACE FUNCTION once._move_close(slot integer, wait interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    epoch bigint := once._hold_slot(slot) / 2 + 1;
BEGIN
    IF once._slot_state(slot) % 2 = 0 THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: slot %s is not open on this node', slot),
            DETAIL = format('epoch=%s', epoch - 1);
    ELSIF NOT once_job.close_slot(slot, wait) THEN
        RETURN NULL;
    END IF;
    INSERT INTO once.slot_move (slot, epoch, fence_floor) VALUES (slot, epoch, once._first_fence() - 1);
    RETURN epoch;
END $$;
$file$;
        EXECUTE $file$
-- once._move_disable(): stops the subscription of pgonce rehome, and returns its oid, or NULL if it does not exist.
CREATE OR REPLACE FUNCTION once._move_disable() RETURNS oid LANGUAGE plpgsql AS $$
DECLARE
    subscription oid := (SELECT s.oid FROM pg_subscription AS s JOIN pg_database AS d ON d.oid = s.subdbid
                          WHERE s.subname = 'pgonce_rehome' AND d.datname = current_database());
BEGIN
    IF subscription IS NOT NULL THEN
        PERFORM once._execute_ddl('ALTER SUBSCRIPTION pgonce_rehome DISABLE');
    END IF;
    RETURN subscription;
END $$;
$file$;
        EXECUTE $file$
-- once._move_facts(): what pgonce rehome must know of a node, beside once._node. archive: the first days of the archive's months.
-- statement_timeout: that of a new connection, in milliseconds. slots: for each, its epoch, whether it is open, and the node that it was
-- handed over to with this epoch (null: none).
CREATE OR REPLACE FUNCTION once._move_facts() RETURNS jsonb LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_build_object(
        'server_version', current_setting('server_version_num')::integer,
        'wal_level', current_setting('wal_level'),
        'standby', pg_is_in_recovery(),
        'now', date_part('epoch', clock_timestamp()),
        'skew', (SELECT date_part('epoch', s.clock_skew) FROM once.setting AS s WHERE s.only_row),
        'closed_before', (SELECT s.closed_before FROM once.setting AS s WHERE s.only_row),
        'closing', (SELECT coalesce(jsonb_agg(c.day ORDER BY c.day), '[]') FROM once.closing AS c WHERE c.phase <> 'look'),
        'archive', (SELECT coalesce(jsonb_agg(to_date(right(c.relname, 6), 'YYYYMM') - date '1970-01-01'), '[]')
                      FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
                     WHERE h.inhparent = 'once.archive'::regclass AND c.relname ~ '^archive_[0-9]{6}$'),
        'replicates', (SELECT r.rolsuper OR r.rolreplication FROM pg_roles AS r WHERE r.rolname = current_user),
        'subscribes', (SELECT r.rolsuper FROM pg_roles AS r WHERE r.rolname = current_user)
            OR coalesce((SELECT pg_has_role(r.oid, 'USAGE') FROM pg_roles AS r WHERE r.rolname = 'pg_create_subscription'), false),
        'sees_standbys', pg_has_role('pg_read_all_stats', 'USAGE'),
        'statement_timeout', (SELECT s.reset_val::bigint FROM pg_settings AS s WHERE s.name = 'statement_timeout'),
        'replication_slot', once._move_replication_slot(),
        'slots', (SELECT jsonb_agg(jsonb_build_array(s.epoch, s.open, m.handed_to) ORDER BY s.slot)
                    FROM once.slots() AS s LEFT JOIN once.slot_move AS m ON m.slot = s.slot AND m.epoch = s.epoch))
$$;
$file$;
        EXECUTE $file$
-- once._move_forget(slots, epochs, leaf, block): deletes the memory of slots that another node serves, or has served since, in a step of at
-- most a tenth of a second. epochs: those of that node. Begins with leaf NULL; leaf and block say where the next step begins: NULL: at the
-- end. Raises 55000 if a slot is open here or has a greater epoch here: then this memory is the true one.
CREATE OR REPLACE FUNCTION once._move_forget(slots integer[], epochs bigint[], INOUT leaf text, INOUT block bigint, OUT deleted bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    until timestamptz := clock_timestamp() + interval '100 milliseconds';
    leaves text[] := ARRAY(SELECT c.relname::text FROM pg_class AS c
                            WHERE c.oid IN (SELECT h.inhrelid FROM pg_inherits AS h
                                             WHERE h.inhparent IN ('once.intent'::regclass, 'once.archive'::regclass))
                            ORDER BY c.relname) || ARRAY['decision', 'delayed_event', 'parked_message', 'consumer_position'];
    state bigint;
    gone bigint;
BEGIN
    deleted := 0;
    FOR n IN 1 .. cardinality(slots) LOOP
        state := once._hold_slot(slots[n]);
        IF state % 2 = 1 OR (state / 2 <= epochs[n]) IS NOT TRUE THEN
            RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: the memory of slot %s is in use on this node', slots[n]),
                DETAIL = format('it is %s here with epoch %s', CASE WHEN state % 2 = 1 THEN 'open' ELSE 'closed' END, state / 2);
        END IF;
    END LOOP;
    IF leaf IS NULL THEN
        leaf := leaves[1];
        block := 0;
    END IF;
    LOOP
        IF (block < once._blocks(to_regclass('once.' || leaf))) IS NOT TRUE THEN
            leaf := (SELECT l FROM unnest(leaves) WITH ORDINALITY AS u (l, n)
                      WHERE u.n > coalesce(array_position(leaves, leaf), 0) ORDER BY u.n LIMIT 1);
            block := CASE WHEN leaf IS NOT NULL THEN 0 END;
            EXIT WHEN leaf IS NULL;
            CONTINUE;
        END IF;
        EXECUTE once._sql_for_blocks(to_regclass('once.' || leaf), block, block + once._stride(),
            'DELETE FROM {leaf} AS i WHERE {here} AND once.slot_of(i.tenant) = ANY ($1)') USING slots;
        GET DIAGNOSTICS gone = ROW_COUNT;
        deleted := deleted + gone;
        block := block + once._stride();
        EXIT WHEN clock_timestamp() > until;
    END LOOP;
END $$;
$file$;
        EXECUTE $file$
-- once._move_hand_over(slot, epoch, node): the point of no return: from this commit on, only the other node may open the slot, with this
-- epoch, and a second run of pgonce rehome goes on from here. Raises 55000 if the slot is not closed by this move any more.
CREATE OR REPLACE FUNCTION once._move_hand_over(slot integer, epoch bigint, node text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    state bigint := once._hold_slot(slot);
BEGIN
    UPDATE once.slot_move AS m SET handed_to = node WHERE m.slot = slot AND m.epoch = epoch AND state = (epoch - 1) * 2;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: slot %s is no longer closed for this move', slot),
            DETAIL = format('epoch=%s', state / 2), HINT = 'Another pgonce rehome has taken over.';
    END IF;
    PERFORM setval(to_regclass('once.slot_' || slot || '_seq'), epoch * 2);
END $$;
$file$;
        EXECUTE $file$
-- once._move_in(memory): stores at this node what once._move_out has returned at the other. Parked messages keep their order.
CREATE OR REPLACE FUNCTION once._move_in(memory jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO once.delayed_event
    SELECT d.* FROM jsonb_populate_recordset(NULL::once.delayed_event, memory -> 'delayed_event') AS d;
    INSERT INTO once.parked_message (consumer, tenant, message_id, topic, key, headers, payload, fingerprint, state, attempts,
        next_at, error, sqlstate, parked_at, updated_at)
    SELECT p.consumer, p.tenant, p.message_id, p.topic, p.key, p.headers, p.payload, p.fingerprint, p.state, p.attempts, p.next_at, p.error,
           p.sqlstate, p.parked_at, p.updated_at
      FROM jsonb_populate_recordset(NULL::once.parked_message, memory -> 'parked_message') AS p ORDER BY p.position;
    INSERT INTO once.consumer_position
    SELECT c.* FROM jsonb_populate_recordset(NULL::once.consumer_position, memory -> 'consumer_position') AS c;
END $$;
$file$;
        EXECUTE $file$
-- once._move_open(slot, epoch): opens a slot that the other node has handed over with this epoch. Fences go on above those that were
-- deleted there. Does nothing if it is open with this epoch. Raises 55000 if its memory has not arrived here.
CREATE OR REPLACE FUNCTION once._move_open(slot integer, epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    fence_floor integer := (SELECT m.fence_floor FROM once.slot_move AS m WHERE m.slot = slot AND m.epoch = epoch);
BEGIN
    IF fence_floor IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('pgonce: slot %s was handed over to another node', slot),
            DETAIL = format('its memory of epoch %s has not arrived here', epoch), HINT = 'pgonce rehome --to that node.';
    ELSIF once._slot_state(slot) = epoch * 2 + 1 THEN
        RETURN;
    END IF;
    INSERT INTO once.keeper_step (step) VALUES ('purge') ON CONFLICT ON CONSTRAINT keeper_step_pkey DO NOTHING;
    PERFORM FROM once.keeper_step AS k WHERE k.step = 'purge' FOR UPDATE;       -- once._keep_purge, which raises the floor, too
    IF fence_floor >= once._first_fence() THEN
        PERFORM setval('once.fence_floor_seq', fence_floor);
    END IF;
    PERFORM once_job.open_slot(slot, epoch);
END $$;
$file$;
        EXECUTE $file$
-- once._move_out(slot): the delayed events, parked messages and consumers' positions of this slot, for once._move_in at the other node.
-- bytes: their size.
CREATE OR REPLACE FUNCTION once._move_out(slot integer, OUT memory jsonb, OUT bytes bigint) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET intervalstyle = 'postgres' SET bytea_output = hex SET extra_float_digits = 1 AS $$
#variable_conflict use_variable
BEGIN
    bytes := (SELECT coalesce(sum(pg_column_size(d.*)), 0) FROM once.delayed_event AS d WHERE once.slot_of(d.tenant) = slot)
           + (SELECT coalesce(sum(pg_column_size(p.*)), 0) FROM once.parked_message AS p WHERE once.slot_of(p.tenant) = slot);
    IF bytes <= 67108864 THEN
        memory := jsonb_build_object(
            'delayed_event', (SELECT coalesce(jsonb_agg(to_jsonb(d)), '[]') FROM once.delayed_event AS d
                               WHERE once.slot_of(d.tenant) = slot),
            'parked_message', (SELECT coalesce(jsonb_agg(to_jsonb(p) ORDER BY p.position), '[]') FROM once.parked_message AS p
                                WHERE once.slot_of(p.tenant) = slot),
            'consumer_position', (SELECT coalesce(jsonb_agg(to_jsonb(c)), '[]') FROM once.consumer_position AS c
                                   WHERE once.slot_of(c.tenant) = slot));
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._move_publish(slots): publishes the memory of these slots: what is inserted and updated, never what is deleted, since this node
-- deletes the memory once it has moved. The row filter is the body of once.slot_of, because a filter may call only built-in functions.
-- Raises 55000 if the server does not accept it. Events stay: this node's relays deliver them. Delayed events, parked messages and the
-- positions of consumers may also be deleted, so they move while the slot is closed (once._move_out). To whom a slot was handed over is a
-- fact of this node alone.
CREATE OR REPLACE FUNCTION once._move_publish(slots integer[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    hash text := (SELECT regexp_replace(p.prosrc, E'^\\s*SELECT\\s|;\\s*$', '', 'gi') FROM pg_proc AS p
                   WHERE p.oid = 'once.slot_of(text)'::regprocedure);
    memory text := format('(%s) = ANY (%L::pg_catalog.int4[])', hash, slots);
    moves text := (SELECT string_agg(format('(slot = %s AND epoch > %s)', n, once._slot_state(n) / 2), ' OR ') FROM unnest(slots) AS n);
BEGIN
    PERFORM once._execute_ddl(format('CREATE PUBLICATION pgonce_rehome FOR TABLE once.intent WHERE (%1$s), once.archive WHERE (%1$s),'
        ' once.decision WHERE (%1$s), once.slot_move (slot, epoch, fence_floor, closed_at) WHERE (%2$s)'
        ' WITH (publish = ''insert, update'', publish_via_partition_root = true)', memory, moves));
EXCEPTION WHEN syntax_error OR undefined_column OR undefined_function OR feature_not_supported OR undefined_parameter
               OR invalid_object_definition OR invalid_parameter_value OR datatype_mismatch THEN
    RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: the memory of slots cannot be published',
        DETAIL = SQLERRM, HINT = 'once.slot_of must be one SELECT of built-in functions, and its parameter be called tenant.';
END $$;
$file$;
        EXECUTE $file$
-- once._move_release(subscription): drops the replication slots by which the tables of this subscription were copied, if it is disabled.
-- Each waits for all transactions that are open on this server when it is made. If both nodes are on one server, the transaction that drops
-- the subscription is one of them, and would wait for the slot. Waits up to 10 seconds until they are unused; those that are not stay.
CREATE OR REPLACE FUNCTION once._move_release(subscription oid) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    names CONSTANT text := 'pg_' || subscription || '_sync_';
    until timestamptz := clock_timestamp() + interval '10 seconds';
BEGIN
    WHILE clock_timestamp() < until
          AND EXISTS (SELECT FROM pg_replication_slots AS s WHERE starts_with(s.slot_name, names) AND s.active) LOOP
        PERFORM pg_terminate_backend(s.active_pid) FROM pg_replication_slots AS s WHERE starts_with(s.slot_name, names) AND s.active;
        PERFORM pg_sleep(0.01);
    END LOOP;
    PERFORM pg_drop_replication_slot(s.slot_name) FROM pg_replication_slots AS s WHERE starts_with(s.slot_name, names) AND NOT s.active;
END $$;
$file$;
        EXECUTE $file$
-- once._move_replication_slot(): the name of the replication slot by which pgonce rehome reads this node: unique on the server, which may
-- have several nodes.
CREATE OR REPLACE FUNCTION once._move_replication_slot() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT 'pgonce_rehome_' || d.oid FROM pg_database AS d WHERE d.datname = current_database()
$$;
$file$;
        EXECUTE $file$
-- once._move_subscribe(conninfo, replication_slot): subscribes to what once._move_publish publishes at the other node, disabled at first:
-- once._move_begin starts it.
CREATE OR REPLACE FUNCTION once._move_subscribe(conninfo text, replication_slot text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._execute_ddl(format('CREATE SUBSCRIPTION pgonce_rehome CONNECTION %L PUBLICATION pgonce_rehome'
        ' WITH (create_slot = false, slot_name = %L, enabled = false)', conninfo, replication_slot));
END $$;
$file$;
        EXECUTE $file$
-- once._move_unpublish(): removes the publication and the replication slot of pgonce rehome, if they exist. Waits up to 10 seconds until
-- the subscriber has gone; then raises 55006.
CREATE OR REPLACE FUNCTION once._move_unpublish() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    until timestamptz := clock_timestamp() + interval '10 seconds';
BEGIN
    WHILE EXISTS (SELECT FROM pg_replication_slots AS s WHERE s.slot_name = once._move_replication_slot() AND s.active) LOOP
        IF clock_timestamp() > until THEN
            RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = 'pgonce: a subscriber still reads the slots that are moving',
                DETAIL = format('replication slot %s', once._move_replication_slot()),
                HINT = 'On the node that received them: ALTER SUBSCRIPTION pgonce_rehome DISABLE.';
        END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
    PERFORM pg_drop_replication_slot(s.slot_name) FROM pg_replication_slots AS s WHERE s.slot_name = once._move_replication_slot();
    IF EXISTS (SELECT FROM pg_publication AS p WHERE p.pubname = 'pgonce_rehome') THEN
        PERFORM once._execute_ddl('DROP PUBLICATION pgonce_rehome');
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._move_unsubscribe(): removes the subscription of pgonce rehome, if it exists. Works even if the other node is away.
CREATE OR REPLACE FUNCTION once._move_unsubscribe() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_subscription AS s JOIN pg_database AS d ON d.oid = s.subdbid
                WHERE s.subname = 'pgonce_rehome' AND d.datname = current_database()) THEN
        PERFORM once._execute_ddl('ALTER SUBSCRIPTION pgonce_rehome DISABLE');
        PERFORM once._execute_ddl('ALTER SUBSCRIPTION pgonce_rehome SET (slot_name = NONE)');
        PERFORM once._execute_ddl('DROP SUBSCRIPTION pgonce_rehome');
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._node(): the facts that all nodes of an installation share, for pgonce init --join: contract, settings with the salt, policies,
-- bindings, and slot_of. Only for the owner of the contract: with the salt one can guess the request of a fingerprint.
CREATE OR REPLACE FUNCTION once._node() RETURNS jsonb LANGUAGE sql
SET search_path = pg_catalog, pg_temp SET intervalstyle = 'postgres' SET bytea_output = hex AS $$
    SELECT jsonb_build_object(
        'divided', once._is_divided() AND once._is_guarded(),
        'contract', (SELECT jsonb_agg(jsonb_build_array(m.version, m.checksum) ORDER BY m.version) FROM once.migration AS m),
        'setting', (SELECT to_jsonb(s) FROM once.setting AS s),
        'scopes', (SELECT coalesce(jsonb_agg(to_jsonb(s) ORDER BY s.scope), '[]') FROM once.scope AS s),
        'bindings', (SELECT coalesce(jsonb_agg(to_jsonb(b) ORDER BY b.role_name, b.tenant), '[]') FROM once.binding AS b),
        'slot_of', pg_get_functiondef('once.slot_of(text)'::regprocedure))
$$;
$file$;
        EXECUTE $file$
-- once._refuse_memory(): raises 55000 if this database remembers an intent, an event or a message: then it cannot join other nodes.
CREATE OR REPLACE FUNCTION once._refuse_memory() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    found text;
BEGIN
    SELECT string_agg(r.name, ', ') INTO found
      FROM (SELECT 'intents' WHERE EXISTS (SELECT FROM once.intent)
            UNION ALL SELECT 'archived intents' WHERE EXISTS (SELECT FROM once.archive)
            UNION ALL SELECT 'events' WHERE EXISTS (SELECT FROM once.outbox) OR EXISTS (SELECT FROM once.delayed_event)
            UNION ALL SELECT 'parked messages' WHERE EXISTS (SELECT FROM once.parked_message)) AS r (name);
    IF found IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: a node that joins others must remember nothing',
            DETAIL = format('this database has %s', found), HINT = 'Join with a new database.';
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._refuse_slot(tenant, scope, key): raises P4097 unless this node serves the tenant (NULL: all tenants).
-- Names the slot and its epoch here, so that a client knows whether what it has learnt from other nodes is newer.
CREATE OR REPLACE FUNCTION once._refuse_slot(tenant text, scope text, key text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    slot integer := once.slot_of(tenant);
BEGIN
    IF tenant IS NOT NULL AND once._serves(tenant) IS NOT TRUE THEN
        PERFORM once._refuse('P4097', tenant, scope, key, format('slot=%s epoch=%s', slot, once._slot_state(slot) / 2));
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._serves(tenant): whether this node serves the tenant. Every call that may write asks it. As installed, it is always true;
-- once.divide replaces it by a function that looks at the tenant's slot (once._guard).
--
-- Why it is written so: it is inlined, so an undivided installation pays nothing, and PostgreSQL makes a plan that contains it anew when
-- it is replaced (see once._today). VOLATILE, because its replacement is.
CREATE OR REPLACE FUNCTION once._serves(tenant text) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$;
$file$;
        EXECUTE $file$
-- once._slot_state(slot): twice the slot's epoch, plus one if it is open here; NULL if the node is not divided or has no such slot. It is
-- the present value, independent of the snapshot.
CREATE OR REPLACE FUNCTION once._slot_state(slot integer) RETURNS bigint LANGUAGE sql AS $$
    SELECT CASE WHEN slot BETWEEN 0 AND 63 THEN pg_sequence_last_value(to_regclass('once.slot_' || slot::text || '_seq')) END
$$;
$file$;
        EXECUTE $file$
-- once._standbys_behind(): the connected standbys of this server that have not flushed what is written now, within this time; NULL: none.
-- If one of them is promoted, it does not know that a slot has closed. Needs pg_read_all_stats.
CREATE OR REPLACE FUNCTION once._standbys_behind(wait interval) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    until timestamptz := clock_timestamp() + wait;
    written pg_lsn := pg_current_wal_insert_lsn();
    names text;
BEGIN
    LOOP
        PERFORM pg_stat_clear_snapshot();
        SELECT string_agg(DISTINCT r.application_name, ', ') INTO names FROM pg_stat_replication AS r
         WHERE r.state IN ('streaming', 'catchup') AND (r.flush_lsn >= written) IS NOT TRUE AND r.application_name <> 'pg_receivewal'
           AND NOT EXISTS (SELECT FROM pg_replication_slots AS s WHERE s.active_pid = r.pid AND s.slot_type = 'logical');
        IF names IS NULL OR clock_timestamp() > until THEN
            RETURN names;
        END IF;
        PERFORM pg_sleep(0.001);
    END LOOP;
END $$;
$file$;
        EXECUTE $file$
-- once._undivide(finally): the two parts of once.undivide. The first removes the guard; the second drops the sequences and the record of
-- moves, when no transaction reads them any more. In between no slot can close: once_job.close_slot refuses a node without the guard.
CREATE OR REPLACE FUNCTION once._undivide(finally boolean) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    closed integer[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('pgonce slots', 20778));
    SELECT array_agg(s.slot ORDER BY s.slot) INTO closed FROM once.slots() AS s WHERE s.open IS NOT TRUE;
    IF closed IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'pgonce: this node does not serve every tenant',
            DETAIL = format('closed slots: %s', array_to_string(closed, ' ', '?')), HINT = 'Move them here first: pgonce rehome.';
    ELSIF NOT finally THEN
        PERFORM once._guard(false);
    ELSIF once._is_divided() AND NOT once._is_guarded() THEN
        FOR slot IN 0 .. 63 LOOP
            PERFORM once._execute_ddl(format('DROP SEQUENCE once.slot_%s_seq', slot));
        END LOOP;
        DELETE FROM once.slot_move;         -- its epochs begin anew if the node is divided again
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._wait_for_older(): waits for the end of all transactions that are now open in this database, prepared ones included. A transaction
-- that begins later sees everything that was committed before. A NOTICE names the open ones once a second.
CREATE OR REPLACE FUNCTION once._wait_for_older() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    transactions text[] := ARRAY(SELECT l.virtualtransaction FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
                          WHERE l.locktype = 'virtualxid' AND l.granted AND l.pid <> pg_backend_pid()
                            AND coalesce(a.datname = current_database(), true)
                            AND coalesce(a.backend_type, '') NOT IN ('autovacuum worker', 'walsender'));
    gids text[] := ARRAY(SELECT x.gid FROM pg_prepared_xacts AS x WHERE x.database = current_database());
    told timestamptz := clock_timestamp();
    pids integer[];
BEGIN
    LOOP
        pids := ARRAY(SELECT DISTINCT l.pid FROM pg_locks AS l
                       WHERE l.locktype = 'virtualxid' AND l.granted AND l.pid <> pg_backend_pid()
                         AND l.virtualtransaction = ANY (transactions));
        gids := ARRAY(SELECT x.gid FROM pg_prepared_xacts AS x WHERE x.database = current_database() AND x.gid = ANY (gids));
        EXIT WHEN cardinality(pids) = 0 AND cardinality(gids) = 0;
        IF clock_timestamp() > told + interval '1 second' THEN
            told := clock_timestamp();
            RAISE NOTICE 'pgonce: waiting for older transactions: backends %, prepared %', pids, gids;
        END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$;
$file$;
        EXECUTE $file$
-- once.any_tenant(): does nothing. The right to EXECUTE it is the right to name any tenant; a role without it may name only the tenants
-- that once.bind gave it. A privilege, because checking one needs no table look-up.
CREATE OR REPLACE FUNCTION once.any_tenant() RETURNS void LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT $$;
$file$;
        EXECUTE $file$
-- once.bind(role_name, tenant): lets a role name this tenant; once.unbind takes it back. For roles that are granted once_tenant. A role
-- that may name any tenant (once_app, a superuser) cannot be bound: the call raises 42501, because the binding would have no effect.
-- Raises P4003 for a tenant that is too long or contains a control character.
CREATE OR REPLACE FUNCTION once.bind(role_name text, tenant text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF has_function_privilege(role_name, 'once.any_tenant()'::regprocedure, 'execute') THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = format('pgonce: role %I may name any tenant, so it cannot be bound', role_name),
            HINT = format('REVOKE once_app FROM %I; GRANT once_tenant TO %I;', role_name, role_name);
    END IF;
    IF tenant IS NULL OR length(tenant) > 255 THEN
        PERFORM once._refuse('P4003', tenant, NULL, NULL, 'a tenant is 0 to 255 characters');
    ELSIF tenant COLLATE "C" ~ E'[\\x01-\\x1f\\x7f]' THEN
        PERFORM once._refuse('P4003', tenant, NULL, NULL, 'the tenant contains a control character');
    END IF;
    INSERT INTO once.binding AS b VALUES (role_name, tenant) ON CONFLICT DO NOTHING;
END $$;
CREATE OR REPLACE FUNCTION once.unbind(role_name text, tenant text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM once.binding AS b WHERE b.role_name = unbind.role_name COLLATE "C"
        AND b.tenant = unbind.tenant COLLATE "C";
    RETURN FOUND;
END $$;
$file$;
        EXECUTE $file$
-- once.contract_version(): the version of the contract in this database: the number of its last migration. Clients compare it with
-- theirs.
CREATE OR REPLACE FUNCTION once.contract_version() RETURNS integer LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT max(m.version) FROM once.migration AS m
$$;
$file$;
        EXECUTE $file$
-- once.errors(): every SQLSTATE that the contract raises: its name, sentence, hint, and whether the same call may be retried unchanged.
-- Clients branch on the code and never on text.
CREATE OR REPLACE FUNCTION once.errors(OUT code text, OUT name text, OUT retry boolean, OUT message text, OUT hint text)
RETURNS SETOF record LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    VALUES
    -- spec: errors
    ('P4000', 'scope_required', false, 'a scope of 1 to 255 characters is required',
     'Name the kind of operation, for example ''orders''.'),
    ('P4001', 'key_malformed', false, 'the key is missing or malformed',
     'Send 1 to 255 printable ASCII characters; a UUIDv7 must not come from the future (a prefix makes it an ordinary key).'),
    ('P4002', 'mismatch', false, 'the key was first used with another request',
     'Use a key for one request only. The first request and its answer are untouched.'),
    ('P4003', 'refused', false, 'the fingerprint or the tenant is refused',
     'Pass once.fingerprint(...) of the request, and a tenant that this role may use (once.bind).'),
    ('P4010', 'completion_refused', false, 'the completion is refused',
     'The attempt no longer holds the intent: discard its result. once.peek returns what is stored.'),
    ('P4011', 'failure_refused', false, 'the failure is refused',
     'The attempt no longer holds the intent: discard its result. once.peek returns what is stored.'),
    ('P4012', 'not_started', false, 'this transaction has not started the intent',
     'once.start, the effect and once.finish belong into one transaction, on one connection, with the same tenant, scope and key. '
     'Autocommit, or a pool that takes another connection for each query, keeps them apart; ROLLBACK TO a savepoint, or an EXCEPTION '
     'block that has caught an error, undoes the start. Where start said replay_success there is nothing to finish; what once.claim '
     'began, once.complete ends.'),
    ('P4013', 'unfinished', false, 'this transaction has started an intent and not finished it',
     'Nothing was committed: the effect would not be recorded, and a retry would repeat it. Call once.finish before COMMIT, if once.start'
     ' said proceed; state => ''failed_retryable'' if there was no effect. In autocommit each statement commits separately: begin a '
     'transaction first.'),
    ('P4014', 'already_started', false, 'this transaction has started this intent already',
     'The first start lets the effect run once: go on to once.finish. Functions called within the effect must not start the intent again;'
     ' another effect is another intent, with another scope or key.'),
    ('P4015', 'another_fingerprint', false, 'this transaction has started the intent with another fingerprint',
     'Give once.finish the fingerprint that once.start took: compute it once. Else a retry of the request that ran would be refused.'),
    ('P4020', 'already_finished', false, 'the intent is finished and has an outcome',
     'Read the outcome with once.peek or once.start.'),
    ('P4029', 'active', true, 'another attempt of this intent is running',
     'Try again after a short delay, with the same key.'),
    ('P4030', 'final_failure', false, 'the intent failed for good',
     'once.peek returns the stored outcome. A new intent needs a new key.'),
    ('P4031', 'in_doubt', false, 'the outcome of this intent is unknown',
     'Find out whether the effect happened, then decide with once.resolve. Until then no attempt runs, except a claim with takeover => '
     'true after an attempt that fell silent.'),
    ('P4041', 'expired', false, 'the key is older than what is remembered',
     'This attempt was not run; an earlier one may have been: look for the effect itself. A UUIDv7 that is used long after it was made '
     'needs a prefix, as in ''refund:'' || id; a message id is opaque to once.receive unless it is called with birthdays.'),
    ('P4050', 'message_mismatch', false, 'the message id was first used with another payload',
     'Message ids must name one message. The first message''s effect is untouched.'),
    ('P4051', 'event_mismatch', false, 'this intent has already emitted this event with another payload',
     'One event of a type per intent: give the second one another event_type.'),
    ('P4060', 'too_large', false, 'the outcome or the event is too large',
     'Store a reference to it. once.set_scope raises the limits of a body (response_bytes_max) and a payload (event_bytes_max).'),
    ('P4070', 'resolution_refused', false, 'the decision is refused',
     'Only a stale, in-doubt or retryable intent can be decided, and only with a reason.'),
    ('P4080', 'relay_foreign', false, 'the relay''s progress means nothing in this database',
     'It was written in another database, or its row was rewritten. After pg_repack of once.relay: once.relay_adopt(relay, reason, '
     'xids_continue => true). After a restore or a copy: docs/how/failover.md.'),
    ('P4097', 'slot_closed', true, 'this node does not serve the tenant now',
     'Nothing was done. Send the call to the node where the tenant''s slot is open (once.slots() on each node), or try again: the slot '
     'may be moving.'),
    ('P4098', 'partition_missing', true, 'the partition for this day is missing',
     'Try again: another transaction is creating it, or the next call does. If it stays missing, run SELECT once.add_days() as the '
     'contract''s owner; pgonce doctor gives the reason.'),
    ('P4099', 'unknown_state', false, 'the intent is in a state that this function does not know',
     'The contract and its callers may be of different versions: run pgonce doctor.')
    -- end of spec
$$;
$file$;
        EXECUTE $file$
-- once._authorise(tenant): raises P4003 unless the caller may name this tenant, then P4097 unless this node serves it. NULL: all
-- tenants.
CREATE OR REPLACE FUNCTION once._authorise(tenant text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._may_name(tenant);
    PERFORM once._refuse_slot(tenant, NULL, NULL);
END $$;
$file$;
        EXECUTE $file$
-- once._check(tenant, scope, key, bucket, fingerprint): raises if a call's arguments are invalid or the caller has no right to the
-- tenant. The hot functions call it only after their one combined check has failed.
CREATE OR REPLACE FUNCTION once._check(tenant text, scope text, key text, bucket integer, fingerprint bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._check_tenant(tenant, scope, key);
    PERFORM once._refuse_slot(tenant, scope, key);
    IF scope IS NULL OR length(scope) NOT BETWEEN 1 AND 255 THEN
        PERFORM once._refuse('P4000', tenant, scope, key);
    END IF;
    IF bucket IS NULL OR bucket < 0 THEN
        PERFORM once._refuse('P4001', tenant, scope, key, CASE
            WHEN key IS NULL THEN 'the key is NULL'
            WHEN length(key) = 0 THEN 'the key is empty'
            WHEN length(key) > 255 THEN format('the key has %s characters', length(key))
            ELSE 'the key holds a character outside printable ASCII' END);
    END IF;
    IF fingerprint IS NULL OR octet_length(fingerprint) NOT BETWEEN 16 AND 64 THEN
        PERFORM once._refuse('P4003', tenant, scope, key, NULL, 'the fingerprint is missing or of another length',
            'Pass once.fingerprint(...) of the request: a fingerprint is 16 to 64 bytes.');
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._check_and_lock(tenant, scope, key, fingerprint, holding): the entry check of the hot functions. Raises if a call's arguments are
-- invalid or the caller has no right to the tenant; returns the key's bucket. holding: also takes the intent's advisory lock, without
-- waiting, and returns NULL if another transaction has it.
--
-- Why it is written so: PL/pgSQL prepares an expression when a transaction first reaches it, which costs far more than to evaluate it,
-- and each function or operator less in an expression saves nearly 2,000 instructions. So start, finish and emit have their own check of
-- one expression for the usual arguments, and call this function for the others: a call from function to function costs 8,500. The quick
-- check accepts nothing invalid; for what it cannot judge (a bound role, a long name) it calls once._check.
CREATE OR REPLACE FUNCTION once._check_and_lock(tenant text, scope text, key text, fingerprint bytea, holding boolean) RETURNS integer
LANGUAGE plpgsql STABLE AS $$
DECLARE
    bucket integer;
BEGIN
    -- Only the part of once._bucket that this key needs. A key of today is found by comparison; for others the day is computed.
    IF key COLLATE "C" LIKE '________-____-7___-____-____________' THEN
        bucket := CASE WHEN once._is_dated(key) THEN once._match_day(key, once._today()) END;
        IF bucket IS NULL THEN
            bucket := once._bucket(key);
        END IF;
    ELSE
        bucket := once._bucket_of_other(key);
        IF bucket < 0 THEN
            PERFORM once._check(tenant, scope, key, bucket, fingerprint);
        END IF;
    END IF;
    IF (once._quick_check(tenant, scope, fingerprint) AND once._is_trusted(tenant)) IS NOT TRUE THEN
        PERFORM once._check(tenant, scope, key, bucket, fingerprint);
    END IF;
    IF holding THEN
        IF NOT pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key)) THEN
            RETURN NULL;
        END IF;
    END IF;
    RETURN bucket;
END $$;
$file$;
        EXECUTE $file$
-- once._check_batch(tenant, sizes): raises if a batch as a whole is invalid: the tenant, arrays of unequal length, too many elements. It
-- does not check elements: each gets its own verdict. A claim holds one lock per element until its transaction ends.
CREATE OR REPLACE FUNCTION once._check_batch(tenant text, VARIADIC sizes integer[]) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    PERFORM once._check_tenant(tenant, NULL, NULL);
    PERFORM once._refuse_slot(tenant, NULL, NULL);
    RETURN once._check_sizes(VARIADIC sizes);
END $$;
$file$;
        EXECUTE $file$
-- once._check_sizes(sizes): the size of a batch; raises 22023 if its arrays differ in length, have an unusual shape (-1: once._length), or
-- have more than 10,000 elements.
CREATE OR REPLACE FUNCTION once._check_sizes(VARIADIC sizes integer[]) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    IF -1 = ANY (sizes) THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: an array of a batch has an unusual shape',
            DETAIL = 'one dimension, numbered from 1', HINT = 'Pass ARRAY[...], or ARRAY(SELECT unnest(...)).';
    END IF;
    IF (sizes[1] = ALL (sizes)) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: the arrays of a batch differ in length',
            DETAIL = array_to_string(sizes, ' ', 'NULL'),
                HINT = 'Pass one element per intent in every array; use NULL elements for absent values.';
    END IF;
    IF coalesce(sizes[1], 0) > 10000 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: a batch has at most 10000 elements',
            DETAIL = format('this one has %s', sizes[1]),
                HINT = 'Split it; 64 to 256 elements already cost next to nothing each.';
    END IF;
    RETURN coalesce(sizes[1], 0);
END $$;
$file$;
        EXECUTE $file$
-- once._check_tenant(tenant, scope, key): raises P4003 for a tenant that is missing or too long, or that the caller may not name. Says
-- nothing of whether this node serves it. scope, key: for the error alone.
CREATE OR REPLACE FUNCTION once._check_tenant(tenant text, scope text, key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF tenant IS NULL OR length(tenant) > 255 OR NOT once._find_native() THEN
        PERFORM once._refuse('P4003', tenant, scope, key, NULL, 'the tenant is missing or too long',
            'A tenant is 0 to 255 characters; use '''' if there is only one.');
    END IF;
    PERFORM once._may_name(tenant);
END $$;
$file$;
        EXECUTE $file$
-- once._close(made): revokes all privileges on a table, a view or a sequence from everyone but its owner. Call it for each new one:
-- default privileges (ALTER DEFAULT PRIVILEGES) may have granted it to strangers, and to roles of the contract.
CREATE OR REPLACE FUNCTION once._close(made regclass) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    grantee text;
BEGIN
    FOR grantee IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE format('%I', pg_get_userbyid(a.grantee)) END
          FROM pg_class AS c
         CROSS JOIN LATERAL (SELECT c.relacl AS acl UNION ALL SELECT t.attacl FROM pg_attribute AS t WHERE t.attrelid = c.oid) AS o
         CROSS JOIN LATERAL aclexplode(o.acl) AS a
         WHERE c.oid = made AND a.grantee <> c.relowner
    LOOP
        PERFORM once._execute_ddl(format('REVOKE ALL ON %s FROM %s CASCADE', made, grantee));
    END LOOP;
END $$;
$file$;
        EXECUTE $file$
-- once._execute_ddl(statement): executes DDL on this node only. Citus would repeat it on its other nodes, which have contracts of their
-- own, or refuse it on a worker. The setting has its former value afterwards; after an error, the rollback restores it.
CREATE OR REPLACE FUNCTION once._execute_ddl(statement text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    propagated text := current_setting('citus.enable_ddl_propagation', true);      -- NULL: no Citus
BEGIN
    IF propagated IS NOT NULL THEN
        PERFORM set_config('citus.enable_ddl_propagation', 'off', true);
    END IF;
    EXECUTE statement;
    IF propagated IS NOT NULL THEN
        PERFORM set_config('citus.enable_ddl_propagation', propagated, true);
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._find_native(): true. Loads pgonce_native into this session if it is installed in this database: statements planned from now on
-- use its functions instead of the hot ones. A missing or broken library counts as not installed. Anybody may own a schema of that name,
-- but only a superuser a function in C.
--
-- Why it is written so: it is not really IMMUTABLE, but so the planner evaluates it when it first plans an expression that contains it,
-- normally once a session, and then removes the constant true: a call pays nothing for it. After DISCARD it also runs only once a
-- session: the library or this function sets once.native.
CREATE OR REPLACE FUNCTION once._find_native() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    load regprocedure;
BEGIN
    IF current_setting('once.native', true) IS NULL THEN
        load := to_regprocedure('once_native.load()');
        IF load IS NOT NULL AND EXISTS (SELECT FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
                                          WHERE p.oid = load AND l.lanname = 'c') THEN
            BEGIN
                PERFORM once_native.load();
            EXCEPTION WHEN OTHERS THEN
                NULL;       -- the SQL functions decide, as before
            END;
        END IF;
        IF current_setting('once.native', true) IS NULL THEN
            PERFORM set_config('once.native', 'none', false);
        END IF;
    END IF;
    RETURN true;
END $$;
$file$;
        EXECUTE $file$
-- once._is_trusted(tenant): whether the caller certainly may name any tenant (a login that has SET no role), and this node serves this
-- one. once._authorise decides about the others. Inlined; VOLATILE, as once._serves is.
CREATE OR REPLACE FUNCTION once._is_trusted(tenant text) RETURNS boolean LANGUAGE sql AS $$
    SELECT once._serves(tenant) AND current_setting('role') = 'none' AND once._find_native()     -- a constant
       AND has_function_privilege(session_user, 'once.any_tenant()'::regprocedure, 'execute')
$$;
$file$;
        EXECUTE $file$
-- once._may_name(tenant): raises P4003 unless the caller may name this tenant (NULL: all). The caller is the role that the session has
-- SET, otherwise the one that logged in (current_user is the owner here: SECURITY DEFINER). Raises before it reads anything, so a refused
-- caller cannot learn whether a key exists.
CREATE OR REPLACE FUNCTION once._may_name(tenant text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    caller text := coalesce(nullif(current_setting('role'), 'none'), session_user::text);
BEGIN
    IF has_function_privilege(caller, 'once.any_tenant()'::regprocedure, 'execute') THEN
        RETURN;
    END IF;
    PERFORM FROM once.binding AS b WHERE b.role_name = caller COLLATE "C" AND b.tenant = _may_name.tenant COLLATE "C";
    IF NOT FOUND THEN
        PERFORM once._refuse('P4003', tenant, NULL, NULL, format('role %I is not bound to this tenant', caller),
            'the role is not bound to the tenant', 'An administrator binds a role to a tenant with once.bind(role, tenant).');
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._quick_check(tenant, scope, fingerprint): the quick check of a call's arguments, except its key. It accepts nothing invalid; what
-- it cannot judge (a long name) goes to once._check. Inlined.
CREATE OR REPLACE FUNCTION once._quick_check(tenant text, scope text, fingerprint bytea) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT scope <> '' AND octet_length(tenant || scope) <= 255
       AND octet_length(fingerprint) IN (16, 20, 28, 32, 48, 64)       -- the lengths of the usual hashes
$$;
$file$;
        EXECUTE $file$
-- once._quick_check_batch(tenant, size, dims...): once._quick_check for a batch: arrays of one length (array_dims of each), an ordinary
-- tenant that this node serves, a caller that may name any tenant. It accepts nothing invalid; what it cannot judge (a bound role, an
-- empty batch, anything that must be refused) goes to once._check_batch. Inlined; VOLATILE, as once._serves is; each function less saves
-- 2,000 instructions.
CREATE OR REPLACE FUNCTION once._quick_check_batch(tenant text, size integer, VARIADIC dims text[]) RETURNS boolean LANGUAGE sql AS $$
    SELECT concat('[1:', size, ']') = ALL (dims) AND size <= 10000 AND octet_length(tenant) <= 255 AND once._serves(tenant)
       AND current_setting('role') = 'none' AND once._find_native()
       AND has_function_privilege(session_user, 'once.any_tenant()'::regprocedure, 'execute')
$$;
$file$;
        EXECUTE $file$
-- once._reason(reason): raises 22023 if an operator's decision comes without a reason.
CREATE OR REPLACE FUNCTION once._reason(reason text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (reason ~ '[^[:space:]]') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: the reason is missing',
            HINT = 'It is kept in once.parked_decision, with the operator and the time.';
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._refuse(code, tenant, scope, key, detail, cause, hint): raises one of once.errors(), naming the intent. cause, hint: if one code
-- has several causes, the end of the sentence and its own hint. A separate function, so that the functions on the hot path contain none
-- of this.
CREATE OR REPLACE FUNCTION once._refuse(code text, tenant text, scope text, key text, detail text DEFAULT NULL, cause text DEFAULT NULL,
    hint text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    known record;
    -- At most the beginning of hostile input, and nothing that could break a log line.
    named text := format('tenant=%s scope=%s key=%s', quote_nullable(left(tenant, 80)), quote_nullable(left(scope, 80)),
                         quote_nullable(left(key, 80)));
BEGIN
    named := regexp_replace(named, '[[:cntrl:]]', '?', 'g');
    SELECT * INTO STRICT known FROM once.errors() AS e WHERE e.code = _refuse.code COLLATE "C";
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = concat_ws(': ', 'pgonce', known.message, cause),
        DETAIL = named || coalesce('; ' || detail, ''), HINT = coalesce(hint, known.hint);
END $$;
$file$;
        EXECUTE $file$
-- once._refuse_outdated(tenant, scope, key, bucket): called for a row of a closed day without an answer, before its key is reported as
-- expired: raises 40001 if the transaction's snapshot is older than the row. A report or a decision may have been stored since. Locks the
-- row until the transaction ends; a read-only transaction cannot, and gets what its snapshot shows.
CREATE OR REPLACE FUNCTION once._refuse_outdated(tenant text, scope text, key text, bucket integer) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off AS $$
#variable_conflict use_variable
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable')
       OR current_setting('transaction_read_only') = 'on' THEN
        RETURN;
    END IF;
    PERFORM FROM once.intent AS i
      WHERE i.tenant = tenant COLLATE "C" AND i.scope = scope COLLATE "C" AND i.key = key COLLATE "C"
        AND i.bucket = bucket
        FOR SHARE SKIP LOCKED;                          -- raises 40001 if the row has changed
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'pgonce: the intent is being changed, or moved, right now',
            DETAIL = format('tenant=%L scope=%L key=%L', tenant, scope, key), HINT = 'Retry the transaction.';
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- once._refuse_read_only(tenant, scope, key): raises 25006 if a claim would have to be stored in a read-only transaction.
CREATE OR REPLACE FUNCTION once._refuse_read_only(tenant text, scope text, key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_read_only') = 'on' THEN
        RAISE EXCEPTION USING ERRCODE = '25006', MESSAGE = 'pgonce: an intent cannot be claimed in a read-only transaction',
            DETAIL = format('tenant=%L scope=%L key=%L', tenant, scope, key),
            HINT = 'Claim on the primary, in a transaction that may write. A read-only transaction gets stored outcomes only.';
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- After an upgrade has replaced the functions: a divided node keeps its guard and its slot_of, and an anchored one its anchor.
DO $$
BEGIN
    IF once._is_divided() THEN
        EXECUTE pg_catalog.current_setting('once.slot_of');
        PERFORM once._guard(true);
    END IF;
    IF pg_catalog.current_setting('once.anchor') <> '' THEN
        EXECUTE pg_catalog.current_setting('once.anchor');
    END IF;
END $$;
$file$;
        EXECUTE $file$
-- Views have no state: they are created again with the functions, so their columns may change.
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN SELECT c.relname FROM pg_catalog.pg_class AS c
                WHERE c.relnamespace = 'once'::regnamespace AND c.relkind = 'v' LOOP
        EXECUTE format('DROP VIEW once.%I', old.relname);
    END LOOP;
END $$;
$file$;
        EXECUTE $file$
-- once.in_doubt: intents with an unknown outcome, including those of retired days; each waits for once.resolve. since: since when. Reads
-- the whole table and the archive.
CREATE VIEW once.in_doubt (tenant, scope, key, fence, attempts, owner, created_at, lease_until, since, error_code, error_message,
    traceparent, archived) AS
SELECT i.tenant::text, i.scope::text, i.key::text, i.fence, i.attempts, i.owner::text, i.created_at, i.lease_until,
       i.updated_at, i.error_code::text, i.error_message::text, i.traceparent::text, false
  FROM once.intent AS i WHERE i.state = 'in_doubt'
 UNION ALL
SELECT a.tenant::text, a.scope::text, a.key::text, a.fence, a.attempts, a.owner::text, a.created_at, a.lease_until,
       a.updated_at, a.error_code::text, a.error_message::text, a.traceparent::text, true
  FROM once.archive AS a WHERE a.state = 'in_doubt';
$file$;
        EXECUTE $file$
-- once.outbox_pending: each relay's backlog, by topic and state (see once.outbox_summary), and the age of its oldest event. No row for a
-- relay without a backlog. Counts, and so reads, the whole backlog.
CREATE VIEW once.outbox_pending (relay, topic, state, events, oldest, lag) AS
SELECT s.relay, s.topic, s.state, s.events, s.oldest, clock_timestamp() - s.oldest
  FROM once.outbox_summary() AS s
 WHERE s.events > 0;
$file$;
        EXECUTE $file$
-- once.retried: intents that needed more than one attempt, or that an operator has decided. Reads the whole table.
CREATE VIEW once.retried (tenant, scope, key, state, fence, attempts, owner, created_at, updated_at, lease_until, error_code, error_message,
    traceparent) AS
SELECT i.tenant::text, i.scope::text, i.key::text, i.state::text, i.fence, i.attempts, i.owner::text, i.created_at, i.updated_at,
       i.lease_until, i.error_code::text, i.error_message::text, i.traceparent::text
  FROM once.intent AS i
 WHERE i.attempts > 1
    OR EXISTS (SELECT FROM once.decision AS d
                WHERE d.tenant = i.tenant AND d.scope = i.scope AND d.key = i.key AND d.kind = 'resolve' AND d.decided_at >= i.created_at);
$file$;
        EXECUTE $file$
-- once.scope_stats: a row per scope that has a policy or intents: its policy, and the number of its intents in each state, including
-- those of retired days. stale: processing, and their lease has passed; oldest_stale: when the first one's did. '' is the default policy.
-- Reads the whole table and the archive.
CREATE VIEW once.scope_stats (scope, lease, retention, max_attempts, on_stale, processing, stale, succeeded, failed_retryable,
    failed_final, in_doubt, oldest_stale) AS
SELECT n.scope::text, p.lease, p.retention, p.max_attempts, p.on_stale::text, n.processing, n.stale, n.succeeded, n.failed_retryable,
       n.failed_final, n.in_doubt, n.oldest_stale
  FROM (SELECT i.scope, count(*) FILTER (WHERE i.state = 'processing') AS processing,
               count(*) FILTER (WHERE i.state = 'processing' AND (i.lease_until <= clock_timestamp()
                   OR i.lease_until > clock_timestamp() + interval '8 days')) AS stale,
               count(*) FILTER (WHERE i.state = 'succeeded') AS succeeded,
               count(*) FILTER (WHERE i.state = 'failed_retryable') AS failed_retryable,
               count(*) FILTER (WHERE i.state = 'failed_final') AS failed_final,
               count(*) FILTER (WHERE i.state = 'in_doubt') AS in_doubt,
               min(i.lease_until) FILTER (WHERE i.state = 'processing' AND i.lease_until <= clock_timestamp()) AS oldest_stale
          FROM (SELECT o.scope, o.state, o.lease_until FROM once.intent AS o
                 UNION ALL SELECT a.scope, a.state, a.lease_until FROM once.archive AS a
                 UNION ALL SELECT s.scope, NULL::once.state, NULL::timestamptz FROM once.scope AS s) AS i
         GROUP BY i.scope) AS n
 CROSS JOIN LATERAL (SELECT s.* FROM once.scope AS s WHERE s.scope IN (n.scope, '') ORDER BY s.scope DESC LIMIT 1) AS p;
$file$;
        EXECUTE $file$
-- once.stuck: attempts that fell silent: their lease has passed and no other attempt has taken over. on_stale: what the scope's policy
-- does when the next attempt comes; with 'in_doubt', or when the attempts are used up, the intent waits for once.resolve. So does one
-- whose lease ends in more than 8 days, longer than any lease is: it was taken while the clock was ahead, and stale_for is 0. Reads the
-- whole table.
--
CREATE VIEW once.stuck (tenant, scope, key, fence, attempts, owner, created_at, updated_at, lease_until, stale_for, on_stale, max_attempts,
    traceparent) AS
SELECT i.tenant::text, i.scope::text, i.key::text, i.fence, i.attempts, i.owner::text, i.created_at, i.updated_at, i.lease_until,
       greatest(clock_timestamp() - i.lease_until, '0'), p.on_stale::text, p.max_attempts, i.traceparent::text
  FROM once.intent AS i
 CROSS JOIN LATERAL (SELECT s.on_stale, s.max_attempts FROM once.scope AS s WHERE s.scope IN (i.scope, '')
                      ORDER BY s.scope DESC LIMIT 1) AS p
 WHERE i.state = 'processing' AND (i.lease_until <= clock_timestamp() OR i.lease_until > clock_timestamp() + interval '8 days');
$file$;
        EXECUTE $file$
-- Who may do what. Only the owner accesses tables, except that once_capture reads once.outbox; each role below may EXECUTE the functions
-- listed for it, in once and in once_job, whose schema it may use if it has a function there; once_reader and once_admin may read the
-- views, which show all tenants. The roles are created if the installer may create roles; if not, a notice names them, and pgonce doctor
-- shows the commands for an administrator. The script ends without its own role: it runs again at every upgrade, and revokes what other
-- roles were granted meanwhile.

-- First revoke from everyone but the owner: PUBLIC may execute any new function, and default privileges (ALTER DEFAULT PRIVILEGES) may
-- have opened a new object to anyone.
REVOKE ALL ON ALL ROUTINES IN SCHEMA once, once_job FROM PUBLIC;
DO $$
DECLARE
    opened record;
BEGIN
    PERFORM once._close(c.oid::regclass) FROM pg_catalog.pg_class AS c
      WHERE c.relnamespace = 'once'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S');
    FOR opened IN
        SELECT DISTINCT o.name, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE format('%I', pg_get_userbyid(a.grantee)) END AS grantee
          FROM (SELECT format('ROUTINE %s', p.oid::regprocedure) AS name, p.proowner AS owner, p.proacl AS acl
                  FROM pg_catalog.pg_proc AS p WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace)
                 UNION ALL
                SELECT format('SCHEMA %I', n.nspname), n.nspowner, n.nspacl FROM pg_catalog.pg_namespace AS n
                 WHERE n.nspname IN ('once', 'once_job')) AS o
         CROSS JOIN LATERAL aclexplode(o.acl) AS a
         WHERE a.grantee <> o.owner
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s CASCADE', opened.name, opened.grantee);
    END LOOP;
END $$;

DO $$
DECLARE
    -- role, purpose, its functions. once_tenant is once_app for the roles of one tenant: see once.bind.
    app text[] := ARRAY['start', 'try_start', 'finish', 'finish_new', 'claim', 'claim_many', 'complete', 'complete_many',
    'fail',
    'fail_many', 'renew', 'renew_many',
                        'release', 'peek', 'peek_many', 'salt', 'fingerprint', 'request_fingerprint', 'key_of_header',
                            'receive', 'emit', 'emit_bytes', 'emit_later', 'cancel_event', 'try_lock', 'lock',
                            'errors', 'contract_version', 'count_cached', 'slot_of', 'slots',
                            'receive_many', 'consumer_report', 'consumer_ids'];
    shown text[] := ARRAY['slot_of', 'slots', 'counts', 'attempt_counts', 'metrics', 'find', 'top', 'outbox_summary', 'outbox_untaken',
        'outbox_delayed', 'capture_list', 'parked_summary', 'parked_list', 'find_part', 'scope_list', 'consumer_list', 'latency',
        'readable', 'doubts_part', 'ask', 'outline', 'parked_outline'];
    parked text[] := ARRAY['message_park', 'message_due', 'message_applied', 'message_look', 'message_count', 'consumer_remembers'];
    keeping text[] := ARRAY['keeper_status', 'keeper_lease', 'retention_held'];
    kept text[] := keeping || ARRAY['keep', 'keep_steps', 'keep_take', 'keep_release', 'keep_step', 'keep_failed', 'recover'];
    granted record;
    target record;
BEGIN
    FOR granted IN
        SELECT * FROM (VALUES
            ('once_app',    app || ARRAY['any_tenant']),
            ('once_tenant', app),
            ('once_relay',  ARRAY['errors', 'contract_version', 'slots', 'add_days', 'any_tenant', 'relay_take', 'relay_look',
                'relay_flush', 'relay_list', 'relay_fetch', 'relay_due', 'relay_settle',
                'relay_parked', 'relay_release', 'metrics']),
            ('once_capture', ARRAY['errors', 'contract_version']),
            ('once_consumer', parked || ARRAY['errors', 'contract_version', 'slots', 'add_days', 'any_tenant', 'receive', 'receive_many',
                'salt',
                'claim_many', 'complete_many', 'fail_many', 'renew_many', 'peek_many', 'release', 'consumer_report', 'consumer_ids',
                'metrics']),
            ('once_keeper', kept || ARRAY['slots', 'counts', 'metrics', 'errors', 'contract_version', 'add_days', 'retire_day',
                'retire_outbox', 'any_tenant']),
            ('once_support', shown || keeping || ARRAY['errors', 'contract_version', 'any_tenant']),
            ('once_reader', shown || keeping || ARRAY['errors', 'contract_version', 'peek', 'peek_many', 'story', 'parked_show',
                'any_tenant']),
            ('once_admin',  app || parked || shown || kept || ARRAY['set_keeping', 'any_tenant', 'story', 'parked_show', 'verify',
                'resolve', 'resolve_many', 'resolve_seen', 'set_scope', 'bind', 'unbind', 'add_days',
                'retire_day', 'retire_outbox', 'parked_retry', 'parked_discard', 'parked_retry_many', 'parked_discard_many',
                'parked_replay', 'relay_adopt', 'add_capture', 'drop_relay', 'close_slot', 'open_slot'])) AS g (role_name, functions)
    LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.rolname = granted.role_name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', granted.role_name);
            EXCEPTION
                WHEN insufficient_privilege THEN
                    RAISE NOTICE 'pgonce: role % is missing, and % may not make it: an administrator makes it, then run % again',
                                 granted.role_name, current_user, 'pgonce init or pgonce.sql';
                    CONTINUE;
                WHEN duplicate_object OR unique_violation THEN NULL;    -- another installation in this cluster has just created it
            END;
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA once TO %I', granted.role_name);
        FOR target IN
            SELECT p.pronamespace::regnamespace AS schema, p.oid::regprocedure AS name
              FROM pg_catalog.pg_proc AS p
             WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace) AND p.proname = ANY (granted.functions)
        LOOP
            EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I', target.schema, granted.role_name);
            EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %I', target.name, granted.role_name);
        END LOOP;
        IF granted.role_name = 'once_capture' THEN         -- the client of a replication slot reads the table before it follows the slot
            GRANT SELECT ON once.outbox TO once_capture;
        END IF;
        IF granted.role_name IN ('once_reader', 'once_admin') THEN
            FOR target IN SELECT c.oid::regclass AS name FROM pg_catalog.pg_class AS c
                           WHERE c.relnamespace = 'once'::regnamespace AND c.relkind = 'v' LOOP
                EXECUTE format('GRANT SELECT ON %s TO %I', target.name, granted.role_name);
            END LOOP;
        END IF;
    END LOOP;
END $$;
$file$;
        EXECUTE $file$
-- At each installation and upgrade in a database with Citus: says what is missing without the anchor.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_extension AS e WHERE e.extname = 'citus')
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger AS t WHERE t.tgfoid = 'once._anchor()'::pg_catalog.regprocedure) THEN
        RAISE NOTICE 'pgonce: Citus does not commit the memory together with an effect on another node: %',
            'SELECT once.anchor(), or keep the effect on the node that remembers its key';
    END IF;
END $$;
$file$;
        IF release_here IS NULL THEN
            EXECUTE $file$INSERT INTO once.migration (version, name, checksum, pgonce) VALUES ($1, $2, $3, $4)$file$ USING 0, 'functions and grants', code, this_release;
        ELSE
            EXECUTE $file$
UPDATE once.migration AS m
   SET name = $1, checksum = $2, pgonce = $3, installed_at = pg_catalog.clock_timestamp(), installed_by = session_user
 WHERE m.version = 0
$file$ USING 'functions and grants', code, this_release;
        END IF;
    END IF;
    EXECUTE $file$
-- The first partitions; every daemon adds more.
SELECT once.add_days();
$file$;

    PERFORM set_config(s.name, before[s.n], true)
       FROM unnest(settings) WITH ORDINALITY AS s (name, n) WHERE before[s.n] IS NOT NULL;
END $pgonce$;
