# SPDX-License-Identifier: PostgreSQL
"""A private nginx with the module: in a directory of its own, on unix sockets, so that no port can be taken.

PGONCE_BUILD says where the module was built, or PGONCE_NGINX_MODULE names it. PGONCE_NGINX names an nginx that has the module
built in instead (one with sanitizers, say). As root it runs as the user that the private PostgreSQL runs as."""

import atexit
import functools
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading

from .client import http1, http2
from .postgres import (
    PATIENCE_S,
    ROOT,
    children_of,
    clean_environment,
    is_running,
    private_directory,
    tied,
    unprivileged,
    wait_until,
)

BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
MODULE = pathlib.Path(os.environ.get("PGONCE_NGINX_MODULE", BUILD / "gateway/ngx_http_once_module.so"))
BUILT_IN = os.environ.get("PGONCE_NGINX")
PROGRAM = BUILT_IN or shutil.which("nginx") or "/usr/sbin/nginx"

# What no run may leave in the log: the sanitizers' reports, a worker that died, a connection that leaked.
BAD_LINE = re.compile(r"AddressSanitizer|LeakSanitizer|runtime error:|\[alert\]|\[emerg\]|exited on signal|double free|corrupt")
LOG_FORMAT = (
    "log_format test '$msec $request_method $request_uri $status upstream=$upstream_status verdict=$once_verdict"
    " fence=$once_fence key=$once_key';"
)
PLAIN_FORMAT = "log_format test '$msec $request_method $request_uri $status upstream=$upstream_status';"


class Refused(Exception):
    """nginx does not take this configuration; the text is what it says."""


class Nginx:
    """main: what belongs at the top level; events: inside events {}; http: inside http {}; server: inside its one server {}. In all
    of them but events @dir@ is the private directory. shutdown: worker_shutdown_timeout. module False: plain nginx, without the module;
    a path: that one. Sockets h1, h2 and tls in the directory take HTTP/1, HTTP/2 with prior knowledge, and both over TLS."""

    def __init__(self, server="", http="", main="", workers=2, module=True, events="", shutdown="20s"):
        self.directory = private_directory("pgonce-nginx-")
        self.server, self.http, self.main, self.workers, self.module = server, http, main, workers, module
        self.events, self.shutdown = events, shutdown
        self.process = None
        self.killed = set()
        self.retired = set()  # by a reload; their title says so a little later
        self.conf = self.directory / "nginx.conf"
        self.error_log = self.directory / "error.log"
        self.access_log = self.directory / "access.log"
        self.h1, self.h2, self.tls = (self.directory / name for name in ("h1", "h2", "tls"))
        atexit.register(self.destroy)
        certificate(self.directory)
        self.write()

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, *_):
        try:
            self.close(check=kind is None)
        finally:
            self.destroy()

    def write(self, server=None, http=None):
        """Writes the configuration, with other parts where they are given; reload() makes nginx read it."""
        self.server = self.server if server is None else server
        self.http = self.http if http is None else http
        load = "" if BUILT_IN or not self.module else f"load_module {MODULE if self.module is True else self.module};"
        temporary = "".join(
            f"{kind}_temp_path {self.directory}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        text = f"""
            {load}
            worker_processes {self.workers};
            daemon off;
            pid {self.directory}/pid;
            lock_file {self.directory}/lock;
            error_log {self.error_log} info;
            worker_shutdown_timeout {self.shutdown};
            {self.main}
            events {{ worker_connections 512; {self.events} }}
            http {{
                {LOG_FORMAT if self.module else PLAIN_FORMAT}
                access_log {self.access_log} test;
                {temporary}
                default_type application/octet-stream;
                client_max_body_size 20m;
                {self.http}
                server {{
                    listen unix:{self.h1} default_server;
                    {self.listen_http2()}
                    ssl_certificate {self.directory}/certificate.pem;
                    ssl_certificate_key {self.directory}/key.pem;
                    {self.server}
                }}
            }}
            """
        self.conf.write_text(text.replace("@dir@", str(self.directory)))

    def listen_http2(self):
        """Since 1.25.1 HTTP/2 is a directive of its own, and nginx warns of the older way."""
        if version() >= (1, 25, 1):
            return f"http2 on; listen unix:{self.h2}; listen unix:{self.tls} ssl;"
        return f"listen unix:{self.h2} http2; listen unix:{self.tls} ssl http2;"

    def command(self, *more):
        return [PROGRAM, "-p", self.directory, "-c", self.conf, "-e", self.error_log, *more]

    def environment(self):
        defaults = {
            "ASAN_OPTIONS": f"detect_leaks=0:log_path={self.directory}/sanitizer",
            "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={self.directory}/sanitizer",
        }
        return {**defaults, **clean_environment()}

    def check(self):
        """nginx -t. Returns what it says; Refused where it refuses."""
        done = subprocess.run(
            [str(word) for word in self.command("-t")],
            capture_output=True,
            text=True,
            env=self.environment(),
            cwd="/tmp",
            check=False,
            timeout=PATIENCE_S,
            **unprivileged()[0],
        )
        if done.returncode != 0:
            raise Refused(done.stderr + done.stdout)
        return done.stderr

    def start(self, wait=True):
        """wait False: returns before it takes connections."""
        with open(self.directory / "output", "ab") as output:
            self.process = subprocess.Popen(
                tied(self.command()),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=self.environment(),
                cwd="/tmp",
                **unprivileged()[0],
            )

        def ready():
            if self.process.poll() is not None:
                raise Refused(f"nginx did not start (status {self.process.returncode}):\n{self.log_tail()}")
            return len(self.worker_pids()) >= self.workers and answers(self.h1)

        if wait:
            wait_until(ready, "nginx to accept connections")
        return self

    def worker_pids(self):
        """The workers that take new connections; not those that only finish what they have."""
        if self.process is None or self.process.poll() is not None:
            return set()
        pids = set(children_of(self.process.pid)) - self.retired
        return {pid for pid in pids if title(pid) == "nginx: worker process"}

    def reload(self):
        """Returns when new workers answer; the old ones may still be at work. They are returned."""
        old = self.worker_pids()
        self.process.send_signal(signal.SIGHUP)

        def reloaded():
            return len(self.worker_pids() - old) >= self.workers

        wait_until(reloaded, "the new workers after a reload")
        self.retired |= old
        return old

    def kill_worker(self, pid=None):
        """SIGKILL to a worker; returns when the master has put another in its place."""
        before = self.worker_pids()
        pid = pid or sorted(before)[0]
        self.killed.add(pid)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_running(pid), "the killed worker's end")
        wait_until(lambda: self.worker_pids() - before, "a worker in the place of the killed one")
        return pid

    def stop(self, graceful=True, patience_s=PATIENCE_S):
        """graceful: requests that are at work are finished first (SIGQUIT)."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT if graceful else signal.SIGTERM)
        self.process.wait(patience_s)
        self.process = None

    def close(self, check=True):
        """Stops it and, with check, looks for what no run may leave in the log."""
        if self.process is None:
            return
        died = self.process.poll()
        self.stop(graceful=False)
        if check:
            assert died is None, f"nginx ended by itself with status {died}:\n{self.log_tail()}"
            bad = self.bad_lines()
            assert not bad, "in nginx's log:\n" + "\n".join(bad[:30])

    def bad_lines(self):
        expected = [f"process {pid} exited on signal 9" for pid in self.killed] + [f"was locked by {pid}" for pid in self.killed]
        lines = self.log().splitlines() + (self.directory / "output").read_text(errors="replace").splitlines()
        for report in self.directory.glob("sanitizer*"):
            lines += [f"{report.name}: AddressSanitizer or UBSan"] + report.read_text(errors="replace").splitlines()
        return [line for line in lines if BAD_LINE.search(line) and not any(text in line for text in expected)]

    def destroy(self):
        atexit.unregister(self.destroy)
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(PATIENCE_S)
        self.process = None
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self):
        return self.error_log.read_text(errors="replace") if self.error_log.exists() else ""

    def access(self):
        return self.access_log.read_text(errors="replace") if self.access_log.exists() else ""

    def log_tail(self, lines=30):
        output = (self.directory / "output").read_text(errors="replace")
        return "\n".join((output + self.log()).splitlines()[-lines:])

    # Asking it. protocol: 'HTTP/1.1', 'HTTP/2', 'TLS' (HTTP/2 over TLS).

    def ask(self, method="POST", target="/", headers=(), body=None, protocol="HTTP/1.1", **options):
        if protocol == "HTTP/1.1":
            return http1(self.h1, method, target, headers, body, **options)
        if protocol == "TLS":
            return http2(self.tls, method, target, headers, body, tls=True, **options)
        assert protocol == "HTTP/2"
        return http2(self.h2, method, target, headers, body, **options)


@functools.lru_cache(maxsize=None)
def version():
    """(1, 22, 1)."""
    said = subprocess.run([PROGRAM, "-v"], capture_output=True, text=True, check=True).stderr
    return tuple(map(int, re.search(r"nginx/(\d+)\.(\d+)\.(\d+)", said).groups()))


def title(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def answers(path):
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(str(path))
        return True
    except OSError:
        return False


CERTIFICATE = {}
CERTIFICATE_LOCK = threading.Lock()


def certificate(directory):
    """A certificate that names nobody, made once for all tests of a run."""
    with CERTIFICATE_LOCK:
        if not CERTIFICATE:
            openssl = [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
                *("-subj", "/CN=test", "-days", "2", "-keyout", "key.pem", "-out", "certificate.pem"),
            ]
            subprocess.run(openssl, cwd=directory, capture_output=True, check=True)
            for name in ("key.pem", "certificate.pem"):
                CERTIFICATE[name] = (directory / name).read_bytes()
    for name, content in CERTIFICATE.items():
        (directory / name).write_bytes(content)
        os.chmod(directory / name, 0o644)
