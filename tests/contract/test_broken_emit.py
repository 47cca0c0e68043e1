# SPDX-License-Identifier: PostgreSQL
"""As test_broken_on_purpose, for once.emit: each check taken out, and what a start as new might seem to spare."""

import pytest
from harness.mutation import assert_noticed, replace

from . import test_emit as emit
from . import test_emit_started as started
from . import test_isolation as isolation
from .test_broken_on_purpose import does_its_plain_work

EMITTED_AT_ONCE = [emit.test_two_transactions_that_emit_one_event_end_with_one_event_and_nobody_waits]
STARTED_AS_NEW = r"""coalesce(strpos(current_setting('once.started', true), concat_ws(E'\x1f', E'\x1e', tenant, scope, key, '')) > 0, false)"""

# what is taken out: (how, the checks that must fail then)
BROKEN = {
    "emit goes on over midnight in an old snapshot": (
        replace("emit", "IN ('repeatable read', 'serializable')", "= 'never'"),
        [
            lambda db: isolation.test_a_snapshot_from_before_midnight_makes_no_second_event_after_it(db, "REPEATABLE READ"),
            lambda db: started.test_a_transaction_of_yesterday_emits_no_event_of_an_intent_today(db),
        ],
    ),
    "emit of today asks no transaction when it began": (
        replace("emit", "AND transaction_timestamp() >= to_timestamp(once._today() * 86400::double precision)", ""),
        [lambda db: started.test_a_transaction_of_yesterday_emits_no_event_of_an_intent_today(db)],
    ),
    "emit forgets the days before": (
        replace("emit", "o.day < coalesce(once._today(), day)", "false"),
        [emit.test_the_same_event_again_on_another_day_is_the_same_event],
    ),
    "emit forgets the days before, on a day without plans of its own": (
        replace("emit", "o.day < day", "false"),
        [started.test_a_start_before_midnight_finds_what_another_emitted_before_midnight],
    ),
    "emit takes no lock": (
        replace("emit", "AND pg_try_advisory_xact_lock(once._event_lock(tenant, scope, key, coalesce(event_type, topic)))", ""),
        EMITTED_AT_ONCE,
    ),
    "emit goes on without the lock": (
        replace("emit", "NOT pg_try_advisory_xact_lock(once._event_lock(tenant, scope, key, event_type))", "false"),
        EMITTED_AT_ONCE,
    ),
    "a start as new spares the event's lock": (
        replace(
            "emit",
            "pg_try_advisory_xact_lock(once._event_lock(tenant, scope, key, coalesce(event_type, topic)))",
            f"({STARTED_AS_NEW} OR pg_try_advisory_xact_lock(once._event_lock(tenant, scope, key, coalesce(event_type, topic))))",
        ),
        [lambda db, how=how: started.test_what_another_is_emitting_is_refused_at_once_though_this_one_has_started_the_intent_as_new(db, how, started.start, "off")
         for how in started.WITHOUT_A_START],
    ),
    "a start as new spares the look at earlier days": (
        replace("emit", "o.day < coalesce(once._today(), day)", f"NOT {STARTED_AS_NEW} AND o.day < coalesce(once._today(), day)"),
        [lambda db, how=how: started.test_a_start_as_new_may_find_its_event_emitted_on_an_earlier_day(db, how) for how in started.BEFORE],
    ),
    "a start as new looks at no later day": (
        replace(
            "emit",
            "pg_sequence_last_value('once.outbox_day_seq') / 256 = once._today()",
            f"({STARTED_AS_NEW} OR pg_sequence_last_value('once.outbox_day_seq') / 256 = once._today())",
        ),
        [started.test_a_start_as_new_may_find_its_event_emitted_on_a_later_day],
    ),
    "a start as new expects no event of today": (
        replace(
            "emit",
            "IF event_id IS NOT NULL THEN RETURN event_id; END IF;",
            f"IF event_id IS NOT NULL OR {STARTED_AS_NEW} THEN RETURN event_id; END IF;",
        ),
        [lambda db, how=how: started.test_a_start_as_new_may_find_its_event_emitted_today(db, how, started.start) for how in started.BEFORE],
    ),
    "emit refuses no event of a type that another transaction has emitted": (
        replace("emit", "IF event_id IS NOT NULL THEN RETURN event_id; END IF;", "RETURN event_id;"),
        [lambda db, how=how: started.test_a_start_as_new_may_find_its_event_emitted_today(db, how, started.start) for how in started.BEFORE],
    ),
    "emit looks at no key": (
        replace("emit", "AND octet_length(key) <= 255 AND key COLLATE \"C\" ~ '^[ -~]+$'", ""),
        [lambda db, wrong=wrong: started.test_names_that_are_none_are_refused(db, *wrong) for wrong in started.WRONG if wrong[0] == "key"],
    ),
    "emit looks at no length of names": (
        replace("emit", "AND pg_column_size(ARRAY[tenant, scope, topic, event_type]) <= 255", ""),
        [lambda db, wrong=wrong: started.test_names_that_are_none_are_refused(db, *wrong) for wrong in started.WRONG
         if len(wrong[1] or "") > 255 and wrong[0] != "key"],
    ),
    "emit of no intent looks at no length of names": (
        replace("emit", "AND pg_column_size(ARRAY[tenant, topic, event_type]) <= 255", ""),
        [lambda db, wrong=wrong: started.test_names_of_an_event_of_no_intent_that_are_none_are_refused(db, *wrong) for wrong in started.WRONG
         if len(wrong[1] or "") > 255 and wrong[0] not in ("key", "scope")],
    ),
    "emit takes an empty name": (
        replace("emit", "AND '' <> ALL (ARRAY[topic, coalesce(event_type, topic), scope])", "AND scope IS NOT NULL"),
        [lambda db, wrong=wrong: started.test_names_that_are_none_are_refused(db, *wrong) for wrong in started.WRONG if wrong[1] == "" and wrong[0] != "key"],
    ),
    "emit of no intent takes an empty name": (
        replace("emit", "AND '' <> ALL (ARRAY[topic, coalesce(event_type, topic)])", ""),
        [lambda db, wrong=wrong: started.test_names_of_an_event_of_no_intent_that_are_none_are_refused(db, *wrong) for wrong in started.WRONG
         if wrong[1] == "" and wrong[0] not in ("key", "scope")],
    ),
    "emit of no intent takes a scope": (
        replace("emit", "AND scope IS NULL AND", "AND"),
        [lambda db: started.test_names_of_an_event_of_no_intent_that_are_none_are_refused(db, "scope", "orders", "22023")],
    ),
    "a start as new leaves what the snapshot hides": (
        replace("emit", "ON CONFLICT DO NOTHING", ""),
        [lambda db: started.test_an_event_that_the_snapshot_hides_ends_a_start_as_new(db, "REPEATABLE READ")],
    ),
    "two tenants share the lock of an event": (
        replace("_event_lock", "ARRAY[tenant, scope, key, kind]", "ARRAY[scope, key, kind]"),
        [lambda db: started.test_another_event_that_another_is_emitting_is_in_nobodys_way(db, "tenant")],
    ),
    "two scopes share the lock of an event": (
        replace("_event_lock", "ARRAY[tenant, scope, key, kind]", "ARRAY[tenant, key, kind]"),
        [lambda db: started.test_another_event_that_another_is_emitting_is_in_nobodys_way(db, "scope")],
    ),
    "two keys share the lock of an event": (
        replace("_event_lock", "ARRAY[tenant, scope, key, kind]", "ARRAY[tenant, scope, kind]"),
        [lambda db: started.test_another_event_that_another_is_emitting_is_in_nobodys_way(db, "key")],
    ),
    "two types share the lock of an event": (
        replace("_event_lock", "ARRAY[tenant, scope, key, kind]", "ARRAY[tenant, scope, key]"),
        [lambda db: started.test_another_event_that_another_is_emitting_is_in_nobodys_way(db, "event_type")],
    ),
    "emit stores any trace": (
        replace("emit", "once._trace(traceparent)", "traceparent"),
        [lambda db: started.test_headers_and_a_trace_are_stored_or_refused(db, "k", None, "none", None)],
    ),
    "emit stores any headers": (
        replace("emit", "IF headers IS NOT NULL THEN", "IF false THEN"),
        [lambda db: started.test_headers_and_a_trace_are_stored_or_refused(db, None, "[]", None, "22023")],
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_broken_is_noticed(server, broken):
    mutation, checks = BROKEN[broken]
    assert_noticed(server, mutation, checks, does_its_plain_work)
