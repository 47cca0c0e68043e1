# SPDX-License-Identifier: PostgreSQL
"""pgonce dev: a private server that comes up, goes down, and comes up again after every kind of end; for root and for others."""
import http.client
import json
import os
import pathlib
import pwd
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile

import psycopg2
import pytest

from harness.client import http1
from harness.nginx import MODULE
from harness.postgres import clean_environment, in_memory, is_running, private_directory, unprivileged, wait_until
from harness.upstream import Upstream

from .command import PROGRAM


class Dev:
    """pgonce dev in a directory, as this user or (other) as the unprivileged one."""

    def __init__(self, directory, other=False, env=None):
        self.directory = pathlib.Path(directory)
        self.started = []
        self.popen = {**(unprivileged()[0] if other else {}), "cwd": "/", "env": {**clean_environment(), **(env or {})}}
        # An unprivileged user may not be able to reach the build directory.
        self.copy = private_directory("pgonce-bin-") / "pgonce" if other else None
        if self.copy:
            shutil.copy(PROGRAM, self.copy)
            self.copy.chmod(0o755)
        self.program = self.copy or PROGRAM

    def words(self, *options):
        return [str(self.program), "dev", "--dir", str(self.directory), *options]

    def __call__(self, *options):
        return subprocess.run(self.words(*options), capture_output=True, text=True, check=False, timeout=120, **self.popen)

    def foreground(self):
        process = subprocess.Popen(self.words(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **self.popen)
        self.started.append(process)
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                return process, "".join(lines)
        raise AssertionError("".join(lines) + process.stderr.read())

    def status(self):
        return json.loads(self("--check", "--json").stdout)

    def connect(self):
        connection = psycopg2.connect(self.status()["dsn"])
        connection.autocommit = True
        return connection

    def value(self, query):
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(query)
                return cursor.fetchone()[0] if cursor.description else None
        finally:
            connection.close()


def clean_up(dev):
    for process in dev.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    dev("--stop")
    if dev.copy:
        shutil.rmtree(dev.copy.parent, ignore_errors=True)
    for name in ("data", "run"):
        link = dev.directory / name
        if link.is_symlink():
            shutil.rmtree(os.path.dirname(os.readlink(link)) if name == "data" else os.readlink(link), ignore_errors=True)


@pytest.fixture(params=[False, True], ids=["this user", "another user"])
def dev(request):
    if request.param and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    made_for_it = request.param or os.geteuid() != 0
    parent = private_directory("pgonce-dev-", in_memory()) if made_for_it else pathlib.Path(tempfile.mkdtemp(prefix="pgonce-dev-", dir=in_memory()))
    if not request.param:
        parent.chmod(0o755)
    made = Dev(parent / ".pgonce", request.param)
    yield made
    clean_up(made)
    shutil.rmtree(parent, ignore_errors=True)


def assert_ends(pid):
    """PostgreSQL's last act is to delete postmaster.pid, for which pg_ctl waits; its process is there for a moment more."""
    wait_until(lambda: not is_running(pid), f"{pid} to end")


def test_it_comes_up_and_goes_down_and_keeps_its_data(dev):
    process, told = dev.foreground()
    assert "psql" in told and "pgonce show" in told
    status = dev.status()
    assert status["running"]
    assert dev.value("SELECT once.contract_version()") >= 1
    dev.value("CREATE TABLE kept AS SELECT 42 AS answer")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert_ends(status["pid"])
    assert dev("--check").returncode == 3
    process, _ = dev.foreground()
    assert dev.value("SELECT answer FROM kept") == 42
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    log = pathlib.Path(status["log"]).read_text()
    assert "database system was not properly shut down" not in log


def test_who_names_no_role_has_one_of_their_own(dev):
    """As psql does, and drivers: the role of the user's name."""
    for _ in range(2):
        assert dev("--detach").returncode == 0
    user = unprivileged()[1].pw_name if dev.copy else pwd.getpwuid(os.geteuid()).pw_name
    status = dev.status()
    environment = {name: value for name, value in clean_environment().items() if name not in ("USER", "LOGNAME")}
    done = subprocess.run(["psql", f"host={status['host']} dbname=app", "-Atc", "CREATE TABLE own (n int); SELECT current_user"], capture_output=True,
                          text=True, check=False, timeout=60, **{**dev.popen, "env": environment})
    assert (done.returncode, done.stdout) == (0, f"CREATE TABLE\n{user}\n"), done.stderr


def test_each_line_that_it_prints_for_the_gateway_protects_as_it_stands(dev):
    """For root too, whose gateway has other workers."""
    if not MODULE.exists() or dev.copy:
        pytest.skip("needs the module, which an unprivileged user may not be able to reach")
    told = dev("--detach")
    (line,) = re.findall(r"^  pgonce (gateway .+?) --upstream", told.stdout, re.M)
    with Upstream() as upstream:
        socket = upstream.directory / "listen.sock"
        words = [str(PROGRAM), *shlex.split(line), "--upstream", f"http://unix:{upstream.path}", "--listen", f"unix:{socket}"]
        if os.geteuid() == 0:
            assert "--user" in words
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment(), start_new_session=True)
        try:
            assert b"each intent once" in process.stdout.readline(), process.stderr.read()

            def status():
                try:
                    return http1(socket, "POST", "/pay", [("Idempotency-Key", "k")], b"{}").status
                except OSError:
                    return None  # nginx does not listen yet

            wait_until(lambda: status() == 201, "the gateway to answer")
        finally:
            process.terminate()
            process.communicate(timeout=60)


def test_only_its_owner_gets_in_and_only_by_the_socket(dev):
    assert dev("--detach").returncode == 0
    status = dev.status()
    assert stat.S_IMODE(os.stat(status["host"]).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(status["data"]).st_mode) == 0o700
    assert dev.value("SELECT current_setting('listen_addresses')") == ""
    assert dev.value("SELECT current_setting('fsync')") == "on"


def test_detach_status_stop_are_idempotent(dev):
    assert dev("--check").returncode == 3
    assert dev("--stop").returncode == 0
    first = dev("--detach")
    assert first.returncode == 0, first.stderr
    pid = dev.status()["pid"]
    again = dev("--detach")
    assert again.returncode == 0 and "already" in again.stderr
    assert dev.status()["pid"] == pid
    assert dev("--stop").stdout == "stopped\n"
    assert dev("--stop").returncode == 0
    assert_ends(pid)


def test_a_killed_dev_leaves_a_server_that_the_next_one_uses(dev):
    process, _ = dev.foreground()
    pid = dev.status()["pid"]
    process.kill()
    process.wait()
    assert is_running(pid)
    process, _ = dev.foreground()
    assert dev.status()["pid"] == pid
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert_ends(pid)


def test_a_crashed_server_is_told_and_comes_up_again(dev):
    process, _ = dev.foreground()
    dev.value("CREATE TABLE kept AS SELECT 42 AS answer")
    status = dev.status()
    os.kill(status["pid"], signal.SIGKILL)
    assert process.wait(60) == 1
    assert "has stopped" in process.stderr.read()
    assert (pathlib.Path(status["data"]) / "postmaster.pid").exists()
    # The killed server's children end by themselves; until then its memory is in use, and a new one would be refused.
    assert dev("--check").returncode == 3
    wait_until(lambda: dev("--detach").returncode == 0, "the server to come up again")
    assert dev.value("SELECT answer FROM kept") == 42


def test_a_stale_lock_file_does_not_mislead(dev):
    assert dev("--detach").returncode == 0
    data = pathlib.Path(dev.status()["data"])
    assert dev("--stop").returncode == 0
    # The number of a process that is alive, but no server: this test's own.
    (data / "postmaster.pid").write_text(f"{os.getpid()}\n{data}\n0\n5432\n\n\n")
    owner = data.stat()
    os.chown(data / "postmaster.pid", owner.st_uid, owner.st_gid)
    assert dev("--check").returncode == 3
    started = dev("--detach")
    assert started.returncode == 0, started.stderr


def test_an_interrupted_initdb_is_done_again(dev):
    assert dev("--detach").returncode == 0
    assert dev("--stop").returncode == 0
    data = pathlib.Path(dev.status()["data"])
    data.rename(data.parent / "data.new")
    started = dev("--detach")
    assert started.returncode == 0, started.stderr
    assert dev.status()["running"] and not (data.parent / "data.new").exists()


def test_two_starts_at_once_are_one_server(dev):
    processes = [subprocess.Popen(dev.words("--detach", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **dev.popen)
                 for _ in range(3)]
    told = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], told
    assert len({json.loads(out)["pid"] for out, _ in told}) == 1


def test_a_long_path_and_odd_characters(dev):
    for name in ("x" * 120, "it's \"odd\", isn't\\it"):
        odd = Dev(dev.directory.parent / name / ".pgonce", env=None)
        odd.program, odd.popen = dev.program, dev.popen
        odd.directory.parent.mkdir()
        owner = dev.directory.parent.stat()
        os.chown(odd.directory.parent, owner.st_uid, owner.st_gid)
        started = odd("--detach")
        try:
            assert started.returncode == 0, started.stderr
            assert odd.value("SELECT 1") == 1
            assert stat.S_IMODE(os.stat(odd.status()["host"]).st_mode) == 0o700
        finally:
            clean_up(odd)


def test_where_the_servers_user_cannot_reach_the_data_goes_to_var_tmp():
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's server reaches what its user reaches")
    closed = pathlib.Path(tempfile.mkdtemp(prefix="pgonce-closed-", dir="/tmp"))      # 0700, root's
    made = Dev(closed / ".pgonce")
    try:
        started = made("--detach")
        assert started.returncode == 0, started.stderr
        assert len(started.stderr.splitlines()) == 1 and "/var/tmp/pgonce-" in started.stderr
        assert (made.directory / "data").resolve().parent.parent == pathlib.Path("/var/tmp")
        assert made.value("SELECT 1") == 1
        assert made("--stop").returncode == 0
        again = made("--detach")
        assert (again.returncode, again.stderr) == (0, "")
    finally:
        clean_up(made)
        shutil.rmtree(closed)


def test_somebody_elses_directory_in_tmp_is_not_used(dev):
    long_parent = dev.directory.parent / ("y" * 120)
    long_parent.mkdir()
    owner = dev.directory.parent.stat()
    os.chown(long_parent, owner.st_uid, owner.st_gid)
    odd = Dev(long_parent / ".pgonce")
    odd.program, odd.popen = dev.program, dev.popen
    assert odd("--detach").returncode == 0
    assert odd("--stop").returncode == 0
    host = pathlib.Path(odd.status()["host"])
    try:
        host.chmod(0o777)
        refused = odd("--detach")
        assert refused.returncode == 1 and str(host) in refused.stderr
    finally:
        host.chmod(0o700)
        clean_up(odd)


def test_without_server_programs_it_says_what_to_install(tmp_path):
    made = Dev(tmp_path / ".pgonce", env={"PGONCE_PG_BINDIR": str(tmp_path)})
    try:
        done = made("--detach")
        assert done.returncode == 1
        told, hint = done.stderr.splitlines()[-2:]
        assert "PGONCE_PG_BINDIR" in told and hint.startswith("hint: ")
    finally:
        clean_up(made)


def test_postgresqls_programs_need_not_be_in_path(dev):
    """Where Debian's packages put them, and a stranger's shell does not look."""
    path = "/usr/bin:/bin"
    if shutil.which("initdb", path=path):
        pytest.skip("this system's packages put PostgreSQL's programs into PATH")
    dev.popen["env"] = {**dev.popen["env"], "PATH": path}
    started = dev("--detach")
    assert started.returncode == 0, started.stderr + pathlib.Path(dev.directory / "log").read_text(errors="replace")
    assert dev.value("SELECT once.contract_version()") >= 1
    assert dev("--stop").returncode == 0


def test_where_there_is_no_postgresql_it_says_where_it_searched(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can hide this system's PostgreSQL from a program")
    made = Dev(tmp_path / ".pgonce")
    hide = "for place in /usr/lib/postgresql /usr/local/bin; do [ ! -d $place ] || mount -t tmpfs none $place; done"
    try:
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", f'{hide}; PATH=/nowhere exec "$@"', "sh", *made.words("--detach")],
            capture_output=True, text=True, check=False, timeout=60, env=clean_environment(),
        )  # fmt: skip
        assert done.returncode == 1
        told, hint = done.stderr.splitlines()[-2:]
        for place in ("pg_config --bindir", "/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin"):
            assert place in told
        assert "apt install postgresql" in hint and "PGONCE_PG_BINDIR" in hint
    finally:
        clean_up(made)


def test_an_ordinary_users_data_is_served_as_that_user_by_root():
    if os.geteuid() != 0:
        pytest.skip("needs root and another user")
    user = pwd.getpwnam("nobody")
    parent = pathlib.Path(tempfile.mkdtemp(prefix="pgonce-dev-", dir="/tmp"))
    os.chown(parent, user.pw_uid, user.pw_gid)
    parent.chmod(0o755)
    made = Dev(parent / ".pgonce", other=True)
    made.popen.update(user=user.pw_uid, group=user.pw_gid)
    made.program.parent.chmod(0o755)
    try:
        assert made("--detach").returncode == 0
        assert made("--stop").returncode == 0
        made.popen = {"cwd": "/", "env": clean_environment()}
        started = made("--detach")
        assert started.returncode == 0, started.stderr
        assert os.stat(f"/proc/{made.status()['pid']}").st_uid == user.pw_uid
    finally:
        clean_up(made)
        shutil.rmtree(parent)


# ---- the web console


def ask(address, **headers):
    """(status, headers, text) of a GET; address: http://HOST:PORT/PATH."""
    _, _, host, path = address.split("/", 3)
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        connection.request("GET", "/" + path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def test_it_starts_the_console_and_prints_an_address_that_opens_it(dev):
    told = dev("--detach")
    assert told.returncode == 0, told.stderr
    (address,) = re.findall(r"^The console: (http://127\.0\.0\.1:\d+/\?access=[0-9a-f]{48})$", told.stdout, re.M)
    assert dev.status()["console"] == address
    status, headers, _ = ask(address)
    assert (status, headers["Location"]) == (303, "/") and "HttpOnly" in headers["Set-Cookie"]
    status, _, text = ask(address.split("?")[0], Cookie=headers["Set-Cookie"].split(";")[0])
    assert status == 200 and "<h1>Overview</h1>" in text and "Decisions are not allowed here" not in text
    assert dev("--detach").stdout == told.stdout, "the same one"
    assert dev("--stop").returncode == 0
    with pytest.raises(OSError):
        ask(address)


def test_without_the_key_the_console_of_dev_shows_nothing(dev):
    dev("--detach")
    address = dev.status()["console"].split("?")[0]
    for path, cookie in (("", ""), ("?access=" + "0" * 48, ""), ("find?q=x", "pgonce_access_00000000=" + "0" * 48), ("doubts", "pgonce_access_=")):
        status, headers, text = ask(address + path, Cookie=cookie)
        assert status == 403 and "access" not in headers.get("Set-Cookie", "") and "app" not in text, path
    assert stat.S_IMODE(os.stat(dev.directory / "console").st_mode) == 0o600


def test_the_console_ends_with_dev_and_another_dev_has_another_port(dev):
    process, told = dev.foreground()
    with tempfile.TemporaryDirectory(prefix="pgonce-dev-", dir=in_memory()) as other:
        os.chmod(other, 0o777)
        second = Dev(pathlib.Path(other) / ".pgonce", bool(dev.copy))
        try:
            assert second("--detach").returncode == 0
            addresses = [each.status()["console"] for each in (dev, second)]
            assert len({address.split("?")[0] for address in addresses}) == 2
            assert [ask(address)[0] for address in addresses] == [303, 303]
        finally:
            clean_up(second)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    with pytest.raises(OSError):
        ask(addresses[0])


def test_dev_without_the_console(dev):
    told = dev("--detach", "--no-console")
    assert told.returncode == 0 and "console" not in told.stdout and dev.status()["console"] is None
