# SPDX-License-Identifier: PostgreSQL
"""What happens between a client and its server while a case of faults.json runs (spec/cases/README.md, "Faults"): the forwarder between the two, and
the steps that are for it."""

import pathlib
import threading
import time

from harness.broker import free_port
from harness.proxy import Proxy, Rule

PATIENCE_S = 60
# A moment: the text of the message that the client sends then, where it is not another one's.
MOMENTS = {"begin": "BEGIN", "start": "once.try_start", "effect": "INSERT INTO effect", "finish": "once.finish", "commit": "COMMIT", "rollback": "ROLLBACK", "smaller": "ROLLBACK TO",
           "claim": "once.claim", "complete": "once.complete", "fail": "once.fail"}  # fmt: skip
# Claims and reports that are transactions of several statements.
MADE_BY_COMMIT = {"claim": "COMMIT", "complete": "COMMIT", "fail": "COMMIT"}
# By language or driver.
SPELT = {
    "sql": {"begin": "begin", "commit": "commit\0", "rollback": "rollback\0"},  # the whole of it: the names of cases have the word
    "java": {"start": "once.start", **MADE_BY_COMMIT},
    **{f"sqlalchemy-{driver}": MADE_BY_COMMIT for driver in ("psycopg", "psycopg2", "async-psycopg", "async-asyncpg")},
}
THEIRS = "FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND application_name <> 'driver'"
WAITING = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
OPEN, IDLE = f"{THEIRS} AND xact_start IS NOT NULL", f"{THEIRS} AND xact_start IS NULL"


class Target:
    """What a Proxy wants to know of a server."""

    def __init__(self, said):
        self.directory = pathlib.Path(said["socket"])


class Forwarder(Proxy):
    """said: of server.py."""

    def __init__(self, said):
        super().__init__(Target(said), tcp=free_port())
        self.target = f"{said['socket']}/.s.PGSQL.{said['port']}"

    def notice(self, text):
        """The message passes; it is only noticed."""
        return self._add(Rule("frontend", "pass", text.encode()))

    def heal(self):
        with self.lock:
            for rule in self.rules:
                if rule.action == "pass":
                    rule.fired.set()
            self.rules.clear()
        self.thaw()
        self.back()
        self.takes_cancels = True


def until(condition, what):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


class Faults:
    """Of one case by one driver."""

    def __init__(self, forwarder, database, language, driver):
        self.forwarder, self.database = forwarder, database
        self.texts = {**MOMENTS, **SPELT.get(language, {}), **SPELT.get(driver, {})}
        self.rules = []

    def step(self, step):
        getattr(self, step["fault"])(step)

    def lose(self, step, how):
        text = self.texts.get(step["of"], step["of"])
        first, *_ = [getattr(self.forwarder, how)(text) for _ in range(step.get("times", 1))]
        self.rules.append((first, step))

    def lose_request(self, step):
        self.lose(step, "lose_request")

    def lose_connection_after(self, step):
        self.lose(step, "lose_connection_after")

    def lose_answer(self, step):
        self.lose(step, "lose_answer")

    def lose_at_work(self, step):
        def ready():
            observer = self.database.connect()
            with observer.cursor() as cursor:

                def waits():
                    cursor.execute(WAITING)
                    return cursor.fetchone()[0]

                until(waits, "the server waits for a lock")
            observer.close()

        self.forwarder.takes_cancels = False  # pgx sends one when it loses a connection
        self.rules.append((self.forwarder.lose_at_work(self.texts.get(step["of"], step["of"]), ready), step))

    def hold(self, step):
        holder = self.database.connect(autocommit=False)
        holder.cursor().execute("LOCK TABLE once.intent IN SHARE MODE")
        *_, last = [self.forwarder.notice(self.texts.get(step["of"], step["of"])) for _ in range(step["times"])]
        self.rules.append((last, step))

        def release():
            last.fired.wait(PATIENCE_S)
            holder.close()

        threading.Thread(target=release, daemon=True).start()

    def heal(self, _step):
        self.forwarder.heal()

    def freeze(self, _step):
        self.forwarder.freeze()

    def away(self, _step):
        self.forwarder.away()

    def kill(self, step):
        pids = [row.pid for row in self.database.rows(f"SELECT pid {IDLE if step.get('idle') else OPEN}")]
        assert pids if step.get("idle") else len(pids) == 1
        self.database.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", pids)
        until(lambda: not self.database.rows("SELECT FROM pg_stat_activity WHERE pid = ANY(%s)", pids), "the backends end")

    def until(self, step):
        until(lambda: self.database.value(step["sql"]) is True, step["sql"])

    def finish(self):
        """Each loss has happened: else the case has shown nothing."""
        for rule, step in self.rules:
            assert rule.fired.wait(PATIENCE_S), f"it never came to this: {step}"
