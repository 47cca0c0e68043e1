# SPDX-License-Identifier: PostgreSQL
"""Every way into the client, as one blocking interface: a driver, blocking or not, and what its users write."""

import asyncio
import contextlib
import inspect
import threading
import time

import asyncpg
import psycopg_pool
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

import pgonce
import pgonce.aio


PATIENCE_S = 60


class Loop:
    """An event loop in its own thread, so that one test can hold several attempts."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


def behind(tx, text):
    """A statement past the client: of the driver's own connection, beneath what an effect is given."""
    if isinstance(tx, AsyncSession):
        return behind_async(tx, text)
    if isinstance(tx, Session):
        return run_beneath(tx.connection().connection.driver_connection, text)
    if hasattr(tx, "in_atomic_block"):  # Django's
        return run_beneath(tx.connection, text)
    return run_beneath(getattr(tx, "_con", tx), text)


async def behind_async(session, text):
    connection = await session.connection()
    ended = run_beneath((await connection.get_raw_connection()).driver_connection, text)
    return await ended if inspect.isawaitable(ended) else ended


def run_beneath(connection, text):
    if hasattr(connection, "pgconn"):  # psycopg
        connection.pgconn.exec_(text.encode())
        return None
    if hasattr(connection, "_protocol"):  # asyncpg
        return connection._protocol.query(text, None)
    with connection.cursor() as cursor:  # psycopg2
        return cursor.execute(text)


def alchemy_url(driver, url):
    return url.replace("postgresql://", f"postgresql+{driver}://")


class Door:
    """pool: what the client is given. execute: a statement by the driver's own means, in the caller's transaction."""

    client = pgonce

    def __init__(self, pool, text=str):
        self.pool, self.text, self.kept = pool, text, None

    def execute(self, tx, sql):
        return tx.execute(self.text(sql))

    def run(self, scope, key, request, effect, **options):
        return pgonce.run(self.pool, scope, key, request, effect, **options)

    def consume(self, *arguments, **options):
        return pgonce.consume(self.pool, *arguments, **options)

    def claim(self, *arguments, **options):
        return Held(pgonce.claim(self.pool, *arguments, **options))

    def effect(self, scope, key, request, tenant, result, work):
        def done():
            work()
            return result

        return pgonce.Once(self.pool).effect(scope=scope, key=lambda: key, tenant=tenant, request=lambda: request)(done)()

    def within(self, name, tx, *arguments, **options):
        return getattr(pgonce, name)(tx, *arguments, **options)

    @contextlib.contextmanager
    def transaction(self):
        """The caller's own."""
        if isinstance(self.pool, psycopg_pool.ConnectionPool):
            with self.pool.connection() as tx:
                yield tx
        else:
            with self.pool.begin() as tx:
                yield tx


class Held:
    """A claim of the blocking door, entered."""

    def __init__(self, claim):
        self.claim = claim
        claim.__enter__()

    def __getattr__(self, name):
        return getattr(self.claim, name)

    def is_lost(self):
        """Waits until it says so."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                self.claim.check()
            except pgonce.LeaseLost:
                return True
            self.claim.lost.wait(0.05)
        return False

    def end(self):
        """Without a report."""
        self.claim._reported = True
        self.claim.__exit__(None, None, None)


class AsyncHeld:
    """One of the asynchronous door, in a task that does nothing else: it is cancelled when the lease is lost."""

    def __init__(self, claim, loop):
        self.claim, self.loop, self.over, self.lost = claim, loop, asyncio.Event(), asyncio.Event()
        self.task = loop.wait(self.entered())

    def __getattr__(self, name):
        found = getattr(self.claim, name)
        return (lambda *a, **k: self.loop.wait(found(*a, **k))) if callable(found) else found

    async def entered(self):
        is_in = asyncio.get_running_loop().create_future()

        async def hold():
            try:
                async with self.claim:
                    is_in.set_result(None)
                    try:
                        await self.over.wait()
                    except asyncio.CancelledError:
                        self.lost.set()
                        raise
                    self.claim._reported = True
            except BaseException as raised:
                if is_in.done():
                    raise
                is_in.set_exception(raised)

        task = asyncio.ensure_future(hold())
        await is_in
        return task

    def is_lost(self):
        """Waits until it is cancelled."""
        self.loop.wait(self.lost.wait())
        return True

    def end(self):
        """Without a report, or with LeaseLost."""

        async def ended():
            self.over.set()
            try:
                await self.task
            except pgonce.LeaseLost:
                assert self.lost.is_set()

        self.loop.wait(ended())


class AsyncDoor(Door):
    client = pgonce.aio

    def __init__(self, pool, loop, text=str):
        super().__init__(pool, text)
        self.loop = loop

    def run(self, scope, key, request, effect, **options):
        return self.loop.wait(pgonce.aio.run(self.pool, scope, key, request, effect, **options))

    def consume(self, *arguments, **options):
        return self.loop.wait(pgonce.aio.consume(self.pool, *arguments, **options))

    def claim(self, *arguments, **options):
        return AsyncHeld(pgonce.aio.claim(self.pool, *arguments, **options), self.loop)

    def effect(self, scope, key, request, tenant, result, work):
        async def done():
            await work()
            return result

        return self.loop.wait(pgonce.aio.Once(self.pool).effect(scope=scope, key=lambda: key, tenant=tenant, request=lambda: request)(done)())

    def within(self, name, tx, *arguments, **options):
        return getattr(pgonce.aio, name)(tx, *arguments, **options)

    @contextlib.asynccontextmanager
    async def transaction(self):
        if isinstance(self.pool, psycopg_pool.AsyncConnectionPool):
            async with self.pool.connection() as tx:
                yield tx
        elif isinstance(self.pool, asyncpg.Pool):
            async with self.pool.acquire() as tx, tx.transaction():
                yield tx
        else:
            async with self.pool.begin() as tx:
                yield tx


WITHIN = {"timeout": 3}  # of asyncpg, which does not read connect_timeout
NAMES = ("psycopg", "psycopg-async", "asyncpg", "sqlalchemy-psycopg", "sqlalchemy-psycopg2", "sqlalchemy-async-psycopg", "sqlalchemy-async-asyncpg")


@contextlib.contextmanager
def opened(name, url, size=8, patience_s=10, its=None):
    """url: postgresql://... by TCP, so that a forwarder may stand in between. patience_s: for a free connection. its: a Loop that is there."""
    if name == "psycopg":
        with psycopg_pool.ConnectionPool(url, open=True, min_size=0, max_size=size, timeout=patience_s, reconnect_timeout=1) as pool:
            yield Door(pool)
        return
    if name.startswith("sqlalchemy-psycopg"):
        engine = sqlalchemy.create_engine(alchemy_url(name.split("-")[-1], url), pool_size=size, pool_timeout=patience_s)
        yield Door(sessionmaker(engine), sqlalchemy.text)
        engine.dispose()
        return
    loop = its or Loop()
    try:
        if name == "psycopg-async":

            async def make():
                pool = psycopg_pool.AsyncConnectionPool(url, open=False, min_size=0, max_size=size, timeout=patience_s, reconnect_timeout=1)
                await pool.open()
                return pool

            pool = loop.wait(make())
            yield AsyncDoor(pool, loop)
            loop.wait(pool.close())
        elif name == "asyncpg":

            async def make_asyncpg():
                return await asyncpg.create_pool(url.split("?")[0], min_size=0, max_size=size, **WITHIN)

            pool = loop.wait(make_asyncpg())
            yield AsyncDoor(pool, loop)
            pool.terminate()
        else:
            driver = name.split("-")[-1]
            more = {"connect_args": WITHIN} if driver == "asyncpg" else {}
            engine = create_async_engine(alchemy_url(driver, url.split("?")[0] if more else url), pool_size=size, pool_timeout=patience_s, **more)
            yield AsyncDoor(async_sessionmaker(engine), loop, sqlalchemy.text)
            loop.wait(engine.dispose())
    finally:
        if its is None:
            loop.close()


class Nodes:
    """Doors over several nodes, by the client's own router, by a function of the agent, or by a plain pool of the first."""

    def __init__(self, name, urls, router):
        self.name, self.urls, self.router = name, urls, router
        self.tenants, self.refusals, self.stack = [], [], contextlib.ExitStack()

    @contextlib.contextmanager
    def opened(self):
        with contextlib.ExitStack() as stack:
            is_async = "async" in self.name or self.name == "asyncpg"
            loop = Loop() if is_async else None
            if is_async:
                stack.callback(loop.close)
            doors = [stack.enter_context(opened(self.name, url, its=loop)) for url in self.urls]
            pools = [door.pool for door in doors]
            pool = {"nodes": doors[0].client.nodes, "own": self.own, "pool": lambda pools: pools[0]}[self.router](pools)
            yield AsyncDoor(pool, loop, doors[0].text) if is_async else Door(pool, doors[0].text)

    def own(self, pools):
        def route(tenant, refused=None):
            self.tenants.append(tenant)
            if refused is not None:
                self.refusals.append([refused.slot, refused.epoch])
            return pools[0 if refused is None else 1]

        return route

    def open(self):
        return self.stack.enter_context(self.opened())

    def close(self):
        self.stack.close()
