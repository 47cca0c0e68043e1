# SPDX-License-Identifier: PostgreSQL
"""pgonce top: what the contract does at one moment, as text or as data."""
import json
import re
import subprocess

import pytest

CLAIM = "SELECT once.claim(%s, %s, once.fingerprint('r'::bytea), %s, %s::interval)"


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


def test_it_prints_all_of_it(pgonce, busy):
    text = pgonce("top").stdout.decode()
    assert "running 30  stale 1  in doubt 1" in text and busy.name in text and "\x1b" not in text
    assert "\nattempts  new 32  replay 0  active 0  refused 0  mismatch 0\n" in text
    assert re.search(r"^payments +30 +1 +0 +\d+s$", text, re.M) and re.search(r"^imports +0 +0 +1\b", text, re.M), text
    assert re.search(r"^payments +late +2h +-1h +1 +worker 7$", text, re.M), text
    assert len(re.findall(r"^payments +p-", text, re.M)) == 30
    assert re.search(r"^intent +\d{4}-\d\d-\d\d +\d+ (bytes|kB)$", text, re.M), text


def test_json_is_the_data_of_one(pgonce, busy):
    told = json.loads(pgonce("top", "--json").stdout)
    assert {scope["scope"]: scope["in_flight"] for scope in told["scopes"]}["payments"] == 30
    assert (told["in_doubt"], told["stale"], told["running"][0]["key"], len(told["running"])) == (1, 1, "late", 31)


def test_no_stored_text_reaches_a_terminal_as_it_is(pgonce, busy):
    busy.execute(CLAIM, "evil", "key", "\x1b[2J\u202eowner\u7a4d\u0007", "5 minutes")
    text = pgonce("top").stdout.decode()
    assert "?[2J?owner\u7a4d?" in text
    assert not any(hidden in text for hidden in ("\x1b", "\u202e", "\x07"))


def test_a_long_name_is_cut_between_characters(pgonce, db):
    db.execute(CLAIM, "scope", "k" * 200, "\u00e9" * 100, "5 minutes")
    text = pgonce("top").stdout.decode()
    assert "k" * 33 + "...  " in text and "\u00e9" * 33 + "...\n" in text


def test_a_disk_that_is_full_ends_it(pgonce, busy):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(pgonce.words("top"), stdout=full, stderr=subprocess.PIPE, env=pgonce.environment(None), timeout=60, check=False)
    assert done.returncode == 1 and b"cannot write to standard output" in done.stderr


def test_what_cannot_be_answered_is_said(pgonce, busy):
    busy.execute("ALTER FUNCTION once.metrics() RENAME TO metrics_gone")
    told = pgonce("top")
    assert told.returncode == 4 and b"function once.metrics() does not exist" in told.stderr and told.stdout == b""


def test_an_answer_that_does_not_come_is_said_and_waited_for(pgonce, busy):
    with busy.connect() as holder, holder.cursor() as cursor:
        cursor.execute("BEGIN; LOCK TABLE once.intent IN ACCESS EXCLUSIVE MODE")
        waiting = pgonce.start("top")
        try:
            assert b"the database has not answered for 3 s" in waiting.stderr.readline()
            cursor.execute("ROLLBACK")
            assert b"running 30" in waiting.communicate(timeout=60)[0]
        finally:
            waiting.kill()
            waiting.communicate()
