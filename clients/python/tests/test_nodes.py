# SPDX-License-Identifier: PostgreSQL
"""The routers over several nodes. Their calls are cases of spec/cases/nodes.json; here is what those cannot see."""

import asyncio
import concurrent.futures
import contextlib
import functools
import socket
import threading
import time

import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from flask import Flask, g, request
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

import pgonce
import pgonce.aio
from pgonce import _nodes
from pgonce._drivers import source_of
from pgonce.flask import protect

from drivers import NAMES, AsyncDoor, Loop, opened
from .effects import INSERT, effect_of

TENANT = "acme"
PASSWORD = "Tr0ub4dor"


class Pair:
    """Two databases that share the tenants; every slot is open on the first."""

    def __init__(self, server):
        self.each = [server.database(), server.database()]
        first, second = self.each
        first.rows("CALL once.divide(true)")
        second.rows("SELECT once._join(%s::jsonb)", first.value("SELECT once._node()::text"))
        second.rows("CALL once.divide()")
        self.slot = first.value("SELECT once.slot_of(%s)", TENANT)

    def reset(self):
        for db, state in zip(self.each, (3, 2)):
            db.rows("SELECT setval(to_regclass('once.slot_' || n || '_seq'), %s) FROM generate_series(0, 63) AS n", state)

    def close(self, number):
        assert self.each[number].value("SELECT once_job.close_slot(%s)", self.slot)

    def open(self, number, epoch):
        self.each[number].rows("SELECT once_job.open_slot(%s, %s)", self.slot, epoch)

    def effects(self, key):
        return [db.effects(key) for db in self.each]


@pytest.fixture(scope="module")
def made(server):
    return Pair(server)


@pytest.fixture
def pair(made):
    made.reset()
    return made


@contextlib.contextmanager
def doors(name, urls):
    """A door of each, in one Loop."""
    with contextlib.ExitStack() as stack:
        loop = Loop() if "async" in name or name == "asyncpg" else None
        if loop is not None:
            stack.callback(loop.close)
        yield [stack.enter_context(opened(name, url, its=loop)) for url in urls]


def asked(door, router, tenant, refused=None):
    """What a router gives."""
    given = router(tenant, refused)
    return door.loop.wait(given) if isinstance(door, AsyncDoor) else given


def refusal(slot, epoch):
    made = pgonce.SlotClosed()
    made.slot, made.epoch = slot, epoch
    return made


@pytest.fixture
def counts(monkeypatch):
    """How often each statement is sent by a router."""
    found, alone_at = {}, _nodes._core.alone_at

    def counting(source, sql, *more):
        found[sql] = found.get(sql, 0) + 1
        return alone_at(source, sql, *more)

    monkeypatch.setattr(_nodes._core, "alone_at", counting)
    return found


def test_a_thousand_tenants_at_once_share_one_inquiry_of_the_slots_and_each_asks_for_its_own_slot_once(pair, counts):
    tenants = [f"tenant {n}" for n in range(1000)] * 2
    with doors("psycopg", [db.url for db in pair.each]) as each:
        router = pgonce.nodes([door.pool for door in each])
        with concurrent.futures.ThreadPoolExecutor(64) as threads:
            assert set(threads.map(router, tenants)) == {each[0].pool}
    assert counts[_nodes._SLOTS] == 2 and 1000 <= counts[_nodes._SLOT_OF] <= 1064


def test_with_asyncio_tenants_share_it_too(pair, counts):
    tenants = [f"tenant {n}" for n in range(1000)] * 2
    with doors("asyncpg", [db.url for db in pair.each]) as each:
        router = pgonce.aio.nodes([door.pool for door in each])

        async def all_at_once():
            return await asyncio.gather(*map(router, tenants))

        assert set(each[0].loop.wait(all_at_once())) == {each[0].pool}
    assert counts == {_nodes._SLOTS: 2, _nodes._SLOT_OF: 1000}


def test_the_slots_of_so_many_tenants_are_remembered_those_that_were_used_last(pair, counts, monkeypatch):
    assert _nodes.TENANTS_MAX == 10_000
    monkeypatch.setattr(_nodes, "TENANTS_MAX", 100)
    with opened("psycopg", pair.each[0].url) as door:
        router = pgonce.nodes([door.pool])
        for number in range(100):
            router(f"tenant {number}")
        router("tenant 0")
        assert counts[_nodes._SLOT_OF] == 100
        router("one more")
        router("tenant 0")
        assert counts[_nodes._SLOT_OF] == 101
        router("tenant 1")
        assert counts[_nodes._SLOT_OF] == 102, "it was the one that was used longest ago"


def gone_by(name):
    """A pool of a server that is not there, which has a password, and its address as an error has it."""
    url = f"postgresql://postgres:{PASSWORD}@127.0.0.1:1/app"
    address = "(127.0.0.1:1/app)"
    if name == "psycopg":
        return psycopg_pool.ConnectionPool(url, open=False, min_size=0, max_size=2, kwargs={"connect_timeout": 1}), address
    if name == "psycopg-async":
        return psycopg_pool.AsyncConnectionPool(url, open=False, min_size=0, max_size=2, kwargs={"connect_timeout": 1}), address
    if name == "asyncpg":
        import asyncpg

        return asyncpg.create_pool(url, min_size=0), address
    if name == "function":
        return functools.partial(psycopg.connect, url), "did not answer"
    driver = name.split("-")[-1]
    url = url.replace("postgresql", f"postgresql+{driver}")
    if "async" in name.split("-")[1]:
        return async_sessionmaker(create_async_engine(url)), address
    return sessionmaker(sqlalchemy.create_engine(url)), address


@pytest.mark.parametrize("name", [*NAMES, "function"])
def test_a_node_that_is_away_is_named_without_its_password(pair, monkeypatch, name):
    monkeypatch.setattr(_nodes, "ASK_S", 0.5)
    pair.close(0)
    with doors(name.replace("function", "psycopg"), [pair.each[0].url]) as (door,):

        async def made():
            pool, address = gone_by(name)
            if name.startswith(("psycopg", "asyncpg")):
                await (pool.open() if hasattr(pool, "open") else pool)
            return pool, address

        pool, address = door.loop.wait(made()) if isinstance(door, AsyncDoor) else gone_by(name)
        if name == "psycopg":
            pool.open()
        with pytest.raises(pgonce.ConnectionLost) as caught:
            asked(door, door.client.nodes([door.pool, pool]), TENANT)
        if name == "psycopg":
            pool.close()
        elif name == "psycopg-async":
            door.loop.wait(pool.close())
    text = str(caught.value)
    assert text.startswith(f"no node is known that serves slot {pair.slot}: node 2 ") and address in text and text.endswith("did not answer; nothing was done")
    assert PASSWORD not in f"{caught.value!r} {caught.value.__cause__!r}" and caught.value.status == 503 and caught.value.retryable


def test_a_node_that_is_away_is_asked_again_after_a_second(pair, counts):
    pair.close(0)
    with opened("psycopg", pair.each[0].url) as door:
        router = pgonce.nodes([door.pool, gone_by("function")[0]])
        for _ in range(20):
            with pytest.raises(pgonce.ConnectionLost):
                router(TENANT)
        at = time.monotonic()
        assert counts[_nodes._SLOTS] == 2
        while counts[_nodes._SLOTS] == 2:
            assert time.monotonic() - at < 10
            with pytest.raises(pgonce.ConnectionLost):
                router(TENANT)
        assert time.monotonic() - at > 0.8


@pytest.mark.parametrize("name", ["psycopg", "psycopg-async"])
def test_a_node_that_is_silent_is_waited_for_no_longer_than_its_time(pair, monkeypatch, name):
    monkeypatch.setattr(_nodes, "ASK_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent, doors(name, [pair.each[0].url]) as (door,):
        with opened(name, f"postgresql://postgres@127.0.0.1:{silent.getsockname()[1]}/app", its=getattr(door, "loop", None)) as other:
            router = door.client.nodes([door.pool, other.pool])
            at = time.monotonic()
            assert asked(door, router, TENANT) is door.pool
            pair.close(0)
            with pytest.raises(pgonce.ConnectionLost, match="node 2 .*did not answer"):
                asked(door, router, TENANT, refusal(pair.slot, 1))
            assert time.monotonic() - at < 5


def test_nodes_that_do_not_answer_at_all_are_an_error_of_the_database():
    with pytest.raises(pgonce.ConnectionLost, match="^no node is known: node 1 did not answer; nothing was done$"):
        pgonce.run(pgonce.nodes([gone_by("function")[0]]), "orders", "k", 1, lambda tx: None)


def test_what_a_node_said_before_is_valid_while_it_is_away_unless_another_one_knows_a_higher_epoch(pair, counts):
    away = threading.Event()

    def connect():
        if away.is_set():
            raise OSError("away")
        return psycopg.connect(pair.each[0].url)

    second = functools.partial(psycopg.connect, pair.each[1].url)
    router = pgonce.nodes([connect, second])
    assert router(TENANT) is connect
    away.set()
    assert router(TENANT, refusal(pair.slot, 0)) is connect
    assert counts[_nodes._SLOTS] == 2, "the answer is newer than the refusal"
    assert router(TENANT, refusal(pair.slot, 1)) is connect
    assert counts[_nodes._SLOTS] == 6, "the inquiry that was under way might have been too old"
    pair.open(1, 2)
    assert router(TENANT, refusal(pair.slot, 1)) is second
    pair.close(1)
    with pytest.raises(pgonce.ConnectionLost, match="node 1 did not answer"):
        router(TENANT, refusal(pair.slot, 2))


def test_a_task_that_is_cancelled_does_not_end_the_inquiry_that_others_wait_for(pair, counts):
    with doors("asyncpg", [db.url for db in pair.each]) as each:
        router = pgonce.aio.nodes([door.pool for door in each])

        async def main():
            first, second = asyncio.ensure_future(router(TENANT)), asyncio.ensure_future(router(TENANT))
            await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            return await second

        assert each[0].loop.wait(main()) is each[0].pool
    assert counts[_nodes._SLOTS] == 2


@pytest.mark.parametrize("name", NAMES)
def test_a_refusal_says_which_slot_and_epoch_whatever_the_tenant_is_called(pair, name):
    tenant = "x; slot=99 epoch=9"
    slot = pair.each[0].value("SELECT once.slot_of(%s)", tenant)
    pair.each[0].rows("SELECT once_job.close_slot(%s)", slot)
    with opened(name, pair.each[0].url) as door:
        for call in (lambda: door.run("orders", "k", 1, effect_of(door, "k")[1], tenant=tenant), lambda: door.claim("orders", "k", 1, tenant=tenant)):
            with pytest.raises(pgonce.SlotClosed) as caught:
                call()
            assert (caught.value.sqlstate, caught.value.slot, caught.value.epoch, caught.value.retryable) == ("P4097", slot, 1, True)


@pytest.mark.parametrize("name", ["psycopg", "asyncpg"])
def test_a_refusal_within_the_effect_is_the_effects_own_and_it_is_not_called_again(pair, name):
    pair.close(0)
    other = pair.each[0].value("SELECT t FROM generate_series(1, 999) AS n, LATERAL (SELECT 'tenant ' || n) AS s(t) WHERE once.slot_of(t) <> %s LIMIT 1", pair.slot)
    with doors(name, [db.url for db in pair.each]) as each:
        door = each[0]
        door.pool = door.client.nodes([one.pool for one in each])
        runs, insert = effect_of(door, "within")

        def effect(tx):
            insert(tx)
            pgonce.emit(tx, "order.placed", {}, tenant=TENANT)

        async def effect_async(tx):
            await insert(tx)
            await pgonce.aio.emit(tx, "order.placed", {}, tenant=TENANT)

        for call in (door.run, door.consume):
            with pytest.raises(pgonce.SlotClosed):
                call("orders", "within", 1, effect_async if isinstance(door, AsyncDoor) else effect, tenant=other)
    assert len(runs) == 2 and pair.effects("within") == [0, 0]


def test_a_function_that_needs_an_argument_is_one_of_the_tenant_and_others_connect(pair):
    urls = [db.url for db in pair.each]
    seen = []

    def route(tenant, refused=None):
        seen.append((tenant, refused and refused.slot))
        return functools.partial(psycopg.connect, urls[0 if refused is None else 1])

    pair.close(0)
    pair.open(1, 2)
    _, effect = effect_of(None, "x")
    done = lambda tx: tx.execute("INSERT INTO effect (key) VALUES ('own')") and None  # noqa: E731
    assert not pgonce.run(route, "orders", "own", 1, done, tenant=TENANT).replayed
    assert pair.effects("own") == [0, 1] and seen == [(TENANT, None), (TENANT, pair.slot)]
    tenants = []

    def routed(tenant):  # it is not told of the refusal
        tenants.append(tenant)
        return functools.partial(psycopg.connect, urls[len(tenants) - 1])

    assert pgonce.run(routed, "orders", "own", 1, effect, tenant=TENANT).replayed
    assert tenants == [TENANT, TENANT]
    assert pgonce.run(lambda: psycopg.connect(urls[1]), "orders", "own", 1, effect, tenant=TENANT).replayed
    assert source_of(functools.partial(psycopg.connect, urls[1]), False).routes is False


def test_what_the_function_gives_must_be_a_pool_of_the_right_kind():
    def effect(tx):
        raise AssertionError

    async def awaited(tenant):
        return None

    for wrong in (lambda tenant: None, lambda tenant: lambda other: None, awaited):
        with pytest.raises(pgonce.UsageError):
            pgonce.run(wrong, "orders", "k", 1, effect)
    with pytest.raises(pgonce.UsageError):
        asyncio.run(pgonce.aio.run(lambda tenant: psycopg_pool.ConnectionPool("", open=False), "orders", "k", 1, effect))
    with pytest.raises(pgonce.UsageError):
        pgonce.nodes([])
    with pytest.raises(KeyError):
        pgonce.run(lambda tenant: {}[tenant], "orders", "k", 1, effect)


def flask_over(pair, **options):
    """A client of an application that leaves a row and answers, over both nodes."""
    app = Flask(__name__)
    pool = pgonce.nodes([functools.partial(psycopg.connect, db.url) for db in pair.each])

    @app.post("/")
    @protect(pool, scope="orders", tenant=lambda request: TENANT, **options)
    def view():
        key = request.headers["X-Row"]
        g.tx.execute(INSERT.format(key))
        if "X-Close" in request.headers:
            pair.each[0].rows("SELECT setval(%s::regclass, 2)", f"once.slot_{pair.slot}_seq")
        return "done"

    return app.test_client()


def test_a_gateways_claim_is_finished_at_the_node_of_its_tenant(pair):
    pair.close(0)
    pair.open(1, 2)
    fence = pair.each[1].value("SELECT fence FROM once.claim('orders', 'handed', once.fingerprint('x'::text, %s), tenant => %s)", TENANT, TENANT)
    said = {"Once-Tenant": TENANT, "Once-Scope": "orders", "Once-Key": "handed", "Once-Fence": str(fence)}
    answer = flask_over(pair, gateway=True).post("/", data="x", headers={"Idempotency-Key": "handed", "X-Row": "handed", **said})
    assert answer.status_code == 200 and pair.effects("handed") == [0, 1]
    assert pair.each[1].value("SELECT state FROM once.intent WHERE key = 'handed'") == "succeeded"


def test_a_slot_that_closes_while_a_view_runs_is_a_503_and_the_view_is_not_called_again(pair):
    answer = flask_over(pair).post("/", data="x", headers={"Idempotency-Key": "closed", "X-Row": "closed", "X-Close": "yes"})
    assert (answer.status_code, answer.get_json(force=True)["type"]) == (503, "urn:pgonce:problem:unavailable")
    assert pair.effects("closed") == [0, 0]


def test_under_a_lease_the_claim_and_its_report_follow_the_tenant(pair):
    app = Flask(__name__)
    pool = pgonce.nodes([functools.partial(psycopg.connect, db.url) for db in pair.each])

    @app.post("/")
    @protect(pool, scope="leased", tenant=lambda request: TENANT, mode="lease")
    def view():
        return "done"

    client = app.test_client()
    assert client.post("/", data="x", headers={"Idempotency-Key": "leased-1"}).status_code == 200
    pair.close(0)
    pair.open(1, 2)
    assert client.post("/", data="x", headers={"Idempotency-Key": "leased-2"}).status_code == 200
    assert [db.value("SELECT string_agg(key || ' ' || state, ',') FROM once.intent WHERE scope = 'leased'") for db in pair.each] == ["leased-1 succeeded", "leased-2 succeeded"]
