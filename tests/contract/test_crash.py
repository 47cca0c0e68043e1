# SPDX-License-Identifier: PostgreSQL
"""Whatever dies, and whenever: one effect, and a retry gets the right answer."""

import os
import signal

import psycopg2
import pytest

from harness.postgres import PATIENCE_S, Postgres, wait_until
from harness.proxy import Proxy

from .calls import Once, effects, in_threads, let_lease_pass, make_effect, refused, run
from .keeping import expire, keeper

# The statements of an attempt. A death after the last one is a death after the answer.
STEPS = (
    ("BEGIN", lambda c: run(c, "BEGIN")),
    ("start", lambda c: Once(c).start(key="k")),
    ("effect", lambda c: make_effect(c, "k")),
    ("finish", lambda c: Once(c).finish(key="k", response_body=b"answer")),
    ("COMMIT", lambda c: run(c, "COMMIT")),
)
BOUNDARIES = range(len(STEPS) + 1)


def named(boundary):
    return f"after {STEPS[boundary - 1][0]}" if boundary else "before BEGIN"


def retry_and_check(db, committed):
    """A new attempt after the death: it replays, or does the effect for the first time."""
    assert effects(db, "k") == (1 if committed else 0)
    connection = db.connect()
    run(connection, "BEGIN")
    started = Once(connection).start(key="k")
    assert started.verdict == ("replay_success" if committed else "proceed")
    if not committed:
        make_effect(connection, "k")
        Once(connection).finish(key="k", response_body=b"answer")
    run(connection, "COMMIT")
    assert Once(connection).start(key="k").response_body == b"answer"
    assert effects(db, "k") == 1


def terminate(db, connection):
    pid = connection.get_backend_pid()
    db.execute("SELECT pg_terminate_backend(%s)", pid)
    wait_until(lambda: not db.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid), "the backend to end")


@pytest.mark.parametrize("boundary", BOUNDARIES, ids=named)
def test_a_backend_terminated_between_any_two_statements_leaves_one_effect(db, boundary):
    connection = db.connect()
    for _, step in STEPS[:boundary]:
        step(connection)
    terminate(db, connection)
    retry_and_check(db, committed=boundary == len(STEPS))


@pytest.mark.parametrize("inside", ["effect", "COMMIT"])
def test_a_backend_terminated_inside_a_statement_leaves_one_effect(db, inside):
    """A trigger stops the effect, or the COMMIT (a deferred constraint), at a gate until the backend is dead."""
    db.execute(
        "CREATE FUNCTION at_gate() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END$$"
    )
    db.execute(
        "CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON effect "
        f"{'DEFERRABLE INITIALLY DEFERRED' if inside == 'COMMIT' else ''} FOR EACH ROW EXECUTE FUNCTION at_gate()"
    )
    gate = db.connect()
    run(gate, "SELECT pg_advisory_lock(1)")
    connection = db.connect()
    pid = connection.get_backend_pid()

    def attempt():
        with pytest.raises(psycopg2.Error):
            for _, step in STEPS:
                step(connection)

    def killer():
        watcher = db.server.connect(db.name)
        wait_until(
            lambda: run(watcher, "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", pid),
            "the attempt at the gate",
        )
        run(watcher, "SELECT pg_terminate_backend(%s)", pid)
        watcher.close()

    in_threads([attempt, killer])
    wait_until(lambda: not db.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid), "the backend to end")
    run(gate, "SELECT pg_advisory_unlock(1)")
    retry_and_check(db, committed=False)


@pytest.fixture(scope="module")
def mortal():
    """A server of its own, since the others' tests would die with it; with fsync, since this is what it is for."""
    with Postgres(fsync=True) as server:
        yield server


def kill_all(server, _connection):
    server.kill()
    server.start()


def stop_immediately(server, _connection):
    server.restart("immediate")


def kill_backend(server, connection):
    """One backend's SIGKILL makes the server drop all others and recover by itself."""
    watcher = server.connect()
    os.kill(connection.get_backend_pid(), signal.SIGKILL)

    def noticed():
        try:
            run(watcher, "SELECT 1")
            return False
        except psycopg2.Error:
            return True

    wait_until(noticed, "the server to notice")
    server.wait_ready()


def test_a_crash_after_an_intent_was_forgotten_loses_no_fence(mortal):
    db = mortal.new_database()
    once = Once(db.connect())
    for fence in (1, 2, 3):
        assert once.claim(key="k").fence == fence
        once.fail(key="k", fence=fence, retryable=True)
    expire(db, "k")
    keeper(db).work("purge")
    assert db.value("SELECT count(*) FROM once.intent") == 0
    kill_all(mortal, None)
    assert Once(db.connect()).claim(key="k").fence == 4
    db.close()


@pytest.mark.parametrize("boundary", BOUNDARIES, ids=named)
@pytest.mark.parametrize("death", [kill_all, stop_immediately, kill_backend])
def test_a_server_killed_between_any_two_statements_leaves_one_effect(mortal, death, boundary):
    db = mortal.new_database()
    db.execute("CREATE TABLE effect (key text NOT NULL, attempt integer)")
    connection = db.connect()
    for _, step in STEPS[:boundary]:
        step(connection)
    death(mortal, connection)
    db.close()
    retry_and_check(db, committed=boundary == len(STEPS))
    db.drop()


@pytest.fixture
def proxy(server):
    with Proxy(server) as between:
        yield between


def attempt_through(proxy, db):
    connection = psycopg2.connect(proxy.dsn(db.name))
    connection.autocommit = True
    with pytest.raises(psycopg2.Error):
        for _, step in STEPS:
            step(connection)
    assert connection.closed  # and not some refusal


def backends_gone(db):
    own = db.value("SELECT pg_backend_pid()")
    wait_until(
        lambda: not db.value("SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND pid <> %s", db.name, own),
        "the lost backend to end",
    )


def test_a_connection_cut_before_the_server_sees_commit_leaves_no_effect_and_the_retry_runs(db, proxy):
    proxy.lose_request("COMMIT")
    attempt_through(proxy, db)
    backends_gone(db)
    retry_and_check(db, committed=False)


def test_a_connection_cut_before_the_answer_to_commit_leaves_one_effect_and_the_retry_replays(db, proxy):
    lost = proxy.lose_answer("COMMIT")
    attempt_through(proxy, db)
    assert lost.fired.wait(PATIENCE_S)
    retry_and_check(db, committed=True)


def test_a_connection_cut_while_the_server_commits_leaves_one_effect_whatever_became_of_it(db, proxy):
    lost = proxy.lose_connection_after("COMMIT")
    attempt_through(proxy, db)
    assert lost.fired.wait(PATIENCE_S)
    backends_gone(db)
    retry_and_check(db, committed=effects(db, "k") == 1)


@pytest.mark.parametrize("text", ["once.start", "INTO effect", "once.finish"])
def test_a_connection_cut_after_the_server_answered_any_statement_leaves_no_effect(db, proxy, text):
    lost = proxy.lose_answer(text)
    attempt_through(proxy, db)
    assert lost.fired.wait(PATIENCE_S)
    backends_gone(db)
    retry_and_check(db, committed=False)


def test_a_claim_whose_answer_was_lost_is_active_until_its_lease_passes_and_is_then_in_doubt(db, proxy):
    proxy.lose_answer("once.claim")
    connection = psycopg2.connect(proxy.dsn(db.name))
    connection.autocommit = True
    with pytest.raises(psycopg2.Error):
        Once(connection).claim(key="k")
    assert Once(db.connect()).claim(key="k").verdict == "processing_active"
    let_lease_pass(db, "k")
    row = Once(db.connect()).claim(key="k")
    assert (row.verdict, row.fence) == ("in_doubt", 1)


def test_a_completion_whose_answer_was_lost_can_be_sent_again(db, proxy):
    fence = Once(db.connect()).claim(key="k").fence
    proxy.lose_answer("once.complete")
    connection = psycopg2.connect(proxy.dsn(db.name))
    connection.autocommit = True
    with pytest.raises(psycopg2.Error):
        run(connection, "SELECT once.complete('orders', 'k', %s, response_text => 'a')", fence)
    assert Once(db.connect()).complete(key="k", fence=fence, response_body=b"a") is False
    assert Once(db.connect()).claim(key="k").response_body == b"a"


def test_a_completion_in_the_effects_transaction_dies_with_the_effect(db):
    once = Once(db.connect())
    fence = once.claim(key="k").fence
    connection = db.connect()
    run(connection, "BEGIN")
    make_effect(connection, "k")
    Once(connection).complete(key="k", fence=fence)
    terminate(db, connection)
    assert effects(db, "k") == 0
    assert once.claim(key="k").verdict == "processing_active"
    let_lease_pass(db, "k")
    taken = once.claim(key="k", takeover=True)
    assert (taken.verdict, taken.fence) == ("processing_stale", 2)
    with refused("P4010"):
        once.complete(key="k", fence=fence)


def test_a_lost_batch_of_claims_is_claimed_as_a_whole_or_not_at_all(db, proxy):
    keys = [f"k{n}" for n in range(100)]
    proxy.lose_answer("once.claim_many")
    connection = psycopg2.connect(proxy.dsn(db.name))
    connection.autocommit = True
    with pytest.raises(psycopg2.Error):
        Once(connection).claim_many(key=keys)
    assert {row.verdict for row in Once(db.connect()).claim_many(key=keys)} == {"processing_active"}
