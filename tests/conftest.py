# SPDX-License-Identifier: PostgreSQL
"""The fixtures that all Python tests share: one private server for the run, a fresh database with the contract for
each test."""

import signal

import pytest

from harness.postgres import Postgres


# A run in the background of a shell ignores these, and every program that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


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

    return f"PostgreSQL server: {find_bindir()}"
