# SPDX-License-Identifier: PostgreSQL
"""pgonce_native in a database of an ordinary private server: its script, with the library from where it was built, so that no folder of the server is
touched. harness.extension has a server for which CREATE EXTENSION works."""

import os
import pathlib

from .postgres import ROOT

SCRIPT = ROOT / "native/pgonce_native--1.0.0.sql"


def library():
    return pathlib.Path(os.environ.get("PGONCE_BUILD") or ROOT / "build").resolve() / "native/pgonce_native.so"


def native_script(path=None):
    """What CREATE EXTENSION runs, for this library."""
    lines = [line for line in SCRIPT.read_text().splitlines() if not line.startswith("\\")]
    return "\n".join(lines).replace("MODULE_PATHNAME", str(path or library()))


def install_native(database, path=None):
    database.execute(native_script(path))


def answered(connection):
    """How many calls of this session the library has answered itself."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT once_native.answered()")
        return cursor.fetchone()[0]
