#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Runs the programs of docs/how/inbox.md, inbox-clients.md and webhooks.md: run.py LANGUAGE (python, node, go, java), after that client's test.sh, which
brings what it needs.

The files of a language are written as they stand on the pages. Its driver beside this file gives them the same messages as the others' do, by objects of
the brokers' own libraries where the language asks for types, else by small fakes; what became of them is compared here, and in the database."""

import datetime
import hashlib
import hmac
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(ROOT / "tests"))

from harness.postgres import PATIENCE_S, Postgres  # noqa: E402
from harness.proxy import Proxy  # noqa: E402

PAGES = "".join((ROOT / "docs/how" / name).read_text() for name in ("inbox.md", "inbox-clients.md", "webhooks.md"))
FETCH_S = 900
SECRET = "whsec_test"
WANTED = {
    # What the handler gives, in the order of cases(): done, error, ack, nack, or a status.
    "kafka": ["done", "done", "error", "error", "done"],
    "sqs": [["bad"], []],
    "rabbit": ["ack", "ack", "nack", "ack"],
    "stripe": [200, 200, 400, 400, 400, 200],
    "github": [204, 204, 401, 401],
}


def write(place, *names):
    """Files as they stand on the pages, each below its name."""
    for name in names:
        (text,) = re.findall(rf"^`{re.escape(name)}`:\n\n```\w+\n(.*?)^```$", PAGES, re.M | re.S)
        (place / name).write_text(text)


def sha256(text):
    return hmac.new(SECRET.encode(), text.encode(), hashlib.sha256).hexdigest()


def cases():
    order = json.dumps({"item": "lamp", "quantity": 2})
    now, old = int(time.time()), int(time.time()) - 3600
    charge = {"id": "evt_1", "type": "charge.succeeded", "data": {"object": {"id": "ch_1"}}, "pending_webhooks": 2}
    first, again = json.dumps(charge), json.dumps({**charge, "pending_webhooks": 1})
    other = json.dumps({**charge, "id": "evt_2", "type": "charge.failed"})
    push = json.dumps({"ref": "refs/heads/main"})

    def record(message, event, body):
        return {"messageId": message, "body": body, "messageAttributes": {"Pgonce-Event-Id": {"stringValue": event, "dataType": "String"}}}

    def signed(at, body):
        return {"signature": f"t={at},v0=00,v1={sha256(f'{at}.{body}')}", "body": body}

    return {
        "secret": SECRET,
        # Once, again, what cannot be applied, the id with another payload, and what could not be applied before.
        "kafka": [["e1", order], ["e1", order], ["e2", "no JSON"], ["e1", order + " "], ["e2b", order]],
        "sqs": [
            {"Records": [record("good", "e3", order), record("again", "e3", order), record("bad", "e4", "no JSON")]},
            {"Records": [record("bad", "e4", order)]},
        ],
        "rabbit": [["e5", order], ["e5", order], ["e6", "no JSON"], ["e6", order]],
        "stripe": [
            signed(now, first), signed(now, again), {"signature": f"t={now},v1={'0' * 64}", "body": first}, signed(old, first),
            {"signature": "", "body": first}, signed(now, other),
        ],
        "github": [
            {"delivery": "d1", "signature": f"sha256={sha256(push)}", "body": push}, {"delivery": "d1", "signature": f"sha256={sha256(push)}", "body": push},
            {"delivery": "d2", "signature": f"sha256={'0' * 64}", "body": push}, {"delivery": "d2", "signature": "", "body": push},
        ],
    }  # fmt: skip


def run(words, cwd, environment=None):
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=environment or os.environ.copy(), capture_output=True, text=True, check=False, timeout=FETCH_S)
    if done.returncode != 0:
        sys.exit(f"inbox: {words[0]}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def python(place):
    write(place, "inbox.py", "webhooks.py")
    shutil.copy(HERE / "driver.py", place)
    interpreter = pathlib.Path(os.environ.get("PGONCE_VENV", ROOT / "clients/python/.venv")) / "bin/python"
    return [interpreter, "driver.py"]


def node(place):
    write(place, "inbox.js", "webhooks.js")
    shutil.copy(HERE / "driver.js", place)
    (place / "node_modules").mkdir()
    (place / "node_modules/pgonce").symlink_to(ROOT / "clients/node")
    (place / "node_modules/pg").symlink_to(ROOT / "clients/node/node_modules/pg")
    return ["node", "driver.js"]


def go(place):
    write(place, "inbox.go", "webhooks.go")
    shutil.copy(HERE / "go/driver.go", place)
    (place / "go.mod").write_text((HERE / "go/go.mod").read_text().replace("../../../../clients/go", str(ROOT / "clients/go")))
    os.environ["PATH"] += ":/usr/local/go/bin"
    run(["go", "mod", "tidy"], place)
    unformatted = run(["gofmt", "-d", "inbox.go", "webhooks.go"], place)
    if unformatted:
        sys.exit(f"inbox: not as gofmt lays it out:\n{unformatted}")
    run(["go", "vet", "."], place)
    run(["go", "build", "-o", "driver", "."], place)
    return [place / "driver"]


def java(place):
    write(place, "Inbox.java", "Webhooks.java")
    jars = place / "jars"
    run(["mvn", "-q", "-B", "-f", HERE / "java/pom.xml", "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"], place)
    path = f"{ROOT}/clients/java/pgonce/target/classes:{jars}/*"
    run(["javac", "-Xlint:all,-processing", "-d", place / "classes", "-cp", path, *place.glob("*.java"), HERE / "java/Driver.java"], place)
    return ["java", "-cp", f"{place / 'classes'}:{path}", "Driver"]


def main():
    language = sys.argv[1]
    place = pathlib.Path(tempfile.mkdtemp(prefix="pgonce-inbox-"))
    try:
        words = {"python": python, "node": node, "go": go, "java": java}[language](place)
        with Postgres() as server, Proxy(server, tcp=True) as proxy:
            db = server.new_database()
            for table in re.findall(r"^CREATE TABLE .*;$", PAGES, re.M):
                db.execute(table)
            db.execute("INSERT INTO stock VALUES ('lamp', 20)")
            (place / "cases.json").write_text(json.dumps(cases()))
            environment = {
                **os.environ, "CASES": str(place / "cases.json"), "DATABASE_JDBC": f"jdbc:postgresql://{proxy.host}:{proxy.port}/{db.name}?user=postgres&sslmode=disable",
                "DATABASE": f"postgresql://postgres@{proxy.host}:{proxy.port}/{db.name}?sslmode=disable",
            }  # fmt: skip
            done = subprocess.run([str(word) for word in words], cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
            if done.returncode != 0:
                sys.exit(f"inbox: {language}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
            said = json.loads(done.stdout.splitlines()[-1])
            for way, wanted in WANTED.items():
                # The page's Go handlers answer 200 where the others say 204.
                came = [204 if way == "github" and each == 200 else each for each in said[way]]
                assert came == wanted, f"{language}, {way}: {came}, and not {wanted}\n{done.stderr[-2000:]}"
            # Kafka took two lamps twice, and SQS and RabbitMQ each: six orders in all, each once.
            assert db.value("SELECT quantity FROM stock") == 20 - 6 * 2, db.rows("SELECT * FROM stock")
            assert [row.charge for row in db.rows("SELECT * FROM payment")] == ["ch_1"]
            assert [row.delivery for row in db.rows("SELECT * FROM push")] == ["d1"]
        print(f"{datetime.datetime.now():%H:%M:%S} docs/how/inbox*.md, webhooks.md, {language}: {sum(map(len, WANTED.values()))} messages, each applied once")
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
