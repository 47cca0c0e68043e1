# SPDX-License-Identifier: PostgreSQL
"""The contract installs as a whole or not at all, by an ordinary owner, and in many databases of a cluster."""

import os
import pathlib
import subprocess

import pytest

from harness.postgres import ROOT, Postgres, clean_environment, install_script

from .calls import PRINT, Once, refused, run
from .relaying import Relay, emit, parking

COMMAND = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build")) / "cli/pgonce"


@pytest.fixture
def empty(server):
    database = server.empty_database()
    yield database
    database.drop()


def exists(db):
    return db.value("SELECT to_regnamespace('once') IS NOT NULL")


def works(db, user="postgres"):
    once = Once(db.connect(user))
    once.start(key="k")
    once.finish_new(key="k", response_body=b"a")
    assert once.start(key="k").response_body == b"a"
    assert once.claim(key="k2").verdict == "new_claim"
    assert once.complete(key="k2", fence=1) is True
    assert run(db.connect(user), "SELECT length(once.fingerprint('{}'::jsonb))") == [(32,)]
    delivers(db, user)


def delivers(db, user):
    """All that the way out and the way in ask of PostgreSQL, which an owner without any privilege must be allowed."""
    connection = db.connect(user)
    emit(connection, "a")
    relay = Relay(connection, "works")
    assert relay.taken and relay.look().changed
    run(connection, "SELECT once_job.relay_flush()")
    (event,) = relay.fetch(relay.list())
    relay.park(parking(event, "dead"))
    assert run(connection, "SELECT state FROM once.outbox_summary()") == [("dead",)]
    assert len(run(connection, "SELECT * FROM once.parked_list()")) == 1
    assert run(connection, "SELECT once.parked_show(%s::text) IS NOT NULL", event.event_id) == [(True,)]
    assert run(connection, "SELECT once.parked_retry(%s::text, 'why')", event.event_id) == [(True,)]
    relay.settle(delivered=[event.id])
    run(connection, "SELECT pg_advisory_unlock_all(), once.retire_outbox(1)")
    run(connection, "SELECT once.relay_adopt('works', 'why', false)")
    run(connection, "SELECT once.drop_relay('works', 'why')")
    assert run(connection, "SELECT verdict FROM once.receive_many('c', ARRAY['m'], NULL, ARRAY['0123456789abcdef'::bytea])") == [
        ("process",)
    ]


def test_the_script_installs_a_working_contract(empty):
    empty.install()
    works(empty)
    migrations = empty.rows("SELECT version, checksum FROM once.migration ORDER BY version")
    assert [row.version for row in migrations] == [0, 1]
    assert all(len(row.checksum) == 64 for row in migrations)


@pytest.mark.parametrize(
    "place",
    [
        "CREATE TYPE once.verification",
        "CREATE TABLE once.outbox",
        "CREATE TABLE once.parked_message",
        "once.claim_many(",
        "DO $$",
        "SELECT once.add_days();",
        "COMMIT;",
    ],
)
def test_an_error_in_the_middle_leaves_nothing(empty, place):
    script = install_script()
    position = script.rindex(place)
    statement = max(script.rfind("\nCREATE", 0, position), script.rfind(";\n", 0, position)) + 1
    connection = empty.connect()
    with refused("22012", "42601"):
        run(
            connection,
            script[:statement].replace("%", "%%") and script[:statement] + "\n; SELECT 1/0;\n" + script[statement:],
        )
    connection.rollback()
    assert not exists(empty)
    empty.install()
    works(empty)


def test_a_connection_lost_in_the_middle_leaves_nothing(empty):
    connection = empty.connect()
    run(connection, install_script().replace("COMMIT;", "SELECT 1;"))
    assert not exists(empty)
    connection.close()
    assert not exists(empty)


def test_a_second_installation_is_refused_and_harms_nothing(empty):
    empty.install()
    Once(empty.connect()).finish_new(key="k", response_body=b"a")
    connection = empty.connect()
    with refused("42P06"):
        run(connection, install_script())
    run(connection, "ROLLBACK")
    assert Once(connection).start(key="k").response_body == b"a"


def test_two_databases_of_a_cluster_know_nothing_of_each_other(server):
    first, second = server.empty_database(), server.empty_database()
    first.install()
    second.install()
    Once(first.connect()).finish_new(key="k")
    assert Once(second.connect()).start(key="k").verdict == "proceed"
    works(second)
    first.drop()
    second.drop()


def test_an_ordinary_owner_installs_it_where_the_roles_exist_already(server, empty):
    server.new_database().close()  # so the roles exist
    if not empty.rows("SELECT 1 FROM pg_roles WHERE rolname = 'plain_owner'"):
        empty.execute("CREATE ROLE plain_owner LOGIN")
    empty.execute(f"ALTER DATABASE {empty.name} OWNER TO plain_owner")
    empty.install("plain_owner")
    works(empty, "plain_owner")
    assert empty.value("SELECT has_function_privilege('once_app', 'once.any_tenant()', 'execute')")


def test_an_ordinary_owner_without_createrole_installs_it_where_no_role_exists_and_is_told():
    """A cluster of its own: roles belong to the cluster."""
    with Postgres() as server:
        admin = server.connect()
        run(admin, "CREATE ROLE plain_owner LOGIN NOCREATEROLE NOCREATEDB NOSUPERUSER")
        db = server.empty_database("plain_owner")
        notices = db.install("plain_owner")
        for role in ("once_app", "once_tenant", "once_relay", "once_keeper", "once_support", "once_reader", "once_admin"):
            assert sum(f"role {role} is missing" in notice for notice in notices) == 1
        works(db, "plain_owner")
        assert db.value("SELECT count(*) FROM pg_roles WHERE rolname LIKE 'once%%'") == 0
        assert db.value("SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'once'") == "plain_owner"
        run(admin, "CREATE ROLE stranger LOGIN")
        with refused("42501"):
            run(db.connect("stranger"), "SELECT once.start('s', 'k', %s)", PRINT)
        db.close()
        admin.close()


def test_nothing_of_the_contract_is_executable_or_readable_by_public(db):
    granted = db.rows(
        "SELECT p.oid::regprocedure::text AS name FROM pg_proc AS p, aclexplode(coalesce(p.proacl, acldefault('f',"
        " p.proowner))) AS a WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace) AND a.grantee = 0"
    )
    assert granted == []
    relations = db.rows(
        "SELECT c.relkind, a.grantee::regrole::text AS grantee, a.privilege_type AS may FROM pg_class AS c,"
        " aclexplode(c.relacl) AS a WHERE c.relnamespace = 'once'::regnamespace AND a.grantee <> c.relowner"
    )
    # Views are there to be read, by those who may see every tenant; the outbox, by the client of a replication slot.
    assert set(relations) == {("v", "once_reader", "SELECT"), ("v", "once_admin", "SELECT"), ("p", "once_capture", "SELECT")}


@pytest.mark.skipif(not COMMAND.exists(), reason="the command is not built")
def test_the_command_installs_the_same_contract(empty):
    environment = {**clean_environment(), "PGONCE_TEST": "1"}
    subprocess.run(
        [str(COMMAND), "init", "--dsn", empty.dsn()],
        env=environment,
        check=True,
        capture_output=True,
        timeout=60,
        cwd=os.path.dirname(COMMAND),
    )
    works(empty)
