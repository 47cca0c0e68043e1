# SPDX-License-Identifier: PostgreSQL
"""pgonce doctor --nodes: what nodes that share the tenants must have in common, and where the slots are open."""

import json

import pytest

from .command import Command


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


def test_a_node_that_is_away_is_named_and_nothing_is_concluded_from_it(nodes, doctor):
    first, _ = nodes
    first.execute("SELECT once_job.close_slot(7)")
    found = doctor(1, [first.dsn(), "host=/nowhere dbname=app password=hush connect_timeout=2"])
    away = found["node in line 2"]
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


@pytest.mark.parametrize("text, told", [("", "names no node"), ("# nothing\n\n", "names no node"), ("host=db1\nhots=db2\n", "line 2")])
def test_a_file_that_makes_no_sense_is_a_usage_error(tmp_path, text, told):
    file = tmp_path / "nodes"
    file.write_text(text.replace("host=db1", "host=/nowhere connect_timeout=2"))
    done = Command(None, tmp_path)("doctor", "--nodes", str(file))
    assert done.returncode == 2 and told in done.stderr.decode()


def test_a_file_that_is_missing_is_a_usage_error(tmp_path):
    done = Command(None, tmp_path)("doctor", "--nodes", str(tmp_path / "none"))
    assert done.returncode == 2 and b"--nodes" in done.stderr and b"No such file" in done.stderr
