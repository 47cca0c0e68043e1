# SPDX-License-Identifier: PostgreSQL
"""examples/demo.py, which `make run` shows: all of it comes up around the server of pgonce dev and goes down with it, after every kind of end."""

import json
import os
import pathlib
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import psycopg2
import pytest
from cli.test_dev import Dev, clean_up
from harness.nginx import BUILD
from harness.postgres import ROOT, clean_environment, in_memory, is_running, private_directory, wait_until

NEEDED = ("cli/pgonce", "gateway/ngx_http_once_module.so", "examples/payments/payments-example", "examples/handoff/handoff-example")
NATS = shutil.which("nats-server", path=os.environ.get("PATH", "") + ":/usr/sbin")
pytestmark = pytest.mark.skipif(
    not all((BUILD / name).exists() for name in NEEDED) or not NATS,
    reason="the module or the services are not built, or nats-server is not installed",
)


class Demo:
    """The demonstration in a directory of its own, as this user or (other) as the unprivileged one, from a copy of the tree."""

    def __init__(self, parent, other=False, without=()):
        self.parent = parent
        self.dev = Dev(parent / ".pgonce", other)
        if self.dev.copy:
            shutil.rmtree(self.dev.copy.parent)
            self.dev.copy = None
        for name in NEEDED:
            if name not in without:
                (parent / "build" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(BUILD / name, parent / "build" / name)
        shutil.copytree(ROOT / "examples", parent / "examples")
        self.dev.program = parent / "build/cli/pgonce"

    def words(self, what):
        return [sys.executable, self.parent / "examples/demo.py", what, self.parent / "build", self.dev.directory]

    def run(self, what):
        return subprocess.run(self.words(what), capture_output=True, text=True, check=False, timeout=120, **self.dev.popen)

    def start(self):
        up = self.dev("--detach")
        assert up.returncode == 0, up.stderr
        done = self.run("start")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def stop(self):
        assert self.run("stop").returncode == 0
        return self.dev("--stop")


@pytest.fixture
def make():
    made = []

    def run(parent, **options):
        made.append(Demo(parent, **options))
        return made[-1]

    yield run
    for demo in made:
        demo.run("stop")
        clean_up(demo.dev)
        shutil.rmtree(demo.parent, ignore_errors=True)


@pytest.fixture
def demo(request, make):
    """As this user; parametrized with True, as another one."""
    other = getattr(request, "param", False)
    if other and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    parent = private_directory("pgonce-demo-", in_memory()) if other else pathlib.Path(tempfile.mkdtemp(prefix="pgonce-demo-", dir=in_memory()))
    parent.chmod(0o755)
    return make(parent, other=other)


def pids(told):
    return [
        told["keeper"]["pid"],
        *(told[name][part] for name in ("payments", "handoff") for part in ("pid", "gateway")),
        *(told["events"][name] for name in ("nats", "relay", "consume")),
    ]


def places(told):
    return [told["payments"]["url"], told["handoff"]["url"], told["events"]["url"], told["keeper"]["metrics"]]


def post(told, key, service="payments", behave=""):
    request = urllib.request.Request(told[service]["url"], b'{"order": "A-1", "amount": 5, "currency": "EUR"}', method="POST",
                                     headers={"Content-Type": "application/json", "Idempotency-Key": key, "X-Behave": behave})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.status, answer.headers.get("Idempotency-Replayed"), answer.read()


def works(told, key):
    first, second = post(told, key), post(told, key)
    assert first == (201, None, second[2]) and second[:2] == (201, "true")
    assert post(told, key, "handoff", "die")[0] == 201  # the stored outcome is the answer
    with urllib.request.urlopen(told["payments"]["status"], timeout=60) as answer:
        assert "payments" in json.load(answer)["scopes"]
    with urllib.request.urlopen(told["keeper"]["metrics"], timeout=60) as answer:
        assert "pgonce_keeper_rounds_total" in answer.read().decode()


def place(demo, key):
    demo.dev.value((ROOT / "examples/orders/orders.sql").read_text())
    request = f'{{"customer": "ada", "cart": "{key}", "total": 5}}'
    demo.dev.value(f"SELECT orders.place('{key}', '{request}')")


def shipped(told, count):
    connection = psycopg2.connect(told["events"]["warehouse"])
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:

            def value(query):
                cursor.execute(query)
                return cursor.fetchone()[0]

            wait_until(lambda: value("SELECT count(*) FROM shop.shipment") >= count, f"{count} shipments")
            assert value("SELECT count(*) FROM shop.shipment") == value("SELECT 1000000 - quantity FROM shop.stock") == count
    finally:
        connection.close()


@pytest.mark.parametrize("demo", [False, True], indirect=True, ids=["this user", "another user"])
def test_all_of_it_comes_up_works_goes_down_and_goes_on_where_it_was(demo):
    first = demo.start()
    works(first, "k1")
    place(demo, "1")
    shipped(first, 1)
    assert all(map(is_running, pids(first)))
    assert demo.stop().stdout == "stopped\n"
    assert not any(map(is_running, pids(first)))
    second = demo.start()
    assert places(second) == places(first) and not set(pids(first)) & set(pids(second))
    assert post(second, "k1")[1] == "true"
    place(demo, "2")
    shipped(second, 2)


@pytest.mark.parametrize("part", range(8), ids=["keeper", "payments", "gateway", "handoff", "its gateway", "nats", "relay", "consumer"])
def test_a_part_that_was_killed_is_started_again_and_loses_nothing(demo, part):
    before = demo.start()
    place(demo, "1")
    os.kill(pids(before)[part], signal.SIGKILL)
    after = demo.start()
    assert not any(map(is_running, pids(before)))
    works(after, "k1")
    shipped(after, 1)


def test_a_port_that_somebody_took_meanwhile_is_left_to_him(demo):
    first = demo.start()
    demo.stop()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(first["payments"]["url"].rpartition(":")[2].partition("/")[0])))
        taken.listen()
        second = demo.start()
        assert second["payments"]["url"] != first["payments"]["url"]
        works(second, "k1")


# Listens at the port until it is killed.
TAKER = "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); print(flush=True); sys.stdin.read()"


def test_a_port_that_is_taken_after_the_look_is_left_and_the_next_one_tried(tmp_path):
    module = runpy.run_path(str(ROOT / "examples/demo.py"), run_name="loaded")
    demo = object.__new__(module["Demo"])
    demo.home, demo.log, taken, started = tmp_path, tmp_path / "log", [], []

    def launch(port):
        if not taken:
            taken.append(subprocess.Popen([sys.executable, "-c", TAKER, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True))
            assert taken[0].stdout.readline() == b"\n"
        started.append((port, subprocess.Popen([sys.executable, "-c", TAKER, str(port)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)))
        return started[-1][1].pid

    try:
        pid, port = demo.start_at_a_port("NATS", "nats", launch)
        assert [each for each, _ in started] == [started[0][0], port] and port != started[0][0] and pid == started[1][1].pid
        assert (tmp_path / "nats.port").read_text() == f"{port}\n"
    finally:
        for process in (*taken, *(each for _, each in started)):
            process.communicate()


def test_two_starts_at_once_leave_one(demo):
    demo.start()
    starts = [subprocess.Popen(demo.words("start"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **demo.dev.popen) for _ in range(2)]
    told = [start.communicate(timeout=120) for start in starts]
    assert [start.returncode for start in starts] == [0, 0], told
    running = [all(map(is_running, pids(json.loads(out)))) for out, _ in told]
    assert sorted(running) == [False, True]


def test_a_stale_number_ends_nobody(demo):
    demo.start()
    demo.stop()
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        (demo.dev.directory / "demo/lock").write_text(f"{bystander.pid}\n")
        demo.stop()
        works(demo.start(), "k1")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_what_cannot_start_is_said_and_leaves_nothing_running(demo):
    demo.start()
    demo.stop()
    store = demo.dev.directory / "demo/nats"
    shutil.rmtree(store)
    store.write_text("no directory")
    demo.dev("--detach")
    done = demo.run("start")
    assert done.returncode == 1 and done.stdout == "" and "demo.py: " in done.stderr
    log = (demo.dev.directory / "demo/log").read_text()
    leader = int((demo.dev.directory / "demo/lock").read_text())
    wait_until(lambda: session_of(leader) == [], f"the end of what had started: {log[-500:]}")


def session_of(leader):
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (process / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue  # it ended
        if state not in "ZX" and int(session) == leader:
            found.append(int(process.name))
    return found


def test_root_runs_it_from_a_tree_that_nobody_else_reaches(make):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    demo = make(pathlib.Path(tempfile.mkdtemp(prefix="pgonce-closed-", dir="/tmp")))  # 0700, root's
    told = demo.start()
    works(told, "k1")
    place(demo, "1")
    shipped(told, 1)
    owner = os.stat(demo.dev.status()["data"]).st_uid
    assert owner != 0 and {os.stat(f"/proc/{pid}").st_uid for pid in pids(told)} == {0, owner}
    assert {os.stat(f"/proc/{told[name]['gateway']}").st_uid for name in ("payments", "handoff")} == {0}  # nginx's workers are another's


def test_root_leaves_an_ordinary_users_demonstration_to_him(make):
    if os.geteuid() != 0:
        pytest.skip("needs root and another user")
    parent = private_directory("pgonce-demo-", in_memory())
    parent.chmod(0o755)
    demo = make(parent, other=True)
    demo.start()
    demo.stop()
    demo.dev.popen = {"cwd": "/", "env": clean_environment()}
    assert demo.dev("--detach").returncode == 0
    done = demo.run("start")
    assert done.returncode == 0 and "run this as that user" in done.stderr and json.loads(done.stdout)["payments"] is None


def test_without_the_gateway_the_rest_comes_up_and_that_is_said(make):
    parent = pathlib.Path(tempfile.mkdtemp(prefix="pgonce-demo-", dir=in_memory()))
    parent.chmod(0o755)
    demo = make(parent, without=("gateway/ngx_http_once_module.so",))
    demo.dev("--detach")
    done = demo.run("start")
    told = json.loads(done.stdout)
    assert "without the services and the gateway: " in done.stderr and told["payments"] is None and told["events"]["warehouse"]


def test_the_play_shows_one_charge_per_intent(demo):
    """As `make run` does it."""
    told = demo.start()
    played = subprocess.run([sys.executable, ROOT / "examples/payments/play.py", demo.dev.program, json.dumps(told)], capture_output=True, text=True,
                            check=False, timeout=120, env={**clean_environment(), "PYTHONUNBUFFERED": "1"})
    assert played.returncode == 0, played.stdout + played.stderr
    assert "replayed" in played.stdout and os.linesep + "Charges" in played.stdout
