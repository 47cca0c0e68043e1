# SPDX-License-Identifier: PostgreSQL
"""The fixtures that all Python tests share: one private server for the run, a fresh database with the contract for
each test."""

import collections
import os
import random
import signal
import threading

import pytest

from harness.midnight import Midnight
from harness.postgres import Postgres
from harness.sanitizers import Reports
from harness.workers import InOrder, Turns


# A run in the background of a shell, or with nohup, ignores these, and every program that a test starts would inherit that.
# pytest-xdist may import this in another thread than the first, where Python lets nobody set them.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# What the torture draws everything from: new for each run, and the same for all of its workers, which inherit it.
TORTURE_SEED = os.environ.setdefault("PGONCE_TORTURE_SEED", str(random.SystemRandom().randrange(1 << 32)))

# Files that never run beside each other: examples/demo.py takes the first free port from 8080, and finds it again after a stop.
GROUPS = {"dev": ("cli/test_dev", "examples/test_demo")}
GROUP_OF = {file: group for group, files in GROUPS.items() for file in files}
# Files whose tests take long each and share nothing: any worker takes the next of them.
SPLIT = ("torture/test_torture", "pages/test_pages")
# Each of these is a whole system under load: so many begin, and the rest comes after the next file of LONG, when those are over.
TOGETHER = {"torture/test_torture": 3}
# What takes long comes first, so that little waits for it in the end; and it is not in `make check`.
LONG = (
    "dev", "torture/test_torture", "pages/test_pages", "model/test_model", "contract/test_retention_property", "console/test_broken_console", "console/test_console", "end_to_end/test_orders",
    "consume/test_source_rabbitmq", "consume/test_source_kafka", "consume/test_source_sqs", "contract/test_broken_on_purpose", "contract/test_broken_days", "relay/test_sink_rabbitmq", "torture/test_workload",
    "native/test_broken_on_purpose", "move/test_broken_move", "move/test_killed", "native/test_valgrind",
    "relay/test_sink_kafka", "relay/test_sink_sqs", "end_to_end/test_million", "contract/test_dumps", "cli/test_doctor_findings", "contract/test_crash", "lib/test_batcher", "build/test_options",
    "contract/test_plans", "capture/test_debezium", "capture/test_slots", "move/test_rehome", "contract/test_broken_keeping", "contract/test_broken_delivery", "contract/test_broken_batches", "gateway/test_broken_on_purpose", "gateway/test_nodes", "contract/test_transitions",
    "contract/test_upgrade", "contract/test_relay_cost", "contract/test_install", "lib/test_valgrind", "contract/test_broken_seeing",
    "contract/test_keep_days", "contract/test_hostile", "contract/test_outbox", "contract/test_outbox_operators", "contract/test_outbox_days", "contract/test_relay", "contract/test_receive_many", "contract/test_keep_rest",
    "gateway/test_faults", "gateway/test_down", "gateway/test_waiting", "gateway/test_server_errors", "gateway/test_security", "contract/test_relay_copies",
    "gateway/test_servers", "contract/test_buckets", "contract/test_roles", "contract/test_policy", "contract/test_seeing", "contract/test_standby",
    "console/test_broken_pages", "console/test_pages", "contract/test_outcomes", "contract/test_doubts", "contract/test_batches", "gateway/test_config", "gateway/test_differential", "gateway/test_statuses",
)  # fmt: skip


# Of memory for each worker: its PostgreSQL, whose files are in memory, too, and what its tests start besides.
WORKER_BYTES = 1 << 30


def pytest_xdist_auto_num_workers(config):
    """-n auto. Tests wait more than they compute."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(3 * len(os.sched_getaffinity(0)), memory // WORKER_BYTES))


def pytest_xdist_make_scheduler(config, log):
    return InOrder(config, log)


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: measures time; comes last, beside little else")
    config.addinivalue_line("markers", "long: not in `make check`, which is to be over soon; set for the files in LONG")
    config.addinivalue_line("markers", "plain(why): skipped where the programs are built with a sanitizer")
    config.pluginmanager.register(Midnight(), "midnight")
    config.pluginmanager.register(Turns(), "turns")
    if os.environ.get("PGONCE_SANITIZED") == "yes":
        config.pluginmanager.register(Reports(), "sanitizers")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """With several workers the tests of a file stay together, in order, with what they share; those that measure time come at the end."""
    here = config.rootpath / "tests"
    place, met = {}, collections.Counter()
    for item in items:
        file = item.path.relative_to(here).with_suffix("").as_posix() if item.path.is_relative_to(here) else item.path.stem
        group = GROUP_OF.get(file, file)
        alone = item.get_closest_marker("alone") is not None
        if group in LONG:
            item.add_marker(pytest.mark.long)
        met[group] += 1
        late = 1.5 if met[group] > TOGETHER.get(group, met[group]) else 0
        place[item] = (alone, LONG.index(group) + late if group in LONG else len(LONG))
        item.add_marker(pytest.mark.xdist_group(f"alone/{group}" if alone else f"{group}/{item.name}" if group in SPLIT else group))
        if (plain := item.get_closest_marker("plain")) and os.environ.get("PGONCE_SANITIZED") == "yes":
            item.add_marker(pytest.mark.skip(reason=plain.args[0]))
    items.sort(key=place.get)


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
