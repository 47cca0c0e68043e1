# SPDX-License-Identifier: PostgreSQL
"""An answer that is above its scope's own limit, which a door learns when it stores it: as at the gateway, it is done, and too large to keep."""

import pytest

import pgonce

from drivers import NAMES, AsyncDoor, opened
from frameworks import SERVICES
from .steps import Runner

# The contract takes so much for any scope.
LEAST = 8192


@pytest.fixture(scope="module", params=SERVICES)
def service(request, server):
    made = SERVICES[request.param]
    made.db = server.database()
    made.db.rows("SELECT once.set_scope('small', response_bytes_max => %s)", LEAST)
    return made


def exchanged(service, case):
    with service.serving({"location": {"scope": "small"}, **case}, service.db.url) as (port, script):
        Runner(case, service.db, port, script).all()


def test_an_answer_above_the_scopes_limit_goes_out_whole_and_is_remembered_as_done(service):
    exchanged(service, {
        "name": "above", "service": [{"repeat": "x", "count": LEAST + 1}], "runs": 1, "effects": 1,
        "steps": [{"expect": {"status": 201, "repeat": "x", "count": LEAST + 1, "replayed": False}}, {"expect": {"problem": "too-large"}}],
    })  # fmt: skip
    assert service.db.rows("SELECT state::text, result_type, response_body FROM once.peek('small', 'above', 'acme')") == [("succeeded", "once.too_large", None)]


def test_a_refusal_above_the_scopes_limit_takes_its_effect_back(service):
    exchanged(service, {
        "name": "above-422", "service": [{"status": 422, "repeat": "x", "count": LEAST + 1}], "runs": 1, "effects": 0,
        "steps": [{"expect": {"status": 422, "repeat": "x", "count": LEAST + 1}}, {"expect": {"problem": "too-large"}}],
    })  # fmt: skip


def test_an_answer_with_more_headers_than_are_kept_is_remembered_as_done(service):
    """64 KiB are, of any scope, however small the body is."""
    large = [["X-Order", f"{number}" + "x" * 5000] for number in range(14)]
    exchanged(service, {
        "name": "headers", "service": [{"repeat": "x", "count": 1, "headers": large}], "runs": 1, "effects": 1,
        "steps": [{"expect": {"status": 201, "repeat": "x", "count": 1, "replayed": False}}, {"expect": {"problem": "too-large"}}],
    })  # fmt: skip
    assert service.db.rows("SELECT state::text, result_type, response_headers FROM once.peek('small', 'headers', 'acme')") == [("succeeded", "once.too_large", None)]


def test_an_answer_at_the_scopes_limit_is_replayed(service):
    exchanged(service, {
        "name": "at", "service": [{"repeat": "x", "count": LEAST}], "runs": 1, "effects": 1,
        "steps": [{"expect": {"status": 201, "count": LEAST, "repeat": "x"}}, {"expect": {"status": 201, "count": LEAST, "repeat": "x", "replayed": True}}],
    })  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_run_raises_where_an_effects_answer_is_above_the_scopes_limit_and_nothing_is_done(server, name):
    db = server.database()
    db.rows("SELECT once.set_scope('small', response_bytes_max => %s)", LEAST)
    with opened(name, db.url) as door:

        def effect(tx):
            door.execute(tx, "INSERT INTO effect (key) VALUES ('run')")
            return 201, "x" * (LEAST + 1)

        async def effect_async(tx):
            await door.execute(tx, "INSERT INTO effect (key) VALUES ('run')")
            return 201, "x" * (LEAST + 1)

        with pytest.raises(pgonce.TooLarge):
            door.run("small", "run", 1, effect_async if isinstance(door, AsyncDoor) else effect)
    assert db.effects("run") == 0
