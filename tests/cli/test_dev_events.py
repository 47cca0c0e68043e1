# SPDX-License-Identifier: PostgreSQL
"""What pgonce dev runs of the way out and in: an order that is placed in the one database is shipped in the other, after every kind of end."""

import os
import pathlib
import shutil
import signal
import socket
import tempfile

import psycopg2
import pytest
from harness.postgres import ROOT, in_memory, is_running, private_directory, wait_until

from .command import PROGRAM
from .test_dev import Dev, clean_up

pytestmark = pytest.mark.skipif(
    not PROGRAM.exists() or shutil.which("nats-server", path=os.environ.get("PATH", "") + ":/usr/sbin") is None,
    reason="nats-server is not installed",
)
ORDERS = (ROOT / "examples/orders/orders.sql").read_text()


@pytest.fixture
def dev(request):
    """As this user; parametrized with True, as another one."""
    other = getattr(request, "param", False)
    if other and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    parent = private_directory("pgonce-dev-", in_memory()) if other else pathlib.Path(tempfile.mkdtemp(prefix="pgonce-dev-", dir=in_memory()))
    parent.chmod(0o755)
    made = Dev(parent / ".pgonce", other)
    yield made
    clean_up(made)
    shutil.rmtree(parent, ignore_errors=True)


def start(dev):
    done = dev("--detach")
    assert done.returncode == 0, done.stderr
    return dev.status()["events"]


def warehouse(events, query):
    connection = psycopg2.connect(events["warehouse"])
    try:
        with connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchone()[0]
    finally:
        connection.close()


def place(dev, key):
    request = f'{{"customer": "ada", "cart": "{key}", "total": 5}}'
    dev.value(f"SELECT orders.place('{key}', '{request}')")


def shipped(events, count):
    wait_until(lambda: warehouse(events, "SELECT count(*) FROM shop.shipment") >= count, f"{count} shipments")
    assert warehouse(events, "SELECT count(*) FROM shop.shipment") == count
    assert warehouse(events, "SELECT 1000000 - quantity FROM shop.stock") == count


def pids(events):
    return [events["pid"], events["relay"]["pid"], events["consume"]["pid"]]


def port_of(events):
    return int(events["url"].rpartition(":")[2])


@pytest.mark.parametrize("dev", [False, True], indirect=True, ids=["this user", "another user"])
def test_an_order_is_shipped_once_and_all_goes_down_with_the_server(dev):
    process, told = dev.foreground()
    events = dev.status()["events"]
    assert events["warehouse"] in told
    dev.value(ORDERS)
    place(dev, "1")
    shipped(events, 1)
    assert all(map(is_running, pids(events)))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0, process.stderr.read()
    assert not any(map(is_running, pids(events)))


def test_it_goes_on_after_a_stop_where_it_was(dev):
    first = start(dev)
    dev.value(ORDERS)
    place(dev, "1")
    shipped(first, 1)
    assert dev("--stop").returncode == 0 and dev("--status").returncode == 3
    second = start(dev)
    assert second["url"] == first["url"] and not set(pids(first)) & set(pids(second))
    place(dev, "2")
    shipped(second, 2)


@pytest.mark.parametrize("part", [0, 1, 2], ids=["nats", "relay", "consumer"])
def test_a_part_that_was_killed_is_started_again_and_loses_nothing(dev, part):
    before = start(dev)
    dev.value(ORDERS)
    place(dev, "1")
    shipped(before, 1)
    os.kill(pids(before)[part], signal.SIGKILL)
    place(dev, "2")
    after = start(dev)
    shipped(after, 2)


def test_one_start_after_another_keeps_what_runs(dev):
    assert pids(start(dev)) == pids(start(dev))


def test_another_port_is_taken_where_the_first_is_not_free(dev):
    first = start(dev)
    assert dev("--stop").returncode == 0
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port_of(first)))
        taken.listen()
        assert port_of(start(dev)) != port_of(first)
