# SPDX-License-Identifier: PostgreSQL
"""The inbox: a message's effect is applied exactly once per consumer."""

import threading

import psycopg2
import pytest

from .calls import LEVELS, Once, effects, in_threads, make_effect, refused


def test_a_message_is_processed_once_and_is_a_duplicate_ever_after(db):
    once = Once(db.connect())
    assert [once.receive(message_id="m") for _ in range(3)] == ["process", "duplicate", "duplicate"]


def test_a_message_whose_transaction_rolled_back_is_processed_again(db):
    connection = db.connect(isolation="READ COMMITTED")
    assert Once(connection).receive(message_id="m") == "process"
    connection.rollback()
    assert Once(connection).receive(message_id="m") == "process"


def test_a_message_id_with_another_payload_is_refused(db):
    once = Once(db.connect())
    once.receive(message_id="m")
    with refused("P4050"):
        once.receive(message_id="m", fingerprint=b"another payload!")


def test_two_consumers_each_process_the_message(db):
    once = Once(db.connect())
    assert [once.receive(consumer=consumer, message_id="m") for consumer in ("mailer", "billing", "mailer")] == [
        "process",
        "process",
        "duplicate",
    ]
    assert once.receive(message_id="m", tenant="t") == "process"


def test_a_message_that_another_transaction_is_applying_is_told_so_at_once(db):
    first, second = (db.connect(isolation="READ COMMITTED", lock_timeout="1s") for _ in range(2))
    Once(first).receive(message_id="m")
    with refused("P4029"):
        Once(second).receive(message_id="m")
    first.commit()
    second.rollback()
    assert Once(second).receive(message_id="m") == "duplicate"


def test_a_message_that_an_attempt_under_lease_left_unfinished_is_refused(db):
    once = Once(db.connect())
    once.claim(scope="mailer", key="m")
    with refused("P4099"):
        once.receive(message_id="m")


@pytest.mark.parametrize("level", LEVELS)
def test_32_parallel_consumers_apply_a_message_once(db, level):
    connections = [db.connect(isolation=level, lock_timeout="10s") for _ in range(32)]
    together = threading.Barrier(32)

    def consume(n):
        together.wait()
        while True:
            try:
                verdict = Once(connections[n]).receive(message_id="m")
                if verdict == "process":
                    make_effect(connections[n], "m", n)
                connections[n].commit()
                return verdict
            except psycopg2.Error as error:
                connections[n].rollback()
                if error.pgcode not in ("40001", "P4029"):
                    raise

    verdicts = in_threads([lambda n=n: consume(n) for n in range(32)])
    assert verdicts.count("process") == 1 == effects(db, "m")
