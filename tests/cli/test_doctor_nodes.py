# SPDX-License-Identifier: PostgreSQL
"""pgonce doctor --nodes: what nodes that share the tenants must have in common, and where the slots are open."""

import json
import os

import pytest

from harness.postgres import Database, Postgres, unprivileged

from .command import Command
from .test_find import claim


@pytest.fixture
def nodes(db, empty, tmp_path):
    """Two that share the tenants: the first has all slots open."""
    db.execute("SELECT once.set_scope('pay', lease => '7 seconds')")
    db.execute("CALL once.divide(true)")
    done = Command(empty.dsn(), tmp_path)("init", "--join", db.dsn())
    assert done.returncode == 0, done.stderr
    return db, empty


@pytest.fixture
def doctor(nodes, tmp_path):
    file = tmp_path / "nodes"
    file.write_text("# the nodes\n\n" + "".join(f"  {node.dsn()}\n" for node in nodes))

    def run(status, lines=None, *words):
        if lines is not None:
            file.write_text("".join(f"{line}\n" for line in lines))
        done = Command(None, tmp_path)("doctor", "--nodes", str(file), "--json", *words)
        assert done.returncode == status, (done.stdout, done.stderr)
        return {check["check"]: check for check in json.loads(done.stdout)["checks"]}

    return run


def move(nodes, slot):
    first, second = nodes
    first.execute("SELECT once_job.close_slot(%s)", slot)
    second.execute("SELECT once_job.open_slot(%s, 2)", slot)


def test_nodes_that_agree_are_well(nodes, doctor, tmp_path):
    move(nodes, 5)
    found = doctor(0)
    assert {check["level"] for check in found.values()} == {"ok"}
    assert [found[name]["found"] for name in found if name.startswith("node ")] == ["63 of 64 slots are open", "1 of 64 slots are open"]
    told = Command(None, tmp_path)("doctor", "--nodes", str(tmp_path / "nodes"))
    assert told.returncode == 0 and b"slots open twice" in told.stdout and told.stdout.endswith(b"\n0 to repair, 0 warnings, 0 skipped\n")


@pytest.mark.parametrize("check, level, harm", [
    ("contracts", "failed", "UPDATE once.migration SET checksum = 'x' WHERE version = 0"),
    ("salts", "failed", "UPDATE once.setting SET salt = sha256('x')"),
    ("hash of tenants", "failed", "CREATE OR REPLACE FUNCTION once.slot_of(tenant text) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1'"),
    ("settings", "warning", "SELECT once.set_keeping(horizon_days => 30)"),
    ("policies", "failed", "SELECT once.set_scope('pay', lease => '8 seconds')"),
    ("policies", "failed", "SELECT once.set_scope('other')"),
    ("bindings", "failed", "INSERT INTO once.binding VALUES ('someone', 'acme')"),
])  # fmt: skip
def test_a_difference_is_named_with_the_node(nodes, doctor, check, level, harm):
    nodes[1].execute(harm)
    found = doctor(int(level == "failed"))
    assert found[check]["level"] == level and f"/{nodes[1].name}" in found[check]["found"] and found[check]["advice"]
    assert [name for name, row in found.items() if row["level"] != "ok"] == [check]


def test_days_that_only_one_keeper_has_closed_are_no_difference(nodes, doctor):
    nodes[1].execute("UPDATE once.setting SET closed_before = closed_before + 1")
    assert doctor(0)["settings"]["level"] == "ok"


def test_a_slot_that_is_open_nowhere_or_twice_is_named(nodes, doctor):
    first, second = nodes
    first.execute("SELECT once_job.close_slot(7)")
    second.execute("SELECT once_job.open_slot(9, 4)")
    found = doctor(1)
    assert (found["slots open nowhere"]["level"], found["slots open nowhere"]["found"]) == ("failed", "7")
    twice = found["slots open twice"]
    assert twice["level"] == "failed" and "close_slot" in twice["advice"]
    assert twice["found"].startswith("9 on ") and f"/{first.name} (epoch 1)" in twice["found"] and f"/{second.name} (epoch 4)" in twice["found"]


def test_a_slot_that_is_open_twice_with_one_epoch_is_not_said_to_be_older(nodes, doctor):
    nodes[1].execute("SELECT setval('once.slot_9_seq', 3)")
    twice = doctor(1)["slots open twice"]
    assert twice["found"].count("(epoch 1)") == 2 and "close_slot" not in twice["advice"] and "copy" in twice["advice"]


def test_a_standby_that_was_promoted_before_it_had_the_close_is_named(nodes, doctor):
    """What it knows of a slot is older than what the others know, even if none of them has it open any more."""
    first, second = nodes
    second.execute("SELECT once_job.open_slot(9, 2)")
    assert doctor(1)["slots open with an old epoch"]["level"] == "ok"  # but open twice
    second.execute("SELECT once_job.close_slot(9)")
    found = doctor(1)
    old = found["slots open with an old epoch"]
    assert old["level"] == "failed" and "close_slot" in old["advice"]
    assert old["found"].startswith("9 on ") and f"/{first.name} (epoch 1), but " in old["found"] and old["found"].endswith(f"/{second.name} has had epoch 2")
    assert (found["slots open twice"]["level"], found["slots open nowhere"]["level"]) == ("ok", "ok")
    first.execute("SELECT once_job.close_slot(9)")
    assert doctor(1)["slots open with an old epoch"]["level"] == "ok"  # but open nowhere


def test_memory_of_closed_slots_is_named_with_its_slots(nodes, doctor):
    first, second = nodes
    slots = sorted(first.value("SELECT once.slot_of(%s)", tenant) for tenant in ("acme", "globex"))
    for tenant, key in (("acme", "a"), ("acme", "b"), ("globex", "c"), ("initech", "d")):
        claim(first, "pay", key, tenant=tenant)
    first.execute("SELECT once.emit_later(now() + interval '1 day', 't', '{}', tenant => 'acme')")
    for slot in slots:
        move(nodes, slot)
    claim(second, "pay", "a", tenant="acme")
    left = doctor(0)["memory of closed slots"]
    assert left["level"] == "warning" and "pgonce rehome" in left["advice"]
    assert left["found"].endswith(f"/{first.name}: 1 delayed events, 3 intents of slots {slots[0]} {slots[1]}")
    first.execute("INSERT INTO once.decision (tenant, scope, key, fence, from_state, to_state, reason, decided_by) VALUES ('acme', 's', 'k', 1, 'in_doubt', 'failed_final', 'r', 'me')")
    assert ": 1 decisions, 1 delayed events, 3 intents of slots" in doctor(0)["memory of closed slots"]["found"]
    first.execute("DELETE FROM once.decision")
    first.execute("DELETE FROM once.intent WHERE tenant <> 'initech'")
    first.execute("DELETE FROM once.delayed_event")
    assert doctor(0)["memory of closed slots"]["level"] == "ok"


def test_what_an_unfinished_move_has_made_is_named(nodes, doctor):
    first, second = nodes
    first.execute("CREATE PUBLICATION pgonce_rehome FOR TABLE once.intent")
    first.execute("CREATE PUBLICATION pgonce_rehomes FOR TABLE once.intent")
    second.execute("CREATE SUBSCRIPTION pgonce_rehome CONNECTION 'dbname=none' PUBLICATION pgonce_rehome WITH (connect = false)")
    found = doctor(0)["unfinished moves"]
    assert found["level"] == "warning" and "pgonce rehome" in found["advice"]
    of_first, of_second = found["found"].split(", ")
    assert of_first.endswith(f"/{first.name}: publication pgonce_rehome") and of_second.endswith(f"/{second.name}: subscription pgonce_rehome")
    second.execute("ALTER SUBSCRIPTION pgonce_rehome SET (slot_name = NONE)")
    second.execute("DROP SUBSCRIPTION pgonce_rehome")
    first.execute("DROP PUBLICATION pgonce_rehome")
    assert doctor(0)["unfinished moves"]["level"] == "ok"


def test_a_node_that_is_away_is_named_and_nothing_is_concluded_from_it(nodes, doctor):
    first, _ = nodes
    first.execute("SELECT once_job.close_slot(7)")
    found = doctor(1, [first.dsn(), "host=/nowhere dbname=app password=hush connect_timeout=2"])
    away = found["node /nowhere/app"]
    assert away["level"] == "failed" and "/nowhere" in away["found"] and "hush" not in json.dumps(found)
    assert found["slots open nowhere"]["level"] == "warning" and "away" in found["slots open nowhere"]["advice"]


def test_what_is_no_node_is_named(nodes, doctor, server):
    first, _ = nodes
    bare, plain = server.empty_database(), server.new_database()
    found = doctor(1, [first.dsn(), bare.dsn(), plain.dsn()])
    assert "pgonce init --join" in found[next(name for name in found if name.endswith(f"/{bare.name}"))]["advice"]
    assert "not divided" in found[next(name for name in found if name.endswith(f"/{plain.name}"))]["found"]
    for database in (bare, plain):
        database.drop()


def test_a_node_without_its_guard_is_found(nodes, doctor):
    nodes[1].execute("CREATE OR REPLACE FUNCTION once._serves(tenant text) RETURNS boolean LANGUAGE sql AS ' SELECT true '")
    found = doctor(1)
    name = next(name for name in found if name.endswith(f"/{nodes[1].name}"))
    assert found[name]["level"] == "failed" and "once.divide()" in found[name]["advice"]


@pytest.mark.parametrize("text, told", [("", "names no node"), ("# nothing\n\n", "names no node"), ("host=db1\nhots=db2\n", "line 2"),
    ("host=db1 dbname=app\n\n  dbname='app' host=db1\n", "lines 1 and 3")])
def test_a_file_that_makes_no_sense_is_a_usage_error(tmp_path, text, told):
    file = tmp_path / "nodes"
    file.write_text(text.replace("host=db1", "host=/nowhere connect_timeout=2"))
    done = Command(None, tmp_path)("doctor", "--nodes", str(file))
    assert (done.returncode, done.stdout) == (2, b"") and told in done.stderr.decode()


def test_a_file_that_is_missing_is_a_usage_error(tmp_path):
    done = Command(None, tmp_path)("doctor", "--nodes", str(tmp_path / "none"))
    assert done.returncode == 2 and b"--nodes" in done.stderr and b"No such file" in done.stderr


@pytest.fixture(scope="module")
def source():
    """A server of its own, which can be copied."""
    with Postgres(settings={"wal_level": "logical"}) as server:
        yield server


def test_a_replication_slot_of_an_unfinished_move_is_named_in_its_database(source, doctor):
    here, other = source.new_database(), source.new_database()
    for database in (here, other):
        database.execute("CALL once.divide(true)")
        database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", f"pgonce_rehome_{database.name}")
    found = doctor(0, [here.dsn()])["unfinished moves"]
    assert found["found"].endswith(f"/{here.name}: replication slot pgonce_rehome_{here.name}")
    for database in (here, other):
        source_slot = f"pgonce_rehome_{database.name}"
        database.execute("SELECT pg_drop_replication_slot(%s)", source_slot)
        database.drop()


@pytest.mark.parametrize("standby", [False, True], ids=["clone", "standby"])
def test_a_copy_of_a_node_is_named_while_it_has_slots_open(source, doctor, standby):
    first = source.new_database()
    first.execute("CALL once.divide(true)")
    server = Postgres(copy_of=source)
    if standby:
        (server.data / "standby.signal").touch()
        if unprivileged()[1]:
            os.chown(server.data / "standby.signal", unprivileged()[1].pw_uid, -1)
        with open(server.data / "postgresql.auto.conf", "a", encoding="utf-8") as conf:
            conf.write(f"primary_conninfo = '{source.dsn()}'\n")
    with server:
        copy = Database(server, first.name)
        found = doctor(1, [first.dsn(), copy.dsn()])
        copies = found["copies of a node"]
        assert copies["level"] == "failed" and copies["found"].count(f"/{first.name}") == 2
        assert copies["found"].endswith(" (a standby)") is standby
        assert len({name for name in found if name.startswith("node ")}) == 2
        if standby:
            assert next(check for name, check in found.items() if f"{server.directory}/" in name)["found"] == "it is a standby, which serves no tenant"
        else:
            assert "copy" in found["slots open twice"]["advice"]
            for slot in range(64):
                copy.execute("SELECT once_job.close_slot(%s)", slot)
            assert doctor(0, [first.dsn(), copy.dsn()])["copies of a node"]["level"] == "ok"
        copy.close()
    first.drop()
