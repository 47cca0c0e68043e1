# SPDX-License-Identifier: PostgreSQL
"""The batcher on a real server that is broken under it: its backends ended in mid-batch, the server restarted and crashed, answers lost.
Every intent is given to one, and every client gets the one answer."""
import os
import pathlib
import re
import signal
import subprocess
import threading

import pytest

from harness.disk import SlowDisk
from harness.postgres import Postgres
from harness.proxy import Proxy

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
SANITIZED = pathlib.Path(os.environ.get("PGONCE_BUILD_SANITIZED", ROOT / "build-sanitized"))
PATIENCE_S = 100


class Clients:
    """play_batcher, running."""

    def __init__(self, dsn, keys, series="k", connections=2):
        self.keys = keys
        self.process = subprocess.Popen(
            [SANITIZED / "tests/lib/play_batcher", dsn, str(keys), series, str(connections)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {"ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"})
        assert self.process.stdout.readline() == "started\n"

    def running(self):
        return self.process.poll() is None

    def end(self):
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, out[-4000:]
        counted = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", out)}
        # What must hold whatever happened.
        assert counted["granted_once"] == self.keys, out
        assert counted["answered"] == 3 * self.keys, out
        assert counted["refused"] == 0 and counted["pending"] == 0 and counted["errors"] == 0, out
        return counted


def stored(db):
    """Every intent has its own answer, under the fence of the one attempt that ran."""
    return db.row("SELECT count(*) AS intents, count(*) FILTER (WHERE state = 'succeeded' AND convert_from(response_body, 'UTF8') = key) AS stored"
                  " FROM once.intent")


def progress(db):
    return db.value("SELECT count(*) FROM once.intent WHERE state = 'succeeded'")


def test_every_intent_is_given_to_one_and_every_client_gets_its_answer(db):
    Clients(db.dsn(), 3000).end()
    assert stored(db) == (3000, 3000)


def test_backends_ended_in_mid_batch_again_and_again_leave_each_intent_with_one_claimer(db):
    clients = Clients(db.dsn(), 6000)
    ended = 0
    pause = threading.Event()
    while clients.running() and ended < 40:
        # Only those at work, so that most are hit in a batch; and no faster than a new backend gets to work.
        ended += db.value("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                          " WHERE application_name = 'pgonce' AND datname = current_database() AND state = 'active'"
                          " AND backend_start < clock_timestamp() - interval '100 ms'")
        pause.wait(0.005)
    counted = clients.end()
    assert stored(db) == (6000, 6000)
    assert counted["reconnects"] > 5 and ended >= counted["reconnects"]
    assert counted["resent"] > 100


@pytest.fixture(scope="module")
def slow_server():
    """On a disk as slow as a cloud volume."""
    with SlowDisk() as disk, Postgres(fsync=True, environment=disk.environment) as server:
        server.new_database()  # and the template: hundreds of files
        disk.set(4)
        yield server


@pytest.mark.parametrize("connections", [3, 8])
def test_a_slow_disk_gets_more_connections_and_each_intent_has_one_claimer(slow_server, connections):
    db = slow_server.new_database()
    counted = Clients(db.dsn(), 12000, connections=connections).end()
    assert stored(db) == (12000, 12000)
    assert counted["more"] == connections - 2 and counted["resent"] == 0


def test_backends_of_many_connections_ended_in_mid_batch_leave_each_intent_with_one_claimer(slow_server):
    db = slow_server.new_database()
    clients = Clients(db.dsn(), 12000, connections=5)
    ended, pause = 0, threading.Event()
    while clients.running():
        ended += db.value("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                          " WHERE application_name = 'pgonce' AND datname = current_database() AND state = 'active'"
                          " AND backend_start < clock_timestamp() - interval '600 ms'")
        pause.wait(0.05)
    counted = clients.end()
    assert stored(db) == (12000, 12000)
    assert counted["more"] > 0 and ended > 5 and counted["resent"] > 20


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_a_restarted_server_finds_its_clients_again(how):
    with Postgres(fsync=True) as server:
        db = server.new_database()
        clients = Clients(db.dsn(), 20000)
        for _ in range(3):
            before = progress(db)
            while clients.running() and progress(db) == before:
                pass
            db.close()
            server.restart(how)
        counted = clients.end()
        assert stored(db) == (20000, 20000)
        assert counted["reconnects"] >= 4


# What the batcher sends; an answer to each can be lost, or the request, or all that follows.
@pytest.mark.parametrize("loss", ["lose_request", "lose_connection_after", "lose_answer"])
@pytest.mark.parametrize("what", ["claim_many", "complete_many", "contract_version"])
def test_a_connection_lost_at_any_statement_leaves_each_intent_with_one_claimer(server, db, what, loss):
    with Proxy(server) as proxy:
        rules = [getattr(proxy, loss)(what) for _ in range(3)]
        counted = Clients(proxy.dsn(db.name), 500).end()
        assert all(rule.fired.wait(PATIENCE_S) for rule in rules)
        assert stored(db) == (500, 500)
        if what == "claim_many" and loss == "lose_answer":
            assert counted["resolved"] > 0
        assert counted["resent"] > 0 or what == "contract_version"


def test_a_server_that_stops_for_a_while_and_goes_on_gives_no_intent_to_two():
    """The backends sleep in mid-batch while the batcher gives their connections up, and then carry their batches out."""
    with Postgres() as server:
        db = server.new_database()
        clients = Clients(db.dsn() + " options='-c statement_timeout=0'", 20000)
        while progress(db) == 0:
            pass
        pids = [row.pid for row in db.rows("SELECT pid FROM pg_stat_activity WHERE application_name = 'pgonce'")]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        threading.Event().wait(7)  # longer than answer_timeout_ms, shorter than the lease
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass
        clients.end()
        assert stored(db) == (20000, 20000)


@pytest.mark.plain("a sanitized library is for programs that are sanitized")
def test_the_example_of_the_documentation_builds_and_charges_each_customer_once(db, tmp_path):
    page = (ROOT / "docs/reference/c-evented.md").read_text()
    source = tmp_path / "example.c"
    source.write_text(re.search(r"```c\n(.*?)```", page, re.S).group(1))
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "libpq", "libcrypto"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    built = subprocess.run(["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", source, "-o", tmp_path / "example", f"-I{ROOT}/include",
                            BUILD / "lib/libpgonce.a", *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert built.returncode == 0, built.stdout
    for time in range(2):
        done = subprocess.run([tmp_path / "example", db.dsn()], stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0
        lines = sorted(done.stdout.splitlines())
        fresh = ["adam: charged", "adam: the answer is processing_active", "adam: the answer is stored", "berta: charged",
                 "berta: the answer is stored", "cesar: charged", "cesar: the answer is stored"]
        replayed = [f"{name}: the answer is replay_success" for name in ("adam", "adam", "berta", "cesar")]
        assert lines == (fresh if time == 0 else replayed)
