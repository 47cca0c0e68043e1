# SPDX-License-Identifier: PostgreSQL
"""Clients under load, as clients are: each takes an intent, tries until it has an answer that ends it, and takes the next. Every intent is
tried by two clients at once. What they saw is held against what the service did and what the database stored."""

import dataclasses
import random
import threading
import time
import uuid

from harness.postgres import PATIENCE_S

from .door import SCOPE, TENANT

# Answers that say: come back with the same key.
TRY_AGAIN = {"active", "unavailable", "not-stored", "unreached", "unanswered"}


@dataclasses.dataclass
class Ended:
    """How one client's intent ended: its answer (None: it gave up), how long that took, and what happened on the way."""

    key: str
    answer: object
    took_s: float
    began: float
    hindrances: list


class Load:
    """clients work in pairs on the same intents. patience_s: after it a client gives one intent up, which fails the test."""

    def __init__(self, door, target="/pay", clients=12, patience_s=30, doors=None):
        self.doors = doors or [door]
        self.door, self.target, self.clients, self.patience_s = door, target, clients, patience_s
        self.run_id = uuid.uuid4().hex[:12]
        self.stopping = threading.Event()
        self.changed = threading.Condition()
        self.ended = []
        self.failures = []
        self.threads = [threading.Thread(target=self._client, args=(number,), daemon=True) for number in range(clients)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """No new intent is begun; those that are, end."""
        self.stopping.set()
        for thread in self.threads:
            thread.join(self.patience_s + 30)
        assert not any(thread.is_alive() for thread in self.threads), "a client never got an answer"
        assert not self.failures, self.failures[:3]

    def wait_more(self, count, patience_s=PATIENCE_S):
        """Until so many more intents have ended: the load flows."""
        with self.changed:
            goal = len(self.ended) + count
            assert self.changed.wait_for(lambda: len(self.ended) >= goal or self.failures, patience_s), f"{len(self.ended)} of {goal} ended"

    def _client(self, number):
        turn = 0
        while not self.stopping.is_set():
            turn += 1
            try:
                ended = self._intent(f"{self.run_id}-{number // 2}-{turn}", self.doors[number % len(self.doors)])
            except Exception as failure:  # shown by stop()
                self.failures.append(failure)
                raise
            with self.changed:
                self.ended.append(ended)
                self.changed.notify_all()

    def _intent(self, key, door):
        began, hindrances = time.monotonic(), []
        while True:
            try:
                answer = door.attempt(key, self.target, timeout=self.patience_s)
                what = answer.problem or answer.status
            except (OSError, TimeoutError) as lost:
                answer, what = None, type(lost).__name__
            took = time.monotonic() - began
            if answer is not None and answer.whole and what not in TRY_AGAIN and what not in (500, 502, 503, 504):
                return Ended(key, answer, took, began, hindrances)
            hindrances.append(what)
            if took > self.patience_s:
                return Ended(key, None, took, began, hindrances)
            time.sleep(random.uniform(0.01, 0.05))  # a client's backoff

    # What must hold afterwards.

    def hindrances(self):
        return [each for ended in self.ended for each in ended.hindrances]

    def assert_nothing_lost(self):
        """No client met an error, or an answer other than its intent's."""
        assert set(self.hindrances()) <= {"active"}, set(self.hindrances())
        self.assert_safe(doubt=False)
        assert all(self.door.count(ended.key) == 1 for ended in self.ended)

    def assert_safe(self, doubt=True, executions=1, longest_s=None):
        """At most one execution of each key; every answer is the stored one; every intent has come to an end."""
        assert len(self.ended) >= self.clients
        self.door.database.close()  # its connection may not have outlived a crash
        executed = {key: count for key, count in self.door.upstream.counts().items() if key and key.startswith(self.run_id)}
        assert {key: count for key, count in executed.items() if count > executions} == {}
        gave_up = [ended for ended in self.ended if ended.answer is None]
        assert not gave_up, gave_up[:3]
        rows = {
            row.key: row
            for row in self.door.database.rows(
                "SELECT key, state, response_status, response_body FROM once.intent WHERE tenant = %s AND scope = %s AND key LIKE %s",
                TENANT,
                SCOPE,
                self.run_id + "-%",
            )
        }
        for ended in self.ended:
            row, answer = rows[ended.key], ended.answer
            if answer.status == 201:
                assert (row.state, row.response_status, row.response_body) == ("succeeded", 201, answer.body), (ended, row)
                assert executed[ended.key] >= 1, ended
            else:
                assert doubt and answer.problem == "in-doubt", (ended, row)
                assert row.state in ("in_doubt", "succeeded"), (ended, row)
        if longest_s is not None:
            slowest = max(self.ended, key=lambda ended: ended.took_s)
            assert slowest.took_s <= longest_s, slowest

    def doubts(self):
        return {ended.key for ended in self.ended if ended.answer is not None and ended.answer.problem == "in-doubt"}
