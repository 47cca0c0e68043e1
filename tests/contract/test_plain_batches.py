# SPDX-License-Identifier: PostgreSQL
"""A batch that is plain through and through takes a short way: few statements, and of undated keys one table. It is told and does what any
other batch is told and does; and what is not plain takes the long way, whatever happens meanwhile."""

import os
import re

import pytest

from harness.postgres import wait_until

from .calls import OTHER_PRINT, PRINT, Once, code_of, in_threads, now_ms, refused, run, uuid7, uuid7_days_ago
from .test_keep_days import keeper, old_key
from .test_receive_many import park, receive_many

LEASE = "1 minute"


def keys_of(db, uuids, count=3, start=0):
    ms = now_ms(db)
    return [uuid7(ms, number) if uuids else f"k{number}" for number in range(start, start + count)]


def statements(connection, call):
    """What the call runs, as auto_explain tells it, without itself."""
    run(
        connection,
        "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on; SET client_min_messages = log",
    )
    del connection.notices[:]
    call()
    run(connection, "RESET client_min_messages")
    texts = [re.search(r"Query Text: (.*)", notice, re.S).group(1).strip() for notice in connection.notices if "Query Text" in notice]
    return [text for text in texts if not re.match(r"SELECT \* FROM once\.|RESET|SET", text)]


def tables(db, connection):
    """Of the intents: those that the connection's transaction has locked."""
    return {
        row.name
        for row in db.rows(
            "SELECT c.relname AS name FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation WHERE l.pid = %s AND c.relkind IN ('r', 'p')"
            " AND c.relnamespace = 'once'::regnamespace AND c.relname LIKE 'intent%%'",
            connection.get_backend_pid(),
        )
    }


# How many statements each may take at most: of undated keys, of keys of one day.
BATCHES = {
    "claim_many": (lambda once, keys: once.claim_many(key=keys, lease=LEASE, alone=True), 2, 2),
    "complete_many": (lambda once, keys: once.complete_many(key=keys, fence=[1] * len(keys), response_body=[b"a"] * len(keys)), 1, 1),
    "fail_many": (lambda once, keys: once.fail_many(key=keys, fence=[1] * len(keys), retryable=[True] * len(keys)), 2, 3),
    "receive_many": (lambda once, keys: receive_many(once.connection, keys, birthdays=True), 2, 2),
    "receive_many, opaque": (lambda once, keys: receive_many(once.connection, keys), 2, 3),
}


@pytest.mark.parametrize("uuids", [False, True], ids=["arbitrary keys", "UUIDv7 keys"])
@pytest.mark.parametrize("batch", BATCHES)
def test_a_plain_batch_takes_few_statements_whatever_its_size(db, batch, uuids):
    call, undated, dated = BATCHES[batch]
    connection = db.connect()
    once = Once(connection)
    once.peek(key="k")  # the first call of a session asks for pgonce_native
    for number, size in enumerate((1, 2, 50)):
        keys = keys_of(db, uuids, size, 100 * number)
        if batch in ("complete_many", "fail_many"):
            once.claim_many(key=keys)
            if size == 1:
                continue
        made = statements(connection, lambda keys=keys: call(once, keys))
        assert len(made) <= (dated if uuids else undated), made
        assert not any("ON CONFLICT" in text for text in made), made
    stored = db.rows("SELECT state, count(*) AS count FROM once.intent GROUP BY state ORDER BY count")
    assert stored[-1].count >= 50, stored


@pytest.mark.parametrize("batch", BATCHES)
def test_a_plain_batch_of_undated_keys_locks_their_table_alone(db, batch):
    call = BATCHES[batch][0]
    connection = db.connect(isolation="READ COMMITTED")
    once = Once(connection)
    Once(db.connect()).claim_many(key=keys_of(db, False, 9))
    for number in range(3):  # the first makes the plans
        connection.rollback()
        call(once, keys_of(db, False, 3, 3 * number if batch in ("complete_many", "fail_many") else 10 + 3 * number))
    assert tables(db, connection) == {"intent_d0"}


@pytest.mark.parametrize("size", [4000, 4001, 10000])
@pytest.mark.parametrize("batch", ["claim_many", "receive_many"])
def test_the_longest_keys_are_taken_in_the_largest_batch(db, batch, size):
    connection = db.connect(isolation="READ COMMITTED")
    keys = [f"k{number:0>254}" for number in range(size)]
    for verdict in ({"claim_many": "new_claim", "receive_many": "process"}[batch], {"claim_many": "processing_active", "receive_many": "duplicate"}[batch]):
        said = BATCHES[batch][0](Once(connection), keys)
        assert [getattr(row, "verdict", row) for row in said] == [verdict] * size


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_under_an_old_snapshot_no_batch_is_plain(db, level):
    connection = db.connect(isolation=level)
    for batch in ("claim_many", "receive_many"):
        made = statements(connection, lambda batch=batch: BATCHES[batch][0](Once(connection), keys_of(db, False)))
        connection.rollback()
        assert any("ON CONFLICT" in text for text in made), made


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("uuids", [False, True], ids=["arbitrary keys", "UUIDv7 keys"])
@pytest.mark.parametrize("batch", ["claim_many", "receive_many"])
def test_under_an_old_snapshot_a_batch_that_others_were_faster_with_ends_in_40001(db, batch, uuids, level):
    connection = db.connect(isolation=level)
    keys = keys_of(db, uuids)
    run(connection, "SELECT 1 FROM pg_class LIMIT 1")
    BATCHES[batch][0](Once(db.connect()), keys[:1])
    assert code_of(lambda: BATCHES[batch][0](Once(connection), keys)) == "40001"


def behind_gate(db, text, arguments, meanwhile):
    """The rows of a statement that has its snapshot, and then waits until meanwhile has happened."""
    gate, connection = db.connect(), db.connect()
    run(gate, "SELECT pg_advisory_lock(1)")

    def go_on():
        wait_until(
            lambda: run(gate, "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", connection.get_backend_pid()),
            "the batch at the gate",
        )
        meanwhile()
        run(gate, "SELECT pg_advisory_unlock(1)")

    query = f"SELECT r.* FROM (SELECT pg_advisory_xact_lock(1) OFFSET 0) AS gate, LATERAL {text} AS r"
    return in_threads([lambda: run(connection, query, *arguments), go_on])[0]


@pytest.mark.parametrize("uuids", [False, True], ids=["arbitrary keys", "UUIDv7 keys"])
def test_what_came_to_be_after_the_batchs_own_snapshot_is_seen(db, uuids):
    keys = keys_of(db, uuids)
    rows = behind_gate(
        db,
        "once.claim_many(ARRAY['orders', 'orders', 'orders'], %s::text[], array_fill(%s::bytea, ARRAY[3]))",
        (keys, PRINT),
        lambda: Once(db.connect()).claim(key=keys[1]),
    )
    assert [row.verdict for row in rows] == ["new_claim", "processing_active", "new_claim"]
    messages = keys_of(db, uuids, start=10)
    rows = behind_gate(
        db,
        "once.receive_many('mailer', %s::text[], NULL, array_fill(%s::bytea, ARRAY[3]))",
        (messages, PRINT),
        lambda: Once(db.connect()).receive(message_id=messages[1]),
    )
    assert [row.verdict for row in rows] == ["process", "duplicate", "process"]


@pytest.mark.parametrize("uuids", [False, True], ids=["arbitrary keys", "UUIDv7 keys"])
def test_one_old_or_locked_or_bad_or_repeated_element_among_new_ones_gets_what_it_gets_alone(db, uuids):
    once, other = Once(db.connect()), db.connect(isolation="READ COMMITTED")
    old, held, *new = keys_of(db, uuids, 40)
    once.claim(key=old)
    once.complete(key=old, fence=1, response_body=b"old")
    Once(other).claim(key=held)
    for odd, verdict in ((old, "replay_success"), (held, "processing_active"), ("", "invalid"), (None, "invalid"), (new[0], "processing_active")):
        keys, new = new[:3], new[3:]
        if verdict == "processing_active" and odd != held:
            odd = keys[0]
        rows = once.claim_many(key=[*keys, odd], owner="me", traceparents=["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "bad", None, None])
        assert [row.verdict for row in rows] == ["new_claim"] * 3 + [verdict]
        assert [row.ord for row in rows] == [1, 2, 3, 4]
        assert [row.traceparent is not None for row in rows[:3]] == [True, False, False]
        assert {row.state for row in once.peek_many(key=keys)} == {"processing"}
    rows = once.claim_many(key=[new[0], new[1], new[0]], fingerprint=[PRINT, PRINT, OTHER_PRINT])
    assert [row.verdict for row in rows] == ["new_claim", "new_claim", "mismatch"]


def test_a_plain_batch_stores_what_single_claims_store(db):
    once = Once(db.connect())
    db.execute("SELECT once.set_scope('orders', lease => '3 hours')")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    columns = (
        "state, fence, attempts, bucket, fingerprint, owner, traceparent, format_version, created_at = updated_at AS same,"
        " lease_until - created_at AS lease, expires_at - created_at AS kept, completed_at, response_status"
    )
    for more in ({}, {"lease": "1 minute"}, {"retention": "2 days"}):
        for uuids in (False, True):
            db.execute("DELETE FROM once.intent")
            single, *batch = keys_of(db, uuids)
            once.claim(key=single, owner="me", traceparent=trace, **more)
            rows = once.claim_many(key=batch, owner="me", traceparents=[trace] * 2, **more)
            assert len(db.rows(f"SELECT DISTINCT {columns} FROM once.intent")) == 1
            for row in rows:
                assert db.value("SELECT lease_until = %s FROM once.intent WHERE key = %s", row.lease_until, batch[row.ord - 1])
                assert (row.fence, row.state, row.attempts, row.traceparent, row.kept_ms) == (1, "processing", 1, trace, None)


def test_batches_of_several_scopes_without_a_lease_give_each_its_own(db):
    db.execute("SELECT once.set_scope('long', lease => '2 hours')")
    rows = Once(db.connect()).claim_many(scope=["orders", "long"], key=["a", "b"])
    assert [row.verdict for row in rows] == ["new_claim"] * 2
    assert (rows[1].lease_until - rows[0].lease_until).total_seconds() == 7200 - 60


@pytest.mark.parametrize("batch", ["claim_many", "receive_many"])
def test_a_batch_whose_day_is_closed_before_it_inserts_is_to_try_again(db, batch):
    """The day is open when it asks; then it waits for the closing."""
    keeper(db)
    keys = [old_key(db, number) for number in (1, 2)]
    Once(db.connect()).receive(message_id=old_key(db, 3), consumer="another", birthdays=True)
    call = BATCHES[batch][0]
    closing = db.connect(isolation="READ COMMITTED")
    run(closing, "SELECT once_job.keep_step('keeper', 'close')")

    def commit_when_it_waits():
        wait_until(lambda: db.value("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'") == 1, "the batch to wait")
        closing.commit()

    codes = in_threads([lambda: code_of(lambda: call(Once(db.connect()), keys)), commit_when_it_waits])
    assert codes[0] == "40001"
    assert db.value("SELECT count(*) FROM once.intent WHERE key = ANY (%s)", keys) == 0
    told = call(Once(db.connect()), keys)
    assert told == ["P4041"] * 2 if batch == "receive_many" else {row.verdict for row in told} == {"expired"}


def test_a_batch_of_today_whose_day_ends_before_it_inserts_keeps_its_day(db):
    keys = keys_of(db, True)
    db.execute(
        "CREATE OR REPLACE FUNCTION once._is_today(bucket integer) RETURNS boolean LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM once._set_today(bucket + 1); RETURN true; END'"
    )
    once = Once(db.connect())
    assert {row.verdict for row in once.claim_many(key=keys)} == {"new_claim"}
    assert db.value("SELECT count(*) FROM once.intent WHERE bucket = once._bucket(key)") == 3
    assert {row.verdict for row in once.claim_many(key=keys)} == {"processing_active"}


def test_a_batch_of_messages_beside_a_parked_one_looks_at_each(db):
    connection = db.connect()
    park(connection, "parked", "k")
    assert receive_many(connection, ["a", "b", "parked"], ["k", None, None]) == ["blocked", "process", "parked"]
    assert receive_many(connection, ["c", "d"], ["k", None]) == ["blocked", "process"]
    assert receive_many(connection, ["e", "f"], ["k", None], consumer="another") == ["process"] * 2


def mixed(db):
    """Undated, of today, of yesterday."""
    return [key for number in range(3) for key in (f"k{number}", uuid7_days_ago(db, 0, number), uuid7_days_ago(db, 1, number))]


@pytest.mark.parametrize("first", [0, 1, 2], ids=["undated", "of today", "of yesterday"])
def test_reports_of_undated_keys_and_of_several_days_are_stored_together(db, first):
    once = Once(db.connect())
    keys = mixed(db)
    keys = keys[first:] + keys[:first]
    once.claim_many(key=keys)
    bodies = [key.encode() for key in keys]
    bodies[4] = b"b" * 10_000  # not plain
    fences = [1] * 8 + [9]
    rows = once.complete_many(key=keys, fence=fences, response_body=bodies)
    assert [row.verdict for row in rows] == ["stored"] * 8 + ["refused"]
    assert [row.ord for row in rows] == list(range(1, 10))
    assert [row.response_body for row in once.peek_many(key=keys)] == bodies[:8] + [None]
    rows = once.complete_many(key=keys, fence=fences, response_body=bodies)
    assert [row.verdict for row in rows] == ["repeated"] * 8 + ["refused"]


@pytest.mark.parametrize("uuids", [False, True], ids=["arbitrary keys", "UUIDv7 keys"])
@pytest.mark.parametrize("batch", ["complete_many", "fail_many"])
def test_a_report_under_an_old_fence_is_refused_among_plain_ones(db, batch, uuids):
    once = Once(db.connect())
    keys = keys_of(db, uuids)
    once.claim_many(key=keys)
    rows = once.complete_many(key=keys, fence=[1, 2, 1]) if batch == "complete_many" else once.fail_many(key=keys, fence=[1, 2, 1], retryable=[False] * 3)
    assert [row.verdict for row in rows] == ["stored", "refused", "stored"]
    state = "succeeded" if batch == "complete_many" else "failed_final"
    assert [row.state for row in once.peek_many(key=keys)] == [state, "processing", state]


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 2, 0), (1, 0, 2)], ids=["yesterday, today, undated", "today, yesterday, undated", "today, undated, yesterday"])
def test_reports_of_the_same_intents_take_their_rows_in_one_order_and_do_not_deadlock(db, order):
    """The first stops at an undated key that somebody else holds. The second, in another order, must not have taken the dated one by then."""
    once = Once(db.connect())
    keys = ["k", uuid7_days_ago(db, 0, 0), uuid7_days_ago(db, 1, 0)]
    once.claim_many(key=keys)
    holder = db.connect(isolation="READ COMMITTED")
    Once(holder).renew(key="k", fence=1)
    first, second = (db.connect(deadlock_timeout="50ms") for _ in range(2))

    def waits(connection):
        return db.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", connection.get_backend_pid()) == 1

    def late():
        wait_until(lambda: waits(first), "the first to wait")
        return [row.verdict for row in Once(second).complete_many(key=[keys[n] for n in order], fence=[1] * 3)]

    def let_go():
        wait_until(lambda: waits(first) and waits(second), "both to wait")
        holder.commit()

    told = in_threads([lambda: [row.verdict for row in Once(first).complete_many(key=keys, fence=[1] * 3)], late, let_go])
    assert told[:2] == [["stored"] * 3, ["repeated"] * 3]


@pytest.mark.parametrize("batch", ["complete_many", "fail_many"])
@pytest.mark.parametrize("first", ["undated", "of today"])
def test_what_a_batch_has_stored_before_it_goes_on_with_other_elements_is_stored_and_not_repeated(db, batch, first):
    """Elements of other days, one that no plain statement stores, one under an old fence, and the same one twice."""
    once = Once(db.connect())
    undated, today, before = keys_of(db, False), keys_of(db, True), [uuid7_days_ago(db, 1, n) for n in range(2)]
    keys = [*(undated if first == "undated" else today), *before, *(today if first == "undated" else undated)]
    once.claim_many(key=keys)
    bodies = [b"x"] * len(keys)
    bodies[1] = b"x" * 10000
    more = {"retryable": [False] * (len(keys) + 1)} if batch == "fail_many" else {}
    rows = getattr(once, batch)(key=[*keys, keys[0]], fence=[1] * (len(keys) - 1) + [2, 1], response_body=[*bodies, b"x"], **more)
    assert [row.verdict for row in rows] == ["stored"] * (len(keys) - 1) + ["refused", "repeated"]
    state = "failed_final" if batch == "fail_many" else "succeeded"
    assert [row.state for row in once.peek_many(key=keys)] == [state] * (len(keys) - 1) + ["processing"]
    assert [row.response_body for row in once.peek_many(key=keys)][:-1] == bodies[:-1]


def test_completions_of_todays_keys_open_todays_table_alone(db):
    connection = db.connect(isolation="READ COMMITTED")
    for number in range(3):  # the first makes the plans
        connection.rollback()
        keys = keys_of(db, True, 3, 3 * number)
        Once(db.connect()).claim_many(key=keys)
        BATCHES["complete_many"][0](Once(connection), keys)
    assert tables(db, connection) == {"intent", f"intent_d{db.value('SELECT once._today()')}"}


@pytest.mark.parametrize("more", [{"response_status": []}, {"response_headers": []}, {"result_id": []}, {"response_body": [b"a"]}, {"fence": [1]}])
def test_an_array_that_is_empty_is_none_that_is_left_out(db, more):
    once = Once(db.connect())
    once.claim_many(key=["a", "b"])
    with refused("22023"):
        once.complete_many(**{"key": ["a", "b"], "fence": [1, 1], **more})
    with refused("22023"):
        once.claim_many(key=["c", "d"], traceparents=[])
    assert db.value("SELECT count(*) FROM once.intent WHERE state = 'processing'") == 2


@pytest.mark.parametrize("lease", ["0", "-1 second", "8 days", "-12 months 361 days", "4 months -120 days", "1 month"])
def test_a_batch_refuses_a_lease_that_is_none(db, lease):
    with refused("22023"):
        Once(db.connect()).claim_many(key=["a", "b"], lease=lease)


# ---- One alone ----

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def without(rows, *names):
    return [tuple(value for name, value in zip(row._fields, row) if name not in names) for row in rows]


def test_one_alone_takes_one_statement_on_its_own_table(db):
    connection = db.connect(isolation="READ COMMITTED")
    once = Once(connection)
    for call in (lambda key: once.claim_many(alone=True, key=[key], lease=LEASE), lambda key: once.complete_many(alone=True, key=[key], fence=[1], response_body=[b"a"])):
        for key in "abc":  # the first makes the plans
            made = statements(connection, lambda call=call, key=key: call(key))
            touched = tables(db, connection)
            connection.commit()
        # With pgonce_native none is made in SQL.
        assert len(made) == (os.environ.get("PGONCE_NATIVE") != "yes") and touched == {"intent_d0"}, (made, touched)
    assert db.value("SELECT count(*) FROM once.intent WHERE state = 'succeeded' AND response_body = 'a'") == 3


def test_one_alone_stores_and_is_told_what_one_among_others_does_and_is(db):
    once = Once(db.connect())
    made = {}
    for name, keys in (("alone", ["a"]), ("among", ["b", "c"])):
        size = len(keys)
        db.execute("SELECT setval('once.counted_new', 1)")
        claims = once.claim_many(alone=True, key=keys, owner="me", lease="3 hours", retention="2 days", traceparents=[TRACE] * size)
        assert db.value("SELECT last_value FROM once.counted_new") == 1 + size
        assert claims[0].lease_until == db.value("SELECT lease_until FROM once.intent WHERE key = %s", keys[0])
        doubtful = once.claim_many(alone=True, key=[key + key for key in keys], lease="1 hour")
        once.fail_many(alone=True, key=[key + key for key in keys], fence=[1] * size, retryable=[None] * size)
        outcome = {"response_status": [201] * size, "response_body": [b"body"] * size, "response_headers": ['{"a": "b"}'] * size,
                   "result_type": ["order"] * size, "result_id": ["7"] * size}
        reports = [once.complete_many(alone=True, key=[letter * times for letter in keys], fence=[1] * size, **outcome) for times in (1, 2)]
        row = db.row("SELECT * FROM once.intent WHERE key = %s", keys[0])
        assert row.created_at < row.updated_at == row.completed_at
        made[name] = (without(claims[:1] + doubtful[:1], "lease_until"), [without(told[:1]) for told in reports],
                      without([row], "key", "created_at", "updated_at", "completed_at", "expires_at"), row.expires_at - row.created_at,
                      db.value("SELECT state FROM once.intent WHERE key = %s", keys[0] * 2))
    assert made["alone"] == made["among"]
    assert made["alone"][0][0][1] == "new_claim" and made["alone"][1][0][0][1] == "stored" and made["alone"][4] == "succeeded"


def test_one_alone_that_is_not_plain_gets_what_it_gets_among_others(db):
    once, other = Once(db.connect()), db.connect(isolation="READ COMMITTED")
    once.claim_many(alone=True, key=["old", "running"])
    once.complete(key="old", fence=1, response_body=b"old")
    Once(other).claim(key="held")
    day = uuid7(now_ms(db), 1)
    odd = [{"key": key} for key in ("old", "running", "held", "", None, "\x7f", "k" * 256, day, uuid7(2_300_000_000_000))]
    odd += [{"key": "new", "scope": scope} for scope in ("", None, "s" * 256)]
    odd += [{"key": "new", "fingerprint": print_} for print_ in (b"short", None)] + [{"key": "old", "fingerprint": OTHER_PRINT}]
    told = []
    for number, each in enumerate(odd):
        pair = {name: [value, {"key": f"n{number}", "scope": "orders", "fingerprint": PRINT}[name]] for name, value in each.items()}
        among = once.claim_many(alone=True, **pair, lease=LEASE)[:1]
        if each["key"] == day:
            assert db.value("SELECT bucket FROM once.intent WHERE key = %s", day) > 0
            db.execute("DELETE FROM once.intent WHERE key = %s", day)
        alone = once.claim_many(alone=True, **{name: values[:1] for name, values in pair.items()}, lease=LEASE)
        assert without(alone, "lease_until", "kept_ms") == without(among, "lease_until", "kept_ms"), each
        told.append(alone[0].verdict)
    assert db.value("SELECT bucket FROM once.intent WHERE key = %s", day) > 0
    assert told == ["replay_success"] + ["processing_active"] * 2 + ["invalid"] * 4 + ["new_claim"] + ["invalid"] * 6 + ["mismatch"]


def test_a_report_alone_that_is_not_plain_gets_what_it_gets_among_others(db):
    once = Once(db.connect())
    odd = [{"fence": [9, 1]}, {"response_body": [b"x" * 9000, b"x"]}, {"response_body": [b"x" * 2_000_000, b"x"]}, {"response_status": [1000, 200]},
           {"response_headers": ["[]", "{}"]}, {"key": ["", "k"]}, {"key": [None, "k"]}, {"scope": ["", "orders"]}, {"scope": [None, "orders"]},
           {"fence": [None, 1]}]
    for number, each in enumerate(odd):
        keys = [f"{kind}{number}{element}" for kind in ("alone", "among") for element in range(2)]
        once.claim_many(alone=True, key=keys)
        told = []
        for key, size in ((keys[:1], 1), (keys[2:], 2)):
            call = {"key": key, "fence": [1] * size, **{name: values[:size] for name, values in each.items()}}
            if "key" in each and size == 2:
                call["key"] = [each["key"][0], key[1]]
            told += [without(once.complete_many(alone=True, **call)[:1]) for _ in range(2)]
        assert told[:2] == told[2:], each
    assert [row.verdict for row in once.complete_many(alone=True, key=["nobody"], fence=[1])] == ["refused"]
    once.claim(key="plain")
    told = [once.complete_many(alone=True, key=["plain"], fence=[1], response_body=[body])[0].verdict for body in (b"a", b"b", b"a")]
    assert told == ["stored", "refused", "repeated"]


def test_what_came_to_be_after_the_snapshot_of_one_alone_is_seen(db):
    rows = behind_gate(
        db,
        "once.claim_many(ARRAY['orders'], ARRAY['k'], ARRAY[%s::bytea], lease => '1 minute')",
        (PRINT,),
        lambda: Once(db.connect()).claim(key="k"),
    )
    assert [row.verdict for row in rows] == ["processing_active"]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_under_an_old_snapshot_one_alone_that_another_was_faster_with_ends_in_40001(db, level):
    connection = db.connect(isolation=level)
    run(connection, "SELECT 1 FROM pg_class LIMIT 1")
    Once(db.connect()).claim(key="k")
    assert code_of(lambda: Once(connection).claim_many(alone=True, key=["k"], lease=LEASE)) == "40001"
