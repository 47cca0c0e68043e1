# SPDX-License-Identifier: PostgreSQL
"""SIGHUP: pgonce relay and consume go on with the configuration file as it is now, and pgonce keep connects anew; the same process, and no work is
lost. A file that is wrong changes nothing."""
import array
import fcntl
import json
import signal
import subprocess
import termios

import pytest

from harness.broker import free_port
from harness.postgres import PATIENCE_S, clean_environment, tied, wait_until
from harness.scrape import address_in, ask
from harness.webhook import Answer, Webhook, always
from keeper.keeping import NOTHING, Keeper, holder, replace_step, status
from relay.running import LINE, PROGRAM, Relay, emit, passed_all, webhook


def hang_up(process):
    process.send_signal(signal.SIGHUP)


def waiting_in(pipe):
    """The bytes in it that nobody has read."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def emitted(db, *arguments, **options):
    connection = db.connect()
    with connection:
        emit(connection, *arguments, **options)
    connection.close()


def numbers(relay):
    return [event["payload"]["n"] for event in relay.delivered()]


# ---- relays


def test_a_relay_goes_on_with_what_the_file_says_now(db, tmp_path):
    with Relay(tmp_path, db.dsn(), route="old.* -> {topic}") as relay:
        emitted(db, topic="old.one")
        relay.until_true(lambda: numbers(relay) == [0], "the event")
        pid = relay.process.pid
        relay.write({"sink": "stdout", "route": "new.* -> {topic}"})
        hang_up(relay.process)
        assert relay.until("reloaded")["relays"] == "r"
        emitted(db, topic="old.two", first=1)
        emitted(db, topic="new.one", first=2)
        relay.until_true(lambda: numbers(relay) == [0, 2], "the event of the new route alone")
        assert relay.process.pid == pid and relay.stop() == 0
        assert passed_all(db)


def test_a_line_that_a_reload_has_cut_is_ended_before_the_next_one_begins(db, tmp_path):
    """Nobody reads, for longer than the relay waits for it to go on."""
    db.execute("SELECT once.emit('t', jsonb_build_object('n', n, 'pad', repeat('x', 50000))) FROM generate_series(1, 20) AS n")
    config, err = tmp_path / "r.conf", tmp_path / "err"
    config.write_text(f'dsn = {db.dsn()}\n[relay r]\nsink = stdout\ntimeout = 1s\n')
    with err.open("w") as log, subprocess.Popen(
        tied([PROGRAM, "relay", "--config", config]), stdout=subprocess.PIPE, stderr=log, env=clean_environment()
    ) as process:
        wait_until(lambda: waiting_in(process.stdout) > 60000, "the pipe to be full, in the midst of a line")
        hang_up(process)
        wait_until(lambda: "event=reloaded" in err.read_text(), "the reload")
        lines = iter(process.stdout.readline, b"")
        seen = set()
        while len(seen) < 20:
            seen.add(json.loads(next(lines))["id"])
        process.terminate()
        process.stdout.read()
        assert process.wait(PATIENCE_S) == 0


def test_relays_that_are_no_longer_in_the_file_end_and_new_ones_begin(db, tmp_path):
    with Relay(tmp_path, db.dsn(), arguments=["--metrics", "127.0.0.1:0"]) as relay:
        relay.until("metrics")
        address = address_in(relay.err.read_text())
        emitted(db)
        relay.until_true(lambda: numbers(relay) == [0], "the event")
        assert 'relay="r"' in ask(address)[2]
        relay.config.write_text(relay.config.read_text().replace("[relay r]", "[relay other]"))
        hang_up(relay.process)
        relay.until_true(lambda: [line for line in relay.log("active") if line.get("relay") == "other"], "the other relay")
        relay.until_true(lambda: numbers(relay) == [0, 0], "the event, which the other relay has not delivered yet")
        wait_until(lambda: 'relay="other"' in ask(address)[2], "its figures, at the same address")
        assert 'relay="r"' not in ask(address)[2]
        assert relay.stop() == 0


def test_a_file_that_is_wrong_changes_nothing_and_all_mistakes_are_told(db, tmp_path):
    with Relay(tmp_path, db.dsn()) as relay:
        relay.until("active")
        good = relay.config.read_text()
        relay.config.write_text(good + "batch = many\nretry_most = 1y\n[relya x]\n")
        hang_up(relay.process)
        relay.until("reload_failed", 3)
        assert [line["problem"].split(": ")[0].split("/")[-1] for line in relay.log("reload_failed")] == ["r.conf:6", "r.conf:4", "r.conf:5"]
        assert "hint" in relay.until("not_reloaded")
        emitted(db)
        relay.until_true(lambda: numbers(relay) == [0], "an event, by the old settings")
        relay.config.unlink()
        hang_up(relay.process)
        assert "No such file" in relay.until("reload_failed", 4)["problem"]
        relay.config.write_text(good.replace("[relay r]", "[consume r]"))
        hang_up(relay.process)
        assert "no [relay NAME] section" in relay.until("reload_failed", 5)["problem"]
        emitted(db, first=1)
        relay.until_true(lambda: numbers(relay) == [0, 1], "another one")
        assert len(relay.log("started")) == 1 and not relay.log("reloaded")
        relay.config.write_text(good)
        hang_up(relay.process)
        relay.until("reloaded")
        emitted(db, first=2)
        relay.until_true(lambda: numbers(relay) == [0, 1, 2], "and one after the mend")
        assert relay.stop() == 0


def test_what_is_in_flight_is_finished_first(db, tmp_path):
    with Webhook(always(hang=True)) as endpoint:
        with Relay(tmp_path, db.dsn(), **webhook(endpoint)) as relay:
            emitted(db)
            endpoint.wait()
            relay.write(webhook(endpoint, attempts="3"))
            hang_up(relay.process)
            relay.until("reloading")
            assert not relay.log("reloaded")
            endpoint.release(Answer())
            relay.until("reloaded")
            relay.until("active", 2)
            endpoint.script = always()
            emitted(db, first=1)
            endpoint.wait(2)
            assert [request.json["n"] for request in endpoint.seen()] == [0, 1]
            assert relay.stop() == 0
    assert passed_all(db)


def test_an_end_that_is_asked_for_meanwhile_is_the_end(db, tmp_path):
    with Webhook(always(hang=True)) as endpoint:
        with Relay(tmp_path, db.dsn(), **webhook(endpoint)) as relay:
            emitted(db)
            endpoint.wait()
            hang_up(relay.process)
            relay.until("reloading")
            relay.process.send_signal(signal.SIGTERM)
            endpoint.release(Answer())
            assert relay.wait() == 0
            assert not relay.log("reloaded") and len(endpoint.seen()) == 1
    assert passed_all(db)


def test_many_hang_ups_lose_nothing(db, tmp_path):
    with Relay(tmp_path, db.dsn(), batch=10) as relay:
        for round_ in range(8):
            emitted(db, 50, aggregate="(i % 5)::text", first=50 * round_)
            hang_up(relay.process) if relay.log("active") else relay.until("active")
        relay.until_true(lambda: set(numbers(relay)) == set(range(400)), "all events")
        assert relay.stop() == 0
        assert len(numbers(relay)) == 400


def test_with_once_a_hang_up_ends_nothing_either(db, tmp_path):
    with Webhook(always(hang=True)) as endpoint:
        emitted(db, 3, aggregate="'a'")
        with Relay(tmp_path, db.dsn(), **webhook(endpoint)) as relay:
            relay.process.kill()
            relay.wait()
            relay.start("--once")
            endpoint.wait()
            hang_up(relay.process)
            relay.until("reloading")
            endpoint.script = always()
            endpoint.release(Answer())
            assert relay.wait() == 0
            assert [request.json["n"] for request in endpoint.seen()][-2:] == [1, 2]
    assert passed_all(db)


# ---- consumers


def test_a_consumer_goes_on_with_what_the_file_says_now(db, tmp_path):
    """Its broker is away, which is no reason to end."""
    db.execute("CREATE FUNCTION public.take(once.message) RETURNS void LANGUAGE sql AS ''")
    config, err = tmp_path / "c.conf", tmp_path / "c.err"
    text = f"dsn = {db.dsn()}\n[consume c]\nsource = nats\nurl = nats://127.0.0.1:{free_port()}\nstream = S\ndurable = c\nhandler = public.take\n"
    config.write_text(text)

    def log(event):
        return [line for line in (dict(LINE.findall(each)) for each in err.read_text().splitlines()) if line.get("event") == event]

    with open(err, "ab") as out:
        process = subprocess.Popen(tied([PROGRAM, "consume", "--config", config]), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                   env=clean_environment())
    try:
        wait_until(lambda: log("started"), "the consumer")
        config.write_text(text.replace("[consume c]", "[consume d]"))
        hang_up(process)
        wait_until(lambda: [line for line in log("started") if line.get("consume") == "d"], "the other consumer")
        assert log("reloaded")[0]["consumers"] == "d" and [line["consume"] for line in log("stopped")] == ["c"]
        config.write_text("nonsense\n")
        hang_up(process)
        wait_until(lambda: log("not_reloaded"), "the refusal")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


# ---- keepers


def test_a_keeper_connects_anew_and_so_takes_what_the_service_file_says_now(server, db, tmp_path):
    other = server.new_database()
    services = tmp_path / "services"

    def name(database):
        services.write_text("[shop]\n" + "\n".join(database.dsn().split()) + "\n")

    try:
        name(db)
        keeper = Keeper(tmp_path, "service=shop", interval="1h")
        keeper.words = ["env", f"PGSERVICEFILE={services}", *keeper.words]
        with keeper:
            keeper.until("step", step="decisions")
            assert keeper.log("connected")[0]["database"] == db.name
            pid = keeper.process.pid
            name(other)
            hang_up(keeper.process)
            assert keeper.until("connected", 2)["database"] == other.name
            assert "command line" in keeper.until("reloaded")["hint"]
            keeper.until("step", 2, step="decisions")
            wait_until(lambda: status(other)["decisions"].last_success, "a round in the other database")
            assert keeper.process.pid == pid and keeper.stop() == 0
    finally:
        other.drop()


@pytest.mark.parametrize("words", [[], ["--once"]], ids=["daemon", "once"])
def test_a_piece_that_is_at_work_is_finished(db, tmp_path, words):
    replace_step(db, "purge", "PERFORM pg_advisory_xact_lock(4711); RETURN ROW(7, false, NULL, NULL)::once.kept;")
    connection = db.connect()
    connection.cursor().execute("SELECT pg_advisory_lock(4711)")
    keeper = Keeper(tmp_path, db.dsn())
    keeper.words += words
    with keeper:
        wait_until(lambda: db.value("SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted)"), "the step")
        hang_up(keeper.process)
        connection.close()
        assert keeper.until("step", step="purge")["done"] == "7"
        if words:
            assert keeper.process.wait(PATIENCE_S) == 0
        else:
            keeper.until("reloaded")
            replace_step(db, "purge", NOTHING)
            keeper.until("step", 2, step="decisions")
            assert keeper.stop() == 0
    assert not keeper.log("step_failed") and holder(db) is None


def test_a_keeper_that_stands_by_or_has_no_server_is_not_ended(db, tmp_path):
    with Keeper(tmp_path, db.dsn(), name="first") as first:
        first.until("active")
        with Keeper(tmp_path, db.dsn(), name="second") as second:
            second.until("standby")
            hang_up(second.process)
            second.until("reloaded")
            second.until("connected", 2)
            assert first.stop() == 0
            second.until("active")
            assert second.stop() == 0
    with Keeper(tmp_path, f"host={tmp_path} dbname=x", name="away") as away:
        away.until("database")
        hang_up(away.process)
        away.until("reloaded")
        assert away.stop() == 0
