#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Measures the branch coverage of the library and the gateway: coverage.py [--no-run] BUILD_DIRECTORY. Builds both with counters, in a
separate directory, runs their tests, prints a table, and fails if either has less than WANTED percent."""

import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
WANTED = 90  # percent, in each part
PARTS = {"the library": "lib/", "the gateway": "gateway/"}
TESTS = ["tests/lib/test_lib.py", "tests/http", "tests/gateway"]
# The C tests run once, here without sanitizers; tests that inspect the built files, run other tests again, or need the command, add no branch.
LEFT_OUT = (
    "not sanitized and not installed_library and not libraries_show and not header_compiles and not without_its_guarantee"
    " and not without_staying and not without_healing and not without_a_look and not pgonce_rehome"
)

# Patterns of lines whose branches are not counted, with the reason why our code cannot take them.
EXCLUDED = {
    r"\bassert\(": "what must hold: only a defect takes the other branch",
    r"ngx_log_error\(": "nginx's macro compares the log's level",
    r"ngx_(post_event|delete_posted_event)\(": "nginx's macros write debug messages, and ask whether an event was posted before",
    r"ngx_buf_(size|in_memory)\(": "nginx's macros tell buffers in memory, in a file, and of neither kind",
    r"ngx_del_conn\)|c->(read|write)->active\)": "only where nginx has no epoll, and Debian's on Linux has",
    r"charset_apart\(|out->charset\.len": "only a content handler that nginx does not bring sets the charset apart from the type",
    r"pass_trailers": "only of gRPC, which nginx -t refuses here",
    r"\bmetrics != NULL\)": "no request comes before its worker has counters, and none after",
    r"ngx_process != NGX_PROCESS": "a cache manager, a kind of process that starts no module",
    r"report_tries < 1000000": "more than a report is tried before it is given up",
    r"left_ms > INT_MAX": "a wait of 24 days",
    r"getrandom\(|nanosleep\(": "the kernel has no entropy yet; a signal with a handler comes during a pause",
}  # fmt: skip


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, **options)


def build(directory):
    """Without optimisation, which merges branches, and so without fortification, which needs optimisation."""
    options = ["-Db_coverage=true", "-Dbuildtype=debug", "-Dc_args=-U_FORTIFY_SOURCE"]
    run(ROOT / "tools/build.sh", directory, *options, "--", "build.ninja")  # configured, nothing else
    listed = run("meson", "introspect", "--targets", directory, cwd=ROOT, stdout=subprocess.PIPE).stdout
    targets = [
        pathlib.Path(file).relative_to(directory)
        for target in json.loads(listed)
        for file in target["filename"]
        if re.search(r"/tests/(lib|http)/|ngx_http_once_module\.so$", file)
    ]
    run("ninja", "-C", directory, "--quiet", *targets)


def clear(directory):
    """Empty counters that every user may write: if these tests run as root, nginx's workers run as another user."""
    for notes in directory.rglob("*.gcno"):
        counters = notes.with_suffix(".gcda")
        counters.write_bytes(b"")
        counters.chmod(0o666)
        notes.parent.chmod(0o777)


def test(directory):
    environment = os.environ | {"PGONCE_BUILD": str(directory), "PGONCE_BUILD_SANITIZED": str(directory)}
    workers = os.environ.get("PYTEST_WORKERS", "auto")
    beside = [] if workers == "1" else ["-n", workers, "--dist", "loadgroup"]
    command = ["/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", *beside, "-k", LEFT_OUT, *TESTS]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def count(directory):
    """{file: (branches, taken, lines, run)}."""
    found = {}
    for objects, source in ((("lib", "tests"), "lib"), (("gateway",), "gateway")):
        summary = directory / f"coverage-{source}.json"
        excluded = f".*(?:{'|'.join(EXCLUDED)})"
        run("gcovr", "--root", ROOT, "--object-directory", directory, "--filter", f"{ROOT}/{source}/", "--json-summary", summary,
            "--exclude-branches-by-pattern", excluded, *objects, cwd=directory, stdout=subprocess.DEVNULL)  # fmt: skip
        for file in json.loads(summary.read_text())["files"]:
            found[file["filename"]] = [file[name] for name in ("branch_total", "branch_covered", "line_total", "line_covered")]
    return found


def share(taken, total):
    return f"{taken:6d} of {total:5d}  {100 * taken / total:5.1f} %" if total else f"{'':24s}"


def report(found):
    """Prints the table. Returns the parts that have too little."""
    few = []
    print(f"{'':40s}{'branches':^24s}   {'lines':^24s}")
    for name, prefix in PARTS.items():
        sums = [0, 0, 0, 0]
        for file, numbers in sorted(found.items()):
            if file.startswith(prefix):
                branches, taken, lines, ran = numbers
                print(f"{file:40s}{share(taken, branches)}   {share(ran, lines)}")
                sums = [sums[i] + numbers[i] for i in range(4)]
        print(f"{name:40s}{share(sums[1], sums[0])}   {share(sums[3], sums[2])}\n")
        if sums[0] == 0 or 100 * sums[1] < WANTED * sums[0]:
            few.append(name)
    return few


def main():
    words = [word for word in sys.argv[1:] if word != "--no-run"]
    if len(words) != 1:
        sys.exit(__doc__)
    directory = pathlib.Path(words[0]).resolve()
    if "--no-run" not in sys.argv:
        build(directory)
        clear(directory)
        failed = test(directory)
        if failed:
            sys.exit(failed)
    few = report(count(directory))
    if few:
        sys.exit(f"fewer than {WANTED} % of the branches of {' and of '.join(few)} are taken: see docs/why/how-it-is-tested.md, Coverage")


if __name__ == "__main__":
    main()
