# SPDX-License-Identifier: PostgreSQL
"""pgonce console from outside: what it refuses, what it says when something is wrong, its headers, its log, and that it stays small."""

import concurrent.futures
import http.server
import json
import pathlib
import signal
import socket
import subprocess
import threading
import time
import urllib.parse

import pytest

from contract.keeping import Keeper
from harness.broker import free_port
from harness.postgres import ROOT, Postgres, clean_environment, wait_until

from .running import FORM, JSON, PROGRAM, Console, make_roles

PAGES = ["/", "/find", "/doubts", "/messages", "/scopes"]
KEY = {"scope": "pay", "key": "order-17"}
DOUBT = "/doubt?" + urllib.parse.urlencode(KEY)
DECISION = {**KEY, "tenant": "", "fence": "1", "state": "in_doubt", "decision": "absent", "reason": "the provider knows nothing"}


def make_shop(db):
    """An intent in doubt."""
    make_roles(db)
    db.execute("SELECT once.claim('pay', 'order-17', '\\x00000000000000000000000000000001'::bytea)")
    db.execute("SELECT once.fail('pay', 'order-17', 1, NULL, 'timeout')")


@pytest.fixture
def shop(db):
    make_shop(db)
    return db


@pytest.fixture
def console(tmp_path, shop):
    with Console(tmp_path, shop.dsn()) as running:
        yield running


@pytest.fixture
def deciding(tmp_path, shop):
    with Console(tmp_path, shop.dsn("boss"), "--allow-decisions") as running:
        yield running


def state_of(db):
    return db.row("SELECT state, fence FROM once.intent WHERE scope = 'pay' AND key = 'order-17'")


def decide(console, form=None, headers=None, **fields):
    cookie, token = form or console.form_of(DOUBT)
    return console.send("/doubt", {**DECISION, "token": token, **fields}, Cookie=cookie, Origin=f"http://{console.host}", **(headers or {}))


def test_what_nobody_has_counted_is_no_zero(console, shop):
    asked = {path: console.ask(path).text for path in ("/", "/scope?scope=pay", "/scope?scope=other")}
    assert "Unknown: the keeper has not counted yet" in asked["/"] and asked["/scope?scope=pay"].count("not counted yet") == 2
    assert asked["/scope?scope=other"].count("not counted yet") == 2
    assert (console.document("/scope", scope="pay")["in_doubt"], console.document("/")["as_of"]) == (None, None)
    Keeper(shop.connect()).work("sweep")
    wait_until(lambda: console.document("/")["as_of"], "the overview is asked for anew")
    overview, pay, other = (console.document(path, **of) for path, of in (("/", {}), ("/scope", {"scope": "pay"}), ("/scope", {"scope": "other"})))
    assert [each["scope"] for each in overview["scopes"]] == ["pay"] and overview["in_doubt"] == 1
    assert ((pay["in_doubt"], pay["stale"]), (other["in_doubt"], other["stale"])) == ((1, 0), (0, 0))
    assert "not counted yet" not in console.ask("/scope?scope=other").text
    shop.execute("SELECT once.resolve('pay', 'order-17', 'failed_retryable', 'seen')")
    shop.execute("UPDATE once.keeper_step SET ended_at = '-infinity' WHERE step = 'sweep'")  # or it rests
    Keeper(shop.connect()).work("sweep")
    wait_until(lambda: "No scope has a stale or doubtful intent" in console.ask("/").text, "the overview is asked for anew")


# ---- the two forms of an answer


@pytest.mark.parametrize("path", [*PAGES, "/find?q=order-17", DOUBT, "/intent?" + urllib.parse.urlencode(KEY), "/scope?scope=pay", "/messages?state=dead"])
def test_each_page_is_json_for_a_client_that_asks_for_it_and_html_for_a_browser(console, path):
    document, page = console.ask(path, Accept=JSON), console.ask(path, Accept="text/html,application/xhtml+xml,application/json;q=0.5")
    assert (document.status, document.headers["Content-Type"]) == (200, JSON)
    assert "console" not in document.json() and "form" not in document.json()
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert page.text.lstrip().startswith("<!doctype html>") and page.text.rstrip().endswith("</html>")
    head = console.ask(path, "HEAD")
    assert (head.status, head.body) == (200, b"") and int(head.headers["Content-Length"]) > 1000


def test_the_document_is_that_of_the_pages_sql(console, shop):
    text = "\n".join(line for line in (ROOT / "console/sql/find.sql").read_text().splitlines() if not line.lstrip().startswith("--"))
    for number in range(8, 0, -1):
        text = text.replace(f"${number}", {1: "'order-17'"}.get(number, "NULL"))
    direct, shown = shop.value("SET TIME ZONE 'UTC'; " + text.replace("%", "%%")), console.document("/find", q="order-17")
    for document in (direct, shown):
        del document["now"]
        [document["intents"][0].pop(name) for name in ("age_ms", "created_at", "updated_at", "completed_at") if name in document["intents"][0]]
    assert shown == json.loads(json.dumps(direct))


def test_an_intent_that_is_not_there_is_a_404_in_both_forms(console):
    for accept in (JSON, "text/html"):
        assert console.ask("/intent?scope=pay&key=none", Accept=accept).status == 404


# ---- a wrong request


@pytest.mark.parametrize("query, named", [
    ("take=0", "'take'"), ("take=501", "'take'"), ("take=x", "'take'"), ("state=lost", "'state'"), ("since=yesterdayish", "'since'"),
    ("until=2026-13-45", "'until'"), ("since=x&until=y", "'since' or 'until'"), ("after=zzz", "'after'"), ("colour=red", "'colour'"),
    ("q=a&q=b", "'q'"), ("q=%ff", "'q'"), ("scope=%00", "'scope'"), ("q=" + "x" * 4097, "'q'")])
def test_a_wrong_parameter_is_a_400_that_names_it(console, query, named):
    answer = console.ask(f"/find?{query}", Accept=JSON)
    assert (answer.status, answer.headers["Content-Type"]) == (400, "application/problem+json")
    assert f"parameter {named}: " in answer.json()["detail"] and answer.json()["status"] == 400
    page = console.ask(f"/find?{query}")
    assert page.status == 400 and named.replace("'", "&#39;") in page.text


@pytest.mark.parametrize("query, named", [("", "scope"), ("scope=pay", "key"), ("scope=pay&key=k&body=2", "body")])
def test_a_missing_parameter_is_named_too(console, query, named):
    answer = console.ask(f"/intent?{query}", Accept=JSON)
    assert answer.status == 400 and f"parameter '{named}'" in answer.json()["detail"]


def test_what_is_not_there_or_takes_no_such_method(console):
    assert console.ask("/nowhere").status == 404
    assert console.ask("/assets/nothing.js").status == 404
    assert console.ask("/assets/overview.html").status == 404
    assert console.ask("/assets/../console.c").status == 404
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE"):
        answer = console.ask("/find", method)
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert console.ask("/find", "POST", b"x=1").status == 405
    assert console.ask("/doubt", "PUT").headers["Allow"] == "GET, HEAD, POST"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "127.0.0.2", "10.0.0.1:9480", "[::1]", "", "localhost.", "localhost@evil", None])
def test_a_host_that_is_not_the_consoles_is_refused(console, host):
    answer = console.ask("/find?q=order-17", Host=host)
    assert answer.status in ((400, 421) if host is None else (421,)) and "order-17" not in answer.text


def test_its_own_address_and_localhost_and_public_hosts_are_its_hosts(tmp_path, shop):
    with Console(tmp_path, shop.dsn(), "--public-host", "once.example.com,other.example.com") as running:
        for host in ("127.0.0.1", f"127.0.0.1:{running.port}", "localhost", "LOCALHOST:80", "once.example.com", "Other.example.com:443"):
            assert running.ask("/find", Host=host).status == 200, host
        assert running.ask("/find", Host="once.example.com.evil.com").status == 421
        assert running.ask("/find", Host="example.com").status == 421


def test_a_request_that_is_too_large_is_refused(deciding):
    assert deciding.ask("/find?q=" + "x" * 60000).status in (413, 414, 431)
    assert deciding.ask("/find", X_Large="x" * 60000).status in (413, 431)
    with socket.create_connection(("127.0.0.1", deciding.port)) as connection:
        # Refused before it is sent.
        connection.sendall(f"POST /doubt HTTP/1.1\r\nHost: {deciding.host}\r\nContent-Type: {FORM}\r\nContent-Length: 99999999\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
    assert deciding.ask("/find").status == 200


def test_a_body_without_a_length_ends_at_the_limit(deciding):
    with socket.create_connection(("127.0.0.1", deciding.port)) as connection:
        connection.sendall(f"POST /doubt HTTP/1.1\r\nHost: {deciding.host}\r\nContent-Type: {FORM}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(40):
            connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


# ---- deciding


def test_a_decision_is_previewed_then_made_once_and_recorded_with_its_reason(deciding, shop):
    form = deciding.form_of(DOUBT)
    preview = decide(deciding, form, dry_run="1")
    assert preview.status == 200 and "Preview" in preview.text and state_of(shop) == ("in_doubt", 1)
    done = decide(deciding, form)
    assert done.status == 200 and "Decided" in done.text and state_of(shop) == ("failed_retryable", 2)
    assert shop.row("SELECT reason, decided_by FROM once.decision WHERE kind = 'resolve'") == ("the provider knows nothing (console)", "boss")


def test_the_second_of_two_who_decide_sees_the_first_decision(deciding, shop):
    first, second = deciding.form_of(DOUBT), deciding.form_of(DOUBT)
    assert decide(deciding, first, decision="never", reason="the customer gave up").status == 200
    late = decide(deciding, second, headers={"Accept": JSON})
    assert late.status == 409 and state_of(shop) == ("failed_final", 2)
    assert late.json()["first"]["reason"] == "the customer gave up (console)" and late.json()["first"]["by"] == "boss"


def test_without_allow_decisions_nothing_is_decided(tmp_path, shop):
    with Console(tmp_path, shop.dsn("boss")) as running:
        page = running.ask(DOUBT)
        assert page.status == 200 and 'method="post"' not in page.text
        answer = running.send("/doubt", {**DECISION, "token": "x"}, Cookie=page.cookie())
        assert answer.status == 403 and "This console only shows" in answer.text
    assert state_of(shop) == ("in_doubt", 1)


def test_a_role_that_may_only_see_has_no_form_and_cannot_decide(tmp_path, shop):
    with Console(tmp_path, shop.dsn("watcher"), "--allow-decisions") as running:
        page = running.ask(DOUBT)
        assert page.status == 200 and 'method="post"' not in page.text
    with Console(tmp_path, shop.dsn("boss"), "--allow-decisions") as running:
        form = running.form_of(DOUBT)
        shop.execute("REVOKE once_admin FROM boss")
        shop.execute("GRANT once_reader TO boss")
        try:
            answer = decide(running, form, {"Accept": JSON})
        finally:
            shop.execute("REVOKE once_reader FROM boss")
        assert answer.status == 403 and answer.json()["code"] == "42501" and "role" in answer.json()["title"]
    assert state_of(shop) == ("in_doubt", 1)


@pytest.mark.parametrize("headers", [
    {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}, {"Sec_Fetch_Site": "none"}, {"Origin": "http://evil.example"},
    {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"}, {"Sec_Fetch_Site": "same-origin", "Origin": "http://evil.example"}])
def test_a_form_from_another_origin_decides_nothing(deciding, shop, headers):
    cookie, token = deciding.form_of(DOUBT)
    answer = deciding.send("/doubt", {**DECISION, "token": token}, Cookie=cookie, **headers)
    assert answer.status == 403 and state_of(shop) == ("in_doubt", 1)


@pytest.mark.parametrize("headers", [
    {"Sec_Fetch_Site": "same-origin", "Origin": "null"}, {"Sec_Fetch_Site": "same-origin"}, {"Origin": None}])
def test_a_browsers_own_form_decides(deciding, shop, headers):
    """Origin is null because the pages ask for no referrer."""
    cookie, token = deciding.form_of(DOUBT)
    assert deciding.send("/doubt", {**DECISION, "token": token}, Cookie=cookie, **headers).status == 200
    assert state_of(shop) == ("failed_retryable", 2)


def test_a_token_that_is_not_of_this_cookie_decides_nothing(deciding, shop):
    (cookie, token), (other, _) = deciding.form_of(DOUBT), deciding.form_of(DOUBT)
    for given in ((cookie, "0" * 64), (cookie, ""), (cookie, token[:-1]), (other, token), ("pgonce_console=" + "0" * 32, token)):
        assert decide(deciding, given).status == 403
    assert deciding.send("/doubt", {**DECISION, "token": token}).status == 403
    assert deciding.send("/doubt", DECISION, Cookie=cookie).status == 403
    assert state_of(shop) == ("in_doubt", 1)


def test_a_form_of_another_type_decides_nothing(deciding, shop):
    cookie, token = deciding.form_of(DOUBT)
    body = urllib.parse.urlencode({**DECISION, "token": token}).encode()
    for kind in ("text/plain", "multipart/form-data; boundary=x", JSON, None):
        assert deciding.ask("/doubt", "POST", body, Cookie=cookie, Content_Type=kind).status in (403, 415)
    assert state_of(shop) == ("in_doubt", 1)


@pytest.mark.parametrize("fields, named", [
    ({"decision": "maybe"}, "decision"), ({"fence": "x"}, "fence"), ({"reason": ""}, "reason"), ({"status": "1000"}, "status"),
    ({"colour": "red"}, "colour"), ({"dry_run": "yes"}, "dry_run")])
def test_a_wrong_field_of_a_decision_is_named(deciding, shop, fields, named):
    answer = decide(deciding, None, {"Accept": JSON}, **fields)
    assert answer.status == 400 and f"parameter '{named}'" in answer.json()["detail"] and state_of(shop) == ("in_doubt", 1)


def park(db, count):
    """Dead messages of a consumer."""
    db.execute("SELECT once_job.message_park('stock', '', array_agg(ROW('m-' || n, 'orders', NULL, '{}'::jsonb, 'x'::bytea, sha256('x'), 'dead', 10, 60000, "
               "'no such article', 'P0001')::once.parked)) FROM generate_series(1, %s) AS n", count)


def waiting(db):
    return dict(db.rows("SELECT state::text, count(*) FROM once.parked_message GROUP BY 1"))


CHANGE = {"action": "retry", "consumer": "stock", "state": "dead", "reason": "the article is there"}


def change(console, form=None, **fields):
    cookie, token = form or console.form_of("/messages")
    return console.send("/messages", {**CHANGE, "token": token, **fields}, Cookie=cookie, Accept=JSON)


def test_dead_messages_are_counted_first_and_then_retried_in_parts_until_all_are(deciding, shop):
    """A part is a thousand at most."""
    park(shop, 2500)
    preview = change(deciding, dry_run="1")
    assert preview.status == 200 and preview.json()["items"] == 2500 and waiting(shop) == {"dead": 2500}
    done = change(deciding).json()
    assert (done["items"], done["done"], [(part["holder"], part["items"]) for part in done["parts"]]) == (2500, True, [("stock", 2500)])
    assert "dead" not in waiting(shop)
    assert shop.value("SELECT DISTINCT reason FROM once.parked_decision") == "the article is there (console)"


def test_single_messages_are_chosen_by_their_ids(deciding, shop):
    park(shop, 5)
    cookie, token = deciding.form_of("/messages")
    body = urllib.parse.urlencode([*CHANGE.items(), ("token", token), ("id", "m-2"), ("id", "m-4")]).encode()
    assert deciding.ask("/messages", "POST", body, Cookie=cookie, Accept=JSON).json()["items"] == 2
    assert waiting(shop)["dead"] == 3


def test_a_policy_is_previewed_and_then_saved(deciding, shop):
    cookie, token = deciding.form_of("/scope?scope=pay")
    fields = {"token": token, "scope": "pay", "on_stale": "takeover", "retention": "14 days"}
    preview = deciding.send("/scope", {**fields, "dry_run": "1"}, Cookie=cookie, Accept=JSON).json()
    assert preview["takeover"] and not preview["saved"] and shop.value("SELECT count(*) FROM once.scope WHERE scope = 'pay'") == 0
    assert deciding.send("/scope", fields, Cookie=cookie, Accept=JSON).json()["saved"]
    assert shop.row("SELECT on_stale::text, retention::text FROM once.scope WHERE scope = 'pay'") == ("takeover", "14 days")
    wrong = deciding.send("/scope", {**fields, "lease": "8 days"}, Cookie=cookie, Accept=JSON)
    assert wrong.status == 400, wrong.text


# ---- the person


def test_the_person_that_a_trusted_proxy_names_is_recorded_with_the_decision(tmp_path, shop):
    arguments = ("--allow-decisions", "--user-header", "X-Person", "--trusted-address", "10.0.0.0/8,127.0.0.0/8")
    with Console(tmp_path, shop.dsn("boss"), *arguments) as running:
        form = running.form_of(DOUBT, X_Person="alice@example.org")
        assert decide(running, form).status == 403, "without a person"
        assert decide(running, form, {"X_Person": "mallory"}).status == 403, "another person's form"
        assert decide(running, form, {"X_Person": "alice@example.org"}).status == 200
        running.until(lambda: [line for line in running.log("request") if line["person"] == '"alice@example.org"'], "the person in the log")
    assert shop.value("SELECT reason FROM once.decision WHERE kind = 'resolve'") == "the provider knows nothing (by alice@example.org, console)"


def test_a_person_that_somebody_else_names_is_none(tmp_path, shop):
    arguments = ("--allow-decisions", "--user-header", "X-Person", "--trusted-address", "10.0.0.0/8,127.0.0.2,::1")
    with Console(tmp_path, shop.dsn("boss"), *arguments) as running:
        form = running.form_of(DOUBT, X_Person="alice")
        answer = decide(running, form, {"X_Person": "alice"})
        assert answer.status == 403 and "alice" not in answer.text
    assert state_of(shop) == ("in_doubt", 1)


@pytest.mark.parametrize("arguments, said", [
    (("--user-header", "X-Person"), "--trusted-address must say"), (("--trusted-address", "example.com"), "'example.com' is not an address"),
    (("--trusted-address", "10.0.0.0/33"), "'10.0.0.0/33' is not"), (("--listen", "example.com:80"), "'example.com:80' is not an ADDRESS:PORT"),
    (("--listen", "unix:/tmp/x"), "is not an ADDRESS:PORT")])
def test_a_wrong_option_is_refused_before_anything_starts(arguments, said):
    done = subprocess.run([PROGRAM, "console", *arguments], capture_output=True, text=True, env=clean_environment(), timeout=60, check=False)
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_a_port_that_is_taken_is_said_so(tmp_path, shop):
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run([PROGRAM, "console", "--dsn", shop.dsn(), "--listen", f"127.0.0.1:{port}"], capture_output=True, text=True,
                              env=clean_environment(), timeout=60, check=False)
    assert done.returncode == 1 and f"cannot listen at 127.0.0.1:{port}: Address already in use" in done.stderr


# ---- what every answer has


def test_every_answer_has_the_headers_that_keep_a_browser_safe(deciding):
    paths = ["/", "/find", DOUBT, "/nowhere", "/find?take=0", "/assets/console.css", "/assets/console.js", "/assets/favicon.svg", "/live", "/ready"]
    for answer in [*map(deciding.ask, paths), deciding.send("/doubt", {}), deciding.ask("/", Host="evil.example"), deciding.ask("/", "PUT")]:
        policy = {part.strip().split(" ", 1)[0]: part.strip().split(" ", 1)[1] for part in answer.headers["Content-Security-Policy"].split(";")}
        assert policy == {"default-src": "'none'", "style-src": "'self'", "script-src": "'self'", "img-src": "'self' data:", "connect-src": "'self'",
                          "form-action": "'self'", "frame-ancestors": "'none'", "base-uri": "'none'"}
        assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert answer.headers["Cache-Control"] == ("no-cache" if answer.headers.get("ETag") else "no-store")
    cookie = deciding.ask("/").headers["Set-Cookie"]
    assert "; HttpOnly" in cookie and "; SameSite=Strict" in cookie and "; Path=/" in cookie
    assert deciding.ask("/", Cookie=cookie.split(";")[0]).headers["Set-Cookie"] is None


def test_a_browser_that_has_an_asset_gets_it_no_more(console):
    first = console.ask("/assets/console.css")
    assert first.status == 200 and first.headers["Content-Type"] == "text/css; charset=utf-8"
    again = console.ask("/assets/console.css", If_None_Match=first.headers["ETag"])
    assert (again.status, again.body) == (304, b"")
    assert console.ask("/assets/console.css", If_None_Match='"other"').status == 200


def test_the_log_has_a_line_for_each_request_and_nothing_of_its_parameters(deciding):
    deciding.ask("/find?q=secret-in-the-query")
    deciding.ask("/secret-path?x=secret-in-the-query")
    decide(deciding, reason="secret-reason", dry_run="1")
    deciding.until(lambda: len(deciding.log("request")) == 4, "four requests in the log")
    seen = [(line["method"], line["path"], line["status"]) for line in deciding.log("request")]
    assert sorted(seen) == [("GET", "-", "404"), ("GET", "/doubt", "200"), ("GET", "/find", "200"), ("POST", "/doubt", "200")]
    assert all(int(line["ms"]) >= 0 for line in deciding.log("request"))
    assert "secret" not in deciding.err.read_text()


# ---- the database away, and back


@pytest.fixture
def own_server():
    with Postgres() as running:
        yield running


def test_a_database_that_is_away_is_said_so_and_the_page_comes_back(tmp_path, own_server):
    db = own_server.new_database()
    with Console(tmp_path, db.dsn()) as running:
        assert running.ask("/find").status == running.ask("/ready").status == 200
        own_server.stop()
        for path in PAGES:
            away = running.ask(path)
            assert (away.status, away.headers["Retry-After"]) == (503, "2") and "The database is away" in away.text
            assert 'id="away" role="alert">' in away.text, "the banner is shown"
            assert running.ask(path, Accept=JSON).json()["title"] == "The database is away"
        assert running.ask("/ready").status == 503 and running.ask("/live").status == 200
        assert running.ask("/assets/console.js").status == 200
        own_server.start()
        running.until(lambda: running.ask("/find").status == 200, "the page to come back")
        assert running.ask("/ready").status == 200


def test_a_lost_connection_is_made_again_within_the_request(console, shop):
    assert console.ask("/find").status == 200
    shop.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
    assert console.ask("/find").status == 200


def test_hup_makes_it_connect_again(console, shop):
    def backends():
        return {row.pid for row in shop.rows("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")}

    console.until(lambda: console.document("/")["doctor"], "doctor to have looked, which has a connection for a moment")
    before = backends()
    console.process.send_signal(signal.SIGHUP)
    console.until(lambda: console.log("reloaded"), "the reload")
    assert console.ask("/find").status == 200
    wait_until(lambda: before - backends(), "a connection to be closed")
    assert console.process.poll() is None


def test_requests_do_not_pile_up_behind_a_server_that_does_not_answer(tmp_path):
    """It takes connections, and says nothing: an attempt takes three seconds, and four may be made at once."""
    with socket.create_server(("127.0.0.1", free_port()), backlog=200) as mute:
        with Console(tmp_path, f"host=127.0.0.1 port={mute.getsockname()[1]} dbname=x user=x") as running, concurrent.futures.ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(lambda _: running.ask("/find", Accept=JSON), range(32)))
            assert {(answer.status, answer.json()["title"]) for answer in answers} == {(503, "The database is away")}


def test_it_starts_without_a_database_and_waits_for_it(tmp_path, own_server):
    db = own_server.new_database()
    own_server.stop()
    with Console(tmp_path, db.dsn()) as running:
        assert running.ask("/").status == 503
        own_server.start()
        running.until(lambda: running.ask("/").status == 200, "the page")


def test_a_database_without_the_contract_is_said_so(tmp_path, server):
    empty = server.empty_database()
    try:
        with Console(tmp_path, empty.dsn()) as running:
            answer = running.ask("/", Accept=JSON)
            assert answer.status == 503 and "pgonce init" in answer.json()["detail"]
    finally:
        empty.drop()


def test_a_role_without_the_right_gets_a_403_that_says_so(tmp_path, shop):
    shop.execute("DO $$ BEGIN CREATE ROLE stranger LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    with Console(tmp_path, shop.dsn("stranger")) as running:
        answer = running.ask("/find?q=order-17", Accept=JSON)
        assert answer.status == 403 and "once_reader" in answer.json()["detail"] and answer.json()["code"] == "42501"


def test_a_page_waits_two_seconds_for_a_lock_at_most(console, shop):
    assert console.ask("/find").status == 200
    blocker = shop.connect(autocommit=False)
    blocker.cursor().execute("LOCK TABLE once.scope IN ACCESS EXCLUSIVE MODE")
    answer = console.ask("/find?q=order-17", Accept=JSON)
    blocker.rollback()
    assert (answer.status, answer.json()["code"], answer.headers["Retry-After"]) == (503, "55P03", "2")
    assert console.ask("/find?q=order-17").status == 200


def test_a_statement_that_takes_too_long_is_ended_and_said_so(console, shop):
    shop.execute("CREATE FUNCTION public.pay(tenant text, scope text, key text) RETURNS once.verification LANGUAGE plpgsql AS "
                 "$$ BEGIN PERFORM pg_sleep(60); END $$")
    shop.execute("SELECT once.set_scope('pay', verify => 'public.pay')")
    answer = console.ask(DOUBT, Accept=JSON)
    assert (answer.status, answer.json()["code"], answer.json()["title"]) == (503, "57014", "It took too long")
    assert shop.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()") == 0
    assert console.ask("/find").status == 200


def test_pages_change_nothing(deciding, shop):
    """Not even what a verify function does: a read is READ ONLY, and a preview is rolled back."""
    shop.execute("CREATE TABLE public.asked (at timestamptz)")
    shop.execute("CREATE FUNCTION public.pay(tenant text, scope text, key text) RETURNS once.verification LANGUAGE plpgsql AS "
                 "$$ BEGIN INSERT INTO public.asked VALUES (now()); RETURN ROW('happened', 200, NULL, NULL, NULL, NULL)::once.verification; END $$")
    shop.execute("SELECT once.set_scope('pay', verify => 'public.pay')")
    answer = deciding.ask(DOUBT)
    assert answer.status == 200 and "read-only transaction" in answer.text
    assert shop.value("SELECT count(*) FROM public.asked") == 0
    assert decide(deciding, dry_run="1").status == 200 and state_of(shop) == ("in_doubt", 1)


def test_a_preview_is_rolled_back_whatever_its_statement_has_done(deciding, shop):
    """Here the contract's function has been replaced by one that knows no dry run."""
    definition = shop.value("SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = 'resolve_seen'")
    shop.execute("CREATE TABLE public.seen (reason text)")
    shop.execute(definition.split(" LANGUAGE ")[0].replace("%", "%%") + " LANGUAGE plpgsql SECURITY DEFINER AS "
                 "$$ BEGIN INSERT INTO public.seen VALUES ($6); RETURN '{}'; END $$")
    form = deciding.form_of(DOUBT)
    assert decide(deciding, form, dry_run="1").status == 200
    assert shop.rows("SELECT reason FROM public.seen") == []
    assert decide(deciding, form).status == 200
    assert shop.rows("SELECT reason FROM public.seen") == [("the provider knows nothing (console)",)]


# ---- limits


def test_a_client_that_drips_its_request_is_cut_off(console):
    """A byte each second is never silent for long: only the whole is too slow."""
    slow = socket.create_connection(("127.0.0.1", console.port))
    slow.settimeout(1)
    started = time.monotonic()
    slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    ended = False
    while not ended and time.monotonic() - started < 60:
        try:
            slow.sendall(b"x")
            ended = slow.recv(1) == b""
        except TimeoutError:
            pass  # nothing came within the second
        except OSError:
            ended = True
    assert ended and 15 < time.monotonic() - started < 30
    slow.close()


def test_silent_connections_keep_nobody_out_for_good(console):
    silent = [socket.create_connection(("127.0.0.1", console.port)) for _ in range(100)]

    def answered():
        try:
            return console.ask("/live", timeout=5).status == 200
        except OSError:
            return False

    wait_until(answered, "an answer, when the silent ones are shown out")
    for each in silent:
        each.close()


def test_more_requests_than_its_limit_get_a_429(console):
    request = f"GET /nowhere HTTP/1.1\r\nHost: {console.host}\r\n\r\n".encode()

    def flood(_):
        with socket.create_connection(("127.0.0.1", console.port)) as connection:
            connection.sendall(request * 600 + request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            return b"".join(iter(lambda: connection.recv(65536), b""))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = b"".join(pool.map(flood, range(8)))
    assert answers.count(b"HTTP/1.1 429 ") > 0 and answers.count(b"HTTP/1.1 404 ") >= 1000
    assert b"Retry-After: 1" in answers
    wait_until(lambda: console.ask("/find").status == 200, "an answer again")


def test_few_forms_are_in_memory_at_once(deciding):
    head = f"POST /doubt HTTP/1.1\r\nHost: {deciding.host}\r\nContent-Type: {FORM}\r\nContent-Length: 1000000\r\n\r\n".encode()
    form = deciding.form_of(DOUBT)
    begun = []

    def status():
        return decide(deciding, form, dry_run="1").status

    def is_refused():
        assert len(begun) < 32
        begun.append(socket.create_connection(("127.0.0.1", deciding.port)))
        begun[-1].sendall(head + b"x=" + b"x" * 1000)
        return status() == 503

    wait_until(is_refused, "a form to be refused")
    assert len(begun) >= 8
    assert deciding.ask(DOUBT).status == 200, "pages are shown"
    for each in begun:
        each.close()
    wait_until(lambda: status() == 200, "a form to be taken again")


def test_it_uses_few_connections_and_little_memory(console, shop):
    def load(number):
        return [console.ask(path).status for path in ("/", "/find?q=order", DOUBT, "/doubts") for _ in range(3)] + [number]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for *statuses, _ in pool.map(load, range(16)):
            assert set(statuses) == {200}
    used = shop.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
                      "AND backend_type = 'client backend'")
    assert used <= 6, "four for the pages, one for the samples, and one that doctor has for a moment"
    status = pathlib.Path(f"/proc/{console.process.pid}/status").read_text()
    assert int(status.split("VmHWM:")[1].split()[0]) < 64 * 1024


def test_it_stops_when_it_is_asked_to(console):
    assert console.ask("/find").status == 200
    assert console.stop() == 0


# ---- what it keeps in memory


def test_the_overview_says_what_doctor_finds(tmp_path, shop):
    with Console(tmp_path, shop.dsn()) as running:
        running.until(lambda: running.document("/")["doctor"] is not None, "doctor to have looked")
        said = running.document("/")["doctor"]
        done = subprocess.run([PROGRAM, "doctor", "--dsn", shop.dsn(), "--json"], capture_output=True, text=True, env=clean_environment(), timeout=60,
                              check=False)
    wanted = json.loads(done.stdout)
    assert [check["check"] for check in said["checks"]] == [check["check"] for check in wanted["checks"]] and said["failures"] == wanted["failures"]


def test_many_who_look_at_the_overview_at_once_share_an_answer(console):
    console.document("/")
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        times = list(pool.map(lambda _: console.document("/")["now"], range(16)))
    assert len(set(times)) < 16


def test_the_overview_has_a_series_of_each_figure(console, shop):
    console.until(lambda: console.document("/")["series"], "two samples")
    series = {one["name"]: one for one in console.document("/")["series"]}
    assert {"new", "replay", "in_doubt", "pending", "dead", "lag_seconds"} <= set(series)
    for one in series.values():
        assert one["label"] and one["from"] < one["to"]
        for point in one["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 600 and 0 <= y <= 100


class FakePrometheus(http.server.ThreadingHTTPServer):
    """Answers each query_range with one series whose values are 1, 2, 3, ...; or with `status`."""

    def __init__(self):
        super().__init__(("127.0.0.1", free_port()), FakePrometheusAnswer)
        self.asked, self.status = [], 200
        threading.Thread(target=self.serve_forever, daemon=True).start()


class FakePrometheusAnswer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path, _, query = self.path.partition("?")
        asked = dict(urllib.parse.parse_qsl(query))
        self.server.asked.append((path, asked))
        times = range(int(asked["start"]), int(asked["end"]) + 1, int(asked["step"]))
        body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [
            {"metric": {}, "values": [[at, "NaN" if nth == 5 else str(nth + 1)] for nth, at in enumerate(times)]}]}}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_with_prometheus_the_charts_have_its_last_six_hours(tmp_path, shop):
    server = FakePrometheus()
    with Console(tmp_path, shop.dsn(), "--prometheus", f"http://127.0.0.1:{server.server_port}/", "--prometheus-job", 'sh"op') as running:
        running.until(lambda: running.document("/")["series"], "the series")
        series = {one["name"]: one for one in running.document("/")["series"]}
        assert (series["new"]["last"], series["new"]["max"], len(series["new"]["points"].split())) == (180, 180, 179), "180 points, and one of them unknown"
        assert series["new"]["points"].startswith("0,99.4 ") and series["new"]["points"].endswith(" 600,0.0")
        assert [path for path, _ in server.asked if path != "/api/v1/query_range"] == []
        new = next(asked for _, asked in server.asked if "new|stale|retryable" in asked["query"])
        assert new["query"].count('job="sh\\"op"') == 2 and "%" not in new["query"]
        assert int(new["end"]) - int(new["start"]) == 179 * 120 and abs(int(new["end"]) - time.time()) < 300
        server.status = 500
        running.until(lambda: running.log("prometheus"), "its failure in the log")
        running.until(lambda: [one for one in running.document("/")["series"] if one["name"] == "dead" and one["last"] == 0], "its own samples again")
    server.shutdown()


def test_a_prometheus_that_is_no_url_is_refused():
    done = subprocess.run([PROGRAM, "console", "--prometheus", "ftp://x"], capture_output=True, text=True, env=clean_environment(), timeout=60, check=False)
    assert done.returncode == 2 and "--prometheus" in done.stderr
