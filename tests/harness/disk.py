# SPDX-License-Identifier: PostgreSQL
"""A disk whose syncs take longer, for the servers that get its environment: bench/slow_disk.c, preloaded. Slower or faster while they run."""

import shutil
import struct
import subprocess
import sys

from .postgres import ROOT, clean_environment, private_directory, unprivileged

# Like pg_test_fsync: a page is overwritten and synced, again and again. Prints the median, in ms.
PROBE = """
import os, statistics, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
took = []
for number in range(int(sys.argv[2]) + 1):
    os.pwrite(file, os.urandom(8192), 0)
    before = time.monotonic()
    os.fdatasync(file)
    took.append(time.monotonic() - before)
print(statistics.median(took[1:]) * 1000)
"""


class SlowDisk:
    """Syncs take `ms` longer than they do by themselves."""

    def __init__(self, ms=0):
        self.directory = private_directory("pgonce-disk-")
        self.directory.chmod(0o755)
        self.file = self.directory / "delay"
        self.set(ms)
        self.library = self.directory / "slow_disk.so"
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise RuntimeError("no C compiler: apt-get install gcc")
        subprocess.run([compiler, "-std=c11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", self.library, ROOT / "bench/slow_disk.c", "-ldl"], check=True)
        self.environment = {"LD_PRELOAD": str(self.library), "PGONCE_SLOW_DISK": str(self.file)}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.directory, ignore_errors=True)

    def set(self, ms):
        """In place: the servers have mapped the file."""
        with open(self.file, "r+b" if self.file.exists() else "wb", buffering=0) as file:
            file.write(struct.pack("i", round(ms * 1000)))
        self.file.chmod(0o644)

    def probe(self, directory, count=51):
        """How long a sync takes in this directory of the servers' user, in ms."""
        path = directory / "sync-probe"
        done = subprocess.run([sys.executable, "-c", PROBE, path, str(count)], env={**clean_environment(), **self.environment}, capture_output=True, text=True,
                              check=True, **unprivileged()[0])  # fmt: skip
        path.unlink()
        return float(done.stdout)
