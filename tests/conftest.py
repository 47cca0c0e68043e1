# SPDX-License-Identifier: PostgreSQL
"""The fixtures that all Python tests share: one private server for the run, a fresh database with the contract for
each test."""

import os
import random
import signal

import pytest

from harness.postgres import Postgres
from harness.sanitizers import Reports
from harness.workers import Turns


# A run in the background of a shell, or with nohup, ignores these, and every program that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# What the torture draws everything from: new for each run, and the same for all of its workers, which inherit it.
TORTURE_SEED = os.environ.setdefault("PGONCE_TORTURE_SEED", str(random.SystemRandom().randrange(1 << 32)))

# Files that never run beside each other. Those that start a Kafka or a RabbitMQ: each wants a core to start; their tests take long, so they come
# first. Those of pgonce dev: it takes the first free port from 8080, and finds it again after a stop.
GROUPS = {
    "brokers": ("relay/test_sink_kafka", "relay/test_sink_rabbitmq", "consume/test_source_kafka", "consume/test_source_rabbitmq",
                "end_to_end/test_million", "end_to_end/test_orders", "torture/test_torture"),
    "dev": ("cli/test_dev", "cli/test_dev_events", "cli/test_dev_gateway", "examples/test_payments"),
}  # fmt: skip
GROUP_OF = {file: group for group, files in GROUPS.items() for file in files}


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: measures time; no other worker's test runs meanwhile")
    config.addinivalue_line("markers", "plain(why): skipped where the programs are built with a sanitizer")
    config.pluginmanager.register(Turns(), "turns")
    if os.environ.get("PGONCE_SANITIZED") == "yes":
        config.pluginmanager.register(Reports(), "sanitizers")


def group_of(item):
    return item.get_closest_marker("xdist_group").args[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """With several workers the tests of a file stay together, in order, with what they share. What waits for the others to end comes after what
    takes minutes, so that little waits for it."""
    here = config.rootpath / "tests"
    alone = set()
    for item in items:
        file = item.path.relative_to(here).with_suffix("").as_posix() if item.path.is_relative_to(here) else item.path.stem
        item.add_marker(pytest.mark.xdist_group(GROUP_OF.get(file, file)))
        if item.get_closest_marker("alone"):
            alone.add(group_of(item))
        if (plain := item.get_closest_marker("plain")) and os.environ.get("PGONCE_SANITIZED") == "yes":
            item.add_marker(pytest.mark.skip(reason=plain.args[0]))
    items.sort(key=lambda item: (group_of(item) != "brokers", group_of(item) in alone))


@pytest.fixture(scope="session")
def server():
    with Postgres() as running:
        yield running


@pytest.fixture
def db(server):
    """A database with the contract, and a table `effect` where attempts leave what they did."""
    database = server.new_database()
    database.execute("CREATE TABLE effect (key text NOT NULL, attempt integer)")
    yield database
    database.drop()


@pytest.fixture
def connect(db):
    return db.connect


def pytest_report_header():
    from harness.postgres import find_bindir

    return [f"PostgreSQL server: {find_bindir()}", f"torture: PGONCE_TORTURE_SEED={TORTURE_SEED}"]
