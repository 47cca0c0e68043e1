# SPDX-License-Identifier: PostgreSQL
"""once_replay_cache where servers and workers come and go: what the server may have forgotten is not served, and workers that are reloaded, killed or
connected elsewhere spoil nobody's answers."""

import contextlib
import os
import pathlib
import shutil
import signal

import pytest

from harness.mutation import mutate
from harness.pgbouncer import PROGRAM, PgBouncer
from harness.postgres import PORT, Postgres, is_running, private_directory, wait_until

from .copies import FROM_CACHE, SIZE, broken, counted, done, is_cached, opened, pieces_only, wait_connected
from .door import new_key, soon
from .load import Load
from .mutant import mutant
from .test_status import page


@pytest.fixture(scope="module")
def door(database, upstream):
    with opened(database, upstream) as running:
        yield running


# ---- Servers


def test_a_server_that_was_started_again_empties_it(upstream):
    with Postgres() as server, opened(server.new_database(), upstream) as door:
        key, first = done(door)
        assert is_cached(door, key, first)
        door.database.close()
        server.restart()
        wait_until(lambda: counted(door)["emptied"] == 1, "the copies to be thrown away")
        assert soon(door, key).body == b"changed"


@contextlib.contextmanager
def failover(upstream, workers, **options):
    """A server and a copy of it that does not have what came later; move() leads new connections to the copy."""
    directory = private_directory("pgonce-link-")
    link = directory / "server"
    try:
        with Postgres() as first:
            database = first.new_database()
            link.symlink_to(first.directory)
            with Postgres(copy_of=first) as second:
                dsn = database.dsn().replace(str(first.directory), str(link))

                def move():
                    link.unlink()
                    link.symlink_to(second.directory)

                with opened(database, upstream, workers=workers, dsn=dsn, **options) as door:
                    yield first, second, door, move
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def test_after_a_failover_nothing_is_served_that_the_new_server_does_not_have(upstream):
    with failover(upstream, 1) as (first, _, door, move):
        key, answer = done(door)
        assert is_cached(door, key, answer)
        move()
        door.database.close()
        first.kill()
        again = soon(door, key)
        assert not again.replayed and again.body != answer.body and door.count(key) == 2


@contextlib.contextmanager
def alone(door, pid):
    """Only this worker takes requests."""
    others = door.nginx.worker_pids() - {pid}
    for other in others:
        os.kill(other, signal.SIGSTOP)
        # Until it has stopped it may be the one that is woken for a connection.
        wait_until(lambda pid=other: pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "the worker to stop")
    try:
        yield
    finally:
        for other in others:
            os.kill(other, signal.SIGCONT)


def two_servers(first, _, door, move):
    left, right = sorted(door.nginx.worker_pids())
    with alone(door, left):
        door.attempt(new_key())
        mine = "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgonce' ORDER BY query_start DESC LIMIT 2"
        backends = [row.pid for row in door.database.rows(mine)]
        move()
        for pid in backends:
            door.database.execute("SELECT pg_terminate_backend(%s)", pid)
        wait_until(lambda: soon(door, new_key()).header("X-Cache").startswith("miss new_claim") and page(door)["connects"] == 6, "connections")
        key, answer = done_elsewhere(door)
        assert door.attempt(key).header("X-Cache") == FROM_CACHE
    with alone(door, right):
        # It would be the other server's answer.
        own = door.attempt(key)
        assert not own.replayed and own.body != answer.body
        assert door.attempt(key).body == own.body
    with alone(door, left):
        assert door.attempt(key).body == answer.body
    with alone(door, right):
        assert door.attempt(key).body == own.body
    assert counted(door)["emptied"] >= 3


def test_workers_that_are_connected_to_two_servers_share_no_answer(upstream):
    """One has lost its connections and found the new server; the other has not noticed, and its server still answers."""
    with failover(upstream, 2) as servers:
        two_servers(*servers)


def done_elsewhere(door):
    key = new_key()
    return key, soon(door, key)


@pytest.mark.alone
@pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed")
def test_behind_a_pooler_another_server_is_noticed_within_a_second(server, fresh, upstream):
    with PgBouncer(server, server_connections=4) as bouncer:
        with opened(fresh, upstream, dsn=f"host={bouncer.directory} port={PORT} dbname={fresh.name} user=postgres") as door:
            key, first = done(door)
            assert is_cached(door, key, first)
            emptied, connects = counted(door)["emptied"], page(door)["connects"]
            # What only another server would say.
            mutate(fresh, "count_cached", "concat_ws('/', identifier", "concat_ws('/', 'another', identifier")
            wait_until(lambda: counted(door)["emptied"] > emptied, "the copies to be thrown away", 5)
            assert page(door)["connects"] == connects
            assert door.attempt(key).body == b"changed"
            assert is_cached(door, *done(door))


def test_another_database_or_role_is_another_server(server, fresh):
    other = server.new_database()
    try:
        fresh.execute("CREATE ROLE cached LOGIN IN ROLE once_app")
        said = []
        for database, user in ((fresh, "postgres"), (other, "postgres"), (fresh, "cached")):
            with database.connect(user).cursor() as cursor:
                cursor.execute("SELECT server FROM once.count_cached(0, 0, 0)")
                said.append(cursor.fetchone()[0])
        assert len(set(said)) == 3
        assert len({text.split("/")[0] for text in said}) == 1 and said[0].split("/")[0]
    finally:
        other.drop()
        fresh.close()
        fresh.execute("DROP ROLE cached")


# ---- Workers, reloads


def reload(door, http=None):
    """Returns when the new workers have their connections."""
    connects = page(door)["connects"]
    door.nginx.write(http=http)
    old = door.nginx.reload()
    wait_until(lambda: not any(is_running(pid) for pid in old), "the old workers' end")
    wait_until(lambda: page(door)["connects"] >= connects + 2 * door.nginx.workers, "the new workers to be connected")


def test_a_reload_keeps_what_is_there(door):
    key, first = done(door)
    reload(door)
    assert is_cached(door, key, first)


def test_a_reload_with_another_size_begins_empty(database, upstream):
    with opened(database, upstream) as door:
        key, first = done(door)
        reload(door, door.nginx.http.replace(SIZE, "zone=replays:1m"))
        assert not is_cached(door, key, first)
        assert is_cached(door, *done(door))
        reload(door, door.nginx.http.replace("zone=replays:1m", "off"))
        key, _ = done(door)
        assert door.attempt(key).header("X-Cache") == "replay_success 1 replay succeeded"


def test_a_reload_with_another_database_begins_empty(server, fresh, upstream):
    other = server.new_database()
    try:
        with opened(fresh, upstream) as door:
            key, first = done(door)
            assert is_cached(door, key, first)
            reload(door, door.nginx.http.replace(fresh.dsn(), other.dsn()))
            again = door.attempt(key)
            assert not again.replayed and again.body != first.body
    finally:
        other.drop()


def test_workers_share_it(database, upstream):
    with opened(database, upstream, workers=2) as door:
        left, right = sorted(door.nginx.worker_pids())
        with alone(door, left):
            key, first = done(door)
        with alone(door, right):
            assert is_cached(door, key, first)


def test_workers_that_are_killed_under_load_stop_nobody(database, upstream):
    with opened(database, upstream, "once_replay_cache zone=busy:64k;", workers=2) as busy:
        with Load(busy, "/brief", clients=8) as load:
            for _ in range(12):
                load.wait_more(20)
                busy.nginx.kill_worker()
        load.assert_safe()
        wait_connected(busy)
        assert is_cached(busy, *done(busy))


DIES = ("if (cached == NULL) { return; }", 'if (cached == NULL) { return; } if (unlink("@dir@/die") == 0) { raise(9); }')
HEALS = ("if (cache.zone->locked) { throw_away();", "if (0) { throw_away();")
def die_in_the_zone(door):
    """A worker is killed while it has the zone locked, with a copy half in; the other goes on, and finds it in order."""
    key, first = done(door)
    wait_until(lambda: is_cached(door, key, first), "a copy")
    before, pids = counted(door), door.nginx.worker_pids()
    (door.directory / "die").touch()
    doomed = new_key()
    with contextlib.suppress(ConnectionError):
        door.attempt(doomed)
    wait_until(lambda: door.nginx.worker_pids() != pids and len(door.nginx.worker_pids()) == 2, "a worker in its place")
    door.nginx.killed |= pids - door.nginx.worker_pids()
    wait_connected(door)
    assert door.attempt(key).body == b"changed"
    assert counted(door)["emptied"] == before["emptied"] + 1
    assert is_cached(door, *done(door))
    again = soon(door, doomed)
    assert again.replayed and door.count(doomed) == 1  # it was stored before


@pieces_only
def test_a_worker_that_dies_with_the_zone_locked_stops_nobody(database, upstream):
    with broken(database, upstream, DIES, workers=2) as door:
        die_in_the_zone(door)


# ---- Each guarantee taken out


@pieces_only
def test_without_healing_the_test_of_a_worker_that_dies_in_the_zone_fails(database, upstream):
    with broken(database, upstream, DIES, HEALS, workers=2) as door:
        with pytest.raises(AssertionError):
            die_in_the_zone(door)


@pieces_only
def test_without_a_look_at_the_server_the_test_of_two_servers_fails(upstream):
    piece = ("if (cache.zone->servers[node] != server) {", "if (cache.zone->servers[node] == 0) {")
    with mutant("ngx_http_once_cache.c", piece) as module:
        with pytest.raises(AssertionError):
            with failover(upstream, 2, module=module) as servers:
                two_servers(*servers)
