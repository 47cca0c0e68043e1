# SPDX-License-Identifier: PostgreSQL
"""docs/reference/configuration.md, which is made from the tables by which the file is read: its example is right, and every sink and source is in it."""
import json
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
        ("sink", name) for name in ("kafka", "nats", "rabbitmq", "sns", "sqs", "stdout", "webhook")] + [
        ("source", name) for name in ("kafka", "rabbitmq", "nats", "sqs")]
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


RELAYS = """\
dsn = host=/nowhere dbname=x
wrong before a section
[relay orders]
sink = nats
url = nats://h
batch = many
retry_first = 1y
atempts = 3
route = nowhere
[relay orders]
sink = stdout
[relya mistyped]
sink = nats
[relay second]
sink = kafak
tiemout = 3s
[relay third]
sink stdout
timeout = never
[relay fourth]
sink = stdout
retry_first = 2h
retry_most = 1h
ce_source = a b
[consume stock]
source = nats
batch = 0
on_dead = perhaps
ids = numbers
nonsense_of_mine = 1
url = nats://h
stream = S
"""
CONSUMERS = [
    "pgonce.conf:2: 'wrong' is neither", "pgonce.conf:10: [relay orders] already exists, in line 3", "pgonce.conf:12: [relya mistyped]: unknown kind",
    "pgonce.conf:18: 'sink' is neither",
]  # fmt: skip


@pytest.mark.parametrize("command, problems", [
    ("relay", [
        "pgonce.conf:6: [relay orders] batch: 'many'", "pgonce.conf:7: [relay orders] retry_first: '1y'", "pgonce.conf:8: [relay orders] atempts: unknown option",
        "pgonce.conf:9: [relay orders] route: write it as TOPIC -> DESTINATION",
        "pgonce.conf:15: [relay second] sink: there is no sink 'kafak'", "pgonce.conf:16: [relay second] tiemout: unknown option; did you mean timeout",
        "pgonce.conf:19: [relay third] timeout: 'never'", "pgonce.conf:22: [relay fourth] retry_first: the first wait is longer",
        "pgonce.conf:24: [relay fourth] ce_source: must be a URI reference"]),
    ("consume", [
        "pgonce.conf:27: [consume stock] batch: '0'", "pgonce.conf:28: [consume stock] on_dead: 'perhaps'", "pgonce.conf:29: [consume stock] ids: 'numbers'",
        "pgonce.conf:30: [consume stock] nonsense_of_mine: unknown option"]),
])  # fmt: skip
def test_all_mistakes_are_told_at_once_each_with_its_line(tmp_path, command, problems):
    """And none that is only the consequence of another: the section whose sink is not readable does not lack it."""
    (tmp_path / "pgonce.conf").write_text(RELAYS)
    done = run(command, "--check-config", cwd=tmp_path)
    assert done.returncode == 2
    told = [line.removeprefix(f"pgonce {command}: ") for line in done.stderr.splitlines() if not line.startswith("hint: ")]
    for problem in CONSUMERS + problems:
        assert sum(line.startswith(problem) for line in told) == 1, (problem, done.stderr)
    assert len(told) == len(CONSUMERS) + len(problems), done.stderr
    assert run(command, cwd=tmp_path).stderr == done.stderr


def test_a_connection_string_that_is_wrong_is_told_once(tmp_path):
    (tmp_path / "pgonce.conf").write_text("[relay a]\nsink = webhook\nurl = https://h/\n[relay b]\nsink = stdout\n")
    done = run("relay", "--check-config", "--dsn", "host='unclosed", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("option --dsn: ") == 1 and len(done.stderr.splitlines()) == 2
    (tmp_path / "pgonce.conf").write_text("dsn = host='unclosed\n[relay a]\nsink = webhook\nurl = https://h/\n[relay b]\nsink = stdout\n")
    done = run("relay", "--check-config", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("pgonce.conf:1: dsn: ") == 1 and len(done.stderr.splitlines()) == 2


def test_all_mistakes_are_json_where_that_is_wanted(tmp_path):
    (tmp_path / "pgonce.conf").write_text("[relay a]\nsink = stdout\nbatch = x\ntimeout = y\n")
    done = run("relay", "--check-config", "--json", cwd=tmp_path)
    told = [json.loads(line)["error"]["message"] for line in done.stderr.splitlines()]
    assert [text.split(": ")[0] for text in told] == ["pgonce.conf:3", "pgonce.conf:4"]


def test_a_file_of_another_kind_is_told_in_some_lines_not_in_thousands(tmp_path):
    (tmp_path / "pgonce.conf").write_text("this is prose\n" * 10000)
    done = run("relay", "--check-config", cwd=tmp_path)
    assert done.returncode == 2 and 10 < len(done.stderr.splitlines()) < 60
    assert "more lines are wrong" in done.stderr


@pytest.mark.parametrize("options, words", [
    ("route = order.* -> orders", ["pgonce.conf:4: [relay shop] route: a queue without FIFO delivers events in any order"]),
    ("route = order.* -> orders.fifo", ["[relay shop]: a FIFO queue drops a repeat within five minutes, a replay too"]),
    ("", ["[relay shop]: without a route each topic goes to a queue with its name"]),
])
def test_what_a_queue_of_sqs_does_to_events_is_told_when_the_file_is_checked(tmp_path, options, words):
    (tmp_path / "pgonce.conf").write_text(f"[relay shop]\nsink = sqs\nregion = eu-central-1\n{options}\n")
    done = run("relay", "--check-config", cwd=tmp_path)
    assert done.returncode == 0 and "1 of its relays can be run" in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 + len(words)


@pytest.mark.parametrize("queue, told", [("orders", True), ("orders.fifo", False)])
def test_what_a_queue_of_sqs_does_to_messages_is_told_when_the_file_is_checked(tmp_path, queue, told):
    (tmp_path / "pgonce.conf").write_text(f"[consume stock]\nsource = sqs\nregion = eu-central-1\nqueue = {queue}\nhandler = shop.take\n")
    done = run("consume", "--check-config", cwd=tmp_path)
    assert done.returncode == 0 and "12 hours after SQS delivered it" in done.stderr
    assert ("[consume stock] queue: a standard queue (not FIFO) has no order" in done.stderr) == told
