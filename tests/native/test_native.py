# SPDX-License-Identifier: PostgreSQL
"""pgonce_native: what C answers is what SQL answers, and whatever changes under it sends everything back to SQL. The whole contract's tests run with it, too
(PGONCE_NATIVE=1); here is what only it can break."""

import contextlib
import pathlib
import shutil
import threading
import time
import uuid

import psycopg2
import pytest

from harness.native import install_native, library, native_script
from harness.postgres import Postgres, wait_until
from harness.wire import Wire

pytestmark = pytest.mark.skipif(not library().exists(), reason="native/ is not built: no headers of a server")

F = "'0123456789abcdef'::bytea"
OTHER = "'fedcba9876543210'::bytea"
ANSWERED = "SELECT once_native.answered()"


def uuid7(ms=None):
    ms = int(time.time() * 1000) if ms is None else ms
    return f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7{uuid.uuid4().hex[:3]}-8{uuid.uuid4().hex[:3]}-{uuid.uuid4().hex[:12]}"


class Session:
    """One connection, and what of its last statement C has answered."""

    def __init__(self, db, **arguments):
        self.connection = db.connect(**arguments)
        self.cursor = self.connection.cursor()

    def __call__(self, query, *values):
        self.cursor.execute(query, values or None)
        return self.cursor.fetchall() if self.cursor.description else None

    def value(self, query, *values):
        return self(query, *values)[0][0]

    def answered(self, query, *values):
        """How many calls of this statement C has answered, whether it raises or not."""
        before = self.value(ANSWERED)
        try:
            self(query, *values)
        except psycopg2.Error:
            pass
        return self.value(ANSWERED) - before

    def outcome(self, query, *values):
        """Its rows, or what it raised."""
        try:
            return [tuple(row) for row in self(query, *values) or []]
        except psycopg2.Error as error:
            return error.pgcode, error.diag.message_primary, error.diag.message_detail, error.diag.message_hint


@pytest.fixture
def native(db):
    install_native(db)
    return db


@pytest.fixture
def session(native):
    made = Session(native)
    made(f"SELECT once.start('warm', 'up', {F})")  # finds the library
    assert made.value("SHOW once.native") == "on"
    return made


def start(key="k", fingerprint=F, more=""):
    return f"SELECT * FROM once.start('s', '{key}', {fingerprint}{more})"


def finish(key="k", more="", fingerprint=F):
    return f"SELECT once.finish('s', '{key}', {fingerprint}{more})"


def test_a_new_intent_and_its_replay_are_answered_in_c(session):
    session(emit("first"))  # moves the sequence of the latest day on
    for key in ("k", uuid7()):
        session("BEGIN")
        assert session.answered(start(key)) == 1
        assert session.answered(finish(key, ", 201, response_json => '{\"a\": 1}'")) == 1
        session("COMMIT")
        assert session.answered(start(key)) == 1
        assert session.answered(start(key).replace('once.start', 'once.try_start')) == 1
        assert session.answered(f"SELECT once.start_new('s', 'a{key}', {F})") == 1
        assert session.answered(f"SELECT once.finish_new('s', 'b{key}', {F}, 200)") == 1
        assert session.answered(f"SELECT once.claim('s', 'c{key}', {F})") == 1
        assert session.answered(f"SELECT once.complete('s', 'c{key}', 1, 200, response_text => 'done')") == 1
        assert session.answered(f"SELECT once.claim('s', 'd{key}', {F}, 'me', '90 s')") == 1
        assert session.answered(emit(key)) == 1
        assert session.answered("SELECT once.emit('t', '1', 'order', '7')") == 1
        assert session.answered(f"SELECT once.receive('s', 'm{key}', {F})") == 1
        assert session.answered(f"SELECT once.receive('s', 'm{key}', {F})") == 1


CLAIM = f"SELECT verdict, fence, state, response_body, lease_until > now(), attempts, traceparent FROM once.claim('s', 'k', {F})"
RECEIVE = f"SELECT once.receive('s', 'm', {F})"


def emit(key="k", more="", payload='{"n": 1}'):
    return f"SELECT once.emit('t', '{payload}', key => '{key}', scope => 's'{more})".replace("scope => 's', scope", "scope")


def with_more(call, more):
    """more: ends with the parenthesis."""
    return call.removesuffix(")") + more


TOMORROW = uuid7(int(time.time() * 1000) + 86400000)

# Each statement is run in both ways, one transaction each line, and must answer alike and leave the same rows, notes and counts.
STORIES = {
    "plain": [[start(), finish(more=", 201, response_text => 'häl\\lo'")], [start()], [start()]],
    "json": [[start(), finish(more=", 200, response_json => '{\"b\": [1, null]}', response_headers => '{\"H\": \"1\"}'")], [start()]],
    "bytes": [[start(), finish(more=", response_body => '\\x00ff'::bytea, result_type => 't', result_id => 'i'")], [start()]],
    "another type": [[start(), finish(more=", response_body => 'x'::text")]],
    "two bodies": [[start(), finish(more=", response_text => 'a', response_json => '1'")]],
    "no body": [[start(), finish()], [start()]],
    "large": [[start(), finish(more=", response_body => convert_to(repeat('ab', 4096), 'UTF8')")], [start()]],
    "toasted": [[start(), finish(more=", response_text => (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 250) AS n)")], [start()]],
    "larger than plain": [[start(), finish(more=", response_text => repeat('a', 8193)")], [start()]],
    "too large": [[start(), finish(more=", response_text => repeat('a', 2000000)")], [start()]],
    "failed": [[start(), finish(more=", state => 'failed_final', error_code => 'e', error_message => 'm'")], [start()]],
    "to be retried": [[start(), finish(more=", state => 'failed_retryable'")], [start(), finish(more=", 200")], [start()]],
    "a state that is none": [[start(), finish(more=", state => 'in_doubt'")]],
    "a status that is none": [[start(), finish(more=", 1000")], [start(), finish(more=", -1")]],
    "headers that are none": [[start(), finish(more=", response_headers => '[1]'")]],
    "mismatch": [[start(), finish()], [start(fingerprint=OTHER)]],
    "other fingerprint at the end": [[start(), finish(fingerprint=OTHER)], [start()]],
    "no start": [[finish()]],
    "twice": [[start(), finish(), finish()]],
    "finished, started, finished": [[start(), finish(), start(), finish()]],
    "started twice": [[start(), start(), finish()]],
    "two intents": [[start("a"), start("b"), finish("a"), finish("b")]],
    "a savepoint takes it back": [[start(), "SAVEPOINT x", finish(), "ROLLBACK TO x", finish(more=", 404")], [start()]],
    "a savepoint takes the start back": [["SAVEPOINT x", start(), "ROLLBACK TO x", finish()]],
    "new": [[f"SELECT once.start_new('s', 'k', {F})", finish()], [f"SELECT once.start_new('s', 'k', {F})"]],
    "all at once": [[f"SELECT once.finish_new('s', 'k', {F}, 201, response_text => 'x')"], [f"SELECT once.finish_new('s', 'k', {F}, 201)"]],
    "a trace": [[start(more=f", traceparent => '00-{'a' * 32}-{'b' * 16}-01'"), finish(more=f", traceparent => '00-{'a' * 32}-{'b' * 16}-01'")], [start()]],
    "traces that are none": [
        [start(f"k{number}", more=f", traceparent => '{each}'"), finish(f"k{number}", more=f", traceparent => '{each}'")]
        for number, each in enumerate(("", "x", f"00-{'A' * 32}-{'b' * 16}-01", f"00-{'0' * 32}-{'b' * 16}-01", f"00-{'a' * 32}-{'0' * 16}-01", f"01-{'a' * 32}-{'b' * 16}-01"))
    ],
    "nulls": [[f"SELECT * FROM once.start(NULL, 'k', {F})"], [f"SELECT * FROM once.start('s', NULL, {F})"], ["SELECT * FROM once.start('s', 'k', NULL)"],
              [start(more=", NULL")], [start(), finish(more=", state => NULL")]],
    "bad keys": [[start("")], [start("a" * 256)], [start("a" * 255), finish("a" * 255)], [start("ä")], [start("a\tb")], [start(" ~"), finish(" ~")]],
    "bad fingerprints": [["SELECT * FROM once.start('s', 'k', 'short')"], [f"SELECT * FROM once.start('s', 'k', ({F} || {F} || {F} || {F} || {F}))"],
                         ["SELECT * FROM once.start('s', 'k', '0123456789abcdefg')"]],
    "long names": [[f"SELECT * FROM once.start('{'s' * 255}', 'k', {F})"], [f"SELECT * FROM once.start('{'s' * 200}', 'k', {F}, '{'t' * 56}')"],
                   [f"SELECT * FROM once.start('{'s' * 256}', 'k', {F})"], [f"SELECT * FROM once.start('', 'k', {F})"]],
    "names that could be joined": [[f"SELECT * FROM once.start('a', 'bc', {F}, 't')", f"SELECT once.finish('ab', 'c', {F}, tenant => 't')"]],
    "spellings of a UUIDv7": [[start(each), finish(each)] for each in (
        "018F0000-0000-7000-8000-000000000000", "{018f0000-0000-7000-8000-000000000000}", "018f0000000070008000000000000000", "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "01a", "{01", "urn:uuid:018f0000-0000-7000-8000-000000000000", "00000000-0000-7000-8000-000000000000", "ffffffff-ffff-7fff-bfff-ffffffffffff",
        "018f0000-0000-4000-8000-000000000000", "018f0000-0000-7000-8-00-000000000000", "018f0000-0000-7000-8000-00000000000g")],
    "other isolation": [["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", start(), finish()], ["SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", start()],
                        ["SET TRANSACTION READ ONLY", start()], ["SET TRANSACTION READ ONLY", start("new")]],
    "in an expression": [[f"SELECT (once.start('s', 'k', {F})).verdict", f"SELECT length(once.finish('s', 'k', {F}, response_text => 'abc')) + 1"],
                         [f"SELECT s.* FROM once.start(fingerprint => {F}, key => 'k', scope => 's') AS s"],
                         [f"WITH c AS (SELECT once.start('s', 'k', {F}) AS s) SELECT (c.s).* FROM c"],
                         [f"SELECT x.response_body FROM (VALUES ('k'), ('l')) AS v (key), LATERAL once.start('s', v.key, {F}) AS x"]],
    "tomorrow": [[start(TOMORROW)], [f"SELECT once.finish_new('s', '{TOMORROW}', {F})"], [f"SELECT once.start_new('s', '{TOMORROW}', {F})"]],
    "claimed, completed, claimed": [[CLAIM, "SELECT once.complete('s', 'k', 1, 200, response_text => 'x', result_type => 't', result_id => 'i')"], [CLAIM], ["SELECT once.complete('s', 'k', 1, 200, response_text => 'x', result_type => 't', result_id => 'i')"], [start()]],
    "claimed with all that a claim has": [[with_more(CLAIM, f", 'me', '90 s', NULL, 't', '00-{'a' * 32}-{'b' * 16}-01')")], [with_more(CLAIM, ", owner => 'x', lease => '1 hour')").replace("'k'", "'l'")]],
    "terms that are no hours, or none": [[with_more(CLAIM, f", {more})").replace("'k'", f"'k{number}'")] for number, more in enumerate(("lease => '0 s'", "lease => '-1 s'", "lease => '8 days'", "lease => '1 day'", "lease => '200 h'", "lease => '1 mon -29 days'", "retention => '1 day'", "lease => NULL", "retention => '0'"))],
    "an owner that is long": [[with_more(CLAIM, f", owner => '{'ü' * 200}')")], [with_more(CLAIM, f", owner => '{'ü' * 300}')").replace("'k'", "'l'")]],
    "a claim of a policy": [["SELECT once.set_scope('s', lease => '1 day 2 hours')", CLAIM], ["SELECT extract(epoch FROM lease_until - created_at) FROM once.intent"]],
    "a claim of the default": [[CLAIM], ["SELECT extract(epoch FROM lease_until - created_at), updated_at = created_at, completed_at FROM once.intent"]],
    "another fence": [[CLAIM], ["SELECT once.complete('s', 'k', 2)"], ["SELECT once.complete('s', 'k', NULL)"], ["SELECT once.complete('s', 'l', 1)"]],
    "completed twice": [[CLAIM], ["SELECT once.complete('s', 'k', 1, 200)"], ["SELECT once.complete('s', 'k', 1, 200)"], ["SELECT once.complete('s', 'k', 1, 201)"]],
    "completed in doubt": [[CLAIM], ["UPDATE once.intent SET state = 'in_doubt', error_code = 'e', error_message = 'm'"], ["SELECT once.complete('s', 'k', 1, 200)"]],
    "completed after the lease": [[CLAIM], ["UPDATE once.intent SET lease_until = now() - interval '1 hour', error_code = 'e', response_body = 'old'"], ["SELECT once.complete('s', 'k', 1, 200)"]],
    "completed with a large body": [[CLAIM], ["SELECT once.complete('s', 'k', 1, response_text => (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 250) AS n))"], [start()]],
    "completed with too large a body": [[CLAIM], ["SELECT once.complete('s', 'k', 1, response_text => repeat('a', 2000000))"], ["SELECT once.complete('s', 'k', 1, 1000)"]],
    "completed, and taken back": [[CLAIM], ["SAVEPOINT x", "SELECT once.complete('s', 'k', 1, 200)", "ROLLBACK TO x", "SELECT once.complete('s', 'k', 1, 201)"], [start()]],
    "claimed and completed at once": [[f"SELECT once.complete('s', 'k' || n, (once.claim('s', 'k' || n, {F})).fence, 200) FROM generate_series(1, 3) AS n"]],
    "messages": [[RECEIVE], [RECEIVE], [RECEIVE.replace(F, OTHER)], [RECEIVE.replace("'m'", "'n'"), RECEIVE.replace("'m'", "'n'")], [with_more(RECEIVE, f", 't', '00-{'a' * 32}-{'b' * 16}-01')")]],
    "a message that is an intent": [[CLAIM.replace("'k'", "'m'")], [RECEIVE]],
    "a message of tomorrow": [[RECEIVE.replace("'m'", f"'{TOMORROW}'")]],
    "events": [[emit()], [emit()], [emit(payload='{"n": 2}')], [emit(more=", event_type => 'other'")], [emit("l", ', scope => NULL')], [emit(more=", headers => '{\"H\": 1}'")]],
    "events of one transaction": [[start(), emit(), emit("l", more=", aggregate_type => 'a', aggregate_id => 'i'"), emit(), finish(), "SAVEPOINT x", emit("m"), "ROLLBACK TO x", emit("m", payload='[]')]],
    "names of events": [["SELECT once.emit('t', '1', tenant => $$%s$$, scope => $$%s$$, key => $$%s$$, event_type => $$%s$$)" % names] for names in (
        ("", "s", "k", "e"), ("NULL", "null", 'a"b', "x\\y"), ("{a}", "a b", "c,d", "ü"), ("t", "s\t", "~", "x\n"), ("t", "S", " ", "\v"), ("\u00a0", "\u3000", "k", "e"))],
    "events that are none": [["SELECT once.emit(NULL, '1')"], ["SELECT once.emit('', '1')"], ["SELECT once.emit('t', NULL)"], ["SELECT once.emit('t', '1', event_type => '')"],
        ["SELECT once.emit('t', '1', scope => 's')"], ["SELECT once.emit('t', '1', key => 'k')"], ["SELECT once.emit('t', '1', headers => '[]')"],
        [f"SELECT once.emit('{'t' * 256}', '1')"], [f"SELECT once.emit('{'t' * 200}', '1', event_type => '{'e' * 200}', scope => 's', key => 'k')"], ["SELECT once.emit('t', '1', tenant => NULL)"],
        ["SELECT once.emit('t', '1', scope => 's', key => 'ä')"], [f"SELECT once.emit('t', '1', tenant => '{'t' * 256}')"]],
    "an event with all that it has": [["SELECT once.emit('t', '{\"a\": 1}', 'order', '7', 'placed', 's', 'k', '{\"h\": [1]}', 'te', '00-%s-%s-01')" % ("a" * 32, "b" * 16)], ["SELECT once.emit('t', '1', key => 'k', scope => 's', traceparent => 'none')"]],
    "a large event": [["SELECT once.emit('t', jsonb_build_object('x', (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 500) AS n)), scope => 's', key => 'k')"]],
    "events elsewhere": [["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", emit()], ["SET TRANSACTION READ ONLY", emit("l")], ["SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", emit("m")]],
    "many events": [["SELECT count(once.emit('t', to_jsonb(n), scope => 's', key => 'k' || n % 7)) FROM generate_series(0, 6) AS n"], ["SELECT count(DISTINCT once.emit('t', to_jsonb(n))) FROM generate_series(1, 100) AS n"]],
    "leased": [[f"SELECT verdict, fence FROM once.claim('s', 'k', {F}, lease => '1 day')"], [f"SELECT (once.try_start('s', 'k', {F})).verdict"], ["SELECT once.complete('s', 'k', 1, 200, response_text => 'x')"], [start()]],
}  # fmt: skip
STORIES |= {
    f"{name}, tried": [[each.replace("once.start(", "once.try_start(") for each in transaction] for transaction in story]
    for name, story in STORIES.items() if any("once.start(" in each for transaction in story for each in transaction)
}  # fmt: skip
ROWS = """SELECT bucket, fence, attempts, response_status, state, format_version, tenant, scope, key, fingerprint, owner, result_type, result_id, error_code,
    error_message, traceparent, response_body, response_headers, expires_at - created_at AS kept, lease_until - updated_at AS leased, attempts > 1 OR completed_at = created_at AS at_once FROM once.intent ORDER BY tenant, scope, key"""
EVENTS = """SELECT id, day, xid = pg_snapshot_xmin(pg_current_snapshot()) AS current, created_at > now() - interval '1 hour', CASE WHEN key IS NOT NULL THEN event_id END AS event_id,
    topic, event_type, aggregate_type, aggregate_id, tenant, scope, key, traceparent, headers, payload FROM once.outbox ORDER BY id"""
COUNTS = " UNION ALL ".join(f"SELECT last_value, is_called FROM once.counted_{each}" for each in ("new", "replay", "process", "duplicate", "message_mismatch"))
# Of a relation the strongest that is held: a weaker one beside it makes no difference.
LOCKS = """SELECT locktype, classid, objid, objsubid, CASE WHEN locktype = 'relation' THEN relation::regclass::text END AS relation,
        max(array_position(ARRAY['AccessShareLock', 'RowShareLock', 'RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock',
            'ExclusiveLock', 'AccessExclusiveLock'], mode))
    FROM pg_locks WHERE pid = pg_backend_pid() AND granted AND (locktype = 'advisory' OR relation::regclass::text IN ('once.intent', 'once.intent_d0',
        'once.counted_new', 'once.counted_replay', 'once.outbox', 'once.outbox_id_seq', 'once.counted_process', 'once.counted_duplicate'))
    GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5"""


def told_both_ways(server, transactions, warm=(), locks=LOCKS):
    """{way: what each statement has answered and locked, and what is stored in the end, and how many calls C has answered}. warm: statements that SQL
    runs first, and that are taken back."""
    told, answered = {}, {}
    for way in ("on", "off"):
        db = server.new_database()
        install_native(db)
        session = Session(db)
        session(f"SELECT once.start('warm', 'up', {F})")
        session("BEGIN")
        session("SET LOCAL once.native = off")
        for statement in warm:
            session(statement)
        session("ROLLBACK")
        session(f"SET once.native = {way}")
        lines = told[way] = []
        for transaction in transactions:
            session("BEGIN")
            for statement in transaction:
                lines.append(session.outcome(statement))
                if session.connection.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_INERROR:
                    break
                lines.append(session("SELECT current_setting('once.started', true)"))
                lines.append(session(locks))
            session("ROLLBACK" if session.connection.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_INERROR else "COMMIT")
        lines.append(session(ROWS))
        lines.append(session(COUNTS))
        lines.append(session(EVENTS))
        answered[way] = session.value(ANSWERED)
        db.drop()
    return told, answered


@pytest.mark.parametrize("story", STORIES)
def test_c_answers_what_sql_answers(server, story):
    told, answered = told_both_ways(server, STORIES[story])
    if story == "plain":
        assert answered["on"] > answered["off"]
    assert told["on"] == told["off"]


def test_a_transaction_may_mix_both_ways(session):
    for first, then in (("on", "off"), ("off", "on")):
        session("BEGIN")
        session(f"SET LOCAL once.native = {first}")
        session(start(first))
        session(f"SET LOCAL once.native = {then}")
        session(finish(first, ", 201"))
        session("COMMIT")
        assert session.value(f"SELECT verdict FROM once.start('s', '{first}', {F})") == "replay"


def test_another_attempt_is_refused_while_one_runs(native, session):
    other = Session(native)
    session("BEGIN")
    session(start())
    assert other.outcome(start())[0] == "P4029"
    session(finish(more=", 201"))
    assert other.outcome(start())[0] == "P4029"
    session("COMMIT")
    assert other.outcome(start())[0][0] == "replay"


def test_what_is_stored_names_the_contract_s_functions(session):
    session(f"CREATE VIEW looks AS SELECT once.start('s', 'k', {F}) AS s, x.verdict FROM once.start('s', 'l', {F}) AS x")
    session("CREATE TABLE t (a integer)")
    session(f"CREATE RULE r AS ON INSERT TO t DO ALSO SELECT once.start('s', 'k', {F})")
    if session.connection.server_version >= 140000:
        session(f"CREATE FUNCTION f() RETURNS text BEGIN ATOMIC SELECT (once.start('s', 'k', {F})).verdict; END")
    session(f"PREPARE p AS SELECT once.start('s', 'k', {F})")
    for _ in range(7):
        session("EXECUTE p")
        session("SELECT * FROM looks")
        session("INSERT INTO t VALUES (1)")
    assert session.answered("SELECT * FROM looks") == 2
    for text in ("SELECT pg_get_viewdef('looks')", "SELECT string_agg(definition, '') FROM pg_rules WHERE tablename = 't'",
                 "SELECT string_agg(pg_get_functiondef(oid), '') FROM pg_proc WHERE proname = 'f'"):  # fmt: skip
        assert "once_native" not in str(session.value(text))
    stored = "SELECT count(*) FROM pg_depend AS d JOIN pg_proc AS p ON d.refobjid = p.oid WHERE p.pronamespace = 'once_native'::regnamespace AND d.classid <> 'pg_extension'::regclass"
    assert session.value(stored) == 0


def test_a_function_without_the_library_s_schema_goes_back_to_sql_in_running_sessions(native, session):
    session(f"PREPARE p AS SELECT (once.start('s', 'k', {F})).verdict")
    session("CREATE FUNCTION f() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN (once.start('s', 'k', '0123456789abcdef')).verdict; END $$")
    for _ in range(7):
        assert session("EXECUTE p") == session("SELECT f()") == [("proceed",)]
    native.execute("DROP SCHEMA once_native CASCADE")
    assert session("EXECUTE p") == session("SELECT f()") == [("proceed",)]
    assert "once_native" not in str(session("EXPLAIN (VERBOSE) EXECUTE p"))
    install_native(native)
    assert session.answered("EXECUTE p") == 1


OTHER_TEXTS = [
    ("_is_usual_call", "scope <> ''", "scope <> '' AND scope <> 'k'"),
    ("_note_start", "'once.started'", "'once.begun'"),
    ("start", "'succeeded', i.response_status", "'done', i.response_status"),
    ("_bucket_of_other", "'^[ -~]+$'", "'^[a-z]+$'"),
]  # fmt: skip


@pytest.mark.parametrize("function, old, new", OTHER_TEXTS)
def test_another_text_of_what_the_library_mirrors_sends_all_to_sql(native, session, function, old, new):
    from harness.mutation import mutate

    session(f"PREPARE p AS {start()}")
    for _ in range(7):
        session("EXECUTE p")
    assert session.answered("EXECUTE p") == 1
    original = native.value("SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p WHERE p.pronamespace = 'once'::regnamespace AND p.proname = %s", function)
    mutate(native, function, old, new)
    assert session.answered("EXECUTE p") == 0 and session.answered(start()) == 0
    native.execute(original)
    assert session.answered("EXECUTE p") == 1


TABLE_CHANGES = [
    ("CREATE TRIGGER x BEFORE INSERT ON once.intent_d0 FOR EACH ROW EXECUTE FUNCTION once._refuse_closed()", "DROP TRIGGER x ON once.intent_d0"),
    ("ALTER TABLE once.intent_d0 ADD CONSTRAINT x CHECK (key <> 'z')", "ALTER TABLE once.intent_d0 DROP CONSTRAINT x"),
    ("ALTER TABLE once.intent ADD COLUMN x integer", "ALTER TABLE once.intent DROP COLUMN x"),
    ("CREATE INDEX x ON once.intent_d0 (created_at)", "DROP INDEX once.x"),
    ("ALTER TABLE once.intent_d0 ENABLE ROW LEVEL SECURITY", "ALTER TABLE once.intent_d0 DISABLE ROW LEVEL SECURITY"),
    ("CREATE RULE x AS ON INSERT TO once.intent DO ALSO NOTHING", "DROP RULE x ON once.intent"),
    ("ALTER TABLE once.intent DETACH PARTITION once.intent_d0", "ALTER TABLE once.intent ATTACH PARTITION once.intent_d0 FOR VALUES FROM (0) TO (1)"),
    ("ALTER FUNCTION once.finish SET enable_seqscan = off", "ALTER FUNCTION once.finish RESET enable_seqscan"),
    ("ALTER FUNCTION once.finish SECURITY INVOKER", "ALTER FUNCTION once.finish SECURITY DEFINER"),
]  # fmt: skip


@pytest.mark.parametrize("change, back", TABLE_CHANGES)
def test_a_change_of_the_tables_sends_finish_to_sql(native, session, change, back):
    work = f"SELECT once.finish_new('s', md5(random()::text), {F})"
    assert session.answered(work) == 1
    native.execute(change)
    assert session.answered(work) == 0
    native.execute(back)
    assert session.answered(work) == 1


OUTBOX = f"once.outbox_d{int(time.time() // 86400)}"


@pytest.mark.parametrize("change, back", [
    (f"CREATE TRIGGER x BEFORE INSERT ON {OUTBOX} FOR EACH ROW EXECUTE FUNCTION once._refuse_closed()", f"DROP TRIGGER x ON {OUTBOX}"),
    ("CREATE TRIGGER x BEFORE INSERT ON once.outbox FOR EACH STATEMENT EXECUTE FUNCTION once._refuse_closed()", "DROP TRIGGER x ON once.outbox"),
    (f"ALTER TABLE {OUTBOX} ADD CONSTRAINT x CHECK (topic <> 'z')", f"ALTER TABLE {OUTBOX} DROP CONSTRAINT x"),
    ("ALTER TABLE once.outbox ADD COLUMN x integer DEFAULT 7", "ALTER TABLE once.outbox DROP COLUMN x"),
    ("ALTER TABLE once.outbox ALTER COLUMN headers SET DEFAULT '{}'", "ALTER TABLE once.outbox ALTER COLUMN headers DROP DEFAULT"),
    (f"CREATE INDEX x ON {OUTBOX} (created_at)", "DROP INDEX once.x"),
    ("DROP INDEX once.outbox_xid", "CREATE INDEX outbox_xid ON once.outbox (xid, id)"),
    (f"ALTER TABLE {OUTBOX} ENABLE ROW LEVEL SECURITY", f"ALTER TABLE {OUTBOX} DISABLE ROW LEVEL SECURITY"),
    ("CREATE RULE x AS ON INSERT TO once.outbox DO ALSO NOTHING", "DROP RULE x ON once.outbox"),
])  # fmt: skip
def test_a_change_of_the_outbox_sends_emit_to_sql(native, session, change, back):
    session(emit("first"))
    count = iter(range(100))
    assert session.answered(emit(next(count))) == 1
    native.execute(change)
    assert session.answered(emit(next(count))) == 0
    native.execute(back)
    assert session.answered(emit(next(count))) == 1


def test_events_of_an_earlier_or_later_day_are_sql_s_business(native, session):
    """Of a day that is over and has its outbox still; and where the clock has stepped back."""
    today = int(time.time() // 86400)
    session(emit("first"))
    assert session.answered(emit("a")) == 1
    native.execute(f"""
        CREATE TABLE once.outbox_d{today - 1} (LIKE once.outbox INCLUDING ALL EXCLUDING IDENTITY);
        ALTER TABLE once.outbox ATTACH PARTITION once.outbox_d{today - 1} FOR VALUES FROM ({today - 1}) TO ({today});
        INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, tenant, scope, key, payload)
            SELECT {today - 1}, created_at, event_id, topic, event_type, tenant, scope, 'old', payload FROM once.outbox LIMIT 1""")
    assert session.answered(emit("old")) == 0 and session.answered(emit("b")) == 0
    assert native.value("SELECT count(*) FROM once.outbox WHERE key = 'old'") == 1
    assert session.answered("SELECT once.emit('t', '1')") == 1
    native.execute(f"DROP TABLE once.outbox_d{today - 1}")
    assert session.answered(emit("c")) == 1
    native.execute(f"SELECT setval('once.outbox_day_seq', {256 * (today + 1)})")
    assert session.answered(emit("d")) == 0
    native.execute(f"""INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, tenant, scope, key, payload)
        SELECT {today + 1}, created_at, event_id, topic, event_type, tenant, scope, 'new', payload FROM once.outbox LIMIT 1""")
    assert session.answered(emit("new")) == 0
    assert native.value("SELECT count(*) FROM once.outbox WHERE key = 'new'") == 1


def test_an_event_that_another_transaction_emits_is_refused(native, session):
    other = Session(native)
    other(f"SELECT once.start('warm', 'up', {F})")
    session(emit("first"))
    session("BEGIN")
    assert session.answered(emit()) == 1
    assert other.outcome(emit())[0] == "P4029"
    session("COMMIT")
    assert other.outcome(emit()) == session.outcome(emit())
    assert other.outcome(emit(payload="2"))[0] == "P4051"


def test_an_event_that_somebody_inserts_by_hand_is_sql_s_business(native, session):
    hand = native.connect(autocommit=False)
    session(emit("first"))
    hand.cursor().execute("""INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, tenant, scope, key, payload)
        SELECT day, created_at, event_id, topic, event_type, tenant, scope, 'k', payload FROM once.outbox""")
    assert isinstance(in_a_thread(native, session, emit(), hand.commit), list)
    assert native.value("SELECT count(*) FROM once.outbox WHERE key = 'k'") == 1


def test_a_closed_day_is_sql_s_business(native, session):
    key = uuid7()
    day = int(key.replace("-", "")[:12], 16) // 86400000
    session("BEGIN")
    session(start(key))
    session(finish(key))
    session("COMMIT")
    assert session.answered(start(key)) == 1
    native.execute(f"SELECT once._close_day(d) FROM once._days('once.intent', 'intent_d') AS d WHERE d <= {day}")
    assert session.answered(start(key)) == 0
    assert session.outcome(start(key))[0][0] == "replay"
    assert session.outcome(start(uuid7()))[0] == "P4041"


def test_who_may_not_is_refused_alike(native):
    native.execute("DROP ROLE IF EXISTS native_stranger, native_app, native_bound")
    native.execute("CREATE ROLE native_stranger LOGIN; CREATE ROLE native_app LOGIN; CREATE ROLE native_bound LOGIN")
    native.execute("GRANT once_app TO native_app; GRANT once_tenant TO native_bound")
    native.execute("SELECT once.bind('native_bound', 't')")
    try:
        for role in ("native_stranger", "native_app", "native_bound"):
            told = []
            for way in ("on", "off"):
                session = Session(native, user=role)
                session.outcome(start("warm"))
                session(f"SET once.native = {way}")
                told.append([session.outcome(start()), session.outcome(f"SELECT * FROM once.start('s', 'k', {F}, 't')"), session.outcome("SET ROLE native_app"),
                             session.outcome(start())])
                if role == "native_app":
                    assert session.answered(f"RESET ROLE; {start()}") == (way == "on")
            assert told[0] == told[1]
        assert told[0][0][0] == "P4003"
    finally:
        native.execute("DROP ROLE native_stranger; REVOKE once_app FROM native_app; DROP ROLE native_app; REVOKE once_tenant FROM native_bound; DROP ROLE native_bound")


# (how a role came to its right, how it loses it)
LEAVINGS = [
    ("GRANT once_app TO native_leaver", "REVOKE once_app FROM native_leaver"),
    ("GRANT USAGE ON SCHEMA once TO native_leaver; GRANT EXECUTE ON FUNCTION once.start, once.any_tenant TO native_leaver",
     "REVOKE EXECUTE ON FUNCTION once.start FROM native_leaver"),
    ("ALTER ROLE native_leaver SUPERUSER", "ALTER ROLE native_leaver NOSUPERUSER"),
]


@pytest.mark.parametrize("given, taken", LEAVINGS)
def test_a_right_that_is_taken_away_is_missed_at_once(native, given, taken):
    native.execute(f"CREATE ROLE native_leaver LOGIN; {given}")
    try:
        session = Session(native, user="native_leaver")
        session(f"PREPARE p AS {start()}")
        for _ in range(7):
            session("EXECUTE p")
        assert session.answered("EXECUTE p") == 1
        native.execute(taken)
        assert session.outcome("EXECUTE p")[0] == "42501"
        assert session.outcome(start())[0] == "42501"
        native.execute(given)
        session("EXECUTE p")
        assert session.answered("EXECUTE p") == 1
        native.execute(taken)
    finally:
        native.execute("DROP OWNED BY native_leaver; DROP ROLE native_leaver")


def test_the_database_s_owner_changes(native):
    """Its rights go with the database, by pg_database_owner, of which nothing but the catalogue of databases tells."""
    if native.server.version < 14:
        pytest.skip("before PostgreSQL 14 there is no such role")
    native.execute("CREATE ROLE native_owner LOGIN; GRANT USAGE ON SCHEMA once TO pg_database_owner; "
                   "GRANT EXECUTE ON FUNCTION once.start, once.any_tenant TO pg_database_owner")
    name, = native.row("SELECT current_database()")
    before, = native.row("SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = current_database()")
    try:
        native.execute(f"ALTER DATABASE {name} OWNER TO native_owner")
        session = Session(native, user="native_owner")
        session(f"PREPARE p AS {start()}")
        for _ in range(7):
            session("EXECUTE p")
        assert session.answered("EXECUTE p") == 1
        native.execute(f"ALTER DATABASE {name} OWNER TO {before}")
        assert session.outcome("EXECUTE p")[0] == "42501"
    finally:
        native.execute(f"ALTER DATABASE {name} OWNER TO {before}; DROP ROLE native_owner")


@contextlib.contextmanager
def roles_of(native):
    """One who may be anybody of the others."""
    native.execute("DROP ROLE IF EXISTS native_app, native_bound, native_none, native_any")
    native.execute("""CREATE ROLE native_app LOGIN; CREATE ROLE native_bound LOGIN; CREATE ROLE native_none LOGIN; CREATE ROLE native_any LOGIN;
        GRANT once_app TO native_app, native_any; GRANT once_tenant TO native_bound; GRANT native_app, native_bound, native_none TO native_any;
        SELECT once.bind('native_bound', 'a')""")
    try:
        yield native
    finally:
        native.execute("DROP OWNED BY native_app, native_bound, native_none, native_any; DROP ROLE native_app, native_bound, native_none, native_any")


@pytest.fixture
def roles(native):
    with roles_of(native):
        yield native


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_above_read_committed_a_start_sees_what_its_transaction_s_snapshot_sees(native, level):
    told = []
    for way in ("on", "off"):
        session, other = Session(native), Session(native)
        session(f"SELECT once.start('warm', '{way}', {F})")
        session(f"SET once.native = {way}")
        session(f"BEGIN ISOLATION LEVEL {level}")
        session("SELECT count(*) FROM once.intent")
        other(f"SELECT once.finish_new('s', '{way}', {F})")
        told.append([session.outcome(start(way)), session.outcome(finish(way)), session("ROLLBACK")])
        for query in (start(way), finish(way), f"SELECT once.start_new('s', 'z{way}', {F})", f"SELECT once.finish_new('s', 'z{way}', {F})"):
            before = session.value(ANSWERED)
            session(f"BEGIN ISOLATION LEVEL {level}")
            session.outcome(query)
            session("ROLLBACK")
            assert session.value(ANSWERED) == before
    assert told[0] == told[1]
    assert told[0][0][0][0] == "proceed" and told[0][1][0] == "40001"


def test_who_has_set_a_role_is_judged_by_that_role(roles):
    for role, tenant, code in (("native_bound", "b", "P4003"), ("native_none", "a", "42501"), ("native_bound", "a", "proceed"), ("native_app", "b", "proceed")):
        told = []
        for way in ("on", "off"):
            session = Session(roles, user="native_any")
            session(f"SELECT once.start('warm', 'up', {F})")
            session(f"SET once.native = {way}; SET ROLE {role}; BEGIN")
            told.append([session.outcome(f"SELECT * FROM once.start('s', 'k', {F}, '{tenant}')")])
            session("ROLLBACK; BEGIN")
            told[-1].append(session.outcome(f"SELECT once.finish_new('s', 'k', {F}, tenant => '{tenant}')"))
            session("ROLLBACK")
        assert told[0] == told[1]
        assert told[0][0][0] == code or told[0][0][0][0] == code


def test_a_row_is_there_for_the_next_statement_of_a_statement_that_is_not_over(native):
    """A driver that fetches in parts leaves a statement open; nothing of the server's own says then that a command has ended."""
    for way in ("on", "off"):
        with Wire(native) as wire:
            wire.query(f"SELECT once.start('warm', 'up', {F})")
            wire.query(f"SET once.native = {way}")
            wire.query("BEGIN")
            call = f"SELECT once.finish_new('{way}', 'k' || n, {F}) FROM generate_series(1, 3) AS n"
            assert wire.fetch_some_and_query(call, 1, f"SELECT count(*) FROM once.intent WHERE scope = '{way}'") == ["1", "1"]
            assert wire.query(ANSWERED) == (["1"] if way == "on" else ["0"])


def test_a_right_is_missed_also_where_nothing_is_called(roles):
    """The executor asks when it begins."""
    session = Session(roles, user="native_none")
    roles.execute("GRANT USAGE ON SCHEMA once TO native_none; LOAD '$libdir/plpgsql'")
    session("SELECT once_native.load()")
    for call in (start(), f"SELECT once.start_new('s', 'k', {F})", finish(), f"SELECT once.finish_new('s', 'k', {F})"):
        name = call[call.index("once.") :].split("(")[0].removeprefix("once.")
        for query in (call, f"EXPLAIN {call}"):
            assert session.outcome(query)[:2] == ("42501", f"permission denied for function {name}")
        expression = call.replace("SELECT * FROM", "SELECT")
        assert session.outcome(f"{expression} FROM generate_series(1, 0)")[:2] == ("42501", f"permission denied for function {name}")


def test_a_substitute_that_may_not_be_called_is_none(roles):
    roles.execute("REVOKE EXECUTE ON FUNCTION once_native.start FROM PUBLIC")
    session = Session(roles, user="native_app")
    session(f"SELECT once.start('warm', 'up', {F})")
    assert session.outcome(start())[0][0] == "proceed"
    assert session.answered(start()) == 0
    assert session.answered(f"SELECT once.start_new('s', 'k', {F})") == 1


def test_off_counts_at_once_also_in_a_plan_that_was_made_before(native, session):
    session(f"PREPARE p AS SELECT set_config('once.native', CASE WHEN $1 THEN 'on' ELSE 'off' END, false), once.start('s', 'k', {F})")
    for _ in range(7):
        assert session.answered("EXECUTE p (true)") == 1
    assert session.answered("EXECUTE p (false)") == 0
    assert "once_native" not in str(session(f"EXPLAIN (VERBOSE) {start()}"))
    assert session.answered(start()) == 0
    session("SET once.native = on")
    assert "once_native" in str(session(f"EXPLAIN (VERBOSE) {start()}"))


def test_in_a_parallel_worker_c_does_what_sql_does(native, session):
    name = "force_parallel_mode" if session.connection.server_version < 160000 else "debug_parallel_query"
    session(f"CREATE FUNCTION f() RETURNS text LANGUAGE sql PARALLEL SAFE AS $$ SELECT (once.start('s', 'k', {F})).verdict $$")
    session(f"CREATE FUNCTION g() RETURNS integer LANGUAGE plpgsql PARALLEL SAFE AS $$ BEGIN RETURN once.finish_new('s', 'l', {F}); END $$")
    session(f"SET {name} = on")
    for query in ("SELECT f()", "SELECT g()"):
        told = []
        for way in ("on", "off"):
            session(f"SET once.native = {way}")
            assert "Gather" in str(session(f"EXPLAIN {query}"))
            told.append(session.outcome(query))
        assert told[0] == told[1] and told[0][0] == "25000", told
    assert session.value("SELECT count(*) FROM once.intent") == 0


def test_on_a_standby_c_refuses_as_sql_does(server):
    if not (server.bindir / "pg_basebackup").exists():
        pytest.skip("this server comes without pg_basebackup")
    with Postgres() as primary:
        database = primary.new_database()
        install_native(database)
        database.execute(f"SELECT once.finish_new('s', 'k', {F}, 200)")
        with Postgres(settings=primary.settings, copy_of=primary) as standby:
            standby.stop()
            (standby.data / "standby.signal").touch()
            standby.start()
            told = {}
            for way in ("on", "off"):
                connection = standby.connect(database.name)
                session = Session.__new__(Session)
                session.connection, session.cursor = connection, connection.cursor()
                session.outcome(start("warm"))
                session(f"SET once.native = {way}")
                told[way] = [session.outcome(query) for query in (start(), start("l"), finish(), f"SELECT once.start_new('s', 'k', {F})",
                             f"SELECT once.start_new('s', 'l', {F})", f"SELECT once.finish_new('s', 'l', {F})", f"SELECT once.finish_new('s', 'k', {F})")]  # fmt: skip
                assert session.value(ANSWERED) == 0
                connection.close()
            assert told["on"] == told["off"]
            assert told["on"][0][0][0] == "replay" and told["on"][5][0] == "25006"


@pytest.mark.parametrize("left", [None, b"", b"\x7fELF", "/lib/x86_64-linux-gnu/libm.so.6"])
def test_a_library_that_cannot_be_loaded_breaks_no_call(db, tmp_path, left):
    tmp_path.chmod(0o755)
    for above in list(tmp_path.parents)[:3]:
        above.chmod(above.stat().st_mode | 0o055)
    path = tmp_path / "pgonce_native.so"
    shutil.copy(library(), path)
    db.execute(native_script(path))
    path.unlink()
    if left is not None:
        path.write_bytes(left if isinstance(left, bytes) else pathlib.Path(left).read_bytes())
    session = Session(db)
    session("BEGIN")
    assert session.outcome(start())[0][0] == "proceed"
    session(finish())
    session("COMMIT")
    assert session.outcome(start())[0][0] == "replay"
    assert session.value("SELECT current_setting('once.native')") == "none"


def test_a_schema_of_that_name_runs_nobody_s_code_as_the_owner(db):
    db.execute("""CREATE SCHEMA once_native; CREATE TABLE public.fooled ();
        CREATE FUNCTION once_native.load() RETURNS void LANGUAGE plpgsql AS $$ BEGIN DROP TABLE public.fooled; END $$""")
    session = Session(db)
    session(start())
    assert db.value("SELECT to_regclass('public.fooled')") == "fooled"


def test_it_is_looked_for_once_also_after_discard_and_rollback(native, session):
    for statement in ("DISCARD ALL", "RESET ALL", "BEGIN", start("x"), "ROLLBACK", "SET once.native = ''"):
        session(statement)
        assert session.answered(start()) == 1


def test_where_it_is_found_in_a_transaction_that_is_rolled_back_it_stays(native):
    session = Session(native)
    session("BEGIN; SAVEPOINT x")
    session(start())
    session("ROLLBACK TO x; ROLLBACK")
    assert session.answered(start()) == 1


def test_it_is_found_in_a_read_only_transaction(native):
    session = Session(native)
    session("BEGIN READ ONLY")
    assert session.outcome(start())[0][0] == "proceed"
    session("COMMIT")
    assert session.answered(start()) == 1


def test_no_function_can_be_called_by_name(session):
    for call in ("once_native.start('a', 'b')", "once_native.start(NULL, NULL::text)", "once_native.finish(NULL::text, 1)"):
        assert session.outcome(f"SELECT {call}")[0] in ("42883", "42804", "42725", "0A000")


def test_a_cursor_goes_on_where_the_library_went_away(native, session):
    session("BEGIN")
    session(f"DECLARE c CURSOR FOR SELECT (once.start('s', 'k' || n, {F})).verdict FROM generate_series(1, 4) AS n")
    session("FETCH 2 FROM c")
    native.execute("DROP SCHEMA once_native CASCADE")
    assert session("FETCH 2 FROM c") == [("proceed",), ("proceed",)]
    session("COMMIT")


def test_a_statement_ends_in_time(native, session):
    session("SET statement_timeout = '200ms'")
    work = f"SELECT count(*) FROM generate_series(1, 100000000) AS n, LATERAL once.start_new('s', 'k' || n % 5, {F}) AS x"
    assert session.outcome(work)[0] == "57014"
    session("RESET statement_timeout")
    ended = []
    thread = threading.Thread(target=lambda: ended.append(session.outcome(work)))
    thread.start()
    pid = session.connection.info.backend_pid
    wait_until(lambda: native.value("SELECT state FROM pg_stat_activity WHERE pid = %s", pid) == "active", "the statement to run")
    native.execute("SELECT pg_cancel_backend(%s)", pid)
    thread.join()
    assert ended[0][0] == "57014"
    assert session.answered(start()) == 1


def test_a_note_without_the_lock_is_sql_s_business(session):
    session("BEGIN")
    session("SELECT set_config('once.started', E'\\x1e\\x1f\\x1fs\\x1fk\\x1f1', true)")
    assert session.answered(finish()) == 0
    session("ROLLBACK")


def test_an_insert_by_hand_in_an_open_transaction_is_sql_s_business(native, session):
    """Whoever inserts without the lock holds up SQL's INSERT, and gets in its way; C leaves it that decision."""
    hand = native.connect(autocommit=False)
    session("BEGIN")
    session(start())
    hand.cursor().execute(f"""INSERT INTO once.intent (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint)
        VALUES (now(), now(), now(), 0, 1, 1, 'succeeded', '', 's', 'k', {F})""")
    ended = []
    thread = threading.Thread(target=lambda: ended.append(session.outcome(finish())))
    thread.start()
    pid = session.connection.info.backend_pid
    wait_until(lambda: native.value("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", pid) == "Lock", "finish to wait")
    hand.commit()
    thread.join()
    assert ended[0][0] == "P4010"


def claimed(session, key="k"):
    session(f"SELECT once.claim('s', '{key}', {F})")
    return f"SELECT once.complete('s', '{key}', 1, 200, response_text => 'done')"


def in_a_thread(native, session, query, meanwhile):
    """What a statement comes to that waits for another transaction until that has done its part."""
    ended = []
    thread = threading.Thread(target=lambda: ended.append(session.outcome(query)))
    thread.start()
    pid = session.connection.info.backend_pid
    try:
        wait_until(lambda: native.value("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", pid) == "Lock" or ended, "the statement to wait")
    finally:
        waited = not ended
        meanwhile()
        thread.join()
    assert waited, ended
    return ended[0]


@pytest.mark.parametrize("other, committed, told", [
    ("SELECT once.renew('s', 'k', 1)", True, [(True,)]),
    ("SELECT once.renew('s', 'k', 1)", False, [(True,)]),
    ("SELECT once.fail('s', 'k', 1, retryable => false)", True, "P4010"),
    ("SELECT once.fail('s', 'k', 1, retryable => false)", False, [(True,)]),
    ("SELECT once.complete('s', 'k', 1, 200, response_text => 'done')", True, [(False,)]),
    ("SELECT once.complete('s', 'k', 1, 201)", True, "P4010"),
    ("DELETE FROM once.intent WHERE key = 'k'", True, "P4010"),
    ("SELECT FROM once.intent WHERE key = 'k' FOR UPDATE", True, [(True,)]),
])  # fmt: skip
def test_a_report_waits_for_another_change_of_its_intent_and_looks_again(native, session, other, committed, told):
    report, hand = claimed(session), native.connect(autocommit=False)
    hand.cursor().execute(other)
    outcome = in_a_thread(native, session, report, hand.commit if committed else hand.rollback)
    assert outcome == told or outcome[0] == told
    stored = native.rows("SELECT state, response_body FROM once.intent WHERE key = 'k'")
    if told == [(True,)]:
        assert stored == [("succeeded", b"done")]


def test_a_report_is_a_hot_update_and_on_a_full_page_the_index_is_told(native, session):
    native.execute("CREATE EXTENSION amcheck")
    count = "SELECT pg_stat_get_xact_tuples_hot_updated('once.intent_d0'::regclass), pg_stat_get_xact_tuples_updated('once.intent_d0'::regclass)"
    report = claimed(session)
    session("BEGIN")
    assert session.answered(report) == 1
    assert [tuple(row) for row in session(count)] == [(1, 1)]
    session("COMMIT")
    native.execute("ALTER TABLE once.intent_d0 SET (fillfactor = 100)")
    reports = [claimed(session, f"k{number}") for number in range(300)]
    session("BEGIN")
    before = session(count)[0]
    assert sum(session.answered(each.replace("'done'", "repeat('x', 1000)")) for each in reports) == 300
    hot, changed = (after - earlier for after, earlier in zip(session(count)[0], before))
    assert changed == 300 > hot
    session("COMMIT")
    assert [session(start(f"k{number}"))[0].verdict for number in range(300)] == 300 * ["replay"]
    native.execute("SELECT bt_index_check('once.intent_d0_pkey'::regclass, true)")


def test_a_report_where_a_publication_cannot_name_the_row_is_refused_as_sql_refuses_it(native, session):
    native.execute("ALTER TABLE once.intent_d0 REPLICA IDENTITY NOTHING; CREATE PUBLICATION p FOR TABLE once.intent_d0")
    told = []
    for way in ("on", "off"):
        session(f"SET once.native = {way}")
        told.append(session.outcome(claimed(session, way)))
    assert told[0] == told[1] and told[0][0] == "55000"


def test_a_message_that_is_being_applied_or_taken_away_is_sql_s_business(native, session):
    for change in (f"INSERT INTO once.intent (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint) "
                   f"VALUES (now(), now(), now(), 0, 1, 1, 'succeeded', '', 's', 'm', {F})", "DELETE FROM once.intent WHERE key = 'm'"):  # fmt: skip
        hand = native.connect(autocommit=False)
        hand.cursor().execute(change)
        outcome = in_a_thread(native, session, RECEIVE, hand.commit)
        assert outcome == [("duplicate" if "INSERT" in change else "process",)]


def test_two_claims_of_one_intent_are_kept_apart(native, session):
    other = Session(native)
    session("BEGIN")
    assert session.outcome(CLAIM)[0][0] == "new_claim"
    assert other.outcome(CLAIM)[0][0] == "processing_active"
    assert other.outcome("SELECT once.receive('s', 'k', '0123456789abcdef')")[0] == "P4029"
    session("COMMIT")
    assert other.outcome(CLAIM)[0][0] == "processing_active"


def test_a_policy_that_has_changed_counts_at_once(native, session):
    for lease in ("10 minutes", "3 days", "1 hour"):
        native.execute("SELECT once.set_scope('s', lease => %s)", lease)
        key = lease.replace(" ", "")
        assert session.answered(f"SELECT once.claim('s', '{key}', {F})") == 1
        assert native.value("SELECT lease_until - created_at = %s FROM once.intent WHERE key = %s", lease, key)


def test_work_goes_on_while_everything_changes_under_it(native):
    """Rows, answers and the index are whole after four sessions have worked beside one that does what administrators do."""
    native.execute("CREATE EXTENSION amcheck")
    text = native.value("SELECT pg_get_functiondef('once._note_start'::regproc)")
    changes = [
        text,
        "ANALYZE once.intent_d0",
        "ANALYZE once.outbox",
        f"CREATE INDEX y ON once.outbox_d{int(time.time() // 86400)} (created_at)",
        "DROP INDEX once.y",
        "ALTER TABLE once.intent_d0 SET (fillfactor = 60)",
        "CREATE INDEX x ON once.intent_d0 (created_at)",
        "DROP INDEX once.x",
        "DROP SCHEMA once_native CASCADE",
        native_script(),
        "ALTER TABLE once.intent_d0 ADD CONSTRAINT x CHECK (key <> '')",
        "ALTER TABLE once.intent_d0 DROP CONSTRAINT x",
        "REINDEX TABLE once.intent_d0",
        "SELECT once.add_days()",
        "VACUUM FULL once.intent_d0",
    ]
    done, reported, received, emitted, wrong, over = [], [], [], [], [], threading.Event()

    def work(number):
        session = Session(native)
        session(f"PREPARE s (text) AS SELECT verdict FROM once.start('s', $1, {F})")
        session(f"PREPARE f (text) AS SELECT once.finish('s', $1, {F}, response_text => $1)")
        session(f"PREPARE c (text) AS SELECT verdict FROM once.claim('c', $1, {F})")
        session("PREPARE d (text) AS SELECT once.complete('c', $1, 1, 200, response_text => $1)")
        session("PREPARE e (text) AS SELECT once.emit('t', '1', scope => 's', key => $1)")
        session(f"PREPARE r (text) AS SELECT once.receive('r', $1, {F})")
        count = 0
        while not over.is_set():
            key = f"{number}-{count}" if count % 2 else uuid7()
            try:
                session("BEGIN")
                assert session.value("EXECUTE s (%s)", key) == "proceed"
                session("EXECUTE f (%s)", key)
                session("COMMIT")
                assert session.value("EXECUTE s (%s)", key) == "replay"
                done.append(key)
                assert session.value("EXECUTE c (%s)", key) == "new_claim"
                assert session.value("EXECUTE d (%s)", key) is True
                reported.append(key)
                assert session.value("EXECUTE r (%s)", key) == "process"
                received.append(key)
                session("EXECUTE e (%s)", key)
                emitted.append(key)
            except psycopg2.errors.DeadlockDetected:
                session("ROLLBACK")
            except (AssertionError, psycopg2.Error) as error:
                wrong.append(error)
                return
            count += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(6):
            for change in changes:
                before = len(done)
                for attempt in range(5):
                    try:
                        native.execute(change)
                        break
                    except (psycopg2.errors.DeadlockDetected, psycopg2.errors.InternalError_):
                        continue
                wait_until(lambda: len(done) > before + 20 or wrong, "the work to go on")  # pylint: disable=cell-var-from-loop
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert sorted(row.key for row in native.rows("SELECT key FROM once.intent WHERE response_body = convert_to(key, 'UTF8') AND scope = 's'")) == sorted(done)
    for query, expected in (("SELECT key FROM once.intent WHERE scope = 'c' AND state = 'succeeded'", reported), ("SELECT key FROM once.intent WHERE scope = 'r'", received),
                            ("SELECT key FROM once.outbox", emitted)):  # fmt: skip
        assert sorted(row.key for row in native.rows(query)) == sorted(expected)
    assert native.rows("""SELECT bt_index_check(i.indexrelid, true) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
        WHERE i.indrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent IN ('once.intent'::regclass, 'once.outbox'::regclass)) AND c.relkind = 'i'""")
