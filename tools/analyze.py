#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Static analysis of every C file outside of tests/: clang-tidy (with clang's analyzer) and gcc -fanalyzer, one process per processor, the largest
files first, so that no processor waits for another's last file.

Clang's analyzer takes nearly all of clang-tidy's time, most of it in a few large functions, whose paths it follows until it has seen 225,000 states.
PGONCE_ANALYZER_STATES sets this limit (default 75,000, as in clang's quick mode, with all other checks unchanged; `make lint-deep` sets 225,000).
gcc's analyzer has its own limits.

    analyze.py BUILD [FILE...]

A file that passed is not analysed again in the same build directory until it, a header that it includes, or the rules change: BUILD/analyzed stores
the hash of all of these."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STATES = os.environ.get("PGONCE_ANALYZER_STATES", "75000")
# gcc's options that clang 14 does not accept.
GCC_ONLY = {"-ftrivial-auto-var-init=zero"}


def output_of(command, directory=ROOT):
    return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=directory, check=False)


class File:
    """The files to analyse, with their compiler arguments."""

    def __init__(self, path, directory, arguments):
        self.path, self.directory, self.arguments = path, directory, arguments

    def preprocessed(self):
        done = subprocess.run(["gcc", *self.arguments, "-E", "-P", self.path], cwd=self.directory, stdout=subprocess.PIPE, check=True)
        return done.stdout

    def tidy(self):
        arguments = [word for word in self.arguments if word not in GCC_ONLY]
        bound = ["-Xclang", "-analyzer-config", "-Xclang", f"max-nodes={STATES}"]
        return output_of(["clang-tidy", "--quiet", "--warnings-as-errors=*", self.path, "--", *arguments, *bound])

    def gcc(self):
        return output_of(["gcc", *self.arguments, "-fanalyzer", "-Werror", "-fdiagnostics-color=never", "-c", self.path, "-o", "/dev/null"], self.directory)


def absolute(arguments, directory):
    """Include folders as absolute paths."""
    return [f"-I{(directory / word[2:]).resolve()}" if word.startswith("-I") else word for word in arguments]


def listed(build):
    """The files in the build's list, each once."""
    files = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        directory = pathlib.Path(entry["directory"])
        path = (directory / entry["file"]).resolve()
        words = shlex.split(entry["command"])[1:]
        skip = {index for index, word in enumerate(words) if word in ("-o", "-MF", "-MQ", "-c")}
        kept = [word for index, word in enumerate(words) if index not in skip and index - 1 not in skip and word not in ("-MD", "--coverage")]
        if path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "tests"):
            files.setdefault(path, File(path, directory, absolute(kept, directory)))
    return files


def rules():
    versions = output_of(["clang-tidy", "--version"]).stdout + output_of(["gcc", "--version"]).stdout
    return hashlib.sha256((versions + (ROOT / ".clang-tidy").read_text(encoding="utf-8") + STATES + pathlib.Path(__file__).read_text(encoding="utf-8")).encode())


def analyze(file, passed, rules_hash):
    """Its problems (or ""), and the seconds that it took."""
    start = time.monotonic()
    digest = rules_hash.copy()
    digest.update(" ".join(file.arguments).encode() + file.preprocessed() + file.path.read_bytes())
    mark = passed / digest.hexdigest()
    if mark.exists():
        return "", time.monotonic() - start
    done = [file.tidy(), file.gcc()]
    wrong = "".join(each.stdout for each in done if each.returncode != 0)
    if not wrong:
        mark.touch()
    return wrong, time.monotonic() - start


def main(build, names):
    passed = build / "analyzed"
    passed.mkdir(exist_ok=True)
    files = listed(build)
    chosen = [file for path, file in files.items() if not names or str(path.relative_to(ROOT)) in names]
    chosen.sort(key=lambda file: -file.path.stat().st_size)
    rules_hash, bad, slowest = rules(), 0, []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, (wrong, seconds) in zip(chosen, pool.map(lambda file: analyze(file, passed, rules_hash), chosen)):
            slowest.append((seconds, file.path.relative_to(ROOT)))
            if wrong:
                print(wrong)
                bad += 1
    print(f"{len(chosen)} files; the slowest: " + ", ".join(f"{path} {seconds:.1f} s" for seconds, path in sorted(slowest, reverse=True)[:5]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]))
