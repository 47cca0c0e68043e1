# SPDX-License-Identifier: PostgreSQL
"""Many intents in doubt, as an outage leaves them: decided at once (once.resolve_many), or asked about (once.recover(in_doubt))."""

import datetime

import pytest

from harness.postgres import wait_until

from .calls import PRINT, Once, in_threads, let_lease_pass, refused, run
from .keeping import keeper, old_key, where
from .test_keep_rest import make_verify, says


def doubt(db, key, error="timeout", scope="orders", **more):
    once = Once(db.connect(), **more)
    fence = once.claim(key=key, scope=scope).fence
    once.fail(key=key, scope=scope, fence=fence, retryable=None, error_code=error)
    let_lease_pass(db, key)


def doubts(db, count, scope="orders"):
    db.execute("SELECT once.claim(%s, 'k' || n, %s) FROM generate_series(1, %s) AS n", scope, PRINT, count)
    db.execute("SELECT once.fail(%s, 'k' || n, 1, NULL, 'timeout') FROM generate_series(1, %s) AS n", scope, count)
    db.execute("UPDATE once.intent SET lease_until = clock_timestamp() - interval '1 second'")


def pieces(connection, after=None, **arguments):
    """once.resolve_many to its end: the rows of each piece."""
    arguments = {"scope": "orders", "as_state": "failed_retryable", "reason": "the provider has none", **arguments}
    named = ", ".join(f"{name} => %s" for name in arguments)
    while True:
        rows = run(connection, f"SELECT * FROM once.resolve_many({named}, after => %s)", *arguments.values(), after)
        yield rows
        assert len({row.next for row in rows}) == 1
        after = rows[0].next
        if after is None:
            return


def resolve_many(connection, **arguments):
    """What was decided and what was skipped, by error."""
    sums = {}
    for rows in pieces(connection, **arguments):
        for row in rows:
            decided, skipped = sums.get(row.met, (0, 0))
            sums[row.met] = (decided + row.decided, skipped + row.skipped)
    return {error: counts for error, counts in sums.items() if counts != (0, 0)}


def states(db):
    return {
        row.key: row.state
        for row in db.rows("SELECT key, state FROM once.intent UNION ALL SELECT key, state FROM once.archive")
    }


def recover(db, **arguments):
    """once.recover(in_doubt => true) to its end."""
    found, after, named = {}, None, "".join(f", {name} => %s" for name in arguments)
    while True:
        rows = db.rows(f"SELECT * FROM once.recover(in_doubt => true, after => %s{named})", after, *arguments.values())
        for row in rows:
            if row.key:
                assert row.key not in found, "judged twice"
                found[row.key] = row
        after = rows[-1].next if rows else None
        if after is None:
            return found


# ---- deciding many ----


@pytest.mark.parametrize("state", ["succeeded", "failed_retryable", "failed_final"])
def test_all_in_doubt_are_decided_in_pieces_each_recorded_as_a_single_one_is(db, state):
    doubts(db, 1000)
    Once(db.connect()).claim(key="running")
    worked = [
        sum(row.decided for row in rows)
        for rows in pieces(db.connect(), as_state=state, response_status=410, response_body=b"late", take=300)
    ]
    assert sum(worked) == 1000 and max(worked) <= 300
    stored = db.row(
        "SELECT count(*), min(fence) AS low, max(fence) AS high, bool_and(state::text = %s AND response_status = 410 AND response_body = 'late'"
        " AND completed_at IS NOT NULL) AS same FROM once.intent WHERE key <> 'running'",
        state,
    )
    assert (stored.count, stored.low, stored.high, stored.same) == (1000, 2, 2, True)
    assert states(db)["running"] == "processing"
    recorded = db.row(
        "SELECT count(DISTINCT key), bool_and(kind = 'resolve' AND reason = 'the provider has none' AND decided_by = session_user AND fence = 1"
        " AND from_state = 'in_doubt' AND to_state::text = %s AND before ->> 'error_code' = 'timeout' AND after ->> 'fence' = '2') AS same"
        " FROM once.decision",
        state,
    )
    assert (recorded.count, recorded.same) == (1000, True)
    with refused("P4010"):
        Once(db.connect()).complete(key="k1", fence=1)


def test_scope_tenant_error_and_time_narrow_what_is_decided(db):
    doubt(db, "a")
    doubt(db, "b", error="reset")
    doubt(db, "c", tenant="acme")
    doubt(db, "d", scope="refunds")
    doubt(db, "e", error=None)
    connection = db.connect()
    assert resolve_many(connection, dry_run=True) == {"timeout": (2, 0), "reset": (1, 0), None: (1, 0)}
    assert resolve_many(connection, scope="none") == {}
    assert resolve_many(connection, tenant="") == {"timeout": (1, 0), "reset": (1, 0), None: (1, 0)}
    assert states(db) == {"a": "failed_retryable", "b": "failed_retryable", "c": "in_doubt", "d": "in_doubt", "e": "failed_retryable"}
    doubt(db, "f", error="reset")
    assert resolve_many(connection, error="reset") == {"reset": (1, 0)}
    assert resolve_many(connection, scope="refunds") == {"timeout": (1, 0)}
    assert states(db)["c"] == "in_doubt"


def test_all_attempts_of_what_a_time_selects_lie_within_it(db):
    """Who says that nothing was charged between one and two o'clock must not decide about a retry at three."""
    for key, created, updated in (("before", 0, 1.5), ("within", 1, 1.9), ("after", 2.5, 2.6), ("retried", 1.5, 3)):
        doubt(db, key)
        db.execute(
            "UPDATE once.intent SET created_at = timestamptz '2026-01-31 00:00+00' + %s * interval '1 hour',"
            " updated_at = timestamptz '2026-01-31 00:00+00' + %s * interval '1 hour' WHERE key = %s",
            created,
            updated,
            key,
        )
    one, two = (datetime.datetime(2026, 1, 31, hour, tzinfo=datetime.timezone.utc) for hour in (1, 2))
    assert resolve_many(db.connect(), since=one, until=two) == {"timeout": (1, 0)}
    assert states(db)["within"] == "failed_retryable"
    assert resolve_many(db.connect(), since=one, dry_run=True) == {"timeout": (2, 0)}
    assert resolve_many(db.connect(), until=two, dry_run=True) == {"timeout": (1, 0)}


def test_a_dry_run_counts_and_changes_nothing(db):
    doubts(db, 250)
    before = db.rows("SELECT xmin, * FROM once.intent ORDER BY key")
    connection = db.connect(isolation="READ COMMITTED")
    assert resolve_many(connection, dry_run=True) == {"timeout": (250, 0)}
    assert run(connection, "SELECT pg_current_xact_id_if_assigned() AS xid")[0].xid is None, "it wrote"
    assert run(connection, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")[0].count == 0
    connection.rollback()
    assert db.rows("SELECT xmin, * FROM once.intent ORDER BY key") == before
    assert db.value("SELECT count(*) FROM once.decision") == 0


def test_what_another_is_deciding_or_reporting_is_skipped_and_counted_and_nobody_waits(db):
    for key in ("free", "decided", "reported", "asked"):
        doubt(db, key)
    deciding, reporting, asking = (db.connect(isolation="READ COMMITTED") for _ in range(3))
    Once(deciding).resolve(key="decided", as_state="succeeded")
    Once(reporting).complete(key="reported", fence=1)
    run(asking, "SELECT pg_advisory_xact_lock(once._lock_id('', 'orders', 'asked'))")
    connection = db.connect(statement_timeout="5s")
    assert resolve_many(connection) == {"timeout": (1, 3)}
    for other in (deciding, reporting):
        other.commit()
    asking.rollback()
    assert resolve_many(connection) == {"timeout": (1, 0)}
    assert states(db) == {"free": "failed_retryable", "decided": "succeeded", "reported": "succeeded", "asked": "failed_retryable"}


def test_a_decision_that_was_made_after_the_reading_is_not_overwritten(db):
    """The row is judged again under its lock: an old snapshot still shows the doubt."""
    doubt(db, "k")
    old = db.connect(isolation="REPEATABLE READ")
    run(old, "SELECT 1 FROM once.intent")
    Once(db.connect()).resolve(key="k", as_state="succeeded")
    try:
        assert resolve_many(old) == {"timeout": (0, 1)}
    except Exception as error:  # pylint: disable=broad-except
        assert error.pgcode == "40001", error
    old.rollback()
    assert states(db) == {"k": "succeeded"}


def test_one_that_was_interrupted_begins_again_and_decides_the_rest(db):
    doubts(db, 250)
    connection = db.connect(isolation="READ COMMITTED")
    started = pieces(connection, take=100)
    first = sum(row.decided for row in next(started))
    connection.commit()
    next(started)
    connection.rollback()  # the process is killed
    assert 0 < first <= 100, "a piece ends with its time, too"
    assert db.value("SELECT count(*) FROM once.decision") == first
    assert resolve_many(db.connect()) == {"timeout": (250 - first, 0)}
    assert db.value("SELECT count(*) = 250 AND count(DISTINCT key) = 250 FROM once.decision")


def test_two_operators_at_once_decide_each_intent_once(db):
    doubts(db, 1000)
    connections = [db.connect() for _ in range(3)]
    found = in_threads([lambda c=c: resolve_many(c, take=50) for c in connections])
    assert sum(each.get("timeout", (0, 0))[0] for each in found) == 1000
    assert db.value("SELECT count(*) = 1000 AND count(DISTINCT key) = 1000 FROM once.decision")
    assert db.value("SELECT bool_and(fence = 2) FROM once.intent")


@pytest.mark.parametrize("until", ["open", "closed", "moved", "dropped"])
def test_what_is_in_doubt_of_a_retired_day_is_decided_and_asked_about_wherever_it_is(db, until):
    make_verify(db, "happened", says("happened"))
    make_verify(db, "absent", says("absent"))
    keys = [old_key(db, number) for number in range(3)]
    doubt(db, keys[0])
    doubt(db, keys[1], scope="happened")
    doubt(db, keys[2], scope="absent")
    keeper(db).retire(until)
    assert all(len(where(db, key)) == 1 for key in keys)
    assert resolve_many(db.connect(), as_state="failed_final") == {"timeout": (1, 0)}
    found = recover(db)
    assert {key: row.decided for key, row in found.items()} == {keys[1]: "succeeded", keys[2]: "retry"}
    assert ("nothing runs with this key again" in found[keys[2]].reason) == (until != "open")
    assert states(db) == dict(zip(keys, ("failed_final", "succeeded", "failed_retryable")))
    assert db.value("SELECT count(*) FROM once.decision WHERE kind IN ('resolve', 'verify')") == 3


@pytest.mark.parametrize(
    "wrong, code",
    [
        ({"reason": " "}, "P4070"),
        ({"reason": None}, "P4070"),
        ({"as_state": "in_doubt"}, "P4070"),
        ({"as_state": None}, "P4070"),
        ({"scope": ""}, "P4000"),
        ({"scope": None}, "P4000"),
        ({"response_body": b"x" * 1_048_577}, "P4060"),
        ({"after": "somewhere"}, "22023"),
        ({"after": "1:2"}, "22023"),
        ({"after": "0:0:65536"}, "22023"),
    ],
)
def test_a_decision_that_makes_no_sense_is_refused_before_anything_is_decided(db, wrong, code):
    doubt(db, "k")
    with refused(code):
        resolve_many(db.connect(), **wrong)
    assert states(db) == {"k": "in_doubt"}


# ---- asking about many ----


def test_verify_functions_are_asked_about_what_is_in_doubt_and_decide_it(db):
    for answer in ("happened", "absent", "unknown"):
        make_verify(db, answer, says(answer))
    make_verify(db, "spent", says("absent"))
    make_verify(db, "broken", "RAISE EXCEPTION 'no answer';")
    for scope in ("happened", "absent", "unknown", "spent", "broken", "orders"):
        doubt(db, scope, scope=scope)
    db.execute("SELECT once.set_scope('spent', max_attempts => 1)")
    stale_one = Once(db.connect())
    stale_one.claim(key="stale", scope="absent")
    db.execute("UPDATE once.intent SET lease_until = clock_timestamp() - interval '1 second' WHERE key = 'stale'")
    found = recover(db)
    assert {key: (row.decided, row.found) for key, row in found.items()} == {
        "happened": ("succeeded", "happened"),
        "absent": ("retry", "absent"),
        "unknown": ("in_doubt", "unknown"),
        "spent": ("abandoned", "absent"),
        "broken": ("in_doubt", "unknown"),
        "orders": ("in_doubt", None),
    }
    assert "no answer" in found["broken"].reason and "no verify function" in found["orders"].reason
    once = Once(db.connect())
    replayed = once.claim(key="happened", scope="happened")
    assert (replayed.verdict, replayed.response_status, replayed.response_body) == ("replay_success", 200, b"ok")
    assert once.claim(key="spent", scope="spent").verdict == "final_failure"
    with refused("P4010"):  # the old attempt, which comes back
        once.complete(key="absent", scope="absent", fence=1)
    assert once.claim(key="absent", scope="absent").fence == 3
    assert {(row.key, row.kind, row.to_state) for row in db.rows("SELECT * FROM once.decision WHERE kind <> 'retry'")} == {
        ("happened", "verify", "succeeded"),
        ("absent", "verify", "failed_retryable"),
        ("spent", "abandon", "failed_final"),
    }
    assert set(recover(db, scope="unknown")) == {"unknown"}
    assert set(recover(db, tenant="acme")) == set()


@pytest.mark.parametrize("answer", ["absent", "happened"])
def test_nothing_is_asked_about_a_doubt_whose_attempt_may_still_be_at_work(db, answer):
    """What is absent now may happen a moment later, and another attempt would do it again."""
    make_verify(db, answer, says(answer))
    once = Once(db.connect())
    once.fail(key="k", scope=answer, fence=once.claim(key="k", scope=answer).fence, retryable=None)
    told = recover(db)["k"]
    assert (told.decided, told.found) == ("in_doubt", None) and "may still be at work until" in told.reason
    assert states(db) == {"k": "in_doubt"}
    let_lease_pass(db, "k")
    assert recover(db)["k"].found == answer


def test_the_keeper_and_recovery_of_the_stale_ask_nothing_about_what_is_in_doubt(db):
    make_verify(db, "happened", says("happened"))
    doubt(db, "k", scope="happened")
    assert [row.key for row in db.rows("SELECT * FROM once.recover()") if row.key] == []
    keeper(db).work("sweep")
    assert states(db) == {"k": "in_doubt"}


def test_a_report_that_comes_while_its_verify_function_is_asked_has_the_last_word(db):
    make_verify(db, "waits", "PERFORM pg_advisory_xact_lock(7); " + says("absent"))
    doubt(db, "k", scope="waits")
    holder = db.connect(isolation="READ COMMITTED")
    run(holder, "SELECT pg_advisory_xact_lock(7)")

    def report():
        wait_until(
            lambda: db.value("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'") == 1,
            "the question",
        )
        done = Once(db.connect(lock_timeout="10s")).complete(key="k", scope="waits", fence=1, response_status=201)
        holder.rollback()
        return done

    asking = db.connect()
    rows, done = in_threads([lambda: run(asking, "SELECT * FROM once.recover(in_doubt => true)"), report])
    assert done and [row.key for row in rows if row.key] == []
    assert db.row("SELECT state, response_status, fence FROM once.intent") == ("succeeded", 201, 1)


def test_slow_verify_functions_are_asked_about_doubts_a_few_at_a_time_and_all_in_the_end(db):
    make_verify(db, "slow", "PERFORM pg_sleep(0.1); " + says("unknown"))
    doubts(db, 8, "slow")
    assert len([row for row in db.rows("SELECT * FROM once.recover(in_doubt => true)") if row.key]) < 8
    assert len(recover(db)) == 8


def test_very_many_that_stay_in_doubt_come_to_an_end(db):
    doubts(db, 1200)
    assert len(recover(db)) == 1200


@pytest.mark.parametrize("in_doubt", [True, False])
def test_nothing_is_asked_about_what_another_attempt_has_begun_again_meanwhile(db, in_doubt):
    """Its verify function may shut out the old attempt's effect, and would shut out the new one's."""
    db.execute("CREATE TABLE public.asked (key text, pid integer)")
    make_verify(db, "noting", "INSERT INTO public.asked VALUES (key, pg_backend_pid());"
                " IF key = 'k1' THEN PERFORM pg_advisory_xact_lock(7); END IF; " + says("absent"))
    for key in ("k1", "k2"):
        if in_doubt:
            doubt(db, key, scope="noting")
        else:
            Once(db.connect()).claim(key=key, scope="noting")
            let_lease_pass(db, key)
    holder, asking = db.connect(isolation="READ COMMITTED"), db.connect()
    run(holder, "SELECT pg_advisory_xact_lock(7)")

    def begin_again():
        wait_until(lambda: db.value("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'") == 1, "the question")
        claimed = Once(db.connect()).claim(key="k2", scope="noting")
        holder.rollback()
        return claimed

    _, claimed = in_threads([lambda: run(asking, "SELECT * FROM once.recover(in_doubt => %s)", in_doubt), begin_again])
    assert claimed.fence > 1
    assert [row.key for row in db.rows("SELECT key FROM public.asked WHERE pid = %s", asking.info.backend_pid)] == ["k1"]
