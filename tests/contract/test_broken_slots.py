# SPDX-License-Identifier: PostgreSQL
"""Each guarantee of the slots taken out on purpose: the tests must notice. As test_broken_on_purpose.py."""

import pytest
from harness.mutation import assert_noticed, both, replace

from . import test_slots as slots
from .calls import Once


def closed_to(function, login="postgres"):
    return lambda db: slots.test_where_the_slot_is_closed_each_call_is_refused_and_leaves_no_trace(db, function, login)


def knocking(level, looked, ends):
    return lambda db: slots.test_a_caller_that_comes_while_the_slot_closes_is_refused_at_once_and_stays_refused(db, level, looked, ends)


def let_in(db):
    slots.test_a_transaction_that_was_let_in_is_waited_for(db, "READ COMMITTED")


def dividing(how):
    return lambda db: slots.test_dividing_waits_for_the_transactions_that_began_without_the_guard(db.server, db, how)


def unguarded(function):
    return replace(function, "once._serves(tenant) AND", "")


# what is taken out: (how, the checks that must fail then)
BROKEN = {
    "the guard takes no lock": (
        replace("_guard", "pg_try_advisory_xact_lock_shared(20790, once.slot_of(tenant))", "true"),
        [let_in, slots.test_a_prepared_transaction_is_waited_for, slots.test_a_batch_holds_its_slot_too],
    ),
    "the guard takes the lock of another slot": (replace("_guard", "(20790, once.slot_of(tenant))", "(20790, once.slot_of(tenant) + 64)"), [let_in]),
    "the guard takes the lock and does not look": (
        replace("_guard", "% 2 = 1", "IS NOT NULL"),
        [knocking("READ COMMITTED", False, "commit"), closed_to("start"), lambda db: slots.test_an_open_slot_is_held_until_the_transaction_ends_and_only_its_own_is_closed(db, slots.KEYS["plain"])],
    ),
    "the hot path does not ask the guard": (unguarded("_is_trusted"), [closed_to("start"), closed_to("finish_new"), closed_to("claim"), closed_to("emit"), closed_to("receive")]),
    "batches do not ask the guard": (
        replace("_quick_check_batch", "AND once._serves(tenant)", ""),
        [closed_to("claim_many"), closed_to("complete_many"), closed_to("receive_many")],
    ),
    "the thorough check does not ask the guard": (
        replace("_check", "PERFORM once._refuse_slot(tenant, scope, key);", ""),
        [closed_to("renew"), closed_to("peek"), closed_to("start", "bound"), closed_to("fail")],
    ),
    "the thorough check of batches does not ask the guard": (
        replace("_check_batch", "PERFORM once._refuse_slot(tenant, NULL, NULL);", ""), [closed_to("renew_many"), closed_to("claim_many", "bound")],
    ),
    "a look at a tenant does not ask the guard": (replace("_authorise", "PERFORM once._refuse_slot(tenant, NULL, NULL);", ""), [closed_to("find"), closed_to("parked_list"), closed_to("resolve_many")]),
    "recover touches what is closed": (replace("_recover", "once._serves((judged.stored).tenant) AND", ""), [slots.test_what_works_for_all_tenants_leaves_those_of_closed_slots_alone]),
    "recover of doubts touches what is closed": (
        replace("_recover_doubt", "once._serves((doubt.stored).tenant) IS NOT TRUE OR", ""), [slots.test_what_works_for_all_tenants_leaves_those_of_closed_slots_alone],
    ),
    "decisions on many touch what is closed": (
        replace("resolve_many", "CONTINUE WHEN once._serves((doubt.stored).tenant) IS NOT TRUE;", ""), [slots.test_what_works_for_all_tenants_leaves_those_of_closed_slots_alone],
    ),
    "delayed events of what is closed are released": (
        replace("relay_release", "AND once._serves(d.tenant)", ""), [slots.test_what_works_for_all_tenants_leaves_those_of_closed_slots_alone],
    ),
    "a relay needs the slot of ''": (
        replace("relay_fetch", "PERFORM once._authorise(NULL);", "PERFORM once._authorise('');"), [slots.test_a_relay_fetches_events_of_every_tenant_whatever_is_closed],
    ),
    "closing sets no flag": (replace("close_slot", "state - state % 2", "state"), [knocking("READ COMMITTED", False, "commit")]),
    "closing does not wait for those inside": (replace("close_slot", "PERFORM pg_advisory_xact_lock(20790, slot);", ""), [let_in, slots.test_a_prepared_transaction_is_waited_for]),
    "a slot that cannot close stays closed": (
        replace("close_slot", "PERFORM setval(to_regclass('once.slot_' || slot || '_seq'), state);", ""),
        [let_in, slots.test_a_closing_that_is_cancelled_opens_the_slot_again],
    ),
    "two sessions close a slot": (replace("_hold_slot", "OR NOT pg_try_advisory_xact_lock(20791, slot)", ""), [slots.test_one_session_at_a_time_closes_or_opens_a_slot]),
    "a closing may be lost in a crash": (replace("_hold_slot", "IF current_setting('synchronous_commit') = 'off' THEN", "IF false THEN"), [slots.test_a_closing_is_on_the_disk_when_it_commits]),
    "a slot opens with an epoch that it had": (replace("open_slot", "state / 2 + 1 AND", "state / 2 AND"), [slots.test_a_slot_opens_with_a_greater_epoch_only]),
    "an open slot opens again": (replace("open_slot", "IF state % 2 = 1 THEN", "IF false THEN"), [slots.test_a_slot_opens_with_a_greater_epoch_only]),
    "slots of an ordinary installation close": (
        both(replace("_hold_slot", "once._slot_state(slot) IS NULL OR NOT once._is_guarded()", "false"), replace("_hold_slot", "ELSIF NOT once._is_guarded() THEN", "ELSIF false THEN")),
        [slots.test_a_node_that_is_not_divided_closes_and_opens_nothing],
    ),
    "dividing waits for nobody": (replace("divide", "PERFORM once._wait_for_older();", ""), [dividing("open"), dividing("prepared")]),
    "dividing does not wait for prepared transactions": (replace("_wait_for_older", "AND cardinality(gids) = 0", ""), [dividing("prepared")]),
    "dividing again sets the slots anew": (
        replace("_divide", "IF slot IS NOT NULL THEN", "IF slot IS NULL THEN PERFORM setval(('once.slot_' || s || '_seq')::regclass, 3) FROM generate_series(0, 63) AS s; ELSE"),
        [lambda db: slots.test_a_divided_node_has_all_slots_open_or_none(db, False)],
    ),
    "a lost sequence is made anew": (replace("_divide", "IF slot > 0 THEN", "IF false THEN"), [slots.test_a_lost_sequence_is_named_and_nobody_guesses_its_state]),
    "a node joins with a memory": (
        replace("_join", "PERFORM once._refuse_memory();", ""),
        [lambda db: slots.test_a_node_that_remembers_something_does_not_join(db, "once.emit('t', '{}')")],
    ),
    "a node joins one that serves every tenant": (
        replace("_join", "(node ->> 'divided' = 'true') IS NOT TRUE", "false"),
        [lambda db: slots.test_a_node_joins_only_a_divided_one_with_the_same_contract(db, {"divided": False})],
    ),
    "a node joins one with another contract": (
        replace("_join", "own -> 'contract' IS DISTINCT FROM node -> 'contract'", "false"),
        [lambda db: slots.test_a_node_joins_only_a_divided_one_with_the_same_contract(db, {"contract": []})],
    ),
    "a node of others joins": (replace("_join", "own -> 'setting' ->> 'salt' = node -> 'setting' ->> 'salt'", "true"), [slots.test_a_node_that_has_joined_others_stays_there]),
    "a node that joins keeps its salt": (
        replace("_join", "DELETE FROM once.setting; INSERT INTO once.setting SELECT theirs.*;", ""), [slots.test_a_node_that_joins_is_like_the_other_and_has_no_slot_open],
    ),
    "a node that joins opens days that others have closed": (
        replace("_join", "WHERE d < theirs.closed_before", "WHERE false"), [slots.test_a_node_that_joins_is_like_the_other_and_has_no_slot_open],
    ),
    "a node that joins serves": (replace("_join", "PERFORM once._divide(false);", "PERFORM once._divide(true);"), [slots.test_a_node_that_joins_is_like_the_other_and_has_no_slot_open]),
    "Citus repeats DDL": (replace("_execute_ddl", "PERFORM set_config('citus.enable_ddl_propagation', 'off', true);", "NULL;"), [slots.test_ddl_leaves_the_setting_of_citus_as_it_was]),
    "the setting of Citus stays off": (
        replace("_execute_ddl", "PERFORM set_config('citus.enable_ddl_propagation', propagated, true);", "NULL;"), [slots.test_ddl_leaves_the_setting_of_citus_as_it_was],
    ),
    "a node is undivided while slots are elsewhere": (replace("_undivide", "IF closed IS NOT NULL THEN", "IF false THEN"), [slots.test_undividing_needs_every_slot]),
}  # fmt: skip


def does_its_plain_work(db):
    """Undivided, each function still does its own."""
    once = Once(db.connect(), tenant="plain")
    once.start(key="a")
    once.finish_new(key="b")
    assert once.claim(key="c").verdict == "new_claim" and once.claim_many(key=["d", "e"])[0].verdict == "new_claim"
    once.emit(topic="t", payload="{}")
    assert once.renew(key="c", fence=1) and once.peek(key="b")
    db.execute("SELECT * FROM once.recover(); SELECT * FROM once.find('plain'); SELECT * FROM once.slots()")
    db.execute("DELETE FROM once.intent; DELETE FROM once.outbox")


@pytest.mark.parametrize("broken", BROKEN)
def test_the_tests_notice_when(server, broken):
    assert_noticed(server, *BROKEN[broken], does_its_plain_work, also=(TypeError, LookupError, TimeoutError))
