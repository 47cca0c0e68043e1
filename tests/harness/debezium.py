# SPDX-License-Identifier: PostgreSQL
"""The real Debezium engine with its connector for PostgreSQL, a process of Java. Its jars come by Maven (debezium/pom.xml) into a cache, once; what it
sends is written by debezium/Capture.java, which is compiled beside them."""

import functools
import json
import os
import pathlib
import shutil
import subprocess
import uuid

import pytest

from .broker import Broker, program
from .postgres import clean_environment, wait_until

HERE = pathlib.Path(__file__).parent / "debezium"
FETCH_S = 900  # the first time
WHOLE = b"\xac\xedx"  # how a serialized map of Java begins, and its last byte


def run(words):
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, timeout=FETCH_S, cwd="/tmp", env=clean_environment()
    )
    return done.stdout[-2000:] + done.stderr[-2000:] if done.returncode != 0 else None


@functools.lru_cache(maxsize=None)
def jars():
    """(the directory with the jars and what was compiled, None), or (None, why there is none)."""
    if shutil.which("javac") is None:
        return None, "there is no javac: apt-get install default-jdk-headless"
    said = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=False)
    version = (said.stdout + said.stderr).split()[-1]
    if int(version.split(".")[0]) < 17:
        return None, f"Java 17 or later is needed, and this is {version}"
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "pgonce"
    text = (HERE / "pom.xml").read_text() + (HERE / "Capture.java").read_text() + version
    directory = cache / f"debezium-{uuid.uuid5(uuid.NAMESPACE_OID, text)}"
    if directory.exists():
        return directory, None
    if shutil.which("mvn") is None:
        return None, "there is no Maven to fetch Debezium with: apt-get install maven"
    unfinished = cache / f"unfinished-debezium-{os.getpid()}"
    cache.mkdir(parents=True, exist_ok=True)
    problem = run(["mvn", "-q", "-B", "-f", HERE / "pom.xml", "dependency:copy-dependencies", "-DincludeScope=runtime",
                   f"-DoutputDirectory={unfinished}"])  # fmt: skip
    problem = problem or run(["javac", "-d", unfinished, "-cp", f"{unfinished}/*", HERE / "Capture.java"])
    if problem:
        shutil.rmtree(unfinished, ignore_errors=True)
        return None, f"Debezium could not be fetched:\n{problem}"
    try:
        unfinished.rename(directory)
    except OSError:  # another run was faster
        shutil.rmtree(unfinished, ignore_errors=True)
    return directory, None


def require():
    """Skips the test where Debezium is not to be had, and fails it where CI=true says that nothing may be left out."""
    problem = jars()[1]
    if problem is None:
        return
    message = f"NOT TESTED, Debezium is not to be had: {problem}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    print(f"\n{message}", flush=True)
    pytest.skip(message)


class Debezium(Broker):
    """properties: of the connector. Its offsets are in a file, as those of a connector are in Kafka: they outlive the process."""

    name = "debezium"
    # C1 only: it starts faster, and a test is over before C2 would pay.
    java_options = ("-Xmx384m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

    def __init__(self, properties):
        super().__init__()
        self.jars, problem = jars()
        if problem:
            raise RuntimeError(problem)
        self.properties = {
            "name": "test",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": self.directory / "offsets",
            "offset.flush.interval.ms": 100,
            "errors.max.retries": 100,
            "errors.retry.delay.initial.ms": 100,
            "errors.retry.delay.max.ms": 500,
            "retriable.restart.connector.wait.ms": 200,
            **properties,
        }
        self.sent_file = self.directory / "sent"

    def command(self):
        lines = [f"{name}={value}" for name, value in self.properties.items()]
        (self.directory / "properties").write_text("\n".join(lines) + "\n")
        return [program("java", "default-jre-headless"), *self.java_options, "-Djava.awt.headless=true", "-cp", f"{self.jars}:{self.jars}/*", "Capture", self.directory / "properties"]

    def launch(self, command, environment=None):
        if self.sent_file.exists() and not self.sent_file.read_bytes().endswith(b"\n"):
            with open(self.sent_file, "ab") as sent:  # a line that a kill cut off: the next one is not to be its end
                sent.write(b"\n")
        with open(self.sent_file, "ab") as sent, open(self.log, "ab") as log:
            return subprocess.Popen(
                [str(word) for word in command], stdout=sent, stderr=log, stdin=subprocess.DEVNULL, env=self.environment(), cwd=self.directory
            )

    def is_ready(self):
        return True

    def kill(self):
        """Not while it writes its offsets: a file that is half written is none, and it would read the whole table again. Kafka's topic is always whole."""
        wait_until(self.is_paused_whole, "whole offsets")
        super().kill()

    def is_paused_whole(self):
        self.pause()
        offsets = pathlib.Path(self.properties["offset.storage.file.filename"])
        data = offsets.read_bytes() if offsets.exists() else WHOLE
        if data.startswith(WHOLE[:2]) and data.endswith(WHOLE[-1:]):
            return True
        self.resume()
        return False

    def sent(self):
        """What it has sent in all its lives, heartbeats left out. A line that a kill cut off is none: it was not processed, and comes again."""
        found = []
        for line in self.sent_file.read_text().splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if not record["topic"].startswith("__debezium-heartbeat"):
                found.append(record)
        return found
