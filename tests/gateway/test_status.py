# SPDX-License-Identifier: PostgreSQL
"""The status page: JSON for people and scripts, OpenMetrics for scrapers; the numbers of all workers, and only numbers."""

import json
import threading

import pytest

from harness import openmetrics
from harness.prometheus import promtool
from harness.postgres import wait_until
from harness.upstream import NOT_NOW, Answer

from .door import Door, assert_problem, at_once, new_key, soon

CONFIG = """
    once_tenant $http_x_tenant;
    location /pay { once required; once_scope pay; once_wait 10s; proxy_pass http://app; }
    location /other { once required; once_scope "a \\"quoted\\" \\\\ scope"; proxy_pass http://app; }
    location /abroad { once required; once_scope "zahlung-\u00e9-\u20ac-\U0001f511"; proxy_pass http://app; }
    location /refused { once required; once_scope refused; proxy_pass http://unix:@dir@/nobody:; }
    location = /status { once_status; }
    location = /status.json { once_status json; }
    location = /metrics { once_status metrics; }
"""


def page(door):
    answer = door.nginx.ask("GET", "/status.json")
    assert answer.status == 200 and answer.header("Content-Type").startswith("application/json")
    return json.loads(answer.body)


def metrics(door):
    answer = door.nginx.ask("GET", "/metrics", [("Accept", "application/openmetrics-text")])
    assert answer.status == 200
    assert answer.header("Content-Type").startswith("application/openmetrics-text; version=1.0.0")
    return openmetrics.read(answer.body.decode())


def decisions(door, scope):
    """From both pages, which must agree."""
    for _ in range(20):
        before, read, after = page(door), metrics(door), page(door)
        if before["scopes"].get(scope) == after["scopes"].get(scope):
            break
    found = {
        dict(labels)["decision"]: value
        for (_, labels), value in read["pgonce_decisions"].samples.items()
        if dict(labels)["scope"] == scope
    }
    assert found == after["scopes"].get(scope, {})
    return found


def grown(before, after):
    return {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}


def test_the_decisions_of_a_scope_are_counted_one_by_one(door):
    before = decisions(door, "pay")
    key, broken, doubtful = new_key(), new_key(), new_key()
    door.upstream.script(broken, NOT_NOW)
    door.upstream.script(doubtful, Answer(close=True))
    for _ in range(3):
        door.attempt(key)
    door.attempt(key, body=b"other")
    door.attempt(broken)
    door.attempt(doubtful)
    door.wait_state(doubtful, "in_doubt")
    door.attempt(doubtful)
    door.attempt(new_key(), value="-")
    door.attempt(new_key(), value='"')
    door.attempt(new_key(), tenant="")
    counted = grown(before, decisions(door, "pay"))
    assert counted == {
        "run": 3,
        "replay": 2,
        "mismatch": 1,
        "in-doubt": 1,
        "key-missing": 1,
        "key-malformed": 1,
        "tenant-missing": 1,
    }


def test_how_attempts_ended_is_counted(door):
    def reports():
        return page(door)["reports"]

    before = reports()
    keys = {"complete": Answer(), "final": Answer(404), "in_doubt": Answer(close=True), "retryable": NOT_NOW}
    for name, answer in keys.items():
        key = new_key()
        door.upstream.script(key, answer)
        door.attempt(key)
        door.wait_state(key, {"complete": "succeeded", "final": "failed_final", "in_doubt": "in_doubt", "retryable": "failed_retryable"}[name])
    assert door.attempt(new_key(), "/refused").status == 502
    wait_until(lambda: sum(grown(before, reports()).values()) >= 5, "five reports")
    counted = {name.replace("-", "_"): count for name, count in grown(before, reports()).items()}
    assert counted == {"complete": 1, "final": 1, "in_doubt": 1, "retryable": 1, "release": 1}


def test_what_runs_and_what_waits_shows_and_goes_away(door):
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, Answer(hold=hold))
    original = door.start(key)
    door.upstream.wait(key)
    duplicates = [door.start(key) for _ in range(5)]
    wait_until(lambda: (page(door)["running"], page(door)["waiting"]) == (1, 5), "one that runs and five that wait")
    hold.set()
    for attempt in [original, *duplicates]:
        assert attempt.result().status == 201
    wait_until(lambda: all(page(door)[name] == 0 for name in ("running", "waiting", "held")), "nothing to run, to wait or to be held")


def test_what_each_worker_counts_is_in_the_sum_whoever_shows_it(door):
    before = decisions(door, "pay").get("run", 0)
    at_once(60, lambda _: door.attempt(new_key()))
    assert {decisions(door, "pay")["run"] for _ in range(10)} == {before + 60}
    assert page(door)["workers"] == door.nginx.workers


def test_batches_and_the_databases_latency_are_counted(door):
    before = page(door)
    at_once(60, lambda _: door.attempt(new_key()))
    wait_until(lambda: page(door)["operations"]["reports"] - before["operations"]["reports"] >= 60, "60 reports")
    after = page(door)
    for connection in ("claims", "reports"):
        operations = after["operations"][connection] - before["operations"][connection]
        batches = after["batches"][connection] - before["batches"][connection]
        assert operations >= 60 and 1 <= batches <= operations
    shown = metrics(door)["pgonce_database_seconds"]
    assert shown.type == "histogram" and shown.unit == "seconds"
    assert shown.samples[("_count", ())] >= sum(before["batches"].values())
    assert shown.samples[("_sum", ())] > 0


def test_reconnects_are_counted(door):
    door.attempt(new_key())
    before = page(door)["connects"]
    door.database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    wait_until(lambda: door.attempt(new_key()) and page(door)["connects"] > before, "a new connection")


def test_a_scopes_name_is_escaped_in_both_pages(door):
    assert door.attempt(new_key(), "/other").status == 201
    assert decisions(door, 'a "quoted" \\ scope')["run"] >= 1


def test_a_scopes_name_has_its_characters_in_both_pages(door):
    assert door.attempt(new_key(), "/abroad").status == 201
    assert decisions(door, "zahlung-\u00e9-\u20ac-\U0001f511")["run"] >= 1


@pytest.mark.parametrize(
    "accept, kind",
    [
        (None, "application/json"),
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("text/plain;version=0.0.4", "text/plain; version=0.0.4"),
        ("application/openmetrics-text", "application/openmetrics-text"),
        ("application/openmetrics-text;version=1.0.0;q=0.9,text/plain;q=0.5,*/*;q=0.1", "application/openmetrics-text"),
    ],
)
def test_the_page_has_the_form_that_the_client_asks_for(door, accept, kind):
    answer = door.nginx.ask("GET", "/status", [("Accept", accept)] if accept else [])
    assert answer.status == 200 and answer.header("Content-Type").startswith(kind)
    if kind == "application/json":
        json.loads(answer.body)
    elif kind.startswith("text/plain"):
        assert promtool("check", "metrics", given=answer.body.decode()) == (0, "")
    else:
        openmetrics.read(answer.body.decode())


def test_what_a_person_reads_is_what_promtool_reads(door):
    assert door.attempt(new_key(), "/other").status == 201  # a scope with quotes and a backslash
    answer = door.nginx.ask("GET", "/metrics")
    assert answer.header("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    assert promtool("check", "metrics", given=answer.body.decode()) == (0, "")


def test_the_page_is_only_read(door):
    assert door.nginx.ask("HEAD", "/metrics").status == 200
    assert door.nginx.ask("POST", "/metrics", body=b"x").status == 405


def test_the_page_says_no_key_no_tenant_and_no_body(door):
    key, tenant = new_key(), new_key()
    door.attempt(key, tenant=tenant, body=b"a-secret-body")
    door.attempt(key, tenant=tenant, body=b"other")
    for target in ("/status.json", "/metrics"):
        body = door.nginx.ask("GET", target).body.decode()
        assert key not in body and tenant not in body and "secret" not in body


def test_counters_outlive_a_reload_and_a_killed_worker(door):
    door.attempt(new_key())
    before = decisions(door, "pay")["run"]
    door.nginx.reload()
    assert decisions(door, "pay")["run"] == before
    door.nginx.kill_worker()
    assert decisions(door, "pay")["run"] == before
    assert soon(door, new_key()).status == 201  # its worker may be a new one
    assert decisions(door, "pay")["run"] == before + 1
    assert page(door)["running"] == 0


def test_a_page_before_any_request_is_whole(database, upstream):
    with Door(database, upstream, CONFIG) as fresh:
        assert page(fresh)["running"] == 0
        assert metrics(fresh)["pgonce_running"].type == "gauge"


def test_requests_that_the_database_cannot_be_asked_for_are_counted(database, upstream):
    with Door(database, upstream, CONFIG, dsn="host=/nowhere dbname=x") as away:
        assert_problem(away.attempt(new_key()), 503, "unavailable")
        assert decisions(away, "pay")["unavailable"] == 1
        assert page(away)["connect_failures"] >= 1
