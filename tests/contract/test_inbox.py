# SPDX-License-Identifier: PostgreSQL
"""The inbox: a message's effect is applied exactly once per consumer."""

import threading

import psycopg2
import pytest

from .calls import LEVELS, Once, effects, in_threads, make_effect, refused, retire, shorten_horizon, uuid7_days_ago
from .test_receive_many import park, receive_many


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


@pytest.mark.parametrize("days", [60, 0, -60], ids=["old", "of today", "of the future"])
def test_an_id_is_only_a_name_and_a_uuid7_of_any_day_is_applied_exactly_once(db, days):
    once = Once(db.connect())
    ids = [uuid7_days_ago(db, days, n) for n in range(100)]
    assert once.receive(message_id=ids[0]) == "process"
    assert receive_many(db.connect(), ids) == ["duplicate"] + ["process"] * 99
    assert receive_many(db.connect(), ids[::-1]) == ["duplicate"] * 100
    assert [once.receive(message_id=each) for each in ids] == ["duplicate"] * 100
    # As pgonce consume calls them.
    assert receive_many(db.connect(), [f"pgonce:id:{each}" for each in ids]) == ["duplicate"] * 100
    assert {row.bucket for row in db.rows("SELECT bucket FROM once.intent")} == {0}
    with refused("P4050"):
        once.receive(message_id=ids[0], fingerprint=b"another payload!")


@pytest.mark.parametrize("spelled", ["{%s}", "urn:uuid:%s"])
def test_a_uuid7_in_another_spelling_is_only_a_name_too(db, spelled):
    once = Once(db.connect())
    first, second = (spelled % uuid7_days_ago(db, 60, n) for n in range(2))
    assert [once.receive(message_id=first) for _ in range(2)] == ["process", "duplicate"]
    assert receive_many(db.connect(), [first, second, "plain"]) == ["duplicate", "process", "process"]
    assert kinds(db) == ["opaque"]


def test_a_consumer_that_wants_birthdays_is_told_that_an_old_message_is_expired(db):
    once = Once(db.connect())
    old, today = uuid7_days_ago(db, 60), uuid7_days_ago(db, 0)
    with refused("P4041"):
        once.receive(message_id=old, birthdays=True)
    assert receive_many(db.connect(), [old, today, "plain"], birthdays=True) == ["P4041", "process", "process"]
    assert once.receive(message_id=today, birthdays=True) == once.receive(message_id="plain", birthdays=True) == "duplicate"
    assert db.value("SELECT bucket > 0 FROM once.intent WHERE key = %s", today)


def test_a_batch_of_new_uuid7s_beside_others_is_entered_in_its_order(db):
    first, other = uuid7_days_ago(db, 0), uuid7_days_ago(db, 3)
    ids = [first, "plain", other, f"pgonce:id:{first}"]
    prints = [bytes([n]) * 16 for n in range(3)] + [bytes(16)]
    assert receive_many(db.connect(), ids, None, prints) == ["process", "process", "process", "duplicate"]
    stored = {row.key: bytes(row.fingerprint) for row in db.rows("SELECT key, fingerprint FROM once.intent")}
    assert stored == {f"pgonce:id:{ids[0]}": prints[0], "plain": prints[1], f"pgonce:id:{ids[2]}": prints[2]}


def kinds(db, consumer="mailer", tenant=""):
    return db.value("SELECT once.consumer_ids(%s, %s)", consumer, tenant)


def test_the_inbox_tells_by_which_ids_it_remembers_uuid7s(db):
    connection = db.connect()
    today = uuid7_days_ago(db, 0)
    receive_many(connection, ["order-7", "sha256:00", "pgonce:unusable:00", "pgonce:idle"])
    park(connection, "order-8")
    assert kinds(db) == []
    receive_many(connection, [f"pgonce:id:{today}"])
    assert kinds(db) == ["opaque"]
    receive_many(connection, [today], consumer="billing", birthdays=True)
    receive_many(connection, [f"pgonce:id:{today}"], consumer="billing", tenant="acme")
    assert (kinds(db, "billing"), kinds(db, "billing", "acme")) == (["uuidv7"], ["opaque"])
    assert kinds(db) == ["opaque"] and kinds(db, "nobody") == []


def test_parked_and_archived_messages_are_remembered_by_their_ids_too(db):
    shorten_horizon(db)
    connection = db.connect()
    park(connection, f"pgonce:id:{uuid7_days_ago(db, 2)}", consumer="one")
    park(connection, uuid7_days_ago(db, 2), consumer="other")
    receive_many(connection, [uuid7_days_ago(db, 2)], birthdays=True)
    retire(db, 2)
    assert db.value("SELECT count(*) FROM once.intent") == 0
    assert (kinds(db, "one"), kinds(db, "other"), kinds(db)) == (["opaque"], ["uuidv7"], ["uuidv7"])


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
