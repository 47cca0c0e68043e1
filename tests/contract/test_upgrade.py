# SPDX-License-Identifier: PostgreSQL
"""A database with data in it becomes one with the next contract. The next one is made up, from the files of this one. Each release leaves what it
installed in upgrade/RELEASE.sql, and is upgraded as well, to this one and to the next, by all ways that there are, and while it works."""

import concurrent.futures
import itertools
import os
import pathlib
import re
import subprocess
import threading
import time

import pytest

from harness.postgres import ROOT, clean_environment, install_script, wait_until

from .calls import PRINT, Once, code_of, now_ms, refused, run, uuid7
from .keeping import Keeper
from .relaying import Relay
from .test_dumps import goes_on, in_use
from .test_receive_many import receive_many
from .upgrading import RELEASED, Next, alone

COMMAND = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build")) / "cli/pgonce"


@pytest.fixture
def following(tmp_path):
    return Next(tmp_path)


@pytest.fixture
def old(db):
    """A database in use."""
    once = Once(db.connect())
    once.finish_new(key="done", response_status=201, response_body=b"\x00\xff")
    once.finish_new(key=uuid7(now_ms(db)), response_body=b"today's")
    once.claim(key="running")
    once.receive(message_id="m")
    once.emit(topic="t", payload='{"n": 1}', aggregate_type="thing", aggregate_id="a", scope="orders", key="done")
    return db


OBJECTS = """
    SELECT p.oid::regprocedure::text || md5(p.prosrc || coalesce(p.proconfig::text, '')) || coalesce(p.proacl::text, '')
           || p.prorettype::regtype
      FROM pg_proc AS p WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace)
     UNION ALL
    SELECT a.attrelid::regclass || '.' || a.attname || format_type(a.atttypid, a.atttypmod) || a.attnotnull
           || coalesce(pg_get_expr(d.adbin, d.adrelid), '')
      FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
      LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE c.relnamespace = 'once'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
     UNION ALL
    SELECT pg_get_indexdef(i.indexrelid) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
     WHERE c.relnamespace = 'once'::regnamespace
     UNION ALL
    SELECT version || name || checksum FROM once.migration
     ORDER BY 1"""


def test_an_old_database_becomes_what_a_new_one_is(server, old, following):
    following.upgrade(old)
    new = server.empty_database()
    run(new.connect(), following.script("install"))
    assert old.rows(OBJECTS) == new.rows(OBJECTS)
    assert old.value("SELECT once.contract_version()") == new.value("SELECT once.contract_version()") == 2
    new.drop()


# ---- from each release ----

# For these it would need a slot that is moved, one of logical replication, a relay that lags, or a keeper in the middle of its work.
WITHOUT_ROWS = {"once.slot_move", "once.capture", "once.untaken", "once.untaking", "once.unfinished"}


def columns(db):
    """Of each table that holds rows: its columns."""
    return dict(
        db.rows(
            "SELECT c.oid::regclass::text, string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid"
            " WHERE c.relnamespace::regnamespace::text IN ('once', 'shop') AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped GROUP BY c.oid"
        )
    )


def stored(db, of):
    return {table: db.rows(f'SELECT ROW({names})::text COLLATE "C" AS held FROM {table} ORDER BY held') for table, names in of.items() if table != "once.migration"}


@pytest.fixture(scope="module", params=RELEASED, ids=lambda path: path.stem)
def release(request, server):
    """A database with the contract of that release, in use: rows in all of its tables."""
    old = in_use(server, "script", "postgres", request.param.read_text())
    connection = old.db.connect()
    run(connection, "SELECT once.emit_later(now() + interval '1 day', 'later', '{}')")
    for (dead,) in run(connection, "SELECT id FROM once.parked_list(state => 'dead')"):
        run(connection, "SELECT once.parked_discard(%s, 'no longer wanted')", dead)
    rows = stored(old.db, columns(old.db))
    filled = {table for table, its_rows in rows.items() if its_rows}
    plain = "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'once'::regnamespace AND relkind = 'r' AND NOT relispartition"
    assert {name for (name,) in old.db.rows(plain)} - filled - {"once.migration"} == WITHOUT_ROWS
    assert all(any(name.startswith(f"once.{parent}_") for name in filled) for parent in ("intent", "archive", "outbox"))
    old.db.close()
    return old


def but_days(db):
    """A used database has other days than a new one."""
    return [row for (row,) in db.rows(OBJECTS) if not re.search(r"\b(intent|archive|outbox)(_closed)?_\w*\d+", row)]


@pytest.mark.parametrize("way", ["pgonce init", "SQL alone", "SQL alone to the next one"])
def test_each_release_is_upgraded_with_all_that_it_holds_and_goes_on(server, release, following, tmp_path, way):
    db = server.empty_database(template=release.db.name)
    before = columns(db)
    rows, version = stored(db, before), db.value("SELECT once.contract_version()")
    if way == "pgonce init":
        if not COMMAND.exists():
            pytest.skip("the command is not built")
        subprocess.run([str(COMMAND), "init", "--no-native", "--dsn", db.dsn()], env=clean_environment(), capture_output=True, timeout=60, check=True)
    else:
        files = alone(ROOT, tmp_path / "out") if way == "SQL alone" else following.alone()
        db.connect().cursor().execute(files[f"upgrade-{version}.sql"])
    new = server.empty_database()
    run(new.connect(), following.script("install") if "next" in way else install_script())
    assert but_days(db) == but_days(new)
    assert stored(db, before) == rows
    goes_on(release, db)
    new.drop()
    db.drop()


class Load:
    """Clients of each kind at work, each again and again, until the block ends; the first error of one is raised there."""

    def __init__(self, db):
        self.db, self.over, self.pool = db, threading.Event(), concurrent.futures.ThreadPoolExecutor(8)
        self.rounds, self.longest, self.futures = {}, 0, []
        self.emitted, self.delivered = [], []

    def __enter__(self):
        for name, work in (("one", self.effects), ("two", self.effects), ("claims", self.claims), ("messages", self.messages), ("relay", self.relay), ("keeper", self.keeper)):
            self.rounds[name] = 0
            self.futures.append(self.pool.submit(self.again, name, work, self.db.connect(isolation="READ COMMITTED" if work == self.effects else None)))
        return self

    def __exit__(self, *_):
        self.over.set()
        for future in self.futures:
            future.result(60)
        self.pool.shutdown()

    def again(self, name, work, connection):
        try:
            once = Once(connection)
            step = work(connection, once)
            while not self.over.is_set():
                begin = time.monotonic()
                next(step)
                self.longest = max(self.longest, time.monotonic() - begin)
                self.rounds[name] += 1
        except BaseException:
            self.over.set()
            raise
        finally:
            connection.close()

    def wait(self, rounds):
        """For so many more of each."""
        goal = {name: done + rounds for name, done in self.rounds.items()}
        wait_until(lambda: self.over.is_set() or all(self.rounds[name] >= wanted for name, wanted in goal.items()), "the clients")

    def effects(self, connection, once):
        """Two race for the same keys: one makes the effect and its event, and the other one gets the answer."""
        for number in itertools.count():
            key = f"effect {number}"
            while code_of(lambda: self.effect(connection, once, key)) == "P4029":  # the other one is at it
                connection.rollback()
            assert once.start(key=key).response_body == key.encode()
            connection.commit()
            yield

    def effect(self, connection, once, key):
        if once.start(key=key).verdict == "proceed":
            run(connection, "INSERT INTO effect VALUES (%s)", key)
            event = once.emit(topic="t", payload="{}", scope="orders", key=key)
            once.finish(key=key, response_body=key.encode())
            connection.commit()
            self.emitted.append(event)
        connection.commit()

    def claims(self, _, once):
        for number in itertools.count():
            key = f"claim {number}"
            assert once.complete(key=key, fence=once.claim(key=key).fence, response_body=b"c") is True
            assert once.claim(key=key).verdict == "replay_success"
            yield

    def messages(self, connection, _):
        for number in itertools.count():
            assert receive_many(connection, [f"message {number}"] * 1) == ["process"]
            assert receive_many(connection, [f"message {number}"] * 1) == ["duplicate"]
            yield

    def relay(self, connection, _):
        relay = Relay(connection)
        while True:
            self.delivered += [event.event_id for event in relay.batch()]
            yield

    def keeper(self, connection, _):
        keeper = Keeper(connection)
        while True:
            keeper.round()
            yield


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.stem)
def test_each_release_is_upgraded_while_it_works(server, following, path):
    db = server.empty_database()
    run(db.connect(), path.read_text())
    db.execute("CREATE TABLE effect (key text PRIMARY KEY)")
    version = db.value("SELECT once.contract_version()")
    upgrade = following.alone()[f"upgrade-{version}.sql"]
    with Load(db) as load:
        load.wait(5)
        begin = time.monotonic()
        db.connect(lock_timeout="30s").cursor().execute(upgrade)  # so long also on a busy machine
        took = time.monotonic() - begin
        load.wait(5)
    assert db.value("SELECT once.contract_version()") == 2
    assert load.longest < took + 5, "nobody waited for longer than the upgrade took"
    assert db.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
    effects = [key for (key,) in db.rows("SELECT key FROM effect")]
    assert db.value("SELECT count(*) FROM once.intent WHERE key LIKE 'effect %%' AND state = 'succeeded'") == len(effects) == len(load.emitted)
    relay = Relay(db.connect())
    assert sorted([*load.delivered, *(event.event_id for event in relay.batch())]) == sorted(load.emitted), "each once: the relay went on where it was"
    db.drop()


def test_an_upgrade_gives_up_before_it_is_in_the_way(db, following):
    """Behind it all would wait who use the table that it waits for."""
    upgrade = following.alone()["upgrade-1.sql"]
    patience = "WHEN '0' THEN '5s'"
    assert upgrade.count(patience) == 1
    holder = db.connect(isolation="READ COMMITTED")
    Once(holder).claim(key="open")
    before = db.rows(OBJECTS)
    with refused("55P03"):
        db.connect().cursor().execute(upgrade.replace(patience, "WHEN '0' THEN '200ms'"))
    assert db.rows(OBJECTS) == before
    with refused("55P03"):  # who has said how long waits so long
        db.connect(lock_timeout="100ms").cursor().execute(upgrade)
    if COMMAND.exists():
        done = subprocess.run([str(COMMAND), "init", "--dsn", db.dsn()], env=clean_environment(), capture_output=True, text=True, timeout=60, check=True)
        assert "already current" in done.stdout
    holder.commit()
    db.connect().cursor().execute(upgrade)
    assert db.value("SELECT once.contract_version()") == 2


def test_roles_may_do_what_they_could_and_the_new_functions(old, following):
    granted = """SELECT p.oid::regprocedure::text, a.grantee::regrole::text FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(p.proacl) AS a
                  WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace) AND p.proname <> 'release'"""
    release = "SELECT has_function_privilege('once_app', 'once.release(text, text, integer, text, text)', 'execute')"
    before = old.rows(granted + " ORDER BY 1, 2")
    following.upgrade(old)
    assert old.rows(granted + " ORDER BY 1, 2") == before
    assert old.value(release) is True


def test_a_session_that_was_open_during_the_upgrade_goes_on(old, following):
    """With the plans and the types that it had."""
    session = Once(old.connect())
    session.start(key="done")
    event = session.emit(topic="t", payload="{}")
    following.upgrade(old)
    assert session.start(key="done").response_body == b"\x00\xff"
    assert session.receive(message_id="m2", fingerprint=PRINT) == "process"
    relay = Relay(old.connect())
    second = session.emit(topic="t", payload="{}")
    assert [each.event_id for each in relay.batch()][1:] == [event, second]


def test_an_upgrade_that_fails_leaves_the_old_contract(old, following):
    before = old.rows(OBJECTS)
    connection = old.connect()
    with refused("22012"):
        run(connection, following.script("upgrade", "1").replace("\nCOMMIT;", "\nSELECT 1/0;\nCOMMIT;"))
    connection.rollback()
    assert old.rows(OBJECTS) == before


def test_the_command_brings_other_functions_of_the_same_version_up_to_date(old, server):
    """What another build installed: the migrations are the same, the functions are not."""
    if not COMMAND.exists():
        pytest.skip("the command is not built")
    new = server.new_database()
    old.execute("ALTER FUNCTION once.top() SET work_mem = '64kB'; DROP VIEW once.stuck; DROP FUNCTION once.release(text, text, integer, text)")
    old.execute("UPDATE once.migration SET checksum = repeat('0', 64) WHERE version = 0")
    assert old.rows(OBJECTS) != new.rows(OBJECTS)
    done = subprocess.run([str(COMMAND), "init", "--dsn", old.dsn()], env=clean_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert old.rows(OBJECTS) == new.rows(OBJECTS)
    assert Once(old.connect()).start(key="done").response_body == b"\x00\xff"
    new.drop()
