# SPDX-License-Identifier: PostgreSQL
"""Hostile input: it is refused with a clear error or stored as the bytes that it is; it is never executed and spoils
nothing else."""

import psycopg2
import pytest

from .calls import PRINT, Once, code_of, refused, run

INJECTIONS = (
    "'; DROP TABLE once.intent; --",
    '" ; SELECT 1/0; --',
    "$$ || (SELECT 1/0) || $$",
    "\\'; SELECT 1/0 --",
    "%s %I %L %n $1 :x",
    "${jndi:x}",
    "'||(SELECT salt FROM once.setting)||'",
    "<script>alert(1)</script>",
    "../../etc/passwd",
    "NULL",
    "{a,b}",
    "\r\nSet-Cookie: a=b",
)


@pytest.mark.parametrize("expression", ["E'a\\x00b'", "convert_from('\\x610062', 'UTF8')", "chr(0)", "'a' || chr(0)"])
def test_a_nul_in_a_name_is_refused_by_the_server(db, expression):
    for name in ("scope", "key", "tenant"):
        names = {"scope": "'s'", "key": "'k'", "tenant": "''", name: expression}
        listed = ", ".join(f"{each} => {text}" for each, text in names.items())
        assert code_of(lambda: db.execute(f"SELECT once.finish(fingerprint => '{'x' * 16}', {listed})")) in (
            "22021",
            "54000",
            "22P05",
        )
    assert db.value("SELECT count(*) FROM once.intent") == 0


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3(", b"\xe2\x82", b"\xf0\x28\x8c\x28", b"\xed\xa0\x80", b"\xc0\x80"])
def test_invalid_utf8_in_a_name_is_refused_by_the_server(db, bad):
    cursor = db.connect().cursor()
    for place in (b"'%s', 'k', 'x'", b"'s', '%s', 'x'", b"'s', 'k', 'x', tenant => '%s'"):
        with refused("22021"):
            cursor.execute(
                b"SELECT once.finish(" + place.replace(b"%s", bad).replace(b"'x'", b"'0123456789abcdef'") + b")"
            )
    assert db.value("SELECT count(*) FROM once.intent") == 0


@pytest.mark.parametrize(
    "key",
    [
        "",
        "a" * 256,
        "a" * 100_000,
        "schl\u00fcssel",
        "\U0001f600",
        "a\nb",
        "\t",
        "a\x7f",
        "\u00a0",
        "a\u200bb",
        "\u0430",
        None,
    ],
)
def test_a_malformed_key_is_refused_at_every_door(db, key):
    once = Once(db.connect())
    for call in (
        once.start,
        once.finish,
        once.finish_new,
        once.claim,
        once.peek,
        once.story,
        lambda key: once.receive(message_id=key),
        lambda key: once.complete(key=key, fence=1),
        lambda key: once.fail(key=key, fence=1, retryable=True),
        lambda key: once.renew(key=key, fence=1),
        lambda key: once.release(key=key, fence=1),
        lambda key: once.resolve(key=key, as_state="succeeded"),
    ):
        assert code_of(lambda: call(key=key)) == "P4001"
    if key is not None:
        assert code_of(lambda: once.emit(topic="t", payload="{}", scope="orders", key=key)) == "P4001"
    assert db.value("SELECT count(*) FROM once.intent") == 0


@pytest.mark.parametrize("size", [1, 2, 254, 255])
def test_a_key_of_1_to_255_printable_characters_is_taken(db, size):
    key = "".join(chr(32 + n % 95) for n in range(size))
    once = Once(db.connect())
    once.finish_new(key=key, response_body=b"a")
    assert once.start(key=key).response_body == b"a"


@pytest.mark.parametrize("scope", ["", "s" * 256, None])
def test_a_missing_or_long_scope_is_refused_at_every_door(db, scope):
    once = Once(db.connect(), key="k", scope=scope)
    for call in (
        once.start,
        once.finish,
        once.finish_new,
        once.claim,
        once.peek,
        once.story,
        lambda: once.complete(fence=1),
        lambda: once.renew(fence=1),
        lambda: once.fail(fence=1, retryable=True),
        lambda: once.release(fence=1),
        lambda: once.resolve(as_state="succeeded"),
        lambda: Once(db.connect()).receive(consumer=scope, message_id="k"),
    ):
        assert code_of(call) == "P4000"


@pytest.mark.parametrize("fingerprint", [None, b"", b"x" * 15, b"x" * 65])
def test_a_missing_or_odd_fingerprint_is_refused_at_every_door(db, fingerprint):
    once = Once(db.connect(), fingerprint=fingerprint)
    for call in (once.start, once.finish, once.finish_new, once.claim):
        assert code_of(lambda: call(key="k")) == "P4003"
    assert code_of(lambda: once.receive(message_id="k")) == "P4003"


def test_a_missing_or_long_tenant_is_refused_at_every_door(db):
    for tenant in (None, "t" * 256):
        once = Once(db.connect(), tenant=tenant)
        for call in (once.start, once.finish, once.finish_new, once.claim, once.peek, once.story):
            assert code_of(lambda: call(key="k")) == "P4003"
        for call in (
            lambda: once.claim_many(key=["k"]),
            lambda: once.complete_many(key=["k"], fence=[1]),
            lambda: once.peek_many(key=["k"]),
            lambda: once.fail_many(key=["k"], fence=[1], retryable=[True]),
            lambda: once.renew_many(key=["k"], fence=[1]),
            lambda: once.receive(message_id="k"),
            lambda: once.emit(topic="t", payload="{}"),
        ):
            assert code_of(call) == "P4003"


@pytest.mark.parametrize("text", INJECTIONS)
def test_sql_in_any_field_is_stored_as_text_and_never_run(db, text):
    connection = db.connect()
    once = Once(connection)
    name = dict(scope=text, tenant=text, key=text.replace("\r\n", " "))
    once.finish_new(
        **name, response_body=text.encode(), result_type=text, result_id=text, error_code=text, error_message=text
    )
    row = once.start(**name)
    assert (row.response_body, row.result_type, row.result_id, row.error_code, row.error_message) == (
        text.encode(),
        text,
        text,
        text,
        text,
    )
    leased = {**name, "key": "leased"}
    assert once.claim(**leased, owner=text).verdict == "new_claim"
    assert once.peek(**leased).owner == text
    once.fail(**leased, fence=1, retryable=None, error_code=text, error_message=text)
    once.resolve(**leased, as_state="failed_final", reason=text, error_message=text)
    with refused("P4030") as caught:
        once.start(**leased)
    assert text in caught.value.diag.message_detail
    once.emit(topic=text, payload='{"a": 1}', aggregate_type=text, aggregate_id=text, event_type=text, **name)
    assert once.story(**leased)["decisions"][0]["reason"] == text
    assert once.receive(consumer=text, message_id="m") == "process"
    assert run(connection, "SELECT once.try_lock(%s)", text)[0][0] is True
    assert code_of(lambda: run(connection, "SELECT once.set_scope('x', verify => %s)", text)) is not None
    assert code_of(lambda: run(connection, "SELECT once.bind(%s, 't')", text)) is not None
    assert db.value("SELECT count(*) FROM once.intent") == 3


def test_an_error_names_hostile_input_in_a_glimpse_on_one_line(db):
    with refused("P4001") as caught:
        Once(db.connect()).start(scope="s\n\x1b[31m" + "x" * 200, key="k\nFATAL: forged log line " + "y" * 100_000)
    assert len(caught.value.diag.message_detail) < 500
    assert not any(ord(character) < 32 for character in caught.value.diag.message_detail)


def test_all_byte_values_round_trip(db):
    body = bytes(range(256)) * 3
    once = Once(db.connect())
    once.finish_new(key="started", response_body=body)
    once.claim(key="leased")
    once.complete(key="leased", fence=1, response_body=body)
    once.claim_many(key=["batched"])
    once.complete_many(key=["batched"], fence=[1], response_body=[body])
    for key in ("started", "leased", "batched"):
        for row in (
            once.start(key=key),
            once.claim(key=key),
            once.peek(key=key),
            once.claim_many(key=[key])[0],
            once.peek_many(key=[key])[0],
        ):
            assert row.response_body == body


def test_an_empty_body_is_not_a_missing_one(db):
    once = Once(db.connect())
    once.finish_new(key="empty", response_body=b"")
    once.finish_new(key="missing")
    assert once.start(key="empty").response_body == b""
    assert once.start(key="missing").response_body is None


BIG = bytes(range(256)) * 40960  # 10 MiB


def test_a_10_mb_body_is_refused_by_the_default_limit(db):
    once = Once(db.connect())
    once.claim(key="leased")
    for call in (
        lambda: once.finish_new(key="k", response_body=BIG),
        lambda: once.finish_new(key="k", response_body=BIG),
        lambda: once.complete(key="leased", fence=1, response_body=BIG),
        lambda: once.fail(key="leased", fence=1, retryable=False, response_body=BIG),
    ):
        with refused("P4060") as caught:
            call()
        assert "10485760" in caught.value.diag.message_detail
    row = once.complete_many(key=["leased"], fence=[1], response_body=[BIG])[0]
    assert (row.verdict, row.error_code) == ("invalid", "P4060")
    assert once.peek(key="leased").verdict == "processing_active"
    assert once.peek(key="k").verdict == "absent"


def test_a_10_mb_body_is_stored_and_replayed_byte_for_byte_where_the_scope_allows_it(db):
    db.execute("SELECT once.set_scope('orders', response_bytes_max => %s)", len(BIG))
    once = Once(db.connect())
    once.finish_new(key="started", response_body=BIG)
    once.claim(key="leased")
    once.complete(key="leased", fence=1, response_body=BIG)
    assert once.start(key="started").response_body == BIG
    assert once.claim(key="leased").response_body == BIG
    with refused("P4060"):
        once.finish_new(key="more", response_body=BIG + b"x")


@pytest.mark.parametrize("size", [8191, 8192, 8193, 1_048_576])
def test_a_body_up_to_the_limit_is_stored_and_one_byte_more_is_refused(db, size):
    db.execute("SELECT once.set_scope('orders', response_bytes_max => %s)", max(size, 8192))
    once = Once(db.connect())
    once.finish_new(key="k", response_body=b"x" * size)
    assert len(once.start(key="k").response_body) == size
    if size >= 8192:
        with refused("P4060"):
            once.finish_new(key="k2", response_body=b"x" * (size + 1))


def test_a_batch_of_5000_with_bad_elements_among_them_takes_all_the_good_ones(db):
    bad_keys = ("", "a" * 256, "sch\u00f6n", None, "a\nb")
    keys, scopes, prints, expected = [], [], [], []
    for n in range(5000):
        key, scope, fingerprint, want = f"k{n}", "orders", PRINT, ("new_claim", None)
        if n % 10 == 1:
            key, want = bad_keys[n // 10 % len(bad_keys)], ("invalid", "P4001")
        elif n % 10 == 2:
            scope, want = ("", "s" * 256, None)[n // 10 % 3], ("invalid", "P4000")
        elif n % 10 == 3:
            fingerprint, want = (None, b"", b"short")[n // 10 % 3], ("invalid", "P4003")
        elif n % 10 == 4:
            key, want = "k0", ("processing_active", None)
        elif n % 10 == 5:
            key, fingerprint, want = "k0", b"another request!", ("mismatch", None)
        elif n % 10 == 6:
            key, want = "ffffffff-ffff-7000-8000-%012x" % n, ("invalid", "P4001")
        elif n % 10 == 7:
            key, want = "00000000-ffff-7000-8000-%012x" % n, ("expired", None)  # of a device without a clock
        elif n % 10 == 8:
            key, want = "01000000-0000-7000-8000-%012x" % n, ("expired", None)
        keys.append(key), scopes.append(scope), prints.append(fingerprint), expected.append(want)
    once = Once(db.connect())
    rows = once.claim_many(scope=scopes, key=keys, fingerprint=prints)
    assert [row.ord for row in rows] == list(range(1, 5001))
    for n, row in enumerate(rows):
        assert (row.verdict, row.error_code) == expected[n], (n, keys[n], row)
    taken = [n for n in range(5000) if expected[n][0] == "new_claim"]
    assert db.value("SELECT count(*) FROM once.intent") == len(taken)

    reports = once.complete_many(
        scope=scopes, key=keys, fence=[1] * 5000, response_body=[b"%d" % n for n in range(5000)]
    )
    for n, row in enumerate(reports):
        if n in (0, *taken):
            assert row.verdict == "stored"
        elif expected[n][1] in ("P4000",) or (expected[n][1] == "P4001" and n % 10 == 1):
            assert (row.verdict, row.error_code) == ("invalid", expected[n][1])
        else:
            assert row.verdict in (
                "refused",
                "stored",
            )  # 'stored': only the fingerprint was bad, and there is none here
    peeked = once.peek_many(scope=scopes, key=keys)
    for n in taken:
        assert peeked[n].response_body == b"%d" % n


def batch_calls(once, size, **overrides):
    """Each batch function with arrays of this size; overrides replaces one array."""

    def arrays(*names):
        values = {
            "key": [f"k{n}" for n in range(size)],
            "scope": ["orders"] * size,
            "fingerprint": [PRINT] * size,
            "fence": [1] * size,
            "retryable": [True] * size,
        }
        return {name: overrides.get(name, values[name]) for name in names}

    return {
        "claim_many": lambda: once.claim_many(**arrays("scope", "key", "fingerprint")),
        "complete_many": lambda: once.complete_many(**arrays("scope", "key", "fence")),
        "fail_many": lambda: once.fail_many(**arrays("scope", "key", "fence", "retryable")),
        "renew_many": lambda: once.renew_many(**arrays("scope", "key", "fence")),
        "peek_many": lambda: once.peek_many(**arrays("scope", "key")),
    }


BATCHES = ("claim_many", "complete_many", "fail_many", "renew_many", "peek_many")


@pytest.mark.parametrize("function", BATCHES)
def test_arrays_of_unequal_length_are_refused_as_a_whole(db, function):
    once = Once(db.connect())
    once.claim_many(key=["k0", "k1"])
    before = db.rows("SELECT * FROM once.intent ORDER BY key")
    for overrides in (
        {"key": ["k0"]},
        {"scope": ["orders"]},
        {"key": []},
        {"scope": None},
        {"key": ["k0", "k1", "k2"]},
    ):
        with refused("22023"):
            batch_calls(once, 2, **overrides)[function]()
    assert db.rows("SELECT * FROM once.intent ORDER BY key") == before


def test_outcome_arrays_of_unequal_length_are_refused_as_a_whole(db):
    once = Once(db.connect())
    once.claim_many(key=["k0", "k1"])
    for name, value in (
        ("response_status", [200]),
        ("response_body", []),
        ("response_headers", ["{}"] * 3),
        ("result_type", ["a"]),
        ("result_id", ["a"]),
    ):
        with refused("22023"):
            once.complete_many(key=["k0", "k1"], fence=[1, 1], **{name: value})
    for name, value in (
        ("retryable", [True]),
        ("error_code", ["a"]),
        ("error_message", []),
        ("response_status", [200]),
        ("response_body", [b""] * 3),
    ):
        with refused("22023"):
            once.fail_many(**{"key": ["k0", "k1"], "fence": [1, 1], "retryable": [True, True], name: value})


@pytest.mark.parametrize("function", BATCHES)
def test_an_empty_batch_has_no_rows(db, function):
    assert batch_calls(Once(db.connect()), 0)[function]() == []


@pytest.mark.parametrize("function", BATCHES)
def test_a_batch_of_null_arrays_has_no_rows(db, function):
    nothing = dict.fromkeys(("scope", "key", "fingerprint", "fence", "retryable"))
    assert batch_calls(Once(db.connect()), 0, **nothing)[function]() == []


@pytest.mark.parametrize("function", BATCHES)
def test_a_batch_of_more_than_10000_is_refused_as_a_whole(db, function):
    with refused("22023"):
        batch_calls(Once(db.connect()), 10_001)[function]()
    assert db.value("SELECT count(*) FROM once.intent") == 0


def test_a_batch_of_10000_is_taken(db):
    once = Once(db.connect())
    assert {row.verdict for row in batch_calls(once, 10_000)["claim_many"]()} == {"new_claim"}
    assert {row.verdict for row in batch_calls(once, 10_000)["complete_many"]()} == {"stored"}


@pytest.mark.parametrize("function", BATCHES)
def test_a_batch_of_elements_that_are_all_null_spoils_nothing(db, function):
    rows = batch_calls(
        Once(db.connect()),
        3,
        key=[None] * 3,
        scope=[None] * 3,
        fence=[None] * 3,
        fingerprint=[None] * 3,
        retryable=[None] * 3,
    )[function]()
    assert len(rows) == 3
    assert all(
        getattr(row, "renewed", None) is False if function == "renew_many" else row.verdict == "invalid" for row in rows
    )


@pytest.mark.parametrize("odd", ["'[0:1]={a,b}'::text[]", "'{{a},{b}}'::text[]"])
def test_an_array_of_odd_bounds_or_dimensions_is_refused_or_means_its_elements_in_order(db, odd):
    keys = f"scope => ARRAY['orders', 'orders'], key => {odd}"
    calls = (
        f"once.claim_many({keys}, fingerprint => array_fill('0123456789abcdef'::bytea, ARRAY[2]))",
        f"once.renew_many({keys}, fence => ARRAY[1, 2])",
        f"once.complete_many({keys}, fence => ARRAY[1, 2])",
        f"once.fail_many({keys}, fence => ARRAY[1, 2], retryable => ARRAY[true, true])",
        f"once.peek_many({keys})",
    )
    wanted = (
        ["new_claim", "new_claim"],
        [True, False],
        ["stored", "refused"],
        ["refused", "refused"],
        ["replay_success", "processing_active"],
    )
    for call, verdicts in zip(calls, wanted):
        try:
            rows = db.rows(f"SELECT * FROM {call}")
        except psycopg2.Error as error:
            assert error.pgcode in ("22023", "2202E")
        else:
            assert [row[1] for row in rows] == verdicts, call
    if db.value("SELECT count(*) FROM once.intent"):
        with refused("P4029"):  # whatever was taken under the second name is really held
            Once(db.connect(), fingerprint=b"0123456789abcdef").start(key="b")


@pytest.mark.parametrize("lease", ["0", "-1 second", "8 days", "1 century", "infinity", "-12 months 361 days"])
def test_a_lease_that_is_no_lease_is_refused(db, lease):
    once = Once(db.connect())
    once.claim(key="held")
    for call in (
        lambda: once.claim(key="k", lease=lease),
        lambda: once.renew(key="held", fence=1, lease=lease),
        lambda: once.claim_many(key=["k"], lease=lease),
        lambda: once.renew_many(key=["held"], fence=[1], lease=lease),
    ):
        assert code_of(call) in ("22023", "22007")  # infinity is no interval before PostgreSQL 17
    for call in (lambda: once.claim(key="k", retention=r) for r in ("0", "-1 day", "101 years", "-12 months 361 days")):
        assert code_of(call) == "22023"
    assert once.peek(key="k").verdict == "absent"


@pytest.mark.parametrize("state", ["processing", "in_doubt", "", "SUCCEEDED", "bogus", None])
def test_finish_takes_no_state_that_is_not_an_outcome_and_says_so(db, state):
    with refused("22023", "P4099") as caught:
        Once(db.connect()).finish_new(key="k", state=state)
    assert caught.value.diag.message_hint or caught.value.diag.message_detail
    assert db.value("SELECT count(*) FROM once.intent") == 0


def test_an_owner_of_any_length_is_cut_to_what_people_read(db):
    once = Once(db.connect())
    once.claim(key="k", owner="o" * 100_000)
    assert once.peek(key="k").owner == "o" * 255


def test_headers_that_are_no_json_are_refused_by_the_server(db):
    with refused("22P02"):
        Once(db.connect()).finish_new(key="k", response_headers="{not json")
    with refused("22P05"):
        Once(db.connect()).finish_new(key="k", response_headers='{"a": "\\u0000"}')
