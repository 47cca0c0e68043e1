# SPDX-License-Identifier: PostgreSQL
"""Duplicates that wait for their original: they replay as soon as it ends, or are told that it still runs when their patience does."""

import dataclasses
import threading
import time

import pytest
from harness.upstream import NOT_NOW, Answer

from .door import assert_problem, assert_replays, at_once, new_key, same_answer

pytestmark = pytest.mark.alone  # patience and leases of a second
CONFIG = """
    once_tenant $http_x_tenant;
    once required;
    once_scope pay;
    location /pay { once_wait 20s; proxy_pass http://app; }
    location /short { once_wait 700ms; proxy_pass http://app; }
    location /doubt { once_wait 20s; proxy_read_timeout 500ms; proxy_pass http://app; }
    location /leased { once_wait 20s; once_lease 3s; proxy_pass http://app; }
"""


def held(door, target="/pay", **answer):
    """An original that runs until the event is set."""
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, Answer(hold=hold, **answer))
    original = door.start(key, target)
    door.upstream.wait(key)
    return key, hold, original


def waits(attempts, for_s=0.5):
    """None of them has been answered."""
    time.sleep(for_s)
    return all(attempt.is_alive() for attempt in attempts)


def test_duplicates_wait_for_their_original_and_replay_it(door):
    key, hold, original = held(door)
    duplicates = [door.start(key, protocol=protocol) for protocol in ["HTTP/1.1"] * 10 + ["HTTP/2"] * 3]
    assert waits([original, *duplicates])
    hold.set()
    first = original.result()
    for duplicate in duplicates:
        answer = duplicate.result()
        assert answer.replayed and same_answer(first, answer)
    assert door.count(key) == 1


def test_a_duplicate_is_answered_soon_after_its_original(door):
    key, hold, original = held(door)
    duplicate = door.start(key)
    assert waits([duplicate], 2)
    hold.set()
    original.result()
    began = time.monotonic()
    assert duplicate.result().replayed
    assert time.monotonic() - began < 10  # of the 20 s for which it would wait


def test_a_duplicate_whose_patience_ends_is_told_that_the_original_runs_and_when_to_come_back(door):
    key, hold, original = held(door, "/short")
    began = time.monotonic()
    answer = assert_problem(door.attempt(key, "/short"), 409, "active")
    assert 0.5 < time.monotonic() - began < 10
    assert int(answer.header("Retry-After")) >= 1
    hold.set()
    assert_replays(door, key, original.result(), "/short")


def test_a_mismatch_does_not_wait(door):
    key, hold, original = held(door)
    began = time.monotonic()
    assert_problem(door.attempt(key, body=b"other"), 422, "mismatch")
    assert time.monotonic() - began < 10
    hold.set()
    original.result()


def test_duplicates_of_an_original_that_fails_run_one_after_another_and_never_two_at_once(door):
    key, hold = new_key(), threading.Event()
    running, most = [], []

    def one_at_a_time(_):
        running.append(1)
        most.append(len(running))
        hold.wait(20)
        running.pop()

    failure = dataclasses.replace(NOT_NOW, do=one_at_a_time)
    door.upstream.script(key, failure, failure, Answer(201, do=one_at_a_time))
    original = door.start(key)
    door.upstream.wait(key)
    duplicates = [door.start(key) for _ in range(5)]
    assert waits(duplicates)
    hold.set()
    assert original.result().status == 503
    answers = [duplicate.result() for duplicate in duplicates]
    assert max(most) == 1 and door.count(key) == 3
    statuses = sorted(answer.status for answer in answers)
    assert statuses == [201, 201, 201, 201, 503]
    assert len({answer.body for answer in answers if answer.status == 201}) == 1


def test_duplicates_of_an_original_that_ends_in_doubt_are_told_so(door):
    key = new_key()
    door.upstream.script(key, Answer(hold=threading.Event()))
    original = door.start(key, "/doubt")
    door.upstream.wait(key)
    duplicates = [door.start(key, "/doubt") for _ in range(5)]
    assert original.result().status == 504
    for duplicate in duplicates:
        assert_problem(duplicate.result(), 409, "in-doubt")
    assert door.count(key) == 1


def test_waiting_holds_no_connection_to_the_database(door):
    def connections():
        return door.database.value(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    door.attempt(new_key())
    before = connections()
    assert 1 <= before <= 2 * door.nginx.workers
    key, hold, original = held(door)
    duplicates = [door.start(key) for _ in range(100)]
    assert waits(duplicates, 1)
    assert connections() <= 2 * door.nginx.workers
    states = door.database.rows(
        "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'active'"
    )
    assert {state for (state,) in states} <= {"idle"}
    # Others are served meanwhile.
    assert all(answer.status == 201 for answer in at_once(20, lambda _: door.attempt(new_key())))
    hold.set()
    first = original.result()
    assert all(same_answer(first, duplicate.result()) for duplicate in duplicates)
    assert door.count(key) == 1


def test_an_original_that_runs_longer_than_its_lease_keeps_it_and_its_duplicates_wait_on(door):
    """The lease is renewed while the upstream works."""
    key, hold, original = held(door, "/leased")
    duplicate = door.start(key, "/leased")
    assert waits([original, duplicate], 5)
    assert not door.stored(key).lease_passed and door.stored(key).fence == 1
    hold.set()
    first = original.result()
    answer = duplicate.result()
    assert answer.replayed and same_answer(first, answer)
    assert door.count(key) == 1
