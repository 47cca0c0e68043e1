#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""The frameworks' own test suites, run once as they are and once with our middleware in front of their handlers and a key on each POST: the same tests pass.
README.md says how a suite is described, and where its source comes from.

    run.py [SUITE...] [--language node]     all that are there unless named
    run.py express -v                       what the suite's own runner says, too
    SOURCES=DIR run.py                      clones, or bare repositories, of those that come from git: DIR/express or DIR/express.git

Ends with 1 where something differs that is not listed, or is listed and does not differ; with 77 where no suite could be run."""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as xml

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from transparency import run as transparency  # noqa: E402

Broken = transparency.Broken
FETCH_S = 600
RUN_S = 3600
ROUNDS = 2  # a test counts as different if it is so each time: some are a matter of luck on a busy machine
MEMBERS = {"title", "language", "requires", "source", "prepare", "run", "environment", "inject", "results", "differs"}


class LeftOut(Exception):
    """What the suite needs is not to be had here."""


def told(words, cwd=None, environment=None):
    """The output of a command, or LeftOut: it fetches something."""
    try:
        done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=FETCH_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LeftOut(f"{words[0]}: {error}") from error
    if done.returncode != 0:
        raise LeftOut(f"{shlex.join(map(str, words))}: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()


def unpack(archive, to):
    """What is in the one folder of an archive."""
    aside = to.with_name(to.name + ".new")
    shutil.rmtree(aside, ignore_errors=True)
    with tarfile.open(archive) as files:
        files.extractall(aside, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (inside,) = aside.iterdir()
    inside.rename(to)
    aside.rmdir()


def from_npm(suite, said, to):
    """npm: NAME@VERSION, of which the package holds the tests."""
    archive = told(["npm", "pack", "--silent", "--pack-destination", suite.build, said], suite.build, suite.environment()).splitlines()[-1]
    unpack(suite.build / archive, to)


def from_sdist(suite, said, to):
    """sdist: NAME==VERSION."""
    python = suite.words(["{venv}/bin/python"])[0]
    place = suite.build / "sdist"
    shutil.rmtree(place, ignore_errors=True)
    told([python, "-m", "pip", "-q", "download", "--no-deps", "--no-binary", ":all:", "-d", place, said], suite.build, suite.environment())
    (archive,) = place.iterdir()
    unpack(archive, to)


def from_git(suite, said, to):
    """git: [URL, TAG]."""
    url, tag = said
    name = url.rstrip("/").rpartition("/")[2].removesuffix(".git")
    sources = os.environ.get("SOURCES")
    for place in [pathlib.Path(sources, each).resolve() for each in (name, f"{name}.git")] if sources else []:
        if place.is_dir():
            to.with_suffix(".tar").unlink(missing_ok=True)
            told(["git", "-c", "safe.directory=*", "-C", place, "archive", "--format", "tar", "--prefix", "source/", "-o", to.with_suffix(".tar"), tag])
            return unpack(to.with_suffix(".tar"), to)
    aside = to.with_name(to.name + ".new")
    shutil.rmtree(aside, ignore_errors=True)
    told(["git", "-c", "advice.detachedHead=false", "clone", "-q", "--depth", "1", "--branch", tag, url, aside], environment={**suite.environment(), "GIT_TERMINAL_PROMPT": "0"})
    aside.rename(to)
    return None


SOURCES = {"npm": from_npm, "sdist": from_sdist, "git": from_git}


def outcome_of(case):
    """Of a <testcase>."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def read_junit(text):
    """By classname and name, or the names of the suites around it."""
    def walk(element, around):
        for each in element:
            if each.tag == "testsuite":
                yield from walk(each, [*around, each.get("name", "")])
            elif each.tag == "testcase":
                yield " > ".join([*([each.get("classname")] if each.get("classname") else around), each.get("name", "")]), outcome_of(each)

    root = xml.fromstring(text)
    yield from walk([root] if root.tag == "testsuite" else root, [])


def read_json(text):
    """Pairs of a test's name and passed, failed or skipped."""
    for name, outcome in json.loads(text):
        yield name, outcome


def read_go(text):
    """The events of go test -json."""
    for line in text.splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("Test") and event.get("Action") in ("pass", "fail", "skip"):
            yield f"{event['Package']} > {event['Test']}", {"pass": "passed", "fail": "failed", "skip": "skipped"}[event["Action"]]


READERS = {"junit": read_junit, "json": read_json, "go": read_go}


class Suite(transparency.Described):
    """The suite of a framework as its folder describes it."""

    def __init__(self, name):
        super().__init__(HERE / name, "suite.json", "frameworks")
        said = self.description
        if set(said) - MEMBERS or len(said["source"]) != 1 or set(said["results"]) - {"form", "files"}:
            raise Broken(f"{name}/suite.json has members that there are not")
        if not all(each.get("test") and each.get("reason") for each in said.get("differs", [])):
            raise Broken(f"{name}/suite.json: an exception has a test and a reason")
        digest = hashlib.sha256(json.dumps([said["source"], said.get("prepare")]).encode()).hexdigest()[:12]
        self.source = self.build / f"source-{digest}"
        self.results = self.build / "results"

    def fetch(self):
        """Its source, prepared. What was fetched once is kept below build/."""
        self.build.mkdir(parents=True, exist_ok=True)
        ((kind, said),) = self.description["source"].items()
        ready = self.source.with_suffix(".ready")
        if kind == "goroot":
            self.source = pathlib.Path(told(["go", "env", "GOROOT"], environment=self.environment()), "src", said)
            ready = self.build / "goroot.ready"
        elif not ready.exists():
            shutil.rmtree(self.source, ignore_errors=True)
            SOURCES[kind](self, said, self.source)
        if not self.source.is_dir():
            raise LeftOut(f"{self.source} is not there")
        self.prepare(self.source, source=self.source, results=self.results)
        ready.touch()

    def run(self, places, on, verbose):
        """What became of each test: {name: [outcome...]}; several may have one name."""
        shutil.rmtree(self.results, ignore_errors=True)
        self.results.mkdir(parents=True)
        said = self.description
        given = {**said.get("environment", {}), **(said["inject"] if on else {})}
        given = dict(zip(given, self.words(given.values(), source=self.source, results=self.results)))
        environment = {**self.environment(), **places, "PGONCE": "on" if on else "off", **given}
        words = self.words(said["run"], source=self.source, results=self.results)
        output = self.results / "output"
        with open(output, "wb") as out, open(self.results / "error", "wb") as error:
            subprocess.run(transparency.postgres.tied(words), cwd=self.source, env=environment, stdout=out, stderr=error, stdin=subprocess.DEVNULL, check=False, timeout=RUN_S)
        spoken = output.read_text(errors="replace")[-6000:] + (self.results / "error").read_text(errors="replace")[-6000:]
        if verbose:
            print(f"--- {self.name}, {'with' if on else 'without'} pgonce:\n{spoken}", flush=True)
        pattern = said["results"].get("files")
        files = sorted(pathlib.Path("/").glob(self.words([pattern], source=self.source, results=self.results)[0].lstrip("/"))) if pattern else [output]
        outcomes = {}
        for file in files:
            for name, outcome in READERS[said["results"]["form"]](file.read_text(errors="replace")):
                outcomes.setdefault(name, []).append(outcome)
        if not outcomes:
            raise Broken(f"{self.name}: no test has run: {spoken}")
        return {name: sorted(each) for name, each in outcomes.items()}


def different(plain, ours):
    """{name: (without, with)} of the tests whose outcome is another one."""
    missing = ["missing"]
    return {name: (plain.get(name, missing), ours.get(name, missing)) for name in {**plain, **ours} if plain.get(name, missing) != ours.get(name, missing)}


def judged(suite_name, listed, found):
    """Problems: what differs and is not listed, and what is listed and does not. listed: {name: does it differ by luck, sometimes?}"""
    problems = [f"{name}: {', '.join(one)} without pgonce, {', '.join(two)} with it" for name, (one, two) in sorted(found.items()) if name not in listed]
    problems += [f"{name}: it no longer differs: take the exception out of suite.json" for name, sometimes in listed.items() if name not in found and not sometimes]
    return [f"{suite_name}: {each}" for each in problems]


def counted(outcomes):
    every = [each for tests in outcomes.values() for each in tests]
    return ", ".join(f"{every.count(each)} {each}" for each in ("passed", "failed", "skipped"))


def both(suite, server, port, verbose):
    """Without and with; and how many answers were stored."""
    results = []
    for on in (False, True):
        database = server.new_database()
        results.append(suite.run(transparency.places_of(database, port), on, verbose))
    stored = database.value("SELECT count(*) FROM once.intent")
    if not stored:
        raise Broken(f"{suite.name}: nothing was stored: the middleware has seen no request")
    return *results, stored


def run(suite, server, port, given):
    """True where the suite passes."""
    lacking = suite.lacks()
    if lacking:
        raise LeftOut(lacking)
    suite.fetch()
    listed = {each["test"]: each.get("sometimes", False) for each in suite.description.get("differs", [])}
    found, tried = None, 0
    while tried < ROUNDS:
        plain, ours, stored = both(suite, server, port, given.verbose)
        tried += 1
        differs = different(plain, ours)
        found = differs if found is None else {name: what for name, what in found.items() if name in differs}
        if not judged(suite.name, listed, found) or given.once:
            break
    problems = judged(suite.name, listed, found)
    for each in problems:
        print(each, flush=True)
    print(f"{suite.name} ({suite.title}): without pgonce {counted(plain)}; with it {counted(ours)}, {stored} answers stored; {len(listed)} differences listed, {len(problems)} problems", flush=True)
    return not problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="*")
    parser.add_argument("--language", action="append")
    parser.add_argument("--once", action="store_true", help="what differs is not tried a second time")
    parser.add_argument("-v", "--verbose", action="store_true")
    given = parser.parse_args()
    suites = [Suite(name) for name in given.suite or sorted(path.parent.name for path in HERE.glob("*/suite.json"))]
    suites = [each for each in suites if not given.language or each.language in given.language]
    tested, left_out, failed = [], [], []
    private, port = transparency.private_server()
    with private as server:
        for suite in suites:
            try:
                (tested if run(suite, server, port, given) else failed).append(suite.name)
            except LeftOut as why:
                left_out.append(suite.name)
                print(f"{suite.name} is left out: {why}", flush=True)
            except Broken as why:
                failed.append(suite.name)
                print(why, flush=True)
    for what, names in (("tested", tested), ("left out", left_out), ("failed", failed)):
        print(f"{what}: {' '.join(names) or 'nothing'}{'' if what == 'failed' else '; '}", end="")
    print(flush=True)
    sys.exit(1 if failed else 0 if tested else 77)


if __name__ == "__main__":
    main()
