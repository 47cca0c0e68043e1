# SPDX-License-Identifier: PostgreSQL
"""pgonce gateway: the configuration that it writes, what it refuses to write, and the nginx that it runs."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading

import pytest

from harness.client import http1
from harness.postgres import PORT, clean_environment, is_running, private_directory, unprivileged, wait_until
from harness.upstream import Answer

from .command import PROGRAM, Command, ends
from .gateway import AS_OTHERS, UPSTREAM, Gateway, needs_module

def print_config(*options):
    return Command()("gateway", "--print-config", *(options or UPSTREAM))


def config(*options):
    done = print_config(*options)
    assert done.returncode == 0, done
    return done.stdout.decode()


# The configuration.


@pytest.mark.parametrize("line", [
    "load_module ", "worker_processes 1;", "daemon off;", "error_log stderr warn;", "once_database ", "once_tenant none;",
    "proxy_pass http://once_upstream;", "proxy_ignore_client_abort on;", "proxy_http_version 1.1;",
    "proxy_set_header Connection $once_connection;", "keepalive 64;", "listen 127.0.0.1:8080;", "once on;", "location = /once/status {",
    "deny all;", "proxy_connect_timeout 5s;", "proxy_read_timeout 60s;", "worker_shutdown_timeout 70s;", "verdict=", "$once_verdict",
])
def test_the_configuration_has_what_keeps_a_request_safe(line):
    assert line in config()


@pytest.mark.parametrize("options, line", [
    (("--required",), "once required;"), (("--scope", "payments"), 'once_scope "payments";'),
    (("--tenant-from", "http_x_tenant"), "once_tenant $http_x_tenant;"), (("--tenant-from", "$remote_user"), "once_tenant $remote_user;"),
    (("--on-5xx", "release"), "once_on_5xx release;"), (("--on-5xx", "store"), "once_on_5xx store;"), (("--listen", "unix:/run/a.sock"), "listen unix:/run/a.sock;"),
    (("--listen", "[::1]:80"), "listen [::1]:80;"), (("--listen", "*:80", "--tenant-from", "none"), "listen *:80;"),
    (("--upstream", "https://api.example.com"), "server api.example.com:443;"), (("--upstream", "https://[::1]:8443/"), "server [::1]:8443;"),
    (("--upstream", "https://api.example.com"), "proxy_ssl_verify on;"), (("--upstream", "http://unix:/run/app.sock"), "server unix:/run/app.sock;"),
    (("--json",), '"verdict":"$once_verdict"'), (("--dir", "/srv/gate"), 'once_database "/srv/gate/database";'),
])
def test_each_option_is_a_line_of_the_configuration(options, line):
    given = options if "--upstream" in options else (*UPSTREAM, *options)
    assert line in config(*given)
    assert line not in config()


def test_each_example_of_the_help_protects_as_it_stands():
    """A POST without a key is refused, and what it says of TLS and callers can be had from this command."""
    said = Command()("help", "gateway").stdout.decode()
    examples = re.findall(r"^  pgonce gateway (.+)$", said, re.M)
    assert len(examples) >= 2 and "It speaks plain HTTP" in said
    for example in examples:
        made = config(*example.partition(" >")[0].replace("--print-config", "").split())
        assert "once required;" in made and "ssl_client" not in made, example


HOSTILE = ["x;} evil", 'x"; evil', "x\nevil", "x$evil", "x{evil", "x#evil", "x'evil", "x\\evil", "x evil", "", "\u00e9vil"]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("option, form", [
    ("--scope", "{}"), ("--tenant-from", "{}"), ("--tenant-from", "${}"), ("--listen", "{}:80"), ("--listen", "unix:/{}"), ("--on-5xx", "{}"), ("--dir", "{}"),
    ("--listen", "127.0.0.1:{}"), ("--upstream", "http://{}"), ("--upstream", "http://host:{}"), ("--upstream", "http://unix:/{}"),
    ("--upstream", "http://host/{}"), ("--upstream", "{}"),
])
def test_no_value_can_say_more_than_itself(option, form, value):
    text = form.format(value)
    if (option, text) in {("--listen", "unix:/"), ("--upstream", "http://unix:/"), ("--upstream", "http://host/")}:
        return  # nothing hostile is left of it
    options = (option, text) if option == "--upstream" else (*UPSTREAM, option, text)
    done = print_config(*options)
    assert done.returncode == 2 and b"evil" not in done.stdout, done
    assert option.encode() in done.stderr and b"hint: " in done.stderr


@pytest.mark.parametrize("upstream", ["ftp://host", "http://", "http://host:0", "http://host:65536", "http://host/path", "https://unix:/a",
                                      "http://user@host", "http://[::1", "http://[x]", "http://unix:relative", "host:80"])
def test_an_upstream_is_a_server_and_nothing_else(upstream):
    done = print_config("--upstream", upstream)
    assert done.returncode == 2 and b"option --upstream" in done.stderr


@pytest.mark.parametrize("listen", ["*:80", "0.0.0.0:80", "10.0.0.1:80", "[::]:80", "example.com:80", "127.0.0.1.example.com:80"])
def test_beyond_this_machine_somebody_must_say_whose_keys_these_are(listen):
    done = print_config(*UPSTREAM, "--listen", listen)
    assert done.returncode == 2 and b"--tenant-from" in done.stderr and done.stdout == b""
    for tenant in ("none", "http_x_tenant"):
        assert print_config(*UPSTREAM, "--listen", listen, "--tenant-from", tenant).returncode == 0


def test_the_configuration_holds_no_password():
    done = Command("host=/nowhere dbname=x password=secret17")("gateway", *UPSTREAM, "--print-config")
    assert done.returncode == 0 and b"secret17" not in done.stdout


# What is missing.


def test_without_nginx_it_says_what_to_install(pgonce, tmp_path):
    done = pgonce("gateway", *UPSTREAM, "--nginx", tmp_path / "nginx")
    assert done.returncode == 1 and b"there is no nginx at" in done.stderr and b"apt install nginx" in done.stderr


def test_without_the_module_it_says_where_it_comes_from(pgonce, tmp_path):
    done = pgonce("gateway", *UPSTREAM, "--module", tmp_path / "module.so")
    assert done.returncode == 1 and b"there is no module at" in done.stderr and b"hint: install it (the package libnginx-mod-http-once, or make install)" in done.stderr


def test_a_command_alone_finds_no_module(db):
    alone = private_directory("pgonce-alone-")
    try:
        shutil.copy(PROGRAM, alone / "pgonce")
        done = subprocess.run([alone / "pgonce", "gateway", *UPSTREAM, "--dsn", db.dsn()], capture_output=True, check=False, timeout=60)
        if pathlib.Path("/usr/lib/nginx/modules/ngx_http_once_module.so").exists():
            pytest.skip("the module is installed on this machine")
        assert done.returncode == 1 and b"neither beside this command nor among the modules of" in done.stderr
    finally:
        shutil.rmtree(alone)


@needs_module
def test_without_the_contract_nothing_is_started(bare):
    done = bare("gateway", *UPSTREAM, *AS_OTHERS)
    assert done.returncode == 4 and b"pgonce init" in done.stderr and done.stdout == b""


@needs_module
def test_a_database_that_refuses_the_gateway_is_told_and_nothing_is_started(db):
    for wrong in ("dbname=nosuch", "user=nosuch"):
        done = Command(f"{db.dsn()} {wrong}")("gateway", *UPSTREAM, *AS_OTHERS)
        assert (done.returncode, done.stdout) == (3, b"") and b"nosuch" in done.stderr, done


@needs_module
def test_a_module_of_another_nginx_is_told_with_a_remedy(pgonce, tmp_path):
    (tmp_path / "other.so").write_bytes(b"this is no module")
    done = pgonce("gateway", *UPSTREAM, *AS_OTHERS, "--listen", f"unix:{tmp_path}/s", "--module", tmp_path / "other.so")
    assert done.returncode == 1 and b"nginx does not take the configuration: dlopen()" in done.stderr and b"hint: " in done.stderr


# The process.


@needs_module
@pytest.mark.parametrize("files", [1024, 256])
def test_where_few_files_may_be_open_nginx_has_fewer_connections_and_nothing_to_warn_of(files, gateway):
    """1,024 is what an ordinary user has on most machines."""
    gateway.before = ["prlimit", f"--nofile={files}:{files}", "--"]
    gateway.start()
    assert gateway.post("few-files").status == 201
    status, _, err = gateway.end()
    assert status == 0 and b"worker_connections exceed" not in err


@needs_module
def test_a_post_runs_once_and_its_verdict_is_logged(gateway, upstream):
    gateway.start("--scope", "pay")
    first, second = gateway.post("k1"), gateway.post("k1")
    assert (first.status, first.replayed, second.status, second.replayed) == (201, False, 201, True)
    assert first.body == second.body and upstream.count("k1") == 1
    assert upstream.only("k1").header("Once-Scope") == "pay"
    assert gateway.post("").status == 400
    status, out, err = gateway.end()
    assert status == 0, err
    lines = [dict(re.findall(r'(\w+)="([^"]*)"', line)) for line in out.decode().splitlines() if line.startswith("time=")]
    assert [(line["method"], line["uri"], line["status"]) for line in lines] == [("POST", "/pay", "201")] * 2 + [("POST", "/pay", "400")]
    assert lines[0]["verdict"] != lines[1]["verdict"] != ""
    assert (lines[0]["upstream"], lines[1]["upstream"]) == ("201", "-")


@needs_module
def test_with_json_every_line_is_an_object(gateway):
    gateway.start("--json")
    gateway.post("k1")
    status, out, _ = gateway.end()
    told, line = map(json.loads, out.decode().splitlines())
    assert status == 0 and told["listen"] == f"unix:{gateway.socket}" and (line["status"], line["uri"]) == ("201", "/pay")


@needs_module
def test_it_ends_when_what_is_at_work_is_finished_and_leaves_nothing(gateway, upstream):
    hold, answers = threading.Event(), []
    upstream.script("slow", Answer(hold=hold))
    gateway.start()
    configuration = pathlib.Path(re.search(r"Configuration: (\S+)/nginx.conf", gateway.process.stdout.readline().decode()).group(1))
    assert (configuration / "nginx.conf").exists() and (configuration / "database").stat().st_mode & 0o777 == 0o600
    asking = threading.Thread(target=lambda: answers.append(gateway.post("slow")))
    asking.start()
    upstream.wait("slow")
    gateway.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not gateway.answers(), "the gateway to stop accepting")
    assert gateway.process.poll() is None
    hold.set()
    asking.join(60)
    status, _, err = ends(gateway.process)
    assert (status, [answer.status for answer in answers]) == (0, [201]), err
    assert not configuration.exists() and not gateway.socket.exists()


@needs_module
def test_a_second_request_to_end_is_obeyed_at_once(gateway, upstream):
    hold = threading.Event()
    upstream.script("slow", Answer(hold=hold))
    gateway.start()

    def ask():
        with pytest.raises(OSError):
            gateway.post("slow")

    asking = threading.Thread(target=ask)
    asking.start()
    upstream.wait("slow")
    gateway.process.send_signal(signal.SIGINT)
    wait_until(lambda: not gateway.answers(), "the gateway to stop accepting")
    gateway.process.send_signal(signal.SIGINT)
    assert ends(gateway.process)[0] == 0
    hold.set()
    asking.join(60)


@needs_module
def test_hup_brings_new_workers_with_the_configuration_as_it_is_now(gateway):
    gateway.start("--dir", gateway.directory / "conf")
    before = gateway.workers()
    conf = gateway.directory / "conf/nginx.conf"
    conf.write_text(conf.read_text().replace("once required;", "once off;"))
    assert gateway.post("").status == 400
    gateway.process.send_signal(signal.SIGHUP)
    wait_until(lambda: gateway.workers() and not gateway.workers() & before, "new workers in the place of the old")
    assert gateway.post("").status == 201
    assert gateway.end()[0] == 0 and conf.exists()


@needs_module
def test_an_address_in_use_is_told_at_once(gateway, db, upstream):
    gateway.start()
    other = Gateway(db.dsn(), upstream)
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        port.listen()
        try:
            for address in (f"unix:{gateway.socket}", f"127.0.0.1:{port.getsockname()[1]}", f"*:{port.getsockname()[1]}"):
                words = [address if word == f"unix:{other.socket}" else word for word in other.words("--tenant-from", "none")]
                done = subprocess.run(words, capture_output=True, check=False, timeout=60, env=clean_environment())
                assert done.returncode == 1 and f"something listens at {address} already" in done.stderr.decode(), done
            assert gateway.post("k1").status == 201
        finally:
            other.close()


@needs_module
def test_a_directory_serves_one_gateway(gateway, db, upstream):
    gateway.start("--dir", gateway.directory / "conf")
    other = Gateway(db.dsn(), upstream)
    try:
        done = subprocess.run(other.words("--dir", str(gateway.directory / "conf")), capture_output=True, check=False, timeout=60,
                              env=clean_environment())
        assert done.returncode == 1 and b"a gateway runs in" in done.stderr
    finally:
        other.close()


@needs_module
def test_a_directory_that_others_can_write_to_is_not_used(gateway):
    (gateway.directory / "conf").mkdir()
    (gateway.directory / "conf").chmod(0o777)
    done = subprocess.run(gateway.words("--dir", str(gateway.directory / "conf")), capture_output=True, check=False, timeout=60,
                          env=clean_environment())
    assert done.returncode == 1 and b"only its owner" in done.stderr


@needs_module
def test_a_killed_gateway_takes_nginx_along_and_the_next_one_starts(gateway):
    gateway.start("--dir", gateway.directory / "conf")
    pids = [gateway.master(), *gateway.workers()]
    gateway.process.kill()
    ends(gateway.process)
    wait_until(lambda: not any(map(is_running, pids)), "nginx to end")
    # As a machine's crash leaves it: the socket's file, and nobody there.
    gateway.socket.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(gateway.socket))
    assert gateway.start("--dir", gateway.directory / "conf").post("k1").status == 201


@needs_module
def test_the_death_of_nginx_is_told_and_its_workers_do_not_stay(gateway):
    gateway.start()
    workers = gateway.workers()
    os.kill(gateway.master(), signal.SIGKILL)
    status, _, err = ends(gateway.process)
    assert status == 1 and b"nginx was killed by signal 9" in err
    wait_until(lambda: not any(map(is_running, workers)), "the workers to end")


@needs_module
def test_started_by_root_the_workers_are_somebody_else(gateway):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    gateway.start()
    (worker,) = gateway.workers()
    wait_until(lambda: pathlib.Path(f"/proc/{worker}").stat().st_uid == unprivileged()[1].pw_uid, "the worker to become somebody else")
    done = Command(gateway.dsn)("gateway", *UPSTREAM, "--user", "nobody-has-this-name")
    assert done.returncode == 2 and b"there is no user" in done.stderr


@needs_module
def test_the_counters_are_for_this_machine(gateway):
    gateway.start("--scope", "pay")
    gateway.post("k1")
    answer = http1(gateway.socket, "GET", "/once/status", [("Accept", "application/json")])
    assert answer.status == 200 and "pay" in json.loads(answer.body)["scopes"]


@needs_module
@pytest.mark.parametrize("way, status, runs", [("as it is", 503, 0), ("edited", 201, 2)])
def test_without_a_database_it_starts_closed_unless_edited_and_protects_when_that_is_there(server, db, upstream, way, status, runs):
    away = private_directory("pgonce-away-")
    away.chmod(0o755)
    gateway = Gateway(db.dsn().replace(str(server.directory), str(away)), upstream)
    try:
        if way == "edited":
            gateway.start_edited("once_fail open;")
        else:
            gateway.start()
        assert [gateway.post("early").status for _ in range(2)] == [status] * 2 and upstream.count("early") == runs
        ready = http1(gateway.socket, "GET", "/once/ready", [], b"")
        assert ready.status == 503 and json.loads(ready.body)["ready"] is False
        (away / f".s.PGSQL.{PORT}").symlink_to(server.directory / f".s.PGSQL.{PORT}")
        wait_until(lambda: http1(gateway.socket, "GET", "/once/ready", [], b"").status == 200, "the database")
        assert [gateway.post("k").status for _ in range(2)] == [201] * 2 and upstream.count("k") == 1
        ended, _, said = gateway.end()
        assert ended == 0 and (b"starting closed: every request with a key gets 503 until the database is there" in said) == (way == "as it is")
    finally:
        gateway.close()
        shutil.rmtree(away)


# What has no option.


@pytest.mark.parametrize("option", ["--key-from", "--strict", "--wait", "--lease", "--retention", "--timeout", "--release", "--in-doubt", "--fail", "--body-max", "--response-max", "--prepare", "--workers"])
def test_what_is_a_directive_alone_is_refused_and_the_error_says_where_to_write_it(option):
    done = print_config(*UPSTREAM, option, "1")
    assert done.returncode == 2 and done.stdout == b"" and f"unknown option {option}\n" in done.stderr.decode()
    assert b"hint: other settings are directives of nginx" in done.stderr and b"--print-config" in done.stderr and b"docs/reference/gateway.md" in done.stderr


@needs_module
def test_a_configuration_that_is_printed_and_edited_runs_in_nginx_alone(gateway, upstream):
    """once_wait: the second attempt gets the answer of the first. Without the line it would be 409."""
    hold, answers = threading.Event(), []
    upstream.script("held", Answer(hold=hold))
    gateway.start_edited("once_wait 1m;")
    asking = [threading.Thread(target=lambda: answers.append(gateway.post("held"))) for _ in range(2)]
    asking[0].start()
    upstream.wait("held")
    asking[1].start()
    wait_until(lambda: json.loads(http1(gateway.socket, "GET", "/once/status", [("Accept", "application/json")]).body)["waiting"] == 1, "the second to wait")
    hold.set()
    for each in asking:
        each.join(60)
    assert sorted((answer.status, answer.replayed) for answer in answers) == [(201, False), (201, True)] and upstream.count("held") == 1
    assert gateway.end()[0] == 0
