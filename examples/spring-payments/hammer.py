#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Hammers the payment service: 64 clients send every key until it is answered, and once more, while the service and its backends are killed and COMMIT's
acknowledgements are lost; then counts one payment and one event for each key. hammer.py [KEYS]"""

import concurrent.futures
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from harness.broker import free_port  # noqa: E402

CLIENTS = 64
PATIENCE_S = 120


class Program:
    """One of clients/conformance: a line in, a line out."""

    def __init__(self, *words):
        self.process = subprocess.Popen([sys.executable, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said = json.loads(self.process.stdout.readline())

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def psql(server, sql):
    return subprocess.run(["psql", server.said["dsn"], "-Atqc", sql], check=True, capture_output=True, text=True).stdout.strip()


class Service:
    def __init__(self, port, url):
        self.port, self.environment, self.process = port, {**os.environ, "PORT": str(port), "PAYMENTS_URL": url, "USER": "postgres"}, None

    def start(self):
        self.process = subprocess.Popen(["java", "-Xmx384m", "-jar", "target/spring-payments-1.0.0.jar"], cwd=HERE, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def pay(port, key):
    """The answer of a whole exchange, however often it has to be tried."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("POST", "/payments", b'{"account": "account-%d", "amount": 1}' % (int(key[4:]) % 64), {"Idempotency-Key": key, "Content-Type": "application/json"})
            answer = connection.getresponse()
            body = answer.read()
            if answer.status == 201:
                return body
            assert answer.status in (409, 500, 503), (answer.status, body)
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.05)
    raise TimeoutError(key)


def disturb(server, forwarder, service, done):
    for number in range(1000):
        if done.wait(0.2):
            return
        if number % 4 == 0:
            forwarder.tell(("lose_answer", "lose_connection_after")[number % 8 // 4] + " COMMIT")
        elif number % 4 == 2:
            psql(server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.3")
        if number in (10, 60):
            service.kill()
            service.start()


def main():
    keys = [f"pay-{number}" for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 300)]
    subprocess.run(["mvn", "-q", "-B", "-f", ROOT / "clients/java", "install", "-DskipTests", "-Dmaven.javadoc.skip"], check=True)
    subprocess.run(["mvn", "-q", "-B", "package"], cwd=HERE, check=True)
    server = Program(ROOT / "clients/conformance/server.py")
    forwarder = Program(ROOT / "clients/conformance/forwarder.py", server.said["socket"], server.said["port"])
    url = f"jdbc:postgresql://127.0.0.1:{forwarder.said['port']}/{server.said['database']}?sslmode=disable&gssEncMode=disable"
    service = Service(free_port(), url)
    service.start()
    done = threading.Event()
    disturber = threading.Thread(target=disturb, args=(server, forwarder, service, done))
    disturber.start()
    try:
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
            answers = list(clients.map(lambda key: {pay(service.port, key) for _ in range(3)}, keys))
        done.set()
        disturber.join()
        assert all(len(each) == 1 for each in answers), "a key has two answers"
        assert len(set.union(*answers)) == len(keys), "two keys share an answer"
        counted = psql(server, "SELECT (SELECT count(*) FROM payment), (SELECT count(*) FROM once.outbox), (SELECT sum(1000000 - balance) FROM account)")
        assert counted == f"{len(keys)}|{len(keys)}|{len(keys)}", counted
        print(f"{len(keys)} keys, {3 * len(keys)} exchanges, {CLIENTS} clients: one payment, one event, one answer each")
    finally:
        done.set()
        disturber.join()
        service.kill()
        forwarder.end()
        server.end()


if __name__ == "__main__":
    main()
