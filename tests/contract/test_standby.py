# SPDX-License-Identifier: PostgreSQL
"""What a read-only transaction and a standby answer: what is stored; nothing is claimed there."""

import os

import pytest

from harness.postgres import Database, Postgres, unprivileged, wait_until

from .calls import OTHER_PRINT, Once, allow_takeover, let_lease_pass, now_ms, refused, run, uuid7, uuid7_days_ago
from .keeping import keeper, old_key
from .test_keep_rest import make_verify, says


@pytest.fixture(scope="module")
def primary():
    with Postgres() as server:
        yield server


@pytest.fixture(scope="module")
def standby(primary):
    """A hot standby of it."""
    server = Postgres(copy_of=primary)
    signal = server.data / "standby.signal"
    signal.touch()
    if unprivileged()[1]:
        os.chown(signal, unprivileged()[1].pw_uid, -1)
    with open(server.data / "postgresql.auto.conf", "a", encoding="utf-8") as conf:
        conf.write(f"primary_conninfo = '{primary.dsn()}'\n")
    with server:
        yield server


@pytest.fixture
def stored(primary):
    """A database of the primary with intents of all sorts; their keys begin with what became of them."""
    db = primary.new_database()
    once = Once(db.connect())
    allow_takeover(db)
    db.execute("SELECT once.set_scope('doubtful', on_stale => 'in_doubt')")
    day = uuid7(now_ms(db), 7)
    for key in ("done", day):
        once.complete(key=key, fence=once.claim(key=key).fence, response_status=201, response_body=b"kept")
    once.fail(key="final", fence=once.claim(key="final").fence, retryable=False, error_code="no")
    once.fail(key="doubt", fence=once.claim(key="doubt").fence, retryable=None)
    make_verify(db, "verified", says("happened"))
    once.fail(key="doubt", fence=once.claim(key="doubt", scope="verified").fence, scope="verified", retryable=None)
    let_lease_pass(db, "doubt")
    once.fail(key="retryable", fence=once.claim(key="retryable").fence, retryable=True)
    once.claim(key="running")
    for scope in ("orders", "doubtful"):
        once.claim(key="stale", scope=scope)
    let_lease_pass(db, "stale")
    archived, too_late = old_key(db), old_key(db, 1)
    once.finish_new(key=archived, response_body=b"old")
    once.finish_new(key=too_late, state="failed_retryable")
    keeper(db).retire("moved")
    db.keys = {"day": day, "archived": archived, "too late": too_late, "closed": uuid7_days_ago(db, 20), "new day": uuid7(now_ms(db), 8)}
    yield db
    db.drop()


@pytest.fixture(params=["a read-only transaction", "a standby"])
def read_only(request, stored):
    """Where nothing can be written: a connection."""
    if request.param == "a standby":
        server = request.getfixturevalue("standby")
        written = stored.value("SELECT pg_current_wal_lsn()")
        watcher = server.connect()
        wait_until(lambda: run(watcher, "SELECT pg_last_wal_replay_lsn() >= %s", written)[0][0], "the standby")
        watcher.close()
        there = Database(server, stored.name)
        yield there.connect()
        there.close()
    else:
        connection = stored.connect()
        run(connection, "SET default_transaction_read_only = on")
        yield connection


def test_a_claim_answers_what_is_stored_where_nothing_can_be_written(stored, read_only):
    once = Once(read_only)
    for key in ("done", stored.keys["day"]):
        answer = once.claim(key=key)
        assert (answer.verdict, answer.response_status, answer.response_body) == ("replay_success", 201, b"kept")
    assert once.claim(key=stored.keys["archived"]).response_body == b"old"
    assert (once.claim(key="final").verdict, once.claim(key="final").error_code) == ("final_failure", "no")
    assert once.claim(key="doubt").verdict == "in_doubt"
    assert once.claim(key="running").verdict == "processing_active"
    assert once.claim(key=stored.keys["closed"]).verdict == once.claim(key=stored.keys["too late"]).verdict == "expired"
    with refused("P4002"):
        once.claim(key="done", fingerprint=OTHER_PRINT)


@pytest.mark.parametrize("key, scope", [("new", "orders"), ("new day", "orders"), ("retryable", "orders"), ("stale", "orders"), ("stale", "doubtful")])
def test_a_claim_that_would_have_to_be_stored_is_refused_where_nothing_can_be_written(stored, read_only, key, scope):
    with refused("25006") as told:
        Once(read_only).claim(key=stored.keys.get(key, key), scope=scope)
    assert "read-only" in str(told.value) and "primary" in told.value.diag.message_hint


def test_a_doubt_is_told_and_not_asked_about_where_nothing_can_be_written(stored, read_only):
    """What the answer would decide could not be stored."""
    for _ in range(2):
        assert Once(read_only).claim(key="doubt", scope="verified").verdict == "in_doubt"


def test_start_replays_where_nothing_can_be_written_as_claim_does(stored, read_only):
    once = Once(read_only)
    assert once.start(key="done").response_body == once.claim(key="done").response_body == b"kept"
