# SPDX-License-Identifier: PostgreSQL
"""Behind a real PgBouncer in transaction mode, where 40 clients share 4 server connections, everything works as
without."""

import threading

import psycopg2
import pytest

from harness.pgbouncer import PROGRAM, PgBouncer

from .calls import Once, effects, in_threads, make_effect, refused, run

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed")
CLIENTS = 40


@pytest.fixture
def pooled(server, db):
    """Opens connections to the database through the pooler."""
    opened = []
    with PgBouncer(server, server_connections=4) as bouncer:

        def connect(autocommit=True):
            opened.append(bouncer.connect(db.name, autocommit=autocommit))
            return opened[-1]

        yield connect
        for connection in opened:
            connection.close()


def test_40_clients_have_one_effect_and_one_answer(db, pooled):
    connections = [pooled(autocommit=False) for _ in range(CLIENTS)]
    together = threading.Barrier(CLIENTS)

    def attempt(n):
        once = Once(connections[n])
        together.wait()
        while True:
            try:
                started = once.start(key="k")
                if started.verdict == "proceed":
                    make_effect(connections[n], "k", n)
                    once.finish(key="k", response_body=b"%d" % n)
                connections[n].commit()
                return started.response_body or b"%d" % n
            except psycopg2.Error as error:
                connections[n].rollback()
                assert error.pgcode == "P4029"

    answers = in_threads([lambda n=n: attempt(n) for n in range(CLIENTS)])
    assert len(set(answers)) == 1 == effects(db, "k")
    assert (
        len({row.pid for row in db.rows("SELECT pid FROM pg_stat_activity WHERE datname = %s", db.name)}) <= 5
    )  # 4 and this one


def test_an_intent_is_free_again_when_its_transaction_ends_whichever_client_comes_next(pooled):
    first, second = pooled(autocommit=False), pooled(autocommit=False)
    Once(first).start(key="k")
    with refused("P4029"):
        Once(second).start(key="k")
    second.rollback()
    first.rollback()
    for connection in (second, first):
        assert Once(connection).start(key="k").verdict == "proceed"
        connection.rollback()


def test_a_lease_is_held_across_transactions_on_any_server_connection(pooled):
    clients = [pooled() for _ in range(CLIENTS)]
    assert Once(clients[0]).claim(key="k").verdict == "new_claim"
    assert {Once(client).claim(key="k").verdict for client in clients} == {"processing_active"}
    assert Once(clients[1]).renew(key="k", fence=1) is True
    assert Once(clients[2]).complete(key="k", fence=1, response_body=b"a") is True
    assert {Once(client).claim(key="k").response_body for client in clients} == {b"a"}


def test_batches_work_and_leave_no_setting_behind(pooled):
    client = pooled()
    keys = [f"k{n}" for n in range(64)]
    assert {row.verdict for row in Once(client).claim_many(key=keys)} == {"new_claim"}
    assert {row.verdict for row in Once(client).complete_many(key=keys, fence=[1] * 64)} == {"stored"}
    Once(client).start(key="k0")
    run(client, "SELECT once.lock('r', '1 s')")
    settings = run(
        client,
        "SELECT current_setting('plan_cache_mode') AS a, current_setting('enable_seqscan') AS b,"
        " current_setting('lock_timeout') AS c, current_setting('search_path') AS d",
    )[0]
    assert settings == ("auto", "on", "0", '"$user", public')


def test_a_lock_ends_with_its_transaction_and_not_with_its_client(pooled):
    first, second = pooled(autocommit=False), pooled(autocommit=False)
    assert run(first, "SELECT once.try_lock('r')") == [(True,)]
    assert run(second, "SELECT once.try_lock('r')") == [(False,)]
    second.rollback()
    first.commit()
    assert run(second, "SELECT once.try_lock('r')") == [(True,)]
    second.commit()


def test_a_message_and_its_event_are_one_transaction(db, pooled):
    client = pooled(autocommit=False)
    assert Once(client).receive(message_id="m") == "process"
    Once(client).emit(topic="t", payload="{}", scope="mailer", key="m")
    client.rollback()
    assert Once(client).receive(message_id="m") == "process"
    Once(client).emit(topic="t", payload="{}", scope="mailer", key="m")
    client.commit()
    assert Once(client).receive(message_id="m") == "duplicate"
    assert db.value("SELECT count(*) FROM once.outbox") == 1
