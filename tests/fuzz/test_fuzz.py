# SPDX-License-Identifier: PostgreSQL
"""The fuzz targets, side by side under the address and undefined-behaviour sanitizers, each with its corpus and then with what libFuzzer makes
of it: for PGONCE_FUZZ_SECONDS (default 8; 60 where CI=true)."""
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
SECONDS = int(os.environ.get("PGONCE_FUZZ_SECONDS", "60" if os.environ.get("CI") == "true" else "8"))
HERE = ROOT / "tests/fuzz"
TARGETS = {
    "config": ["service/config.c", "service/config_apply.c"],
    "key": ["lib/http/key.c", "lib/http/problem.c", "lib/src/json.c"],
    "headers": ["lib/http/headers.c", "lib/http/buffer.c", "lib/src/json.c"],
    "fingerprint": ["tests/fuzz/stand_ins.c", "lib/src/fingerprint.c", "lib/src/json.c", "lib/src/error.c", "lib/src/names.c"],
}
# The library's SQL is generated into the build.
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all", "-Wall", "-Wextra", "-Werror",
         f"-I{ROOT}/include", f"-I{ROOT}/lib/src", f"-I{ROOT}/lib/http", f"-I{ROOT}/service", f"-I{BUILD}/lib"]


def find_clang():
    found = shutil.which("clang-14") or shutil.which("clang")
    assert found, "the fuzz targets need clang and its libFuzzer: run tools/setup.sh"
    return found


def build(name, folder):
    libpq = subprocess.run(["pkg-config", "--cflags", "libpq"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    sources = [HERE / f"fuzz_{name}.c", *(ROOT / source for source in TARGETS[name])]
    command = [find_clang(), *FLAGS, *libpq, *map(str, sources), "-lcrypto", "-lpq", "-o", str(folder / name)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return folder / name


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All targets at once, so that the time is spent once. Finds go to a folder of the test's; the corpus in the tree stays as it is."""
    folder = tmp_path_factory.mktemp("fuzz")
    programs = {name: build(name, folder) for name in TARGETS}
    started = {}
    for name, program in programs.items():
        finds = folder / f"{name}.finds"
        finds.mkdir()
        log = open(folder / f"{name}.log", "w+")
        command = [program, f"-max_total_time={SECONDS}", "-max_len=2048", "-timeout=10", "-print_final_stats=1",
                   f"-artifact_prefix={folder}/{name}.", finds, HERE / "corpus" / name]
        started[name] = (subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log), log)
    yield {name: (process, log, folder) for name, (process, log) in started.items()}
    for process, log in started.values():
        if process.poll() is None:
            process.kill()
            process.wait()
        log.close()


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_what_the_target_promises(runs, name):
    process, log, folder = runs[name]
    returncode = process.wait(timeout=SECONDS + 120)
    log.seek(0)
    text = log.read()
    inputs = {path.name: path.read_bytes() for path in folder.glob(f"{name}.*-*")}
    assert returncode == 0, f"{text[-4000:]}\ninput: {inputs}"
    executed = int(text.split("stat::number_of_executed_units:")[1].split()[0])
    assert executed > len(list((HERE / "corpus" / name).iterdir()))
