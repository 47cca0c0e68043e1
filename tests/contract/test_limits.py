# SPDX-License-Identifier: PostgreSQL
"""Everything that is stored has a limit. What is too large is refused (P4060), but for the words about a failure: those are cut,
so that the failure itself is stored."""

import pytest

from .calls import Once, code_of, refused

HEADERS_MAX = 65536  # of bytes, as text
TYPE_MAX = 255
ID_MAX = 2048


def headers_of(size):
    """As PostgreSQL writes them, in so many bytes."""
    return '{"X-Long": "%s"}' % ("x" * (size - len('{"X-Long": ""}')))


LARGE = {
    "response_headers": (headers_of(HEADERS_MAX), headers_of(HEADERS_MAX + 1)),
    "result_type": ("t" * TYPE_MAX, "t" * (TYPE_MAX + 1)),
    "result_id": ("\u20ac" * (ID_MAX // 3), "\u20ac" * (ID_MAX // 3 + 1)),  # bytes count
}
DOORS = {
    "finish": lambda once, part: (once.start(key="k"), once.finish(key="k", **part)),
    "finish_new": lambda once, part: once.finish_new(key="k", **part),
    "complete": lambda once, part: once.complete(key="k", fence=once.claim(key="k").fence, **part),
    "fail": lambda once, part: once.fail(key="k", fence=once.claim(key="k").fence, retryable=False, **part),
    "resolve": lambda once, part: (
        once.fail(key="k", fence=once.claim(key="k").fence, retryable=None),
        once.resolve(key="k", as_state="succeeded", **part),
    ),
}


# A failure has no result.
@pytest.mark.parametrize(("door", "part"), [(door, part) for door in DOORS for part in LARGE if door != "fail" or part == "response_headers"])
def test_what_is_stored_with_an_outcome_has_a_limit_at_every_door(db, door, part):
    fits, large = LARGE[part]
    once = Once(db.connect(autocommit=False))
    with refused("P4060") as caught:
        DOORS[door](once, {part: large})
    assert f"{part}: " in caught.value.diag.message_detail
    once.connection.rollback()
    DOORS[door](once, {part: fits})
    once.connection.commit()
    assert db.value(f"SELECT {part}::text FROM once.intent") == fits


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(("function", "part"), [("fail_many", "response_headers"), *(("complete_many", part) for part in LARGE)])
def test_in_a_batch_the_report_that_is_too_large_gets_a_verdict_and_the_others_are_stored(db, function, part, alone):
    fits, large = LARGE[part]
    once = Once(db.connect())
    keys = ["large"] if alone else ["large", "fits"]
    once.claim_many(key=keys)
    more = {"retryable": [False] * len(keys)} if function == "fail_many" else {}
    rows = getattr(once, function)(key=keys, fence=[1] * len(keys), alone=alone, **more, **{part: [large, fits][: len(keys)]})
    assert [(row.verdict, row[2]) for row in rows] == [("invalid", "P4060"), ("stored", None)][: len(keys)]
    assert db.value("SELECT state::text FROM once.intent WHERE key = 'large'") == "processing"


WORDS = {"error_code": 255, "error_message": 4096}
FAILURES = {
    "finish": lambda once, words: (once.start(key="k"), once.finish(key="k", state="failed_final", **words)),
    "finish_new": lambda once, words: once.finish_new(key="k", state="failed_final", **words),
    "finish of a lease": lambda once, words: (
        once.fail(key="k", fence=once.claim(key="k").fence, retryable=True),
        once.start(key="k"),
        once.finish(key="k", state="failed_final", **words),
    ),
    "fail": lambda once, words: once.fail(key="k", fence=once.claim(key="k").fence, retryable=False, **words),
    "fail_many": lambda once, words: (
        once.claim_many(key=["k", "l"]),
        once.fail_many(key=["k", "l"], fence=[1, 1], retryable=[False, False], **{name: [word, word] for name, word in words.items()}),
    ),
    "fail_many of one": lambda once, words: (
        once.claim(key="k"),
        once.fail_many(key=["k"], fence=[1], retryable=[False], alone=True, **{name: [word] for name, word in words.items()}),
    ),
    "resolve": lambda once, words: (
        once.fail(key="k", fence=once.claim(key="k").fence, retryable=None),
        once.resolve(key="k", as_state="failed_final", **words),
    ),
}


@pytest.mark.parametrize("door", FAILURES)
def test_a_failure_with_too_many_words_is_stored_and_its_words_are_cut(db, door):
    once = Once(db.connect(autocommit=False))
    FAILURES[door](once, {name: "\u20ac" * 50_000 for name in WORDS})
    once.connection.commit()
    stored = once.peek(key="k")
    assert stored.state == "failed_final"
    assert {name: getattr(stored, name) for name in WORDS} == {name: "\u20ac" * most for name, most in WORDS.items()}


@pytest.mark.parametrize("function", ["fail", "fail_many"])
def test_a_failure_with_too_many_words_that_is_reported_twice_is_the_same_report(db, function):
    once = Once(db.connect())
    fence = once.claim(key="k").fence
    call = {
        "fail": lambda: once.fail(key="k", fence=fence, retryable=False, error_message="m" * 10_000),
        "fail_many": lambda: once.fail_many(key=["k"], fence=[fence], retryable=[False], error_message=["m" * 10_000])[0].verdict,
    }[function]
    assert [call(), call()] == ([True, False] if function == "fail" else ["stored", "repeated"])


def test_what_a_verify_function_has_found_is_not_stored_where_it_is_too_large(db):
    db.execute("""CREATE FUNCTION public.found(tenant text, scope text, key text) RETURNS once.verification LANGUAGE sql AS
        $$ SELECT ROW('happened', 200, NULL, NULL, 'order', repeat('x', 3000))::once.verification $$""")
    db.execute("SELECT once.set_scope('orders', verify => 'public.found')")
    once = Once(db.connect())
    once.claim(key="k")
    db.execute("UPDATE once.intent SET lease_until = now() - interval '1 second'")
    with refused("P4060"):
        once.claim(key="k")
    assert once.peek(key="k").state == "processing"
    db.execute("SELECT * FROM once.recover(scope => 'orders')")
    assert once.peek(key="k").state == "processing"


def payload_of(size):
    return '{"x": "%s"}' % ("\u20ac" * ((size - len('{"x": ""}')) // 3) + "x" * ((size - len('{"x": ""}')) % 3))


@pytest.mark.parametrize("scope", [None, "orders"])
def test_the_payload_of_an_event_has_the_limit_of_its_scope(db, scope):
    once = Once(db.connect())
    named = {"scope": scope, "key": "k"} if scope else {}
    for most in (1_048_576, 8192, 10_000):  # the first is the default
        if most != 1_048_576:
            db.execute("SELECT once.set_scope(%s, event_bytes_max => %s)", scope or "", most)
        with refused("P4060") as caught:
            once.emit(topic="t", payload=payload_of(most + 1), **named)
        assert f"payload: {most + 1} bytes, at most {most}" in caught.value.diag.message_detail
        once.emit(topic="t", payload=payload_of(most), event_type=f"of {most}", **named)
    assert db.value("SELECT count(*) FROM once.outbox") == 3


def test_numbers_that_are_long_only_as_text_count_as_their_text(db):
    assert code_of(lambda: Once(db.connect()).emit(topic="t", payload="[%s]" % ",".join(["1e100000"] * 11))) == "P4060"


def test_the_headers_of_an_event_have_a_limit(db):
    once = Once(db.connect())
    assert code_of(lambda: once.emit(topic="t", payload="1", headers=headers_of(HEADERS_MAX + 1))) == "P4060"
    once.emit(topic="t", payload="1", headers=headers_of(HEADERS_MAX))


@pytest.mark.parametrize("most", [8191, 67_108_865])
def test_the_limit_of_an_event_is_itself_within_bounds(db, most):
    assert code_of(lambda: db.execute("SELECT once.set_scope('orders', event_bytes_max => %s)", most)) == "23514"
    db.execute("SELECT once.set_scope('orders', event_bytes_max => 20000)")
    db.execute("SELECT once.set_scope('orders', lease => '1 hour')")
    assert db.value("SELECT event_bytes_max FROM once.scope WHERE scope = 'orders'") == 20000
