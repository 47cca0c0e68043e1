# SPDX-License-Identifier: PostgreSQL
"""pgonce parked: what operators see of events that were not delivered, and what they can do. The relays are played by the contract's own functions."""
import base64
import json
import re
import uuid

import pytest

from .command import Command


class Relay:
    """A relay's session, as the program pgonce relay has one."""

    def __init__(self, db, name, topics=None):
        self.db, self.name = db, name
        self.connection = db.connect()
        self.cursor = self.connection.cursor()
        self.cursor.execute("SELECT * FROM once_job.relay_take(%s, %s)", (name, topics))
        self.seen = self.cursor.fetchone().seen

    def pass_all(self):
        """Everything so far is done with; gives the events."""
        self.cursor.execute("SELECT * FROM once_job.relay_look(%s, %s)", (self.name, self.seen))
        reading = self.cursor.fetchone().reading
        self.cursor.execute("SELECT * FROM once_job.relay_list(%s, %s, %s, 0, 1000)", (self.name, self.seen, reading))
        listed = self.cursor.fetchall()
        self.cursor.execute("SELECT once_job.relay_settle(%s, %s, NULL, 0, NULL, NULL)", (self.name, reading))
        self.seen = reading
        return listed

    def park(self, event_id, state, error=None, attempts=3, wait_ms=60000):
        self.cursor.execute(
            "SELECT once_job.relay_settle(%s, %s, NULL, 0, NULL, ARRAY(SELECT ROW(o.id, o.xid, o.day, o.event_id, o.topic, o.tenant, o.aggregate_type,"
            " o.aggregate_id, %s, %s, %s, %s, false)::once.parking FROM once.outbox AS o WHERE o.event_id = %s))",
            (self.name, self.seen, state, attempts, wait_ms, error, event_id))


@pytest.fixture
def emit(db):
    def emit(topic="order.created", aggregate="17", payload='{"id": 7, "amount": 1.10}', **more):
        named = {"headers": None, **more}
        return str(db.value("SELECT once.emit(%s, %s, 'order', %s, headers => %s)", topic, payload, aggregate, named["headers"]))

    return emit


@pytest.fixture
def relay(db):
    return lambda name="orders", topics=None: Relay(db, name, topics)


def parked(pgonce, *words, **named):
    return pgonce("parked", *words, **named)


def text_of(done, code=0):
    assert done.returncode == code, (done.stdout, done.stderr)
    return (done.stdout if code == 0 else done.stderr).decode()


def state_of(pgonce, event, relay="orders"):
    shown = json.loads(text_of(parked(pgonce, "show", event, "--json")))
    return {each["relay"]: each["state"] for each in shown["relays"]}[relay]


# list

def test_where_no_relay_ran_the_list_says_that_none_takes_it(pgonce, emit):
    emit()
    text = text_of(parked(pgonce, "list"))
    assert "no relay takes this topic" in text and "nothing is parked" in text
    told = json.loads(text_of(parked(pgonce, "list", "--json")))
    assert told["parked"] == [] and [(row["holder"], row["state"], row["items"]) for row in told["counts"]] == [(None, "untaken", 1)]


def test_where_all_is_delivered_the_list_says_so(pgonce, relay, emit):
    emit()
    relay().pass_all()
    text = text_of(parked(pgonce, "list"))
    assert "orders" in text and "idle" in text and "nothing is parked" in text


def test_the_list_counts_what_waits_and_shows_what_is_parked_the_dead_first(pgonce, relay, emit):
    played = relay()
    waiting, retrying, dead = emit(aggregate="1"), emit(aggregate="2"), emit(aggregate="3")
    played.pass_all()
    played.park(waiting, "waiting")
    played.park(retrying, "retrying", "HTTP 500", attempts=1)
    played.park(dead, "dead", "HTTP 422: no such customer", attempts=10)
    pending = emit("invoice.sent")
    listed = json.loads(text_of(parked(pgonce, "list", "--json")))
    assert [(row["topic"], row["state"], row["items"]) for row in listed["counts"]] == [
        ("invoice.sent", "pending", 1), ("order.created", "dead", 1), ("order.created", "retrying", 1), ("order.created", "waiting", 1)]
    assert [row["id"] for row in listed["parked"]] == [dead, retrying, waiting]
    assert {(row["kind"], row["holder"]) for row in listed["parked"] + listed["counts"]} == {("event", "orders")}
    text = text_of(parked(pgonce, "list"))
    for part in ("invoice.sent", "event of order 3; 10 attempts: HTTP 422: no such customer", "event of order 2; 1 attempt, again in 59s: HTTP 500", dead):
        assert part in re.sub(r"in 5\ds", "in 59s", text), text
    assert pending not in text
    assert all(len(line) <= 80 for line in text.splitlines()), text


def test_the_list_is_narrowed_by_relay_topic_state_and_number(pgonce, relay, emit):
    orders, audit = relay("orders"), relay("audit")
    one, two = emit("a"), emit("b")
    for played in (orders, audit):
        played.pass_all()
        played.park(one, "dead")
        played.park(two, "retrying")
    pending = emit("a")

    def listed(*words):
        done = parked(pgonce, "list", "--json", *words)
        return [(row["holder"], row["id"]) for row in json.loads(text_of(done))["parked"]]

    assert listed("--relay", "audit") == [("audit", one), ("audit", two)]
    assert listed("--topic", "b") == [("audit", two), ("orders", two)]
    assert listed("--state", "dead") == [("audit", one), ("orders", one)]
    assert listed("--state", "pending", "--relay", "orders") == [("orders", pending)]
    assert listed("--kind", "message") == listed("--tenant", "a") == listed("--type", "c") == listed("--error", "500") == listed("--until", "1h") == []
    assert listed("--kind", "event", "--type", "b", "--tenant", "", "--until", "tomorrow") == [("audit", two), ("orders", two)]
    assert listed("--limit", "1") == [("audit", one)]
    assert b"only the first 1" in parked(pgonce, "list", "--limit", "1").stderr
    assert "nothing is in this state" in text_of(parked(pgonce, "list", "--state", "waiting"))
    assert "no relay 'ordres'" in text_of(parked(pgonce, "list", "--relay", "ordres"), 5)


def test_a_long_error_is_cut_in_the_list_and_whole_in_the_event(pgonce, relay, emit):
    played, event = relay(), emit()
    played.pass_all()
    played.park(event, "dead", "é" * 300)
    assert all(len(line) <= 80 for line in text_of(parked(pgonce, "list")).splitlines())
    assert "é" * 300 in text_of(parked(pgonce, "show", event))


# show

def test_show_prints_the_event_whole(pgonce, db, relay, emit):
    played, audit = relay(), relay("audit", ["other"])
    event = emit(headers='{"shop": "a"}')
    played.pass_all()
    played.park(event, "retrying", "HTTP 500: sorry", attempts=2)
    text = text_of(parked(pgonce, "show", event))
    for part in (event, "order.created", "order", "17", '{"shop":"a"}', '{"id": 7, "amount": 1.10}', "orders: retrying, 2 attempts, next at",
                 "HTTP 500: sorry"):
        assert part in text, text
    assert "audit" not in text
    shown = json.loads(text_of(parked(pgonce, "show", event, "--json")))
    assert json.loads(shown["payload"]) == {"id": 7, "amount": 1.10} and shown["relays"][0]["attempts"] == 2
    assert "pending" in text_of(parked(pgonce, "show", emit()))
    audit.connection.close()


@pytest.mark.parametrize("payload, lines", [
    (b"\x1b]0;x\x07\x00\xff", ["content type application/x-protobuf", "payload      8 bytes", "| 00000000  1b 5d 30 3b 78 07 00 ff"]),
    (b"plain text", ["payload      10 bytes", "| plain text"]),
    (b"", ["payload      0 bytes"])])
def test_show_prints_bytes_so_that_they_do_nothing_to_a_terminal(pgonce, db, payload, lines):
    event = str(db.value("SELECT once.emit_bytes('t', %s, 'application/x-protobuf')", payload))
    text = text_of(parked(pgonce, "show", event))
    assert all(line in text for line in lines) and "\x1b" not in text, text
    shown = json.loads(text_of(parked(pgonce, "show", event, "--json")))
    assert (shown["payload"], base64.b64decode(shown["payload_base64"]), shown["payload_bytes"], shown["content_type"]) == (
        None, payload, len(payload), "application/x-protobuf")


def test_stored_text_forges_no_line_and_moves_no_cursor(pgonce, relay, emit):
    played, event = relay(), emit(aggregate="1\x1b[2J\nrelays forged\u009b2J")
    played.pass_all()
    played.park(event, "dead", "\x1b[31mred\nsecond line\x07")
    for done in (parked(pgonce, "show", event), parked(pgonce, "list")):
        assert done.returncode == 0
        assert not set(done.stdout) & {0x1b, 0x07} and b"\xc2\x9b" not in done.stdout
        assert b"\nrelays forged" not in done.stdout and b"\nsecond" not in done.stdout


def test_what_is_no_event_is_said(pgonce, relay, emit):
    relay()
    for words in (("show",), ("retry", "--reason", "r"), ("discard", "--reason", "r")):
        for name in ("17", str(uuid.uuid4())):
            done = parked(pgonce, words[0], name, *words[1:])
            assert "there is no such event" in text_of(done, 5) and "hint: " in text_of(done, 5)
    problem = json.loads(parked(pgonce, "show", str(uuid.uuid4()), "--json").stderr)
    assert problem["error"]["exit"] == 5


# retry and discard

@pytest.mark.parametrize("state", ["waiting", "retrying", "dead"])
def test_retry_tries_again_now_with_all_attempts(pgonce, db, relay, emit, state):
    played, event = relay(), emit()
    played.pass_all()
    played.park(event, state, "HTTP 500", attempts=9, wait_ms=3600000)
    assert "tried again now" in text_of(parked(pgonce, "retry", event, "--reason", "it is mended"))
    row = db.row("SELECT state, attempts, next_at <= clock_timestamp() AS due FROM once.parked_event")
    assert row == ("retrying", 0, True)
    assert "retry with orders: it is mended" in text_of(parked(pgonce, "show", event.upper()))
    assert db.row("SELECT what, relay, subject, from_state, reason, decided_by FROM once.parked_decision") == \
        ("retry", "orders", event, state, "it is mended", "postgres")
    assert "by postgres: retry with orders: it is mended" in text_of(parked(pgonce, "show", event))


def test_discard_gives_up_the_event(pgonce, db, relay, emit):
    played, event = relay(), emit()
    played.pass_all()
    played.park(event, "dead", "HTTP 422")
    done = parked(pgonce, "discard", event, "--reason", "the customer is gone", "--json")
    assert json.loads(text_of(done)) == {"kind": "event", "id": event, "holder": "orders", "tenant": "", "done": "discard"}
    assert db.value("SELECT count(*) FROM once.parked_event") == 0 and state_of(pgonce, event) == "passed"
    assert db.row("SELECT what, from_state, error FROM once.parked_decision") == ("discard", "dead", "HTTP 422")


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_what_is_not_parked_is_refused(pgonce, db, relay, emit, verb):
    played, event = relay(), emit()
    assert "orders: pending" in text_of(parked(pgonce, verb, event, "--reason", "r"), 10)
    played.pass_all()
    assert "orders: passed" in text_of(parked(pgonce, verb, event, "--reason", "r"), 10)
    assert db.value("SELECT count(*) FROM once.parked_decision") == 0


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_with_several_relays_one_must_be_named(pgonce, db, relay, emit, verb):
    orders, audit = relay("orders"), relay("audit")
    event = emit()
    for played in (orders, audit):
        played.pass_all()
        played.park(event, "dead")
    text = text_of(parked(pgonce, verb, event, "--reason", "r"), 2)
    assert "relay audit: dead, relay orders: dead" in text and "--relay" in text
    assert "no relay 'ordres'" in text_of(parked(pgonce, verb, event, "--reason", "r", "--relay", "ordres"), 5)
    text_of(parked(pgonce, verb, event, "--reason", "r", "--relay", "audit"))
    assert db.rows("SELECT relay FROM once.parked_decision") == [("audit",)]
    assert db.value("SELECT state FROM once.parked_event WHERE relay = 'orders'") == "dead"


def test_one_relay_of_several_that_has_it_parked_is_meant(pgonce, db, relay, emit):
    orders, audit = relay("orders"), relay("audit")
    event = emit()
    orders.pass_all()
    audit.pass_all()
    audit.park(event, "dead")
    assert "relay audit" in text_of(parked(pgonce, "retry", event, "--reason", "r"))


# many

def test_many_are_counted_first_and_decided_about_with_yes(pgonce, db, relay, emit):
    orders, audit = relay("orders"), relay("audit")
    mails, others = [emit("mail", str(n)) for n in range(3)], [emit("other", "4")]
    for played in (orders, audit):
        played.pass_all()
    for event in mails + others:
        orders.park(event, "dead", attempts=10)
    audit.park(mails[0], "dead")
    text = text_of(parked(pgonce, "discard", "--topic", "mail"))
    assert text.startswith("discard: 4 events (dry run: nothing was changed; --yes")
    assert re.search(r"^event +audit +mail +dead +1\nevent +orders +mail +dead +3$", text, re.M)
    counted = json.loads(text_of(parked(pgonce, "discard", "--relay", "orders", "--topic", "mail", "--dry-run", "--json")))
    assert (counted["what"], counted["dry_run"], counted["items"]) == ("discard", True, 3)
    assert db.value("SELECT count(*) FROM once.parked_event") == 5
    done = json.loads(text_of(parked(pgonce, "discard", "--relay", "orders", "--topic", "mail", "--yes", "--reason", "too late", "--json")))
    assert (done["dry_run"], done["items"], done["reason"]) == (False, 3, "too late")
    assert done["filters"] == {"kind": None, "relay": "orders", "consumer": None, "tenant": None, "topic": "mail", "type": None, "error": None,
                               "state": None, "until": None}  # fmt: skip
    assert done["groups"] == [{"kind": "event", "holder": "orders", "topic": "mail", "state": "dead", "items": 3}]
    assert [state_of(pgonce, event) for event in mails + others] == ["passed"] * 3 + ["dead"]
    text = text_of(parked(pgonce, "retry", "--state", "dead", "--yes", "--reason", "the broker is back"))
    assert text.startswith("retry: 2 events: tried again now")
    assert db.rows("SELECT DISTINCT state, attempts FROM once.parked_event") == [("retrying", 0)]
    assert db.rows("SELECT what, reason, count(*)::integer FROM once.parked_decision GROUP BY 1, 2 ORDER BY 1") == [
        ("discard", "too late", 3), ("retry", "the broker is back", 2)]


def test_many_are_narrowed_by_age_as_the_list_tells_it(pgonce, db, relay, emit):
    played = relay()
    old, new = emit(aggregate="1"), emit(aggregate="2")
    played.pass_all()
    for event in (old, new):
        played.park(event, "dead")
    db.execute("UPDATE once.outbox SET created_at = created_at - interval '2 hours' WHERE event_id = %s", old)
    for words, count in ((("1h",), 1), (("1s",), 1), (("3h",), 0), (("tomorrow",), 2)):
        assert json.loads(text_of(parked(pgonce, "retry", "--until", *words, "--json")))["items"] == count
    text_of(parked(pgonce, "discard", "--until", "1h", "--yes", "--reason", "r"))
    assert (state_of(pgonce, old), state_of(pgonce, new)) == ("passed", "dead")
    assert "'soon-ish' is not a time" in text_of(parked(pgonce, "retry", "--until", "soon-ish"), 2)


def test_thousands_are_decided_about_in_many_transactions(pgonce, db, relay, emit):
    played = relay()
    first = emit()
    played.pass_all()
    played.park(first, "dead")
    db.execute("INSERT INTO once.parked_event (relay, id, xid, day, event_id, topic, tenant, state, next_at, parked_at, updated_at)"
               " SELECT relay, id + n, xid, day, event_id, topic, tenant, 'dead', now(), now(), now()"
               "   FROM once.parked_event, generate_series(1, 4000) AS n")
    assert json.loads(text_of(parked(pgonce, "retry", "--state", "dead", "--yes", "--reason", "r", "--json")))["items"] == 4001
    assert db.value("SELECT count(DISTINCT xmin::text) FROM once.parked_decision") == 5


@pytest.mark.parametrize("words, part", [
    ((), "which one"), (("--yes", "--reason", "r"), "which one"), (("--topic", "t", "--yes"), "needs --reason"),
    (("--topic", "t", "--yes", "--reason", " "), "needs --reason"), (("--topic", "t", "--yes", "--dry-run", "--reason", "r"), "opposites"),
    (("--state", "pending"), "pending"), (("0193b2a0-5f3e-8c11-9d2a-3f1b6a0c7e55", "--topic", "t", "--reason", "r"), "--topic is for many"),
    (("0193b2a0-5f3e-8c11-9d2a-3f1b6a0c7e55", "--yes", "--reason", "r"), "--yes is for many"), (("--topic", "t", "--since", "now"), "--since"),
    (("--relay", "r", "--consumer", "c"), "--consumer"), (("--relay", "r", "--kind", "message"), "--kind"), (("--kind", "key"), "event|message")])
@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_a_wrong_word_about_many_is_said_before_anything_is_done(bare, verb, words, part):
    text = text_of(parked(bare, verb, *words), 2)
    assert part in text and "hint: pgonce help parked" in text


# replay

def test_replay_delivers_again_what_was_passed(pgonce, db, relay, emit):
    played = relay()
    one, two = emit("a"), emit("b")
    played.pass_all()
    assert "0 events" in text_of(parked(pgonce, "replay", "--since", "tomorrow", "--reason", "r"))
    done = parked(pgonce, "replay", "--since", "yesterday", "--topic", "b", "--reason", "the broker lost its disk", "--json")
    answer = json.loads(text_of(done))
    assert (answer["relay"], answer["topic"], answer["replayed"]) == ("orders", "b", 1)
    assert (state_of(pgonce, one), state_of(pgonce, two)) == ("passed", "waiting")
    assert "1 event since" in text_of(parked(pgonce, "replay", "--since", "yesterday", "--reason", "r"))
    assert db.value("SELECT count(*) FROM once.parked_decision WHERE what = 'replay'") == 3


def test_replay_of_what_inboxes_have_forgotten_needs_force(pgonce, db, relay, emit):
    played = relay()
    emit()
    played.pass_all()
    db.execute("UPDATE once.outbox SET created_at = now() - interval '8 days'")
    words = ("replay", "--since", "2000-01-01", "--reason", "r")
    assert "older than an inbox remembers" in text_of(parked(pgonce, *words), 1)
    assert "1 event since" in text_of(parked(pgonce, *words, "--force"))


def test_replay_must_be_told_from_when_and_by_whom(pgonce, relay):
    assert "no relay has run" in text_of(parked(pgonce, "replay", "--since", "yesterday", "--reason", "r"), 5)
    relay("orders"), relay("audit")
    assert "needs --since" in text_of(parked(pgonce, "replay", "--reason", "r"), 2)
    assert "--relay" in text_of(parked(pgonce, "replay", "--since", "yesterday", "--reason", "r"), 2)
    assert "'whenever' is not a time" in text_of(parked(pgonce, "replay", "--since", "whenever", "--relay", "orders", "--reason", "r"), 2)
    assert parked(pgonce, "replay", "--since", "yesterday", "--relay", "ordres", "--reason", "r").returncode == 5


# the command line

@pytest.mark.parametrize("words, part", [
    ((), "what to do"), (("lst",), "'lst'"), (("list", "x"), "'x'"), (("show",), "which one"), (("retry",), "which one"),
    (("list", "--since", "now"), "--since"), (("list", "--reason", "r"), "--reason"), (("replay", "--limit", "1"), "--limit"),
    (("list", "--state", "done"), "pending|waiting|retrying|dead"), (("list", "--yes"), "--yes"), (("show", "x", "--relay", "r"), "--relay"), (("list", "--limit", "0"), "out of range")])
def test_a_wrong_command_line_is_said_before_anything_is_done(pgonce, words, part):
    text = text_of(parked(pgonce, *words), 2)
    assert part in text and "hint: pgonce help parked" in text


@pytest.mark.parametrize("verb", ["retry", "discard", "replay"])
@pytest.mark.parametrize("reason", [(), ("--reason", " ")], ids=["none", "blank"])
def test_changes_need_a_reason(pgonce, relay, emit, verb, reason):
    relay()
    words = [verb] + ([emit()] if verb != "replay" else ["--since", "yesterday"])
    assert "needs --reason" in text_of(parked(pgonce, *words, *reason), 2)


def test_without_the_contract_it_says_what_to_do(bare):
    assert "pgonce init" in text_of(parked(bare, "list"), 4)


def test_who_may_only_read_may_not_decide(db, relay, emit, tmp_path):
    played, event = relay(), emit()
    played.pass_all()
    played.park(event, "dead")
    db.execute("CREATE ROLE reader_of_outbox LOGIN IN ROLE once_reader")
    try:
        reader = Command(db.dsn("reader_of_outbox"), tmp_path)
        assert event in text_of(parked(reader, "list"))
        done = parked(reader, "retry", event, "--reason", "r")
        assert done.returncode == 1 and b"42501" in done.stderr
    finally:
        db.execute("DROP ROLE reader_of_outbox")


def untaken(told):
    return [(row["topic"], row["items"]) for row in told["counts"] if row["state"] == "untaken"]


def test_events_that_no_relay_takes_are_told(pgonce, db, emit, relay):
    emit("mail")
    text = text_of(parked(pgonce, "list"))
    assert re.search(r"^event +- +mail +untaken +1 +\d", text, re.M) and "start a relay with it" in text
    assert re.search(r"events 0 waiting, 0 parked, 0 dead, 1 that no relay takes: mail$", pgonce("top").stdout.decode(), re.M)
    relay(topics=["order.%"])
    emit()
    told = json.loads(text_of(parked(pgonce, "list", "--json")))
    assert untaken(told) == [("mail", 1)]
    assert untaken(json.loads(text_of(parked(pgonce, "list", "--json", "--topic", "order.created")))) == []
    relay("all")
    assert untaken(json.loads(text_of(parked(pgonce, "list", "--json")))) == []
    assert "no relay takes" not in pgonce("top").stdout.decode()


# delayed events


@pytest.fixture
def emit_later(db):
    def emit_later(topic="mail", after="3 days", **more):
        return str(db.value("SELECT once.emit_later(now() + %s::interval, %s, '{}', 'order', '17')", after, topic))

    return emit_later


def delayed(db):
    return [str(row.event_id) for row in db.rows("SELECT event_id FROM once.delayed_event")]


@pytest.mark.parametrize("has_relay", [True, False])
def test_the_list_counts_delayed_events_and_shows_them_if_asked(pgonce, relay, emit, emit_later, has_relay):
    if has_relay:
        relay().pass_all()
    last, first = emit_later(after="50 hours"), emit_later(after="26 hours")
    bill = emit_later("bill", "1 hour")
    told = json.loads(text_of(parked(pgonce, "list", "--json")))
    counts = [row for row in told["counts"] if row["state"] == "delayed"]
    assert [(row["holder"], row["topic"], row["items"]) for row in counts] == [(None, "bill", 1), (None, "mail", 2)]
    assert told["parked"] == [] and 25 * 3_600_000 < counts[1]["next_ms"] <= 26 * 3_600_000
    assert [row["state"] for row in told["counts"] if row not in counts] == (["idle"] if has_relay else [])
    text = text_of(parked(pgonce, "list"))
    assert re.search(r"^event +- +bill +delayed +1 +- +(59m|1h)$\n^event +- +mail +delayed +2 +- +1d$", text, re.M), text
    assert first not in text
    shown = text_of(parked(pgonce, "list", "--state", "delayed", "--topic", "mail"))
    assert shown.index(first) < shown.index(last) and bill not in shown
    if has_relay:
        narrowed = json.loads(text_of(parked(pgonce, "list", "--relay", "orders", "--json")))["counts"]
        assert [row["state"] for row in narrowed] == ["idle"]


def test_a_delayed_event_is_shown_released_and_cancelled(db, pgonce, relay, emit_later):
    relay().pass_all()
    event, other = emit_later(), emit_later()
    text = text_of(parked(pgonce, "show", event))
    at = db.value("SELECT to_char(not_before, 'YYYY-MM-DD') FROM once.delayed_event WHERE event_id = %s", event)
    assert re.search(rf"^delayed to +{at}", text, re.M), text
    for verb in ("retry", "discard"):
        assert "no relay has it yet" in text_of(parked(pgonce, verb, event, "--relay", "orders", "--reason", "why"), code=10)
    assert "it is due now" in text_of(parked(pgonce, "retry", event, "--reason", "the customer asks"))
    assert "cancelled" in text_of(parked(pgonce, "discard", other, "--reason", "the order is gone"))
    assert delayed(db) == [event]
    assert db.value("SELECT released FROM once_job.relay_release()") == 1
    text = text_of(parked(pgonce, "show", event))
    assert "pending" in text and "the customer asks" in text and "delayed to" not in text
    assert json.loads(text_of(parked(pgonce, "discard", emit_later(), "--reason", "why", "--json")))["holder"] is None


def test_many_delayed_events_are_cancelled_by_topic(db, pgonce, emit_later):
    events = [emit_later() for _ in range(3)]
    bill = emit_later("bill")
    told = text_of(parked(pgonce, "discard", "--topic", "mail", "--state", "delayed"))
    assert "3 events" in told and "dry run" in told and sorted(delayed(db)) == sorted([*events, bill])
    text_of(parked(pgonce, "discard", "--topic", "mail", "--state", "delayed", "--yes", "--reason", "the campaign is off"))
    assert delayed(db) == [bill]
