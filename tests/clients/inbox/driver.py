# SPDX-License-Identifier: PostgreSQL
"""Gives the Python programs of docs/how their messages: see run.py."""

import json
import os
from types import SimpleNamespace

import inbox
import webhooks

CASES = json.loads(open(os.environ["CASES"], encoding="utf-8").read())
SECRET = CASES["secret"].encode()


def kafka(event, body):
    committed = []
    message = SimpleNamespace(error=lambda: None, headers=lambda: [("Pgonce-Event-Id", event.encode())], value=lambda: body.encode())
    consumer = SimpleNamespace(poll=lambda timeout: message, commit=committed.append)
    try:
        inbox.poll(consumer)
    except Exception:
        return "error" if not committed else "committed what failed"
    return "done" if committed else "not committed"


def rabbit(event, body):
    said = []
    channel = SimpleNamespace(
        basic_ack=lambda tag: said.append("ack"), basic_nack=lambda tag, requeue: said.append("nack" if requeue else "dropped")
    )
    inbox.on_message(channel, SimpleNamespace(delivery_tag=1), SimpleNamespace(message_id=event), body.encode())
    return said[-1] if len(said) == 1 else said


print(json.dumps({
    "kafka": [kafka(*each) for each in CASES["kafka"]],
    "sqs": [[failed["itemIdentifier"] for failed in inbox.handler(each, None)["batchItemFailures"]] for each in CASES["sqs"]],
    "rabbit": [rabbit(*each) for each in CASES["rabbit"]],
    "stripe": [webhooks.stripe(SECRET, {"Stripe-Signature": each["signature"]}, each["body"].encode()) for each in CASES["stripe"]],
    "github": [
        webhooks.github(SECRET, {"X-Hub-Signature-256": each["signature"], "X-GitHub-Delivery": each["delivery"]}, each["body"].encode())
        for each in CASES["github"]
    ],
}))  # fmt: skip
