# SPDX-License-Identifier: PostgreSQL
"""SQL alone: pgonce.sql and upgrade-N.sql install and upgrade what pgonce init does, in any tool's transaction or without one, whole or not at all.
What each tool makes of them: test_sql_tools.py."""

import os
import re
import shutil
import subprocess
import sys

import psycopg2
import pytest

from contract.calls import Once, code_of, run
from contract.test_dumps import OBJECTS
from contract.upgrading import RELEASED, Next, alone
from harness.postgres import ROOT, clean_environment

VERSION = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text())[1]
BUILD = ROOT / "packaging/sql/build"
RECORD = "SELECT version, name, checksum, pgonce FROM once.migration ORDER BY version"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return alone(ROOT, tmp_path_factory.mktemp("sql"))


@pytest.fixture(scope="module")
def following(tmp_path_factory):
    next_one = Next(tmp_path_factory.mktemp("next"))
    return next_one, next_one.alone()


@pytest.fixture
def empty(server):
    database = server.empty_database()
    yield database
    database.drop()


def installed(db):
    return db.rows(OBJECTS), db.rows(RECORD)


def by_command(*words):
    build = os.environ.get("PGONCE_BUILD", ROOT / "build")
    if not os.path.exists(f"{build}/cli/pgonce"):
        pytest.skip("the command is not built")
    return subprocess.run([f"{build}/cli/pgonce", *words], env=clean_environment(), capture_output=True, text=True, timeout=60, check=False)


# ---- the files ----


def test_they_are_the_same_for_each_user_and_hold_nothing_that_lies_about(files, tmp_path):
    tree = tmp_path / "tree"
    for name in ("contract", "cli/sql", "packaging/sql", "tools"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("meson.build", ".gitignore"):
        shutil.copy(ROOT / name, tree)
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tree, check=True)
    (tree / "contract/lease/stray.sql").write_text("CREATE FUNCTION once.stray() RETURNS void LANGUAGE sql AS '';\n")
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, tree / "packaging/sql/build", out], umask=0o077, capture_output=True, text=True, check=True)
    assert {path.name: path.read_text() for path in out.iterdir()} == files
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o644}
    assert done.stdout.split() == [str(out / name) for name in (f"pgonce-{VERSION}.sql", "pgonce.sql", "upgrade-1.sql")]


def test_each_is_one_statement_of_plain_characters(files):
    assert files["pgonce.sql"] == files[f"pgonce-{VERSION}.sql"]
    for name, text in files.items():
        assert re.fullmatch(r"(--[^;'\"$\n]*\n)+DO \$pgonce\$\n.*\nEND \$pgonce\$;\n", text, re.S), name
        assert text.count("$pgonce$") == 2
        # What Flyway and Liquibase take for placeholders, Rails' and Helm's templates for code, psql for a command, and an editor adds.
        assert not re.search(r"\$\{|#\{|\{\{|<%|^\\|\r|\ufeff|[^\x00-\x7f]", text, re.M), name


def test_a_migration_that_was_released_is_never_changed(files):
    """Until the first release is tagged, tests/contract/upgrade/RELEASE.sql may be made again: packaging/sql/build writes it."""
    now = dict(re.findall(r" USING (\d+), '\w+', '([0-9a-f]{64})', this_release;", files["pgonce.sql"]))
    assert RELEASED, "a release leaves what it installs in tests/contract/upgrade/"
    for path in RELEASED:
        then = re.findall(r" USING (\d+), '\w+', '([0-9a-f]{64})', this_release;", path.read_text())
        assert then and all(now.get(version) == checksum for version, checksum in then), (
            f"{path.name} has migrations that are not those of contract/: write a new one in contract/migrations/ and leave the old ones"
        )


@pytest.mark.whole
def test_what_this_release_installs_is_kept_for_the_tests_of_later_ones(files):
    kept = ROOT / f"tests/contract/upgrade/{VERSION}.sql"
    assert kept.exists() and kept.read_text() == files["pgonce.sql"], f"packaging/sql/build OUT && cp OUT/pgonce.sql {kept}"


# ---- what they do ----


def test_it_installs_what_init_installs_and_init_and_doctor_accept_it(server, empty, files):
    by_init = server.new_database()
    connection = empty.connect(autocommit=False)
    run(connection, "CREATE TABLE public.t (n integer); SET LOCAL search_path = public, once; SET LOCAL standard_conforming_strings = off")
    run(connection, "SET LOCAL escape_string_warning = off; SET LOCAL quote_all_identifiers = on; SET LOCAL check_function_bodies = on")
    connection.cursor().execute(files["pgonce.sql"])
    settings = "SELECT name, setting FROM pg_settings WHERE name IN ('search_path', 'check_function_bodies', 'lock_timeout') ORDER BY 1"
    assert run(connection, settings) == [("check_function_bodies", "on"), ("lock_timeout", "0"), ("search_path", "public, once")]
    connection.commit()
    assert connection.notices == []
    assert installed(empty) == installed(by_init)
    done = by_command("init", "--dsn", empty.dsn(), "--no-native")
    assert done.returncode == 0 and "is already current" in done.stdout, done.stdout + done.stderr
    assert '"failed"' not in by_command("doctor", "--json", "--dsn", empty.dsn()).stdout
    once = Once(empty.connect())
    assert once.complete(key="k", fence=once.claim(key="k").fence) is True
    by_init.drop()


def test_a_failure_leaves_nothing_and_a_second_run_changes_nothing_even_without_a_transaction(empty, files):
    broken = files["pgonce.sql"].replace("GRANT USAGE ON SCHEMA once TO %I", "GRANT USAGE ON SCHEMA once_gone TO %I")
    assert broken != files["pgonce.sql"]
    connection = empty.connect()
    assert code_of(lambda: connection.cursor().execute(broken)) == "3F000"
    assert empty.rows("SELECT FROM pg_namespace WHERE nspname LIKE 'once%%'") == []
    for _ in range(2):
        connection.cursor().execute(files["pgonce.sql"])
        connection.cursor().execute(files["upgrade-1.sql"])
        again = empty.rows("SELECT xmin, * FROM once.migration ORDER BY version"), installed(empty)
    connection.cursor().execute(files["pgonce.sql"])
    assert (empty.rows("SELECT xmin, * FROM once.migration ORDER BY version"), installed(empty)) == again


def test_an_owner_without_a_right_but_on_the_database_installs_it_and_is_told_which_roles_are_missing(files):
    from harness.postgres import Postgres

    with Postgres() as server:
        run(server.connect(), "CREATE ROLE plain_owner LOGIN NOCREATEROLE NOCREATEDB NOSUPERUSER")
        db = server.empty_database("plain_owner")
        connection = db.connect("plain_owner")
        connection.cursor().execute(files["pgonce.sql"])
        assert sum("role once_app is missing" in notice and "pgonce.sql" in notice for notice in connection.notices) == 1
        assert Once(connection).claim(key="k").verdict == "new_claim"
        # The administrator makes a role; run again, the file grants it what it needs.
        run(db.connect(), "CREATE ROLE once_app")
        del connection.notices[:]
        connection.cursor().execute(files["pgonce.sql"])
        assert db.value("SELECT has_function_privilege('once_app', 'once.any_tenant()', 'execute')")
        assert not any("once_app" in notice for notice in connection.notices)


STATES = (
    ("DROP SCHEMA once, once_job CASCADE", "upgrade-1.sql", "there is no pgonce here: run pgonce.sql of pgonce {version} instead of this file"),
    ("DROP SCHEMA once, once_job CASCADE; CREATE SCHEMA once", "pgonce.sql", "rename it, or use another database"),
    ("DROP SCHEMA once, once_job CASCADE; SET LOCAL ROLE stranger", "pgonce.sql", "role stranger may not create a schema here: run it as the owner of the database, or GRANT CREATE"),
    ("SET LOCAL ROLE stranger", "pgonce.sql", "the contract here belongs to postgres, and this is role stranger: run it as postgres"),
    ("DELETE FROM once.migration", "pgonce.sql", "as after a dump of the schema alone: load the rows of that dump; only if all tables are empty, DROP SCHEMA"),
    ("INSERT INTO once.migration VALUES (2, 'next', 'x', '9.0.0'); UPDATE once.migration SET pgonce = '9.0.0', checksum = 'x' WHERE version = 0", "upgrade-1.sql",
     "contract 2 of pgonce 9.0.0 is here, newer than this file of pgonce {version}: leave it out"),
    ("UPDATE once.migration SET pgonce = '10.0.0', checksum = 'x' WHERE version = 0", "upgrade-1.sql", "contract 1 of pgonce 10.0.0 is here, newer than this file"),
    ("UPDATE once.migration SET checksum = 'x' WHERE version = 1", "pgonce.sql", "migration 1 is not recorded as pgonce {version} knows it: restore the database"),
    ("UPDATE once.migration SET pgonce = '0.9.0', checksum = 'x' WHERE version = 0", "pgonce.sql",
     "contract 1 of pgonce 0.9.0 is here: run upgrade-1.sql of pgonce {version} instead of this file"),
)  # fmt: skip


@pytest.mark.parametrize(("state", "file", "told"), STATES)
def test_what_it_cannot_do_it_says_in_one_line_with_what_to_do(db, files, state, file, told):
    if not db.rows("SELECT FROM pg_roles WHERE rolname = 'stranger'"):
        db.execute("CREATE ROLE stranger")
    connection = db.connect(autocommit=False)
    run(connection, state)
    with pytest.raises(psycopg2.Error) as refused:
        connection.cursor().execute(files[file])
    message = refused.value.diag.message_primary
    assert message.startswith(f"pgonce: nothing was changed in database {db.name}: ") and told.format(version=VERSION) in message
    assert refused.value.pgcode == "55000" and "\n" not in message
    connection.rollback()


def test_older_files_and_older_programs_say_what_to_do_before_a_newer_contract(db, files, following):
    """And the other way round."""
    _, newer = following
    with pytest.raises(psycopg2.Error, match="contract 1 of pgonce .* is here: run upgrade-1.sql of pgonce .* instead"):
        db.connect().cursor().execute(newer["pgonce.sql"])
    db.connect().cursor().execute(newer["upgrade-1.sql"])
    for name in ("pgonce.sql", "upgrade-1.sql"):
        with pytest.raises(psycopg2.Error, match="contract 2 of pgonce .* is here, newer than this file .*: leave it out"):
            db.connect().cursor().execute(files[name])
    done = by_command("init", "--dsn", db.dsn())
    assert done.returncode != 0 and "hint: use the newer pgonce; a contract is never taken back" in done.stderr
    db.connect().cursor().execute(newer["upgrade-2.sql"])  # nothing to do
    assert db.value("SELECT once.contract_version()") == 2
