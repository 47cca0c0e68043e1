# SPDX-License-Identifier: PostgreSQL
"""Retention never reopens an intent: random attempts, reports, crashes, decisions, steps of keepers and leaps of the clock, against a model that
says what each may answer.

    a UUIDv7 key that is finished never runs again; nor any whose day was seen closed
    another key that is finished runs again only after its retention had passed while a keeper worked
    what is processing or in doubt is never forgotten
    a clock that leaps lets nothing be forgotten before it has gone steadily for a while
    no fence of a key comes again, though the key was forgotten meanwhile

The database's clock is the contract's only one: in these databases its functions read test_clock() instead, which the test moves by minutes,
hours and days, forwards and back. PGONCE_SEED repeats a run; each failure says its seed."""

import dataclasses
import os
import random
import uuid

import psycopg2
import pytest
from harness.mutation import both, replace

from .calls import DAY_MS, OTHER_PRINT, Once, run, uuid7

HOUR, DAY = 3600.0, 86400.0
TURNS = 160
SEEDS = 4
HORIZON_DAYS = 2
SETTLE_S = HOUR
# A leap that is longer than any pause between readings can make usual (once._clock).
LEAP_S = 6 * HOUR + 60
SCOPES = {"takeover": "takeover", "doubtful": "in_doubt"}
REFUSALS = {"P4001": "future", "P4098": "missing", "P4041": "expired", "P4029": "processing_active", "P4031": "in_doubt",
            "P4030": "final_failure"}  # fmt: skip


def inject_clock(db):
    """The contract by a clock of the test's own."""
    db.execute(
        "CREATE TABLE public.test_offset (by interval NOT NULL); INSERT INTO public.test_offset VALUES ('0');"
        "CREATE FUNCTION public.test_clock() RETURNS timestamptz LANGUAGE sql AS"
        " $$ SELECT pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) o.by FROM public.test_offset AS o $$"
    )
    for row in db.rows(
        "SELECT pg_get_functiondef(p.oid) AS text FROM pg_proc AS p WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace)"
        " AND p.prosrc LIKE '%%clock_timestamp()%%'"
    ):
        db.execute(row.text.replace("pg_catalog.clock_timestamp()", "clock_timestamp()").replace("clock_timestamp()", "public.test_clock()"))
    left = db.value("SELECT count(*) FROM pg_proc WHERE pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace) AND prosrc ~ 'clock_timestamp\\(\\)|\\mnow\\(\\)'")
    assert left == 0


@pytest.fixture(scope="module")
def clocked(server):
    """The name of a database from which others are copied."""
    database = server.new_database()
    inject_clock(database)
    database.close()
    yield database.name
    database.drop()


@dataclasses.dataclass
class Intent:
    scope: str
    key: str
    day: int  # 0: of no day
    state: str = "absent"
    fence: int = 0
    lease_until: float = 0.0
    body: bytes = None
    completed_at: float = 0.0
    term: float = None  # for how long its outcome is kept; None: the scope's retention
    forgettable: bool = False  # a keeper has worked when its retention had passed
    was_stale: bool = False  # a keeper, or an attempt, has seen that its lease had passed
    was_closed: bool = False
    effects: int = 0
    reopened: int = 0  # times that it might be forgotten, and was


class Model:
    def __init__(self, db, seed, settle_s):
        self.db, self.random, self.settle_s = db, random.Random(seed), settle_s
        self.once = Once(db.connect())
        self.settings = Once(db.connect())
        self.intents = []
        self.retention = {scope: 7 * DAY for scope in SCOPES}
        self.read_at = self.unsteady_since = None
        self.story = []
        for scope, policy in SCOPES.items():
            self.settings.set_scope(scope=scope, on_stale=policy)
        db.execute("SELECT once.set_keeping(clock_settle => make_interval(secs => %s), horizon_days => %s, days_ahead => 1)", settle_s, HORIZON_DAYS)
        # The seed decides at what time of the day it begins, so that it tells the same story whenever it is played.
        db.execute(
            "UPDATE public.test_offset SET by = date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC') + make_interval(secs => %s)"
            " - clock_timestamp() AT TIME ZONE 'UTC'",
            random.Random(f"{seed}: time of the day").randrange(int(DAY)),
        )
        self.first = self.now()

    # ---- the clock

    def now(self):
        return float(self.db.value("SELECT extract(epoch FROM public.test_clock())"))

    def move_clock(self, seconds):
        self.tell("the clock moves by", seconds)
        self.db.execute("UPDATE public.test_offset SET by = by + make_interval(secs => %s)", seconds)

    def tell(self, *words):
        self.story.append(" ".join(map(str, words)))

    def complain(self, intent, *words):
        last = "\n".join(self.story[-60:])
        raise AssertionError(f"{' '.join(map(str, words))}: {intent}\n{last}")

    # ---- what may have been forgotten

    def keeper_works(self):
        """A keeper looks at the clock, and may forget what is past by it."""
        now = self.now()
        if self.read_at is None or now < self.read_at or now > self.read_at + LEAP_S:
            self.unsteady_since = now
        self.read_at = now
        for intent in self.intents:
            intent.was_stale = intent.was_stale or (intent.state == "processing" and now + 60 >= intent.lease_until)
        if self.settle_s and now < self.unsteady_since + self.settle_s - 60:
            return
        for intent in self.intents:
            if intent.state in ("succeeded", "failed_final", "failed_retryable") and now + 60 >= self.expiry(intent):
                intent.forgettable = True

    def expiry(self, intent):
        return intent.completed_at + (self.retention[intent.scope] if intent.term is None else intent.term)

    def closed(self, intent):
        before = self.db.value("SELECT closed_before FROM once.setting")
        intent.was_closed = intent.was_closed or 0 < intent.day < before
        return intent.was_closed

    # ---- attempts

    def new_intent(self):
        kind = self.random.choice(("v7", "v7", "v7", "v4", "other"))
        scope, number, day = self.random.choice(list(SCOPES)), len(self.intents), 0
        if kind == "v7":
            ms = int((self.now() - self.random.choice((0, 0, 1, 2, 3, 9)) * DAY) * 1000)
            key, day = uuid7(ms, number), ms // DAY_MS
        else:
            key = str(uuid.UUID(int=self.random.getrandbits(128), version=4)) if kind == "v4" else f"key {number}!"
        intent = Intent(scope, key, day)
        self.intents.append(intent)
        return intent

    def any_intent(self):
        if not self.intents or self.random.random() < 0.25:
            return self.new_intent()
        return self.random.choice(self.intents[-25:] if self.random.random() < 0.5 else self.intents)

    def allowed(self, intent, now):
        """The verdicts that an attempt may get."""
        closed = self.closed(intent)
        gone = {"expired", "future", "missing"} if closed else {"new_claim", "future", "missing"}
        if intent.day == 0:
            gone = {"new_claim"}
        if intent.state == "absent":
            return gone | ({"future", "missing", "expired"} if intent.day else set())
        if intent.state in ("succeeded", "failed_final"):
            stored = {"replay_success" if intent.state == "succeeded" else "final_failure"}
            may_go = intent.forgettable and (intent.day == 0 or closed)
            return stored | ({"expired"} if intent.day and may_go else {"new_claim"} if may_go else set())
        if intent.state == "failed_retryable":
            if intent.day:
                return {"expired"} if closed else {"retryable_failure", "missing", "future"}
            return {"retryable_failure"} | ({"new_claim"} if intent.forgettable else set())
        if intent.state == "in_doubt":
            return {"in_doubt"}
        # processing. A closed day's is in doubt from some moment on; before, nobody takes it over. The clock may have gone back since.
        doubted = {"in_doubt"} if intent.was_stale and (closed or intent.scope == "doubtful") else set()
        if now < intent.lease_until - 1:
            return {"processing_active"} | doubted
        late = {"in_doubt"} | ({"expired", "future", "missing"} if intent.day else set())
        if not closed and intent.scope == "takeover":
            late |= {"processing_stale"}
        return late | ({"processing_active"} if now < intent.lease_until + 1 else set())

    def claim(self, intent):
        lease = self.random.choice((60, HOUR, 20 * HOUR))
        retention = self.random.choice((None, None, HOUR, 3 * DAY))
        terms = {"lease": f"{lease} seconds"} | ({"retention": f"{retention} seconds"} if retention else {})
        now = self.now()
        allowed = self.allowed(intent, now)
        rolled_back = self.random.random() < 0.1
        row = None
        run(self.once.connection, "BEGIN")
        try:
            row = self.once.claim(scope=intent.scope, key=intent.key, owner="test", **terms)
            verdict = row.verdict
        except psycopg2.Error as error:
            verdict = REFUSALS.get(error.pgcode, error.pgcode)
        run(self.once.connection, "ROLLBACK" if rolled_back or row is None else "COMMIT")
        self.tell(f"at {now - self.first:.0f} claim", intent.scope, intent.key, "->", verdict, "rolled back" if rolled_back else "")
        if verdict not in allowed:
            self.complain(intent, "an attempt got", verdict, "and may get", sorted(allowed), "at", now - self.first)
        if verdict == "replay_success" and bytes(row.response_body) != intent.body:
            self.complain(intent, "another outcome", row.response_body)
        if rolled_back or row is None:
            return
        if verdict == "new_claim" and intent.state != "absent":
            intent.reopened += 1
        if verdict in ("new_claim", "retryable_failure", "processing_stale"):
            self.raise_fence(intent, row.fence)
            intent.state, intent.lease_until = "processing", now + lease
            intent.forgettable = intent.was_stale = False
            if verdict == "new_claim":
                intent.term = None
            intent.term = retention or intent.term
        elif verdict == "in_doubt":
            intent.state = "in_doubt"

    def raise_fence(self, intent, fence):
        if fence <= intent.fence:
            self.complain(intent, "fence", fence, "came again")
        intent.fence = fence

    def finish(self, intent):
        """An attempt within one transaction."""
        now = self.now()
        allowed = self.allowed(intent, now)
        body = os.urandom(6)
        run(self.once.connection, "BEGIN")
        verdict = None
        try:
            started = self.once.start(scope=intent.scope, key=intent.key)
            verdict = started.verdict
            if verdict == "proceed":
                self.once.finish(scope=intent.scope, key=intent.key, response_body=body)
        except psycopg2.Error as error:
            verdict = REFUSALS.get(error.pgcode, error.pgcode)
        committed = verdict == "proceed" and self.random.random() < 0.8
        run(self.once.connection, "COMMIT" if committed else "ROLLBACK")
        self.tell(f"at {now - self.first:.0f} begin", intent.scope, intent.key, "->", verdict, "committed" if committed else "")
        runs = {"new_claim", "retryable_failure", "processing_stale"} & allowed
        # A clock that went back: the key is of the future, and so its day not plainly open.
        if verdict not in ({"proceed"} if runs else set()) | allowed:
            self.complain(intent, "begin gave", verdict, "and an attempt may get", sorted(allowed))
        if committed:
            intent.reopened += intent.state in ("succeeded", "failed_final")
            if intent.state == "absent" or intent.forgettable:
                intent.term = None
            intent.state, intent.body, intent.completed_at, intent.forgettable = "succeeded", body, now, False
            self.raise_fence(intent, self.once.peek(scope=intent.scope, key=intent.key).fence)
            intent.effects += 1

    def report(self, intent):
        """By the attempt that the model knows, or by one that was superseded."""
        if intent.fence == 0:
            return
        fence = intent.fence - (self.random.random() < 0.3)
        now, body, kind = self.now(), os.urandom(6), self.random.choice(("complete", "complete", "retryable", "final", "doubt"))
        try:
            if kind == "complete":
                self.once.complete(scope=intent.scope, key=intent.key, fence=fence, response_body=body)
            else:
                retryable = {"retryable": True, "final": False, "doubt": None}[kind]
                self.once.fail(scope=intent.scope, key=intent.key, fence=fence, retryable=retryable, error_code="e", error_message="m")
        except psycopg2.Error as error:
            self.tell(f"at {now - self.first:.0f}", kind, intent.key, fence, "refused", error.pgcode)
            return
        self.tell(f"at {now - self.first:.0f}", kind, intent.key, fence, "taken")
        if fence != intent.fence or intent.state not in ("processing", "in_doubt"):
            # What is finished takes the same report again, and changes nothing.
            if fence != intent.fence or intent.state == "absent":
                self.complain(intent, "a report under fence", fence, "was taken")
            return
        intent.completed_at, intent.forgettable = now, False
        if kind == "complete":
            intent.state, intent.body = "succeeded", body
            intent.effects += 1
        else:
            intent.state = {"retryable": "failed_retryable", "final": "failed_final", "doubt": "in_doubt"}[kind]

    def mismatch(self, intent):
        """Another request never learns that a key is free where it is not."""
        if intent.state in ("absent", "failed_retryable") or intent.forgettable:
            return
        try:
            verdict = self.once.claim(scope=intent.scope, key=intent.key, fingerprint=OTHER_PRINT).verdict
        except psycopg2.Error as error:
            verdict = error.pgcode
        if verdict in ("new_claim", "retryable_failure", "processing_stale", "replay_success"):
            self.complain(intent, "another request got", verdict)

    # ---- the keeper

    def keep(self, only=None):
        """Some steps, some pieces; each may be lost in a crash."""
        connection = self.once.connection
        name = self.random.choice(("one", "two"))
        if not run(connection, "SELECT once_job.keep_take(%s, '1 minute') AS taken", name)[0].taken:
            return
        steps = [row.step for row in run(connection, "SELECT step FROM once_job.keep_steps() ORDER BY ord")]
        if only:
            steps = [step for step in steps if step in only]
        elif self.random.random() < 0.3:
            steps = self.random.choices(steps, k=4)
        for step in steps:
            for _ in range(self.random.choice((1, 3, 8))):
                crashes, more = self.random.random() < 0.08, False
                before = self.read_at, self.unsteady_since
                self.keeper_works()
                run(connection, "BEGIN")
                try:
                    piece = run(connection, "SELECT * FROM once_job.keep_step(%s, %s, %s)", name, step, self.random.random() < 0.5)[0]
                    more = piece.more
                    if piece.detail:
                        self.tell(f"at {self.now() - self.first:.0f}", step, piece.detail, "(crash)" if crashes else "")
                except psycopg2.Error as error:
                    self.tell(step, error.pgcode, error)
                    run(connection, "ROLLBACK")
                    self.read_at, self.unsteady_since = before
                    if error.pgcode != "55000":  # its lease has passed
                        raise
                    return
                run(connection, "ROLLBACK" if crashes else "COMMIT")
                if crashes:
                    self.read_at, self.unsteady_since = before  # its reading is lost with it
                if piece.command and not crashes and self.random.random() < 0.7:
                    run(connection, piece.command)
                if crashes or not more:
                    break
        if self.random.random() < 0.7:
            run(connection, "SELECT once_job.keep_release(%s)", name)

    def leap_and_return(self):
        """What a keeper believes meanwhile: a day that it closes may have leases that live again."""
        days = self.random.choice((1, 3, 8))
        for _ in range(3):
            self.claim(self.any_intent())
        self.move_clock(days * DAY)
        self.keep(["clock", "close"])
        self.move_clock(-days * DAY)
        self.keep()
        self.keep()

    def change_retention(self):
        scope, days = self.random.choice(list(SCOPES)), self.random.choice((1, 4, 7, 30))
        self.settings.set_scope(scope=scope, retention=f"{days} days")
        self.retention[scope] = days * DAY

    def look(self, intent):
        """What is processing or in doubt is there, whatever was kept or forgotten."""
        if intent.state in ("processing", "in_doubt"):
            seen = self.once.peek(scope=intent.scope, key=intent.key)
            if seen is None or seen.state not in ("processing", "in_doubt") or seen.fence != intent.fence:
                self.complain(intent, "it is not there any more", seen)

    def turn(self):
        what = self.random.random()
        if what < 0.30:
            self.claim(self.any_intent())
        elif what < 0.45:
            self.finish(self.any_intent())
        elif what < 0.62:
            self.report(self.any_intent())
        elif what < 0.67:
            self.mismatch(self.any_intent())
        elif what < 0.75:
            self.look(self.any_intent())
        elif what < 0.80:
            self.change_retention()
        elif what < 0.87:
            self.keep()
        elif what < 0.90:
            self.leap_and_return()
        else:
            self.move_clock(self.random.choice((60, 900, HOUR, 3 * HOUR, DAY, DAY, 3 * DAY, 8 * DAY, -900, -DAY, -6 * DAY)))

    def play(self, turns):
        self.keep()
        for _ in range(turns):
            self.turn()
        for intent in self.intents:
            self.look(intent)
            self.claim(intent)
        for intent in self.intents:
            if intent.effects > 1 + intent.reopened or (intent.day and intent.reopened):
                self.complain(intent, "it had its effect again")


def play(server, template, seed, settle_s=None, turns=TURNS, mutation=None):
    database = server.empty_database(template=template)
    try:
        if mutation:
            mutation(database)
        settle_s = settle_s if settle_s is not None else (0, SETTLE_S)[seed % 2]
        Model(database, seed, settle_s).play(turns)
    except AssertionError as failed:
        raise AssertionError(f"PGONCE_SEED={seed}: {failed}") from failed
    finally:
        database.drop()


FIRST_SEED = int(os.environ.get("PGONCE_SEED") or random.SystemRandom().randrange(1_000_000_000))


@pytest.mark.parametrize("nth", range(1 if os.environ.get("PGONCE_SEED") else SEEDS))
def test_retention_never_reopens_an_intent(server, clocked, nth):
    print(f"PGONCE_SEED={FIRST_SEED + nth}")
    play(server, clocked, FIRST_SEED + nth)


# Each guarantee taken out: some seed must notice. The one that did so is tried first, since a game takes seconds.
MUTATIONS = {
    "retention is not looked at": replace("_sql_deletable", "($1).retention) <= ($1).now)", "($1).retention) <= ($1).now + 1000 * ($1).skew)"),
    "what is in doubt does not go to the archive": replace("_retire_blocks", "i.state = 'in_doubt' OR", ""),
    "the archive is not asked": replace("_archived", "WHERE a.tenant", "WHERE false AND a.tenant"),
    # which its state says, and that it was never completed
    "what is in doubt is purged": both(
        replace("_delete_intents", "i.state IN ('succeeded', 'failed_final', 'failed_retryable') AND", "i.state <> 'processing' AND"),
        replace("_sql_deletable", "i.completed_at +", "i.updated_at +"),
    ),
    "a closed day is made again": replace("_close_day", "closed_before = greatest(s.closed_before, day + 1)", "closed_before = s.closed_before"),
    "a key that comes again begins at one": replace("_keep_purge", "PERFORM setval(", "PERFORM concat("),
    "the clock is always trusted": replace("_clock_held", "settle = interval '0' OR", "true OR"),
    "an attempt at work does not hold its day": replace("_retire_blocks", "i.state = 'processing' LIMIT 1", "false LIMIT 1"),
}


NOTICED = {
    "retention is not looked at": 2,
    "what is in doubt does not go to the archive": 2,
    "the archive is not asked": 2,
    "what is in doubt is purged": 6,
    "a closed day is made again": 2,
    "a key that comes again begins at one": 2,
    "the clock is always trusted": 1,
    "an attempt at work does not hold its day": 4,
}


@pytest.mark.parametrize("guarantee", MUTATIONS)
def test_the_property_notices(server, clocked, guarantee):
    for seed in sorted(range(1, 40), key=lambda seed: seed != NOTICED[guarantee]):
        try:
            play(server, clocked, seed, mutation=MUTATIONS[guarantee])
        except (AssertionError, psycopg2.Error) as noticed:
            print(seed, str(noticed)[:300])
            return
    raise AssertionError("nothing was noticed")
