#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Many requests at one application of this suite with pgonce, of which some clients leave without waiting: are memory, connections and open files flat? And how long
does it take to serve again after its pool was exhausted, from when the cause has ended?

    soak.py APPLICATION... [--requests 50000] [--leaving 5] [--clients 16]

Not part of `make test`. Prints a line of figures per application; ends with 1 where something is not flat, or recovery takes longer than a second."""

import argparse
import json
import os
import pathlib
import random
import sys
import tempfile
import threading
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import http1  # noqa: E402
import run  # noqa: E402
from harness import postgres  # noqa: E402

POOL = run.POOL
GATE = {"request": {"path": "/gate"}}
LIMIT_MS = 5000  # of a handler: a busy machine is no hang
WARM_UP = 0.4  # of the requests; memory is measured from there on
GROWTH_MAX = 1.15  # of the medians of the first and the last samples after it
RECOVERY_MAX_S = 1.0
HANDLERS = ("json", "text", "stream-bytes", "file", "echo")


def request_of(handler):
    return run.Request({"path": f"/{handler}", "headers": [["Content-Type", "application/octet-stream"]], "body": "x" * random.randint(0, 2000)}, str(uuid.uuid4()), {})


def family(pid):
    return [pid] + [each for child in postgres.children_of(pid) for each in family(child)]


def memory(pid):
    """Of all its processes, in MiB."""
    pages = sum(int(pathlib.Path(f"/proc/{each}/statm").read_text().split()[1]) for each in family(pid))
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def files(pid):
    return sum(len(os.listdir(f"/proc/{each}/fd")) for each in family(pid))


class Load:
    """Clients that keep their connections, and a new one where they left."""

    def __init__(self, process, given):
        self.process, self.given = process, given
        self.lock = threading.Lock()
        self.sent = self.answered = self.left = 0
        self.wrong = []

    def next(self):
        with self.lock:
            if self.sent >= self.given.requests or self.wrong:
                return False
            self.sent += 1
            return True

    def client(self):
        connection = None
        try:
            while self.next():
                connection = connection or http1.Connection(self.process.port)
                handler = random.choice(HANDLERS)
                request = request_of(handler)
                connection.send(request.head() + request.body)
                if random.random() * 100 < self.given.leaving:
                    connection.reset()
                    connection = None
                    with self.lock:
                        self.left += 1
                    continue
                answer = connection.answer()
                if answer.end != "whole" or answer.status not in (200, 201):
                    self.wrong.append(f"{handler}: {answer.end} {answer.line} {answer.body[:200]!r}")
                with self.lock:
                    self.answered += 1
                if answer.one("connection").lower() == "close" or answer.framing == "close":
                    connection.socket.close()
                    connection = None
        except OSError as error:
            self.wrong.append(f"{type(error).__name__}: {error}")
        finally:
            if connection:
                connection.socket.close()

    def run(self):
        threads = [threading.Thread(target=self.client) for _ in range(self.given.clients)]
        for thread in threads:
            thread.start()
        samples, steps = [], 20
        while any(thread.is_alive() for thread in threads):
            if self.sent >= len(samples) * self.given.requests / steps:
                samples.append((memory(self.process.process.pid), files(self.process.process.pid), self.sessions()))
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        return samples

    def sessions(self):
        return self.process.database.value(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )


def median(values):
    return sorted(values)[len(values) // 2]


def cut_off(process):
    """The gate stays closed: the limit of a handler ends them. Seconds beyond it until no connection is held; the gate opens afterwards."""
    process.close_gate()
    connections = [http1.Connection(process.port) for _ in range(POOL)]
    try:
        began = time.monotonic()
        for connection in connections:
            request = request_of("gate")
            connection.send(request.head() + request.body)
        answers = [connection.answer() for connection in connections]
        held = process.settled()
        took = time.monotonic() - began - LIMIT_MS / 1000
    finally:
        process.open_gate()
    for connection in connections:
        connection.socket.close()
    wrong = [answer.line or answer.end for answer in answers if answer.status != 503]
    return took, held or (f"answers: {wrong}" if wrong else None)


def soak(application, server, port, place, given):
    application.prepare()
    process = run.Process(application, server, port, True, place, LIMIT_MS)
    problems = []
    try:
        process.start()
        process.wait()
        load = Load(process, given)
        began = time.monotonic()
        samples = load.run()
        took = time.monotonic() - began
        problems += load.wrong[:3]
        held = process.settled()
        if held:
            problems.append(held)
        late = samples[int(len(samples) * WARM_UP) :]
        part = max(1, len(late) // 4)
        first, files_first, _ = map(median, zip(*late[:part]))
        last, files_last, _ = map(median, zip(*late[-part:]))
        if last > first * GROWTH_MAX:
            problems.append(f"memory grew from {first:.0f} to {last:.0f} MiB")
        if files_last > files_first + given.clients:
            problems.append(f"open files grew from {files_first} to {files_last}")
        most = max(each[2] for each in samples)
        if most > POOL + 1:  # one more asks for what became of a lost COMMIT
            problems.append(f"{most} connections to the database")
        effects, done = sum(process.effects().values()), process.database.value("SELECT count(*) FROM once.intent WHERE state <> 'processing'")
        if not load.answered <= effects <= load.sent or done != effects:
            problems.append(f"{effects} effects and {done} finished intents of {load.answered} answers and {load.sent} requests")
        times = {"waiting": run.exhaust(process, GATE, "gate")[1], "leaving": run.exhaust(process, GATE, "leave")[1]}
        process.settled()
        over, why = cut_off(process)
        problems += [f"recovery with clients {who}: {seconds:.2f} s" for who, seconds in times.items() if seconds > RECOVERY_MAX_S]
        problems += [f"handlers that are cut off: {why}"] if why else []
        figures = {
            "application": application.name, "requests": load.sent, "left": load.left, "effects": effects, "per_second": round(load.sent / took),
            "memory_mib": [round(first), round(last)], "files": [files_first, files_last], "connections": most,
            "recovery_s": {who: round(seconds, 2) for who, seconds in times.items()}, "cut_off_after_limit_s": round(over, 2),
        }  # fmt: skip
        print(json.dumps(figures), flush=True)
    finally:
        process.open_gate()
        process.stop()
    for each in problems:
        print(f"{application.name}: {each}", flush=True)
    return not problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("application", nargs="+")
    parser.add_argument("--requests", type=int, default=50000)
    parser.add_argument("--leaving", type=float, default=5, help="percent")
    parser.add_argument("--clients", type=int, default=16)
    given = parser.parse_args()
    private, port = run.private_server()
    with private as server, tempfile.TemporaryDirectory() as place:
        run.write_report(place)
        results = [soak(run.Application(name), server, port, place, given) for name in given.application]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
