# SPDX-License-Identifier: PostgreSQL
"""pgonce init: one transaction, idempotent, and it refuses what it cannot put right.

Broken on purpose and seen to fail: without SQL_INSTALL_LOCK the inits of test_two_inits_at_once collide; without the BEGIN of
install_contract test_a_failed_init_leaves_nothing fails; without the comparison of checksums in judge_migrations the changed
migration passes.
"""
import json

import psycopg2
import pytest

from contract.calls import Once, today
from harness.postgres import install_script

from .command import Command, ends
from .test_doctor import checks


def everything(database):
    """What there is in the schemas once and once_job, with the text of every function and every grant."""
    return database.rows("""
        SELECT p.oid::regprocedure::text, md5(p.prosrc), p.proacl::text FROM pg_proc AS p WHERE p.pronamespace IN (to_regnamespace('once'), to_regnamespace('once_job'))
        UNION ALL SELECT n.nspname, obj_description(n.oid, 'pg_namespace'), n.nspacl::text FROM pg_namespace AS n WHERE n.nspname IN ('once', 'once_job')
        UNION ALL SELECT c.relname, c.relkind::text, c.relacl::text FROM pg_class AS c WHERE c.relnamespace = to_regnamespace('once')
        ORDER BY 1, 2""")


def test_print_is_the_script_that_the_tool_prints(offline):
    done = offline("init", "--print")
    assert done.returncode == 0
    assert done.stdout.decode() == install_script()


def test_init_installs_what_the_script_installs(bare, empty, db):
    done = bare("init")
    assert done.returncode == 0, done.stderr
    assert b"installed" in done.stdout
    assert everything(empty) == everything(db)
    assert empty.rows("SELECT version, name, checksum, pgonce FROM once.migration ORDER BY version") == \
        db.rows("SELECT version, name, checksum, pgonce FROM once.migration ORDER BY version")


def test_init_again_changes_nothing(bare, empty):
    assert bare("init").returncode == 0
    before = everything(empty), empty.rows("SELECT * FROM once.migration ORDER BY version")
    done = bare("init", "--json")
    assert done.returncode == 0
    told = json.loads(done.stdout)
    assert (told["result"], told["migrations_run"], told["functions_replaced"]) == ("current", 0, False)
    assert (everything(empty), empty.rows("SELECT * FROM once.migration ORDER BY version")) == before


def test_init_adds_days_that_are_missing(pgonce, db):
    db.execute(f"DROP TABLE once.outbox_d{today(db)}")
    told = json.loads(pgonce("init", "--json").stdout)
    assert (told["result"], told["partitions_added"]) == ("current", 1)


def test_two_inits_at_once_both_succeed(bare, empty):
    processes = [bare.start("init") for _ in range(6)]
    results = [ends(process) for process in processes]
    assert [status for status, _, _ in results] == [0] * 6, results
    assert sum(b" installed " in out for _, out, _ in results) == 1
    assert empty.value("SELECT count(*) FROM once.migration WHERE version = 0") == 1


def test_changed_functions_are_replaced_with_their_grants(pgonce, db):
    db.execute("CREATE OR REPLACE FUNCTION once.any_tenant() RETURNS void LANGUAGE sql AS $$ SELECT $$")
    db.execute("GRANT EXECUTE ON FUNCTION once.any_tenant() TO PUBLIC")
    db.execute("UPDATE once.migration SET checksum = 'of an older one', pgonce = '0.9.0' WHERE version = 0")
    told = json.loads(pgonce("init", "--json").stdout)
    assert (told["result"], told["functions_replaced"]) == ("upgraded", True)
    assert db.value("SELECT provolatile FROM pg_proc WHERE oid = 'once.any_tenant()'::regprocedure") == "i"
    assert db.value("SELECT proacl::text NOT LIKE '%%{=X%%' AND proacl::text NOT LIKE '%%,=X%%' FROM pg_proc "
                    "WHERE oid = 'once.any_tenant()'::regprocedure")
    assert db.value("SELECT pgonce FROM once.migration WHERE version = 0") != "0.9.0"


@pytest.mark.parametrize("gap", [
    "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA once FROM once_keeper",  # as where the role is made after the first init
    "DROP FUNCTION once.renew(text, text, integer, interval, text)",
    "REVOKE USAGE ON SCHEMA once_job FROM once_consumer",
    "DROP SCHEMA once_job CASCADE",  # as after a restore of the schema once alone
])  # fmt: skip
def test_init_again_grants_what_roles_lack_and_makes_a_function_that_is_gone(pgonce, db, gap):
    """As doctor advises where it finds that."""
    before = everything(db)
    db.execute(gap)
    assert checks(pgonce, 1)["grants"]["level"] == "failed"
    told = json.loads(pgonce("init", "--json").stdout)
    assert (told["result"], told["functions_replaced"]) == ("upgraded", True)
    assert checks(pgonce, 0)["grants"]["level"] == "ok"
    assert sorted(everything(db)) == sorted(before)


def test_who_may_not_make_a_schema_is_told_what_right_that_is(empty):
    empty.execute("CREATE ROLE stranger_of_the_database LOGIN")
    try:
        done = Command(empty.dsn("stranger_of_the_database"))("init")
        assert done.returncode == 1 and b"nothing was changed" in done.stderr and b"42501" in done.stderr
        assert b"hint: connect as the owner of the database, or have them grant this role CREATE on it" in done.stderr
    finally:
        empty.execute("DROP ROLE stranger_of_the_database")


def refused(command, database, *words):
    before = everything(database)
    done = command("init")
    assert done.returncode == 4, done
    assert done.stdout == b""
    for word in words:
        assert word in done.stderr.decode()
    assert everything(database) == before


def test_a_foreign_schema_is_refused(bare, empty):
    empty.execute("CREATE SCHEMA once")
    empty.execute("CREATE TABLE once.upon (a_time integer)")
    refused(bare, empty, "not pgonce's", "hint:")


@pytest.mark.parametrize("made", ["CREATE TABLE once_job.mine (a integer)", "CREATE FUNCTION once_job.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'"])
def test_a_foreign_schema_for_the_jobs_is_refused_and_left_alone(bare, empty, made):
    empty.execute(f"CREATE SCHEMA once_job; {made}")
    refused(bare, empty, 'a schema "once_job" exists that is not pgonce\'s', "nothing was changed", "hint: Rename that schema")
    assert empty.value("SELECT to_regnamespace('once') IS NULL")


def test_a_schema_for_the_jobs_that_belongs_to_another_is_refused(bare, empty):
    """It may drop and replace what is in it, which runs with the rights of who calls it."""
    empty.execute("CREATE ROLE other_of_jobs; CREATE SCHEMA once_job AUTHORIZATION other_of_jobs")
    try:
        refused(bare, empty, "not pgonce's", "hint:")
    finally:
        empty.execute("DROP SCHEMA once_job; DROP ROLE other_of_jobs")


def test_a_superuser_makes_the_schema_of_the_jobs_anew_for_its_owner(server, tmp_path):
    admin = server.empty_database()
    admin.execute("CREATE ROLE owner_of_jobs LOGIN")
    owned = server.empty_database(owner="owner_of_jobs")
    try:
        assert Command(owned.dsn("owner_of_jobs"), tmp_path)("init").returncode == 0
        owned.execute("DROP SCHEMA once_job CASCADE")
        for _ in range(2):
            assert Command(owned.dsn(), tmp_path)("init").returncode == 0
        assert owned.value("SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'once_job'") == "owner_of_jobs"
    finally:
        owned.drop()
        admin.execute("DROP ROLE owner_of_jobs")
        admin.drop()


def test_what_was_left_of_the_jobs_is_replaced(bare, empty, db):
    assert bare("init").returncode == 0
    empty.execute("DROP SCHEMA once CASCADE")
    assert empty.value("SELECT count(*) > 0 FROM pg_proc WHERE pronamespace = 'once_job'::regnamespace")
    assert bare("init").returncode == 0
    assert everything(empty) == everything(db)


def test_a_newer_contract_is_refused(pgonce, db):
    db.execute("INSERT INTO once.migration (version, name, checksum, pgonce) VALUES (99, '0099_later', 'x', '9.0.0')")
    refused(pgonce, db, "migration 99 (0099_later) of pgonce 9.0.0", "newer pgonce")


def test_newer_functions_are_refused(pgonce, db):
    db.execute("UPDATE once.migration SET checksum = 'x', pgonce = '1.10.0' WHERE version = 0")
    refused(pgonce, db, "pgonce 1.10.0")


@pytest.mark.parametrize("newer", [
    "INSERT INTO once.migration (version, name, checksum, pgonce) VALUES (99, '0099_later', 'x', '9.0.0')",
    "UPDATE once.migration SET checksum = 'x', pgonce = '1.10.0' WHERE version = 0",
])  # fmt: skip
def test_a_newer_contract_stays_as_it_is_and_is_no_failure_if_init_is_told_so(pgonce, db, newer):
    db.execute(newer)
    before = everything(db), db.rows("SELECT * FROM once.migration ORDER BY version")
    done = pgonce("init", "--accept-newer")
    assert (done.returncode, done.stderr) == (0, b"") and b"newer than this pgonce" in done.stdout and b"nothing was changed" in done.stdout
    told = json.loads(pgonce("init", "--accept-newer", "--json").stdout)
    assert told["result"] == "newer" and told["contract"] >= 1
    assert (everything(db), db.rows("SELECT * FROM once.migration ORDER BY version")) == before


def test_who_accepts_a_newer_contract_still_installs_and_refuses_the_rest(pgonce, bare, empty, db):
    assert bare("init", "--accept-newer").returncode == 0 and everything(empty) == everything(db)
    db.execute("UPDATE once.migration SET checksum = 'x' WHERE version = 1")
    assert pgonce("init", "--accept-newer").returncode == 4
    for other in (("--print",), ("--join", "dbname=x")):
        assert pgonce("init", "--accept-newer", *other).returncode == 2


def test_a_changed_migration_is_refused_by_name(pgonce, db):
    db.execute("UPDATE once.migration SET checksum = 'x' WHERE version = 1")
    refused(pgonce, db, "migration 1 (tables)", "another checksum")


def test_a_role_that_may_not_look_is_told_so(pgonce, db):
    db.execute("CREATE ROLE stranger_of_init LOGIN")
    try:
        done = Command(db.dsn("stranger_of_init"))("init")
        assert done.returncode == 1
        assert b"owner is postgres" in done.stderr
    finally:
        db.execute("DROP ROLE stranger_of_init")


def test_a_failed_init_leaves_nothing(bare, empty):
    # An event trigger fails the installation near its end, after tables, functions and grants.
    empty.execute("""CREATE FUNCTION public.fail_late() RETURNS event_trigger LANGUAGE plpgsql AS $$
        BEGIN IF to_regprocedure('once.try_lock(text)') IS NOT NULL THEN RAISE EXCEPTION 'disk full, say'; END IF; END $$""")
    empty.execute("CREATE EVENT TRIGGER late ON ddl_command_end EXECUTE FUNCTION public.fail_late()")
    done = bare("init")
    assert done.returncode == 1
    assert b"nothing was changed" in done.stderr and b"disk full, say" in done.stderr and b"P0001" in done.stderr
    assert empty.value("SELECT to_regnamespace('once') IS NULL")
    empty.execute("DROP EVENT TRIGGER late")
    assert bare("init").returncode == 0


def test_an_ordinary_owner_can_install(server, tmp_path):
    admin = server.empty_database()
    admin.execute("CREATE ROLE ordinary_installer LOGIN")
    owned = server.empty_database(owner="ordinary_installer")
    try:
        # The roles of the contract are there already in this server, and the owner may grant to them.
        done = Command(owned.dsn("ordinary_installer"), tmp_path)("init")
        assert done.returncode == 0, done.stderr
        assert Command(owned.dsn("ordinary_installer"), tmp_path)("init").returncode == 0
    finally:
        owned.drop()
        admin.execute("DROP ROLE ordinary_installer")
        admin.drop()


def test_a_database_whose_default_isolation_is_serializable(bare, empty):
    empty.execute(f"ALTER DATABASE {empty.name} SET default_transaction_isolation = 'serializable'")
    processes = [bare.start("init") for _ in range(4)]
    assert [ends(process)[0] for process in processes] == [0] * 4


@pytest.fixture
def first(db):
    """A node with policies and bindings, divided, all slots open."""
    db.execute("SELECT once.set_scope('pay', lease => '7 seconds', max_attempts => 3), once.set_keeping(horizon_days => 3, clock_skew => '1 minute')")
    db.execute("INSERT INTO once.binding VALUES ('nobody_here', 'acme')")
    db.execute("CALL once.divide(true)")
    return db


def common(database):
    """What nodes have in common."""
    return database.value("SELECT once._node()")


def slots(database):
    return [tuple(row) for row in database.rows("SELECT count(*) FILTER (WHERE open) AS open, count(*) AS there FROM once.slots()")]


@pytest.mark.parametrize("installed", [False, True], ids=["a new database", "a database with a contract"])
def test_a_node_joins_with_what_all_have_in_common_and_no_slot(bare, empty, first, installed):
    if installed:
        assert bare("init").returncode == 0
    done = bare("init", "--join", first.dsn())
    assert done.returncode == 0, done.stderr
    assert b"joined, with no slot open: policies: 2, bindings: 1" in done.stdout and b"nobody_here" in done.stderr
    assert common(empty) == common(first) and slots(empty) == [(0, 64)] and slots(first) == [(64, 64)]
    assert empty.value("SELECT once.fingerprint('{}'::jsonb, 'acme')") == first.value("SELECT once.fingerprint('{}'::jsonb, 'acme')")
    days = "SELECT array_agg(d) FROM once._days('once.intent', 'intent_d') AS d WHERE d >= (SELECT closed_before FROM once.setting)"
    assert empty.value(days) == empty.value(days.split(" WHERE")[0]) and empty.value(days)[0] == first.value(days)[0]
    with pytest.raises(psycopg2.Error) as caught:
        Once(empty.connect(), tenant="acme").start(key="k")
    assert caught.value.pgcode == "P4097"
    first.execute("SELECT once_job.close_slot(once.slot_of('acme'))")
    empty.execute("SELECT once_job.open_slot(once.slot_of('acme'), 2)")
    assert Once(empty.connect(), tenant="acme").finish_new(key="k") == 1
    told = json.loads(bare("init", "--json", "--join", first.dsn()).stdout)
    assert told["joined"] == {"now": False, "policies": 2, "bindings": 1} and slots(empty) == [(1, 64)]
    assert json.loads(bare("init", "--json").stdout)["joined"] is None


def test_the_hash_of_tenants_comes_along(bare, empty, db):
    db.execute("CREATE OR REPLACE FUNCTION once.slot_of(tenant text) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT length($1) % 64'")
    db.execute("CALL once.divide(true)")
    assert bare("init", "--join", db.dsn()).returncode == 0
    assert empty.value("SELECT once.slot_of('abc')") == 3


@pytest.mark.parametrize("memory", [
    "SELECT once.finish_new('s', 'k', once.fingerprint('{}'::jsonb))", "SELECT once.emit('t', '{}')",
    "SELECT once.emit_later(now() + interval '1 day', 't', '{}')",
])  # fmt: skip
def test_a_database_that_remembers_something_does_not_join(bare, empty, first, memory):
    assert bare("init").returncode == 0
    empty.execute(memory)
    before = common(empty)
    done = bare("init", "--join", first.dsn())
    assert done.returncode == 1 and b"must remember nothing" in done.stderr and b"new database" in done.stderr
    assert common(empty) == before and slots(empty) == [(0, 0)]


def test_a_node_that_is_not_divided_cannot_be_joined(bare, empty, db):
    done = bare("init", "--join", db.dsn())
    assert done.returncode == 1 and b"not divided" in done.stderr and b"once.divide(true)" in done.stderr
    assert slots(empty) == [(0, 0)]


def test_a_node_of_other_nodes_joins_no_second_time(bare, empty, first):
    assert bare("init").returncode == 0
    empty.execute("CALL once.divide(true)")
    done = bare("init", "--join", first.dsn())
    assert done.returncode == 1 and b"another salt" in done.stderr and slots(empty) == [(64, 64)]


def test_a_node_with_another_contract_cannot_be_joined(bare, empty, first):
    first.execute("UPDATE once.migration SET checksum = 'x' WHERE version = 0")
    done = bare("init", "--join", first.dsn())
    assert done.returncode == 1 and b"another version" in done.stderr and slots(empty) == [(0, 0)]


def test_a_node_that_is_away_or_is_none_changes_nothing_here(bare, empty, server):
    done = bare("init", "--join", "host=/nowhere connect_timeout=2")
    assert done.returncode == 3 and empty.value("SELECT to_regnamespace('once') IS NULL")
    done = bare("init", "--join", "hots=db1")
    assert done.returncode == 2 and b"--join" in done.stderr
    other = server.empty_database()
    done = bare("init", "--join", other.dsn())
    assert done.returncode == 4 and empty.value("SELECT to_regnamespace('once') IS NULL"), done.stderr
    other.drop()
