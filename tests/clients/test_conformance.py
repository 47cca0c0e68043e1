# SPDX-License-Identifier: PostgreSQL
"""The suite of the clients (spec/cases), run against plain SQL and the gateway: a case that expects anything else is wrong. And what the suite says of
itself: its problem documents are the gateway's, its matrix is docs/reference/clients.md."""

import json
import re
import subprocess
import sys

import pytest

from gateway.door import Door
from harness.postgres import ROOT
from harness.upstream import Upstream

sys.path.insert(0, str(ROOT / "tools"))
import clients_matrix  # noqa: E402

from .agents import DOORS
from .suite import PROBLEMS, Gateway, Plain, assert_rows, cases, config_of, of_door

HTTP = of_door("http", "gateway")
CROSS = of_door("cross", "gateway")


def by_name(listed):
    return pytest.mark.parametrize("case", listed, ids=[case["name"] for case in listed])


def is_away(case):
    return case.get("location", {}).get("database") == "away"


@pytest.fixture(scope="module")
def database(server):
    database = server.new_database()
    database.execute("CREATE TABLE effect (key text NOT NULL, attempt integer)")
    yield database
    database.drop()


@pytest.fixture(scope="module")
def doors(database):
    """By whether the database can be reached."""
    with (
        Upstream() as upstream,
        Door(database, upstream, config_of([case for case in HTTP + CROSS if not is_away(case)])) as here,
        Door(database, upstream, config_of(filter(is_away, HTTP)), dsn="host=/nowhere") as away,
    ):
        yield {False: here, True: away}


def arrange(database, case):
    for statement in case.get("arrange", []):
        database.execute(statement)


@by_name(of_door("sql", "sql"))
def test_plain_sql_does_what_a_case_of_the_calls_expects(database, case):
    arrange(database, case)
    plain = Plain(database, case)
    for step in case["steps"]:
        plain.step(step)
    assert_rows(database, case)


@by_name(HTTP)
def test_the_gateway_does_what_a_case_of_requests_expects(database, doors, case):
    arrange(database, case)
    gateway = Gateway(doors[is_away(case)], case)
    for step in case["steps"]:
        gateway.step(step)
    gateway.runs()
    assert_rows(database, case)


@by_name(CROSS)
def test_a_retry_through_another_door_gets_the_same_bytes(database, doors, case):
    plain, gateway = Plain(database, case), Gateway(doors[False], case)
    for step in case["steps"]:
        (gateway if step["door"] == "http" else plain).step({name: value for name, value in step.items() if name != "door"})
    gateway.runs()


def test_names_of_cases_are_keys_and_no_two_share_one():
    names = [case["name"] for file in ("sql", "http", "cross", "faults", "nodes") for case in cases(file)]
    assert all(re.fullmatch(r"[a-z0-9-]{3,60}", name) for name in names)
    assert len(set(names)) == len(names)


def test_a_case_names_no_door_that_nobody_is():
    known = {"client", "gateway", "sql", *clients_matrix.CLIENTS, *(way for ways in clients_matrix.WAYS.values() for way in ways)}
    known |= {driver for drivers in DOORS.values() for driver in drivers}
    for file in ("sql", "http", "cross", "faults", "nodes"):
        for case in cases(file):
            assert set(case.get("doors", [])) <= known, case["name"]


def test_the_matrix_in_the_documents_is_that_of_the_cases():
    done = subprocess.run([str(ROOT / "tools/clients_matrix.py"), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
