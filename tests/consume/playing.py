# SPDX-License-Identifier: PostgreSQL
"""A source alone, without a consumer: the program play_source, which obeys from standard input (tests/consume/play_source.c)."""

import json
import select
import subprocess
import time

from harness.nginx import BUILD
from harness.postgres import PATIENCE_S, clean_environment, tied

PROGRAM = BUILD / "tests/consume/play_source"


class Refused(Exception):
    """It did not start: what it said."""


class Source:
    """options: of the section [consume NAME], "__" for "."; a list: the option more than once. environment: what its process has more."""

    def __init__(self, directory, name="stock", prefetch=1000, memory=32 << 20, environment=None, **options):
        config = directory / f"{name}.conf"
        lines = [f"[consume {name}]"]
        for option, values in options.items():
            for value in values if isinstance(values, list) else [values]:
                lines.append(f"{option.replace('__', '.')} = {value}")
        config.write_text("\n".join(lines) + "\n")
        self.directory = directory
        self.log = directory / f"{name}.log"
        self.process = subprocess.Popen(
            tied([PROGRAM, config, name, prefetch, memory]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(self.log, "ab"),
            env=clean_environment() | (environment or {}),
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def tell(self, command, patience_s=PATIENCE_S):
        try:
            self.process.stdin.write(command.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        ready, _, _ = select.select([self.process.stdout], [], [], patience_s)
        assert ready, f"no answer to {command!r} within {patience_s} s:\n{self.log.read_text()[-3000:]}"
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(PATIENCE_S)
            raise Refused(self.log.read_text())
        return json.loads(line)

    def fetch(self, most=1000, timeout_ms=200, patience_s=PATIENCE_S, most_bytes=1 << 40):
        return self.tell(f"fetch {most} {timeout_ms} {most_bytes}", patience_s)

    def collect(self, count, most=1000, patience_s=PATIENCE_S):
        """That many messages, or more where the last fetch brings them; states that are not ok are passed over."""
        found, deadline = [], time.monotonic() + patience_s
        while len(found) < count:
            answer = self.fetch(most)
            found += answer["messages"]
            assert time.monotonic() < deadline, f"{len(found)} of {count} messages; {answer}\n{self.log.read_text()[-3000:]}"
        return found

    def until(self, state, word="", patience_s=PATIENCE_S):
        """Fetches until that state, with that word in its problem. What comes meanwhile is given back then: earlier, it would come again at
        once, and again."""
        deadline, answer, came = time.monotonic() + patience_s, None, []
        while time.monotonic() < deadline:
            answer = self.fetch()
            came += answer["messages"]
            if answer["state"] == state and word in answer.get("problem", ""):
                if came:
                    self.give_back(came)
                return answer
        raise AssertionError(f"not {state} {word!r} within {patience_s} s but {answer}\n{self.log.read_text()[-3000:]}")

    def quiet(self, turns=3):
        """Nothing more comes."""
        for _ in range(turns):
            answer = self.fetch()
            assert answer["messages"] == [] and answer["state"] == "ok", answer

    def keep_alive(self):
        return self.fetch(0, 0)

    def acknowledge(self, messages=None):
        return self.tell("ack " + ("all" if messages is None else " ".join(str(each["n"]) for each in messages)))

    def give_back(self, messages=None):
        return self.tell("back " + ("all" if messages is None else " ".join(str(each["n"]) for each in messages)))

    def publish(self, topic, message):
        return self.tell(f"publish {topic} {message['n']}")

    def positions(self):
        """{part: (milliseconds, or None at the end, how far behind that)}"""
        return {part: (at_ms, behind_ms) for part, at_ms, behind_ms in self.tell("positions")["positions"]}

    def stalled(self):
        """What has messages and gives none; None: nothing."""
        answer = self.tell("stalled")
        return None if answer["state"] == "ok" else answer["problem"]

    def until_at(self, part, expected, patience_s=PATIENCE_S):
        """Waits until the position of the part fits, the source kept alive."""
        deadline = time.monotonic() + patience_s
        while not expected(found := self.positions().get(part)):
            assert time.monotonic() < deadline, f"{part} is at {found}\n{self.log.read_text()[-3000:]}"
            self.keep_alive()
            time.sleep(0.05)
        return found

    def close(self):
        """Ends it properly."""
        if self.process.poll() is None:
            self.process.stdin.close()
        assert self.process.wait(PATIENCE_S) == 0, self.log.read_text()[-3000:]

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)


def payloads(messages):
    return [message["payload"] for message in messages]


def headers(message):
    return {name: value for name, value in message["headers"]}
