#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Hammers the services of the examples: hammer.py [--keys N] [--at DIRECTORY] EXAMPLE...

64 clients send each key until it is answered, two of them at a time, and once more at the end. Meanwhile the service is killed (SIGKILL), its backends are
ended (pg_terminate_backend), and a forwarder loses COMMIT's acknowledgements. Then it counts: one effect for each key, and the same bytes in each of its answers.
Exit status 1 if that is not so, 77 if a program is missing. It starts its own PostgreSQL. --at: the directory of the examples, default: this one."""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tests"))

from harness.broker import accepts, free_port  # noqa: E402
from harness.postgres import tied  # noqa: E402

CLIENTS = 64
PATIENCE_S = 300  # for one answer: the service restarts meanwhile, on a busy machine
KILLS_AT = 0.25, 0.5, 0.75  # of the answers
COMMAND = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build")) / "cli/pgonce"


@dataclasses.dataclass
class Example:
    """An example, for the hammer. In its texts {name} is an address of the run: see Run.addresses."""

    needs: list  # programs
    build: list  # commands
    service: list
    requests: dict  # path: function of a key's number that gives the body and more headers
    counts: dict  # must equal the number of keys (of a path, if the name begins with one): a query, or a URL and a member of its answer
    environment: dict = dataclasses.field(default_factory=dict)
    beside: dict = dataclasses.field(default_factory=dict)  # other processes, of which only the backends are hammered: name: command
    killed: tuple = ()  # names in beside that are killed with the service
    consumer: str = None  # the name in beside to which everything is delivered again at the end, as another group
    again: list = None  # a command that runs every few seconds
    commit: tuple = ("COMMIT",)  # as the drivers spell it
    kafka: bool = False


def order(number):
    return {"item": f"lamp-{number % 16}", "quantity": 1}


def payment(number):
    return {"account": f"account-{number % 64}", "amount": 1}


VENV = ".venv/bin/python"
EXAMPLES = {
    "express-orders": Example(
        needs=["node", "npm"],
        build=[["rm", "-rf", "node_modules/pgonce"], ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"]],
        service=["node", "orders.js"],
        requests={"/orders": lambda number: (order(number), {"Authorization": f"Bearer token-of-{('ann', 'bob')[number % 2]}"})},
        counts={
            "orders": "SELECT count(*) FROM customer_order",
            "lamps that left the stock": "SELECT sum(1000000 - quantity) FROM stock",
            "events": "SELECT count(*) FROM once.outbox",
            "orders that are announced": "SELECT count(DISTINCT payload->>'order') FROM once.outbox",
        },
    ),
    "fastapi-payments": Example(
        needs=["python3"],
        build=[["python3", "-m", "venv", ".venv"], [VENV, "-m", "pip", "-q", "--disable-pip-version-check", "install", "-r", "requirements.txt"]],
        service=[VENV, "-m", "uvicorn", "payments:app", "--port", "{port}", "--log-level", "critical"],
        requests={"/charges": lambda number: (payment(number), {}), "/credits": lambda number: (payment(number), {})},
        counts={
            "/charges: references that the provider has charged": ("{provider}/totals", "references"),
            "/charges: charges at the provider": ("{provider}/totals", "charges"),
            "/credits: in the wallets": "SELECT sum(balance) FROM wallet",
        },
        environment={"PROVIDER_URL": "{provider}"},
        beside={"provider": [VENV, "provider.py", "{provider_port}"]},
        # The provider needs milliseconds for a request. After this long it will never charge.
        again=[VENV, "reconcile.py", "10"],
    ),
    "go-orders": Example(
        needs=["go", "java", "kcat"],
        build=[["go", "build", "-o", "orders", "."]],
        service=["./orders", "serve"],
        requests={"/orders": lambda number: (order(number), {})},
        counts={
            "orders": "SELECT count(*) FROM shop_order",
            "orders that are announced": "SELECT count(DISTINCT payload->>'order') FROM once.outbox",
            "events": "SELECT count(*) FROM once.outbox",
            "orders that are shipped": "SELECT count(DISTINCT order_id) FROM shipment",
            "shipments": "SELECT count(*) FROM shipment",
        },
        # Statements are sent as text, by which the forwarder finds COMMIT.
        environment={"DATABASE_URL": "{url}?sslmode=disable&default_query_exec_mode=exec", "KAFKA_BROKERS": "{kafka}", "KAFKA_GROUP": "shipping"},
        beside={"shipping": ["./orders", "ship"], "relay": ["{pgonce}", "relay", "--config", "{relay}", "--dsn", "{dsn}"]},
        killed=("shipping", "relay"),
        consumer="shipping",
        commit=("COMMIT", "commit"),
        kafka=True,
    ),
    "spring-payments": Example(
        needs=["java", "mvn"],
        build=[
            ["mvn", "-q", "-B", "-f", str(ROOT / "clients/java"), "install", "-DskipTests", "-Dmaven.javadoc.skip"],
            ["mvn", "-q", "-B", "package"],
        ],
        service=["java", "-Xmx384m", "-jar", "target/spring-payments-1.0.0.jar"],
        requests={"/payments": lambda number: (payment(number), {})},
        counts={
            "payments": "SELECT count(*) FROM payment",
            "money that was moved": "SELECT sum(1000000 - balance) FROM account",
            "events": "SELECT count(*) FROM once.outbox",
        },
        environment={"PAYMENTS_URL": "jdbc:postgresql://{host}:{database_port}/{database}?sslmode=disable&gssEncMode=disable"},
    ),
}


class Failed(Exception):
    """The promise is broken, or the work is not done in time."""


class Program:
    """One of spec/cases: a line in, a line out."""

    def __init__(self, *words):
        self.process = subprocess.Popen([sys.executable, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said = json.loads(self.process.stdout.readline())
        self.lock = threading.Lock()

    def tell(self, line):
        with self.lock:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


class Job:
    """A process that is killed, and started again."""

    def __init__(self, run, name, command):
        self.run, self.name, self.command, self.process = run, name, [run.filled(word) for word in command], None
        self.lock = threading.Lock()
        self.ended = False
        self.deaths = 0  # without being killed

    def start(self):
        self.process = subprocess.Popen(tied(self.command), cwd=self.run.folder, env=self.run.environment, stdin=subprocess.DEVNULL, stdout=self.run.log, stderr=self.run.log)

    def kill(self, again):
        with self.lock:
            self.ended = not again
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            if again:
                self.start()

    def look_after(self):
        """Like a service manager: restarts a process that has ended without being killed."""
        with self.lock:
            if not self.ended and self.process.poll() is not None:
                self.deaths += 1
                self.start()


class Run:
    """One example under the hammer."""

    def __init__(self, name, directory, count):
        self.name, self.example, self.folder, self.count = name, EXAMPLES[name], directory / name, count
        self.stack = contextlib.ExitStack()
        self.answered, self.ended_backends, self.kills, self.rules = 0, 0, 0, []
        self.lock = threading.Lock()

    def filled(self, word):
        return word.format(**self.addresses)

    def build(self):
        for command in self.example.build:
            done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Failed(f"{' '.join(command)}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")

    def __enter__(self):
        try:
            self.begin()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *_):
        self.stack.close()

    def begin(self):
        self.log = self.stack.enter_context(tempfile.TemporaryFile())
        self.server = Program(ROOT / "tests/clients/server.py")
        self.stack.callback(self.server.end)
        told = self.server.said
        self.forwarder = Program(ROOT / "tests/clients/forwarder.py", told["socket"], told["port"])
        self.stack.callback(self.forwarder.end)
        at = self.forwarder.said
        self.port, provider_port = free_port(), free_port()
        self.addresses = {
            "port": self.port, "host": at["host"], "database_port": at["port"], "database": told["database"], "dsn": told["dsn"],
            "url": f"postgresql://{told['user']}@{at['host']}:{at['port']}/{told['database']}", "pgonce": COMMAND,
            "provider_port": provider_port, "provider": f"http://127.0.0.1:{provider_port}",
        }  # fmt: skip
        if self.example.kafka:
            from harness.kafka import Kafka

            broker = self.stack.enter_context(Kafka())
            broker.create_topic("order.placed")
            self.addresses["kafka"] = f"127.0.0.1:{broker.ports['PLAINTEXT']}"
            config = broker.directory / "pgonce.conf"
            config.write_text((self.folder / "pgonce.conf").read_text().replace("127.0.0.1:9092", self.addresses["kafka"]))
            self.addresses["relay"] = config
        libpq = {"PGHOST": at["host"], "PGPORT": str(at["port"]), "PGDATABASE": told["database"], "PGUSER": told["user"], "PGSSLMODE": "disable", "PGGSSENCMODE": "disable"}
        own = {name: self.filled(value) for name, value in self.example.environment.items()}
        self.environment = {**os.environ, **libpq, "PORT": str(self.port), **own}
        self.service = self.job("service", self.example.service)
        self.beside = {name: self.job(name, command) for name, command in self.example.beside.items()}
        self.await_service()

    def job(self, name, command):
        job = Job(self, name, command)
        job.start()
        self.stack.callback(job.kill, again=False)
        return job

    def await_service(self):
        end = time.monotonic() + PATIENCE_S
        while not accepts(self.port):
            if self.service.process.poll() is not None or time.monotonic() > end:
                raise Failed(f"the service does not start\n{self.tail()}")
            time.sleep(0.1)

    def tail(self):
        size = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, size - 8000))
        return self.log.read().decode(errors="replace")

    # ---- The clients.

    def exchange(self, work):
        """Asks until there is an answer."""
        path, number = work
        body, more = self.example.requests[path](number)
        headers = {"Idempotency-Key": f"key-{number}", "Content-Type": "application/json", **more}
        end = time.monotonic() + PATIENCE_S
        said = "nothing"
        while time.monotonic() < end:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
                connection.request("POST", path, json.dumps(body), headers)
                answer = connection.getresponse()
                said = answer.status, answer.read()
                connection.close()
                if answer.status == 201:
                    with self.lock:
                        self.answered += 1
                    return said
                if answer.status not in (409, 500, 502, 503):
                    raise Failed(f"{path}, key-{number}: {said}")
            except (OSError, http.client.HTTPException) as lost:
                said = repr(lost)
            time.sleep(random.uniform(0.02, 0.3))
        raise Failed(f"{path}, key-{number}: no answer within {PATIENCE_S} s; the last was {said}\n{self.tail()}")

    def hammer(self):
        keys = [(path, number) for path in self.example.requests for number in range(self.count)]
        random.shuffle(keys)
        # Two clients send each key at the same time; the third comes at the end.
        works = [key for key in keys for _ in range(2)]
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
            asked = [clients.submit(self.exchange, work) for work in works]
            try:
                self.disturb(asked)
                said = [each.result() for each in asked]
            except BaseException:
                clients.shutdown(wait=False, cancel_futures=True)
                raise
            said += clients.map(self.exchange, keys)
        answers = {}
        for work, answer in zip(works + keys, said):
            answers.setdefault(work, set()).add(answer)
        return answers

    # ---- The faults.

    def disturb(self, asked):
        """Until all is answered, or a client has failed. In this thread, since its child processes end with it."""
        kills = [round(part * len(asked)) for part in KILLS_AT]
        turn = 0
        while True:
            done, waiting = concurrent.futures.wait(asked, 0.1, concurrent.futures.FIRST_EXCEPTION)
            if not waiting or any(each.exception() for each in done):
                break
            for job in (self.service, *self.beside.values()):
                job.look_after()
            if not accepts(self.port):  # it is starting: without a database it may end, and the hammer tests its work, not its start
                continue
            turn += 1
            if kills and self.answered >= kills[0]:
                del kills[0]
                self.kills += 1
                for job in (self.service, *(self.beside[name] for name in self.example.killed)):
                    job.kill(again=True)
                self.forwarder.tell("forget")
            elif turn % 4 == 0:
                loss = ("lose_answer", "lose_connection_after")[turn % 8 // 4]
                self.forwarder.tell("forget")
                self.rules += [self.forwarder.tell(f"{loss} {commit}")["rule"] for commit in self.example.commit]
            if turn % 8 == 2:
                self.ended_backends += int(self.sql("""
                    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                      WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND random() < 0.3"""))
            if self.example.again and turn % 20 == 0:
                subprocess.run([self.filled(word) for word in self.example.again], cwd=self.folder, env=self.environment, stdout=self.log, stderr=self.log, check=False)
        self.forwarder.tell("forget")

    # ---- The result.

    def sql(self, query):
        return subprocess.run(["psql", self.server.said["dsn"], "-XAtqc", query], check=True, capture_output=True, text=True).stdout.strip()

    def counted(self, what):
        if isinstance(what, str):
            return int(self.sql(what) or 0)
        with urllib.request.urlopen(self.filled(what[0]), timeout=30) as answer:
            return json.load(answer)[what[1]]

    def deliver_again(self):
        """Delivers everything again, and one event after it: when that one has arrived, all others have, twice."""
        (path,) = self.example.requests
        self.beside[self.example.consumer].kill(again=False)
        self.environment["KAFKA_GROUP"] = "again"
        self.beside[self.example.consumer] = self.job(self.example.consumer, self.example.beside[self.example.consumer])
        self.exchange((path, self.count))
        self.count += 1

    def judge(self, answers):
        if self.example.consumer:
            self.deliver_again()
        two = [f"{path}, key-{number} has {len(said)} answers: {sorted(said)}" for (path, number), said in answers.items() if len(said) != 1]
        # Orders are shipped after the answer.
        end = time.monotonic() + (PATIENCE_S if self.example.beside else 0)
        while True:
            found = {name: self.counted(what) for name, what in self.example.counts.items()}
            if min(found.values()) >= self.count or time.monotonic() > end:
                break
            for job in self.beside.values():
                job.look_after()
            time.sleep(0.2)
        wrong = [f"{name}: {number} for {self.count} keys" for name, number in found.items() if number != self.count]
        if self.service.deaths:
            wrong.append(f"the service has ended without being killed {self.service.deaths} times")
        lost = sum(self.forwarder.tell(f"fired {rule}")["fired"] for rule in self.rules)
        if not (self.kills and lost and self.ended_backends):
            wrong.append("too little has happened to it: more keys are needed")
        wrong += two[:10] + ([f"... and {len(two) - 10} more"] if len(two) > 10 else [])
        if wrong:
            raise Failed("\n".join(wrong) + f"\n{self.tail()}")
        print(
            f"{self.name}: {len(answers)} keys, {3 * len(answers)} exchanges, {CLIENTS} clients. Killed {self.kills} times; {self.ended_backends} backends ended, "
            f"{lost} COMMITs unacknowledged. One effect and one answer for each key: {', '.join(f'{number} {name}' for name, number in found.items())}", flush=True
        )  # fmt: skip


def missing(name):
    """The programs that an example needs and that are missing."""
    found = [f"there is no {program}" for program in EXAMPLES[name].needs if shutil.which(program) is None]
    if EXAMPLES[name].kafka:
        from harness.kafka import jars

        found += [jars()[1]] if jars()[1] else []
        found += [] if COMMAND.exists() else [f"{COMMAND} is not built"]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="EXAMPLE", nargs="+", choices=EXAMPLES, help=", ".join(EXAMPLES))
    parser.add_argument("--keys", type=int, default=300)
    parser.add_argument("--at", type=pathlib.Path, default=HERE)
    given = parser.parse_args()
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/local/go/bin"
    status = 0
    for name in given.names:
        if missing(name):
            print(f"{name}: left out: {'; '.join(missing(name))}", file=sys.stderr)
            status = status or 77
            continue
        try:
            run = Run(name, given.at.resolve(), given.keys)
            run.build()
            with run:
                run.judge(run.hammer())
        except Failed as failed:
            print(f"{name}: FAILED\n{failed}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
