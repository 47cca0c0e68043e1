# SPDX-License-Identifier: PostgreSQL
"""pgonce run: a command runs to success at most once, and every later call gets its bytes, streams and exit status.

Broken on purpose and seen to fail: with every verdict but replay_success taken for leave to run, the twenty parallel calls fail; with both
kinds of chunk written to standard output, the replays; with a heartbeat of 300 leases, the renewal and the lost lease; with a
completion under another fence, the lease lost between renewals; without PR_SET_PDEATHSIG, the takeover from a killed pgonce;
without the guard, the end of what it has started; with a claim that takes over, what it has left in doubt.
"""
import json
import os
import shlex
import signal
import subprocess
import time

import pytest

from harness.postgres import Postgres, is_running, wait_until

from .command import Command, ends

# Both streams, with pauses so that the order in which they are read is the order in which they were written.
CHATTER = r"printf 'one\n'; sleep 0.1; printf 'two\0\377' >&2; sleep 0.1; printf 'three'; sleep 0.1; exit %d"


def peek(db, key):
    return db.row("SELECT * FROM once.peek('jobs', %s)", key)


def test_twenty_parallel_calls_have_one_effect(pgonce, db, tmp_path):
    effects = tmp_path / "effects"
    processes = [pgonce.start_run("parallel", "sh", "-c", f"echo done >> {effects}; sleep 0.3; echo answer") for _ in range(20)]
    results = [ends(process) for process in processes]
    assert effects.read_text() == "done\n"
    assert {0} <= {status for status, _, _ in results} <= {0, 11}
    assert all(out == b"answer\n" for status, out, _ in results if status == 0)
    assert all(out == b"" and b"P4029" in err for status, out, err in results if status == 11)
    assert pgonce.run("parallel", "sh", "-c", f"echo done >> {effects}; sleep 0.3; echo answer").stdout == b"answer\n"
    assert effects.read_text() == "done\n"


@pytest.mark.parametrize("status", [0, 3, 255])
def test_a_replay_has_the_same_bytes_streams_and_status(pgonce, tmp_path, status):
    command = ("sh", "-c", f"echo x >> {tmp_path}/ran; " + CHATTER % status)
    first = pgonce.run("chatter", *command)
    again = pgonce.run("chatter", *command)
    assert first.stdout == again.stdout == b"one\nthree"
    assert first.stderr == again.stderr == b"two\x00\xff"
    assert first.returncode == again.returncode == status
    assert (tmp_path / "ran").read_text() == "x\n"


def test_a_replay_keeps_the_order_of_the_two_streams(pgonce, tmp_path):
    command = ("sh", "-c", CHATTER % 0)
    together = tmp_path / "together"
    for _ in range(2):
        with open(together, "wb") as out:
            subprocess.run(pgonce.words("run", "--scope", "jobs", "--key", "order", "--", *command), stdout=out, stderr=out,
                           env=pgonce.environment(None), check=True)
        assert together.read_bytes() == b"one\ntwo\x00\xffthree"


def test_success_is_stored_with_its_status(pgonce, db):
    pgonce.run("stored", "sh", "-c", "echo hello; exit 0")
    row = peek(db, "stored")
    assert row.state == "succeeded" and row.response_headers["content-type"] == "application/vnd.pgonce.run.v1"
    assert row.response_body == b"o\0\0\0\x06hello\nx\0\0\0\x01\0"
    pgonce.run("failed", "sh", "-c", "exit 7")
    row = peek(db, "failed")
    assert (row.state, row.response_status, row.error_code) == ("failed_final", 7, "exit")


def test_retry_failed_runs_again_until_success(pgonce, tmp_path):
    command = ("sh", "-c", f"echo x >> {tmp_path}/ran; [ $(wc -l < {tmp_path}/ran) -ge 3 ] || exit 9; echo third")
    statuses = [pgonce.run("again", *command, options=["--retry-failed"]).returncode for _ in range(4)]
    assert statuses == [9, 9, 0, 0]
    assert (tmp_path / "ran").read_text() == "x\n" * 3


def test_another_command_line_is_a_mismatch(pgonce, tmp_path):
    assert pgonce.run("line", "echo", "a b").returncode == 0
    for other in (("echo", "a", "b"), ("echo", "a bc"), ("echo", "a b", ""), ("/bin/echo", "a b")):
        done = pgonce.run("line", *other)
        assert (done.returncode, done.stdout) == (13, b"")
        assert b"P4002" in done.stderr and b"scope='jobs' key='line'" in done.stderr and b"hint: " in done.stderr


def test_input_is_read_and_fingerprinted(pgonce, tmp_path):
    file = tmp_path / "input"
    file.write_bytes(b"first\0\n" * 50000)
    first = pgonce.run("input", "wc", "-c", options=["--input", file])
    assert first.stdout.strip() == b"350000"
    assert pgonce.run("input", "wc", "-c", options=["--input", "-"], stdin=b"first\0\n" * 50000).stdout == first.stdout
    file.write_bytes(b"second")
    assert pgonce.run("input", "wc", "-c", options=["--input", file]).returncode == 13
    assert pgonce.run("input", "wc", "-c").returncode == 13
    missing = pgonce.run("no input", "wc", options=["--input", tmp_path / "missing"])
    assert missing.returncode == 2 and b"missing" in missing.stderr


def test_without_input_the_command_reads_nothing(pgonce):
    assert pgonce.run("nothing", "cat", stdin=b"not covered by the fingerprint").stdout == b""


def test_a_missing_command_claims_nothing(pgonce, db, tmp_path):
    done = pgonce.run("missing", "no-such-command")
    assert done.returncode == 127 and b"no-such-command" in done.stderr
    assert peek(db, "missing").verdict == "absent"
    file = tmp_path / "plain"
    file.write_text("echo no")
    assert pgonce.run("plain", file).returncode == 126
    assert pgonce.run("missing", "echo", "found").stdout == b"found\n"


def test_a_command_that_cannot_start_releases_its_claim(pgonce, db, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    assert pgonce.run("broken", broken).returncode == 127
    row = peek(db, "broken")
    assert (row.state, row.error_code, row.attempts) == ("failed_retryable", "released", 0)
    broken.write_text("#!/bin/sh\necho repaired\n")
    assert pgonce.run("broken", broken).stdout == b"repaired\n"


def test_a_command_that_is_gone_still_replays(pgonce, tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\necho still\n")
    script.chmod(0o755)
    assert pgonce.run("gone", script).stdout == b"still\n"
    script.unlink()
    assert pgonce.run("gone", script).stdout == b"still\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_are_passed_on(pgonce, number, tmp_path):
    name = number.name[3:]
    ready = tmp_path / "ready"
    process = pgonce.start_run(f"signal {name}", "sh", "-c", f"trap 'echo got {name}; exit 5' {name}; touch {ready}; while :; do sleep 0.05; done")
    wait_until(ready.exists, "CMD to be ready")
    process.send_signal(number)
    assert ends(process)[:2] == (5, f"got {name}\n".encode())


def test_death_by_a_signal_is_recorded_and_replayed(pgonce, db):
    for _ in range(2):
        assert pgonce.run("killed", "sh", "-c", "echo last words; kill -TERM $$").returncode == 128 + signal.SIGTERM
    row = peek(db, "killed")
    assert (row.state, row.error_code, row.response_status) == ("failed_final", "signal", 143)


@pytest.mark.alone
def test_a_killed_pgonce_is_taken_over_where_that_is_asked_for_when_its_lease_has_passed(pgonce, db, tmp_path):
    script = tmp_path / "job"
    script.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\n[ $PGONCE_ATTEMPT = 1 ] && exec sleep 60\necho attempt $PGONCE_ATTEMPT fence $PGONCE_FENCE\n")
    script.chmod(0o755)
    process = pgonce.start_run("takeover", script, options=["--lease", "2s"])
    wait_until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().strip(), "CMD to start")
    first = int((tmp_path / "pids").read_text())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not is_running(first), "CMD to be told that nobody renews its lease")
    early = pgonce.run("takeover", script, options=["--lease", "2s"])
    assert early.returncode == 11 and b"P4029" in early.stderr and b"lease until" in early.stderr
    wait_until(lambda: peek(db, "takeover").verdict == "processing_stale", "the lease to pass")
    done = pgonce.run("takeover", script, options=["--lease", "2s", "--on-stale", "takeover"])
    assert (done.returncode, done.stdout) == (0, b"attempt 2 fence 2\n")
    assert pgonce.run("takeover", script).stdout == done.stdout


@pytest.fixture
def killed(pgonce, db, tmp_path):
    """A pgonce that was killed while its CMD ran; CMD ignores SIGTERM, and so does a child of it; another child has left the group."""
    script = tmp_path / "job"
    script.write_text(f"""#!/bin/sh
trap '' TERM
setsid sh -c 'echo $$ >> {tmp_path}/away; exec sleep 600' &
sh -c "echo \\$\\$ >> {tmp_path}/pids; sleep 600; sleep 600" &
echo $$ >> {tmp_path}/pids
wait
""")
    script.chmod(0o755)
    process = pgonce.start_run("killed", script, options=["--lease", "1s"])
    read = lambda name: [int(pid) for pid in (tmp_path / name).read_text().split()] if (tmp_path / name).exists() else []  # noqa: E731
    wait_until(lambda: len(read("pids")) == 2 and len(read("away")) == 1, "CMD and its children")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_until(lambda: peek(db, "killed").verdict == "processing_stale", "the lease to pass")
    away = read("away")[0]
    yield script, read("pids"), away
    os.kill(away, signal.SIGKILL)


@pytest.mark.parametrize("doubted", [False, True])
def test_what_a_killed_pgonce_has_left_is_in_doubt_and_nothing_runs_beside_it(pgonce, db, killed, doubted):
    script, _, away = killed
    if doubted:
        assert pgonce.run("killed", script).returncode == 12
    done = pgonce.run("killed", script, options=["--lease", "1s"])
    assert done.returncode == 12 and b"P4031" in done.stderr and b"pgonce resolve" in done.stderr
    assert f"{away} (sleep)".encode() in done.stderr and b"still running here" in done.stderr
    assert peek(db, "killed").verdict == "in_doubt"
    assert len((script.parent / "pids").read_text().split()) == 2
    resolved = pgonce("resolve", "--scope", "jobs", "--key", "killed", "--as", "failed_retryable", "--reason", "killed by hand")
    assert resolved.returncode == 0, resolved


def test_what_a_killed_pgonce_has_started_ends_with_it(killed):
    _, pids, away = killed
    wait_until(lambda: not any(is_running(pid) for pid in pids), "the group to be killed")
    assert is_running(away)


def test_children_that_stay_behind_outlive_a_pgonce_that_ended(pgonce, tmp_path):
    done = pgonce.run("left", "sh", "-c", f"sleep 600 >/dev/null 2>&1 & echo $! > {tmp_path}/pid")
    assert done.returncode == 0
    pid = int((tmp_path / "pid").read_text())
    with open(f"/proc/{pid}/environ", "rb") as environment:
        assert b"PGONCE_KEY=left" in environment.read()
    assert is_running(pid)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.alone
def test_the_lease_is_renewed_while_the_command_runs(pgonce, db, tmp_path):
    process = pgonce.start_run("renewed", "sh", "-c", f"touch {tmp_path}/ready; sleep 2; echo done", options=["--lease", "600ms"])
    wait_until((tmp_path / "ready").exists, "CMD to start")
    while process.poll() is None:
        assert pgonce.run("renewed", "sh", "-c", f"touch {tmp_path}/ready; sleep 2; echo done", options=["--lease", "600ms"]).returncode in (11, 0)
    assert ends(process)[:2] == (0, b"done\n")
    assert peek(db, "renewed").fence == 1


@pytest.mark.alone
def test_the_scopes_lease_is_taken_where_none_is_given(pgonce, db, tmp_path):
    db.execute("SELECT once.set_scope('jobs', lease => '900 milliseconds')")
    process = pgonce.start_run("policy", "sh", "-c", "sleep 2; echo done")
    wait_until(lambda: peek(db, "policy").state == "processing", "the claim")
    assert db.value("SELECT lease_until - clock_timestamp() < interval '1 second' FROM once.peek('jobs', 'policy')")
    assert ends(process)[:2] == (0, b"done\n")
    assert peek(db, "policy").fence == 1


def take_over(db, key):
    """As another attempt would once the lease has passed, without waiting for that."""
    db.execute("UPDATE once.intent SET lease_until = clock_timestamp() - interval '1 second' WHERE key = %s", key)
    row = db.row("SELECT c.* FROM once.intent AS i, LATERAL once.claim(i.scope, i.key, i.fingerprint, 'thief', '1 hour', takeover => true) AS c WHERE i.key = %s", key)
    assert row.verdict == "processing_stale"


@pytest.mark.alone
def test_a_lost_lease_stops_the_command_and_records_nothing(pgonce, db, tmp_path):
    process = pgonce.start_run("lost", "sh", "-c", f"trap 'echo told; exit 0' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done",
                               options=["--lease", "1500ms"])
    wait_until((tmp_path / "ready").exists, "CMD to start")
    take_over(db, "lost")
    status, out, err = ends(process)
    assert (status, out) == (15, b"told\n")
    assert b"P4010" in err and b"key='lost'" in err and b"hint: " in err
    row = peek(db, "lost")
    assert (row.state, row.fence, row.owner) == ("processing", 2, "thief")


def test_a_lease_lost_between_renewals_is_found_at_the_end(pgonce, db, tmp_path):
    process = pgonce.start_run("late", "sh", "-c", f"touch {tmp_path}/ready; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo late")
    wait_until((tmp_path / "ready").exists, "CMD to start")
    take_over(db, "late")
    (tmp_path / "go").touch()
    assert ends(process)[0] == 15
    assert peek(db, "late").fence == 2


def test_output_over_the_limit_is_passed_on_and_noted(pgonce, db):
    command = ("sh", "-c", "seq 1 100000; echo err >&2")
    first = pgonce.run("large", *command, options=["--output-max", "1k"])
    assert (first.returncode, first.stdout.count(b"\n"), first.stderr) == (0, 100000, b"err\n")
    again = pgonce.run("large", *command, options=["--output-max", "1k"])
    assert (again.returncode, again.stdout) == (0, b"")
    assert b"too large" in again.stderr and str(len(first.stdout)).encode() in again.stderr
    assert len(peek(db, "large").response_body) < 64


def test_the_scopes_limit_holds_too(pgonce, db):
    db.execute("SELECT once.set_scope('jobs', response_bytes_max => 8192)")
    command = ("sh", "-c", "seq 1 10000")
    assert pgonce.run("limit", *command).stdout.count(b"\n") == 10000
    again = pgonce.run("limit", *command)
    assert (again.returncode, again.stdout) == (0, b"") and b"too large" in again.stderr


def test_a_megabyte_replays_exactly(pgonce):
    command = ("sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' '\\377'")
    assert pgonce.run("megabyte", *command).stdout == pgonce.run("megabyte", *command).stdout == b"\xff" * 1000000


def test_output_of_the_last_moment_is_kept_for_a_slow_reader(pgonce):
    process = pgonce.start_run("slow", "sh", "-c", "seq 1 30000")
    time.sleep(1.5)     # the reader is what is slow here
    status, out, _ = ends(process)
    assert status == 0 and out.count(b"\n") == 30000
    assert pgonce.run("slow", "sh", "-c", "seq 1 30000").stdout == out


@pytest.mark.parametrize("stream, status", [("stdout", 0), ("stderr", 0), ("stdout", 3)])
def test_output_that_cannot_be_written_is_told_alike_by_the_first_call_and_by_replays(pgonce, db, tmp_path, stream, status):
    """The effect happened and is stored; what CMD said did not arrive. Neither a success nor CMD's own failure."""
    command = ("sh", "-c", f"echo x >> {tmp_path}/ran; echo out; echo err >&2; exit {status}")
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    for call in ("first", "again"):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(pgonce.words("run", "--scope", "jobs", "--key", "full", "--json", "--", *command), check=False,
                                  env=pgonce.environment(None), **{stream: full, other: subprocess.PIPE})
        assert done.returncode == 17, call
        if stream == "stdout":
            lines = [json.loads(line) for line in done.stderr.decode().splitlines() if line.startswith("{")]
            (error,) = [line["error"] for line in lines if "error" in line]
            assert error["exit"] == 17 and f"CMD ended with status {status} and that is stored" in error["message"]
            assert "No space left" in error["message"] and "run it again" in error["hint"]
            (told,) = [line["run"] for line in lines if "run" in line]
            assert told["exit_status"] == status
    done = pgonce.run("full", *command)
    assert (done.returncode, done.stdout, done.stderr) == (status, b"out\n", b"err\n")
    assert (tmp_path / "ran").read_text() == "x\n"


def test_a_failure_that_may_be_retried_keeps_its_status_where_its_output_cannot_be_written(pgonce):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(pgonce.words("run", "--scope", "jobs", "--key", "retry", "--retry-failed", "--", "sh", "-c", "echo out; exit 3"),
                              check=False, env=pgonce.environment(None), stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 3 and b"could not be written: No space left" in done.stderr


def test_output_that_can_neither_be_written_nor_stored_is_not_promised(pgonce):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(pgonce.words("run", "--scope", "jobs", "--key", "large", "--output-max", "1k", "--", "head", "-c", "2000", "/dev/zero"),
                              check=False, env=pgonce.environment(None), stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 17 and b"call again" not in done.stderr and b"too large to be stored" in done.stderr


def test_a_reader_that_goes_away_does_not_stop_the_command(pgonce, db):
    process = pgonce.start_run("closed", "sh", "-c", "seq 1 30000")
    process.stdout.close()
    assert process.wait(60) == 0
    process.stderr.close()
    assert pgonce.run("closed", "sh", "-c", "seq 1 30000").stdout.count(b"\n") == 30000


@pytest.mark.alone
def test_children_that_stay_behind_do_not_hold_up_the_outcome(pgonce):
    started = time.monotonic()
    process = pgonce.start_run("daemon", "sh", "-c", "sleep 30 & echo started")
    assert ends(process)[:2] == (0, b"started\n")
    assert time.monotonic() - started < 15


def test_in_doubt_and_expired_are_told_apart(pgonce, db):
    db.execute("SELECT once.claim('jobs', 'doubt', once.fingerprint('x'::bytea))")
    db.execute("SELECT once.fail('jobs', 'doubt', 1, NULL, 'lost', 'no answer')")
    db.execute("UPDATE once.intent SET fingerprint = fingerprint WHERE key = 'doubt'")
    assert pgonce.run("doubt", "true").returncode == 13     # another request comes before everything else
    process = pgonce.start_run("own doubt", "sleep", "30", options=["--lease", "1s"])
    wait_until(lambda: peek(db, "own doubt").state == "processing", "the claim")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    db.execute("SELECT once.set_scope('jobs', on_stale => 'in_doubt')")
    wait_until(lambda: peek(db, "own doubt").verdict == "processing_stale", "the lease to pass")
    done = pgonce.run("own doubt", "sleep", "30", options=["--lease", "1s"])
    assert done.returncode == 12 and b"P4031" in done.stderr and b"hint: " in done.stderr
    old = "01890000-0000-7000-8000-000000000000"    # a UUIDv7 of 2023
    done = pgonce.run(old, "true")
    assert done.returncode == 14 and b"P4041" in done.stderr


def test_a_decided_intent_replays_the_decision(pgonce, db, tmp_path):
    assert pgonce.run("decided", "sh", "-c", "exit 4", options=["--retry-failed"]).returncode == 4
    body = tmp_path / "body"
    body.write_bytes(b"by hand\n")
    assert pgonce("resolve", "--scope", "jobs", "--key", "decided", "--as", "succeeded", "--reason", "seen", "--body", body).returncode == 0
    done = pgonce.run("decided", "sh", "-c", "exit 4")
    assert (done.returncode, done.stdout) == (0, b"by hand\n")


def test_a_server_that_restarts_while_the_command_runs(tmp_path):
    # A server of its own: restarting the shared one would disturb its other users.
    with Postgres() as own:
        database = own.new_database()
        command = Command(database.dsn(), tmp_path)
        job = ("sh", "-c", f"touch {tmp_path}/ready; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo survived")
        process = command.start_run("restart", *job, options=["--lease", "20s"])
        wait_until((tmp_path / "ready").exists, "CMD to start")
        own.stop()
        (tmp_path / "go").touch()
        told = process.stderr.readline()
        assert b"trying again" in told
        own.start()
        assert ends(process)[:2] == (0, b"survived\n")
        assert command.run("restart", *job).stdout == b"survived\n"


def test_a_server_that_never_comes_back_leaves_the_outcome_unknown(tmp_path):
    with Postgres() as own:
        database = own.new_database()
        command = Command(database.dsn(), tmp_path)
        process = command.start_run("gone", "sh", "-c", f"touch {tmp_path}/ready; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo done",
                                    options=["--lease", "1s"])
        wait_until((tmp_path / "ready").exists, "CMD to start")
        own.stop()
        (tmp_path / "go").touch()
        status, out, err = ends(process)
        assert (status, out) == (16, b"done\n")
        assert b"unknown" in err and b"key='gone'" in err
        own.start()
        wait_until(lambda: peek(database, "gone").verdict == "processing_stale", "the lease to pass")
        (tmp_path / "ready").unlink()
        again = command.run("gone", "sh", "-c", f"touch {tmp_path}/ready; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo done")
        assert again.returncode == 12 and not (tmp_path / "ready").exists()


def test_json_tells_what_was_done(pgonce):
    for what, verdict in (("ran", "new_claim"), ("replayed", "replay_success")):
        done = pgonce.run("json", "echo", "hello", options=["--json"])
        assert done.stdout == b"hello\n"
        told = json.loads(done.stderr)["run"]
        assert (told["what"], told["verdict"], told["state"], told["exit_status"]) == (what, verdict, "succeeded", 0)
    error = json.loads(pgonce.run("json", "echo", "other", options=["--json"]).stderr)["error"]
    assert (error["exit"], error["sqlstate"]) == (13, "P4002")


def test_tenants_do_not_meet(pgonce):
    for tenant in ("a", "b"):
        assert pgonce.run("same key", "echo", tenant, options=["--tenant", tenant]).stdout == tenant.encode() + b"\n"


@pytest.mark.parametrize("scope, key", [("", "k"), ("s" * 256, "k"), ("jobs", ""), ("jobs", "k" * 256), ("jobs", "caf\u00e9"), ("jobs", "a\nb")])
def test_bad_names_are_refused(pgonce, scope, key, tmp_path):
    done = pgonce("run", "--scope", scope, "--key", key, "--", "touch", tmp_path / "ran")
    assert done.returncode == 10
    assert b"SQLSTATE P400" in done.stderr and b"hint: " in done.stderr and done.stderr.count(b"\n") == 2
    assert not (tmp_path / "ran").exists()


def test_an_app_role_can_run(db, tmp_path):
    db.execute("CREATE ROLE cron_of_run LOGIN IN ROLE once_app")
    try:
        command = Command(db.dsn("cron_of_run"), tmp_path)
        assert command.run("role", "echo", "hello").stdout == b"hello\n"
        assert command.run("role", "echo", "hello").stdout == b"hello\n"
    finally:
        db.execute("DROP ROLE cron_of_run")


def test_closed_standard_streams_do_no_harm(pgonce):
    words = pgonce.words("run", "--scope", "jobs", "--key", "streams", "--", "sh", "-c", "echo out; echo err >&2")
    subprocess.run(["sh", "-c", shlex.join(words) + " <&- >&- 2>&-"], env=pgonce.environment(None), check=True)
    done = pgonce.run("streams", "sh", "-c", "echo out; echo err >&2")
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LATER = "00-11111111111111111111111111111111-2222222222222222-00"
TELL = ("sh", "-c", 'printf "%s %s" "${TRACEPARENT-none}" "${PGONCE_TRACEPARENT-none}"; exit ${CODE-0}')


def test_the_trace_of_a_call_is_stored_and_given_to_cmd(pgonce, db):
    assert pgonce.run("traced", *TELL, env={"TRACEPARENT": TRACE}).stdout.decode() == f"{TRACE} {TRACE}"
    assert peek(db, "traced").traceparent == TRACE
    given = pgonce.run("traced by option", *TELL, options=("--traceparent", TRACE), env={"TRACEPARENT": LATER})
    assert given.stdout.decode() == f"{TRACE} {TRACE}" and peek(db, "traced by option").traceparent == TRACE
    again = pgonce.run("traced by option", *TELL, options=("--json",), env={"TRACEPARENT": LATER})
    assert again.stdout == given.stdout and json.loads(again.stderr)["run"]["traceparent"] == TRACE


def test_a_retry_keeps_its_own_trace_and_finds_the_first_attempts(pgonce, db):
    options = ("--retry-failed",)
    assert pgonce.run("traced retry", *TELL, options=options, env={"TRACEPARENT": TRACE, "CODE": "3"}).returncode == 3
    retry = pgonce.run("traced retry", *TELL, options=options, env={"TRACEPARENT": LATER, "PGONCE_TRACEPARENT": "stale"})
    assert retry.stdout.decode() == f"{LATER} {TRACE}" and peek(db, "traced retry").traceparent == TRACE


@pytest.mark.parametrize("bad", ["", "nonsense", TRACE.upper()])
def test_a_malformed_trace_is_given_to_cmd_as_it_is_and_not_stored(pgonce, db, bad):
    by_environment = pgonce.run(f"bad {bad}", *TELL, env={"TRACEPARENT": bad, "PGONCE_TRACEPARENT": "stale"})
    assert by_environment.stdout.decode() == f"{bad} none" and by_environment.stderr == b""
    by_option = pgonce.run(f"bad option {bad}", *TELL, options=("--traceparent", bad))
    assert by_option.stdout.decode() == f"{bad} none" and b"is not stored" in by_option.stderr and by_option.returncode == 0
    assert peek(db, f"bad {bad}").traceparent is None
