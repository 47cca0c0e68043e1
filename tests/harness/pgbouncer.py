# SPDX-License-Identifier: PostgreSQL
"""A real PgBouncer in transaction mode before a private server, on a unix socket in a directory of its own."""

import os
import shutil
import signal
import subprocess

import psycopg2
import psycopg2.extras

from .broker import accepts
from .postgres import PATIENCE_S, PORT, clean_environment, private_directory, tied, unprivileged, wait_until

PROGRAM = shutil.which("pgbouncer") or ("/usr/sbin/pgbouncer" if os.path.exists("/usr/sbin/pgbouncer") else None)


class PgBouncer:
    """server_connections: few, so that clients really share them."""

    def __init__(self, server, users=("postgres",), server_connections=4, mode="transaction"):
        if PROGRAM is None:
            raise RuntimeError("pgbouncer is not installed: apt-get install pgbouncer")
        self.directory = private_directory("pgonce-bouncer-")
        self.log = self.directory / "log"
        (self.directory / "users").write_text("".join(f'"{user}" ""\n' for user in users))
        (self.directory / "ini").write_text(
            f"[databases]\n* = host={server.directory} port={PORT}\n[pgbouncer]\nunix_socket_dir ="
            f" {self.directory}\nlisten_port = {PORT}\nauth_type = trust\nauth_file = {self.directory}/users\npool_mode"
            f" = {mode}\ndefault_pool_size = {server_connections}\nmax_client_conn = 200\nquery_wait_timeout ="
            " 30\n"
        )
        os.chmod(self.directory / "users", 0o644)
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                tied([PROGRAM, self.directory / "ini"]),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=clean_environment(),
                cwd="/tmp",
                **unprivileged()[0],
            )
        socket_path = self.directory / f".s.PGSQL.{PORT}"
        try:
            wait_until(lambda: self.process.poll() is not None or accepts(socket_path), "PgBouncer to take connections")
            if self.process.poll() is not None:
                raise RuntimeError(f"PgBouncer did not start:\n{self.log.read_text()}")
        except Exception:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def connect(self, dbname, user="postgres", autocommit=True):
        connection = psycopg2.connect(
            host=str(self.directory),
            port=PORT,
            dbname=dbname,
            user=user,
            cursor_factory=psycopg2.extras.NamedTupleCursor,
        )
        connection.autocommit = autocommit
        return connection

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
        self.process.wait(PATIENCE_S)
        shutil.rmtree(self.directory, ignore_errors=True)
