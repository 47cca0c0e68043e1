# SPDX-License-Identifier: PostgreSQL
"""The hand-off: a service with the same database completes the intent in its own transaction, with what the gateway told it. Then even its
death between commit and answer loses nothing."""

import threading
import urllib.parse

import psycopg2
import pytest

from harness.upstream import Answer

from .door import BODY, assert_problem, assert_replays, new_key, same_answer

CONFIG = """
    once_tenant $http_x_tenant;
    once required;
    once_scope pay;
    location /pay { once_handoff on; proxy_pass http://app; }
    location /patient { once_handoff on; once_wait 10s; proxy_pass http://app; }
    location /silent { once_handoff off; proxy_pass http://app; }
    location /large { once_handoff on; once_response_max 64k; proxy_pass http://app; }
    location /doubt { once_handoff on; proxy_read_timeout 500ms; proxy_pass http://app; }
"""


@pytest.fixture(scope="module", autouse=True)
def payments(database):
    database.execute("CREATE TABLE payment (key text, amount integer)")


class Payments:
    """A service that charges and completes in one transaction, and answers what it stored."""

    def __init__(self, door, status=201, body=b'{"payment": 1}', then=None, commit=True, fence=None):
        self.door, self.status, self.body, self.then, self.commit, self.fence = door, status, body, then, commit, fence
        self.refused = []

    def __call__(self, request):
        if request.header("Once-Key") is None:
            return Answer(400, body=b"no intent")
        connection = psycopg2.connect(self.door.database.dsn())
        try:
            cursor = connection.cursor()
            key = request.header("Once-Key")
            cursor.execute("INSERT INTO payment VALUES (%s, 100)", (key,))
            cursor.execute(
                "SELECT once.complete(%s, %s, %s, %s, response_body => %s::bytea, response_headers => %s, tenant => %s)",
                (
                    request.header("Once-Scope"),
                    key,
                    self.fence or int(request.header("Once-Fence")),
                    self.status,
                    self.body,
                    '{"Content-Type": "application/json", "X-Payment": "1"}',
                    request.header("Once-Tenant"),
                ),
            )
            if cursor.fetchone()[0] is False:  # another run under this fence has stored the same
                self.refused.append("stored")
                return Answer(409, headers=(("Once-Effect", "none"),), body=b"stored")
            if self.commit:
                connection.commit()
        except psycopg2.Error as refused:
            self.refused.append(refused.pgcode)
            return Answer(500, headers=(("Once-Effect", "none"),), body=b"refused")  # rolled back
        finally:
            connection.close()
        if self.then:
            return self.then
        return Answer(self.status, headers=(("Content-Type", "application/json"), ("X-Payment", "1")), body=self.body)


def charged(door, key):
    return door.database.value("SELECT count(*) FROM payment WHERE key = %s", key)


def serve(door, key, **how):
    service = Payments(door, **how)
    door.upstream.script(key, Answer(do=service))
    return service


def attempt(door, key, *args, **options):
    try:
        return door.attempt(key, *args, **options)
    except ConnectionError:
        return None


DEATHS = {
    "before a byte of its answer": Answer(close=True),
    "by a reset": Answer(reset=True),
    "within its answer": Answer(201, body=b'{"payment": 1}', cut=5),
}


@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
@pytest.mark.parametrize("death", [pytest.param(value, id=name.replace(" ", "-")) for name, value in DEATHS.items()])
def test_a_service_that_dies_between_its_commit_and_its_answer_loses_nothing(door, protocol, death):
    key = new_key()
    serve(door, key, then=death)
    attempt(door, key, protocol=protocol)
    for _ in range(2):
        answer = door.attempt(key, protocol=protocol)
        assert (answer.status, answer.body, answer.replayed) == (201, b'{"payment": 1}', True)
        assert answer.header("X-Payment") == "1"
    assert door.count(key) == 1 and charged(door, key) == 1
    assert door.state(key) == "succeeded"


def test_a_service_that_is_too_slow_after_its_commit_loses_nothing(door):
    key = new_key()
    serve(door, key, then=Answer(hold=threading.Event()))
    attempt(door, key, "/doubt")
    door.wait_state(key, "succeeded")
    answer = door.attempt(key, "/doubt")
    assert (answer.status, answer.body, answer.replayed) == (201, b'{"payment": 1}', True)
    assert door.count(key) == 1 and charged(door, key) == 1


def test_the_answer_that_the_gateway_gives_is_the_one_that_the_service_stored(door):
    key = new_key()
    serve(door, key)
    first = door.attempt(key)
    row = door.stored(key)
    assert (first.status, first.body) == (row.response_status, row.response_body) == (201, b'{"payment": 1}')
    assert first.header("X-Payment") == "1"
    assert_replays(door, key, first)
    assert charged(door, key) == 1


def test_a_service_that_answers_other_than_it_stored_does_not_split_the_answers(door):
    """What is stored is what every attempt gets, the first one included."""
    key = new_key()
    serve(door, key, then=Answer(200, body=b"something else"))
    first = door.attempt(key)
    again = door.attempt(key)
    assert again.replayed and (again.status, again.body) == (201, b'{"payment": 1}')
    assert same_answer(first, again)
    assert charged(door, key) == 1


@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_an_answer_over_the_limit_comes_whole_though_the_service_stored_a_small_one(door, protocol, framing):
    key = new_key()
    serve(door, key, then=Answer(201, body=bytes(300_000), framing=framing))
    first = door.attempt(key, "/large", protocol=protocol)
    assert first.whole and first.body == bytes(300_000)
    again = door.attempt(key, "/large", protocol=protocol)
    assert again.replayed and again.body == b'{"payment": 1}'
    assert charged(door, key) == door.count(key) == 1


def test_a_service_that_completes_and_then_says_5xx_has_still_completed(door):
    key = new_key()
    serve(door, key, then=Answer(500, body=b"crashed in its own log"))
    first = door.attempt(key)
    again = door.attempt(key)
    assert (again.status, again.body, again.replayed) == (201, b'{"payment": 1}', True)
    assert same_answer(first, again) or first.status == 500
    assert door.count(key) == 1 and charged(door, key) == 1


def test_a_service_that_rolls_back_and_dies_leaves_doubt(door):
    key = new_key()
    serve(door, key, commit=False, then=Answer(close=True))
    attempt(door, key)
    door.wait_state(key, "in_doubt")
    assert_problem(door.attempt(key), 409, "in-doubt")
    assert charged(door, key) == 0 and door.count(key) == 1


def test_the_service_can_end_the_doubt_later(door):
    """The attempt itself comes to know: its completion is taken although the gateway has given it up."""
    key = new_key()
    service = Payments(door)
    door.upstream.script(key, Answer(close=True))
    attempt(door, key)
    door.wait_state(key, "in_doubt")
    service(door.upstream.only(key))
    assert service.refused == []
    answer = door.attempt(key)
    assert (answer.status, answer.body, answer.replayed) == (201, b'{"payment": 1}', True)


LARGE = b"larger than the service keeps"
COMPLETE_LARGE = "SELECT once.complete(%s, %s, %s, 201, result_type => 'once.too_large', tenant => %s)"


def test_a_service_that_keeps_no_answer_since_it_is_too_large_has_it_passed_on(door):
    def complete(request):
        names = [request.header(f"Once-{name}") for name in ("Scope", "Key", "Fence", "Tenant")]
        assert door.database.value(COMPLETE_LARGE, *names)
        return Answer(201, headers=(("X-Payment", "1"),), body=LARGE)

    key = new_key()
    door.upstream.script(key, Answer(do=complete))
    first = door.attempt(key)
    assert (first.status, first.body, first.header("X-Payment"), first.replayed) == (201, LARGE, "1", False)
    assert_problem(door.attempt(key), 409, "too-large")
    assert door.count(key) == 1


def test_a_service_whose_intent_another_attempt_has_finished_so_does_not_answer_for_it(door):
    def lose(request):
        door.database.execute("UPDATE once.intent SET fence = fence + 1 WHERE key = %s", request.header("Once-Key"))
        names = [request.header(f"Once-{name}") for name in ("Scope", "Key", "Fence", "Tenant")]
        assert door.database.value(COMPLETE_LARGE, names[0], names[1], int(names[2]) + 1, names[3])
        return Answer(201, body=b"of nobody")

    key = new_key()
    door.upstream.script(key, Answer(do=lose))
    for _ in range(2):
        assert_problem(door.attempt(key), 409, "too-large")
    assert door.count(key) == 1


def test_a_completion_under_an_old_fence_is_refused_and_its_effect_rolled_back(door):
    key = new_key()
    first = serve(door, key, fence=99)
    answer = door.attempt(key)
    assert first.refused == ["P4010"]
    assert answer.status == 500 and charged(door, key) == 0
    serve(door, key)
    assert door.attempt(key).status == 201
    assert charged(door, key) == 1 and door.upstream.seen(key)[-1].header("Once-Fence") == "2"


def test_a_request_that_a_proxy_between_sends_twice_has_one_effect(door):
    """Both runs make the same answer, so the second completion is no error: its false says that there is an effect already."""
    key, answers = new_key(), []
    service = Payments(door)
    door.upstream.script(key, Answer(do=lambda request: [answers.append(service(request)) for _ in range(2)] and answers[-1]))
    first = door.attempt(key)
    assert [answer.status for answer in answers] == [201, 409] and service.refused == ["stored"]
    assert charged(door, key) == 1
    assert (first.status, first.body) == (201, b'{"payment": 1}')
    assert_replays(door, key, first)


def test_duplicates_that_wait_get_the_answer_as_soon_as_the_service_has_committed(door):
    key, hold = new_key(), threading.Event()
    serve(door, key, then=Answer(201, body=b'{"payment": 1}', hold=hold))
    original = door.start(key, "/patient")
    door.wait_state(key, "succeeded")
    duplicate = door.attempt(key, "/patient")
    assert duplicate.replayed and duplicate.body == b'{"payment": 1}'
    hold.set()
    assert original.result().body == b'{"payment": 1}'
    assert door.count(key) == 1


@pytest.mark.parametrize("name", ["plain", " both ends ", 'a "quote"', "a\\backslash", "100% +&=;,", "a" * 255])
def test_the_key_that_the_service_is_told_is_the_key_whatever_is_in_it(door, name):
    """Percent-encoded where a header could not carry it."""
    key = new_key()
    name = (name + key)[-255:] if len(name) > 200 else name[:1] + key + name[1:]
    value = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    first = door.attempt(key, value=value)
    assert first.status == 201 and door.stored(name).state == "succeeded"
    told = door.upstream.only(key).header("Once-Key")
    assert urllib.parse.unquote(told, "latin-1") == name, told


def test_a_location_without_hand_off_tells_the_service_nothing(door):
    key = new_key()
    first = door.attempt(key, "/silent")
    assert first.status == 201
    assert not [name for name, _ in door.upstream.only(key).headers if name.lower().startswith("once-")]
    assert door.upstream.only(key).body == BODY
    assert_replays(door, key, first, "/silent")
