# SPDX-License-Identifier: PostgreSQL
"""pgonce top: text, once or again and again; every wait is for something that it prints."""
import json
import os
import re
import select
import signal
import subprocess
import time

import pytest

from .screen import Terminal

CLAIM = "SELECT once.claim(%s, %s, once.fingerprint('r'::bytea), %s, %s::interval)"
PATIENCE_S = 60


class Reader:
    """What a started command prints, as it comes."""

    def __init__(self, process):
        self.process = process
        self.seen = {process.stdout: b"", process.stderr: b""}

    def wait(self, text, stream=None):
        """Until it prints that from now on."""
        stream = stream or self.process.stdout
        mark = len(self.seen[stream])
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.seen[stream][mark:]:
            assert time.monotonic() < deadline, f"waited for {text}; printed: {self.seen}"
            for ready in select.select(list(self.seen), [], [], 1)[0]:
                got = os.read(ready.fileno(), 65536)
                assert got, f"it has ended; printed: {self.seen}"
                self.seen[ready] += got


@pytest.fixture
def top(pgonce):
    started = []

    def run(*options):
        started.append(pgonce.start("top", "--interval", "200ms", *options))
        return Reader(started[-1])

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def busy(db):
    """30 running payments, one stale, one import in doubt."""
    for i in range(30):
        db.execute(CLAIM, "payments", f"p-{i:02}", f"worker {i}", "5 minutes")
    db.execute(CLAIM, "payments", "late", "worker 7", "5 minutes")
    db.execute("UPDATE once.intent SET lease_until = clock_timestamp() - interval '1 hour', created_at = created_at - interval '2 hours'"
               " WHERE key = 'late'")
    db.execute(CLAIM, "imports", "file-1", "importer", "5 minutes")
    db.execute("UPDATE once.intent SET state = 'in_doubt', lease_until = NULL WHERE key = 'file-1'")
    return db


def test_once_prints_all_of_it_a_single_time(pgonce, busy):
    text = pgonce("top", "--once").stdout.decode()
    assert "running 30  stale 1  in doubt 1" in text and busy.name in text and "\x1b" not in text
    assert "\nattempts  new 32  replay 0  active 0  refused 0  mismatch 0\n" in text
    assert re.search(r"^payments +30 +1 +0 +\d+s$", text, re.M) and re.search(r"^imports +0 +0 +1\b", text, re.M), text
    assert re.search(r"^payments +late +2h +-1h +1 +worker 7$", text, re.M), text
    assert len(re.findall(r"^payments +p-", text, re.M)) == 30
    assert re.search(r"^intent +\d{4}-\d\d-\d\d +\d+ (bytes|kB)$", text, re.M), text


def test_json_is_the_data_of_one(pgonce, busy):
    for words in (("--json",), ("--once", "--json")):
        told = json.loads(pgonce("top", *words).stdout)
        assert {scope["scope"]: scope["in_flight"] for scope in told["scopes"]}["payments"] == 30
        assert (told["in_doubt"], told["stale"], told["running"][0]["key"], len(told["running"])) == (1, 1, "late", 31)


def test_into_a_pipe_it_prints_again_and_again_each_with_its_time(top, busy):
    printed = top()
    printed.wait(b"... 10 of 31\n")
    busy.execute(CLAIM, "added", "key", "worker", "5 minutes")
    printed.wait(b"running 31")
    text = printed.seen[printed.process.stdout].decode()
    assert "\x1b" not in text and len(re.findall(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  pgonce top  ", text, re.M)) >= 2


def test_from_the_second_on_counts_are_told_by_the_second(top, busy):
    printed = top()
    printed.wait(b"attempts  new 32  ")
    printed.wait(b"attempts per s  new 0.0  ")
    deadline = time.monotonic() + PATIENCE_S
    while not re.search(rb"attempts per s  new (?!0\.0)\d", printed.seen[printed.process.stdout]):
        assert time.monotonic() < deadline
        busy.execute("SELECT once.claim('payments', gen_random_uuid()::text, once.fingerprint('r'::bytea))")
        printed.wait(b"attempts per s")


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it(top, busy, end):
    printed = top()
    printed.wait(b"payments")
    printed.process.send_signal(end)
    assert printed.process.wait(PATIENCE_S) == -end


def test_a_reader_that_leaves_ends_it(top, busy):
    printed = top()
    printed.wait(b"payments")
    printed.process.stdout.close()
    assert printed.process.wait(PATIENCE_S) == -signal.SIGPIPE
    printed.process.stdout = None


def test_a_terminal_is_cleared_and_filled_by_what_fits(pgonce, busy):
    screen = Terminal(pgonce.words("top", "--interval", "200ms"), {**pgonce.environment(None), "TERM": "xterm"}, rows=24)
    try:
        screen.wait("payments", "late", "in doubt 1")
        screen.wait("attempts per s", "PARTITION", "of 31")
        for frame in screen.frames()[:-1]:
            assert len(frame) <= 24 and max(map(len, frame)) <= 80, frame
        mark = screen.resize(200, 100)
        screen.wait("p-29", since=mark)  # there is room for all of them
        screen.type("\x03")
        assert screen.end() == -signal.SIGINT and screen.settings() == screen.before
    finally:
        screen.close()


def test_a_dumb_terminal_gets_lines_without_a_single_escape(pgonce, busy):
    screen = Terminal(pgonce.words("top", "--interval", "200ms"), {**pgonce.environment(None), "TERM": "dumb"})
    try:
        while b"attempts per s" not in screen.seen:
            assert screen.read(PATIENCE_S)
        assert b"\x1b" not in screen.seen
    finally:
        screen.close()


def test_a_lost_connection_is_said_and_made_anew(top, busy, server):
    printed = top()
    printed.wait(b"payments")
    errors = printed.process.stderr
    admin = server.connect()
    try:
        with admin.cursor() as cursor:
            cursor.execute(f'ALTER DATABASE "{busy.name}" ALLOW_CONNECTIONS false')
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND application_name = 'pgonce'", (busy.name,))
            printed.wait(b"is not currently accepting", errors)
            assert b"connection lost, retrying" in printed.seen[errors]
            cursor.execute(f'ALTER DATABASE "{busy.name}" ALLOW_CONNECTIONS true')
        printed.wait(b"payments")
    finally:
        with admin.cursor() as cursor:
            cursor.execute(f'ALTER DATABASE "{busy.name}" ALLOW_CONNECTIONS true')
        admin.close()


def test_what_cannot_be_answered_is_said_once_and_asked_again(top, busy):
    printed = top()
    printed.wait(b"payments")
    busy.execute("ALTER FUNCTION once.metrics() RENAME TO metrics_gone")
    printed.wait(b"no answer: function once.metrics() does not exist\n", printed.process.stderr)
    busy.execute("ALTER FUNCTION once.metrics_gone() RENAME TO metrics")
    printed.wait(b"payments")
    assert printed.seen[printed.process.stderr].count(b"no answer") == 1


def test_an_answer_that_does_not_come_is_said(top, busy):
    printed = top()
    printed.wait(b"payments")
    with busy.connect() as holder, holder.cursor() as cursor:
        cursor.execute("BEGIN; LOCK TABLE once.intent IN ACCESS EXCLUSIVE MODE")
        printed.wait(b"the database has not answered for 3 s", printed.process.stderr)
        cursor.execute("ROLLBACK")
    printed.wait(b"payments")


def test_no_stored_text_reaches_a_terminal_as_it_is(pgonce, busy):
    busy.execute(CLAIM, "evil", "key", "\x1b[2J\u202eowner\u7a4d\u0007", "5 minutes")
    text = pgonce("top", "--once").stdout.decode()
    assert "?[2J?owner\u7a4d?" in text
    assert not any(hidden in text for hidden in ("\x1b", "\u202e", "\x07"))


def test_a_long_name_is_cut_between_characters(pgonce, db):
    db.execute(CLAIM, "scope", "k" * 200, "\u00e9" * 100, "5 minutes")
    text = pgonce("top", "--once").stdout.decode()
    assert "k" * 33 + "...  " in text and "\u00e9" * 33 + "...\n" in text


def test_a_disk_that_is_full_ends_it(pgonce, busy):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(pgonce.words("top"), stdout=full, stderr=subprocess.PIPE, env=pgonce.environment(None), timeout=60, check=False)
    assert done.returncode == 1 and b"cannot write to standard output" in done.stderr
