# SPDX-License-Identifier: PostgreSQL
"""pgonce_native: what C answers is what SQL answers. The whole contract's tests run with it, too (PGONCE_NATIVE=1); here, in test_changes.py and in
test_rights.py is what only it can break."""

import threading

import pytest

from harness.native import install_native, library
from harness.postgres import Postgres, wait_until
from harness.wire import Wire

from .sessions import ANSWERED, CLAIM, F, OTHER, RECEIVE, Session, claimed, emit, finish, in_a_thread, start, told_both_ways, uuid7, with_more

pytestmark = pytest.mark.skipif(not library().exists(), reason="native/ is not built: no headers of a server")


def test_a_new_intent_and_its_replay_are_answered_in_c(session):
    session(emit("first"))  # moves the sequence of the latest day on
    for key in ("k", uuid7()):
        session("BEGIN")
        assert session.answered(start(key)) == 1
        assert session.answered(finish(key, ", 201, response_json => '{\"a\": 1}'")) == 1
        session("COMMIT")
        assert session.answered(start(key)) == 1
        assert session.answered(start(key).replace('once.start', 'once.try_start')) == 1
        assert session.answered(f"SELECT once.finish_new('s', 'b{key}', {F}, 200)") == 1
        assert session.answered(f"SELECT once.claim('s', 'c{key}', {F})") == 1
        assert session.answered(f"SELECT once.complete('s', 'c{key}', 1, 200, response_text => 'done')") == 1
        assert session.answered(f"SELECT once.claim('s', 'd{key}', {F}, 'me', '90 s')") == 1
        assert session.answered(emit(key)) == 1
        assert session.answered("SELECT once.emit('t', '1', 'order', '7')") == 1
        assert session.answered(f"SELECT once.receive('s', 'm{key}', {F})") == 1
        assert session.answered(f"SELECT once.receive('s', 'm{key}', {F})") == 1
        assert session.answered("SELECT once.salt('t')") == 1


TOMORROW = "@tomorrow1@"
EMIT_BYTES = r"SELECT once.emit_bytes('t', '\x00ff', 'a/b', scope => 's', key => 'k')"
MAKE_DAY = "SELECT once._make_day('outbox', once._today() - %s)"
HEADERS = "jsonb_build_object('X-Long', repeat('x', 65522) || %s)"  # 64 KiB as text, and more

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
    "headers that are too large": [[start(key), finish(key, f", response_headers => {HEADERS % more}")] for key, more in (("k", "''"), ("l", "'x'"))],
    "results that are too large": [[start(), finish(more=", result_type => repeat('t', 255), result_id => repeat('i', 2048)")], [start("l"), finish("l", ", result_type => repeat('t', 256)")], [start("m"), finish("m", ", result_id => repeat('i', 2049)")]],
    "words that are cut": [[start(f"k{number}"), finish(f"k{number}", more=f", state => 'failed_final', error_code => {code}, error_message => {message}")] for number, (code, message) in enumerate((
        ("repeat('c', 255)", "repeat('m', 4096)"), ("repeat('c', 256)", "'m'"), ("'c'", "repeat('m', 4097)"), ("repeat('ü', 255)", "repeat('ü', 4096)"), ("repeat('ü', 256)", "repeat('ü', 4097)")))],
    "mismatch": [[start(), finish()], [start(fingerprint=OTHER)]],
    "other fingerprint at the end": [[start(), finish(fingerprint=OTHER)], [start()]],
    "no start": [[finish()]],
    "twice": [[start(), finish(), finish()]],
    "finished, started, finished": [[start(), finish(), start(), finish()]],
    "started twice": [[start(), start(), finish()]],
    "two intents": [[start("a"), start("b"), finish("a"), finish("b")]],
    "a savepoint takes it back": [[start(), "SAVEPOINT x", finish(), "ROLLBACK TO x", finish(more=", 404")], [start()]],
    "a savepoint takes the start back": [["SAVEPOINT x", start(), "ROLLBACK TO x", finish()]],
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
    "tomorrow": [[start(TOMORROW)], [f"SELECT once.finish_new('s', '{TOMORROW}', {F})"]],
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
    "a message of tomorrow, by its birthday": [[with_more(RECEIVE.replace("'m'", f"'{TOMORROW}'"), ", birthdays => true)")]],
    "events": [[emit()], [emit()], [emit(payload='{"n": 2}')], [emit(more=", event_type => 'other'")], [emit("l", ', scope => NULL')], [emit(more=", headers => '{\"H\": 1}'")]],
    "events of one transaction": [[start(), emit(), emit("l", more=", aggregate_type => 'a', aggregate_id => 'i'"), emit(), finish(), "SAVEPOINT x", emit("m"), "ROLLBACK TO x", emit("m", payload='[]')]],
    "events of bytes": [[EMIT_BYTES], [EMIT_BYTES], [emit()], [EMIT_BYTES.replace("x00ff", "x")], [EMIT_BYTES.replace("'a/b'", "'a/c'")], [EMIT_BYTES.replace("'a/b'", "NULL")], [emit("l")], [EMIT_BYTES.replace("'k'", "'l'")]],
    "names of events": [["SELECT once.emit('t', '1', tenant => $$%s$$, scope => $$%s$$, key => $$%s$$, event_type => $$%s$$)" % names] for names in (
        ("", "s", "k", "e"), ("NULL", "null", 'a"b', "x\\y"), ("{a}", "a b", "c,d", "ü"), ("t", "s\t", "~", "x\n"), ("t", "S", " ", "\v"), ("\u00a0", "\u3000", "k", "e"))],
    "events that are none": [["SELECT once.emit(NULL, '1')"], ["SELECT once.emit('', '1')"], ["SELECT once.emit('t', NULL)"], ["SELECT once.emit('t', '1', event_type => '')"],
        ["SELECT once.emit('t', '1', scope => 's')"], ["SELECT once.emit('t', '1', key => 'k')"], ["SELECT once.emit('t', '1', headers => '[]')"],
        [f"SELECT once.emit('{'t' * 256}', '1')"], [f"SELECT once.emit('{'t' * 200}', '1', event_type => '{'e' * 200}', scope => 's', key => 'k')"], ["SELECT once.emit('t', '1', tenant => NULL)"],
        ["SELECT once.emit('t', '1', scope => 's', key => 'ä')"], [f"SELECT once.emit('t', '1', tenant => '{'t' * 256}')"]],
    "an event with all that it has": [["SELECT once.emit('t', '{\"a\": 1}', 'order', '7', 'placed', 's', 'k', '{\"h\": [1]}', 'te', '00-%s-%s-01')" % ("a" * 32, "b" * 16)], ["SELECT once.emit('t', '1', key => 'k', scope => 's', traceparent => 'none')"]],
    "events that are too large": [[f"SELECT once.emit('t', to_jsonb(repeat('x', {size})), scope => 's', key => 'k{size}')"] for size in (8190, 8191, 2000000)]
        + [["SELECT once.emit('t', ('[' || repeat('1e100000,', 11) || '1]')::jsonb, scope => 's', key => 'k')"]],
    "events with headers that are too large": [[f"SELECT once.emit('t', '1', headers => {HEADERS % more}, scope => 's', key => '{key}')"] for key, more in (("k", "''"), ("l", "'x'"))],
    "a large event": [["SELECT once.emit('t', jsonb_build_object('x', (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 500) AS n)), scope => 's', key => 'k')"]],
    "events elsewhere": [["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", emit()], ["SET TRANSACTION READ ONLY", emit("l")], ["SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", emit("m")]],
    "events of yesterday": [
        [emit("old"), emit("older"), "SELECT once.emit('t', '1', tenant => 'a', scope => 's', key => 'k')"],
        [MAKE_DAY % 1, MAKE_DAY % 3],
        ["UPDATE once.outbox SET day = day - CASE key WHEN 'older' THEN 3 ELSE 1 END"],
        [emit("old")], [emit("older")], [emit("old", payload='{"n": 2}')], [emit("older", payload='{"n": 2}')], [EMIT_BYTES.replace("'k'", "'old'")],
        [emit()], [emit()], [emit("old", more=", event_type => 'other'")], ["SELECT once.emit('t', '1', scope => 'other', key => 'old')"],
        [start(), emit("new"), emit("old"), finish()], [emit("new")], ["SELECT count(DISTINCT once.emit('t', '1'))"]],
    "many events": [["SELECT count(once.emit('t', to_jsonb(n), scope => 's', key => 'k' || n % 7)) FROM generate_series(0, 6) AS n"], ["SELECT count(DISTINCT once.emit('t', to_jsonb(n))) FROM generate_series(1, 100) AS n"]],
    "salts": [["UPDATE once.setting SET salt = 'one'"], ["SELECT once.salt()"], ["SELECT once.salt('') AS a, once.salt('t') AS b, once.salt(tenant => 'ü') AS c"], ["SELECT once.salt(NULL)"], [f"SELECT once.salt('{'t' * 255}')"], [f"SELECT once.salt('{'t' * 256}')"],
        [f"SELECT once.salt('{'ü' * 200}')"], [f"SELECT once.salt('{'ü' * 256}')"], ["SET TRANSACTION READ ONLY", "SELECT once.salt('t')"], ["SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SELECT once.salt('t')"],
        ["SELECT n, once.salt('t' || n) FROM generate_series(1, 3) AS n WHERE once.salt('t') <> once.salt('t' || n)"], ["UPDATE once.setting SET salt = 'other'", "SELECT once.salt('t')"], ["SELECT once.salt('t')"]],
    "leased": [[f"SELECT verdict, fence FROM once.claim('s', 'k', {F}, lease => '1 day')"], [f"SELECT (once.try_start('s', 'k', {F})).verdict"], ["SELECT once.complete('s', 'k', 1, 200, response_text => 'x')"], [start()]],
}  # fmt: skip
STORIES |= {
    f"{name}, tried": [[each.replace("once.start(", "once.try_start(") for each in transaction] for transaction in story]
    for name, story in STORIES.items() if any("once.start(" in each for transaction in story for each in transaction)
}  # fmt: skip


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
        assert session.value(f"SELECT verdict FROM once.start('s', '{first}', {F})") == "replay_success"


def test_another_attempt_is_refused_while_one_runs(native, session):
    other = Session(native)
    session("BEGIN")
    session(start())
    assert other.outcome(start())[0] == "P4029"
    session(finish(more=", 201"))
    assert other.outcome(start())[0] == "P4029"
    session("COMMIT")
    assert other.outcome(start())[0][0] == "replay_success"


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
        for query in (start(way), finish(way), f"SELECT once.finish_new('s', 'z{way}', {F})"):
            before = session.value(ANSWERED)
            session(f"BEGIN ISOLATION LEVEL {level}")
            session.outcome(query)
            session("ROLLBACK")
            assert session.value(ANSWERED) == before
    assert told[0] == told[1]
    assert told[0][0][0][0] == "proceed" and told[0][1][0] == "40001"


def test_a_row_is_there_for_the_next_statement_of_a_statement_that_is_not_over(native):
    """A driver that fetches in parts leaves a statement open; nothing of the server's own says then that a command has ended."""
    for way in ("on", "off"):
        with Wire(native) as wire:
            wire.query(f"BEGIN; SELECT once.start('warm', 'up', {F}); ROLLBACK")
            wire.query(f"SET once.native = {way}")
            wire.query("BEGIN")
            call = f"SELECT once.finish_new('{way}', 'k' || n, {F}) FROM generate_series(1, 3) AS n"
            assert wire.fetch_some_and_query(call, 1, f"SELECT count(*) FROM once.intent WHERE scope = '{way}'") == ["1", "1"]
            assert wire.query(ANSWERED) == (["1"] if way == "on" else ["0"])


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
                told[way] = [session.outcome(query) for query in (start(), start("l"), finish(), f"SELECT once.finish_new('s', 'l', {F})", f"SELECT once.finish_new('s', 'k', {F})")]  # fmt: skip
                assert session.value(ANSWERED) == 0
                connection.close()
            assert told["on"] == told["off"]
            assert told["on"][0][0][0] == "replay_success" and told["on"][3][0] == "25006"


def test_a_statement_ends_in_time(native, session):
    session("SET statement_timeout = '200ms'")
    work = f"SELECT count(*) FROM generate_series(1, 100000000) AS n, LATERAL once.start('s', 'k' || n % 5, {F}) AS x"
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
    session("SELECT set_config('once.started', E'\\x1e\\x1f\\x1fs\\x1fk\\x1f\\\\x30313233343536373839616263646566\\x1f1', true)")
    assert session.answered(finish()) == 0
    session("ROLLBACK")


@pytest.mark.parametrize("committed", [True, False])
def test_an_insert_by_hand_in_an_open_transaction_is_sql_s_business(native, session, committed):
    """Whoever inserts without the lock holds up SQL's INSERT, and gets in its way; C leaves it that decision."""
    hand = native.connect(autocommit=False)
    native.execute("CREATE EXTENSION amcheck")
    session("BEGIN")
    session(start())
    hand.cursor().execute(f"""INSERT INTO once.intent (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint)
        VALUES (now(), now(), now(), 0, 1, 1, 'succeeded', '', 's', 'k', {F})""")
    outcome = in_a_thread(native, session, finish(more=", response_text => 'mine'"), hand.commit if committed else hand.rollback)
    session("COMMIT")
    assert outcome[0] == "P4010" if committed else outcome == [(b"mine",)]
    assert native.rows("SELECT response_body FROM once.intent WHERE key = 'k'") == [(None if committed else b"mine",)]
    native.execute("SELECT bt_index_check('once.intent_d0_pkey', true)")


def test_a_row_that_somebody_inserts_or_deletes_by_hand_is_there_or_not_as_sql_sees_it(native, session):
    """Start waits for nobody, and never replays what is not committed."""
    row = f"""INSERT INTO once.intent (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint)
        VALUES (now(), now(), now(), 0, 1, 1, 'succeeded', '', 's', 'k', {F})"""
    for change, verdict in ((row, "proceed"), ("DELETE FROM once.intent WHERE key = 'k'", "replay_success")):
        hand = native.connect(autocommit=False)
        hand.cursor().execute(change)
        assert session.outcome(start())[0][0] == verdict
        hand.commit()
        assert session.outcome(start())[0][0] == {"proceed": "replay_success", "replay_success": "proceed"}[verdict]


INSERTED = "SELECT pg_stat_get_xact_tuples_inserted('once.intent_d0'::regclass)"
OFF, ON = "SET LOCAL once.native = off", "SET LOCAL once.native = on"
# (what was committed before, by another session; what a transaction does; how many rows it has inserted when finish is called)
LOOKS = {
    "twice": ([], [start(), finish()], 1),
    "another intent": (["BEGIN", start(), finish(more=", state => 'failed_retryable'"), "COMMIT"], [OFF, start(), ON, start("other")], 0),
    "another transaction": (["BEGIN", start(), finish(more=", state => 'failed_retryable'"), "COMMIT"], [OFF, start(), ON], 0),
    "a claim in SQL": ([], [start(), with_more(CLAIM, ", retention => '1 day')")], 1),
}


@pytest.mark.parametrize("story", LOOKS)
def test_finish_looks_where_the_row_may_be_there(native, session, story):
    """Else it would store one that the index refuses, and delete it again."""
    before, transaction, expected = LOOKS[story]
    session("BEGIN")
    assert session.answered(start()) == 1  # it is not there: of this transaction that is known
    session("ROLLBACK")
    other = Session(native)
    for statement in before:
        other(statement)
    session("BEGIN")
    for statement in transaction:
        session(statement)
    assert session.value(INSERTED) == expected
    session("SAVEPOINT x")
    answered = session.value(ANSWERED)
    session.outcome(finish())
    session("ROLLBACK TO x")
    assert session.value(ANSWERED) == answered
    assert session.value(INSERTED) == expected
    session("COMMIT")


def test_where_the_log_is_decoded_finish_never_stores_what_it_takes_back():
    """Whoever reads the changes would meet a key twice."""
    with Postgres(settings={"wal_level": "logical"}) as server:
        database = server.new_database()
        install_native(database)
        session = Session(database)
        session(f"SELECT once.start('warm', 'up', {F})")
        session("BEGIN")
        for statement in (start(), OFF, CLAIM, ON, "SAVEPOINT x"):
            session(statement)
        assert session.outcome(finish())[0] == "P4010"
        session("ROLLBACK TO x")
        assert session.value(INSERTED) == 1
        session("ROLLBACK; BEGIN")
        assert session.answered(start()) == session.answered(finish()) == 1
        session("COMMIT")


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
    assert [session(start(f"k{number}"))[0].verdict for number in range(300)] == 300 * ["replay_success"]
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
