# SPDX-License-Identifier: PostgreSQL
"""The door that each file of tests shares: an nginx with the module before a counting service, with a database of its own. A file says
in CONFIG what its server {} holds, and in HTTP what its http {} holds besides."""

import pytest

pytest.register_assert_rewrite("gateway.copies", "gateway.door", "gateway.load", "harness.openmetrics")

from harness.upstream import Upstream

from .door import PROTOCOLS, Door


@pytest.fixture(scope="module")
def database(server):
    database = server.new_database()
    yield database
    database.drop()


@pytest.fixture
def fresh(server):
    database = server.new_database()
    yield database
    database.drop()


@pytest.fixture(scope="module")
def upstream():
    with Upstream() as running:
        yield running


@pytest.fixture(scope="module")
def door(request, database, upstream):
    with Door(database, upstream, request.module.CONFIG, getattr(request.module, "HTTP", "")) as running:
        yield running


@pytest.fixture(params=PROTOCOLS)
def protocol(request):
    return request.param
