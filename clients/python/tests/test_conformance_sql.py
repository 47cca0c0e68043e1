# SPDX-License-Identifier: PostgreSQL
"""clients/conformance/sql.json by every driver, blocking and asynchronous."""

import base64
import inspect
import json

import psycopg
import pytest

import pgonce
from pgonce import errors

from .conftest import CONFORMANCE, RESULTS
from .doors import NAMES, AsyncDoor, opened

CASES = json.loads((CONFORMANCE / "sql.json").read_text())["cases"]
CODES = {
    "mismatch": errors.Mismatch, "active": errors.Active, "in_doubt": errors.InDoubt, "expired": errors.Expired,
    "final_failure": errors.FinalFailure, "swallowed": errors.SwallowedError, "scope_required": errors.ScopeRequired,
    "key_malformed": errors.KeyMalformed, "completion_refused": errors.LeaseLost, "failure_refused": errors.LeaseLost,
    "event_mismatch": errors.EventMismatch, "message_mismatch": errors.MessageMismatch, "refused": errors.Refused,
    "already_finished": errors.AlreadyFinished, "too_large": errors.TooLarge, "not_started": errors.NotStarted,
}  # fmt: skip


class Application(Exception):
    pass


def bytes_of(member):
    if "text" in member:
        return member["text"].encode()
    if "base64" in member:
        return base64.b64decode(member["base64"])
    if "repeat" in member:
        return (member["repeat"] * member["count"]).encode()
    return None


def request_of(step, case):
    given = step.get("request", {"json": {"case": case["name"]}})
    if "http" in given:
        http = given["http"]
        return pgonce.HttpRequest(http["method"], http["target"], http.get("content_type", ""), bytes_of(http) or b"")
    if "json" in given:
        return given["json"]
    return given["text"] if "text" in given else bytes_of(given)


def body_of(answer):
    return answer["text"] if "text" in answer else answer["json"] if "json" in answer else bytes_of(answer)


def outcome_of(answer):
    names = ("status", "headers", "result_type", "result_id")
    return pgonce.Outcome(body=body_of(answer), **{name: answer[name] for name in names if name in answer})


async def settle(value):
    return await value if inspect.isawaitable(value) else value


class Runner:
    def __init__(self, door, db, case):
        self.door, self.db, self.case = door, db, case
        self.claims, self.held = {}, {}

    def effect_of(self, step):
        name = self.case["name"]
        effect = step.get("effect") or {"do": [{"sql": f"INSERT INTO effect (key) VALUES ('{name}')"}], "answer": {"status": 201, "text": "done"}}

        def one(tx, action):
            door = self.door
            if "sql" in action:
                return door.execute(tx, action["sql"])
            if "emit" in action:
                given = dict(action["emit"])
                return door.within("emit", tx, given.pop("topic"), given.pop("payload"), **given)
            if "emit_bytes" in action:
                given = dict(action["emit_bytes"])
                payload = base64.b64decode(given.pop("base64"))
                return door.within("emit_bytes", tx, given.pop("topic"), payload, given.pop("content_type"), **given)
            if "lock" in action:
                return door.within("lock", tx, action["lock"]["resource"], wait=action["lock"]["wait_ms"] / 1000)
            return door.execute(tx, action["swallow"])

        def end():
            if "throw" in effect:
                raise Application(effect["throw"])
            if "fail" in effect:
                failure = effect["fail"]
                raise pgonce.FinalFailure(
                    failure.get("message", ""), status=failure.get("status"), body=body_of(failure), headers=failure.get("headers"), code=failure.get("code")
                )
            return outcome_of(effect.get("answer", {}))

        def run(tx):
            for action in effect.get("do", ()):
                try:
                    got = one(tx, action)
                except Exception:
                    if "swallow" not in action:
                        raise
                    continue
                assert "is" not in action or got == action["is"]
            return end()

        async def run_async(tx):
            for action in effect.get("do", ()):
                try:
                    got = await settle(one(tx, action))
                except Exception:
                    if "swallow" not in action:
                        raise
                    continue
                assert "is" not in action or got == action["is"]
            return end()

        return run_async if isinstance(self.door, AsyncDoor) else run

    def call(self, step):
        """What the step gives: a dictionary as expect has it."""
        scope, key = step.get("scope", "conformance"), step.get("key", self.case["name"])
        tenant = step.get("tenant", "")
        kind = step["call"]
        if kind == "run":
            return self.answered(self.door.run(scope, key, request_of(step, self.case), self.effect_of(step), tenant=tenant))
        if kind == "claim":
            options = {name: step[f"{name}_ms"] / 1000 for name in ("lease", "retention") if f"{name}_ms" in step}
            options |= {"takeover": step["takeover"]} if "takeover" in step else {}
            held = self.door.claim(scope, key, request_of(step, self.case), tenant=tenant, **options)
            if held.replayed:
                return self.answered(held.answer)
            self.claims[step["as"]] = held
            return {"verdict": held.verdict, "fence": held.fence}
        if kind in ("complete", "fail", "release", "renew"):
            held = self.claims[step["of"]]
            outcome = outcome_of(step.get("answer", {}))
            if kind == "complete":
                return {"is": held.complete(outcome)}
            if kind == "fail":
                return {"is": held.fail(step["retryable"], outcome, code=step.get("code"), message=step.get("message"))}
            return {"is": held.release() if kind == "release" else held.renew()}
        if kind == "receive":
            return {"verdict": self.receive(step, tenant)}
        if kind == "effect":
            return {"bytes": json.dumps(self.door.effect(scope, key, request_of(step, self.case), tenant, bytes_of(step["result"]).decode()))}
        if kind == "sql":
            return {"rows": [list(row) for row in self.db.rows(step["sql"])]}
        if kind == "hold":
            connection = psycopg.connect(self.db.dsn)
            connection.execute("SELECT once.start(%s, %s, once.fingerprint('held'::text))", (scope, key))
            if "lock" in step:
                connection.execute("SELECT once.try_lock(%s)", (step["lock"],))
            self.held[step["as"]] = connection
        elif kind == "unhold":
            connection = self.held.pop(step["of"])
            connection.rollback()
            connection.close()
        return {}

    def receive(self, step, tenant):
        effect, door = self.effect_of(step), self.door
        arguments = (step["consumer"], step["message"], request_of(step, self.case))
        given, fresh = door.consume(*arguments, effect, tenant=tenant), None
        if isinstance(door, AsyncDoor):

            async def look():
                async with door.transaction() as tx:
                    return await door.within("receive", tx, *arguments, tenant=tenant)

            fresh = door.loop.wait(look())
        else:
            with door.transaction() as tx:
                fresh = door.within("receive", tx, *arguments, tenant=tenant)
        assert fresh is False, "receive, in a transaction of one's own, says what consume has done"
        return "process" if given else "duplicate"

    @staticmethod
    def answered(answer):
        return {
            "replayed": answer.replayed, "status": answer.status, "headers": answer.headers, "bytes": answer.body,
            "result_type": answer.result_type, "result_id": answer.result_id,
        }  # fmt: skip

    def compare(self, got, wanted):
        for name, value in wanted.items():
            if name in ("text", "base64", "repeat", "count"):
                assert got["bytes"] == bytes_of(wanted)
            elif name == "json":
                assert json.loads(got["bytes"]) == value
            elif name == "fence_above":
                assert got["fence"] > self.claims[value].fence
            else:
                assert got[name] == value, name

    def failed(self, raised, wanted):
        if wanted["code"] == "application":
            assert type(raised) is Application
            return
        assert isinstance(raised, CODES[wanted["code"]]), repr(raised)
        for name in ("sqlstate", "status", "retryable"):
            if name in wanted:
                assert getattr(raised, name) == wanted[name], name
        if "answer" in wanted:
            self.compare(self.answered(raised.answer), wanted["answer"])

    def step(self, step):
        wanted = step.get("expect", {})
        try:
            got = self.call(step)
        except AssertionError:
            raise
        except Exception as raised:
            if "error" not in wanted:
                raise
            self.failed(raised, wanted["error"])
        else:
            assert "error" not in wanted, f"no error: {got}"
            self.compare(got, wanted.get("result", {}))

    def all(self):
        try:
            for sql in self.case.get("arrange", ()):
                self.db.rows(sql)
            for number, step in enumerate(self.case["steps"], 1):
                try:
                    self.step(step)
                except Exception as raised:
                    raise AssertionError(f"step {number} of {self.case['name']}: {raised!r}") from raised
            for look in self.case.get("rows", ()):
                assert [list(row) for row in self.db.rows(look["sql"])] == look["is"], look["sql"]
        finally:
            for held in self.claims.values():
                held.end()
            for connection in self.held.values():
                connection.close()


@pytest.fixture(scope="module", params=NAMES)
def door(request, server):
    db = server.database()
    with opened(request.param, db.url) as made:
        made.name, made.db = request.param, db
        yield made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_case(door, case):
    if not {"client", "python"} & set(case.get("doors", ["client"])):
        pytest.skip("another door's")
    found = RESULTS.setdefault("python", {})
    found.setdefault(f"sql/{case['name']}", "pass")
    try:
        Runner(door, door.db, case).all()
    except BaseException:
        found[f"sql/{case['name']}"] = "fail"
        raise


