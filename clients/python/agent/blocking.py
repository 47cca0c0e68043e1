# SPDX-License-Identifier: PostgreSQL
"""The orders of the torture (documented in tests/torture/languages.py). All calls are the client's; only the effects are the agent's own SQL."""

import json
import time
import uuid

import psycopg
import psycopg_pool

import pgonce

from common import DEADLINE_S, DEFINITE, Ended, NotNow, answered, code_of, event_of, fresh, given, leave_at, received, refused, stored

ADVANCE = "SELECT body, step FROM torture.advance(%s, %s, %s, %s, %s, 'python')"
WRITE = "SELECT torture.write(%s, %s, %s, %s, %s, 'python', %s, %s)"


def pause(ms):
    time.sleep(ms / 1000)


class Door:
    def __init__(self, source, dsn):
        self.source, self.dsn = source, dsn

    @staticmethod
    def advance(order, tx):
        """What an order is about, in a transaction: the bytes of its answer."""
        said = json.loads(order["payload"])
        leave_at(order, "begun")
        pause(order["before_ms"])
        if order["end"] == "retry":
            raise NotNow
        body, step = tx.execute(ADVANCE, [order[name] for name in ("tenant", "scope", "key", "payload", "attempt")]).fetchone()
        for nth in range(1, said["events"] + 1):
            topic, event, named = event_of(order, said, step, nth)
            pgonce.emit(tx, topic, event, **named)
        if order["swallow"]:
            try:
                tx.execute("SELECT 1/0")
            except psycopg.Error:
                pass
        pause(order["after_ms"])
        leave_at(order, "written")
        return bytes(body)

    def receive(self, order):
        """A message: by consume, or by hand in a transaction of the consumer's own."""
        if order["attempt"] % 2 == 0:
            named = {"tenant": order["tenant"], "isolation": order["isolation"], "deadline": DEADLINE_S}
            try:
                verdict = pgonce.consume(self.source, order["scope"], order["key"], order["payload"].encode(), lambda tx: self.advance(order, tx), **named)
            except Exception as error:  # pylint: disable=broad-except
                return refused(error)
            leave_at(order, "done")
            return received(verdict)
        committing = False
        try:
            with self.source.connection() as tx:
                tx.isolation_level = psycopg.IsolationLevel[order["isolation"].upper().replace(" ", "_")]
                tx.execute("SELECT")  # begins
                verdict = pgonce.receive(tx, order["scope"], order["key"], order["payload"].encode(), tenant=order["tenant"])
                if verdict:
                    self.advance(order, tx)
                committing = True
                tx.commit()
        except Exception as error:  # pylint: disable=broad-except
            if committing and not DEFINITE.match(getattr(error, "sqlstate", None) or ""):
                return {"verdict": "unknown", "code": code_of(error)}
            return refused(error)
        leave_at(order, "done")
        return received(verdict)

    def transaction(self, order):
        tenant, scope, key = order["tenant"], order["scope"], order["key"]

        def effect(tx):
            if order["neighbour"] == "second":
                with self.source.connection():
                    pass
            body = self.advance(order, tx)
            if order["neighbour"] == "commit":
                tx.execute("COMMIT")
            if order["end"] == "final":
                raise pgonce.FinalFailure("as ordered", status=422, body=str(uuid.uuid4()), code="torture")
            return 201, given(order["way"], body)

        try:
            return stored(
                pgonce.run(self.source, scope, key, order["payload"].encode(), effect, tenant=tenant, isolation=order["isolation"], deadline=DEADLINE_S)
            )
        except Exception as error:  # pylint: disable=broad-except
            return refused(error)

    def leased(self, order):
        claim = pgonce.claim(
            self.source, order["scope"], order["key"], order["payload"].encode(), tenant=order["tenant"], owner=f"attempt {order['attempt']}",
            deadline=DEADLINE_S,
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


def serve(lines, dsn):
    door = Door(psycopg_pool.ConnectionPool(dsn, min_size=1, max_size=4, timeout=3, reconnect_timeout=1, open=True), dsn)
    print("ready", flush=True)
    for line in lines:
        order = json.loads(line)
        do = {"transaction": door.transaction, "receive": door.receive}.get(order["mode"], door.leased)
        print(answered(do(order)), flush=True)
