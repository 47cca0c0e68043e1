#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""What the protection costs: the quickstart's endpoint with and without @Idempotent, 16 connections, in turn in one run. Prints requests/s of each and their ratio.
Needs a build of pgonce, and wrk.

    bench.py [SECONDS [ROUNDS]]"""

import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys

import quickstart
from harness.broker import free_port
from harness.postgres import find_bindir, private_directory, unprivileged

BARE = """
    @PostMapping("/bare")
    @org.springframework.transaction.annotation.Transactional
    public ResponseEntity<String> bare(@RequestBody Payment payment) {
        return pay(payment);
    }

    public static void main"""
LUA = """
local threads = 0
function setup(thread) threads = threads + 1; thread:set("id", threads) end
function init() math.randomseed(os.time() + id * 1000); prefix = string.format("%x-%d", math.random(1, 2^30), id); n = 0 end
function request()
  n = n + 1
  return wrk.format("POST", nil, {["Idempotency-Key"] = prefix .. "-" .. n, ["Content-Type"] = "application/json"}, '{"amount": 1999}')
end
"""


def sh(line, place, environment):
    return subprocess.run(["bash", "-euo", "pipefail", "-c", line], cwd=place, env=environment, check=True, timeout=500, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout


def main():
    seconds, rounds = (int(word) for word in (sys.argv[1:] + ["8", "3"][len(sys.argv) - 1 :]))
    pgonce = pathlib.Path(os.environ.get("PGONCE_BUILD", quickstart.ROOT / "build")) / "cli/pgonce"
    place, port, user = private_directory("pgonce-bench-"), free_port(), unprivileged()[1]
    name = user.pw_name if user else os.environ["USER"]
    environment = {**os.environ, "PATH": f"{pgonce.parent}:{find_bindir()}:{os.environ['PATH']}", "PGONCE": str(quickstart.ROOT), "PORT": str(port), "PGUSER": name, "USER": name}
    service = None
    try:
        lines = []
        for file, kind, text in quickstart.BLOCK.findall(quickstart.PAGE.read_text()):
            if kind == "sh":
                lines += text.splitlines()
            else:
                (place / file).parent.mkdir(parents=True, exist_ok=True)
                (place / file).write_text(text.replace("\n    public static void main", BARE, 1) + ("spring.datasource.hikari.maximum-pool-size=16\n" if kind == "properties" else ""))
        (place / "keys.lua").write_text(LUA)
        for line in lines:
            if re.match("pgonce dev --detach|psql .*CREATE|mvn", line):
                sh(line, place, environment)
        with open(place / "shop.log", "w", encoding="utf-8") as log:
            service = subprocess.Popen(["java", "-Xmx384m", "-jar", "target/shop-1.jar"], cwd=place, env=environment, stdout=log, stderr=log)
        sh(f"curl -s --retry 60 --retry-delay 1 --retry-connrefused -o /dev/null http://127.0.0.1:{port}/", place, environment)
        rates = {"bare": [], "payments": []}
        for number in range(rounds + 1):
            for path, found in rates.items():
                said = sh(f"wrk -t 2 -c 16 -d {seconds} -s keys.lua http://127.0.0.1:{port}/{path}", place, environment)
                assert "Non-2xx" not in said, said
                if number > 0:  # the first round warms the virtual machine up
                    found.append(float(re.search(r"Requests/sec:\s*([\d.]+)", said)[1]))
        bare, protected = (statistics.median(found) for found in rates.values())
        print(f"bare {bare:.0f}/s, @Idempotent {protected:.0f}/s: {protected / bare:.2f} of it; {rates}")
    finally:
        if service is not None:
            service.send_signal(signal.SIGKILL)
            service.wait()
        subprocess.run([pgonce, "dev", "--stop"], cwd=place, env=environment, check=False, capture_output=True)
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
