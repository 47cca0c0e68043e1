# SPDX-License-Identifier: PostgreSQL
"""One sink without a relay before it: play_sink.c, held by a test."""
import json
import os
import pathlib
import queue
import subprocess
import threading
import uuid

from harness.postgres import PATIENCE_S, ROOT, clean_environment

BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
SANITIZED = pathlib.Path(os.environ.get("PGONCE_BUILD_SANITIZED", ROOT / "build-sanitized"))
PROGRAM = "tests/relay/play_sink"


def write_config(path, options):
    """options: a dict; a list as a value gives the option as often."""
    lines = ["[relay played]"]
    for name, values in options.items():
        lines += [f"{name} = {value}" for value in (values if isinstance(values, list) else [values])]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return path


def problem_of(path, options):
    """What --check-config would say; None: nothing."""
    done = subprocess.run([BUILD / PROGRAM, write_config(path, options), "played", "check"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          stdin=subprocess.DEVNULL, env=clean_environment(), timeout=PATIENCE_S, check=False)
    assert done.returncode in (0, 2), done.stderr
    return done.stderr.strip() if done.returncode == 2 else None


class Sink:
    def __init__(self, path, options, environment=None, build=BUILD, log=None):
        self.process = subprocess.Popen([build / PROGRAM, write_config(path, options), "played"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=log, text=True, env=clean_environment() | (environment or {}))
        assert self.process.stdout.readline() == "open\n"
        self.results = queue.Queue()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.results.put(json.loads(line))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            try:
                self.say("close")
                self.process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            self.reader.join(PATIENCE_S)
            self.process.stdout.close()
        assert kind is not None or self.process.returncode == 0

    def say(self, what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def send(self, destination, body="{}", event_id=None, **more):
        event_id = event_id or str(uuid.uuid4())
        self.say({"destination": destination, "event_id": event_id, "body": body, **more})
        return event_id

    def permit(self, milliseconds):
        """What it has may be sent for so long; None: not any more."""
        self.say({"permit_ms": milliseconds})

    def result(self, patience_s=PATIENCE_S):
        return self.results.get(timeout=patience_s)

    def deliver(self, destination, body="{}", **more):
        """Sends one and gives its result."""
        event_id = self.send(destination, body, **more)
        result = self.result()
        assert result["event_id"] == event_id
        return result


def results_of(sink, count):
    """By event id: exactly one for each."""
    results = [sink.result() for _ in range(count)]
    by_id = {result["event_id"]: result for result in results}
    assert len(by_id) == count, "an event has two results"
    return by_id
