# SPDX-License-Identifier: PostgreSQL
"""pgonce gateway as the tests run it: on a unix socket, before a service that counts."""

import shutil
import signal
import socket
import subprocess

import pytest

from harness.client import http1
from harness.nginx import MODULE
from harness.postgres import children_of, clean_environment, is_running, private_directory, unprivileged, wait_until

from .command import PROGRAM, ends

UPSTREAM = ("--upstream", "http://127.0.0.1:3000")
# Root's workers are the tests' other user, who gets to the servers' sockets.
AS_OTHERS = ["--user", unprivileged()[1].pw_name] if unprivileged()[1] else []
NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
needs_module = pytest.mark.skipif(not MODULE.exists(), reason=f"{MODULE} is not built (nginx-dev)")


class Gateway:
    """pgonce gateway on a unix socket, before a service that counts."""

    def __init__(self, dsn, upstream, environment=None):
        """dsn None: what the environment says."""
        self.environment = {**clean_environment(), **(environment or {})}
        self.directory = private_directory("pgonce-gw-")
        self.socket = self.directory / "listen.sock"
        self.upstream, self.dsn = upstream, dsn
        self.before = []
        self.process = None

    def words(self, *options):
        return [*self.before, str(PROGRAM), "gateway", *(["--dsn", self.dsn] if self.dsn else []), "--listen", f"unix:{self.socket}", "--upstream", f"http://unix:{self.upstream.path}",
                "--required", *AS_OTHERS, *options]

    def start(self, *options):
        self.process = subprocess.Popen(self.words(*options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment, start_new_session=True)
        # The socket accepts before there is a worker.
        wait_until(lambda: self.process.poll() is not None or (self.answers() and self.has_worker()), "the gateway to work")
        assert self.process.poll() is None, self.process.stderr.read()
        return self

    def start_edited(self, *lines):
        """nginx alone, as docs/reference/gateway.md says: on what --print-config prints, with these directives of the location in it."""
        place = self.directory / "edited"
        place.mkdir(mode=0o711)
        printed = subprocess.run(self.words("--dir", str(place), "--print-config"), capture_output=True, text=True, check=True, env=self.environment).stdout
        first = "            once required;\n"
        assert printed.count(first) == 1
        (place / "nginx.conf").write_text(printed.replace(first, first + "".join(f"            {line}\n" for line in lines)))
        (place / "database").write_text(self.dsn)
        self.process = subprocess.Popen([NGINX, "-c", place / "nginx.conf"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment, start_new_session=True)
        wait_until(lambda: self.process.poll() is not None or (self.answers() and children_of(self.process.pid)), "nginx to work")
        assert self.process.poll() is None, self.process.stderr.read()
        return self

    def has_worker(self):
        return any(children_of(pid) for pid in children_of(self.process.pid))

    def answers(self):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
                return True
            except OSError:
                return False

    def post(self, key, name=None):
        return http1(self.socket, "POST", "/pay", [("Idempotency-Key", key), ("X-Test", name or key)], b"{}")

    def master(self):
        (pid,) = children_of(self.process.pid)
        return pid

    def workers(self):
        return set(children_of(self.master()))

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return ends(self.process)

    def close(self):
        if self.process and self.process.poll() is None:
            pids = children_of(self.process.pid)
            self.process.terminate()
            self.process.terminate()
            self.process.communicate(timeout=60)
            wait_until(lambda: not any(map(is_running, pids)), "nginx to end")
        shutil.rmtree(self.directory, ignore_errors=True)
