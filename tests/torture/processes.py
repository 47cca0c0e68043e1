# SPDX-License-Identifier: PostgreSQL
"""The processes of the torture, each by one interface: name, start(), kill(), stop(), pause(), resume(), reload(), is_running(), pid, tail(). What is
`wanted` and does not run is started again by the system's tending thread, as a service manager does; kill(), pause() and resume() are for any
thread, start() only for threads that live as long as the system (see harness.postgres.tied)."""

import mmap
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import threading
import time

import psycopg2

from harness.broker import accepts, are_stopped
from harness.elasticmq import CREDENTIALS
from harness.nginx import Nginx, answers
from harness.postgres import (
    PATIENCE_S,
    PORT,
    Postgres,
    children_of,
    clean_environment,
    is_running,
    private_directory,
    tied,
    unprivileged,
    wait_until,
)


RESTART_S = 0.5


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def hold(pid):
    """Stops it, and returns when it has stopped: from then on it makes no more processes. A signal takes its time."""
    send(pid, signal.SIGSTOP)
    wait_until(lambda: not is_running(pid) or are_stopped(pid), f"process {pid} to stop")


class Process:
    """What the others have in common. Subclasses say launch() and is_ready(), and where more than one process belongs to it, pids()."""

    def __init__(self, name, log):
        self.name, self.log = name, pathlib.Path(log)
        self.wanted = False
        self.process = None
        self.lock = threading.RLock()  # nemesis and tending thread
        self.stopped = set()  # pids that pause() stopped
        self.begun = 0  # when it was launched last
        self.is_told_to_end = False

    @property
    def pid(self):
        process = self.process
        return process.pid if process is not None and process.poll() is None else None

    def is_running(self):
        return self.pid is not None

    def pids(self):
        """Its first process first."""
        pid = self.pid
        return [] if pid is None else [pid]

    def start(self):
        with self.lock:
            self.wanted = True
            if not self.is_running():
                self.begun = time.monotonic()
                self.launch()

    def launch(self):
        raise NotImplementedError

    def is_ready(self):
        return self.is_running()

    def tend(self):
        """Starts it where it should run and does not, a second after its last start at the soonest. The status with which it ended by itself; None:
        it did not."""
        if not self.lock.acquire(blocking=False):
            return None  # somebody is at it
        try:
            if not self.wanted or self.is_running() or time.monotonic() < self.begun + RESTART_S:
                return None
            status = self.process.returncode if self.process is not None else None
            if self.is_told_to_end:
                status, self.is_told_to_end = None, False
            self.process = None
            self.begun = time.monotonic()
            self.launch()
            return status
        finally:
            self.lock.release()

    def kill(self):
        """SIGKILL to all of it: nothing is tidied up."""
        with self.lock:
            self.wanted = False
            for pid in self.pids()[:1]:
                hold(pid)
            pids = self.pids()
            for number in (signal.SIGSTOP, signal.SIGKILL):  # all at one moment: none sees the others die
                for pid in pids:
                    send(pid, number)
            if self.process is not None:
                self.process.wait(PATIENCE_S)
                self.process = None
            wait_until(lambda: not any(map(is_running, pids)), f"the end of {self.name}")
            self.stopped.clear()

    def stop(self):
        """As a service manager would."""
        with self.lock:
            self.wanted = False
            self.resume()
            if self.process is not None:
                self.end()
                try:
                    self.process.wait(PATIENCE_S)
                except subprocess.TimeoutExpired:
                    self.kill()
                self.process = None

    def end(self):
        send(self.process.pid, signal.SIGTERM)

    def pause(self):
        """Everything stays open, nothing is answered."""
        with self.lock:
            for pid in self.pids()[:1]:
                self.stopped.add(pid)
                hold(pid)
            for pid in self.pids():
                self.stopped.add(pid)
                send(pid, signal.SIGSTOP)

    def pause_one(self, pid):
        """One of pids(), until SIGCONT."""
        with self.lock:
            send(pid, signal.SIGSTOP)
            self.stopped.add(pid)

    def resume(self):
        with self.lock:
            for pid in self.stopped:
                send(pid, signal.SIGCONT)
            self.stopped.clear()

    def reload(self):
        """It reads its configuration again, where it can do so."""

    def tail(self, characters=4000):
        return f"{self.name}:\n" + (self.log.read_text(errors="replace")[-characters:] if self.log.exists() else "")

    def destroy(self):
        self.kill()


class Job(Process):
    """A program of ours. socket: a path at which it listens, where it does."""

    def __init__(self, name, words, log, cwd=None, listens=None):
        super().__init__(name, log)
        self.words, self.cwd, self.listens = [str(word) for word in words], cwd, listens

    def launch(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                tied(self.words), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=clean_environment() | CREDENTIALS, cwd=self.cwd or self.log.parent
            )

    def is_ready(self):
        return self.is_running() and (self.listens is None or accepts(self.listens))


class Shim:
    """What shim.c tells the processes of one PostgreSQL: how wrong their clock is, and whether their disk is full."""

    def __init__(self, path):
        self.path = path
        path.write_bytes(bytes(16))
        path.chmod(0o644)
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 16)

    def set_clock(self, ahead_s):
        self.memory[0:8] = struct.pack("q", int(ahead_s * 1_000_000))

    @property
    def ahead_s(self):
        return struct.unpack("q", self.memory[0:8])[0] / 1_000_000

    def set_full(self, full):
        self.memory[8:16] = struct.pack("q", int(full))

    def true(self):
        self.set_clock(0)
        self.set_full(False)


class Node(Process):
    """One PostgreSQL. After a kill of its postmaster alone it starts only when the last of its processes has noticed. Without fsync: no fault of ours
    takes the kernel with it, so that what was written is there, and each recovery would cost seconds of it."""

    def __init__(self, name, log, shim, settings, copy_of=None, bindir=None):
        super().__init__(name, log)
        self.server = Postgres(bindir, settings=settings, copy_of=copy_of)
        self.server.log = self.log
        self.shim = Shim(self.server.directory / "shim")
        self.server.environment.update(
            LD_PRELOAD=str(shim), PGONCE_SHIM=str(self.shim.path), PGONCE_SHIM_DIRECTORY=str(self.server.data)
        )
        self.orphans = set()
        self.is_former = False  # a primary in whose place there is another: it must not start as it is

    @property
    def socket(self):
        return self.server.directory / f".s.PGSQL.{PORT}"

    def pids(self):
        pid = self.pid
        return ([pid, *children_of(pid)] if pid is not None else []) + [each for each in self.orphans if is_running(each)]

    def backends(self):
        """The processes that serve connections, and what they are called."""
        found = {}
        for pid in self.pids()[1:]:
            try:
                found[pid] = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0 ").decode(errors="replace")
            except OSError:
                pass  # it ended just now
        return found

    def launch(self):
        self.orphans = {pid for pid in self.orphans if is_running(pid)}
        if self.orphans or self.is_former:
            return  # not yet: it is tended again
        # Nobody of it lives: what a killed one left would only name another's process.
        for left in (self.server.data / "postmaster.pid", pathlib.Path(f"{self.socket}.lock")):
            left.unlink(missing_ok=True)
        self.server.start(wait=False)
        self.process = self.server.process

    def is_ready(self):
        if not self.is_running():
            return False
        try:
            self.connect(connect_timeout=2).close()
            return True
        except psycopg2.OperationalError:
            return False

    def kill(self):
        super().kill()
        self.server.process = None
        self.orphans = set()

    def kill_postmaster(self):
        """It alone: its children find out by themselves."""
        with self.lock:
            self.wanted = False
            if self.is_running():
                self.orphans = set(self.pids()[1:])
                send(self.pid, signal.SIGKILL)
                self.process.wait(PATIENCE_S)
                self.process = self.server.process = None

    def kill_backend(self, pick):
        """One of its processes; the postmaster then ends all others and begins anew. Which one is said."""
        backends = sorted(self.backends().items())
        if not backends:
            return None
        pid, title = backends[pick % len(backends)]
        send(pid, signal.SIGKILL)
        return title

    def end(self):
        send(self.process.pid, signal.SIGINT)

    def reload(self):
        if self.is_running():
            send(self.process.pid, signal.SIGHUP)

    def connect(self, dbname="postgres", **options):
        """As the superuser, straight and not through a link."""
        connection = self.server.connect(dbname, **options)
        connection.cursor().execute("SET statement_timeout = '5s'")
        return connection

    def value(self, query, *values, dbname="postgres"):
        connection = self.connect(dbname, connect_timeout=2)
        try:
            with connection.cursor() as cursor:
                cursor.execute(query, values or None)
                return cursor.fetchone()[0]
        finally:
            connection.close()

    def wake_sleepers(self):
        """Cancels every pg_sleep. It ends at a time of the day: one that began while the clock was ahead, and was set back since, sleeps for as long as it
        was ahead, and its consumer keeps the messages that it has. psycopg2.Error: the server is away, and so are they."""
        self.value("SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")

    def become_standby(self, conninfo):
        """At its next start. As a primary it will wait for nobody, until it has a standby itself."""
        (self.server.data / "standby.signal").touch()
        self.own(self.server.data / "standby.signal")
        with open(self.server.data / "postgresql.auto.conf", "a", encoding="utf-8") as conf:
            conf.write(f"primary_conninfo = '{conninfo}'\nsynchronous_standby_names = ''\n")

    @staticmethod
    def own(path):
        user = unprivileged()[1]
        if user:
            os.chown(path, user.pw_uid, user.pw_gid)

    def destroy(self):
        self.kill()
        self.server.destroy()


class Gateway(Process):
    """nginx with the module: its master and its workers."""

    def __init__(self, name, directory, **options):
        self.nginx = Nginx(**options)
        super().__init__(name, self.nginx.error_log)
        self.kept = pathlib.Path(directory) / f"{name}.log"

    def pids(self):
        pid = self.pid
        return [] if pid is None else [pid, *children_of(pid)]

    def launch(self):
        for path in (self.nginx.h1, self.nginx.h2, self.nginx.tls):
            path.unlink(missing_ok=True)  # nginx does not take the place of one that was killed
        self.nginx.start(wait=False)
        self.process = self.nginx.process

    def is_ready(self):
        return self.is_running() and answers(self.nginx.h1)

    def kill(self):
        super().kill()
        self.nginx.process = None

    def kill_worker(self, pick):
        """One of its workers, which the master replaces."""
        workers = sorted(self.nginx.worker_pids())
        if workers:
            self.nginx.killed.add(workers[pick % len(workers)])
            send(workers[pick % len(workers)], signal.SIGKILL)

    def end(self):
        send(self.process.pid, signal.SIGQUIT)

    def reload(self):
        if self.is_running():
            send(self.process.pid, signal.SIGHUP)

    def destroy(self):
        self.kill()
        if self.nginx.error_log.exists():
            shutil.copy(self.nginx.error_log, self.kept)
        self.nginx.destroy()


class Broker(Process):
    """harness: the broker of tests/harness; kind: its name; destination: where a message goes that is published straight to it."""

    def __init__(self, harness, destination, directory):
        super().__init__("broker", harness.log)
        self.harness, self.kind, self.destination = harness, harness.name, destination
        self.kept = pathlib.Path(directory) / "broker.log"

    def launch(self):
        self.harness.start(wait=False)
        self.process = self.harness.process

    def is_ready(self):
        try:
            return self.is_running() and self.harness.is_ready()
        except (OSError, AssertionError, subprocess.SubprocessError):
            return False

    def pids(self):
        """Of RabbitMQ the helpers as well."""
        pid = self.pid
        return [] if pid is None else [pid, *children_of(pid)]

    def destroy(self):
        Process.kill(self)
        self.harness.process = None
        if self.harness.log.exists():
            shutil.copy(self.harness.log, self.kept)
        self.harness.destroy()


class StandingBroker(Broker):
    """Killed or ended it only stands still, until it is wanted again: what a FIFO queue of AWS keeps through anything, its order and what is out,
    ElasticMQ has in memory alone."""

    stands = False

    def kill(self):
        self.wanted = False
        self.pause()
        self.stands = True

    def end(self):
        self.pause()
        self.stands = True

    def tend(self):
        if self.wanted and self.stands:
            self.stands = self.is_told_to_end = False
            self.resume()
        return super().tend()

    def destroy(self):
        super().destroy()
        self.harness.door.__exit__()


def short_directory():
    """For sockets, whose paths are short; everybody may go in."""
    path = private_directory("pgonce-torture-")
    path.chmod(0o755)
    return path
