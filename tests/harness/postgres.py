# SPDX-License-Identifier: PostgreSQL
"""A private PostgreSQL server and databases in it that have the contract installed.

Unix socket only, in a directory of its own under /tmp (socket paths are short), so no port can be taken.
PGONCE_PG_BINDIR chooses the server's version. As root the server runs as `postgres` or `nobody`, since PostgreSQL
refuses root.

PGONCE_NATIVE=yes: databases with the contract have pgonce_native, too, so that the whole suite runs on C as it does on SQL.

As a command: postgres.py CMD...   runs CMD with PGHOST, PGPORT, PGUSER, PGDATABASE naming a fresh database with the
contract."""

import atexit
import datetime
import functools
import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import psycopg2
import psycopg2.errors
import psycopg2.extensions
import psycopg2.extras

ROOT = pathlib.Path(__file__).resolve().parents[2]
PORT = 5432  # only part of the socket's file name
PATIENCE_S = 60
MEMORY_BYTES = 4 << 30
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "max_prepared_transactions": "10",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "autovacuum": "off",  # tests say themselves when to vacuum
    "log_min_messages": "warning",
    "statement_timeout": "60s",  # a test that would hang fails
}

# bytea comes back as bytes, which compare and print, not as memoryview.
BYTES = psycopg2.extensions.new_type(
    psycopg2.BINARY.values,
    "BYTES",
    lambda value, cursor: None if value is None else bytes(psycopg2.BINARY(value, cursor)),
)
psycopg2.extensions.register_type(BYTES)


def find_bindir():
    """The directory of the server's programs."""
    if os.environ.get("PGONCE_PG_BINDIR"):
        return pathlib.Path(os.environ["PGONCE_PG_BINDIR"])
    candidates = []
    if shutil.which("pg_config"):
        candidates.append(
            subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True, check=True).stdout.strip()
        )
    installed = pathlib.Path("/usr/lib/postgresql").glob("*/bin")
    candidates += sorted(installed, key=lambda path: float(path.parent.name), reverse=True)
    for candidate in map(pathlib.Path, candidates):
        # libpq-dev brings a pg_config without a server.
        if (candidate / "postgres").exists() and (candidate / "initdb").exists():
            return candidate
    raise RuntimeError("no PostgreSQL server found: install the package postgresql, or set PGONCE_PG_BINDIR")


def unprivileged():
    """Popen arguments that drop root's rights, and the user that they leave; none for an ordinary user."""
    if os.geteuid() != 0:
        return {}, None
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}, user
    raise RuntimeError("running as root, and there is neither a user postgres nor nobody to run the server as")


def in_memory():
    """Where a server's files are made in memory: a database is hundreds of files, and a disk takes ten times as long to make them. /tmp where there is
    no such place, or too little of it."""
    try:
        place = os.statvfs("/dev/shm")
    except OSError:
        return "/tmp"
    return "/dev/shm" if place.f_bavail * place.f_frsize >= MEMORY_BYTES and os.access("/dev/shm", os.W_OK) else "/tmp"


def private_directory(prefix, parent="/tmp"):
    """A new directory that the servers' user owns."""
    path = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    user = unprivileged()[1]
    if user:
        os.chown(path, user.pw_uid, user.pw_gid)
    return path


def clean_environment():
    """The environment without libpq's variables, which would lead a test to somebody's real server."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("PG") or name.startswith("PGONCE_")
    }
    return {**kept, "LC_ALL": "C.UTF-8"}


def tied(command):
    """The command, ended by the kernel should the tests die without a chance to clean up: when the thread that started it
    ends, so start nothing in a thread that ends before the tests do."""
    return (["setpriv", "--pdeathsig", "QUIT", "--"] if shutil.which("setpriv") else []) + [
        str(word) for word in command
    ]


def wait_until(condition, what, patience_s=PATIENCE_S):
    """For what reports no event (another process's start or end): asks until it is true."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {patience_s} s for {what}")
        time.sleep(0.01)


def copy_what_is_there(source, target):
    """Of a server that runs files come and go."""
    try:
        return shutil.copy2(source, target)
    except FileNotFoundError:
        return target


def children_of(pid):
    """Those that run. A thread's children are told by a file of its own; to look through all processes takes a hundred times as long."""
    try:
        listed = [path.read_text() for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []  # it ended just now
    if not listed:  # a kernel without these files, or it has ended
        listed = [entry.parent.name for entry in pathlib.Path("/proc").glob("[0-9]*/stat") if parent_of(entry) == pid]
    return [int(child) for children in listed for child in children.split() if is_running(int(child))]


def parent_of(stat):
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None  # it ended just now


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def is_stopped(pid):
    """By SIGSTOP."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def install_script():
    """The contract as SQL; the tests do not depend on the command."""
    return subprocess.run(
        [
            "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable,
            str(ROOT / "tools/contract.py"),
            "install",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


class Postgres:
    """environment: variables that its processes have besides. copy_of: another one, of which it begins as a copy instead of an empty cluster."""

    def __init__(self, bindir=None, fsync=False, settings=None, environment=None, copy_of=None):
        self.bindir = pathlib.Path(bindir or find_bindir())
        self.environment = {**clean_environment(), **(environment or {})}
        self.settings = {**SETTINGS, "fsync": "on" if fsync else "off", **(settings or {})}
        self.process = None
        # In memory fsync would cost nothing, and mean nothing. /tmp may be in memory, too.
        self.directory = private_directory("pgonce-", "/var/tmp" if fsync else in_memory())
        self.data = self.directory / "data"
        self.log = self.directory / "log"
        self.databases = 0
        self.template, self.template_day = None, None
        atexit.register(self.destroy)
        if copy_of is None:
            self._initdb()
        else:
            self.copy(copy_of)
        self.configure()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.destroy()

    def _initdb(self):
        # Not the locale C: there every comparison has the index's collation anyway, and a missing COLLATE would not
        # show.
        for locale in ("C.UTF-8", "C"):
            command = [
                self.bindir / "initdb",
                "-D",
                self.data,
                "-U",
                "postgres",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--no-sync",
                f"--locale={locale}",
            ]
            done = subprocess.run(
                [str(word) for word in command],
                capture_output=True,
                text=True,
                env=clean_environment(),
                cwd="/tmp",
                check=False,
                **unprivileged()[0],
            )
            if done.returncode == 0:
                break
        else:
            raise RuntimeError(f"{self.bindir}/initdb failed:\n{done.stdout}{done.stderr}")

    def copy(self, server):
        """The data of a server that runs; what was there is gone."""
        shutil.rmtree(self.data, ignore_errors=True)
        if not (self.bindir / "pg_basebackup").exists():
            self.copy_by_hand(server)
            return
        done = subprocess.run(
            [str(self.bindir / "pg_basebackup"), "-D", str(self.data), "-d", server.dsn(), "-c", "fast", "-X", "stream", "--no-sync"],
            capture_output=True,
            text=True,
            env=clean_environment(),
            cwd="/tmp",
            check=False,
            timeout=PATIENCE_S,
            **unprivileged()[0],
        )
        if done.returncode != 0:
            raise RuntimeError(f"pg_basebackup failed:\n{done.stdout}{done.stderr}")

    def copy_by_hand(self, server):
        """As pg_basebackup does it (manual, "Making a Base Backup Using the Low Level API"), for a server without its programs for clients."""
        begin, end = "pg_backup_start('copy', true)", "pg_backup_stop(false)"
        if self.version < 15:
            begin, end = "pg_start_backup('copy', true, false)", "pg_stop_backup(false, false)"
        left_out = shutil.ignore_patterns("postmaster.pid", "postmaster.opts", "pg_replslot", "pgsql_tmp*")
        connection = server.connect()
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {begin}")
            shutil.copytree(server.data, self.data, ignore=left_out, copy_function=copy_what_is_there)
            cursor.execute(f"SELECT labelfile AS label, pg_current_wal_lsn() AS lsn FROM {end}")
            label = cursor.fetchone().label
            # The log up to here, which the copy needs to become whole.
            shutil.copytree(server.data / "pg_wal", self.data / "pg_wal", dirs_exist_ok=True, copy_function=copy_what_is_there)
        connection.close()
        (self.data / "backup_label").write_text(label)
        (self.data / "pg_replslot").mkdir()
        self.data.chmod(0o700)
        user = unprivileged()[1]
        for path in (self.data, *self.data.rglob("*")) if user else ():
            os.chown(path, user.pw_uid, user.pw_gid)

    def configure(self):
        lines = [
            f"{name} = '{value}'"
            for name, value in {**self.settings, "unix_socket_directories": self.directory}.items()
        ]
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as conf:
            conf.write("\n" + "\n".join(lines) + "\n")

    def start(self, wait=True):
        """wait False: returns before it takes connections."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                tied([self.bindir / "postgres", "-D", self.data, "-p", PORT]),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                cwd="/tmp",
                **unprivileged()[0],
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self):
        def ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start (status {self.process.returncode}):\n{self.log_tail()}")
            try:
                psycopg2.connect(self.dsn()).close()
                return True
            except psycopg2.OperationalError:
                return False

        try:
            wait_until(ready, "PostgreSQL to accept connections")
        except TimeoutError as late:
            raise RuntimeError(f"{late}:\n{self.log_tail()}") from late

    def log_tail(self, lines=40):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self, mode="fast"):
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(
                {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode]
            )
        self.process.wait(PATIENCE_S)
        self.process = None

    def restart(self, mode="fast"):
        self.stop(mode)
        self.start()

    def hold_background(self):
        """Stops what writes by itself, until the server is killed: what an asynchronous COMMIT has left in memory stays there, however long a test
        takes (the WAL writer sleeps for ten seconds at most), and whatever would wake the WAL writer."""
        connection = self.connect()

        def held(pid):
            # Stopped where it waits for work: elsewhere it may hold a lock that others want.
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: is_stopped(pid), "a process to stop")
            with connection.cursor() as cursor:
                cursor.execute("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", (pid,))
                if cursor.fetchone()[0] == "Activity":
                    return True
            os.kill(pid, signal.SIGCONT)
            return False

        with connection.cursor() as cursor:
            cursor.execute("SELECT pid FROM pg_stat_activity WHERE backend_type IN ('walwriter', 'background writer', 'checkpointer')")
            pids = [row.pid for row in cursor.fetchall()]
        assert len(pids) == 3
        for pid in pids:
            wait_until(lambda pid=pid: held(pid), "a writer to wait for work")
        connection.close()

    def kill(self):
        """SIGKILL to every process of the server, as if the machine's power went: no process can tidy up."""
        postmaster = self.process.pid
        children = children_of(postmaster)
        self.process.send_signal(signal.SIGSTOP)  # it forks nothing more
        children = sorted(set(children) | set(children_of(postmaster)))
        self.process.kill()
        self.process.wait(PATIENCE_S)
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        wait_until(lambda: not any(map(is_running, children)), "the killed server's processes to end")
        self.process = None

    def destroy(self):
        atexit.unregister(self.destroy)
        self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def dsn(self, dbname="postgres", user="postgres"):
        return f"host={self.directory} port={PORT} dbname={dbname} user={user}"

    def connect(self, dbname="postgres", user="postgres", autocommit=True, **kw):
        connection = psycopg2.connect(self.dsn(dbname, user), cursor_factory=psycopg2.extras.NamedTupleCursor, **kw)
        connection.autocommit = autocommit
        return connection

    @functools.cached_property
    def version(self):
        """The major version, for example 15."""
        words = subprocess.run(
            [str(self.bindir / "postgres"), "--version"], capture_output=True, text=True, check=True
        ).stdout
        return int(re.search(r"\) (\d+)", words).group(1))

    def empty_database(self, owner="postgres", template="template1"):
        """A database without the contract."""
        self.databases += 1
        name = f"test_{self.databases}"
        connection = self.connect()
        with connection.cursor() as cursor:
            # Of a file's bytes, not page by page through the log, as newer servers do by default.
            strategy = " STRATEGY FILE_COPY" if self.version >= 15 else ""
            cursor.execute(f"CREATE DATABASE {name} OWNER {owner} TEMPLATE {template}{strategy}")
        connection.close()
        return Database(self, name)

    def new_database(self):
        """A database with the contract: a copy of one into which it was installed, which is far faster than to
        install it again. Anew each day (UTC), since the contract's days are counted from its installation."""
        today = datetime.datetime.now(datetime.timezone.utc).date()
        if self.template_day != today:
            template = self.empty_database()
            template.install()
            template.close()
            self.template, self.template_day = template.name, today
        made = self.empty_database(template=self.template)
        if os.environ.get("PGONCE_NATIVE") == "yes":  # as in SQL, where nobody asks unless told to: tests/native has what C does by itself
            made.execute(f"ALTER DATABASE {made.name} SET once.strict = off")
            made.own.close()
        return made


class Database:
    """One database, and the connections that a test opens to it. The short forms use one autocommitting connection of
    the owner."""

    def __init__(self, server, name):
        self.server = server
        self.name = name
        self.connections = []
        self.own = None

    def dsn(self, user="postgres"):
        return self.server.dsn(self.name, user)

    def connect(self, user="postgres", autocommit=True, isolation=None, **settings):
        """isolation: 'REPEATABLE READ' and so on, for a connection with explicit commit; settings: lock_timeout='1s'
        and so on."""
        connection = self.server.connect(self.name, user)
        for name, value in settings.items():
            connection.cursor().execute(f"SET {name} = %s", (value,))
        connection.set_session(isolation_level=isolation, autocommit=autocommit and isolation is None)
        self.connections.append(connection)
        return connection

    def rows(self, query, *values):
        if self.own is None or self.own.closed:
            self.own = self.connect()
        with self.own.cursor() as cursor:
            cursor.execute(query, values or None)
            return cursor.fetchall() if cursor.description is not None else []

    def row(self, query, *values):
        rows = self.rows(query, *values)
        assert len(rows) == 1, f"{len(rows)} rows from: {query}"
        return rows[0]

    def value(self, query, *values):
        return self.row(query, *values)[0]

    execute = rows

    def install(self, user="postgres"):
        """Installs the contract and returns the notices that it gave."""
        connection = self.connect(user)
        connection.cursor().execute(install_script())
        if os.environ.get("PGONCE_NATIVE") == "yes" and user == "postgres":  # an ordinary owner may not
            self.add_native()
        return list(connection.notices)

    def add_native(self):
        """pgonce_native, from where it was built."""
        from .native import native_script  # pylint: disable=import-outside-toplevel,cyclic-import  # which takes ROOT from here

        connection = self.server.connect(self.name)
        connection.cursor().execute(native_script())
        connection.close()

    def close(self):
        for connection in self.connections:
            connection.close()
        self.connections.clear()
        self.own = None

    def drop(self):
        # A test that fails may leave a prepared transaction, which would keep its database, and be seen on the whole server.
        with self.connect().cursor() as cursor:
            cursor.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
            for (gid,) in cursor.fetchall():
                cursor.execute("ROLLBACK PREPARED %s", (gid,))
        self.close()
        connection = self.server.connect()
        wait_until(lambda: self._is_dropped(connection.cursor()), f"{self.name} is dropped")
        connection.close()

    def _is_dropped(self, cursor):
        """False: a session that was told to end is still there after five seconds, on a busy machine."""
        try:
            cursor.execute(f"DROP DATABASE {self.name} WITH (FORCE)")
        except psycopg2.errors.ObjectInUse:
            return False
        return True


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with Postgres() as server:
        database = server.new_database()
        environment = {
            **clean_environment(),
            "PGHOST": str(server.directory),
            "PGPORT": str(PORT),
            "PGUSER": "postgres",
            "PGDATABASE": database.name,
        }
        status = subprocess.run(sys.argv[1:], env=environment, check=False).returncode
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
