# SPDX-License-Identifier: PostgreSQL
"""The calls of spec/cases/sql.json by a driver, blocking or not, and the services of http.json."""

import base64
import inspect
import json

import pgonce
from pgonce import errors

from cases import body_of, bytes_of, outcome_of, request_of, said
from drivers import AsyncDoor, opened
from torture import Orders

CODES = {
    errors.Mismatch: "mismatch", errors.Active: "active", errors.InDoubt: "in_doubt", errors.Expired: "expired", errors.FinalFailure: "final_failure",
    errors.SwallowedError: "swallowed", errors.ScopeRequired: "scope_required", errors.KeyMalformed: "key_malformed", errors.LeaseLost: "lease_lost",
    errors.EventMismatch: "event_mismatch", errors.MessageMismatch: "message_mismatch", errors.Refused: "refused", errors.AlreadyFinished: "already_finished",
    errors.TooLarge: "too_large", errors.NotStarted: "not_started",
}  # fmt: skip
# A class for two refusals of the contract.
LEASE_LOST = {"P4010": "completion_refused", "P4011": "failure_refused"}


class Thrown(Exception):
    """What an effect raises where it is told to."""


async def settle(value):
    return await value if inspect.isawaitable(value) else value


def act(door, tx, action):
    """One of what an effect does."""
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


def ended(effect):
    """What the effect gives."""
    if "throw" in effect:
        raise Thrown(effect["throw"])
    if "fail" in effect:
        failure = effect["fail"]
        raise pgonce.FinalFailure(
            failure.get("message", ""), status=failure.get("status"), body=body_of(failure), headers=failure.get("headers"), code=failure.get("code")
        )
    return outcome_of(effect.get("answer", {}))


def effect_of(door, order):
    effect = order["effect"]

    def run(tx):
        for action in effect.get("do", ()):
            try:
                got = act(door, tx, action)
            except Exception:
                if "swallow" not in action:
                    raise
                continue
            assert "is" not in action or got == action["is"]
        return ended(effect)

    async def run_async(tx):
        for action in effect.get("do", ()):
            try:
                got = await settle(act(door, tx, action))
            except Exception:
                if "swallow" not in action:
                    raise
                continue
            assert "is" not in action or got == action["is"]
        return ended(effect)

    return run_async if isinstance(door, AsyncDoor) else run


class Calls:
    def __init__(self, driver, door, url):
        self.driver, self.door, self.url = driver, door, url
        self.claims, self.serving, self.script = {}, None, None

    def run(self, order):
        return said(self.door.run(order["scope"], order["key"], request_of(order), effect_of(self.door, order), tenant=order["tenant"]))

    def effect(self, order):
        result = self.door.effect(order["scope"], order["key"], request_of(order), order["tenant"], bytes_of(order["result"]).decode())
        return {"body": base64.b64encode(json.dumps(result).encode()).decode()}

    def claim(self, order):
        options = {name: order[f"{name}_ms"] / 1000 for name in ("lease", "retention") if f"{name}_ms" in order}
        options |= {"takeover": order["takeover"]} if "takeover" in order else {}
        held = self.door.claim(order["scope"], order["key"], request_of(order), tenant=order["tenant"], **options)
        if held.replayed:
            return said(held.answer)
        self.claims[order["as"]] = held
        return {"verdict": held.verdict, "fence": held.fence}

    def complete(self, order):
        return {"is": self.claims[order["of"]].complete(outcome_of(order.get("answer", {})))}

    def fail(self, order):
        outcome = outcome_of(order.get("answer", {}))
        return {"is": self.claims[order["of"]].fail(order["retryable"], outcome, code=order.get("code"), message=order.get("message"))}

    def release(self, order):
        return {"is": self.claims[order["of"]].release()}

    def renew(self, order):
        return {"is": self.claims[order["of"]].renew()}

    def receive(self, order):
        door = self.door
        arguments = (order["consumer"], order["message"], request_of(order))
        given = door.consume(*arguments, effect_of(door, order), tenant=order["tenant"])
        # The same in a transaction of the caller's own.
        if isinstance(door, AsyncDoor):

            async def look():
                async with door.transaction() as tx:
                    return await door.within("receive", tx, *arguments, tenant=order["tenant"])

            again = door.loop.wait(look())
        else:
            with door.transaction() as tx:
                again = door.within("receive", tx, *arguments, tenant=order["tenant"])
        words = {True: "process", False: "duplicate"}
        return {"verdict": words[bool(given)], "again": words[bool(again)]}

    def forget(self, _order):
        for held in self.claims.values():
            held.end()
        self.claims.clear()
        return {}

    def serve(self, order):
        import frameworks  # pylint: disable=import-outside-toplevel  # which takes as long to load as all the rest

        url = frameworks.AWAY if order["location"].get("database") == "away" else self.url
        self.serving = frameworks.serving(order, order["framework"], self.driver, url)
        port, self.script = self.serving.__enter__()  # pylint: disable=unnecessary-dunder-call
        return {"port": port}

    def begun(self, _order):
        assert self.script.begun.acquire(timeout=20)
        return {}

    def let(self, _order):
        self.script.released.set()
        return {}

    def stop(self, _order):
        self.serving.__exit__(None, None, None)
        return {"runs": self.script.runs}


def refused(error):
    if type(error) is Thrown:
        return {"code": "application"}
    code = LEASE_LOST.get(getattr(error, "sqlstate", None)) if isinstance(error, errors.LeaseLost) else next((code for kind, code in CODES.items() if isinstance(error, kind)), None)
    if code is None:
        return {"code": "none of the client", "text": repr(error)}
    told = {name: getattr(error, name) for name in ("sqlstate", "status", "retryable")} | {"code": code, "text": str(error)}
    return told | {"answer": said(error.answer)} if isinstance(error, errors.FinalFailure) else told


def serve(lines, driver, url):
    with opened(driver, url) as door:
        calls, orders = Calls(driver, door, url), Orders(door, url)
        print("ready", flush=True)
        for line in lines:
            order = json.loads(line)
            if "call" not in order:
                print(orders.answer(order), flush=True)
                continue
            try:
                answer = {"result": getattr(calls, order["call"])(order)}
            except Exception as error:  # pylint: disable=broad-except
                answer = {"error": refused(error)}
            print(json.dumps(answer), flush=True)
