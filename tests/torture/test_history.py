# SPDX-License-Identifier: PostgreSQL
"""The history holds what was said, in the order in which it was said, also when its writer is killed."""

import base64
import os
import signal
import subprocess
import sys
import threading

import psycopg2

from harness.postgres import PATIENCE_S, ROOT

from . import facts, history

WRITER = """
import itertools, sys
from torture.history import Recorder
recorder = Recorder(sys.argv[1])
for number in itertools.count(1):
    recorder.intent(number, "sql", "transaction", "acme", "pay", f"k{number}", "x" * 500)
    print(number, flush=True)
"""


def test_what_is_written_is_read(tmp_path):
    recorder = history.Recorder(tmp_path / "h")
    recorder.intent(1, "sql", "transaction", "söder", "pay", "k", "{}", at_most=True)
    assert recorder.attempt(1, "sql-1", isolation="SERIALIZABLE") == 1
    recorder.answer(1, 1, "acknowledged", 201, 201, b"\x00\xff", False)
    recorder.fault("kill", "relay", "begin", {"why": "not"})
    recorder.phase("healed")
    recorder.close()
    log = history.read(tmp_path / "h")
    assert [record["kind"] for record in log.records] == ["intent", "attempt", "answer", "fault", "phase"]
    assert log.intents[1]["tenant"] == "söder" and log.intents[1]["at_most"]
    answer = log.answers[1, 1]
    assert (answer["verdict"], answer["code"], answer["status"], answer["replayed"]) == ("acknowledged", "201", 201, False)
    assert history.body_of(answer) == b"\x00\xff"
    times = [record["t"] for record in log.records]
    assert times == sorted(times)


def test_an_empty_body_is_not_none(tmp_path):
    recorder = history.Recorder(tmp_path / "h")
    recorder.answer(1, 1, "acknowledged", body=b"")
    recorder.answer(1, 2, "acknowledged")
    recorder.close()
    assert [history.body_of(answer) for answer in history.read(tmp_path / "h").records] == [b"", None]


def test_attempts_of_one_intent_are_numbered_by_many_threads_without_a_gap(tmp_path):
    recorder = history.Recorder(tmp_path / "h")
    threads = [threading.Thread(target=lambda: [recorder.attempt(7, "c") for _ in range(100)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    log = history.read(tmp_path / "h")
    assert [record["attempt"] for record in log.records] == list(range(1, 801))
    times = [record["t"] for record in log.records]
    assert times == sorted(times)


def test_what_was_recorded_before_a_kill_is_there_and_a_cut_line_is_left_out(tmp_path):
    path = tmp_path / "h"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, cwd=ROOT / "tests", text=True)
    for _ in range(200):
        said = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    writer.wait(PATIENCE_S)
    writer.stdout.close()
    assert len(history.read(path).records) >= said
    whole = len(history.read(path).records)
    os.truncate(path, path.stat().st_size - 3)
    assert len(history.read(path).records) in (whole, whole - 1)
    assert [record["intent"] for record in history.read(path).records] == list(range(1, len(history.read(path).records) + 1))


def test_facts_are_asked_for_again_where_a_day_is_retired_just_then():
    class Shop:
        asked = 0

        def rows(self, *_):
            self.asked += 1
            if self.asked < 3:
                raise psycopg2.errors.SerializationFailure("the day of this key was retired just now")
            return ["row"]

    shop = Shop()
    assert facts.peeked(shop, ["aged"], ["k"], "acme") == ["row"] and shop.asked == 3


def test_a_message_is_looked_up_by_the_name_that_the_inbox_has_for_it(tmp_path):
    class Shop:
        def rows(self, query, *given):
            if "archive" in query:
                return [{"tenant": "acme", "scope": "deliveries", "key": f"pgonce:id:{day}"}]
            scopes, keys, _ = given
            return [{"ord": number, "verdict": "replay_success", "state": "succeeded", "body": key.encode()} for number, key in enumerate(keys, 1) if scopes]

    day = "01a2266e-7c82-7252-814c-4464f255c4c8"
    recorder = history.Recorder(tmp_path / "h")
    for number, (mode, key) in enumerate((("receive", day), ("receive", "order/7"), ("transaction", day)), 1):
        recorder.intent(number, "go", mode, "acme", {"receive": "deliveries"}.get(mode, "accounts"), key, "{}")
    recorder.close()
    found = {(row["scope"], row["key"]): (base64.b64decode(row["body"]).decode(), row["archived"]) for row in facts.intents(Shop(), history.read(tmp_path / "h"))}
    assert found == {("deliveries", day): (f"pgonce:id:{day}", True), ("deliveries", "order/7"): ("order/7", False), ("accounts", day): (day, False)}
