# SPDX-License-Identifier: PostgreSQL
"""A message's effect is applied exactly once, whatever dies, and the handler is what the configuration says and may do only what its role may."""
import json
import random
import re
import subprocess
import time

import pytest

from harness.pgbouncer import PgBouncer
from harness.postgres import PATIENCE_S, ROOT, Postgres, wait_until
from harness.proxy import Proxy

from .script import HANDLER, PROGRAM, Consumer, Script, consume, message


@pytest.fixture
def applied(db):
    """A database with the handler `apply`, which keeps what it was called with."""
    db.execute(HANDLER)
    return db


def ids(db):
    return [row.id for row in db.rows("SELECT id FROM applied ORDER BY n")]


def each_once(db, count):
    assert db.row("SELECT count(*) AS n, count(DISTINCT id) AS ids FROM applied") == (count, count)


def test_a_handler_gets_the_message_whole(applied):
    body = {"order": {"id": 17}, "price": 1.50, "text": "a'\\ \u20ac"}
    with Script([message(1, key="k-1", payload=json.dumps(body), topic="shop.orders", headers={"Trace": "a\"b", "Empty": ""})]) as script:
        log = consume(script, applied.dsn())
    row = applied.row("SELECT id, topic, key, headers, payload, body FROM applied")
    assert row == ("id-1", "shop.orders", "k-1", {"Trace": 'a"b', "Empty": "", "Pgonce-Event-Id": "id-1"}, json.dumps(body).encode(), body)
    assert "order" not in re.sub(r"event=\S+", "", log)  # never a payload in the log


def test_what_comes_twice_is_applied_once(applied):
    """Within a batch, across batches, after a restart, and where a rebalance took the messages before they were acknowledged."""
    messages = [message(n, key=f"k{n % 3}") for n in range(30)]
    with Script(messages + messages[3:9] + [{"control": "void"}] + messages + [message(30)]) as script:
        consume(script, applied.dsn(), batch=20)
        each_once(applied, 31)
        script.add(*messages)
        consume(script, applied.dsn())
        each_once(applied, 31)
    with Script(messages) as another:
        consume(another, applied.dsn())
    each_once(applied, 31)


def test_a_message_that_another_transaction_is_applying_is_put_aside_for_a_while_and_the_others_go_on(applied):
    busy = applied.connect(isolation="READ COMMITTED")
    busy.cursor().execute("SELECT once.receive('stock', 'id-0', sha256('{}'))")
    with Script([message(n) for n in range(3)]) as script, Consumer(script, applied.dsn(), config=script.config()) as consumer:
        wait_until(lambda: ids(applied) == ["id-1", "id-2"], "the others to be applied")
        wait_until(lambda: applied.rows("SELECT message_id, state, attempts FROM once.parked_message") == [("id-0", "waiting", 0)], "it to be put aside")
        busy.rollback()
        wait_until(lambda: ids(applied) == ["id-1", "id-2", "id-0"], "it to be applied")
        assert 'sqlstate=P4029 failures=1 problem="another process is applying the message id-0"' in consumer.said()
        assert consumer.stop() == 0


def test_while_the_tenants_slot_is_closed_nothing_is_applied_parked_or_counted(applied):
    """A node that shares the tenants with others: the slot moves away and comes back."""
    applied.execute("CALL once.divide(true)")
    applied.execute("SELECT once_job.close_slot(once.slot_of(''))")
    with Script([message(n) for n in range(3)]) as script, Consumer(script, applied.dsn(), config=script.config()) as consumer:
        wait_until(lambda: "sqlstate=P4097" in consumer.said(), "it to be refused")
        assert not ids(applied) and not applied.rows("SELECT FROM once.parked_message")
        applied.execute("SELECT once_job.open_slot(once.slot_of(''), 2)")
        wait_until(lambda: sorted(ids(applied)) == ["id-0", "id-1", "id-2"], "all to be applied")
        assert not applied.rows("SELECT FROM once.parked_message") and "event=dead" not in consumer.said()
        assert consumer.stop() == 0


def test_messages_are_handled_in_order(applied):
    with Script([message(n) for n in range(2000)]) as script:
        consume(script, applied.dsn(), batch=500)
    assert ids(applied) == [f"id-{n}" for n in range(2000)]


def test_kill_9_at_any_point_loses_and_repeats_nothing(applied):
    rng = random.Random(4)
    with Script([message(n, key=f"k{n % 10}") for n in range(6000)]) as script:
        kills = 0
        while (before := len(script.acknowledged())) < script.count and kills < 200:  # before it starts: the rest may be done by when it is looked at
            with Consumer(script, applied.dsn(), config=script.config(batch=rng.choice([1, 7, 50]))) as consumer:
                consumer.wait_said("event=started")
                wait_until(lambda: len(script.acknowledged()) > before or consumer.process.poll() is not None, "some progress")
                time.sleep(rng.random() * 0.05)  # a kill at some point: any will do
                consumer.kill()
                kills += 1
        assert kills > 5
        # One that was killed may have left a message locked for a moment: the next parks it then.
        consume(script, applied.dsn(), until=lambda: applied.value("SELECT count(*) FROM once.parked_message") == 0)
        each_once(applied, 6000)


def test_postgresql_killed_under_it_loses_and_repeats_nothing():
    with Postgres(fsync=True) as server:
        db = server.new_database()
        db.execute(HANDLER)
        with Script([message(n) for n in range(3000)]) as script, Consumer(script, db.dsn(), config=script.config(batch=20)) as consumer:
            for done in (200, 900, 1700):
                wait_until(lambda done=done: len(script.acknowledged()) >= done, "progress")
                db.close()
                server.kill()
                server.start()
            wait_until(lambda: len(script.acknowledged()) == 3000, "the rest")
            assert consumer.stop() == 0, consumer.said()
            each_once(db, 3000)


# What is sent for a batch, by name of the statement, in its order.
STEPS = ["BEGIN", "receive", "handle", "COMMIT"]


@pytest.mark.parametrize("loss", ["lose_request", "lose_connection_after", "lose_answer"])
@pytest.mark.parametrize("step", STEPS)
def test_a_connection_lost_at_any_step_ends_in_one_effect(server, applied, loss, step):
    with Proxy(server) as proxy, Script([message(0)]) as script:
        with Consumer(script, proxy.dsn(applied.name), config=script.config()) as consumer:
            wait_until(lambda: script.acknowledged() == [0], "the first")  # all is prepared
            rule = getattr(proxy, loss)(step)
            script.add(*[message(n) for n in range(1, 40)])
            wait_until(lambda: len(script.acknowledged()) == 40, "all")
            assert rule.fired.wait(PATIENCE_S)
            assert consumer.stop() == 0
            log = consumer.said()
    each_once(applied, 40)
    lost_commit_was_heard_of = re.search(r"messages=39 applied=0 duplicates=39", log)
    assert bool(lost_commit_was_heard_of) == (step == "COMMIT" and loss == "lose_answer") or (step, loss) == ("COMMIT", "lose_connection_after")


def test_two_processes_with_the_same_messages_at_once_apply_each_once(applied):
    """Both get all of them, as after a rebalance that one has not yet heard of."""
    applied.execute("CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.0005); RETURN NULL; END $$;"
                    "CREATE TRIGGER slow AFTER INSERT ON applied FOR EACH ROW EXECUTE FUNCTION slow()")
    messages = [message(n, key=f"k{n % 20}") for n in range(1500)]
    with Script(messages) as one, Script(messages) as two:
        with Consumer(one, applied.dsn(), config=one.config(batch=30)) as first, Consumer(two, applied.dsn(), config=two.config(batch=50)) as second:
            wait_until(lambda: len(one.acknowledged()) == len(two.acknowledged()) == 1500, "both")
            wait_until(lambda: applied.value("SELECT count(*) FROM once.parked_message") == 0, "nothing to be parked")
            assert first.stop() == 0 and second.stop() == 0
    each_once(applied, 1500)
    for key in range(20):
        numbers = [int(row.id[3:]) for row in applied.rows("SELECT id FROM applied WHERE key = %s ORDER BY n", f"k{key}")]
        assert numbers == sorted(numbers)


def test_where_the_broker_does_not_keep_keys_together_one_process_works_and_another_stands_by(applied):
    with Script([message(0)]) as script:
        config = script.config(source="queue")
        with Consumer(script, applied.dsn(), config=config) as first:
            first.wait_said("event=started")
            with Consumer(script, applied.dsn(), config=config) as second:
                second.wait_said("event=standby")
                wait_until(lambda: script.acknowledged() == [0], "the first message")
                first.kill()
                script.add(message(1))
                second.wait_said("event=started")
                wait_until(lambda: script.acknowledged() == [0, 1], "the second message")
                assert second.stop() == 0
    each_once(applied, 2)


def test_a_standby_takes_over_when_the_first_loses_its_connection_and_nothing_is_repeated(server, applied):
    with Proxy(server) as proxy, Script([message(0)]) as script:
        config = script.config(source="queue")
        with Consumer(script, proxy.dsn(applied.name), config=config) as first:
            wait_until(lambda: script.acknowledged() == [0], "the first message")
            with Consumer(script, applied.dsn(), config=config) as second:
                second.wait_said("event=standby")
                proxy.freeze()
                applied.rows("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1")
                second.wait_said("event=started")
                script.add(*[message(n) for n in range(1, 20)])
                wait_until(lambda: len(script.acknowledged()) == 20, "all")
                proxy.thaw()
                first.wait_said("event=standby")
    each_once(applied, 20)


def test_without_an_order_several_processes_share_the_work(applied):
    with Script([message(0)]) as script:
        config = script.config(source="queue", order_by="none")
        with Consumer(script, applied.dsn(), config=config) as first, Consumer(script, applied.dsn(), config=config) as second:
            first.wait_said("event=started")
            second.wait_said("event=started")


def test_behind_a_pooler_in_transaction_mode_nothing_is_prepared(server, applied):
    with PgBouncer(server, server_connections=2) as pooler, Script([message(n) for n in range(300)]) as script:
        consume(script, applied.dsn().replace(str(server.directory), str(pooler.directory)), batch=20, prepare="no", order_by="none")
    each_once(applied, 300)
    with Script() as script:
        done = subprocess.run([PROGRAM, script.config(source="queue", prepare="no"), "stock", applied.dsn()], capture_output=True, text=True)
        assert done.returncode == 2 and "prepare: with queue the order of a key is kept by one process" in done.stderr


def test_the_order_of_a_key_is_not_kept_through_a_pooler_and_no_lock_is_left_there(server, applied):
    with PgBouncer(server, server_connections=2) as pooler, Script([message(n, key="k") for n in range(3)]) as script:
        through = applied.dsn().replace(str(server.directory), str(pooler.directory))
        done = subprocess.run([PROGRAM, script.config(source="queue"), "stock", through], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and "pooler" in done.stderr and "order_by" in done.stderr, done.stderr
        assert applied.value("SELECT count(*) FROM applied") == 0
        assert applied.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


def test_it_works_in_a_database_whose_default_is_serializable(applied):
    applied.execute(f"ALTER DATABASE {applied.name} SET default_transaction_isolation = 'serializable'")
    with Script([message(n, key="k") for n in range(100)] + [message(5)]) as script:
        consume(script, applied.dsn(), batch=30)
    each_once(applied, 100)


# ---- the handler and its role


def test_the_handler_runs_as_the_consumers_own_role(server, applied):
    applied.execute(f"""
        DROP ROLE IF EXISTS stock_app; CREATE ROLE stock_app LOGIN; GRANT once_consumer TO stock_app;
        GRANT INSERT ON applied TO stock_app; GRANT USAGE ON SEQUENCE applied_n_seq TO stock_app""")
    try:
        with Script([message(1, headers={"do": "x"}), message(2, body={"do": "fail"})]) as script:
            consume(script, applied.dsn(user="stock_app"), attempts=2,
                    until=lambda: applied.value("SELECT count(*) FROM once.parked_message WHERE state = 'dead'") == 1)
        assert applied.row("SELECT id, by_whom FROM applied") == ("id-1", "stock_app")
        applied.execute("""CREATE FUNCTION steal(m once.message) RETURNS bigint LANGUAGE sql AS $$ SELECT count(*) FROM once.intent $$""")
        with Script([message(3)]) as script:
            consume(script, applied.dsn(user="stock_app"), handler="steal", attempts=1)
        assert applied.value("SELECT sqlstate FROM once.parked_message WHERE message_id = 'id-3'") == "42501"
    finally:
        applied.execute("DROP OWNED BY stock_app; DROP ROLE stock_app")


HANDLERS = """
CREATE SCHEMA "Shop ""x"; CREATE TABLE seen (id text);
CREATE FUNCTION "Shop ""x"."Apply order"(m once.message) RETURNS void LANGUAGE sql AS 'INSERT INTO seen VALUES (m.id)';
CREATE SCHEMA hidden; CREATE FUNCTION hidden.found(m once.message) RETURNS seen LANGUAGE sql AS 'INSERT INTO seen VALUES (m.id) RETURNING seen';
CREATE PROCEDURE commits(m once.message) LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$;
CREATE FUNCTION other(m text) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION many(m once.message) RETURNS SETOF integer LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION forbidden(m once.message) RETURNS void LANGUAGE sql AS ''; REVOKE EXECUTE ON FUNCTION forbidden FROM PUBLIC;
CREATE FUNCTION sneaky(m once.message) RETURNS void LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$;
"""


@pytest.mark.parametrize("handler, path", [('"Shop ""x"."Apply order"', None), ("hidden.found", None), ("found", "hidden, public"), ("FOUND", "hidden,public")])
def test_a_handler_is_found_by_schema_by_search_path_and_quoted(db, handler, path):
    db.execute(HANDLERS)
    if path:
        db.execute(f"ALTER DATABASE {db.name} SET search_path = {path}")
    with Script([message(1)]) as script:
        consume(script, db.dsn(), handler=handler)
    assert db.rows("SELECT id FROM public.seen") == [("id-1",)]


@pytest.mark.parametrize("handler, words", [
    ("nosuch", "there is no function nosuch(once.message)"),
    ("nosuch.apply", "there is no function nosuch.apply(once.message)"),
    ("other", "only other(text): a handler takes one argument, of type once.message"),
    ("commits", "is a procedure"),
    ("many", "returns a set"),
    ("a b c", "cannot be looked up|there is no function a b c"),  # before PostgreSQL 16, and since
    ("other(once.message); DROP TABLE seen; --", "o"),
    ("forbidden", "may not execute forbidden: GRANT EXECUTE"),
])
def test_a_handler_that_is_none_is_refused_at_the_start(db, handler, words):
    db.execute(HANDLERS + "CREATE ROLE stock_user LOGIN; GRANT once_consumer TO stock_user")
    try:
        with Script([message(1)]) as script:
            done = subprocess.run([PROGRAM, script.config(handler=handler), "stock", db.dsn(user="stock_user")], capture_output=True, text=True, timeout=30)
            assert done.returncode == 1 and any(each in done.stderr for each in words.split("|")), done.stderr
            assert script.acknowledged() == []
        assert db.value("SELECT count(*) FROM seen") == 0
    finally:
        db.execute("DROP OWNED BY stock_user; DROP ROLE stock_user")


def test_a_role_that_may_not_receive_is_told_so_at_the_start(db):
    db.execute(HANDLER + "CREATE ROLE not_a_consumer LOGIN")
    try:
        with Script([message(1)]) as script:
            done = subprocess.run([PROGRAM, script.config(), "stock", db.dsn(user="not_a_consumer")], capture_output=True, text=True, timeout=30)
            assert done.returncode in (1, 3) and "permission denied" in done.stderr, done.stderr
    finally:
        db.execute("DROP ROLE not_a_consumer")


def test_a_function_that_commits_is_that_messages_failure(db):
    db.execute(HANDLERS)
    with Script([message(1)]) as script:
        consume(script, db.dsn(), handler="sneaky", attempts=1)
    assert db.row("SELECT state, sqlstate FROM once.parked_message") == ("dead", "2D000")


def test_a_database_without_the_contract_is_named(server):
    empty = server.empty_database()
    with Script([message(1)]) as script:
        done = subprocess.run([PROGRAM, script.config(), "stock", empty.dsn()], capture_output=True, text=True, timeout=30)
    assert done.returncode == 3 and "pgonce init" in done.stderr, done.stderr
    empty.drop()


# ---- failures that are nobody's fault


FLAKY = """
CREATE SEQUENCE tries;
CREATE FUNCTION flaky(m once.message) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO applied (id, key) VALUES (m.id, m.key);
    IF m.id = 'id-3' AND nextval('tries') <= 3 THEN
        RAISE EXCEPTION USING ERRCODE = '%s', MESSAGE = 'a race';
    END IF;
END $$"""


@pytest.mark.parametrize("code", ["40001", "40P01", "55P03", "53100", "58030", "XX000", "25006", "57P03", "08006"])
def test_a_failure_that_is_nobodys_fault_counts_for_nothing(applied, code):
    applied.execute(FLAKY % code)
    with Script([message(n) for n in range(6)]) as script:
        log = consume(script, applied.dsn(), handler="flaky", attempts=1)
    assert ids(applied) == [f"id-{n}" for n in range(6)]
    assert applied.value("SELECT count(*) FROM once.parked_message") == 0
    assert f"sqlstate={code}" in log


def test_the_source_is_kept_alive_while_a_handler_works_and_while_postgresql_is_away(server, applied):
    applied.execute("CREATE FUNCTION slow(m once.message) RETURNS void LANGUAGE plpgsql AS"
                    " $$ BEGIN PERFORM pg_sleep(3.5); INSERT INTO applied (id) VALUES (m.id); END $$")
    with Proxy(server) as proxy, Script([message(1)]) as script:
        alive = script.directory / "alive"
        with Consumer(script, proxy.dsn(applied.name), config=script.config(handler="slow", alive=alive)) as consumer:
            wait_until(lambda: script.acknowledged() == [0], "the message")
            assert len(alive.read_text()) >= 3
            proxy.close()
            script.add(message(2))
            consumer.wait_said("failures=4")
            before = len(alive.read_text())
            wait_until(lambda: len(alive.read_text()) >= before + 5, "signs of life")
            assert consumer.stop() == 0  # what it could not apply is given back
            assert script.acknowledged() == [0]


def test_postgresql_that_is_away_at_the_start_is_waited_for():
    server = Postgres()
    server.start()
    db = server.new_database()
    db.execute(HANDLER)
    dsn = db.dsn()
    db.close()
    server.stop()
    with Script([message(1)]) as script, Consumer(script, dsn, config=script.config()) as consumer:
        consumer.wait_said("event=database")
        server.start()
        wait_until(lambda: script.acknowledged() == [0], "the message")
        assert consumer.stop() == 0
    server.destroy()


def test_a_stop_finishes_the_batch_at_work(applied):
    applied.execute("CREATE FUNCTION slow(m once.message) RETURNS void LANGUAGE plpgsql AS"
                    " $$ BEGIN PERFORM pg_sleep(0.1); INSERT INTO applied (id) VALUES (m.id); END $$")
    with Script([message(n) for n in range(20)]) as script, Consumer(script, applied.dsn(), config=script.config(handler="slow", batch=10)) as consumer:
        wait_until(lambda: applied.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'") == 1,
                   "the handler to be at work")
        assert consumer.stop() == 0
        assert len(script.acknowledged()) == 10
    each_once(applied, 10)


def test_once_ends_when_the_source_is_idle(applied):
    with Script([message(1)]) as script, Consumer(script, applied.dsn(), "once", config=script.config()) as consumer:
        assert consumer.ends() == 0
        assert script.acknowledged() == [0]


def test_another_problem_of_a_broker_that_is_away_is_said_too(applied):
    gone = {"control": "away", "problem": "it has no queue orders"}
    with Script([{"control": "away"}, gone, gone, {"control": "away"}, message(1)]) as script:
        log = consume(script, applied.dsn())
    assert log.count("event=source_away") == 3 and log.count("no queue orders") == 1 and log.count("event=source_back") == 1


def test_a_broker_that_is_away_is_said_once_and_waited_for(applied):
    with Script([{"control": "away"}, {"control": "away"}, message(1), {"control": "lost"}, message(2)]) as script:
        log = consume(script, applied.dsn())
    assert log.count("event=source_away") == 1 and "event=source_back" in log and "event=source_lost" in log
    each_once(applied, 2)


# ---- the statements


@pytest.mark.parametrize("path", sorted((ROOT / "consume/sql").glob("*.sql")), ids=lambda path: path.stem)
def test_each_statement_is_valid(applied, path):
    text = path.read_text().replace("pgonce_handler", "public.apply")
    if re.search(r"^(BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE)", text, re.M):
        applied.execute("BEGIN; SAVEPOINT part; SAVEPOINT part")
        applied.execute(text)
        applied.execute("ROLLBACK")
    else:
        applied.execute(f"PREPARE s AS {text}; DEALLOCATE s")
