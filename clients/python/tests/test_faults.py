# SPDX-License-Identifier: PostgreSQL
"""What goes wrong between a client and its server, with real ones: a backend killed at each step, COMMIT's acknowledgement lost,
64 callers at once, a lease lost, a cancellation at every await."""

import asyncio
import concurrent.futures
import contextlib
import json
import socket
import threading
import time

import asyncpg
import psycopg
import psycopg_pool
import pytest

import pgonce
import pgonce.aio
from pgonce import errors

from .conftest import CASES
from drivers import NAMES, AsyncDoor, opened
from frameworks import PATIENCE_S

FAULTS = json.loads((CASES / "faults.json").read_text(encoding="utf-8"))
INSERT = "INSERT INTO effect (key) VALUES ('{}')"


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def effect_of(door, key, after=lambda tries: None):
    """Leaves a row and answers; after(tries) happens within the effect, which counts its runs."""
    runs = []

    def effect(tx):
        runs.append(1)
        door.execute(tx, INSERT.format(key))
        after(len(runs))
        return 201, "done"

    async def effect_async(tx):
        runs.append(1)
        await door.execute(tx, INSERT.format(key))
        after(len(runs))
        return 201, "done"

    return runs, effect_async if isinstance(door, AsyncDoor) else effect


def reach(name, forwarder, db):
    url = f"postgresql://postgres@{forwarder.hello['host']}:{forwarder.hello['port']}/{db.name}"
    return url + ("?ssl=disable" if name.endswith("async-asyncpg") else "?sslmode=disable")


@pytest.mark.parametrize("loss", ["lose_answer", "lose_request", "lose_connection_after"])
def test_a_lost_commit_is_asked_for(server, db, name, loss):
    """lose_answer: it committed, so the answer is the stored one and nothing runs again. lose_request: it did not, so the effect runs again."""
    key = f"lost-{loss}-{name}"
    with server.forwarder() as forwarder, opened(name, reach(name, forwarder, db)) as door:
        runs, effect = effect_of(door, key)
        rule = forwarder.ask(f"{loss} COMMIT")["rule"]
        answer = door.run("faults", key, {"key": key}, effect)
        assert forwarder.ask(f"wait {rule}")["fired"]
        assert (answer.status, answer.body) == (201, b"done")
        assert db.effects(key) == 1
        if loss == "lose_answer":
            assert len(runs) == 1 and answer.replayed
        elif loss == "lose_request":
            assert len(runs) == 2 and not answer.replayed
        assert door.run("faults", key, {"key": key}, effect).replayed


@pytest.mark.parametrize("step", ["BEGIN", "once.try_start", "INSERT INTO effect", "once.finish"])
def test_a_connection_lost_at_each_step_leaves_one_effect(server, db, name, step):
    key = f"step-{step.split()[0]}-{name}"
    with server.forwarder() as forwarder, opened(name, reach(name, forwarder, db)) as door:
        runs, effect = effect_of(door, key)
        forwarder.ask(f"lose_connection_after {step}")
        answer = door.run("faults", key, {"key": key}, effect)
        assert answer.status == 201 and db.effects(key) == 1


def test_a_connection_lost_on_its_way_back_to_the_pool_takes_nothing_back(server, db, name):
    """asyncpg's pool sends a statement to each connection that it gets back: what was committed before is told all the same."""
    key = f"back-{name}"
    with server.forwarder() as forwarder, opened(name, reach(name, forwarder, db)) as door:
        runs, effect = effect_of(door, key)
        rules = [forwarder.ask("lose_connection_after RESET ALL")["rule"]]
        answer = door.run("faults", key, {"key": key}, effect)
        assert (answer.replayed, answer.status, len(runs)) == (False, 201, 1)
        rules.append(forwarder.ask("lose_connection_after RESET ALL")["rule"])
        held = door.claim("faults", f"{key}-claim", {"key": key})
        assert held.fence and not held.replayed
        rules.append(forwarder.ask("lose_connection_after RESET ALL")["rule"])
        assert held.complete("done")
        if name == "asyncpg":
            assert all(forwarder.ask(f"wait {rule}")["fired"] for rule in rules)


def test_a_backend_that_is_killed_within_the_effect(db, name):
    key = f"killed-{name}"
    sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'idle in transaction'"

    def kill(tries):
        if tries == 1:
            assert db.value(sql) == 1

    with opened(name, db.url) as door:
        runs, effect = effect_of(door, key, kill)
        answer = door.run("faults", key, {"key": key}, effect)
        assert len(runs) == 2 and answer.status == 201 and db.effects(key) == 1


def test_a_database_that_stays_away_after_a_lost_commit_is_outcome_unknown(server, name):
    """Nobody guesses: the error says so, and after the database is back the same key gets the truth."""
    db = server.database()
    key = f"away-{name}"
    with server.forwarder() as forwarder, opened(name, reach(name, forwarder, db)) as door:
        runs, effect = effect_of(door, key)
        rule = forwarder.ask("lose_answer COMMIT")["rule"]

        def stop():
            assert forwarder.ask(f"wait {rule}")["fired"]
            server.ask("stop")

        thread = threading.Thread(target=stop)
        thread.start()
        try:
            with pytest.raises((errors.OutcomeUnknown, pgonce.OnceError)) as caught:
                door.run("faults", key, {"key": key}, effect, deadline=0.8)
                raise errors.OutcomeUnknown("it had asked before the server stopped")
            assert caught.value.retryable and caught.value.outcome_unknown
        finally:
            thread.join()
            server.ask("start")
    with opened(name, db.url) as door:
        answer = door.run("faults", key, {"key": key}, effect)
        assert answer.status == 201 and db.effects(key) == 1


def test_64_callers_at_once_make_one_effect(db, name):
    key = f"many-{name}"
    with opened(name, db.url, size=16) as door, concurrent.futures.ThreadPoolExecutor(64) as threads:
        runs, effect = effect_of(door, key)
        answers = list(threads.map(lambda _: door.run("faults", key, 1, effect, wait=30, deadline=60), range(64)))
        assert {answer.body for answer in answers} == {b"done"}
        assert sum(not answer.replayed for answer in answers) == 1
        assert len(runs) == 1 and db.effects(key) == 1


def test_a_serialization_failure_is_retried(db, name):
    """Two transactions that read what the other writes: one of them runs again."""
    db.rows("DROP TABLE IF EXISTS pair; CREATE TABLE pair (id int, n int); INSERT INTO pair VALUES (1, 0), (2, 0)")
    barrier = threading.Barrier(2, timeout=20)
    runs = []
    with opened(name, db.url) as door, concurrent.futures.ThreadPoolExecutor(2) as threads:

        def part(mine):
            tries = []

            def note():
                tries.append(1)
                runs.append(mine)
                if len(tries) == 1:
                    barrier.wait()

            def effect(tx):
                door.execute(tx, "SELECT sum(n) FROM pair")
                note()
                door.execute(tx, f"UPDATE pair SET n = n + 1 WHERE id = {mine}")
                return 200, "ok"

            async def effect_async(tx):
                await door.execute(tx, "SELECT sum(n) FROM pair")
                await asyncio.to_thread(note)
                await door.execute(tx, f"UPDATE pair SET n = n + 1 WHERE id = {mine}")
                return 200, "ok"

            chosen = effect_async if isinstance(door, AsyncDoor) else effect
            return door.run("serial", f"{name}-{mine}", mine, chosen, isolation="serializable")

        answers = list(threads.map(part, (1, 2)))
    assert [answer.replayed for answer in answers] == [False, False]
    assert len(runs) == 3, "one was rolled back and ran again"
    assert db.value("SELECT sum(n)::int FROM pair") == 2


def test_a_key_is_never_in_an_error_or_a_log(db, name, caplog):
    key = f"secret-{name}"
    caplog.set_level(0)
    with opened(name, db.url) as door:
        _, effect = effect_of(door, key)
        door.run("faults", key, 1, effect)
        with pytest.raises(pgonce.Mismatch) as caught:
            door.run("faults", key, 2, effect)
    assert key not in str(caught.value) and key not in repr(caught.value)
    assert not [record for record in caplog.records if record.name.startswith("pgonce") and key in record.getMessage()]


# ---- leases ----


def lose_lease(db, key):
    """Another attempt takes over, before a heartbeat can come between."""
    with psycopg.connect(db.dsn) as other:
        other.execute("UPDATE once.intent SET lease_until = now() - interval '1 second' WHERE key = %s", (key,))
        other.execute("SELECT once.claim('lease', %s, once.fingerprint('1'::jsonb), lease => '1 hour', takeover => true)", (key,))


def test_a_heartbeat_keeps_a_lease_and_tells_a_thread_of_its_loss(db):
    with psycopg_pool.ConnectionPool(db.url, min_size=0, max_size=4, open=True) as pool:
        with pytest.raises(pgonce.LeaseLost), pgonce.claim(pool, "lease", "thread", 1, lease=3) as held:
            until = db.value("SELECT lease_until FROM once.intent WHERE key = 'thread'")
            wait_for(lambda: db.value("SELECT lease_until > %s FROM once.intent WHERE key = 'thread'", until))
            held.check()
            lose_lease(db, "thread")
            assert held.lost.wait(PATIENCE_S)
            held.check()
    assert db.value("SELECT state::text FROM once.peek('lease', 'thread')") == "processing", "the other's"


def wait_for(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_task_is_cancelled_when_its_lease_is_lost(db):
    seen = []

    async def main():
        async with psycopg_pool.AsyncConnectionPool(db.url, min_size=0, max_size=4, open=False) as pool:
            with pytest.raises(pgonce.LeaseLost):
                async with pgonce.aio.claim(pool, "lease", "task", 1, lease=3):
                    await asyncio.to_thread(lose_lease, db, "task")
                    try:
                        await asyncio.sleep(300)
                    except asyncio.CancelledError:
                        seen.append("cancelled")
                        raise
            await asyncio.sleep(0)  # this task itself is not cancelled
            return "went on"

    assert asyncio.run(main()) == "went on" and seen == ["cancelled"]


def test_a_claim_whose_answer_was_lost_is_found_again(server, db):
    with server.forwarder() as forwarder:
        url = reach("psycopg", forwarder, db)
        with psycopg_pool.ConnectionPool(url, min_size=0, max_size=4, open=True) as pool:
            rule = forwarder.ask("lose_answer once.claim")["rule"]
            with pgonce.claim(pool, "lease", "found-again", 1, lease=30) as held:
                assert held.fence == 1
                held.complete((201, "done"))
            assert forwarder.ask(f"wait {rule}")["fired"]
    assert db.value("SELECT attempts FROM once.peek('lease', 'found-again')") == 1


@pytest.mark.parametrize("fault", FAULTS["claims"], ids=lambda fault: fault["name"])
def test_a_claim_whose_reply_is_lost_says_what_was_before_it(server, db, fault):
    for sql in fault["arrange"]:
        db.rows(sql)
    with server.forwarder() as forwarder:
        with psycopg_pool.ConnectionPool(reach("psycopg", forwarder, db), min_size=0, max_size=4, open=True) as pool:
            rule = forwarder.ask("lose_answer once.claim")["rule"]
            with pgonce.claim(pool, "faults", fault["name"], {}, lease=30, takeover=fault.get("takeover")) as held:
                assert (held.verdict, held.fence) == (fault["verdict"], fault["fence"])
                assert held.complete((201, "done")) is True
            assert forwarder.ask(f"wait {rule}")["fired"]


@pytest.mark.parametrize("report", ["complete", "fail"])
def test_a_report_whose_answer_was_lost_is_sent_again(server, db, report):
    key = f"report-{report}"
    with server.forwarder() as forwarder:
        with psycopg_pool.ConnectionPool(reach("psycopg", forwarder, db), min_size=0, max_size=4, open=True) as pool:
            with pgonce.claim(pool, "lease", key, 1) as held:
                forwarder.ask(f"lose_answer once.{report}")
                assert held.complete("x") is False if report == "complete" else held.fail(False, code="no") is False
    wanted = {"complete": "succeeded", "fail": "failed_final"}[report]
    assert db.value("SELECT state::text FROM once.peek('lease', %s)", key) == wanted


@pytest.mark.parametrize("raised, state", [(ValueError, "in_doubt"), (pgonce.NotDone, "failed_retryable"), (pgonce.FinalFailure, "failed_final")])
def test_work_that_raises_leaves_what_is_known(db, raised, state):
    with psycopg_pool.ConnectionPool(db.url, min_size=0, max_size=4, open=True) as pool:
        once = pgonce.Once(pool)
        runs = []

        @once.effect(scope="lease", key="raises-{kind}")
        def charge(kind):
            runs.append(kind)
            raise raised("no")

        with pytest.raises(pgonce.InDoubt if raised is ValueError else raised) as first:
            charge(state)
        if raised is ValueError:
            assert isinstance(first.value.__cause__, ValueError) and first.value.answer.error_message == "no"
        assert db.value("SELECT state::text FROM once.peek('lease', %s)", f"raises-{state}") == state
        if raised is not pgonce.NotDone:
            with pytest.raises((pgonce.InDoubt, pgonce.FinalFailure)):
                charge(state)
            assert len(runs) == 1


@pytest.mark.parametrize("given", [object(), float("nan"), 10**5000], ids=["an object", "no number", "too many digits"])
def test_work_whose_result_is_no_json_is_in_doubt_for_this_reason(db, given):
    with psycopg_pool.ConnectionPool(db.url, min_size=0, max_size=4, open=True) as pool:
        once = pgonce.Once(pool)
        runs, name = [], type(given).__name__

        @once.effect(scope="lease", key="no-json-{name}")
        def charge(name):
            runs.append(name)
            return given

        for _ in range(2):
            with pytest.raises(pgonce.InDoubt) as caught:
                charge(name)
            assert caught.value.answer.error_code == "answer_not_stored"
        assert len(runs) == 1


def test_a_decorated_function_runs_once(db):
    runs = []

    async def main():
        async with psycopg_pool.AsyncConnectionPool(db.url, min_size=0, max_size=4, open=False) as pool:

            @pgonce.aio.Once(pool).effect(scope="tools", key="mail-{to}")
            async def mail(to, text):
                runs.append(to)
                assert pgonce.current_claim().fence == 1
                return {"sent": to, "pair": (1, 2)}

            assert await mail("a", "hi") == {"sent": "a", "pair": [1, 2]} == await mail("a", text="hi")
            with pytest.raises(pgonce.Mismatch):
                await mail("a", "other")

    asyncio.run(main())
    assert runs == ["a"]


# ---- cancellation ----


class Stepper:
    """Counts a task's turns, and cancels it after so many."""

    def __init__(self, coroutine, turns):
        self.coroutine, self.turns, self.left = coroutine, 0, turns

    def __await__(self):
        send, value = self.coroutine.send, None
        while True:
            try:
                future = send(value)
            except StopIteration as end:
                return end.value
            self.turns += 1
            send, value = self.coroutine.send, None
            try:
                if self.left is not None and self.turns == self.left:
                    asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
                value = yield future
            except BaseException as raised:
                send, value = self.coroutine.throw, raised


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_cancellation_at_every_await_leaves_all_or_nothing(db, driver):
    """And the pool's connections are good afterwards."""

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            if driver == "psycopg":
                pool = await stack.enter_async_context(psycopg_pool.AsyncConnectionPool(db.url, min_size=1, max_size=2, open=False))
            else:
                pool = await stack.enter_async_context(asyncpg.create_pool(db.url, min_size=1, max_size=2))

            async def attempt(key, turns):
                async def effect(tx):
                    await tx.execute(INSERT.format(key))
                    await asyncio.sleep(0)
                    return 201, "done"

                async def run():
                    stepper = Stepper(pgonce.aio.run(pool, "cancel", key, 1, effect), turns)
                    try:
                        return await stepper, stepper.turns
                    except asyncio.CancelledError:
                        return None, stepper.turns

                return await asyncio.ensure_future(run())

            _, turns = await attempt(f"cancel-{driver}", None)
            assert turns > 3
            cancelled = 0
            for turn in range(1, turns + 1):
                key = f"cancel-{driver}-{turn}"
                answer, _ = await attempt(key, turn)
                cancelled += answer is None
                effects = await asyncio.to_thread(db.effects, key)
                stored = await asyncio.to_thread(db.value, "SELECT count(*)::int FROM once.intent WHERE key = %s", key)
                assert effects == stored, f"cancelled at turn {turn} of {turns}: {effects} effects, {stored} outcomes"
                again, _ = await attempt(key, None)
                assert again.status == 201 and again.replayed == bool(effects)
            assert cancelled > turns // 3  # a run that finds its data there waits less often than the one that was counted

    asyncio.run(main())


# ---- traps ----


def test_a_salt_that_was_replaced_makes_no_retry_a_mismatch(server, name):
    """As by a contract that is installed anew, under a client that has connections still."""
    db = server.database()
    with opened(name, db.url) as door, opened(name, db.url) as other:
        effect = effect_of(door, "effect")[1]
        door.run("orders", "before", b"request", effect)
        db.rows("UPDATE once.setting SET salt = sha256(salt)")
        assert not other.run("orders", "after", b"request", effect).replayed
        assert door.run("orders", "after", b"request", effect).replayed


def test_an_effect_that_commits_is_refused_by_the_driver(db):
    with psycopg_pool.ConnectionPool(db.url, min_size=0, max_size=4, open=True) as pool:

        def effect(tx):
            tx.execute(INSERT.format("commits"))
            tx.commit()

        with pytest.raises(pgonce.UsageError):
            pgonce.run(pool, "traps", "commits", 1, effect)
    assert db.effects("commits") == 0


def test_autocommit_is_refused_where_the_caller_has_no_transaction(db):
    with psycopg.connect(db.url, autocommit=True) as tx:
        for call in (lambda: pgonce.emit(tx, "t", {}), lambda: pgonce.receive(tx, "c", "m", b""), lambda: pgonce.lock(tx, "r")):
            with pytest.raises(pgonce.UsageError):
                call()
        with tx.transaction():
            assert pgonce.lock(tx, "r")

    async def main():
        tx = await asyncpg.connect(db.url)
        with pytest.raises(pgonce.UsageError):
            await pgonce.aio.emit(tx, "t", {})
        async with tx.transaction():
            assert await pgonce.aio.emit(tx, "t", {})
        await tx.close()

    asyncio.run(main())


def test_start_and_finish_take_a_round_trip_each(db):
    """Of psycopg: BEGIN travels with start, COMMIT with finish."""
    assert trips_of(db, run_on) == trips_of(db, bare_on)


def run_on(url):
    with psycopg.connect(url, prepare_threshold=None) as connection:
        pgonce.run(connection, "trips", "one", 1, lambda tx: None)


def bare_on(url):
    """Connects, and makes two round trips."""
    with psycopg.connect(url) as connection:
        connection.autocommit = True
        connection.execute("SELECT 1")
        connection.execute("SELECT 1")


def trips_of(db, call):
    """How often the server says that it is ready: once for each round trip, and once at the beginning."""
    listener = socket.create_server(("127.0.0.1", 0))
    said = bytearray()

    def relay():
        client, _ = listener.accept()
        server = socket.create_connection((db.said["host"], db.said["port"]))

        def pump(source, target, copy):
            with contextlib.suppress(OSError):
                while piece := source.recv(65536):
                    copy.extend(piece)
                    target.sendall(piece)
                target.shutdown(socket.SHUT_WR)

        back = threading.Thread(target=pump, args=(server, client, said))
        back.start()
        pump(client, server, bytearray())
        back.join()
        client.close()
        server.close()

    thread = threading.Thread(target=relay)
    thread.start()
    call(f"postgresql://postgres@127.0.0.1:{listener.getsockname()[1]}/{db.name}?sslmode=disable&gssencmode=disable")
    thread.join()
    listener.close()
    at, ready = 0, 0
    while at < len(said):
        ready += said[at] == ord("Z")
        at += 1 + int.from_bytes(said[at + 1 : at + 5], "big")
    return ready


def test_a_renewal_that_hangs_loses_the_lease_in_time(server, db):
    """The network says nothing: neither a thread nor a task goes on for longer than its lease."""

    async def task(url):
        async with psycopg_pool.AsyncConnectionPool(url, min_size=1, max_size=1, open=False) as pool:
            with pytest.raises(pgonce.LeaseLost):
                async with pgonce.aio.claim(pool, "lease", "hangs-task", 1, lease=3, deadline=1):
                    async with pool.connection():  # the only one: the renewal waits for it
                        await asyncio.sleep(60)

    began = time.monotonic()
    asyncio.run(task(db.url))
    with psycopg_pool.ConnectionPool(db.url, min_size=1, max_size=1, open=True) as pool:
        with pytest.raises(pgonce.LeaseLost), pgonce.claim(pool, "lease", "hangs-thread", 1, lease=3, deadline=1) as held:
            with pool.connection():
                while True:
                    held.check()
                    assert time.monotonic() < began + 60
                    time.sleep(0.05)
    assert time.monotonic() < began + 60
