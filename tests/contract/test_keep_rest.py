# SPDX-License-Identifier: PostgreSQL
"""What else the keeper does: one at a time, by a clock that goes steadily, never before a relay or a consumer is through;
purging, recovery, counting, the outbox, the archive, dead letters, decisions; and once.keep()."""

import pytest

from harness.postgres import wait_until

from .calls import PRINT, Once, allow_takeover, code_of, in_threads, let_lease_pass, refused, run, today, uuid7_days_ago
from .keeping import AGO, Keeper, expire, finished, keeper, old_day, old_key, phase_of, settled, where
from .logins import make_logins
from .relaying import Relay, emit

FORGETTING = ("close", "move", "drop", "outbox", "purge", "archive", "dead", "decisions")


def plain(db, key, expired=True, **more):
    """A finished intent without a day."""
    Once(db.connect()).finish_new(key=key, **more)
    if expired:
        expire(db, key)


def keys(db):
    return {row.key for row in db.rows("SELECT key FROM once.intent")}


# ---- the lease ----


def test_one_keeper_works_at_a_time_until_its_lease_passes_or_it_lets_go(db):
    first, second = db.connect(), db.connect()

    def take(connection, name):
        return run(connection, "SELECT once_job.keep_take(%s) AS taken", name)[0].taken

    assert take(first, "a") and take(first, "a") and not take(second, "b")
    with refused("55000"):
        run(second, "SELECT once_job.keep_step('b', 'days')")
    run(first, "SELECT once_job.keep_step('a', 'days')")
    assert run(second, "SELECT once_job.keep_release('b') AS done")[0].done is False
    db.execute("UPDATE once.keeper SET lease_until = clock_timestamp() - interval '1 second'")
    with refused("55000"):
        run(first, "SELECT once_job.keep_step('a', 'days')")
    assert take(second, "b") and not take(first, "a")
    assert run(second, "SELECT once_job.keep_release('b') AS done")[0].done is True
    assert take(first, "a")
    lease = db.row("SELECT * FROM once.keeper_lease()")
    assert lease.keeper == "a" and lease.last_round is not None
    db.execute("UPDATE once.keeper SET lease_until = clock_timestamp() + interval '2 years'")
    assert take(second, "b"), "a lease that a wrong clock gave"
    for moved in ("lease_until", "last_round"):
        assert not take(first, "a")
        db.execute(f"UPDATE once.keeper SET {moved} = clock_timestamp() + interval '6 hours'")
    assert take(first, "a"), "a lease that was taken while the clock was ahead"
    for name, lease in ((None, "1 s"), ("", "1 s"), ("a", "0"), ("a", "2 days")):
        with refused("22023"):
            run(first, "SELECT once_job.keep_take(%s, %s)", name, lease)


def test_a_step_is_refused_that_does_not_exist_or_above_read_committed(db):
    keep = keeper(db)
    with refused("22023"):
        keep.step("tidy")
    with refused("22023"):
        run(keep.connection, "SELECT once_job.keep_failed('keeper', 'tidy', '0', '')")
    old = db.connect(isolation="REPEATABLE READ")
    with refused("25000"):
        run(old, "SELECT once_job.keep_step('keeper', 'close')")


def test_the_status_shows_each_step_its_success_and_its_failure(db):
    keep = keeper(db)
    keep.round()
    status = db.rows("SELECT * FROM once.keeper_status()")
    assert [row.ord for row in status] == list(range(1, 16)) and all(row.last_success for row in status)
    run(keep.connection, "SELECT once_job.keep_failed('keeper', 'purge', '53100', 'full')")
    failed = db.row("SELECT * FROM once.keeper_status() WHERE step = 'purge'")
    assert failed.last_error_at > failed.last_success and "53100: full" in failed.last_error
    keep.step("purge")
    mended = db.row("SELECT * FROM once.keeper_status() WHERE step = 'purge'")
    assert mended.last_success > mended.last_error_at


# ---- the clock ----


@pytest.mark.parametrize("moved", ["never read", "forward", "back"])
def test_nothing_is_forgotten_by_an_unsteady_clock(db, moved):
    keep = keeper(db)
    kept = finished(db, 1, expired=True)
    plain(db, "plain")
    make_outbox_day(db, today(db) - 3)
    db.execute("SELECT once.set_keeping(clock_settle => '1 hour')")
    if moved != "never read":
        keep.step("clock")
        by = {"forward": "- interval '3 days'", "back": "+ interval '1 minute'"}[moved]
        db.execute("UPDATE once.clock SET steady = '1 hour'")
        keep.step("clock")
        assert db.rows("SELECT what FROM once.retention_held()") == []
        db.execute(f"UPDATE once.clock SET read_at = clock_timestamp() {by}")
    for step in FORGETTING:
        piece = keep.step(step)
        assert (piece.done, piece.more) == (0, False) and "clock" in piece.detail, step
    assert keys(db) == {kept, "plain"} and phase_of(db) == []
    assert [row.what for row in db.rows("SELECT what FROM once.retention_held()")] == ["clock"]
    db.execute("UPDATE once.clock SET steady = '1 hour'")
    keep.round()
    assert keys(db) == set()


def passes(db, time):
    """Since the last reading."""
    db.execute("UPDATE once.clock SET read_at = read_at - %s::interval", time)


@pytest.mark.parametrize("settle, pauses", [("6 minutes", 12), ("1 hour", 12), ("2 hours", 24)])
def test_a_keeper_that_comes_by_seldom_but_regularly_finds_a_steady_clock(db, settle, pauses):
    """A pause counts as five minutes or a twelfth of the time at most."""
    keep = keeper(db)
    db.execute("SELECT once.set_keeping(clock_settle => %s::interval)", settle)
    told = []
    for _ in range(pauses + 3):
        told.append(keep.step("clock").detail)
        passes(db, "50 minutes")
    # Never read; a leap, as far as it knows; and all but the last of the pauses.
    assert all(told[: pauses + 1]) and told[pauses + 1 :] == [None, None]


def test_a_leap_on_top_of_a_leap_does_not_end_the_wait_for_the_first(db):
    keep = keeper(db)
    kept = finished(db, 1, expired=True)
    db.execute("SELECT once.set_keeping(clock_settle => '1 hour')")
    keep.step("clock")
    passes(db, "2 hours")
    assert "leapt" in keep.step("clock").detail
    passes(db, "5 hours")
    keep.round()
    assert keys(db) == {kept} and [row.what for row in db.rows("SELECT what FROM once.retention_held()")] == ["clock"]
    for _ in range(15):
        passes(db, "4 minutes")
        keep.step("clock")
    keep.round()
    assert keys(db) == set()


def test_a_clock_that_stepped_back_is_trusted_with_no_longer_leaps(db):
    keep = keeper(db)
    kept = finished(db, 1, expired=True)
    db.execute("SELECT once.set_keeping(clock_settle => '1 hour')")
    keep.step("clock")
    db.execute("UPDATE once.clock SET read_at = clock_timestamp() + interval '4 days'")
    keep.step("clock")
    # An hour and more of steady readings later it leaps by a day.
    db.execute("UPDATE once.clock SET steady = '1 hour', read_at = clock_timestamp() - interval '1 day'")
    keep.round()
    assert keys(db) == {kept} and [row.what for row in db.rows("SELECT what FROM once.retention_held()")] == ["clock"]


def test_a_leap_that_was_put_right_makes_no_other_one_usual(db):
    """The torture found it: a clock that leapt and stepped back, and leapt again."""
    keep = keeper(db)
    kept = finished(db, 1, expired=True)
    db.execute("SELECT once.set_keeping(clock_settle => '1 hour')")
    keep.step("clock")
    for moved in ("- interval '3 hours'", "+ interval '3 hours'"):
        db.execute(f"UPDATE once.clock SET read_at = clock_timestamp() {moved}")
        keep.step("clock")
    db.execute("UPDATE once.clock SET steady = '1 hour', read_at = clock_timestamp() - interval '2 hours'")
    keep.round()
    assert keys(db) == {kept} and [row.what for row in db.rows("SELECT what FROM once.retention_held()")] == ["clock"]


# ---- what may still be redelivered ----


def test_what_a_relay_has_still_to_deliver_holds_everything_that_is_not_older(db):
    keep = keeper(db)
    relay = Relay(db.connect())
    kept = finished(db, 1, expired=True)
    plain(db, "older")
    emit(db.connect())
    plain(db, "later")
    db.execute("UPDATE once.outbox SET created_at = created_at - interval '8 days'")
    db.execute(
        "UPDATE once.intent SET created_at = created_at - age, completed_at = completed_at - age, expires_at = expires_at - age"
        "  FROM CAST('9 days' AS interval) AS age WHERE key = 'older'"
    )
    keep.round()
    assert keys(db) == {kept, "later"} and phase_of(db) == []
    held = db.row("SELECT * FROM once.retention_held()")
    assert (held.what, held.name) == ("relay", "r")
    assert relay.taken
    pass_all(db)
    keep.round()
    assert keys(db) == set() and db.rows("SELECT FROM once.retention_held()") == []


def pass_all(db):
    """As if the relay had delivered everything."""
    db.execute("UPDATE once.relay SET seen = pg_current_snapshot(), reading = NULL, written_by = pg_current_xact_id()::xid")


def test_a_parked_event_holds_too_and_a_relay_of_another_cluster_everything(db):
    keep = keeper(db)
    relay = Relay(db.connect())
    emit(db.connect())
    pass_all(db)
    plain(db, "later")
    db.execute(
        "INSERT INTO once.parked_event (relay, id, xid, day, event_id, topic, tenant, state, next_at, parked_at, updated_at)"
        " SELECT 'r', o.id, o.xid, o.day, o.event_id, o.topic, '', 'dead', now(), now(), now() FROM once.outbox AS o"
    )
    keep.round()
    assert keys(db) == {"later"}
    db.execute("DELETE FROM once.parked_event")
    db.execute("UPDATE once.relay SET written_by = '1'")
    keep.round()
    assert keys(db) == {"later"} and relay.taken
    db.execute("DELETE FROM once.relay")
    keep.round()
    assert keys(db) == set()


def test_what_a_consumer_may_get_again_is_not_forgotten_for_it(db):
    keep = keeper(db)
    connection = db.connect()
    plain(db, "inbox", scope="mailer")
    plain(db, "of another tenant", scope="mailer", tenant="t")
    plain(db, "other scope")
    day = finished(db, 1, scope="mailer", expired=True)
    for part, ago in (("0", "8 days"), ("1", "0")):
        run(connection, "SELECT once.consumer_report('mailer', clock_timestamp() - %s::interval, part => %s)", ago, part)
    keep.round()
    assert keys(db) == {"inbox", day} and phase_of(db) == []
    assert [(row.what, row.name) for row in db.rows("SELECT * FROM once.retention_held()")] == [("consumer", "mailer")]
    run(connection, "SELECT once.consumer_report('mailer', NULL, part => '0')")
    run(connection, "SELECT once.consumer_report('mailer', clock_timestamp() + interval '1 hour', part => '1')")
    keep.round()
    assert keys(db) == set() and db.rows("SELECT FROM once.retention_held()") == []


def test_a_row_that_a_consumer_needs_outlives_its_closed_day(db):
    keep = keeper(db)
    key = finished(db, 1, scope="mailer", expired=True)
    keep.retire("doubted")
    db.execute("SELECT once.consumer_report('mailer', clock_timestamp() - interval '1 day')")
    keep.retire()
    assert where(db, key)[0].startswith("once.archive_")
    keep.round()
    assert where(db, key)
    db.execute("SELECT once.consumer_report('mailer', clock_timestamp() + interval '1 day')")
    keep.round()
    assert not where(db, key)


def test_a_report_of_a_consumer_writes_only_where_it_moved(db):
    def report(position):
        db.execute("SELECT once.consumer_report('c', %s)", position)
        return db.value("SELECT xmin::text || position FROM once.consumer_position")

    first = report("2026-01-01 00:00:00Z")
    assert report("2026-01-01 00:00:00.5Z") == first
    second = report("2026-01-01 00:00:05Z")
    assert second != first
    assert report("2026-01-01 00:00:04.5Z") != second, "backwards at once"


# ---- purging ----


def test_only_what_is_expired_and_finished_is_purged(db):
    keep = keeper(db)
    once = Once(db.connect())
    plain(db, "expired")
    plain(db, "fresh", expired=False)
    for key, outcome in (("retryable", True), ("final", False), ("doubtful", None)):
        once.claim(key=key)
        once.fail(key=key, fence=1, retryable=outcome)
    for key in ("running", "stale"):
        once.claim(key=key)
    let_lease_pass(db, "stale")
    db.execute("UPDATE once.intent SET expires_at = now() - interval '1 hour' WHERE key <> 'fresh'")
    keep.work("purge")
    assert keys(db) == {"fresh", "doubtful", "running", "stale"}
    db.execute("SELECT once.set_scope('orders', retention => '1 microsecond')")
    db.execute("UPDATE once.intent SET expires_at = NULL")
    keep.work("purge")
    assert keys(db) == {"doubtful", "running", "stale"}


def test_purging_goes_piece_by_piece_and_disturbs_nobody(db):
    keep = keeper(db)
    db.execute(
        "SELECT once.finish_new('orders', 'k' || n, %s, response_text => repeat('x', 2000))"
        " FROM generate_series(1, 1500) AS n",
        PRINT,
    )
    db.execute("UPDATE once.intent SET expires_at = clock_timestamp() - interval '1 hour'")
    attempt, reader = db.connect(isolation="READ COMMITTED"), db.connect(isolation="READ COMMITTED")
    assert Once(attempt).start(key="k1").verdict == "replay_success"  # holds its lock
    run(reader, "SELECT FROM once.intent AS i WHERE i.key = 'k2' FOR UPDATE")
    first = keep.step("purge")
    assert 0 < first.done < 1000 and first.more
    keep.work("purge")
    assert keys(db) == {"k1", "k2"}
    assert Once(attempt).start(key="k1").verdict == "replay_success"
    attempt.commit()
    reader.commit()
    keep.work("purge")
    wait_until(lambda: keep.work("purge") and not keys(db), "the rest to be purged")


def test_a_purged_key_runs_anew_and_only_then(db):
    keep = keeper(db)
    plain(db, "k", response_body=b"first")
    once = Once(db.connect())
    assert once.start(key="k").response_body == b"first"
    keep.work("purge")
    assert once.start(key="k").verdict == "proceed"


# ---- recovery ----


def make_verify(db, name, body):
    db.execute(
        f"CREATE FUNCTION public.{name}(tenant text, scope text, key text) RETURNS once.verification LANGUAGE plpgsql AS"
        f" $$ BEGIN {body} END $$"
    )
    db.execute("SELECT once.set_scope(%s, verify => %s)", name, f"public.{name}")


def says(answer):
    return f"RETURN ROW('{answer}', 200, '\\x6f6b'::bytea, NULL, NULL, NULL)::once.verification;"


def stale(db, key, scope="orders", **more):
    assert Once(db.connect()).claim(key=key, scope=scope, **more).fence == 1
    let_lease_pass(db, key)


def recover(db, *arguments):
    listed = ", ".join(["%s"] * len(arguments))
    return {row.key: row for row in db.rows(f"SELECT * FROM once.recover({listed})", *arguments) if row.key}


def test_each_stale_intent_is_judged_by_its_scope(db):
    for answer in ("happened", "absent", "unknown"):
        make_verify(db, answer, says(answer))
        stale(db, answer, answer)
    make_verify(db, "spent", says("absent"))
    db.execute("SELECT once.set_scope('spent', max_attempts => 1)")
    make_verify(db, "broken", "RAISE EXCEPTION 'no answer';")
    db.execute("SELECT once.set_scope('used_up', max_attempts => 1, on_stale => 'takeover')")
    allow_takeover(db, "takes_over")
    for scope in ("spent", "broken", "cautious", "used_up", "takes_over"):
        stale(db, scope, scope)
    of_a_day = old_key(db)
    stale(db, of_a_day, "happened")
    Once(db.connect()).claim(key="running", scope="happened")
    found = recover(db)
    assert {key: row.decided for key, row in found.items()} == {
        "happened": "succeeded",
        of_a_day: "succeeded",
        "absent": "retry",
        "unknown": "in_doubt",
        "spent": "abandoned",
        "broken": "retry",
        "cautious": "in_doubt",
        "used_up": "in_doubt",
        "takes_over": "retry",
    }
    assert found["broken"].found == "unknown" and "no answer" in found["broken"].reason
    once = Once(db.connect())
    assert once.claim(key="happened", scope="happened").response_body == b"ok"
    assert once.claim(key="spent", scope="spent").verdict == "final_failure"
    assert once.claim(key="takes_over", scope="takes_over").fence == 2
    assert once.claim(key="running", scope="happened").verdict == "processing_active"
    assert {(row.key, row.to_state) for row in db.rows("SELECT key, to_state FROM once.decision WHERE key !~ '-7'")} >= {
        ("happened", "succeeded"),
        ("unknown", "in_doubt"),
        ("spent", "failed_final"),
        ("cautious", "in_doubt"),
        ("used_up", "in_doubt"),
    }
    assert set(recover(db)) == {"absent", "broken"}


def test_recovery_comes_to_an_end_with_very_many_that_stay_stale(db):
    allow_takeover(db)
    db.execute("SELECT once.claim('orders', 'k' || n, %s) FROM generate_series(1, 1200) AS n", PRINT)
    db.execute("UPDATE once.intent SET lease_until = clock_timestamp() - interval '1 second'")
    met, after, calls = [], None, 0
    while True:
        rows = db.rows("SELECT * FROM once.recover(100, after => %s)", after)
        met += [row.key for row in rows if row.key]
        assert len(rows) <= 101
        after = rows[-1].next if rows else None
        calls += 1
        if after is None:
            break
        assert calls < 1000
    assert len(met) == len(set(met)) == 1200
    assert {row.tenant for row in db.rows("SELECT * FROM once.recover(10, 'no such scope')")} <= {None}


def test_slow_verify_functions_are_asked_a_few_at_a_time_and_all_in_the_end(db):
    make_verify(db, "slow", "PERFORM pg_sleep(0.1); " + says("absent"))
    for number in range(6):
        stale(db, f"k{number}", "slow")
    met, after, most = [], None, 0
    while True:
        rows = db.rows("SELECT * FROM once.recover(100, after => %s)", after)
        met += [row.key for row in rows if row.key]
        most = max(most, len(rows))
        after = rows[-1].next if rows else None
        if after is None:
            break
    assert sorted(met) == [f"k{number}" for number in range(6)] and most < 6


def test_an_attempt_may_report_while_its_verify_function_is_asked_and_keeps_the_last_word(db):
    make_verify(db, "waits", "PERFORM pg_advisory_xact_lock(7); " + says("unknown"))
    make_verify(db, "quick", says("unknown"))
    stale(db, "first", "quick")
    stale(db, "k", "waits")
    holder = db.connect(isolation="READ COMMITTED")
    run(holder, "SELECT pg_advisory_xact_lock(7)")

    def report():
        wait_until(
            lambda: db.value("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'") == 1,
            "the question",
        )
        reporting = db.connect(lock_timeout="10s")
        done = [Once(reporting).complete(key=key, scope=scope, fence=1) for key, scope in (("k", "waits"), ("first", "quick"))]
        holder.rollback()
        return done

    recovering = db.connect()
    rows, done = in_threads([lambda: run(recovering, "SELECT * FROM once.recover()"), report])
    assert done == [True, True] and [row.key for row in rows if row.key] == []
    assert {row.state for row in db.rows("SELECT state FROM once.intent")} == {"succeeded"}


def test_an_intent_that_is_being_taken_over_is_left_out(db):
    stale(db, "k")
    attempt = db.connect(isolation="READ COMMITTED")
    run(attempt, "SELECT pg_advisory_xact_lock(once._lock_id('', 'orders', 'k'))")
    assert recover(db) == {}
    attempt.rollback()
    reporting = db.connect(isolation="READ COMMITTED")
    Once(reporting).complete(key="k", fence=1)
    assert recover(db) == {}
    reporting.rollback()
    assert recover(db)["k"].decided == "in_doubt"


def test_the_sweep_recovers_and_counts_what_is_left(db):
    keep = keeper(db)
    allow_takeover(db)
    stale(db, "a")
    stale(db, "b")
    stale(db, old_key(db))
    stale(db, "c", "cautious")
    Once(db.connect()).claim(key="running")
    keep.work("sweep")
    swept = {row.scope: row for row in db.rows("SELECT * FROM once.swept")}
    assert (swept["orders"].stale, swept["orders"].in_doubt) == (3, 0) and swept["orders"].oldest_stale is not None
    assert (swept["cautious"].stale, swept["cautious"].in_doubt) == (0, 1)
    db.execute("DELETE FROM once.intent")
    wait_until(lambda: keep.work("sweep") and not db.rows("SELECT FROM once.swept"), "the next sweep")


# ---- the rest ----


def make_outbox_day(db, day):
    """A past day of the outbox."""
    db.execute(f"CREATE TABLE once.outbox_d{day} PARTITION OF once.outbox FOR VALUES FROM ({day}) TO ({day + 1})")


def test_a_day_of_the_outbox_goes_when_all_have_passed_it_and_its_retention_too(db):
    keep = keeper(db)
    old, yesterday = today(db) - 3, today(db) - 1
    make_outbox_day(db, old)
    make_outbox_day(db, yesterday)
    relay = Relay(db.connect())
    emit(db.connect())
    db.execute("UPDATE once.outbox SET day = %s, created_at = created_at - interval '3 days'", old)
    assert "relay" in keep.work("outbox")[-1]
    pass_all(db)
    writing = db.connect(isolation="READ COMMITTED")
    emit(writing)
    with refused("55P03"):
        keep.step("outbox")
    writing.rollback()
    keep.work("outbox")
    days = {row.d for row in db.rows("SELECT d FROM once._days('once.outbox', 'outbox_d') AS d")}
    assert old not in days and yesterday in days and relay.taken
    db.execute("SELECT once.set_keeping(outbox_retention => '0')")
    keep.work("outbox")
    assert yesterday not in {row.d for row in db.rows("SELECT d FROM once._days('once.outbox', 'outbox_d') AS d")}


def test_the_archive_forgets_what_has_expired_and_drops_empty_months_and_keeps_doubt(db):
    keep = keeper(db)
    settled(db, 1)
    gone = finished(db, 1)
    doubtful = old_key(db, 2)
    once = Once(db.connect())
    once.claim(key=doubtful)
    once.fail(key=doubtful, fence=1, retryable=None)
    keep.retire()
    month = db.value("SELECT tableoid::regclass::text FROM once.archive WHERE key = %s", gone)
    db.execute("UPDATE once.archive SET expires_at = clock_timestamp() - interval '1 hour'")
    keep.work("archive")
    assert not where(db, gone) and where(db, doubtful) == [month]
    assert once.claim(key=gone).verdict == "expired"
    once.resolve(key=doubtful, as_state="succeeded")
    wait_until(lambda: keep.work("archive") and not where(db, doubtful), "the next pass")
    # Not before all days of the month are closed; as if they were:
    assert db.value("SELECT to_regclass(%s) IS NOT NULL", month) or old_day(db) // 40 != today(db) // 40
    db.execute("UPDATE once.setting SET closed_before = closed_before + 60")
    keep.work("archive")
    assert db.value("SELECT to_regclass(%s)", month) is None


def test_dead_letters_are_given_up_after_their_retention_and_what_waits_behind_goes_on(db):
    keep = keeper(db)
    Relay(db.connect())
    for _ in range(2):
        emit(db.connect(), "a")
    db.execute(
        "INSERT INTO once.parked_event (relay, id, xid, day, event_id, topic, tenant, aggregate_type, aggregate_id, state,"
        " next_at, parked_at, updated_at) SELECT 'r', o.id, o.xid, o.day, o.event_id, o.topic, '', 'thing', 'a',"
        " CASE WHEN o.id = min(o.id) OVER () THEN 'dead' ELSE 'waiting' END, 'infinity', now(), now() FROM once.outbox AS o"
    )
    db.execute(
        "SELECT once_job.message_park('mailer', '', ARRAY[ROW(n, 't', n, '{}', '', %s, 'dead', 1, 0, 'why', '22000')]::once.parked[])"
        " FROM (VALUES ('old'), ('new'), ('held')) AS v (n)",
        PRINT,
    )
    keep.work("dead")
    assert db.value("SELECT count(*) FROM once.parked_event") == 2
    db.execute("UPDATE once.parked_event SET updated_at = now() - interval '91 days' WHERE state = 'dead'")
    db.execute("UPDATE once.parked_message SET updated_at = now() - interval '91 days' WHERE message_id <> 'new'")
    attempt = db.connect(isolation="READ COMMITTED")
    run(attempt, "SELECT pg_advisory_xact_lock(once._lock_id('', 'mailer', 'held'))")
    keep.work("dead")
    left = db.row("SELECT state, next_at < 'infinity' AS due FROM once.parked_event")
    assert (left.state, left.due) == ("waiting", True)
    assert {row.message_id for row in db.rows("SELECT message_id FROM once.parked_message")} == {"new", "held"}
    assert Once(db.connect()).receive(message_id="old") == "duplicate"
    attempt.rollback()
    assert db.value("SELECT count(*) FROM once.parked_decision WHERE reason LIKE 'dead for longer%%'") == 2
    db.execute("UPDATE once.parked_decision SET decided_at = now() - interval '91 days'")
    keep.work("dead")
    assert db.value("SELECT count(*) FROM once.parked_decision WHERE decided_at < now() - interval '1 day'") == 0


def test_decisions_are_forgotten_after_their_retention_but_not_of_what_is_in_doubt(db):
    keep = keeper(db)
    once = Once(db.connect())
    of_a_day = old_key(db)
    for key in ("doubtful", "decided", "recent", of_a_day):
        once.claim(key=key)
        once.fail(key=key, fence=1, retryable=None)
    for key in ("decided", "recent"):
        once.resolve(key=key, as_state="failed_retryable")
    db.execute(
        "INSERT INTO once.decision (decided_by, reason, tenant, scope, key, fence, from_state, to_state)"
        " VALUES ('x', 'why', '', 'orders', 'doubtful', 1, 'processing', 'in_doubt'),"
        " ('x', 'why', '', 'orders', %s, 1, 'processing', 'in_doubt')",
        of_a_day,
    )
    db.execute("UPDATE once.decision SET decided_at = now() - interval '401 days' WHERE key <> 'recent'")
    keep.work("decisions")
    assert not db.rows("SELECT FROM once.decision WHERE key = 'decided'")
    assert db.value("SELECT count(DISTINCT key) FROM once.decision") == 3


def test_a_call_of_keep_does_a_whole_round_and_goes_on_after_a_failing_step(db):
    settled(db)
    make_logins(db)
    kept = finished(db, 1)
    plain(db, "plain")
    connection = db.connect("keeper")
    attempt = db.connect(isolation="READ COMMITTED")
    Once(attempt).start(key=old_key(db, 2))
    run(connection, "CALL once.keep()")
    assert keys(db) == {kept}
    assert "55P03" in db.value("SELECT last_error FROM once.keeper_status() WHERE step = 'close'")
    attempt.rollback()
    run(connection, "CALL once.keep()")
    assert phase_of(db) == [] and where(db, kept)[0].startswith("once.archive_")
    other = Keeper(db.connect(), "another")
    plain(db, "plain")
    run(connection, "CALL once.keep()")
    assert keys(db) == {"plain"}, "another keeper works"
    run(other.connection, "SELECT once_job.keep_release('another')")
    with refused("2D000"):
        run(db.connect("keeper", isolation="READ COMMITTED"), "CALL once.keep()")


def test_a_call_of_keep_goes_on_where_not_even_the_failure_can_be_noted(db):
    settled(db)
    plain(db, "plain")
    db.execute(
        "CREATE FUNCTION public.full() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'No space left on device'; END $$"
    )
    for table, when in (("closing", "true"), ("keeper_step", "NEW.last_error IS NOT NULL")):
        db.execute(
            f"CREATE TRIGGER is_full BEFORE INSERT OR UPDATE ON once.{table} FOR EACH ROW WHEN ({when})"
            " EXECUTE FUNCTION public.full()"
        )
    finished(db, 1)
    db.execute("CALL once.keep()")
    assert db.value("SELECT last_success FROM once.keeper_status() WHERE step = 'close'") is None
    assert "plain" not in keys(db) and len(keys(db)) == 1


def test_settings_of_keeping_are_checked_and_what_is_left_out_stays(db):
    before = db.row("SELECT * FROM once.setting")
    after = db.row("SELECT * FROM once.set_keeping(horizon_days => 9, dead_retention => '30 days')")
    assert (after.horizon_days, after.days_ahead, after.clock_skew) == (9, before.days_ahead, before.clock_skew)
    assert after.dead_retention.days == 30 and after.salt is None
    assert db.value("SELECT salt FROM once.setting") == before.salt
    signs = ("clock_settle => '-12 months 361 days'", "clock_skew => '-1 month 30 days 1 hour'")
    terms = [
        f"{name} => '{term}'"
        for name in ("dead_retention", "decision_retention", "outbox_retention")
        for term in ("300000 years", "36001 days", "-12 months 361 days", "-1 day")
    ]
    for wrong in ("horizon_days => 0", "clock_settle => '-1 s'", "dead_retention => '0'", "clock_skew => '1 day'", *signs, *terms):
        assert code_of(lambda: db.execute(f"SELECT once.set_keeping({wrong})")) == "23514", wrong


def test_the_longest_terms_stop_no_step_of_the_keeper(db):
    longest = ", ".join(f"{name} => '100 years'" for name in ("dead_retention", "decision_retention", "outbox_retention"))
    db.execute(f"SELECT once.set_keeping({longest})")
    db.execute("SELECT once.set_scope('forever', retention => '100 years')")
    plain(db, "plain")
    keeper(db).round()
    assert db.rows("SELECT step FROM once.keeper_step WHERE last_error IS NOT NULL") == []


def test_a_verify_function_is_kept_by_its_name(db):
    """A column of type regprocedure would stop pg_upgrade; a name is looked up whenever it is needed."""
    make_verify(db, "odd Name".replace(" ", "_").lower(), says("happened"))
    db.execute('ALTER FUNCTION public.odd_name RENAME TO "Odd Name"')
    db.execute("""SELECT once.set_scope('odd', verify => 'public."Odd Name"')""")
    assert db.value("SELECT verify FROM once.scope WHERE scope = 'odd'") == 'public."Odd Name"'
    stale(db, "k", "odd")
    db.execute('ALTER FUNCTION public."Odd Name" RENAME TO gone')
    assert recover(db)["k"].decided == "retry"
    db.execute('ALTER FUNCTION public.gone RENAME TO "Odd Name"')
    assert recover(db)["k"].decided == "succeeded"
    regular = "SELECT count(*) FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid WHERE c.relnamespace = 'once'::regnamespace"
    assert db.value(regular + " AND a.atttypid IN ('regprocedure'::regtype, 'regproc'::regtype)") == 0


def test_the_days_of_this_file_are_what_it_thinks(db):
    assert AGO == 7 and db.value("SELECT once._bucket(%s)", uuid7_days_ago(db, AGO)) == old_day(db)
