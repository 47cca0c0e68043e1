# SPDX-License-Identifier: PostgreSQL
"""The inbox for a batch: the same answers as once.receive one by one, a bad element spoils nothing, nobody waits, and
messages of one key keep their order."""

import random
import threading

import psycopg2
import pytest

from .calls import DAY_MS, LEVELS, OTHER_PRINT, PRINT, Once, code_of, hold_days, in_threads, now_ms, refused, retire, run
from .calls import shorten_horizon, uuid7, uuid7_days_ago
from .test_buckets import drop_day

MANY = (
    "SELECT * FROM once.receive_many(%s, %s::text[], %s::text[], %s::bytea[], tenant => %s, skip_dead => %s, birthdays => %s)"
)


def receive_many(connection, ids, keys=None, prints=None, consumer="mailer", tenant="", skip_dead=False, birthdays=False):
    """Verdicts in order; where there is a code it stands in its verdict's place."""
    prints = [PRINT] * len(ids) if prints is None else prints
    rows = run(connection, MANY, consumer, ids, keys, prints, tenant, skip_dead, birthdays)
    assert [row.ordinal for row in rows] == list(range(1, len(ids) + 1))
    for row in rows:
        assert (row.code is None) == (row.verdict in ("process", "duplicate", "parked", "blocked")), row
        assert (row.verdict == "mismatch") == (row.code == "P4050") and (row.verdict == "processing_active") == (row.code == "P4029")
    return [row.code or row.verdict for row in rows]


def park(connection, message_id, key=None, state="retrying", fingerprint=PRINT, wait_ms=0, **more):
    return run(
        connection,
        "SELECT once_job.message_park(%s, %s, ARRAY[ROW(%s, 't', %s, '{}', 'body'::bytea, %s, %s, 1, %s, 'why', '22000')]"
        "::once.parked[])",
        more.get("consumer", "mailer"),
        more.get("tenant", ""),
        message_id,
        key,
        fingerprint,
        state,
        wait_ms,
    )[0][0]


def test_messages_are_processed_once_and_are_duplicates_ever_after(db):
    connection = db.connect()
    assert receive_many(connection, ["a", "b", "c"]) == ["process"] * 3
    assert receive_many(connection, ["c", "d", "a"]) == ["duplicate", "process", "duplicate"]
    assert [Once(connection).receive(message_id=message) for message in "abcde"] == ["duplicate"] * 4 + ["process"]
    assert receive_many(connection, ["e"]) == ["duplicate"]
    assert receive_many(connection, ["a"], consumer="billing") == ["process"]
    assert receive_many(connection, ["a"], tenant="acme") == ["process"]


def test_a_batch_whose_transaction_rolled_back_is_processed_again(db):
    connection = db.connect(isolation="READ COMMITTED")
    assert receive_many(connection, ["a", "b"]) == ["process"] * 2
    connection.rollback()
    assert receive_many(connection, ["a", "b"]) == ["process"] * 2


def test_what_a_batch_enters_is_what_receive_enters(db):
    receive_many(db.connect(), ["a", "u-1", "x"])
    Once(db.connect()).receive(message_id="single")
    columns = "state, fence, attempts, bucket, fingerprint, response_status, expires_at, scope, tenant, format_version"
    rows = db.rows(f"SELECT DISTINCT {columns} FROM once.intent")
    assert len(rows) == 1
    assert db.value("SELECT bool_and(created_at = updated_at AND updated_at = completed_at) FROM once.intent")


def test_the_same_message_twice_in_a_batch_is_processed_once(db):
    connection = db.connect()
    assert receive_many(connection, ["a", "b", "a", "a"], ["k"] * 4) == ["process", "process", "duplicate", "duplicate"]
    assert receive_many(connection, ["c", "c"], None, [PRINT, OTHER_PRINT]) == ["process", "P4050"]
    assert receive_many(connection, ["d", "d"], None, [b"short", PRINT]) == ["P4003", "process"]
    assert receive_many(connection, ["a", "a"], None, [OTHER_PRINT, PRINT]) == ["P4050", "duplicate"]


def test_a_bad_element_spoils_nothing(db):
    connection, held = db.connect(), hold_days(db)
    drop_day(db, 1)
    ids = ["good", "", None, "a\nb", "x" * 256, uuid7(now_ms(db) + 30 * DAY_MS), uuid7_days_ago(db, 400)]
    ids += [uuid7_days_ago(db, 1), uuid7_days_ago(db, 0), "print", "noprint", "last"]
    prints = [PRINT] * len(ids)
    prints[-3:-1] = [b"x" * 15, None]
    codes = ["process", "P4001", "P4001", "P4001", "P4001", "P4001", "P4041", "P4098", "process", "P4003", "P4003"]
    assert receive_many(connection, ids, None, prints, birthdays=True) == codes + ["process"]
    assert db.value("SELECT count(*) FROM once.intent") == 3
    held.rollback()
    db.execute("SELECT once.add_days()")
    assert receive_many(connection, ids[7:9], birthdays=True) == ["process", "duplicate"]


def test_another_payload_is_a_mismatch_and_an_unfinished_lease_is_told(db):
    connection = db.connect()
    receive_many(connection, ["a"])
    Once(connection).claim(scope="mailer", key="leased")
    assert receive_many(connection, ["a", "leased", "b"], None, [OTHER_PRINT, PRINT, PRINT]) == [
        "P4050",
        "P4099",
        "process",
    ]


def test_a_message_of_a_retired_day_is_a_duplicate_where_it_is_remembered_and_else_expired(db):
    shorten_horizon(db)
    connection = db.connect()
    kept, other = uuid7_days_ago(db, 2), uuid7_days_ago(db, 2, 1)
    assert receive_many(connection, [kept], birthdays=True) == ["process"]
    retire(db, 2)
    assert receive_many(connection, [kept, other, kept], None, [PRINT, PRINT, OTHER_PRINT], birthdays=True) == [
        "duplicate",
        "P4041",
        "P4050",
    ]


def test_a_message_from_a_clock_that_is_a_little_ahead_is_taken(db):
    """Tomorrow's key, where tomorrow is nearer than the allowance."""
    db.execute("UPDATE once.setting SET clock_skew = '12 hours'")
    soon = now_ms(db) + 12 * 3_600_000 - 1000
    if soon // DAY_MS == now_ms(db) // DAY_MS:
        soon = (now_ms(db) // DAY_MS + 1) * DAY_MS  # before noon it is out of reach
        assert receive_many(db.connect(), [uuid7(soon)], birthdays=True) == ["P4001"]
        return
    connection = db.connect()
    assert receive_many(connection, [uuid7(soon), uuid7(soon)], birthdays=True) == ["process", "duplicate"]
    assert receive_many(connection, [uuid7(soon)], birthdays=True) == ["duplicate"]


def test_an_empty_batch_has_no_rows_and_a_batch_that_is_none_is_refused(db):
    connection = db.connect()
    assert receive_many(connection, []) == []
    assert run(connection, "SELECT * FROM once.receive_many('c', NULL, NULL, NULL)") == []
    for ids, keys, prints in (
        (["a"], None, []),
        (["a"], [], [PRINT]),
        (["a", "b"], ["k"], [PRINT] * 2),
        (["a"], None, [PRINT] * 2),
        (None, None, [PRINT]),
        (["a"] * 10_001, None, [PRINT] * 10_001),
    ):
        with refused("22023"):
            run(connection, MANY, "mailer", ids, keys, prints, "", False, False)
    with refused("22023"):
        run(connection, "SELECT once.receive_many('c', '[0:0]={a}'::text[], NULL, ARRAY['0123456789abcdef'::bytea])")
    for consumer in (None, "", "c" * 256):
        assert code_of(lambda: receive_many(connection, ["a"], consumer=consumer)) == "P4000"
    for tenant in (None, "t" * 256):
        assert code_of(lambda: receive_many(connection, ["a"], tenant=tenant)) == "P4003"
    assert db.value("SELECT count(*) FROM once.intent") == 0


def test_a_batch_of_10000_is_taken(db):
    connection = db.connect()
    ids = [f"m{n}" for n in range(10_000)]
    assert set(receive_many(connection, ids)) == {"process"}
    assert set(receive_many(connection, ids)) == {"duplicate"}


# ---- others at the same time ----


def test_a_message_that_another_transaction_is_applying_is_active_and_nobody_waits(db):
    first, second = (db.connect(isolation="READ COMMITTED", lock_timeout="1s") for _ in range(2))
    receive_many(first, ["a", "b"])
    Once(first).receive(message_id="single")
    assert receive_many(second, ["x", "b", "single", "y"]) == ["process", "P4029", "P4029", "process"]
    first.commit()
    assert receive_many(second, ["b", "single", "z"]) == ["duplicate", "duplicate", "process"]


@pytest.mark.parametrize("level", LEVELS)
def test_12_parallel_consumers_apply_each_of_300_messages_once(db, level):
    connections = [db.connect(isolation=level, lock_timeout="10s") for _ in range(12)]
    together = threading.Barrier(12)
    applied = []

    def consume(n):
        dice = random.Random(n)
        together.wait()
        ids = [f"m{number}" for number in range(300)]
        dice.shuffle(ids)
        while ids:
            batch = ids[:25]
            try:
                verdicts = receive_many(connections[n], batch)
                mine = [message for message, verdict in zip(batch, verdicts) if verdict == "process"]
                run(connections[n], "INSERT INTO effect SELECT unnest(%s::text[]), %s", mine, n)
                connections[n].commit()
                applied.extend(mine)
                ids = [m for m, verdict in zip(batch, verdicts) if verdict == "P4029"] + ids[25:]
            except psycopg2.Error as error:
                connections[n].rollback()
                if error.pgcode not in ("40001", "40P01"):
                    raise

    in_threads([lambda n=n: consume(n) for n in range(12)])
    assert sorted(applied) == sorted(f"m{number}" for number in range(300))
    assert db.rows("SELECT key FROM effect GROUP BY key HAVING count(*) <> 1") == []
    assert db.value("SELECT count(*) FROM effect") == 300


@pytest.mark.parametrize("level", LEVELS[1:])
def test_an_old_snapshot_never_processes_what_was_processed_since(db, level):
    connection = db.connect(isolation=level)
    run(connection, "SELECT count(*) FROM effect")
    receive_many(db.connect(), ["a"])
    assert code_of(lambda: receive_many(connection, ["a", "b"])) == "40001"


# ---- the same answers as one by one ----


def one_by_one(connection, ids, prints, birthdays):
    """What N calls of once.receive say; their errors do not undo the calls before."""
    said = []
    for message, fingerprint in zip(ids, prints):
        run(connection, "SAVEPOINT one")
        try:
            said.append(run(connection, "SELECT once.receive('mailer', %s, %s, birthdays => %s)", message, fingerprint, birthdays)[0][0])
            run(connection, "RELEASE one")
        except psycopg2.Error as error:
            run(connection, "ROLLBACK TO one")
            said.append(error.pgcode)
    return said


@pytest.mark.parametrize("birthdays", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_random_batch_gets_the_answers_of_as_many_single_calls(server, db, seed, birthdays):
    """Twice the same database, the same past, the same batches; and another session that holds some of the messages."""
    twin = server.new_database()
    dice = random.Random(seed)
    ms = now_ms(db)
    day = ms - 2 * DAY_MS
    past = [f"old{n}" for n in range(6)] + [uuid7(ms, n) for n in range(4)] + [uuid7(day, n) for n in range(4)]
    sides = []
    for database in (db, twin):
        shorten_horizon(database)
        owner = database.connect()
        receive_many(owner, past, birthdays=birthdays)
        Once(owner).claim(scope="mailer", key="leased")
        database.execute("SELECT once.retire_day(%s)", day // DAY_MS)
        drop_day(database, 1)
        busy = database.connect(isolation="READ COMMITTED")
        receive_many(busy, ["busy1", "busy2", uuid7(ms, 99)], birthdays=birthdays)
        sides.append((database.connect(isolation="READ COMMITTED"), busy))
    pool = past + ["leased", "busy1", "busy2", uuid7(ms, 99), "", "a\nb", None, "x" * 300]
    pool += [uuid7(day, 77), uuid7(ms - DAY_MS, 1), uuid7(ms + 40 * DAY_MS), uuid7(ms - 300 * DAY_MS)]
    pool += [f"new{n}" for n in range(20)] + [uuid7(ms, 100 + n) for n in range(10)]
    pool += [f"pgonce:id:{uuid7(ms, n)}" for n in range(2)] + [f"{{{uuid7(ms, 5)}}}", uuid7(ms, 6).upper(), f"urn:uuid:{uuid7(ms, 7)}"]
    for _ in range(25):
        ids = [dice.choice(pool) for _ in range(dice.randint(1, 40))]
        prints = [dice.choice([PRINT] * 6 + [OTHER_PRINT, b"short"]) for _ in ids]
        batched = receive_many(sides[0][0], ids, None, prints, birthdays=birthdays)
        assert batched == one_by_one(sides[1][0], ids, prints, birthdays), (ids, prints)
        end = dice.choice(("commit", "rollback"))
        for connection, _ in sides:
            getattr(connection, end)()
    stored = "SELECT tenant, scope, key, bucket, fingerprint, state FROM once.intent ORDER BY key"
    for connection, busy in sides:
        busy.rollback()
    assert db.rows(stored) == twin.rows(stored)
    twin.drop()


# ---- keys ----


def test_a_message_behind_a_parked_one_of_its_key_is_blocked_and_not_entered(db):
    connection = db.connect()
    receive_many(connection, ["done"], ["k"])
    park(connection, "p", "k", wait_ms=60_000)
    ids, keys = ["p", "new", "done", "free", "nokey", "new2"], ["k", "k", "k", "other", None, "k"]
    assert receive_many(connection, ids, keys) == ["parked", "blocked", "duplicate", "process", "process", "blocked"]
    assert {row.key for row in db.rows("SELECT key FROM once.intent")} == {"done", "free", "nokey"}
    assert receive_many(connection, ["p", "new"], ["k", "k"], [OTHER_PRINT, PRINT]) == ["P4050", "blocked"]
    # Another consumer, another tenant: another queue.
    assert receive_many(connection, ["new"], ["k"], consumer="billing") == ["process"]
    assert receive_many(connection, ["new"], ["k"], tenant="acme") == ["process"]


def test_dead_messages_block_their_key_unless_they_are_skipped(db):
    connection = db.connect()
    park(connection, "p", "k", "dead")
    assert receive_many(connection, ["p", "new"], ["k", "k"]) == ["parked", "blocked"]
    assert receive_many(connection, ["p", "new"], ["k", "k"], skip_dead=True) == ["parked", "process"]
    park(connection, "q", "k", "waiting")
    assert receive_many(connection, ["new2"], ["k"], skip_dead=True) == ["blocked"]


def test_what_cannot_be_processed_in_this_batch_blocks_what_follows_it_with_its_key(db):
    connection = db.connect()
    busy = db.connect(isolation="READ COMMITTED")
    receive_many(busy, ["busy"])
    receive_many(connection, ["stored"])
    ids = ["busy", "after busy", "stored", "after mismatch", "", "after invalid", "free", "blocked twice", "blocked twice"]
    keys = ["a", "a", "b", "b", "c", "c", "d", "a", "a"]
    prints = [PRINT] * len(ids)
    prints[2] = OTHER_PRINT
    assert receive_many(connection, ids, keys, prints) == [
        "P4029",
        "blocked",
        "P4050",
        "blocked",
        "P4001",
        "blocked",
        "process",
        "blocked",
        "blocked",
    ]
    # Dead ones will be skipped: they hold nobody up.
    assert receive_many(connection, ids[:6], keys[:6], prints[:6], skip_dead=True) == [
        "P4029",
        "blocked",
        "P4050",
        "process",
        "P4001",
        "process",
    ]


def test_a_blocked_message_can_be_received_once_its_predecessor_is_applied(db):
    connection = db.connect()
    park(connection, "p", "k")
    assert receive_many(connection, ["new"], ["k"]) == ["blocked"]
    assert run(connection, "SELECT once_job.message_applied('mailer', '', ARRAY['p'])") == [(1,)]
    assert receive_many(connection, ["new"], ["k"]) == ["process"]


def test_a_key_of_any_length_keeps_its_order(db):
    connection = db.connect()
    long = "\u20ac" * 50_000
    park(connection, "p", long)
    assert receive_many(connection, ["new", "other"], [long, long[:-1]]) == ["blocked", "process"]


# ---- cost ----


def test_plans_made_on_an_empty_inbox_stay_searches_when_it_has_filled(db):
    connection = db.connect()
    db.execute("VACUUM ANALYZE once.intent, once.parked_message")
    for n in range(7):
        receive_many(connection, [f"w{n}", uuid7(now_ms(db), n)], ["k", None], birthdays=n % 2 == 1)
        park(connection, f"p{n}", f"k{n}")
    db.execute(
        "INSERT INTO once.intent (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key,"
        " fingerprint) SELECT now(), now(), now(), 0, 1, 1, 'succeeded', '', 'mailer', 'm' || g, %s"
        " FROM generate_series(1, 20000) AS g",
        PRINT,
    )
    db.execute(
        "INSERT INTO once.parked_message (consumer, tenant, message_id, topic, key, fingerprint, state, next_at, parked_at,"
        " updated_at) SELECT 'mailer', '', 'q' || g, 't', 'kk' || g, %s, 'retrying', now(), now(), now()"
        " FROM generate_series(1, 20000) AS g",
        PRINT,
    )
    ids = [f"m{n}" for n in range(1, 51)] + [f"new{n}" for n in range(50)] + [f"q{n}" for n in range(1, 51)]
    run(connection, "BEGIN")
    before = scanned(connection)
    assert receive_many(connection, ids, ids) == ["duplicate"] * 50 + ["process"] * 50 + ["parked"] * 50
    assert park(connection, "m1") == 0 and park(connection, "q1", "kk1") == 1 and park(connection, "another", "kk1") == 1
    run(connection, "SELECT once_job.message_applied('mailer', '', ARRAY['q1', 'q2', 'nobody'])")
    run(connection, "SELECT once_job.message_look('mailer', '', ARRAY['q3', 'new'], ARRAY['kk3', 'kk4'])")
    scans, rows = (after - earlier for after, earlier in zip(scanned(connection), before))
    run(connection, "ROLLBACK")
    assert scans == 0 and rows <= 200, (scans, rows)


def scanned(connection):
    return run(
        connection,
        "SELECT coalesce(sum(seq_scan), 0), coalesce(sum(seq_tup_read), 0) + coalesce(sum(idx_tup_fetch), 0)"
        " FROM pg_stat_xact_all_tables WHERE schemaname = 'once' AND relname ~ '^(intent|archive|parked)'",
    )[0]
