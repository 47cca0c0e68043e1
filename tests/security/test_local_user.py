# SPDX-License-Identifier: PostgreSQL
"""Another user of the same machine, and whoever reads what the command prints and logs: no password in the process list, in an error or in a log; no
stored text that moves a terminal's cursor or forges a line."""

import pathlib
import subprocess

import pytest

from cli.command import PROGRAM, Command
from contract.calls import PRINT, Once
from harness.postgres import clean_environment, wait_until


def words_of(pid):
    return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


@pytest.mark.parametrize("form", ["{dsn} password=hunter2", "postgresql://postgres:hunter2@/{name}?host={host}"])
@pytest.mark.parametrize("joined", [False, True])
def test_the_process_list_shows_no_password_of_the_connection_string(db, tmp_path, form, joined):
    dsn = form.format(dsn=db.dsn(), name=db.name, host=str(db.server.directory).replace("/", "%2F"))
    option = [f"--dsn={dsn}"] if joined else ["--dsn", dsn]
    process = subprocess.Popen([PROGRAM, "keep", *option], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=clean_environment(), cwd=tmp_path)
    try:
        # It works under the string that nobody can read any more.
        wait_until(lambda: db.rows("SELECT 1 FROM once.keeper_status() LIMIT 1") and db.rows("SELECT 1 FROM once.keeper"), "the keeper's first round")
        assert b"hunter2" not in b" ".join(words_of(process.pid)) and words_of(process.pid)[1] == b"keep"
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_connection_string_without_a_password_stays_readable_in_the_process_list(db, tmp_path):
    process = Command(db.dsn(), tmp_path).start("keep")
    try:
        wait_until(lambda: db.rows("SELECT 1 FROM once.keeper"), "the keeper's first round")
        assert db.dsn().encode() in words_of(process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=60)


# Strings that libpq cannot read; of each it would quote a part.
BROKEN = (
    "host=/nowhere password=a hunter2",
    "host=/nowhere password='hunter2",
    "postgresql://me:hunter2@[/app",
    "postgresql://me:hunter2@host:port/app",
)


@pytest.mark.parametrize("dsn", BROKEN)
def test_a_connection_string_that_cannot_be_read_is_not_repeated(dsn, tmp_path):
    config = tmp_path / "pgonce.conf"
    config.touch(mode=0o600)
    for kind, options in (("relay", "sink = stdout"), ("consume", "source = nats\nurl = nats://127.0.0.1:1\nstream = S\ndurable = d\nhandler = a.b")):
        config.write_text(f"[{kind} one]\ndsn = {dsn}\n{options}\n")
        said = Command(None, tmp_path)(kind, "--config", config, "--check-config")
        assert b"hunter2" not in said.stdout + said.stderr, said
        assert "host:port" in dsn or (said.returncode == 2 and b"dsn" in said.stderr), said  # libpq looks at a port when it connects
    for words in (("doctor",), ("keep", "--once"), ("run", "--scope", "s", "--key", "k", "--", "true")):
        said = Command(dsn, tmp_path)(*words)
        assert said.returncode in (2, 3) and b"hunter2" not in said.stdout + said.stderr, said


def test_a_connection_string_without_a_secret_is_told_with_what_is_wrong_with_it(tmp_path):
    assert b'invalid connection option "hots"' in Command("hots=db dbname=app", tmp_path)("doctor").stderr


def test_a_password_that_the_server_refuses_is_not_told(tmp_path):
    for words in (("doctor",), ("keep", "--once"), ("find",)):
        said = Command("host=/nowhere dbname=app password=hunter2", tmp_path)(*words)
        assert said.returncode == 3 and b"hunter2" not in said.stdout + said.stderr


# ---- What others have stored, on an operator's terminal.

HOSTILE = "x\x1b[31mred\x07\x9b2J\r\nok       all is well"


def test_no_command_lets_stored_text_move_the_cursor_or_forge_a_line(db, tmp_path):
    once, name = Once(db.connect()), {"scope": "s" + HOSTILE, "tenant": "t" + HOSTILE}
    once.finish_new(**name, key="done", result_type=HOSTILE, result_id=HOSTILE, error_code=HOSTILE, error_message=HOSTILE)
    once.claim(**name, key="stale", owner=HOSTILE)
    once.claim(**name, key="doubtful", owner=HOSTILE)
    once.fail(**name, key="doubtful", fence=1, retryable=None, error_code=HOSTILE, error_message=HOSTILE)
    db.execute("UPDATE once.intent SET lease_until = now() - interval '1 hour' WHERE state = 'processing'")
    once.emit(topic="t" + HOSTILE, payload="{}", aggregate_type=HOSTILE, aggregate_id=HOSTILE, event_type=HOSTILE)
    db.execute("SELECT once_job.relay_take(%s, NULL)", "r" + HOSTILE)
    db.execute("SELECT once.consumer_report(%s, now() - interval '3 days', part => %s)", "c" + HOSTILE, HOSTILE)
    parked = "ARRAY[ROW('k', 't', 'a', '{}', '', %s, 'dead', 1, 0, %s, '22000')]::once.parked[]"
    db.execute(f"SELECT once_job.message_park(%s, %s, {parked})", name["scope"], name["tenant"], PRINT, HOSTILE)
    intent = ("--scope", name["scope"], "--tenant", name["tenant"], "--key")
    shown = 0
    for words in (
        *(("find",), ("stuck",), ("in-doubt",), ("doctor",), ("top",), ("parked", "list")),
        *(("recover", "--dry-run"), ("show", *intent, "doubtful"), ("resolve", *intent, "doubtful")),
    ):
        said = Command(db.dsn(), tmp_path)(*words)
        text = said.stdout + said.stderr
        assert not any(byte in text for byte in (b"\x1b", b"\x07", b"\r", b"\xc2\x9b")), (words, text)
        assert b"\nok       all is well" not in text, (words, text)
        shown += b"[31mred" in text
    assert shown >= 8
