# SPDX-License-Identifier: PostgreSQL
"""The clients as doors of the suite: the agent of a language makes the calls and serves the requests of a case, and what it says is compared here
(spec/cases/README.md has its lines)."""

import base64
import json
import os
import re
import select
import subprocess
import sys

import psycopg2
import psycopg2.extras

from harness.client import Http1, Response
from harness.postgres import ROOT

from .suite import Calls, Plain, Refused, Requests, of_door

# Language: {driver: the frameworks that are served over it}.
LANGUAGES = json.loads((ROOT / "tools/languages.json").read_text())
DOORS = {language: facts["served"] for language, facts in LANGUAGES.items()}
PATIENCE_S = 300  # a virtual machine that starts, on a machine that has much to do
LONG = 12  # of a key: shorter ones may be words of a message
BOTH = ("faults", "nodes")  # files with cases of calls, and with cases of requests
PLAIN = ("hold", "unhold", "sql")  # steps that are no client's


def ways(file):
    """(language, driver, framework or None, case) of all that runs a file."""
    for language, drivers in DOORS.items():
        for driver, frameworks in drivers.items():
            for framework in (None,) if file == "sql" else (None, *frameworks) if file in BOTH else frameworks:
                wanted = of_door(file, "client", language, framework or driver)
                # Such a case has requests if it has a service.
                yield from ((language, driver, framework, case) for case in wanted if file not in BOTH or ("service" in case) == (framework is not None))


def name_of(way):
    return "-".join(filter(None, (*way[:3], way[3]["name"])))


class Talker:
    """A program that answers each line with a line of JSON, and ends with its standard input."""

    def __init__(self, words, **options):
        self.words = [str(word) for word in words]
        self.process = subprocess.Popen(self.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, **options)
        self.heard = b""

    def hear(self):
        """The next line."""
        while b"\n" not in self.heard:
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
            piece = os.read(self.process.stdout.fileno(), 1 << 20) if ready else b""
            assert piece, f"{self.words[:4]} has {'ended' if ready else 'not answered'}"
            self.heard += piece
        line, _, self.heard = self.heard.partition(b"\n")
        return line

    def ask(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        return json.loads(self.hear())

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


class Server(Talker):
    """A private PostgreSQL on a port of loopback, and the gateway before a small service (tests/clients/server.py)."""

    def __init__(self):
        super().__init__([sys.executable, ROOT / "tests/clients/server.py", "--gateway"])
        self.said = json.loads(self.hear())
        self.databases = {}

    def database(self, name):
        """One by this name, made where there is none. The gateway is before `cross`."""
        if name not in self.databases:
            self.databases[name] = Database(self.said if name == "cross" else self.ask("database"))
        return self.databases[name]

    def close(self):
        for database in self.databases.values():
            database.close()
        super().close()


class Database:
    def __init__(self, said):
        self.said, self.own = said, self.connect_to(said)
        self.own.autocommit = True

    @staticmethod
    def connect_to(said):
        return psycopg2.connect(said["dsn"], application_name="driver", cursor_factory=psycopg2.extras.NamedTupleCursor)

    def connect(self, autocommit=True):
        connection = self.connect_to(self.said)
        connection.autocommit = autocommit
        return connection

    def address_at(self, port=None):
        """As an agent is told of it. port: of a forwarder."""
        return f"hostaddr=127.0.0.1 port={port or self.said['port']} dbname={self.said['database']} user={self.said['user']} connect_timeout=3"

    def rows(self, query, *values):
        with self.own.cursor() as cursor:
            cursor.execute(query, values or None)
            return cursor.fetchall() if cursor.description is not None else []

    execute = rows

    def row(self, query, *values):
        (row,) = self.rows(query, *values)
        return row

    def value(self, query, *values):
        return self.row(query, *values)[0]

    def clear(self):
        """All keys are unused again."""
        self.rows("TRUNCATE once.intent, once.outbox, effect")

    def close(self):
        self.own.close()


class Agent(Talker):
    """The program of a language, over one of its drivers."""

    def __init__(self, words, driver, database, log, port=None):
        with open(log, "ab") as told:
            super().__init__([*words, driver, database.address_at(port)], stderr=told)
        self.database = database
        assert self.hear() == b"ready"

    def call(self, call, meanwhile=None, **more):
        """What it says of a call: its result, or Refused. meanwhile: makes steps that the effect waits for."""
        said = self.ask(json.dumps({"call": call, **more}))
        while "meanwhile" in said:
            for step in said["meanwhile"]:
                meanwhile(step)
            said = self.ask("{}")
        calls = {"calls": said["calls"]} if "calls" in said else {}
        if "each" in said:
            return calls | each_in(said["each"])
        if "error" in said:
            raise told(said["error"] | calls)
        return bytes_in(said["result"] | calls)


def bytes_in(said):
    return said if said.get("body") is None else said | {"body": base64.b64decode(said["body"])}


def each_in(lines):
    """Of calls at once, which have one answer. fresh: how many have made it."""
    results = [bytes_in(line["result"]) if "result" in line else line for line in lines]
    bodies = {result["body"] for result in results}
    assert len(bodies) == 1, results
    return {"fresh": sum(not result["replayed"] for result in results), "body": bodies.pop()}


def told(error):
    refused = Refused(error["code"])
    refused.said = error | {"answer": bytes_in(error.get("answer") or {})}
    return refused


class AgentCalls(Calls):
    """Of a client; what is no call of a client's is plain SQL. meanwhile: makes a step while an effect waits."""

    def __init__(self, agent, case, meanwhile=None):
        super().__init__(agent.database, case)
        self.agent, self.plain, self.meanwhile = agent, Plain(agent.database, case), meanwhile

    def call(self, step):
        if step["call"] in PLAIN:
            return self.plain.call(step)
        more = {name: value for name, value in self.filled(step).items() if name not in ("call", "expect", "door")}
        try:
            result = self.agent.call(step["call"], self.meanwhile, **more)
        except Refused as refused:
            text, key = refused.said.get("text", ""), self.case["name"]
            assert f"'{key}'" not in text and (len(key) < LONG or key not in text), f"an error names no key: {text}"
            raise
        assert result.get("again", "duplicate") == "duplicate", "in a transaction of one's own it is not to be applied again"
        return result

    def close(self):
        for connection in self.plain.held.values():
            connection.close()
        self.agent.call("forget")


class AgentRequests(Requests):
    """To a framework of a client. gateway: its address."""

    def __init__(self, agent, framework, case, gateway=None):
        super().__init__(agent.database, case)
        self.agent, self.framework, self.gateway = agent, framework, gateway
        self.port = agent.call("serve", name=self.name, framework=framework, location=case.get("location", {}), service=self.script)["port"]

    def send(self, step, method, target, headers, body):
        to = (self.gateway["host"], self.gateway["port"]) if step.get("door") == "gateway" else ("127.0.0.1", self.port)
        with Http1(to, PATIENCE_S) as connection:
            try:
                answer = connection.send(method, target, headers, body, close=True).receive(method)
            except ConnectionError:
                answer = Response(None, [], b"")
        answer.closed = answer.status is None
        assert not answer.all("Once-Effect"), answer
        if self.framework == "spring":  # Tomcat writes a parameter of Content-Type without the space before it, and in its own case
            answer.headers = [(name, re.sub(r";(?=\S)", "; ", value).lower() if name == "content-type" else value) for name, value in answer.headers]
        return answer

    def wait(self, number):
        self.agent.call("begun")

    def let_go(self):
        self.agent.call("let")

    def stop(self):
        """How often the service has run."""
        said = self.agent.call("stop")
        assert said.get("out", 0) == 0, "every connection is back in the pool"
        return said["runs"]
