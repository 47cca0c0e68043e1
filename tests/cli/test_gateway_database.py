# SPDX-License-Identifier: PostgreSQL
"""pgonce gateway and its database: what the environment, a service file or a password file says holds for nginx's workers too, who have none of them;
and the start-up check is theirs."""

import ctypes
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess

import pytest

from harness.postgres import PORT, Postgres, clean_environment, private_directory, unprivileged, wait_until
from harness.upstream import Answer

from .command import PROGRAM, Command
from .gateway import AS_OTHERS, UPSTREAM, Gateway, needs_module

pytestmark = needs_module
SECRET = "s3 cr'et\\17"
HBA = "local all locked scram-sha-256\nlocal all all trust\n"


@pytest.fixture(scope="module")
def locked():
    """A server on which the role `locked` needs a password."""
    with Postgres() as server:
        admin = server.connect()
        admin.cursor().execute("SET password_encryption = 'scram-sha-256'")
        admin.cursor().execute("CREATE ROLE locked LOGIN PASSWORD %s", (SECRET,))
        (server.data / "pg_hba.conf").write_text(HBA)
        admin.cursor().execute("SELECT pg_reload_conf()")
        admin.close()
        yield server


@pytest.fixture
def database(locked):
    made = locked.new_database()
    made.execute("GRANT once_app TO locked")
    yield made
    made.drop()


@pytest.fixture
def place():
    made = private_directory("pgonce-env-")
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def write(path, text, mode, others=False):
    """others: it belongs to whom root's workers run as."""
    path.touch(mode)
    path.write_text(text)
    if others and unprivileged()[1] is not None:
        os.chown(path, unprivileged()[1].pw_uid, -1)
    return str(path)


def passwords(place, others=False):
    quoted = SECRET.replace("\\", "\\\\")
    return write(place / ".pgpass", f"*:*:*:locked:{quoted}\n", 0o600, others)


def places(database, place, user="postgres"):
    return {"PGHOST": str(database.server.directory), "PGPORT": str(PORT), "PGDATABASE": database.name, "PGUSER": user}


def service(database, place, more=""):
    return write(place / "services", f"[shop]\nhost={database.server.directory}\nport={PORT}\ndbname={database.name}\nuser=postgres\n{more}", 0o644)


# (what says where the database is: (the connection string, the environment))
WAYS = {
    "PGHOST and its kin": lambda database, place: (None, places(database, place)),
    "PGSERVICE": lambda database, place: (None, {"PGSERVICEFILE": service(database, place), "PGSERVICE": "shop"}),
    "a service in the string": lambda database, place: ("service=shop", {"PGSERVICEFILE": service(database, place), "PGSERVICE": "nobody"}),
    "a service over PGDATABASE": lambda database, place: ("service=shop", {"PGSERVICEFILE": service(database, place), "PGDATABASE": "nosuch"}),
    "the string over the environment": lambda database, place: (database.dsn(), {"PGHOST": "/nowhere", "PGDATABASE": "nosuch", "PGUSER": "nosuch", "PGPORT": "1"}),
    "PGPASSWORD": lambda database, place: (None, {**places(database, place, "locked"), "PGPASSWORD": SECRET}),
    "PGPASSFILE": lambda database, place: (None, {**places(database, place, "locked"), "PGPASSFILE": passwords(place)}),
    "PGPASSFILE of the workers' user": lambda database, place: (None, {**places(database, place, "locked"), "PGPASSFILE": passwords(place, True)}),
    "a password file at home": lambda database, place: (None, {**places(database, place, "locked"), "HOME": str(passwords(place) and place)}),
    "PGAPPNAME": lambda database, place: (None, {**places(database, place), "PGAPPNAME": "by the environment"}),
}


IN_MODIFY, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x2, 0x80, 0x100, 0x200


class Watched:
    """What happens to the names of a directory: inotify."""

    def __init__(self, directory):
        libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert libc.inotify_add_watch(self.descriptor, os.fsencode(directory), IN_MODIFY | IN_MOVED_TO | IN_CREATE | IN_DELETE) >= 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.descriptor)

    def events(self, name):
        """Of this name, so far."""
        data, at, found = os.read(self.descriptor, 1 << 16), 0, []
        while at < len(data):
            _, mask, _, size = struct.unpack_from("iIII", data, at)
            if data[at + 16 : at + 16 + size].rstrip(b"\0").decode() == name:
                found.append(mask)
            at += 16 + size
        return found


@pytest.fixture
def made(upstream):
    running = []

    def start(dsn, environment, *options):
        running.append(Gateway(dsn, upstream, environment))
        return running[-1].start(*options)

    yield start
    for gateway in running:
        gateway.close()


def configuration(gateway):
    return pathlib.Path(re.search(r"Configuration: (\S+)/nginx.conf", gateway.process.stdout.readline().decode()).group(1))


@pytest.mark.parametrize("way", WAYS)
def test_the_workers_reach_the_database_that_the_environment_names(made, database, upstream, place, way):
    gateway = made(*WAYS[way](database, place))
    assert [gateway.post("k").status for _ in range(2)] == [201, 201] and upstream.count("k") == 1
    assert database.value("SELECT count(*) FROM once.intent WHERE key = 'k'") == 1
    if way == "PGAPPNAME":
        assert database.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'by the environment' AND datname = current_database()") > 0


@pytest.mark.parametrize("way", ["PGPASSWORD", "PGPASSFILE"])
def test_a_password_is_in_no_command_line_and_in_no_file_that_others_can_read(made, database, place, way):
    gateway = made(*WAYS[way](database, place))
    directory = configuration(gateway)
    gateway.post("k")
    for pid in (gateway.process.pid, gateway.master(), *gateway.workers()):
        assert b"s3 cr" not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    holding = [path for path in directory.rglob("*") if path.is_file() and b"s3 cr" in path.read_bytes()]
    assert all(path.stat().st_mode & 0o077 == 0 for path in holding)
    assert [path.name for path in holding] in (["database"], ["passfile"], [])
    status, out, err = gateway.end()
    assert status == 0 and b"s3 cr" not in out + err and not directory.exists()


def test_a_directory_that_stays_keeps_no_password(made, database, place):
    gateway = made(*WAYS["PGPASSFILE"](database, place), "--dir", str(place / "kept"))
    gateway.post("k")
    assert (place / "kept/database").exists()
    assert gateway.end()[0] == 0
    left = {path.name for path in (place / "kept").iterdir()}
    assert "nginx.conf" in left and not left & {"database", "passfile"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_is_stopped_before_the_database_answers_leaves_no_password(place, number):
    place.chmod(0o711)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = {**clean_environment(), "PGHOST": "127.0.0.1", "PGPORT": str(silent.getsockname()[1]), "PGPASSWORD": SECRET, "TMPDIR": str(place)}
        process = subprocess.Popen([str(PROGRAM), "gateway", *UPSTREAM, *AS_OTHERS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        silent.settimeout(60)
        connection, _ = silent.accept()
        assert list(place.glob("*/database"))
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        connection.close()
    assert (process.returncode, out) == (1, b"") and b"told to stop" in err, (process.returncode, err)
    assert not list(place.iterdir())


def test_a_changed_password_file_is_read_again_on_hup(made, database, place, upstream):
    if os.geteuid() != 0:
        pytest.skip("another user's workers have a copy: needs root")
    path = place / ".pgpass"
    gateway = made(*WAYS["PGPASSFILE"](database, place))
    try:
        database.execute("ALTER ROLE locked PASSWORD 'other'")
        path.write_text("*:*:*:locked:other\n")
        before = gateway.workers()
        gateway.process.send_signal(1)
        wait_until(lambda: gateway.workers() and not gateway.workers() & before, "new workers in the place of the old")
        wait_until(lambda: gateway.post("k").status == 201, "the new password to be used")
    finally:
        database.execute("SET password_encryption = 'scram-sha-256'")
        database.execute("ALTER ROLE locked PASSWORD %s", SECRET)


def test_a_changed_password_file_is_never_half_there(made, database, place):
    """A worker may connect at any time: what is under the name is the old file or the new one, whole."""
    if os.geteuid() != 0:
        pytest.skip("another user's workers have a copy: needs root")
    gateway = made(*WAYS["PGPASSFILE"](database, place))
    directory = configuration(gateway)
    copy = directory / "passfile"
    before, changed = copy.read_bytes(), b"# another\n" + (place / ".pgpass").read_bytes()
    with Watched(directory) as watched, open(copy, "rb") as old:
        (place / ".pgpass").write_bytes(changed)
        gateway.process.send_signal(signal.SIGHUP)
        wait_until(lambda: copy.exists() and copy.read_bytes() == changed, "the copy to be the new file")
        assert old.read() == before
        assert [event for event in watched.events("passfile") if event != IN_MOVED_TO] == []
    assert copy.stat().st_mode & 0o777 == 0o600 and copy.stat().st_uid == unprivileged()[1].pw_uid
    assert sorted(path.name for path in directory.glob("passfile*")) == ["passfile"]


def test_a_wrong_password_is_told_and_nothing_is_started(database, place):
    done = Command()("gateway", *UPSTREAM, *AS_OTHERS, env={**places(database, place, "locked"), "PGPASSWORD": "wrong"})
    assert (done.returncode, done.stdout) == (3, b"") and b"password authentication failed" in done.stderr, done


def test_a_service_that_is_not_there_is_told(database, place):
    done = Command()("gateway", *UPSTREAM, env={"PGSERVICEFILE": service(database, place), "PGSERVICE": "nosuch"})
    assert done.returncode != 0 and done.stdout == b"" and b"nosuch" in done.stderr, done


def test_a_socket_that_the_workers_cannot_get_to_is_told_and_nothing_is_started(database, place):
    """Else each request with a key would get 503: that root reaches it says nothing."""
    if os.geteuid() != 0:
        pytest.skip("only root's workers are another user")
    inside = place / "closed"
    inside.mkdir(mode=0o700)
    os.chown(inside, 0, 0)
    (inside / f".s.PGSQL.{PORT}").symlink_to(database.server.directory / f".s.PGSQL.{PORT}")
    user = unprivileged()[1].pw_name
    done = Command(database.dsn().replace(str(database.server.directory), str(inside)))("gateway", *UPSTREAM, "--user", user)
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (3, b"") and f"run as {user}, who cannot get to the database" in said and "--user" in said, done


def test_the_access_log_and_messages_in_one_file_leave_each_other_whole(database, upstream, place):
    log = place / "log"
    gateway = Gateway(database.dsn(), upstream)
    try:
        with open(log, "wb") as both:
            gateway.process = subprocess.Popen(gateway.words(), stdout=both, stderr=both, env=clean_environment(), start_new_session=True)
        wait_until(lambda: gateway.answers() and gateway.has_worker(), "the gateway to work")
        for number in range(20):
            upstream.script(f"k{number}", Answer(headers=(("Once-Effect", "perhaps"),)))  # of which the module warns
            assert gateway.post(f"k{number}").status == 201
        gateway.end()
    finally:
        gateway.close()
    lines = log.read_text().splitlines()
    assert "each intent once" in lines[0]
    assert sum(line.startswith('time="') and line.endswith('"') and 'request="' in line for line in lines) == 20, lines
    assert sum("Once-Effect is ignored" in line and line.startswith("20") for line in lines) == 20, lines
    assert len(lines) == 41, lines
