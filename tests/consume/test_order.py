# SPDX-License-Identifier: PostgreSQL
"""Messages of one key are applied in the order in which they came: past failures, restarts and kills; a dead one blocks its key, or does not."""
import random
import time

import pytest

from harness.postgres import wait_until

from .script import HANDLER, Consumer, Script, consume, message

# Fails as often as the message says.
STUBBORN = HANDLER + """
CREATE TABLE mended (id text);
CREATE FUNCTION stubborn(m once.message) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO applied (id, key) VALUES (m.id, m.key);
    IF coalesce((SELECT attempts FROM once.parked_message WHERE message_id = m.id), 0) < (m.body->>'fails')::integer
       AND m.id NOT IN (SELECT id FROM mended) THEN
        RAISE 'not yet';
    END IF;
END $$;
"""


@pytest.fixture
def db(db):
    db.execute(STUBBORN)
    return db


def in_order(db):
    last = {}
    for row in db.rows("SELECT id, key FROM applied ORDER BY n"):
        number = int(row.id[3:])
        assert row.key is None or last.get(row.key, -1) < number, f"{row.id} of {row.key} after id-{last[row.key]}"
        last[row.key] = number


def ids(db, key=None):
    return [row.id for row in db.rows("SELECT id FROM applied WHERE key = %s OR %s IS NULL ORDER BY n", key, key)]


def all_applied(db, count):
    return lambda: db.value("SELECT count(*) FROM applied") == count


def test_later_messages_of_a_key_wait_and_all_others_go_on(db):
    with Script([message(n, key=f"k{n % 4}", body={"fails": 3 if n == 5 else 0}) for n in range(40)]) as script:
        with Consumer(script, db.dsn(), config=script.config(handler="stubborn", retry_first="300ms", retry_most="300ms")) as consumer:
            wait_until(lambda: len(script.acknowledged()) == 40, "all to be acknowledged")
            assert ids(db, "k1") == ["id-1"] and len(ids(db)) == 31
            assert [tuple(row) for row in db.rows("SELECT message_id, state FROM once.parked_message ORDER BY position LIMIT 2")] == [
                ("id-5", "retrying"), ("id-9", "waiting")]
            script.add(message(40, key="k1", body={"fails": 0}), message(41, body={"fails": 0}))  # they come later
            wait_until(all_applied(db, 42), "the rest")
            assert consumer.stop() == 0
    in_order(db)
    assert db.value("SELECT count(*) FROM once.parked_message") == 0


def test_two_failures_of_one_key_in_one_batch_keep_their_order(db):
    with Script([message(n, key="k", body={"fails": n % 3}) for n in range(6)]) as script:
        consume(script, db.dsn(), handler="stubborn", until=all_applied(db, 6))
    in_order(db)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_order_holds_at_random_with_failures_and_kills(db, seed):
    rng = random.Random(seed)
    with Script([message(n, key=rng.choice(["a", "b", "c", "d", None]), body={"fails": rng.choice([0, 0, 0, 0, 1, 2])}) for n in range(150)]) as script:
        kills = 0
        while db.value("SELECT count(*) FROM applied") < 150 and kills < 60:
            with Consumer(script, db.dsn(), config=script.config(handler="stubborn", batch=rng.choice([3, 20, 60]), attempts=50)) as consumer:
                consumer.wait_said("event=started")
                time.sleep(rng.random() * 0.15)  # a kill at some point: any will do
                consumer.kill()
                kills += 1
        consume(script, db.dsn(), handler="stubborn", until=all_applied(db, 150))
    in_order(db)
    assert db.row("SELECT count(*) AS n, count(DISTINCT id) AS ids FROM applied") == (150, 150)
    assert db.value("SELECT count(*) FROM once.parked_message") == 0


def dead(db):
    return lambda: db.value("SELECT count(*) FROM once.parked_message WHERE state = 'dead'") == 1


def test_a_dead_message_blocks_its_key_until_it_is_retried_or_discarded(db):
    with Script([message(n, key="k" if n != 4 else "other", body={"fails": 3 if n == 1 else 0}) for n in range(6)]) as script:
        with Consumer(script, db.dsn(), config=script.config(handler="stubborn", attempts=2)) as consumer:
            wait_until(dead(db), "a death")
            wait_until(lambda: len(script.acknowledged()) == 6, "all")
            assert ids(db) == ["id-0", "id-4"]
            db.execute("INSERT INTO mended VALUES ('id-1')")
            db.execute("SELECT once.dead_retry('stock', 'id-1', '', 'mended')")
            wait_until(all_applied(db, 6), "the rest")
            assert consumer.stop() == 0
    in_order(db)


def test_a_dead_message_that_is_discarded_frees_its_key_and_stays_discarded(db):
    with Script([message(n, key="k", body={"fails": 100 if n == 1 else 0}) for n in range(4)]) as script:
        with Consumer(script, db.dsn(), config=script.config(handler="stubborn", attempts=2)) as consumer:
            wait_until(dead(db), "a death")
            db.execute("SELECT once.dead_discard('stock', 'id-1', '', 'nobody wants it')")
            wait_until(all_applied(db, 3), "the rest")
            assert consumer.stop() == 0
        script.acks.unlink()
        consume(script, db.dsn(), handler="stubborn")
    assert ids(db) == ["id-0", "id-2", "id-3"]


def test_with_skip_a_dead_message_holds_up_nobody(db):
    with Script([message(n, key="k", body={"fails": 100 if n == 1 else 0}) for n in range(4)]) as script:
        consume(script, db.dsn(), handler="stubborn", attempts=2, on_dead="skip", until=lambda: dead(db)() and all_applied(db, 3)())
        script.add(message(4, key="k", body={"fails": 0}), message(5, key="k", id=None, body={"fails": 0}))
        consume(script, db.dsn(), handler="stubborn", attempts=2, on_dead="skip", until=all_applied(db, 4))
    in_order(db)


def test_what_follows_a_message_without_an_id_waits_behind_it_and_what_precedes_does_not(db):
    with Script([message(0, key="k", body={"fails": 0}), message(1, key="k", id=None), message(2, key="k", body={"fails": 0}),
                 message(3, key="other", body={"fails": 0})]) as script:
        consume(script, db.dsn(), handler="stubborn")
    assert ids(db) == ["id-0", "id-3"]
    assert [row.state for row in db.rows("SELECT state FROM once.parked_message ORDER BY position")] == ["dead", "waiting"]


def test_a_long_line_behind_one_message_drains_in_order(db):
    with Script([message(0, key="k", body={"fails": 2})] + [message(n, key="k", body={"fails": 0}) for n in range(1, 1500)]) as script:
        with Consumer(script, db.dsn(), config=script.config(handler="stubborn", retry_first="1s", retry_most="1s")) as consumer:
            wait_until(lambda: len(script.acknowledged()) == 1500, "all to be acknowledged")
            wait_until(all_applied(db, 1500), "the line")
            assert consumer.stop() == 0
    in_order(db)
