# SPDX-License-Identifier: PostgreSQL
"""The command, bound to a fresh database: with the contract (pgonce), without it (bare), or to none (offline)."""
import pytest

from harness.upstream import Upstream

from .command import PROGRAM, Command
from .gateway import Gateway


@pytest.fixture(scope="session", autouse=True)
def built():
    assert PROGRAM.exists(), f"{PROGRAM} is missing: build first (make), or set PGONCE_BUILD"


@pytest.fixture
def pgonce(db, tmp_path):
    return Command(db.dsn(), tmp_path)


@pytest.fixture
def empty(server):
    database = server.empty_database()
    yield database
    database.drop()


@pytest.fixture
def bare(empty, tmp_path):
    return Command(empty.dsn(), tmp_path)


@pytest.fixture
def offline(tmp_path):
    return Command(None, tmp_path)


@pytest.fixture
def upstream():
    with Upstream() as running:
        yield running


@pytest.fixture
def gateway(db, upstream):
    """pgonce gateway, not yet started."""
    made = Gateway(db.dsn(), upstream)
    yield made
    made.close()
