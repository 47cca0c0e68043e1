# SPDX-License-Identifier: PostgreSQL
"""pgonce rehome dies, or a node does, at any of its steps: the slot is never open twice, and the next run finishes."""

import contextlib
import signal

import psycopg2
import pytest
from cli.command import Command, ends
from contract.calls import Once, refused
from harness.postgres import Postgres, wait_until

from .conftest import SETTINGS, divide
from .gates import gate, take_down
from .test_rehome import TENANT, memory_of, remember, slot_of, state_of

SOURCE, TARGET = 0, 1
# The steps in their order, and where they happen.
STEPS = {
    "_move_publish": SOURCE, "_move_subscribe": TARGET, "_move_begin": TARGET, "_move_behind": SOURCE, "_move_close": SOURCE, "_move_arrived": TARGET,
    "_move_out": SOURCE, "_move_in": TARGET, "_standbys_behind": TARGET, "_move_hand_over": SOURCE, "_move_open": TARGET, "_move_unsubscribe": TARGET,
    "_move_unpublish": SOURCE, "_move_forget": SOURCE,
}  # fmt: skip


def open_on(nodes, slot):
    return [node for node in nodes if state_of(node, slot)[1]]


@contextlib.contextmanager
def run_until(nodes, start, step, when):
    """A run that waits at this step. Yields its process, and a function that lets the step go on."""
    with contextlib.ExitStack() as stack:
        if step in ("_move_unsubscribe", "_move_unpublish"):  # the first call removes what an earlier run has left
            reached, go_on = stack.enter_context(gate(nodes[TARGET], "_move_open", "after"))
            process = start()
            reached()
            reached, release = stack.enter_context(gate(nodes[STEPS[step]], step, when))
            go_on()
        else:
            reached, release = stack.enter_context(gate(nodes[STEPS[step]], step, when))
            process = start()
        reached()
        yield process, release


def check_moved(nodes, slot, before):
    """The slot is at the second node with its whole memory, and nothing else is left."""
    first, second = nodes
    assert open_on(nodes, slot) == [second]
    assert memory_of(second) == before and not any(memory_of(first).values())
    for node in nodes:
        assert node.value("SELECT count(*) FROM pg_subscription AS s JOIN pg_database AS d ON d.oid = s.subdbid WHERE d.datname = current_database()") == 0
        assert node.value("SELECT count(*) FROM pg_publication") == 0
        assert node.value("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == 0
    with refused("P4097"):
        Once(first.connect(), tenant=TENANT).claim(key="done")
    assert Once(second.connect(), tenant=TENANT).claim(key="done").verdict == "replay_success"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_is_killed_at_a_step_is_finished_by_the_next(nodes, rehome, step, when):
    """before: its server's session is gone, too, and the step with it. after: the step is committed, though nobody hears of it."""
    slot = slot_of(nodes[0])
    remember(nodes[0])
    before = memory_of(nodes[0])
    with run_until(nodes, lambda: rehome.start(slot), step, when) as (process, release):
        process.send_signal(signal.SIGKILL)
        ends(process)
        if when == "before":
            for node in nodes:
                node.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgonce'")
        release()
    assert len(open_on(nodes, slot)) <= 1
    rehome(slot)
    check_moved(nodes, slot, before)


def test_a_copy_that_waits_for_a_transaction_does_not_hold_up_the_next_run(nodes, rehome):
    """The replication slots of single tables wait for all transactions of the server; the next run removes them all the same."""
    first, second = nodes
    slot = slot_of(first)
    remember(first)
    before = memory_of(first)
    writer = first.connect(isolation="READ COMMITTED")
    subscriptions = "SELECT count(*) FROM pg_subscription AS s JOIN pg_database AS d ON d.oid = s.subdbid WHERE d.datname = current_database()"
    with gate(second, "_move_begin", "before") as (reached, release):
        process = rehome.start(slot)
        reached()
        with writer.cursor() as cursor:
            cursor.execute("INSERT INTO effect VALUES ('k')")
        release()
        copying = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE %s AND active"
        wait_until(lambda: first.value(copying, "pg_%_sync_%") > 0, "the copy of a table to wait")
        process.send_signal(signal.SIGKILL)
        ends(process)
    process = rehome.start(slot)
    wait_until(lambda: second.value(subscriptions) == 0, "the next run to remove the subscription")
    writer.rollback()
    assert ends(process)[0] == 0
    check_moved(nodes, slot, before)


@pytest.fixture
def servers(tmp_path):
    """Two servers, of which each can be killed."""
    with Postgres(settings=SETTINGS) as one, Postgres(settings=SETTINGS) as other:
        first, second = one.new_database(), other.empty_database()
        divide(first, second, tmp_path)
        for node in (first, second):
            node.execute("CREATE TABLE effect (key text NOT NULL, attempt integer)")
        yield first, second


@pytest.mark.parametrize("victim", [SOURCE, TARGET])
def test_a_node_that_is_killed_at_a_step_stops_the_move_and_the_next_run_finishes(servers, tmp_path, victim):
    """At each step in turn, back and forth between the nodes."""
    source, target = servers
    remember(source)
    before, slot = memory_of(source), slot_of(source)
    for step in STEPS:
        nodes = (source, target)

        def run(start=False):
            command = Command(None, tmp_path)
            words = ("rehome", slot, "--from", source.dsn(), "--to", target.dsn())
            return command.start(*words) if start else command(*words)

        with contextlib.suppress(psycopg2.Error):  # a gate cannot be taken down while its server is away
            with run_until(nodes, lambda: run(start=True), step, "before") as (process, _):
                nodes[victim].server.kill()
                for node in nodes:
                    node.close()
                status, _, told = ends(process)
                assert status in (1, 3) or step == "_move_forget", (step, status, told)
        nodes[victim].server.start()
        for node in nodes:
            take_down(node)
        assert len(open_on(nodes, slot)) <= 1, step
        done = run()
        assert done.returncode == 0, (step, done.stderr)
        check_moved(nodes, slot, before)
        source, target = target, source
        victim = 1 - victim
