# SPDX-License-Identifier: PostgreSQL
"""Nodes that share the tenants: what is open here is served, and nothing is written where it is not, whatever is in flight when a slot closes."""

import json
import re

import pytest
from harness.postgres import ROOT, wait_until

from .calls import LEVELS, PRINT, Once, allow_takeover, code_of, effects, in_threads, let_lease_pass, make_effect, refused, run, uuid7, now_ms, upgrade_script
from .logins import TENANT_CALLS, call_as, make_logins

TENANT = "acme"
SLOTS = 64
PURE = {"salt", "fingerprint", "request_fingerprint"}  # every node has the same salt
SCRIPTS = ("tables.sql", "first_days.sql", "drop_views.sql", "grants.sql", "remember.sql", "restore.sql", "citus.sql")  # preparation.sql is for them
KEYS = {"plain": lambda db: "k", "of today": lambda db: uuid7(now_ms(db))}


def divide(db, is_open):
    db.execute("CALL once.divide(%s)", is_open)


def slot_of(db, tenant=TENANT):
    return db.value("SELECT once.slot_of(%s)", tenant)


def state_of(db, slot):
    return tuple(db.row("SELECT epoch, open FROM once.slots() WHERE slot = %s", slot))


def close(db, slot=None, wait="5 seconds"):
    return db.value("SELECT once_job.close_slot(%s, %s::interval)", slot_of(db) if slot is None else slot, wait)


def everything(db):
    """All rows of the memory."""
    return {table: sorted(map(str, db.rows(f"SELECT t::text FROM once.{table} AS t"))) for table in ("intent", "outbox", "delayed_event", "parked_message", "decision")}


def waits(db, connection):
    """For a lock or a moment, and not for the disk: that is too early."""
    return lambda: db.value(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type IN ('Lock', 'Timeout') AND state = 'active'", connection.get_backend_pid()
    )


def sharing(db, connection):
    """How many slots' locks it has."""
    return db.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 20790 AND pid = %s", connection.get_backend_pid())


def test_an_ordinary_installation_has_no_slots_and_serves_every_tenant(db):
    assert db.rows("SELECT * FROM once.slots()") == []
    connection = db.connect(isolation="READ COMMITTED")
    assert Once(connection).finish_new(key="k", tenant=TENANT) == 1
    assert sharing(db, connection) == 0
    (plan,) = run(db.connect(), "EXPLAIN (VERBOSE, COSTS OFF) SELECT once._serves('a')")[-1]
    assert plan.strip() == "Output: true", "it is inlined, and costs nothing"


def test_a_slot_is_one_of_64_ranges_of_the_hash(db):
    rows = db.rows("SELECT once.slot_of(t) AS slot, hashtext(t) AS hash FROM (SELECT 'tenant ' || n AS t FROM generate_series(1, 5000) AS n) AS s")
    assert {row.slot for row in rows} == set(range(SLOTS))
    assert all(row.slot == (row.hash + 2**31) // 2**26 for row in rows)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_divided_node_has_all_slots_open_or_none(db, is_open):
    divide(db, is_open)
    rows = db.rows("SELECT * FROM once.slots()")
    assert [tuple(row) for row in rows] == [(slot, int(is_open), is_open) for slot in range(SLOTS)]
    for again in (True, False, None):
        divide(db, again)
        assert db.rows("SELECT * FROM once.slots()") == rows, "a node that is divided keeps its slots"


@pytest.mark.parametrize("function", TENANT_CALLS)
@pytest.mark.parametrize("login", ["postgres", "bound"])
def test_where_the_slot_is_closed_each_call_is_refused_and_leaves_no_trace(db, function, login):
    """The session is warm: it has called the function before, when the slot was open."""
    make_logins(db)
    if login == "bound":
        from .logins import grant_everything_tenant_bound

        grant_everything_tenant_bound(db)
    db.execute("SELECT once.claim('s', 'k', %s, tenant => 'mine')", PRINT)
    divide(db, True)
    connection = db.connect(login)
    code_of(lambda: call_as(connection, TENANT_CALLS[function], "mine"))
    close(db, slot_of(db, "mine"))
    before = everything(db)
    if function in PURE:
        call_as(connection, TENANT_CALLS[function], "mine")
        return
    with refused("P4097") as caught:
        call_as(connection, TENANT_CALLS[function], "mine")
    assert re.search(rf"tenant='mine' scope=.*; slot={slot_of(db, 'mine')} epoch=1$", caught.value.diag.message_detail)
    assert "once.slots()" in caught.value.diag.message_hint
    assert everything(db) == before


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_an_open_slot_is_held_until_the_transaction_ends_and_only_its_own_is_closed(db, key):
    divide(db, True)
    key = key(db)
    other = next(name for name in ("b", "c", "d", "e") if slot_of(db, name) != slot_of(db))
    connection = db.connect(isolation="READ COMMITTED")
    once = Once(connection, tenant=TENANT)
    assert once.start(key=key).verdict == "proceed" and sharing(db, connection) == 1
    make_effect(connection, key)
    once.finish(key=key, response_text="done")
    connection.commit()
    assert sharing(db, connection) == 0
    assert close(db) is True and state_of(db, slot_of(db)) == (1, False)
    with refused("P4097"):
        once.start(key=key)
    connection.rollback()
    assert Once(connection, tenant=other).finish_new(key=key) == 1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("looked", [False, True], ids=["a new snapshot", "a snapshot from before"])
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_caller_that_comes_while_the_slot_closes_is_refused_at_once_and_stays_refused(db, level, looked, ends):
    """Its caches are warm. It neither waits nor passes: not while the closer waits, not while the closer's transaction is open, not afterwards."""
    divide(db, True)
    inside, closer = db.connect(isolation="READ COMMITTED"), db.connect(isolation="READ COMMITTED")
    caller = db.connect(isolation=level)
    for warm in ("w1", "w2"):
        Once(caller, tenant=TENANT).start(key=warm)
        caller.commit()
    if looked:
        run(caller, "SELECT count(*) FROM once.intent")
    Once(inside, tenant=TENANT).start(key="inside")
    make_effect(inside, "inside")

    def knock():
        run(caller, "SAVEPOINT here")
        with refused("P4097"):
            Once(caller, tenant=TENANT).start(key="late")
        run(caller, "ROLLBACK TO here")

    def while_it_waits():
        wait_until(waits(db, closer), "the closer to wait")
        knock()
        inside.rollback()

    closed, _ = in_threads([lambda: run(closer, "SELECT once_job.close_slot(%s, '60 s')", slot_of(db)), while_it_waits])
    assert closed == [(True,)]
    knock()
    getattr(closer, ends)()
    knock()
    caller.rollback()
    knock()
    assert effects(db, "inside") == 0


@pytest.mark.parametrize("level", LEVELS)
def test_a_transaction_that_was_let_in_is_waited_for(db, level):
    divide(db, True)
    inside = db.connect(isolation=level)
    once = Once(inside, tenant=TENANT)
    once.start(key="k")
    make_effect(inside, "k")
    once.finish(key="k", response_text="in time")
    assert close(db, wait="20 milliseconds") is False
    assert state_of(db, slot_of(db)) == (1, True), "it opens again, and it was never anybody else's"
    inside.commit()
    assert close(db) is True
    assert effects(db, "k") == 1 and db.value("SELECT count(*) FROM once.intent WHERE key = 'k'") == 1


def test_who_has_started_before_the_slot_closed_cannot_finish_after_it(db):
    divide(db, True)
    inside = db.connect(isolation="READ COMMITTED")
    once = Once(inside, tenant=TENANT)
    once.start(key="k")
    make_effect(inside, "k")
    closer = db.connect(isolation="READ COMMITTED")

    def finish():
        wait_until(waits(db, closer), "the closer to wait")
        with refused("P4097"):
            once.finish(key="k")
        inside.rollback()

    assert in_threads([lambda: run(closer, "SELECT once_job.close_slot(%s, '60 s')", slot_of(db)), finish])[0] == [(True,)]
    assert effects(db, "k") == 0


def test_a_prepared_transaction_is_waited_for(db):
    divide(db, True)
    connection = db.connect(isolation="READ COMMITTED")
    Once(connection, tenant=TENANT).finish_new(key="k")
    run(connection, "PREPARE TRANSACTION 'slots'")
    connection.commit()
    assert close(db, wait="20 milliseconds") is False
    db.execute("ROLLBACK PREPARED 'slots'")
    assert close(db) is True


def test_a_batch_holds_its_slot_too(db):
    divide(db, True)
    connection = db.connect(isolation="READ COMMITTED")
    assert Once(connection, tenant=TENANT).claim_many(key=["a", "b"])[0].verdict == "new_claim"
    assert sharing(db, connection) == 1 and close(db, wait="20 milliseconds") is False


@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_snapshot_from_before_the_memory_came_ends_in_40001(db, level, key):
    """The slot comes to this node, with what another has remembered; a transaction has looked before that. Its effect is not made a second time."""
    divide(db, False)
    slot, key = slot_of(db), key(db)
    caller = db.connect(isolation=level)
    run(caller, "SELECT count(*) FROM once.intent")
    copied = db.connect()
    run(copied, "INSERT INTO once.intent (tenant, scope, key, bucket, fingerprint, state, fence, attempts, created_at, updated_at, completed_at)"
                " SELECT %s, 'orders', %s, once._bucket(%s), %s, 'succeeded', 1, 1, now(), now(), now()", TENANT, key, key, PRINT)  # fmt: skip
    db.execute("SELECT once_job.open_slot(%s, 2)", slot)

    def attempt():
        once = Once(caller, tenant=TENANT)
        assert once.start(key=key).verdict == "proceed"
        make_effect(caller, key)
        once.finish(key=key)
        caller.commit()

    assert code_of(attempt) == "40001"
    caller.rollback()
    assert effects(db, key) == 0
    assert Once(db.connect(), tenant=TENANT).start(key=key).verdict == "replay_success"


def test_a_slot_opens_with_a_greater_epoch_only(db):
    divide(db, True)
    with refused("55000"):
        db.execute("SELECT once_job.open_slot(7, 5)")
    assert close(db, 7) is True
    assert close(db, 7) is True and state_of(db, 7) == (1, False), "closed already: it stays closed"
    for epoch in (-1, 0, 1, None, 2**63 - 1):
        with refused("22023"):
            db.execute("SELECT once_job.open_slot(7, %s::bigint)", epoch)
    assert state_of(db, 7) == (1, False)
    db.execute("SELECT once_job.open_slot(7, 5)")
    assert state_of(db, 7) == (5, True)


@pytest.mark.parametrize("slot", [-1, 64, 2**31 - 1, None])
def test_there_is_no_other_slot(db, slot):
    divide(db, True)
    for call in ("close_slot(%s)", "open_slot(%s, 5)"):
        with refused("22023"):
            db.execute(f"SELECT once_job.{call}", slot)


@pytest.mark.parametrize("wait", ["0", "-1 s", "2 days", None])
def test_a_wait_out_of_range_is_refused_and_closes_nothing(db, wait):
    divide(db, True)
    with refused("22023"):
        close(db, 3, wait)
    assert state_of(db, 3) == (1, True)


def test_a_node_that_is_not_divided_closes_and_opens_nothing(db):
    for call in ("close_slot(1)", "open_slot(1, 5)"):
        with refused("22023") as caught:
            db.execute(f"SELECT once_job.{call}")
        assert "once.divide" in caught.value.diag.message_hint


def test_one_session_at_a_time_closes_or_opens_a_slot(db):
    """Else one that gives up would open what another has just closed."""
    divide(db, True)
    inside, first = (db.connect(isolation="READ COMMITTED") for _ in range(2))
    Once(inside, tenant=TENANT).start(key="k")

    def second():
        wait_until(waits(db, first), "the first to wait")
        for call in ("close_slot(%s)", "open_slot(%s, 9)"):
            with refused("55006"):
                db.execute(f"SELECT once_job.{call}", slot_of(db))
        inside.rollback()

    assert in_threads([lambda: run(first, "SELECT once_job.close_slot(%s, '60 s')", slot_of(db)), second])[0] == [(True,)]


def test_a_closing_that_is_cancelled_opens_the_slot_again(db):
    divide(db, True)
    inside, closer = (db.connect(isolation="READ COMMITTED") for _ in range(2))
    Once(inside, tenant=TENANT).start(key="k")

    def cancel():
        wait_until(waits(db, closer), "the closer to wait")
        db.execute("SELECT pg_cancel_backend(%s)", closer.get_backend_pid())

    in_threads([lambda: code_of(lambda: run(closer, "SELECT once_job.close_slot(%s, '60 s')", slot_of(db))), cancel])
    assert state_of(db, slot_of(db)) == (1, True)


def test_a_closing_is_on_the_disk_when_it_commits(db):
    """Another node opens the slot on the strength of it."""
    divide(db, True)
    connection = db.connect(isolation="READ COMMITTED")
    run(connection, "SET synchronous_commit = off")
    connection.commit()
    run(connection, "SELECT once_job.close_slot(1)")
    assert run(connection, "SELECT current_setting('synchronous_commit'), pg_current_xact_id_if_assigned() IS NOT NULL") == [("local", True)]
    connection.commit()
    assert run(connection, "SHOW synchronous_commit") == [("off",)]


def opened(db, how):
    """A connection in a transaction that has been let in without the guard."""
    connection = db.connect(isolation="READ COMMITTED")
    Once(connection, tenant=TENANT).finish_new(key="older")
    if how == "prepared":
        run(connection, "PREPARE TRANSACTION 'older'")
    return connection


@pytest.mark.parametrize("how", ["open", "prepared"])
def test_dividing_waits_for_the_transactions_that_began_without_the_guard(server, db, how):
    older, divider = opened(db, how), db.connect()
    run(divider, "SET log_min_messages = notice")
    waited_for = "older" if how == "prepared" else str(older.get_backend_pid())

    def end_it():
        wait_until(lambda: db.value("SELECT once._is_guarded()"), "the guard")
        newer = db.connect(isolation="READ COMMITTED")  # it is not waited for
        with refused("P4097"):
            Once(newer, tenant=TENANT).start(key="newer")
        wait_until(lambda: re.search(rf"waiting for older transactions: .*\b{waited_for}\b", server.log_tail(200)), "the notice")
        assert not done
        db.execute("ROLLBACK PREPARED 'older'") if how == "prepared" else older.rollback()

    done = []
    in_threads([lambda: (run(divider, "CALL once.divide(false)"), done.append(True)), end_it])


def test_dividing_cannot_be_part_of_a_transaction(db):
    connection = db.connect(isolation="READ COMMITTED")
    with refused("2D000"):
        run(connection, "CALL once.divide(true)")
    connection.rollback()
    assert db.rows("SELECT * FROM once.slots()") == []
    with refused("22023"):
        db.execute("CALL once.divide()")
    assert not db.value("SELECT once._is_guarded()")


def test_a_lost_sequence_is_named_and_nobody_guesses_its_state(db):
    divide(db, True)
    db.execute("DROP SEQUENCE once.slot_5_seq")
    with refused("55000") as caught:
        divide(db, True)
    assert "slot_5_seq" in str(caught.value)
    tenant = next(f"t{n}" for n in range(10_000) if slot_of(db, f"t{n}") == 5)
    assert code_of(lambda: Once(db.connect(), tenant=tenant).start(key="k")) == "42P01"


def test_only_the_owner_divides_and_only_administrators_move_slots(db):
    make_logins(db)
    for login in ("app", "admin", "keeper"):
        assert code_of(lambda: run(db.connect(login), "CALL once.divide(true)")) == "42501"
    divide(db, True)
    for login in ("app", "bound", "relay", "consumer", "keeper", "reader"):
        assert code_of(lambda: run(db.connect(login), "SELECT once_job.close_slot(1)")) == "42501", login
        assert len(run(db.connect(login), "SELECT * FROM once.slots()")) == SLOTS
        assert code_of(lambda: run(db.connect(login), "SELECT setval('once.slot_1_seq', 2)")) == "42501"
    run(db.connect("admin"), "SELECT once_job.close_slot(1)")
    run(db.connect("admin"), "SELECT once_job.open_slot(1, 2)")
    assert state_of(db, 1) == (2, True)


def test_undividing_needs_every_slot(db):
    divide(db, True)
    close(db, 9)
    with refused("55000") as caught:
        db.execute("CALL once.undivide()")
    assert caught.value.diag.message_detail == "closed slots: 9"
    assert len(db.rows("SELECT * FROM once.slots()")) == SLOTS
    db.execute("SELECT once_job.open_slot(9, 2)")
    session = db.connect()
    assert Once(session, tenant=TENANT).finish_new(key="k") == 1
    db.execute("CALL once.undivide()")
    assert db.rows("SELECT * FROM once.slots()") == [] and not db.value("SELECT once._is_guarded()")
    assert db.value("SELECT count(*) FROM pg_class WHERE relname ~ '^slot_[0-9]+_seq$'") == 0
    assert Once(session, tenant=TENANT).start(key="k").verdict == "replay_success"
    db.execute("CALL once.undivide()")


def test_an_upgrade_keeps_the_guard_the_slots_and_the_hash(db):
    """Sessions that are open meanwhile are never let in."""
    db.execute("CREATE OR REPLACE FUNCTION once.slot_of(tenant text) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT length($1) % 64'")
    divide(db, True)
    close(db, 4)
    session = db.connect()
    assert code_of(lambda: Once(session, tenant="acme").start(key="k")) == "P4097"
    run(db.connect(), upgrade_script(1))
    assert code_of(lambda: Once(session, tenant="acme").start(key="k")) == "P4097"
    assert code_of(lambda: Once(session, tenant="acmes").start(key="k")) is None
    assert slot_of(db, "abc") == 3 and state_of(db, 4) == (1, False)


def test_what_works_for_all_tenants_leaves_those_of_closed_slots_alone(db):
    """The keeper, recover, resolve_many and the release of delayed events: what was copied must not change here."""
    here = next(f"t{n}" for n in range(100) if slot_of(db, f"t{n}") != slot_of(db))
    allow_takeover(db, "other")
    connection = db.connect()
    for tenant in (TENANT, here):
        once = Once(connection, tenant=tenant)
        once.claim(key="stale")
        once.claim(key="doubt")
        run(connection, "SELECT once.fail('orders', 'doubt', 1, NULL, tenant => %s)", tenant)
        run(connection, "SELECT once.emit_later(now() + interval '1 s', 't', '{}', tenant => %s)", tenant)
    let_lease_pass(db, "stale")
    divide(db, True)
    close(db)
    of_closed = "SELECT t::text FROM once.intent AS t WHERE tenant = %s UNION ALL SELECT d::text FROM once.delayed_event AS d WHERE tenant = %s ORDER BY 1"
    before = db.rows(of_closed, TENANT, TENANT)
    wait_until(lambda: db.value("SELECT max(not_before) < clock_timestamp() FROM once.delayed_event"), "the time of the events")
    assert db.value("SELECT released FROM once_job.relay_release()") == 1
    assert [row.tenant for row in db.rows("SELECT * FROM once.recover() WHERE tenant IS NOT NULL")] == [here]
    assert [row.tenant for row in db.rows("SELECT * FROM once.recover(in_doubt => true) WHERE tenant IS NOT NULL")] in ([here], [here, here])
    for dry_run in (True, False):
        doubts = db.value("SELECT count(*) FROM once.intent WHERE tenant = %s AND state = 'in_doubt'", here)
        assert db.row("SELECT sum(decided) AS decided, sum(skipped) AS skipped FROM once.resolve_many('orders', 'succeeded', 'why', dry_run => %s)", dry_run) == (doubts, 0)
    assert db.rows(of_closed, TENANT, TENANT) == before and len(before) == 3
    assert db.value("SELECT count(*) FROM once.intent WHERE tenant = %s AND state IN ('processing', 'in_doubt')", here) == 0


def test_a_relay_fetches_events_of_every_tenant_whatever_is_closed(db):
    from .relaying import Relay, emit

    connection = db.connect()
    emit(connection, "a")
    relay = Relay(connection, "works")
    divide(db, True)
    for slot in range(SLOTS):
        close(db, slot)
    run(connection, "SELECT once_job.relay_flush()")
    assert len(relay.fetch(relay.list())) == 1


def another_node(db, **changes):
    """What a node like this one says of itself, but for its salt, settings, a policy and a binding."""
    node = db.value("SELECT once._node()")
    day = db.value("SELECT closed_before FROM once.setting")
    node["setting"] |= {"salt": "\\x" + "5a" * 32, "horizon_days": 3, "clock_skew": "00:01:00", "closed_before": day + 2}
    node["scopes"].append(node["scopes"][0] | {"scope": "pay", "lease": "00:00:07"})
    node["bindings"].append({"role_name": "app", "tenant": "acme"})
    return {**node, "divided": True, **changes}


def join(db, node):
    return db.value("SELECT joined FROM once._join(%s::jsonb)", json.dumps(node))


def test_a_node_that_joins_is_like_the_other_and_has_no_slot_open(db):
    node = another_node(db)
    first_day = node["setting"]["closed_before"]
    assert join(db, node) is True
    assert db.value("SELECT once._node()") == node and not db.rows("SELECT * FROM once.slots() WHERE open")
    assert db.value("SELECT min(d) FROM once._days('once.intent', 'intent_d') AS d") == first_day, "no day is open that the others have closed"
    divide(db, None)
    assert join(db, node) is False
    with refused("P4097"):
        Once(db.connect(), tenant=TENANT).start(key="k")


@pytest.mark.parametrize("memory", ["once.finish_new('s', 'k', once.fingerprint('{}'::jsonb))", "once.emit('t', '{}')", "once.emit_later(now() + interval '1 day', 't', '{}')"])
def test_a_node_that_remembers_something_does_not_join(db, memory):
    db.execute(f"SELECT {memory}")
    node = another_node(db)
    before = db.value("SELECT once._node()")
    with refused("55000"):
        join(db, node)
    assert db.value("SELECT once._node()") == before and db.rows("SELECT * FROM once.slots()") == []


@pytest.mark.parametrize("wrong", [{"divided": False}, {"divided": None}, {"contract": []}])
def test_a_node_joins_only_a_divided_one_with_the_same_contract(db, wrong):
    with refused("55000"):
        join(db, another_node(db, **wrong))
    assert db.rows("SELECT * FROM once.slots()") == []


def test_a_node_that_has_joined_others_stays_there(db):
    divide(db, True)
    with refused("55000"):
        join(db, another_node(db))


def test_every_function_executes_ddl_on_this_node_only():
    """Citus would repeat it on its other nodes, or refuse it. once.anchor makes a table that Citus must distribute."""
    ddl = re.compile(r"EXECUTE (format\()?'(CREATE|ALTER|DROP|REVOKE|GRANT|TRUNCATE)|^[ \t]+(CREATE|ALTER|DROP|GRANT|REVOKE) ", re.M)
    for path in sorted((ROOT / "contract").glob("*/*.sql")):
        body = re.search(r"AS \$\$(.*)", re.sub(r"^\s*--.*\n", "", path.read_text(), flags=re.M), re.S)
        assert path.name in SCRIPTS or path.parent.name in ("views", "templates") or path.stem in ("_execute_ddl", "anchor") or not ddl.search(body[1]), path


def test_every_table_that_is_written_beside_an_effect_is_anchored():
    """By the names in the statements: a statement trigger of a table does not fire for a statement that names its partition."""
    anchored = set(re.search(r"FOREACH memory IN ARRAY ARRAY\[(.*?)\]", (ROOT / "contract/slot/anchor.sql").read_text())[1].replace("'", "").split(", "))
    named = re.compile(r"(?:INSERT INTO|UPDATE|DELETE FROM|into =>) once\.(\w+)")
    written = {name for path in (ROOT / "contract").glob("*/*.sql") for name in named.findall(re.sub(r"^\s*--(?! expand).*\n", "", path.read_text(), flags=re.M))}
    others = {"setting", "scope", "binding", "migration", "transition", "decision", "parked_decision", "parked_event", "relay", "swept", "closing", "clock", "keeper",
              "keeper_step", "consumer_position", "consumer_ids", "capture", "sweeping", "untaken", "untaking", "unfinished", "slot_move"}  # what operators and daemons write, in transactions of their own  # fmt: skip
    assert {"intent", "intent_d0", "outbox", "delayed_event"} <= written and written - others <= anchored, written - others - anchored


def test_ddl_leaves_the_setting_of_citus_as_it_was(db):
    """Without Citus there is no such setting, and none is made."""
    connection = db.connect(isolation="READ COMMITTED")
    shown = "SELECT current_setting('citus.enable_ddl_propagation', true)"
    run(connection, "SELECT once._execute_ddl('CREATE TABLE public.a ()')")
    assert run(connection, shown) == [(None,)]
    run(connection, "SET citus.enable_ddl_propagation = on; CREATE TABLE public.seen AS SELECT ''::text AS value LIMIT 0")
    run(connection, "CREATE FUNCTION public.see() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.seen"
                    " SELECT current_setting('citus.enable_ddl_propagation', true); END $$;"
                    " CREATE EVENT TRIGGER see ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION public.see()")  # fmt: skip
    run(connection, "SELECT once._execute_ddl('CREATE TABLE public.b ()')")
    assert run(connection, "SELECT value FROM public.seen") == [("off",)] and run(connection, shown) == [("on",)]
    run(connection, "SAVEPOINT here")
    with refused("42P07"):
        run(connection, "SELECT once._execute_ddl('CREATE TABLE public.b ()')")
    run(connection, "ROLLBACK TO here")
    assert run(connection, shown) == [("on",)]
