# SPDX-License-Identifier: PostgreSQL
"""Messages of one key are applied in the order in which they came: past failures, restarts and kills; a dead one blocks its key, or does not."""
import json
import random
import subprocess
import time

import pytest

from cli.command import PROGRAM
from harness.mutation import mutate
from harness.postgres import clean_environment, wait_until

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
            db.execute("SELECT once.parked_retry('id-1', 'mended', consumer => 'stock')")
            wait_until(all_applied(db, 6), "the rest")
            assert consumer.stop() == 0
    in_order(db)


def test_a_dead_message_that_is_discarded_frees_its_key_and_stays_discarded(db):
    with Script([message(n, key="k", body={"fails": 100 if n == 1 else 0}) for n in range(4)]) as script:
        with Consumer(script, db.dsn(), config=script.config(handler="stubborn", attempts=2)) as consumer:
            wait_until(dead(db), "a death")
            db.execute("SELECT once.parked_discard('id-1', 'nobody wants it', consumer => 'stock')")
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


# ---- long lines


def line(key, numbers, first_fails=True):
    """The first of them is dead at once, with attempts = 1, until it is mended."""
    return [message(n, key=key, body={"fails": 100 if first_fails and n == numbers[0] else 0}) for n in numbers]


def parked_line(db, script, consumer, count, keys=1):
    wait_until(lambda: len(script.acknowledged()) == script.count, "all to be acknowledged")
    assert db.value("SELECT count(*) FROM once.parked_message") == count and consumer.process.poll() is None
    assert db.value("SELECT count(*) FROM once.parked_message WHERE state = 'dead'") == keys


def mend(db, *ids):
    for each in ids:
        db.execute("INSERT INTO mended VALUES (%s)", each)
        assert db.value("SELECT once.parked_retry(%s, 'mended', consumer => 'stock')", each)


def test_a_long_line_behind_one_message_drains_in_order_and_in_few_transactions(db):
    db.execute("ALTER TABLE applied ADD COLUMN xid xid8 DEFAULT pg_current_xact_id()")
    with Script(line("k", range(3000))) as script:
        with Consumer(script, db.dsn(), config=script.config(handler="stubborn", attempts=1)) as consumer:
            parked_line(db, script, consumer, 3000)
            mend(db, "id-0")
            wait_until(all_applied(db, 3000), "the line")
            assert consumer.stop() == 0
    assert ids(db) == [f"id-{n}" for n in range(3000)]
    assert db.value("SELECT count(DISTINCT xid) FROM applied") < 100
    assert db.value("SELECT count(*) FROM once.parked_message") == 0


@pytest.mark.parametrize("times", [1, 5])
def test_a_line_that_is_killed_while_it_drains_goes_on_where_it_was(db, times):
    with Script(line("k", range(3000))) as script:
        config = script.config(handler="stubborn", attempts=1)
        with Consumer(script, db.dsn(), config=config) as consumer:
            parked_line(db, script, consumer, 3000)
            mend(db, "id-0")
            for kill in range(times):
                done = db.value("SELECT count(*) FROM applied")
                wait_until(lambda done=done: db.value("SELECT count(*) FROM applied") > done, "some of the line")
                consumer.kill()
                consumer = Consumer(script, db.dsn(), config=config)
            with consumer:
                wait_until(all_applied(db, 3000), "the line")
                wait_until(lambda: db.value("SELECT count(*) FROM once.parked_message") == 0, "no message to be parked")
                assert consumer.stop() == 0
    assert ids(db) == [f"id-{n}" for n in range(3000)]


def test_a_line_stops_at_a_message_that_fails_in_its_middle(db):
    messages = line("k", range(1500))
    messages[700] = message(700, key="k", body={"fails": 100})
    with Script(messages) as script:
        with Consumer(script, db.dsn(), config=script.config(handler="stubborn", attempts=1)) as consumer:
            parked_line(db, script, consumer, 1500)
            mend(db, "id-0")
            wait_until(lambda: db.value("SELECT state = 'dead' FROM once.parked_message WHERE message_id = 'id-700'"), "it to die")
            script.add(message(1500, key="k", body={"fails": 0}), message(1501, key="other", body={"fails": 0}))
            wait_until(lambda: ids(db, "other") == ["id-1501"], "another key's message")
            assert ids(db, "k") == [f"id-{n}" for n in range(700)]
            mend(db, "id-700")
            wait_until(all_applied(db, 1502), "the rest")
            assert consumer.stop() == 0
    assert ids(db, "k") == [f"id-{n}" for n in range(1501)]


def test_two_lines_drain_beside_each_other_and_new_messages_get_their_turn(db):
    with Script(line("a", range(4000)) + line("b", range(4000, 8000))) as script:
        with Consumer(script, db.dsn(), config=script.config(handler="stubborn", attempts=1)) as consumer:
            parked_line(db, script, consumer, 8000, keys=2)
            mend(db, "id-0", "id-4000")
            wait_until(lambda: db.value("SELECT count(*) FROM applied") > 0, "the lines to drain")
            script.add(message(8000, key="new", body={"fails": 0}))
            wait_until(all_applied(db, 8001), "all")
            assert consumer.stop() == 0
    assert ids(db, "a") == [f"id-{n}" for n in range(4000)] and ids(db, "b") == [f"id-{n}" for n in range(4000, 8000)]
    place = {row.id: row.n for row in db.rows("SELECT id, row_number() OVER (ORDER BY n) AS n FROM applied")}
    assert place["id-4000"] < place["id-2000"] and place["id-2000"] < place["id-7999"], "one line waited for the other"
    assert place["id-8000"] < max(place["id-3999"], place["id-7999"]), "the new message waited for the lines"


def test_with_once_a_line_is_worked_off_to_its_end(db):
    """Also one that takes longer than an idle consumer stays."""
    db.execute("CREATE FUNCTION slow(m once.message) RETURNS void LANGUAGE sql AS $$"
               " INSERT INTO applied (id, key) SELECT m.id, m.key FROM pg_sleep(0.1) $$")  # fmt: skip
    db.execute("SELECT once_job.message_park('stock', '', ARRAY(SELECT ROW('id-' || n, 'orders', 'k', '{}', 'body'::bytea, sha256(''), 'waiting', 0, 0,"
               " NULL, NULL)::once.parked FROM generate_series(0, 49) AS n))")  # fmt: skip
    with Script() as script:
        with Consumer(script, db.dsn(), "once", config=script.config(handler="slow")) as consumer:
            assert consumer.ends() == 0, consumer.said()
    assert ids(db) == [f"id-{n}" for n in range(50)]


def plain(tenant, kind, id):
    return {"headers": {"Pgonce-Tenant": tenant, "Pgonce-Aggregate-Type": kind, "Pgonce-Key": id}}


def cloudevents(tenant, kind, id):
    """As from Kafka: the record's key is the aggregate's id."""
    return {"key": id, "headers": {"ce_tenant": tenant, "ce_aggregatetype": kind, "ce_subject": id}}


AGGREGATES = [("a", "order", "1/2"), ("b", "order", "1/2"), ("a", "invoice", "1/2"), ("a", "order", "1/2")]


@pytest.mark.parametrize("envelope", [plain, cloudevents])
def test_an_aggregate_is_ordered_as_the_relay_orders_it_by_tenant_type_and_id(db, envelope):
    """One that fails holds up its own aggregate, and none of another tenant or type that has its id."""
    with Script([message(n, body={"fails": 1000000 if n == 0 else 0}, **envelope(*each)) for n, each in enumerate(AGGREGATES)]) as script:
        with Consumer(script, db.dsn(), config=script.config(handler="stubborn", attempts=1000, retry_first="100ms", retry_most="100ms")) as consumer:
            wait_until(lambda: len(script.acknowledged()) == 4, "all to be acknowledged")
            wait_until(lambda: sorted(ids(db)) == ["id-1", "id-2"], "the others to be applied")
            wait_until(lambda: db.value("SELECT count(*) FROM once.parked_message") == 2, "the two of one aggregate to be parked")
            rows = db.rows("SELECT message_id, key, state FROM once.parked_message ORDER BY position")
            assert [tuple(row) for row in rows] == [("id-0", "a/order/1%2F2", "retrying"), ("id-3", "a/order/1%2F2", "waiting")]
            db.execute("INSERT INTO mended VALUES ('id-0')")
            wait_until(all_applied(db, 4), "the rest")
            assert consumer.stop() == 0
    assert ids(db, "1/2")[2:] == ["id-0", "id-3"] and len(ids(db, "1/2")) == 4, "the handler sees the aggregate's id"


def test_a_key_of_others_stays_as_it_is(db):
    """Whatever is in it, and whatever other headers say."""
    keys = ["a/b", "%2F", "x/", "/"]
    with Script([message(n, key=key, body={"fails": 1}, headers={"ce_tenant": "t"}) for n, key in enumerate(keys)]) as script:
        with Consumer(script, db.dsn(), config=script.config(handler="stubborn", retry_first="10ms", retry_most="10ms")) as consumer:
            wait_until(all_applied(db, 4), "all to be applied")
            assert consumer.stop() == 0
    assert {row.key for row in db.rows("SELECT key FROM applied")} == set(keys)


# ---- many decisions


def many_dead(db, count, keys):
    """So many dead messages, which came in turn: of each key, and some of none."""
    db.execute(
        "SELECT once_job.message_park('stock', '', ARRAY(SELECT ROW('id-' || n, 'orders', CASE WHEN n %% %s > 0 THEN 'k' || n %% %s END, '{}', '{}'::bytea,"
        " sha256('{}'), 'dead', 1, 0, 'no such article', '23503')::once.parked FROM generate_series(%s, %s) AS n))",
        keys, keys, 0, count - 1,
    )  # fmt: skip


def decide(db, verb):
    command = [PROGRAM, "parked", verb, "--dsn", db.dsn(), "--consumer", "stock", "--error", "article", "--state", "dead", "--yes", "--reason", "mended", "--json"]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment())


def asked(db):
    return db.value("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query ~ 'parked_(retry|discard)_many' AND pid <> pg_backend_pid()")


@pytest.mark.parametrize("on_dead", ["block", "skip"])
def test_twenty_thousand_are_retried_beside_a_running_consumer_in_the_order_of_each_key_though_the_command_is_killed(db, on_dead):
    many_dead(db, 20_000, 37)
    with Script() as script, Consumer(script, db.dsn(), config=script.config(on_dead=on_dead)) as consumer:
        consumer.wait_said("event=started")
        for _ in range(2):
            done = db.value("SELECT count(*) FROM once.parked_decision")
            command = decide(db, "retry")
            wait_until(lambda done=done: db.value("SELECT count(*) FROM once.parked_decision") > done, "a piece to be decided about")
            command.kill()
            command.communicate()
            # The server finishes the piece that it has begun.
            wait_until(lambda: db.value("SELECT count(*) FROM once.parked_message WHERE state <> 'dead'") == 0 and not asked(db), "the rest to be applied")
            in_order(db)
        left = db.value("SELECT count(*) FROM once.parked_message WHERE state = 'dead'")
        assert 0 < left < 20_000, "it was too fast for what is tried"
        script.add(message(20_001), message(20_002, key="k1" if on_dead == "skip" else None))
        out, err = (command := decide(db, "retry")).communicate(timeout=120)
        assert command.returncode == 0, err
        assert json.loads(out)["items"] == left and json.loads(out)["skipped"] == []
        wait_until(all_applied(db, 20_002), "all", 120)
        assert consumer.stop() == 0
    db.execute("DELETE FROM applied WHERE id = 'id-20002'")  # it was let past the dead ones of its key
    in_order(db)
    assert db.row("SELECT count(DISTINCT id) AS n, count(*) AS m FROM applied") == (20_001, 20_001)
    assert db.row("SELECT count(DISTINCT subject) AS n, count(*) AS m FROM once.parked_decision") == (20_000, 20_000)
    assert db.value("SELECT count(*) FROM once.parked_message") == 0


def test_twenty_thousand_are_discarded_beside_a_running_consumer_and_what_waits_behind_them_goes_on(db):
    many_dead(db, 20_000, 37)
    with Script([message(n, key=f"k{n % 37}" if n % 37 else None) for n in range(20_000, 20_200)]) as script:
        with Consumer(script, db.dsn(), config=script.config()) as consumer:
            wait_until(lambda: len(script.acknowledged()) == 200, "all to be acknowledged")
            assert all((int(id[3:]) % 37) == 0 for id in ids(db))
            out, err = (command := decide(db, "discard")).communicate(timeout=120)
            assert command.returncode == 0 and json.loads(out)["items"] == 20_000, err
            wait_until(all_applied(db, 200), "what waited")
            assert consumer.stop() == 0
    in_order(db)
    assert db.value("SELECT count(*) FROM once.parked_message") == 0
    assert db.value("SELECT count(*) FROM once.intent WHERE scope = 'stock' AND state = 'succeeded'") == 20_200


def test_a_decision_about_many_without_the_order_of_the_keys_is_noticed(db):
    mutate(db, "_look_at_messages", "OVER (ORDER BY q.key_hash, q.position)", "OVER (ORDER BY q.position DESC)")
    with pytest.raises(AssertionError, match="after id-"):
        test_twenty_thousand_are_retried_beside_a_running_consumer_in_the_order_of_each_key_though_the_command_is_killed(db, "skip")
