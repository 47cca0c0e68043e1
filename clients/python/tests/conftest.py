# SPDX-License-Identifier: PostgreSQL
"""A private PostgreSQL with the contract for all tests of the client, by tests/clients/server.py."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import psycopg
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
CASES = ROOT / "spec/cases"
PROGRAMS = ROOT / "tests/clients"
# Its drivers and frameworks are those of the agent.
sys.path.insert(0, str(ROOT / "clients/python/agent"))
# server.py wants psycopg2, which a virtual environment need not have.
PYTHON = os.environ.get("PGONCE_SYSTEM_PYTHON", "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable)


class Talker:
    """A program that answers a line of JSON to each line, and ends with its standard input."""

    def __init__(self, program, *arguments):
        self.process = subprocess.Popen(
            [PYTHON, str(PROGRAMS / program), *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.hello = self._read()

    def _read(self):
        line = self.process.stdout.readline()
        assert line, f"{self.process.args} ended"
        return json.loads(line)

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


class Database:
    def __init__(self, said):
        self.said, self.dsn, self.url = said, said["dsn"], said["url"]
        self.name = said["database"]

    def rows(self, sql, *values):
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(sql, values or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, sql, *values):
        return self.rows(sql, *values)[0][0]

    def effects(self, key):
        return self.value("SELECT count(*)::int FROM effect WHERE key = %s", key)


class Server(Talker):
    def database(self):
        return Database(self.ask("database"))

    @contextlib.contextmanager
    def forwarder(self):
        """A way to this server that loses what it is told to lose."""
        talker = Talker("forwarder.py", self.hello["socket"], self.hello["port"])
        try:
            yield talker
        finally:
            talker.close()


@pytest.fixture(scope="session")
def server():
    talker = Server("server.py", "--gateway")
    yield talker
    talker.close()


@pytest.fixture(scope="module")
def db(server):
    return server.database()
