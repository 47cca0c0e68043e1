# SPDX-License-Identifier: PostgreSQL
"""A disk whose syncs take long: a worker opens more connections, never more than four, and closes them when the disk is fast. While they come and go no
key runs twice, and nothing is lost."""

import threading

import pytest

from harness.disk import SlowDisk
from harness.postgres import Postgres, wait_until
from harness.upstream import Answer

from .door import Door
from .load import Load
from .test_status import metrics, page

pytestmark = pytest.mark.alone  # as fast as it is without the delay, the disk must be seen to be fast
MOST = 4
SLOW_MS = 5
CLIENTS = 24
PATIENCE_S = 150  # one that is lost while it is being made is tried again after a minute
CONFIG = """
    once_tenant $http_x_tenant;
    once required;
    once_scope pay;
    location /pay { proxy_pass http://app; }
    location = /status.json { once off; once_status json; }
    location = /metrics { once off; once_status; }
"""
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgonce' AND datname = current_database()"


@pytest.fixture(scope="module")
def disk():
    with SlowDisk() as made:
        yield made


@pytest.fixture(scope="module")
def slow_server(disk):
    """In memory, where a sync takes as long as it is told to."""
    with Postgres(environment=disk.environment, settings={"fsync": "on"}) as running:
        yield running


@pytest.fixture
def fresh(slow_server, disk):
    disk.set(0)
    database = slow_server.new_database()
    yield database
    disk.set(0)
    database.drop()


@pytest.fixture(autouse=True)
def quick_service(upstream):
    upstream.default = Answer()


class Watch:
    """The most connections that the database has seen at once."""

    def __init__(self, database):
        self.most, self.ended = 0, threading.Event()
        self.connection = database.server.connect(database.name)
        self.thread = threading.Thread(target=self.look, daemon=True)

    def look(self):
        while not self.ended.wait(0.02):
            with self.connection.cursor() as cursor:
                cursor.execute(CONNECTIONS)
                self.most = max(self.most, cursor.fetchone()[0])

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join(60)
        self.connection.close()


def more(door):
    return page(door)["more_connections"]


def slow(door, disk):
    disk.set(SLOW_MS)
    wait_until(lambda: more(door) == MOST - 2, "more connections", PATIENCE_S)


def fast(door, disk):
    disk.set(0)
    wait_until(lambda: more(door) == 0, "two connections again", PATIENCE_S)


def opened(database, upstream, **options):
    return Door(database, upstream, CONFIG, workers=1, **options)


def test_a_worker_has_up_to_four_connections_on_a_slow_disk_and_two_on_a_fast_one(fresh, upstream, disk):
    with opened(fresh, upstream) as door, Load(door, clients=CLIENTS) as load, Watch(fresh) as watch:
        load.wait_more(200)
        fast(door, disk)
        for _ in range(2):
            slow(door, disk)
            assert 2 in [value for (name, labels), value in metrics(door)["pgonce_connections"].samples.items() if "more" in str(labels)]
            load.wait_more(200)
            assert fresh.value(CONNECTIONS) == MOST
            fast(door, disk)
            wait_until(lambda: fresh.value(CONNECTIONS) == 2, "the connections to be closed")
        load.stop()
        assert watch.most == MOST
        load.assert_nothing_lost()
        assert page(door)["connect_failures"] == 0


def come_and_go(door, disk, times):
    """Connections do, and are lost, while clients work."""
    with Load(door, clients=CLIENTS) as load:
        for _ in range(times):
            slow(door, disk)
            for _ in range(5):
                load.wait_more(20)
                door.database.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgonce' AND state = 'active'"
                    " AND backend_start < clock_timestamp() - interval '600 ms'"
                )
            load.wait_more(50)
            fast(door, disk)
        load.stop()
        load.assert_safe(doubt=False)


def test_no_key_runs_twice_while_connections_come_and_go_and_are_lost(fresh, upstream, disk):
    with opened(fresh, upstream) as door:
        come_and_go(door, disk, 3)
        assert page(door)["resent"] > 0


def test_a_reload_loses_nothing_on_four_connections(fresh, upstream, disk):
    with opened(fresh, upstream) as door, Load(door, clients=CLIENTS) as load:
        for _ in range(3):
            slow(door, disk)
            door.nginx.reload()
            load.wait_more(100)
        load.stop()
        load.assert_nothing_lost()
        disk.set(0)


def test_a_server_without_room_for_more_is_asked_once_and_serves_as_before(fresh, upstream, disk):
    fresh.execute("CREATE ROLE gate LOGIN CONNECTION LIMIT 3; GRANT once_app TO gate")
    with opened(fresh, upstream, dsn=fresh.dsn("gate")) as door, Load(door, clients=CLIENTS) as load:
        disk.set(SLOW_MS)
        wait_until(lambda: page(door)["connect_failures"] == 1, "a connection to be refused")
        assert more(door) == 1
        load.wait_more(400)
        load.stop()
        assert page(door)["connect_failures"] == 1
        load.assert_nothing_lost()
    disk.set(0)
    fresh.execute("DROP OWNED BY gate; DROP ROLE gate")
