# SPDX-License-Identifier: PostgreSQL
"""Two nodes that share the tenants: databases of one server, or of two."""

import os
import signal

import pytest
from cli.command import Command
from harness.postgres import Postgres, is_stopped, unprivileged, wait_until

SETTINGS = {"wal_level": "logical", "max_prepared_transactions": "10", "max_replication_slots": "20", "max_wal_senders": "20", "max_worker_processes": "20",
            "max_logical_replication_workers": "12", "wal_retrieve_retry_interval": "200ms"}  # fmt: skip


@pytest.fixture(scope="session")
def logical():
    """A server with logical replication."""
    with Postgres(settings=SETTINGS) as server:
        if server.version < 15:
            pytest.skip("row filters need PostgreSQL 15")
        yield server


class Standby:
    """A hot standby of a server. It can stop to receive; the connection stays."""

    def __init__(self, primary):
        self.primary = primary
        self.server = Postgres(copy_of=primary)
        mark = self.server.data / "standby.signal"
        mark.touch()
        if unprivileged()[1]:
            os.chown(mark, unprivileged()[1].pw_uid, -1)
        with open(self.server.data / "postgresql.auto.conf", "a", encoding="utf-8") as conf:
            conf.write(f"primary_conninfo = '{primary.dsn()}'\n")
        self.receiver = None

    def __enter__(self):
        self.server.start()
        return self

    def __exit__(self, *_):
        self.go_on()
        self.server.destroy()

    def stop_receiving(self):
        connection = self.server.connect()
        with connection.cursor() as cursor:

            def receiver():
                cursor.execute("SELECT pid FROM pg_stat_wal_receiver WHERE status = 'streaming'")
                return cursor.fetchall()

            wait_until(receiver, "the standby to receive")
            self.receiver = receiver()[0].pid
        connection.close()
        os.kill(self.receiver, signal.SIGSTOP)
        wait_until(lambda: is_stopped(self.receiver), "the receiver to stop")

    def go_on(self):
        if self.receiver is not None:
            os.kill(self.receiver, signal.SIGCONT)
            self.receiver = None


def divide(first, second, directory):
    first.execute("CALL once.divide(true)")
    done = Command(second.dsn(), directory)("init", "--join", first.dsn())
    assert done.returncode == 0, done.stderr


@pytest.fixture
def nodes(logical, tmp_path):
    """The first has all slots open."""
    first, second = logical.new_database(), logical.empty_database()
    divide(first, second, tmp_path)
    for node in (first, second):
        node.execute("CREATE TABLE effect (key text NOT NULL, attempt integer)")
    yield first, second
    for node in (first, second):
        node.close()
    for node in (first, second):  # as a killed run leaves them
        for row in node.rows("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
            node.execute(f"ROLLBACK PREPARED '{row.gid}'")
    for node, other in ((first, second), (second, first)):
        if (subscription := node.value("SELECT once._move_disable()")) is not None:
            other.execute("SELECT once._move_release(%s)", subscription)
            node.execute("SELECT once._move_unsubscribe()")
    for node in (first, second):
        node.execute("SELECT once._move_unpublish()")
        node.drop()


@pytest.fixture
def rehome(nodes, tmp_path):
    """pgonce rehome between the nodes. status: its exit status."""

    def run(*words, status=0, source=nodes[0], target=nodes[1], **kw):
        done = Command(None, tmp_path)("rehome", *words, "--from", source.dsn(), "--to", target.dsn(), **kw)
        assert done.returncode == status, (done.returncode, done.stdout.decode(), done.stderr.decode())
        return done.stdout.decode() + done.stderr.decode()

    def start(*words):
        started.append(Command(None, tmp_path).start("rehome", *words, "--from", nodes[0].dsn(), "--to", nodes[1].dsn()))
        return started[-1]

    started = []
    run.start, run.directory = start, tmp_path
    yield run
    for process in started:  # of a test that has failed
        if process.poll() is None:
            process.kill()
        process.communicate()
