#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Plays clients that retry and are killed, and a service that is killed, on the session of examples/demo.py; prints each attempt's
answer, and the charges at the end. Exit status 1 unless there is one charge per intent.

  play.py PGONCE DEMO      PGONCE: the command; DEMO: the output of demo.py start"""

import concurrent.futures
import http.client
import json
import os
import socket
import subprocess
import sys
import time
import urllib.parse

PATIENCE_S = 30
CLIENTS = 10


class Play:
    def __init__(self, pgonce, demo):
        self.pgonce, self.demo = pgonce, demo
        if not demo["payments"]:
            sys.exit("play: the gateway does not run: nginx, or its module, is not here")
        self.name = f"{int(time.time())}-{os.getpid()}"
        self.problems = []

    def run(self, *words, **options):
        return subprocess.run([self.pgonce, *words], capture_output=True, text=True, check=False, **options)

    def body(self, order):
        return json.dumps({"order": f"{order}-{self.name}", "amount": 1999, "currency": "EUR"})

    def key(self, order):
        return f"{order}-{self.name}"

    def post(self, service, order, behave=""):
        """(status, replayed, body) through that service's gateway. While another attempt runs, it retries when the answer says."""
        url = urllib.parse.urlsplit(self.demo[service]["url"])
        deadline = time.monotonic() + PATIENCE_S
        while True:
            connection = http.client.HTTPConnection(url.netloc, timeout=PATIENCE_S)
            connection.request("POST", url.path, self.body(order), self.headers(order, behave))
            answer = connection.getresponse()
            body = answer.read().decode()
            connection.close()
            is_active = answer.status == 409 and json.loads(body)["type"].endswith(":active")
            if not is_active or time.monotonic() > deadline:
                return answer.status, answer.getheader("Idempotency-Replayed") == "true", body
            time.sleep(int(answer.getheader("Retry-After")))

    def headers(self, order, behave):
        return {"Content-Type": "application/json", "Idempotency-Key": self.key(order), "X-Behave": behave}

    def post_directly(self, order):
        connection = http.client.HTTPConnection("service", timeout=PATIENCE_S)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.connect(self.demo["payments"]["socket"])
        connection.request("POST", "/payments", self.body(order), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, False, answer.read().decode()

    def start_client(self, order, behave):
        """A client that can be killed: a process that sends the request and waits for the answer."""
        url = urllib.parse.urlsplit(self.demo["payments"]["url"])
        lines = [f"POST {url.path} HTTP/1.1", f"Host: {url.netloc}", f"Content-Length: {len(self.body(order))}"]
        lines += [f"{name}: {value}" for name, value in self.headers(order, behave).items()]
        request = "\r\n".join(lines) + "\r\n\r\n" + self.body(order)
        program = "import socket, sys; s = socket.create_connection(sys.argv[1:3]); s.sendall(sys.argv[3].encode()); s.recv(1)"
        return subprocess.Popen([sys.executable, "-c", program, url.hostname, str(url.port), request])

    def wait_until_running(self, scope, order):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            shown = self.run("show", "--dsn", self.demo["server"]["dsn"], "--scope", scope, "--key", self.key(order), "--json")
            if shown.returncode == 0 and json.loads(shown.stdout)["state"] == "processing":
                return
            time.sleep(0.02)
        sys.exit(f"play: the intent {scope}/{self.key(order)} is not running")

    def charges(self, order):
        url = urllib.parse.urlsplit(self.demo["payments"]["url"])
        connection = http.client.HTTPConnection(url.netloc, timeout=PATIENCE_S)
        connection.request("GET", f"{url.path}?order={order}-{self.name}")
        return json.loads(connection.getresponse().read())["count"]

    def tell(self, who, answer):
        status, replayed, body = answer
        if status >= 400 and body.startswith("{"):
            document = json.loads(body)
            body = document.get("title", body)
        elif status >= 500:
            body = "(made by nginx)"
        print(f"  {who:<44}{status:<5}{'replayed' if replayed else '':<10}{body[:90]}")

    def expect(self, what, good):
        if not good:
            self.problems.append(what)

    # The scenes.

    def without(self):
        print("The service itself, asked twice by a client that retries:")
        for number in (1, 2):
            self.tell(f"attempt {number}", self.post_directly("naive"))

    def in_parallel(self):
        print(f"\nThrough the gateway: {CLIENTS} attempts of one intent at once; the first one's client is killed (SIGKILL):")
        killed = self.start_client("parallel", "delay_ms=800")
        self.wait_until_running("payments", "parallel")
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            others = [pool.submit(self.post, "payments", "parallel") for _ in range(CLIENTS - 1)]
            killed.kill()
            killed.wait()
            answers = [each.result() for each in others]
        print(f"  {'attempt 1':<44}{'-':<15}killed before it had an answer; its charge goes on")
        for number, answer in enumerate(answers, 2):
            self.tell(f"attempt {number}", answer)
        self.expect("all retries get the same answer", len(set(answers)) == 1 and answers[0][:2] == (201, True))

    def service_killed(self):
        print("\nThe service is killed after the charge and before its answer: its outcome is unknown, and reported so:")
        self.tell("attempt 1, the service dies", self.post("payments", "killed", "die"))
        doubt = self.post("payments", "killed")
        self.tell("attempt 2", doubt)
        self.expect("the intent is in doubt", doubt[0] == 409)
        print("  an operator looks, finds the charge, and decides (pgonce resolve --as succeeded):")
        body = json.dumps({"order": f"killed-{self.name}", "found": "by the operator"})
        decided = self.run(
            *("resolve", "--dsn", self.demo["server"]["dsn"], "--scope", "payments", "--key", self.key("killed"), "--as", "succeeded"),
            *("--status", "201", "--body", "-", "--reason", "found the charge"),
            input=body,
        )
        self.expect(f"the decision is taken: {decided.stderr}", decided.returncode == 0)
        answer = self.post("payments", "killed")
        self.tell("attempt 3", answer)
        self.expect("the decision is replayed", answer == (201, True, body))

    def handed_off(self):
        print("\nThe same with the hand-off: the service completes the intent in the transaction of its charge, then dies:")
        self.tell("attempt 1, the service dies", self.post("handoff", "handoff", "die"))
        answer = self.post("handoff", "handoff")
        self.tell("attempt 2", answer)
        self.expect("the retry gets the stored answer", answer[:2] == (201, True) and '"charge"' in answer[2])

    def prove(self):
        print(f"\n{'Charges':<46}{'there are':<12}{'there should be'}")
        for order, what in (("naive", "the service itself"), ("parallel", "ten at once, a client killed"),
                            ("killed", "the service killed"), ("handoff", "the hand-off, the service killed")):
            count = self.charges(order)
            print(f"  {what:<44}{count:<12}1")
            self.expect(f"one charge: {what}", count == (2 if order == "naive" else 1))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    play = Play(sys.argv[1], json.loads(sys.argv[2]))
    for scene in (play.without, play.in_parallel, play.service_killed, play.handed_off, play.prove):
        scene()
    for problem in play.problems:
        print(f"play: this did not hold: {problem}", file=sys.stderr)
    sys.exit(1 if play.problems else 0)


if __name__ == "__main__":
    main()
