# SPDX-License-Identifier: PostgreSQL
"""The services behind the gateway: python3 -m torture.upstream naive|handoff SOCKET DSN

naive    knows nothing of retries: does what it is asked, each time, in a transaction of its own
handoff  completes the gateway's intent in the transaction of its effect

What an attempt is to do besides (pause, fail, go away) it says in the header X-Orders, which is no part of what makes two requests
the same. So it does what is around the answer (`neighbour`): `pieces`, with pauses between them; `cut`: half of it, after all that was done; `trailers`. Both answer 503 with `X-Done: no` where certainly nothing was done, and 500 where they do not know, as a framework does where
COMMIT's answer is lost."""

import dataclasses
import json
import pathlib
import queue
import signal
import sys
import threading
import time
import urllib.parse

import psycopg2

from harness.upstream import Answer, Upstream

from .doors import ACT, COMPLETE, FAIL, WRITE, Left, Session, Uncertain, Watch, failure_body

PATIENCE_S = 6
JSON = (("Content-Type", "application/json"),)
NOT_DONE = Answer(503, headers=(*JSON, ("Retry-After", "0"), ("X-Done", "no")), body=b"{}")
UNKNOWN = Answer(500, headers=JSON, body=b"{}")


# What is around an answer with this body.
AROUND = {
    "pieces": lambda body: {"framing": "chunked", "piece": len(body) // 3 + 1, "pause_s": 0.02},
    "cut": lambda body: {"framing": "chunked", "cut": len(body) // 2},
    "trailers": lambda body: {"framing": "chunked", "trailers": (("X-Sum", str(len(body))), ("Once-Effect", "none"))},
}


class Service(Upstream):
    """One of the two, on a socket of the given name. Its connections to the database are used again by whoever comes next."""

    def __init__(self, path, dsn):
        self.path = pathlib.Path(path)
        self.dsn, self.watch = dsn, Watch()
        self.idle = queue.LifoQueue()
        # What Upstream keeps of its own.
        self.changed, self.connections = threading.Condition(), set()
        self.listener, self.ending = None, threading.Event()
        self.accept()

    def close(self):
        self.ending.set()
        self.refuse()

    def _execute(self, request):
        orders = json.loads(request.header("X-Orders"))
        try:
            session = self.idle.get_nowait()
        except queue.Empty:
            session = Session(self.dsn, self.watch)
        try:
            with session.within(PATIENCE_S):
                answer = self.execute(session, request, orders)
        except psycopg2.Error:
            answer = NOT_DONE
        except Uncertain:
            answer = UNKNOWN
        except Left:
            answer = Answer(close=True)
        self.idle.put(session)
        return self.surrounded(answer, orders["neighbour"]), 0

    @staticmethod
    def surrounded(answer, neighbour):
        """Of the answers that say what was done."""
        if neighbour is None or answer.close or answer.status >= 500:
            return answer
        return dataclasses.replace(answer, **AROUND[neighbour](answer.body))

    @staticmethod
    def answer(status, body):
        return Answer(status, headers=JSON, body=body)


class Naive(Service):
    def execute(self, session, request, orders):
        time.sleep(orders["before_s"])
        if orders["retry"]:
            return NOT_DONE
        said = json.loads(request.body)
        if said["final"]:
            return self.answer(422, failure_body())
        session.row("BEGIN")
        values = (said["tenant"], "naive", said["key"], request.body.decode(), orders["attempt"], "http", None, False)
        body = session.value(WRITE, *values)
        if orders["leave"] == "begun":
            raise Left("begun")
        session.commit()
        if orders["leave"] == "done":
            return UNKNOWN  # it fails while it renders its answer
        if orders["leave"]:
            raise Left("committed")
        time.sleep(orders["after_s"])
        return self.answer(201, body)


class Handoff(Service):
    """The intent comes in the gateway's headers, under the fence that alone may complete it."""

    def execute(self, session, request, orders):
        tenant, scope, key = (urllib.parse.unquote(request.header(f"Once-{name}") or "") for name in ("Tenant", "Scope", "Key"))
        fence = int(request.header("Once-Fence"))
        time.sleep(orders["before_s"])
        if orders["retry"]:
            return NOT_DONE
        final = json.loads(request.body)["final"]
        session.row("BEGIN")
        try:
            if final:
                status, body = 422, failure_body()
                session.row(FAIL, scope, key, fence, False, status, body, tenant)
            else:
                status = 201
                body = session.value(ACT, tenant, scope, key, request.body.decode(), orders["attempt"], "http", fence)
                if orders["leave"] == "begun":
                    raise Left("begun")
                session.row(COMPLETE, scope, key, fence, status, body, tenant)
        except psycopg2.Error as error:
            if error.pgcode in ("P4010", "P4011"):  # another attempt has it by now
                return Answer(409, headers=(*JSON, ("Once-Effect", "none")), body=b'{"fence": "lost"}')
            raise
        session.commit()
        if orders["leave"]:
            raise Left("committed")
        time.sleep(orders["after_s"])
        return self.answer(status, body)


def main():
    kind, path, dsn = sys.argv[1:]
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    service = {"naive": Naive, "handoff": Handoff}[kind](path, dsn)
    print("ready", flush=True)
    over.wait()
    service.close()


if __name__ == "__main__":
    main()
