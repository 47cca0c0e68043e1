# SPDX-License-Identifier: PostgreSQL
"""Between pgonce and PostgreSQL: with sslmode=verify-full nobody on the network is taken for the server, and nothing is said to him in clear.
pgonce doctor says where it is otherwise. (TLS to brokers and webhooks: tests/relay, tests/runtime.)"""

import json
import shutil

import pytest

from cli.command import Command
from gateway.door import Door, assert_problem, new_key
from harness.upstream import Upstream

from .front import Front, authorities

CONFIG = "location /pay { once required; once_scope pay; once_tenant $http_x_tenant; proxy_pass http://app; }"


@pytest.fixture(scope="module")
def directory():
    made = authorities()
    yield made
    shutil.rmtree(made)


def dsn(db, front, mode, directory, host="127.0.0.1"):
    return f"host={host} port={front.port} dbname={db.name} user=postgres password=hunter2 sslmode={mode} sslrootcert={directory}/ca.pem"


MIDDLEMEN = {"who says that there is no TLS": None, "with a certificate of another host": "stranger"}


@pytest.mark.parametrize("who", MIDDLEMEN)
def test_with_verify_full_the_gateway_says_nothing_to_a_man_in_the_middle_and_nothing_runs(db, server, directory, who):
    with Front(server, directory, MIDDLEMEN[who]) as front, Upstream() as upstream:
        with Door(db, upstream, CONFIG, dsn=dsn(db, front, "verify-full", directory)) as door:
            key = new_key()
            assert_problem(door.attempt(key), 503, "unavailable")
            assert door.count(key) == 0 and door.stored(key) is None
            assert front.asked.is_set() and front.heard == b""


@pytest.mark.parametrize("command", [("doctor",), ("keep", "--once"), ("find",), ("init",)])
@pytest.mark.parametrize("who", MIDDLEMEN)
def test_with_verify_full_no_command_says_anything_to_a_man_in_the_middle(db, server, directory, tmp_path, who, command):
    with Front(server, directory, MIDDLEMEN[who]) as front:
        done = Command(dsn(db, front, "verify-full", directory), tmp_path)(*command)
        assert done.returncode == 3 and front.heard == b"", done
        assert b"hunter2" not in done.stdout + done.stderr


def test_with_verify_full_the_true_server_is_spoken_to_and_in_tls_only(db, server, directory, tmp_path):
    with Front(server, directory, "server") as front, Upstream() as upstream:
        assert Command(dsn(db, front, "verify-full", directory), tmp_path)("find").returncode == 5  # there is nothing to be found
        with Door(db, upstream, CONFIG, dsn=dsn(db, front, "verify-full", directory)) as door:
            assert door.attempt(new_key()).status == 201
        assert front.heard == b""


def encryption(db, front, mode, directory, tmp_path, host):
    done = Command(dsn(db, front, mode, directory, host), tmp_path)("doctor", "--json")
    return next(row for row in json.loads(done.stdout)["checks"] if row["check"] == "encryption")


# An address that is loopback and does not look like it, so that the test needs no network.
ELSEWHERE = "::ffff:127.0.0.1"


@pytest.mark.parametrize(
    "host, certificate, mode, level, said",
    [
        (ELSEWHERE, None, "prefer", "warning", "none: all data crosses the network"),
        (ELSEWHERE, "server", "require", "warning", "the server's identity was not checked"),
        (ELSEWHERE, "server", "verify-ca", "ok", "TLSv1.3"),
        ("127.0.0.1", None, "prefer", "ok", "loopback"),
    ],
)
def test_doctor_tells_a_connection_that_others_can_read_or_answer(db, server, directory, tmp_path, host, certificate, mode, level, said):
    with Front(server, directory, certificate) as front:
        if mode == "require":  # with a root certificate at hand libpq would look at it
            directory = tmp_path
        row = encryption(db, front, mode, directory, tmp_path, host)
        assert row["level"] == level and said in row["found"], row
        assert (row["advice"] is None) == (level == "ok")


def test_doctor_is_content_with_a_unix_socket(db, tmp_path):
    done = Command(db.dsn(), tmp_path)("doctor", "--json")
    assert {"check": "encryption", "level": "ok", "found": "a unix socket", "advice": None} in json.loads(done.stdout)["checks"]
