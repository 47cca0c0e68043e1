# SPDX-License-Identifier: PostgreSQL
"""A service's 5xx says nothing of its effect: it may have committed and lost COMMIT's acknowledgement, or failed while it wrote its answer. Nor does a
status that HTTP calls a refusal: a proxy says 503 of what it has passed on, and a service passes on the 429 of a service behind it.
What then becomes of the key, by default, by once_on_5xx and by once_release; what the service can say itself, with Once-Effect; and what a verify
function finds out. Effects are counted in a table without constraints."""

import threading

import psycopg2
import pytest

from harness.postgres import wait_until
from harness.upstream import Answer

from .door import assert_problem, assert_replays, at_once, new_key

CONFIG = """
    once_tenant $http_x_tenant;
    once required;
    location /pay { once_scope pay; proxy_pass http://app; }
    location /release { once_scope release; once_on_5xx release; proxy_pass http://app; }
    location /store { once_scope store; once_on_5xx store; proxy_pass http://app; }
    location /trusted { once_scope trusted; once_release 401 409 429 503; proxy_pass http://app; }
    location /deaf { once_scope deaf; once_release none; proxy_pass http://app; }
    location /refused { once_scope refused; once_release 4xx; proxy_pass http://app; }
    location /said { once_scope said; once_on_5xx in_doubt; proxy_pass http://app; }
    location /happened { once_scope happened; proxy_pass http://app; }
    location /absent { once_scope absent; proxy_pass http://app; }
    location /unknown { once_scope unknown; proxy_pass http://app; }
    location /raises { once_scope raises; proxy_pass http://app; }
    location /slow { once_scope happened; proxy_read_timeout 300ms; proxy_pass http://app; }
    location /idempotent { once_scope idempotent; once_in_doubt retry; proxy_pass http://app; }
    location /short { once_scope short; once_response_max 1k; proxy_pass http://app; }
    location /optional { once on; once_scope optional; proxy_pass http://app; }
    location /file { once_scope file; proxy_pass http://app; }
    location /private/ { internal; alias @dir@/; }
"""


def prepare(database):
    """One row for each effect; nothing keeps a key from having two. Verify functions look there, and count how often they are asked."""
    database.execute(
        """
        CREATE TABLE public.effect (key text, at timestamptz NOT NULL DEFAULT clock_timestamp());
        CREATE TABLE public.asked (key text);
        CREATE FUNCTION public.look(tenant text, scope text, key text) RETURNS once.verification LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO public.asked VALUES (look.key);
            IF look.scope = 'raises' THEN
                RAISE EXCEPTION 'the ledger is closed';
            ELSIF look.scope = 'unknown' THEN
                RETURN ROW('unknown', NULL, NULL, NULL, NULL, NULL)::once.verification;
            ELSIF EXISTS (SELECT FROM public.effect AS e WHERE e.key = look.key) THEN
                RETURN ROW('happened', 201, 'charged'::bytea, '{"Content-Type": "text/plain"}'::jsonb, NULL, NULL)::once.verification;
            END IF;
            RETURN ROW('absent', NULL, NULL, NULL, NULL, NULL)::once.verification;
        END $$;
        """
    )
    for scope in ("happened", "absent", "unknown", "raises"):
        database.execute("SELECT once.set_scope(%s, verify => 'public.look')", scope)


@pytest.fixture(scope="module", autouse=True)
def effects(database):
    prepare(database)


class Shop:
    """A service as users write it: it commits its effect and answers 201. `fails` says how often, for each key, it answers 500 instead:
    after COMMIT, as if the acknowledgement were lost, or (rolls_back) without it."""

    def __init__(self, door, fails=1, rolls_back=False, failure=Answer(500, body=b"Internal Server Error")):
        self.door, self.fails, self.rolls_back, self.failure = door, fails, rolls_back, failure
        self.seen, self.lock = {}, threading.Lock()

    def __call__(self, request):
        key = request.key
        with self.lock:
            self.seen[key] = self.seen.get(key, 0) + 1
            fails = self.seen[key] <= self.fails
        connection = psycopg2.connect(self.door.database.dsn())
        try:
            connection.cursor().execute("INSERT INTO public.effect VALUES (%s)", (key,))
            if fails and self.rolls_back:
                connection.rollback()
            else:
                connection.commit()
        finally:
            connection.close()
        return self.failure if fails else Answer(201, body=b"charged")


def serve(door, *keys, **how):
    shop = Shop(door, **how)
    for key in keys:
        door.upstream.script(key, Answer(do=shop))
    return shop


def effects_of(door, *keys):
    rows = door.database.rows("SELECT key, count(*) AS n FROM public.effect WHERE key = ANY (%s) GROUP BY key", list(keys))
    found = {row.key: row.n for row in rows}
    return [found.get(key, 0) for key in keys]


def asked(door, key):
    return door.database.value("SELECT count(*) FROM public.asked WHERE key = %s", key)


KEYS, CLIENTS = 60, 12
SERVER_ERROR = b"Internal Server Error"
LATER = ("Retry-After", "1")

# (location, what the service does with its first attempt, effects per key, what the last answer is)
HAMMERED = {
    "by default": ("/pay", {}, 1, (409, None)),
    "a 503 that asks for nothing": ("/pay", {"failure": Answer(503, body=SERVER_ERROR)}, 1, (409, None)),
    "a 503 that asks for nothing, where a 500 releases": ("/release", {"failure": Answer(503, body=SERVER_ERROR)}, 1, (409, None)),
    "a 408": ("/pay", {"failure": Answer(408, body=SERVER_ERROR)}, 1, (409, None)),
    **{f"a {status}": ("/pay", {"failure": Answer(status, body=b"refused")}, 1, (status, b"refused")) for status in (401, 403, 407, 409, 423, 429)},
    "a 429 in a trusted service, after COMMIT": ("/trusted", {"failure": Answer(429)}, 2, (201, b"charged")),
    "a 503 in a trusted service, rolled back": ("/trusted", {"failure": Answer(503), "rolls_back": True}, 1, (201, b"charged")),
    "a 503 that asks for another attempt, rolled back": ("/pay", {"failure": Answer(503, headers=(LATER,)), "rolls_back": True}, 1, (201, b"charged")),
    "a 503 of a service that asks without need": ("/deaf", {"failure": Answer(503, headers=(LATER,))}, 1, (409, None)),
    "released, after COMMIT": ("/release", {}, 2, (201, b"charged")),
    "released, rolled back": ("/release", {"rolls_back": True}, 1, (201, b"charged")),
    "stored": ("/store", {}, 1, (500, b"Internal Server Error")),
    "verified, it happened": ("/happened", {}, 1, (201, b"charged")),
    "verified, it is absent": ("/absent", {"rolls_back": True}, 1, (201, b"charged")),
    "verified, unknown": ("/unknown", {}, 1, (409, None)),
    "the service says none": ("/pay", {"rolls_back": True, "failure": Answer(500, headers=(("Once-Effect", "none"),))}, 1, (201, b"charged")),
}


@pytest.mark.parametrize("case", HAMMERED.values(), ids=HAMMERED)
def test_a_service_that_commits_and_then_says_500_has_each_effect_as_often_as_was_chosen(door, case):
    """Clients retry each key until they are told something that a retry does not change; all the keys at once."""
    target, how, each, last = case
    keys = [new_key() for _ in range(KEYS)]
    serve(door, *keys, **how)

    def client(index):
        answers = {}
        for key in keys[index::CLIENTS]:
            for _ in range(4):
                answers[key] = door.attempt(key, target)
        return answers

    told = {key: answer for answers in at_once(CLIENTS, client) for key, answer in answers.items()}
    assert effects_of(door, *keys) == [each] * KEYS
    for answer in told.values():
        if last[1] is None:
            assert_problem(answer, 409, "in-doubt")
        else:
            assert (answer.status, answer.body) == last, answer


def test_who_retries_is_told_what_the_service_answered_and_what_to_do(door):
    key = new_key()
    serve(door, key)
    first = door.attempt(key)
    assert (first.status, first.body) == (500, b"Internal Server Error")
    answer = assert_problem(door.attempt(key), 409, "in-doubt")
    assert b"answered 500" in answer.body and b"Do not send it under a new key" in answer.body
    row = door.stored(key)
    assert (row.state, row.error_code, row.response_status, row.response_body) == ("in_doubt", "upstream_status", 500, None)


# ---- Statuses and once_on_5xx.


@pytest.mark.parametrize("status", [500, 501, 502, 503, 504, 505, 507, 511, 520, 524, 561, 599])
@pytest.mark.parametrize("target, scope", [("/pay", "pay"), ("/release", "release"), ("/store", "store")])
def test_each_5xx_is_what_the_location_says(door, status, target, scope):
    key = new_key()
    door.upstream.script(key, Answer(status, body=b"first"), Answer(201, body=b"second"))
    first = door.attempt(key, target)
    assert (first.status, first.body) == (status, b"first")
    if scope == "store":
        assert_replays(door, key, first, target)
        assert door.count(key) == 1
    elif scope == "pay" or status in (502, 503, 504):  # a proxy behind this one may have lost the service's answer
        assert_problem(door.attempt(key, target), 409, "in-doubt")
        assert door.count(key) == 1 and door.state(key, scope) == "in_doubt"
    else:
        second = door.attempt(key, target)
        assert (second.status, second.body, second.replayed) == (201, b"second", False)


# ---- What asks for another attempt, and once_release.

ASKING = {
    **{f"{status} Retry-After": (status, LATER) for status in (400, 403, 404, 408, 409, 413, 423, 429, 499, 503)},
    "Retry-After, a date": (503, ("retry-after", "Fri, 31 Dec 2027 23:59:59 GMT")),
    "401 WWW-Authenticate": (401, ("WWW-Authenticate", "Bearer")),
    "407 Proxy-Authenticate": (407, ("Proxy-Authenticate", "Basic")),
    "307 Location": (307, ("Location", "/pay")),
    "308 Location": (308, ("Location", "/pay")),
    "421": (421, ("X-Nothing", "1")),
    "425": (425, ("X-Nothing", "1")),
}


def assert_runs_again(door, target, answer):
    key = new_key()
    door.upstream.script(key, answer, Answer(201, body=b"now"))
    assert door.attempt(key, target).status == answer.status
    second = door.attempt(key, target)
    assert (second.status, second.body, second.replayed) == (201, b"now", False)
    assert door.count(key) == 2


def assert_runs_once(door, target, answer):
    key = new_key()
    door.upstream.script(key, answer, Answer(201, body=b"now"))
    first = door.attempt(key, target)
    assert first.status == answer.status
    if answer.status == 408 or answer.status >= 500:
        assert_problem(door.attempt(key, target), 409, "in-doubt")
    else:
        assert_replays(door, key, first, target)
    assert door.count(key) == 1


@pytest.mark.parametrize("status, header", ASKING.values(), ids=ASKING)
@pytest.mark.parametrize("target", ["/pay", "/release", "/store"])
def test_an_answer_that_asks_for_the_same_request_once_more_releases_whatever_the_location_says(door, status, header, target):
    assert_runs_again(door, target, Answer(status, headers=(header,)))


@pytest.mark.parametrize("status, header", ASKING.values(), ids=ASKING)
def test_once_release_none_believes_no_answer_that_asks(door, status, header):
    assert_runs_once(door, "/deaf", Answer(status, headers=(header,)))


NOT_ASKING = {
    "500 Retry-After": (500, LATER),
    "502 Retry-After": (502, LATER),
    "504 Retry-After": (504, LATER),
    "520 Retry-After": (520, LATER),
    "202 Retry-After": (202, LATER),
    "303 Retry-After": (303, LATER),
    "401 Proxy-Authenticate": (401, ("Proxy-Authenticate", "Basic")),
    "403 WWW-Authenticate": (403, ("WWW-Authenticate", "Basic")),
    "407 WWW-Authenticate": (407, ("WWW-Authenticate", "Basic")),
    "307": (307, ("X-Nothing", "1")),
    "302 Location": (302, ("Location", "/pay")),
    "503 Location": (503, ("Location", "/pay")),
}


@pytest.mark.parametrize("status, header", NOT_ASKING.values(), ids=NOT_ASKING)
def test_a_header_that_the_status_gives_no_such_meaning_asks_for_nothing(door, status, header):
    assert_runs_once(door, "/pay", Answer(status, headers=(header,)))


def test_once_release_lists_the_statuses_that_release_and_no_others(door):
    for status in (401, 409, 429, 503):
        assert_runs_again(door, "/trusted", Answer(status))
        assert_runs_once(door, "/pay", Answer(status))
    for status in (403, 408, 423, 500, 502, 504):
        assert_runs_once(door, "/trusted", Answer(status))
    assert_runs_again(door, "/trusted", Answer(423, headers=(LATER,)))
    for status in (400, 408, 422, 499):
        assert_runs_again(door, "/refused", Answer(status))
    for status in (303, 500, 503):
        assert_runs_once(door, "/refused", Answer(status))


def test_a_503_does_not_say_that_the_service_is_done_with_it_so_no_verify_function_is_asked_before_the_lease_has_passed(door):
    """A mesh proxy gives the request up, and the service commits a little later: that the effect is absent meanwhile says nothing."""
    for status, said, times in ((503, (), 0), (408, (), 0), (500, (), 1), (503, (("Once-Effect", "unknown"),), 1)):
        key = new_key()
        door.upstream.script(key, Answer(status, headers=said), Answer(201))
        door.attempt(key, "/unknown")
        assert_problem(door.attempt(key, "/unknown"), 409, "in-doubt")
        assert asked(door, key) == times, (status, said)
    key = new_key()
    door.upstream.script(key, Answer(503), Answer(201))
    door.attempt(key, "/absent")
    assert_problem(door.attempt(key, "/absent"), 409, "in-doubt")
    door.database.execute("UPDATE once.intent SET lease_until = clock_timestamp() WHERE key = %s", key)
    assert door.attempt(key, "/absent").status == 201


def test_a_5xx_in_doubt_runs_again_where_the_upstream_is_idempotent_itself(door):
    key = new_key()
    door.upstream.script(key, Answer(500), Answer(201))
    assert [door.attempt(key, "/idempotent").status for _ in range(2)] == [500, 201]


def test_a_5xx_that_is_too_large_to_keep_is_in_doubt_all_the_same(door):
    key = new_key()
    door.upstream.script(key, Answer(500, body=b"x" * 4000))
    first = door.attempt(key, "/short")
    assert (first.status, len(first.body), first.whole) == (500, 4000, True)
    assert_problem(door.attempt(key, "/short"), 409, "in-doubt")


# ---- What the service says itself.

STATUSES = [200, 303, 404, 429, 500, 503]


@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("effect", ["none", "Done", "UNKNOWN"])
def test_a_service_that_knows_says_so_whatever_its_status_is(door, protocol, status, effect):
    key = new_key()
    headers = (("Content-Type", "text/plain"), ("once-effect", effect))
    door.upstream.script(key, Answer(status, headers=headers, body=b"first"), Answer(201, body=b"second"))
    first = door.attempt(key, "/said", protocol=protocol)
    assert (first.status, first.body, first.header("Once-Effect")) == (status, b"first", None)
    second = door.attempt(key, "/said", protocol=protocol)
    if effect == "none":
        assert (second.status, second.body, second.replayed) == (201, b"second", False)
    elif effect == "Done":
        assert (second.status, second.body, second.replayed) == (status, b"first", True)
        assert second.header("Once-Effect") is None
    else:
        assert_problem(second, 409, "in-doubt")
        assert f"answered {status}".encode() in second.body
    assert door.count(key) == (2 if effect == "none" else 1)


@pytest.mark.parametrize(
    "values", [["maybe"], [""], ["none, done"], ["none", "none"], ["none", "done"], ['"none"']], ids=lambda values: "+".join(values) or "empty"
)
def test_an_effect_in_other_words_is_logged_and_ignored(door, values):
    for status, state in ((201, "succeeded"), (500, "in_doubt")):
        key, before = new_key(), len(door.nginx.log())
        door.upstream.script(key, Answer(status, headers=tuple(("Once-Effect", value) for value in values)))
        answer = door.attempt(key, "/said")
        assert (answer.status, answer.header("Once-Effect")) == (status, None)
        assert door.state(key, "said") == state
        assert "Once-Effect is ignored" in door.nginx.log()[before:]


def test_an_effect_reaches_nobody_where_a_request_passes_unprotected_either(door):
    key = new_key()
    door.upstream.script(key, Answer(200, headers=(("Once-Effect", "none"),)))
    answer = door.attempt(key, "/optional", value="-")
    assert (answer.status, answer.header("Once-Effect")) == (200, None)


def test_an_effect_that_comes_with_x_accel_redirect_counts(door):
    (door.nginx.directory / "receipt").write_text("a receipt")
    for effect, state in (("unknown", "in_doubt"), ("none", "failed_retryable"), (None, "succeeded")):
        key = new_key()
        said = (("Once-Effect", effect),) if effect else ()
        door.upstream.script(key, Answer(200, headers=(("X-Accel-Redirect", "/private/receipt"), *said)))
        answer = door.attempt(key, "/file")
        assert (answer.status, answer.body, answer.header("Once-Effect")) == (200, b"a receipt", None)
        assert door.state(key, "file") == state


def test_an_answer_that_breaks_off_is_in_doubt_whatever_its_header_said(door):
    for effect in ("none", "done"):
        key = new_key()
        door.upstream.script(key, Answer(200, headers=(("Once-Effect", effect),), body=b"x" * 1000, cut=500))
        door.attempt(key, "/said")
        door.wait_state(key, "in_doubt", "said")


# ---- Verify functions.


def test_a_verify_function_is_asked_once_and_then_its_outcome_is_replayed(door):
    key = new_key()
    serve(door, key)
    assert door.attempt(key, "/happened").status == 500
    for _ in range(3):
        answer = door.attempt(key, "/happened")
        assert (answer.status, answer.body, answer.replayed) == (201, b"charged", True)
        assert answer.header("Content-Type") == "text/plain"
    assert asked(door, key) == 1 and door.count(key) == 1


def test_what_a_verify_function_does_not_know_is_asked_again_by_each_retry(door):
    key = new_key()
    serve(door, key)
    door.attempt(key, "/unknown")
    for _ in range(2):
        assert b"answered 500" in assert_problem(door.attempt(key, "/unknown"), 409, "in-doubt").body
    assert asked(door, key) == 2 and door.stored(key, "unknown").error_code == "upstream_status"


def test_a_verify_function_that_raises_leaves_the_doubt_and_harms_no_other_request(door):
    key, others = new_key(), [new_key() for _ in range(10)]
    serve(door, key)
    door.attempt(key, "/raises")
    answers = at_once(11, lambda index: door.attempt(key, "/raises") if index == 0 else door.attempt(others[index - 1]))
    assert_problem(answers[0], 409, "in-doubt")
    assert [answer.status for answer in answers[1:]] == [201] * 10


def test_while_the_service_may_still_be_at_work_its_verify_function_is_not_asked(door):
    """nginx has waited long enough, and the service commits a little later: that the effect is absent meanwhile says nothing."""
    key, late = new_key(), threading.Event()
    shop = Shop(door, fails=0)
    door.upstream.script(key, Answer(do=lambda request: late.wait(20) and shop(request)))
    assert door.attempt(key, "/slow").status == 504
    assert_problem(door.attempt(key, "/slow"), 409, "in-doubt")
    assert asked(door, key) == 0
    late.set()
    wait_until(lambda: effects_of(door, key) == [1], "the late effect")
    door.database.execute("UPDATE once.intent SET lease_until = clock_timestamp() WHERE key = %s", key)
    answer = door.attempt(key, "/slow")
    assert (answer.status, answer.body, answer.replayed) == (201, b"charged", True)
    assert effects_of(door, key) == [1]


def test_a_retry_that_a_verify_function_allows_runs_under_the_next_fence(door):
    key = new_key()
    serve(door, key, rolls_back=True)
    door.attempt(key, "/absent")
    assert (door.attempt(key, "/absent").status, door.stored(key, "absent").fence) == (201, 2)
    decision = door.database.row("SELECT kind, from_state, to_state, reason FROM once.decision WHERE key = %s", key)
    assert tuple(decision) == ("takeover", "in_doubt", "processing", "attempt 1 was in doubt: verify answered absent")
