# SPDX-License-Identifier: PostgreSQL
"""A relay at work: `pgonce relay` as a process, with its configuration file, its log and what it delivered."""

import collections
import json
import os
import re
import signal
import subprocess

from harness.postgres import PATIENCE_S, ROOT, clean_environment, tied, wait_until

PROGRAM = os.path.join(os.environ.get("PGONCE_BUILD", ROOT / "build"), "cli/pgonce")
LINE = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')


def webhook(endpoint, **options):
    """The options of a section that delivers to harness.webhook.Webhook."""
    return {"sink": "webhook", "url": endpoint.url, "allow_private": "yes", "allow_plain": "yes", **options}


class Relay:
    """options: of the section [relay NAME]; a list for one that comes more than once. Lines on standard output go to a file."""

    def __init__(self, directory, dsn, name="r", arguments=(), **options):
        self.name = name
        self.dsn = dsn
        self.arguments = arguments
        self.config = directory / f"{name}.conf"
        self.out = directory / f"{name}.out"
        self.err = directory / f"{name}.err"
        self.write({"sink": "stdout", **options})
        self.process = None

    def write(self, options):
        lines = [f"dsn = {self.dsn}", f"[relay {self.name}]"]
        for name, value in options.items():
            lines += [f"{name} = {each}" for each in (value if isinstance(value, list) else [value])]
        self.config.write_text("\n".join(lines) + "\n")

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        self.wait()

    def start(self, *arguments):
        with open(self.out, "ab") as out, open(self.err, "ab") as err:
            self.process = subprocess.Popen(
                tied([PROGRAM, "relay", "--config", self.config, "--verbose", *self.arguments, *arguments]),
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=clean_environment(), start_new_session=True)
        return self

    def once(self, *arguments):
        """--once; the exit code."""
        return self.start("--once", *arguments).wait()

    def wait(self):
        return self.process.wait(PATIENCE_S)

    def kill(self):
        self.process.kill()
        self.wait()

    def stop(self):
        """The exit code of an orderly end."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def delivered(self):
        """What was written to standard output, whole lines only."""
        text = self.out.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def log(self, event=None):
        lines = [dict(LINE.findall(line)) for line in self.err.read_text().splitlines()]
        return [line for line in lines if event is None or line.get("event") == event]

    def until(self, event, count=1):
        """Waits for a line in the log; gives it."""
        self.until_true(lambda: len(self.log(event)) >= count, f"event={event} in the log")
        return self.log(event)[count - 1]

    def until_true(self, condition, what):
        def asked():
            assert self.process.poll() is None or condition(), f"the relay ended ({self.process.returncode}):\n{self.err.read_text()}"
            return condition()

        try:
            wait_until(asked, what)
        except TimeoutError as late:
            raise TimeoutError(f"{late}:\n{self.err.read_text()[-4000:]}") from late

    def rss_kb(self, peak=True):
        status = open(f"/proc/{self.process.pid}/status", encoding="utf-8").read()
        return int(re.search(r"VmHWM:\s+(\d+)" if peak else r"VmRSS:\s+(\d+)", status)[1])


def emit(connection, count=1, topic="order.created", aggregate=None, first=0, payload="jsonb_build_object('n', i)"):
    """Events with {"n": first...}; aggregate: an SQL expression of i; none: no aggregate. Gives their ids, in order."""
    aggregate = (aggregate or "NULL").replace("%", "%%")
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT once.emit(%s, {payload}, 'order', {aggregate})::text FROM generate_series(%s, %s) AS i",
                       (topic, first, first + count - 1))
        return [row[0] for row in cursor.fetchall()]


def parked(db, relay="r"):
    return db.rows("SELECT * FROM once.parked_event WHERE relay = %s ORDER BY id", relay)


def passed_all(db, relay="r"):
    """Has the relay delivered or parked every event that is committed?"""
    return db.value(
        """SELECT NOT EXISTS (SELECT FROM once.outbox AS o, once.relay AS r WHERE r.relay = %s AND NOT pg_visible_in_snapshot(o.xid, r.seen))
              AND EXISTS (SELECT FROM once.relay AS r WHERE r.relay = %s)""", relay, relay)


def first_arrivals(numbers):
    """Each number once, where it came first."""
    return list(dict.fromkeys(numbers))


def duplicates(numbers):
    return sum(count - 1 for count in collections.Counter(numbers).values())


def by_key(messages):
    """(key, n) of messages -> {key: [n in the order of first arrival]}."""
    found = collections.defaultdict(dict)
    for key, number in messages:
        found[key][number] = None
    return {key: list(numbers) for key, numbers in found.items()}
