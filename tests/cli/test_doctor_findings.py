# SPDX-License-Identifier: PostgreSQL
"""pgonce doctor, check by check: each speaks where there is something to say. That each is silent where all is well is shown by the
fresh installation of test_doctor.py, and by the pairs below where that installation has nothing to be silent about."""
import contextlib
import re
import shutil
import signal
import subprocess

import psycopg2
import pytest

from contract.calls import Once, now_ms, run, uuid7
from harness.postgres import PORT, Postgres, clean_environment, private_directory, tied, unprivileged, wait_until

from .command import Command
from .test_doctor import OF_THE_TESTS, checks, not_ok

DAY = "((now() AT TIME ZONE 'UTC')::date - date '1970-01-01' + {})"


def drop_day(parent, offset):
    return f"DO $$ BEGIN EXECUTE format('DROP TABLE once.{parent}_d%s', {DAY.format(offset)}); END $$"


def set_for_database(setting):
    return f"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET {setting}', current_database()); END $$"


RELAY = """INSERT INTO once.relay (relay, written_by, seen, started_at, progressed_at)
           SELECT 'shop', {}, '3:3:', now(), now()"""
EVENT = "SELECT once.emit('orders', '{}', event_type => 'placed')"
PARKED_EVENT = """INSERT INTO once.parked_event (relay, id, xid, day, event_id, topic, tenant, state, attempts, next_at, parked_at, updated_at)
                  SELECT 'shop', o.id, o.xid, o.day, o.event_id, o.topic, '', 'dead', 9, 'infinity', now(), now() FROM once.outbox AS o"""
PARKED_MESSAGE = """INSERT INTO once.parked_message (consumer, tenant, message_id, topic, fingerprint, state, next_at, parked_at, updated_at)
                    VALUES ('mailer', '', 'm1', 'orders', '\\x00', '{}', 'infinity', now() - interval '1 hour', now())"""
SWEPT = "INSERT INTO once.swept (scope, stale, in_doubt, oldest_stale, as_of) VALUES ('pay', {}, {}, now() - interval '2 hours', now())"

# What the counters have counted.
COUNTED = "SELECT setval('once.counted_{1}', {0})"


# Harms that leave each other alone share a database: (check, level that it must find, harm).
HARMS = {
    "owner and settings": [
        ("partitions", "failed", "DROP TABLE once.intent_d0"),
        ("one owner", "failed", "ALTER TABLE once.intent OWNER TO other_owner"),
        ("closed to PUBLIC", "failed", "GRANT EXECUTE ON FUNCTION once.resolve TO PUBLIC"),
        ("closed tables", "failed", "GRANT INSERT ON once.decision TO other_owner"),
        ("closed functions", "warning", "GRANT EXECUTE ON FUNCTION once_job.keep_step TO other_owner"),
        ("grants", "failed", "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA once FROM once_app"),
        ("contract", "failed", "UPDATE once.migration SET checksum = 'x' WHERE version = 0"),
        ("max_locks_per_transaction", "warning", "SELECT once.add_days(40)"),
        ("slots", "failed", "CREATE SEQUENCE once.slot_7_seq"),
        ("synchronous_commit", "warning", set_for_database("synchronous_commit = off")),
        ("default isolation", "warning", set_for_database("default_transaction_isolation = ''serializable''")),
        ("writable", "failed", set_for_database("default_transaction_read_only = on")),
    ],
    "storage and what waits": [
        ("closed to PUBLIC", "failed", "GRANT SELECT ON once.intent TO PUBLIC"),
        ("closed tables", "warning", "GRANT SELECT ON once.intent TO other_owner"),
        ("closed functions", "failed", 'CREATE ROLE "other one"; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA once TO "other one"'),
        ("grants", "failed", "REVOKE USAGE ON SCHEMA once_job FROM once_relay"),
        ("contract", "failed", "UPDATE once.migration SET checksum = 'x' WHERE version = 1"),
        ("fillfactor", "warning", "ALTER TABLE once.intent_d0 RESET (fillfactor)"),
        ("autovacuum of partitions", "warning", "ALTER TABLE once.intent_d0 SET (autovacuum_enabled = off)"),
        ("collation", "failed", "UPDATE pg_attribute SET attcollation = 'pg_catalog.\"POSIX\"'::regcollation WHERE attrelid = 'once.archive'::regclass"
         " AND attname = 'key'"),
        ("closing days", "warning", "INSERT INTO once.closing (day, started_at) VALUES (19000, now() - interval '2 days')"),
        ("consumers behind", "warning", "INSERT INTO once.consumer_position VALUES ('mailer', '', 'p0', now() - interval '1 day', now())"),
        ("keeper", "failed", "INSERT INTO once.keeper_step (step, last_started, last_success) SELECT 'days', at, at FROM (SELECT now()"
         " - interval '2 days' AS at) AS t"),
        ("keeper clock", "warning", "INSERT INTO once.clock (read_at, unsteady_since, why) VALUES (now(), now(), 'it leapt')"),
        ("foreign relays", "failed", RELAY.format("'1'")),
        ("messages behind", "warning", PARKED_MESSAGE.format("waiting")),
        ("keys of each attempt", "warning", COUNTED.format(10000, "new")),
        ("stale intents", "warning", SWEPT.format(3, 0)),
        ("partitions", "warning", drop_day("intent", -3)),
        ("days ahead", "warning", drop_day("outbox", 1)),
    ],
    "days, relays and indexes": [
        ("partitions", "warning", drop_day("intent", 0)),
        ("days ahead", "failed", f"{drop_day('intent', 1)}; SELECT setval('once.days_failed_seq', extract(epoch FROM now())::bigint)"),
        ("keeper steps", "failed", "SELECT once_job.keep_take('here'); SELECT once_job.keep_failed('here', 'days', '55P03', 'a lock')"),
        ("relays running", "warning", RELAY.format("pg_current_xact_id()::xid")),
        ("relays behind", "warning", f"{EVENT}; UPDATE once.outbox SET created_at = now() - interval '10 minutes'"),
        ("dead events", "warning", PARKED_EVENT),
        ("dead messages", "warning", PARKED_MESSAGE.format("dead")),
        ("keys too coarse", "warning", f"{COUNTED.format(10000, 'new')}; {COUNTED.format(200, 'mismatch')}"),
        ("in doubt", "warning", SWEPT.format(0, 2)),
        ("invalid indexes", "failed", "UPDATE pg_index SET indisvalid = false WHERE indrelid = 'once.decision'::regclass"),
        ("primary keys", "failed", "UPDATE pg_index SET indisprimary = false WHERE indrelid = 'once.intent_d0'::regclass"),
    ],
}


@pytest.mark.parametrize("group", HARMS)
def test_each_harm_is_found_and_said_what_to_do(pgonce, db, group):
    db.execute("DO $$ BEGIN CREATE ROLE other_owner; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    for _, _, harm in HARMS[group]:
        db.execute(harm)
    found = checks(pgonce, 1)
    for check, level, _ in HARMS[group]:
        assert found[check]["level"] == level and found[check]["advice"], found[check]


def test_what_others_may_execute_is_taken_back_by_what_the_finding_says(pgonce, db):
    db.execute("""DO $$ BEGIN CREATE ROLE "Acme's own"; EXCEPTION WHEN duplicate_object THEN NULL; END $$""")
    db.execute("""GRANT EXECUTE ON FUNCTION once.any_tenant, once.salt TO "Acme's own" """)
    found = checks(pgonce, 0)["closed functions"]
    assert (found["level"], found["found"]) == ("warning", "open: once.any_tenant() to Acme's own, once.salt(text) to Acme's own"), found
    db.execute(found["advice"].partition(": ")[0])
    found = checks(pgonce, 0)
    assert found["closed functions"]["level"] == "ok" and found["grants"]["level"] == "ok", found


def test_events_that_no_relay_takes_are_found(pgonce, db):
    db.execute("SELECT once.emit('mail', '1')")
    found = checks(pgonce, 0)["events without a relay"]
    assert found["level"] == "warning" and found["found"].startswith("1 of topic 'mail', the oldest of 20"), found
    db.execute(RELAY.format("pg_current_xact_id()::xid"))
    assert checks(pgonce, 0)["events without a relay"]["level"] == "ok"


def test_forgotten_finishes_are_found_where_calls_are_counted(pgonce, db):
    """What is replayed owes none, and a few that were rolled back are no reason to worry."""
    def found(text):
        wait_until(lambda: text in checks(pgonce, 0)["forgotten finishes"]["found"], text)
        return checks(pgonce, 0)["forgotten finishes"]["level"]

    db.execute(set_for_database("track_functions = pl"))
    for number in range(12):
        with contextlib.closing(db.connect(autocommit=False)) as connection:
            once = Once(connection)
            once.start(key=f"done {number % 3}")
            if number < 3:
                once.finish(key=f"done {number}")
            connection.commit()
    assert found("12 starts, 0 of them without") == "ok"
    for number in range(20):
        with contextlib.closing(db.connect(autocommit=False)) as connection:
            Once(connection).start(key=f"forgotten {number}")
            connection.commit()
    assert found("20 of 32 starts had neither") == "warning"
    db.execute(set_for_database("once.strict = on"))
    assert "P4013" in checks(pgonce, 0)["forgotten finishes"]["advice"]
    db.execute("SELECT pg_stat_reset()")
    assert found("once.strict is on") == "ok"


def test_warnings_do_not_fail(pgonce, db):
    db.execute(SWEPT.format(1, 1))
    assert set(not_ok(checks(pgonce, 0))) == set(OF_THE_TESTS) | {"stale intents", "in doubt"}


@pytest.mark.parametrize("counted", [{"new": 9999}, {"new": 50000, "replay": 1}, {"new": 50000, "retryable": 1, "mismatch": 99}])
def test_keys_as_they_should_be_are_well(pgonce, db, counted):
    for verdict, count in counted.items():
        db.execute(COUNTED.format(count, verdict))
    found = checks(pgonce, 0)
    assert found["keys of each attempt"]["level"] == found["keys too coarse"]["level"] == "ok"


def test_a_keeper_that_works_is_well(pgonce, db):
    db.execute("SELECT once_job.keep_take('here')")
    db.execute("SELECT once_job.keep_step('here', 'days')")
    assert checks(pgonce, 0)["keeper"]["level"] == "ok"


def test_a_relay_that_works_is_well(pgonce, db):
    relay = db.connect()
    with relay.cursor() as cursor:
        cursor.execute("SELECT taken FROM once_job.relay_take('shop')")
        assert cursor.fetchone()[0]
    found = checks(pgonce, 0)
    assert {found[check]["level"] for check in ("relays running", "relays behind", "foreign relays", "dead events")} == {"ok"}
    relay.close()
    wait_until(lambda: checks(pgonce, 0)["relays running"]["level"] == "warning", "the relay's lock to be gone")


def test_dead_rows_are_found_until_they_are_vacuumed(pgonce, db):
    db.execute("INSERT INTO once.intent SELECT now(), now(), now(), NULL, NULL, 0, 1, 1, NULL, 'succeeded', 1, '', 's', n::text, '\\x00'"
               " FROM generate_series(1, 12000) AS n")
    db.execute("DELETE FROM once.intent")
    db.close()  # what a session counted is told at its end
    wait_until(lambda: checks(pgonce, 0)["dead rows"]["level"] == "warning", "the statistics")
    db.execute("VACUUM once.intent_d0")
    db.close()
    wait_until(lambda: checks(pgonce, 0)["dead rows"]["level"] == "ok", "the statistics")


def test_a_pending_detach_is_found(pgonce, db, server):
    if server.version < 14:
        pytest.skip("DETACH CONCURRENTLY is of PostgreSQL 14")
    db.execute(f"UPDATE pg_inherits SET inhdetachpending = true WHERE inhrelid = ('once.intent_d' || {DAY.format(-7)})::regclass")
    assert checks(pgonce, 0)["pending detach"]["level"] == "warning"


def test_open_transactions_are_found_by_their_age(pgonce, db):
    assert checks(pgonce, 0)["long transactions"]["level"] == "ok"
    other = db.connect(autocommit=False)
    other.cursor().execute("SELECT 1")
    assert checks(pgonce, 0)["long transactions"]["level"] == "ok"
    found = checks(pgonce, 0, "--transaction-max", "0s")
    assert found["long transactions"]["level"] == found["idle in transaction"]["level"] == "warning"
    assert f"pid {other.info.backend_pid}" in found["idle in transaction"]["found"]
    other.rollback()
    with other.cursor() as cursor:
        cursor.execute("INSERT INTO effect VALUES ('prepared', 1)")
        cursor.execute("PREPARE TRANSACTION 'forgotten'")
    other.commit()
    try:
        assert checks(pgonce, 0)["prepared transactions"]["level"] == "ok"
        row = checks(pgonce, 0, "--transaction-max", "0s")["prepared transactions"]
        assert row["level"] == "warning" and "forgotten" in row["found"]
    finally:
        db.execute("ROLLBACK PREPARED 'forgotten'")


def test_a_role_that_is_missing_is_found(pgonce, db):
    db.execute("ALTER ROLE once_tenant RENAME TO once_tenant_away")
    try:
        row = checks(pgonce, 0)["roles"]
        assert row["level"] == "warning" and "once_tenant" in row["found"]
    finally:
        db.execute("ALTER ROLE once_tenant_away RENAME TO once_tenant")


@pytest.fixture(scope="module")
def other():
    """As the tests' server is not: durable and vacuumed, but small, and old at 100,000 transactions."""
    settings = {"autovacuum": "on", "autovacuum_naptime": "1h", "max_connections": "14", "superuser_reserved_connections": "3",
                "max_wal_senders": "4", "autovacuum_freeze_max_age": "100000", "idle_in_transaction_session_timeout": "10min",
                "max_locks_per_transaction": "128"}
    with Postgres(fsync=True, settings=settings) as server:
        yield server


@pytest.fixture
def there(other, tmp_path):
    database = other.new_database()
    yield database, Command(database.dsn(), tmp_path)
    database.drop()


def test_a_durable_server_is_well(there):
    assert not_ok(checks(there[1], 0)) == {name: level for name, level in OF_THE_TESTS.items() if name.startswith(("keeper", "retention", "stale", "in doubt", "forgotten"))}


def open_attempts(database, most):
    """How many sessions, most at most, can have an attempt open that no session has planned before, with a key of yesterday: one of today locks one
    partition; what stops the next."""
    connections = [database.connect() for _ in range(most)]
    for number, connection in enumerate(connections):
        try:
            run(connection, "BEGIN")
            Once(connection).start(key=uuid7(now_ms(database) - 86_400_000, number))
            Once(connection).emit(topic="t", payload="{}", scope="orders", key=f"k{number}")
        except psycopg2.Error as error:
            return number, error.pgcode
    return most, None


def test_a_long_horizon_needs_as_many_locks_as_the_finding_says(tmp_path):
    # A server without other places for locks: each setting here would add some.
    settings = {"max_connections": "12", "superuser_reserved_connections": "1", "max_locks_per_transaction": "64", "max_worker_processes": "1",
                "max_wal_senders": "0", "autovacuum_max_workers": "1", "max_prepared_transactions": "0"}
    with Postgres(settings=settings) as server:
        database = server.new_database()
        database.execute("SELECT once.set_keeping(horizon_days => 360)")
        database.execute("SET statement_timeout = 0")
        for days in [50] * 7 + [3]:  # one transaction with all of them would itself take too many locks
            database.execute("UPDATE once.setting SET closed_before = closed_before - %s", days)
            database.execute("SELECT once.add_days()")
        database.close()
        row = checks(Command(database.dsn(), tmp_path), 0)["max_locks_per_transaction"]
        assert row["level"] == "warning" and "53200" in row["advice"]
        room = int(re.search(r"room for (\d+) open attempts", row["found"])[1])
        most, why = open_attempts(database, 9)
        assert room <= most < 9 and why == "53200", row
        wanted = re.search(r"max_locks_per_transaction = (\d+)", row["advice"])[1]
        database.close()
        server.settings["max_locks_per_transaction"] = wanted
        server.configure()
        server.restart()
        row = checks(Command(database.dsn(), tmp_path), 0)["max_locks_per_transaction"]
        assert row["level"] == "ok", row
        assert open_attempts(database, 9) == (9, None)


def test_connections_that_run_out_are_found(there):
    database, pgonce = there
    taken = [database.connect() for _ in range(10)]
    row = checks(pgonce, 0)["connections"]
    assert row["level"] == "warning" and "of 11 are taken" in row["found"]
    for connection in taken:
        connection.close()
    wait_until(lambda: checks(pgonce, 0)["connections"]["level"] == "ok", "the connections to be closed")


def test_a_slot_that_nobody_reads_is_found(there):
    database, pgonce = there
    database.execute("SELECT pg_create_physical_replication_slot('unread', true)")
    try:
        row = checks(pgonce, 0)["replication slots"]
        assert row["level"] == "warning" and "unread" in row["found"]
    finally:
        database.execute("SELECT pg_drop_replication_slot('unread')")
    assert checks(pgonce, 0)["replication slots"]["level"] == "ok"


def test_a_standby_that_holds_back_cleaning_is_found(there, other):
    database, pgonce = there
    assert checks(pgonce, 0, "--held-max", "0")["standby feedback"]["level"] == "ok"
    with Standby(other) as standby:
        reader = standby.connect(database.name)
        with reader.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT count(*) FROM pg_class")
        wait_until(lambda: database.value("SELECT count(backend_xmin) FROM pg_stat_replication") == 1, "the standby's word")
        for _ in range(20):
            database.execute("INSERT INTO once.transition VALUES ('processing', 'x', 'in_doubt', 'y') ON CONFLICT DO NOTHING")
            database.execute("DELETE FROM once.transition WHERE event = 'x'")
        assert checks(pgonce, 0)["standby feedback"]["level"] == "ok"
        wait_until(lambda: checks(pgonce, 0, "--held-max", "5")["standby feedback"]["level"] == "warning", "it to fall behind")
        reader.close()


class Standby:
    """A hot standby with feedback."""

    def __init__(self, primary):
        self.directory = private_directory("pgonce-standby-")
        bindir = primary.bindir
        subprocess.run([bindir / "pg_basebackup", "-h", primary.directory, "-p", str(PORT), "-U", "postgres", "-D", self.directory / "data", "-R",
                        "--checkpoint=fast", "--no-sync", "-X", "stream"], check=True, env=clean_environment(), cwd="/tmp", capture_output=True,
                       **unprivileged()[0])
        with open(self.directory / "data/postgresql.conf", "a", encoding="utf-8") as conf:
            conf.write(f"unix_socket_directories = '{self.directory}'\nhot_standby_feedback = on\nwal_receiver_status_interval = 1s\n")
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(tied([bindir / "postgres", "-D", self.directory / "data", "-p", str(PORT)]), stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL, env=clean_environment(), cwd="/tmp", **unprivileged()[0])

    def __enter__(self):
        wait_until(lambda: self.connects("postgres"), "the standby")
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(60)
        shutil.rmtree(self.directory, ignore_errors=True)

    def connects(self, dbname):
        try:
            self.connect(dbname).close()
            return True
        except psycopg2.OperationalError:
            return False

    def connect(self, dbname):
        connection = psycopg2.connect(f"host={self.directory} port={PORT} dbname={dbname} user=postgres")
        connection.autocommit = True
        return connection


def test_transaction_ids_that_run_out_are_found(there):
    database, pgonce = there
    assert checks(pgonce, 0)["wraparound"]["level"] == "ok"
    # Nobody can freeze what this one might still see.
    holder = database.connect(autocommit=False)
    holder.cursor().execute("INSERT INTO once.transition VALUES ('processing', 'held', 'in_doubt', 'y')")
    database.execute("SET statement_timeout = 0")
    database.execute("""DO $$ BEGIN
        CREATE TEMP TABLE burnt (n integer);
        FOR n IN 1 .. 155000 LOOP
            BEGIN INSERT INTO burnt VALUES (n); EXCEPTION WHEN division_by_zero THEN NULL; END;
        END LOOP; END $$""")
    assert checks(pgonce, 0)["wraparound"]["level"] == "warning"
    holder.rollback()


@pytest.mark.parametrize("forced, level", [(True, "failed"), (False, "warning")])
def test_row_security_on_a_table_of_the_contract_is_found(pgonce, db, forced, level):
    db.execute("ALTER TABLE once.intent ENABLE ROW LEVEL SECURITY")
    if forced:
        db.execute("ALTER TABLE once.intent FORCE ROW LEVEL SECURITY")
    row = checks(pgonce, forced)["row security"]
    assert row["level"] == level and "intent" in row["found"] and "NO FORCE" in row["advice"]
    db.execute("ALTER TABLE once.intent NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY")
    assert checks(pgonce, 0)["row security"]["level"] == "ok"


@pytest.mark.parametrize("table", ["decision", "intent_d0"])
def test_a_table_without_a_replica_identity_is_found(pgonce, db, table):
    db.execute(f"ALTER TABLE once.{table} REPLICA IDENTITY NOTHING")
    row = checks(pgonce, 1)["replica identity"]
    assert row["level"] == "failed" and table in row["found"] and "FULL" in row["advice"]


def test_a_divided_node_is_told_and_so_is_one_that_has_lost_its_guard(pgonce, db):
    assert checks(pgonce, 0)["slots"]["found"] == "not divided: this node serves every tenant"
    db.execute("CALL once.divide(true)")
    db.execute("SELECT once_job.close_slot(3)")
    assert checks(pgonce, 0)["slots"]["found"] == "63 of 64 are open here"
    db.execute("CREATE OR REPLACE FUNCTION once._serves(tenant text) RETURNS boolean LANGUAGE sql AS ' SELECT true '")  # as a restored extension has it
    row = checks(pgonce, 1)["slots"]
    assert row["level"] == "failed" and "once.divide()" in row["advice"]
    db.execute("CALL once.divide()")
    assert checks(pgonce, 0)["slots"]["found"] == "63 of 64 are open here"
    db.execute("DROP SEQUENCE once.slot_5_seq")
    row = checks(pgonce, 1)["slots"]
    assert row["level"] == "failed" and row["found"].startswith("1 of 64 sequences") and "epoch" in row["advice"]
