# SPDX-License-Identifier: PostgreSQL
"""One database room (runtime/database.c): a relay, a consumer and a keeper meet the same fault alike: the same SQLSTATE under the same event in the
log, the same problem, the same end."""
import re
import signal
import socket
import subprocess
import time

import pytest
from consume.script import HANDLER, Script
from consume.script import PROGRAM as CONSUMER
from harness.nginx import BUILD
from harness.postgres import PATIENCE_S, clean_environment, tied, wait_until
from keeper.keeping import LINE
from keeper.keeping import PROGRAM as PGONCE

# What each ends with where the contract is missing or denied: exit codes of the command, and of play_consumer.
CONTRACT = {"relay": 4, "consumer": 3, "keeper": 4}
NO_SERVER = {"relay": 3, "consumer": 2, "keeper": 3}


class Job:
    """Used in a with statement, at whose end it is killed."""

    def __init__(self, name, dsn, directory, script, once=False):
        self.name = name
        self.err = directory / f"{name}.log"
        config = directory / "relay.conf"
        config.write_text(f"dsn = {dsn}\n[relay r]\nsink = stdout\n")
        words = {
            "relay": [PGONCE, "relay", "--config", config, *(["--once"] if once else [])],
            "consumer": [CONSUMER, script.config(), "stock", dsn, "verbose", *(["once"] if once else [])],
            "keeper": [PGONCE, "keep", "--dsn", dsn, "--name", "k", "--interval", "1s", *(["--once"] if once else [])],
        }[name]
        with open(self.err, "wb") as err:
            self.process = subprocess.Popen(tied(words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err, env=clean_environment())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def said(self):
        return self.err.read_text()

    def log(self, event):
        return [line for line in (dict(LINE.findall(line)) for line in self.said().splitlines()) if line.get("event") == event]

    def until(self, event, count=1):
        wait_until(lambda: len(self.log(event)) >= count or self.process.poll() is not None, f"event={event}")
        assert len(self.log(event)) >= count, self.said()
        return self.log(event)[count - 1]

    def end(self):
        return self.process.wait(PATIENCE_S)


@pytest.mark.parametrize("enough", [66, 65, 60])
def test_a_stream_that_is_cut_cancels_itself_and_nothing_after_it(db, enough):
    """Of 66 rows; the last ones may have come before the server hears of the cancel."""
    done = subprocess.run([BUILD / "tests/runtime/play_stream", db.dsn(), str(enough), "20"], capture_output=True, text=True, timeout=PATIENCE_S,
                          env=clean_environment(), check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), done


@pytest.fixture(params=["relay", "consumer", "keeper"])
def job(request, tmp_path):
    """Starts it: job(dsn)."""
    with Script() as script:
        yield lambda dsn, **how: Job(request.param, dsn, tmp_path, script, **how)


def test_a_missing_contract_ends_each_job_with_what_to_do(server, job):
    empty = server.empty_database()
    try:
        with job(empty.dsn()) as started:
            assert started.end() == CONTRACT[started.name], started.said()
            assert 'schema "once" does not exist; hint: run pgonce init' in started.said().replace("\\", "")
    finally:
        empty.drop()


def test_an_older_contract_ends_each_job_with_what_to_do(db, job):
    db.execute("DELETE FROM once.migration WHERE version > 0")
    with job(db.dsn()) as started:
        assert started.end() == CONTRACT[started.name], started.said()
        assert "has version 0" in started.said() and "run pgonce init" in started.said()


def test_a_role_without_the_right_ends_each_job_with_the_one_that_it_needs(db, job):
    role = f"stranger_{db.name}"
    db.execute(HANDLER)
    db.execute(f"CREATE ROLE {role} LOGIN")
    try:
        with job(db.dsn(user=role)) as started:
            assert started.end() == CONTRACT[started.name], started.said()
            assert "permission denied" in started.said()
            assert re.search("hint: grant once_(relay|consumer|keeper) to the role", started.said()), started.said()
    finally:
        db.execute(f"DROP ROLE {role}")


def test_a_connection_that_is_ended_is_said_alike_and_made_anew(db, job):
    db.execute(HANDLER)
    with job(db.dsn()) as started:
        started.until("connected")
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
        line = started.until("database")
        # Which of the two libpq meets first is a matter of time: the server's last words, or the end.
        assert line["sqlstate"] in ("57P01", "") and (line["failures"], line["level"]) == ("1", "warning")
        assert ("terminating connection" if line["sqlstate"] else "server closed the connection") in line["problem"]
        started.until("connected", 2)


def test_a_statement_that_is_canceled_is_said_alike_and_asked_again(db, job):
    db.execute(HANDLER)
    body = db.value("SELECT pg_get_functiondef('once.contract_version'::regproc)")
    db.execute("CREATE OR REPLACE FUNCTION once.contract_version() RETURNS integer LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN 1; END $$")
    with job(db.dsn()) as started:
        canceled = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
        wait_until(lambda: db.value(canceled) > 0, "the check of the contract")
        db.execute(body)
        line = started.until("database")
        assert (line["sqlstate"], line["failures"]) == ("57014", "1") and "canceling statement" in line["problem"]
        started.until("connected")


def test_a_database_that_is_not_there_is_waited_for_alike(server, db, job):
    with job(db.dsn().replace(f"dbname={db.name}", "dbname=not_there_yet")) as started:
        line = started.until("database", 2)
        assert (line["sqlstate"], line["failures"]) == ("", "2") and "does not exist" in line["problem"]
    with job(db.dsn().replace(f"dbname={db.name}", "dbname=not_there_yet"), once=True) as started:
        assert started.end() == NO_SERVER[started.name]


def test_a_stop_ends_the_wait_for_a_server_that_says_nothing(job):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.listen(8)
        with job(f"host=127.0.0.1 port={silent.getsockname()[1]} dbname=x connect_timeout=60") as started:
            silent.settimeout(PATIENCE_S)
            accepted, _ = silent.accept()
            time.sleep(0.3)
            before = time.monotonic()
            started.process.send_signal(signal.SIGTERM)
            started.end()
            assert time.monotonic() - before < 30, started.said()
            accepted.close()
