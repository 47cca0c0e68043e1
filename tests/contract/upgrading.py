# SPDX-License-Identifier: PostgreSQL
"""The contract of other releases: those that were released, as they were (upgrade/RELEASE.sql), and a next one, made up from the files of this one."""

import pathlib
import shutil
import subprocess
import sys

from harness.postgres import ROOT

from .calls import run

RELEASED = sorted((ROOT / "tests/contract/upgrade").glob("*.sql"), key=lambda path: [int(part) for part in path.stem.split(".")])

# What a version may do to the one before it: a table and a type grow, a function's parameters change, a view goes.
NEXT = """
ALTER TABLE once.intent ADD COLUMN colour text COLLATE "C" DEFAULT 'none';
ALTER TABLE once.archive ADD COLUMN colour text COLLATE "C" DEFAULT 'none';
ALTER TYPE once.state ADD VALUE 'painted';
DROP FUNCTION IF EXISTS once.release(text, text, integer, text);
DROP VIEW IF EXISTS once.retried;
"""
RELEASE = """CREATE FUNCTION once.release(scope text, key text, fence integer, tenant text DEFAULT '', colour text DEFAULT 'none')
RETURNS text LANGUAGE sql AS 'SELECT colour';"""


def alone(root, out):
    """{name: text} of the files for those who install nothing."""
    subprocess.run([sys.executable, str(root / "packaging/sql/build"), str(out)], check=True, capture_output=True, text=True, timeout=60)
    return {path.name: path.read_text() for path in out.glob("*.sql")}


class Next:
    """The contract's files, with a version more."""

    def __init__(self, directory):
        self.directory = directory
        for name in ("contract", "cli/sql", "packaging/sql", "tools"):
            shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "meson.build", directory)
        contract = directory / "contract"
        (contract / "migrations").mkdir(exist_ok=True)
        (contract / "migrations/0002_next.sql").write_text(NEXT)
        (contract / "lease/release.sql").write_text(RELEASE)
        (contract / "see/views/retried.sql").unlink()

    def script(self, *words):
        made = [sys.executable, str(self.directory / "tools/contract.py"), *words]
        return subprocess.run(made, check=True, capture_output=True, text=True, timeout=60).stdout

    def upgrade(self, db):
        run(db.connect(), self.script("upgrade", str(db.value("SELECT once.contract_version()"))))

    def alone(self):
        return alone(self.directory, pathlib.Path(self.directory, "out"))
