# SPDX-License-Identifier: PostgreSQL
"""Each migration tool with SQL alone: what its page in docs/how/migrations/ shows is typed in an empty project, up to the upgrade, here to a next release that
is made up. Each runs a second time, goes back as far as the tool can, and then pgonce is used by SQL and by the tool's own connection."""

import os
import pathlib
import re
import shutil
import subprocess
import uuid
import venv

import pytest

from contract.calls import Once
from contract.upgrading import Next, alone
from harness.broker import free_port
from harness.maven import FETCH_S
from harness.postgres import ROOT, clean_environment
from harness.proxy import Proxy

pytestmark = pytest.mark.whole
PAGES = ROOT / "docs/how/migrations"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "pgonce"
BLOCK = re.compile(r"(?:^(?P<before>[^\n]*)\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)


def must(done, what):
    assert done.returncode == 0, f"{what}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done


def fetch(command, what, **more):
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=FETCH_S, check=False, env=clean_environment(), **more)
        problem = done.stdout[-1500:] + done.stderr[-1500:] if done.returncode else None
    except OSError as missing:
        problem = str(missing)
    if problem:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{what} is not to be had: {problem}")
        pytest.skip(f"NOT TESTED, {what} is not to be had: {problem}")


class Project:
    """An empty project of a tool, and its page. settings: its environment."""

    def __init__(self, page, directory, release, db, url, settings=None):
        self.directory, self.db, self.url = directory, db, url
        self.environment = {**clean_environment(), "RELEASE": str(release), **(settings or {})}
        text = (PAGES / f"{page}.md").read_text()
        self.sections = dict(zip(["", *re.findall(r"^## (.*)$", text, re.M)], re.split(r"^## .*$", text, flags=re.M)))

    def run(self, command, check=True):
        done = subprocess.run(["sh", "-ec", command], cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=300, check=False)
        return must(done, command) if check else done

    def type(self, section):
        """What the section of the page says: files are written, commands typed. What the last command said."""
        said = None
        for block in BLOCK.finditer(self.sections[section]):
            named = re.search(r"`(\S+\.\w+|Rakefile)`:$", block["before"] or "")
            if block["language"] == "sh":
                said = self.run(block["text"]).stdout
            else:
                assert named, f"the page does not say where this goes: {block['text'][:80]}"
                path = self.directory / named[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a" if "Add to" in block["before"] else "w", encoding="utf-8") as file:
                    file.write(block["text"])
        assert said is not None
        return said

    def version(self):
        return self.db.value("SELECT once.contract_version()")

    def records(self):
        return self.db.rows("SELECT version, checksum, xmin FROM once.migration ORDER BY version")

    def remembers(self, key):
        return self.db.rows("SELECT state::text FROM once.intent WHERE scope = 'orders' AND key = %s", key) == [("succeeded",)]

    def use(self):
        once = Once(self.db.connect())
        assert once.complete(key="by SQL", fence=once.claim(key="by SQL").fence) is True
        assert self.remembers("by SQL")


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """The folders of this release, and of the next one."""
    this, following = tmp_path_factory.mktemp("this"), Next(tmp_path_factory.mktemp("next"))
    alone(ROOT, this)
    following.alone()
    return this, following.directory / "out"


@pytest.fixture(scope="module")
def port(server):
    with Proxy(server, tcp=free_port()) as proxy:
        proxy.target = f"{server.directory}/.s.PGSQL.5432"
        yield proxy.port


@pytest.fixture
def project(server, port, releases, tmp_path):
    made = []

    def make(page, **settings):
        db = server.empty_database()
        made.append(db)
        address = f"127.0.0.1:{port}/{db.name}"
        words = {name: value.format(address=address, url=f"postgresql://postgres@{address}") for name, value in settings.items()}
        return Project(page, tmp_path, releases[0], db, f"postgresql://postgres@{address}", words)

    yield make
    for db in made:
        db.drop()


def upgrade(project, releases):
    project.environment["RELEASE"] = str(releases[1])
    project.use()
    project.type("Upgrade")
    assert project.version() == 2 and project.remembers("by SQL")


def java(name, main, tmp_path):
    """A folder with the command `name`."""
    pom = ROOT / f"tests/packages/tools/{name}.xml"
    jars = CACHE / f"tool-{name}-{uuid.uuid5(uuid.NAMESPACE_OID, pom.read_text())}"
    if not (jars / "whole").exists():
        fetch(["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"], name, cwd="/tmp")
        (jars / "whole").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / name).write_text(f'#!/bin/sh\nexec java -cp "{jars}/*" {main} "$@"\n')
    (programs / name).chmod(0o755)
    return f"{programs}:{os.environ['PATH']}"


def test_flyway(project, releases, tmp_path_factory):
    path = java("flyway", "org.flywaydb.commandline.Main", tmp_path_factory.mktemp("flyway"))
    shop = project("flyway", FLYWAY_URL="jdbc:postgresql://{address}", FLYWAY_USER="postgres", PATH=path)
    said = shop.type("")
    assert "Successfully applied 2 migrations" in said, said
    assert shop.db.value("SELECT retention = '30 days' FROM once.scope WHERE scope = 'orders'")
    records = shop.records()
    again = "flyway -locations=filesystem:sql migrate"
    assert "No migration necessary" in shop.run(again).stdout
    upgrade(shop, releases)
    assert shop.db.value("SELECT count(*) FROM flyway_schema_history WHERE success") == 3
    # clean: pgonce stays, with what it remembers, and is found again.
    records = shop.records()
    shop.run("flyway -locations=filesystem:sql -cleanDisabled=false clean")
    assert shop.remembers("by SQL") and shop.db.rows("SELECT FROM pg_class WHERE relname = 'orders'") == []
    # The first file alone now meets a newer contract.
    (shop.directory / "later").mkdir()
    (shop.directory / "sql/V3__pgonce_upgrade.sql").rename(shop.directory / "later/V3.sql")
    refused = shop.run(again.replace("migrate", "-outputType=json migrate"), check=False)
    assert "is here, newer than this file of pgonce" in refused.stdout
    assert shop.records() == records
    # Named among Flyway's schemas it is cleaned away, and then made empty by Flyway.
    shop.run("flyway -schemas=public,once,once_job -cleanDisabled=false clean")
    refused = shop.run(again.replace("migrate", "-schemas=public,once,once_job -outputType=json migrate"), check=False)
    assert "is not pgonce's: rename it, or use another database" in refused.stdout


def test_liquibase(project, releases, tmp_path_factory):
    path = java("liquibase", "liquibase.integration.commandline.LiquibaseCommandLine", tmp_path_factory.mktemp("liquibase"))
    shop = project("liquibase", LIQUIBASE_COMMAND_URL="jdbc:postgresql://{address}", LIQUIBASE_COMMAND_USERNAME="postgres", PATH=path)
    # Cut at its semicolons nothing of it is installed.
    shop.run('cp "$RELEASE/pgonce.sql" pgonce.sql')
    page = shop.sections[""]
    (xml,) = [block["text"] for block in BLOCK.finditer(page) if block["language"] == "xml"]
    (shop.directory / "changelog.xml").write_text(xml.replace(' splitStatements="false" stripComments="false"', ""))
    refused = shop.run("liquibase --changelog-file=changelog.xml update", check=False)
    assert refused.returncode != 0 and "nterminated dollar quote" in refused.stderr + refused.stdout
    assert shop.db.rows("SELECT FROM pg_namespace WHERE nspname = 'once'") == []
    shop.type("")
    records = shop.records()
    assert shop.db.value("SELECT retention = '30 days' FROM once.scope WHERE scope = 'orders'")
    shop.run("liquibase --changelog-file=changelog.xml update")
    # Back, and forth again.
    shop.run("liquibase --changelog-file=changelog.xml rollback-count 2")
    assert shop.db.rows("SELECT FROM pg_class WHERE relname = 'orders'") == [] and shop.records() == records
    shop.run("liquibase --changelog-file=changelog.xml update")
    assert shop.records() == records
    upgrade(shop, releases)
    shop.run("liquibase --changelog-file=changelog.xml drop-all")
    assert shop.remembers("by SQL")


def virtual(name, *packages):
    """The environment's variables, with these packages in a virtual environment."""
    place = CACHE / f"tool-{name}"
    if not (place / "whole").exists():
        venv.create(place, with_pip=True, clear=True)
        fetch([place / "bin/pip", "install", "-q", *packages], name)
        (place / "whole").touch()
    return {"PATH": f"{place}/bin:{os.environ['PATH']}"}


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_alembic(project, releases, driver):
    path = virtual("alembic", "alembic==1.16.*", "sqlalchemy==2.0.*", "psycopg[binary]", "psycopg2-binary", "pg8000")
    shop = project("alembic", DATABASE_URL="{url}", **path)
    shop.environment["DATABASE_URL"] = shop.url.replace("postgresql:", f"postgresql+{driver}:")
    shop.run("alembic init migrations")
    ini = shop.directory / "alembic.ini"
    ini.write_text(re.sub(r"^sqlalchemy.url = .*$", f"sqlalchemy.url = {shop.environment['DATABASE_URL']}", ini.read_text(), flags=re.M))
    shop.type("")
    records = shop.records()
    assert shop.type("Use it").split() == ["proceed"] and shop.remembers("alembic-1")
    assert shop.run("python order.py").stdout.split() == ["replay_success"]
    shop.run("alembic upgrade head; alembic downgrade base; alembic upgrade head")
    assert shop.records() == records
    upgrade(shop, releases)
    assert shop.run("alembic current").stdout.split()[0] == "0002"
    shop.run("alembic downgrade base")
    assert shop.version() == 2
    # What the page warns of: neither reaches the database.
    revision = shop.directory / "migrations/versions/0001_pgonce.py"
    text = revision.read_text()
    for other in ("op.execute(", *(["op.get_bind().exec_driver_sql("] if driver != "pg8000" else [])):
        revision.write_text(text.replace("op.get_bind().connection.cursor().execute(", other))
        assert shop.run("alembic upgrade 0001", check=False).returncode != 0


def test_django(project, releases, port):
    shop = project("django", **virtual("django", "django==5.2.*", "psycopg[binary]"))
    shop.run("django-admin startproject shop . && python manage.py startapp orders")
    with (shop.directory / "shop/settings.py").open("a", encoding="utf-8") as settings:
        settings.write(f'INSTALLED_APPS += ["orders"]\nDATABASES = {{"default": {{"ENGINE": "django.db.backends.postgresql", "NAME": "{shop.db.name}",'
                       f' "USER": "postgres", "HOST": "127.0.0.1", "PORT": "{port}"}}}}\n')
    shop.type("")
    records = shop.records()
    shop.type("Use it")
    assert "No migrations to apply" in shop.run("python manage.py migrate").stdout
    shop.run("python manage.py migrate orders zero && python manage.py migrate")
    assert shop.records() == records
    order = "python manage.py shell -c 'from orders.tests import order; print(order(\"django-2\", \"{}\"))'"
    assert shop.run(order).stdout.split()[-1] == "proceed" and shop.remembers("django-2")
    upgrade(shop, releases)
    shop.run("python manage.py test && python manage.py flush --no-input")
    assert shop.remembers("by SQL")


@pytest.mark.parametrize("schema_format", ["ruby", "sql"])
def test_rails(project, releases, server, port, schema_format):
    if not shutil.which("rails") or not shutil.which("bundle"):
        pytest.skip("NOT TESTED, Rails is not installed: apt-get install ruby-railties ruby-activerecord ruby-pg bundler")
    shop = project("rails", PGHOST="127.0.0.1", PGPORT=str(port), PGUSER="postgres")
    shop.environment["PATH"] = f"{server.bindir}:{os.environ['PATH']}"  # pg_dump and psql
    shop.run("rails new . --name=shop --minimal --skip-bundle --skip-git -d postgresql")
    # Debian's gems, and no more.
    (shop.directory / "Gemfile").write_text('gem "railties"\ngem "activerecord"\ngem "pg"\n')
    shop.run("sed -i '/sprockets/d' config/application.rb; rm -f config/initializers/assets.rb; sed -i '/config.assets/d; /config.file_watcher/d' config/environments/*.rb")
    shop.run(f"sed -i 's/config.load_defaults 6.1/&\\n    config.active_record.schema_format = :{schema_format}/' config/application.rb; bundle install --local")
    test_db = f"{shop.db.name}_test"
    (shop.directory / "config/database.yml").write_text("".join(
        f"{name}:\n  adapter: postgresql\n  encoding: unicode\n  database: {database}\n" for name, database in (("development", shop.db.name), ("test", test_db))
    ))
    try:
        shop.run("RAILS_ENV=test bin/rails db:create")
        shop.type("")
        records = shop.records()
        shop.type("Use it")
        shop.run("bin/rails db:migrate; bin/rails db:rollback; bin/rails db:migrate")
        assert shop.records() == records
        dump = shop.directory / f"db/{'schema.rb' if schema_format == 'ruby' else 'structure.sql'}"
        assert dump.exists() and "once" not in dump.read_text().replace("sonce", "")
        upgrade(shop, releases)
        shop.run("bin/rails test")
        # From the dump.
        shop.db.close()
        shop.run("DISABLE_DATABASE_ENVIRONMENT_CHECK=1 bin/rails db:drop db:create db:schema:load")
        assert shop.version() == 2
        shop.use()
        assert shop.run("bin/rails db:migrate:status").stdout.count(" up ") == 2
    finally:
        shop.db.close()
        server.connect().cursor().execute(f'DROP DATABASE IF EXISTS "{test_db}"')


def test_prisma(project, releases, port):
    tool = CACHE / "tool-prisma"
    if not (tool / "whole").exists():
        tool.mkdir(parents=True, exist_ok=True)
        (tool / "package.json").write_text('{"private": true}\n')
        packages = [f"{name}@6.19.3" for name in ("prisma", "@prisma/client", "@prisma/adapter-pg")]
        fetch(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", *packages, "pg@8"], "Prisma", cwd=tool)
        (tool / "none").touch()
        (tool / "whole").touch()
    # The native engines are not to be had: these names keep it from asking for them.
    absent = {"PRISMA_QUERY_ENGINE_LIBRARY": str(tool / "none"), "PRISMA_SCHEMA_ENGINE_BINARY": "/bin/true", "CHECKPOINT_DISABLE": "1", "PRISMA_HIDE_UPDATE_MESSAGE": "1"}
    shop = project("prisma", DATABASE_URL="{url}", **absent)
    shutil.copytree(tool / "node_modules", shop.directory / "node_modules", symlinks=True)
    shutil.copy(tool / "package.json", shop.directory)
    shutil.copy(ROOT / "tests/packages/tools/prisma.config.ts", shop.directory)
    (shop.directory / "prisma/migrations").mkdir(parents=True)
    (shop.directory / "prisma/migrations/migration_lock.toml").write_text('provider = "postgresql"\n')
    (shop.directory / "prisma/schema.prisma").write_text(
        'generator client {\n  provider = "prisma-client-js"\n  engineType = "client"\n}\ndatasource db {\n  provider = "postgresql"\n  url = env("DATABASE_URL")\n}\n'
        "model Order {\n  id Int @id @default(autoincrement())\n  item String\n}\n"
    )
    # As the page warns: cut at its semicolons nothing of it is installed.
    shop.run('mkdir -p prisma/migrations/20260101000001_pgonce && cp "$RELEASE/pgonce.sql" prisma/migrations/20260101000001_pgonce/migration.sql')
    refused = shop.run("PLAIN=yes npx prisma migrate deploy", check=False)
    assert "unterminated dollar-quoted string" in refused.stdout + refused.stderr
    assert shop.db.rows("SELECT FROM pg_namespace WHERE nspname = 'once'") == []
    shop.run("npx prisma migrate resolve --rolled-back 20260101000001_pgonce")
    shop.type("")
    assert "No pending migrations" in shop.run("npx prisma migrate deploy").stdout
    records = shop.records()
    # dev, with its shadow database: no drift, and only the model's table is new.
    shop.run("npx prisma migrate dev --name orders")
    (made,) = (shop.directory / "prisma/migrations").glob("*_orders/migration.sql")
    assert re.findall(r"^CREATE.*|^ALTER.*|^DROP.*", made.read_text(), re.M) == ['CREATE TABLE "Order" (']
    assert shop.type("Use it").split() == ["proceed"] and shop.remembers("prisma-1")
    assert shop.run("node order.mjs").stdout.split() == ["replay_success"]
    shop.db.close()
    shop.run("npx prisma migrate reset --force --skip-generate")
    assert shop.version() == 1 and len(shop.records()) == len(records)
    upgrade(shop, releases)


