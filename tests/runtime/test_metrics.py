# SPDX-License-Identifier: PostgreSQL
"""The metrics of pgonce relay and pgonce consume: what they count, read as a scraper reads it; and the little server that answers."""

import contextlib
import json
import socket
import subprocess

import pytest
from consume.script import HANDLER
from harness import openmetrics
from harness.broker import free_port
from harness.nats import Nats
from harness.nginx import BUILD
from harness.postgres import PORT, clean_environment, tied, wait_until
from harness.scrape import address_in, ask, assert_promtool_takes, figure, scrape
from harness.webhook import Answer, Webhook, per_event
from relay.running import PROGRAM, Relay, emit, webhook

LOCAL = "127.0.0.1:0"


@pytest.fixture
def endpoint():
    with Webhook() as webhook_server:
        yield webhook_server


@contextlib.contextmanager
def running(tmp_path, db, address=LOCAL, **options):
    with Relay(tmp_path, db.dsn(), arguments=("--metrics", address), **options) as relay:
        relay.until("started")  # it answers a moment before, and has nothing to tell then
        yield relay, address_in(relay.err.read_text())


def test_what_the_registry_writes_is_openmetrics():
    text = subprocess.run([BUILD / "tests/runtime/test_metrics", "sample"], capture_output=True, check=True, timeout=60).stdout.decode()
    families = openmetrics.read(text)
    assert families["pgonce_jobs"].samples == {("_total", (("kind", 'a"b\\c\nd'),)): 3}
    assert families["pgonce_depth"].samples == {("", (("topic", "ä?"),)): 1e-9}


# ---- the server


def test_a_relays_figures_pass_promtool(tmp_path, db, endpoint):
    emit(db.connect(), 3)
    with running(tmp_path, db, **webhook(endpoint)) as (relay, address):
        relay.until_true(lambda: len(endpoint.seen()) == 3, "the events")
        assert_promtool_takes(address)
        assert relay.stop() == 0


def test_get_and_head_are_answered_and_nothing_else(tmp_path, db):
    with running(tmp_path, db) as (relay, address):
        assert ask(address, "/health")[::2] == (200, "ok\n")
        status, headers, text = ask(address, "/metrics", "HEAD")
        assert (status, text) == (200, "") and int(headers["Content-Length"]) > 100
        assert ask(address, "/metrics?x=1")[0] == 200
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            status, headers, _ = ask(address, "/metrics", method, b"x" * 100000)
            assert (status, headers["Allow"]) == (405, "GET, HEAD")
        assert ask(address, "/")[0] == 404
        assert ask(address, "/metrics/")[0] == 404
        assert relay.stop() == 0


@pytest.mark.parametrize("given, host", [("[::1]:0", "::1"), ("localhost:0", "127.0.0.1")])
def test_other_addresses_of_this_machine(tmp_path, db, given, host):
    if host == "::1":
        try:
            socket.create_server((host, 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("no IPv6 here")
    with running(tmp_path, db, given) as (relay, address):
        assert address[0] == host
        assert scrape(address)["pgonce_relay_batches"]


def test_connections_that_say_nothing_are_bounded_and_keep_nobody_out_for_good(tmp_path, db):
    with running(tmp_path, db) as (relay, address):
        silent = [socket.create_connection(address) for _ in range(100)]

        def answered():
            try:
                return ask(address, "/health")[0] == 200
            except OSError:
                return False

        wait_until(answered, "an answer, when the silent ones are shown out")
        for each in silent:
            each.close()
        assert relay.stop() == 0


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:", ":9187", "127.0.0.1:99999", "::1:9187", "[127.0.0.1]:1", "example.com:9187",
                                     "127.0.0.1:x", "unix:/tmp/x", "*:9187"])
@pytest.mark.parametrize("command", ["relay", "consume"])
def test_an_address_that_is_none_is_refused_before_anything_starts(tmp_path, address, command):
    (tmp_path / "c").write_text(f"dsn = dbname=x\n[relay r]\nsink = stdout\n[consume r]\nsource = nats\nurl = nats://127.0.0.1:1\n"
                                "stream = S\nhandler = apply\n")
    done = subprocess.run([PROGRAM, command, "--config", tmp_path / "c", "--metrics", address], capture_output=True, text=True,
                          env=clean_environment(), timeout=60, check=False)
    assert done.returncode == 2 and f"--metrics: '{address}' is not an ADDRESS:PORT" in done.stderr, done.stderr


def test_a_port_that_is_taken_is_said_so(tmp_path, db):
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        relay = Relay(tmp_path, db.dsn(), arguments=("--metrics", address)).start()
        assert relay.wait() == 1
    assert f"cannot serve metrics at {address}: Address already in use" in relay.err.read_text()


# ---- what is counted


def test_a_relay_counts_what_became_of_its_events(tmp_path, db, endpoint):
    endpoint.script = per_event(Answer(500), Answer(200))
    with running(tmp_path, db, **webhook(endpoint, retry_first="5ms", retry_most="10ms")) as (_, address):
        emit(db.connect(), 10)
        wait_until(lambda: figure(scrape(address), "pgonce_relay_delivered", relay="r") == 10, "all to be delivered")
        read = scrape(address)
        assert figure(read, "pgonce_relay_refused", relay="r") == 10
        assert figure(read, "pgonce_relay_parked", relay="r") == 10
        assert figure(read, "pgonce_relay_dead", relay="r") == 0
        assert figure(read, "pgonce_relay_in_flight", relay="r") == 0
        assert figure(read, "pgonce_relay_active", relay="r") == 1
        assert figure(read, "pgonce_relay_batches", relay="r") >= 1
        assert figure(read, "pgonce_relay_last_batch_timestamp_seconds", relay="r") > 1.7e9
        assert figure(read, "pgonce_relay_sink_away", relay="r") == 0


def test_a_relay_tells_of_a_sink_that_is_away_and_of_events_that_died(tmp_path, db, endpoint):
    endpoint.script = per_event(Answer(500))
    with running(tmp_path, db, **webhook(endpoint, attempts=1)) as (_, address):
        emit(db.connect(), 3)
        wait_until(lambda: figure(scrape(address), "pgonce_relay_dead", relay="r") == 3, "three to die")
        endpoint.refuse()
        emit(db.connect(), 1)
        wait_until(lambda: figure(scrape(address), "pgonce_relay_sink_away", relay="r") == 1, "the sink to be away")
        endpoint.accept()
        wait_until(lambda: figure(scrape(address), "pgonce_relay_sink_away", relay="r") == 0, "the sink to be back")


def test_of_two_processes_one_is_active_and_a_lost_connection_is_counted(tmp_path, db):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with running(tmp_path / "a", db) as (first, at_first):
        wait_until(lambda: figure(scrape(at_first), "pgonce_relay_active", relay="r") == 1, "the first to be active")
        with running(tmp_path / "b", db) as (second, at_second):
            second.until("standby")
            assert figure(scrape(at_second), "pgonce_relay_active", relay="r") == 0
            first.kill()
            wait_until(lambda: figure(scrape(at_second), "pgonce_relay_active", relay="r") == 1, "the second to take over")
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
            wait_until(lambda: figure(scrape(at_second), "pgonce_relay_connects", relay="r") == 2, "it to connect anew")


def test_a_relay_tells_that_it_has_parked_as_much_as_it_may(tmp_path, db, endpoint):
    endpoint.script = lambda _: Answer(500)
    with running(tmp_path, db, **webhook(endpoint, attempts=1, parked_max=2)) as (relay, address):
        assert figure(scrape(address), "pgonce_relay_full", relay="r") == 0
        emit(db.connect(), 10)
        wait_until(lambda: figure(scrape(address), "pgonce_relay_full", relay="r") == 1, "it to be full")
        assert relay.log("parked_max")
        db.execute("SELECT once.parked_discard_many('a test', dry_run => false)")
        endpoint.script = lambda _: None
        wait_until(lambda: figure(scrape(address), "pgonce_relay_full", relay="r") == 0, "it to read again")


@contextlib.contextmanager
def consuming(tmp_path, db, **options):
    """(a consumer of a NATS's stream ORDERS, started: what a metric of it is; the broker)."""
    db.execute(HANDLER)
    with Nats() as nats:
        nats.add_stream("ORDERS", "order.>")
        config = tmp_path / "pgonce.conf"
        lines = {"source": "nats", "url": nats.url, "stream": "ORDERS", "retry_first": "5ms", "retry_most": "10ms", "attempts": 1, **options}
        config.write_text(f"dsn = {db.dsn()}\n[consume stock]\n" + "".join(f"{name} = {value}\n" for name, value in lines.items()))
        log = tmp_path / "log"
        with open(log, "wb") as out:
            process = subprocess.Popen(tied([PROGRAM, "consume", "--config", config, "--metrics", LOCAL]), stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=out, env=clean_environment())
        try:
            wait_until(lambda: address_in(log.read_text()), "the address")
            address = address_in(log.read_text())

            def metric(name):
                return figure(scrape(address), f"pgonce_consume_{name}", consumer="stock")

            wait_until(lambda: metric("active") is not None, "it to have metrics")
            yield metric, nats
            process.terminate()
            assert process.wait(60) == 0, log.read_text()
        finally:
            process.kill()
            process.wait(60)


def poison(nats, number):
    nats.publish([("order.x", json.dumps({"number": number, "do": "fail"}).encode(), [("Pgonce-Event-Id", f"id-{number}")])])


def test_a_consumer_tells_that_it_has_parked_as_much_as_it_may(tmp_path, db):
    with consuming(tmp_path, db, handler="apply", parked_max=1) as (metric, nats):
        wait_until(lambda: metric("active") == 1, "it to be at work")
        assert metric("full") == 0
        poison(nats, 1)
        wait_until(lambda: metric("full") == 1, "it to be full")
        db.execute("SELECT once.parked_discard('id-1', 'a test', consumer => 'stock')")
        wait_until(lambda: metric("full") == 0, "it to read again")


def test_a_consumer_tells_of_copies_that_its_dead_topic_does_not_take(tmp_path, db):
    with consuming(tmp_path, db, handler="apply", dead_topic="nowhere.stock") as (metric, nats):
        poison(nats, 1)
        wait_until(lambda: metric("dead_unsent") >= 2, "copies that were not sent")
        nats.add_stream("DEAD", "nowhere.>")
        wait_until(lambda: len(nats.messages("DEAD")) == 1, "the copy")
        wait_until(lambda: db.value("SELECT state FROM once.parked_message") == "dead", "it to be dead")
        told = metric("dead_unsent")
        poison(nats, 2)
        wait_until(lambda: len(nats.messages("DEAD")) == 2, "the next one's copy")
        assert metric("dead_unsent") == told


def test_a_consumer_tells_of_an_endpoint_that_is_away(tmp_path, db, endpoint):
    endpoint.refuse()
    with consuming(tmp_path, db, endpoint=endpoint.url) as (metric, nats):
        wait_until(lambda: metric("endpoint_away") == 0, "it to be at work")
        nats.publish([("order.x", b"{}", [("Pgonce-Event-Id", "id-1")])])
        wait_until(lambda: metric("endpoint_away") == 1, "the endpoint to be away")
        endpoint.accept()
        wait_until(lambda: metric("endpoint_away") == 0, "the endpoint to be back")


def test_a_consumer_counts_what_became_of_its_messages(tmp_path, db):
    """Of three: one is applied, comes again, comes with another payload, and one fails for good."""
    db.execute(HANDLER)
    with Nats() as nats:
        nats.add_stream("ORDERS", "order.>")
        config = tmp_path / "pgonce.conf"
        config.write_text(f"dsn = {db.dsn()}\n[consume stock]\nsource = nats\nurl = {nats.url}\nstream = ORDERS\nhandler = apply\n"
                          "retry_first = 5ms\nretry_most = 10ms\nattempts = 3\n")
        log = tmp_path / "log"
        process = subprocess.Popen(tied([PROGRAM, "consume", "--config", config, "--metrics", LOCAL]), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=open(log, "wb"), env=clean_environment())
        try:
            wait_until(lambda: address_in(log.read_text()), "the address")
            address = address_in(log.read_text())

            def sent(number, identity, **more):
                nats.publish([("order.x", json.dumps({"number": number, **more}).encode(), [("Pgonce-Event-Id", identity), ("Pgonce-Key", identity)])])

            def counted(name, **labels):
                return figure(scrape(address), f"pgonce_consume_{name}", consumer="stock", **labels)

            sent(1, "a")
            wait_until(lambda: counted("applied") == 1, "the first to be applied")
            sent(1, "a")
            wait_until(lambda: counted("duplicates") == 1, "the second to be a duplicate")
            sent(2, "a")
            wait_until(lambda: counted("mismatches") == 1, "the third to be refused")
            assert counted("parked", state="dead") == 1
            sent(3, "b", do="fail")
            wait_until(lambda: counted("parked", state="dead") == 2, "the poison to be dead")
            read = scrape(address)
            assert figure(read, "pgonce_consume_parked", consumer="stock", state="retrying") == 2
            assert figure(read, "pgonce_consume_applied", consumer="stock") == 1
            assert figure(read, "pgonce_consume_messages", consumer="stock") >= 4
            assert figure(read, "pgonce_consume_active", consumer="stock") == 1
            assert figure(read, "pgonce_consume_connects", consumer="stock") == 1
            assert figure(read, "pgonce_consume_last_message_timestamp_seconds", consumer="stock") > 1.7e9
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait(60)


# ---- readiness


def readiness(address):
    status, _, text = ask(address, "/once/ready")
    assert text == {200: "ready\n", 503: "no connection to the database\n"}[status]
    return status


def appears(server, away):
    (away / f".s.PGSQL.{PORT}").symlink_to(server.directory / f".s.PGSQL.{PORT}")


@pytest.mark.parametrize("kind", ["relay", "keep", "consume"])
def test_started_without_a_database_a_process_is_up_and_says_that_it_is_not_ready(kind, server, db, tmp_path):
    away = tmp_path / "away"
    away.mkdir()
    dsn = db.dsn().replace(str(server.directory), str(away))
    config = tmp_path / "ready.conf"
    if kind == "consume":
        db.execute(HANDLER)
    with contextlib.ExitStack() as stack:
        if kind == "consume":
            broker = stack.enter_context(Nats())
            broker.add_stream("ORDERS", "order.>")
            config.write_text(f"[consume stock]\nsource = nats\nurl = {broker.url}\nstream = ORDERS\nhandler = apply\n")
        else:
            config.write_text("[relay ready]\nsink = stdout\n")
        words = [PROGRAM, kind, "--dsn", dsn, "--metrics", LOCAL, *([] if kind == "keep" else ["--config", config])]
        err = stack.enter_context(open(tmp_path / "err", "wb"))
        process = subprocess.Popen(tied(words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err, env=clean_environment())
        stack.callback(process.wait)
        stack.callback(process.kill)
        wait_until(lambda: address_in((tmp_path / "err").read_text()), "the metrics")
        address = address_in((tmp_path / "err").read_text())
        assert ask(address, "/health")[0] == 200 and readiness(address) == 503
        appears(server, away)
        wait_until(lambda: readiness(address) == 200, f"the database: {(tmp_path / 'err').read_text()}")
        assert process.poll() is None
