# SPDX-License-Identifier: PostgreSQL
"""What the benchmarks share: servers in the foreground, their CPU, peers from npm, medians."""

import contextlib
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from harness.broker import free_port  # noqa: E402, F401
from harness.disk import SlowDisk  # noqa: E402
from harness.postgres import (  # noqa: E402
    children_of,
    clean_environment,
    private_directory,
    tied,
    unprivileged,
    wait_until,
)

TICKS = os.sysconf("SC_CLK_TCK")
BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD") or ROOT / "build")
# Of the server.
SETTINGS = {
    "shared_buffers": "512MB",
    "min_wal_size": "2GB",
    "max_wal_size": "8GB",
    "synchronous_commit": "on",
    "statement_timeout": "0",
    "autovacuum": "on",
}


class Missing(Exception):
    """What a benchmark leaves out needs this, and it is not here or could not be fetched; the benchmark goes on with the rest."""


def find(program, package):
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    return found or sys.exit(f"bench: {program} is not installed: apt-get install {package}")


def accepts(address):
    family = socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX
    with socket.socket(family) as probe:
        try:
            probe.connect(address)
            return True
        except OSError:
            return False


def add_disk_option(parser):
    parser.add_argument("--fsync-ms", type=float, default=0, metavar="MS",
                        help="what a sync of the servers' files takes longer than on this disk, as on a slower one (cloud volumes take 1 to 5 ms)")


def disk_of(options, stack):
    """The disk of the servers that get its environment, as fast as it is until it is told to `slow_down`; None: this machine's own."""
    return stack.enter_context(SlowDisk()) if options.fsync_ms else None


def slow_down(disk, options, directory):
    """Prepared is what the servers have: now they are measured on a slower disk. Returns what the output says about it."""
    if disk is None:
        return "fsync on"
    own = disk.probe(directory)
    disk.set(options.fsync_ms)
    return f"fsync on and {options.fsync_ms:g} ms slower: a sync takes {disk.probe(directory):.2f} ms (without the delay {own:.2f} ms)"


class Process:
    """A server in the foreground, as the unprivileged user; ended with this program. environment: variables that it has besides."""

    def __init__(self, name, command, directory, address, environment=None):
        self.name, self.directory = name, directory
        with open(directory / f"{name}.log", "ab") as log:
            self.process = subprocess.Popen(
                tied(command), stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=directory,
                env={**clean_environment(), **(environment or {})}, **unprivileged()[0],
            )
        try:
            wait_until(lambda: self.process.poll() is not None or accepts(address), f"{name} to accept connections")
            if self.process.poll() is not None:
                raise TimeoutError(f"{name} has ended")
        except TimeoutError as late:
            sys.exit(f"bench: {late}:\n{(directory / f'{name}.log').read_text(errors='replace')[-2000:]}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)

    def pids(self):
        found, queue = [], [self.process.pid]
        while queue:
            pid = queue.pop()
            found.append(pid)
            queue += children_of(pid)
        return found


def cpu_seconds(pids):
    """Used by these processes and the children that they have waited for."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS


def fetch_peer(source):
    """The peer in the directory `source`, with the versions that its package.json names, in a copy that the servers' user can read; the
    packages are kept in .cache/. Missing: why it is not to be had."""
    if not shutil.which("npm") or not shutil.which("node"):
        raise Missing("there is no npm, or no node: apt-get install npm nodejs")
    cache = ROOT / ".cache" / f"{source.name}-peer"
    cache.mkdir(parents=True, exist_ok=True)
    wanted = (source / "package.json").read_text()
    kept = cache / "package.json"
    if not (cache / "node_modules").exists() or not kept.exists() or kept.read_text() != wanted:
        kept.write_text(wanted)
        done = subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--no-progress", "--fetch-retries=1"], cwd=cache, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            kept.unlink()
            raise Missing(f"npm could not fetch it: {done.stderr.strip()[-500:]}")
    # The server's user must get at it, wherever this tree is.
    copy = private_directory("pgonce-peer-")
    shutil.copytree(cache, copy / "peer", symlinks=True)
    shutil.copy(source / "peer.js", copy / "peer/peer.js")
    for path in [copy, *copy.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


def recycle_wal(database):
    """A server that has run for a while has old WAL files to write into. A new one makes each, and stalls all commits."""
    for _ in range(96):
        database.execute("SELECT pg_logical_emit_message(false, 'bench', '')")
        database.execute("SELECT pg_switch_wal()")
    database.execute("CHECKPOINT")


def median_row(rows):
    """The medians of what the rounds measured, also in the parts of a row."""
    first = rows[0]
    if isinstance(first, dict):
        return {name: median_row([row[name] for row in rows]) for name in first}
    return statistics.median(rows)
