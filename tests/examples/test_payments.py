# SPDX-License-Identifier: PostgreSQL
"""The services behind the gateway: what retries do to a service that knows nothing of them, and what becomes of that with
the gateway before it, with and without the hand-off."""

import concurrent.futures
import json
import pathlib
import shutil
import subprocess

import pytest

from harness.broker import accepts
from harness.client import http1
from harness.nginx import BUILD, MODULE, Nginx
from harness.postgres import clean_environment, private_directory, tied, unprivileged, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHARGE = {"order": "A-17", "amount": 1999, "currency": "EUR"}
JSON = ("Content-Type", "application/json")
PROXY = 'proxy_pass http://unix:{}; proxy_http_version 1.1; proxy_set_header Connection "";'


class Service:
    """payments or handoff, on a unix socket, from a copy that its user can reach."""

    def __init__(self, name, db):
        program = BUILD / f"examples/{name}/{name}-example"
        if not program.exists():
            pytest.skip(f"{program} is not built (libmicrohttpd)")
        self.path = f"/{name}"
        self.directory = private_directory(f"pgonce-{name}-")
        self.socket = self.directory / "socket"
        shutil.copy(program, self.directory / "service")
        (self.directory / "service").chmod(0o755)
        with open(self.directory / "log", "wb") as log:
            self.process = subprocess.Popen(tied([self.directory / "service", "--listen", f"unix:{self.socket}", "--dsn", db.dsn()]), stdout=log,
                                            stderr=log, env=clean_environment(), cwd="/", **unprivileged()[0])
        wait_until(lambda: self.process.poll() is not None or accepts(self.socket), "the service to listen")
        assert self.process.poll() is None, self.log()

    def log(self):
        return (self.directory / "log").read_text()

    def post(self, charge=None, behave="", headers=()):
        return post(self.socket, self.path, charge, behave, headers)

    def count(self, order="A-17"):
        return json.loads(http1(self.socket, "GET", f"{self.path}?order={order}").body)["count"]

    def close(self):
        self.process.terminate()
        self.process.wait(60)
        shutil.rmtree(self.directory)


def post(at, path, charge=None, behave="", headers=()):
    body = json.dumps(CHARGE if charge is None else charge).encode()
    return http1(at, "POST", path, [JSON, ("X-Behave", behave), *headers], body)


@pytest.fixture
def payments(db):
    service = Service("payments", db)
    yield service
    service.close()


@pytest.fixture
def handoff(db):
    service = Service("handoff", db)
    yield service
    service.close()


@pytest.fixture
def gateway(request, db):
    """The gateway before the services that the test uses; call it with a path and a key."""
    if not MODULE.exists():
        pytest.skip(f"{MODULE} is not built (nginx-dev)")
    names = [name for name in ("payments", "handoff") if name in request.fixturenames]
    locations = "".join(
        f"location /{name} {{ once required; once_scope {name}; once_tenant none; once_wait 20s; {PROXY.format(request.getfixturevalue(name).socket)} }}"
        for name in names
    )
    with Nginx(server=locations, http=f'once_database "{db.dsn()}";', workers=1) as running:
        yield lambda path, key, behave="", charge=None: post(running.h1, path, charge, behave, [("Idempotency-Key", key)])


# The services alone.


def test_without_the_gateway_a_retry_charges_twice(payments):
    first, second = payments.post(), payments.post()
    assert (first.status, second.status) == (201, 201) and first.body != second.body
    assert payments.count() == 2
    assert json.loads(http1(payments.socket, "GET", "/payments").body)["charges"] == [{"charge": number, **CHARGE} for number in (1, 2)]


@pytest.mark.parametrize("charge, status", [
    ([], 400), ({}, 400), ({**CHARGE, "amount": "1"}, 400), ({**CHARGE, "amount": 0}, 422), ({**CHARGE, "amount": -5}, 422),
    ({**CHARGE, "currency": "euro"}, 422), ({**CHARGE, "order": ""}, 422), ({**CHARGE, "order": "\x00"}, 400), ({**CHARGE, "order": "x" * 70000}, 413),
])
def test_a_charge_that_cannot_be_made_is_refused(payments, charge, status):
    assert payments.post(charge).status == status
    assert payments.post().status == 201 and payments.count() == 1


def test_a_failure_on_demand_charges_nothing(payments):
    assert [payments.post(behave=f"status={status}").status for status in (402, 500)] == [402, 500]
    assert payments.count() == 0


def test_it_dies_on_demand_after_the_charge_and_is_back(payments):
    for deaths in (1, 2):
        with pytest.raises(ConnectionError):
            payments.post(behave="die")
        wait_until(lambda: payments.log().count("starting another") == deaths, "another worker")
        assert payments.count() == deaths
    assert payments.post(behave="delay_ms=1").status == 201


def test_a_database_that_went_away_is_no_answer_and_the_next_request_finds_it_again(payments, db):
    assert payments.post().status == 201
    db.execute("CREATE FUNCTION payments.cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$")
    db.execute("CREATE TRIGGER cut BEFORE INSERT ON payments.charge FOR EACH ROW EXECUTE FUNCTION payments.cut()")
    with pytest.raises(ConnectionError):
        payments.post()
    db.execute("DROP TRIGGER cut ON payments.charge")
    assert payments.post().status == 201


def test_the_handoff_service_answers_nobody_but_the_gateway(handoff):
    assert handoff.post().status == 400
    for scope, key, fence in (("s", "k", "1x"), ("s", "k", "0"), ("s", "k", "99999999999"), ("s", "%0", "1"), ("s", "%00", "1"), ("s" * 256, "k", "1")):
        assert handoff.post(headers=[("Once-Scope", scope), ("Once-Key", key), ("Once-Fence", fence)]).status == 400
    assert handoff.count() == 0


def test_the_handoff_service_charges_nothing_under_a_lost_fence(handoff, db):
    claim = "SELECT fence FROM once.claim('s', 'k', once.fingerprint('\\x00'::bytea))"
    fence = db.value(claim)
    for wrong in (fence + 1, fence - 1 or 99):
        assert handoff.post(headers=[("Once-Scope", "s"), ("Once-Key", "k"), ("Once-Fence", str(wrong))]).status == 503
    assert handoff.count() == 0
    assert handoff.post(headers=[("Once-Scope", "s"), ("Once-Key", "k"), ("Once-Fence", str(fence))]).status == 201
    assert handoff.count() == 1 and db.value("SELECT state FROM once.peek('s', 'k')") == "succeeded"


# Behind the gateway.


def test_with_the_gateway_every_retry_gets_the_one_charge(payments, gateway):
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: gateway("/payments", "k1", "delay_ms=200"), range(10)))
    assert {answer.status for answer in answers} == {201} and len({answer.body for answer in answers}) == 1
    assert sum(answer.replayed for answer in answers) == 9 and payments.count() == 1


def test_a_declined_charge_is_an_answer_and_a_failed_one_is_not(payments, gateway):
    assert [gateway("/payments", "k1", behave).status for behave in ("status=402", "")] == [402, 402]
    assert [gateway("/payments", "k2", behave).status for behave in ("status=503", "", "")] == [503, 201, 201]
    assert [gateway("/payments", "k3", behave).status for behave in ("status=500", "", "")] == [500, 409, 409]
    assert payments.count() == 1


def test_killed_between_charge_and_answer_the_intent_is_in_doubt(payments, gateway, db):
    assert gateway("/payments", "k1", "die").status in (502, 503)
    retry = gateway("/payments", "k1")
    assert (retry.status, retry.problem) == (409, "in-doubt")
    assert db.value("SELECT state FROM once.peek('payments', 'k1')") == "in_doubt"
    assert payments.count() == 1


def test_killed_between_its_commit_and_its_answer_the_handed_off_intent_is_answered(handoff, gateway, db):
    gateway("/handoff", "k1", "die")
    retry = gateway("/handoff", "k1")
    assert (retry.status, retry.replayed) == (201, True)
    assert json.loads(retry.body) == {"charge": 1, **CHARGE} and retry.header("Content-Type") == "application/json"
    assert handoff.count() == 1 and db.value("SELECT state FROM once.peek('handoff', 'k1')") == "succeeded"


def test_a_handed_off_answer_is_the_same_fresh_and_stored(handoff, gateway):
    first, second = gateway("/handoff", "k1"), gateway("/handoff", "k1")
    assert (first.status, first.body, first.replayed) == (201, second.body, False)
    assert (second.status, second.replayed) == (201, True) and handoff.count() == 1


@pytest.mark.parametrize("key", ["100%", "%41", '" a "', "a+b=c/d"])
def test_any_key_reaches_the_handoff_service_as_it_is(handoff, gateway, key):
    first, second = gateway("/handoff", key), gateway("/handoff", key)
    assert (first.status, second.status, second.replayed) == (201, 201, True)
    assert first.body == second.body and handoff.count() == 1


def test_a_charge_that_the_handoff_service_rolled_back_can_be_tried_again(handoff, gateway):
    assert gateway("/handoff", "k1", "status=503").status == 503
    assert gateway("/handoff", "k1").status == 201
    assert handoff.count() == 1
