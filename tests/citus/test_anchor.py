# SPDX-License-Identifier: PostgreSQL
"""An effect on another node of Citus, whose memory is here: they commit together on an anchored node, and only there."""

import uuid

import psycopg2
import pytest
from contract.calls import PRINT, Once, refused, run, upgrade_script
from harness.postgres import PORT

TRIES = 6


@pytest.fixture
def worker(cluster):
    """A worker with a contract, and tables for effects and for a conflict."""
    coordinator, worker, _ = cluster
    coordinator.execute("CREATE TABLE public.effects (tenant text, key text)")
    coordinator.execute("SELECT create_distributed_table('public.effects', 'tenant')")
    worker.install()
    run(worker.connect(), "SET citus.enable_ddl_propagation = off; CREATE TABLE public.conflict (id integer PRIMARY KEY, v integer)")
    worker.execute("INSERT INTO public.conflict VALUES (1, 0), (2, 0)")
    return worker


def anchor(cluster):
    cluster[0].install()
    assert cluster[0].value("SELECT once.anchor()") is None, "a coordinator without shards"
    return cluster[1].value("SELECT once.anchor()")


def elsewhere(worker, count):
    """Tenants whose rows are on the other worker."""
    names = [f"tenant-{uuid.uuid4().hex[:8]}" for _ in range(20 * count)]
    return [row.name for row in worker.rows(
        "SELECT t.name FROM unnest(%s::text[]) AS t (name), LATERAL get_shard_id_for_distribution_column('public.effects', t.name) AS s (shard)"
        " JOIN pg_dist_placement AS p ON p.shardid = s.shard WHERE p.groupid <> (SELECT groupid FROM pg_dist_local_group) LIMIT %s", names, count)]  # fmt: skip


def fail_at_commit(worker, tenant, writes):
    """A transaction with an effect elsewhere, whose COMMIT fails here: write skew under SERIALIZABLE. Returns (effects, memories)."""
    one, other = (worker.connect(isolation="SERIALIZABLE") for _ in range(2))
    run(one, "SELECT v FROM public.conflict WHERE id = 1")
    run(other, "SELECT v FROM public.conflict WHERE id = 2")
    writes(Once(one, tenant=tenant), one, tenant)
    run(one, "UPDATE public.conflict SET v = 1 WHERE id = 2")
    run(other, "UPDATE public.conflict SET v = 1 WHERE id = 1")
    other.commit()
    with pytest.raises(psycopg2.Error) as caught:
        one.commit()
    assert caught.value.pgcode == "40001"
    one.close()
    other.close()
    return worker.value("SELECT count(*) FROM public.effects WHERE tenant = %s", tenant), sum(
        worker.value(f"SELECT count(*) FROM once.{table} WHERE tenant = %s", tenant) for table in ("intent", "outbox", "delayed_event")
    )


def effect(connection, tenant):
    run(connection, "INSERT INTO public.effects VALUES (%s, 'k')", tenant)


def finish(once, connection, tenant):
    once.start(key="k")
    effect(connection, tenant)
    once.finish(key="k")


WRITES = {
    "finish": finish,
    "finish_new": lambda once, connection, tenant: (effect(connection, tenant), once.finish_new(key="k")),
    "receive": lambda once, connection, tenant: (once.receive(message_id="k"), effect(connection, tenant)),
    "receive_many": lambda once, connection, tenant: (
        run(connection, "SELECT * FROM once.receive_many('c', ARRAY['k', 'l'], NULL, ARRAY[%s, %s], %s)", PRINT, PRINT, tenant), effect(connection, tenant)),
    "emit": lambda once, connection, tenant: (effect(connection, tenant), once.emit(topic="t", payload="{}")),
    "emit_later": lambda once, connection, tenant: (
        effect(connection, tenant), run(connection, "SELECT once.emit_later(now() + interval '1 day', 't', '{}', tenant => %s)", tenant)),
    "complete_many": lambda once, connection, tenant: (
        once.claim_many(key=["k", "l"]), effect(connection, tenant), once.complete_many(key=["k", "l"], fence=[1, 1])),
    "complete": lambda once, connection, tenant: (once.claim(key="k"), effect(connection, tenant), once.complete(key="k", fence=1)),
}  # fmt: skip


def test_without_the_anchor_an_effect_elsewhere_stays_without_its_memory(worker):
    """The fault that the anchor is for."""
    assert (1, 0) in [fail_at_commit(worker, tenant, finish) for tenant in elsewhere(worker, TRIES)]


@pytest.mark.parametrize("writes", WRITES)
def test_on_an_anchored_node_memory_and_effect_commit_together(cluster, worker, writes):
    assert anchor(cluster) > 0
    tenants = elsewhere(worker, TRIES)
    assert [fail_at_commit(worker, tenant, WRITES[writes]) for tenant in tenants] == [(0, 0)] * TRIES
    connection = worker.connect(isolation="READ COMMITTED")
    (tenant,) = elsewhere(worker, 1)
    WRITES[writes](Once(connection, tenant=tenant), connection, tenant)
    connection.commit()
    assert worker.value("SELECT count(*) FROM public.effects WHERE tenant = %s", tenant) == 1


def test_an_anchor_whose_shard_has_moved_is_refused_until_it_is_set_anew(cluster, worker, servers):
    shard = anchor(cluster)
    assert Once(worker.connect()).finish_new(key="before") == 1
    cluster[0].execute("SELECT citus_move_shard_placement(%s, %s, %s, %s, %s, 'block_writes')", shard, str(servers[1].directory), int(PORT),
                       str(servers[2].directory), int(PORT))  # fmt: skip
    with refused("P4097") as caught:
        Once(worker.connect()).finish_new(key="moved")
    assert "once.anchor()" in caught.value.diag.message_hint
    assert worker.value("SELECT once.anchor()") not in (None, shard)
    assert Once(worker.connect()).finish_new(key="moved") == 1


def test_without_local_execution_nothing_is_written(cluster, worker):
    anchor(cluster)
    connection = worker.connect()
    run(connection, "SET citus.enable_local_execution = off")
    with refused("P4097"):
        Once(connection).finish_new(key="k")
    assert worker.value("SELECT count(*) FROM once.intent") == 0


def test_an_upgrade_keeps_the_anchor(cluster, worker):
    anchor(cluster)
    run(worker.connect(), upgrade_script(1))
    assert Once(worker.connect()).finish_new(key="k") == 1
    (tenant,) = elsewhere(worker, 1)
    assert fail_at_commit(worker, tenant, finish) == (0, 0)


def test_a_worker_says_what_is_missing(cluster, worker):
    with refused("55000") as caught:
        worker.value("SELECT once.anchor()")
    assert "coordinator" in caught.value.diag.message_hint
