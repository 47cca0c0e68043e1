# SPDX-License-Identifier: PostgreSQL
"""What surrounds an attempt: how nginx waits for events, in how many processes it runs, what it logs and what its variables say."""

import re
import signal
import subprocess
import threading

import pytest

from harness.nginx import BUILT_IN, MODULE, Nginx
from harness.postgres import PATIENCE_S, tied, unprivileged, wait_until
from harness.upstream import NOT_NOW, Answer

from .door import Door, assert_problem, assert_replays, at_once, new_key

CONFIG = """
    once_tenant $http_x_tenant;
    location /pay { once on; once_scope pay; proxy_pass http://app; }
    location /late { once on; once_scope pay; once_wait 5s; proxy_read_timeout 500ms; proxy_pass http://app; }
    location = /status { once_status; }
"""
# Each of them, once before and once after the decision.
SAYS = "scope=$once_scope state=$once_state step=$once_step replay=$once_replay report=$once_report verdict=$once_verdict fence=$once_fence"
HTTP = f"""
    log_format said '$http_x_number {SAYS} trace=$once_traceparent';
    access_log @dir@/said.log said;
    map "{SAYS}" $early {{ default "asked"; }}
"""


def number(n):
    return [("X-Number", str(n))]


def said(door):
    path = door.nginx.directory / "said.log"
    return path.read_text().splitlines() if path.exists() else []


def test_the_variables_say_what_became_of_each_attempt(database, upstream):
    with Door(database, upstream, CONFIG.replace("location /pay {", "location /pay { set $early2 $early;"), HTTP) as door:
        key = new_key()
        broken = new_key()
        door.upstream.script(broken, NOT_NOW)
        door.attempt(key, headers=number(1))
        door.attempt(key, headers=number(2))
        door.attempt(key, headers=number(3), body=b"other")
        door.attempt(new_key(), headers=number(4), value="-")
        door.attempt(broken, headers=number(5))
        wait_until(lambda: len(said(door)) == 5, "five lines")
        lines = {line.split()[0]: line for line in said(door)}
    assert "scope=pay state=processing step=run replay= report=complete verdict=new_claim fence=1" in lines["1"]
    assert "scope=pay state=succeeded step=replay replay=1 report= verdict=replay_success fence=" in lines["2"]
    assert "step=refuse" in lines["3"] and "verdict=mismatch" in lines["3"] and "replay= " in lines["3"]
    assert "scope= state= step= replay= report= verdict= fence= trace=" in lines["4"]
    assert "report=retryable" in lines["5"]


def test_the_gateway_works_where_events_are_taken_in_turns(database, upstream):
    with Door(database, upstream, CONFIG, events="accept_mutex on; multi_accept on;") as door:
        keys = [new_key() for _ in range(8)]
        answers = at_once(64, lambda i: door.attempt(keys[i % 8]))
        assert {answer.status for answer in answers} <= {201, 409}
        assert all(door.count(key) == 1 for key in keys)
        # The database's connections are lost, and made anew.
        door.database.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
        for key in keys:
            wait_until(lambda: door.attempt(key).replayed, "a replay over a new connection")


def test_one_process_alone_is_a_worker_too(database, upstream):
    with Door(database, upstream, CONFIG, main="master_process off;", workers=0) as door:
        key = new_key()
        assert_replays(door, key, door.attempt(key))


def test_a_log_that_is_told_nothing_changes_nothing(database, upstream):
    with Door(database, upstream, CONFIG, "error_log @dir@/quiet.log emerg;") as door:
        key = new_key()
        first = door.attempt(key, headers=[("Once-Fence", "1")])
        assert_replays(door, key, first)
        door.upstream.script(other := new_key(), Answer(close=True))
        door.attempt(other)
        assert_problem(door.attempt(other), 409, "in-doubt")
        assert "once:" not in (door.nginx.directory / "quiet.log").read_text()


def test_nginx_runs_with_the_module_and_without_http(tmp_path):
    nginx = Nginx()
    try:
        load = "" if BUILT_IN else f"load_module {MODULE};"
        nginx.conf.write_text(f"{load} daemon off; pid {nginx.directory}/pid; error_log {nginx.error_log} info; events {{ }}")
        process = subprocess.Popen(tied(nginx.command()), env=nginx.environment(), cwd="/tmp", stdin=subprocess.DEVNULL, **unprivileged()[0])
        wait_until(lambda: "start worker process " in nginx.log(), "a worker")
        process.send_signal(signal.SIGQUIT)
        assert process.wait(PATIENCE_S) == 0
        assert not re.search("alert|emerg|signal 11", nginx.log())
    finally:
        nginx.destroy()


def test_without_a_database_the_status_page_has_nothing_to_show():
    with Nginx(server="location = /status { once_status; }", workers=1) as nginx:
        assert nginx.ask("GET", "/status").status == 503


@pytest.mark.parametrize("method", ["HEAD", "GET", "POST"])
def test_the_status_page_answers_those_who_only_look(database, upstream, method):
    with Door(database, upstream, CONFIG, workers=1) as door:
        answer = door.nginx.ask(method, "/status")
        assert answer.status == (405 if method == "POST" else 200)
        assert (answer.body == b"") == (method == "HEAD")


@pytest.mark.parametrize("location", ["", "once_wait 20s;", "once_fail open;"])
def test_a_worker_that_is_stopped_at_once_ends_what_it_asked_the_database_for(database, upstream, location):
    """What waits for an answer goes on without one, while there is no batcher any more."""
    config = f"once_tenant none; once required; once_scope pay; location /pay {{ {location} proxy_pass http://app; }}"
    with Door(database, upstream, config, workers=1) as door:
        key, hold = new_key(), threading.Event()
        door.upstream.script(key, Answer(hold=hold))
        door.attempt(new_key())
        if "wait" in location:
            door.start(key)
            door.upstream.wait(key)
        blocker = door.database.connect(autocommit=False)
        try:
            blocker.cursor().execute("LOCK TABLE once.intent IN ACCESS EXCLUSIVE MODE")
            connection = door.send(key)
            wait_until(lambda: door.database.value("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0, "a statement to wait")
            door.nginx.stop(graceful=False)
            connection.close()
        finally:
            hold.set()
            blocker.rollback()
            blocker.close()
        assert not door.nginx.bad_lines()


UNREACHABLE = {
    "no socket": ("host=/nowhere/at/all password=hush", "No such file or directory"),
    "no role": ("@dsn@ user=no_such_role password=hush", 'role "no_such_role" does not exist'),
}


@pytest.mark.parametrize("name", UNREACHABLE)
def test_the_log_says_why_a_database_cannot_be_reached_and_no_password(database, upstream, name):
    dsn, reason = UNREACHABLE[name]
    with Door(database, upstream, CONFIG, "once_timeout 5s;", dsn=dsn.replace("@dsn@", database.dsn()), workers=1) as door:
        answer = assert_problem(door.attempt(new_key()), 503, "unavailable")
        assert reason.encode() not in answer.body
        line = next(line for line in door.nginx.log().splitlines() if "event=claim_failed" in line)
        assert "the last connection failed: " in line and reason in line and "hush" not in door.nginx.log()


def test_an_answer_whose_report_the_database_refuses_for_good_is_not_given_and_the_lease_is_let_go(database, upstream):
    """No retry could help, so it is not repeated: the key is in the hands of whoever reads the log."""
    database.execute("""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no' USING ERRCODE = 'data_exception'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON once.intent FOR EACH ROW WHEN (NEW.state = 'succeeded') EXECUTE FUNCTION refuse()""")
    try:
        with Door(database, upstream, CONFIG, workers=1) as door:
            key = new_key()
            assert_problem(door.attempt(key), 503, "not-stored")
            wait_until(lambda: "event=report_given_up" in door.nginx.log(), "the report to be given up")
            assert door.state(key) == "processing" and door.count(key) == 1
    finally:
        database.execute("DROP TRIGGER refuse ON once.intent; DROP FUNCTION refuse()")


def test_a_renewal_that_the_database_refuses_is_tried_again(database, upstream):
    with Door(database, upstream, CONFIG.replace("once_scope pay;", "once_scope pay; once_lease 1s;"), workers=1) as door:
        hold, key = threading.Event(), new_key()
        door.upstream.script(key, Answer(hold=hold))
        original = door.start(key)
        door.upstream.wait(key)
        database.execute("ALTER FUNCTION once.renew_many RENAME TO renew_many_away")
        try:
            wait_until(lambda: "event=renew_failed" in door.nginx.log(), "a failed renewal")
        finally:
            database.execute("ALTER FUNCTION once.renew_many_away RENAME TO renew_many")
        hold.set()
        assert original.result().status == 201
        assert_replays(door, key, original.result())
