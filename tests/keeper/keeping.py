# SPDX-License-Identifier: PostgreSQL
"""A keeper at work: `pgonce keep` as a process, and its log."""

import os
import re
import signal
import subprocess

from harness.postgres import PATIENCE_S, ROOT, clean_environment, tied, wait_until
from harness.scrape import address_in

PROGRAM = os.path.join(os.environ.get("PGONCE_BUILD", ROOT / "build"), "cli/pgonce")
LINE = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')
STEPS = ["days", "clock", "close", "doubt", "move", "detach", "drop", "delayed", "untaken", "outbox", "purge", "sweep", "archive", "dead", "decisions"]


class Keeper:
    """Used in a with statement, which starts it and at its end kills it."""

    def __init__(self, directory, dsn, *options, name="k", interval="1s"):
        self.words = [PROGRAM, "keep", "--dsn", dsn, "--name", name, "--interval", interval, "--verbose", *options]
        self.err = directory / f"{name}.err"
        self.process = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def start(self, *options):
        with open(self.err, "ab") as err:
            self.process = subprocess.Popen(tied([*self.words, *options]), stdin=subprocess.DEVNULL, stdout=err, stderr=err,
                                            env=clean_environment())
        return self

    def once(self):
        """--once; the exit code."""
        return self.start("--once").process.wait(2 * PATIENCE_S)

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self):
        """The exit code of an orderly end."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def text(self):
        return self.err.read_text() if self.err.exists() else ""

    def log(self, event=None, **having):
        lines = [dict(LINE.findall(line)) for line in self.text().splitlines()]
        return [line for line in lines if (event is None or line.get("event") == event) and having.items() <= line.items()]

    def until(self, event, count=1, **having):
        """Waits for a line in the log; gives it."""
        self.until_true(lambda: len(self.log(event, **having)) >= count, f"event={event} {having} in the log")
        return self.log(event, **having)[count - 1]

    def until_true(self, condition, what):
        def asked():
            assert condition() or self.process.poll() is None, f"the keeper ended ({self.process.returncode}):\n{self.text()}"
            return condition()

        try:
            wait_until(asked, what)
        except TimeoutError as late:
            raise TimeoutError(f"{late}:\n{self.text()[-4000:]}") from late

    def address(self):
        """Of its metrics."""
        self.until("metrics")
        return address_in(self.text())


def status(db):
    """{step: row of once.keeper_status}."""
    return {row.step: row for row in db.rows("SELECT * FROM once.keeper_status()")}


def holder(db):
    """Who holds the lease now; None: nobody."""
    return db.value("SELECT (SELECT keeper FROM once.keeper_lease() WHERE lease_until > clock_timestamp())")


def let_lease_pass(db):
    """As if the time had passed."""
    db.execute("UPDATE once.keeper SET lease_until = clock_timestamp()")


def replace_step(db, step, body, declare=""):
    """The step does something else in this database. body: of PL/pgSQL; it RETURNs a once.kept."""
    argument = "in_own_transaction boolean" if step == "detach" else ""  # may the caller be given a statement to run by itself?
    # Not dropped before: a keeper at work would meet the gap.
    db.execute(f"CREATE OR REPLACE FUNCTION once._keep_{step}({argument}) RETURNS once.kept LANGUAGE plpgsql AS $$ {declare} BEGIN {body} END $$")


NOTHING = "RETURN ROW(0, false, NULL, NULL)::once.kept;"
