# SPDX-License-Identifier: PostgreSQL
"""A consumer whose broker is a file (tests/consume/scripted.c): messages are appended as lines, and what it acknowledged is read back."""
import base64
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

from harness.postgres import PATIENCE_S, ROOT, clean_environment, tied, wait_until

PROGRAM = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build")) / "tests/consume/play_consumer"

HANDLER = """
CREATE TABLE IF NOT EXISTS applied (n bigserial, id text, topic text, key text, headers jsonb, payload bytea, body jsonb,
                                    by_whom text DEFAULT current_user);
CREATE OR REPLACE FUNCTION apply(m once.message) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO applied (id, topic, key, headers, payload, body) VALUES (m.id, m.topic, m.key, m.headers, m.payload, m.body);
    IF m.body->>'do' = 'fail' THEN
        RAISE EXCEPTION USING ERRCODE = coalesce(m.body->>'code', 'P0001'), MESSAGE = 'told to fail', DETAIL = 'by ' || m.id;
    END IF;
END $$;
"""


def as_value(value):
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return value


def message(number, key=None, body=None, payload=None, id=..., topic="orders", headers=(), coordinates=None):
    """Message `number`: its id is id-N. body: what its payload is in JSON."""
    if payload is None:
        payload = json.dumps({"number": number, **(body or {})})
    given = list(headers.items()) if isinstance(headers, dict) else list(headers)
    if id is ...:
        id = f"id-{number}"
    if id is not None:
        given.append(("Pgonce-Event-Id", id))
    line = {"topic": as_value(topic), "payload": as_value(payload), "headers": [[as_value(n), as_value(v)] for n, v in given]}
    if key is not None:
        line["key"] = as_value(key)
    if coordinates is not None:
        line["coordinates"] = coordinates
    return line


class Script:
    """The broker's file and what was acknowledged of it."""

    def __init__(self, messages=()):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="pgonce-script-", dir="/tmp"))
        self.path, self.acks, self.dead = (self.directory / name for name in ("script", "acks", "dead"))
        self.path.touch()
        self.count = 0
        self.add(*messages)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.directory, ignore_errors=True)

    def add(self, *messages):
        with open(self.path, "a", encoding="utf-8") as file:
            for each in messages:
                file.write(json.dumps(each) + "\n")
                self.count += 1

    def acknowledged(self):
        return sorted(set(map(int, self.acks.read_text().split()))) if self.acks.exists() else []

    def dead_letters(self):
        return [json.loads(line) for line in self.dead.read_text().splitlines()] if self.dead.exists() else []

    def config(self, source="script", **options):
        options = {"source": source, "script": self.path, "acks": self.acks, "retry_first": "5ms", "retry_most": "20ms", **options}
        if not {"handler", "endpoint"} & options.keys():
            options["handler"] = "apply"
        path = self.directory / f"config-{next(NUMBERS)}"
        # What has quotes of its own stands in quotes as a whole.
        options = {name: f'"{value}"' if '"' in str(value) else value for name, value in options.items()}
        lines = [f"{name} = {value}" for name, value in options.items() if value is not None]
        path.write_text("[consume stock]\n" + "\n".join(lines) + "\n", encoding="utf-8")
        return path


NUMBERS = itertools.count()


class Consumer:
    """A running play_consumer."""

    def __init__(self, script, dsn, *words, config=None, **options):
        self.log = script.directory / f"log-{next(NUMBERS)}"
        command = [PROGRAM, config or script.config(**options), "stock", dsn, "verbose", *words]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(tied(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean_environment())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def said(self):
        return self.log.read_text(errors="replace")

    def wait_said(self, text, times=1):
        wait_until(lambda: self.said().count(text) >= times or self.process.poll() is not None, f"{text!r} in the log")
        assert self.said().count(text) >= times, self.said()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, timeout=PATIENCE_S):
        self.process.terminate()
        return self.ends(timeout)

    def ends(self, timeout=PATIENCE_S):
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(self.said()[-4000:]) from None


def consume(script, dsn, until=None, **options):
    """Runs until all is acknowledged, and `until` is true; then stops it. Returns the log."""
    with Consumer(script, dsn, **options) as consumer:
        controls = sum("control" in line for line in map(json.loads, script.path.read_text().splitlines()))

        def done():
            assert consumer.process.poll() is None, consumer.said()
            return len(script.acknowledged()) >= script.count - controls and (until is None or until())

        consumer.wait_said("event=started")
        try:
            wait_until(done, "all to be acknowledged")
        except TimeoutError as late:
            raise AssertionError(f"{late}: {script.acknowledged()[:50]}\n{consumer.said()[-4000:]}") from None
        assert consumer.stop() == 0, consumer.said()
        return consumer.said()
