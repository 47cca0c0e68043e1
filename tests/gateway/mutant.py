# SPDX-License-Identifier: PostgreSQL
"""The module with pieces of one of its files replaced: compiled and linked with the commands of the build, into a directory of its own."""

import contextlib
import shlex
import shutil
import subprocess

from harness.mutation import including, replaced
from harness.nginx import BUILD, MODULE
from harness.postgres import ROOT, clean_environment, private_directory

TARGET = "gateway/ngx_http_once_module.so"


def commands():
    """The build's own: (the words that compile a file of the module, by the file's name; the words that link it)."""
    said = subprocess.run(["ninja", "-C", BUILD, "-t", "commands", TARGET], capture_output=True, text=True, check=True).stdout
    words = [shlex.split(line) for line in said.splitlines()]
    compile_words = {each[-1].rpartition("/")[2]: each for each in words if "-c" in each}
    (link,) = [each for each in words if TARGET in each and "-shared" in each]
    return compile_words, link


def run(words):
    done = subprocess.run(words, cwd=BUILD, capture_output=True, text=True, env=clean_environment(), check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)


@contextlib.contextmanager
def mutant(name, *pieces):
    """The path of the module in whose file `name` each (old, new) is replaced."""
    assert MODULE == BUILD / TARGET
    compile_words, link = commands()
    directory = private_directory("pgonce-mutant-")
    try:
        text = (ROOT / "gateway" / name).read_text()
        for old, new in pieces:
            text = replaced(text, old, new, name)
        source, part, module = directory / name, directory / "part.o", directory / "module.so"
        source.write_text(text)
        words = list(compile_words[name])
        words[-1], whole = str(source), words[words.index("-o") + 1]
        for option, value in (("-o", part), ("-MF", directory / "part.d")):
            words[words.index(option) + 1] = str(value)
        run([*including(ROOT / "gateway", words), "-Wno-error"])  # what is taken out may leave something unused
        linked = [str(part) if word == whole else word for word in link]
        linked[linked.index("-o") + 1] = str(module)
        run(linked)
        module.chmod(0o755)
        yield module
    finally:
        shutil.rmtree(directory, ignore_errors=True)
