# SPDX-License-Identifier: PostgreSQL
"""docs/configuration.md, which is made from the tables by which the file is read: its example is right, and every sink and source is in it."""
import re
import subprocess

import pytest

from cli.command import PROGRAM
from harness.postgres import clean_environment


def run(*words, cwd=None):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, env=clean_environment(), cwd=cwd, stdin=subprocess.DEVNULL, timeout=60,
                          check=False)


@pytest.fixture(scope="module")
def document():
    done = run("help", "--markdown", "configuration")
    assert done.returncode == 0 and done.stderr == ""
    return done.stdout


def test_every_sink_and_source_has_its_options(document):
    assert re.findall(r"^### (sink|source) = (\w+)$", document, re.M) == [
        ("sink", name) for name in ("kafka", "nats", "rabbitmq", "stdout", "webhook")] + [("source", name) for name in ("kafka", "rabbitmq", "nats")]
    for option in ("route", "parked_max", "kafka.*", "secret_file", "allow_private", "handler", "endpoint", "durable", "queue", "group"):
        assert f"| `{option}` |" in document


def test_every_option_says_what_it_is(document):
    rows = [line for line in document.splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    for row in rows:
        cells = re.split(r"(?<!\\)\|", row)
        assert len(cells) == 6 and cells[2].strip() and cells[4].strip(), row


@pytest.mark.parametrize("command", ["relay", "consume"])
def test_the_example_is_right(document, tmp_path, command):
    example = re.findall(r"((?:^    .*\n|^\n)+)", document, re.M)
    text = next(part for part in example if "[relay orders]" in part)
    (tmp_path / "pgonce.conf").write_text("\n".join(line[4:] for line in text.splitlines()))
    done = run(command, "--check-config", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["relay", "consume"])
def test_a_mistake_is_told_with_its_line_and_what_would_be_right(tmp_path, command):
    kind = "sink" if command == "relay" else "source"
    (tmp_path / "pgonce.conf").write_text(f"# mine\n\n[{command} a]\n{kind} = nats\nurl = nats://h\natempts = 3\n")
    done = run(command, "--check-config", cwd=tmp_path)
    assert done.returncode != 0
    assert f"pgonce.conf:6: [{command} a] atempts: unknown option; did you mean attempts?" in done.stderr
