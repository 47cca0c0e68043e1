# SPDX-License-Identifier: PostgreSQL
"""pgonce rehome: the whole memory of a slot moves, each key takes effect once, and a run that was killed is finished by the next."""

import json
import random
import signal
import threading

import psycopg2
import pytest
from cli.command import Command, ends
from contract.calls import PRINT, Once, let_lease_pass, now_ms, refused, uuid7
from contract.relaying import Relay, emit, parking
from harness.postgres import wait_until

from .conftest import Standby, divide
from .gates import gate

TENANT, OTHER = "acme", "globex"


def slot_of(node, tenant=TENANT):
    return node.value("SELECT once.slot_of(%s)", tenant)


def open_slots(node):
    return [row.slot for row in node.rows("SELECT slot FROM once.slots() WHERE open")]


def state_of(node, slot):
    return tuple(node.row("SELECT epoch, open FROM once.slots() WHERE slot = %s", slot))


def memory_of(node, tenant=TENANT):
    """All rows of a tenant's memory that moves. Parked messages have other positions, in the same order."""
    memory = {table: sorted(map(str, node.rows(f"SELECT to_jsonb(t)::text FROM once.{table} AS t WHERE tenant = %s", tenant)))
              for table in ("intent", "archive", "decision", "delayed_event", "consumer_position")}  # fmt: skip
    parked = node.rows("SELECT to_jsonb(t) - 'position' AS row FROM once.parked_message AS t WHERE tenant = %s ORDER BY position", tenant)
    return {**memory, "parked_message": [row.row for row in parked]}


def remember(node, tenant=TENANT):
    """One row of each at least."""
    once = Once(node.connect(), tenant=tenant)
    once.finish_new(key="done", response_status=201, response_body=b"\x00answer")
    once.finish_new(key=uuid7(now_ms(node)))
    assert once.claim(key="running", owner="w").verdict == "new_claim"
    once.claim(key="doubtful")
    let_lease_pass(node, key="doubtful")
    assert once.claim(key="doubtful").verdict == "in_doubt"
    once.claim(key="decided")
    let_lease_pass(node, key="decided")
    once.resolve(key="decided", as_state="failed_final")
    node.execute("SELECT once.emit_later(now() + interval '1 hour', 'later', '{\"n\": 1.50}', tenant => %s)", tenant)
    node.execute("SELECT once.consumer_report('mailer', now(), %s, '0')", tenant)
    old = uuid7(now_ms(node) - 60 * 86_400_000)
    day = node.value("SELECT once._bucket(%s)", old)
    node.execute("SELECT once._archive_month(%s)", day)
    node.execute("INSERT INTO once.archive SELECT (jsonb_populate_record(i, jsonb_build_object('key', %s::text, 'bucket', %s))).* "
                 "FROM once.intent AS i WHERE i.tenant = %s AND i.key = 'done'", old, day, tenant)  # fmt: skip
    for number in (3, 1, 2):
        node.execute("INSERT INTO once.parked_message (consumer, tenant, message_id, topic, key, payload, fingerprint, state, next_at, parked_at, updated_at) "
                     "VALUES ('mailer', %s, %s, 't', 'k', '\\x00ff', %s, 'dead', 'infinity', now(), now())", tenant, f"m{number}", PRINT)  # fmt: skip


def test_a_slot_moves_with_its_memory(nodes, rehome):
    first, second = nodes
    for tenant in (TENANT, OTHER):
        remember(first, tenant)
    before, other = memory_of(first), memory_of(first, OTHER)
    assert all(before.values())
    told = rehome(slot_of(first))
    assert memory_of(second) == before
    assert memory_of(first, OTHER) == other and not any(memory_of(second, OTHER).values())
    assert not any(memory_of(first).values()), "the old node has deleted it"
    assert state_of(first, slot_of(first)) == (2, False) and state_of(second, slot_of(first)) == (2, True)
    assert f"slot {slot_of(first)}: moved" in told
    for node in nodes:
        assert node.value("SELECT count(*) FROM pg_publication") + node.value("SELECT count(*) FROM pg_subscription") == 0
    assert first.value("SELECT count(*) FROM pg_replication_slots") == 0
    with refused("P4097"):
        Once(first.connect(), tenant=TENANT).claim(key="done")
    assert Once(second.connect(), tenant=TENANT).claim(key="done").verdict == "replay_success"


def test_a_slot_moves_there_and_back_again(nodes, rehome):
    first, second = nodes
    slot = slot_of(first)
    remember(first)
    before = memory_of(first)
    for round_, (source, target) in enumerate([(first, second), (second, first)] * 2):
        rehome(slot, source=source, target=target)
        assert memory_of(target) == before and not any(memory_of(source).values())
        assert state_of(target, slot) == (round_ + 2, True)


def test_to_whom_a_slot_was_handed_over_is_a_fact_of_the_old_node_alone(nodes, rehome):
    """Everything that the handing over has written is replicated before the slot opens."""
    first, second = nodes
    slot = slot_of(first)
    handed = "SELECT count(*) FROM once.slot_move WHERE slot = %s AND handed_to IS NOT NULL"
    with gate(second, "_move_open", "before") as (reached, release):
        process = rehome.start(slot)
        reached()
        first.execute("INSERT INTO once.slot_move (slot, epoch, fence_floor) VALUES (%s, 77, 0)", slot)  # follows the handing over
        wait_until(lambda: second.value("SELECT count(*) FROM once.slot_move WHERE epoch = 77"), "what follows to arrive")
        assert first.value(handed, slot) == 1 and second.value(handed, slot) == 0
        release()
        assert ends(process)[0] == 0


def test_a_node_that_was_ordinary_meanwhile_moves_its_slots_anew(nodes, rehome, logical, tmp_path):
    """Its epochs begin anew, so nothing of the former moves may count."""
    first, second = nodes
    slot = slot_of(first)
    remember(first)
    before = memory_of(first)
    for source, target in (nodes, nodes[::-1]):
        rehome(slot, source=source, target=target)
    first.execute("CALL once.undivide()")
    third = logical.empty_database()
    divide(first, third, tmp_path)
    for source, target in ((first, third), (third, first)):
        rehome(slot, source=source, target=target)
        assert memory_of(target) == before
    assert state_of(first, slot) == (3, True)
    third.drop()


def test_several_slots_move_and_all_that_can(nodes, rehome):
    """One cannot: a transaction of its tenant is open."""
    first, second = nodes
    tenants = {slot_of(first, f"t{number}"): f"t{number}" for number in range(40)}
    for tenant in tenants.values():
        Once(first.connect(), tenant=tenant).finish_new(key="k")
    (held, tenant), *_ = tenants.items()
    inside = first.connect(isolation="READ COMMITTED")
    Once(inside, tenant=tenant).start(key="open")
    told = rehome("0-63", "--wait", "300ms", "--json", status=11)
    report, _ = json.JSONDecoder().raw_decode(told)
    assert {slot["slot"]: slot["moved"] for slot in report["slots"]} == {slot: slot != held for slot in range(64)}
    assert open_slots(first) == [held] and open_slots(second) == [slot for slot in range(64) if slot != held]
    assert not any(memory_of(second, tenant).values()), "its copy is gone"
    inside.rollback()
    for slot, name in tenants.items():
        once = Once((first if slot == held else second).connect(), tenant=name)
        assert once.claim(key="k").verdict == "replay_success"
    rehome("0-63")
    assert open_slots(second) == list(range(64)) and not first.value("SELECT count(*) FROM once.intent")


def test_a_prepared_transaction_keeps_its_slot(nodes, rehome):
    first, second = nodes
    slot = slot_of(first)
    with gate(first, "_move_close", "before") as (reached, release):  # an earlier one would hold up the copy
        process = rehome.start(slot, "--wait", "200ms")
        reached()
        inside = first.connect()
        with inside.cursor() as cursor:
            cursor.execute("BEGIN")
            Once(inside, tenant=TENANT).start(key="k")
            cursor.execute("INSERT INTO effect VALUES ('k')")
            Once(inside, tenant=TENANT).finish(key="k")
            cursor.execute("PREPARE TRANSACTION 'p'")
        release()
        status, _, told = ends(process)
    assert status == 11 and b"prepared" in told
    assert open_slots(second) == [] and state_of(first, slot)[1]
    first.execute("COMMIT PREPARED 'p'")
    rehome(slot)
    assert Once(second.connect(), tenant=TENANT).claim(key="k").verdict == "replay_success"


def test_each_key_takes_effect_once_while_its_slot_moves(nodes, rehome):
    """Clients start, insert and finish, or claim and complete; each goes to the other node when it is refused. Tries follow on the other node."""
    done = threading.Event()
    slots, keys = {}, [f"k{number}" for number in range(400)]
    failures = []

    def work(number):
        connections = [node.connect(isolation="READ COMMITTED") for node in nodes]
        place = 0
        tries = 0
        while not done.is_set() or tries < 50:
            tries += 1
            key = keys[(tries * 7 + number * 13) % len(keys)]
            try:
                connection = connections[place]
                once = Once(connection, tenant=TENANT)
                with connection:
                    if once.start(key=key).verdict == "new":
                        with connection.cursor() as cursor:
                            cursor.execute("INSERT INTO effect VALUES (%s)", (key,))
                        once.finish(key=key, response_text=key)
            except psycopg2.Error as error:
                if error.pgcode == "P4097":
                    place = 1 - place
                elif error.pgcode not in ("40001", "P4029"):
                    failures.append(error)
                    return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    slot = slot_of(nodes[0])
    for source, target in [nodes, nodes[::-1]] * 2:
        rehome(slot, source=source, target=target)
    done.set()
    for thread in threads:
        thread.join(60)
    assert not failures and not slots
    effects = [row.key for node in nodes for row in node.rows("SELECT key FROM effect")]
    assert sorted(effects) == sorted(set(effects)), "one effect each"
    assert nodes[0].value("SELECT count(*) FROM once.intent WHERE tenant = %s", TENANT) == len(set(effects)), "and all are remembered where the slot is"


def test_a_late_report_finds_a_higher_fence(nodes, rehome):
    """The old node has deleted an intent with this fence; the new one goes on above it."""
    first, second = nodes
    first.execute("SELECT setval('once.fence_floor_seq', 41)")
    rehome(slot_of(first))
    once = Once(second.connect(), tenant=TENANT)
    assert once.claim(key="k").fence == 42
    second.execute("SELECT setval('once.fence_floor_seq', 70)")
    first.execute("SELECT setval('once.fence_floor_seq', 99)")
    rehome(slot_of(first), source=second, target=first)
    assert first.value("SELECT once._first_fence()") == 100, "never lower than its own"


def test_changes_during_the_copy_arrive_with_large_answers_whole(nodes, rehome):
    """Also of a row whose answer is stored apart and does not change."""
    first, second = nodes
    slot = slot_of(first)
    once = Once(first.connect(), tenant=TENANT)
    large = random.Random(31).randbytes(300_000)
    fences = {key: once.claim(key=key).fence for key in ("a", "b")}
    once.complete(key="a", fence=fences["a"], response_body=large)
    with gate(first, "_move_close", "before") as (reached, release):
        process = rehome.start(slot, "--wait", "30s")
        reached()
        once.complete(key="b", fence=fences["b"], response_body=large)
        first.execute("UPDATE once.intent SET updated_at = updated_at + interval '1 second' WHERE key IN ('a', 'b')")
        once.finish_new(key=uuid7(now_ms(first)))
        before = memory_of(first)
        release()
        assert ends(process)[0] == 0
    assert memory_of(second) == before
    assert Once(second.connect(), tenant=TENANT).claim(key="b").response_body == large


def test_the_slot_opens_only_with_its_last_changes(nodes, rehome):
    """They are late: a session of the new node holds up the replication."""
    first, second = nodes
    slot = slot_of(first)
    blocker = second.connect(isolation="READ COMMITTED")
    with gate(first, "_move_close", "before") as (reached, release):
        process = rehome.start(slot, "--wait", "500ms")
        reached()
        with blocker.cursor() as cursor:
            cursor.execute("LOCK TABLE once.intent IN EXCLUSIVE MODE")
        Once(first.connect(), tenant=TENANT).finish_new(key="last")
        release()
        status, _, told = ends(process)
    assert status == 11 and b"not arrived" in told and state_of(first, slot)[1] and not state_of(second, slot)[1]
    blocker.rollback()
    rehome(slot)
    assert Once(second.connect(), tenant=TENANT).claim(key="last").verdict == "replay_success"


def test_an_attempt_reports_to_the_node_that_has_its_intent_now(nodes, rehome):
    first, second = nodes
    claimed = Once(first.connect(), tenant=TENANT).claim(key="k", owner="w")
    rehome(slot_of(first))
    with refused("P4097"):
        Once(first.connect(), tenant=TENANT).complete(key="k", fence=claimed.fence)
    Once(second.connect(), tenant=TENANT).complete(key="k", fence=claimed.fence, response_text="done")
    assert Once(second.connect(), tenant=TENANT).claim(key="k").verdict == "replay_success"


def test_while_slots_move_nothing_is_deleted_or_archived(nodes, rehome):
    """Neither where they are nor where they go, and again afterwards."""
    first, second = nodes
    slot = slot_of(first)
    for node in nodes:
        node.execute("SELECT once.set_keeping(clock_settle => '0')")
        node.execute("SELECT once.set_scope('orders', retention => '1 second')")
        other = Once(node.connect(), tenant="elsewhere")
        if node is first:
            other.finish_new(key="old")
            node.execute("UPDATE once.intent SET completed_at = now() - interval '1 day', created_at = now() - interval '1 day'")
        assert node.value("SELECT once_job.keep_take('k', interval '1 hour')")
        node.execute("SELECT once_job.keep_step('k', 'clock')")
    with gate(second, "_move_arrived", "before") as (reached, release):
        process = rehome.start(slot, "--wait", "60s")
        reached()
        for node in nodes:
            kept = node.row("SELECT * FROM once_job.keep_step('k', 'purge')")
            assert kept.done == 0 and "rehome" in kept.detail
            assert [row.what for row in node.rows("SELECT * FROM once.retention_held()")] == ["move"]
            with refused("55006"):
                node.execute("SELECT once.retire_day(%s)", node.value("SELECT once._bucket(%s)", uuid7(now_ms(node) - 20 * 86_400_000)))
        assert first.value("SELECT count(*) FROM once.intent WHERE key = 'old'") == 1
        told = Command(first.dsn())("doctor", "--json")
        (held,) = [row for row in json.loads(told.stdout)["checks"] if row["check"] == "retention held"]
        assert held["level"] == "warning" and held["found"] == "move slots" and "rehome" in held["advice"]
        release()
        assert ends(process)[0] == 0
    assert first.row("SELECT * FROM once_job.keep_step('k', 'purge')").done == 1
    assert not first.rows("SELECT * FROM once.retention_held()")


def test_a_keeper_that_has_looked_before_ends_its_step_before_the_copy_begins(nodes, rehome):
    first, second = nodes
    keeper = first.connect(isolation="READ COMMITTED")
    with gate(second, "_move_subscribe", "before") as (reached, release):
        process = rehome.start(slot_of(first))
        reached()
        with keeper.cursor() as cursor:
            cursor.execute("SELECT once._clock()")  # as each step begins
        release()
        wait_until(lambda: first.value("SELECT count(*) FROM pg_locks WHERE relation = 'once.clock'::regclass AND NOT granted") == 1, "the copy to wait")
        keeper.rollback()
        assert ends(process)[0] == 0


def test_an_event_that_a_relay_has_not_passed_holds_its_slot_and_only_its_own(nodes, rehome):
    first, second = nodes
    slot = slot_of(first)
    relay = Relay(first.connect())
    emit(first.connect(), tenant=TENANT)
    other = next(number for number in range(64) if number != slot)
    assert "has not passed" in rehome(slot, other, "--wait", "1100ms", status=11)
    assert open_slots(second) == [other] and state_of(first, slot)[1]
    relay.batch()
    rehome(slot)
    assert state_of(second, slot)[1]


def wait_until_it_asks_again(process, node):
    """The run asks once._move_behind a second time from now on: so it has been told that the relay is behind, and has not gone on to its next step."""
    since, asked = node.value("SELECT clock_timestamp()"), set()

    def asks_again():
        assert process.poll() is None, "it has gone on"
        asked.update(row.query_start for row in node.rows(
            "SELECT query_start FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE %s AND query_start > %s",
            "%_move_behind($1%", since))  # fmt: skip
        return len(asked) > 1

    wait_until(asks_again, "the run to ask again whether a relay is behind")


def test_the_last_events_are_delivered_while_the_slot_is_closed(nodes, rehome):
    """Emitted just before it closes: it opens only when the relay has passed them, so no later one of the new node can overtake them."""
    first, second = nodes
    slot = slot_of(first)
    relay = Relay(first.connect())
    with gate(first, "_move_close", "before") as (reached, release):
        process = rehome.start(slot, "--wait", "30s")
        reached()
        last = emit(first.connect(), tenant=TENANT, aggregate="a")
        release()
        wait_until(lambda: not state_of(first, slot)[1], "the slot to close")
        wait_until_it_asks_again(process, first)
        assert not state_of(second, slot)[1]
        with refused("P4097"):
            emit(second.connect(), tenant=TENANT, aggregate="a")
        assert [event.event_id for event in relay.batch()] == [last]
        assert ends(process)[0] == 0
    emit(second.connect(), tenant=TENANT, aggregate="a")


def test_a_parked_event_holds_its_slot(nodes, rehome):
    first, _ = nodes
    relay = Relay(first.connect())
    event = emit(first.connect(), tenant=TENANT)
    relay.park(*(parking(row, state="dead") for row in relay.fetch(relay.list())))
    assert "parked with relay" in rehome(slot_of(first), "--wait", "100ms", status=11)
    first.execute("SELECT once.parked_discard(%s, reason => 'lost')", event)
    rehome(slot_of(first))


def test_events_without_any_relay_hold_their_slot(nodes, rehome):
    first, _ = nodes
    emit(first.connect(), tenant=TENANT)
    assert "no relay" in rehome(slot_of(first), "--wait", "100ms", status=11)


def test_a_router_with_another_hash_moves_its_slots(nodes, rehome):
    """Any expression of built-in functions."""
    first, second = nodes
    for node in nodes:
        node.execute("CREATE OR REPLACE FUNCTION once.slot_of(tenant text) RETURNS integer LANGUAGE sql IMMUTABLE AS "
                     "$$ select (length(tenant) % 64); $$")  # fmt: skip
    for tenant in ("abc", "abcd"):
        Once(first.connect(), tenant=tenant).finish_new(key="k")
    rehome(3)
    assert [node.value("SELECT string_agg(tenant, ' ') FROM once.intent") for node in nodes] == ["abcd", "abc"]


def test_a_hash_that_cannot_be_replicated_is_refused_and_leaves_no_trace(nodes, rehome):
    first, second = nodes
    for node in nodes:
        node.execute("CREATE FUNCTION public.own(text) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 7'")
        node.execute("CREATE OR REPLACE FUNCTION once.slot_of(tenant text) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT public.own(tenant)'")
    assert "built-in functions" in rehome(7, status=1)
    assert state_of(first, 7) == (1, True)
    for node in nodes:
        assert not node.value("SELECT once._is_moving()")


def test_a_day_that_is_closing_does_not_keep_what_a_killed_run_has_left(nodes, rehome):
    """Else the keeper would wait for rehome, and rehome for the keeper."""
    first, _ = nodes
    first.execute("SELECT once._move_publish(ARRAY[7])")
    first.execute("INSERT INTO once.closing (day, phase, started_at) VALUES (1, 'move', now())")
    assert "closing" in rehome(7, status=10)
    assert not first.value("SELECT once._is_moving()")


HARM = {
    "other salt": (1, "UPDATE once.setting SET salt = sha256('x')", "salts"),
    "other policy": (1, "SELECT once.set_scope('pay')", "policies"),
    "other setting": (0, "SELECT once.set_keeping(horizon_days => 30)", "settings"),
    "other hash": (1, "CREATE OR REPLACE FUNCTION once.slot_of(tenant text) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1'", "once.slot_of"),
    "other version": (1, "UPDATE once.migration SET checksum = 'x' WHERE version = 0", "versions"),
    "other days": (0, "UPDATE once.setting SET closed_before = closed_before + 1", "same days"),
    "a day is closing": (1, "INSERT INTO once.closing (day, phase, started_at) VALUES (1, 'move', now())", "closing"),
    "open twice": (1, "SELECT once_job.open_slot(n, 9) FROM generate_series(0, 63) AS n", "open on both"),
    "open elsewhere": (0, "SELECT setval('once.slot_' || n || '_seq', 0) FROM generate_series(0, 63) AS n", "not on"),
    "not divided": (0, "CALL once.undivide()", "not divided"),
}


@pytest.mark.parametrize("harm", HARM)
def test_nodes_that_do_not_fit_are_refused_and_nothing_changes(nodes, rehome, harm):
    place, statement, told = HARM[harm]
    nodes[place].execute(statement)
    states = [node.rows("SELECT * FROM once.slots()") for node in nodes]
    assert told in rehome("0-63", status=10)
    assert [node.rows("SELECT * FROM once.slots()") for node in nodes] == states
    for node in nodes:
        assert not node.value("SELECT once._is_moving()")


@pytest.mark.parametrize("place", [0, 1])
def test_a_day_that_closes_on_one_node_before_the_copy_begins_is_noticed(nodes, rehome, place):
    """What that node has dropped with it would run again on the other."""
    first, second = nodes
    slot = slot_of(first)
    Once(first.connect(), tenant=TENANT).finish_new(key="k")
    with gate(first, "_move_publish", "before") as (reached, release):
        process = rehome.start(slot)
        reached()
        nodes[place].execute("UPDATE once.setting SET closed_before = closed_before + 1")
        release()
        status, _, told = ends(process)
    assert status == 10 and b"same days" in told and state_of(first, slot) == (1, True)
    assert not second.value("SELECT count(*) FROM once.intent") and not any(node.value("SELECT once._is_moving()") for node in nodes)


def test_a_node_is_not_moved_to_itself(nodes, rehome):
    assert "one database" in rehome(1, source=nodes[0], target=nodes[0], status=11)


def test_a_server_without_logical_replication_is_refused(server, tmp_path, rehome):
    first, second = server.new_database(), server.empty_database()
    divide(first, second, tmp_path)
    assert "wal_level" in rehome(1, source=first, target=second, status=10)
    for node in (first, second):
        node.drop()


def test_a_role_that_may_not_replicate_is_refused(nodes, rehome, tmp_path):
    nodes[0].execute("DROP ROLE IF EXISTS mover")
    nodes[0].execute("CREATE ROLE mover LOGIN")
    for node in nodes:
        node.execute("GRANT postgres TO mover")
    done = Command(None, tmp_path)("rehome", 1, "--from", nodes[0].dsn(user="mover"), "--to", nodes[1].dsn(user="mover"))
    assert done.returncode == 10 and b"may not replicate" in done.stderr


@pytest.mark.parametrize("words", [[], ["64"], ["-1"], ["x"], ["5-3"], ["1-"], ["007x"], ["1", "--wait", "0s"]])
def test_a_slot_that_does_not_exist_is_a_usage_error(rehome, words):
    rehome(*words, status=2)


def test_a_target_that_cannot_reach_the_source_is_told_and_nothing_is_left(nodes, rehome):
    told = rehome(1, "--via", "host=/nowhere dbname=app", status=3)
    assert "--via" in told and "connect" in told
    rehome(1)


def test_a_signal_stops_the_copy_and_leaves_nothing(nodes, rehome):
    first, second = nodes
    slot = slot_of(first)
    Once(first.connect(), tenant=TENANT).finish_new(key="k")
    writer = first.connect(isolation="READ COMMITTED")
    with writer.cursor() as cursor:
        cursor.execute("INSERT INTO effect VALUES ('k')")  # the copy waits for it
    process = rehome.start(slot)
    wait_until(lambda: first.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s", "%pg_create_logical%"), "the copy to wait")
    process.send_signal(signal.SIGTERM)
    status, _, told = ends(process)
    writer.rollback()
    assert status == 1 and b"no slot has moved" in told and state_of(first, slot) == (1, True)
    for node in nodes:
        assert not node.value("SELECT once._is_moving()")
    assert not second.value("SELECT count(*) FROM once.intent")


def hand_over(target, rehome, slot):
    """A run that is killed after it: the slot is open nowhere."""
    with gate(target, "_move_open", "before") as (reached, release):
        process = rehome.start(slot)
        reached()
        process.kill()
        ends(process)
        target.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgonce'")
        release()


def test_a_node_that_handed_a_slot_over_opens_it_only_when_it_comes_back(nodes, rehome):
    first, second = nodes
    slot = slot_of(first)
    hand_over(second, rehome, slot)
    with pytest.raises(psycopg2.Error) as caught:
        first.execute("SELECT once_job.open_slot(%s, 5)", slot)
    assert caught.value.pgcode == "55000" and second.name in str(caught.value) and "pgonce rehome" in caught.value.diag.message_hint
    assert "not on" in rehome(slot, source=second, target=first, status=10), "the memory is still where it was"
    rehome(slot)
    assert state_of(second, slot) == (2, True)
    rehome(slot, source=second, target=first)
    assert state_of(first, slot) == (3, True)


def test_another_target_cannot_take_what_was_handed_to_the_first(nodes, rehome, logical, tmp_path):
    """It has no copy."""
    first, second = nodes
    third = logical.empty_database()
    divided = Command(third.dsn(), tmp_path)("init", "--join", first.dsn())
    assert divided.returncode == 0
    slot = slot_of(first)
    Once(first.connect(), tenant=TENANT).finish_new(key="k")
    hand_over(second, rehome, slot)
    assert "another node" in rehome(slot, target=third, status=1)
    assert not state_of(third, slot)[1]
    rehome(slot)
    third.drop()


def test_the_settings_of_a_role_do_not_matter(nodes, rehome):
    """A wait that is longer than its time limits; and it is told that they hold for the copy."""
    first, second = nodes
    slot = slot_of(first)
    for node in nodes:
        for setting in ("default_transaction_isolation = 'serializable'", "statement_timeout = '400ms'", "lock_timeout = '400ms'"):
            node.execute(f"ALTER DATABASE {node.name} SET {setting}")
    first.execute(f"ALTER DATABASE {first.name} SET idle_session_timeout = '400ms'")
    with gate(second, "_move_arrived", "before") as (reached, release):
        process = rehome.start(slot, "--wait", "60s")
        reached()
        long = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE %s AND state = 'active' AND clock_timestamp() - query_start > interval '900 milliseconds'"
        wait_until(lambda: second.value(long, "%_move_arrived($1%"), "the step to wait")
        release()
        status, _, told = ends(process)
    assert status == 0 and state_of(second, slot) == (2, True)
    assert b"statement_timeout" in told


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_from_before_it_was_handed_over_opens_no_slot(nodes, level):
    first, _ = nodes
    old = first.connect(isolation=level)
    with old.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM once.slot_move")
        epoch = first.value("SELECT once._move_close(5, '1 second')")
        first.execute("SELECT once._move_hand_over(5, %s, 'elsewhere')", epoch)
        with refused("25000"):
            cursor.execute("SELECT once_job.open_slot(5, %s)", (epoch + 1,))
    assert state_of(first, 5) == (epoch, False)


def test_two_runs_do_not_work_with_one_node_at_a_time(nodes, rehome):
    first, second = nodes
    with gate(second, "_move_arrived", "before") as (reached, release):
        process = rehome.start(1, "--wait", "60s")
        reached()
        assert "another pgonce rehome" in rehome(2, status=11)
        release()
        assert ends(process)[0] == 0


def test_a_run_that_lost_its_slot_to_another_cannot_hand_it_over(nodes):
    """It was cut off while the slot was closed; the next has opened the slot again, and closed it."""
    first, _ = nodes
    epoch = first.value("SELECT once._move_close(5, '1 second')")
    assert first.value("SELECT once._move_back(5)") == epoch
    assert first.value("SELECT once._move_close(5, '1 second')") == epoch + 1
    with refused("55000"):
        first.execute("SELECT once._move_hand_over(5, %s, 'elsewhere')", epoch)
    assert first.value("SELECT once._move_back(5)") == epoch + 1


def test_a_node_opens_only_what_has_arrived(nodes):
    _, second = nodes
    with refused("55000"):
        second.execute("SELECT once._move_open(5, 2)")
    assert open_slots(second) == []


def test_memory_in_use_is_never_deleted(nodes):
    first, second = nodes
    Once(first.connect(), tenant=TENANT).finish_new(key="k")
    slot = slot_of(first)
    for epoch in (0, 1, 2, None):
        with refused("55000"):
            first.execute("SELECT once._move_forget(ARRAY[%s], ARRAY[%s]::bigint[], NULL, NULL)", slot, epoch)
    first.execute("SELECT once_job.close_slot(%s)", slot)
    with refused("55000"):
        first.execute("SELECT once._move_forget(ARRAY[%s], ARRAY[0]::bigint[], NULL, NULL)", slot)
    assert first.value("SELECT count(*) FROM once.intent") == 1


def test_what_the_old_node_deletes_does_not_reach_the_new_one(nodes, rehome):
    """A subscription that is left: it passes on inserts and updates, no more."""
    first, second = nodes
    slot = slot_of(first)
    Once(first.connect(), tenant=TENANT).finish_new(key="k")
    with gate(second, "_move_open", "after") as (reached, release):
        process = rehome.start(slot)
        reached()
        process.kill()
        ends(process)
        release()
    wait_until(lambda: state_of(second, slot)[1], "the slot to open")
    deleted = first.row("SELECT * FROM once._move_forget(ARRAY[%s], ARRAY[2]::bigint[], NULL, NULL)", slot).deleted
    assert deleted == 1
    first.execute("INSERT INTO once.slot_move (slot, epoch, fence_floor) VALUES (%s, 77, 0)", slot)  # follows the deletion
    wait_until(lambda: second.value("SELECT count(*) FROM once.slot_move WHERE epoch = 77"), "what follows to arrive")
    assert second.value("SELECT count(*) FROM once.intent") == 1
    rehome(slot)
    assert second.value("SELECT count(*) FROM once.intent") == 1


def test_a_standby_that_is_behind_holds_the_move(logical, nodes, rehome):
    """Promoted, it would not know that the slot has closed."""
    first, second = nodes
    slot = slot_of(first)
    with Standby(logical) as standby:
        standby.stop_receiving()
        assert "standbys" in rehome(slot, "--wait", "300ms", status=11)
        assert state_of(first, slot)[1] and not state_of(second, slot)[1]
        standby.go_on()
        rehome(slot, "--wait", "30s")
