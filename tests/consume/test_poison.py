# SPDX-License-Identifier: PostgreSQL
"""A message that cannot be applied is found, put aside with its reason, and stops nobody but its own key; nothing about a message, however
odd its bytes, stops the consumer."""
import json
import time

import pytest

from harness.postgres import wait_until
from harness.webhook import Answer, Webhook

from .script import HANDLER, Consumer, Script, consume, message

DEAD = "SELECT count(*) FROM once.parked_message WHERE state = 'dead'"


@pytest.fixture
def applied(db):
    db.execute(HANDLER)
    return db


def ids(db):
    return [row.id for row in db.rows("SELECT id FROM applied ORDER BY n")]


def dead(db, count=1):
    return lambda: db.value(DEAD) == count


def test_failing_messages_are_found_in_a_batch_and_the_rest_is_applied(applied):
    bad = {3, 77, 78, 250, 499}
    with Script([message(n, key=f"k{n}", body={"do": "fail"} if n in bad else None) for n in range(500)]) as script:
        consume(script, applied.dsn(), attempts=2, until=dead(applied, 5))
    assert ids(applied) == [f"id-{n}" for n in range(500) if n not in bad]
    rows = applied.rows("SELECT message_id, attempts, sqlstate, error, payload FROM once.parked_message ORDER BY position")
    assert [row.message_id for row in rows] == [f"id-{n}" for n in sorted(bad)]
    assert {(row.attempts, row.sqlstate) for row in rows} == {(2, "P0001")}
    assert rows[0].error.startswith("told to fail; detail: by id-3; context: PL/pgSQL function apply(once.message)")
    assert json.loads(rows[0].payload)["number"] == 3
    assert applied.value("SELECT count(*) FROM once.intent WHERE scope = 'stock'") == 495


@pytest.mark.alone
def test_attempts_back_off(applied):
    with Script([message(1, body={"do": "fail"})]) as script, Consumer(
            script, applied.dsn(), config=script.config(attempts=4, retry_first="200ms", retry_most="400ms")) as consumer:
        consumer.wait_said("attempts=1")
        started = time.monotonic()
        consumer.wait_said("event=dead")
        # 100 to 200, then 200 to 400 twice; and up to 100 for looking
        assert 0.5 <= time.monotonic() - started < 5
        consumer.stop()


def test_a_message_that_succeeds_at_last_is_forgotten_as_parked(applied):
    applied.execute("""CREATE SEQUENCE tries; CREATE FUNCTION third(m once.message) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO applied (id) VALUES (m.id); IF nextval('tries') < 3 THEN RAISE 'not yet'; END IF; END $$""")
    with Script([message(1)]) as script:
        consume(script, applied.dsn(), handler="third", until=lambda: ids(applied) == ["id-1"])
    assert applied.value("SELECT count(*) FROM once.parked_message") == 0
    with Script([message(1)]) as script:
        consume(script, applied.dsn(), handler="third")
    assert ids(applied) == ["id-1"]


def test_a_constraint_that_fails_at_commit_finds_its_message(applied):
    """The inner transaction's COMMIT is where it fails: no savepoint shows who it was."""
    applied.execute("""CREATE TABLE parent (id text PRIMARY KEY); INSERT INTO parent VALUES ('good');
        CREATE TABLE child (id text, parent text REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
        CREATE FUNCTION adopt(m once.message) RETURNS void LANGUAGE sql AS $$ INSERT INTO child VALUES (m.id, m.body->>'parent') $$""")
    with Script([message(n, body={"parent": "bad" if n == 13 else "good"}) for n in range(40)]) as script:
        consume(script, applied.dsn(), handler="adopt", attempts=2, until=dead(applied))
    assert applied.value("SELECT count(*) FROM child") == 39
    assert applied.row("SELECT message_id, attempts, sqlstate FROM once.parked_message") == ("id-13", 2, "23503")


def test_an_error_of_the_server_that_only_one_message_meets_stops_no_other(applied):
    """XX000 is nobody's fault and counts for nothing; but the others go on without it."""
    with Script([message(n, body={"do": "fail", "code": "XX000"} if n == 4 else None) for n in range(10)]) as script:
        consume(script, applied.dsn(), attempts=1)
    assert ids(applied) == [f"id-{n}" for n in range(10) if n != 4]
    assert applied.row("SELECT state, attempts, sqlstate FROM once.parked_message") == ("retrying", 0, "XX000")


def test_a_message_that_takes_too_long_is_its_own_failure(applied):
    applied.execute("""CREATE FUNCTION slow(m once.message) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_sleep(CASE m.id WHEN 'id-7' THEN 30 ELSE 0.01 END); INSERT INTO applied (id) VALUES (m.id); END $$""")
    applied.execute(f"ALTER DATABASE {applied.name} SET statement_timeout = '200ms'")  # less than a batch takes
    with Script([message(n) for n in range(40)]) as script:
        consume(script, applied.dsn(), handler="slow", attempts=2, until=dead(applied))
    assert ids(applied) == [f"id-{n}" for n in range(40) if n != 7]
    assert applied.row("SELECT message_id, sqlstate FROM once.parked_message") == ("id-7", "57014")


def test_a_handler_that_is_dropped_and_comes_back_costs_attempts_and_no_message(applied):
    with Script([message(0)]) as script, Consumer(script, applied.dsn(), config=script.config(attempts=1000)) as consumer:
        wait_until(lambda: ids(applied) == ["id-0"], "the first")
        applied.execute("ALTER FUNCTION apply RENAME TO away")
        script.add(*[message(n) for n in range(1, 10)])
        consumer.wait_said("sqlstate=42883")
        applied.execute("ALTER FUNCTION away RENAME TO apply")
        wait_until(lambda: sorted(ids(applied)) == [f"id-{n}" for n in range(10)], "all")
        assert consumer.stop() == 0


def test_what_an_outage_has_parked_drains_many_at_a_time_and_those_that_still_fail_stop_nobody(applied):
    applied.execute("""CREATE TABLE broken (yes boolean); INSERT INTO broken VALUES (true);
        CREATE FUNCTION depends(m once.message) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO applied (id, key) VALUES (m.id, m.key);
              IF (SELECT yes FROM broken) OR m.id IN ('id-177', 'id-777') THEN RAISE 'broken'; END IF; END $$""")
    with Script([message(n, key=f"k{n}") for n in range(1000)]) as script:
        with Consumer(script, applied.dsn(), config=script.config(handler="depends", attempts=1000, retry_first="1s", retry_most="2s")) as consumer:
            wait_until(lambda: applied.value("SELECT count(*) FROM once.parked_message") == 1000, "all to be parked")
            applied.execute("UPDATE broken SET yes = false")
            wait_until(lambda: len(ids(applied)) == 998, "those that can be applied")
            assert consumer.stop() == 0
    assert applied.value("SELECT count(*) FROM once.parked_message WHERE state = 'retrying'") == 2
    assert applied.value("SELECT count(DISTINCT id) FROM applied") == 998
    assert applied.value("SELECT count(DISTINCT xmin::text) FROM applied") < 500


# ---- ids


def parked(db):
    return db.row("SELECT message_id, state, error, sqlstate, topic, key FROM once.parked_message")


@pytest.mark.parametrize("given, options, words", [
    (message(1, id=None), {}, "it has no id: its header Pgonce-Event-Id is missing"),
    (message(1, id=""), {}, "its header Pgonce-Event-Id is empty"),
    (message(1), {"id": "header:X-Id"}, "its header X-Id is missing"),
    (message(1), {"id": "json:/order/id"}, "its payload has no /order/id"),
    (message(1, body={"order": {"id": [1]}}), {"id": "json:/order/id"}, "/order/id in its payload is an object or an array"),
    (message(1, body={"order": {"id": None}}), {"id": "json:/order/id"}, "its payload has no /order/id"),
    (message(1, payload="{"), {"id": "json:/order/id"}, "its payload is not JSON"),
    (message(1), {"id": "coordinates"}, "its broker gives it no coordinates"),
    (message(1, topic=b"t\xff\n"), {}, r"topic is not UTF-8: t\xff\x0a"),
    (message(1, headers=[(b"na\xffme", "v")]), {}, r"not UTF-8: na\xffme"),
])
def test_a_message_that_cannot_be_told_apart_is_dead_at_once_with_its_reason(applied, given, options, words):
    with Script([given, message(2, headers={"X-Id": "x"}, body={"order": {"id": 2}}, coordinates="t/2")]) as script:
        consume(script, applied.dsn(), **options)
        script.acks.unlink()
        consume(script, applied.dsn(), **options)  # delivered again: still one row
    row = parked(applied)
    assert row.state == "dead" and words in row.error.replace("the message has", "it has"), row.error
    assert row.message_id.startswith("pgonce:unusable:") and row.sqlstate in ("P4001", "22021")
    assert applied.value("SELECT count(*) FROM applied") == 1


@pytest.mark.parametrize("key", ["x" * 256, "é", "a\nb", b"\xff\xfe", "a\x00b", "sha256:abc", "pgonce:unusable:1"], ids=ascii)
def test_an_id_that_the_contract_does_not_take_is_hashed(applied, key):
    with Script([message(1, id=key), message(1, id=key), message(2, id="plain"), message(3, id="x" * 255)]) as script:
        consume(script, applied.dsn())
    first, *rest = ids(applied)
    assert len(first) == 71 and first.startswith("sha256:") and first != key
    assert rest == ["plain", "x" * 255]


@pytest.mark.parametrize("origin, given, expected", [
    ("json:/order/id", {"order": {"id": "o-1"}}, "o-1"),
    ("json:/order/id", {"order": {"id": 100000000000000000000000001}}, "100000000000000000000000001"),
    ("json:/a~1b/0/~0", {"a/b": [{"~": True}]}, "true"),
    ("json:/", {"": "empty name"}, "empty name"),
    ("header:x-id", None, "from the header"),
    ("coordinates", None, "orders/3/1071"),
])
def test_where_an_id_is_found(applied, origin, given, expected):
    with Script([message(1, body=given, headers={"X-ID": "from the header"}, coordinates="orders/3/1071")]) as script:
        log = consume(script, applied.dsn(), id=origin)
    assert ids(applied) == [expected]
    assert ("event=id hint" in log) == (origin == "coordinates")


@pytest.mark.parametrize("order_by, given, expected", [
    ("key", {"key": "k"}, "k"),
    ("key", {"headers": {"pgonce-key": "k"}}, "k"),
    ("key", {"key": "own", "headers": {"Pgonce-Key": "k"}}, "own"),
    ("key", {"key": b"\x00\xff"}, "base64:AP8="),
    ("key", {"key": ""}, None),
    ("key", {}, None),
    ("header:account", {"headers": {"Account": "7"}, "key": "k"}, "7"),
    ("json:/account", {"body": {"account": 7}}, "7"),
    ("none", {"key": "k"}, None),
])
def test_where_a_key_is_found(applied, order_by, given, expected):
    with Script([message(1, **given)]) as script:
        consume(script, applied.dsn(), order_by=order_by)
    assert applied.value("SELECT key FROM applied") == expected


def test_a_key_of_any_length_can_be_parked(applied):
    with Script([message(1, key="k" * 100000, body={"do": "fail"}), message(2, key="k" * 100000), message(3)]) as script:
        consume(script, applied.dsn(), attempts=1)
    assert applied.rows("SELECT message_id, state FROM once.parked_message ORDER BY position") == [("id-1", "dead"), ("id-2", "waiting")]


def test_headers_that_are_no_text_are_given_in_base64(applied):
    with Script([message(1, headers=[("bytes", b"\x00\xff"), ("twice", "a"), ("twice", "b")])]) as script:
        consume(script, applied.dsn())
    assert applied.value("SELECT headers FROM applied") == {"bytes": {"base64": "AP8="}, "twice": "b", "Pgonce-Event-Id": "id-1"}


def test_an_id_that_comes_with_another_payload_is_dead_under_an_id_of_its_own(applied):
    with Script([message(1), message(1, payload="other"), message(2)]) as script:
        consume(script, applied.dsn())
        script.add(message(1, payload="third"), message(1), message(1, payload="other"))
        consume(script, applied.dsn())
    assert ids(applied) == ["id-1", "id-2"]
    rows = applied.rows("SELECT message_id, state, sqlstate, error, payload FROM once.parked_message ORDER BY position")
    assert [(row.state, row.sqlstate, row.payload) for row in rows] == [("dead", "P4050", b"other"), ("dead", "P4050", b"third")]
    assert all(row.message_id.startswith("pgonce:unusable:") and "the id id-1 came before" in row.error for row in rows)


# ---- bodies

PAYLOADS = [
    b'{"a": 1}', b'"text"', b"17", b"null", b"[]", b" \t\r\n[1 , 2]\n", b"", b"{", b'{"a":1}x', b"{'a':1}", b"nul", b"01", b"-", b"1.", b".5", b"1e", b"+1",
    b'"\\u0000"', b'{"\\u0000": 1}', b'"\\ud800"', b'"\\udc00"', b'"\\ud83d\\ude00"', b'"\\ud800\\u0041"', b'"\\x"', b'"\t"', b'"\x7f"', b"\xef\xbb\xbf{}",
    b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b"\x00", b'"\x00"', b"1e1000", b"1e131071", b"1e131072", b"1e400000", b"1e-16383", b"1e-16384", b"-0",
    b"1e99999999999999999999", b"9" * 2000, b"9" * 140000, b"0." + b"1" * 17000, b'{"a":1,"a":2}', b"[" * 60 + b"]" * 60, b"[" * 120 + b"]" * 120,
    b"[" * 2000 + b"]" * 2000, b"[" * 9000 + b"]" * 9000, b"[" * 200000 + b"]" * 200000, b"[" * 150, b'"' + b"x" * 100000 + b'"', "\u00e9".encode(),
    b'{"' + b"n" * 70000 + b'": 1}', b"[1,]", b'{"a":}', b'{"a"}', b"{,}", b"tru", b"true false", b"NaN", b"Infinity", b"1E+5", b"1e5.5",
]


def test_the_body_is_what_postgresql_takes_as_jsonb_and_else_null(applied):
    with Script([message(n, payload=payload) for n, payload in enumerate(PAYLOADS)]) as script:
        consume(script, applied.dsn(), batch=20)
    assert applied.value("SELECT count(*) FROM once.parked_message") == 0
    applied.execute("""CREATE FUNCTION as_jsonb(payload bytea) RETURNS jsonb LANGUAGE plpgsql AS $$
        BEGIN RETURN convert_from(payload, 'UTF8')::jsonb; EXCEPTION WHEN OTHERS THEN RETURN NULL; END $$""")
    rows = applied.rows("SELECT id, payload, body::text AS body, as_jsonb(payload)::text AS expected FROM applied ORDER BY n")
    assert [row.payload for row in rows] == PAYLOADS
    assert [row.id for row in rows if row.body != row.expected] == []


def test_where_our_own_reading_of_json_is_wrong_the_server_is_asked(applied):
    """A server that takes less than ours believes: a cast that raises, as for a limit that we do not know."""
    applied.execute(f"ALTER DATABASE {applied.name} SET max_stack_depth = '100kB'")
    deep = b"[" * 900 + b"]" * 900
    applied.execute("CREATE OR REPLACE FUNCTION picky(m once.message) RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
                    " INSERT INTO applied (id, body) VALUES (m.id, m.body); IF m.id = 'id-1' THEN RAISE SQLSTATE '22P02'; END IF; END $$")
    with Script([message(0, payload=deep), message(1), message(2, payload="no json")]) as script:
        consume(script, applied.dsn(), handler="picky", attempts=2, until=dead(applied))
    assert ids(applied) == ["id-0", "id-2"]  # the handler's own 22P02 is not taken for the payload's
    assert applied.value("SELECT body FROM applied WHERE id = 'id-0'") is None
    assert applied.row("SELECT message_id, attempts FROM once.parked_message") == ("id-1", 2)


def test_a_batch_of_which_all_fail_as_a_wrong_cast_does_is_asked_about_once(applied):
    """Asking about one message after another would cost a try of the whole batch for each."""
    with Script([message(n, key=f"k{n}", body={"do": "fail", "code": "22P02"}) for n in range(60)]) as script:
        log = consume(script, applied.dsn(), attempts=1000, retry_first="1h", retry_most="1h")
    assert log.count("event=retrying") == 60
    assert applied.row("SELECT count(*), min(attempts), max(attempts) FROM once.parked_message WHERE state = 'retrying'") == (60, 1, 1)


def test_the_wish_to_stop_is_heard_before_a_batch_is_tried_again(applied):
    applied.execute("""CREATE SEQUENCE calls; CREATE FUNCTION waits(m once.message) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN PERFORM nextval('calls'); PERFORM pg_advisory_xact_lock(7); RAISE SQLSTATE '22P02'; END $$""")
    connection = applied.connect()
    with Script([message(1)]) as script, connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(7)")
        with Consumer(script, applied.dsn(), config=script.config(handler="waits")) as consumer:
            wait_until(lambda: applied.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == 1, "the handler to wait")
            consumer.process.terminate()
            cursor.execute("SELECT pg_advisory_unlock(7)")
            assert consumer.ends() == 0 and script.acknowledged() == []
    assert applied.value("SELECT last_value FROM calls") == 1


@pytest.mark.parametrize("code", ["08001", "28000", "3D000", "53300", "57P03", "25006"])
def test_a_handler_that_raises_what_a_lost_connection_says_is_found_and_stops_no_other(applied, code):
    """As a foreign table does whose server is away."""
    with Script([message(n, key=f"k{n}", body={"do": "fail", "code": code} if n == 4 else None) for n in range(6)]) as script:
        log = consume(script, applied.dsn(), attempts=1, retry_first="1h", retry_most="1h")
    assert ids(applied) == [f"id-{n}" for n in range(6) if n != 4]
    assert applied.row("SELECT message_id, state, attempts, sqlstate FROM once.parked_message") == ("id-4", "retrying", 0, code)
    assert log.count("event=connected ") == 1


def test_a_lost_connection_that_only_the_commit_meets_is_found_too(applied):
    applied.execute("""CREATE FUNCTION away() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF NEW.id = 'id-4' THEN RAISE SQLSTATE '08001'; END IF; RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER later AFTER INSERT ON applied DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION away()""")
    with Script([message(n, key=f"k{n}") for n in range(6)]) as script:
        consume(script, applied.dsn(), attempts=1, retry_first="1h", retry_most="1h")
    assert ids(applied) == [f"id-{n}" for n in range(6) if n != 4]
    assert applied.row("SELECT message_id, state, attempts, sqlstate FROM once.parked_message") == ("id-4", "retrying", 0, "08001")


@pytest.mark.parametrize("code", ["P4029", "P4041", "P4050"])
def test_a_handler_that_raises_a_code_of_the_contract_has_all_its_attempts(applied, code):
    with Script([message(1, body={"do": "fail", "code": code})]) as script:
        consume(script, applied.dsn(), attempts=4, until=dead(applied))
    assert applied.row("SELECT attempts, sqlstate FROM once.parked_message") == (4, code)


# ---- the dead topic, back-pressure


def test_a_dead_message_is_sent_to_the_dead_topic(applied):
    with Script([message(1, key="k", body={"do": "fail"}, headers={"a": "b", "Nats-Msg-Id": "x"}), message(2, id=None, payload="no id"), message(3)]) as script:
        consume(script, applied.dsn(), attempts=2, dead_topic="graves", dead=script.dead, until=dead(applied, 2))
        letters = sorted(script.dead_letters(), key=lambda letter: letter["headers"]["Pgonce-Dead-Sqlstate"])
    assert [letter["topic"] for letter in letters] == ["graves", "graves"] and letters[1]["payload"] == "no id"
    headers = letters[1]["headers"]
    assert headers["Pgonce-Dead-Id"].startswith("pgonce:unusable:") and headers["Pgonce-Dead-Attempts"] == "0"
    headers = letters[0]["headers"]
    assert headers.pop("Pgonce-Dead-Error").startswith("told to fail; detail: by id-1; context: ")
    assert headers == {"a": "b", "Pgonce-Event-Id": "id-1", "Pgonce-Dead-Id": "id-1", "Pgonce-Dead-Consumer": "stock", "Pgonce-Dead-Topic": "orders",
                       "Pgonce-Dead-Sqlstate": "P0001", "Pgonce-Dead-Attempts": "2"}
    assert "Pgonce-Dead" not in str(applied.rows("SELECT headers FROM once.parked_message"))


@pytest.mark.parametrize("way", ["handler", "endpoint"])
def test_a_copy_that_is_sent_back_from_the_dead_topic_changes_nothing_and_the_log_says_what_does(applied, way):
    """Brokers offer to redrive their dead letters, and the message is still here."""
    again = message(1, body={"do": "fail"}, headers={"Pgonce-Dead-Id": "id-1", "Pgonce-Dead-Consumer": "stock"})
    with Webhook() as endpoint, Script([message(1, body={"do": "fail"})]) as script:
        endpoint.script = lambda _: Answer(status=422)
        options = {"handler": None, "endpoint": endpoint.url} if way == "endpoint" else {}
        options = {"attempts": 1, "dead_topic": "graves", "dead": script.dead, **options}
        with Consumer(script, applied.dsn(), config=script.config(**options)) as consumer:
            wait_until(dead(applied), "it to be dead")
            script.add(message(1, body={"do": "fail"}))
            wait_until(lambda: len(script.acknowledged()) == 2, "a redelivery to be acknowledged")
            assert "event=returned" not in consumer.said()
            script.add(again)
            wait_until(lambda: len(script.acknowledged()) == 3, "the copy to be acknowledged")
            consumer.wait_said("event=returned message=\"id-1\" hint=")
            assert "pgonce parked retry" in consumer.said() and dead(applied)() and len(script.dead_letters()) == 1
            assert consumer.stop() == 0


def test_a_dead_topic_that_is_away_loses_nothing_and_stops_nobody(applied):
    with Script([message(1, key="k", body={"do": "fail"}), message(2, id=None), message(3, key="other")]) as script:
        graves = script.directory / "graves"
        options = {"attempts": 1, "dead_topic": "graves", "dead": graves / "file"}
        with Consumer(script, applied.dsn(), config=script.config(**options)) as consumer:
            wait_until(lambda: len(script.acknowledged()) == 3, "all to be acknowledged")
            consumer.wait_said("event=dead_topic", 3)
            rows = applied.rows("SELECT state, error FROM once.parked_message")
            assert [row.state for row in rows] == ["retrying"] * 2 and all("not yet sent to graves: no such topic" in row.error for row in rows)
            assert ids(applied) == ["id-3"]
            graves.mkdir()
            wait_until(dead(applied, 2), "both to be dead")
            assert consumer.stop() == 0
        assert sorted(json.loads(line)["headers"]["Pgonce-Dead-Sqlstate"] for line in (graves / "file").read_text().splitlines()) == ["P0001", "P4001"]


OPEN = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgonce%' AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"


@pytest.mark.parametrize("door", ["function", "endpoint"])
def test_a_dead_topic_that_takes_nothing_is_waited_for_in_no_transaction_and_for_a_limited_time(applied, door):
    """Each message took 5 s of its batch's transaction, and the end of the process waited for all of them."""
    with Script([message(n, id=None, key=f"k{n}") for n in range(40)]) as script:
        hang = script.directory / "hang"
        hang.touch()
        more = {"endpoint": "http://127.0.0.1:9/"} if door == "endpoint" else {}
        with Consumer(script, applied.dsn(), config=script.config(dead_topic="graves", dead=script.dead, hang=hang, **more)) as consumer:
            wait_until(lambda: hang.stat().st_size == 1, "the first copy")
            rows = applied.rows("SELECT state, error FROM once.parked_message")
            assert len(rows) == 40 and {row.state for row in rows} == {"retrying"} and "not yet sent to graves" in rows[0].error
            assert applied.value(OPEN) == 0
            started = time.monotonic()
            assert consumer.stop(15) == 0
            assert time.monotonic() - started < 10 and hang.stat().st_size == 1
        assert script.dead_letters() == []
        hang.unlink()
        with Consumer(script, applied.dsn(), config=script.config(dead_topic="graves", dead=script.dead, hang=hang, **more)) as consumer:
            wait_until(dead(applied, 40), "all to be dead")
            assert consumer.stop() == 0
        assert len({letter["headers"]["Pgonce-Dead-Id"] for letter in script.dead_letters()}) == 40


def test_a_dead_topic_that_takes_nothing_is_left_alone_while_others_go_on(applied):
    with Script([message(n, body={"do": "fail"}) for n in range(10)]) as script:
        hang = script.directory / "hang"
        hang.touch()
        options = {"attempts": 1, "dead_topic": "graves", "dead": script.dead, "hang": hang}
        with Consumer(script, applied.dsn(), config=script.config(**options)) as consumer:
            consumer.wait_said("event=dead_topic")
            script.add(*[message(n) for n in range(100, 400)])
            wait_until(lambda: len(ids(applied)) == 300, "the others")
            assert hang.stat().st_size <= 2
            hang.unlink()
            wait_until(dead(applied, 10), "those to be dead")
            assert consumer.stop() == 0
        assert len(script.dead_letters()) == 10


def test_a_batch_that_is_rolled_back_sends_no_copy(applied):
    """The copy is that of a message that is dead: here the server fails after the message was found to be."""
    applied.execute("""CREATE TABLE broken (yes boolean); INSERT INTO broken VALUES (true);
        CREATE FUNCTION once_broken(m once.message) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN IF m.id = 'id-2' AND (SELECT yes FROM broken) THEN RAISE 'no' USING ERRCODE = '40001'; END IF;
        INSERT INTO applied (id) VALUES (m.id); END $$""")
    with Script([message(1, id=None), message(2)]) as script:
        with Consumer(script, applied.dsn(), config=script.config(handler="once_broken", dead_topic="graves", dead=script.dead)) as consumer:
            consumer.wait_said("sqlstate=40001", 2)
            assert script.dead_letters() == [] and applied.value("SELECT count(*) FROM once.parked_message") == 0
            applied.execute("UPDATE broken SET yes = false")
            wait_until(dead(applied), "the first to be dead")
            assert consumer.stop() == 0
        assert len(script.dead_letters()) == 1 and ids(applied) == ["id-2"]


def test_what_waits_behind_a_dead_message_goes_on_when_its_copy_is_sent(applied):
    with Script([message(1, key="k", body={"do": "fail"}), message(2, key="k"), message(3, key="k")]) as script:
        consume(script, applied.dsn(), attempts=1, on_dead="skip", dead_topic="graves", dead=script.dead, until=lambda: ids(applied) == ["id-2", "id-3"])
        assert len(script.dead_letters()) == 1
    assert applied.row("SELECT message_id, state, attempts FROM once.parked_message") == ("id-1", "dead", 1)


def test_the_waits_for_a_dead_topic_that_is_away_grow_also_where_no_handler_can_have_the_message(applied):
    with Script([message(1, id=None)]) as script, Consumer(
            script, applied.dsn(), config=script.config(dead_topic="graves", retry_first="1ms", retry_most="1h")) as consumer:
        wait_until(lambda: applied.value("SELECT max(attempts) FROM once.parked_message") == 5, "the fifth try")
        assert consumer.stop() == 0
    assert applied.row("SELECT state, sqlstate FROM once.parked_message") == ("retrying", "P4001")


def test_with_parked_max_parked_no_more_are_taken_from_the_broker(applied):
    with Script([message(n, body={"do": "fail"}) for n in range(10)]) as script:
        with Consumer(script, applied.dsn(), config=script.config(parked_max=10, batch=10, attempts=1)) as consumer:
            consumer.wait_said("event=full")
            script.add(message(100))
            assert not consumer.process.poll() and len(script.acknowledged()) == 10
            time.sleep(0.7)  # it looks for new ones several times in this, if it does
            assert ids(applied) == []
            applied.execute("SELECT once.parked_discard('id-4', 'a test', consumer => 'stock')")
            wait_until(lambda: ids(applied) == ["id-100"], "the new one")
            assert "event=not_full" in consumer.said()
            assert consumer.stop() == 0


def test_a_payload_of_many_megabytes_goes_in_a_transaction_of_its_own(applied):
    with Script([message(n, payload=json.dumps("x" * 3_000_000)) for n in range(6)]) as script:
        log = consume(script, applied.dsn())
    assert log.count("event=batch messages=2 ") == 3
    assert applied.value("SELECT count(*) FROM applied WHERE length(payload) = 3000002 AND body IS NOT NULL") == 6
