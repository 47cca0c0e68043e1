# SPDX-License-Identifier: PostgreSQL
"""Where threads meet in one structure, under ThreadSanitizer: the flight of a sink's messages, the registry of metrics. A small part of `make
test-threads`, which takes whole programs: here only these files are compiled anew, so that it costs seconds."""
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
PARTS = {
    "flight": ["tests/relay/test_flight.c", "relay/flight.c", "runtime/memory.c", "runtime/runtime.c"],
    "metrics": ["tests/runtime/test_metrics.c", "runtime/metrics.c"],
}
LIBRARIES = ["relay/librelay.a", "runtime/libruntime.a", "lib/http/libpgonce_http.a", "lib/libpgonce_parts.a"]
PACKAGES = ["libpq", "jansson", "libcurl", "libmicrohttpd", "libcrypto", "cmocka"]


def pkg_config(what):
    return subprocess.run(["pkg-config", what, *PACKAGES], stdout=subprocess.PIPE, text=True, check=True).stdout.split()


@pytest.mark.skipif(os.environ.get("PGONCE_SANITIZED") == "yes", reason="the libraries have a sanitizer of another kind")
@pytest.mark.parametrize("name", PARTS)
def test_threads_do_not_race(tmp_path, name):
    program = tmp_path / name
    folders = ["include", "relay", "runtime", "lib/src", "lib/http"]
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", '-DPGONCE_RELEASE="tested"', "-g", "-O1", "-fsanitize=thread",
               *(f"-I{ROOT / folder}" for folder in folders), *pkg_config("--cflags"), *(str(ROOT / source) for source in PARTS[name]),
               "-Wl,--start-group", *(str(BUILD / library) for library in LIBRARIES), "-Wl,--end-group", *pkg_config("--libs"), "-lpthread",
               "-o", str(program)]  # fmt: skip
    built = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert built.returncode == 0, built.stdout
    done = subprocess.run([str(program)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
                          env=os.environ | {"TSAN_OPTIONS": "exitcode=66:second_deadlock_stack=1"})  # fmt: skip
    assert done.returncode == 0 and "ThreadSanitizer" not in done.stdout, done.stdout[-8000:]
