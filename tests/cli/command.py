# SPDX-License-Identifier: PostgreSQL
"""Running the command `pgonce` against a test's database. PGONCE_BUILD names the build directory."""
import os
import pathlib
import signal
import subprocess

from harness.postgres import ROOT, clean_environment

PROGRAM = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build")) / "cli/pgonce"
COMMANDS = (
    "init",
    "dev",
    "run",
    "gateway",
    "keep",
    "console",
    "relay",
    "consume",
    "parked",
    "show",
    "find",
    "stuck",
    "in-doubt",
    "resolve",
    "recover",
    "top",
    "doctor",
    "rehome",
    "plan",
    "version",
    "help",
)


class Command:
    """dsn None: no database is named."""

    def __init__(self, dsn=None, cwd=None):
        self.dsn = dsn
        self.cwd = cwd

    def words(self, name, *arguments):
        database = ["--dsn", self.dsn] if self.dsn and name not in ("help", "dev", "plan") else []
        return [str(PROGRAM), name, *database, *map(str, arguments)]

    def environment(self, extra):
        return {**clean_environment(), **(extra or {})}

    def __call__(self, name, *arguments, env=None, stdin=None, timeout=60):
        return subprocess.run(self.words(name, *arguments), capture_output=True, env=self.environment(env), input=stdin, cwd=self.cwd,
                              check=False, timeout=timeout)

    def start(self, name, *arguments, env=None, **kw):
        """In a session of its own: no terminal, and no signal of the tests' own process group."""
        return subprocess.Popen(self.words(name, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment(env),
                                start_new_session=True, cwd=self.cwd, **kw)

    def run(self, key, *command, options=(), **kw):
        """pgonce run in the scope of the tests."""
        return self("run", "--scope", "jobs", "--key", key, *options, "--", *command, **kw)

    def start_run(self, key, *command, options=(), **kw):
        return self.start("run", "--scope", "jobs", "--key", key, *options, "--", *command, **kw)


def ends(process, timeout=60):
    """(exit status, stdout, stderr); a process that hangs is killed, and the test fails."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, out, err
