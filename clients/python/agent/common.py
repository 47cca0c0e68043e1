# SPDX-License-Identifier: PostgreSQL
"""What the two doors of the Python client share: the verdicts of its errors, and the words of orders and answers (tests/torture/languages.py)."""

import base64
import json
import os
import re
import signal

import pgonce

DEADLINE_S = 6.0
VERDICTS = {pgonce.Mismatch: "mismatch", pgonce.Active: "busy", pgonce.MessageMismatch: "mismatch", pgonce.InDoubt: "in_doubt", pgonce.Expired: "expired", pgonce.OutcomeUnknown: "unknown"}
REFUSED = ("P4000", "P4001", "P4003")
# What PostgreSQL says when a statement certainly had no lasting effect.
DEFINITE = re.compile("P4|40|55|57014|53|25|22|42|23|0A|P0")


class NotNow(Exception):
    """An ordinary error of an effect: it is taken back, and the next attempt may run."""

    sqlstate = "retryable"


class Ended(Exception):
    """Leaves a claim without a report that was heard, and with this answer: the claim then reports a doubt, if it still can."""


def leave_at(order, step):
    if order["leave"] == step:
        os.kill(os.getpid(), signal.SIGKILL)


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


def received(verdict):
    return {"verdict": "acknowledged", "code": "process" if verdict else "duplicate", "replayed": not verdict}


def order_of(headers):
    """Of a request."""
    return json.loads(headers["X-Orders"])


def is_answered(order):
    """Of two handlers that are to fail for now one says so in its answer, the other raises."""
    return order["attempt"] % 2 == 1


def given(way, body):
    """The answer, in the type that the order names. Text that is no JSON stays text."""
    if way == "json":
        try:
            return json.loads(body)
        except ValueError:
            pass
    return body if way == "body" else body.decode()


def event_of(order, said, step, nth):
    """The topic, the event, and what else emit is told."""
    named = ("tenant", "scope", "key")
    event = {name: order[name] for name in named} | {"aggregate": said["aggregate"], "step": step, "nth": nth}
    more = {"aggregate_type": "account", "aggregate_id": said["aggregate"], "tenant": order["tenant"]}
    more |= {name: order[name] if said["caused"] else None for name in ("scope", "key")}
    return "torture.done" if nth == 1 else "torture.checked", event, more


def answered(answer):
    """As a line."""
    body = answer.get("body")
    return json.dumps(answer | {"body": None if body is None else base64.b64encode(body).decode()})
