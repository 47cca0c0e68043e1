# SPDX-License-Identifier: PostgreSQL
"""A relay's work: what is committed is delivered, progress is stored, memory is bounded, and what cannot go on says why."""

import json
import os
import re
import signal
import subprocess
import time

import psycopg2
import pytest

from harness.broker import free_port
from harness.pgbouncer import PgBouncer
from harness.postgres import ROOT, Postgres, clean_environment, tied, wait_until
from harness.proxy import Proxy
from harness.webhook import Answer, Webhook, always
from harness.scrape import address_in, figure, scrape

from .running import PROGRAM, Relay, duplicates, emit, parked, passed_all, webhook


@pytest.fixture
def endpoint():
    with Webhook() as running:
        yield running


def numbers(relay):
    return [message["payload"]["n"] for message in relay.delivered()]


def all_ids(endpoint):
    return set(endpoint.event_ids())


# ---- the main path


@pytest.mark.parametrize("batch, aggregates", [(1, 7), (200, 7), (1000, 10000)])
def test_once_delivers_everything_and_ends(db, tmp_path, batch, aggregates):
    emit(db.connect(), 2500, aggregate=f"(i % {aggregates})::text")
    relay = Relay(tmp_path, db.dsn(), batch=batch)
    assert relay.once() == 0
    assert sorted(numbers(relay)) == list(range(2500))
    assert relay.once() == 0
    assert len(numbers(relay)) == 2500


def test_an_event_carries_what_was_emitted(db, tmp_path):
    connection = db.connect()
    with connection.cursor() as cursor:
        cursor.execute("""SELECT once.emit('order.created', '{"b": 1.50, "a": "\\u00e9\\n"}', 'order', 'A 7', 'OrderCreated',
                          headers => '{"h": "x", "n": 12345678901234567890.10, "deep": {"a": [1, null]}, "nothing": null}', tenant => 't1')::text""")
        event_id = cursor.fetchone()[0]
    relay = Relay(tmp_path, db.dsn())
    assert relay.once() == 0
    created = db.value("SELECT to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM once.outbox")
    (message,) = relay.delivered()
    assert message == {
        "destination": "order.created",
        "id": event_id,
        "key": "A 7",
        "headers": {
            "Pgonce-Event-Id": event_id, "Pgonce-Event-Type": "OrderCreated", "Pgonce-Topic": "order.created", "Pgonce-Tenant": "t1",
            "Pgonce-Aggregate-Type": "order", "Pgonce-Key": "A 7", "Pgonce-Created-At": created,
            "h": "x", "n": "12345678901234567890.10", "deep": '{"a": [1, null]}', "nothing": "null",
        },
        "payload": {"a": "é\n", "b": 1.5},
    }
    assert '"payload": {"a": "é\\n", "b": 1.50}}\n' in relay.out.read_text()


def test_cloudevents_in_binary_mode(db, tmp_path):
    emit(db.connect(), 1, aggregate="'7'")
    relay = Relay(tmp_path, db.dsn(), envelope="cloudevents", ce_source="/shop")
    assert relay.once() == 0
    (message,) = relay.delivered()
    headers = message["headers"]
    assert headers.pop("ce-time").endswith("Z")
    assert headers == {"ce-specversion": "1.0", "ce-id": message["id"], "ce-source": "/shop", "ce-type": "order.created", "ce-subject": "7",
                       "ce-partitionkey": "7", "ce-aggregatetype": "order"}


def test_routes_choose_by_type_aggregate_and_header(db, tmp_path):
    connection = db.connect()

    def emit_as(number, **more):
        named = {"topic": "order", "payload": json.dumps({"n": number}), "aggregate_type": "order", "aggregate_id": "7", **more}
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT once.emit({', '.join(f'{name} => %s' for name in named)})", list(named.values()))

    emit_as(0, event_type="order.paid")
    emit_as(1, event_type="order.paid", headers='{"Region": "eu-1", "x": 1}')
    emit_as(2, event_type="order.paid", aggregate_type="invoice")
    emit_as(3, event_type="order.paid", headers='{"region": "us"}')
    emit_as(4, event_type="order.shipped", headers='{"region": "eu-2"}')
    emit_as(5, event_type="order.shipped", aggregate_type=None, aggregate_id=None)
    emit_as(6, topic="audit")
    relay = Relay(tmp_path, db.dsn(), route=["order if type = order.paid and header region = eu* -> paid-eu", "order if aggregate = invoice -> invoices",
                                             "order if type = order.s* -> shipped", "order if header region = * -> elsewhere", "order -> /dev/null"])
    assert relay.once() == 0
    assert {message["payload"]["n"]: message["destination"] for message in relay.delivered()} == {
        1: "paid-eu", 2: "invoices", 3: "elsewhere", 4: "shipped", 5: "shipped"}
    assert parked(db) == [] and passed_all(db)


def test_a_parked_event_that_a_route_now_leaves_out_frees_those_behind_it(db, tmp_path, endpoint):
    endpoint.script = always(Answer(500))
    emit(db.connect(), 1, topic="left", aggregate="'a'")
    emit(db.connect(), 2, topic="sent", aggregate="'a'", first=1)
    relay = Relay(tmp_path, db.dsn(), **webhook(endpoint, attempts=1))
    assert relay.once() != 0 and [row.state for row in parked(db)] == ["dead", "waiting", "waiting"]
    assert db.value("SELECT once.parked_retry(event_id::text, 'a test', 'r') FROM once.parked_event WHERE state = 'dead'")
    endpoint.script = always(Answer())
    endpoint.clear()
    options = webhook(endpoint, route=["left -> /dev/null", f"* -> {endpoint.url}"])
    del options["url"]
    relay.write(options)
    assert relay.once() == 0
    assert [request.json["n"] for request in endpoint.seen()] == [1, 2] and parked(db) == []


def test_routes_choose_events_and_destinations(db, tmp_path):
    connection = db.connect()
    emit(connection, 1, topic="order.created", first=1)
    emit(connection, 1, topic="order.paid", first=2)
    emit(connection, 1, topic="orderX", first=3)
    emit(connection, 1, topic="a_b%c", first=4)
    emit(connection, 1, topic="aXbYc", first=5)
    relay = Relay(tmp_path, db.dsn(), route=["order.paid -> paid", "order.* -> shop.{topic}.{tenant}x", r"a_b%c -> odd"])
    assert relay.once() == 0
    assert {(message["payload"]["n"], message["destination"]) for message in relay.delivered()} == {
        (1, "shop.order.created.x"), (2, "paid"), (4, "odd")}


def test_two_relays_each_get_everything(db, tmp_path):
    emit(db.connect(), 300, aggregate="(i % 3)::text")
    for name in ("first", "second"):
        relay = Relay(tmp_path, db.dsn(), name=name)
        assert relay.once() == 0
        assert sorted(numbers(relay)) == list(range(300))


def test_a_relay_that_starts_now_leaves_out_what_was_before(db, tmp_path):
    emit(db.connect(), 10)
    relay = Relay(tmp_path, db.dsn(), start="now")
    assert relay.once() == 0
    emit(db.connect(), 1, first=10)
    assert relay.once() == 0
    assert numbers(relay) == [10]


def test_what_is_committed_while_it_runs_arrives(db, tmp_path):
    connection = db.connect()
    with Relay(tmp_path, db.dsn()) as relay:
        relay.until("active")
        for number in range(20):
            emit(connection, 1, first=number)
            relay.until_true(lambda: len(numbers(relay)) == number + 1, "the event")
        assert relay.stop() == 0
    assert numbers(relay) == list(range(20))
    assert relay.log("stopped")[0]["delivered"] == "20"


def test_a_transaction_that_commits_late_is_not_skipped(db, tmp_path):
    late = db.connect(isolation="READ COMMITTED")
    emit(late, 1, first=0)
    with Relay(tmp_path, db.dsn()) as relay:
        for number in range(1, 50):
            emit(db.connect(), 1, first=number)
        relay.until_true(lambda: len(numbers(relay)) == 49, "the others")
        late.commit()
        relay.until_true(lambda: 0 in numbers(relay), "the late one")
        assert relay.stop() == 0
    assert sorted(numbers(relay)) == list(range(50))


@pytest.mark.parametrize("aggregate", ["''", "' '", "E'a\\nb'", "'{\"a\",}'", "'\\x'", "repeat('ä', 300)", "'%s'", "E'\\x01'"])
def test_an_aggregate_may_be_named_anything(db, tmp_path, endpoint, aggregate):
    endpoint.script = always(Answer(status=500), Answer())  # the first is parked: its name goes to the database and back
    emit(db.connect(), 3, aggregate=aggregate)
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, retry_first="10ms")) as relay:
        endpoint.wait(4)
        relay.until_true(lambda: not parked(db) and passed_all(db), "all to be delivered")
        assert relay.stop() == 0
    assert [request.json["n"] for request in endpoint.seen()] == [0, 0, 1, 2]


# ---- stopping, losing the session, taking over


def test_an_orderly_stop_delivers_nothing_twice(db, tmp_path, endpoint):
    emit(db.connect(), 2000, aggregate="(i % 50)::text")
    relay = Relay(tmp_path, db.dsn(), **webhook(endpoint, batch=500))
    for stops in range(1, 4):
        with relay:
            endpoint.wait(stops * 400)
            assert relay.stop() == 0
    assert relay.once() == 0
    assert len(all_ids(endpoint)) == 2000 and duplicates(endpoint.event_ids()) == 0


def test_a_session_that_is_ended_is_made_anew(db, tmp_path):
    connection = db.connect()
    with Relay(tmp_path, db.dsn(), batch=10) as relay:
        for round_ in range(5):
            relay.until("active", round_ + 1)
            emit(connection, 200, first=round_ * 200)
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgonce relay r'")
        relay.until_true(lambda: len(set(numbers(relay))) == 1000, "all events")
        assert relay.stop() == 0
    assert duplicates(numbers(relay)) <= 5 * 10
    assert relay.log("database")


@pytest.mark.parametrize("fault", ["lose_request", "lose_answer", "lose_connection_after"])
@pytest.mark.parametrize("step", ["relay_take", "relay_look", "relay_list", "relay_fetch", "relay_settle", "relay_due"])
def test_a_connection_lost_at_any_step_costs_at_most_a_batch(db, server, tmp_path, fault, step):
    emit(db.connect(), 100, aggregate="(i % 9)::text")
    with Proxy(server) as proxy, Relay(tmp_path, proxy.dsn(db.name), batch=20) as relay:
        relay.until_true(lambda: len(set(numbers(relay))) == 100, "the first events")
        getattr(proxy, fault)(step)
        emit(db.connect(), 100, first=100, aggregate="(i % 9)::text")
        relay.until_true(lambda: len(set(numbers(relay))) == 200, "all events")
        assert relay.stop() == 0
    assert duplicates(numbers(relay)) <= 20
    assert parked(db) == []


def test_a_database_that_lacks_progress_is_said_and_what_came_after_is_published_again(db, tmp_path):
    with Relay(tmp_path, db.dsn()) as relay:
        relay.until_true(lambda: db.rows("SELECT 1 FROM once.relay"), "the relay to begin")
        emit(db.connect(), 3)
        relay.until_true(lambda: passed_all(db), "the events")
        db.execute("UPDATE once.relay SET seen = '3:3:', reading = NULL, written_by = pg_current_xact_id()::xid")
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgonce relay r'")
        relay.until("rewound")
        relay.until_true(lambda: len(numbers(relay)) == 6, "them to be published again")
        assert relay.stop() == 0


@pytest.mark.alone
def test_of_two_processes_one_is_active_and_the_other_takes_over(db, tmp_path):
    connection = db.connect()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with Relay(tmp_path / "a", db.dsn()) as first:
        first.until("active")
        with Relay(tmp_path / "b", db.dsn()) as second:
            second.until("standby")
            emit(connection, 100)
            first.until_true(lambda: len(numbers(first)) == 100, "the events")
            assert numbers(second) == []
            first.process.kill()
            emit(connection, 100, first=100)
            started = time.monotonic()
            second.until_true(lambda: 199 in numbers(second), "the other to publish")
            assert time.monotonic() - started < 10
            assert second.log("took_over")
            assert second.stop() == 0
    assert set(numbers(first)) | set(numbers(second)) == set(range(200))


def test_a_database_that_is_far_away_is_published_from(db, server, tmp_path):
    with Proxy(server) as proxy, Relay(tmp_path, proxy.dsn(db.name)) as relay:
        relay.until("active")
        proxy.delay(0.4)
        emit(db.connect(), 3)
        relay.until_true(lambda: sorted(numbers(relay)) == [0, 1, 2], "the events")
        assert not relay.log("permit_late")


def test_a_database_too_far_away_to_publish_from_is_said_once(db, server, tmp_path):
    def late():
        return figure(scrape(address_in(relay.err.read_text())), "pgonce_relay_permit_late", relay="r")

    with Proxy(server) as proxy, Relay(tmp_path, proxy.dsn(db.name), arguments=("--metrics", "127.0.0.1:0")) as relay:
        relay.until("active")
        assert late() == 0
        proxy.delay(1.2)
        emit(db.connect(), 3)
        line = relay.until("permit_late")
        assert line["level"] == "warning" and int(line["round_trip_ms"]) >= 1200 and line["limit_ms"] == "1000;"
        said = proxy.round_trips
        relay.until_true(lambda: proxy.round_trips >= said + 3, "more permits that come too late")
        assert numbers(relay) == [] and len(relay.log("permit_late")) == 1 and late() == 1
        proxy.delay(0)
        relay.until_true(lambda: sorted(numbers(relay)) == [0, 1, 2], "the events")
        assert late() == 0
        proxy.delay(1.2)
        emit(db.connect(), 1, first=3)
        relay.until("permit_late", 2)


def test_the_server_notices_a_client_that_has_vanished(monkeypatch):
    """Over TCP the relay's session asks the server's kernel to look after the client: within ten seconds the lock is free."""
    port = free_port()
    monkeypatch.setattr("harness.postgres.PORT", port)
    with Postgres(settings={"listen_addresses": "127.0.0.1"}):
        connection = psycopg2.connect(f"host=127.0.0.1 port={port} dbname=postgres user=postgres")
        with connection.cursor() as cursor:
            cursor.execute(re.sub(r"\$1", "%s", re.sub(r"(?m)^--.*$", "", (ROOT / "relay/sql/relay_session.sql").read_text())), ("r",))
            settings = {}
            for name in ("tcp_user_timeout", "tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "synchronous_commit"):
                cursor.execute(f"SHOW {name}")
                settings[name] = cursor.fetchone()[0]
        connection.close()
    assert settings == {"tcp_user_timeout": "8000", "tcp_keepalives_idle": "2", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3",
                        "synchronous_commit": "on"}


# ---- what must not be published


def test_nothing_is_published_before_it_is_on_disk(tmp_path, endpoint):
    """Producers with synchronous_commit=off, and a crash of PostgreSQL the moment an event arrives, before the relay has settled it (which would flush
    it): its row is there afterwards. The first event of a round wakes the WAL writer, which then sleeps for long."""
    settings = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "statement_timeout": "0"}
    with Postgres(fsync=True, settings=settings) as server:
        database = server.new_database()
        with Relay(tmp_path, database.dsn(), **webhook(endpoint)) as relay:
            for crash in range(3):
                relay.until("active", crash + 1)
                connection = database.connect(synchronous_commit="off")
                emit(connection, 1, first=2 * crash)
                relay.until_true(lambda crash=crash: 2 * crash in {request.json["n"] for request in endpoint.seen()} and passed_all(database),
                                 "the first event to be settled")
                endpoint.script = lambda request: Answer(hang=True)
                emit(connection, 1, first=2 * crash + 1)
                endpoint.wait_for(lambda requests, crash=crash: requests[-1].json["n"] == 2 * crash + 1, "the second event")
                server.stop("immediate")
                database.close()
                endpoint.script = always()
                endpoint.release()
                server.start()
                kept = {row.n for row in database.rows("SELECT (payload->>'n')::int AS n FROM once.outbox")}
                assert {request.json["n"] for request in endpoint.seen()} <= kept
            relay.until_true(lambda: kept <= {request.json["n"] for request in endpoint.seen()} and passed_all(database), "the rest")
            assert relay.stop() == 0


# ---- back-pressure


def test_a_sink_that_is_away_is_waited_for_and_counts_nothing(db, tmp_path, endpoint):
    endpoint.refuse()
    emit(db.connect(), 3000, aggregate="(i % 100)::text", payload="jsonb_build_object('n', i, 'x', repeat('x', 2000))")
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, attempts=2)) as relay:
        relay.until("unavailable")
        emit(db.connect(), 3000, first=3000, aggregate="(i % 100)::text", payload="jsonb_build_object('n', i, 'x', repeat('x', 2000))")
        wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgonce relay r' AND state = 'idle'") == 1,
                   "the relay to wait")
        assert parked(db) == []
        endpoint.accept()
        relay.until_true(lambda: len(all_ids(endpoint)) == 6000, "all events")
        assert relay.stop() == 0
        assert len(relay.log("unavailable")) == 1 and len(relay.log("available")) == 1
    assert parked(db) == []


def test_memory_does_not_grow_with_the_backlog(db, tmp_path, endpoint):
    endpoint.refuse()
    emit(db.connect(), 200_000, aggregate="i::text")
    with Relay(tmp_path, db.dsn(), **webhook(endpoint)) as relay:
        relay.until("unavailable")
        assert relay.rss_kb() < 80_000
        relay.process.kill()


@pytest.mark.plain("it bounds memory")
def test_large_events_pass_in_bounded_memory(db, tmp_path):
    """200 MB, of which a batch would be all."""
    db.execute("SELECT once.set_scope('', event_bytes_max => 4194304)")
    emit(db.connect(), 500, aggregate="(i % 3)::text", payload="jsonb_build_object('n', i)")
    for first in range(0, 100, 10):
        emit(db.connect(), 10, first=500 + first, aggregate="(i % 3)::text",
             payload="jsonb_build_object('n', i, 'x', (SELECT string_agg(md5((i + g)::text), '') FROM generate_series(1, 65000) AS g))")
    peak = 0
    with Relay(tmp_path, db.dsn(), batch=1000) as relay:
        def all_there():
            nonlocal peak
            peak = max(peak, relay.rss_kb())
            return relay.out.exists() and relay.out.stat().st_size > 100 * 65000 * 32 and passed_all(db)

        relay.until_true(all_there, "all events")
        assert relay.stop() == 0
    assert peak < 150_000
    with open(relay.out, "rb") as out:
        assert sum(1 for _ in out) == 600


def test_many_parked_events_stop_the_reading_until_there_are_fewer(db, tmp_path, endpoint):
    endpoint.script = lambda request: Answer(status=500) if request.json["n"] < 400 and endpoint.failing else None
    endpoint.failing = True
    emit(db.connect(), 1000)
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, batch=50, parked_max=120, retry_first="20ms", retry_most="50ms", attempts=100000)) as relay:
        relay.until("parked_max")
        seen = db.row("SELECT seen, reading, after_id FROM once.relay")
        endpoint.clear()
        endpoint.wait(300)  # it only retries
        assert db.row("SELECT seen, reading, after_id FROM once.relay") == seen
        assert 120 < len(parked(db)) <= 170
        endpoint.failing = False
        endpoint.wait_for(lambda requests: {request.json["n"] for request in requests} >= set(range(400, 1000)), "the rest")
        relay.until_true(lambda: parked(db) == [] and passed_all(db), "all to be delivered")
        assert relay.log("reading")
        assert relay.stop() == 0


def test_a_reader_that_does_not_read_is_waited_for_and_one_that_is_gone_ends_the_relay(db, tmp_path):
    emit(db.connect(), 5000, payload="jsonb_build_object('n', i, 'x', repeat('x', 1000))")
    relay = Relay(tmp_path, db.dsn())
    reader, writer = os.pipe()
    with open(relay.err, "wb") as err:
        relay.process = subprocess.Popen(tied([PROGRAM, "relay", "--config", relay.config]), stdout=writer, stderr=err,
                                         env=clean_environment(), start_new_session=True)
    os.close(writer)
    with relay_ends(relay):
        assert os.read(reader, 100).startswith(b'{"destination"')
        relay.until_true(lambda: db.value("SELECT count(*) FROM once.relay") == 1, "the relay to begin")
        assert relay.process.poll() is None
        os.close(reader)
        assert relay.wait() == 1
    assert "standard output cannot be written: Broken pipe" in relay.err.read_text()


class relay_ends:
    def __init__(self, relay):
        self.relay = relay

    def __enter__(self):
        return self.relay

    def __exit__(self, *_):
        if self.relay.process.poll() is None:
            self.relay.kill()


# ---- what cannot go on


def failure(relay):
    relay.start()
    code = relay.wait()
    return code, relay.err.read_text()


@pytest.mark.parametrize("state", ["dead", "retrying"])
def test_once_fails_where_events_are_left_parked(db, tmp_path, state):
    relay = Relay(tmp_path, db.dsn())
    emit(db.connect(), 2)
    assert relay.once() == 0
    db.execute("INSERT INTO once.parked_event (relay, id, xid, day, event_id, topic, tenant, state, next_at, parked_at, updated_at) SELECT 'r', id, xid, day,"
               " event_id, topic, tenant, %s, now() + interval '1 hour', now(), now() FROM once.outbox LIMIT 1", state)
    assert relay.once() == 1
    assert "[relay r] 1 events are not delivered but parked: pgonce parked list" in relay.err.read_text()
    db.execute("SELECT once.parked_discard(event_id::text, 'the test is over', 'r') FROM once.parked_event")
    assert relay.once() == 0


def test_progress_of_another_cluster_is_refused(db, tmp_path):
    relay = Relay(tmp_path, db.dsn())
    assert relay.once() == 0
    db.execute("UPDATE once.relay SET written_by = '1'")
    code, said = failure(relay)
    assert code == 10 and "not written in this database" in said and "relay='r'" in said and "once.relay_adopt" in said, said


def test_a_missing_contract_is_said(server, tmp_path):
    empty = server.empty_database()
    code, said = failure(Relay(tmp_path, empty.dsn()))
    assert code == 4 and "pgonce init" in said
    empty.drop()


def test_an_old_contract_is_said(db, tmp_path):
    db.execute("DELETE FROM once.migration WHERE version > 0")
    code, said = failure(Relay(tmp_path, db.dsn()))
    assert code == 4 and "version 0" in said and "pgonce init" in said


def test_a_role_without_rights_is_told_which(db, tmp_path):
    db.execute("CREATE ROLE nobody_much LOGIN")
    try:
        code, said = failure(Relay(tmp_path, db.dsn(user="nobody_much")))
        assert code == 4 and ("once_relay" in said or "permission" in said)
    finally:
        db.execute("DROP OWNED BY nobody_much; DROP ROLE nobody_much")


def test_the_relays_role_suffices(db, tmp_path):
    db.execute("CREATE ROLE publisher LOGIN IN ROLE once_relay")
    try:
        emit(db.connect(), 10)
        relay = Relay(tmp_path, db.dsn(user="publisher"))
        assert relay.once() == 0
        assert len(numbers(relay)) == 10
    finally:
        db.execute("DROP OWNED BY publisher; DROP ROLE publisher")


def test_a_pooler_is_refused(db, server, tmp_path):
    with PgBouncer(server) as bouncer:
        dsn = f"host={bouncer.directory} port=5432 dbname={db.name} user=postgres"
        code, said = failure(Relay(tmp_path, dsn))
    assert code == 1 and "pooler" in said and "dsn" in said


def test_once_without_a_server_ends(tmp_path):
    assert Relay(tmp_path, f"host={tmp_path} dbname=none").once() == 3


def test_two_relays_cannot_both_have_standard_output(tmp_path):
    relay = Relay(tmp_path, "dbname=none")
    relay.config.write_text("dsn = dbname=none\n[relay a]\nsink = stdout\n[relay b]\nsink = stdout\n")
    assert relay.start("--check-config").wait() == 2
    assert "[relay a] and [relay b] cannot both have standard output" in relay.err.read_text()
    assert relay.start("--check-config", "b").wait() == 0


def test_the_first_signal_does_not_kill_relays_that_are_stopping_by_themselves(db, endpoint, tmp_path):
    """One has failed for good, the other waits for the answer to a call: that may not be made again for want of patience."""
    endpoint.script = always(Answer(hang=True))
    emit(db.connect(), 1)
    relay = Relay(tmp_path, db.dsn())
    relay.config.write_text(f"dsn = {db.dsn()}\n[relay a]\nsink = webhook\nroute = order.created -> {endpoint.url}\n"
                            "allow_private = yes\nallow_plain = yes\n[relay b]\nsink = stdout\nroute = x -> x\n")
    unread, written = os.pipe()
    with open(relay.err, "ab") as err:
        relay.process = subprocess.Popen(tied([PROGRAM, "relay", "--config", relay.config]), stdin=subprocess.DEVNULL, stdout=written, stderr=err,
                                         env=clean_environment(), start_new_session=True)
    try:
        os.close(written)
        endpoint.wait(1)
        os.close(unread)
        emit(db.connect(), 1, topic="x")
        relay.until("failed")
        relay.process.send_signal(signal.SIGTERM)
        endpoint.release(Answer())
        assert relay.wait() == 1
    finally:
        relay.__exit__()
    assert db.value("SELECT count(*) FROM once.parked_event") == 0 and len(endpoint.requests) == 1


@pytest.mark.parametrize("options, said", [
    ({"sink": "telegraph"}, "there is no sink 'telegraph'"),
    ({"batch": "0"}, "batch"),
    ({"route": "order.created"}, "TOPIC -> DESTINATION"),
    ({"route": "a*b -> x"}, "end of the topic"),
    ({"route": "a if color = red -> x"}, "write a condition as type = ..., aggregate = ..., or header NAME = ..."),
    ({"route": "a if type -> x"}, "write a condition as"),
    ({"route": "a if header = red -> x"}, "write a condition as"),
    ({"route": "a if type = a and  -> x"}, "write a condition as"),
    ({"route": "a if type = -> x"}, "a condition has a value behind its ="),
    ({"route": "a if type = a*b -> x"}, "end of a condition's value only"),
    ({"route": "a if type = b -> x"}, "where do events of a go that meet no condition? Let a route without one follow: a -> DESTINATION, or -> /dev/null"),
    ({"route": ["* -> y", "a.* if type = b -> x"]}, "where do events of a.* go"),
    ({"route": ["a.* if type = b -> x", "a.b -> y"]}, "where do events of a.* go"),
    ({"route": ["a if type = b -> x", "* if type = c -> y"]}, "where do events of a go"),
    ({"route": "a -> {what}"}, "{topic}"),
    ({"bach": "10"}, "batch"),
    ({"ce_source": "a b"}, "URI reference"),
    ({"retry_first": "5m", "retry_most": "1s"}, "retry_first is at most retry_most"),
])
def test_a_wrong_configuration_is_told_before_anything_is_connected(tmp_path, options, said):
    relay = Relay(tmp_path, "dbname=none", **options)
    relay.start("--check-config")
    assert relay.wait() == 2
    assert said in relay.err.read_text() and f"{relay.name}.conf:" in relay.err.read_text()
