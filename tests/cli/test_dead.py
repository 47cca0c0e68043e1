# SPDX-License-Identifier: PostgreSQL
"""pgonce dead: what operators see of messages that were not applied, and what they can do. The consumers are played by the contract's own functions."""
import base64
import json
import re

import pytest

from .command import Command


@pytest.fixture
def park(db):
    def park(message_id, consumer="stock", state="dead", tenant="", topic="orders", key="17", payload=b'{"id": 7}', attempts=10, wait_ms=60000,
             error="no such article", headers='{"Content-Type": "application/json"}'):
        db.execute(
            "SELECT once.message_park(%s, %s, ARRAY[ROW(%s, %s, %s, %s::jsonb, %s, sha256(%s), %s, %s, %s, %s, 'P0001')::once.parked])",
            consumer, tenant, message_id, topic, key, headers, payload, payload, state, attempts, wait_ms, error)
        return message_id

    return park


def dead(pgonce, *words, **named):
    return pgonce("dead", *words, **named)


def text_of(done, code=0):
    assert done.returncode == code, (done.stdout, done.stderr)
    return (done.stdout if code == 0 else done.stderr).decode()


# list

def test_where_nothing_is_parked_the_list_says_so(pgonce):
    assert "nothing is parked" in text_of(dead(pgonce, "list"))
    assert json.loads(text_of(dead(pgonce, "list", "--json"))) == {"consumers": [], "messages": []}


def test_the_list_counts_and_shows_what_is_parked_the_dead_first(pgonce, park):
    park("m-1", state="waiting", attempts=0, error=None)
    park("m-2", state="retrying", attempts=1)
    park("m-3")
    park("m-4", consumer="audit", tenant="a", key=None)
    listed = json.loads(text_of(dead(pgonce, "list", "--json")))
    assert [(row["consumer"], row["state"], row["messages"]) for row in listed["consumers"]] == [
        ("audit", "dead", 1), ("stock", "dead", 1), ("stock", "retrying", 1), ("stock", "waiting", 1)]
    assert [row["message_id"] for row in listed["messages"]] == ["m-4", "m-3", "m-2", "m-1"]
    text = text_of(dead(pgonce, "list"))
    for part in ("key 17; 10 attempts: no such article", "tenant a; 10 attempts", "1 attempt, again in 59s"):
        assert part in re.sub(r"in 5\ds", "in 59s", text), text
    assert all(len(line) <= 80 for line in text.splitlines()), text


def test_the_list_is_narrowed_by_consumer_tenant_state_and_number(pgonce, park):
    park("m-1")
    park("m-2", state="retrying")
    park("m-3", consumer="audit")
    park("m-4", tenant="a")

    def listed(*words):
        return [row["message_id"] for row in json.loads(text_of(dead(pgonce, "list", "--json", *words)))["messages"]]

    assert listed("--consumer", "audit") == ["m-3"]
    assert listed("--tenant", "a") == ["m-4"]
    assert listed("--tenant", "") == ["m-3", "m-1", "m-2"]
    assert listed("--state", "retrying") == ["m-2"]
    assert listed("--limit", "1") == ["m-3"]
    assert b"only the first 1" in dead(pgonce, "list", "--limit", "1").stderr
    assert "no message is in this state" in text_of(dead(pgonce, "list", "--state", "waiting"))
    assert "nothing is parked with this consumer" in text_of(dead(pgonce, "list", "--consumer", "nobody"))
    assert "never pending" in text_of(dead(pgonce, "list", "--state", "pending"), 2)


# show

def test_show_prints_the_message_whole(pgonce, park):
    park("m-1", payload='{"id": 7,\n "name": "é"}'.encode())
    text = text_of(dead(pgonce, "show", "m-1"))
    for part in ("stock", "orders", "17", "dead", "10", "no such article", "P0001", '{"Content-Type":"application/json"}', '| {"id": 7,\n  |  "name": "é"}'):
        assert part in text, text
    shown = json.loads(text_of(dead(pgonce, "show", "m-1", "--json")))
    assert base64.b64decode(shown["payload"]) == '{"id": 7,\n "name": "é"}'.encode()


def test_show_prints_bytes_that_are_no_text_as_hex(pgonce, park):
    park("m-1", payload=b"\0\xff\x1b[2J")
    text = dead(pgonce, "show", "m-1").stdout
    assert b"00 ff 1b 5b 32 4a" in text and b"\x1b" not in text


def test_stored_text_forges_no_line_and_moves_no_cursor(pgonce, park):
    park("m-1", key="1\x1b[2J\nstate forged", error="\x1b[31mred\nsecond line")
    for done in (dead(pgonce, "show", "m-1"), dead(pgonce, "list")):
        assert done.returncode == 0 and b"\x1b" not in done.stdout
        assert b"\nstate forged" not in done.stdout and b"\nsecond" not in done.stdout


@pytest.mark.parametrize("verb", ["show", "retry", "discard"])
def test_what_is_not_parked_is_not_found(pgonce, db, park, verb):
    park("m-1")
    reason = () if verb == "show" else ("--reason", "r")
    for words in (("m-2",), ("m-1", "--consumer", "audit"), ("m-1", "--tenant", "a")):
        done = dead(pgonce, verb, *words, *reason)
        assert "is parked" in text_of(done, 5) and "hint: " in text_of(done, 5)
    assert db.value("SELECT count(*) FROM once.parked_decision") == 0


# retry and discard

def test_retry_tries_again_now_with_all_attempts(pgonce, db, park):
    park("m-1")
    assert "tried again now" in text_of(dead(pgonce, "retry", "m-1", "--reason", "the handler is mended"))
    assert db.row("SELECT state, attempts, next_at <= clock_timestamp() AS due FROM once.parked_message") == ("retrying", 0, True)
    assert db.row("SELECT what, consumer, subject, from_state, reason, decided_by FROM once.parked_decision") == \
        ("retry", "stock", "m-1", "dead", "the handler is mended", "postgres")
    assert "by postgres: retry: the handler is mended" in text_of(dead(pgonce, "show", "m-1"))


def test_what_is_discarded_is_a_duplicate_when_it_comes_again(pgonce, db, park):
    park("m-1")
    done = dead(pgonce, "discard", "m-1", "--reason", "a test of theirs", "--json")
    assert json.loads(text_of(done)) == {"message_id": "m-1", "consumer": "stock", "tenant": "", "done": "discard"}
    assert db.value("SELECT count(*) FROM once.parked_message") == 0
    assert db.value("SELECT verdict FROM once.receive_many('stock', ARRAY['m-1'], ARRAY['17'], ARRAY[sha256('{\"id\": 7}'::bytea)])") == "duplicate"


def test_the_one_that_has_it_is_meant_and_of_several_one_must_be_named(pgonce, db, park):
    park("m-1", consumer="stock")
    park("m-1", consumer="audit", tenant="a")
    park("m-2", consumer="audit", tenant="a")
    text = text_of(dead(pgonce, "retry", "m-1", "--reason", "r"), 2)
    assert "audit (tenant 'a'), stock" in text and "--consumer" in text
    text_of(dead(pgonce, "retry", "m-1", "--consumer", "stock", "--reason", "r"))
    text_of(dead(pgonce, "retry", "m-1", "--tenant", "a", "--reason", "r"))
    text_of(dead(pgonce, "retry", "m-2", "--reason", "r"))
    assert db.rows("SELECT consumer, subject FROM once.parked_decision ORDER BY decided_at") == [("stock", "m-1"), ("audit", "m-1"), ("audit", "m-2")]


# the command line

@pytest.mark.parametrize("words, part", [
    ((), "what to do"), (("lst",), "'lst'"), (("list", "x"), "'x'"), (("show",), "which one"), (("show", "m", "--limit", "1"), "--limit"),
    (("retry", "m"), "needs --reason"), (("discard", "m", "--reason", " "), "needs --reason"), (("list", "--reason", "r"), "--reason")])
def test_a_wrong_command_line_is_said_before_anything_is_done(pgonce, words, part):
    text = text_of(dead(pgonce, *words), 2)
    assert part in text and "hint: pgonce help dead" in text


def test_without_the_contract_it_says_what_to_do(bare):
    assert "pgonce init" in text_of(dead(bare, "list"), 4)


def test_who_may_only_read_may_not_decide(db, park, tmp_path):
    park("m-1")
    db.execute("CREATE ROLE reader_of_dead LOGIN IN ROLE once_reader")
    try:
        reader = Command(db.dsn("reader_of_dead"), tmp_path)
        assert "m-1" in text_of(dead(reader, "list"))
        done = dead(reader, "retry", "m-1", "--reason", "r")
        assert done.returncode == 1 and b"42501" in done.stderr
    finally:
        db.execute("DROP ROLE reader_of_dead")
