# SPDX-License-Identifier: PostgreSQL
"""The client of keys that come again. They have no day, and retention deletes their intents within seconds; the next attempt makes a new one under
the same name. A late report of an earlier attempt may still be on its way, so a new intent's fence must be above every fence that the key has had:
each fence that is granted is written down, and the judge looks at their order. One thread, so that the order is certain."""

import random
import threading
import traceback

import psycopg2

from .doors import BEGIN, CLAIM, COMPLETE, CONNECT_S, FINISH, PATIENCE_S, Session, Uncertain

SCOPE = "reborn"
KEYS = 12
PAUSE_S = 0.25
LEAVE = 0.1  # of the claims, whose lease has to pass
PAYLOAD = b"again"


class Reborn(threading.Thread):
    """problems: what nobody expected."""

    def __init__(self, dsn, watch, recorder, seed, problems, tenants=("",)):  # pylint: disable=too-many-arguments
        super().__init__(daemon=True, name="reborn")
        self.session, self.recorder, self.problems = Session(dsn, watch), recorder, problems
        self.draw = random.Random(f"{seed}/reborn")
        self.names = [(tenant, f"again {number}") for tenant in tenants for number in range(KEYS // len(tenants))]
        self.over = threading.Event()

    def run(self):
        try:
            while not self.over.wait(PAUSE_S):
                tenant, key = self.draw.choice(self.names)
                try:
                    self.turn_to(tenant)
                    with self.session.within(PATIENCE_S):
                        (self.claim if self.draw.random() < 0.6 else self.start_and_finish)(tenant, key)
                except Uncertain:
                    self.session.close()
                except psycopg2.Error:
                    pass  # another attempt has it, or the database is away
        except Exception:  # pylint: disable=broad-except
            self.problems.append(f"reborn: {traceback.format_exc()}")
        finally:
            self.session.close()

    def turn_to(self, tenant):
        """Where several nodes share the tenants: to the tenant's."""

    def granted(self, tenant, key, fence, how):
        self.recorder.record("granted", tenant=tenant, scope=SCOPE, key=key, fence=fence, how=how)

    def claim(self, tenant, key):
        claimed = self.session.settle(CLAIM, SCOPE, key, PAYLOAD, tenant, "reborn", tenant)
        if claimed["verdict"] not in ("new_claim", "retryable_failure", "processing_stale"):
            return
        self.granted(tenant, key, claimed["fence"], claimed["verdict"])
        if self.draw.random() >= LEAVE:
            self.session.settle(COMPLETE, SCOPE, key, claimed["fence"], 200, b"done", tenant)

    def start_and_finish(self, tenant, key):
        """Its fence counts when it is committed: until then nobody else knows of it."""
        self.session.row("BEGIN")
        begun = self.session.row(BEGIN, SCOPE, key, PAYLOAD, tenant, tenant)
        if begun["verdict"] != "proceed":
            return
        self.session.row(FINISH, SCOPE, key, PAYLOAD, tenant, 200, b"done", tenant, "succeeded")
        self.session.commit()
        self.granted(tenant, key, begun["fence"], "start")

    def stop(self):
        self.over.set()
        self.join(2 * PATIENCE_S + CONNECT_S)
