# SPDX-License-Identifier: PostgreSQL
"""A caller of the Python client that does what standard input says, for the torture (tests/torture/languages.py, which has the words):
python.py CLIENT NUMBER DSN. An order is a line of JSON, an answer another. Whatever the client can do it does; only the effects are SQL of its own. Odd
numbers have a pool of psycopg, even ones a function that connects."""

import base64
import json
import os
import re
import signal
import sys
import time
import uuid

import psycopg
import psycopg_pool

import pgonce

DEADLINE_S = 6.0
VERDICTS = {pgonce.Mismatch: "mismatch", pgonce.Active: "busy", pgonce.InDoubt: "in_doubt", pgonce.Expired: "expired", pgonce.OutcomeUnknown: "unknown"}
REFUSED = ("P4000", "P4001", "P4003")
ADVANCE = "SELECT body, step FROM torture.advance(%s, %s, %s, %s, %s, 'python')"
WRITE = "SELECT torture.write(%s, %s, %s, %s, %s, 'python', %s, %s)"
# What PostgreSQL says when a statement certainly had no lasting effect.
DEFINITE = re.compile("P4|40|55|57014|53|25|22|42|23|0A|P0")


class NotNow(Exception):
    """An ordinary error of an effect: it is taken back, and the next attempt may run."""

    sqlstate = "retryable"


class Ended(Exception):
    """Leaves a claim without a report that was heard, and with this answer: the claim then says that nobody knows, where it still can."""


def leave_at(order, step):
    if order["leave"] == step:
        os.kill(os.getpid(), signal.SIGKILL)


def pause(ms):
    time.sleep(ms / 1000)


def code_of(error):
    return getattr(error, "sqlstate", None) or type(error).__name__


def stored(answer, code=""):
    return {"verdict": "acknowledged", "code": code, "status": answer.status, "body": answer.body, "replayed": answer.replayed}


def fresh(status, body):
    return {"verdict": "acknowledged", "status": status, "body": body, "replayed": False}


def refused(error):
    """The verdict of an error that the client has raised, or let out."""
    if isinstance(error, pgonce.FinalFailure):
        return stored(error.answer, "final_failure")
    return {"verdict": "refused" if code_of(error) in REFUSED else VERDICTS.get(type(error), "failed"), "code": code_of(error)}


def given(way, body):
    """As what the answer is given. What is no JSON is given as text."""
    if way == "json":
        try:
            return json.loads(body)
        except ValueError:
            pass
    return body if way == "body" else body.decode()


class Door:
    def __init__(self, source, dsn):
        self.source, self.dsn = source, dsn

    def transaction(self, order):
        said = json.loads(order["payload"])
        tenant, scope, key = order["tenant"], order["scope"], order["key"]

        def effect(tx):
            leave_at(order, "begun")
            pause(order["before_ms"])
            if order["end"] == "retry":
                raise NotNow
            body, step = tx.execute(ADVANCE, (tenant, scope, key, order["payload"], order["attempt"])).fetchone()
            caused = {"scope": scope, "key": key} if said["caused"] else {}
            for nth in range(1, said["events"] + 1):
                event = {"tenant": tenant, "scope": scope, "key": key, "aggregate": said["aggregate"], "step": step, "nth": nth}
                topic = "torture.done" if nth == 1 else "torture.checked"
                pgonce.emit(tx, topic, event, aggregate_type="account", aggregate_id=said["aggregate"], tenant=tenant, **caused)
            if order["swallow"]:
                try:
                    tx.execute("SELECT 1/0")
                except psycopg.Error:
                    pass
            pause(order["after_ms"])
            leave_at(order, "written")
            if order["end"] == "final":
                raise pgonce.FinalFailure("as ordered", status=422, body=str(uuid.uuid4()), code="torture")
            return 201, given(order["way"], bytes(body))

        try:
            return stored(
                pgonce.run(self.source, scope, key, order["payload"].encode(), effect, tenant=tenant, isolation=order["isolation"], deadline=DEADLINE_S)
            )
        except Exception as error:  # pylint: disable=broad-except
            return refused(error)

    def leased(self, order):
        claim = pgonce.claim(
            self.source, order["scope"], order["key"], order["payload"].encode(), tenant=order["tenant"], owner=f"attempt {order['attempt']}",
            takeover=True, deadline=DEADLINE_S,
        )  # fmt: skip
        told = []
        try:
            with claim as held:
                told.append(True)
                return stored(held.answer, "replay_success") if held.replayed else self.work(order, held)
        except Ended as ended:
            return ended.args[0]
        except Exception as error:  # pylint: disable=broad-except
            answer = refused(error)
            # Its claim may have been granted, and the answer lost.
            return answer | {"loose": True} if answer["verdict"] == "failed" and not told else answer

    def work(self, order, held):
        """Under a claim."""
        leave_at(order, "claimed")
        pause(order["before_ms"])
        odd = order["attempt"] % 2
        try:
            if order["end"] == "retry" or held.lost.is_set():
                if not odd or not held.release():
                    held.fail(True)
                return {"verdict": "failed", "code": "retryable"}
            if order["end"] == "final":
                body = str(uuid.uuid4()).encode()
                held.fail(False, (422, body), code="torture", message="as ordered")
                return fresh(422, body)
            if order["doubt_ms"]:
                held.fail(None)
                pause(order["doubt_ms"])
        except pgonce.OnceError as error:
            if order["end"] == "final" and isinstance(error, pgonce.OutcomeUnknown):
                raise Ended({"verdict": "unknown", "code": code_of(error)}) from error
            raise Ended({"verdict": "failed", "code": code_of(error), "loose": error.sqlstate != "P4011"}) from error
        try:
            body = self.effect(order, held.fence)
        except psycopg.Error as error:
            unknown = Ended({"verdict": "unknown", "code": code_of(error)})
            if error.sqlstate is None or not DEFINITE.match(error.sqlstate):
                raise unknown from error
            try:
                held.fail(True)
            except pgonce.OnceError:
                raise unknown from error
            return {"verdict": "failed", "code": code_of(error)}
        leave_at(order, "done")
        pause(order["after_ms"])
        if order["doubt_ms"] and odd:
            return {"verdict": "unknown", "code": "doubt"}
        try:
            held.complete((201, body if order["way"] == "body" else body.decode()))
        except pgonce.OnceError as error:  # somebody else has decided meanwhile: what is stored says the next attempt
            raise Ended({"verdict": "unknown", "code": code_of(error)}) from error
        return fresh(201, body)

    def effect(self, order, fence):
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            values = [order[name] for name in ("tenant", "scope", "key", "payload", "attempt")]
            return bytes(connection.execute(WRITE, (*values, fence, order["mode"] == "verified")).fetchone()[0])


def main():
    number, dsn = int(sys.argv[2]), sys.argv[3]
    if number % 2:
        source = psycopg_pool.ConnectionPool(dsn, min_size=1, max_size=4, timeout=3, reconnect_timeout=1, open=True)
    else:

        def source():
            return psycopg.connect(dsn)

    door = Door(source, dsn)
    for line in sys.stdin:
        order = json.loads(line)
        answer = door.transaction(order) if order["mode"] == "transaction" else door.leased(order)
        body = answer.get("body")
        answer["body"] = None if body is None else base64.b64encode(body).decode()
        print(json.dumps(answer), flush=True)


main()
