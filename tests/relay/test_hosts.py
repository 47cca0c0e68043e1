# SPDX-License-Identifier: PostgreSQL
"""A relay of webhooks with several hosts, one of which hangs: the others get their events, and its own keep their order and their attempts."""

import pytest

from harness.scrape import address_in, figure, scrape
from harness.webhook import Answer, Webhook

from .running import Relay, by_key, duplicates, emit, parked, passed_all


@pytest.fixture
def healthy():
    with Webhook() as running:
        yield running


@pytest.fixture
def sick():
    with Webhook() as running:
        yield running


def key_of(request):
    return request.header("Pgonce-Key")


def numbers(endpoint):
    return {request.json["n"] for request in endpoint.seen()}


def both(healthy, sick, **options):
    """The topic names the host."""
    return {"sink": "webhook", "route": [f"healthy -> {healthy.url}{{topic}}", f"sick -> {sick.url}{{topic}}"], "allow_private": "yes",
            "allow_plain": "yes", **options}


def emit_both(db, count, first=0):
    """Alternately, to ten aggregates of each."""
    connection = db.connect()
    for number in range(first, first + count):
        for topic in ("sick", "healthy"):
            emit(connection, 1, topic=topic, first=number, aggregate=f"'{topic} ' || i % 10")


def hanging(relay):
    return figure(scrape(address_in(relay.err.read_text())), "pgonce_relay_hosts_hanging", relay="r")


def settled(relay, db):
    relay.until_true(lambda: parked(db) == [] and passed_all(db), "all to be delivered")


def test_a_host_that_hangs_takes_nothing_from_another(db, tmp_path, healthy, sick):
    sick.script = lambda _: Answer(hang=True)
    free = db.connect()
    emit(free, 300, topic="sick", first=1000)  # more than there is room for
    emit_both(db, 200)
    with Relay(tmp_path, db.dsn(), arguments=("--metrics", "127.0.0.1:0"), **both(healthy, sick, timeout="60s")) as relay:
        healthy.wait_for(lambda requests: len(requests) == 200, "the healthy host's")
        relay.until("host_hangs")
        assert hanging(relay) == 1
        relay.until_true(lambda: passed_all(db), "the relay to pass what hangs")
        emit_both(db, 200, first=200)
        healthy.wait_for(lambda requests: len(requests) == 400, "the healthy host's, while the other goes on hanging")
        assert sick.open_now == len(sick.seen()) <= 48 + 4
        assert {row.attempts for row in parked(db)} == {0}
        sick.script = lambda _: None
        sick.release()
        relay.until("host_answers")
        settled(relay, db)
        assert hanging(relay) == 0
        assert relay.stop() == 0
    assert duplicates(healthy.event_ids()) == duplicates(sick.event_ids()) == 0
    assert numbers(sick) == {*range(400), *range(1000, 1300)}
    for endpoint, topic in ((healthy, "healthy"), (sick, "sick")):
        arrived = by_key((key_of(request), request.json["n"]) for request in endpoint.seen() if key_of(request))
        assert arrived == {f"{topic} {each}": list(range(each, 400, 10)) for each in range(10)}


def test_events_that_cannot_be_sent_to_a_host_that_hangs_do_not_die(db, tmp_path, healthy, sick):
    """With one attempt each, only those that were really sent are dead."""
    sick.script = lambda _: Answer(hang=True)
    emit(db.connect(), 200, topic="sick")
    with Relay(tmp_path, db.dsn(), **both(healthy, sick, timeout="2s", attempts=1, retry_most="1s")) as relay:
        relay.until("host_hangs")
        relay.until("dead", 48)
        emit(db.connect(), 100, topic="healthy")
        healthy.wait(100)
        dead = {str(row.event_id) for row in parked(db) if row.state == "dead"}
        assert dead <= set(sick.event_ids()) and len(sick.seen()) < 100
        sick.script = lambda _: None
        relay.until_true(lambda: {row.state for row in parked(db)} == {"dead"} and passed_all(db), "the others to be delivered")
        assert relay.stop() == 0
    assert numbers(sick) == set(range(200))


def test_what_waits_for_a_host_that_hangs_soon_stops_no_other_and_still_has_a_limit(db, tmp_path, healthy, sick):
    """Ten that wait count as one for parked_max."""
    sick.script = lambda _: Answer(hang=True)
    emit(db.connect(), 300, topic="sick", aggregate="(i % 200)::text")
    with Relay(tmp_path, db.dsn(), **both(healthy, sick, timeout="15s", retry_most="1s", attempts=1000, parked_max=100, batch=50)) as relay:
        relay.until_true(lambda: passed_all(db), "the relay to pass what hangs")
        emit(db.connect(), 100, topic="healthy")
        healthy.wait_for(lambda requests: len(requests) == 100, "the healthy host's")
        relay.kill()
        relay.start()  # it counts what is parked
        emit(db.connect(), 100, topic="healthy", first=100)
        healthy.wait_for(lambda requests: len(set(healthy.event_ids())) == 200, "the rest of the healthy host's")
        assert len(parked(db)) > 2 * 100 and relay.log("parked_max") == []
        emit(db.connect(), 1200, topic="sick", first=300)
        relay.until("parked_max")
        assert 400 < len(parked(db)) < 1500
        sick.script = lambda _: None
        sick.release()
        relay.until("reading")
        settled(relay, db)
        assert relay.stop() == 0
    assert numbers(sick) == set(range(1500))


def test_an_event_that_hangs_does_not_stop_its_host(db, tmp_path, healthy, sick):
    sick.script = lambda request: Answer(hang=True) if request.json["n"] == 0 else None
    emit(db.connect(), 1, topic="sick")
    with Relay(tmp_path, db.dsn(), **both(healthy, sick, timeout="60s")) as relay:
        sick.wait(1)
        relay.until_true(lambda: parked(db), "the hanging one to be put off")
        emit(db.connect(), 100, topic="sick", first=1)
        sick.wait_for(lambda requests: len(requests) == 101, "the others")
        sick.release()
        settled(relay, db)
        assert relay.stop() == 0
    assert duplicates(sick.event_ids()) == 0
