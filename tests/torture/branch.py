# SPDX-License-Identifier: PostgreSQL
"""The client of the second database, `branch`: whatever effect of the shop is the cause of its events (their ids come from the intent's name) happens there
again, under the same tenant, scope and key, with events of the same types and aggregates. Both databases publish into one destination, which one consumer
reads: equal names must not make one event of two."""

import contextlib
import threading
import time
import traceback

import psycopg2

from .doors import PATIENCE_S, Session

PAUSE_S = 0.2
NAME = "branch"
# Positions are drawn before a commit: what is so far below the highest may still come.
LATE = 500
# Keys of past days are no keys for long.
CAUSES = """
    SELECT position, tenant, scope, key, aggregate, events FROM torture.effect
     WHERE position > %s AND events > 0 AND (payload::jsonb ->> 'caused')::boolean AND scope <> 'aged' ORDER BY position"""
REPEAT = "SELECT torture.repeat(%s, %s, %s, %s, %s)"


class Branch(threading.Thread):
    """problems: what nobody expected."""

    def __init__(self, system, watch, problems):
        super().__init__(daemon=True, name=NAME)
        self.system, self.problems = system, problems
        self.session = Session(system.dsn("client-pg", dbname=NAME), watch)
        self.done, self.highest = set(), 0
        self.over = threading.Event()

    def run(self):
        try:
            while not self.over.wait(PAUSE_S):
                with contextlib.suppress(psycopg2.Error):  # a database is away, or an earlier call is still at work there
                    self.follow()
        except Exception:  # pylint: disable=broad-except
            self.problems.append(f"branch: {traceback.format_exc()}")
        finally:
            self.session.close()

    def missing(self):
        """The effects that are not known to be there."""
        with contextlib.closing(psycopg2.connect(self.system.direct_dsn())) as shop, shop.cursor() as cursor:
            cursor.execute("SET statement_timeout = '5s'")
            cursor.execute(CAUSES, (self.highest - LATE,))
            found = cursor.fetchall()
        self.highest = max((row[0] for row in found), default=self.highest)
        return [row[1:] for row in found if row[1:4] not in self.done]

    def follow(self):
        for tenant, scope, key, aggregate, events in self.missing():
            if self.over.is_set():
                return
            with self.session.within(PATIENCE_S):
                self.session.row(REPEAT, tenant, scope, key, aggregate, events)
            self.done.add((tenant, scope, key))

    def finish(self, patience_s):
        """After the faults, when no effect is made any more: all of them are there."""
        deadline = time.monotonic() + patience_s
        while self.is_alive() and self.missing():
            if time.monotonic() > deadline:
                self.problems.append("the branch does not get what the shop has")
                break
            time.sleep(PAUSE_S)
        self.stop()

    def stop(self):
        self.over.set()
        self.join(2 * PATIENCE_S)
