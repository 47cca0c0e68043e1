# SPDX-License-Identifier: PostgreSQL
"""What the private brokers of the tests share: a process in a directory of its own, on free ports of 127.0.0.1, that a test starts,
stops, kills, pauses and starts again on the same data; and certificates."""

import atexit
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile

from .postgres import PATIENCE_S, clean_environment, is_running, tied, wait_until

FIRST_PORT, LAST_PORT = 20000, 32000  # below those that the kernel gives to outgoing connections: free still after a restart
given_ports = {}  # and what holds each: a name among the machine's abstract sockets, which ends with this process


def free_port():
    """A port that nobody listens at, nor is given to another worker of the tests, nor to another run of them."""
    for _ in range(1000):
        port = random.SystemRandom().randint(FIRST_PORT, LAST_PORT)
        if port in given_ports:
            continue
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0pgonce-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        given_ports[port] = claim
        return port
    raise RuntimeError(f"no free port between {FIRST_PORT} and {LAST_PORT}")


def give_back(port):
    """What listened there has ended: each port that is kept is an open file of this process."""
    given_ports.pop(port).close()


def accepts(where):
    """Does somebody take connections at this port of 127.0.0.1, or at the unix socket of this path? That its file exists does not say so: a
    server listens a moment after it has made it."""
    is_port = isinstance(where, int)
    try:
        with socket.socket(socket.AF_INET if is_port else socket.AF_UNIX) as probe:
            probe.settimeout(1)
            probe.connect(("127.0.0.1", where) if is_port else str(where))
        return True
    except OSError:
        return False


def are_stopped(pid):
    try:
        states = [path.read_text().rpartition(")")[2].split()[0] for path in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return False  # a thread ended meanwhile: asked again
    return bool(states) and set(states) == {"T"}


def openssl(directory, *words):
    done = subprocess.run(
        ["openssl", *map(str, words)],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env=clean_environment(),
    )
    assert done.returncode == 0, done.stderr


def certificates(directory):
    """ca.pem; server.pem, server.key for 127.0.0.1 and localhost; client.pem, client.key for the user `alice`; stranger.pem, stranger.key for
    another host; and other_ca.pem, which signed none of them."""
    for ca in ("ca", "other_ca"):
        openssl(
            directory, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{ca}.key", "-out", f"{ca}.pem",
            "-days", "2", "-subj", f"/CN=pgonce {ca}", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip
    for name, subject, names in (
        ("server", "/CN=localhost", "IP:127.0.0.1,DNS:localhost"),
        ("client", "/CN=alice", "DNS:alice"),
        ("stranger", "/CN=stranger.example", "DNS:stranger.example"),
    ):
        (directory / "extensions").write_text(f"subjectAltName={names}\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n")
        openssl(
            directory, "req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr",
            "-subj", subject,
        )  # fmt: skip
        openssl(
            directory, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", f"{name}.pem", "-days", "2", "-extfile", "extensions",
        )  # fmt: skip


class Broker:
    """Use it in a with statement. What differs is said by the subclasses: command(), environment(), is_ready()."""

    name = "a broker"

    def __init__(self):
        # Short: some of them keep sockets there.
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix=f"pgonce-{self.name}-", dir="/tmp"))
        self.log = self.directory / "log"
        self.process = None
        atexit.register(self.destroy)

    def command(self):
        raise NotImplementedError

    def environment(self):
        return clean_environment()

    def is_ready(self):
        raise NotImplementedError

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.destroy()
            raise

    def __exit__(self, *_):
        self.destroy()

    def launch(self, command, environment=None):
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                tied(command),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment or self.environment(),
                cwd=self.directory,
            )

    def start(self, wait=True):
        """wait False: returns before it takes connections."""
        self.process = self.launch(self.command())
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self):
        def ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} did not start (status {self.process.returncode}):\n{self.log_tail()}")
            return self.is_ready()

        try:
            wait_until(ready, f"{self.name} to be ready", 5 * PATIENCE_S)  # beside everything else that starts with the tests
        except TimeoutError as late:
            raise RuntimeError(f"{late}:\n{self.log_tail()}") from late

    def log_tail(self, lines=40):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self):
        """As a service manager would."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        self.process = None

    def kill(self):
        """SIGKILL: nothing is tidied up."""
        pid = self.process.pid
        self.process.kill()
        self.process.wait(PATIENCE_S)
        wait_until(lambda: not is_running(pid), f"the end of {self.name}")
        self.process = None

    def restart(self):
        self.stop()
        return self.start()

    def pause(self):
        """Connections stay open, nothing is answered. Returns when each of its threads has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: are_stopped(self.process.pid), f"{self.name} to stop")

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def destroy(self):
        atexit.unregister(self.destroy)
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait(PATIENCE_S)
            self.process = None
        shutil.rmtree(self.directory, ignore_errors=True)


def program(name, package):
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin")
    if found is None:
        raise RuntimeError(f"{name} is not installed: apt-get install {package}")
    return found
