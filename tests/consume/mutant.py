# SPDX-License-Identifier: PostgreSQL
"""pgonce with pieces of one file of consume/ replaced: compiled and linked with the commands of the build, into a directory of its own."""

import contextlib
import shlex
import shutil
import subprocess

from harness.mutation import including, replaced
from harness.nginx import BUILD
from harness.postgres import ROOT, clean_environment, private_directory

TARGET = "cli/pgonce"


def run(words):
    done = subprocess.run(words, cwd=BUILD, capture_output=True, text=True, env=clean_environment(), check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout


@contextlib.contextmanager
def mutant(name, *pieces):
    """The path of a pgonce in whose file consume/`name` each (old, new) is replaced."""
    words = [shlex.split(line) for line in run(["ninja", "-C", BUILD, "-t", "commands", TARGET]).splitlines() if " -o " in line]
    (compiled,) = [each for each in words if each[-1].endswith(f"/consume/{name}")]
    (linked,) = [each for each in words if each[each.index("-o") + 1] == TARGET]
    directory = private_directory("pgonce-mutant-")
    try:
        text = (ROOT / "consume" / name).read_text()
        for old, new in pieces:
            text = replaced(text, old, new, name)
        source, part, program = directory / name, directory / "part.o", directory / "pgonce"
        source.write_text(text)
        compiled[-1] = str(source)
        for option, value in (("-o", part), ("-MF", directory / "part.d")):
            compiled[compiled.index(option) + 1] = str(value)
        run(including(ROOT / "consume", compiled))
        # What it defines is not looked for in the archive any more.
        at = linked.index("-o")
        linked[at + 1] = str(program)
        run([*linked[: at + 2], str(part), *linked[at + 2 :]])
        yield program
    finally:
        shutil.rmtree(directory, ignore_errors=True)
