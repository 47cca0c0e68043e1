# SPDX-License-Identifier: PostgreSQL
"""Each guarantee of a move taken out on purpose, on both nodes: the tests must notice. As tests/contract/test_broken_on_purpose.py."""

import subprocess

import psycopg2
import pytest
from harness.mutation import replace
from harness.postgres import wait_until


from . import test_killed as killed
from . import test_rehome as moves

# what is taken out: (how, the test that must fail then)
BROKEN = {
    "deletions are replicated": (replace("_move_publish", "insert, update", "insert, update, delete"), moves.test_what_the_old_node_deletes_does_not_reach_the_new_one),
    "to whom a slot was handed over is replicated": (
        replace("_move_publish", "(slot, epoch, fence_floor, closed_at)", ""), moves.test_to_whom_a_slot_was_handed_over_is_a_fact_of_the_old_node_alone,
    ),
    "the slot opens before its last changes have come": (replace("_move_arrived", "RETURN false;", "RETURN true;"), moves.test_the_slot_opens_only_with_its_last_changes),
    "it closes without waiting for those inside": (
        replace("close_slot", "PERFORM pg_advisory_xact_lock(20790, slot);", ""), moves.test_a_prepared_transaction_keeps_its_slot,
    ),
    "a run hands over what another has opened again": (replace("_move_hand_over", "AND state = (epoch - 1) * 2", ""), moves.test_a_run_that_lost_its_slot_to_another_cannot_hand_it_over),
    "a handing over is not recorded": (replace("_move_hand_over", "SET handed_to = node", "SET handed_to = NULL"), moves.test_a_node_that_handed_a_slot_over_opens_it_only_when_it_comes_back),
    "a node opens what it has handed over": (replace("open_slot", "ELSIF once._handed_to(slot) IS NOT NULL", "ELSIF false"), moves.test_a_node_that_handed_a_slot_over_opens_it_only_when_it_comes_back),
    "a node opens what has not come": (replace("_move_open", "IF fence_floor IS NULL THEN", "IF false THEN"), moves.test_a_node_opens_only_what_has_arrived),
    "an old snapshot opens what was handed over": (
        replace("_hold_slot", "IF current_setting('transaction_isolation') <> 'read committed' THEN", "IF false THEN"),
        lambda nodes: moves.test_a_snapshot_from_before_it_was_handed_over_opens_no_slot(nodes, "REPEATABLE READ"),
    ),
    "copies of tables are left to wait": (
        replace("_move_release", "pg_terminate_backend(s.active_pid)", "s.active_pid"), killed.test_a_copy_that_waits_for_a_transaction_does_not_hold_up_the_next_run,
    ),
    "memory in use is deleted": (replace("_move_forget", "IF state % 2 = 1 OR (state / 2 <= epochs[n]) IS NOT TRUE THEN", "IF false THEN"), moves.test_memory_in_use_is_never_deleted),
    "fences begin anew": (replace("_move_open", "PERFORM setval('once.fence_floor_seq', fence_floor);", ""), moves.test_a_late_report_finds_a_higher_fence),
    "fences fall": (replace("_move_open", "IF fence_floor >= once._first_fence() THEN", "IF true THEN"), moves.test_a_late_report_finds_a_higher_fence),
    "the keeper deletes while slots move": (replace("_deletion_held", "once._is_moving()", "false"), moves.test_while_slots_move_nothing_is_deleted_or_archived),
    "an operator retires days while slots move": (replace("retire_day", "IF once._is_moving() THEN", "IF false THEN"), moves.test_while_slots_move_nothing_is_deleted_or_archived),
    "the copy does not wait for the keeper": (replace("_move_begin", "LOCK TABLE once.clock IN EXCLUSIVE MODE;", ""), moves.test_a_keeper_that_has_looked_before_ends_its_step_before_the_copy_begins),
    "months of the archive are missing": (replace("_move_begin", "PERFORM once._archive_month(m.day::integer)", "PERFORM m.day"), moves.test_a_slot_moves_with_its_memory),
    "relays are not waited for": (replace("_move_behind", "RETURN why; END", "RETURN NULL; END"), moves.test_the_last_events_are_delivered_while_the_slot_is_closed),
    "parked events are left": (replace("_move_behind", "FROM once.parked_event AS p WHERE", "FROM once.parked_event AS p WHERE false AND"), moves.test_a_parked_event_holds_its_slot),
    "standbys are not waited for": (replace("_standbys_behind", "RETURN names;", "RETURN NULL;"), moves.test_a_standby_that_is_behind_holds_the_move),
    "what is not replicated stays": (replace("_move_out", "IF bytes <= 67108864 THEN", "memory := '{}'; IF false THEN"), moves.test_a_slot_moves_with_its_memory),
    "parked messages lose their order": (replace("_move_in", "ORDER BY p.position", "ORDER BY p.message_id DESC"), moves.test_a_slot_moves_with_its_memory),
}


@pytest.mark.parametrize("what", BROKEN)
def test_the_tests_notice(nodes, rehome, logical, what, monkeypatch):
    monkeypatch.setattr(wait_until, "__defaults__", (15,))  # some wait for what does not come any more
    mutation, test = BROKEN[what]
    for node in nodes:
        mutation(node)
    given = {"nodes": nodes, "rehome": rehome, "logical": logical, "tmp_path": rehome.directory}
    wanted = test.__code__.co_varnames[: test.__code__.co_argcount]
    with pytest.raises((AssertionError, psycopg2.Error, pytest.fail.Exception, TimeoutError, subprocess.TimeoutExpired)):
        test(**{name: given[name] for name in wanted})
