# SPDX-License-Identifier: PostgreSQL
"""The operator, who is asked about some of the intents that are in doubt: looks into the ledger whether the effect happened, and decides so with
once.resolve, while reports, attempts and faults go on. What is not in the ledger is left in doubt: as long as its attempt lives, it may come.
Between two questions he has once.recover decide the doubts of which verify can tell."""

import base64
import contextlib
import queue
import random
import threading
import traceback

import psycopg2

SCOPES = ("doubtful", "naive")  # whose effects are in the ledger of schema.sql
SHARE = 0.4  # of the intents in doubt
TRIES = 20
PAUSE_S = 0.5
HAPPENED = "SELECT body FROM torture.ledger WHERE tenant = %s AND scope = %s AND key = %s"
RECOVER = "SELECT * FROM once.recover(scope => 'asked', in_doubt => true)"
DECIDE = "SELECT once.resolve(%s, %s, 'succeeded', 'the ledger has it', 201, response_body => %s::bytea, tenant => %s)"


def decide(connection, intent):
    """The answer that is the intent's from now on, where the ledger has it and nobody was faster; else None. An error is psycopg2's."""
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '5s'")
        cursor.execute(HAPPENED, (intent.tenant, intent.scope, intent.key))
        found = cursor.fetchone()
        if found is None:
            return None
        try:
            cursor.execute(DECIDE, (intent.scope, intent.key, found[0], intent.tenant))
        except psycopg2.Error as error:
            if error.pgcode == "P4070":  # reported or decided meanwhile, or being reported
                return None
            raise
        return bytes(found[0])


class Operator(threading.Thread):
    """decided: called with an intent that has its answer now. problems: what nobody expected."""

    def __init__(self, system, recorder, seed, decided, problems):
        super().__init__(daemon=True, name="operator")
        self.system, self.recorder, self.seed, self.decided, self.problems = system, recorder, seed, decided, problems
        self.asked, self.over = queue.Queue(), threading.Event()

    def ask(self, intent):
        if intent.scope in SCOPES and random.Random(f"{self.seed}/{intent.number}/decide").random() < SHARE:
            self.asked.put(intent)

    def is_idle(self):
        return not self.asked.unfinished_tasks

    def run(self):
        while not self.over.is_set():
            try:
                intent = self.asked.get(timeout=PAUSE_S)
            except queue.Empty:
                self.recover()
                continue
            try:
                self.look_after(intent)
            except Exception:  # pylint: disable=broad-except
                self.problems.append(f"operator: {traceback.format_exc()}")
            self.asked.task_done()

    def look_after(self, intent):
        for _ in range(TRIES):
            try:
                with contextlib.closing(psycopg2.connect(self.system.direct_dsn())) as connection:
                    body = decide(connection, intent)
            except psycopg2.Error:
                if self.over.wait(PAUSE_S):
                    return
                continue
            if body is not None:
                self.recorder.record("decided", intent=intent.number, body=base64.b64encode(body).decode())
                self.decided(intent)
            return

    def recover(self):
        try:
            with contextlib.closing(psycopg2.connect(self.system.direct_dsn())) as connection:
                connection.autocommit = True
                with connection.cursor() as cursor:
                    cursor.execute("SET statement_timeout = '5s'")
                    cursor.execute(RECOVER)
        except psycopg2.Error:
            pass  # the database is away: the next time

    def stop(self):
        self.over.set()
        self.join(TRIES * PAUSE_S)
