# SPDX-License-Identifier: PostgreSQL
"""The calls of spec/cases/sql.json and faults.json by a driver, blocking or not, and the services of http.json."""

import asyncio
import base64
import concurrent.futures
import inspect
import json
import sys
import threading

import pgonce
from pgonce import errors

from cases import body_of, bytes_of, outcome_of, request_of, said
from drivers import AsyncDoor, Nodes, behind, opened
from torture import Orders

CODES = {
    errors.Mismatch: "mismatch", errors.Active: "active", errors.InDoubt: "in_doubt", errors.Expired: "expired", errors.FinalFailure: "final_failure",
    errors.SwallowedError: "swallowed", errors.ScopeRequired: "scope_required", errors.KeyMalformed: "key_malformed", errors.LeaseLost: "lease_lost",
    errors.EventMismatch: "event_mismatch", errors.MessageMismatch: "message_mismatch", errors.Refused: "refused", errors.AlreadyFinished: "already_finished",
    errors.TooLarge: "too_large", errors.NotStarted: "not_started", errors.ConnectionLost: "connection", errors.OutcomeUnknown: "outcome_unknown",
    errors.NotDone: "not_done", errors.UsageError: "usage", errors.SlotClosed: "slot_closed",
}  # fmt: skip
# A class for two refusals of the contract.
LEASE_LOST = {"P4010": "completion_refused", "P4011": "failure_refused"}


class Thrown(Exception):
    """What an effect raises where it is told to."""


async def settle(value):
    return await value if inspect.isawaitable(value) else value


async def settle_later(make):
    return await settle(make())


def act(door, tx, action):
    """One of what an effect does."""
    if "sql" in action:
        return door.execute(tx, action["sql"])
    if "meanwhile" in action:
        return asyncio.to_thread(converse, action) if isinstance(door, AsyncDoor) else converse(action)
    if "keep" in action:
        door.kept = tx
        return None
    if "emit" in action:
        given = dict(action["emit"])
        return door.within("emit", tx, given.pop("topic"), given.pop("payload"), **given)
    if "emit_bytes" in action:
        given = dict(action["emit_bytes"])
        payload = base64.b64decode(given.pop("base64"))
        return door.within("emit_bytes", tx, given.pop("topic"), payload, given.pop("content_type"), **given)
    if "lock" in action:
        return door.within("lock", tx, action["lock"]["resource"], wait=action["lock"]["wait_ms"] / 1000)
    if "behind" in action:
        return behind(tx, action["behind"])
    return door.execute(tx, action["swallow"])


def say(line):
    print(json.dumps(line), flush=True)


def converse(action):
    """Lets the driver make its steps, and waits until they are made."""
    say({"meanwhile": action["meanwhile"]})
    sys.stdin.readline()


def ended(effect):
    """What the effect gives."""
    if "throw" in effect:
        raise Thrown(effect["throw"])
    if "not_done" in effect:
        raise pgonce.NotDone(effect["not_done"])
    if "fail" in effect:
        failure = effect["fail"]
        raise pgonce.FinalFailure(
            failure.get("message", ""), status=failure.get("status"), body=body_of(failure), headers=failure.get("headers"), code=failure.get("code")
        )
    return outcome_of(effect.get("answer", {}))


class Runs:
    """How often the effect of an order was called."""

    def __init__(self):
        self.count, self.lock = 0, threading.Lock()

    def one_more(self):
        with self.lock:
            self.count += 1
            return self.count


def effect_of(door, effect, runs):
    def chosen():
        nth = runs.one_more()
        return [action for action in effect.get("do", ()) if nth <= action.get("first", nth)]

    def run(*tx):
        for action in chosen():
            try:
                got = act(door, *tx, action) if tx else converse(action)
            except Exception:
                if "swallow" not in action:
                    raise
                continue
            assert "is" not in action or got == action["is"]
        return ended(effect)

    async def run_async(*tx):
        for action in chosen():
            try:
                got = await settle(act(door, *tx, action) if tx else asyncio.to_thread(converse, action))
            except Exception:
                if "swallow" not in action:
                    raise
                continue
            assert "is" not in action or got == action["is"]
        return ended(effect)

    return run_async if isinstance(door, AsyncDoor) else run


def options_of(order):
    given = {name: order[f"{name}_ms"] / 1000 for name in ("deadline", "wait", "lease", "retention") if f"{name}_ms" in order}
    return given | {name: order[name] for name in ("tenant", "isolation", "takeover") if name in order}


class Calls:
    def __init__(self, driver, door, url, url_of):
        self.driver, self.door, self.url, self.url_of = driver, door, url, url_of
        self.claims, self.serving, self.script = {}, None, None
        self.over = None

    def run(self, order, runs):
        return said(self.door.run(order["scope"], order["key"], request_of(order), effect_of(self.door, order["effect"], runs), **options_of(order)))

    def effect(self, order, runs):
        work = effect_of(self.door, order.get("work", {}), runs)
        result = self.door.effect(order["scope"], order["key"], request_of(order), order["tenant"], bytes_of(order["result"]).decode(), work)
        return {"body": base64.b64encode(json.dumps(result).encode()).decode()}

    def claim(self, order, _runs):
        held = self.door.claim(order["scope"], order["key"], request_of(order), **options_of(order))
        if held.replayed:
            return said(held.answer)
        self.claims[order["as"]] = held
        return {"verdict": held.verdict, "fence": held.fence}

    def lost(self, order, _runs):
        return {"is": self.claims[order["of"]].is_lost()}

    def late(self, order, _runs):
        door = self.door
        if isinstance(door, AsyncDoor):
            door.loop.wait(settle_later(lambda: door.execute(door.kept, order["sql"])))
        else:
            door.execute(door.kept, order["sql"])
        return {}

    def complete(self, order, _runs):
        return {"is": self.claims[order["of"]].complete(outcome_of(order.get("answer", {})))}

    def fail(self, order, _runs):
        outcome = outcome_of(order.get("answer", {}))
        return {"is": self.claims[order["of"]].fail(order["retryable"], outcome, code=order.get("code"), message=order.get("message"))}

    def release(self, order, _runs):
        return {"is": self.claims[order["of"]].release()}

    def renew(self, order, _runs):
        return {"is": self.claims[order["of"]].renew()}

    def receive(self, order, runs):
        door = self.door
        arguments = (order["consumer"], order["message"], request_of(order))
        given = door.consume(*arguments, effect_of(door, order["effect"], runs), tenant=order["tenant"])
        words = {True: "process", False: "duplicate"}
        if self.over is not None:
            return {"verdict": words[bool(given)]}
        # The same in a transaction of the caller's own.
        if isinstance(door, AsyncDoor):

            async def look():
                async with door.transaction() as tx:
                    return await door.within("receive", tx, *arguments, tenant=order["tenant"])

            again = door.loop.wait(look())
        else:
            with door.transaction() as tx:
                again = door.within("receive", tx, *arguments, tenant=order["tenant"])
        return {"verdict": words[bool(given)], "again": words[bool(again)]}

    def forget(self, _order, _runs):
        for held in self.claims.values():
            held.end()
        self.claims.clear()
        return {}

    def nodes(self, order, _runs):
        if self.over is not None:
            self.over.close()
        self.over = Nodes(self.driver, [self.url_of(dsn) for dsn in order["dsns"]], order["router"])
        self.door = self.over.open()
        return {}

    def routed(self, _order, _runs):
        return {"tenants": self.over.tenants, "refusals": self.over.refusals}

    def serve(self, order, _runs):
        import frameworks  # pylint: disable=import-outside-toplevel  # which takes as long to load as all the rest

        url = frameworks.AWAY if order["location"].get("database") == "away" else self.url
        self.serving = frameworks.Services(order["framework"], self.driver).serving(order, url, self.over)
        port, self.script = self.serving.__enter__()  # pylint: disable=unnecessary-dunder-call
        return {"port": port}

    def begun(self, _order, _runs):
        assert self.script.begun.acquire(timeout=20)
        return {}

    def let(self, _order, _runs):
        self.script.released.set()
        return {}

    def stop(self, _order, _runs):
        self.serving.__exit__(None, None, None)
        return {"runs": self.script.runs}


def refused(error):
    if type(error) is Thrown:
        return {"code": "application"}
    code = LEASE_LOST.get(getattr(error, "sqlstate", None)) if isinstance(error, errors.LeaseLost) else next((code for kind, code in CODES.items() if isinstance(error, kind)), None)
    text = f"{error} {error!r}"
    if code is None:
        sqlstate = sqlstate_of(error)
        return {"code": "database" if sqlstate else "none of the client", "sqlstate": sqlstate, "text": text}
    told = {name: getattr(error, name) for name in ("sqlstate", "status", "retryable")} | {"code": code, "text": text}
    return told | {"answer": said(error.answer)} if isinstance(error, errors.FinalFailure) else told


def sqlstate_of(error):
    """Of a driver's error. SQLAlchemy wraps it."""
    error = getattr(error, "orig", error)
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def answered(calls, order):
    runs = Runs()

    def one(number=None):
        own = order if number is None else order | {"tenant": order["tenant"].replace("{n}", str(number))}
        try:
            return {"result": getattr(calls, order["call"])(own, runs)}
        except Exception as error:  # pylint: disable=broad-except
            return {"error": refused(error)}

    if "callers" not in order:
        return one() | {"calls": runs.count}
    with concurrent.futures.ThreadPoolExecutor(order["callers"]) as threads:
        return {"each": list(threads.map(one, range(order["callers"]))), "calls": runs.count}


def serve(lines, driver, url, url_of):
    """url_of: makes a url of a node's dsn."""
    with opened(driver, url) as door:
        calls, orders = Calls(driver, door, url, url_of), Orders(door, url)
        print("ready", flush=True)
        for line in lines:
            order = json.loads(line)
            if "call" in order:
                say(answered(calls, order))
            else:
                print(orders.answer(order), flush=True)
