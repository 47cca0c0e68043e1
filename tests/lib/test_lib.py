# SPDX-License-Identifier: PostgreSQL
"""The library: its C tests, plain and under the sanitizers, on a private server; the connection lost at each step of an execution; and
what it shows to the world."""
import os
import pathlib
import re
import subprocess

import pytest

from harness import proxy as harness_proxy
from harness.pgbouncer import PROGRAM as PGBOUNCER
from harness.pgbouncer import PgBouncer
from harness.postgres import PORT, wait_until
from harness.proxy import Proxy, Rule, hang_up
from harness.release import VERSION

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
SANITIZED = pathlib.Path(os.environ.get("PGONCE_BUILD_SANITIZED", ROOT / "build-sanitized"))
C_TESTS = ["json", "names", "contract", "refusals", "trace", "execute", "ended", "pipeline", "memory", "batcher", "batcher_away", "batcher_loss", "batcher_memory", "batcher_more", "batcher_server",
           "batcher_shared"]


def run(command, **environment):
    return subprocess.run([str(part) for part in command], env=os.environ | environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)


@pytest.mark.parametrize("build", [BUILD, SANITIZED], ids=["plain", "sanitized"])
@pytest.mark.parametrize("name", C_TESTS)
def test_the_c_tests_pass(db, build, name):
    done = run([build / "tests/lib" / f"test_{name}"], PGONCE_TEST_DSN=db.dsn(), PGOPTIONS="-c client_min_messages=warning",
               ASAN_OPTIONS="detect_leaks=1:abort_on_error=0", UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1")
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.mark.plain("it replaces malloc, as the sanitizer does")
def test_the_batcher_survives_each_allocation_of_libpq_failing_in_turn():
    done = run([BUILD / "tests/lib/test_batcher_memory"], LD_PRELOAD=str(BUILD / "tests/lib/fail_libpq.so"))
    assert done.returncode == 0, done.stdout[-6000:]
    assert re.search(r"\d+ allocations of libpq failed in turn", done.stdout) and "SKIPPED" not in done.stdout


@pytest.mark.plain("it replaces malloc, as the sanitizer does")
def test_an_execution_survives_each_allocation_of_libpq_failing_in_turn(db):
    done = run([BUILD / "tests/lib/test_execute_memory"], LD_PRELOAD=str(BUILD / "tests/lib/fail_libpq.so"), PGONCE_TEST_DSN=db.dsn(),
               PGOPTIONS="-c client_min_messages=warning")
    assert done.returncode == 0, done.stdout[-6000:]
    assert re.search(r"\d+ allocations of libpq failed in turn", done.stdout) and "SKIPPED" not in done.stdout


def command_of_play(dsn, mode, key, deadline_ms, prepared, build):
    return [build / "tests/lib/play_execute", dsn, mode, key, deadline_ms, *(["prepared"] if prepared else [])]


def play(proxy, db, mode, key, deadline_ms=20000, prepared=False, build=SANITIZED):
    done = run(command_of_play(proxy.dsn(db.name), mode, key, deadline_ms, prepared, build))
    assert done.returncode == 0, done.stdout
    return done.stdout.strip()


def play_in_background(dsn, mode, key, prepared):
    command = command_of_play(dsn, mode, key, 20000, prepared, SANITIZED)
    return subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def played(db):
    db.execute("CREATE TABLE play_effect (key text)")
    return db


# What is sent in an execution, in its order; a connection can be lost at each.
STEPS = ["BEGIN", "once.start", "INSERT INTO play_effect", "once.finish", "COMMIT"]


# The form with statements has its outcome first.
STEPS_OF_STATEMENTS = ["BEGIN", "once.finish_new", "INSERT INTO play_effect", "COMMIT"]
MODES_AND_STEPS = [("effect", step) for step in STEPS] + [("statements", step) for step in STEPS_OF_STATEMENTS]


@pytest.mark.parametrize("loss", ["lose_request", "lose_connection_after", "lose_answer"])
@pytest.mark.parametrize("mode, step", MODES_AND_STEPS)
def test_a_connection_lost_at_any_step_ends_in_one_effect_and_its_answer(server, played, mode, loss, step):
    with Proxy(server) as proxy:
        rule = getattr(proxy, loss)(step)
        answer = play(proxy, played, mode, "k")
        assert rule.fired.wait(20)
        assert answer in ("ok proceed answer", "ok replay_success answer")
        # Whether the COMMIT was heard decides which; the other losses leave nothing to replay.
        if step == "COMMIT" and loss == "lose_answer":
            assert answer == "ok replay_success answer"
        if mode == "effect" and step not in ("once.finish", "COMMIT"):
            assert answer == "ok proceed answer"
        assert played.value("SELECT count(*) FROM play_effect") == 1
        assert play(proxy, played, mode, "k") == "ok replay_success answer"


# Prepared, a step is a Bind of its statement's name; the first execution, which prepares, is over by then. Not by its text: that went out before.
PREPARED_STEPS = ["once_begin_", "once_start_", "INSERT INTO play_effect", "once_finish_", "once_commit_"]
PREPARED_STEPS_OF_STATEMENTS = ["once_begin_", "once_finish_new_", "once_text_", "once_commit_"]
PREPARED = [("effect", step) for step in PREPARED_STEPS] + [("statements", step) for step in PREPARED_STEPS_OF_STATEMENTS]


class ThirdBind(Rule):
    """Meets the step of the third execution: the first two warm up, of which the second, a replay, starts without going on."""

    def __init__(self, action, mode, step):
        super().__init__("frontend", action, step.encode())
        # In a replay there is a begin and a start, and in one of statements all of them, sent behind the start that stops them.
        again = mode == "statements" or step in ("once_begin_", "once_start_")
        self.spared = 2 if again else 1

    def meets(self, direction, kind, body):
        if kind not in (b"B", b"P") or not super().meets(direction, kind, body):
            return False
        # A Parse names it, too, and an effect's own statement is never bound by its name.
        if (kind == b"P") != (self.text == b"INSERT INTO play_effect"):
            return False
        self.spared -= 1
        return self.spared < 0


@pytest.mark.parametrize("action", ["drop", "forward", "swallow"])
@pytest.mark.parametrize("mode, step", PREPARED)
def test_a_connection_lost_at_any_prepared_step_ends_in_one_effect_and_its_answer(server, played, mode, action, step):
    with Proxy(server) as proxy:
        rule = proxy._add(ThirdBind(action, mode, step))
        answer = play(proxy, played, mode, "k", prepared=True)
        assert rule.fired.wait(20)
        assert answer in ("ok proceed answer", "ok replay_success answer")
        if step == "once_commit_" and action == "swallow":
            assert answer == "ok replay_success answer"
        assert played.value("SELECT count(*) FROM play_effect WHERE key = 'k'") == 1
        assert played.value("SELECT count(*) FROM play_effect WHERE key = 'warm-up'") == 1


@pytest.mark.parametrize("attached", [False, True], ids=["own", "attached"])
@pytest.mark.parametrize("prepared", [False, True], ids=["text", "prepared"])
@pytest.mark.parametrize("mode", ["effect", "statements"])
def test_an_answer_to_commit_that_never_comes_is_asked_for_or_said_to_be_unknown(server, played, mode, prepared, attached):
    """The server has committed; the client has read all answers but the last."""
    name = {"effect": "attached", "statements": "attached_statements"}[mode] if attached else mode
    if prepared:
        with Proxy(server) as proxy:
            play(proxy, played, name, "k", prepared=True)
        played.execute("DELETE FROM play_effect")
    with Proxy(server) as proxy:
        # Where it warms up with a replay, no COMMIT is answered before.
        rule = proxy.lose_from_server(b"C", b"COMMIT")
        answer = play(proxy, played, name, "l", prepared=prepared)
        assert rule.fired.wait(20)
        assert answer == ("error outcome_unknown retriable=1 outcome_unknown=1" if attached else "ok replay_success answer")
        assert play(proxy, played, name, "l") == "ok replay_success answer"
    assert played.value("SELECT count(*) FROM play_effect WHERE key = 'l'") == 1


# ---- An effect that fails for good: rolled back, and stored by a second transaction ----

FAILED = "error final_failure retriable=0 outcome_unknown=0"
# What is sent after the effect, in its order; and the how manieth message with this text that is.
STEPS_OF_FAILURE = [("once.started", 1), ("ROLLBACK", 1), ("BEGIN", 2), ("once.start(", 2), ("once.finish", 1), ("COMMIT", 1)]
# The warm-up stores a failure and is told it again: each of them, and a BEGIN and a start more.
PREPARED_STEPS_OF_FAILURE = [
    ("once_noted_start_", 2), ("once_rollback_", 2), ("once_begin_", 5), ("once_start_", 5), ("once_finish_", 2), ("once_commit_", 2)]  # fmt: skip


class Nth(Rule):
    """Meets the nth message that runs this text."""

    def __init__(self, action, text, nth):
        super().__init__("frontend", action, text.encode())
        self.left = nth

    def meets(self, direction, kind, body):
        self.left -= super().meets(direction, kind, body)
        return self.left == 0


class Hold(Nth):
    """Loses nothing: the message waits until thaw()."""

    def __init__(self, proxy, text, nth):
        super().__init__("hold", text, nth)
        self.proxy = proxy

    def meets(self, direction, kind, body):
        if super().meets(direction, kind, body):
            self.left = -1
            self.proxy.freeze("frontend")
            self.fired.set()
        return False


def failures(db, key="k"):
    return db.value("SELECT count(*) FROM once.intent WHERE key = %s AND state = 'failed_final'", key)


@pytest.mark.parametrize("prepared", [False, True], ids=["text", "prepared"])
@pytest.mark.parametrize("action", ["drop", "forward", "swallow"])
@pytest.mark.parametrize("at", range(len(STEPS_OF_FAILURE)), ids=[f"{text}-{nth}" for text, nth in STEPS_OF_FAILURE])
def test_a_connection_lost_while_a_failure_is_stored_repeats_the_storing_and_never_the_effect(server, played, at, action, prepared):
    with Proxy(server) as proxy:
        rule = proxy._add(Nth(action, *(PREPARED_STEPS_OF_FAILURE if prepared else STEPS_OF_FAILURE)[at]))
        assert play(proxy, played, "failing", "k", prepared=prepared) == f"{FAILED} runs=1"
        assert rule.fired.wait(20)
        assert (failures(played), played.value("SELECT count(*) FROM play_effect")) == (1, 0)
        assert play(proxy, played, "failing", "k") == f"{FAILED} runs=0"


@pytest.mark.parametrize("action", ["drop", "forward", "swallow"])
@pytest.mark.parametrize("at", range(len(STEPS_OF_FAILURE)), ids=[f"{text}-{nth}" for text, nth in STEPS_OF_FAILURE])
def test_a_failure_that_is_not_stored_on_the_callers_connection_is_unknown_after_commit_alone(server, played, at, action):
    text, nth = STEPS_OF_FAILURE[at]
    with Proxy(server) as proxy:
        rule = proxy._add(Nth(action, text, nth))
        answer = play(proxy, played, "attached_failing", "k")
        assert rule.fired.wait(20)
        # What travels with COMMIT may be followed by it: the server may have it.
        unknown = text in ("once.finish", "COMMIT")
        assert answer == ("error outcome_unknown retriable=1 outcome_unknown=1" if unknown else "error connection retriable=1 outcome_unknown=0") + " runs=1"
        stored = text == "COMMIT" and action == "swallow"
        assert not stored or failures(played) == 1
        again = play(proxy, played, "attached_failing", "k")
        assert again == f"{FAILED} runs={0 if stored else 1}" or (unknown and again.startswith(FAILED))
        assert (failures(played), played.value("SELECT count(*) FROM play_effect")) == (1, 0)


# Before the ROLLBACK the failing attempt holds the intent, and afterwards nobody does.
BETWEEN = ("BEGIN", 2)


def play_held(server, db, between):
    """A failing execution, during which something else happens between its two transactions."""
    with Proxy(server) as proxy:
        rule = proxy._add(Hold(proxy, *BETWEEN))
        process = play_in_background(proxy.dsn(db.name), "failing", "k", False)
        assert rule.fired.wait(20)
        between()
        proxy.thaw()
        return process.communicate(timeout=60)[0].strip()


def attempt(db, mode):
    """Waits until the ROLLBACK, which was sent just now, has let go."""
    answers = []

    def settles():
        done = run(command_of_play(db.dsn(), mode, "k", 20000, False, SANITIZED))
        answers[:] = [done.stdout.strip()]
        return not answers[0].startswith("error active")

    wait_until(settles, "the rollback")
    return answers[0]


def test_another_attempt_that_succeeds_before_the_failure_is_stored_gives_the_answer(server, played):
    answer = play_held(server, played, lambda: attempt(played, "effect"))
    assert answer == "ok replay_success answer runs=1"
    assert (failures(played), played.value("SELECT count(*) FROM play_effect")) == (0, 1)


def test_another_attempt_that_fails_before_the_failure_is_stored_gives_its_failure(server, played):
    answer = play_held(server, played, lambda: attempt(played, "failing"))
    assert answer == f"{FAILED} runs=1"
    assert (failures(played), played.value("SELECT count(*) FROM play_effect")) == (1, 0)


START_OF = "SELECT once.start('play', 'k', decode(repeat('07', 1) || repeat('00', 31), 'hex'))"
OTHERS = {
    "active": (f"BEGIN; {START_OF}", "error active retriable=1 outcome_unknown=0"),
    "mismatch": ("SELECT once.claim('play', 'k', decode(repeat('08', 32), 'hex'), 'other')", "error mismatch retriable=0 outcome_unknown=0"),
    "in_doubt": ("SELECT once.claim('play', 'k', decode(repeat('07', 1) || repeat('00', 31), 'hex'), 'other');"
                 "SELECT once.fail('play', 'k', 1, retryable => NULL)", "error in_doubt retriable=0 outcome_unknown=0"),
}  # fmt: skip


@pytest.mark.parametrize("verdict", OTHERS)
def test_what_another_attempt_holds_or_leaves_before_the_failure_is_stored_is_the_error(server, played, verdict):
    sql, error = OTHERS[verdict]
    rival = played.connect()

    def between():
        free = "SELECT NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
        wait_until(lambda: played.value(free), "the rollback")
        rival.cursor().execute(sql)

    assert play_held(server, played, between) == f"{error} runs=1"
    rival.close()
    assert (failures(played), played.value("SELECT count(*) FROM play_effect")) == (0, 0)


# A failure that is stored meets this at once, or as often as it says.
MEETS = """
    CREATE SEQUENCE met;
    GRANT ALL ON SEQUENCE met TO PUBLIC;
    CREATE FUNCTION meet() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN IF NEW.state = 'failed_final' AND nextval('public.met') <= {} THEN RAISE SQLSTATE '{}'; END IF; RETURN NEW; END $$;
    CREATE TRIGGER meet BEFORE INSERT ON once.intent FOR EACH ROW EXECUTE FUNCTION meet()"""


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "55P03"])
def test_a_race_while_a_failure_is_stored_repeats_the_storing_and_never_the_effect(server, played, sqlstate):
    played.execute(MEETS.format(3, sqlstate))
    with Proxy(server) as proxy:
        assert play(proxy, played, "failing", "k") == f"{FAILED} runs=1"
    assert played.value("SELECT last_value FROM met") == 4
    assert (failures(played), played.value("SELECT count(*) FROM play_effect")) == (1, 0)


@pytest.mark.parametrize("sqlstate, error", [("40001", "serialization"), ("55P03", "database")])
def test_a_failure_that_cannot_be_stored_by_the_deadline_is_the_error_that_it_met(server, played, sqlstate, error):
    played.execute(MEETS.format(1000000, sqlstate))
    with Proxy(server) as proxy:
        assert play(proxy, played, "failing", "k", deadline_ms=200) == f"error {error} retriable=1 outcome_unknown=0 runs=1"
    assert (failures(played), played.value("SELECT count(*) FROM play_effect")) == (0, 0)


def test_a_failure_is_stored_even_if_the_deadline_has_passed_in_the_effect(server, played):
    with Proxy(server) as proxy:
        proxy.delay(0.05)
        assert play(proxy, played, "failing", "k", deadline_ms=1) == f"{FAILED} runs=1"
    assert failures(played) == 1


def test_a_failure_whose_commit_is_lost_with_the_database_is_unknown_when_the_deadline_passes(server, played):
    with LastProxy(server) as proxy:
        rule = proxy._add(Nth("swallow", "COMMIT", 1))
        assert play(proxy, played, "failing", "k", 600) == "error outcome_unknown retriable=1 outcome_unknown=1 runs=1"
        assert rule.fired.wait(20)
    with Proxy(server) as again:
        assert play(again, played, "failing", "k") == f"{FAILED} runs=0"


@pytest.mark.parametrize("ends, answer", [("cancel", "error database retriable=1 outcome_unknown=0 runs=1"), ("terminate", f"{FAILED} runs=1")])
def test_a_backend_that_is_stopped_while_it_stores_a_failure_is_not_asked_for_the_effect_again(server, played, ends, answer):
    played.execute("""
        CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF NEW.state = 'failed_final' THEN PERFORM pg_advisory_xact_lock(4711); END IF; RETURN NEW; END $$;
        CREATE TRIGGER hold BEFORE INSERT ON once.intent FOR EACH ROW EXECUTE FUNCTION hold()""")
    holder = played.connect()
    holder.cursor().execute("SELECT pg_advisory_lock(4711)")
    process = play_in_background(played.dsn(), "failing", "k", False)
    played.execute(f"SELECT pg_{ends}_backend({held_backend(played)})")
    holder.cursor().execute("SELECT pg_advisory_unlock_all()")
    assert process.communicate(timeout=60)[0].strip() == answer
    holder.close()
    assert failures(played) == (ends == "terminate")
    with Proxy(server) as proxy:
        assert play(proxy, played, "failing", "k") == f"{FAILED} runs={int(ends == 'cancel')}"


def test_a_process_that_ends_before_its_failure_is_stored_leaves_nothing_and_the_next_attempt_runs(server, played):
    with Proxy(server) as proxy:
        rule = proxy._add(Hold(proxy, *BETWEEN))
        process = play_in_background(proxy.dsn(played.name), "failing", "k", False)
        assert rule.fired.wait(20)
        process.kill()
        process.communicate(timeout=60)
    assert failures(played) == 0
    assert attempt(played, "effect") == "ok proceed answer"


HOLD_AT_COMMIT = """
    CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN IF NEW.key <> 'warm-up' THEN PERFORM pg_advisory_xact_lock(4711); END IF; RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON play_effect DEFERRABLE INITIALLY {} FOR EACH ROW EXECUTE FUNCTION hold()"""


def held_backend(db):
    """Who waits for the lock that the test holds."""
    rows = []

    def waits():
        rows[:] = [db.value("SELECT max(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted"
                            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")]
        return rows[0] is not None

    wait_until(waits, "the execution to be held")
    return rows[0]


@pytest.mark.parametrize("prepared", [False, True], ids=["text", "prepared"])
@pytest.mark.parametrize("mode", ["effect", "statements", "attached", "attached_statements"])
@pytest.mark.parametrize("where", ["DEFERRED", "IMMEDIATE"])
def test_a_backend_that_is_ended_in_its_effect_or_its_commit_leaves_one_effect_at_most(server, played, where, mode, prepared):
    played.execute(HOLD_AT_COMMIT.format(where))
    holder = played.connect()
    holder.cursor().execute("SELECT pg_advisory_lock(4711)")
    with Proxy(server) as proxy:
        process = play_in_background(proxy.dsn(played.name), mode, "k", prepared)
        played.execute(f"SELECT pg_terminate_backend({held_backend(played)})")
        holder.cursor().execute("SELECT pg_advisory_unlock_all()")
        answer = process.communicate(timeout=60)[0].strip()
        holder.close()
        if not mode.startswith("attached"):
            assert answer == "ok proceed answer"
        elif where == "DEFERRED" or mode == "attached_statements":
            # The COMMIT was sent, and what answered it was the server's farewell.
            assert answer == "error outcome_unknown retriable=1 outcome_unknown=1"
        else:
            assert answer == "error connection retriable=1 outcome_unknown=0"
        assert play(proxy, played, "effect", "k") == ("ok proceed answer" if mode.startswith("attached") else "ok replay_success answer")
    assert played.value("SELECT count(*) FROM play_effect WHERE key = 'k'") == 1


@pytest.mark.parametrize("mode", ["attached", "attached_statements"])
def test_a_backend_that_dies_in_commit_of_whatever_cause_leaves_an_unknown(server, played, mode, monkeypatch):
    """As one does that cannot write its commit record (PANIC, 53100): that may be on disk, and be found by recovery."""

    def dying(source):
        kind, body, raw = true_message(source)
        return kind, body, raw.replace(b"C57P01\0", b"C53100\0") if kind == b"E" else raw

    true_message = harness_proxy.message
    played.execute(HOLD_AT_COMMIT.format("DEFERRED"))
    holder = played.connect()
    holder.cursor().execute("SELECT pg_advisory_lock(4711)")
    monkeypatch.setattr(harness_proxy, "message", dying)
    with Proxy(server) as proxy:
        process = play_in_background(proxy.dsn(played.name), mode, "k", False)
        played.execute(f"SELECT pg_terminate_backend({held_backend(played)})")
        assert process.communicate(timeout=60)[0].strip() == "error outcome_unknown retriable=1 outcome_unknown=1"
    holder.close()


@pytest.mark.parametrize("prepared", [False, True], ids=["text", "prepared"])
@pytest.mark.parametrize("mode", ["effect", "statements"])
@pytest.mark.parametrize("where", ["DEFERRED", "IMMEDIATE"])
def test_a_cancelled_execution_says_so_and_leaves_nothing(server, played, where, mode, prepared):
    played.execute(HOLD_AT_COMMIT.format(where))
    holder = played.connect()
    holder.cursor().execute("SELECT pg_advisory_lock(4711)")
    with Proxy(server) as proxy:
        process = play_in_background(proxy.dsn(played.name), mode, "k", prepared)
        played.execute(f"SELECT pg_cancel_backend({held_backend(played)})")
        assert process.communicate(timeout=60)[0].strip() == "error database retriable=1 outcome_unknown=0"
        holder.close()
        assert played.value("SELECT count(*) FROM play_effect WHERE key = 'k'") == 0
        assert play(proxy, played, mode, "k") == "ok proceed answer"


@pytest.mark.parametrize("mode", ["effect", "statements"])
def test_a_commit_that_says_it_has_rolled_back_is_no_success(server, played, mode, monkeypatch):
    def lying(source):
        kind, body, raw = true_message(source)
        return (kind, body, raw.replace(b"\x0bCOMMIT\0", b"\x0dROLLBACK\0")) if kind == b"C" else (kind, body, raw)

    true_message = harness_proxy.message
    with Proxy(server) as proxy:
        assert play(proxy, played, mode, "k") == "ok proceed answer"
        monkeypatch.setattr(harness_proxy, "message", lying)
        assert play(proxy, played, mode, "l") == "error database retriable=0 outcome_unknown=0"


@pytest.mark.parametrize("prepared", [False, True], ids=["text", "prepared"])
@pytest.mark.parametrize("mode", ["effect", "statements"])
def test_a_transaction_that_may_not_write_replays_and_runs_nothing(server, played, mode, prepared):
    """As on a standby; there the same statements are refused with the same SQLSTATE."""
    with Proxy(server) as proxy:
        assert play(proxy, played, mode, "k", prepared=prepared) == "ok proceed answer"
        played.execute(f"ALTER DATABASE {played.name} SET default_transaction_read_only = on")
        assert play(proxy, played, mode, "k", prepared=prepared) == "ok replay_success answer"
        assert play(proxy, played, mode, "l", prepared=prepared) == "error database retriable=0 outcome_unknown=0"
        played.execute(f"ALTER DATABASE {played.name} RESET default_transaction_read_only")
        assert play(proxy, played, mode, "l", prepared=prepared) == "ok proceed answer"


@pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")
@pytest.mark.parametrize("prepared", [False, True], ids=["text", "prepared"])
@pytest.mark.parametrize("mode", ["effect", "statements"])
def test_behind_a_pooler_each_execution_has_its_one_effect_whatever_its_connections_know(server, played, mode, prepared):
    """Transaction mode: each run is another client on the same two connections, which know what the runs before have prepared."""
    with PgBouncer(server, server_connections=2) as bouncer:
        dsn = f"host={bouncer.directory} port={PORT} dbname={played.name} user=postgres"
        for _ in range(2):
            together = [play_in_background(dsn, mode, f"k{n}", prepared) for n in range(6)]
            answers = {process.communicate(timeout=60)[0].strip() for process in together}
            assert answers <= {"ok proceed answer", "ok replay_success answer", "error active retriable=1 outcome_unknown=0"}
        assert "ok replay_success answer" in answers
    assert played.value("SELECT count(*) FROM play_effect WHERE key LIKE 'k%'") == 6
    assert played.value("SELECT max(n) FROM (SELECT count(*) AS n FROM play_effect GROUP BY key) AS each") == 1


def test_a_lost_commit_on_the_callers_connection_is_said_to_be_unknown_and_the_retry_knows(server, played):
    with Proxy(server) as proxy:
        proxy.lose_answer("COMMIT")
        assert play(proxy, played, "attached", "k") == "error outcome_unknown retriable=1 outcome_unknown=1"
        assert play(proxy, played, "attached", "k") == "ok replay_success answer"
        assert played.value("SELECT count(*) FROM play_effect") == 1


def test_a_connection_of_the_callers_lost_before_commit_is_no_unknown(server, played):
    with Proxy(server) as proxy:
        proxy.lose_request("INSERT INTO play_effect")
        assert play(proxy, played, "attached", "k") == "error connection retriable=1 outcome_unknown=0"
        assert played.value("SELECT count(*) FROM play_effect") == 0


class LastProxy(Proxy):
    """Takes no new connection from the moment that its rule fires: before the client can know of the loss."""

    def take(self, direction, kind, body):
        rule = super().take(direction, kind, body)
        if rule:
            hang_up(self.listener)
        return rule


def test_a_commit_whose_database_never_comes_back_is_unknown_when_the_deadline_passes(server, played):
    with LastProxy(server) as proxy:
        rule = proxy.lose_answer("COMMIT")
        assert play(proxy, played, "effect", "k", 600) == "error outcome_unknown retriable=1 outcome_unknown=1"
        assert rule.fired.wait(20)
    with Proxy(server) as again:
        assert play(again, played, "effect", "k") == "ok replay_success answer"
    assert played.value("SELECT count(*) FROM play_effect") == 1


def test_a_lost_commit_stays_unknown_while_the_database_answers_with_errors(server, played):
    """The effect's own commit takes once.start away, so that the library reconnects and cannot ask."""
    played.execute("""
        CREATE FUNCTION take_away() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN ALTER FUNCTION once.start(text, text, bytea, text, text) RENAME TO start_away; RETURN NULL; END $$;
        CREATE TRIGGER take_away AFTER INSERT ON play_effect FOR EACH ROW EXECUTE FUNCTION take_away()""")
    with Proxy(server) as proxy:
        proxy.lose_answer("COMMIT")
        assert play(proxy, played, "effect", "k") == "error outcome_unknown retriable=1 outcome_unknown=1"
        played.execute("ALTER FUNCTION once.start_away(text, text, bytea, text, text) RENAME TO start")
        assert play(proxy, played, "effect", "k") == "ok replay_success answer"
    assert played.value("SELECT count(*) FROM play_effect") == 1


def test_a_lost_commit_that_still_runs_is_waited_for_and_never_run_beside(server, played):
    """The old backend is held inside its COMMIT by a deferred trigger; the retry must be told that it is active, not that it may proceed."""
    played.execute("""
        CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON play_effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hold()""")
    holder = played.connect(autocommit=False)
    holder.cursor().execute("SELECT pg_advisory_lock(4711)")
    with Proxy(server) as proxy:
        rule = proxy.lose_connection_after("COMMIT")
        command = [SANITIZED / "tests/lib/play_execute", proxy.dsn(played.name), "effect", "k", "20000"]
        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
        assert rule.fired.wait(20)
        # The retry has come by and was refused: it holds no transaction, the old backend still waits in its COMMIT.
        watcher = played.connect()
        cursor = watcher.cursor()
        for _ in range(2000):
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'")
            if cursor.fetchone()[0] == 1:
                break
        assert process.poll() is None
        cursor.execute("SELECT count(*) FROM play_effect")
        assert cursor.fetchone()[0] == 0
        holder.rollback()
        holder.cursor().execute("SELECT pg_advisory_unlock_all()")
        holder.close()
        assert process.communicate(timeout=30)[0].strip() in ("ok replay_success answer", "ok proceed answer")
    assert played.value("SELECT count(*) FROM play_effect") == 1


@pytest.mark.parametrize("verdict", ["mismatch", "new_claim", "what a later contract may say"])
def test_nothing_runs_on_a_verdict_that_start_does_not_have(server, played, verdict):
    played.execute(f"""
        ALTER FUNCTION once.start(text, text, bytea, text, text) RENAME TO own_start;
        CREATE FUNCTION once.start(scope text, key text, fingerprint bytea, tenant text, traceparent text) RETURNS once.started
        LANGUAGE sql AS $$ SELECT ROW('{verdict}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, NULL)::once.started $$""")
    with Proxy(server) as proxy:
        assert play(proxy, played, "effect", "k") == "error contract retriable=0 outcome_unknown=0"
    assert played.value("SELECT count(*) FROM play_effect") == 0


SHAPES = {
    "nothing": ("once.started", "NULL::once.started"),
    "text": ("text", "'proceed'::text"),
    "too short": ("TABLE (verdict text, state text)", "'proceed'::text, NULL::text"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_runs_on_an_answer_of_a_form_that_start_does_not_have(server, played, shape):
    returns, value = SHAPES[shape]
    played.execute(f"""
        ALTER FUNCTION once.start(text, text, bytea, text, text) RENAME TO own_start;
        CREATE FUNCTION once.start(scope text, key text, fingerprint bytea, tenant text, traceparent text) RETURNS {returns}
        LANGUAGE sql AS $$ SELECT {value} $$""")
    with Proxy(server) as proxy:
        assert play(proxy, played, "effect", "k") == "error contract retriable=0 outcome_unknown=0"
    assert played.value("SELECT count(*) FROM play_effect") == 0


# ---- An effect that ends its transaction itself ----

ENDED = "error in_doubt retriable=0 outcome_unknown=1"


@pytest.mark.parametrize("action", ["drop", "forward", "swallow"])
@pytest.mark.parametrize("text", ["ROLLBACK", "once.claim"])
def test_a_connection_lost_while_a_doubt_is_stored_repeats_the_storing_and_never_the_effect(server, played, action, text):
    with Proxy(server) as proxy:
        rule = proxy._add(Nth(action, text, 1))
        assert play(proxy, played, "ending", "k") == f"{ENDED} runs=1"
        assert rule.fired.wait(20)
        assert play(proxy, played, "ending", "k") == "error in_doubt retriable=0 outcome_unknown=0 runs=0"
    assert played.value("SELECT state || ' ' || error_code FROM once.intent WHERE key = 'k'") == "in_doubt transaction_ended"
    assert played.value("SELECT count(*) FROM play_effect") == 1


@pytest.mark.parametrize("action", ["drop", "forward", "swallow"])
@pytest.mark.parametrize("text", ["once.started", "ROLLBACK"])
def test_a_connection_lost_while_an_effect_is_taken_back_to_run_again_is_no_doubt(server, played, action, text):
    with Proxy(server) as proxy:
        rule = proxy._add(Nth(action, text, 1))
        assert play(proxy, played, "again", "k") == "ok proceed answer runs=2"
        assert rule.fired.wait(20)
    assert played.value("SELECT count(*) FROM play_effect") == 1


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "55P03"])
def test_a_race_while_a_doubt_is_stored_repeats_the_storing_and_never_the_effect(server, played, sqlstate):
    played.execute(MEETS.format(3, sqlstate).replace("failed_final", "processing"))
    with Proxy(server) as proxy:
        assert play(proxy, played, "ending", "k") == f"{ENDED} runs=1"
    assert played.value("SELECT last_value FROM met") == 4
    assert played.value("SELECT state FROM once.intent WHERE key = 'k'") == "in_doubt"


HEADERS = ("pgonce.h", "pgonce_batcher.h")


def declared(name):
    text = (ROOT / "include" / name).read_text()
    return set(re.findall(r"\b(once_[a-z_]+)\(", re.sub(r"/\*.*?\*/", "", text, flags=re.S))) - {"once_effect"}


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_compiles_as_c_and_as_cxx(header, tmp_path):
    flags = run(["pkg-config", "--cflags", "libpq"]).stdout.split()
    for compiler, name in (("gcc", "a.c"), ("g++", "a.cc")):
        source = tmp_path / name
        source.write_text(f'#include "{header}"\nint main(void) {{ return once_version() == 0; }}\n')
        done = run([compiler, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", f"-I{ROOT}/include", *flags, source])
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("names, library", [("-D", "libpgonce.so"), ("-g", "libpgonce.a")])
def test_the_libraries_show_the_functions_of_the_headers_and_nothing_else(names, library):
    listed = run(["nm", names, "--defined-only", "--format=posix", BUILD / "lib" / library]).stdout
    shown = {line.split()[0].split("@")[0] for line in listed.splitlines() if len(line.split()) > 2}
    assert shown == set().union(*map(declared, HEADERS))


def test_each_function_of_the_headers_is_for_users_and_not_for_tests_alone():
    """A program of this tree calls it, an example, or a page that people write names it."""
    texts = [path.read_text() for folder in ("broker", "cli", "consume", "examples", "gateway", "keeper", "lib", "relay", "runtime")
             for path in (ROOT / folder).rglob("*.[ch]") if "node_modules" not in path.parts]
    texts += [path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if path.name != "c.md"]
    # A definition begins its line, with its type before it; what else names a function uses it.
    used = set(re.findall(r"\bonce_[a-z_]+", re.sub(r"^\w[^\n;=]*?\bonce_[a-z_]+\(", "", "\n".join(texts), flags=re.M)))
    assert set().union(*map(declared, HEADERS)) <= used


@pytest.mark.plain("a sanitized library is for programs that are sanitized")
def test_a_program_builds_against_the_installed_library(tmp_path):
    done = run(["meson", "install", "--no-rebuild", "-C", BUILD, "--destdir", tmp_path])
    assert done.returncode == 0, done.stdout
    pc = next(tmp_path.rglob("libpgonce.pc"))
    source = tmp_path / "a.c"
    source.write_text('#include <pgonce_batcher.h>\n#include <stdio.h>\nint main(void) { puts(once_version()); return 0; }\n')
    flags = run(["pkg-config", "--cflags", "--libs", "libpgonce"], PKG_CONFIG_PATH=str(pc.parent), PKG_CONFIG_SYSROOT_DIR=str(tmp_path)).stdout
    # The sysroot belongs before our own paths only; libpq is where it always was.
    library = next(tmp_path.rglob("libpgonce.so")).parent
    header = next(tmp_path.rglob("pgonce.h")).parent
    libpq = run(["pkg-config", "--cflags", "--libs", "libpq"]).stdout.split()
    assert "-lpgonce" in flags
    done = run(["gcc", source, "-o", tmp_path / "a", f"-I{header}", f"-L{library}", "-lpgonce", *libpq])
    assert done.returncode == 0, done.stdout
    assert run([tmp_path / "a"], LD_LIBRARY_PATH=str(library)).stdout.strip() == VERSION
    # And statically, in a program whose own functions are called as one of the library's files calls its own.
    source.write_text('#include <pgonce.h>\n#include <stdio.h>\n'
                      'int sleep_ms(void); int sleep_ms(void) { return 7; }\n'
                      'int main(void) { once_session *none = 0; (void)!once_session_open("host=/nowhere", &none, 0);'
                      ' puts(once_version()); return sleep_ms() - 7; }\n')
    flags = run(["pkg-config", "--libs", "libpq", "libcrypto"]).stdout.split()
    done = run(["gcc", source, "-o", tmp_path / "b", f"-I{header}", *libpq, library / "libpgonce.a", *flags])
    assert done.returncode == 0, done.stdout
    assert run([tmp_path / "b"]).stdout.strip() == VERSION
