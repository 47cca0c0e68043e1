# SPDX-License-Identifier: PostgreSQL
"""A batch is its single calls in one statement: the same verdicts, in the order of its elements, and one commit."""

import pytest

from harness.postgres import wait_until

from .calls import OTHER_PRINT, PRINT, Once, code_of, in_threads, let_lease_pass, refused, run, uuid7_days_ago
from .test_transitions import build

STATES = (
    (None, False),
    ("processing", False),
    ("processing", True),
    ("succeeded", False),
    ("failed_retryable", False),
    ("failed_final", False),
    ("in_doubt", False),
)


def test_rows_come_in_the_order_of_the_elements(db):
    once = Once(db.connect())
    keys = [f"k{n * 7919 % 1000:03d}" for n in range(1000)]  # each once, far from sorted
    assert [row.ord for row in once.claim_many(key=keys)] == list(range(1, 1001))
    bodies = [key.encode() for key in keys]
    assert [row.ord for row in once.complete_many(key=keys, fence=[1] * 1000, response_body=bodies)] == list(
        range(1, 1001)
    )
    assert [row.response_body for row in once.peek_many(key=keys)] == bodies
    assert [row.response_body for row in once.claim_many(key=keys)] == bodies


def test_the_same_key_twice_in_a_batch_is_one_claim(db):
    rows = Once(db.connect()).claim_many(key=["a", "b", "a", "a"], fingerprint=[PRINT, PRINT, PRINT, OTHER_PRINT])
    assert [row.verdict for row in rows] == ["new_claim", "new_claim", "processing_active", "mismatch"]
    assert db.value("SELECT count(*) FROM once.intent") == 2


def test_the_same_takeover_twice_in_a_batch_is_one_takeover(db):
    once = Once(db.connect())
    for key in ("stale", "failed"):
        once.claim(key=key)
    let_lease_pass(db, "stale")
    once.fail(key="failed", fence=1, retryable=True)
    rows = once.claim_many(key=["stale", "failed", "stale", "failed"], takeover=True)
    assert [(row.verdict, row.fence) for row in rows] == [
        ("processing_stale", 2),
        ("retryable_failure", 2),
        ("processing_active", 2),
        ("processing_active", 2),
    ]


def test_the_same_key_in_two_scopes_or_with_another_spelling_is_two_claims(db):
    rows = Once(db.connect()).claim_many(scope=["a", "b", "a"], key=["k", "k", "K"])
    assert [row.verdict for row in rows] == ["new_claim"] * 3


def test_of_two_completions_of_one_intent_in_a_batch_the_first_is_stored(db):
    once = Once(db.connect())
    once.claim(key="k")
    rows = once.complete_many(key=["k", "k", "k"], fence=[1, 1, 1], response_body=[b"a", b"a", b"b"])
    assert [row.verdict for row in rows] == ["stored", "repeated", "refused"]
    assert once.peek(key="k").response_body == b"a"


@pytest.mark.parametrize("policy", ["on_stale => 'takeover'", "on_stale => 'in_doubt'", "max_attempts => 1"])
@pytest.mark.parametrize("fingerprint", [PRINT, OTHER_PRINT])
def test_claim_many_says_of_every_state_what_claim_says(db, policy, fingerprint):
    once = Once(db.connect())
    keys = []
    for number, (state, stale) in enumerate(STATES):
        for how in ("single", "batch"):
            build(db, once, f"{how}{number}", state, stale)
            keys.append(f"batch{number}")
    db.execute(f"SELECT once.set_scope('orders', {policy})")
    batch = once.claim_many(key=[f"batch{n}" for n in range(len(STATES))], fingerprint=[fingerprint] * len(STATES))
    for number, (state, _) in enumerate(STATES):
        singles = []
        code = code_of(lambda: singles.append(Once(db.connect(), fingerprint=fingerprint).claim(key=f"single{number}")))
        row = batch[number]
        if code:
            assert (code, row.verdict) == ("P4002", "mismatch"), state
        else:
            assert row._asdict().keys() - {"ord", "kept_ms"} == singles[0]._asdict().keys()
            for name in ("verdict", "fence", "state", "response_body", "error_code", "error_message", "attempts"):
                assert getattr(row, name) == getattr(singles[0], name), (state, name)
            assert (row.lease_until is None) == (singles[0].lease_until is None)


@pytest.mark.parametrize("report", ["complete", "fail"])
def test_report_batches_say_of_every_state_what_single_reports_say(db, report):
    once = Once(db.connect())
    more, many = ({}, {}) if report == "complete" else ({"retryable": False}, {"retryable": [False] * len(STATES)})
    for fence in (1, 2):
        for number, (state, stale) in enumerate(STATES):
            for how in ("single", "batch"):
                build(db, once, f"{how}{number}/{fence}", state, stale)
        batch = getattr(once, report + "_many")(
            key=[f"batch{n}/{fence}" for n in range(len(STATES))], fence=[fence] * len(STATES), **many
        )
        for number, (state, _) in enumerate(STATES):
            said = []
            code = code_of(
                lambda: said.append(getattr(once, report)(key=f"single{number}/{fence}", fence=fence, **more))
            )
            row = batch[number]
            assert row.verdict == ("refused" if code else "stored" if said[0] else "repeated"), state
            assert row[2] == code  # error_code, refused_code
            assert once.peek(key=f"single{number}/{fence}").state == once.peek(key=f"batch{number}/{fence}").state


BAD_ELEMENTS = (
    {"scope": ""}, {"scope": None}, {"scope": "s" * 256}, {"key": None}, {"key": ""}, {"key": "\u00e4"}, {"key": "k" * 256},
    {"key": "ffffffff-ffff-7000-8000-000000000001"}, {"key": "01000000-0000-7000-8000-000000000001"},
    {"fingerprint": None}, {"fingerprint": b"short"}, {"fingerprint": b"l" * 65},
)  # fmt: skip


def seen(db, row, key):
    """What a caller is told, and what is stored then; neither times nor what the key is called."""
    stored = db.rows(
        "SELECT state, fence, attempts, fingerprint, owner, response_status, response_body, response_headers, result_type, error_code,"
        " redirects, traceparent, round(extract(epoch FROM lease_until - updated_at)) AS lease, expires_at - created_at AS kept"
        " FROM once.intent WHERE key = %s", key)  # fmt: skip
    told = {name: value for name, value in row._asdict().items() if name != "lease_until"}
    return told, getattr(row, "lease_until", None) is None, stored


@pytest.mark.parametrize("policy", ["on_stale => 'takeover'", "on_stale => 'in_doubt'", "max_attempts => 1", "lease => '3 hours'"])
@pytest.mark.parametrize("fingerprint", [PRINT, OTHER_PRINT])
def test_one_claim_in_a_batch_is_told_what_it_is_told_among_others(db, policy, fingerprint):
    once = Once(db.connect())
    for number, (state, stale) in enumerate(STATES):
        build(db, once, f"one{number}", state, stale)
        build(db, once, f"many{number}", state, stale)
    db.execute(f"SELECT once.set_scope('orders', {policy})")
    more = {"owner": "me", "retention": "1 day", "traceparents": ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]}
    for number, (state, _) in enumerate(STATES):
        one, many = (
            seen(db, once.claim_many(key=[f"{how}{number}"], fingerprint=[fingerprint], alone=how == "one", **more)[0], f"{how}{number}")
            for how in ("one", "many")
        )
        assert one == many, state
    assert db.value("SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database WHERE l.locktype = 'advisory' AND d.datname = current_database()") == 0


@pytest.mark.parametrize("function", ["claim_many", "complete_many", "fail_many"])
def test_one_bad_element_alone_is_told_what_it_is_told_among_others(db, function):
    call = getattr(Once(db.connect()), function)
    standard = {"fence": 1, "retryable": True} if function == "fail_many" else {"fence": 1} if function == "complete_many" else {}
    bad = BAD_ELEMENTS if function == "claim_many" else [
        *(element for element in BAD_ELEMENTS if "fingerprint" not in element), {"response_status": 1000}, {"response_body": b"b" * 2_000_000},
        {"fence": 9}, {"fence": None}, *([{"redirect": b"short"}] if function == "fail_many" else [])]  # fmt: skip
    for element in bad:
        arguments = {name: [value] for name, value in {"scope": "orders", "key": "k", **standard, **element}.items()}
        one, many = call(**arguments, alone=True)[0], call(**arguments)[0]
        assert one == many and one.verdict in ("invalid", "refused", "expired"), element
    assert db.value("SELECT count(*) FROM once.intent") == 0


@pytest.mark.parametrize("report", ["complete_many", "fail_many"])
def test_one_report_in_a_batch_does_what_it_does_among_others(db, report):
    once = Once(db.connect())
    for retryable in (True, False, None)[: 1 if report == "complete_many" else 3]:
        for fence in (1, 2):
            for number, (state, stale) in enumerate(STATES):
                told = []
                for how in ("one", "many"):
                    key = f"{how}{number}/{fence}/{retryable}"
                    build(db, once, key, state, stale)
                    more = {"fence": [fence], "response_status": [201], "response_body": [b"b"], "response_headers": ['{"a": "b"}'], "result_type": ["r"]}
                    if report == "fail_many":
                        del more["result_type"]
                        more |= {"retryable": [retryable], "error_code": ["x"], "redirect": [OTHER_PRINT]}
                    told.append([seen(db, getattr(once, report)(key=[key], **more, alone=how == "one")[0], key) for _ in range(2)])
                assert told[0] == told[1], (state, fence, retryable)


def test_renew_many_and_peek_many_say_of_every_state_what_single_calls_say(db):
    once = Once(db.connect())
    keys = [f"k{n}" for n in range(len(STATES))]
    for key, (state, stale) in zip(keys, STATES):
        build(db, once, key, state, stale)
    peeked = once.peek_many(key=keys)
    for key, row in zip(keys, peeked):
        assert row[1:] == tuple(once.peek(key=key))
    for fence in (2, 1):
        renewed = once.renew_many(key=keys, fence=[fence] * len(keys))
        assert [row.renewed for row in renewed] == [once.renew(key=key, fence=fence) for key in keys]


def test_renew_many_prolongs_each_lease(db):
    once = Once(db.connect())
    once.claim_many(key=["a", "b"], lease="1 second")
    once.renew_many(key=["a", "b"], fence=[1, 2], lease="1 hour")
    assert db.rows(
        "SELECT lease_until > clock_timestamp() + interval '59 minutes' AS long FROM once.intent ORDER BY key"
    ) == [(True,), (False,)]


def test_a_batch_over_many_days_and_scopes_gives_each_its_own(db):
    keys = [uuid7_days_ago(db, days, days) for days in range(10)] + ["plain"]
    once = Once(db.connect())
    db.execute("SELECT once.set_scope('long', lease => '2 hours')")
    rows = once.claim_many(scope=["long"] * 10 + ["orders"], key=keys)
    assert [row.verdict for row in rows] == ["new_claim"] * 8 + ["expired"] * 2 + ["new_claim"]
    assert (
        db.value(
            "SELECT count(*) FROM once.intent WHERE scope = 'long' AND lease_until > clock_timestamp() + interval '119"
            " minutes'"
        )
        == 8
    )
    assert {row.verdict for row in once.complete_many(scope=["long"] * 8, key=keys[:8], fence=[1] * 8)} == {"stored"}


def test_mixed_failures_in_a_batch_each_get_their_own_state(db):
    once = Once(db.connect())
    once.claim_many(key=["a", "b", "c"])
    rows = once.fail_many(
        key=["a", "b", "c"],
        fence=[1, 1, 1],
        retryable=[True, False, None],
        error_code=["x", "y", "z"],
        error_message=["1", "2", "3"],
    )
    assert [row.verdict for row in rows] == ["stored"] * 3
    peeked = [(row.state, row.error_code, row.error_message) for row in once.peek_many(key=["a", "b", "c"])]
    assert peeked == [("failed_retryable", "x", "1"), ("failed_final", "y", "2"), ("in_doubt", "z", "3")]


def test_two_open_batches_over_the_same_intents_never_wait_and_share_nothing(db):
    first, second = (db.connect(isolation="READ COMMITTED", lock_timeout="1s") for _ in range(2))
    keys = [f"k{n}" for n in range(100)]
    assert {row.verdict for row in Once(first).claim_many(key=keys[:60])} == {"new_claim"}
    verdicts = [row.verdict for row in Once(second).claim_many(key=keys[::-1])]
    assert verdicts == ["new_claim"] * 40 + ["processing_active"] * 60


def test_two_open_batches_of_takeovers_never_wait_and_share_nothing(db):
    keys = [f"k{n}" for n in range(20)]
    Once(db.connect()).claim_many(key=keys)
    db.execute("UPDATE once.intent SET lease_until = clock_timestamp() - interval '1 second'")
    first, second = (db.connect(isolation="READ COMMITTED", lock_timeout="1s") for _ in range(2))
    assert {row.verdict for row in Once(first).claim_many(key=keys[:12], takeover=True)} == {"processing_stale"}
    verdicts = [row.verdict for row in Once(second).claim_many(key=keys[::-1], takeover=True)]
    assert verdicts == ["processing_stale"] * 8 + ["processing_active"] * 12


def test_parallel_batches_in_opposite_orders_claim_each_intent_once_without_deadlock(db):
    keys = [f"k{n}" for n in range(300)]
    connections = [db.connect() for _ in range(8)]

    def attempt(n):
        return Once(connections[n]).claim_many(key=keys if n % 2 else keys[::-1], owner=f"{n}")

    batches = in_threads([lambda n=n: attempt(n) for n in range(8)])
    assert sum(row.verdict == "new_claim" for rows in batches for row in rows) == 300
    assert {row.verdict for rows in batches for row in rows} <= {"new_claim", "processing_active"}


def test_a_batch_of_takeovers_and_a_batch_of_completions_in_opposite_orders_do_not_deadlock(db):
    """The takeovers stop at a gate when they have taken b over, until the completions wait for them."""
    once = Once(db.connect())
    once.claim_many(key=["a", "b"])
    db.execute("UPDATE once.intent SET lease_until = clock_timestamp() - interval '1 second'")
    db.execute(
        "CREATE FUNCTION at_gate() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END$$"
    )
    db.execute(
        "CREATE TRIGGER gate AFTER UPDATE ON once.intent_d0 FOR EACH ROW "
        "WHEN (NEW.key = 'b' AND NEW.owner = 'successor') EXECUTE FUNCTION at_gate()"
    )
    gate, successor, zombie = (db.connect(deadlock_timeout="50ms") for _ in range(3))
    run(gate, "SELECT pg_advisory_lock(1)")

    def waits(connection):
        return lambda: run(
            gate,
            "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'",
            connection.get_backend_pid(),
        )

    def complete():
        wait_until(waits(successor), "the takeovers at the gate")
        return [row.verdict for row in Once(zombie).complete_many(key=["a", "b"], fence=[1, 1])]

    def open_gate():
        wait_until(lambda: waits(successor)() and waits(zombie)(), "the completions to wait")
        run(gate, "SELECT pg_advisory_unlock(1)")

    taken, completed, _ = in_threads(
        [lambda: Once(successor).claim_many(key=["b", "a"], owner="successor", takeover=True), complete, open_gate]
    )
    for n, key in enumerate(("a", "b")):
        assert (completed[n] == "stored") != (taken[1 - n].verdict == "processing_stale"), key


def test_a_batch_of_completions_stores_an_intent_whose_row_has_just_moved(db):
    """A renewal in an open transaction has written a new version of the row that the batch has found."""
    once = Once(db.connect())
    once.claim_many(key=["a", "b"])
    renewing, completing = db.connect(isolation="READ COMMITTED"), db.connect()
    Once(renewing).renew(key="b", fence=1)

    def commit():
        wait_until(
            lambda: db.value(
                "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'",
                completing.get_backend_pid(),
            ),
            "the completions to wait",
        )
        renewing.commit()

    rows, _ = in_threads([lambda: Once(completing).complete_many(key=["b", "a"], fence=[1, 1]), commit])
    assert [row.verdict for row in rows] == ["stored", "stored"]
    assert [row.state for row in once.peek_many(key=["a", "b"])] == ["succeeded", "succeeded"]


def test_a_batch_is_one_commit(db):
    connection = db.connect(isolation="READ COMMITTED")
    Once(connection).claim_many(key=["a", "b"])
    connection.rollback()
    assert db.value("SELECT count(*) FROM once.intent") == 0


def test_claim_many_under_repeatable_read_ends_in_40001_where_another_was_first(db):
    connection = db.connect(isolation="REPEATABLE READ")
    run(connection, "SELECT 1")
    Once(db.connect()).claim(key="b")
    with refused("40001"):
        Once(connection).claim_many(key=["a", "b"])
