# SPDX-License-Identifier: PostgreSQL
"""A coordinator and a worker, each with a contract of its own: what is done on one leaves the other alone."""

import os
import pathlib
import re
import subprocess

import pytest
from contract.calls import Once, refused, run
from harness.postgres import ROOT, clean_environment

COMMAND = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build")) / "cli/pgonce"
def functions(db):
    return db.rows("SELECT p.oid::regprocedure::text AS name, md5(p.prosrc) AS body FROM pg_proc AS p WHERE p.pronamespace = to_regnamespace('once') ORDER BY 1")


@pytest.mark.parametrize("first", ["the coordinator", "the worker"])
def test_each_node_is_installed_and_works_by_itself(nodes, first):
    one, other = nodes if first == "the coordinator" else reversed(nodes)
    one.install()
    assert functions(one) and not functions(other), "Citus has not repeated it"
    other.install()
    for node in (one, other):
        once = Once(node.connect())
        once.finish_new(key="k", response_body=b"done")
        assert once.start(key="k").response_body == b"done"
        assert once.claim(key="c").verdict == "new_claim" and once.complete(key="c", fence=1) is True
    assert one.value("SELECT count(*) FROM once.intent") == 2


def test_a_day_that_begins_on_one_node_changes_no_other(nodes):
    for node in nodes:
        node.install()
    for node, other in (nodes, reversed(nodes)):
        today, before = node.value("SELECT once._today()"), functions(other)
        node.execute("SELECT once._set_today(%s)", today - 1)
        assert node.value("SELECT once._today()") == today - 1
        node.execute(f"SELECT once._execute_ddl('DROP TABLE once.intent_d{today}')")
        assert Once(node.connect()).claim(key="k").verdict == "new_claim", "it makes the day and moves on"
        for _ in range(2):  # once._today() moves in a transaction after the one that made the day
            node.execute("SELECT once.add_days()")
        assert node.value("SELECT once._today()") == today and functions(other) == before


def test_each_node_has_slots_of_its_own(nodes):
    coordinator, worker = nodes
    for node in nodes:
        node.install()
    coordinator.execute("CALL once.divide(false)")
    assert not worker.value("SELECT once._is_guarded()") and worker.rows("SELECT * FROM once.slots()") == []
    worker.execute("CALL once.divide(true)")
    with refused("P4097"):
        Once(coordinator.connect()).start(key="k")
    assert Once(worker.connect()).finish_new(key="k") == 1
    assert worker.value("SELECT once_job.close_slot(once.slot_of(''))") is True
    worker.execute("SELECT once_job.open_slot(once.slot_of(''), 2)")
    worker.execute("CALL once.undivide()")
    assert worker.rows("SELECT * FROM once.slots()") == [] and coordinator.value("SELECT count(*) FROM once.slots()") == 64


def test_the_keeper_works_on_each_node(nodes):
    for node in nodes:
        node.install()
        node.execute("CALL once.keep(30)")
        assert node.value("SELECT count(*) FROM once.keeper_status() WHERE last_error IS NOT NULL") == 0
        run(node.connect(), "SELECT once.retire_outbox(1)")


@pytest.mark.skipif(not COMMAND.exists(), reason="the command is not built")
def test_init_and_doctor_say_what_citus_does_not_do(nodes):
    for node in nodes:
        told = subprocess.run([COMMAND, "init", "--dsn", node.dsn()], capture_output=True, text=True, env=clean_environment(), timeout=120, check=True)
        assert "Citus does not commit the memory together with an effect on another node" in told.stdout + told.stderr
        found = subprocess.run([COMMAND, "doctor", "--dsn", node.dsn()], capture_output=True, text=True, env=clean_environment(), timeout=120, check=False)
        assert "warning  citus" in found.stdout and "keep the effect on the node that remembers its key" in found.stdout
    for node in nodes:
        node.execute("SELECT once.anchor()")
    found = subprocess.run([COMMAND, "doctor", "--dsn", nodes[1].dsn()], capture_output=True, text=True, env=clean_environment(), timeout=120, check=False)
    assert re.search("ok +citus .*and the memory is anchored", found.stdout), found.stdout
