# SPDX-License-Identifier: PostgreSQL
"""As contract/test_broken_on_purpose, for the slots: each guarantee taken out, and the tests that notice."""

import pytest

from contract.test_broken_on_purpose import does_its_plain_work
from harness.mutation import assert_noticed, replace, run_sql
from harness.pgoutput import Reader

from . import test_slots as slots
from .capturing import PUBLICATION, SLOT, block, drop_slots, logical_server, make_slot


@pytest.fixture(scope="module")
def server():
    with logical_server() as running:
        yield running


def checking(check, with_reader=True):
    """With what its fixtures give it; the mutation is in the database already."""

    def run(db):
        db.execute(block("sql", "CREATE PUBLICATION"))
        reader = None
        if with_reader:
            make_slot(db)
            reader = Reader(db, SLOT, PUBLICATION)
        try:
            check(db, *([reader] if with_reader else []))
        finally:
            if reader:
                reader.close()
            drop_slots(db)

    return run


BROKEN = {
    "nobody asks how far the slot is": (
        replace("_follow_slots", "slot.confirmed >= capture.mark_lsn", "true"),
        [checking(slots.test_a_slot_that_begins_later_has_not_passed_what_is_in_the_table, False)],
    ),
    "the mark is what is there when the slot is looked at": (
        replace("_follow_slots", "SET seen = capture.mark,", "SET seen = pg_current_snapshot(),"),
        [checking(slots.test_an_event_that_commits_after_the_mark_is_not_passed_with_it)],
    ),
    "the mark's snapshot takes in what runs": (
        replace("_mark_slot", "mark = pg_current_snapshot()", "mark = (pg_snapshot_xmax(pg_current_snapshot())::text || ':' ||"
                " pg_snapshot_xmax(pg_current_snapshot())::text || ':')::pg_snapshot"),
        [checking(slots.test_a_day_into_which_a_transaction_may_still_write_is_not_passed)],
    ),
    "a slot that is gone is as good as one that is there": (
        replace("_slot", "WHEN found IS NULL THEN 'there is no such logical slot in this database'", "WHEN found IS NULL THEN NULL"),
        [checking(slots.test_a_slot_that_is_gone_holds_the_outbox_and_one_of_its_name_is_another)],
    ),
    "what was broken heals by itself": (
        replace("_follow_slots", "WHERE c.broken IS NULL", "WHERE true"),
        [checking(slots.test_a_slot_that_is_gone_holds_the_outbox_and_one_of_its_name_is_another)],
    ),
    "a slot of another timeline is trusted": (
        replace("_slot", "server <> now_on", "false"),
        [checking(slots.test_a_slot_of_before_a_promotion_is_not_trusted, False)],
    ),
    "the retiring does not look at the slots": (
        replace("retire_outbox", "PERFORM once._follow_slots();", ""),
        [checking(slots.test_the_retiring_looks_at_the_slots_itself)],
    ),
    "a slot may be taken as a relay": (
        replace("relay_take", "IF EXISTS (SELECT FROM once.capture AS c WHERE c.slot = relay COLLATE \"C\") THEN", "IF false THEN"),
        [checking(slots.test_a_slot_is_no_relay_for_a_session_and_sends_nothing_again, False)],
    ),
    "who reads the slot may not read the table": (
        run_sql("REVOKE SELECT ON once.outbox FROM once_capture"),
        [checking(slots.test_who_reads_the_slot_may_read_the_outbox_and_nothing_else, False)],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_tests_notice_that(server, name):
    if not any(row for row in server_roles(server)):
        slots.published(server).drop()
    mutation, checks = BROKEN[name]
    assert_noticed(server, mutation, checks, does_its_plain_work)


def server_roles(server):
    connection = server.connect()
    with connection.cursor() as cursor:
        cursor.execute("SELECT rolname FROM pg_roles WHERE rolname = 'cdc'")
        found = cursor.fetchall()
    connection.close()
    return found
