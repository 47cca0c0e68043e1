# SPDX-License-Identifier: PostgreSQL
"""The system of the torture and what is done to it: each process can be killed, stopped and started; what should run is started again; clocks and
disks are as they are said to be; a failover loses nothing that was acknowledged.

Broken on purpose and seen to fail: a failover that does not ask whether the standby has everything, a shim that ignores its file, a tending thread
that does nothing, a former primary that starts as it is, a heal() that only waits for a server that is stuck."""

import contextlib
import os
import re
import signal
import threading
import time

import psycopg2
import pytest

from harness.postgres import is_running, wait_until

from . import published
from .faults import BY_KIND
from .processes import Shim
from .system import NotNow, System

PATIENCE_S = 120


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    with System(1, tmp_path_factory.mktemp("torture")) as made:
        yield made
        assert not made.problems


@pytest.fixture(autouse=True)
def healed(request):
    """Each test finds the system whole, and what it broke is mended by heal() alone."""
    yield
    if "system" in request.fixturenames:
        request.getfixturevalue("system").heal()


class Writer(threading.Thread):
    """Inserts numbers, one after another, each in a transaction of its own, and knows which were acknowledged."""

    def __init__(self, system, number):
        super().__init__(daemon=True)
        self.system, self.number, self.over = system, number, threading.Event()
        self.acknowledged = []
        self.start()

    def run(self):
        connection, count = None, 0
        while not self.over.is_set():
            count += 1
            try:
                connection = connection or psycopg2.connect(self.system.dsn("client-pg", "postgres"))
                with connection.cursor() as cursor:
                    cursor.execute("INSERT INTO noted VALUES (%s, %s)", (self.number, count))
                connection.commit()
                self.acknowledged.append((self.number, count))
            except psycopg2.Error:
                if connection is not None:
                    connection.close()
                connection = None
                self.over.wait(0.02)

    def end(self):
        self.over.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()


@pytest.fixture
def writers(system):
    with psycopg2.connect(system.direct_dsn()) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS noted (writer integer, number integer)")
        cursor.execute("TRUNCATE noted")
    connection.close()
    made = [Writer(system, number) for number in range(4)]
    yield made
    for writer in made:
        writer.over.set()


def noted(system):
    connection = psycopg2.connect(system.direct_dsn())
    with connection.cursor() as cursor:
        cursor.execute("SELECT writer, number FROM noted")
        found = cursor.fetchall()
    connection.close()
    return found


def done(system, kind, target, **parameters):
    """A fault, begun; what follows the context is its end."""
    return BY_KIND[kind].do(system, target, **parameters)


def more_is_acknowledged(writers, count=20):
    """All of them write again."""
    before = [len(writer.acknowledged) for writer in writers]
    wait_until(lambda: all(len(writer.acknowledged) >= had + count for writer, had in zip(writers, before)), "acknowledgements", PATIENCE_S)


def may_fail_over(system):
    """Faults come at their time; a test has the longest wait behind it."""
    wait_until(system.in_sync, "the standby", PATIENCE_S)
    system.synchronous_since -= 60


@pytest.mark.parametrize("fenced", [False, True], ids=["in-the-midst", "fenced"])
def test_a_failover_loses_nothing_that_was_acknowledged(system, writers, fenced):
    more_is_acknowledged(writers)
    may_fail_over(system)
    old, port = system.primary, system.links["client-pg"].port
    with done(system, "failover", "primary", fenced=fenced):
        assert system.primary is not old and not old.is_running()
        old.wanted = True  # as who does not know of the failover might say
        more_is_acknowledged(writers)  # by the new one, without a standby
        time.sleep(1)
        assert not old.is_running()
    wait_until(system.in_sync, "the former primary as a standby", PATIENCE_S)
    assert system.standby is old and old.value("SELECT pg_is_in_recovery()") and port == system.links["client-pg"].port
    more_is_acknowledged(writers)
    for writer in writers:
        writer.end()
    rows = noted(system)
    acknowledged = {each for writer in writers for each in writer.acknowledged}
    assert acknowledged <= set(rows) and len(rows) == len(set(rows))


def test_a_promotion_that_fails_is_tried_again(system, writers, monkeypatch):
    may_fail_over(system)
    new = system.standby
    plain, filled = new.value, []

    def has_failed():
        return re.search("could not (write|create|link).*No space left", new.tail())

    def with_a_full_disk(query, *values, **options):
        """Until it has failed. Two ask for a promotion, and one of them until there has been one."""
        if "pg_promote" in query and not filled:
            filled.append(new.shim.set_full(True))
        elif has_failed():
            new.shim.set_full(False)
        return plain(query, *values, **options)

    monkeypatch.setattr(new, "value", with_a_full_disk)
    with done(system, "failover", "primary", fenced=True):
        wait_until(has_failed, "the promotion to fail", PATIENCE_S)
        new.shim.set_full(False)
        more_is_acknowledged(writers)
    wait_until(system.in_sync, "the former primary as a standby", PATIENCE_S)


def all_wait(system, writers):
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE 'COMMIT%'"
    wait_until(lambda: system.primary.value(waiting) >= len(writers), "all writers to wait for the standby", PATIENCE_S)


def test_there_is_no_failover_to_a_standby_that_lacks_something(system, writers):
    may_fail_over(system)
    primary = system.primary
    with done(system, "pause", "standby", pick=0), pytest.raises(NotNow):
        system.failover(False)
    with done(system, "half_open", "standby-primary", direction="both"):
        all_wait(system, writers)  # for what the standby lacks
        for fenced in (False, True):
            with pytest.raises(NotNow):
                system.failover(fenced, patience_s=1)
    assert system.primary is primary and primary.is_running()
    more_is_acknowledged(writers)


def test_a_commit_waits_for_the_standby(system, writers):
    wait_until(system.in_sync, "the standby", PATIENCE_S)
    more_is_acknowledged(writers)
    with done(system, "pause", "standby", pick=0):
        all_wait(system, writers)
        before = [len(writer.acknowledged) for writer in writers]
        time.sleep(0.5)
        assert before == [len(writer.acknowledged) for writer in writers]
    more_is_acknowledged(writers)


@pytest.mark.parametrize("name", ["primary", "standby", "warehouse", "gateway", "naive", "handoff", "relay-a", "relay-b", "broker", "consume", "keep"])
def test_each_process_can_be_killed_and_stopped_and_is_there_again(system, name):
    process = getattr(system, name, None) or next(each for each in system.processes if each.name == name)
    pids = process.pids()
    with done(system, "kill", name, pick=0):
        assert not process.is_running() and not any(map(is_running, pids))
        time.sleep(0.3)
        assert not process.is_running()  # nor is it started before the end of the fault
    wait_until(process.is_ready, name, PATIENCE_S)
    assert process.pid not in pids
    with done(system, "pause", name, pick=0):
        assert process.is_running()
        wait_until(lambda: {state(pid) for pid in process.pids()} == {"T"}, f"{name} to stop", PATIENCE_S)
    wait_until(process.is_ready, name, PATIENCE_S)


def state(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_what_ends_by_itself_is_started_again_and_noted(system):
    before = len(system.ended)
    system.keeper.process.kill()
    wait_until(lambda: len(system.ended) > before and system.keeper.is_ready(), "the keeper", PATIENCE_S)
    assert system.ended[-1][1:] == ("keep", -9)


def test_a_relay_sleeps_while_another_takes_over_and_stands_by_when_it_wakes_up(system):
    wait_until(system.active_relay, "a relay to be active", PATIENCE_S)
    sleeper = system.active_relay()[0]
    with done(system, "takeover", "relay"):
        assert {state(pid) for pid in sleeper.pids()} == {"T"} and system.sleeps[-1]["by"] == sleeper.name
        assert system.active_relay()[0] is not sleeper
        with pytest.raises(NotNow), done(system, "takeover", "relay"):
            pass  # one at a time
    wait_until(lambda: sleeper.log.read_text().splitlines()[-1].endswith('reason="another process is active for this relay"'), "it to stand by", PATIENCE_S)
    assert system.active_relay()[0] is not sleeper


def test_what_the_relays_publish_is_known_with_who_and_when(system):
    with psycopg2.connect(system.direct_dsn()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT torture.act('t', 's', 'k', '{\"i\": 1, \"aggregate\": \"a1\", \"events\": 3, \"caused\": false}', 1, 'sql')")
    connection.close()
    wait_until(lambda: len(published.read(system)) >= 6, "the events", PATIENCE_S)
    copies = {relay: [row for row in published.read(system) if row["relay"] == relay] for relay in published.COPIES}
    for rows in copies.values():
        assert [row["nth"] for row in rows] == [1, 2, 3] and {row["aggregate"] for row in rows} == {"a1"}
        assert {row["by"] for row in rows} <= set(system.relays)
    ids = [[row["event_id"] for row in rows] for rows in copies.values()]
    assert ids[0] == ids[1] and len(set(ids[0])) == 3
    rows = copies["torture"]
    assert all(any(turn["by"] == row["by"] and turn["at"] < row["at"] < time.time() for turn in published.turns(system)) for row in rows)


@pytest.mark.parametrize("part", ["primary-postmaster", "primary-backend", "gateway-worker"])
def test_a_part_of_a_process_can_be_killed_alone(system, part):
    process = system.primary if part.startswith("primary") else system.gateway
    pids = set(process.pids())
    with done(system, "kill", part, pick=3):
        wait_until(lambda: not pids <= set(process.pids()), part, PATIENCE_S)
    system.heal()
    assert set(process.pids()) != pids


def test_a_graceful_restart_ends_and_starts(system):
    pid, before = system.consumer.pid, len(system.ended)
    with done(system, "restart", "consume"):
        wait_until(lambda: not is_running(pid), "its end", PATIENCE_S)
    wait_until(system.consumer.is_ready, "its start", PATIENCE_S)
    assert len(system.ended) == before  # it was told to


def test_the_clock_of_a_server_is_as_wrong_as_it_is_said_to_be(system):
    def ahead():
        return float(system.warehouse.value("SELECT date_part('epoch', clock_timestamp())")) - time.time()

    assert abs(ahead()) < 5
    with done(system, "clock", "warehouse", ahead_s=40000):
        assert 39990 < ahead() < 40010
        assert abs(float(system.primary.value("SELECT date_part('epoch', clock_timestamp())")) - time.time()) < 5
    with done(system, "clock", "warehouse", ahead_s=-40000):
        assert -40010 < ahead() < -39990
    assert abs(ahead()) < 5


def sleep(system, ended):
    """In the warehouse, for five seconds by its clock. ended: set when it is over, or cancelled."""
    connection = system.warehouse.connect("warehouse")
    try:
        with contextlib.suppress(psycopg2.errors.QueryCanceled), connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = 0; SELECT pg_sleep(5)")
    finally:
        connection.close()
        ended.set()


@pytest.mark.parametrize("away", [False, True])
def test_no_handler_sleeps_for_as_long_as_the_clock_was_ahead(system, monkeypatch, away):
    ended = threading.Event()
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    with done(system, "clock", "warehouse", ahead_s=3000):
        threading.Thread(target=sleep, args=(system, ended), daemon=True).start()
        wait_until(lambda: system.warehouse.value(asleep) == 1, "a sleeper", PATIENCE_S)
        if away:  # the server does not answer when its clock is set right
            monkeypatch.setattr(system.warehouse, "wake_sleepers", lambda: None)
    if away:
        monkeypatch.undo()
        system.heal()
    assert ended.wait(30)
    assert system.warehouse.value(asleep) == 0


def test_a_full_disk_refuses_writes_until_there_is_room(system):
    def write():
        connection = psycopg2.connect(system.warehouse_dsn())
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute("CREATE TABLE IF NOT EXISTS filled (x text)")
                cursor.execute("INSERT INTO filled SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
        finally:
            connection.close()

    write()
    with done(system, "disk_full", "warehouse"):
        with pytest.raises(psycopg2.Error) as refused:
            write()
    assert "No space left on device" in str(refused.value) + system.warehouse.tail(1_000_000)
    system.heal()
    write()


def test_a_server_that_waits_for_a_clock_that_was_ahead_is_started_again_and_noted(system):
    """The postmaster kills a child that does not end after five seconds by the clock of the day, which is set back meanwhile."""
    node = system.warehouse
    pid, before, said = node.pid, len(system.notes), len(node.tail(10_000_000))
    with done(system, "clock", "warehouse", ahead_s=3000):
        checkpointer, writer = (next(pid for pid, title in node.backends().items() if name in title) for name in ("checkpointer", "background writer"))
        os.kill(writer, signal.SIGSTOP)
        os.kill(checkpointer, signal.SIGKILL)
        wait_until(lambda: not node.is_ready() and "recovery mode" in node.tail(10_000_000)[said:], "the crash", PATIENCE_S)
    system.heal(patience_s=20)
    assert node.is_ready() and node.pid != pid and not is_running(writer)
    assert len(system.notes) == before + 1 and "postgres-w was stuck" in system.notes[-1]


def test_a_broker_that_does_not_answer_yet_is_asked_again_until_it_refuses_no_more(system, monkeypatch):
    harness, asked = system.broker.harness, []
    change = harness.change_stream

    def slow(name, **settings):
        asked.append(settings["max_msgs"])
        if len(asked) < 3:
            raise TimeoutError("no answer")
        change(name, **settings)

    system.refuse(True)
    system.refuses = True
    monkeypatch.setattr(harness, "change_stream", slow)
    system.heal()
    assert asked == [-1, -1, -1] and not system.refuses


def test_sessions_can_be_ended_and_cancelled(system):
    connection = psycopg2.connect(system.direct_dsn())
    with done(system, "terminate", "primary", pick=1, how="terminate", share=1) as said:
        assert int(said.rpartition(" ")[2]) >= 1
    with pytest.raises(psycopg2.Error):
        connection.cursor().execute("SELECT 1")
    connection.close()


def test_a_shim_says_what_its_file_says(tmp_path):
    shim = Shim(tmp_path / "shim")
    shim.set_clock(-1.5)
    shim.set_full(True)
    assert shim.ahead_s == -1.5 and (tmp_path / "shim").read_bytes()[8] == 1
    shim.true()
    assert (tmp_path / "shim").read_bytes() == bytes(16)
