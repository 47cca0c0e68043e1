#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""How many instructions of its own an nginx worker takes for a request with a new key, without the module and with it (valgrind's callgrind): exact,
whatever else the machine does. The kernel's are not counted. More connections make larger batches."""

import argparse
import concurrent.futures
import contextlib
import http.client
import os
import re
import shutil
import subprocess
import sys

from gateway import NGINX, PROXY
from gateway import nginx as start_nginx
from measure import BUILD, Process, find, free_port

from harness.postgres import Postgres, clean_environment, private_directory, unprivileged

BODY = b'{"amount": 1999, "currency": "EUR", "card": "tok_visa"}'


def send(port, connections, requests):
    """As many requests as divide evenly among the connections; returns how many."""

    def send_some(_):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for _ in range(requests // connections):
            headers = {"Content-Type": "application/json", "Idempotency-Key": f'"{os.urandom(16).hex()}"'}
            connection.request("POST", "/pay", BODY, headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 201:
                raise RuntimeError(f"the gateway answers {answer.status}")
        connection.close()

    with concurrent.futures.ThreadPoolExecutor(connections) as pool:
        list(pool.map(send_some, range(connections)))
    return requests // connections * connections


def control(worker, *options):
    command = ["callgrind_control", *options, str(worker.process.pid)]
    subprocess.run(command, check=True, capture_output=True, env=clean_environment(), **unprivileged()[0])


def count(directory, database, module, options, connections):
    name, port = "gateway" if module else "plain", free_port()
    configured = PROXY.format(
        directory=directory, port=port, http=f'once_database "{database.dsn()}"; once_prepare on;' if module else "",
        location="once required; once_scope bench; once_tenant none;" if module else "", server="",
    )
    text = NGINX.format(load=f"load_module {module};" if module else "", directory=directory, name=name, http=configured)
    configuration, out = directory / f"{name}.conf", directory / f"{name}.{connections}"
    configuration.write_text(text.replace("worker_processes 1;", "worker_processes 1; master_process off;"))
    command = ["valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
    command += [find("nginx", "nginx"), "-p", directory, "-c", configuration, "-e", "stderr"]
    with Process(name, command, directory, ("127.0.0.1", port)) as worker:
        send(port, connections, max(100, 5 * connections))  # connections, plans, the tenant's salt
        control(worker, "--instr=on")
        control(worker, "--zero")
        sent = send(port, connections, options.requests)
        control(worker, "--dump")
        worker.process.kill()  # idle under valgrind, it may not notice a gentle signal
    dump = directory / f"{out.name}.1"  # what control() asked for; what valgrind writes at the end counts nothing
    totals = re.findall(r"^totals: (\d+)", dump.read_text(), re.M) if dump.exists() else []
    if not totals:
        sys.exit("instructions: callgrind wrote nothing")
    if options.profile and module:
        shutil.copy(dump, options.profile)
    return int(totals[0]) // sent


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--requests", type=int, default=320, help="to count, at each number of connections")
    parser.add_argument("--connections", type=int, nargs="+", default=(1, 16))
    parser.add_argument("--profile", metavar="FILE", help="write the module's last profile there")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        sys.exit("instructions: valgrind is not installed (apt-get install valgrind)")
    with contextlib.ExitStack() as stack:
        directory = private_directory("pgonce-bench-")
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        database = stack.enter_context(Postgres()).new_database()
        upstream = f"server {{ listen unix:{directory}/upstream.sock backlog=1024;" \
                   """ location / { return 201 '{"charge":17,"status":"paid"}'; } }"""
        stack.enter_context(start_nginx("upstream", directory, upstream, str(directory / "upstream.sock")))
        module = directory / "module.so"
        shutil.copy(BUILD / "gateway/ngx_http_once_module.so", module)
        module.chmod(0o755)
        print(f"{'connections':>11}{'plain nginx':>14}{'gateway':>12}")
        for connections in options.connections:
            plain, gateway = (count(directory, database, each, options, connections) for each in (None, module))
            print(f"{connections:>11}{plain:>14,}{gateway:>12,}", flush=True)


if __name__ == "__main__":
    main()
