# SPDX-License-Identifier: PostgreSQL
"""A server for which CREATE EXTENSION pgonce works: a copy of the one under test, in a folder of its own. PostgreSQL looks for extensions
relative to its program, so that a copied program, beside links to all the others, finds the copied folder. native: CREATE EXTENSION pgonce_native does, too."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys

from .native import SCRIPT, library as native_library
from .postgres import ROOT, Postgres, find_bindir, private_directory
from .release import VERSION


def folders(bindir):
    """Of the programs, of what is shared, and of the server's libraries."""
    if (bindir / "pg_config").exists():
        told = [subprocess.run([bindir / "pg_config", what], text=True, capture_output=True, check=True).stdout.strip() for what in ("--sharedir", "--pkglibdir")]
        return bindir, *(pathlib.Path(path).resolve() for path in told)
    top = bindir.parent  # a package that brings the server alone
    return bindir, *(next(top / each for each in (f"{name}/postgresql", name) if (top / each).is_dir()) for name in ("share", "lib"))


def add_native(extensions, pkglibdir, copied):
    """pgonce_native's files, and its library among links to all the others."""
    copied.mkdir(parents=True)
    for file in pkglibdir.iterdir():
        if file.name != native_library().name:
            (copied / file.name).symlink_to(file)
    shutil.copy(native_library(), copied)
    for file in (SCRIPT, ROOT / "native/pgonce_native.control"):
        shutil.copy(file, extensions)


@contextlib.contextmanager
def extended_server(native=False, **arguments):
    top = private_directory("pgonce-ext-")
    bindir, sharedir, pkglibdir = folders(find_bindir().resolve())
    common = os.path.commonpath([bindir, sharedir, pkglibdir])
    copied = {path: top / path.relative_to(common) for path in (bindir, sharedir)}
    copied[bindir].mkdir(parents=True)
    for program in bindir.iterdir():
        if program.name == "postgres":
            shutil.copy(program, copied[bindir])
        else:
            (copied[bindir] / program.name).symlink_to(program)
    shutil.copytree(sharedir, copied[sharedir], dirs_exist_ok=True)
    if native:
        add_native(copied[sharedir] / "extension", pkglibdir, top / pkglibdir.relative_to(common))
    for library in (bindir.parent / "lib", pkglibdir):
        place = top / library.relative_to(common)
        if library.exists() and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(library)
    folder = copied[sharedir] / "extension"
    shutil.copy(ROOT / "contract/pgonce.control", folder)
    script = subprocess.run([sys.executable, ROOT / "tools/contract.py", "extension"], text=True, capture_output=True, check=True).stdout
    (folder / f"pgonce--{VERSION}.sql").write_text(script)
    subprocess.run(["chmod", "-R", "a+rX", top], check=True)
    try:
        with Postgres(bindir=copied[bindir], **arguments) as server:
            server.extensions = folder
            yield server
    finally:
        shutil.rmtree(top, ignore_errors=True)
