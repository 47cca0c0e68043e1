# SPDX-License-Identifier: PostgreSQL
"""pgonce top, in a pseudo-terminal: every wait is for something on the screen."""
import json
import os
import signal

import pytest

from .screen import Terminal

CLAIM = "SELECT once.claim(%s, %s, once.fingerprint('r'::bytea), %s, %s::interval)"


@pytest.fixture
def top(pgonce):
    opened = []

    def run(*options, rows=24, columns=80, words=None, **environment):
        words = words or pgonce.words("top", "--interval", "200ms", *options)
        terminal = Terminal(words, {**pgonce.environment(None), "TERM": "xterm-256color", **environment}, rows, columns)
        opened.append(terminal)
        return terminal

    yield run
    for terminal in opened:
        terminal.close()


@pytest.fixture
def busy(db):
    """Two scopes with policies; 30 running payments, one stale, one import in doubt."""
    db.execute("SELECT once.set_scope('payments')")
    db.execute("SELECT once.set_scope('imports')")
    for i in range(30):
        db.execute(CLAIM, "payments", f"p-{i:02}", f"worker {i}", "5 minutes")
    db.execute(CLAIM, "payments", "late", "worker 7", "5 minutes")
    db.execute("UPDATE once.intent SET lease_until = clock_timestamp() - interval '1 hour', created_at = created_at - interval '2 hours'"
               " WHERE key = 'late'")
    db.execute(CLAIM, "imports", "file-1", "importer", "5 minutes")
    db.execute("UPDATE once.intent SET state = 'in_doubt', lease_until = NULL WHERE key = 'file-1'")
    return db


def test_top_shows_scopes_and_running_intents_within_80x24(top, busy):
    screen = top()
    shown = screen.wait("payments", "imports", "> payments late", "in doubt 1", "worker 7", whole=True)
    assert "running 30" in shown and "stale 1" in shown and busy.name in shown
    assert screen.frames()[:-1], "no screen is whole"
    for frame in screen.frames()[:-1]:
        assert len(frame) == 24 and max(map(len, frame)) <= 80, frame


def test_the_rates_are_differences_of_counts(top, busy):
    screen = top()
    screen.wait("payments", " 0.0")
    mark = screen.type("t")
    shown = screen.wait("payments", "RUNNING", absent=(" 0.0",), since=mark)
    [line] = [line for line in shown.split("\n") if line.startswith("payments ")]
    assert line.split()[1] == "31"


def test_an_intent_is_chosen_opened_and_left(top, busy):
    screen = top()
    screen.wait("> payments late")
    screen.type("j")
    screen.wait("> payments p-00", since=0)
    screen.type("\r")
    shown = screen.wait("key='p-00'", "worker 0", "an attempt is running")
    assert "RUNNING" not in shown
    screen.type("b")
    screen.wait("> payments p-00", "RUNNING LONGEST")
    screen.type("\x1b[B\x1b[B")  # as an arrow key says it
    screen.wait("> payments p-02")


def test_scopes_are_sorted_and_filtered(top, busy):
    screen = top()
    screen.wait("payments late", "by rate")
    screen.wait("by trouble", since=screen.type("s"))
    shown = screen.wait("by name", since=screen.type("s"), whole=True)
    order = [line.split()[0] for line in shown.split("\n") if line.startswith(("imports ", "payments "))]
    assert order == ["imports", "payments"]
    screen.wait("scopes that contain: IMP_", since=screen.type("fIMP"))
    mark = screen.type("\r")
    screen.wait("filter: IMP", "imports", absent=("payments",), since=mark)
    screen.wait("payments", absent=("filter",), since=screen.type("f\x1b"))


def test_a_pause_stops_the_clock_and_keys_go_on(top, busy):
    screen = top()
    screen.wait("payments late")
    screen.wait("PAUSED", since=screen.type("p"))
    busy.execute(CLAIM, "added", "while paused", "worker", "5 minutes")
    screen.wait("q                quit", since=screen.type("h"))
    mark = screen.type("h")
    assert "added" not in screen.wait("PAUSED", "RUNNING LONGEST", since=mark, whole=True)
    screen.wait("added", absent=("PAUSED",), since=screen.type("p"))


def test_a_resized_terminal_is_filled_anew(top, busy):
    screen = top()
    screen.wait("payments late")
    mark = screen.resize(70, 132)
    shown = screen.wait("payments p-29", since=mark, whole=True)  # there is room for all of them
    assert len(shown.split("\n")) == 70
    mark = screen.resize(8, 40)
    screen.wait("pgonce top", absent=("payments p-29",), since=mark)
    screen.type("q")
    assert screen.end() == 0
    last = screen.frames()[-1]
    assert max(map(len, last[:8])) <= 40


@pytest.mark.parametrize("how", ["no-color", "NO_COLOR"])
def test_without_colour_nothing_is_coloured(top, busy, how):
    screen = top("--no-color") if how == "no-color" else top(NO_COLOR="1")
    screen.wait("payments late")
    for colour in (b"\x1b[31m", b"\x1b[30;"):
        assert colour not in screen.seen


def test_with_colour_what_is_wrong_stands_out(top, busy):
    screen = top()
    screen.wait("payments late")
    assert b"\x1b[31m" in screen.seen


def test_a_dumb_terminal_gets_lines_without_a_single_escape(top, busy):
    screen = top(TERM="dumb")
    screen.wait("payments late")
    screen.type("q")
    assert screen.end() == 0
    assert b"\x1b" not in screen.seen


@pytest.mark.parametrize("how", ["q", "interrupt", "terminate", "hang up"])
def test_the_terminal_is_put_back_however_it_ends(top, busy, how):
    screen = top()
    screen.wait("payments late")
    assert screen.settings() != screen.before
    if how == "q":
        screen.type("q")
    elif how == "interrupt":
        screen.type("\x03")
    else:
        os.kill(screen.pid, signal.SIGTERM if how == "terminate" else signal.SIGHUP)
    assert screen.end() == {"q": 0, "interrupt": 0, "terminate": 128 + signal.SIGTERM, "hang up": 128 + signal.SIGHUP}[how]
    assert screen.settings() == screen.before
    assert screen.seen.endswith(b"\x1b[?25h\x1b[?1049l")


def test_stopped_it_gives_the_terminal_back_and_takes_it_again(top, busy, pgonce):
    shell = top(words=["/bin/bash", "--norc", "--noprofile", "-i"], PS1="ready-$((40+2))> ")
    shell.wait("ready-42")
    shell.type(" ".join(f"'{word}'" for word in pgonce.words("top", "--interval", "200ms")) + "\n")
    shell.wait("payments late")
    mark = shell.type("\x1a")
    shell.wait("Stopped", since=mark)
    mark = shell.type("stty -a; echo end-$((40+3))\n")
    settings = shell.wait("end-43", since=mark)
    assert " icanon" in settings and " echo " in settings
    mark = shell.type("fg\n")
    shell.wait("payments late", since=mark)
    shell.wait("ready-42", since=shell.type("q"))
    mark = shell.type("echo end-$((40+4)) $?\n")
    shell.wait("end-44", since=mark)


def test_a_lost_connection_is_said_and_made_anew(top, busy, server):
    screen = top()
    screen.wait("payments late")
    admin = server.connect()
    try:
        with admin.cursor() as cursor:
            cursor.execute(f'ALTER DATABASE "{busy.name}" ALLOW_CONNECTIONS false')
            mark = len(screen.seen)
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND application_name = 'pgonce'", (busy.name,))
            screen.wait("connection lost, retrying", since=mark)
            screen.wait("is not currently accepting", since=mark)
            cursor.execute(f'ALTER DATABASE "{busy.name}" ALLOW_CONNECTIONS true')
            screen.wait("payments late", absent=("connection lost",))
    finally:
        with admin.cursor() as cursor:
            cursor.execute(f'ALTER DATABASE "{busy.name}" ALLOW_CONNECTIONS true')
        admin.close()


def test_a_key_does_not_wait_for_the_database(top, busy):
    screen = top()
    screen.wait("payments late")
    with busy.connect() as holder, holder.cursor() as cursor:
        cursor.execute("BEGIN; LOCK TABLE once.intent IN ACCESS EXCLUSIVE MODE")
        screen.wait("the database has not answered for")
        screen.wait("pgonce top shows what the contract does", since=screen.type("h"))
        screen.type("q")
        assert screen.end() == 0
        cursor.execute("ROLLBACK")


def test_no_stored_text_moves_the_cursor(top, busy):
    busy.execute(CLAIM, "evil", "key", "\x1b[2J\u202eowner\u7a4d\u0007", "5 minutes")
    busy.execute("UPDATE once.intent SET created_at = created_at - interval '3 hours' WHERE key = 'key'")
    screen = top()
    shown = screen.wait("> evil key")
    assert "?[2J?owner\u7a4d?" in shown
    assert b"\x1b[2J\xe2" not in screen.seen and b"\x07" not in screen.seen
    screen.type("\r")
    assert "?[2J" in screen.wait("key='key'")


def test_one_snapshot_for_scripts(pgonce, busy):
    told = json.loads(pgonce("top", "--once", "--json").stdout)
    assert {scope["scope"]: scope["in_flight"] for scope in told["scopes"]}["payments"] == 30
    assert (told["in_doubt"], told["stale"], told["running"][0]["key"]) == (1, 1, "late")
    text = pgonce("top", "--once", env={"COLUMNS": "100"}).stdout.decode()
    assert "payments p-29" in text and max(map(len, text.splitlines())) <= 100 and "\x1b" not in text


def test_without_a_terminal_it_says_what_to_give(pgonce):
    done = pgonce("top")
    assert done.returncode == 2 and b"--once" in done.stderr
    assert pgonce("top", "--json").returncode == 2
