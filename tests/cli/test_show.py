# SPDX-License-Identifier: PostgreSQL
"""pgonce show and pgonce resolve."""
import json

import pytest

from .command import Command


def show(pgonce, key, *options):
    return pgonce("show", "--scope", "jobs", "--key", key, *options)


def resolve(pgonce, key, state, *options, **kw):
    return pgonce("resolve", "--scope", "jobs", "--key", key, "--as", state, *options, **kw)


def stale(db, key):
    db.execute("SELECT once.claim('jobs', %s, once.fingerprint('r'::bytea), 'worker 7')", key)
    db.execute("UPDATE once.intent SET lease_until = clock_timestamp() - interval '1 minute' WHERE key = %s", key)


def test_show_tells_the_story_of_a_run(pgonce):
    pgonce.run("told", "sh", "-c", "echo to people; sleep 0.1; echo oops >&2; exit 3")
    told = show(pgonce, "told")
    assert told.returncode == 0
    text = told.stdout.decode()
    for part in ("scope='jobs' key='told'", "failed_final", "attempts     1, fence 1", "pgonce run ", "exited with status 3",
                 "out| to people", "err| oops", "exit status 3"):
        assert part in text, text
    story = json.loads(show(pgonce, "told", "--json").stdout)
    assert (story["state"], story["response_status"], story["error_code"]) == ("failed_final", 3, "exit")


def test_show_tells_of_decisions_and_events(pgonce, db):
    stale(db, "decided")
    db.execute("SELECT once.emit('orders', '{\"id\": 7}', 'order', '7', scope => 'jobs', key => 'decided')")
    assert resolve(pgonce, "decided", "succeeded", "--reason", "seen at the provider", "--status", "201").returncode == 0
    text = show(pgonce, "decided").stdout.decode()
    for part in ("processing -> succeeded: seen at the provider", "by postgres", "orders (orders)", "of order 7", '{"id": 7}', "status       201"):
        assert part in text, text


def test_show_tells_of_bytes_with_their_length_and_content_type(pgonce, db):
    stale(db, "k")
    db.execute("SELECT once.emit_bytes('orders', '\\x1b00ff'::bytea, 'avro/binary', scope => 'jobs', key => 'k')")
    text = show(pgonce, "k").stdout.decode()
    assert "    3 bytes of avro/binary\n    | 00000000  1b 00 ff" in text and "\x1b" not in text, text


def timeline(pgonce, key):
    return [(entry["what"], entry["by"], entry["text"]) for entry in json.loads(show(pgonce, key, "--json").stdout)["timeline"]]


def test_an_outcome_is_told_to_be_of_who_decided_it(pgonce, db):
    stale(db, "decided")
    assert resolve(pgonce, "decided", "succeeded", "--reason", "seen at the provider").returncode == 0
    assert ("outcome", "postgres", "succeeded") in timeline(pgonce, "decided")
    db.execute("SELECT once.claim('jobs', 'reported', once.fingerprint('r'::bytea), 'worker 7')")
    db.execute("SELECT once.complete('jobs', 'reported', 1)")
    assert ("outcome", "worker 7", "succeeded") in timeline(pgonce, "reported")
    stale(db, "again")  # another attempt succeeds after the operator's word
    assert resolve(pgonce, "again", "failed_retryable", "--reason", "nothing there").returncode == 0
    db.execute("SELECT once.complete('jobs', 'again', (once.claim('jobs', 'again', once.fingerprint('r'::bytea), 'worker 8')).fence)")
    assert ("outcome", "worker 8", "succeeded at attempt 2") in timeline(pgonce, "again")


def test_the_timeline_has_the_moment_of_a_doubt(pgonce, db):
    db.execute("SELECT once.claim('jobs', 'doubtful', once.fingerprint('r'::bytea), 'worker 7')")
    db.execute("SELECT once.fail('jobs', 'doubtful', 1, NULL, 'timeout', 'no answer in 60 s')")
    at = db.value("SELECT updated_at FROM once.intent WHERE key = 'doubtful'")
    doubt = ("doubt", "worker 7", "timeout: no answer in 60 s")
    assert timeline(pgonce, "doubtful") == [("created", "worker 7", "the first attempt"), doubt]
    assert resolve(pgonce, "doubtful", "failed_final", "--reason", "nothing there").returncode == 0
    told = timeline(pgonce, "doubtful")
    assert sorted(entry[0] for entry in told) == ["created", "decision", "doubt", "expires", "outcome"] and told[1] == doubt
    (moment,) = [entry["at"] for entry in json.loads(show(pgonce, "doubtful", "--json").stdout)["timeline"] if entry["what"] == "doubt"]
    assert db.value("SELECT %s::timestamptz", moment) == at


def test_a_doubt_that_the_policy_has_decided_is_told_once(pgonce, db):
    db.execute("SELECT once.set_scope('jobs', on_stale => 'in_doubt')")
    stale(db, "silent")
    db.execute("SELECT once.claim('jobs', 'silent', once.fingerprint('r'::bytea))")
    assert [entry[0] for entry in timeline(pgonce, "silent")] == ["created", "decision"]


def test_show_prints_bytes_that_are_no_text_as_hex(pgonce, db):
    db.execute("SELECT once.claim('jobs', 'bytes', once.fingerprint('r'::bytea))")
    db.execute("SELECT once.complete('jobs', 'bytes', 1, 200, response_body => '\\x00ff1b5b324a'::bytea)")
    text = show(pgonce, "bytes").stdout
    assert b"00 ff 1b 5b 32 4a" in text and b"\x1b" not in text


def test_show_lets_no_stored_text_forge_a_line(pgonce, db):
    db.execute("SELECT once.claim('jobs', 'forged', once.fingerprint('r'::bytea), E'me\\nstate succeeded\\x1b[2J')")
    text = show(pgonce, "forged").stdout
    assert b"\nstate succeeded" not in text and b"\x1b" not in text


def test_show_of_nothing_says_what_to_check(pgonce, db):
    missing = show(pgonce, "missing")
    assert (missing.returncode, missing.stdout) == (5, b"")
    for part in (b"no such intent", b"key='missing'", db.name.encode(), b"hint: ", b"--tenant"):
        assert part in missing.stderr
    expired = show(pgonce, "01890000-0000-7000-8000-000000000000")
    assert expired.returncode == 5 and b"retired" in expired.stderr


def test_resolve_decides_and_a_dry_run_does_not(pgonce, db):
    stale(db, "stale")
    dry = resolve(pgonce, "stale", "failed_retryable", "--reason", "no trace", "--dry-run", "--json")
    assert json.loads(dry.stdout)["from"] == "processing" and json.loads(dry.stdout)["dry_run"]
    assert db.value("SELECT state FROM once.peek('jobs', 'stale')") == "processing"
    assert db.value("SELECT count(*) FROM once.decision") == 0
    done = resolve(pgonce, "stale", "failed_retryable", "--reason", "no trace")
    assert done.returncode == 0 and b"processing -> failed_retryable" in done.stdout
    assert db.row("SELECT reason, decided_by, from_state, to_state FROM once.decision") == \
        ("no trace", "postgres", "processing", "failed_retryable")


def test_resolve_stores_the_outcome(pgonce, db, tmp_path):
    stale(db, "outcome")
    done = resolve(pgonce, "outcome", "succeeded", "--reason", "seen", "--status", "201", "--body", "-", stdin=b"\0answer")
    assert done.returncode == 0, done.stderr
    row = db.row("SELECT * FROM once.peek('jobs', 'outcome')")
    assert (row.state, row.response_status, row.response_body) == ("succeeded", 201, b"\0answer")
    assert resolve(pgonce, "outcome", "succeeded", "--reason", "seen", "--body", tmp_path / "missing").returncode == 2


def test_resolve_stores_headers_and_a_result_that_find_finds(pgonce, db):
    stale(db, "whole")
    headers = {"Content-Type": "application/json", "Link": ["</a>", "</b>"]}
    done = resolve(pgonce, "whole", "succeeded", "--reason", "seen", "--status", "201", "--headers", json.dumps(headers), "--result", "charge:ch:17")
    assert done.returncode == 0, done.stderr
    row = db.row("SELECT * FROM once.peek('jobs', 'whole')")
    assert (row.response_headers, row.result_type, row.result_id) == (headers, "charge", "ch:17")
    found = pgonce("find", "--result", "charge:ch:17")
    assert found.returncode == 0 and b"whole" in found.stdout


@pytest.mark.parametrize("option, value", [
    ("--result", "17"), ("--result", ":17"), ("--result", "charge:"), ("--headers", "no json"), ("--headers", "[]"), ("--headers", "null"),
    ("--headers", '{"A": 1}'), ("--headers", '{"A": null}'), ("--headers", '{"A": []}'), ("--headers", '{"A": ["b", 1]}'), ("--headers", '{"A": {"b": "c"}}'),
    ("--headers", '{"A": "b\\r\\nX: y"}'), ("--headers", '{"A": ["b\\n"]}'), ("--headers", '{"A b": "c"}'), ("--headers", '{"": "c"}'),
    ("--headers", '{"A": "b", "A": "c"}'), ("--headers", ""),
])  # fmt: skip
def test_resolve_takes_no_headers_and_no_result_that_could_not_be_sent_or_found(pgonce, db, option, value):
    stale(db, "bad")
    done = resolve(pgonce, "bad", "succeeded", "--reason", "seen", option, value)
    assert done.returncode == 2 and option.encode() in done.stderr and b"hint: " in done.stderr
    assert db.value("SELECT state FROM once.peek('jobs', 'bad')") == "processing"


def test_resolve_refuses_what_cannot_be_decided(pgonce, db):
    db.execute("SELECT once.claim('jobs', 'running', once.fingerprint('r'::bytea))")
    for key, reason in (("running", "because"), ("running", " ")):
        done = resolve(pgonce, key, "succeeded", "--reason", reason)
        assert done.returncode == 10
        assert b"P4070" in done.stderr and b"key='running'" in done.stderr and b"hint: " in done.stderr
    assert resolve(pgonce, "missing", "succeeded", "--reason", "because").returncode == 5
    assert resolve(pgonce, "running", "processing", "--reason", "because").returncode == 2
    assert resolve(pgonce, "running", "succeeded").returncode == 2


def test_an_app_role_may_not_decide(db, tmp_path):
    stale(db, "guarded")
    db.execute("CREATE ROLE app_of_resolve LOGIN IN ROLE once_app")
    try:
        done = resolve(Command(db.dsn("app_of_resolve"), tmp_path), "guarded", "succeeded", "--reason", "because")
        assert done.returncode == 1 and b"42501" in done.stderr
    finally:
        db.execute("DROP ROLE app_of_resolve")
