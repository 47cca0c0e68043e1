# SPDX-License-Identifier: PostgreSQL
"""Events of one aggregate arrive in order, whatever fails; what fails or hangs holds up its own aggregate only."""

import random

import pytest

from harness.postgres import wait_until
from harness.webhook import Answer, Webhook

from .running import Relay, by_key, duplicates, emit, parked, passed_all, webhook


@pytest.fixture
def endpoint():
    with Webhook() as running:
        yield running


def key_of(request):
    return request.header("Pgonce-Key")


def keys(requests):
    return [(key_of(request), request.json["n"]) for request in requests]


def settled(relay, db):
    relay.until_true(lambda: parked(db) == [] and passed_all(db), "all to be delivered")


def test_an_aggregates_events_arrive_in_order_one_at_a_time(db, tmp_path, endpoint):
    endpoint.script = lambda request: Answer(delay=random.uniform(0, 0.01))
    for number in range(40):
        emit(db.connect(), 1, first=number, aggregate="'a'")
        emit(db.connect(), 1, first=number, aggregate="'b'")
        emit(db.connect(), 3, first=number, aggregate=None)
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, batch=30)) as relay:
        settled(relay, db)
        assert relay.stop() == 0
    requests = endpoint.seen()
    assert len(requests) == 40 * 5 and duplicates(endpoint.event_ids()) == 0
    arrived = by_key(keys(request for request in requests if key_of(request)))
    assert arrived == {"a": list(range(40)), "b": list(range(40))}


def test_order_holds_with_failures_and_restarts(db, tmp_path, endpoint):
    """Every third attempt fails at random; the relay is killed, stopped, and loses its session meanwhile."""
    generator = random.Random(7)
    accepted = []

    def script(request):
        if generator.random() < 0.3:
            return Answer(status=503)
        accepted.append((key_of(request), request.json["n"]))
        return Answer(delay=generator.choice([0, 0, 0, 0.005]))

    endpoint.script = script
    relay = Relay(tmp_path, db.dsn(), **webhook(endpoint, batch=40, retry_first="10ms", retry_most="50ms", attempts=100000))
    for round_ in range(6):
        with relay:
            before = len(accepted)
            emit(db.connect(), 200, first=round_ * 200, aggregate="(i % 7)::text")
            endpoint.wait_for(lambda _, before=before: len(accepted) >= before + 120, "deliveries")
            if round_ % 3 == 0:
                relay.kill()
            elif round_ % 3 == 1:
                assert relay.stop() == 0
            else:
                db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgonce relay r'")
                relay.kill()
    with relay:
        settled(relay, db)
        assert relay.stop() == 0
    assert by_key(accepted) == {str(key): list(range(key, 1200, 7)) for key in range(7)}


def test_a_failing_event_blocks_its_own_aggregate_only(db, tmp_path, endpoint):
    """Told by events, not by time: all healthy ones arrive while the poison one is tried again and again."""
    endpoint.script = lambda request: Answer(status=500) if request.json["n"] == 0 and endpoint.poisoned else None
    endpoint.poisoned = True
    emit(db.connect(), 1, first=0, aggregate="'poison'")
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, batch=20, retry_first="20ms", retry_most="20ms", attempts=100000)) as relay:
        for round_ in range(10):
            emit(db.connect(), 1, first=1 + round_, aggregate="'poison'")
            emit(db.connect(), 30, first=1000 + 30 * round_, aggregate="(i % 5)::text")
        endpoint.wait_for(lambda requests: {request.json["n"] for request in requests} >= set(range(1000, 1300)), "the healthy ones")
        assert {request.json["n"] for request in endpoint.seen() if key_of(request) == "poison"} <= {0}
        assert {row.state for row in parked(db)} <= {"waiting", "retrying"}
        endpoint.poisoned = False
        settled(relay, db)
        assert relay.stop() == 0
    assert by_key(keys(request for request in endpoint.seen()))["poison"] == list(range(11))


def test_a_hanging_event_blocks_its_own_aggregate_only(db, tmp_path, endpoint):
    endpoint.script = lambda request: Answer(hang=True) if request.json["n"] == 0 else None
    emit(db.connect(), 1, first=0, aggregate="'stuck'")
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, batch=20, timeout="60s")) as relay:
        for round_ in range(10):
            emit(db.connect(), 1, first=1 + round_, aggregate="'stuck'")
            emit(db.connect(), 30, first=1000 + 30 * round_, aggregate="(i % 5)::text")
        endpoint.wait_for(lambda requests: {request.json["n"] for request in requests} >= set(range(1000, 1300)), "the healthy ones")
        relay.until_true(lambda: passed_all(db), "the relay to pass the hanging one")
        assert [request.json["n"] for request in endpoint.seen() if key_of(request) == "stuck"] == [0]
        assert {row.aggregate_id for row in parked(db)} == {"stuck"}
        endpoint.release()
        settled(relay, db)
        assert relay.stop() == 0
    assert duplicates(endpoint.event_ids()) == 0
    assert by_key(keys(endpoint.seen()))["stuck"] == list(range(11))


def test_a_sink_that_hangs_as_a_whole_is_waited_for(db, tmp_path, endpoint):
    """Then nobody gains by parking what is in flight, chunk after chunk: a hundred, and no more."""
    endpoint.script = lambda _: Answer(hang=True)
    emit(db.connect(), 200, aggregate="i::text")
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, timeout="60s", in_flight=256)) as relay:
        endpoint.wait(150)
        wait_until(lambda: endpoint.loop.time() > max(request.at for request in endpoint.seen()) + 1.5, "the time after which single ones are parked")
        assert len(parked(db)) <= 100
        endpoint.script = lambda _: None
        endpoint.release()
        settled(relay, db)
        assert relay.stop() == 0
    assert duplicates(endpoint.event_ids()) == 0 and len(endpoint.event_ids()) == 200


def test_a_retried_event_that_hangs_blocks_its_own_aggregate_only(db, tmp_path, endpoint):
    tries = []

    def script(request):
        if request.json["n"] == 0:
            tries.append(request.at)
            return Answer(status=500) if len(tries) == 1 else Answer(hang=True) if len(tries) == 2 else None
        return None

    endpoint.script = script
    emit(db.connect(), 5, first=0, aggregate="'stuck'")
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, batch=20, timeout="60s", retry_first="10ms")) as relay:
        endpoint.wait_for(lambda _: len(tries) == 2, "the second try")
        for round_ in range(5):
            emit(db.connect(), 30, first=1000 + 30 * round_, aggregate="(i % 5)::text")
            endpoint.wait_for(lambda requests, round_=round_: {request.json["n"] for request in requests} >= set(range(1000, 1030 + 30 * round_)),
                              "the healthy ones")
        wait_until(lambda: any(row.state == "waiting" and row.id == min(each.id for each in parked(db)) and row.next_at > row.updated_at
                               for row in parked(db)), "its row to be put off")
        endpoint.release(Answer(status=500))
        settled(relay, db)
        assert relay.stop() == 0
    assert len(tries) == 3
    assert by_key(keys(endpoint.seen()))["stuck"] == list(range(5))


def test_a_dead_event_blocks_until_an_operator_decides(db, tmp_path, endpoint):
    endpoint.script = lambda request: Answer(status=422, body=b"no such customer") if request.json["n"] in endpoint.bad else None
    endpoint.bad = {0, 3}
    ids = emit(db.connect(), 6, aggregate="'a'")
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, attempts=3, retry_first="10ms")) as relay:
        dead = relay.until("dead")
        assert dead["event_id"] == ids[0] and dead["attempts"] == "3" and "422" in dead["error"]
        relay.until_true(lambda: [row.state for row in parked(db)] == ["dead"] + ["waiting"] * 5, "the others to wait")
        assert [request.json["n"] for request in endpoint.seen()] == [0, 0, 0]
        # Discarded: the rest goes on, up to the next that dies.
        assert db.value("SELECT once.parked_discard(%s::text, 'a test', 'r')", ids[0])
        relay.until("dead", 2)
        assert [request.json["n"] for request in endpoint.seen()] == [0, 0, 0, 1, 2, 3, 3, 3]
        # Mended and retried: it and the rest arrive, in order.
        endpoint.bad = set()
        assert db.value("SELECT once.parked_retry(%s::text, 'a test', 'r')", ids[3])
        settled(relay, db)
        assert relay.stop() == 0
    assert [request.json["n"] for request in endpoint.seen()] == [0, 0, 0, 1, 2, 3, 3, 3, 3, 4, 5]


def test_a_retry_that_comes_before_the_last_attempts_failure_is_stored_is_not_lost(db, tmp_path, endpoint):
    tries = []
    endpoint.script = lambda request: tries.append(request.json["n"]) or (Answer(status=422) if len(tries) < 3 else None)
    ids = emit(db.connect(), 2, aggregate="'a'")
    operator = db.connect()
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, attempts=2, retry_first="2s")) as relay:
        relay.until_true(lambda: [row.state for row in parked(db)] == ["retrying", "waiting"], "the first failure to be stored")
        with operator.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT once.parked_retry(%s::text, 'a test', 'r')", (ids[0],))
            assert relay.until("dead")["attempts"] == "2"  # by its own count, which it cannot store yet
            cursor.execute("COMMIT")
        settled(relay, db)
        assert relay.stop() == 0
    assert tries == [0, 0, 0, 1]


def test_with_skip_a_dead_event_lets_the_others_pass(db, tmp_path, endpoint):
    endpoint.script = lambda request: Answer(status=422) if request.json["n"] == 0 else None
    emit(db.connect(), 5, aggregate="'a'")
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, attempts=2, retry_first="10ms", on_dead="skip")) as relay:
        relay.until("dead")
        endpoint.wait_for(lambda requests: requests[-1].json["n"] == 4, "the others")
        emit(db.connect(), 5, first=5, aggregate="'a'")
        endpoint.wait_for(lambda requests: requests[-1].json["n"] == 9, "later ones")
        relay.until_true(lambda: [row.state for row in parked(db)] == ["dead"], "the dead one to be left")
        assert relay.stop() == 0
    assert [request.json["n"] for request in endpoint.seen()] == [0, 0, *range(1, 10)]


@pytest.mark.parametrize("on_dead", ["skip", "block"])
def test_hundreds_that_are_retried_at_once_beside_the_running_relay_arrive_in_order(db, tmp_path, endpoint, on_dead):
    accepted = []
    down = [True]

    def script(request):
        if down[0]:
            return Answer(status=422)
        accepted.append((key_of(request), request.json["n"]))
        return None

    endpoint.script = script
    emit(db.connect(), 200, aggregate="(i % 5)::text")
    emit(db.connect(), 200, first=200)
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, attempts=1, on_dead=on_dead, batch=50)) as relay:
        dead = 400 if on_dead == "skip" else 205
        relay.until_true(lambda: [row.state for row in parked(db)].count("dead") == dead and len(parked(db)) == 400, "all to be parked")
        down[0] = False
        counted, after = 0, ""
        while after is not None:
            emit(db.connect(), 10, first=400 + counted, aggregate="'new'")
            rows = db.rows("SELECT * FROM once.parked_retry_many('a test', state => 'dead', dry_run => false, take => 50, after => nullif(%s, ''))", after)
            counted, after = counted + sum(row.items for row in rows), rows[0].next
        settled(relay, db)
        assert relay.stop() == 0
    assert counted == dead
    arrived = by_key(accepted)
    assert arrived.pop("new") == sorted(n for key, n in accepted if key == "new")
    assert sorted(n for key, n in accepted if key != "new") == list(range(400))
    assert {key: numbers for key, numbers in arrived.items() if key in list("01234")} == {str(key): list(range(key, 200, 5)) for key in range(5)}


def test_an_event_that_is_discarded_while_it_is_in_flight_stays_discarded(db, tmp_path, endpoint):
    tries = []

    def script(request):
        tries.append(request.json["n"])
        return Answer(status=500) if len(tries) == 1 else Answer(hang=True) if len(tries) == 2 else None

    endpoint.script = script
    ids = emit(db.connect(), 2, aggregate="'a'")
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, retry_first="10ms")) as relay:
        endpoint.wait(2)
        assert db.value("SELECT once.parked_discard(%s::text, 'a test', 'r')", ids[0])
        endpoint.release(Answer(status=500))
        settled(relay, db)
        assert relay.stop() == 0
    assert tries == [0, 0, 1]


def test_a_receiver_that_asks_for_time_gets_it(db, tmp_path, endpoint):
    answers = [Answer(status=429, headers=(("Retry-After", "1"),))]
    endpoint.script = lambda _: answers.pop() if answers else None
    emit(db.connect(), 1, aggregate="'a'")
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, retry_first="10ms")) as relay:
        first, second = endpoint.wait(2)
        assert second.at - first.at >= 1
        settled(relay, db)
        assert relay.stop() == 0


def test_a_long_chain_behind_a_failure_is_worked_off_by_batches(db, tmp_path, endpoint):
    endpoint.script = lambda request: Answer(status=500) if endpoint.failing else None
    endpoint.failing = True
    emit(db.connect(), 2000, aggregate="'a'")
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, retry_first="100ms", retry_most="100ms", attempts=1000)) as relay:
        relay.until_true(lambda: len(parked(db)) == 2000, "all to be parked")
        endpoint.failing = False
        settled(relay, db)
        assert relay.stop() == 0
    assert by_key(keys(endpoint.seen()))["a"] == list(range(2000))


def test_a_replay_delivers_again_in_order(db, tmp_path, endpoint):
    emit(db.connect(), 10, aggregate="'a'")
    with Relay(tmp_path, db.dsn(), **webhook(endpoint)) as relay:
        endpoint.wait(10)
        settled(relay, db)
        endpoint.clear()
        assert db.value("SELECT once.parked_replay('r', now() - interval '1 hour', NULL, 'a test')") == 10
        endpoint.wait(10)
        settled(relay, db)
        assert relay.stop() == 0
    assert [request.json["n"] for request in endpoint.seen()] == list(range(10))


def test_a_parked_event_without_a_route_any_more_is_dead(db, tmp_path, endpoint):
    endpoint.script = lambda _: Answer(status=500)
    ids = emit(db.connect(), 1, aggregate="'a'")
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, retry_first="100ms")) as relay:
        relay.until("parked")
        relay.until_true(lambda: len(parked(db)) == 1, "it to be parked")
        assert relay.stop() == 0
    with Relay(tmp_path, db.dsn(), route="other.* -> {topic}", **{"sink": "stdout"}) as relay:
        relay.until_true(lambda: [row.state for row in parked(db)] == ["dead"], "it to be dead")
        assert relay.log("dead")[-1]["event_id"] == ids[0] and "route" in relay.log("dead")[-1]["error"]
        assert relay.stop() == 0


def test_results_that_come_after_their_session_is_lost_count_for_nothing(db, tmp_path, endpoint):
    """What was in flight is sent again by the new session; the old answers, good or bad, say nothing about that."""
    endpoint.script = lambda request: Answer(hang=True) if request.json["n"] == 0 else None
    emit(db.connect(), 3, aggregate="'a'")
    emit(db.connect(), 3, first=10, aggregate="'b'")
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, attempts=1, timeout="60s")) as relay:
        endpoint.wait_for(lambda requests: {request.json["n"] for request in requests} >= {0, 12}, "the first")
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgonce relay r'")
        endpoint.wait_for(lambda requests: [request.json["n"] for request in requests].count(0) == 2, "it to be sent again")
        first, second = endpoint.held
        endpoint.held = []
        endpoint.loop.call_soon_threadsafe(first, Answer(status=500))
        emit(db.connect(), 1, first=20, aggregate="'c'")
        endpoint.wait_for(lambda requests: requests[-1].json["n"] == 20, "another event")
        assert relay.log("dead") == [] and 1 not in {request.json["n"] for request in endpoint.seen()}
        endpoint.loop.call_soon_threadsafe(second, None)
        settled(relay, db)
        assert relay.stop() == 0
    assert by_key(keys(endpoint.seen()))["a"] == [0, 1, 2]


def test_no_event_is_both_parked_and_to_be_read_again(db, tmp_path, endpoint):
    """Killed while a chunk is in flight of which one event has failed already, and after the result of an earlier parked one was settled: the failed one is
    delivered by the next process, and then no row of it is left."""
    endpoint.script = lambda request: {0: Answer(status=500), 10: Answer(status=500)}.get(request.json["n"], Answer(hang=True))
    ids = emit(db.connect(), 1, aggregate="'p'")
    relay = Relay(tmp_path, db.dsn(), **webhook(endpoint, attempts=1, timeout="60s"))
    with relay:
        relay.until("dead")
        relay.until_true(lambda: len(parked(db)) == 1, "it to be parked")
        emit(db.connect(), 10, first=10, aggregate="i::text")
        endpoint.wait(11)
        endpoint.script = lambda request: None
        assert db.value("SELECT once.parked_retry(%s::text, 'a test', 'r')", ids[0])
        relay.until_true(lambda: ids[0] not in {str(row.event_id) for row in parked(db)}, "the parked one to be settled")
        relay.kill()
    endpoint.clear()
    with relay:
        relay.until("active", 2)  # what is parked counts as passed: the rest may be so before the relay is there
        relay.until_true(lambda: passed_all(db), "the rest")
        assert relay.stop() == 0
    assert set(endpoint.event_ids()) & {str(row.event_id) for row in parked(db)} == set()
