# SPDX-License-Identifier: PostgreSQL
"""What an attempt says of itself: whose an event is, what may be an id, why an outcome is unknown, what the log is told."""

import asyncio
import datetime
import enum
import logging
import re
import uuid

import psycopg
import psycopg_pool
import pytest

import pgonce
import pgonce.aio

from drivers import NAMES, AsyncDoor, opened
from frameworks import AWAY, SERVICES
from .steps import Runner
from .effects import INSERT, effect_of, reach


@pytest.fixture(scope="module", params=NAMES)
def door(request, server):
    db = server.database()
    with opened(request.param, db.url) as made:
        made.name, made.db = request.param, db
        yield made


def effect(door, work):
    """work(tx) gives what to await, of an asynchronous driver."""
    if isinstance(door, AsyncDoor):

        async def awaited(tx):
            for each in work(tx):
                await each

        return awaited
    return lambda tx: list(work(tx)) and None


def event(db, topic):
    return db.rows("SELECT tenant, scope, key FROM once.outbox WHERE topic = %s", topic)


# ---- events ----


def test_an_event_is_of_the_intent_in_whose_attempt_it_is_emitted(door):
    def work(tx):
        yield door.within("emit", tx, "of.run", {})
        yield door.within("emit", tx, "of.another", {}, scope="carts", key=8, tenant="other")
        yield door.within("emit", tx, "of.none", {}, scope=None, key=None)

    door.run("events", "run-1", 1, effect(door, work), tenant=42)
    door.consume("stock", "message-1", b"1", effect(door, lambda tx: [door.within("emit", tx, "of.consume", {})]), tenant="acme")
    assert event(door.db, "of.run") == [("42", "events", "run-1")]
    assert event(door.db, "of.another") == [("other", "carts", "8")]
    assert event(door.db, "of.none") == [("42", None, None)]
    assert event(door.db, "of.consume") == [("acme", "stock", "message-1")]


def test_a_delayed_event_is_held_until_then(door):
    at = datetime.datetime(2090, 10, 29, 2, 30, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))

    def work(tx):
        yield door.within("emit", tx, "of.later", {"n": 1}, not_before=at)

    door.run("events", "later-1", 1, effect(door, work), tenant=42)
    assert event(door.db, "of.later") == []
    held = door.db.rows("SELECT topic, tenant, scope, key, payload::text, extract(epoch FROM not_before)::bigint FROM once.delayed_event")
    assert held == [("of.later", "42", "events", "later-1", '{"n": 1}', int(at.timestamp()))]


@pytest.mark.parametrize("given", [bytes, bytearray, memoryview])
def test_an_event_of_bytes_is_of_its_intent_and_has_each_byte(door, given):
    topic, everything = f"of.{given.__name__}", bytes(range(256))

    def work(tx):
        yield door.within("emit_bytes", tx, topic, given(everything), "application/x-protobuf", headers={"region": "eu"})

    door.run("events", topic, 1, effect(door, work), tenant="acme")
    stored = door.db.rows("SELECT tenant, scope, key, payload_bytes, content_type, headers FROM once.outbox WHERE topic = %s", topic)
    assert [(*row[:3], bytes(row[3]), *row[4:]) for row in stored] == [("acme", "events", topic, everything, "application/x-protobuf", {"region": "eu"})]


@pytest.mark.parametrize("payload, content_type", [("text", "text/plain"), ([1], "a/b"), (None, "a/b"), (b"", None), (b"", b"a/b")])
def test_what_is_no_bytes_is_not_encoded_by_guess(door, payload, content_type):
    with pytest.raises(pgonce.errors.UsageError):
        door.run("events", "bytes-2", 1, effect(door, lambda tx: [door.within("emit_bytes", tx, "of.no.bytes", payload, content_type)]))
    assert event(door.db, "of.no.bytes") == []


@pytest.mark.parametrize("wrong", [datetime.datetime(2090, 10, 29), "2090-10-29", 7])
def test_a_time_without_a_zone_delays_nothing(door, wrong):
    with pytest.raises(pgonce.errors.UsageError):
        door.run("events", "later-2", 1, effect(door, lambda tx: [door.within("emit", tx, "of.nothing", {}, not_before=wrong)]))
    assert door.db.rows("SELECT FROM once.delayed_event WHERE topic = 'of.nothing'") == event(door.db, "of.nothing") == []


def test_a_transaction_of_ones_own_is_nobodys_attempt_though_its_connection_was_one(door):
    door.run("events", "before", 1, effect(door, lambda tx: ()))
    if isinstance(door, AsyncDoor):

        async def alone():
            async with door.transaction() as tx:
                await door.within("emit", tx, "of.alone", {})

        door.loop.wait(alone())
    else:
        with door.transaction() as tx:
            door.within("emit", tx, "of.alone", {})
    assert event(door.db, "of.alone") == [("", None, None)]


def test_an_event_in_a_transaction_of_a_decorated_function_is_of_its_intent(db):
    with psycopg_pool.ConnectionPool(db.url, min_size=0, max_size=4, open=True) as pool:
        once = pgonce.Once(pool)

        @once.effect(scope="charges", key="{order}", tenant=lambda order: order)
        def charge(order):
            with pool.connection() as tx:
                pgonce.emit(tx, "of.effect", {})
            once.run("events", "nested", 1, lambda tx: pgonce.emit(tx, "of.nested", {}))

        charge(7)
        with pool.connection() as tx:
            pgonce.emit(tx, "of.none", {})
    assert event(db, "of.effect") == [("7", "charges", "7")]
    assert event(db, "of.nested") == [("", "events", "nested")]
    assert event(db, "of.none") == [("", None, None)]

    async def main():
        async with psycopg_pool.AsyncConnectionPool(db.url, min_size=0, max_size=4, open=False) as pool:

            @pgonce.aio.Once(pool).effect(scope="charges", key=lambda order: order)
            async def charge(order):
                async with pool.connection() as tx:
                    await pgonce.aio.emit(tx, "of.aio", {})

            await charge(8)

    asyncio.run(main())
    assert event(db, "of.aio") == [("", "charges", "8")]


@pytest.mark.parametrize("name", SERVICES)
def test_an_event_of_a_protected_request_is_of_its_intent(server, name):
    db = server.database()
    case = {"name": name, "service": [{"emit": f"of.{name}"}], "steps": [{"expect": {"status": 201}}, {"expect": {"replayed": True}}], "runs": 1}
    with SERVICES[name].serving(case, db.url) as (port, script):
        Runner(case, db, port, script).all()
    assert event(db, f"of.{name}") == [("acme", "conformance", name)]


# ---- messages ----


def test_a_message_whose_commit_is_unanswered_is_applied_once(server, door):
    with server.forwarder() as forwarder:
        url = reach(door.name, forwarder, door.db)
        with opened(door.name, url) as far:
            rule = forwarder.ask("lose_answer COMMIT")["rule"]
            runs, work = effect_of(far, "unanswered")
            far.consume("stock", "unanswered", b"7", work)
            assert forwarder.ask(f"wait {rule}")["fired"]
        assert door.db.effects("unanswered") == 1 == len(runs)
    assert door.consume("stock", "unanswered", b"7", work) is False
    with pytest.raises(pgonce.MessageMismatch):
        door.consume("stock", "unanswered", b"8", work)


def test_an_effect_of_a_message_that_goes_on_after_an_error_is_refused(door):
    def swallowing(tx):
        try:
            door.execute(tx, "SELECT 1/0")
        except Exception:
            pass

    async def swallowing_async(tx):
        try:
            await door.execute(tx, "SELECT 1/0")
        except Exception:
            pass

    with pytest.raises(pgonce.SwallowedError):
        door.consume("stock", "swallowed", b"7", swallowing_async if isinstance(door, AsyncDoor) else swallowing)
    assert door.consume("stock", "swallowed", b"7", effect(door, lambda tx: [door.execute(tx, INSERT.format("swallowed"))]))
    assert door.db.effects("swallowed") == 1


# ---- ids ----


class Named(str, enum.Enum):
    A = "a-name"


@pytest.mark.parametrize("given, stored", [(7, "7"), (-1, "-1"), (2**80, str(2**80)), (uuid.UUID(int=7), str(uuid.UUID(int=7))), (Named.A, "a-name")])
def test_ids_that_are_numbers_are_written_out_in_every_call(door, given, stored):
    def work(tx):
        yield door.within("emit", tx, f"number.{stored}", {}, aggregate_type="order", aggregate_id=given)
        yield door.within("lock", tx, given)

    assert not door.run("numbers", given, 1, effect(door, work), tenant=given).replayed
    assert door.run("numbers", stored, 1, effect(door, work), tenant=stored).replayed
    assert event(door.db, f"number.{stored}") == [(stored, "numbers", stored)]
    assert [door.consume("numbers", each, b"", effect(door, lambda tx: ())) for each in (given, stored)] == [True, False]
    held = door.claim("claims", given, 1, tenant=given)
    held.complete(pgonce.Outcome(result_type="charge", result_id=given))
    again = door.claim("claims", stored, 1, tenant=stored)
    assert again.replayed and again.answer.result_id == stored
    again.end()


@pytest.mark.parametrize("bad", [True, 1.0, float("nan"), b"7", ["7"]])
def test_what_is_no_id_is_a_type_error_that_names_the_parameter(door, bad):
    nothing = effect(door, lambda tx: pytest.fail("it ran"))

    def within(name, *arguments, **named):
        return lambda: door.run("bad", "within", 1, effect(door, lambda tx: [door.within(name, tx, *arguments, **named)]))

    calls = [
        ("key", lambda: door.run("bad", bad, 1, nothing)), ("scope", lambda: door.run(bad, "key", 1, nothing)),
        ("tenant", lambda: door.run("bad", "key", 1, nothing, tenant=bad)), ("key", lambda: door.claim("bad", bad, 1)),
        ("message_id", lambda: door.consume("bad", bad, b"", nothing)), ("consumer", lambda: door.consume(bad, "key", b"", nothing)),
        ("tenant", lambda: door.consume("bad", "key", b"", nothing, tenant=bad)), ("message_id", within("receive", "bad", bad, b"")),
        ("key", within("emit", "bad", {}, key=bad)), ("tenant", within("emit", "bad", {}, tenant=bad)), ("topic", within("emit", bad, {})),
        ("aggregate_id", within("emit", "bad", {}, aggregate_id=bad)), ("resource", within("lock", bad)),
    ]  # fmt: skip
    for parameter, call in calls:
        with pytest.raises(TypeError, match=f"^{parameter} is a str, an int or a UUID"):
            call()
    assert door.db.value("SELECT count(*)::int FROM once.intent WHERE scope = 'bad'") == 0


def test_a_result_that_is_no_id_leaves_nothing(door):
    work = effect(door, lambda tx: [door.execute(tx, INSERT.format("no-id"))])

    def answering(tx):
        work(tx)
        return pgonce.Outcome(result_id=1.5)

    async def answering_async(tx):
        await work(tx)
        return pgonce.Outcome(result_id=1.5)

    with pytest.raises(TypeError, match="^result_id "):
        door.run("bad", "result", 1, answering_async if isinstance(door, AsyncDoor) else answering)
    assert door.db.effects("no-id") == 0


@pytest.mark.parametrize("name", SERVICES)
def test_a_tenant_of_a_request_may_be_a_number(server, name, monkeypatch):
    import frameworks as services

    db = server.database()
    options = services.options_of
    monkeypatch.setattr(services, "options_of", lambda location: {**options(location), "tenant": lambda request: 0})
    case = {"name": name, "steps": [{"expect": {"status": 201}}, {"expect": {"replayed": True}}], "runs": 1}
    with SERVICES[name].serving(case, db.url) as (port, script):
        Runner(case, db, port, script).all()
    assert db.rows("SELECT tenant FROM once.intent WHERE key = %s", name) == [("0",)]


# ---- why ----


def told(db, key):
    return db.rows("SELECT state::text, error_code, error_message FROM once.peek('why', %s)", key)


def test_a_final_failure_is_one_class_with_one_answer_for_the_first_caller_and_each_retry(db):
    with psycopg_pool.ConnectionPool(db.url, min_size=0, max_size=4, open=True) as pool:

        @pgonce.Once(pool).effect(scope="why", key="declined")
        def charge():
            raise pgonce.FinalFailure("card declined", status=402, body={"error": "declined"}, code="declined")

        answers = []
        for _ in range(3):
            with pytest.raises(pgonce.FinalFailure) as failure:
                charge()
            assert failure.value.status == 402
            answers.append(failure.value.answer)
    assert [each.replayed for each in answers] == [False, True, True]
    assert {(each.state, each.status, each.body, each.error_code, each.error_message) for each in answers} == {
        ("failed_final", 402, b'{"error":"declined"}', "declined", "card declined")
    }
    assert told(db, "declined") == [("failed_final", "declined", "card declined")]


@pytest.mark.parametrize("raised, message", [(ValueError("socket hang up"), "socket hang up"), (ValueError("a\0\ud800" * 1000), "a??" * 333 + "a"), (ValueError(), None)])
def test_why_an_outcome_is_unknown_is_stored(db, raised, message):
    key = f"doubt-{len(str(raised))}"
    with psycopg_pool.ConnectionPool(db.url, min_size=0, max_size=4, open=True) as pool:
        with pytest.raises(ValueError), pgonce.claim(pool, "why", key, 1):
            raise raised
        assert told(db, key) == [("in_doubt", "ValueError", message)]
        with pytest.raises(pgonce.InDoubt) as doubt, pgonce.claim(pool, "why", key, 1):
            pass
    assert (doubt.value.answer.error_code, doubt.value.answer.error_message) == ("ValueError", message)


def test_why_nothing_was_done_is_stored(db):
    with psycopg.connect(db.url) as connection, pytest.raises(pgonce.NotDone), pgonce.claim(connection, "why", "not-done", 1):
        raise pgonce.NotDone("the provider is away")
    assert told(db, "not-done") == [("failed_retryable", "not_done", "the provider is away")]


@pytest.mark.parametrize("name", SERVICES)
def test_why_a_request_got_a_503_is_logged_under_the_name_that_its_document_gives_it(server, name, caplog):
    case = {"name": name, "steps": [{"expect": {"problem": "unavailable"}}], "runs": 0}
    replies = []

    class Noting(Runner):
        def request(self, step):
            replies.append(super().request(step))
            return replies[-1]

    with SERVICES[name].serving(case, AWAY) as (port, script):
        Noting(case, None, port, script).all()
    (record,) = [each for each in caplog.records if each.name == "pgonce"]
    request = re.search(rb"urn:pgonce:request:([0-9a-f]{32})", replies[0].body)[1].decode()
    line = record.getMessage()
    assert record.levelno == logging.ERROR and line.startswith(f"problem=unavailable request={request} scope=conformance error=")
    assert len(line.split("error=", 1)[1]) > 10 and f'"{name}"' not in line and "\n" not in line
