# SPDX-License-Identifier: PostgreSQL
"""What is built where libraries are missing: the library and the gateway with libpq and OpenSSL alone; the command without a broker."""

import json
import os
import pathlib
import re
import shutil
import subprocess

from harness.postgres import ROOT

QUICK = ["-Doptimization=0", "-Ddebug=false", "-Dsbom=false", "-Dtests=disabled"]


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, cwd=ROOT, timeout=600, **options)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout


def needed(binary):
    return set(re.findall(r"\(NEEDED\).*\[(lib\w+)", run("readelf", "-W", "-d", binary)))


def only(directory, *libraries):
    """The environment of a machine on which pkg-config knows these libraries alone."""
    directory.mkdir()
    for name in libraries:
        folder = pathlib.Path(run("pkg-config", "--variable=pcfiledir", name).strip())
        shutil.copy(folder / f"{name}.pc", directory)
    return os.environ | {"PKG_CONFIG_LIBDIR": str(directory)}


def test_the_library_and_the_gateway_need_libpq_and_openssl_alone(tmp_path):
    environment = only(tmp_path / "libraries", "libpq", "libcrypto", "libssl")
    said = run("meson", "setup", tmp_path / "build", *QUICK, env=environment)
    assert re.search(r"the command pgonce *: NO", said) and re.search(r"Kafka *: NO", said)
    targets = {each["name"] for each in json.loads(run("meson", "introspect", "--targets", tmp_path / "build"))}
    assert "pgonce" in targets and not targets & {"relay", "consume", "broker", "payments-example"}
    run("ninja", "-C", tmp_path / "build", env=environment)
    assert not (tmp_path / "build/cli").exists()
    library = tmp_path / "build/lib/libpgonce.so"
    assert needed(library) <= {"libpq", "libcrypto", "libc"}
    module = tmp_path / "build/gateway/ngx_http_once_module.so"
    assert not module.exists() or needed(module) <= {"libpq", "libcrypto", "libc"}


def test_without_a_brokers_library_the_command_says_so(tmp_path):
    none = ["-Dkafka=disabled", "-Drabbitmq=disabled", "-Dnats=disabled", "-Dgateway=disabled"]
    run("meson", "setup", tmp_path / "build", *QUICK, *none)
    run("ninja", "-C", tmp_path / "build", "cli/pgonce")
    program = tmp_path / "build/cli/pgonce"
    assert not needed(program) & {"librdkafka", "librabbitmq", "libnats", "libssl"}
    for section, library in (
        ("[relay orders]\nsink = kafka\nurl = kafka://127.0.0.1\n", "librdkafka"),
        ("[relay orders]\nsink = nats\nurl = nats://127.0.0.1\n", "libnats"),
        ("[consume stock]\nsource = rabbitmq\nurl = amqp://127.0.0.1\nqueue = q\nhandler = shop.take\n", "librabbitmq"),
    ):
        (tmp_path / "pgonce.conf").write_text(section)
        command = "relay" if section.startswith("[relay") else "consume"
        done = subprocess.run([program, command, "--config", tmp_path / "pgonce.conf", "--check-config"], capture_output=True, text=True, check=False)
        assert done.returncode != 0 and "built without" in done.stderr and library in done.stderr, done.stderr
    (tmp_path / "pgonce.conf").write_text("[relay orders]\nsink = stdout\n")
    done = subprocess.run([program, "relay", "--config", tmp_path / "pgonce.conf", "--check-config"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
