# SPDX-License-Identifier: PostgreSQL
"""once._today(), the day whose partition the hot functions open alone: it makes them fast, and decides nothing. Whatever it is, a late keeper's or
none, and whenever it changes, each call answers as it would without it."""

import random

import pytest
from harness.postgres import wait_until

from .calls import DAY_MS, OTHER_PRINT, PRINT, Once, code_of, hold_days, in_threads, now_ms, run, today, uuid7, uuid7_days_ago
from .test_buckets import spellings
from .test_roles import make_logins

AS_INSTALLED = "CREATE OR REPLACE FUNCTION once._today() RETURNS integer LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT NULL::integer'"
DAYS = {"none": None, "yesterday, by a late keeper": -1, "today": 0, "tomorrow, by a clock that has stepped back": 1}


def set_today(db, ahead):
    """As add_days does it on that day; None: as installed."""
    db.execute(AS_INSTALLED if ahead is None else f"SELECT once._set_today({today(db) + ahead})")


def leave_today(db, ahead):
    """The same, and it stays so: another transaction is about to move it on."""
    set_today(db, ahead)
    hold_days(db)


def test_add_days_moves_today_on_and_never_back(db):
    day = today(db)
    assert db.value("SELECT once._today()") == day, "as installed by init"
    for ahead, then in ((None, day), (-3, day), (0, day), (1, day + 1)):
        set_today(db, ahead)
        assert db.value("SELECT once.add_days()") == 0
        assert db.value("SELECT once._today()") == then


def test_a_session_follows_today(db):
    """Its plans, made when today was another day, are made anew."""
    connection = db.connect()
    run(connection, "SET plan_cache_mode = force_generic_plan; PREPARE is_today AS SELECT once._is_today(%s)", today(db))
    for ahead in (0, -1, None, 0):
        set_today(db, ahead)
        held = hold_days(db)
        assert run(connection, "EXECUTE is_today") == [(ahead == 0,)]
        key = uuid7_days_ago(db, 0, random.getrandbits(48))
        assert Once(connection).finish_new(key=key) == 1
        assert Once(connection).start(key=key).verdict == "replay_success"
        held.rollback()


@pytest.mark.parametrize("ahead", DAYS.values(), ids=DAYS)
@pytest.mark.parametrize("days_ago", [0, 1, None])
def test_whatever_day_today_is_a_key_goes_to_its_own_and_is_found_there(db, ahead, days_ago):
    leave_today(db, ahead)
    connection = db.connect()
    once = Once(connection)
    name = {"finish": 1, "finish_new": 2, "receive": 3, "claim": 4, "start": 5}
    key = {door: f"plain {door}" if days_ago is None else uuid7_days_ago(db, days_ago, number) for door, number in name.items()}
    for _ in range(2):
        run(connection, "BEGIN")
        assert once.start(key=key["start"]).verdict == "proceed"
        run(connection, "ROLLBACK")
    run(connection, "BEGIN")
    assert once.start(key=key["finish"]).verdict == "proceed"
    once.finish(key=key["finish"], response_body=b"a")
    run(connection, "COMMIT")
    assert once.finish_new(key=key["finish_new"], response_body=b"a") == 1
    assert once.claim(key=key["claim"]).verdict == "new_claim"
    assert once.complete(key=key["claim"], fence=1, response_body=b"a")
    assert once.receive(birthdays=True, message_id=key["receive"]) == "process"
    leaves = {row.leaf for row in db.rows("SELECT tableoid::regclass::text AS leaf FROM once.intent")}
    assert leaves == {f"once.intent_d{0 if days_ago is None else today(db) - days_ago}"}
    for door in ("finish", "finish_new", "claim"):
        assert once.start(key=key[door]).response_body == b"a"
        assert code_of(lambda: once.finish_new(key=key[door])) == "P4020"
        assert once.claim(key=key[door]).verdict == "replay_success"
    assert once.receive(birthdays=True, message_id=key["receive"]) == "duplicate"


@pytest.mark.parametrize("ahead", DAYS.values(), ids=DAYS)
def test_whatever_day_today_is_a_key_of_tomorrow_is_refused(db, ahead):
    leave_today(db, ahead)
    db.execute("UPDATE once.setting SET clock_skew = '0'")
    key = uuid7_days_ago(db, -1)
    once = Once(db.connect())
    for call in (once.start, once.finish_new, once.claim):
        assert code_of(lambda: call(key=key)) == "P4001"
    assert code_of(lambda: once.receive(birthdays=True, message_id=key)) == "P4001"


def test_a_partition_of_today_that_is_gone_and_cannot_be_made_is_said(db):
    day = today(db)
    db.execute(f"ALTER TABLE once.intent DETACH PARTITION once.intent_d{day}; DROP TABLE once.intent_d{day}")
    key, once, held = uuid7_days_ago(db, 0), Once(db.connect()), hold_days(db)
    for call in (once.start, once.finish_new, once.claim):
        assert code_of(lambda: call(key=key)) == "P4098"
    assert code_of(lambda: once.receive(birthdays=True, message_id=key)) == "P4098"
    held.rollback()
    assert db.value("SELECT once.add_days()") == 1
    assert once.finish_new(key=key) == 1


def test_the_gate_has_each_key_of_its_own_day(db):
    """It compares texts where once._bucket reckons: at midnight, in either case, and for whatever only looks like a key of today."""
    chance = random.Random(20778)
    connection = db.connect()
    for ahead in (0, -1, 1, *(chance.randrange(-20000, 90000) for _ in range(12))):
        set_today(db, ahead)
        midnight = (today(db) + ahead) * DAY_MS
        edges = [midnight + days * DAY_MS + ms for days in (-1, 0, 1, 2) for ms in (-65536, -256, -1, 0, 1, 255, 65536)]
        times = [ms for ms in edges + [midnight + chance.randrange(-DAY_MS, 2 * DAY_MS) for _ in range(200)] if 0 <= ms < 2**48]
        keys = [uuid7(ms, chance.getrandbits(48)) for ms in times]
        keys += ["".join(chance.choice((c, c.upper())) for c in key) for key in keys]
        keys += [key[:n] + c + key[n + 1 :] for key in keys[:40] for n, c in ((3, "g"), (9, "-"), (30, "-"), (30, "~"))]
        keys += [key + "0" for key in keys[:5]] + [key[:-1] for key in keys[:5]]
        wrong = run(
            connection,
            "SELECT k, once._bucket(k) AS bucket, once._check_and_lock('', 's', k, %s, false) AS entered FROM unnest(%s) AS k"
            " WHERE once._bucket(k) IS DISTINCT FROM once._check_and_lock('', 's', k, %s, false)",
            PRINT,
            keys,
            PRINT,
        )
        assert wrong == []


def deceptive(key):
    """Keys that the look of this UUIDv7 leads to, and that are others: spelled otherwise, or of its shape and no UUIDv7."""
    return (*spellings(key), key[:-1] + "x", key[:-1] + "-", f"{key[:30]}-{key[31:]}", key + "0", key + " ", "x" + key[1:], key[:9] + "zzzz" + key[13:])


@pytest.mark.parametrize("ahead", DAYS.values(), ids=DAYS)
@pytest.mark.parametrize("role", ["app", "bound"])
def test_a_key_that_looks_like_another_is_started_and_from_then_on_replayed(db, ahead, role):
    """start looks for a replay before the gate has reckoned the key's bucket: by its looks."""
    make_logins(db)
    leave_today(db, ahead)
    connection = db.connect(role)
    once = Once(connection)
    for number, days_ago in enumerate((0, 1)):
        for key in deceptive(uuid7_days_ago(db, days_ago, number)):
            named = {"key": key, "tenant": "mine"}
            run(connection, "BEGIN")
            assert once.start(**named)[:2] == ("proceed", None), key
            once.finish(**named, response_text=key)
            run(connection, "COMMIT")
            assert once.start(**named).response_body == once.try_start(**named).response_body == key.encode()
            assert code_of(lambda: once.start(**named, fingerprint=OTHER_PRINT)) == "P4002", key
    wrong = db.rows("SELECT key FROM once.intent WHERE bucket <> once._bucket(key)")
    assert wrong == [] and db.value("SELECT count(DISTINCT bucket) FROM once.intent") == 3


@pytest.mark.parametrize("then", [1, None], ids=["midnight passes", "the contract is upgraded"])
def test_a_call_during_which_today_becomes_another_day_answers_as_before_or_after(db, then):
    """It has begun to look when the day changes: what it then does not find may be there."""
    stored, other, another = (uuid7_days_ago(db, 0, number) for number in range(3))
    for key in (stored, other, another):
        Once(db.connect()).finish_new(key=key, response_body=b"stored")
    attempts = [Once(db.connect()) for _ in range(6)]
    for number, attempt in enumerate(attempts):  # with their plans made
        for _ in range(7):
            run(attempt.connection, "BEGIN")
            attempt.start(key=uuid7_days_ago(db, 0, 100 + number))
            attempt.try_start(key=uuid7_days_ago(db, 0, 200 + number))
            attempt.finish_new(key=uuid7_days_ago(db, 0, 300 + number))
            run(attempt.connection, "ROLLBACK")
    leaf = f"once.intent_d{today(db)}"
    changing = db.connect(isolation="READ COMMITTED")
    run(changing, f"LOCK TABLE {leaf} IN ACCESS EXCLUSIVE MODE")
    run(changing, AS_INSTALLED if then is None else f"SELECT once._set_today({today(db) + then})")

    def commit_when_all_wait():
        waiting = f"SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{leaf}'::regclass::oid"
        wait_until(lambda: db.value(waiting) == len(attempts), "the attempts to wait")
        changing.commit()

    assert in_threads(
        [
            lambda: attempts[0].start(key=stored).response_body,
            lambda: attempts[1].try_start(key=other).verdict,
            lambda: code_of(lambda: attempts[2].finish_new(key=another)),
            lambda: attempts[3].start(key=uuid7_days_ago(db, 0, 3)).verdict,
            lambda: attempts[4].try_start(key=uuid7_days_ago(db, 0, 4)).fence,
            lambda: attempts[5].finish_new(key=uuid7_days_ago(db, 0, 5)),
            commit_when_all_wait,
        ]
    ) == [b"stored", "replay_success", "P4020", "proceed", 1, 1, None]


def relation_locks(connection):
    """(in the lock table that all backends share, in the backend's own slots)"""
    ((shared, own),) = run(
        connection,
        "SELECT count(*) FILTER (WHERE NOT fastpath) AS shared, count(*) FILTER (WHERE fastpath) AS own FROM pg_locks"
        " WHERE pid = pg_backend_pid() AND locktype = 'relation' AND relation <> 'pg_locks'::regclass",
    )
    return shared, own


@pytest.mark.parametrize("uuids", [False, True], ids=["arbitrary keys", "UUIDv7 keys"])
def test_start_emit_and_finish_lock_nothing_that_other_backends_look_at(db, uuids):
    """A backend has 16 slots for locks of its own (before PostgreSQL 18); what goes beyond is in the lock table, where 16 clients queue."""
    connection = db.connect(isolation="READ COMMITTED")
    once = Once(connection)
    for number in range(9):
        key = uuid7(now_ms(db), number) if uuids else f"k{number}"
        once.start(key=key)
        once.emit(topic="t", payload="{}", scope="orders", key=key)
        once.finish(key=key, response_body=b"a")
        locks = relation_locks(connection)
        connection.commit()
    assert locks[0] == 0 and locks[1] <= 14, locks
