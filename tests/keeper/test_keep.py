# SPDX-License-Identifier: PostgreSQL
"""pgonce keep at work: a round does every step, and nothing that happens to one of them, to the process, to its lease or to its connection
keeps the others from being done."""

import os
import subprocess

import pytest
from contract.keeping import Keeper as Steps
from contract.keeping import finished, old_day, phase_of, settled, where
from harness.pgbouncer import PgBouncer
from harness.postgres import PORT, Database, Postgres, clean_environment, unprivileged, wait_until
from harness.proxy import Proxy
from harness.scrape import figure, scrape

from .keeping import NOTHING, PROGRAM, STEPS, Keeper, holder, let_lease_pass, replace_step, status

LOCK = 4711
WAITS = f"PERFORM pg_advisory_xact_lock({LOCK}); "


def run(*words):
    return subprocess.run([PROGRAM, "keep", *map(str, words)], capture_output=True, text=True, env=clean_environment(), timeout=120, check=False,
                          stdin=subprocess.DEVNULL)


def waits(db):
    """Does somebody wait for the lock?"""
    return db.value("SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted)", LOCK)


def hold_lock(db):
    """A connection that has what steps with WAITS wait for."""
    connection = db.connect()
    connection.cursor().execute(f"SELECT pg_advisory_lock({LOCK})")
    return connection


def wrap_step(db, step, before):
    """The step does this before its own work."""
    argument, passed = ("may boolean", "may") if step == "detach" else ("", "")
    db.execute(f"ALTER FUNCTION once._keep_{step}({argument}) RENAME TO _own_{step}")
    db.execute(f"CREATE FUNCTION once._keep_{step}({argument}) RETURNS once.kept LANGUAGE plpgsql AS $$ BEGIN {before} RETURN once._own_{step}({passed}); END $$")


def count_down(db, step, pieces, done=3):
    """The step has that many pieces of work, then none."""
    db.execute("CREATE TABLE IF NOT EXISTS work (step text PRIMARY KEY, n integer)")
    db.execute(f"INSERT INTO work VALUES ('{step}', {pieces})")
    replace_step(db, step, f"UPDATE public.work AS w SET n = w.n - 1 WHERE w.step = '{step}' AND w.n > 0 RETURNING w.n INTO l;"
                           f"RETURN ROW(CASE WHEN l IS NULL THEN 0 ELSE {done} END, coalesce(l > 0, false), NULL, 'so many left: ' || l)::once.kept;",
                 declare="DECLARE l integer;")


# ---- rounds


def test_one_round_does_every_step_in_order_and_ends(db, tmp_path):
    keeper = Keeper(tmp_path, db.dsn())
    assert keeper.once() == 0, keeper.text()
    assert [line["step"] for line in keeper.log("step")] == STEPS
    assert all(row.last_success is not None and row.last_error is None for row in status(db).values())
    assert holder(db) is None


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_it_works_in_a_database_with_another_default_of_isolation(db, tmp_path, level):
    db.execute(f"ALTER DATABASE {db.name} SET default_transaction_isolation = '{level}'")
    keeper = Keeper(tmp_path, db.dsn())
    assert keeper.once() == 0, keeper.text()
    assert keeper.log("step_failed") == [] and len(status(db)) == len(STEPS)


def test_a_round_with_once_works_off_each_step_to_its_end(db, tmp_path):
    count_down(db, "purge", 25)
    count_down(db, "archive", 4)
    keeper = Keeper(tmp_path, db.dsn())
    assert keeper.once() == 0, keeper.text()
    assert (status(db)["purge"].done_total, status(db)["archive"].done_total) == (75, 12)
    (line,) = keeper.log("step", step="purge")
    assert (line["done"], line["pieces"]) == ("75", "25")


def test_rounds_come_again_and_a_step_without_an_end_starves_no_other(db, tmp_path):
    replace_step(db, "close", "PERFORM pg_sleep(0.01); RETURN ROW(1, true, NULL, NULL)::once.kept;")
    with Keeper(tmp_path, db.dsn()) as keeper:
        keeper.until("step", 3, step="days")
        keeper.until("step", 2, step="decisions")
        assert int(keeper.log("step", step="close")[0]["pieces"]) > 1
        assert keeper.stop() == 0


def test_a_step_that_says_more_and_does_nothing_does_not_hold_once_for_ever(db, tmp_path):
    replace_step(db, "purge", "RETURN ROW(0, true, NULL, NULL)::once.kept;")
    keeper = Keeper(tmp_path, db.dsn())
    assert keeper.once() == 0
    assert keeper.log("step", step="decisions")


# ---- failures


def test_a_step_that_fails_stops_no_other_and_shows_until_it_is_mended(db, tmp_path):
    replace_step(db, "purge", "RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'no space left';")
    keeper = Keeper(tmp_path, db.dsn())
    assert keeper.once() == 1
    assert "step purge failed (53100): no space left" in keeper.text()
    found = status(db)
    assert "53100: no space left" in found.pop("purge").last_error
    assert all(row.last_success is not None and row.last_error is None for row in found.values())
    with keeper.start():
        keeper.until("step_failed", 2, step="purge")
        replace_step(db, "purge", NOTHING)
        keeper.until("step_mended", step="purge")
        assert status(db)["purge"].last_success > status(db)["purge"].last_error_at


def test_where_not_even_the_failure_can_be_noted_the_others_are_done(db, tmp_path):
    """A full disk: neither the step nor its note can be written."""
    replace_step(db, "purge", "RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'no space left';")
    db.execute("""CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                  IF NEW.step = 'purge' THEN RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'no space left'; END IF; RETURN NEW; END $$;
                  CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON once.keeper_step FOR EACH ROW EXECUTE FUNCTION full_disk()""")
    keeper = Keeper(tmp_path, db.dsn())
    assert keeper.once() == 1
    assert keeper.log("step", step="decisions")


def test_a_55000_of_a_step_is_its_failure_while_the_lease_is_held(db, tmp_path):
    replace_step(db, "outbox", "RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'a relay has not passed it';")
    keeper = Keeper(tmp_path, db.dsn())
    assert keeper.once() == 1
    assert "a relay has not passed it" in status(db)["outbox"].last_error
    assert status(db)["decisions"].last_success is not None


def test_a_step_that_ends_its_connection_each_time_keeps_no_later_one_from_being_done(db, tmp_path):
    replace_step(db, "close", "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60);")
    with Keeper(tmp_path, db.dsn()) as keeper:
        keeper.until("step", step="decisions")
        keeper.until("database", 2)
        keeper.until("step", 2, step="decisions")


# ---- statements of their own


def test_a_command_runs_outside_of_a_transaction_and_then_the_step_goes_on(db, tmp_path):
    db.execute("CREATE TABLE told (n bigserial, may boolean)")
    replace_step(db, "detach", """INSERT INTO public.told (may) VALUES (_keep_detach.in_own_transaction);
        RETURN CASE WHEN (SELECT count(*) FROM public.told) = 1 THEN ROW(0, false, 'VACUUM public.effect', NULL)::once.kept
                    ELSE ROW(1, false, NULL, NULL)::once.kept END;""")
    keeper = Keeper(tmp_path, db.dsn())
    assert keeper.once() == 0, keeper.text()
    assert [row.may for row in db.rows("SELECT may FROM told")] == [True, True]
    assert db.value("SELECT pg_stat_get_last_vacuum_time('effect'::regclass) IS NOT NULL") or keeper.log("command", step="detach")


def test_a_command_that_fails_is_noted_and_the_other_steps_are_done(db, tmp_path):
    replace_step(db, "detach", "RETURN ROW(0, false, 'VACUUM public.nothing_of_this_name', NULL)::once.kept;")
    keeper = Keeper(tmp_path, db.dsn())
    assert keeper.once() == 1
    assert "42P01" in status(db)["detach"].last_error
    assert status(db)["decisions"].last_success is not None


def test_only_who_may_alter_the_tables_is_asked_to(db, tmp_path):
    db.execute("CREATE TABLE told (may boolean); GRANT ALL ON told TO PUBLIC")
    replace_step(db, "detach", 'INSERT INTO public.told (may) VALUES (_keep_detach.in_own_transaction); ' + NOTHING)
    role = f"keeping_{db.name}"
    db.execute(f"CREATE ROLE {role} LOGIN IN ROLE once_keeper")
    try:
        keeper = Keeper(tmp_path, db.dsn(role))
        assert keeper.once() == 0, keeper.text()
        assert db.value("SELECT may FROM told") is False
    finally:
        db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


# ---- a day is retired


def holds_day(db):
    """Nobody but the old day's own rows keeps it: one is kept, one is forgotten. The first one's key."""
    kept = finished(db, 1)
    finished(db, 2, expired=True)
    settled(db)
    return kept


def retired(db, kept):
    assert phase_of(db) == []
    assert [place.startswith("once.archive") for place in where(db, kept)] == [True]
    assert db.value("SELECT to_regclass('once.intent_d' || %s) IS NULL AND to_regclass('once.intent_closed_d' || %s) IS NULL", old_day(db), old_day(db))


@pytest.mark.parametrize("way", ["owner", "keeper", "pooler"])
def test_a_passed_day_is_retired_in_one_round(server, db, tmp_path, way):
    kept = holds_day(db)
    role = f"keeping_{db.name}"
    db.execute(f"CREATE ROLE {role} LOGIN IN ROLE once_keeper")
    try:
        if way == "pooler":
            with PgBouncer(server, server_connections=2) as pooler:
                keeper = Keeper(tmp_path, f"host={pooler.directory} port={PORT} dbname={db.name} user=postgres")
                assert keeper.once() == 0, keeper.text()
        else:
            keeper = Keeper(tmp_path, db.dsn(role if way == "keeper" else "postgres"))
            assert keeper.once() == 0, keeper.text()
        retired(db, kept)
        assert len(keeper.log("command", step="detach")) == (way != "keeper")
    finally:
        db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("kind", ["killed", "stopped"])
def test_ended_while_a_long_transaction_holds_up_the_detaching_the_next_keeper_finishes_it(db, tmp_path, kind):
    kept = holds_day(db)
    Steps(db.connect(), name="before").retire(until="moved")
    let_lease_pass(db)
    long = db.connect(autocommit=False)
    long.cursor().execute("SELECT count(*) FROM once.intent")

    def detaching():
        return db.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'ALTER TABLE%CONCURRENTLY'"
                        " AND state = 'active' AND wait_event_type = 'Lock'") == 1

    with Keeper(tmp_path, db.dsn()) as keeper:
        wait_until(detaching, "the detaching to wait")
        if kind == "killed":
            keeper.kill()
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'ALTER TABLE%CONCURRENTLY' AND pid <> pg_backend_pid()")
            let_lease_pass(db)
        else:
            assert keeper.stop() == 0
    wait_until(lambda: not detaching(), "its end")
    long.rollback()
    following = Keeper(tmp_path, db.dsn(), name="next")
    assert following.once() == 0, following.text()
    assert any("FINALIZE" in line for line in following.text().splitlines())
    retired(db, kept)


def test_a_long_transaction_delays_retirement_and_nothing_else(db, tmp_path):
    kept = holds_day(db)
    days = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'once.outbox'::regclass"
    before = db.value(days)
    last = db.value("SELECT max(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = 'once.outbox'::regclass")
    db.execute(f"DROP TABLE {last}")
    long = db.connect(autocommit=False)
    long.cursor().execute(f"SELECT count(*) FROM once.intent_d{old_day(db)}")
    with Keeper(tmp_path, db.dsn(), "--metrics", "127.0.0.1:0") as keeper:
        keeper.until("step_failed", 2, step="close")
        keeper.until("step", step="decisions")
        assert db.value(days) == before
        read = scrape(keeper.address())
        assert figure(read, "pgonce_keeper_failing", step="close") == 1
        assert figure(read, "pgonce_keeper_failing", step="days") == 0
        assert figure(read, "pgonce_oldest_transaction_seconds") > 0
        long.rollback()
        wait_until(lambda: any(place.startswith("once.archive") for place in where(db, kept)) and phase_of(db) == [], "the day to be retired")
        wait_until(lambda: figure(scrape(keeper.address()), "pgonce_keeper_failing", step="close") == 0, "all to be well")
        assert keeper.stop() == 0
    retired(db, kept)


# ---- killed, stopped


def test_killed_within_each_step_the_next_keeper_goes_on(db, tmp_path):
    db.execute("CREATE TABLE gate (step text)")
    for step in STEPS:
        wrap_step(db, step, f"IF EXISTS (SELECT FROM public.gate AS g WHERE g.step = '{step}') THEN {WAITS} END IF;")
    for step in STEPS:
        db.execute(f"INSERT INTO gate VALUES ('{step}')")
        lock = hold_lock(db)
        with Keeper(tmp_path, db.dsn(), name=f"in-{step}") as keeper:
            wait_until(lambda: waits(db), f"the step {step}")
            keeper.kill()
        assert holder(db).startswith(f"in-{step}/")
        db.execute("DELETE FROM gate")
        lock.close()
        let_lease_pass(db)
    keeper = Keeper(tmp_path, db.dsn(), name="last")
    assert keeper.once() == 0, keeper.text()
    assert all(row.last_success is not None for row in status(db).values())


@pytest.mark.parametrize("kind", ["killed", "stopped"])
def test_within_a_command(db, tmp_path, kind):
    """Stopped, the keeper cancels it, and gives the lease back."""
    replace_step(db, "detach", f"RETURN ROW(0, false, 'SELECT pg_advisory_lock({LOCK})', NULL)::once.kept;")
    lock = hold_lock(db)
    with Keeper(tmp_path, db.dsn()) as keeper:
        wait_until(lambda: waits(db), "the command")
        if kind == "killed":
            keeper.kill()
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
            let_lease_pass(db)
        else:
            assert keeper.stop() == 0
            assert status(db)["detach"].last_error is None  # it did not wait until the command's time was up
        wait_until(lambda: not waits(db), "the command to be gone")
        assert holder(db) is None
    lock.close()
    replace_step(db, "detach", NOTHING)
    assert Keeper(tmp_path, db.dsn(), name="next").once() == 0


def test_a_proxy_that_takes_no_cancel_keeps_no_keeper_and_what_it_asked_for_goes_on(server, db, tmp_path):
    """As docs/how/managed.md says of RDS Proxy: the connection is closed, and the lease runs out."""
    replace_step(db, "detach", f"RETURN ROW(0, false, 'SELECT pg_advisory_lock({LOCK})', NULL)::once.kept;")
    lock = hold_lock(db)
    with Proxy(server) as proxy:
        proxy.takes_cancels = False
        with Keeper(tmp_path, proxy.dsn(db.name)) as keeper:
            wait_until(lambda: waits(db), "the command")
            assert keeper.stop() == 0
        assert waits(db) and holder(db) is not None
    lock.close()
    wait_until(lambda: not waits(db), "the command to be gone")
    replace_step(db, "detach", NOTHING)
    let_lease_pass(db)
    assert Keeper(tmp_path, db.dsn(), name="next").once() == 0


def test_stopped_while_it_pauses_between_pieces_or_rests_between_rounds(db, tmp_path):
    replace_step(db, "purge", "PERFORM pg_sleep(0.3); RETURN ROW(1, true, NULL, NULL)::once.kept;")
    with Keeper(tmp_path, db.dsn(), interval="1h") as keeper:
        keeper.until("step", step="outbox")
        wait_until(lambda: status(db)["purge"].done_total > 0, "a piece to be done")
        assert keeper.stop() == 0
    assert holder(db) is None
    replace_step(db, "purge", NOTHING)
    with Keeper(tmp_path, db.dsn(), interval="1h", name="other") as keeper:
        keeper.until("step", step="decisions")
        assert keeper.stop() == 0
    assert holder(db) is None


def test_pauses_nineteen_times_as_long_as_a_piece_took_and_less_where_it_cannot_keep_up_so(db, tmp_path):
    db.execute("CREATE TABLE pieces (began timestamptz, ended timestamptz)")
    replace_step(db, "purge", "began := clock_timestamp(); PERFORM pg_sleep(0.02); INSERT INTO public.pieces VALUES (began, clock_timestamp());"
                              "RETURN ROW(1, true, NULL, NULL)::once.kept;", declare="DECLARE began timestamptz;")  # fmt: skip
    pauses = ("SELECT extract(epoch FROM lead(began) OVER w - ended) / extract(epoch FROM ended - began) AS times,"
              " ended - first_value(began) OVER w AS since FROM public.pieces WINDOW w AS (ORDER BY began)")  # fmt: skip
    with Keeper(tmp_path, db.dsn(), interval="1s"):
        # Two in a row: after the last piece of a round's slice comes the next round.
        wait_until(lambda: db.value(f"SELECT count(*) FROM (SELECT times, lag(times) OVER (ORDER BY since) AS before FROM ({pauses}) AS p) AS p"
                                    " WHERE times < 12 AND before < 12") > 0, "shorter pauses")  # fmt: skip
    # Each may be longer than asked for, on a busy machine, and none shorter.
    assert db.value(f"SELECT min(times) FROM ({pauses}) AS p WHERE since < interval '0.5 seconds'") > 17


def test_stopped_although_nothing_comes_through_any_more(server, db, tmp_path):
    wrap_step(db, "purge", WAITS)
    lock = hold_lock(db)
    with Proxy(server) as proxy:
        with Keeper(tmp_path, proxy.dsn(db.name)) as keeper:
            wait_until(lambda: waits(db), "the step")
            proxy.freeze()
            assert keeper.stop() == 0
    lock.close()


# ---- the lease


@pytest.mark.parametrize("kind", ["killed", "stopped"])
def test_of_two_keepers_one_works_and_the_other_takes_over(db, tmp_path, kind):
    with Keeper(tmp_path, db.dsn(), name="first") as first:
        first.until("active")
        with Keeper(tmp_path, db.dsn(), name="second") as second:
            assert second.until("standby")["holder"].startswith('"first/')
            first.until("step", 3, step="decisions")
            assert not second.log("step")
            assert len(second.log("standby")) == 1
            if kind == "killed":
                first.kill()
                let_lease_pass(db)
            else:
                assert first.stop() == 0
            second.until("step", step="decisions")
            assert holder(db).startswith("second/")


def test_two_of_one_name_are_two(db, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with Keeper(tmp_path / "a", db.dsn()) as first:
        first.until("active")
        with Keeper(tmp_path / "b", db.dsn()) as second:
            second.until("standby")


def test_a_round_with_once_beside_another_keeper_is_refused(db, tmp_path):
    with Keeper(tmp_path, db.dsn(), name="first") as first:
        first.until("active")
        second = Keeper(tmp_path, db.dsn(), name="second")
        assert second.once() == 11
        assert "another keeper has the lease: first/" in second.text()
        assert not second.log("step")


def test_a_keeper_that_has_lost_its_lease_does_nothing_more(db, tmp_path):
    wrap_step(db, "purge", WAITS)
    lock = hold_lock(db)
    with Keeper(tmp_path, db.dsn()) as keeper:
        wait_until(lambda: waits(db), "the step")
        db.execute("UPDATE once.keeper SET keeper = 'thief', lease_until = clock_timestamp() + interval '1 hour'")
        lock.close()
        keeper.until("lease_lost")
        assert keeper.until("standby")["holder"] == '"thief"'
        assert not keeper.log("step", step="sweep")
        assert not keeper.log("step_failed") and status(db)["purge"].last_error is None
        let_lease_pass(db)
        keeper.until("step", step="decisions")


# ---- the connection


@pytest.mark.parametrize("what, lost", [("keep_step", "lose_request"), ("keep_step", "lose_answer"), ("keep_step", "lose_connection_after"),
                                        ("keep_take", "lose_answer"), ("keep_steps", "lose_answer"), ("keep_failed", "lose_answer")])
def test_a_connection_that_is_lost_anywhere_is_made_anew(server, db, tmp_path, what, lost):
    replace_step(db, "purge", "RAISE EXCEPTION 'no';")
    with Proxy(server) as proxy:
        rule = getattr(proxy, lost)(f"once_job.{what}")
        with Keeper(tmp_path, proxy.dsn(db.name)) as keeper:
            wait_until(rule.fired.is_set, "the loss")
            keeper.until("connected", 2)
            # The server may not have seen yet that its client is gone; the lease is the same process's in any case.
            keeper.until("step", step="decisions")
            assert keeper.stop() == 0


def test_a_server_that_is_away_is_waited_for(tmp_path):
    with Postgres() as own:
        database = own.new_database()
        dsn = database.dsn()
        with Keeper(tmp_path, dsn) as keeper:
            keeper.until("step", step="decisions")
            database.close()
            own.stop("immediate")
            keeper.until("database")
            own.start()
            keeper.until("connected", 2)
            keeper.until("active", 2)
            seen = len(keeper.log("step", step="decisions"))
            keeper.until("step", seen + 1, step="decisions")
        database.close()
        own.stop("immediate")
        assert Keeper(tmp_path, dsn, name="late").once() == 3
        own.start()


def test_behind_a_pooler_in_transaction_mode(server, db, tmp_path):
    replace_step(db, "detach", "RETURN CASE WHEN (SELECT count(*) FROM public.effect) = 0 THEN ROW(0, false, 'VACUUM public.effect', NULL)::once.kept"
                               " ELSE ROW(0, false, NULL, NULL)::once.kept END;")
    count_down(db, "purge", 5)
    with PgBouncer(server, server_connections=2) as pooler:
        dsn = f"host={pooler.directory} port={PORT} dbname={db.name} user=postgres"
        db.execute("INSERT INTO effect VALUES ('k', 1)")
        assert Keeper(tmp_path, dsn, name="once").once() == 0
        assert status(db)["purge"].done_total == 15
        with Keeper(tmp_path, dsn, name="first") as first, Keeper(tmp_path, dsn, name="second") as second:
            wait_until(lambda: holder(db) is not None, "one of them to work")
            mine, other = (first, second) if holder(db).startswith("first/") else (second, first)
            other.until("standby")
            mine.until("step", 2, step="decisions")
            assert mine.stop() == 0
            other.until("step", step="decisions")
            assert other.stop() == 0
    assert holder(db) is None


# ---- what it cannot work with


def test_without_the_contract_or_with_another_one_it_says_what_to_do(server):
    database = server.empty_database()
    try:
        done = run("--dsn", database.dsn(), "--once")
        assert done.returncode == 4 and "run pgonce init" in done.stderr, done.stderr
        database.execute("CREATE SCHEMA once; CREATE FUNCTION once.contract_version() RETURNS integer LANGUAGE sql AS 'SELECT 0'")
        for words in (["--once"], []):
            done = run("--dsn", database.dsn(), *words)
            assert done.returncode == 4 and "has version 0" in done.stderr and "run pgonce init" in done.stderr, done.stderr
    finally:
        database.drop()


def test_a_newer_contract_is_kept(db):
    """So that the contract can be upgraded before the keeper."""
    db.execute("INSERT INTO once.migration (version, name, checksum, pgonce) SELECT once.contract_version() + 1, 'later', repeat('0', 64), '9.0.0'")
    done = run("--dsn", db.dsn(), "--once")
    assert done.returncode == 0, done.stderr


def test_a_role_without_the_right_is_told_which_one(db, tmp_path):
    role = f"stranger_{db.name}"
    db.execute(f"CREATE ROLE {role} LOGIN")
    try:
        done = run("--dsn", db.dsn(role))
        assert done.returncode == 4 and "grant once_keeper to the role" in done.stderr, done.stderr
    finally:
        db.execute(f"DROP ROLE {role}")


@pytest.fixture(scope="module")
def standby():
    """The connection string of a hot standby, with the contract."""
    with Postgres() as primary:
        database = primary.new_database()
        copy = Postgres(copy_of=primary)
        signal = copy.data / "standby.signal"
        signal.touch()
        if unprivileged()[1]:
            os.chown(signal, unprivileged()[1].pw_uid, -1)
        with copy:
            yield Database(copy, database.name).dsn()
        database.close()


def test_a_standby_is_told_plainly(standby, tmp_path):
    done = run("--dsn", standby, "--once")
    assert done.returncode == 3, done.stderr
    assert "the server is a standby" in done.stderr and "target_session_attrs" in done.stderr and "cannot execute" not in done.stderr
    with Keeper(tmp_path, standby) as keeper:
        assert "the server is a standby" in keeper.until("database")["problem"]


def test_a_database_that_is_read_only_is_told_plainly(db, tmp_path):
    db.execute(f"ALTER DATABASE {db.name} SET default_transaction_read_only = on")
    done = run("--dsn", db.dsn(), "--once")
    assert done.returncode == 3, done.stderr
    assert "default_transaction_read_only is on" in done.stderr and "cannot execute" not in done.stderr


@pytest.mark.parametrize("words, said", [
    (["--interval", "10ms"], "out of range"), (["--interval", "soon"], "no duration"), (["--name", "a b"], "option --name"), (["--name", ""], "option --name"),
    (["--metrics", "9187"], "not an ADDRESS:PORT"), (["everything"], "unexpected argument"),
])
def test_what_it_does_not_understand_is_refused_before_it_connects(words, said):
    done = run("--dsn", "host=/nowhere", *words)
    assert done.returncode == 2 and said in done.stderr, done.stderr
