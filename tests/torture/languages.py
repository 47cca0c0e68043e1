# SPDX-License-Identifier: PostgreSQL
"""The clients of clients/ as doors: a program in each language, its agent (PROGRAMS), that makes attempts by that client's public functions, and what is needed to
run it. Each takes an order as a line of JSON on its standard input, and answers with another:

  mode       transaction (run), receive, or fenced, verified, doubtful (claim); http, endpoint, leased: to a service (services.py)
  attempt, tenant, scope, key, payload, isolation
  end        effect; final: a failure for good, after the effect; retry: one for now, before it
  before_ms, after_ms, doubt_ms    pauses before and after the effect, and after the report of a doubt
  leave      the step at which the process is gone: begun, claimed, written, done; or null
  way        body, text, json: as what the answer is given
  swallow    a statement of the effect fails, and the effect goes on
  neighbour  what else is around the effect, or null:
             pieces    http: the body is written in several pieces, with pauses and without a length
             cut       leased: as destroy, and the effect stays
             destroy   http: after the effect half of the body is written, and the answer broken off. The effect must be gone
             trailers  http: a trailer comes after the body. It may be passed on, or refused by name
             second    before the effect another connection is taken from the same pool, and given back; a service gives an attempt 4 s for all of it (handlerMs)
             commit    after the effect COMMIT is sent as text, and the error goes on. The effect must be gone

  verdict, code, status, replayed, loose    as doors.Answer has them
  body       in base64, or null

A program is CLIENT DRIVER DSN, whatever the language. It says `ready` first. DRIVER is one of DRIVERS. With a PORT behind it serves HTTP there, and reads nothing:
then one of FRAMEWORKS stands where the driver does. The same program makes the calls of spec/cases, where a line has a `call` and not a `mode` (spec/cases/README.md)."""

import base64
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import time

from harness.mutation import replaced
from harness.nginx import BUILD
from harness.postgres import ROOT

from .doors import Answer, LineDoor

FACTS = json.loads((ROOT / "tools/languages.json").read_text())
LANGUAGES = tuple(FACTS)
PROGRAMS = {language: facts["agent"] for language, facts in FACTS.items()}
# Each run has one framework of a language, and its processes have the drivers in turn (tests/torture/README.md).
DRIVERS = {language: tuple(facts["torture"]["drivers"]) for language, facts in FACTS.items()}
FRAMEWORKS = {language: tuple(facts["torture"]["frameworks"]) for language, facts in FACTS.items()}
KEPT = BUILD / "doors"  # what was fetched and built
KEPT_S = 86400
START_S = 60
JARS_OF = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
PACKAGES_OF_PYTHON = ("psycopg[binary,pool]>=3.1", "psycopg2-binary", "asyncpg", "sqlalchemy[asyncio]>=2", "fastapi", "uvicorn", "flask", "django")
IMPORTS_OF_PYTHON = "psycopg, psycopg_pool, psycopg2, asyncpg, sqlalchemy, greenlet, fastapi, uvicorn, flask, django"
GO_PATH = "/usr/local/go/bin"
FILTERS = "clients/java/pgonce-spring-boot-starter/src/test/java/io/pgonce/spring/Filters.java"  # what tests and the agent share
JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


# What the program of a language does of it: {language: {mode: words}}.
ALL_OF_THEM = {
    "http": ("pieces", "destroy", "trailers", "second", "commit"), "transaction": ("second", "commit"), "endpoint": ("second",),
    "leased": ("pieces", "cut", "trailers", "second"),
}  # fmt: skip
NEIGHBOURS = {
    "node": {"http": ("pieces", "destroy", "trailers", "second", "commit"), "transaction": ("second", "commit")},
    "go": ALL_OF_THEM,
    "python": {"http": ("pieces", "destroy", "second", "commit"), "transaction": ("second", "commit")},
    "java": ALL_OF_THEM,
}  # fmt: skip


class Missing(Exception):
    """A toolchain is not here. The text says which, and what does not run without it."""


def named(doors):
    """The languages among the doors that somebody asks for by name: node, or node/transaction. Without a wish there are none."""
    names = {door.partition("/")[0] for door in doors or ()}
    return tuple(language for language in LANGUAGES if language in names)


def among(all_of_them, language, doors):
    """Of drivers or frameworks those that somebody asks for by name, as in node/http/fastify; all where nobody does."""
    wanted = {last for name, _, last in (door.split("/") for door in doors or () if door.count("/") == 2) if name == language}
    return tuple(one for one in all_of_them if one in wanted) or all_of_them


def driver_of(seed, language, number, doors=None):
    """Of the process of this number; with the seeds another one begins."""
    drivers = among(DRIVERS[language], language, doors)
    return drivers[(random.Random(f"{seed}/{language}/driver").randrange(len(drivers)) + number) % len(drivers)]


# Toolchains.


def run(words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def version_of(words, pattern):
    """(major, minor) of what a program says of itself; None where it is not here."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError:
        return None
    found = re.search(pattern, done.stdout + done.stderr)
    return tuple(int(number or 0) for number in found.groups()) if found and done.returncode == 0 else None


def python():
    return os.environ.get("PYTHON", "python3")


def go():
    return shutil.which("go") or shutil.which("go", path=GO_PATH) or "go"


# Language: (how a program says its version, where the version is in that, the least one, as what it is missed).
TOOLS = {
    "node": (([("node", "--version")], r"v(\d+)\.(\d+)", (18, 0), "Node 18 or later"), ([("npm", "--version")], r"(\d+)\.(\d+)", (0, 0), "npm")),
    "python": (([(python(), "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])")], r"(\d+)\.(\d+)", (3, 9), "Python 3.9 or later, with venv"),),
    "go": (([(go(), "version")], r"go(\d+)\.(\d+)", (1, 21), "Go 1.21 or later"),),
    "java": (([("javac", "-version")], r"javac (\d+)(?:\.(\d+))?", (17, 0), "Java 17 or later, with javac"), ([("mvn", "--version")], r"Maven (\d+)\.(\d+)", (3, 0), "Maven 3")),
}  # fmt: skip


def require(language, tools=None):
    """Missing where it cannot be built here."""
    for ways, pattern, least, what in (tools or TOOLS)[language]:
        if not any((found := version_of(words, pattern)) and found >= least for words in ways):
            raise Missing(f"the door {language} needs {what}, which is not here")


def is_here(language):
    try:
        require(language)
        return True
    except Missing:
        return False


# Programs. Each gets the client of a tree, and gives the words that start the program; what it needs besides is fetched with the ordinary client of the
# language's registry, from the lists of the real tree.


def node(tree):
    client = tree / "clients/node"
    if not (ROOT / "clients/node/node_modules/pg").exists():
        run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], cwd=ROOT / "clients/node")
    if not (client / "node_modules").exists():
        (client / "node_modules").symlink_to(ROOT / "clients/node/node_modules")
    return ["node", tree / PROGRAMS["node"] / "agent.js", client]


def interpreter():
    """Of the environment in which the client is tested (clients/python/test.sh), where that is here and complete; else of one of our own."""
    tested = pathlib.Path(os.environ.get("PGONCE_VENV", ROOT / "clients/python/.venv")) / "bin/python"
    if tested.exists() and subprocess.run([tested, "-c", f"import {IMPORTS_OF_PYTHON}"], capture_output=True, check=False).returncode == 0:
        return tested
    own = KEPT / f"python-{hashlib.sha256(repr(PACKAGES_OF_PYTHON).encode()).hexdigest()[:8]}"
    if not (own / "ready").exists():
        shutil.rmtree(own, ignore_errors=True)
        run([python(), "-m", "venv", own])
        run([own / "bin/python", "-m", "pip", "-q", "--disable-pip-version-check", "install", *PACKAGES_OF_PYTHON])
        (own / "ready").touch()
    return own / "bin/python"


def python_door(tree):
    return ["env", f"PYTHONPATH={tree / 'clients/python/src'}", "PYTHONDONTWRITEBYTECODE=1", interpreter(), tree / PROGRAMS["python"] / "agent.py", tree / "clients/python"]


def go_door(tree):
    made = KEPT / f"go-{stamp(tree, 'go')}"
    if not made.exists():
        remove_older(made)
        run([go(), "build", "-o", f"{made}.new", "."], cwd=tree / PROGRAMS["go"])
        os.replace(f"{made}.new", made)
    return [made, tree / "clients/go"]


def java(tree):
    own, poms = ROOT / PROGRAMS["java"], (ROOT / "clients/java/pom.xml", ROOT / PROGRAMS["java"] / "pom.xml")
    jars = KEPT / f"jars-{hashlib.sha256(b''.join(pom.read_bytes() for pom in poms)).hexdigest()[:8]}"
    made = KEPT / f"java-{stamp(tree, 'java')}"
    if not (jars / "ready").exists():
        shutil.rmtree(jars, ignore_errors=True)
        run(["mvn", "-q", "-B", "-f", own / "pom.xml", JARS_OF, f"-DoutputDirectory={jars}"])
        (jars / "ready").touch()
    if not made.exists():
        remove_older(made)
        fresh = pathlib.Path(f"{made}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        modules = ("pgonce", "pgonce-spring-boot-starter")
        sources = [path for module in modules for path in sorted((tree / "clients/java" / module / "src/main/java").rglob("*.java"))]
        sources.append(tree / FILTERS)
        run(["javac", "--release", "17", "-parameters", "-cp", f"{jars}/*", "-d", fresh, *sources, *sorted((tree / PROGRAMS["java"]).rglob("*.java"))])
        shutil.copytree(tree / "clients/java/pgonce-spring-boot-starter/src/main/resources", fresh, dirs_exist_ok=True)
        shutil.copy2(own / "logback.xml", fresh)
        fresh.rename(made)
    return ["java", *JVM, "-cp", f"{made}:{jars}/*", "Agent", tree / "clients/java"]


MAKERS = {"node": node, "python": python_door, "go": go_door, "java": java}


def remove_older(made):
    """Programs of the same language that were made long ago; another run may still use a newer one."""
    for old in made.parent.glob(f"{made.name.rpartition('-')[0]}-*"):
        if time.time() - old.stat().st_mtime > KEPT_S:
            shutil.rmtree(old) if old.is_dir() else old.unlink()


def stamp(tree, language):
    """Of all that a program is made of."""
    files = sorted(path for path in (tree / "clients" / language).rglob("*") if path.is_file() and "target" not in path.parts)
    digest = hashlib.sha256()
    for path in files:
        if path.suffix in (".go", ".mod", ".sum", ".java", ".xml"):
            digest.update(str(path.relative_to(tree)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def prepared(languages, tree=ROOT):
    """{language: the words that start its program}, after all that is missing was fetched and built. Missing where a toolchain is."""
    for language in languages:
        require(language)
    KEPT.mkdir(parents=True, exist_ok=True)
    return {language: MAKERS[language](pathlib.Path(tree)) for language in languages}


def mutated(language, files, tree):
    """A tree with this client and its program, a piece of it replaced. files: (file, old, new), as Mutation has them."""
    shutil.rmtree(tree, ignore_errors=True)
    leave = shutil.ignore_patterns("node_modules", ".venv", "target", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "clients" / language, tree / "clients" / language, ignore=leave)
    for file, old, new in files:
        (tree / file).write_text(replaced((tree / file).read_text(), old, new, file))
    return tree


# The door.


class ClientDoor(LineDoor):
    """A client in its language; words: its program and its driver. Killed in the middle of an attempt it is started again for the next, as whoever uses it would be. service: a door (services.py)
    for what goes by HTTP."""

    def __init__(self, language, number, words, dsn, log, service=None):
        super().__init__(f"{language}-{number}", [*words, dsn], log)
        self.service = service

    def close(self):
        super().close()
        if self.service is not None:
            self.service.close()

    def started(self):
        """A virtual machine that starts takes longer than an attempt, on a machine that has much to do."""
        self.hear(1, START_S)

    def attempt(self, intent, number, payload, orders):
        if self.service is not None and intent.mode in self.service.modes:
            return self.service.attempt(intent, number, payload, orders)
        try:
            (said,) = self.converse((json.dumps(order_of(intent, number, payload, orders)) + "\n").encode(), 1)
        except (OSError, TimeoutError) as lost:
            super().close()
            return Answer("unknown", str(lost) or "killed")
        return read(said)


def order_of(intent, number, payload, orders):
    return {
        "mode": intent.mode, "attempt": number, "tenant": intent.tenant, "scope": intent.scope, "key": intent.key, "payload": payload,
        "end": "retry" if orders.retry else "final" if intent.final else "effect", "before_ms": int(orders.before_s * 1000),
        "after_ms": int(orders.after_s * 1000), "doubt_ms": int(orders.doubt_s * 1000), "leave": orders.leave, "isolation": orders.isolation.lower(),
        "way": orders.way, "swallow": orders.swallow, "neighbour": orders.neighbour,
    }  # fmt: skip


def read(line):
    """An answer. What is no answer at all is the harness's own failure."""
    said = json.loads(line)
    acknowledged = said["verdict"] == "acknowledged"
    body = said.get("body")
    return Answer(
        said["verdict"], said.get("code") or "", said.get("status") or None, None if body is None else base64.b64decode(body),
        bool(said["replayed"]) if acknowledged else None, bool(said.get("loose")),
    )  # fmt: skip
