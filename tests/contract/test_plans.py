# SPDX-License-Identifier: PostgreSQL
"""What keeps the contract fast: index look-ups whatever the table's past or the argument's type, HOT updates, and no
dead tuples."""

import pytest

from .calls import DAY_MS, PRINT, Once, let_lease_pass, now_ms, run, uuid7

MANY = 20_000
# The rows that one call may touch: its own, and a few of the policy.
ROWS_MAX = 12

# %(done)s and so on: a row of the state that the call likes best.
CALLS = {
    "start, replay": "once.start('orders', %(done)s, %(print)s)",
    "start, new": "once.start('orders', 'new', %(print)s)",
    "finish, new": "once.start('orders', 'new', %(print)s) AS started, LATERAL once.finish('orders', 'new', %(print)s, result_id => started.fence::text)",
    "finish, over a failure": "once.start('orders', %(failed)s, %(print)s) AS started,"
    " LATERAL once.finish('orders', %(failed)s, %(print)s, result_id => started.fence::text)",
    "finish_new, new": "once.finish_new('orders', 'new', %(print)s)",
    "finish_new, over a failure": "once.finish_new('orders', %(failed)s, %(print)s)",
    "claim, new": "once.claim('orders', 'new', %(print)s)",
    "claim, replay": "once.claim('orders', %(done)s, %(print)s)",
    "claim, takeover": "once.claim('orders', %(failed)s, %(print)s)",
    "claim_many": "once.claim_many(ARRAY['orders', 'orders'], ARRAY[%(done)s, 'new'], ARRAY[%(print)s, %(print)s])",
    "claim_many, one": "once.claim_many(ARRAY['orders'], ARRAY[%(done)s], ARRAY[%(print)s])",
    "complete": "once.complete('orders', %(running)s, 1)",
    "complete_many": "once.complete_many(ARRAY['orders', 'orders'], ARRAY[%(running)s, 'new'], ARRAY[1, 1])",
    "complete_many, one": "once.complete_many(ARRAY['orders'], ARRAY[%(running)s], ARRAY[1])",
    "fail": "once.fail('orders', %(running)s, 1, true)",
    "fail_many": "once.fail_many(ARRAY['orders', 'orders'], ARRAY[%(running)s, 'new'], ARRAY[1, 1], ARRAY[true, true])",
    "renew": "once.renew('orders', %(running)s, 1)",
    "renew_many": "once.renew_many(ARRAY['orders'], ARRAY[%(running)s], ARRAY[1])",
    "release": "once.release('orders', %(running)s, 1)",
    "peek": "once.peek('orders', %(done)s)",
    "peek_many": "once.peek_many(ARRAY['orders'], ARRAY[%(done)s])",
    "receive, duplicate": "once.receive('orders', %(done)s, %(print)s)",
    "receive, new": "once.receive('orders', 'new', %(print)s)",
    "resolve": "once.resolve('orders', %(doubt)s, 'succeeded', 'why')",
    "emit": "once.emit('t', '{}', scope => 'orders', key => %(done)s)",
    "emit_bytes": "once.emit_bytes('t', 'x', 'text/plain', scope => 'orders', key => %(done)s)",
}


def make_yesterday(db):
    """emit looks at the outbox of the days before, which are there for as long as a relay is behind."""
    day = now_ms(db) // DAY_MS - 1
    db.execute(
        f"CREATE TABLE IF NOT EXISTS once.outbox_d{day} PARTITION OF once.outbox FOR VALUES FROM ({day}) TO ({day + 1})"
    )


def run_call(connection, text, keys):
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {text}", {**keys, "print": PRINT})
        cursor.fetchall()


def touched(connection):
    """What this session has scanned and read in the contract's big tables, counted exactly and without waiting for
    the statistics."""
    return run(
        connection,
        "SELECT coalesce(sum(seq_scan), 0) AS scans, coalesce(sum(seq_tup_read), 0) + coalesce(sum(idx_tup_fetch), 0)"
        " AS rows FROM pg_stat_xact_all_tables WHERE schemaname = 'once' AND relname ~ '^(intent|outbox|archive)'",
    )[0]


def fill(db, uuids):
    """20,000 intents, a few of each other state among them. Returns their names."""
    make_yesterday(db)
    ms = now_ms(db)
    names = {
        state: uuid7(ms, number) if uuids else f"k{number}"
        for number, state in enumerate(("done", "running", "failed", "doubt"))
    }
    states = {"done": "succeeded", "running": "processing", "failed": "failed_retryable", "doubt": "in_doubt"}
    keys = [names[state] for state in names] + [
        uuid7(ms, number) if uuids else f"k{number}" for number in range(4, MANY)
    ]
    db.execute(
        "INSERT INTO once.intent (created_at, updated_at, lease_until, bucket, fence, attempts, state, tenant, scope,"
        " key, fingerprint) SELECT now(), now(), now() + interval '1 hour', once._bucket(k), 1, 1, s::once.state, '',"
        " 'orders', k, %s FROM unnest(%s::text[], %s::text[]) AS u (k, s)",
        PRINT,
        keys,
        [states[state] for state in names] + ["succeeded"] * (MANY - 4),
    )
    db.execute(
        "INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, tenant, scope, key, payload) SELECT"
        " floor(extract(epoch FROM clock_timestamp()) / 86400) - n %% 2, now(), gen_random_uuid(), 't', 't', '',"
        " 'orders', 'x' || n, '{}' FROM generate_series(1, %s) AS n",
        MANY,
    )
    return names


def warm(connection, names):
    """Enough calls on the empty table for every plan to be made and cached."""
    for call in CALLS:
        for _ in range(7):
            run(connection, "BEGIN")
            try:
                run_call(connection, CALLS[call], names)
            except (
                Exception
            ):  # pylint: disable=broad-except  # there is nothing to complete yet: the plan is what counts
                pass
            run(connection, "ROLLBACK")


PASTS = {
    "never analysed": lambda db: None,
    "vacuumed while empty": lambda db: db.execute("VACUUM ANALYZE once.intent"),
    "random access is dear": lambda db: db.execute(f"ALTER DATABASE {db.name} SET random_page_cost = 1000"),
    "random access is free": lambda db: db.execute(f"ALTER DATABASE {db.name} SET random_page_cost = 0"),
    "all access is free": lambda db: db.execute(f"ALTER DATABASE {db.name} SET random_page_cost = 0; ALTER DATABASE {db.name} SET seq_page_cost = 0"),
    "truncated": lambda db: (
        fill(db, False),
        db.execute("ANALYZE once.intent"),
        db.execute("TRUNCATE once.intent, once.outbox"),
    ),
}


@pytest.mark.parametrize("uuids", [False, True], ids=["arbitrary keys", "UUIDv7 keys"])
@pytest.mark.parametrize("past", PASTS)
def test_plans_made_on_an_empty_table_stay_index_lookups_when_it_has_filled(db, past, uuids):
    make_yesterday(db)
    PASTS[past](db)
    ms = now_ms(db)
    connection = db.connect()
    warm(
        connection,
        {state: uuid7(ms, n) if uuids else f"k{n}" for n, state in enumerate(("done", "running", "failed", "doubt"))},
    )
    names = fill(db, uuids)
    for call in CALLS:
        expect_index(connection, call, names)


def expect_index(connection, call, names, text=None):
    run(connection, "BEGIN")
    scans, rows = touched(connection)
    run_call(connection, text or CALLS[call], names)
    scans_after, rows_after = touched(connection)
    run(connection, "ROLLBACK")
    assert scans_after == scans, f"{call}: {scans_after - scans} sequential scans"
    assert rows_after - rows <= ROWS_MAX, f"{call}: {rows_after - rows} rows read"


# How a caller may spell an argument. current_user and the like have type name and so collation "C", which a function
# inherits for all its comparisons; a column may have any collation; and two columns of different ones leave a
# function with none at all.
SPELLINGS = {
    "type name": ("current_user", "{}::name"),
    "another collation": ("'orders'::text COLLATE \"POSIX\"", "{}"),
    "two collations": (
        "(SELECT s FROM (SELECT 'orders'::text COLLATE \"C\" AS s OFFSET 0) AS c)",
        '(SELECT k FROM (SELECT {}::text COLLATE "POSIX" AS k OFFSET 0) AS c)',
    ),
}


@pytest.mark.parametrize("uuids", [False, True], ids=["arbitrary keys", "UUIDv7 keys"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_type_or_collation_of_an_argument_changes_a_plan(db, spelling, uuids):
    if not db.rows("SELECT 1 FROM pg_roles WHERE rolname = 'orders'"):
        db.execute("CREATE ROLE orders LOGIN SUPERUSER")
    names = fill(db, uuids)
    db.execute("ANALYZE once.intent")
    connection = db.connect("orders")
    scope, key = SPELLINGS[spelling]
    for call, text in CALLS.items():
        # A name is no text where an array is built of it.
        cast = "::text" if "ARRAY" in text and spelling == "type name" else ""
        text = text.replace("'orders'", scope + cast)
        for column in names:
            text = text.replace(f"%({column})s", key.format(f"%({column})s") + cast)
        expect_index(connection, call, names, text)


def test_completing_renewing_failing_and_releasing_a_claim_are_hot_updates(db):
    connection = db.connect()
    once = Once(connection)
    once.claim_many(key=["a", "b", "c"], owner="a worker")
    run(connection, "BEGIN")
    before = updates(connection)
    once.renew(key="a", fence=1)
    once.complete(key="a", fence=1, response_status=200, response_body=b"x" * 40)
    once.fail(key="b", fence=1, retryable=True)
    once.release(key="c", fence=1)
    assert [after - earlier for after, earlier in zip(updates(connection), before)] == [4, 4]
    run(connection, "COMMIT")


def updates(connection):
    return run(
        connection,
        "SELECT coalesce(sum(n_tup_upd), 0) AS made, coalesce(sum(n_tup_hot_upd), 0) AS hot FROM"
        " pg_stat_xact_all_tables WHERE schemaname = 'once' AND relname ~ '^intent'",
    )[0]


@pytest.mark.parametrize("batched, hot_min", [(False, 980), (True, 800)], ids=["one by one", "in batches of 50"])
def test_in_a_steady_stream_completions_find_room_on_the_page_of_their_claim(db, batched, hot_min):
    connection = db.connect()
    once = Once(connection)
    made = hot = 0

    def counted(call):
        nonlocal made, hot
        run(connection, "BEGIN")
        before = updates(connection)
        call()
        now = updates(connection)
        run(connection, "COMMIT")
        made, hot = made + now[0] - before[0], hot + now[1] - before[1]

    for batch in range(20):
        keys = [f"b{batch}/{n}" for n in range(50)]
        once.claim_many(key=keys)
        if batched:
            counted(lambda: once.complete_many(key=keys, fence=[1] * 50, response_body=[b"x" * 40] * 50))
        else:
            for key in keys:
                counted(lambda: once.complete(key=key, fence=1, response_body=b"x" * 40))
    assert made == 1000 and hot >= hot_min, (made, hot)


def test_start_and_finish_write_one_row_version_and_leave_no_dead_tuple(db):
    connection = db.connect()
    once = Once(connection)
    for n in range(300):
        run(connection, "BEGIN")
        once.start(key=f"k{n}")
        once.finish(key=f"k{n}", response_body=b"answer")
        run(connection, "COMMIT")
        run(connection, "BEGIN")
        once.start(key=f"k{n}")
        run(connection, "COMMIT")
    # Every item of every page is a live row: a dead one would leave a gap.
    gaps = db.value(
        "SELECT count(*) FROM (SELECT (ctid::text::point)[0] AS page, max((ctid::text::point)[1]) - count(*) AS gap "
        "FROM once.intent_d0 GROUP BY 1) AS pages WHERE gap <> 0"
    )
    assert gaps == 0
    assert db.value("SELECT count(*) FROM once.intent_d0") == 300
    run(connection, "BEGIN")
    before = updates(connection)
    once.start(key="last")
    once.finish(key="last")
    assert updates(connection) == before
    run(connection, "ROLLBACK")


@pytest.mark.parametrize("past", ["never analysed", "vacuumed while empty", "truncated"])
def test_a_story_is_looked_up_by_index_too(db, past):
    """Its decisions and events as well: an operator asks for it when the tables are large."""
    make_yesterday(db)
    PASTS[past](db)
    connection = db.connect()
    for _ in range(7):
        Once(connection).story(key="k0")
    fill(db, False)
    run(connection, "BEGIN")
    before = touched(connection)
    Once(connection).story(key="k0")
    scans, rows = (after - earlier for after, earlier in zip(touched(connection), before))
    # A sequential scan of a day without events is as good as any.
    assert rows <= ROWS_MAX, (scans, rows)


def test_start_writes_nothing(db):
    """Not even a transaction id: an attempt that turns out to be a replay costs no WAL."""
    connection = db.connect(isolation="READ COMMITTED")
    Once(connection).start(key="k")
    assert run(connection, "SELECT pg_current_xact_id_if_assigned()") == [(None,)]


def test_peek_runs_in_a_read_only_transaction(db):
    Once(db.connect()).finish_new(key="k", response_body=b"a")
    connection = db.connect(isolation="READ COMMITTED")
    run(connection, "SET TRANSACTION READ ONLY")
    assert Once(connection).peek(key="k").response_body == b"a"
    assert Once(connection).start(key="k").response_body == b"a"


def test_no_index_but_the_primary_key_slows_an_intent(db):
    assert (
        db.value(
            "SELECT count(*) FROM pg_index WHERE indrelid IN ('once.intent'::regclass, 'once.intent_d0'::regclass)"
        )
        == 2
    )
    fill = db.rows(
        "SELECT DISTINCT c.reloptions FROM pg_class AS c "
        "JOIN pg_inherits AS i ON i.inhrelid = c.oid AND i.inhparent = 'once.intent'::regclass"
    )
    assert len(fill) == 1 and fill[0].reloptions[0].startswith("fillfactor="), "days differ from bucket 0"


def test_start_on_an_arbitrary_key_locks_one_partition_and_not_all(db):
    connection = db.connect(isolation="READ COMMITTED")
    for _ in range(3):
        Once(connection).start(key="k")
        connection.rollback()
    Once(connection).start(key="k")
    held = db.value(
        "SELECT count(*) FROM pg_locks WHERE pid = %s AND relation::regclass::text ~ '^once.intent_d[0-9]+$'",
        connection.get_backend_pid(),
    )
    assert held == 1


def test_taking_over_a_stale_claim_is_a_hot_update(db):
    connection = db.connect()
    Once(connection).claim(key="k")
    let_lease_pass(db, "k")
    run(connection, "BEGIN")
    before = updates(connection)
    assert Once(connection).claim(key="k", takeover=True).verdict == "processing_stale"
    assert [after - earlier for after, earlier in zip(updates(connection), before)] == [1, 1]
    run(connection, "COMMIT")
