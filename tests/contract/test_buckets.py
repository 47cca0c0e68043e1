# SPDX-License-Identifier: PostgreSQL
"""Keys that carry their birthday: a UUIDv7 belongs to its day, a retired day stays closed, and a late retry never
runs again."""

import pytest

from harness.postgres import wait_until

from .calls import (
    DAY_MS,
    PRINT,
    Once,
    code_of,
    hold_days,
    in_threads,
    let_lease_pass,
    now_ms,
    refused,
    retire,
    run,
    shorten_horizon,
    today,
    uuid7,
    uuid7_days_ago,
)

# Every way to start an intent; each must agree on a key's day. A function of (Once, key) that raises the SQLSTATE.
DOORS = {
    "start": lambda once, key: once.start(key=key),
    "try_start": lambda once, key: once.try_start(key=key),
    "finish": lambda once, key: once.finish_new(key=key),
    "finish_new": lambda once, key: once.finish_new(key=key),
    "claim": lambda once, key: once.claim(key=key),
    "receive": lambda once, key: once.receive(birthdays=True, message_id=key),
    "claim_many": lambda once, key: once.claim_many(key=[key])[0],
}


def code_at(door, once, key):
    """The SQLSTATE with which a door refuses a key: raised, or in the row; a claim says 'expired' as a verdict."""
    results = []
    code = code_of(lambda: results.append(DOORS[door](once, key)))
    if code is None and door in ("claim", "claim_many", "try_start"):
        return {"expired": "P4041", "invalid": results[0].error_code}.get(results[0].verdict)
    return code


def bucket_of(db, key):
    return db.value("SELECT once._bucket(%s)", key)


def test_a_uuid7_belongs_to_its_day_and_every_other_key_to_bucket_0(db):
    now = now_ms(db)
    assert bucket_of(db, uuid7(now)) == now // DAY_MS
    assert bucket_of(db, uuid7(now - DAY_MS)) == now // DAY_MS - 1
    assert bucket_of(db, uuid7(now).upper()) == now // DAY_MS
    assert bucket_of(db, uuid7(0)) == bucket_of(db, uuid7(DAY_MS - 1)) == 1  # 0 is of keys without a day
    assert bucket_of(db, uuid7(DAY_MS)) == 1
    assert bucket_of(db, uuid7(2 * DAY_MS)) == 2
    assert bucket_of(db, uuid7(2**48 - 1)) == bucket_of(db, uuid7(2**48 - 1).upper()) == (2**48 - 1) // DAY_MS
    for other in ("0190163d-8694-4f4e-8694-123456789abc", "order-7", "x", " ", "~", "a" * 255):
        assert bucket_of(db, other) == 0
    for malformed in ("", "a" * 256, "schlüssel", "a\nb", "a\tb", "a\x7fb", "\x80", None):
        assert bucket_of(db, malformed) in (-1, None)


def spellings(key):
    """A UUIDv7 as PostgreSQL's type uuid takes it, and as a URN (RFC 9562, 4)."""
    bare = key.replace("-", "")
    fours = "-".join(bare[n : n + 4] for n in range(0, 32, 4))
    plain = (key, bare, fours, f"{bare[:8]}-{bare[8:]}")
    lower = (*plain, *(f"{{{each}}}" for each in plain), f"urn:uuid:{key}")
    return (*lower, *(each.upper() for each in lower))


def test_a_uuid7_has_its_birthday_in_any_spelling(db):
    for ms in (1_700_000_000_000, now_ms(db), 2_000_000_000_000):
        for spelling in spellings(uuid7(ms, 0xABCDEF)):
            assert bucket_of(db, spelling) == ms // DAY_MS, spelling
            if "u" not in spelling.lower():
                assert db.value("SELECT %s::uuid::text", spelling) == uuid7(ms, 0xABCDEF), "PostgreSQL takes it"


@pytest.mark.parametrize("locale", ["tr-x-icu", "en-x-icu", "C", "default"])
def test_no_collation_of_the_database_changes_a_bucket(db, locale):
    if db.value("SELECT count(*) FROM pg_collation WHERE collname = %s", locale) == 0:
        pytest.skip("no such collation here")
    for key in ("URN:UUID:0190163D-8694-7F4E-8694-123456789ABC", "{0190163D-8694-7F4E-8694-123456789ABC}"):
        assert db.value(f'SELECT once._bucket(%s COLLATE "{locale}")', key) == 0x0190163D8694 // DAY_MS


@pytest.mark.parametrize(
    "lookalike",
    [
        "0190163d-8694-7xyz-8694-123456789abc",
        "0190163d-8694-7f4e-8694-123456789abc ",
        "0190163d86946f4e8694123456789abc",  # another version
        "0190163d86947f4ec694123456789abc",  # another variant: only the usual spelling may have it
        "5190163d86947f4e8694123456789abc",  # a hash: as a time, of the year 4802
        "0170163d86947f4e8694123456789abc",  # a hash: as a time, before there were UUIDv7
        "0190163d86947f4e8694123456789ab",
        "0190163d86947f4e8694123456789abc0",
        "invoice:0190163d-8694-7f4e-8694-123456789abc",
        "invoice:0190163d86947f4e8694123456789abc",
        " 0190163d-8694-7f4e-8694-123456789abc",
        "urn:oid:0190163d-8694-7f4e-8694-123456789abc",
        "0190163d8694" + "-" * 20 + "7f4e8694123456789abc",
        "0190163d-8694-6f4e-8694-123456789abc",
        "0190163d_8694_7f4e_8694_123456789abc",
        "-190163d-8694-7f4e-8694-123456789abc",
        "________-____-7___-____-____________",
        "%%%%%%%%-%%%%-7%%%-%%%%-%%%%%%%%%%%%",
        "g190163d-8694-7f4e-8694-123456789abc",
        "0190163d-8694-7f4e-8694-123456789ab-",
        "--------------7---------------------",
    ],
)
def test_a_key_that_only_looks_like_a_uuid7_is_an_ordinary_key(db, lookalike):
    assert bucket_of(db, lookalike) == 0
    once = Once(db.connect())
    once.finish_new(key=lookalike, response_body=b"a")
    assert once.start(key=lookalike).response_body == b"a"


@pytest.mark.parametrize("days", [0, 1, 7])
@pytest.mark.parametrize("door", DOORS)
def test_a_key_of_an_open_day_is_taken(db, door, days):
    key = uuid7_days_ago(db, days)
    assert code_at(door, Once(db.connect()), key) is None
    if door not in ("start", "try_start"):
        assert db.value("SELECT tableoid::regclass::text FROM once.intent") == f"once.intent_d{today(db) - days}"


@pytest.mark.parametrize("door", DOORS)
def test_a_key_from_beyond_the_horizon_is_expired(db, door):
    device_without_a_clock = "00000000-0001-7000-8000-000000000001"
    old = (uuid7_days_ago(db, 8), uuid7(DAY_MS), uuid7(0), device_without_a_clock, uuid7_days_ago(db, 3650))
    for key in (*old, *spellings(uuid7_days_ago(db, 60))):
        assert code_at(door, Once(db.connect()), key) == "P4041", key
    assert db.value("SELECT count(*) FROM once.intent") == 0


@pytest.mark.parametrize("door", DOORS)
def test_a_key_from_the_future_is_malformed(db, door):
    # Tomorrow has its partition already; at 23:55 and later it is within the allowed clock skew.
    for key in (uuid7(now_ms(db) + 2 * DAY_MS), uuid7(now_ms(db) + 9 * DAY_MS), uuid7(2**48 - 1)):
        assert code_at(door, Once(db.connect()), key) == "P4001", key
    assert db.value("SELECT count(*) FROM once.intent") == 0


@pytest.mark.parametrize("door", DOORS)
def test_a_key_within_the_allowed_clock_skew_is_taken(db, door):
    db.execute("UPDATE once.setting SET clock_skew = '12 hours'")
    ahead_ms = DAY_MS - now_ms(db) % DAY_MS  # until midnight
    skew = min(ahead_ms + 1000, 12 * 3600_000 - 60_000)
    assert code_at(door, Once(db.connect()), uuid7(now_ms(db) + skew)) is None


def drop_day(db, days):
    """A day without its partition that is neither retired nor in the future: nobody called on it, nor on the day before."""
    day = today(db) - days
    db.execute(f"ALTER TABLE once.intent DETACH PARTITION once.intent_d{day}; DROP TABLE once.intent_d{day}")


@pytest.mark.parametrize("door", DOORS)
def test_a_missing_partition_that_cannot_be_made_is_said_and_add_days_makes_it(db, door):
    key = uuid7_days_ago(db, 1)
    drop_day(db, 1)
    once, held = Once(db.connect()), hold_days(db)
    assert code_at(door, once, key) == "P4098"
    held.rollback()
    assert db.value("SELECT once.add_days()") == 1
    assert code_at(door, once, key) is None


def test_a_missing_partition_spoils_only_its_own_element_of_a_batch(db):
    drop_day(db, 1)
    hold_days(db)
    keys = [uuid7_days_ago(db, 0), uuid7_days_ago(db, 1), "plain"]
    rows = Once(db.connect()).claim_many(key=keys)
    assert [(row.verdict, row.error_code) for row in rows] == [
        ("new_claim", None),
        ("invalid", "P4098"),
        ("new_claim", None),
    ]


def test_add_days_is_idempotent_and_safe_from_many_connections(db):
    assert db.value("SELECT once.add_days()") == 0
    assert db.value("SELECT once.add_days(5)") == 6  # three more days, for intents and for the outbox
    assert db.value("SELECT once.add_days(5)") == 0
    for wrong in (0, -1, 367):
        with refused("22023"):
            db.value("SELECT once.add_days(%s)", wrong)


def test_each_spelling_of_a_uuid7_is_a_key_of_its_own_in_the_same_bucket(db):
    """A key is its bytes. What matters is that no spelling ever changes its bucket."""
    once = Once(db.connect())
    keys = set(spellings(uuid7(now_ms(db), 0xABC)))
    assert len(keys) == 18
    for key in keys:
        assert once.claim(key=key).verdict == "new_claim"
    assert db.value("SELECT count(DISTINCT bucket) FROM once.intent") == 1


@pytest.mark.parametrize("door", DOORS)
def test_an_old_uuid7_with_a_prefix_is_a_key_like_any_other(db, door):
    """An invoice's id, paid 60 days after it was made: what P4041's hint says."""
    invoice = uuid7_days_ago(db, 60)
    once = Once(db.connect())
    assert code_at(door, once, invoice) == "P4041"
    assert "prefix" in db.value("SELECT hint FROM once.errors() WHERE code = 'P4041'")
    assert code_at(door, once, f"invoice:{invoice}") is None


def retired_day(db, prepare):
    """Two days ago, retired, after prepare(once, key) ran on a key of it. Returns the key."""
    shorten_horizon(db)
    key = uuid7_days_ago(db, 2)
    prepare(Once(db.connect()), key)
    retire(db, 2)
    assert db.value("SELECT to_regclass(%s)", f"once.intent_d{today(db) - 2}") is None
    return key


@pytest.mark.parametrize("door", DOORS)
def test_a_retired_day_stays_closed_for_new_intents(db, door):
    key = retired_day(db, lambda once, key: None)
    once = Once(db.connect())
    assert code_at(door, once, key) == "P4041"
    db.execute("SELECT once.add_days()")
    db.execute("UPDATE once.setting SET horizon_days = 30")
    db.execute("SELECT once.add_days()")
    assert code_at(door, once, key) == "P4041"


def test_an_intent_whose_retention_passed_with_its_day_never_runs_again(db):
    def finished_long_ago(once, key):
        once.claim(key=key, retention="1 second")
        once.complete(key=key, fence=1, response_body=b"old")
        db.execute("UPDATE once.intent SET expires_at = clock_timestamp() - interval '1 hour'")

    key = retired_day(db, finished_long_ago)
    once = Once(db.connect())
    for door in DOORS:
        assert code_at(door, once, key) == "P4041", door
    assert once.peek(key=key).verdict == "expired"


def test_a_retired_intent_that_outlives_its_day_still_replays(db):
    key = retired_day(
        db,
        lambda once, key: once.finish_new(key=key, response_status=201, response_body=b"kept", response_headers='{"a": 1}'),
    )
    once = Once(db.connect())
    for row in (
        once.start(key=key),
        once.claim(key=key),
        once.claim_many(key=[key])[0],
        once.peek(key=key),
        once.peek_many(key=[key])[0],
    ):
        assert row.verdict == "replay_success"
        assert (row.response_status, row.response_body, row.response_headers) == (201, b"kept", {"a": 1})
    assert code_of(lambda: once.finish_new(key=key)) == "P4020"
    assert code_of(lambda: Once(db.connect(), fingerprint=b"another request!").start(key=key)) == "P4002"
    assert code_of(lambda: Once(db.connect(), fingerprint=b"another request!").claim(key=key)) == "P4002"
    assert once.story(key=key)["archived"] is True


def test_a_received_message_of_a_retired_day_is_still_a_duplicate(db):
    key = retired_day(db, lambda once, key: once.receive(birthdays=True, message_id=key))
    assert Once(db.connect()).receive(birthdays=True, message_id=key) == "duplicate"
    assert code_of(lambda: Once(db.connect()).receive(birthdays=True, message_id=key, fingerprint=b"another payload!")) == "P4050"


def test_a_final_failure_of_a_retired_day_still_fails(db):
    def failed(once, key):
        once.claim(key=key)
        once.fail(key=key, fence=1, retryable=False, error_code="declined")

    key = retired_day(db, failed)
    assert code_of(lambda: Once(db.connect()).start(key=key)) == "P4030"
    assert Once(db.connect()).claim(key=key).verdict == "final_failure"


def test_an_intent_in_doubt_survives_its_day_and_can_be_resolved(db):
    def doubtful(once, key):
        once.claim(key=key)
        once.fail(key=key, fence=1, retryable=None)

    key = retired_day(db, doubtful)
    once = Once(db.connect())
    assert once.claim(key=key).verdict == "in_doubt"
    with refused("P4031"):
        once.start(key=key)
    assert once.resolve(key=key, as_state="succeeded", response_body=b"it did") == "in_doubt"
    assert once.start(key=key).response_body == b"it did"


def test_a_late_report_on_an_archived_intent_is_told_what_became_of_it(db):
    def prepare(once, key):
        once.claim(key=key)
        let_lease_pass(db, key)

    key = retired_day(db, prepare)
    once = Once(db.connect())
    for report in (lambda: once.complete(key=key, fence=1), lambda: once.fail(key=key, fence=1, retryable=True)):
        with refused("P4010", "P4011") as told:
            report()
        assert "the intent is in_doubt under fence 1, its day is retired; the attempt has fence 1" in told.value.diag.message_detail
    with refused("P4010") as told:
        once.complete(key="none", fence=1)
    assert "there is no such claim" in told.value.diag.message_primary


@pytest.mark.parametrize("door", ["start", "try_start", "finish", "finish_new", "claim", "claim_many"])
def test_an_archived_intent_that_is_decided_as_not_happened_does_not_run_in_its_closed_day(db, door):
    def doubtful(once, key):
        once.claim(key=key)
        once.fail(key=key, fence=1, retryable=None)

    key = retired_day(db, doubtful)
    once = Once(db.connect())
    once.resolve(key=key, as_state="failed_retryable")
    assert code_at(door, once, key) == "P4041"


def test_a_stale_attempt_of_a_retired_day_becomes_in_doubt(db):
    def stale(once, key):
        once.claim(key=key)
        let_lease_pass(db, key)

    key = retired_day(db, stale)
    row = Once(db.connect()).claim(key=key)
    assert (row.verdict, row.error_code) == ("in_doubt", "stale")
    assert code_of(lambda: Once(db.connect()).complete(key=key, fence=1)) == "P4010"


def test_a_retryable_failure_goes_with_its_day_and_is_expired(db):
    def retryable(once, key):
        once.claim(key=key)
        once.fail(key=key, fence=1, retryable=True)

    key = retired_day(db, retryable)
    for door in ("start", "finish", "claim", "claim_many"):
        assert code_at(door, Once(db.connect()), key) == "P4041"


def test_a_day_is_not_retired_under_an_old_snapshot(db):
    """It would not show what was finished last, and the day would be dropped with it."""
    shorten_horizon(db)
    keeper = db.connect(isolation="REPEATABLE READ")
    run(keeper, "SELECT count(*) FROM once.intent")
    kept = uuid7_days_ago(db, 2, 1)
    Once(db.connect()).finish_new(key=kept, response_body=b"kept")
    assert code_of(lambda: run(keeper, "SELECT once.retire_day(%s)", today(db) - 2)) == "55000"
    keeper.rollback()
    db.execute("SELECT once.retire_day(%s)", today(db) - 2)
    assert Once(db.connect()).start(key=kept).response_body == b"kept"


@pytest.mark.parametrize("late", [False, True], ids=["", "no keeper has run since that day"])
def test_an_attempt_that_meets_the_retiring_of_its_day_is_answered_as_after_it(db, late):
    """It has passed the gate while the day was open, and then waits for the table that is being changed."""
    shorten_horizon(db)
    if late:
        db.execute(f"SELECT once._set_today({today(db) - 2})")
    kept, *new = (uuid7_days_ago(db, 2, number) for number in range(4))
    Once(db.connect()).finish_new(key=kept, response_body=b"kept")
    retiring = db.connect(isolation="READ COMMITTED")
    run(retiring, "SELECT once.retire_day(%s)", today(db) - 2)
    attempts = [Once(db.connect()) for _ in range(4)]

    def commit_when_all_wait():
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'once.intent'::regclass::oid"
        wait_until(lambda: db.value(waiting) == len(attempts), "the attempts to wait")
        retiring.commit()

    assert in_threads(
        [
            lambda: attempts[0].start(key=kept).response_body,
            lambda: code_of(lambda: attempts[1].start(key=new[0])),
            lambda: code_of(lambda: attempts[2].finish_new(key=new[1], state="failed_final")),
            lambda: code_of(lambda: attempts[3].finish_new(key=new[2])),
            commit_when_all_wait,
        ]
    ) == [b"kept", "P4041", "P4041", "P4041", None]


def test_a_day_with_an_attempt_under_lease_is_not_retired(db):
    shorten_horizon(db)
    key = uuid7_days_ago(db, 2)
    once = Once(db.connect())
    once.claim(key=key)
    with refused("55006") as caught:
        retire(db, 2)
    assert key in caught.value.diag.message_detail
    assert once.claim(key=key).verdict == "processing_active"
    once.complete(key=key, fence=1, response_body=b"done")
    assert retire(db, 2) == 1
    assert once.claim(key=key).response_body == b"done"


@pytest.mark.parametrize("days_ago", [-1, 0, 1, 7])
def test_a_day_within_the_horizon_is_not_retired(db, days_ago):
    with refused("22023"):
        retire(db, days_ago)
    for wrong in (0, -1, None, 10**6):
        with refused("22023"):
            db.value("SELECT once.retire_day(%s::integer)", wrong)


def test_retiring_a_day_closes_the_days_before_it_at_every_door_alike(db):
    """Days are retired oldest first; where one was skipped, all doors must still say the same."""
    shorten_horizon(db)
    finished = uuid7_days_ago(db, 3)
    once = Once(db.connect())
    once.finish_new(key=finished, response_body=b"kept")
    retire(db, 2)
    codes = {door: code_at(door, once, uuid7_days_ago(db, 3, number)) for number, door in enumerate(DOORS, 1)}
    assert codes == {door: "P4041" for door in DOORS}
    assert once.start(key=finished).response_body == b"kept"
    assert once.claim(key=finished).response_body == b"kept"


def test_retiring_a_day_twice_is_harmless(db):
    key = retired_day(db, lambda once, key: once.finish_new(key=key, response_body=b"kept"))
    assert retire(db, 2) == 0
    assert Once(db.connect()).start(key=key).response_body == b"kept"


def test_an_open_transaction_of_the_day_holds_up_its_retirement_and_loses_nothing(db):
    shorten_horizon(db)
    key = uuid7_days_ago(db, 2)
    attempt = db.connect(isolation="READ COMMITTED")
    Once(attempt).start(key=key)
    Once(attempt).finish(key=key, response_body=b"just in time")
    keeper = db.connect(lock_timeout="200ms")
    with refused("55P03"):
        run(keeper, "SELECT once.retire_day(%s)", today(db) - 2)
    attempt.commit()
    run(keeper, "SELECT once.retire_day(%s)", today(db) - 2)
    assert Once(db.connect()).start(key=key).response_body == b"just in time"


def test_an_attempt_that_began_before_its_day_was_retired_cannot_finish_after(db):
    """It holds no lock on the day between begin's transaction snapshot and finish only where it has not looked yet;
    then it is refused."""
    shorten_horizon(db)
    key = uuid7_days_ago(db, 2)
    attempt = db.connect(isolation="READ COMMITTED")
    Once(attempt).start(key=key)
    keeper = db.connect(lock_timeout="200ms")
    closed = code_of(lambda: run(keeper, "SELECT once.retire_day(%s)", today(db) - 2)) is None
    code = code_of(lambda: Once(attempt).finish(key=key))
    assert code == ("P4041" if closed else None)


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago", "America/Sao_Paulo"])
def test_the_sessions_time_zone_changes_no_day(db, zone):
    shorten_horizon(db)
    connection = db.connect(timezone=zone)
    key, old = uuid7_days_ago(db, 0), uuid7_days_ago(db, 2)
    once = Once(connection)
    once.finish_new(key=key, response_body=b"a")
    once.finish_new(key=old, response_body=b"b")
    assert run(connection, "SELECT once.retire_day(%s)", today(db) - 2)[0][0] == 1
    assert Once(db.connect()).start(key=key).response_body == b"a"
    assert Once(db.connect()).start(key=old).response_body == b"b"
    assert db.value("SELECT count(*) FROM once.archive WHERE fingerprint = %s", PRINT) == 1
