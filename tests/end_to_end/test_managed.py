# SPDX-License-Identifier: PostgreSQL
"""As on a managed server, of which nobody gives us the superuser: the owner of the database is an ordinary role that may make no roles, and
EXECUTE is taken from PUBLIC on whatever tells of the server's log, its files or its control data. Everything works, and nothing is less durable."""

import json
import os

import pytest
from cli.command import Command
from contract.relaying import Relay as ContractRelay
from gateway.door import Door
from harness.postgres import Postgres, clean_environment, private_directory, unprivileged, wait_until
from harness.upstream import Upstream
from keeper.keeping import Keeper
from relay.running import Relay, emit

TAKEN = (
    "^(pg_control_|pg_current_wal_|pg_last_wal_|pg_last_xact_|pg_wal|pg_get_wal|pg_logical_|pg_ls_|pg_read_|pg_stat_file"
    "|pg_replication_|pg_create_|pg_copy_|pg_drop_|pg_switch_wal|pg_backup|pg_start_backup|pg_stop_backup|pg_is_in_backup|pg_promote"
    "|pg_export_snapshot|pg_rotate_|pg_reload_conf|pg_log_|pg_database_size|pg_tablespace_size|pg_terminate_backend|pg_cancel_backend|pg_sleep)"
)
TAKE = f"""
DO $$
DECLARE
    taken regprocedure;
BEGIN
    FOR taken IN SELECT p.oid FROM pg_proc AS p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname ~ '{TAKEN}' LOOP
        EXECUTE format('REVOKE EXECUTE ON ROUTINE %s FROM PUBLIC', taken);
    END LOOP;
END $$"""


@pytest.fixture(scope="module")
def managed():
    with Postgres(fsync=True) as server:
        admin = server.connect()
        admin.cursor().execute("CREATE ROLE master LOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB")
        admin.close()
        yield server


@pytest.fixture
def db(managed):
    database = managed.empty_database("master")
    database.execute(TAKE)
    yield database
    database.drop()


@pytest.fixture
def pgonce(db, tmp_path):
    command = Command(db.dsn("master"), tmp_path)
    done = command("init")
    assert done.returncode == 0, done.stderr
    return command


def run(connection, query, *values):
    with connection.cursor() as cursor:
        cursor.execute(query, values or None)
        return cursor.fetchall() if cursor.description is not None else []


def test_what_is_taken_is_gone(db):
    for call in ("pg_control_system()", "pg_logical_emit_message(true, 'x', 'x')", "pg_current_wal_lsn()", "pg_reload_conf()"):
        with pytest.raises(Exception, match="permission denied for function"):
            run(db.connect("master"), f"SELECT {call}")


def test_the_contract_and_every_command_work_for_a_plain_owner(db, pgonce, tmp_path):
    connection = db.connect("master")
    for call in (
        "SELECT * FROM once.start('orders', 'a', '0123456789abcdef')",
        "SELECT once.finish('orders', 'a', '0123456789abcdef', response_status => 201)",
        "SELECT once.emit('t', '{\"n\": 1}', scope => 'orders', key => 'a')",
    ):
        run(connection, "BEGIN" if "start" in call else "SELECT")
        run(connection, call)
    run(connection, "COMMIT")
    (claimed,) = run(connection, "SELECT fence FROM once.claim('orders', 'b', '0123456789abcdef')")
    assert run(connection, "SELECT once.complete('orders', 'b', %s)", claimed.fence) == [(True,)]
    assert run(connection, "SELECT verdict FROM once.receive_many('c', ARRAY['m'], NULL, ARRAY['0123456789abcdef'::bytea])") == [("process",)]
    keeper = Keeper(tmp_path, db.dsn("master"))
    assert keeper.once() == 0, keeper.text()
    relay = Relay(tmp_path, db.dsn("master"))
    assert relay.once() == 0, relay.err.read_text()
    assert len(relay.delivered()) == 1
    assert run(connection, "SELECT count(*) > 20 AS many FROM once.metrics()") == [(True,)]
    for words in (["show", "--scope", "orders", "--key", "a"], ["find", "--since", "1h"], ["stuck"], ["in-doubt"], ["top", "--json"],
                  ["parked", "list"], ["parked", "list", "--state", "pending"], ["recover"], ["init"]):  # fmt: skip
        done = pgonce(*words)
        assert done.returncode == 0 and b"permission denied" not in done.stderr, (words, done)


def test_doctor_looks_at_all_it_may_and_says_how_the_relay_flushes(db, pgonce):
    done = pgonce("doctor", "--json")
    found = {row["check"]: row for row in json.loads(done.stdout)["checks"]}
    # Of roles that an administrator has still to make, of other roles' sessions, and of what nobody has counted.
    assert {name for name, row in found.items() if row["level"] == "failed"} <= {"roles", "grants"}
    assert {name for name, row in found.items() if row["level"] == "skipped"} == {
        "long transactions", "idle in transaction", "keeper clock", "retention held", "stale intents", "in doubt", "forgotten finishes"
    }  # fmt: skip
    assert found["relay flush"]["found"].startswith("the server does not report")


def test_what_a_relay_has_flushed_survives_a_crash_though_its_producer_did_not_wait(managed, db, pgonce):
    contract = ContractRelay(db.connect("master"))
    contract.batch()
    writer, flushing = (db.connect("master", synchronous_commit="off") for _ in range(2))
    managed.hold_background()
    (event,) = emit(writer)
    look = contract.look()
    assert look.changed and not look.flushed
    run(flushing, "SELECT once_job.relay_flush()")
    managed.kill()
    db.close()
    managed.start()
    assert db.value("SELECT count(*) FROM once.outbox WHERE event_id = %s", event) == 1


@pytest.fixture
def passfile():
    """Libpq wants it to be its reader's alone; root reads it all the same."""
    directory = private_directory("pgonce-pass-")
    path = directory / "pass"
    path.touch(0o600)
    if unprivileged()[1] is not None:
        os.chown(path, unprivileged()[1].pw_uid, -1)
    yield path
    path.unlink()
    directory.rmdir()


def test_a_password_that_is_changed_in_its_file_is_taken_at_the_next_connect(managed, db, pgonce, passfile, tmp_path):
    """By a keeper, a relay and the gateway, without a restart or a reload."""
    admin = managed.connect()
    hba = managed.data / "pg_hba.conf"
    trusting = hba.read_text()

    def change(password):
        """As a managed server rotates it: whoever is connected stays so; here nobody does, so that all come again."""
        passfile.write_text(f"*:*:*:master:{password}\n")
        run(admin, "SET password_encryption = 'scram-sha-256'")
        run(admin, f"ALTER ROLE master PASSWORD '{password}'")
        run(admin, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'master'")

    def deliver():
        before = len(relay.delivered())
        run(admin_here, "SELECT once.emit('t', '{}')")
        relay.until_true(lambda: len(relay.delivered()) > before, "an event to be delivered")

    dsn = f"{db.dsn('master')} passfile={passfile}"
    admin_here = db.connect()
    keeper, relay = Keeper(tmp_path, dsn), Relay(tmp_path, dsn)
    try:
        hba.write_text("local all master scram-sha-256\n" + trusting)
        run(admin, "SELECT pg_reload_conf()")
        change("first")
        config = "location / { once on; once_scope pay; once_tenant $http_x_tenant; proxy_pass http://app; }"
        with keeper, relay, Upstream() as upstream, Door(db, upstream, config, dsn=dsn) as door:
            for number, password in enumerate((None, "second", "third")):
                if password:
                    change(password)
                rounds = len(keeper.log("step", step="days"))
                deliver()
                wait_until(lambda: len(keeper.log("step", step="days")) > rounds, "a round of the keeper")
                wait_until(lambda: door.attempt(f"k{number}").status == 201, "the gateway to answer")
                assert door.stored(f"k{number}").state == "succeeded"
    finally:
        hba.write_text(trusting)
        run(admin, "SELECT pg_reload_conf()")
        run(admin, "ALTER ROLE master PASSWORD NULL")
        admin.close()
    assert clean_environment().get("PGPASSWORD") is None
