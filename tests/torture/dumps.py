# SPDX-License-Identifier: PostgreSQL
"""Somebody who takes a plain dump in the midst of it all and restores it with psql into another database of the same server. What the dump's snapshot
held is compared with what is there afterwards, an intent that was stored before is attempted in the copy, and a relay starts there. A fault may spoil
the work, which then begins anew; what went wrong without one is written down, for the judge."""

import base64
import contextlib
import os
import random
import re
import subprocess
import threading
import traceback

import psycopg2
import psycopg2.extras

from harness.postgres import clean_environment

AFTER_MOST_S = 15
PATIENCE_S = 60  # of a program
PAUSE_S = 0.5
COPY = "torture_restored"
PASSING = ("08", "25006", "40", "53", "55", "57", "58")  # what faults do: lost connections, no space, cancelled, a standby
ROWS = "SELECT count(*)::integer AS count, md5(string_agg(row, ';' ORDER BY row COLLATE \"C\")) AS sum FROM ({}) AS r (row)"
TABLES = {
    "intents": "SELECT i::text FROM once.intent AS i",
    "decisions": "SELECT d::text FROM once.decision AS d",
    "events": "SELECT o.event_id || o.payload::text FROM once.outbox AS o",
    "effects": "SELECT e::text FROM torture.effect AS e",
    "ledger": "SELECT l::text FROM torture.ledger AS l",
}
STORED = """
    SELECT tenant, scope, key, fingerprint, response_status AS status, response_body AS body FROM once.intent
     WHERE scope IN ('accounts', 'fenced', 'doubtful') AND state = 'succeeded' ORDER BY completed_at DESC LIMIT 1"""
START = "SELECT verdict, response_status AS status, response_body AS body FROM once.start(%s, %s, %s, %s)"


class Spoilt(Exception):
    """By a fault, or so it may be."""


def is_passing(error):
    return isinstance(error, psycopg2.InterfaceError) or (error.pgcode or "08").startswith(PASSING)


def said(answer):
    body = answer["body"]
    return [answer["status"], None if body is None else base64.b64encode(bytes(body)).decode()]


class Session:
    """A connection of the superuser's, which nothing interrupts but faults."""

    def __init__(self, dsn):
        options = "-c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0"
        self.connection = psycopg2.connect(dsn, cursor_factory=psycopg2.extras.RealDictCursor, options=options)
        self.connection.autocommit = True
        self.close = self.connection.close

    def row(self, query, *values):
        with self.connection.cursor() as cursor:
            cursor.execute(query, values or None)
            found = cursor.fetchone() if cursor.description else None
            return None if found is None else dict(found)

    def held(self):
        return {name: list(self.row(ROWS.format(query)).values()) for name, query in TABLES.items()}


def offered(copy):
    """What a relay is told that starts in the copy, where the progress that was copied means nothing."""
    relay = copy.row("SELECT relay FROM once.relay LIMIT 1")
    if relay is None:
        return {}
    try:
        return {"relay": "taken" if copy.row("SELECT taken FROM once_job.relay_take(%s)", relay["relay"])["taken"] else "held"}
    except psycopg2.Error as error:
        if error.pgcode != "P4080":
            raise
        return {"relay": error.pgcode}


class Dumper(threading.Thread):
    """problems: what nobody expected."""

    def __init__(self, system, recorder, seed, problems):
        super().__init__(daemon=True, name="dumper")
        self.system, self.recorder, self.problems = system, recorder, problems
        self.after_s = min(AFTER_MOST_S, system.seconds * random.Random(f"{seed}/dump").uniform(0.2, 0.6))
        self.file = system.directory / "dump.sql"
        self.over, self.last = threading.Event(), ""

    def run(self):
        pause_s = self.after_s
        try:
            while not self.over.wait(pause_s):
                pause_s = PAUSE_S
                try:
                    found = self.dump_and_restore()
                    self.recorder.record("dumped", **found)
                    return
                except (Spoilt, psycopg2.Error, subprocess.TimeoutExpired) as error:
                    if isinstance(error, psycopg2.Error) and not is_passing(error):
                        raise
                    self.last = str(error)
        except Exception:  # pylint: disable=broad-except
            self.problems.append(f"dumper: {traceback.format_exc()}")
        finally:
            self.file.unlink(missing_ok=True)

    def program(self, name, *words):
        bindir = self.system.primary.server.bindir
        with open(self.file, "ab") as file:  # both: pg_dump adds to it, psql reads it by its name
            done = subprocess.run(
                [bindir / name, *words], stdout=file if name == "pg_dump" else subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                env={**clean_environment(), "PGOPTIONS": "-c statement_timeout=0 -c lock_timeout=0"}, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
        return done.returncode, done.stderr.decode(errors="replace")

    def dump_and_restore(self):
        """What the snapshot held and what there is after restoring it; said: an error that no fault explains."""
        self.file.unlink(missing_ok=True)
        with contextlib.closing(Session(self.system.direct_dsn())) as shop:
            shop.row("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            snapshot = shop.row("SELECT pg_export_snapshot() AS id")["id"]
            found = {"had": shop.held(), "has": {}}
            stored = shop.row(STORED)
            status, text = self.program("pg_dump", f"--snapshot={snapshot}", "-d", self.system.direct_dsn())
            if status != 0:
                raise Spoilt(text)
            server = self.system.primary.server
            shop.row("COMMIT")
            shop.row(f"DROP DATABASE IF EXISTS {COPY} WITH (FORCE)")
            shop.row(f"CREATE DATABASE {COPY} TEMPLATE template0")
            status, text = self.program(
                "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", "-f", os.fspath(self.file), "-d", server.dsn(COPY)
            )
            failed = re.search(r"(?:ERROR|FATAL|PANIC): +(\w{5}):", text)
            if status == 2 or (failed and failed.group(1).startswith(PASSING)):
                raise Spoilt(text)
            if status != 0 or failed:
                found["said"] = text[-1000:]
            else:
                self.look(server.dsn(COPY), stored, found)
            shop.row(f"DROP DATABASE {COPY} WITH (FORCE)")
        return found

    @staticmethod
    def look(dsn, stored, found):
        try:
            with contextlib.closing(Session(dsn)) as copy:
                found["has"] = copy.held()
                found.update(offered(copy))
                if stored is not None:
                    found["stored"] = said(stored)
                    copy.row("BEGIN")
                    told = copy.row(START, stored["scope"], stored["key"], stored["fingerprint"], stored["tenant"])
                    found["replayed"] = said(told) if told["verdict"] == "replay_success" else told["verdict"]
        except psycopg2.Error as error:
            if is_passing(error):
                raise
            found["said"] = str(error)

    def finish(self, patience_s):
        """After the faults: it must come to an end."""
        self.join(patience_s)
        if self.is_alive():
            self.problems.append(f"no dump was restored: {self.last}")

    def stop(self):
        self.over.set()
        self.join(PATIENCE_S)
