# SPDX-License-Identifier: PostgreSQL
"""What `pgonce keep`, `relay` and `console` tell a service manager (Type=notify): when they are ready, while they reload, that they are alive, when they
stop; and that a database which is away holds up no start."""

import re
import select
import signal
import socket
import subprocess
import time

import pytest

from harness.broker import free_port
from harness.postgres import PATIENCE_S, clean_environment, tied
from keeper.keeping import PROGRAM, Keeper
from relay.running import Relay


class Manager:
    def __init__(self, directory, monkeypatch, watchdog_s):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(directory / "notify"))
        self.socket.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(directory / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", str(int(watchdog_s * 1e6)))

    def until(self, beginning):
        """The message that begins so, and how long it took to come."""
        began = time.monotonic()
        while True:
            message = self.socket.recv(4096).decode()
            if message.startswith(beginning):
                return message, time.monotonic() - began


@pytest.fixture
def manager(tmp_path, monkeypatch):
    made = Manager(tmp_path, monkeypatch, 4)
    yield made
    made.socket.close()


def life(manager, process):
    """From its start to its end."""
    assert manager.until("READY=1\n")[0] == "READY=1\nSTATUS=at work\n"
    for _ in range(2):  # one may be sent on the way
        manager.until("WATCHDOG=1\n")
    process.send_signal(signal.SIGHUP)
    assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+\n", manager.until("RELOADING=1")[0])
    assert manager.until("READY=1\n")[0] == "READY=1\nSTATUS=at work\n"
    manager.until("WATCHDOG=1\n")
    process.send_signal(signal.SIGTERM)
    manager.until("STOPPING=1\n")


def test_a_keeper_is_alive_also_while_it_rests(db, tmp_path, manager):
    with Keeper(tmp_path, db.dsn(), interval="10m") as keeper:
        life(manager, keeper.process)
        assert keeper.process.wait(PATIENCE_S) == 0


def test_a_relay_is_alive_also_without_events(db, tmp_path, manager):
    with Relay(tmp_path, db.dsn()) as relay:
        life(manager, relay.process)
        assert relay.wait() == 0


def test_a_database_that_is_away_holds_up_no_start(tmp_path, manager):
    away = f"host=127.0.0.1 port={free_port()} dbname=nothing"
    with Relay(tmp_path, away) as relay:
        message, _ = manager.until("READY=1\n")
        assert message == "READY=1\nSTATUS=no connection to the database\n"
        manager.until("WATCHDOG=1\n")
        assert relay.process.poll() is None


def test_a_mistake_ends_the_start_and_never_makes_it_ready(db, tmp_path, manager):
    with Relay(tmp_path, db.dsn(), batch="none") as relay:
        assert relay.wait() == 2
    manager.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.socket.recv(4096)


class Silent:
    """Servers that take connections and say nothing; each may keep a client for as long as the client allows."""

    def __init__(self):
        self.sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.hosts = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in self.sockets)

    def next_one(self):
        """The connection to one of those that had none yet."""
        found, _, _ = select.select(self.sockets, [], [], PATIENCE_S)
        self.sockets.remove(found[0])
        return found[0].accept()[0]


@pytest.mark.parametrize("source, scheme, options", [("nats", "nats", "stream = ORDERS"), ("rabbitmq", "amqp", "queue = orders")])
def test_a_consumer_is_alive_between_two_servers_that_say_nothing(db, tmp_path, manager, source, scheme, options):
    silent = Silent()
    db.connect().cursor().execute("CREATE FUNCTION public.take(once.message) RETURNS void LANGUAGE sql AS ''")
    (tmp_path / "conf").write_text(f"[consume stock]\nsource = {source}\nurl = {scheme}://{silent.hosts}\n{options}\nhandler = public.take\n")
    words = [PROGRAM, "consume", "--dsn", db.dsn(), "--config", str(tmp_path / "conf"), "stock"]
    with subprocess.Popen(tied(words), stdin=subprocess.DEVNULL, env=clean_environment()) as process:
        try:
            with silent.next_one():
                manager.socket.settimeout(0)
                with pytest.raises(BlockingIOError):
                    while True:  # what it said before
                        manager.socket.recv(4096)
                with silent.next_one():
                    assert manager.socket.recv(4096) == b"WATCHDOG=1\n"
        finally:
            process.kill()


def console(db, tmp_path):
    words = [PROGRAM, "console", "--dsn", db.dsn(), "--listen", f"127.0.0.1:{free_port()}"]
    return subprocess.Popen(tied(words), stdin=subprocess.DEVNULL, stderr=open(tmp_path / "console.err", "wb"), env=clean_environment())


def test_a_console_is_alive_as_long_as_it_gives_pages(db, tmp_path, manager):
    process = console(db, tmp_path)
    try:
        assert "STATUS=listening at http://127.0.0.1:" in manager.until("READY=1\n")[0]
        manager.until("WATCHDOG=1\n")
        process.send_signal(signal.SIGHUP)
        manager.until("RELOADING=1\n")
        manager.until("READY=1\n")
        process.send_signal(signal.SIGTERM)
        manager.until("STOPPING=1\n")
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
