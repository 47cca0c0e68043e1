# SPDX-License-Identifier: PostgreSQL
"""The HTTP services that the clients of clients/ protect by their middlewares: one in each language, a process of the system behind a link, killed and stopped like
any other. It is the program of languages.py with a port, and with one of its FRAMEWORKS instead of a driver. POST (see TARGETS) does the effect of the body, to /requests in the transaction that the middleware has opened, as the
order in the header X-Orders says (the words of languages.py), which is no part of what makes two requests the same."""

import dataclasses
import json
import random
import time

from .doors import HttpDoor, quoted
from .languages import FRAMEWORKS, among, order_of

# By mode. What its handler does commits with its answer (http); is elsewhere, by the endpoint of an effect (endpoint), or by a handler under a lease (leased).
TARGETS = {"http": "/requests", "endpoint": "/endpoints", "leased": "/leases"}
LEAVES = {"begun": "at once", "claimed": "in the middle of the request", "finished": "at once", "done": "after a while"}  # "written": the service dies there
A_WHILE_S = 0.05


def service_name(language):
    return f"{language}-service"


def service_link(language):
    return f"client-{language}"


def framework_of(seed, language, doors=None):
    """Which of its frameworks a run has, of those that somebody asks for by name."""
    return random.Random(f"{seed}/{language}/service").choice(among(FRAMEWORKS[language], language, doors))


class ServiceDoor(HttpDoor):
    """A client over HTTP, on a connection that is kept. Where the orders say that it leaves it hangs up: before all of the request is sent, or before the answer
    comes."""

    modes = tuple(TARGETS)

    def attempt(self, intent, number, payload, orders):
        order = order_of(intent, number, payload, orders)
        del order["payload"], order["doubt_ms"], order["way"], order["isolation"]
        order["leave"] = None if orders.leave in LEAVES else orders.leave
        headers = [("Idempotency-Key", quoted(intent.key).encode()), ("Content-Type", "application/json"), ("X-Orders", json.dumps(order))]
        return self.ask(TARGETS[intent.mode], headers, payload, orders)

    @staticmethod
    def judge(response):
        """Who left the doubt is told of it in the same words as who learns of it: the service says which."""
        said = HttpDoor.judge(response)
        return dataclasses.replace(said, verdict="unknown") if said.verdict == "in_doubt" and response.header("X-Ran") == "yes" else said

    def exchange(self, method, target, headers, body, orders):
        if orders.leave not in LEAVES:
            return super().exchange(method, target, headers, body, orders)
        request = self.connection.bytes_of(method, target, headers, body)
        self.connection.socket.sendall(request[: len(request) - len(body) // 2] if orders.leave == "claimed" else request)
        if orders.leave == "done":
            time.sleep(A_WHILE_S + orders.before_s)
        raise ConnectionAbortedError(f"hung up {LEAVES[orders.leave]}")
