# SPDX-License-Identifier: PostgreSQL
"""A coordinator and two workers, for each module; databases of one name on them, for each test."""

import os

import pytest
from harness.postgres import PORT, Postgres

BINDIR = os.environ.get("PGONCE_CITUS_BINDIR")
SETTINGS = {
    "shared_preload_libraries": "citus", "citus.node_conninfo": "sslmode=disable", "citus.enable_statistics_collection": "off", "wal_level": "logical",
    "max_prepared_transactions": 50, "max_connections": 60,
}  # fmt: skip

@pytest.fixture(scope="module")
def servers():
    if BINDIR is None:
        pytest.skip("Citus is not built: make test-citus SOURCE=DIR")
    with Postgres(BINDIR, settings=SETTINGS) as coordinator, Postgres(BINDIR, settings=SETTINGS) as worker, Postgres(BINDIR, settings=SETTINGS) as other:
        for server in (coordinator, worker, other):  # by which it reaches itself
            connection = server.connect()
            with connection.cursor() as cursor:
                cursor.execute("ALTER SYSTEM SET citus.local_hostname = %s", (str(server.directory),))
                cursor.execute("SELECT pg_reload_conf()")
            connection.close()
        yield coordinator, worker, other


@pytest.fixture
def cluster(servers):
    """The database of each, of one name. The nodes reach each other by their sockets."""
    databases = [server.empty_database() for server in servers]
    for database in databases:
        database.execute("CREATE EXTENSION citus")
    coordinator = databases[0]
    coordinator.execute("SELECT citus_set_coordinator_host(%s, %s)", str(servers[0].directory), int(PORT))
    for server in servers[1:]:
        coordinator.execute("SELECT citus_add_node(%s, %s)", str(server.directory), int(PORT))
    yield databases
    coordinator.execute("SELECT run_command_on_coordinator($$DROP TABLE IF EXISTS public.once_anchor, public.effects$$)")
    for server in servers[1:]:
        coordinator.execute("SELECT citus_remove_node(%s, %s)", str(server.directory), int(PORT))
    for database in databases:
        database.drop()


@pytest.fixture
def nodes(cluster):
    """The coordinator's database and the first worker's."""
    return cluster[:2]
