# SPDX-License-Identifier: PostgreSQL
"""An HTTP endpoint as the handler: called under a lease with the intent's key, its answer stored, order per key kept, everything else parallel."""
import collections
import random
import time

import pytest

from harness.postgres import wait_until
from harness.proxy import Proxy
from harness.webhook import Answer, Webhook

from .script import Consumer, Script, consume, message


@pytest.fixture
def hook():
    with Webhook() as running:
        yield running


def by_number(request):
    return request.json["number"]


def http(hook, **options):
    return {"endpoint": hook.url + "apply", **options}


def state(db, number):
    return db.row("SELECT state::text, fence, response_status FROM once.intent WHERE scope = 'stock' AND key = %s", f"id-{number}")


def test_a_message_is_posted_with_its_key_and_its_answer_is_stored(db, hook):
    hook.script = lambda _: Answer(201, (("Content-Type", "text/plain"),), b"done")
    with Script([message(1, key="k-1", topic="shop.orders", headers={"traceparent": "00-1", "Bad": "a\nb", "Host": "evil", "Content-Length": "1"})]) as script:
        consume(script, db.dsn(), **http(hook))
    request, = hook.requests
    assert (request.method, request.target, request.json) == ("POST", "/apply", {"number": 1})
    assert request.header("Idempotency-Key") == '"id-1"' and request.header("Pgonce-Message-Id") == "id-1"
    assert request.header("Pgonce-Message-Topic") == "shop.orders" and request.header("Pgonce-Message-Key") == "k-1"
    assert request.header("traceparent") == "00-1" and request.header("Content-Type") == "application/json"
    assert request.header("Bad") is None and "evil" not in request.header("Host")
    row = db.row("SELECT state::text, response_status, response_body, response_headers FROM once.intent WHERE key = 'id-1'")
    assert row == ("succeeded", 201, b"done", {"content-type": "text/plain"})


@pytest.mark.parametrize("sent, given", [
    ({"Content-Type": "application/x-protobuf"}, "application/x-protobuf"), ({"content-type": "avro/binary"}, "avro/binary"), ({}, "application/octet-stream"),
])
def test_bytes_are_posted_as_they_are_with_their_content_type(db, hook, sent, given):
    with Script([message(1, payload=bytes(range(256)), headers=sent)]) as script:
        consume(script, db.dsn(), **http(hook))
    request, = hook.requests
    assert (request.body, request.header("Content-Type")) == (bytes(range(256)), given)
    assert sum(name.lower() == "content-type" for name, _ in request.headers) == 1


def test_what_was_applied_is_not_called_again(db, hook):
    messages = [message(n, key=f"k{n}") for n in range(20)]
    with Script(messages + messages[:5]) as script:
        consume(script, db.dsn(), **http(hook))
        script.acks.unlink()
        consume(script, db.dsn(), **http(hook))
    assert sorted(map(by_number, hook.requests)) == list(range(20))


def test_one_key_is_called_one_at_a_time_and_others_beside_it(db, hook):
    hook.script = lambda _: Answer(delay=0.02)
    with Script([message(n, key=f"k{n % 10}") for n in range(60)]) as script:
        consume(script, db.dsn(), **http(hook))
    assert 5 <= hook.open_most <= 10
    for key in range(10):
        numbers = [by_number(r) for r in hook.requests if by_number(r) % 10 == key]
        assert numbers == sorted(numbers)


def test_no_more_than_in_flight_are_called_at_once(db, hook):
    hook.script = lambda _: Answer(delay=0.02)
    with Script([message(n) for n in range(40)]) as script:
        consume(script, db.dsn(), **http(hook, in_flight=3))
    assert hook.open_most == 3


def test_a_failing_call_is_tried_again_and_its_key_waits(db, hook):
    failed = collections.Counter()

    def answer(request):
        failed[by_number(request)] += 1
        return Answer(500, (), b"no stock") if by_number(request) == 2 and failed[2] < 3 else Answer()

    hook.script = answer
    with Script([message(n, key="a" if n < 6 else "b") for n in range(10)]) as script:
        consume(script, db.dsn(), until=lambda: db.value("SELECT count(*) FROM once.intent WHERE state = 'succeeded'") == 10, **http(hook))
    assert [by_number(r) for r in hook.requests if by_number(r) < 6] == [0, 1, 2, 2, 2, 3, 4, 5]
    assert state(db, 2).fence == 3
    assert db.value("SELECT count(*) FROM once.parked_message") == 0


@pytest.mark.parametrize("status", [302, 400, 404, 422, 500, 502])
def test_after_the_last_attempt_a_message_is_dead_with_the_answer(db, hook, status):
    hook.script = lambda request: Answer(status, (), b"a reason") if by_number(request) == 1 else Answer()
    with Script([message(1, key="k"), message(2, key="k"), message(3)]) as script:
        consume(script, db.dsn(), attempts=2, until=lambda: db.value("SELECT count(*) FROM once.parked_message WHERE state = 'dead'") == 1, **http(hook))
    assert sorted(map(by_number, hook.requests)) == [1, 1, 3]
    rows = db.rows("SELECT message_id, state, attempts, error FROM once.parked_message ORDER BY position")
    assert [tuple(row) for row in rows] == [("id-1", "dead", 2, f"the endpoint answered {status}: a reason"), ("id-2", "waiting", 0, None)]
    assert state(db, 1).state == "failed_retryable" and state(db, 1).response_status == status
    hook.script = lambda _: Answer()
    db.execute("SELECT once.parked_retry('id-1', 'mended', consumer => 'stock')")
    with Script() as script:
        consume(script, db.dsn(), until=lambda: db.value("SELECT count(*) FROM once.parked_message") == 0, **http(hook))
    assert state(db, 1).state == state(db, 2).state == "succeeded"


@pytest.mark.parametrize("answer", [Answer(hang=True), Answer(cut=0), Answer(reset=True, cut=0)], ids=["hangs", "closes", "resets"])
def test_a_call_without_an_answer_counts_and_is_made_again_with_the_same_key(db, hook, answer):
    answers = [answer]
    hook.script = lambda _: answers.pop() if answers else Answer()
    with Script([message(1)]) as script:
        consume(script, db.dsn(), until=lambda: state(db, 1).state == "succeeded", **http(hook, timeout="300ms"))
    assert [r.header("Idempotency-Key") for r in hook.requests] == ['"id-1"', '"id-1"']


def test_an_endpoint_that_is_away_costs_no_attempt(db, hook):
    hook.refuse()
    with Script([message(n) for n in range(5)]) as script, Consumer(script, db.dsn(), config=script.config(**http(hook, attempts=1))) as consumer:
        consumer.wait_said("event=endpoint failures=4")
        assert script.acknowledged() == [] and db.value("SELECT count(*) FROM once.parked_message") == 0
        hook.accept()
        wait_until(lambda: len(script.acknowledged()) == 5, "all")
        assert consumer.stop() == 0
    assert len(hook.requests) == 5


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_that_is_larger_than_its_scope_stores_is_stored_without_its_body(db, hook, status):
    db.execute("SELECT once.set_scope('stock', response_bytes_max => 8192)")
    hook.script = lambda request: Answer(status if by_number(request) == 1 else 200, (), b"x" * (20000 if by_number(request) == 1 else 3))
    with Script([message(n, key=f"k{n}") for n in range(1, 4)]) as script:
        log = consume(script, db.dsn(), attempts=1, **http(hook, lease="1s"))
    assert sorted(map(by_number, hook.requests)) == [1, 2, 3]
    assert state(db, 1) == ("succeeded" if status == 200 else "failed_retryable", 1, status)
    assert db.rows("SELECT state FROM once.parked_message") == ([] if status == 200 else [("dead",)])
    assert log.count("event=answer_dropped message=\"id-1\" bytes=20000") == 1


@pytest.mark.parametrize("status", [429, 503])
def test_not_now_costs_no_attempt_and_is_heeded(db, hook, status):
    times = []

    def answer(request):
        times.append(request.at)
        return Answer(status, (("Retry-After", "1"),)) if len(times) == 1 else Answer()

    hook.script = answer
    with Script([message(1)]) as script:
        consume(script, db.dsn(), attempts=1, until=lambda: state(db, 1).state == "succeeded", **http(hook))
    assert times[1] - times[0] >= 1


def test_a_long_call_keeps_its_lease(db, hook):
    hook.script = lambda _: Answer(delay=2.5)
    with Script([message(1)]) as script:
        with Consumer(script, db.dsn(), config=script.config(**http(hook, lease="1s"))) as first:
            wait_until(lambda: hook.requests, "the call")
            with Script([message(1)]) as again, Consumer(again, db.dsn(), config=again.config(**http(hook, lease="1s"))) as second:
                wait_until(lambda: again.acknowledged() == [0], "the other process to put it aside")
                wait_until(lambda: script.acknowledged() == [0], "the answer")
                wait_until(lambda: db.value("SELECT count(*) FROM once.parked_message") == 0, "what was put aside")
                assert second.stop() == 0
            assert first.stop() == 0
    assert len(hook.requests) == 1 and state(db, 1) == ("succeeded", 1, 200)


def test_a_slow_key_does_not_hold_up_the_others(db, hook):
    hook.script = lambda request: Answer(hang=by_number(request) == 0)
    with Script([message(n, key="slow" if n < 3 else f"k{n}") for n in range(200)]) as script:
        with Consumer(script, db.dsn(), config=script.config(**http(hook))) as consumer:
            wait_until(lambda: db.value("SELECT count(*) FROM once.intent WHERE state = 'succeeded'") == 197, "the others")
            assert script.acknowledged() == []  # the broker is told in its order
            hook.script = lambda _: Answer()
            hook.release()
            wait_until(lambda: len(script.acknowledged()) == 200, "all")
            assert consumer.stop() == 0


def test_a_stop_waits_for_the_calls_in_flight(db, hook):
    hook.script = lambda _: Answer(delay=0.5)
    with Script([message(n) for n in range(30)]) as script, Consumer(script, db.dsn(), config=script.config(**http(hook, in_flight=4))) as consumer:
        wait_until(lambda: len(hook.requests) >= 4, "calls")
        assert consumer.stop() == 0
        assert len(script.acknowledged()) == len(hook.requests) == 4
    assert db.value("SELECT count(*) FROM once.intent WHERE state = 'processing'") == 0


def test_kill_9_at_any_point_ends_with_every_message_applied_and_none_called_after_its_answer_was_stored(db, hook):
    rng = random.Random(7)
    stored = set()

    def answer(request):
        assert by_number(request) not in stored
        return Answer(delay=rng.random() * 0.01)

    hook.script = answer
    with Script([message(n, key=f"k{n % 20}") for n in range(300)]) as script:
        for _ in range(8):
            with Consumer(script, db.dsn(), config=script.config(**http(hook, lease="1s"))) as consumer:
                consumer.wait_said("event=started")
                time.sleep(rng.random() * 0.2)  # a kill at some point: any will do
                consumer.kill()
                stored = {int(row.key[3:]) for row in db.rows("SELECT key FROM once.intent WHERE state = 'succeeded'")}
        consume(script, db.dsn(), until=lambda: db.value("SELECT count(*) FROM once.intent WHERE state = 'succeeded'") == 300, **http(hook, lease="1s"))
    assert db.value("SELECT count(*) FROM once.parked_message") == 0
    first = {}
    for n, request in enumerate(hook.requests):
        first.setdefault(by_number(request), n)
    for key in range(20):
        order = [first[n] for n in range(key, 300, 20)]
        assert order == sorted(order)


@pytest.mark.parametrize("noted", [False, True], ids=["silent", "noted as a doubt"])
def test_what_a_lost_consumer_was_calling_is_called_again_since_an_endpoint_is_called_at_least_once(db, hook, noted):
    hook.script = lambda _: Answer(hang=True)
    with Script([message(1)]) as script:
        with Consumer(script, db.dsn(), config=script.config(**http(hook, lease="1s"))) as consumer:
            wait_until(lambda: hook.requests, "the call")
            consumer.kill()
        hook.release()
        hook.script = lambda _: Answer()
        if noted:
            wait_until(lambda: db.value("SELECT bool_or(decided = 'in_doubt') FROM once.recover()"), "the lease to pass")
            assert state(db, 1) == ("in_doubt", 1, None)
        consume(script, db.dsn(), until=lambda: state(db, 1)[0] == "succeeded", **http(hook, lease="1s"))
    assert len(hook.requests) == 2 and state(db, 1) == ("succeeded", 2, 200)


def test_messages_that_cannot_be_told_apart_are_dead(db, hook):
    with Script([message(1, id=None, key="k"), message(2), message(2, payload="other"), message(3, key="k")]) as script:
        consume(script, db.dsn(), **http(hook))
    rows = db.rows("SELECT state, sqlstate FROM once.parked_message ORDER BY sqlstate NULLS LAST")
    assert [tuple(row) for row in rows] == [("dead", "P4001"), ("dead", "P4050"), ("waiting", None)]
    assert list(map(by_number, hook.requests)) == [2]


def test_more_messages_at_once_than_one_statement_takes_are_called_in_the_order_of_their_key(db, hook):
    """The first is dead, and another of its key, looked up by a later statement, waits behind it."""
    messages = [message(0, id=None, key="k"), *(message(n, key="k" if n == 10_400 else None) for n in range(1, 10_500))]
    with Script(messages) as script:
        with Consumer(script, db.dsn(), config=script.config(**http(hook, prefetch=20_000, in_flight=256))) as consumer:
            hook.wait(300)
            wait_until(lambda: db.value("SELECT count(*) FROM once.parked_message") == 2, "the two of the key to be parked")
            assert consumer.stop() == 0
    assert [row.state for row in db.rows("SELECT state FROM once.parked_message ORDER BY position")] == ["dead", "waiting"]
    assert 10_400 not in map(by_number, hook.requests)


def test_once_ends_with_parked_max_parked(db, hook):
    hook.script = lambda _: Answer(422)
    with Script([message(n) for n in range(2)]) as script, \
         Consumer(script, db.dsn(), "once", config=script.config(**http(hook, attempts=1, parked_max=2))) as consumer:
        assert consumer.ends() == 0 and "event=full" in consumer.said()


def test_with_parked_max_parked_no_more_are_called(db, hook):
    hook.script = lambda request: Answer(422 if by_number(request) < 2 else 200)
    with Script([message(n) for n in range(2)]) as script:
        alive = script.directory / "alive"
        with Consumer(script, db.dsn(), config=script.config(alive=alive, **http(hook, attempts=1, parked_max=2))) as consumer:
            consumer.wait_said("event=full")
            script.add(message(2))
            wait_until(alive.exists, "the source to be kept alive")
            before, began = alive.stat().st_size, time.monotonic()
            wait_until(lambda: alive.stat().st_size >= before + 5, "it to be kept alive again and again")  # where it would look for new ones
            assert time.monotonic() - began >= 0.5  # and it rests in between
            assert sorted(map(by_number, hook.requests)) == [0, 1]
            db.execute("SELECT once.parked_discard('id-1', 'a test', consumer => 'stock')")
            wait_until(lambda: sorted(map(by_number, hook.requests)) == [0, 1, 2], "the new one")
            assert "event=not_full" in consumer.said()
            assert consumer.stop() == 0


def test_the_database_going_away_during_calls_repeats_none(server, db, hook):
    hook.script = lambda _: Answer(delay=0.3)
    with Proxy(server) as proxy, Script([message(n) for n in range(10)]) as script:
        with Consumer(script, proxy.dsn(db.name), config=script.config(**http(hook))) as consumer:
            wait_until(lambda: len(hook.requests) == 10, "the calls")
            db.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = '' AND pid <> pg_backend_pid()")
            wait_until(lambda: len(script.acknowledged()) == 10, "all")
            assert consumer.stop() == 0
            assert consumer.said().count("event=connected") == 2
    assert len(hook.requests) == 10


def test_a_line_behind_one_parked_message_is_called_as_fast_as_it_is_answered(db, hook):
    """Not one at each look for what is due: these are a tenth of a second apart, which would be a minute."""
    db.execute("SELECT once_job.message_park('stock', '', ARRAY(SELECT ROW('id-' || n, 'orders', 'k', '{}', convert_to(format('{\"number\": %s}', n), 'UTF8'),"
               " sha256(''), 'waiting', 0, 0, NULL, NULL)::once.parked FROM generate_series(0, 599) AS n))")  # fmt: skip
    with Script() as script:
        with Consumer(script, db.dsn(), config=script.config(**http(hook))) as consumer:
            wait_until(lambda: db.value("SELECT count(*) FROM once.parked_message") == 0, "the line to be applied", 50)
            assert consumer.stop() == 0
    assert [by_number(request) for request in hook.requests] == list(range(600))
