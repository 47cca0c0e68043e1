# SPDX-License-Identifier: PostgreSQL
"""What the tests of the clients' packages share: the packages, a database that has nothing but pgonce.sql, and a project that a test types into."""

import atexit
import os
import pathlib
import re
import shutil
import subprocess
import time

import pytest

from harness.broker import free_port
from harness.postgres import ROOT, clean_environment, find_bindir, private_directory

BUILD = ROOT / "packaging/languages/build"
BLOCK = re.compile(r"^(?:[^\n]*`([\w./-]+)`:\n\n)?```(\w+)\n(.*?)^```", re.S | re.M)
# What a new user has: nothing that leads libpq, Go, npm or Maven anywhere, except to where they come from.
STRANGE = re.compile(r"PG(?!ONCE)|PGONCE$|NODE_(?!EXTRA_CA)|npm_config_(?!registry)|MAVEN_|JAVA_TOOL|GOFLAGS|VIRTUAL_ENV|PYTHON")


def environment(**more):
    kept = {name: value for name, value in clean_environment().items() if not STRANGE.match(name)}
    return {**kept, "PATH": f"{find_bindir()}:{kept['PATH']}:/usr/local/go/bin", **{name: str(value) for name, value in more.items()}}


def build(out, *languages, root=ROOT, **options):
    """packaging/languages/build OUT LANGUAGE..., as it is typed."""
    done = subprocess.run([root / "packaging/languages/build", out, *languages], capture_output=True, text=True, check=False, timeout=900, **{"env": environment(), **options})
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(pathlib.Path(line) for line in done.stdout.split())


def blocks(page, heading):
    """(file or "", language, text) of a section, from its heading to the next of its level or above."""
    level = heading.split(" ")[0]
    text = page.read_text()
    start = re.search(rf"^{re.escape(heading)}[^\n]*\n", text, re.M).end()
    end = re.search(rf"^#{{2,{len(level)}}} ", text[start:], re.M)  # one # is a page's title, or a remark in a file
    return BLOCK.findall(text[start : start + end.start()] if end else text[start:])


def shown(page, heading, kind="sh"):
    """The lines to type of a section."""
    return "".join(text for _, each, text in blocks(page, heading) if each == kind)


class Project:
    """An empty folder with the files of a release beside it, and a database `app` of the server that has only pgonce.sql."""

    def __init__(self, server, packages, pgonce_sql=None, database="app"):
        self.place = private_directory("pgonce-project-")  # sockets have short paths
        atexit.register(self.close)
        self.place.chmod(0o755)
        for path in packages:
            shutil.copy(path, self.place)
        connection = server.connect()
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
            cursor.execute(f"CREATE DATABASE {database}")
        connection.close()
        self.server, self.port = server, free_port()
        self.environment = environment(
            PGHOST=server.directory, PGDATABASE=database, PGUSER="postgres", PORT=self.port, USER="postgres", HOME=os.environ.get("HOME", "/"),
        )  # fmt: skip
        if pgonce_sql:
            shutil.copy(pgonce_sql, self.place / "pgonce.sql")
            self.types("psql -qX -v ON_ERROR_STOP=1 -f pgonce.sql")

    def close(self):
        shutil.rmtree(self.place, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def with_port(self, text):
        """The ports that the pages print may be taken here."""
        return re.sub(r"\b(?:3000|8000|8080)\b", str(self.port), text)

    def run(self, script, patience_s=600, **more):
        """Typed into one shell; what it started in the background ends with it."""
        trap = "trap '{ kill $(jobs -p); wait; } 2>/dev/null || true' EXIT\n"
        return subprocess.run(
            ["bash", "-em"], input=trap + self.with_port(script), cwd=self.place, env={**self.environment, **more}, capture_output=True, text=True, check=False, timeout=patience_s
        )  # fmt: skip

    def types(self, script, **more):
        done = self.run(script, **more)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def writes(self, files):
        for name, text in files.items():
            (self.place / name).parent.mkdir(parents=True, exist_ok=True)
            (self.place / name).write_text(self.with_port(text))


def quickstart(language):
    """Of its page: the tables to make, the files to write, and what to type from "Retry it" on; without the command and the checkout, which nobody has
    who has only the packages."""
    page = ROOT / f"docs/start/{language}.md"
    typed = [line for line in shown(page, "## 1. A database").splitlines() if line.startswith("psql") and "pgonce.sql" not in line]
    files = {name: text for name, kind, text in blocks(page, "## 3. The service") if kind != "sh"}
    tried = [line for line in shown(page, "## 4. Retry it").splitlines() if not line.startswith(("pgonce ", "kill "))]
    assert typed and files and tried
    return "\n".join(typed) + "\n", files, "\n".join(tried) + "\n"


def client(language):
    """What its page types to install the client."""
    return shown(ROOT / f"docs/start/{language}.md", "## 2. The client")


def timed(do):
    began = time.monotonic()
    return do(), time.monotonic() - began


@pytest.fixture(scope="session")
def released(tmp_path_factory):
    """The folder with the packages. PGONCE_DIST: a release that was built before."""
    if os.environ.get("PGONCE_DIST"):
        return pathlib.Path(os.environ["PGONCE_DIST"]).absolute()
    out = tmp_path_factory.mktemp("dist")
    build(out)
    return out


@pytest.fixture(scope="session")
def pgonce_sql(tmp_path_factory):
    out = tmp_path_factory.mktemp("sql")
    subprocess.run([ROOT / "packaging/sql/build", out], check=True, capture_output=True)
    return out / "pgonce.sql"
