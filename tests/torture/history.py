# SPDX-License-Identifier: PostgreSQL
"""What happened, in the order in which it was known: one JSON object a line, written before anything else is done with it.

An attempt is recorded before it begins, and its answer before anybody acts on it. So the history may lack an answer that was
given, never hold one that was not; and an attempt without an answer is one whose end nobody knows."""

import base64
import json
import threading
import time


class Recorder:
    """Writes a history. For many threads. t: seconds since it was opened, by a clock that nobody sets."""

    def __init__(self, path):
        self.begun = time.monotonic()
        self.lock = threading.Lock()
        self.file = open(path, "a", encoding="utf-8")  # pylint: disable=consider-using-with
        self.attempts = {}  # so many of each intent
        self.intents = 0
        self.counts = {}  # of records by kind, and of answers by verdict: for progress

    def now(self):
        return time.monotonic() - self.begun

    def record(self, kind, **fields):
        with self.lock:
            return self._write(kind, fields)

    def _write(self, kind, fields):
        record = {"t": round(self.now(), 4), "kind": kind, **{name: value for name, value in fields.items() if value is not None}}
        self.file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self.file.flush()
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return record

    def number(self):
        """The number of the next intent."""
        with self.lock:
            self.intents += 1
            return self.intents

    def intent(self, intent, door, mode, tenant, scope, key, payload, **more):
        self.record("intent", intent=intent, door=door, mode=mode, tenant=tenant, scope=scope, key=key, payload=payload, **more)

    def attempt(self, intent, client, **more):
        """Returns the attempt's number within its intent, from 1."""
        with self.lock:
            number = self.attempts[intent] = self.attempts.get(intent, 0) + 1
            self._write("attempt", {"intent": intent, "attempt": number, "client": client, **more})
            return number

    def answer(self, intent, attempt, verdict, code="", status=None, body=None, replayed=None, **more):
        """body: bytes."""
        text = None if body is None else base64.b64encode(body).decode()
        self.record("answer", intent=intent, attempt=attempt, verdict=verdict, code=str(code), status=status, body=text, replayed=replayed, **more)
        with self.lock:
            self.counts[verdict] = self.counts.get(verdict, 0) + 1

    def fault(self, fault, target, action, detail=None):
        self.record("fault", fault=fault, target=target, action=action, detail=detail)

    def phase(self, phase):
        self.record("phase", phase=phase)

    def close(self):
        with self.lock:
            self.file.close()


class History:
    """records: all of them, in their order. The rest are ways to look at them."""

    def __init__(self, records):
        self.records = list(records)

    def of(self, kind):
        return [record for record in self.records if record["kind"] == kind]

    @property
    def intents(self):
        """Number: record."""
        return {record["intent"]: record for record in self.of("intent")}

    @property
    def answers(self):
        """(intent, attempt): record."""
        return {(record["intent"], record["attempt"]): record for record in self.of("answer")}


def read(path):
    """A History. The last line may be cut, where its writer was killed."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    if lines[-1]:
        lines.pop()
    return History(json.loads(line) for line in lines if line)


def body_of(answer):
    """The bytes of an answer; None where it has none."""
    return base64.b64decode(answer["body"]) if answer.get("body") is not None else None
