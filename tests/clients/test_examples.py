# SPDX-License-Identifier: PostgreSQL
"""The services of examples/ under examples/hammer.py, which fails where their protection is taken out; and by the one line of their README. make test-clients
runs this, with the languages whose toolchains are here (PGONCE_EXAMPLES="node go")."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

from harness.broker import accepts, free_port
from harness.mutation import replaced
from harness.postgres import ROOT, wait_until

LANGUAGE = {facts["example"]: language for language, facts in json.loads((ROOT / "tools/languages.json").read_text()).items()}
KEYS = 60
BUILT_S = 600  # with what comes from a registry
LEFT_OUT = ("node_modules", "target", ".venv", "__pycache__", "orders")

# What a guarantee looks like in the code of an example: (example, file, piece, what stands in its place, what is counted wrong then).
NEW_KEY = 'r.Header.Set("Idempotency-Key", strconv.FormatInt(time.Now().UnixNano(), 10))'
MUTATIONS = {
    "express-orders without the middleware": (
        "express-orders", "orders.js", "once.express({scope: 'orders', tenant: (req) => req.customer, waitMs: 5000});",
        """(req, res, next) => express.json()(req, res, (error) => {
          req.pgonce = {tx: pool, emit: (topic, payload) => pool.query('SELECT once.emit($1, $2::jsonb)', [topic, JSON.stringify(payload)])};
          next(error);
        });""",
        "orders",
    ),
    "fastapi-payments without the lease": (
        "fastapi-payments", "payments.py", '@once.effect(scope="charges", key="{key}", lease=LEASE_S, wait=5)', "", "/charges: charges at the provider",
    ),
    "fastapi-payments without the transaction": (
        "fastapi-payments", "payments.py", "async def add_credit(payment: Payment, tx=Depends(transaction)):",
        """async def add_credit(payment: Payment):
    async with pool.connection() as tx:
        return await added(payment, tx)


async def added(payment, tx):""",
        "/credits: in the wallets",
    ),
    "go-orders with a new key for each attempt": (
        "go-orders", "serve.go", 'mux.Handle("/orders", protect(',
        'protect = func(next func(http.Handler) http.Handler) func(http.Handler) http.Handler { return func(h http.Handler) http.Handler { '
        'inner := next(h); return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { ' + NEW_KEY + '; inner.ServeHTTP(w, r) }) } }(protect)\n'
        '\tmux.Handle("/orders", protect(',
        "orders",
    ),
    "go-orders without the inbox": ("go-orders", "ship.go", "if err != nil || !fresh {", "if err != nil || fresh != fresh {", "shipments"),
    "spring-payments without @Idempotent": (
        "spring-payments", "src/main/java/payments/Payments.java", '@Idempotent(value = "payments", waitMs = 5000)',
        "@org.springframework.transaction.annotation.Transactional", "payments",
    ),
}  # fmt: skip


def require(example):
    wanted = os.environ.get("PGONCE_EXAMPLES", "").split()
    if LANGUAGE[example] not in wanted:
        pytest.skip(f"make test-clients LANGUAGES={LANGUAGE[example]} runs it")


@pytest.fixture
def tree():
    """A checkout in which examples may be built and broken. Its path is short, for the sockets in it."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="pgonce-ex-", dir="/tmp"))
    directory.chmod(0o755)
    for name in ("clients", "tests"):
        (directory / name).symlink_to(ROOT / name)
    yield directory
    shutil.rmtree(directory)


def copied(tree, example):
    shutil.copytree(ROOT / "examples" / example, tree / "examples" / example, ignore=shutil.ignore_patterns(*LEFT_OUT))
    return tree / "examples" / example


def hammer(tree, example, keys=KEYS):
    words = [sys.executable, ROOT / "examples/hammer.py", "--keys", str(keys), "--at", tree / "examples", example]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=BUILT_S + 600)
    if done.returncode == 77:
        pytest.skip(done.stderr)
    return done


@pytest.mark.parametrize("example", LANGUAGE)
def test_one_effect_and_one_answer_for_each_key_under_the_hammer(tree, example):
    require(example)
    copied(tree, example)
    done = hammer(tree, example)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{example}: " in done.stdout and "One effect and one answer for each key" in done.stdout
    print(done.stdout)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_hammer_fails_where_the_protection_is_taken_out(tree, mutation):
    example, file, old, new, counted = MUTATIONS[mutation]
    require(example)
    path = copied(tree, example) / file
    path.write_text(replaced(path.read_text(), old, new, file))
    done = hammer(tree, example)
    found = re.search(rf"^{re.escape(counted)}: (\d+) for (\d+) keys$", done.stderr, re.M)
    assert done.returncode == 1 and found, done.stdout + done.stderr
    assert int(found[1]) > int(found[2]) >= KEYS


def line_and_question(readme):
    line, question = re.findall(r"^    (.*)$", readme, re.M)
    assert question.startswith("curl ")
    return line, question


@pytest.mark.parametrize("example", LANGUAGE)
def test_it_runs_by_the_one_line_of_its_readme(tree, example):
    require(example)
    folder = copied(tree, example)
    pgonce = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build")) / "cli/pgonce"
    line, question = line_and_question((folder / "README.md").read_text())
    ports = {named: str(free_port()) for named in re.findall(r"127\.0\.0\.1:(\d+)|--port (\d+)", question + line) for named in named if named}
    for named, port in ports.items():
        line, question = line.replace(named, port), question.replace(named, port)
    provider = str(free_port())
    line = line.replace("provider.py &", f"provider.py {provider} &")
    environment = {**os.environ, "PORT": next(iter(ports.values())), "PROVIDER_URL": f"http://127.0.0.1:{provider}", "PATH": os.environ["PATH"] + ":/usr/local/go/bin"}
    subprocess.run([pgonce, "dev", "--detach"], cwd=tree, check=True, capture_output=True)
    log = tree / "log"
    try:
        with open(log, "wb") as out:
            service = subprocess.Popen(["bash", "-c", line], cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True)
        try:
            wait_until(lambda: service.poll() is not None or accepts(int(environment["PORT"])), "the service", BUILT_S)
            assert service.poll() is None, log.read_text()
            first, again = (subprocess.run(["bash", "-c", question.replace("curl ", "curl -s ", 1)], cwd=folder, capture_output=True, check=False).stdout for _ in range(2))
        finally:
            os.killpg(service.pid, signal.SIGKILL)  # what the line started, and nothing else: a session of its own
            service.wait()
    finally:
        subprocess.run([pgonce, "dev", "--stop"], cwd=tree, check=True, capture_output=True)
    status = [answer.split(b" ")[1] for answer in (first, again)]
    bodies = [answer.partition(b"\r\n\r\n")[2] for answer in (first, again)]
    assert status == [b"201", b"201"] and bodies[0] == bodies[1] != b"", (first, again, log.read_text())
