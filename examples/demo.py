#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""The demonstration of `make run`, on the server of `pgonce dev`: two services, each behind a gateway, a keeper, and NATS with a relay and a consumer,
which bring orders from the server's database into another. All processes are one session; each holds a lock, by which demo.py finds it again.

  demo.py start BUILD [DIR]    BUILD: the build directory; DIR: of pgonce dev, default .pgonce. Ends an earlier session. Prints what runs, as JSON.
  demo.py stop BUILD [DIR]"""

import contextlib
import fcntl
import json
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time

EXAMPLES = pathlib.Path(__file__).resolve().parent
PATIENCE_S = 60  # a busy machine needs it
PORTS = {"payments": 8080, "handoff": 8180, "nats": 4222, "metrics": 9187}  # or the next free ones


def note(text):
    print(f"demo.py: {text}", file=sys.stderr)


def wait_until(is_so, what, log):
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: the reason is in {log}")
        time.sleep(0.02)


def accepts(address):
    family = socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX
    with socket.socket(family) as asked:
        return asked.connect_ex(address) == 0


def is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False


def listens_here(port):
    """Whether a process of this session listens at this port: another program may have been faster."""
    state, place = "0A", f":{port:04X}"
    fields = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()]
    sockets = {f"socket:[{each[9]}]" for each in fields if each[3] == state and each[1].endswith(place)}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended, or is somebody else's
            if os.getsid(int(process.name)) == os.getsid(0) and sockets & {os.readlink(fd) for fd in (process / "fd").iterdir()}:
                return True
    return False


class Ended(RuntimeError):
    """A process that should listen has ended."""


class Demo:
    def __init__(self, build, directory):
        self.build = pathlib.Path(build).resolve()
        self.pgonce = self.build / "cli/pgonce"
        self.directory = pathlib.Path(directory)
        try:
            self.server = json.loads(self.run(self.pgonce, "dev", "--dir", directory, "--check", "--json", check=False))
            owner = os.stat(self.server["data"])
        except (OSError, ValueError):
            sys.exit(f"demo.py: there is no server of pgonce dev in {directory}: pgonce dev --detach starts it")
        self.user, self.group = owner.st_uid, owner.st_gid  # who runs the server
        self.home = pathlib.Path(self.server["log"]).parent / "demo"
        self.log = self.home / "log"
        self.dsn = self.server["dsn"]
        self.warehouse = self.dsn.replace("dbname=app", "dbname=warehouse")
        self.told = {"server": {"dsn": self.dsn, "log": str(self.log)}, "keeper": None, "payments": None, "handoff": None, "events": None}

    @staticmethod
    def run(*words, check=True):
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, words))}: exit status {done.returncode}")
        return done.stdout

    def sql(self, dsn, *words):
        return self.run("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", dsn, "-c", "SET client_min_messages = warning", *words).strip()

    # ---- The session.

    def make_home(self):
        self.home.mkdir(exist_ok=True)
        found = os.lstat(self.home)
        if self.home.is_symlink() or found.st_uid != os.geteuid():
            raise RuntimeError(f"{self.home} is not a directory of this user: remove it, or run this as its owner")
        self.home.chmod(0o755)  # under any umask: the server's user must get in

    def open_lock(self, name):
        return os.open(self.home / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)

    def end_session(self, lock):
        """True: the lock is held, so the session exists, and no other process has its number."""

        def is_ours():
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            return False

        for number in (signal.SIGTERM, signal.SIGKILL):
            if is_ours():
                return
            leader = int(os.pread(lock, 20, 0) or 0)
            if leader > 1:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(leader, number)
            with contextlib.suppress(RuntimeError):
                wait_until(is_ours, "", self.log)
        if not is_ours():
            raise RuntimeError(f"what runs in {self.home} does not end")

    def lead(self, lock):
        """Makes this process the session's first. Its children belong to the session, and hold the lock."""
        os.setsid()
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        os.set_inheritable(lock, True)

    def launch(self, program, *words, as_root=False):
        """Opened before root's rights are given up: the server's user may not be able to read the program's directory."""
        opened = os.open(program, os.O_RDONLY)
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(OSError):
                log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
                for fd, to in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
                    os.dup2(fd, to)
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                os.chdir("/")
                if os.geteuid() == 0 and not as_root:
                    os.setgroups([])
                    os.setgid(self.group)
                    os.setuid(self.user)
                os.execve(opened, [pathlib.Path(program).name, *map(str, words)], os.environ)
            os._exit(127)
        os.close(opened)
        return pid

    def wait_for(self, name, pid, address):
        def is_up():
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                raise Ended(f"{name} did not start: the reason is in {self.log}")
            return accepts(address) and (isinstance(address, str) or listens_here(address[1]))

        wait_until(is_up, f"{name} did not start", self.log)

    def port(self, name):
        """The one of last time, so that copied commands still work; else the first free one."""
        kept = self.home / f"{name}.port"
        wished = [int(kept.read_text())] if kept.exists() else []
        for port in [*wished, *range(PORTS[name], PORTS[name] + 100)]:
            if is_free(port):
                kept.write_text(f"{port}\n")
                return port
        raise RuntimeError(f"no port from {PORTS[name]} to {PORTS[name] + 99} is free")

    def start_at_a_port(self, name, kind, launch):
        """(the process, its port). Another program may take the port between the look and the start: then the next free one is tried."""
        while True:
            port = self.port(kind)
            pid = launch(port)
            try:
                self.wait_for(name, pid, ("127.0.0.1", port))
                return pid, port
            except Ended:
                if is_free(port):
                    raise

    # ---- Its processes.

    def start_service(self, name):
        """A service on a unix socket, behind a gateway."""
        at = f"{self.server['host']}/{name}.sock"
        service = self.launch(self.build / f"examples/{name}/{name}-example", "--listen", f"unix:{at}", "--dsn", self.dsn)
        self.wait_for(name, service, at)
        user = ["--user", pwd.getpwuid(self.user).pw_name] if os.geteuid() == 0 else []
        words = ["--dir", self.home / f"gateway-{name}", "--upstream", f"http://unix:{at}", "--scope", name, "--required", *user]
        gateway, port = self.start_at_a_port(
            f"the gateway before {name}",
            name,
            lambda port: self.launch(self.pgonce, "gateway", "--dsn", self.dsn, "--listen", f"127.0.0.1:{port}", *words, as_root=True),
        )
        return {"url": f"http://127.0.0.1:{port}/{name}", "status": f"http://127.0.0.1:{port}/once/status", "socket": at, "pid": service, "gateway": gateway}

    def start_keeper(self):
        keeper, port = self.start_at_a_port(
            "the keeper", "metrics", lambda port: self.launch(self.pgonce, "keep", "--dsn", self.dsn, "--metrics", f"127.0.0.1:{port}")
        )
        return {"metrics": f"http://127.0.0.1:{port}/metrics", "pid": keeper}

    def start_nats(self, program):
        store = self.home / "nats"
        store.mkdir(mode=0o700, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(store, self.user, self.group, follow_symlinks=False)
        return self.start_at_a_port("NATS", "nats", lambda port: self.launch(program, "-a", "127.0.0.1", "-p", port, "-js", "-sd", store))

    @staticmethod
    def make_stream(port):
        """Like `nats stream add ORDERS --subjects 'order.>' --defaults`; an existing stream stays."""
        asked = json.dumps({"name": "ORDERS", "subjects": ["order.>"], "storage": "file"})
        lines = ['CONNECT {"verbose": false}', "SUB reply 1", f"PUB $JS.API.STREAM.CREATE.ORDERS reply {len(asked)}", asked, ""]
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection, connection.makefile("rb") as answer:
            connection.sendall("\r\n".join(lines).encode())
            line = answer.readline()
            while not line.startswith(b"MSG reply"):
                if not line:
                    raise RuntimeError("NATS closed the connection while it was asked for a stream")
                line = answer.readline()
            error = json.loads(answer.readline()).get("error")
        if error:
            raise RuntimeError(f"NATS makes no stream: {error}")

    def make_warehouse(self):
        if not self.sql(self.dsn, "-c", "SELECT 1 FROM pg_database WHERE datname = 'warehouse'"):
            self.sql(self.dsn, "-c", "CREATE DATABASE warehouse")
        self.run(self.pgonce, "init", "--dsn", self.warehouse)
        self.sql(self.warehouse, "-f", str(EXAMPLES / "orders/stock.sql"))

    def start_events(self):
        program, config = shutil.which("nats-server"), self.home / "pgonce.conf"
        text = (EXAMPLES / "orders/pgonce.conf").read_text().replace("dbname=warehouse", self.warehouse).replace("dbname=shop", self.dsn)
        config.write_text(text)
        checked = subprocess.run([self.pgonce, "relay", "--check-config", "--config", config], capture_output=True, text=True, check=False)
        if not program or checked.returncode != 0:
            note(f"without the relay and the consumer: {checked.stderr if program else 'nats-server is not here'}")
            return None
        nats, port = self.start_nats(program)
        config.write_text(text.replace("127.0.0.1:4222", f"127.0.0.1:{port}"))
        self.make_stream(port)
        self.make_warehouse()
        jobs = {name: self.launch(self.pgonce, name, "--config", config) for name in ("relay", "consume")}
        return {"warehouse": self.warehouse, "url": f"nats://127.0.0.1:{port}", "nats": nats, **jobs}

    def start_gateway(self):
        if not shutil.which("nginx") or not (self.build / "gateway/ngx_http_once_module.so").exists():
            note("without the services and the gateway: nginx, or its module, is not here")
            return {"payments": None, "handoff": None}
        return {name: self.start_service(name) for name in ("payments", "handoff")}

    def start_all(self):
        return {**self.told, "keeper": self.start_keeper(), **self.start_gateway(), "events": self.start_events()}

    # ---- The two commands.

    def start(self):
        if not self.server["running"]:
            raise RuntimeError("no server runs: pgonce dev --detach starts it")
        if os.geteuid() == 0 and os.stat(self.directory).st_uid != 0:
            note("only the server: the rest of this directory is an ordinary user's; run this as that user")
            return self.told
        self.make_home()
        with os.fdopen(self.open_lock("starting")) as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)  # one start or stop at a time
            lock = self.open_lock("lock")
            self.end_session(lock)
            self.lead(lock)
            told = self.start_all()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the next start or stop waits for this process, which must end cleanly
            return told

    def stop(self):
        if (self.home / "lock").exists():
            with os.fdopen(self.open_lock("starting")) as starting:
                fcntl.flock(starting, fcntl.LOCK_EX)
                self.end_session(self.open_lock("lock"))


def lead_and_tell(demo):
    """In its own process, since it leads the session."""
    try:
        print(json.dumps(demo.start()), flush=True)
        return 0
    except (OSError, RuntimeError) as problem:
        note(problem)
        if os.getsid(0) == os.getpid():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)  # the processes started so far
        return 1


def main():
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in ("start", "stop"):
        sys.exit(__doc__)
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
    demo = Demo(sys.argv[2], sys.argv[3] if len(sys.argv) == 4 else ".pgonce")
    if sys.argv[1] == "stop":
        demo.stop()
        return
    pid = os.fork()
    if pid == 0:
        os._exit(lead_and_tell(demo))
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0)


if __name__ == "__main__":
    main()
