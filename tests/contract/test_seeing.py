# SPDX-License-Identifier: PostgreSQL
"""What operators see: attempts are counted by what they were told, and once.metrics, once.find and the views tell what is so."""

import pytest

from .calls import OTHER_PRINT, PRINT, Once, allow_takeover, code_of, let_lease_pass, refused, retire, run, shorten_horizon, uuid7_days_ago
from .relaying import Relay, emit


def counting(db):
    """What is counted from now on, as a function."""

    def read():
        return {row.verdict: row.count for row in db.rows("SELECT * FROM once.counts()")}

    before = read()
    return lambda: {verdict: count - before[verdict] for verdict, count in read().items() if count != before[verdict]}


def test_claims_are_counted_by_what_they_were_told(db):
    counted = counting(db)
    once = Once(db.connect())
    shorten_horizon(db)
    retire(db, 2)
    once.claim(key="k")
    once.claim(key="k")
    let_lease_pass(db, "k")
    once.claim(key="k", takeover=True)
    once.fail(key="k", fence=2, retryable=True)
    once.claim(key="k")
    once.complete(key="k", fence=3)
    once.claim(key="k")
    assert code_of(lambda: once.claim(key="k", fingerprint=OTHER_PRINT)) == "P4002"
    once.claim(key="final")
    once.fail(key="final", fence=1, retryable=False)
    once.claim(key="final")
    once.claim(key="doubt")
    once.fail(key="doubt", fence=1, retryable=None)
    once.claim(key="doubt")
    once.claim(key=uuid7_days_ago(db, 2))
    assert counted() == {
        "new": 3,
        "active": 1,
        "stale": 1,
        "retryable": 1,
        "replay": 1,
        "mismatch": 1,
        "final": 1,
        "in_doubt": 1,
        "expired": 1,
    }


def test_intents_of_the_same_transaction_are_counted_too(db):
    counted = counting(db)
    connection, other = db.connect(), db.connect()
    once = Once(connection)
    shorten_horizon(db)
    retire(db, 2)
    run(connection, "BEGIN")
    once.start(key="k")
    assert code_of(lambda: Once(other).start(key="k")) == "P4029"
    once.finish(key="k")
    run(connection, "COMMIT")
    once.start(key="k")
    assert code_of(lambda: once.finish_new(key="k")) == "P4020"
    assert code_of(lambda: once.start(key="k", fingerprint=OTHER_PRINT)) == "P4002"
    once.finish_new(key="n")
    assert code_of(lambda: once.finish_new(key="n")) == "P4020"
    once.finish_new(key="f", state="failed_retryable")
    run(connection, "BEGIN")
    once.start(key="f")
    once.finish(key="f", state="failed_final")
    run(connection, "COMMIT")
    assert code_of(lambda: once.start(key="f")) == "P4030"
    assert code_of(lambda: once.start(key=uuid7_days_ago(db, 2))) == "P4041"
    assert counted() == {
        "new": 3,
        "active": 1,
        "replay": 3,
        "mismatch": 1,
        "retryable": 1,
        "final": 1,
        "expired": 1,
    }


def test_a_batch_counts_as_single_claims_do(db):
    counted = counting(db)
    once = Once(db.connect())
    keys = [f"k{n}" for n in range(100)]
    once.claim_many(key=keys)
    once.complete_many(key=keys[:40], fence=[1] * 40)
    once.claim_many(key=keys + ["new", "\n"])
    once.claim_many(key=keys[:2], fingerprint=[OTHER_PRINT] * 2)
    let_lease_pass(db, "k99")
    once.claim_many(scope=["orders", "another"], key=["k99", "k99"], takeover=True)
    assert counted() == {"new": 102, "replay": 40, "active": 60, "mismatch": 2, "stale": 1}


def test_messages_are_counted_by_what_they_were_told(db):
    counted = counting(db)
    once = Once(db.connect())
    for _ in range(3):
        once.receive(message_id="m")
    assert code_of(lambda: once.receive(message_id="m", fingerprint=OTHER_PRINT)) == "P4050"
    batch = "SELECT * FROM once.receive_many('mailer', %s, NULL, %s::bytea[])"
    run(once.connection, batch, ["m", "n", "o"], [PRINT] * 3)
    run(once.connection, batch, ["m", "n", "p", "p"], [OTHER_PRINT, PRINT, PRINT, PRINT])
    assert counted() == {"process": 4, "duplicate": 5, "message_mismatch": 2}
    counts = {row.verdict: row.count for row in db.rows("SELECT * FROM once.counts()")}
    assert metrics(db, "pgonce_inbox") == {
        (("verdict", "process"),): counts["process"],
        (("verdict", "duplicate"),): counts["duplicate"],
        (("verdict", "mismatch"),): counts["message_mismatch"],
    }


KINDS = {
    "new": {"new", "stale", "retryable", "process"},
    "replay": {"replay", "duplicate"},
    "mismatch": {"mismatch", "message_mismatch"},
    "active": {"active"},
    "refused": {"final", "in_doubt", "expired"},
}


def test_each_count_is_of_one_kind(db):
    """Powers of two: a sum says which are in it."""
    verdicts = [row.verdict for row in db.rows("SELECT * FROM once.counts()")]
    assert set(verdicts) == set().union(*KINDS.values())
    for nth, verdict in enumerate(verdicts):
        db.value("SELECT setval(%s, %s)", f"once.counted_{verdict}", 2**nth)
    kinds = {row.kind: row.count for row in db.rows("SELECT * FROM once.attempt_counts()")}
    assert kinds == {kind: sum(2 ** verdicts.index(verdict) for verdict in of) for kind, of in KINDS.items()}


def metrics(db, name):
    return {
        tuple(sorted(row.labels.items())): row.value for row in db.rows("SELECT * FROM once.metrics() WHERE name = %s", name)
    }


def test_a_count_outlives_the_rollback_of_what_was_told(db):
    counted = counting(db)
    once = Once(db.connect())
    run(once.connection, "BEGIN")
    once.claim(key="k")
    run(once.connection, "ROLLBACK")
    once.claim(key="k")
    assert counted() == {"new": 2}


def test_counters_survive_a_vacuum(db):
    counted = counting(db)
    once = Once(db.connect())
    once.claim(key="k")
    db.execute("VACUUM FULL")
    assert counted() == {"new": 1}


def test_a_policy_makes_no_entry_in_the_catalogue(db):
    entries = "SELECT count(*) FROM pg_class WHERE relnamespace = 'once'::regnamespace"
    before = db.value(entries)
    for name in ('a"; DROP TABLE once.scope; --', "x" * 255, "é", "new"):
        db.execute("SELECT once.set_scope(%s)", name)
    assert db.value(entries) == before and len(db.rows("SELECT * FROM once.counts()")) == 12


def test_a_replay_in_a_read_only_transaction_is_answered_and_not_counted(db):
    counted = counting(db)
    Once(db.connect()).finish_new(key="k")
    connection = db.connect(isolation="READ COMMITTED")
    run(connection, "SET TRANSACTION READ ONLY")
    assert Once(connection).start(key="k").verdict == "replay_success"
    assert code_of(lambda: Once(connection).start(key="k", fingerprint=OTHER_PRINT)) == "P4002"
    assert counted() == {"new": 1}


def test_metrics_are_sorted_and_typed_and_each_sample_comes_once(db):
    Relay(db.connect())
    emit(db.connect())
    rows = db.rows("SELECT * FROM once.metrics()")
    assert [row.name for row in rows] == sorted(row.name for row in rows)
    assert len({(row.name, str(row.labels)) for row in rows}) == len(rows)
    assert {row.kind for row in rows} == {"counter", "gauge"}
    assert all(row.name.startswith("pgonce_") and row.help for row in rows)
    assert metrics(db, "pgonce_outbox_pending") == {(("relay", "r"), ("topic", "t")): 1}
    assert metrics(db, "pgonce_contract_version") == {(): db.value("SELECT once.contract_version()")}


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def some(db):
    """Intents of all sorts; finds their keys."""
    once = Once(db.connect())
    shorten_horizon(db)
    old = uuid7_days_ago(db, 2)
    once.finish_new(key=old, result_type="order", result_id="o-old")
    retire(db, 2)
    once.claim(key="running", owner="worker 7", traceparent=TRACE)
    once.finish_new(key="done", result_type="order", result_id="o-1")
    once.finish_new(key="theirs", tenant="theirs", result_type="order", result_id="o-1")
    once.claim(key="elsewhere", scope="other")
    once.emit(topic="t", payload="{}", scope="orders", key="done", traceparent=TRACE)

    def find(query):
        return {
            "archived" if row.key == old else row.key
            for row in db.rows(f"SELECT f.* FROM once.find({query}) AS f")
        }

    return find


@pytest.mark.parametrize(
    "query, keys",
    [
        ("", {"archived", "running", "done", "theirs", "elsewhere"}),
        ("tenant => 'theirs'", {"theirs"}),
        ("tenant => '', scope => 'orders'", {"archived", "running", "done"}),
        ("state => 'processing'", {"running", "elsewhere"}),
        ("result_type => 'order', result_id => 'o-1'", {"done", "theirs"}),
        ("result_id => 'o-old'", {"archived"}),
        ("owner => 'worker 7'", {"running"}),
        (f"trace => '{TRACE}'", {"running", "done"}),
        ("trace => '0af7651916cd43dd8448eb211c80319c'", {"running", "done"}),
        ("trace => '1af7651916cd43dd8448eb211c80319c'", set()),
        ("event => (SELECT event_id FROM once.outbox)", {"done"}),
        ("event => (SELECT event_id FROM once.outbox), state => 'processing'", set()),
        ("event => gen_random_uuid()", set()),
        ("since => clock_timestamp()", set()),
        ("until => clock_timestamp() - interval '1 hour'", set()),
        ("until => clock_timestamp(), take => 0", set()),
    ],
)
def test_find_finds_by_what_is_known(some, query, keys):
    assert some(query) == keys


def test_find_gives_the_newest_first_and_no_more_than_asked(db):
    once = Once(db.connect())
    for key in "abcd":
        once.finish_new(key=key)
    assert [row.key for row in db.rows("SELECT * FROM once.find(take => 3)")] == ["d", "c", "b"]


@pytest.mark.parametrize("query", ["state => 'running'", "trace => 'rubbish'", "take => -1", "take => NULL"])
def test_find_refuses_what_it_cannot_look_for(db, query):
    with refused("22023"):
        db.execute(f"SELECT * FROM once.find({query})")


def test_the_views_show_what_needs_a_hand(db):
    once = Once(db.connect())
    allow_takeover(db)
    db.execute("SELECT once.set_scope('careful', on_stale => 'in_doubt')")
    once.claim(key="stuck", owner="w")
    once.claim(scope="careful", key="doubt")
    once.fail(scope="careful", key="doubt", fence=1, retryable=None, error_code="timeout")
    once.claim(key="again")
    once.fail(key="again", fence=1, retryable=True)
    once.claim(key="again")
    assert db.rows("SELECT * FROM once.stuck") == []
    let_lease_pass(db, "stuck")
    stuck = db.rows("SELECT * FROM once.stuck")
    assert [(row.key, row.owner, row.on_stale) for row in stuck] == [("stuck", "w", "takeover")]
    assert [(row.key, row.error_code) for row in db.rows("SELECT * FROM once.in_doubt")] == [("doubt", "timeout")]
    assert [(row.key, row.attempts) for row in db.rows("SELECT * FROM once.retried")] == [("again", 2)]
    stats = {row.scope: row for row in db.rows("SELECT * FROM once.scope_stats")}
    assert (stats["careful"].in_doubt, stats["careful"].on_stale) == (1, "in_doubt")
    assert (stats["orders"].processing, stats["orders"].stale, stats["orders"].on_stale) == (2, 1, "takeover")
    assert stats["orders"].oldest_stale and (stats[""].processing, stats[""].oldest_stale) == (0, None)
    top = {row.scope: (row.in_flight, row.stale, row.in_doubt) for row in db.rows("SELECT * FROM once.top()")}
    assert (top.get("orders"), top.get("careful")) == ((1, 1, 0), (0, 0, 1))


def test_the_backlog_of_a_relay_is_a_view(db):
    relay = Relay(db.connect())
    emit(db.connect())
    pending = db.rows("SELECT * FROM once.outbox_pending")
    assert [(row.relay, row.topic, row.state, row.events) for row in pending] == [("r", "t", "pending", 1)]
    assert relay.taken


def decisions(db, key):
    return db.rows("SELECT * FROM once.decision WHERE key = %s ORDER BY decided_at", key)


def test_a_takeover_is_recorded_with_what_was_before_and_after(db):
    once = Once(db.connect())
    once.claim(key="k", owner="first")
    let_lease_pass(db, "k")
    once.claim(key="k", owner="second", takeover=True)
    [entry] = decisions(db, "k")
    assert (entry.kind, entry.fence, entry.from_state, entry.to_state) == ("takeover", 2, "processing", "processing")
    assert (entry.before["owner"], entry.before["fence"]) == ("first", 1)
    assert (entry.after["owner"], entry.after["fence"]) == ("second", 2)
    assert entry.reason == "attempt 1 ended without a report" and entry.decided_by


def test_a_takeover_by_a_transaction_is_recorded_too(db):
    once = Once(db.connect())
    once.claim(key="k", owner="first")
    let_lease_pass(db, "k")
    allow_takeover(db)
    once.start(key="k")
    once.finish_new(key="k", response_status=201)
    [entry] = decisions(db, "k")
    assert (entry.kind, entry.from_state, entry.to_state) == ("takeover", "processing", "succeeded")
    assert (entry.before["owner"], entry.after["response_status"]) == ("first", 201)


@pytest.mark.parametrize("floor", [0, 1000])
def test_of_many_retries_ever_fewer_are_recorded(db, floor):
    db.execute("SELECT setval('once.fence_floor_seq', %s)", floor)
    once = Once(db.connect())
    for fence in range(floor + 1, floor + 36):
        assert once.claim(key="k").fence == fence
        once.fail(key="k", fence=fence, retryable=True, error_code="busy")
    entries = decisions(db, "k")
    assert [entry.fence - floor for entry in entries] == [2, 3, 4, 8, 16, 32]
    assert entries[0].reason == "attempt 1 failed: busy"
    assert {entry.kind for entry in entries} == {"retry"} and entries[0].before["error_code"] == "busy"


def test_work_that_never_started_is_no_attempt_that_anybody_sees(db):
    once = Once(db.connect())
    for fence in range(1, 6):
        assert once.claim(key="k").fence == fence
        once.release(key="k", fence=fence)
    assert decisions(db, "k") == db.rows("SELECT * FROM once.retried") == []


def test_a_first_attempt_is_one_whatever_its_fence(db):
    db.execute("SELECT setval('once.fence_floor_seq', 1000)")
    once = Once(db.connect())
    once.claim(key="first", owner="a")
    once.claim(key="taken", owner="a")
    once.claim(key="decided", owner="a")
    once.fail(key="decided", fence=1001, retryable=None)
    once.resolve(key="decided", as_state="failed_retryable")
    let_lease_pass(db, "taken")
    once.claim(key="taken", owner="b", takeover=True)
    assert {row.key for row in db.rows("SELECT * FROM once.retried")} == {"taken", "decided"}
    for key in ("first", "taken", "decided"):
        created = once.story(key=key)["timeline"][0]
        assert (created["what"], created["by"], created["fence"]) == ("created", "a", 1001), key
    assert decisions(db, "taken")[0].reason == "attempt 1 ended without a report"


def test_what_was_decided_says_what_the_intent_was_and_has_become(db):
    once = Once(db.connect())
    db.execute("SELECT once.set_scope('orders', max_attempts => 1)")
    once.claim(key="k")
    let_lease_pass(db, "k")
    assert once.claim(key="k").verdict == "in_doubt"
    once.resolve(key="k", as_state="succeeded", reason="seen on the statement", result_id="o-1")
    once.claim(key="f")
    once.fail(key="f", fence=1, retryable=True)
    once.claim(key="f")
    told = [(entry.kind, entry.before["state"], entry.after["state"]) for entry in decisions(db, "k")]
    assert told == [("doubt", "processing", "in_doubt"), ("resolve", "in_doubt", "succeeded")]
    assert decisions(db, "k")[1].after["result_id"] == "o-1"
    assert [(entry.kind, entry.after["state"]) for entry in decisions(db, "f")] == [("abandon", "failed_final")]


def test_what_verify_found_is_recorded_with_before_and_after(db):
    db.execute(
        "CREATE FUNCTION public.look(tenant text, scope text, key text) RETURNS once.verification LANGUAGE sql AS $$"
        " SELECT ROW('happened', 201, NULL, NULL, 'order', 'o-9')::once.verification $$"
    )
    db.execute("SELECT once.set_scope('orders', verify => 'public.look')")
    once = Once(db.connect())
    once.claim(key="k")
    let_lease_pass(db, "k")
    assert once.claim(key="k").verdict == "replay_success"
    [entry] = decisions(db, "k")
    assert (entry.kind, entry.before["state"], entry.after["state"], entry.after["result_id"]) == (
        "verify",
        "processing",
        "succeeded",
        "o-9",
    )
