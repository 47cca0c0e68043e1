# SPDX-License-Identifier: PostgreSQL
"""Parked messages: order within a key, two processes of one consumer, and what operators may do."""

import json

import pytest

from harness.mutation import mutate
from harness.postgres import wait_until

from .calls import PRINT, Once, hold_days, in_threads, refused, run, today, uuid7_days_ago
from .keeping import keeper
from .test_receive_many import park, receive_many


def due(connection, take=100, skip_dead=False, consumer="mailer", tenant=""):
    return [row.message_id for row in run(connection, "SELECT * FROM once_job.message_due(%s, %s, %s, %s)", consumer, tenant, take, skip_dead)]


def applied(connection, *ids):
    return run(connection, "SELECT once_job.message_applied('mailer', '', %s)", list(ids))[0][0]


def states(db):
    return {row.message_id: (row.state, row.attempts) for row in db.rows("SELECT * FROM once.parked_message ORDER BY position")}


def test_a_parked_message_comes_back_whole(db):
    connection = db.connect()
    run(
        connection,
        "SELECT once_job.message_park('mailer', '', ARRAY[ROW('m', 'orders', 'k', '{\"h\": \"1\"}', '\\x00ff', %s, 'retrying', 3,"
        " 0, 'no', '22000')]::once.parked[])",
        PRINT,
    )
    row = run(connection, "SELECT * FROM once_job.message_due('mailer', '', 10)")[0]
    assert (row.message_id, row.topic, row.key, row.headers, row.payload, row.fingerprint, row.attempts) == (
        "m",
        "orders",
        "k",
        {"h": "1"},
        b"\x00\xff",
        PRINT,
        3,
    )


def test_only_the_first_of_a_key_is_due_and_messages_without_a_key_wait_for_nobody(db):
    connection = db.connect()
    for message, key in (("a1", "a"), ("a2", "a"), ("free1", None), ("b1", "b"), ("free2", None), ("a3", "a")):
        park(connection, message, key, "waiting")
    assert due(connection) == ["a1", "free1", "b1", "free2"]
    assert due(connection, 2) == ["a1", "free1"]
    assert applied(connection, "a1", "free1", "nobody") == 2
    assert due(connection) == ["a2", "b1", "free2"]


def test_a_message_keeps_its_place_when_it_fails_again(db):
    connection = db.connect()
    park(connection, "first", "k")
    park(connection, "second", "k", "waiting")
    park(connection, "first", "k", wait_ms=60_000)
    assert due(connection) == []
    park(connection, "first", "k")
    assert due(connection) == ["first"]


def test_a_wait_that_began_by_a_clock_that_was_ahead_ends_when_it_has_stepped_back(db):
    connection = db.connect()
    park(connection, "first", "k", wait_ms=500)
    park(connection, "second", "k", "waiting")
    db.execute("UPDATE once.parked_message SET updated_at = updated_at + interval '18 hours', next_at = next_at + interval '18 hours'")
    park(connection, "other", "l", wait_ms=60_000)
    assert due(connection) == ["first"]


def test_messages_parked_together_keep_the_order_of_the_array(db):
    connection = db.connect()
    messages = [f"m{n:03}" for n in (5, 3, 9, 1, 7)] * 2
    run(
        connection,
        "SELECT once_job.message_park('mailer', '', ARRAY(SELECT ROW(m, 't', 'k', NULL, NULL, %s::bytea, 'waiting', 0, 0, NULL,"
        " NULL)::once.parked FROM unnest(%s::text[]) AS m))",
        PRINT,
        messages,
    )
    got = []
    while head := due(connection):
        got += head
        applied(connection, *head)
    assert got == messages[:5]


def test_dead_messages_hold_up_their_key_unless_they_are_skipped(db):
    connection = db.connect()
    park(connection, "dead", "k", "dead")
    park(connection, "next", "k", "waiting")
    park(connection, "after", "k", "waiting")
    assert due(connection) == [] and due(connection, skip_dead=True) == ["next"]


def test_consumers_and_tenants_have_queues_of_their_own(db):
    connection = db.connect()
    park(connection, "m", "k", wait_ms=60_000)
    park(connection, "m", "k", consumer="billing")
    park(connection, "m", "k", tenant="acme")
    assert (due(connection), due(connection, consumer="billing"), due(connection, tenant="acme")) == ([], ["m"], ["m"])


def test_two_processes_never_take_the_same_message_nor_the_next_of_its_key(db):
    first, second = (db.connect(isolation="READ COMMITTED", lock_timeout="1s") for _ in range(2))
    for message, key in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        park(db.connect(), message, key, "waiting")
    assert due(first, 1) == ["a1"]
    assert due(second) == ["b1"]
    applied(first, "a1")
    assert due(second) == ["b1"]
    first.commit()
    assert due(second) == ["a2", "b1"]
    second.rollback()
    assert due(first) == ["a2", "b1"]


def test_a_process_that_dies_gives_back_what_it_had_taken(db):
    first = db.connect(isolation="READ COMMITTED")
    park(db.connect(), "m", "k")
    assert due(first) == ["m"]
    assert due(db.connect()) == []
    first.rollback()
    assert due(db.connect()) == ["m"]


def test_an_applied_message_is_not_parked(db):
    connection = db.connect()
    receive_many(connection, ["done"])
    today = uuid7_days_ago(db, 0)
    receive_many(connection, [today], birthdays=True)
    assert park(connection, "done", "k") == 0 and park(connection, today) == 0
    assert states(db) == {}


def test_a_message_that_another_process_is_applying_is_not_parked_behind_it(db):
    applying, parking = (db.connect(isolation="READ COMMITTED") for _ in range(2))
    watcher = db.connect()
    park(watcher, "m", "k")
    assert due(applying) == ["m"]

    def apply():
        Once(applying).receive(message_id="m")
        applied(applying, "m")
        waiting = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        wait_until(lambda: run(watcher, waiting, parking.get_backend_pid()), "the other process to wait")
        applying.commit()

    assert in_threads([lambda: park(parking, "m", "k", "dead"), apply])[0] == 0
    parking.commit()
    assert states(db) == {}


def test_a_message_that_failed_in_its_transaction_is_parked_in_it(db):
    connection = db.connect(isolation="READ COMMITTED")
    run(connection, "SAVEPOINT s")
    assert receive_many(connection, ["m"], ["k"]) == ["process"]
    run(connection, "ROLLBACK TO s")
    assert park(connection, "m", "k") == 1
    connection.commit()
    assert due(connection) == ["m"]
    assert run(connection, "SELECT once.receive('mailer', 'm', %s)", PRINT) == [("process",)]
    applied(connection, "m")
    connection.commit()
    assert states(db) == {} and receive_many(connection, ["m"], ["k"]) == ["duplicate"]


def test_malformed_ids_can_be_parked_and_named(db):
    connection = db.connect()
    for message in ("a\nb", "\u20ac" * 100, "x" * 512):
        assert park(connection, message, None, "dead") == 1
        assert db.value("SELECT once.parked_show(%s, 'mailer')", message)["state"] == "dead"
        assert db.value("SELECT once.parked_discard(%s, 'why', consumer => 'mailer')", message) is True
    assert states(db) == {}


@pytest.mark.parametrize(
    "message",
    [
        "(NULL, 't', NULL, NULL, NULL, {print}, 'dead', 0, 0, NULL, NULL)",
        "('', 't', NULL, NULL, NULL, {print}, 'dead', 0, 0, NULL, NULL)",
        "(repeat('x', 513), 't', NULL, NULL, NULL, {print}, 'dead', 0, 0, NULL, NULL)",
        "('m', NULL, NULL, NULL, NULL, {print}, 'dead', 0, 0, NULL, NULL)",
        "('m', 't', NULL, NULL, NULL, NULL, 'dead', 0, 0, NULL, NULL)",
        "('m', 't', NULL, NULL, NULL, 'short', 'dead', 0, 0, NULL, NULL)",
        "('m', 't', NULL, NULL, NULL, {print}, 'bogus', 0, 0, NULL, NULL)",
        "('m', 't', NULL, NULL, NULL, {print}, NULL, 0, 0, NULL, NULL)",
    ],
)
def test_a_message_that_is_none_is_not_parked(db, message):
    text = message.replace("{print}", "'0123456789abcdef'")
    with refused("22023") as caught:
        db.execute(f"SELECT once_job.message_park('mailer', '', ARRAY[{text}::once.parked])")
    assert caught.value.diag.message_hint and "mailer" in caught.value.diag.message_detail
    assert states(db) == {}


def test_nothing_to_park_is_nothing(db):
    for messages in ("NULL", "ARRAY[]::once.parked[]"):
        assert db.value(f"SELECT once_job.message_park('mailer', '', {messages})") == 0


def test_consumers_and_tenants_without_a_name_are_refused_at_every_door(db):
    for consumer, tenant, code in ((None, "", "P4000"), ("", "", "P4000"), ("c" * 256, "", "P4000"), ("c", None, "P4003")):
        for call in (
            "once_job.message_park(%s, %s, NULL)",
            "once_job.message_due(%s, %s, 1)",
            "once_job.message_applied(%s, %s, NULL)",
            "once_job.message_count(%s, %s)",
            "once_job.message_look(%s, %s, NULL, NULL)",
        ):
            with refused(code):
                db.execute(f"SELECT {call}", consumer, tenant)
    for consumer in ("", "c" * 256):
        for call in ("parked_show('m', consumer => %s)", "parked_retry('m', 'why', consumer => %s)", "parked_discard('m', 'why', consumer => %s)",
                     "parked_list(consumer => %s)", "parked_retry_many(consumer => %s)"):
            with refused("P4000"):
                db.execute(f"SELECT * FROM once.{call}", consumer)
    for take in (0, None):
        with refused("22023"):
            db.execute("SELECT once_job.message_due('c', '', %s)", take)


def test_what_is_parked_is_counted_up_to_a_limit(db):
    for n in range(5):
        park(db.connect(), f"m{n}")
    assert db.value("SELECT once_job.message_count('mailer')") == 5
    assert db.value("SELECT once_job.message_count('mailer', '', 3)") == 3
    assert db.value("SELECT once_job.message_count('billing')") == 0


def test_a_look_says_what_is_parked_without_touching_the_inbox(db):
    park(db.connect(), "p", "k", "dead")
    look = "SELECT array_agg(verdict ORDER BY ordinal) FROM once_job.message_look('mailer', '', %s, %s, %s)"
    arguments = (["p", "new", "free", "nokey"], ["k", "k", "f", None])
    assert db.value(look, *arguments, False) == ["parked", "blocked", "free", "free"]
    assert db.value(look, *arguments, True) == ["parked", "free", "free", "free"]
    assert db.value("SELECT count(*) FROM once.intent") == 0
    with refused("22023"):
        db.execute(look, ["a"], ["k", "k"], False)


# ---- many ----


def fill(db, keys, count, state="waiting"):
    db.execute(
        "INSERT INTO once.parked_message (consumer, tenant, message_id, topic, key, fingerprint, state, next_at, parked_at,"
        " updated_at) SELECT 'mailer', '', %s || g, 't', %s || g %% %s, %s, %s, now(), now(), now()"
        " FROM generate_series(1, %s) AS g",
        state,
        state,
        keys,
        PRINT,
        state,
        count,
    )


def test_thousands_behind_one_dead_message_are_not_looked_at_each_time(db):
    fill(db, 1, 1, "dead")
    db.execute("UPDATE once.parked_message SET key = 'waiting0'")
    fill(db, 1, 10_000)
    park(db.connect(), "other", "k")
    park(db.connect(), "nokey", None)
    connection = db.connect(isolation="READ COMMITTED")
    assert due(connection) == ["other", "nokey"]
    count = "SELECT coalesce(sum(idx_tup_fetch), 0) FROM pg_stat_xact_all_tables WHERE relname = 'parked_message'"
    before = run(connection, count)[0][0]
    due(connection)
    assert run(connection, count)[0][0] - before < 700


def test_where_much_is_due_the_order_is_the_same(db):
    """The other way to look for heads, which a short queue does not take."""
    fill(db, 40, 1000)
    fill(db, 10, 50, "dead")
    park(db.connect(), "nokey", None)
    connection = db.connect()
    heads = [f"waiting{n}" for n in range(1, 41)] + ["nokey"]
    assert due(connection) == heads
    assert due(connection, 3) == heads[:3]
    db.execute("UPDATE once.parked_message SET state = 'dead' WHERE message_id = 'waiting1'")
    db.execute("UPDATE once.parked_message SET next_at = now() + interval '1 hour' WHERE message_id = 'waiting2'")
    assert due(connection) == heads[2:]
    assert due(connection, skip_dead=True) == heads[2:40] + ["waiting41", "nokey"]
    first, second = (db.connect(isolation="READ COMMITTED") for _ in range(2))
    assert due(first, 30) == heads[2:32]
    assert due(second, 30) == heads[32:]


# ---- operators ----


def decisions(db):
    return db.rows("SELECT what, consumer, tenant, subject, from_state, reason, decided_by, error FROM once.parked_decision")


def test_a_retried_message_is_due_at_once_with_all_its_attempts_before_it(db):
    connection = db.connect()
    park(connection, "m", "k", "dead")
    assert db.value("SELECT once.parked_retry('m', 'fixed', consumer => 'mailer')") is True
    assert due(connection) == ["m"] and states(db) == {"m": ("retrying", 0)}
    assert decisions(db) == [("retry", "mailer", "", "m", "dead", "fixed", "postgres", "why")]
    assert db.value("SELECT once.parked_retry('x', 'fixed', consumer => 'mailer')") is False


@pytest.mark.parametrize("uuid", [False, True])
def test_a_discarded_message_is_a_duplicate_ever_after_and_frees_its_key(db, uuid):
    connection = db.connect()
    message = uuid7_days_ago(db, 0) if uuid else "m"
    park(connection, message, "k", "dead")
    park(connection, "next", "k", "waiting")
    assert db.value("SELECT once.parked_discard(%s, 'never', consumer => 'mailer')", message) is True
    assert receive_many(connection, [message], ["k"], birthdays=True) == ["duplicate"]
    assert due(connection) == ["next"]
    assert [(row.what, row.subject, row.error) for row in decisions(db)] == [("discard", message, "why")]
    assert db.value("SELECT once.parked_discard(%s, 'never', consumer => 'mailer')", message) is False


def test_a_discarded_message_of_a_consumer_under_leases_never_runs_again(db):
    """An attempt that failed left its intent behind: the discard decides it, too."""
    once = Once(db.connect())
    once.claim(scope="mailer", key="m")
    once.fail(scope="mailer", key="m", fence=1, retryable=True)
    park(db.connect(), "m", "k", "dead")
    assert db.value("SELECT once.parked_discard('m', 'never', consumer => 'mailer')") is True
    assert once.claim(scope="mailer", key="m").verdict == "replay_success"
    once.claim(scope="mailer", key="busy")
    park(db.connect(), "busy", "k", "dead")
    with refused("P4029"):
        db.execute("SELECT once.parked_discard('busy', 'never', consumer => 'mailer')")
    assert states(db) == {"busy": ("dead", 1)}


@pytest.mark.parametrize("days, code", [(0, "P4098"), (-3, "P4001")])
def test_a_message_whose_day_is_not_open_is_not_discarded_since_it_could_not_be_remembered(db, days, code):
    message = uuid7_days_ago(db, days)
    park(db.connect(), message, "k", "dead")
    park(db.connect(), "plain", "k", "dead")
    db.execute(f"DROP TABLE once.intent_d{today(db)}")
    held = hold_days(db)
    with refused(code) as told:
        db.execute("SELECT once.parked_discard(%s, 'never', consumer => 'mailer')", message)
    held.rollback()
    assert message in told.value.diag.message_detail and told.value.diag.message_hint
    # The keeper goes round it.
    db.execute("UPDATE once.parked_message SET updated_at = now() - interval '91 days'")
    keeper(db).work("dead")
    assert states(db) == {message: ("dead", 1)}
    if days == 0:
        db.execute("SELECT once.add_days()")
        assert db.value("SELECT once.parked_discard(%s, 'never', consumer => 'mailer')", message) is True
        assert receive_many(db.connect(), [message], ["k"], birthdays=True) == ["duplicate"]


def test_a_message_whose_day_is_made_while_it_is_discarded_is_not_since_nothing_would_remember_it(db):
    message = uuid7_days_ago(db, 0)
    park(db.connect(), message, state="dead")
    mutate(db, "_receivable", "day := once._open_day(bucket)", "day := 'missing'")  # that was so when it looked
    with refused("P4098"):
        db.execute("SELECT once.parked_discard(%s, 'never', consumer => 'mailer')", message)
    assert states(db) == {message: ("dead", 1)}


def test_a_message_that_is_being_received_is_not_discarded(db):
    busy = db.connect(isolation="READ COMMITTED")
    park(db.connect(), "m", "k", "dead")
    Once(busy).receive(message_id="m")
    with refused("P4029"):
        db.execute("SELECT once.parked_discard('m', 'never', consumer => 'mailer')")
    assert states(db) == {"m": ("dead", 1)}


def test_parked_messages_are_listed_and_shown(db):
    connection = db.connect()
    park(connection, "m1", "k", "dead")
    park(connection, "m2", "k", "waiting")
    park(connection, "m3", None, "retrying", wait_ms=60_000, consumer="billing", tenant="acme")
    listed = "SELECT kind, holder, state, id, tenant FROM once.parked_list"
    everything = [
        ("message", "mailer", "dead", "m1", ""),
        ("message", "billing", "retrying", "m3", "acme"),
        ("message", "mailer", "waiting", "m2", ""),
    ]
    assert db.rows(f"{listed}(state => 'dead')") == everything[:1]
    assert db.rows(f"{listed}()") == db.rows(f"{listed}('message')") == everything
    assert db.rows(f"{listed}('event')") == []
    assert db.rows(f"{listed}(take => 2)") == everything[:2]
    assert db.rows(f"{listed}(consumer => 'mailer')") == [everything[0], everything[2]]
    assert db.rows(f"{listed}(consumer => 'billing', state => 'dead')") == []
    assert db.rows(f"{listed}(tenant => 'acme')") == db.rows(f"{listed}(id => 'm3')") == [everything[1]]
    assert db.rows(f"{listed}(error => 'WHY')") == db.rows(f"{listed}(error => '22000')") == everything
    assert db.rows(f"{listed}(error => '23505')") == db.rows(f"{listed}(before => now() - interval '1 hour')") == []
    assert db.rows("SELECT kind, holder, topic, state, items FROM once.parked_summary() ORDER BY holder, state") == [
        ("message", "billing", "t", "retrying", 1), ("message", "mailer", "t", "dead", 1), ("message", "mailer", "t", "waiting", 1)]
    db.execute("SELECT once.parked_retry('m1', 'once more', consumer => 'mailer')")
    shown = db.value("SELECT once.parked_show('m1', 'mailer')")
    assert (shown["payload"], shown["payload_bytes"], shown["key"], shown["state"]) == ("Ym9keQ==", 4, "k", "retrying")
    assert (shown["error"], shown["sqlstate"], shown["topic"]) == ("why", "22000", "t")
    assert [(each["what"], each["reason"]) for each in shown["decisions"]] == [("retry", "once more")]
    assert db.value("SELECT once.parked_show('m1', 'mailer', 'acme')") is None
    assert json.dumps(shown)


def test_a_dead_message_of_a_forgotten_day_is_not_retried_since_no_attempt_would_be_let_in(db):
    connection = db.connect()
    old = uuid7_days_ago(db, 60)
    retry = "SELECT once.parked_retry(%s, 'the handler is mended', consumer => 'mailer')"
    park(connection, old, state="dead")
    with refused("P4041"):
        db.value(retry, old)
    assert states(db) == {old: ("dead", 1)}
    assert db.value("SELECT count(*) FROM once.parked_decision") == 0
    assert db.value("SELECT once.parked_discard(%s, 'nobody wants it', consumer => 'mailer')", old) is True
    # With another id, and of an open day, it is.
    for message in (f"pgonce:id:{old}", uuid7_days_ago(db, 1)):
        park(connection, message, state="dead")
        assert db.value(retry, message) is True
        assert due(connection) == [message]
        assert receive_many(connection, [message], birthdays=True) == ["parked"]
        assert Once(connection).receive(message_id=message, consumer="mailer", birthdays=True) == "process"
        assert applied(connection, message) == 1
        assert receive_many(connection, [message], birthdays=True) == ["duplicate"]


# ---- lines


def lines(connection, take=100, skip_dead=False):
    return [row.message_id for row in run(connection, "SELECT * FROM once_job.message_due('mailer', '', %s, %s, true)", take, skip_dead)]


def park_line(connection, key, first, last, state="waiting", wait_ms=0):
    for number in range(first, last + 1):
        park(connection, f"{key}{number}", key, state, wait_ms=wait_ms)


def test_a_line_is_given_when_its_first_is_due_and_ends_at_what_waits_for_something_else(db):
    connection = db.connect()
    park_line(connection, "a", 1, 3)
    park(connection, "a4", "a", "retrying", wait_ms=60_000)
    park_line(connection, "a", 5, 6)
    park_line(connection, "b", 1, 2)
    park(connection, "b3", "b", "dead")
    park_line(connection, "b", 4, 5)
    park(connection, "c1", "c", "retrying", wait_ms=60_000)
    park_line(connection, "c", 2, 3)
    park(connection, "free1")
    park(connection, "free2")
    assert lines(connection) == ["a1", "a2", "a3", "b1", "b2", "free1", "free2"]
    assert lines(connection, skip_dead=True) == ["a1", "a2", "a3", "b1", "b2", "b4", "b5", "free1", "free2"]
    assert due(connection) == ["a1", "b1", "free1", "free2"]


def test_lines_get_an_equal_share_and_come_in_the_order_in_which_they_came(db):
    connection = db.connect()
    for number in range(10):
        park_line(connection, "a", number, number)
        park_line(connection, "b", number, number)
    assert lines(connection, 7) == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert lines(connection, 2) == ["a0", "b0"] and lines(connection, 1) == ["a0"]
    assert lines(connection, 100) == [f"{key}{number}" for number in range(10) for key in "ab"]


def test_a_line_ends_before_a_message_that_another_has_locked_and_whoever_has_its_first_has_it(db):
    park_line(db.connect(), "a", 1, 5)
    operator, first, second = (db.connect(isolation="READ COMMITTED", lock_timeout="1s") for _ in range(3))
    run(operator, "SELECT FROM once.parked_message WHERE message_id = 'a4' FOR UPDATE")
    assert lines(first) == ["a1", "a2", "a3"]
    operator.rollback()
    assert lines(second) == []
    with refused("55P03"):
        run(operator, "SELECT once.parked_discard('a3', 'while it is applied', consumer => 'mailer')")
    applied(first, "a1")
    first.commit()
    assert lines(second) == ["a2", "a3", "a4", "a5"]


def test_what_follows_is_bounded_in_bytes(db):
    connection = db.connect()
    park_line(connection, "a", 1, 5)
    park_line(connection, "b", 1, 5)
    db.execute("UPDATE once.parked_message SET payload = convert_to(repeat('x', 1500000), 'UTF8')")
    assert lines(connection) == ["a1", "a2", "b1", "b2"]
