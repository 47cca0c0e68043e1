# SPDX-License-Identifier: PostgreSQL
"""pgonce parked: what operators see of messages that were not applied, and what they can do. The consumers are played by the contract's own functions."""
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
            "SELECT once_job.message_park(%s, %s, ARRAY[ROW(%s, %s, %s, %s::jsonb, %s, sha256(%s), %s, %s, %s, %s, 'P0001')::once.parked])",
            consumer, tenant, message_id, topic, key, headers, payload, payload, state, attempts, wait_ms, error)
        return message_id

    return park


def parked(pgonce, *words, **named):
    return pgonce("parked", *words, **named)


def text_of(done, code=0):
    assert done.returncode == code, (done.stdout, done.stderr)
    return (done.stdout if code == 0 else done.stderr).decode()


# list

def test_where_nothing_is_parked_the_list_says_so(pgonce):
    assert "nothing is parked" in text_of(parked(pgonce, "list"))
    assert json.loads(text_of(parked(pgonce, "list", "--json"))) == {"counts": [], "parked": []}


def test_the_list_counts_and_shows_what_is_parked_the_dead_first(pgonce, park):
    park("m-1", state="waiting", attempts=0, error=None)
    park("m-2", state="retrying", attempts=1)
    park("m-3")
    park("m-4", consumer="audit", tenant="a", key=None)
    listed = json.loads(text_of(parked(pgonce, "list", "--json")))
    assert [(row["kind"], row["holder"], row["topic"], row["state"], row["items"]) for row in listed["counts"]] == [
        ("message", "audit", "orders", "dead", 1), *(("message", "stock", "orders", state, 1) for state in ("dead", "retrying", "waiting"))]
    assert [row["id"] for row in listed["parked"]] == ["m-4", "m-3", "m-2", "m-1"]
    text = text_of(parked(pgonce, "list"))
    for part in ("message of key 17; 10 attempts: no such article", "message of tenant a; 10 attempts", "1 attempt, again in 59s"):
        assert part in re.sub(r"in 5\ds", "in 59s", text), text
    assert all(len(line) <= 80 for line in text.splitlines()), text


def test_the_list_is_narrowed_by_consumer_tenant_state_and_number(pgonce, park):
    park("m-1")
    park("m-2", state="retrying")
    park("m-3", consumer="audit")
    park("m-4", tenant="a")

    def listed(*words):
        return [row["id"] for row in json.loads(text_of(parked(pgonce, "list", "--json", *words)))["parked"]]

    assert listed("--consumer", "audit") == ["m-3"]
    assert listed("--tenant", "a") == ["m-4"]
    assert listed("--tenant", "") == ["m-3", "m-1", "m-2"]
    assert listed("--state", "retrying") == ["m-2"]
    assert listed("--error", "NO SUCH THING") == listed("--error", "p0001") == []
    assert listed("--error", "SUCH ART", "--consumer", "audit") == listed("--error", "P0001", "--consumer", "audit") == ["m-3"]
    assert listed("--kind", "event") == listed("--topic", "mail") == listed("--type", "t") == listed("--until", "1h") == []
    assert listed("--limit", "1") == ["m-3"]
    assert b"only the first 1" in parked(pgonce, "list", "--limit", "1").stderr
    assert "nothing is in this state" in text_of(parked(pgonce, "list", "--state", "waiting"))
    assert "nothing is parked" in text_of(parked(pgonce, "list", "--consumer", "nobody"))
    assert "never pending" in text_of(parked(pgonce, "list", "--state", "pending", "--consumer", "stock"), 2)


# show

def test_show_prints_the_message_whole(pgonce, park):
    park("m-1", payload='{"id": 7,\n "name": "é"}'.encode())
    text = text_of(parked(pgonce, "show", "m-1"))
    for part in ("stock", "orders", "17", "dead", "10", "no such article", "P0001", '{"Content-Type":"application/json"}', '| {"id": 7,\n  |  "name": "é"}'):
        assert part in text, text
    shown = json.loads(text_of(parked(pgonce, "show", "m-1", "--json")))
    assert base64.b64decode(shown["payload"]) == '{"id": 7,\n "name": "é"}'.encode()


def test_show_prints_bytes_that_are_no_text_as_hex(pgonce, park):
    park("m-1", payload=b"\0\xff\x1b[2J")
    text = parked(pgonce, "show", "m-1").stdout
    assert b"00 ff 1b 5b 32 4a" in text and b"\x1b" not in text


def test_stored_text_forges_no_line_and_moves_no_cursor(pgonce, park):
    park("m-1", key="1\x1b[2J\nstate forged", error="\x1b[31mred\nsecond line")
    for done in (parked(pgonce, "show", "m-1"), parked(pgonce, "list")):
        assert done.returncode == 0 and b"\x1b" not in done.stdout
        assert b"\nstate forged" not in done.stdout and b"\nsecond" not in done.stdout


@pytest.mark.parametrize("verb", ["show", "retry", "discard"])
def test_what_is_not_parked_is_not_found(pgonce, db, park, verb):
    park("m-1")
    reason = () if verb == "show" else ("--reason", "r")
    for words in (("m-2",), ("m-1", "--consumer", "audit"), ("m-1", "--tenant", "a")):
        done = parked(pgonce, verb, *words, *reason)
        assert "is parked" in text_of(done, 5) and "hint: " in text_of(done, 5)
    assert db.value("SELECT count(*) FROM once.parked_decision") == 0


# retry and discard

def test_retry_tries_again_now_with_all_attempts(pgonce, db, park):
    park("m-1")
    assert "tried again now" in text_of(parked(pgonce, "retry", "m-1", "--reason", "the handler is mended"))
    assert db.row("SELECT state, attempts, next_at <= clock_timestamp() AS due FROM once.parked_message") == ("retrying", 0, True)
    assert db.row("SELECT what, consumer, subject, from_state, reason, decided_by FROM once.parked_decision") == \
        ("retry", "stock", "m-1", "dead", "the handler is mended", "postgres")
    assert "by postgres: retry: the handler is mended" in text_of(parked(pgonce, "show", "m-1"))


def test_what_is_discarded_is_a_duplicate_when_it_comes_again(pgonce, db, park):
    park("m-1")
    done = parked(pgonce, "discard", "m-1", "--reason", "a test of theirs", "--json")
    assert json.loads(text_of(done)) == {"kind": "message", "id": "m-1", "holder": "stock", "tenant": "", "done": "discard"}
    assert db.value("SELECT count(*) FROM once.parked_message") == 0
    assert db.value("SELECT verdict FROM once.receive_many('stock', ARRAY['m-1'], ARRAY['17'], ARRAY[sha256('{\"id\": 7}'::bytea)])") == "duplicate"


def test_the_one_that_has_it_is_meant_and_of_several_one_must_be_named(pgonce, db, park):
    park("m-1", consumer="stock")
    park("m-1", consumer="audit", tenant="a")
    park("m-2", consumer="audit", tenant="a")
    text = text_of(parked(pgonce, "retry", "m-1", "--reason", "r"), 2)
    assert "consumer audit, tenant 'a': dead, consumer stock: dead" in text and "--consumer" in text
    text_of(parked(pgonce, "retry", "m-1", "--consumer", "stock", "--reason", "r"))
    text_of(parked(pgonce, "retry", "m-1", "--tenant", "a", "--reason", "r"))
    text_of(parked(pgonce, "retry", "m-2", "--reason", "r"))
    assert db.rows("SELECT consumer, subject FROM once.parked_decision ORDER BY decided_at") == [("stock", "m-1"), ("audit", "m-1"), ("audit", "m-2")]


# many

def count_of(pgonce, verb, *words, code=0):
    return json.loads(text_of(parked(pgonce, verb, *words, "--json"), code))


def test_many_are_counted_first_and_decided_about_with_yes(pgonce, db, park):
    for n in range(3):
        park(f"m-{n}", topic="mail", headers='{"Pgonce-Event-Type": "welcome"}')
    park("m-3", topic="other", error="timeout")
    park("m-4", consumer="audit", tenant="a", topic="mail")
    text = text_of(parked(pgonce, "discard", "--topic", "mail"))
    assert text.startswith("discard: 4 messages (dry run: nothing was changed; --yes")
    assert re.search(r"^KIND +HOLDER +TOPIC +STATE +COUNT\nmessage +audit +mail +dead +1\nmessage +stock +mail +dead +3$", text, re.M)
    counted = count_of(pgonce, "discard", "--consumer", "stock", "--type", "welcome", "--dry-run")
    assert (counted["what"], counted["dry_run"], counted["items"], counted["skipped"]) == ("discard", True, 3, [])
    assert count_of(pgonce, "retry", "--tenant", "a")["items"] == 1 and count_of(pgonce, "retry", "--tenant", "")["items"] == 4
    assert db.value("SELECT count(*) FROM once.parked_message") == 5
    done = count_of(pgonce, "discard", "--consumer", "stock", "--topic", "mail", "--yes", "--reason", "too late")
    assert (done["dry_run"], done["items"], done["reason"]) == (False, 3, "too late")
    assert done["filters"] == {"kind": None, "relay": None, "consumer": "stock", "tenant": None, "topic": "mail", "type": None, "error": None,
                               "state": None, "until": None}  # fmt: skip
    assert done["groups"] == [{"kind": "message", "holder": "stock", "topic": "mail", "state": "dead", "items": 3}]
    text = text_of(parked(pgonce, "retry", "--error", "TIME", "--yes", "--reason", "the host is back"))
    assert text.startswith("retry: 1 message: tried again now")
    assert db.rows("SELECT message_id, state, attempts FROM once.parked_message ORDER BY 1") == [("m-3", "retrying", 0), ("m-4", "dead", 10)]
    assert db.rows("SELECT what, reason, count(*)::integer FROM once.parked_decision GROUP BY 1, 2 ORDER BY 1") == [
        ("discard", "too late", 3), ("retry", "the host is back", 1)]


def test_many_are_narrowed_by_age_as_the_list_tells_it(pgonce, db, park):
    park("old")
    park("new")
    db.execute("UPDATE once.parked_message SET parked_at = parked_at - interval '2 hours' WHERE message_id = 'old'")
    for words, count in ((("1h",), 1), (("1s",), 1), (("3h",), 0), (("tomorrow",), 2)):
        assert count_of(pgonce, "retry", "--until", *words)["items"] == count
    text_of(parked(pgonce, "discard", "--until", "1h", "--yes", "--reason", "r"))
    assert db.rows("SELECT message_id FROM once.parked_message") == [("new",)]
    assert "'soon-ish' is not a time" in text_of(parked(pgonce, "retry", "--until", "soon-ish"), 2)


def test_what_a_consumer_is_trying_is_skipped_and_told(pgonce, db, park):
    park("m-1", state="waiting", wait_ms=0)
    park("m-2", state="waiting", key="18")
    consumer = db.connect(isolation="READ COMMITTED")
    consumer.cursor().execute("SELECT once_job.message_due('stock', '', 1)")
    done = parked(pgonce, "discard", "--state", "waiting", "--yes", "--reason", "r")
    assert done.returncode == 10 and b"1 message stays unchanged" in done.stderr and b"run it again" in done.stderr
    assert b"discard: 1 message: given up" in done.stdout and re.search(rb"^P4029 +stock +orders +waiting +1$", done.stdout, re.M)
    consumer.rollback()
    text_of(parked(pgonce, "discard", "--state", "waiting", "--yes", "--reason", "r"))
    assert db.value("SELECT count(*) FROM once.parked_message") == 0


def more_dead(db, park, count):
    park("m-0", key=None)
    db.execute("INSERT INTO once.parked_message (consumer, tenant, message_id, topic, fingerprint, payload, state, next_at, parked_at, updated_at)"
               " SELECT consumer, tenant, 'm-' || n, topic, fingerprint, payload, 'dead', now(), now(), now()"
               "   FROM once.parked_message, generate_series(1, %s) AS n", count - 1)


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_thousands_are_decided_about_in_many_transactions(pgonce, db, park, verb):
    more_dead(db, park, 4001)
    assert count_of(pgonce, verb, "--state", "dead", "--yes", "--reason", "r")["items"] == 4001
    assert db.value("SELECT count(DISTINCT xmin::text) FROM once.parked_decision") == 5


def test_a_run_that_loses_its_connection_says_what_is_done_and_the_next_one_does_the_rest(pgonce, db, park):
    """Killed by the server in the middle of the third piece, whose decisions are rolled back."""
    more_dead(db, park, 4000)
    db.execute("CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
               " IF (SELECT count(*) FROM once.parked_decision) = 2500 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END $$;"
               "CREATE TRIGGER cut BEFORE INSERT ON once.parked_decision FOR EACH ROW EXECUTE FUNCTION cut()")
    done = parked(pgonce, "discard", "--state", "dead", "--yes", "--reason", "r")
    assert done.returncode != 0 and b"may or may not be stored: run it again" in done.stderr
    assert b"discard: 2000 messages: given up" in done.stdout
    assert db.value("SELECT count(*) FROM once.parked_message") == 2000
    db.execute("DROP TRIGGER cut ON once.parked_decision")
    assert count_of(pgonce, "discard", "--state", "dead", "--yes", "--reason", "r")["items"] == 2000
    assert db.value("SELECT count(DISTINCT subject) FROM once.parked_decision") == 4000


# the command line

@pytest.mark.parametrize("words, part", [
    ((), "what to do"), (("retry",), "which one"), (("discard", "--yes", "--reason", "r"), "which one"),
    (("retry", "--topic", "t", "--yes"), "needs --reason"), (("discard", "--topic", "t", "--yes", "--reason", " "), "needs --reason"),
    (("retry", "--topic", "t", "--yes", "--dry-run", "--reason", "r"), "opposites"), (("discard", "--consumer", "c", "--state", "delayed"), "never pending or delayed"), (("discard", "--state", "pending"), "is not parked"),
    (("retry", "m", "--topic", "t", "--reason", "r"), "--topic is for many"), (("discard", "m", "--yes", "--reason", "r"), "--yes is for many"),
    (("retry", "m", "--error", "e", "--reason", "r"), "--error is for many"), (("retry", "--consumer", "c", "--kind", "event"), "--consumer does not fit"), (("show", "m", "--yes"), "--yes"),
    (("lst",), "'lst'"), (("list", "x"), "'x'"), (("show",), "which one"), (("show", "m", "--limit", "1"), "--limit"),
    (("retry", "m"), "needs --reason"), (("discard", "m", "--reason", " "), "needs --reason"), (("list", "--reason", "r"), "--reason")])
def test_a_wrong_command_line_is_said_before_anything_is_done(pgonce, words, part):
    text = text_of(parked(pgonce, *words), 2)
    assert part in text and "hint: pgonce help parked" in text


def test_without_the_contract_it_says_what_to_do(bare):
    assert "pgonce init" in text_of(parked(bare, "list"), 4)


def test_who_may_only_read_may_not_decide(db, park, tmp_path):
    park("m-1")
    db.execute("CREATE ROLE reader_of_messages LOGIN IN ROLE once_reader")
    try:
        reader = Command(db.dsn("reader_of_messages"), tmp_path)
        assert "m-1" in text_of(parked(reader, "list"))
        done = parked(reader, "retry", "m-1", "--reason", "r")
        assert done.returncode == 1 and b"42501" in done.stderr
    finally:
        db.execute("DROP ROLE reader_of_messages")
