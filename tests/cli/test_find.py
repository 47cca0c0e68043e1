# SPDX-License-Identifier: PostgreSQL
"""pgonce find, stuck, in-doubt, recover, and resolve of many."""
import json
import re
import subprocess

import pytest

from harness.proxy import Proxy

from .command import PROGRAM, Command
from .screen import Terminal

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def claim(db, scope, key, lease="5 minutes", owner="worker", tenant="", traceparent=None):
    db.execute("SELECT once.claim(%s, %s, once.fingerprint('r'::bytea, %s), %s, %s::interval, tenant => %s, traceparent => %s)",
               scope, key, tenant, owner, lease, tenant, traceparent)


def make_stale(db, *keys):
    db.execute("UPDATE once.intent SET lease_until = clock_timestamp() - interval '1 hour' WHERE key = ANY (%s)", list(keys))


def keys_of(done):
    assert done.returncode == 0, done.stderr
    return [found["key"] for found in json.loads(done.stdout)]


@pytest.fixture
def charged(db):
    """Two intents that both made charge ch_17, one of them traced, and an event; and one of a tenant."""
    claim(db, "payments", "first", owner="gateway 1", traceparent=PARENT)
    db.execute("SELECT once.emit('charges', '{\"amount\": 12345678901234567890.10}', scope => 'payments', key => 'first')")
    claim(db, "payments", "second", owner="gateway 2")
    claim(db, "imports", "file", tenant="acme")
    for key in ("first", "second"):
        db.execute("SELECT once.complete('payments', %s, 1, 201, result_type => 'charge', result_id => 'ch_17')", key)
    return db


def test_i_was_charged_twice_is_answered_by_one_command(pgonce, charged):
    text = pgonce("find", "--result", "charge:ch_17").stdout.decode()
    assert [line.split()[1] for line in text.splitlines() if line.startswith("payments ")] == ["second", "first"]
    assert "owner gateway 1" in text and f"trace {TRACE}" in text and "pgonce show" in text


@pytest.mark.parametrize("options, found", [
    (("--result-id", "ch_17"), ["second", "first"]), (("--result", "charge:ch_18"), None), (("--result", "refund:ch_17"), None),
    (("--tenant", "acme"), ["file"]), (("--tenant", ""), ["second", "first"]), (("--scope", "imports"), ["file"]),
    (("--state", "processing"), ["file"]), (("--owner", "gateway 2"), ["second"]), (("--trace", TRACE), ["first"]),
    (("--trace", TRACE.upper()), ["first"]), (("--trace", PARENT), ["first"]), (("--trace", "0" * 31 + "1"), None),
    (("--since", "1h"), ["file", "second", "first"]), (("--until", "1h"), None), (("--since", "yesterday"), ["file", "second", "first"]),
    (("--since", "2200-01-01"), None), (("--scope", "payments", "--owner", "worker"), None), (("--limit", "1"), ["file"]),
])
def test_each_mark_narrows_the_search(pgonce, charged, options, found):
    done = pgonce("find", "--json", *options)
    if found is None:
        assert done.returncode == 5 and json.loads(done.stdout) == []
        assert "database" in json.loads(done.stderr)["error"]["message"]
    else:
        assert keys_of(done) == found


def test_an_event_leads_to_its_intent(pgonce, charged):
    event = charged.value("SELECT event_id FROM once.outbox")
    assert keys_of(pgonce("find", "--json", "--event", event)) == ["first"]
    done = pgonce("find", "--event", event)
    assert b"pgonce show --scope=payments --key=first" in done.stdout


@pytest.mark.parametrize("options, said", [
    (("--trace", "4bf92f"), "neither a trace's id nor a traceparent"), (("--event", "17"), "is a UUID"), (("--result", "17"), "TYPE:ID"),
    (("--since", "next week maybe"), "not a time"), (("--result", "a:b", "--result-id", "c"), "only one"), (("--state", "stale"), "one of"),
])
def test_a_mark_that_is_none_is_refused_and_not_searched_for(pgonce, options, said):
    done = pgonce("find", *options)
    assert (done.returncode, done.stdout) == (2, b"") and said in done.stderr.decode()


def test_what_is_told_to_type_is_quoted_for_a_shell(pgonce, db):
    claim(db, "payments", "it's; rm -rf $HOME", tenant="a b")
    assert r"pgonce show --tenant='a b' --scope=payments --key='it'\''s; rm -rf $HOME'" in pgonce("find").stdout.decode()


NAMES = {
    "quotes": "it's \"here\"", "a dollar": "$(touch x) `touch y` $HOME !! \\", "lines": "a\nb\tc\r", "control characters and a quote": "\x01'\\ \x7f\x1b[2J",
    "right to left": "\u202egnp.exe\u2066 \u200f\u061c", "separators": "a\u2028b\u2029c\u0085d", "letters": "\u00e9\u20ac\U0001f511 \u05d0", "a dash": "--key",
}
HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_the_line_to_type_finds_an_intent_of_any_name(pgonce, db, tmp_path, name):
    """Typed into a shell as it was read on a terminal, where nothing of it was hidden."""
    key = name if re.fullmatch("[ -~]+", name) else "key"  # of printable ASCII alone
    claim(db, name, key, tenant=name)
    shown = pgonce("find").stdout.decode()
    assert not HIDDEN.search(shown)
    line = next(part for part in shown.splitlines() if "pgonce show" in part)
    command = line[line.index("pgonce show") :].replace("pgonce show", f"{PROGRAM} show --json --dsn '{db.dsn()}'", 1)
    done = subprocess.run(["bash", "-c", command], capture_output=True, cwd=tmp_path, check=False)
    told = json.loads(done.stdout)
    assert (told["tenant"], told["scope"], told["key"]) == (name, name, key), done
    assert list(tmp_path.glob("[xy]")) == []


def test_an_error_and_a_body_hide_nothing_either(pgonce, db):
    done = pgonce("show", "--scope", "payments", "--key", "\u202ekey\u2028\u0085")
    assert done.returncode != 0 and not HIDDEN.search(done.stderr.decode())
    db.execute("SELECT once.finish_new('payments', 'k', %s, 200, %s)", b"0" * 32, "a \u202etxt\n\u05d0\u200f")
    shown = pgonce("show", "--scope", "payments", "--key", "k").stdout.decode()
    assert "a ?txt" in shown and "\u05d0?" in shown and not HIDDEN.search(shown)


def test_show_keeps_the_digits_of_an_amount(pgonce, charged):
    for options in ((), ("--json",)):
        assert b"12345678901234567890.10" in pgonce("show", "--scope", "payments", "--key", "first", *options).stdout


def test_stuck_lists_each_kind_with_what_to_type(pgonce, db):
    assert pgonce("stuck").stdout == b"nothing is stuck\n"
    claim(db, "payments", "silent")
    claim(db, "payments", "long")
    claim(db, "payments", "fresh")
    make_stale(db, "silent")
    db.execute("UPDATE once.intent SET created_at = created_at - interval '1 hour' WHERE key = 'long'")
    claim(db, "imports", "again")
    db.execute("UPDATE once.intent SET state = 'failed_retryable', attempts = 7, fence = 7 WHERE key = 'again'")
    text = pgonce("stuck").stdout.decode()
    for part in ("stale: the lease", "payments  silent", "pgonce resolve --scope=payments --key=silent", "running for long",
                 "pgonce show --scope=payments --key=long", "retried often", "imports  again", "pgonce recover"):
        assert part in text, text
    assert "fresh" not in text
    told = json.loads(pgonce("stuck", "--json", "--scope", "imports").stdout)
    assert (told["stale"], told["active"], [row["key"] for row in told["retried"]]) == ([], [], ["again"])
    told = json.loads(pgonce("stuck", "--json", "--longer-than", "0s").stdout)
    assert [row["key"] for row in told["active"]] == ["long", "fresh"]


def test_in_doubt_lists_what_waits_for_a_decision(pgonce, db):
    assert pgonce("in-doubt").stdout == b"nothing is in doubt\n"
    claim(db, "payments", "unknown", tenant="acme")
    db.execute("SELECT once.fail('payments', 'unknown', 1, NULL, 'timeout', 'no answer in 60 s', tenant => 'acme')")
    text = pgonce("in-doubt").stdout.decode()
    for part in ("payments  unknown", "\n  error timeout\n", "\n  because no answer in 60 s\n", "pgonce resolve --tenant=acme --scope=payments --key=unknown"):
        assert part in text, text
    assert keys_of(pgonce("in-doubt", "--json", "--tenant", "acme")) == ["unknown"]
    assert keys_of(pgonce("in-doubt", "--json", "--tenant", "other")) == []


def verified_by(db, answer):
    db.execute("CREATE OR REPLACE FUNCTION ask(tenant text, scope text, key text) RETURNS once.verification LANGUAGE plpgsql AS"
               f" $$ DECLARE v once.verification; BEGIN v.answer := {answer}; v.response_status := 201; RETURN v; END $$")
    db.execute("SELECT once.set_scope('payments', verify => 'public.ask')")


def test_recover_tells_each_decision_and_counts(pgonce, db):
    db.execute("SELECT once.set_scope('imports', on_stale => 'takeover')")
    verified_by(db, "split_part(key, '-', 1)")
    for key in ("happened-1", "absent-1", "unknown-1"):
        claim(db, "payments", key)
    claim(db, "imports", "plain")
    make_stale(db, "happened-1", "absent-1", "unknown-1", "plain")
    dry = pgonce("recover", "--dry-run")
    assert dry.returncode == 12 and b"nothing was changed" in dry.stdout
    assert db.value("SELECT count(*) FROM once.intent WHERE state = 'processing'") == 4
    done = pgonce("recover")
    assert done.returncode == 12, done.stderr
    text = done.stdout.decode()
    for part in ("key='happened-1': succeeded", "key='absent-1': retry", "key='unknown-1': in_doubt", "key='plain': retry", "4 stale"):
        assert part in text, text
    assert db.value("SELECT state FROM once.intent WHERE key = 'happened-1'") == "succeeded"
    told = json.loads(pgonce("recover", "--json").stdout)
    assert told["summary"] == {"stale": 2, "succeeded": 0, "retry": 2, "in_doubt": 0, "abandoned": 0}
    only = json.loads(pgonce("recover", "--json", "--scope", "imports").stdout)
    assert [row["key"] for row in only["decisions"]] == ["plain"]


def test_recover_ends_where_thousands_stay_stale(pgonce, db):
    db.execute("SELECT once.set_scope('jobs', on_stale => 'takeover')")
    db.execute("SELECT once.claim_many(array_fill('jobs'::text, ARRAY[500]), array_agg('k-' || n || '-' || m),"
               " array_fill(once.fingerprint('r'::bytea), ARRAY[500])) FROM generate_series(1, 500) AS n, generate_series(1, 5) AS m GROUP BY m")
    db.execute("UPDATE once.intent SET lease_until = clock_timestamp() - interval '1 hour'")
    done = pgonce("recover", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["summary"]["retry"] == 2500 and len({row["key"] for row in told["decisions"]}) == 2500


def test_resolve_does_not_guess(pgonce, db):
    claim(db, "payments", "happened", lease="5 minutes")
    make_stale(db, "happened")
    arguments = ("resolve", "--scope", "payments", "--key", "happened")
    undecided = pgonce(*arguments)
    assert undecided.returncode == 2 and b"no verify function" in undecided.stdout and b"--as STATE" in undecided.stdout
    verified_by(db, "key")
    undecided = pgonce(*arguments)
    assert undecided.returncode == 2 and b"--as succeeded" in undecided.stdout and b"what fits is succeeded" in undecided.stderr
    told = json.loads(pgonce(*arguments, "--json").stdout)
    assert told["known"] == {"decidable": True, "verify": "happened", "verify_error": None, "fits": "succeeded"}
    verified_by(db, "1 / 0")
    assert b"no answer: division by zero" in pgonce(*arguments).stdout
    assert db.value("SELECT state FROM once.intent") == "processing" and db.value("SELECT count(*) FROM once.decision") == 0
    assert pgonce(*arguments, "--as", "succeeded", "--reason", "seen").returncode == 0
    assert pgonce(*arguments).returncode == 10


def test_a_dry_run_tells_what_is_before_and_after_and_what_verify_says(pgonce, db):
    verified_by(db, "'absent'")
    claim(db, "payments", "k")
    make_stale(db, "k")
    done = pgonce("resolve", "--scope", "payments", "--key", "k", "--as", "succeeded", "--status", "201", "--reason", "seen", "--dry-run")
    text = done.stdout.decode()
    for part in ("before   processing, fence 1", "after    succeeded, fence 2, status 201", "nothing is run again", "absent",
                 "which contradicts your decision", "nothing was changed"):
        assert part in text, text
    assert db.value("SELECT state FROM once.intent") == "processing"


def test_a_reason_is_asked_for_at_a_terminal_and_demanded_elsewhere(pgonce, db):
    claim(db, "payments", "k")
    make_stale(db, "k")
    arguments = ("resolve", "--scope", "payments", "--key", "k", "--as", "failed_retryable")
    done = pgonce(*arguments, stdin=b"because\n")
    assert done.returncode == 2 and b"--reason" in done.stderr
    for typed, status in (("\n", 2), ("seen at the provider\n", 0)):
        terminal = Terminal(pgonce.words(*arguments), {**pgonce.environment(None), "TERM": "xterm"})
        try:
            terminal.wait("Why?")
            terminal.type(typed)
            assert terminal.end() == status
        finally:
            terminal.close()
    assert db.row("SELECT reason, to_state FROM once.decision") == ("seen at the provider", "failed_retryable")


def test_recover_goes_on_where_verify_functions_are_slow(pgonce, db):
    verified_by(db, "(ARRAY['absent', 'happened'])[1 + (pg_sleep(0.15) IS NULL)::integer]")
    keys = [f"k{n}" for n in range(8)]
    for key in keys:
        claim(db, "payments", key)
    make_stale(db, *keys)
    told = json.loads(pgonce("recover", "--json").stdout)
    assert sorted(row["key"] for row in told["decisions"]) == keys


def test_a_reader_may_look_and_a_keeper_recover(db, tmp_path):
    db.execute("SELECT once.set_scope('payments', on_stale => 'takeover')")
    claim(db, "payments", "k")
    make_stale(db, "k")
    for role, of in (("reader_of_find", "once_reader"), ("keeper_of_find", "once_keeper")):
        db.execute(f"CREATE ROLE {role} LOGIN IN ROLE {of}")
    try:
        reader, keeper = Command(db.dsn("reader_of_find"), tmp_path), Command(db.dsn("keeper_of_find"), tmp_path)
        for words in (("find",), ("stuck",), ("in-doubt",), ("top",), ("show", "--scope", "payments", "--key", "k")):
            done = reader(*words)
            assert done.returncode == 0, done
        refused = reader("recover")
        assert refused.returncode == 1 and b"42501" in refused.stderr
        assert b"permission denied" in reader("resolve", "--scope", "payments", "--key", "k").stdout
        assert keeper("recover").returncode == 0
    finally:
        for role in ("reader_of_find", "keeper_of_find"):
            db.execute(f"DROP ROLE {role}")


def test_show_tells_the_timeline_with_every_delivery(pgonce, charged):
    for relay in ("audit", "kafka", "later"):
        charged.execute("INSERT INTO once.relay (relay, seen, started_at, progressed_at)"
                        " VALUES (%s, CASE WHEN %s = 'later' THEN '1:1:'::pg_snapshot ELSE pg_current_snapshot() END, now(), now())",
                        relay, relay)
    charged.execute("INSERT INTO once.parked_event (relay, id, xid, day, event_id, topic, tenant, state, attempts, next_at, error, parked_at,"
                    " updated_at) SELECT 'audit', id, xid, day, event_id, topic, tenant, 'dead', 9, 'infinity', 'HTTP 500', now(), now()"
                    " FROM once.outbox")
    told = json.loads(pgonce("show", "--scope", "payments", "--key", "first", "--json").stdout)
    assert [entry["what"] for entry in told["timeline"]] == ["created", "event", "delivered", "waiting", "outcome", "dead", "expires"]
    assert {relay["relay"]: relay["state"] for relay in told["events"][0]["relays"]} == \
        {"audit": "dead", "kafka": "passed", "later": "pending"}
    text = pgonce("show", "--scope", "payments", "--key", "first").stdout.decode()
    for part in ("created   the first attempt (by gateway 1, fence 1)", "outcome   succeeded, status 201, charge ch_17", "HTTP 500 (by relay audit)",
                 "relay later: pending", "expires   then its outcome may be deleted"):
        assert part in text, text


def test_the_timeline_has_decisions_attempts_and_the_archive(pgonce, db):
    db.execute("SELECT once.set_scope('payments', on_stale => 'takeover')")
    claim(db, "payments", "k", owner="first")
    make_stale(db, "k")
    claim(db, "payments", "k", owner="second")
    shown = pgonce("show", "--scope", "payments", "--key", "k").stdout.decode()
    assert "the last sign of attempt 2; its lease ends" in shown and "(by second, fence 2)" in shown
    make_stale(db, "k")
    assert pgonce("resolve", "--scope", "payments", "--key", "k", "--as", "failed_final", "--reason", "given up").returncode == 0
    told = json.loads(pgonce("show", "--scope", "payments", "--key", "k", "--json").stdout)
    found = {entry["what"]: entry for entry in told["timeline"]}
    assert found["decision"]["by"] == "postgres" and "processing -> failed_final: given up" in found["decision"]["text"]
    assert "failed_final at attempt 2" in found["outcome"]["text"] and "archived" not in found


# ---- many in doubt ----


def doubt(db, *keys, scope="payments", error="timeout", tenant=""):
    for key in keys:
        claim(db, scope, key, tenant=tenant)
        db.execute("SELECT once.fail(%s, %s, 1, NULL, %s, tenant => %s)", scope, key, error, tenant)


def states(db):
    return dict(db.rows("SELECT key, state FROM once.intent"))


DECIDED = ("--as", "failed_retryable", "--reason", "the provider took nothing")


def test_resolve_all_counts_by_error_in_a_dry_run_and_then_decides(pgonce, db):
    doubt(db, "a", "b", "c")
    doubt(db, "d", error="reset")
    doubt(db, "e", error=None)
    doubt(db, "other", scope="refunds")
    words = ("resolve", "--scope", "payments", "--all", *DECIDED)
    told = json.loads(pgonce(*words, "--dry-run", "--json").stdout)
    assert (told["dry_run"], told["decided"], told["skipped"], told["to"]) == (True, 5, 0, "failed_retryable")
    assert told["errors"] == [{"error": error, "decided": count, "skipped": 0} for error, count in (("reset", 1), ("timeout", 3), (None, 1))]
    assert set(states(db).values()) == {"in_doubt"} and db.value("SELECT count(*) FROM once.decision") == 0
    text = pgonce(*words, "--error-code", "timeout").stdout.decode()
    assert "scope='payments' error-code='timeout': 3 -> failed_retryable" in text and "3  timeout" in text
    assert db.value("SELECT count(*) FROM once.decision WHERE reason = 'the provider took nothing'") == 3
    done = pgonce(*words, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["decided"] == 2
    assert json.loads(pgonce(*words, "--json").stdout)["decided"] == 0
    assert {key for key, state in states(db).items() if state == "in_doubt"} == {"other"}


def test_resolve_all_is_narrowed_by_tenant_and_time(pgonce, db):
    doubt(db, "ours")
    doubt(db, "theirs", tenant="acme")
    words = ("resolve", "--scope", "payments", "--all", *DECIDED, "--dry-run", "--json")
    for options, count in (((), 2), (("--tenant", "acme"), 1), (("--tenant", ""), 1), (("--since", "1h"), 2), (("--until", "1h"), 0),
                           (("--since", "yesterday", "--until", "tomorrow"), 2), (("--since", "tomorrow"), 0)):
        assert json.loads(pgonce(*words, *options).stdout)["decided"] == count, options
    done = pgonce(*words, "--since", "when it was warm")
    assert done.returncode == 2 and b"not a time" in done.stderr


ALL = ("resolve", "--scope", "payments", "--all", "--as", "failed_retryable")
NARROWED = ("--tenant", "acme", "--error-code", "timeout", "--since", "2h", "--until", "1s")


@pytest.mark.parametrize("options, named", [
    ((), "all in doubt of all tenants, scope='payments'"),
    (("--tenant", ""), "all in doubt of tenant='' scope='payments'"),
    (NARROWED, "all in doubt of tenant='acme' scope='payments' error-code='timeout' since='2h' until='1s'"),
])
def test_resolve_all_names_which_it_is_about(pgonce, db, options, named):
    assert pgonce(*ALL, *options, "--reason", "r").stdout.decode() == f"{named}: 0 -> failed_retryable\n"
    terminal = Terminal(pgonce.words(*ALL, *options), pgonce.environment(None), columns=200)
    try:
        terminal.wait(f"{named} -> failed_retryable")
    finally:
        terminal.close()


def test_resolve_all_names_which_it_is_about_to_scripts_too(pgonce, db):
    told = json.loads(pgonce(*ALL, "--reason", "r", "--json").stdout)
    assert (told["tenant"], told["all_tenants"]) == (None, True) and told["filters"] == {"error_code": None, "since": None, "until": None}
    told = json.loads(pgonce(*ALL, *NARROWED, "--reason", "r", "--json").stdout)
    assert (told["tenant"], told["all_tenants"], told["filters"]["error_code"]) == ("acme", False, "timeout")
    assert db.value("SELECT %s::timestamptz - %s::timestamptz BETWEEN '1h59m' AND '2h'", told["filters"]["until"], told["filters"]["since"])


def test_resolve_all_says_that_decisions_may_be_stored_only_where_the_connection_was_lost(db, server):
    words = (*ALL, "--reason", "r")
    doubt(db, "k")
    with Proxy(server) as proxy:
        behind = Command(proxy.dsn(db.name))
        proxy.lose_answer("resolve_many")
        lost = behind(*words)
        assert lost.returncode != 0 and b"the last decisions may or may not be stored: run it again: " in lost.stderr, lost
        proxy.lose_answer("resolve_many")
        dry = behind(*words, "--dry-run")
        assert dry.returncode != 0 and b"cannot decide: " in dry.stderr, dry


def test_resolve_all_that_is_refused_says_nothing_of_the_connection(pgonce, db):
    db.execute("ALTER FUNCTION once.resolve_many RENAME TO resolve_many_gone")
    refused = pgonce(*ALL, "--reason", "r")
    assert refused.returncode == 4 and b"cannot decide: " in refused.stderr and b"may or may not" not in refused.stderr, refused


def test_resolve_all_gives_each_the_same_answer(pgonce, db, tmp_path):
    doubt(db, "a", "b")
    (tmp_path / "body").write_bytes(b"ask \0 us")
    done = pgonce("resolve", "--scope", "payments", "--all", "--as", "failed_final", "--reason", "refunded by hand", "--status", "410",
                  "--body", tmp_path / "body", "--headers", '{"Content-Type": "text/plain"}')
    assert done.returncode == 0, done.stderr
    for key in ("a", "b"):
        row = db.row("SELECT * FROM once.peek('payments', %s)", key)
        assert (row.state, row.response_status, row.response_body, row.response_headers) == ("failed_final", 410, b"ask \0 us", {"Content-Type": "text/plain"})


def test_resolve_all_says_what_it_skipped(pgonce, db):
    doubt(db, "free", "held")
    holder = db.connect(autocommit=False)
    with holder.cursor() as cursor:
        cursor.execute("SELECT once.complete('payments', 'held', 1)")
    words = ("resolve", "--scope", "payments", "--all", *DECIDED)
    done = pgonce(*words)
    assert done.returncode == 12 and b"1 -> failed_retryable" in done.stdout and b"1  skipped" in done.stdout
    holder.commit()
    assert pgonce(*words).returncode == 0
    assert states(db) == {"free": "failed_retryable", "held": "succeeded"}


def test_resolve_all_that_is_killed_is_just_started_again(pgonce, db):
    count = 4000
    db.execute("SELECT once.claim('payments', 'k' || n, once.fingerprint('r'::bytea)), once.fail('payments', 'k' || n, 1, NULL)"
               " FROM generate_series(1, %s) AS n", count)
    words = ("resolve", "--scope", "payments", "--all", *DECIDED, "--json")
    process = pgonce.start(*words)
    while db.value("SELECT count(*) FROM once.decision") == 0:
        assert process.poll() is None, process.communicate()
    process.kill()
    process.communicate()
    db.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
    before = db.value("SELECT count(*) FROM once.decision")
    assert 0 < before < count
    done = pgonce(*words)
    assert done.returncode == 0 and json.loads(done.stdout)["decided"] == count - before
    assert db.row("SELECT count(*) AS all, count(DISTINCT key) AS keys FROM once.decision") == (count, count)


@pytest.mark.parametrize("words, said", [
    (("--as", "succeeded", "--reason", "r"), "--key KEY is required; or --all"),
    (("--all",), "--as"),
    (("--all", "--as", "succeeded"), "--reason"),
    (("--all", "--key", "k", *DECIDED), "not with --all"),
    (("--all", "--result", "a:b", *DECIDED), "not with --all"),
    (("--key", "k", "--since", "1h", *DECIDED), "--since needs --all"),
    (("--key", "k", "--error-code", "timeout", *DECIDED), "--error-code needs --all"),
])
def test_resolve_decides_about_one_or_all_and_never_all_by_accident(pgonce, db, words, said):
    doubt(db, "k")
    done = pgonce("resolve", "--scope", "payments", *words)
    assert (done.returncode, done.stdout) == (2, b"") and said in done.stderr.decode()
    assert states(db) == {"k": "in_doubt"}


def test_recover_asks_verify_functions_about_what_is_in_doubt(pgonce, db):
    assert pgonce("recover", "--in-doubt").stdout == b"nothing is in doubt\n"
    verified_by(db, "split_part(key, '-', 1)")
    doubt(db, "happened-1", "absent-1", "unknown-1")
    doubt(db, "plain", scope="imports")
    assert pgonce("recover", "--in-doubt").stdout.count(b"its attempt may still be at work") == 4
    db.execute("UPDATE once.intent SET lease_until = clock_timestamp() - interval '1 second'")
    dry = pgonce("recover", "--in-doubt", "--dry-run")
    assert dry.returncode == 12 and b"nothing was changed" in dry.stdout and set(states(db).values()) == {"in_doubt"}
    text = pgonce("recover", "--in-doubt").stdout.decode()
    for part in ("key='happened-1': succeeded", "key='absent-1': retry", "key='unknown-1': in_doubt", "key='plain': in_doubt: its scope has no verify",
                 "4 in doubt"):
        assert part in text, text
    assert states(db) == {"happened-1": "succeeded", "absent-1": "failed_retryable", "unknown-1": "in_doubt", "plain": "in_doubt"}
    told = json.loads(pgonce("recover", "--in-doubt", "--scope", "payments", "--json").stdout)
    assert told["summary"] == {"judged": 1, "succeeded": 0, "retry": 0, "in_doubt": 1, "abandoned": 0}
    assert pgonce("recover").stdout == b"nothing is stale\n"


@pytest.mark.parametrize("option", [(), ("--in-doubt",)])
def test_a_recover_that_failed_does_not_say_that_there_is_nothing(pgonce, db, option):
    claim(db, "payments", "k")
    make_stale(db, "k")
    doubt(db, "d")
    db.execute("ALTER FUNCTION once.recover RENAME TO recover_gone")
    for form in ((), ("--json",)):
        done = pgonce("recover", *option, *form)
        assert (done.returncode, done.stdout) == (4, b"") and b"cannot recover" in done.stderr, done
