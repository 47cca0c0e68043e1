# SPDX-License-Identifier: PostgreSQL
"""A database with an older contract and data in it becomes one with the present contract: by the command and by the
script. upgrade/version_N.sql is what version N installed. No database ever stayed at version 3: it came with 4."""

import hashlib
import os
import pathlib
import subprocess

import pytest

from harness.postgres import ROOT, clean_environment

from .calls import PRINT, Once, let_lease_pass, now_ms, refused, run, upgrade_script, uuid7
from .relaying import Relay
from .test_receive_many import receive_many

COMMAND = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build")) / "cli/pgonce"
OLD = pathlib.Path(__file__).parent / "upgrade"


def by_script(db):
    run(db.connect(), upgrade_script(db.contract))


def by_command(db):
    if not COMMAND.exists():
        pytest.skip("the command is not built")
    done = subprocess.run(
        [str(COMMAND), "init", "--dsn", db.dsn()],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(params=[1, 2, 4], ids=["version 1", "version 2", "version 4"])
def old(server, request):
    """A database at an older version, in use."""
    database = server.empty_database()
    database.contract = request.param
    run(database.connect(), (OLD / f"version_{request.param}.sql").read_text())
    once = Once(database.connect())
    once.finish(key="done", response_status=201, response_body=b"\x00\xff")
    once.finish(key=uuid7(now_ms(database)), response_body=b"today's")
    once.claim(key="running")
    once.receive(message_id="m")
    once.emit(topic="t", payload='{"n": 1}', aggregate_type="thing", aggregate_id="a", scope="orders", key="done")
    yield database
    database.drop()


OBJECTS = """
    SELECT p.oid::regprocedure::text || md5(p.prosrc || coalesce(p.proconfig::text, '')) || coalesce(p.proacl::text, '')
           || p.prorettype::regtype
      FROM pg_proc AS p WHERE p.pronamespace = 'once'::regnamespace
     UNION ALL
    SELECT a.attrelid::regclass || '.' || a.attname || format_type(a.atttypid, a.atttypmod) || a.attnotnull
           || coalesce(pg_get_expr(d.adbin, d.adrelid), '')
      FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
      LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE c.relnamespace = 'once'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
     UNION ALL
    SELECT pg_get_indexdef(i.indexrelid) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
     WHERE c.relnamespace = 'once'::regnamespace
     UNION ALL
    SELECT version || name || checksum FROM once.migration
     ORDER BY 1"""


@pytest.mark.parametrize("way", [by_script, by_command])
def test_an_old_database_becomes_what_a_new_one_is(old, db, way):
    way(old)
    assert old.rows(OBJECTS) == db.rows(OBJECTS)
    assert old.value("SELECT once.contract_version()") == db.value("SELECT once.contract_version()") == 5


@pytest.mark.parametrize("way", [by_script, by_command])
def test_an_upgrade_keeps_every_answer_and_the_event_that_nobody_could_publish_before(old, way):
    stored = old.rows("SELECT * FROM once.intent ORDER BY key")
    emitted = old.rows("SELECT * FROM once.outbox")
    salt = old.value("SELECT once.salt('t')")
    way(old)
    assert old.rows("SELECT * FROM once.intent ORDER BY key") == stored
    assert old.rows("SELECT * FROM once.outbox") == emitted
    assert old.value("SELECT once.salt('t')") == salt
    once = Once(old.connect())
    assert once.begin(key="done").response_body == b"\x00\xff"
    assert once.complete(key="running", fence=1) is True
    assert receive_many(old.connect(), ["m", "n"]) == ["duplicate", "process"]
    assert [event.event_id for event in Relay(old.connect()).batch()] == [emitted[0].event_id]


def test_a_session_that_was_open_during_the_upgrade_goes_on(old):
    """With the plans and the types that it had."""
    session = Once(old.connect())
    session.begin(key="done")
    event = session.emit(topic="t", payload="{}")
    by_script(old)
    assert session.begin(key="done").response_body == b"\x00\xff"
    assert session.receive(message_id="m2", fingerprint=PRINT) == "process"
    relay = Relay(old.connect())
    second = session.emit(topic="t", payload="{}")
    assert [each.event_id for each in relay.batch()][1:] == [event, second]


def test_an_upgrade_that_fails_leaves_the_old_contract(old):
    before = old.rows(OBJECTS)
    connection = old.connect()
    script = upgrade_script(old.contract)
    with refused("22012"):
        run(connection, script.replace("\nCOMMIT;", "\nSELECT 1/0;\nCOMMIT;"))
    connection.rollback()
    assert old.rows(OBJECTS) == before


def test_a_verify_function_that_was_set_before_is_still_asked(old):
    """It was a regprocedure, and is a name since."""
    old.execute(
        "CREATE FUNCTION public.\"Did It\"(text, text, text) RETURNS once.verification LANGUAGE sql AS"
        " $$ SELECT 'happened', 200, NULL::jsonb, 'yes'::bytea, NULL, NULL $$"
    )
    old.execute("""SELECT once.set_scope('orders', verify => 'public."Did It"')""")
    by_script(old)
    assert old.value("SELECT verify FROM once.scope WHERE scope = 'orders'") == 'public."Did It"'
    let_lease_pass(old, "running")
    assert Once(old.connect()).claim(key="running").response_body == b"yes"


@pytest.mark.parametrize("version, name", [(1, "0001_tables"), (2, "0002_delivery"), (4, "0003_keeping"), (4, "0004_seeing")])
def test_an_earlier_migration_is_the_one_that_was_released(db, version, name):
    """Databases remember its checksum."""
    text = (ROOT / f"contract/migrations/{name}.sql").read_text()
    checksum = hashlib.sha256(text.encode()).hexdigest()
    assert f"'{checksum}'" in (OLD / f"version_{version}.sql").read_text()
    assert db.value("SELECT checksum FROM once.migration WHERE name = %s", name) == checksum


def test_terms_beyond_the_bounds_are_brought_within_them(server):
    """They stopped the keeper, or ended before they began."""
    old = server.empty_database()
    run(old.connect(), (OLD / "version_4.sql").read_text())
    for scope, lease, retention in (
        ("forever", "7 days", "300000 years"),
        ("past", "-12 months 361 days", "-12 months 361 days"),
        ("far", "-12 months 367 days", "-1200 months 72000 days"),
        ("odd", "1 month -27 days", "99 years 300 days"),
    ):
        old.execute("SELECT once.set_scope(%s, lease => %s, retention => %s)", scope, lease, retention)
    old.execute("SELECT once.set_keeping(dead_retention => '300000 years', decision_retention => '-1 month 31 days', outbox_retention => '0',"
                " clock_settle => '-12 months 361 days', clock_skew => '-1 month 30 days 1 hour')")
    old.execute(upgrade_script(4))
    assert old.rows("SELECT clock_settle::text, clock_skew::text FROM once.setting") == [("01:00:00", "00:05:00")]
    assert old.rows("SELECT scope, lease::text, retention::text FROM once.scope ORDER BY scope") == [
        ("", "00:01:00", "7 days"),
        ("far", "-1 years +367 days", "-100 years +72000 days"),
        ("forever", "7 days", "100 years"),
        ("odd", "1 mon -27 days", "99 years 300 days"),
        ("past", "00:01:00", "7 days"),
    ]
    assert old.rows("SELECT dead_retention::text, decision_retention::text, outbox_retention::text FROM once.setting") == [
        ("100 years", "400 days", "00:00:00")
    ]
    old.drop()
