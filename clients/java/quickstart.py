#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Runs docs/quickstart-java.md, line by line, in a directory of its own, on a free port; and looks at what it promises. Needs a build of pgonce."""

import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from harness.broker import free_port  # noqa: E402
from harness.postgres import find_bindir, private_directory  # noqa: E402

PAGE = ROOT / "docs/quickstart-java.md"
BLOCK = re.compile(r"(?:`([\w./-]+)`:\n\n)?```(\w+)\n(.*?)```", re.S)


def run(place, environment):
    for name, kind, text in BLOCK.findall(PAGE.read_text()):
        if kind == "sh":
            for line in text.splitlines():
                print("$", line, flush=True)
                if line.startswith("export "):
                    continue  # a free port is chosen below
                subprocess.run(["bash", "-euo", "pipefail", "-c", line], cwd=place, env=environment, check=True, timeout=500, stdin=subprocess.DEVNULL)
        else:
            assert name, f"a block of {kind} without a file's name"
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)


def main():
    pgonce = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build")) / "cli/pgonce"
    if not pgonce.exists():
        print(f"quickstart-java: left out, since {pgonce} is not built")
        return
    place = private_directory("pgonce-quickstart-")
    port = free_port()
    # As a new user has it: nothing that leads libpq or the service anywhere.
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PG") or name.startswith("PGONCE")},
        "PATH": f"{pgonce.parent}:{find_bindir()}:{os.environ['PATH']}", "PGONCE": str(ROOT), "PORT": str(port),
        "USER": pwd.getpwuid(os.geteuid()).pw_name,
    }  # fmt: skip
    try:
        try:
            run(place, environment)
        except subprocess.CalledProcessError:
            log = place / "shop.log"
            print(log.read_text() if log.exists() else "the service was not started", flush=True)
            raise
        first, second, third = ((place / name).read_text() for name in ("first", "second", "third"))
        body = first.partition("\n\n")[2]
        assert " 201" in first.splitlines()[0] and body == second.partition("\n\n")[2] and body.startswith("payment "), (first, second)
        assert "Idempotency-Replayed: true" in second and "Idempotency-Replayed" not in first
        assert " 422" in third.splitlines()[0] and "urn:pgonce:problem:mismatch" in third, third
        assert (place / "count").read_text().strip() == "1"
    finally:
        if (place / "shop.pid").exists():
            try:
                os.kill(int((place / "shop.pid").read_text()), signal.SIGKILL)
            except ProcessLookupError:
                pass
        subprocess.run([pgonce, "dev", "--stop"], cwd=place, env=environment, check=False, capture_output=True)
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
