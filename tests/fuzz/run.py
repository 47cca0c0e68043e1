# SPDX-License-Identifier: PostgreSQL
"""Builds the fuzz targets and runs each for its time of a CPU, a few at once, at the lowest priority: beside the other tests it takes what they leave.
Writes NAME.json into the folder when a target is over: its exit status, the seconds, how many inputs it tried, the end of its log.

    run.py FOLDER SECONDS AT_ONCE PARENT [NAME...]

Ends with the process PARENT. SIGTERM ends it and what it started."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
HERE = ROOT / "tests/fuzz"
# What is instrumented beside the target itself. All else that they need comes from the build's libraries.
TARGETS = {
    "config": ["runtime/config.c", "runtime/config_apply.c", "runtime/value.c"],
    "key": ["lib/src/key.c", "lib/http/problem.c", "lib/src/json.c"],
    "headers": ["lib/http/headers.c", "lib/http/buffer.c", "lib/src/json.c"],
    "fingerprint": ["tests/fuzz/stand_ins.c", "lib/src/fingerprint.c", "lib/src/json.c", "lib/src/error.c", "lib/src/names.c"],
    "json": ["lib/src/json.c", "consume/json_text.c", "consume/arena.c"],
    "message": ["consume/identify.c", "consume/json_text.c", "consume/arena.c", "consume/http_request.c", "lib/src/key.c", "lib/src/trace.c"],
    "amqp": ["consume/sources/amqp_text.c"],
    "nats": ["consume/sources/nats_message.c", "consume/delivery.c", "broker/nats.c"],
    "url": ["broker/broker.c", "runtime/config.c", "runtime/config_apply.c"],
    "conninfo": ["runtime/conninfo.c"],
    "event": ["relay/row.c", "relay/event.c", "relay/envelope.c", "relay/route.c", "runtime/memory.c", "runtime/config.c", "runtime/config_apply.c"],
    "answer": ["runtime/http_client.c", "consume/http_request.c", "consume/json_text.c", "consume/arena.c"],
    "moment": ["cli/operate/moment.c"],
    "template": ["console/render.c", "console/filter.c", "lib/http/buffer.c"],
    "aws": ["broker/aws_text.c", "broker/aws_profile.c"],
    "sqs": ["consume/sources/sqs_message.c", "consume/delivery.c", "broker/sqs.c", "broker/aws_attributes.c"],
}  # fmt: skip
SANITIZERS = ["-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
# lib/http's http.h and runtime's have one name: which one is meant is for the order to say.
FOLDERS = {name: ["include", "lib/shared", "lib/src", "lib/http", "runtime", "consume", "relay", "broker", "cli"] for name in ("config", "key", "headers", "fingerprint")}
OTHERS = ["include", "lib/shared", "runtime", "lib/src", "consume", "relay", "broker", "cli", "lib/http", "console"]
LIBRARIES = ["relay/librelay.a", "consume/libconsume.a", "broker/libbroker.a", "runtime/libruntime.a", "lib/http/libpgonce_http.a", "lib/libpgonce_parts.a"]
PACKAGES = ["libpq", "jansson", "libcurl", "libmicrohttpd", "rdkafka", "librabbitmq", "libnats", "libssl", "libcrypto"]


def find_clang():
    found = shutil.which("clang-14") or shutil.which("clang")
    assert found, "the fuzz targets need clang and its libFuzzer: run tools/setup.sh"
    return found


def pkg_config(what):
    return subprocess.run(["pkg-config", what, *PACKAGES], stdout=subprocess.PIPE, text=True, check=True).stdout.split()


def build(name, folder):
    """The program; an AssertionError with what the compiler said."""
    sources = [HERE / f"fuzz_{name}.c", *(ROOT / source for source in TARGETS[name])]
    sql = "lib" if name in ("key", "headers", "fingerprint", "json") else "consume"
    command = [find_clang(), "-std=c11", "-D_GNU_SOURCE", '-DPGONCE_RELEASE="fuzzed"', "-g", "-O1", *SANITIZERS, "-Wall", "-Wextra", "-Werror"]
    command += [f"-I{ROOT / each}" for each in FOLDERS.get(name, OTHERS)] + [f"-I{BUILD / sql}", *pkg_config("--cflags"), *map(str, sources)]
    command += ["-Wl,--start-group", *(str(BUILD / library) for library in LIBRARIES), "-Wl,--end-group", *pkg_config("--libs"), "-lpthread"]
    done = subprocess.run([*command, "-o", str(folder / name)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return folder / name


def is_there(process_id):
    return pathlib.Path(f"/proc/{process_id}").exists()


class Target:
    """One that runs. libFuzzer ends by itself on SIGUSR1, and prints what it did."""

    def __init__(self, name, folder):
        self.name, self.folder, self.asked, self.spent = name, folder, 0, 0
        program = build(name, folder)
        (folder / f"{name}.finds").mkdir()
        self.log = open(folder / f"{name}.log", "w+", encoding="utf-8", errors="replace")
        command = [program, "-max_len=4096", "-timeout=60", "-rss_limit_mb=1024", "-print_final_stats=1", f"-artifact_prefix={folder}/{name}.",
                   folder / f"{name}.finds", HERE / "corpus" / name]  # fmt: skip
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def is_over(self, seconds):
        if self.process.poll() is not None:
            return True
        self.spent = self.cpu_s()
        if self.spent >= seconds and time.monotonic() - self.asked > 5:
            # Once could be lost: while it loads its corpus nobody listens.
            self.asked = time.monotonic()
            self.process.send_signal(signal.SIGUSR1)
        return False

    def tell(self):
        self.log.seek(0)
        text = self.log.read()
        inputs = {path.name: repr(path.read_bytes()) for path in self.folder.glob(f"{self.name}.*-*")}
        executed = text.split("stat::number_of_executed_units:")
        told = {"returncode": self.process.returncode, "cpu_s": round(self.spent), "executed": int(executed[1].split()[0]) if len(executed) > 1 else 0,
                "text": text[-6000:], "inputs": inputs}  # fmt: skip
        tell(self.folder, self.name, told)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()


def tell(folder, name, told):
    """Whole or not at all: somebody waits for the file."""
    (folder / f"{name}.part").write_text(json.dumps(told), encoding="utf-8")
    (folder / f"{name}.part").rename(folder / f"{name}.json")


def run(folder, seconds, at_once, parent, names):
    waiting, running = list(names), []
    try:
        while (waiting or running) and is_there(parent):
            while waiting and len(running) < at_once:
                name = waiting.pop(0)
                try:
                    running.append(Target(name, folder))
                except (AssertionError, OSError) as problem:
                    tell(folder, name, {"returncode": None, "cpu_s": 0, "executed": 0, "text": str(problem), "inputs": {}})
            time.sleep(0.25)
            for target in list(running):
                if target.is_over(seconds):
                    target.tell()
                    running.remove(target)
                    target.end()
    finally:
        for target in running:
            target.end()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.nice(19)
    run(pathlib.Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:] or list(TARGETS))
