# SPDX-License-Identifier: PostgreSQL
"""Clients that place intents through every door and attempt each until it is answered: several at a time, with duplicates, conflicting
payloads, other tenants' same keys, late retries, pauses, and deaths in the middle.

Clients work in groups, one for each door, so that a door that is shut keeps nobody from the others. A group has a list of jobs
(attempts that are due at some time) and threads that take them. What an intent is, and what its attempts are to do, is drawn from the
seed."""

import dataclasses
import heapq
import itertools
import json
import random
import string
import threading
import time
import traceback

import psycopg2

from . import doors
from .branch import Branch
from .decisions import Operator
from .doors import Intent, Orders
from .dumps import Dumper
from .languages import LANGUAGES, NEIGHBOURS, ClientDoor, driver_of
from .services import TARGETS, ServiceDoor, framework_of
from .messages import MessageDoor
from .reborn import Reborn

LEASE_S = 4
BRIEF_S = 25  # attempts at a key that is soon forgotten begin within this time; what is kept of it, 45 s (schema.sql)
FORGET_S = {"brief": 45, "aged": 10}
TENANTS = ("acme", "söder & cie", "zeta/1")
AGGREGATES = 27  # of each tenant: an event's aggregate is the tenant's
EVENTS = (1,) * 30 + (2,) * 9 + (25,)  # of an effect; so many that a relay is stopped in the midst of them
FEW_EVENTS = EVENTS[:-1]  # where each is a round trip of the client's
DAY_MS = 86_400_000
FORGOTTEN_DAYS = (40, 400, 4000)
DRAIN_QUIET_S = 1.0
SLOW = 0.02  # of the intents
SWALLOWED = 0.03  # of the attempts
NEIGHBOURED = 0.08  # of them, where the door knows how
SERVED_WITH = ("pieces", "cut", "trailers")  # upstream.py
LATE = 120  # finished intents that are attempted once more at the very end
STYLES = ("hex", "octal", "backslash", "quotes", "unicode", "string", "empty")  # of answers: schema.sql
PRINTABLE = string.ascii_letters + string.digits + " !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


@dataclasses.dataclass(frozen=True)
class Kind:
    """What sort of intents a group places, and how often."""

    weight: int
    mode: str
    scope: str
    at_most: bool = False
    transactional: bool = True  # its effect has an aggregate and events


SQL = (
    Kind(40, "transaction", "accounts"), Kind(8, "transaction", "brief"), Kind(10, "transaction", "aged"), Kind(15, "fenced", "fenced"),
    Kind(14, "verified", "verified", transactional=False), Kind(13, "doubtful", "doubtful", True, False),
    Kind(10, "verified", "asked", transactional=False),
)  # fmt: skip
LIB = (
    Kind(45, "transaction", "accounts"), Kind(10, "transaction", "aged"), Kind(15, "fenced", "fenced"),
    Kind(15, "verified", "verified", transactional=False), Kind(15, "doubtful", "doubtful", True, False),
)  # fmt: skip
HTTP = (Kind(65, "handoff", "handoff"), Kind(35, "naive", "naive", True, False))
RUN = (Kind(1, "job", "jobs", True, False),)
MESSAGE = (Kind(1, "inbox", "warehouse", transactional=False),)
CLIENT = (
    Kind(45, "transaction", "accounts"), Kind(10, "transaction", "aged"), Kind(15, "verified", "verified", transactional=False),
    Kind(15, "doubtful", "doubtful", True, False), Kind(10, "verified", "asked", transactional=False),
    Kind(45, "http", "requests"), Kind(20, "receive", "deliveries"),
)  # fmt: skip
# The doors of a service whose effect is elsewhere.
ELSEWHERE = (Kind(20, "endpoint", "endpoints", True, False), Kind(20, "leased", "leases", True, False))
# Of the clients only that in Go completes a claim in a transaction of its caller's.
KINDS_OF = dict.fromkeys(LANGUAGES, CLIENT) | {"go": (*CLIENT, Kind(15, "fenced", "fenced"), *ELSEWHERE), "java": (*CLIENT, *ELSEWHERE)}
# Door: (its kinds, threads, new intents a second)
GROUPS = {"sql": (SQL, 5, 12), "lib": (LIB, 3, 8), "http": (HTTP, 5, 10), "run": (RUN, 2, 1.5), "message": (MESSAGE, 1, 2)}
# Those of clients/, which are used where they are asked for by name.
CLIENTS = {language: (kinds, 2, 8) for language, kinds in KINDS_OF.items()}
ATTEMPTS_AS_IN_SQL = ("sql", "lib", *CLIENTS)  # to the contract
# What else may be around an effect: {door: {mode: words}}.
AROUND = NEIGHBOURS | {"http": {kind.mode: SERVED_WITH for kind in HTTP}}
# Where an attempt of a mode may come again. Requests have the fingerprint of the same bytes at the same target, whoever serves it; and messages go to one consumer.
SAME_TO_THE_CONTRACT = {"transaction": ATTEMPTS_AS_IN_SQL, "http": tuple(CLIENTS), "receive": tuple(CLIENTS)}
NEVER_FAIL = ("warehouse", "deliveries")  # messages
OPEN_MOST = 30  # intents of a group that have no answer yet: beyond it places no more


@dataclasses.dataclass(order=True)
class Job:
    """An attempt that is due. payload: another one than the intent's, which must be refused. left: how often it may be tried again where
    nobody waits for its answer."""

    due: float
    order: int
    intents: list = dataclasses.field(compare=False)
    payload: str = dataclasses.field(default=None, compare=False)
    late: bool = dataclasses.field(default=False, compare=False)
    left: int = dataclasses.field(default=3, compare=False)
    tries: int = dataclasses.field(default=0, compare=False)


class State:
    """What the clients know of an intent."""

    def __init__(self):
        self.done = None  # acknowledged, refused, expired, in_doubt, given up
        self.began = None
        self.doubts = self.attempts = 0


class Group:
    """The clients of one door."""

    def __init__(self, workload, name, share=1.0):
        self.workload, self.name = workload, name
        self.kinds, self.threads, self.rate = (GROUPS | CLIENTS)[name]
        self.kinds = [kind for kind in self.kinds if workload.wants(name, kind)]
        self.rate *= share
        self.threads = round(self.threads * min(share, 2))
        self.random = random.Random(f"{workload.seed}/{name}")
        self.changed = threading.Condition()
        self.jobs, self.orders = [], itertools.count()
        self.placed = 0
        self.flying = 0
        self.next_new = 0.0
        self.workers = []

    def has(self, mode):
        return any(kind.mode == mode for kind in self.kinds)

    def start(self):
        self.next_new = time.monotonic()
        for number in range(1, self.threads + 1):
            door = self.workload.make_door(self.name, number)
            worker = threading.Thread(target=self.work, args=(door, f"{self.name}-{number}"), name=f"{self.name}-{number}", daemon=True)
            self.workers.append(worker)
            worker.start()

    def push(self, after_s, intents, **job):
        with self.changed:
            heapq.heappush(self.jobs, Job(time.monotonic() + after_s, next(self.orders), intents, **job))
            self.changed.notify()

    def hurry(self):
        """Late retries and conflicts are due now; what waits for another attempt to end, when it is."""
        with self.changed:
            now = time.monotonic()
            for job in self.jobs:
                if job.tries == 0:
                    job.due = min(job.due, now)
            heapq.heapify(self.jobs)
            self.changed.notify_all()

    def is_idle(self):
        with self.changed:
            return not self.jobs and not self.flying

    def take(self):
        """The next job; None at the end."""
        workload = self.workload
        with self.changed:
            while not workload.over.is_set():
                now = time.monotonic()
                if self.jobs and self.jobs[0].due <= now:
                    self.flying += 1
                    return heapq.heappop(self.jobs)
                wait = 0.5 if not self.jobs else min(0.5, self.jobs[0].due - now)
                if workload.placing and workload.open_of(self.name) < OPEN_MOST:
                    if self.next_new <= now:
                        self.next_new = max(self.next_new, now - 1) + self.random.expovariate(self.rate)
                        self.place()
                        continue
                    wait = min(wait, self.next_new - now)
                self.changed.wait(max(0.001, wait))
            return None

    def work(self, door, name):
        try:
            while True:
                job = self.take()
                if job is None:
                    break
                try:
                    self.workload.attempt(self, door, name, job)
                finally:
                    with self.changed:
                        self.flying -= 1
        except Exception:  # pylint: disable=broad-except
            self.workload.problems.append(f"{name}: {traceback.format_exc()}")
        finally:
            door.close()

    # New intents.

    def place(self):
        draw = self.random
        kinds = [kind for kind in self.kinds if kind.scope != "aged" or self.workload.days_open]
        if not kinds:
            return
        kind = draw.choices(kinds, [kind.weight for kind in kinds])[0]
        tenant = draw.choice(self.workload.tenants)
        count = draw.randint(1, 5) if self.name == "lib" and kind.mode == "doubtful" else 1
        intents = self.register([self.draw(kind, tenant) for _ in range(count)])
        for _ in range(draw.choices((1, 2, 3), (78, 15, 7))[0]):
            heapq.heappush(self.jobs, Job(time.monotonic() + draw.choice((0, 0, 0.01, 0.3)), next(self.orders), intents))
        placed = [intents]
        if count == 1 and draw.random() < 0.06 and self.name != "message":
            other = draw.choice([each for each in self.workload.tenants if each != tenant])
            twin = self.register([self.draw(kind, other, intents[0].key)])
            heapq.heappush(self.jobs, Job(time.monotonic() + draw.choice((0, 0.2)), next(self.orders), twin))
            placed.append(twin)
        for each in placed:
            if self.workload.is_slow(each[0]):
                heapq.heappush(self.jobs, Job(time.monotonic() + LEASE_S, next(self.orders), each))

    def draw(self, kind, tenant, key=None):
        draw = self.random
        self.placed += 1
        number = self.workload.recorder.number()
        key = key or self.draw_key(kind)
        final = kind.scope not in NEVER_FAIL and draw.random() < 0.08
        events = draw.choice(FEW_EVENTS if self.name in CLIENTS else EVENTS) if kind.transactional and not final else 0
        payload = {"i": number, "tenant": tenant, "key": key, "final": final, "nonce": f"{draw.getrandbits(64):016x}"}
        if kind.transactional:
            payload |= {"aggregate": f"a{self.workload.tenants.index(tenant) * AGGREGATES + draw.randint(1, AGGREGATES)}", "events": events, "caused": draw.random() < 0.25 and events <= 2}
        if draw.random() < 0.02 and self.name != "run":  # whose line is to be one write
            payload["pad"] = draw.choice((3000, 9000, 40000))
        apart = random.Random(f"{self.workload.seed}/{number}/style")
        if self.name in ATTEMPTS_AS_IN_SQL and "pad" not in payload and apart.random() < 0.35:
            payload["style"] = apart.choice(STYLES)
        text = json.dumps(payload, ensure_ascii=draw.random() < 0.5)
        gone = BRIEF_S if kind.scope == "brief" else None
        return Intent(number, self.name, kind.mode, tenant, kind.scope, key, text, final, kind.at_most, gone), events

    def draw_key(self, kind):
        """A UUIDv7 of now or of a past day, or any text; now and then one that no contract takes."""
        draw = self.random
        unique = f"{self.name}{self.placed}x{draw.getrandbits(40):010x}"
        if kind.scope == "warehouse":  # an id is only a name: also a UUIDv7 of a day that no inbox remembers
            return uuid7(draw, draw.choice(FORGOTTEN_DAYS)) if draw.random() < 0.4 else f"direct/{unique}"
        if kind.scope == "aged":
            return uuid7(draw, draw.randint(2, 3))
        if draw.random() < 0.008 and self.name != "run":
            return f"schlüssel-{unique}-\N{SNOWMAN}"
        if kind.scope != "brief" and draw.random() < 0.6:
            return uuid7(draw)
        length = draw.choice((0, 8, 40, 255))
        return unique + "".join(draw.choice(PRINTABLE) for _ in range(max(0, length - len(unique))))

    def register(self, drawn):
        """Writes down what was drawn, before anybody attempts it. Returns the intents."""
        for intent, events in drawn:
            self.workload.register(intent, events)
        return [intent for intent, _ in drawn]


def uuid7(draw, days_ago=0):
    ms = int(time.time() * 1000) - days_ago * DAY_MS
    text = f"{ms:012x}7{draw.getrandbits(12):03x}{0x8 | draw.getrandbits(2):x}{draw.getrandbits(60):015x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def is_wanted(wish, door, kind):
    """wish: what to use, "door", "door/mode" or "door/scope", or one of these and a driver or framework; None: all of GROUPS."""
    if wish is None:
        return door in GROUPS
    return not {door, f"{door}/{kind.mode}", f"{door}/{kind.scope}"}.isdisjoint("/".join(each.split("/")[:2]) for each in wish)


def served(wish, programs, seed):
    """Of the programs of languages, those whose HTTP services are needed, each with its framework."""
    return {name: [*words, framework_of(seed, name, wish)] for name, words in programs.items() if any(kind.mode in TARGETS and is_wanted(wish, name, kind) for kind in KINDS_OF[name])}


class Workload:
    """doors: which to use, "door", "door/mode" or "door/scope"; None: all of GROUPS. programs: those of the languages among them. leave: the share of
    attempts that go away in the middle."""

    tenants = TENANTS

    def __init__(self, system, recorder, seed, doors=None, leave=0.04, programs=None):  # pylint: disable=redefined-outer-name
        self.system, self.recorder, self.seed, self.leave, self.programs = system, recorder, seed, leave, programs
        system.recorder = recorder  # whose clock facts.py reads
        self.doors = doors
        self.lock = threading.Lock()
        self.states, self.intents = {}, {}
        self.through = {}  # of languages: the framework of its service, and the drivers of its processes
        self.open = {}  # door: how many of its intents have no answer yet
        self.placing = self.hastening = False
        self.days_open = True  # keys of past days are still taken
        self.over = threading.Event()
        self.problems = []
        self.watch = None
        self.operator = Operator(system, recorder, seed, self.decided, self.problems)
        self.reborn = self.dumper = self.branch = None
        known = GROUPS | CLIENTS
        wanted = [name for name in known if any(self.wants(name, kind) for kind in known[name][0])]
        usual, left = (sum(known[name][2] for name in names) for names in (GROUPS, wanted))
        self.groups = {name: Group(self, name, usual / left) for name in wanted}

    def wants(self, door, kind):
        return is_wanted(self.doors, door, kind)

    def start(self):
        """Begins to place intents, and goes on until finish()."""
        self.watch = doors.Watch()
        self.placing = True
        self.operator.start()
        if "sql" in self.groups:
            self.reborn = Reborn(self.system.dsn("client-pg"), self.watch, self.recorder, self.seed, self.problems, TENANTS)
            self.reborn.start()
            self.dumper = Dumper(self.system, self.recorder, self.seed, self.problems)
            self.dumper.start()
        self.branch = Branch(self.system, self.watch, self.problems)
        self.branch.start()
        for group in self.groups.values():
            group.start()
        if any(kind.scope == "aged" for group in self.groups.values() for kind in group.kinds):
            threading.Thread(target=self.retire, daemon=True, name="retire").start()
        return self

    def make_door(self, name, number):
        system = self.system
        if name == "sql":
            return doors.SqlDoor(system.dsn("client-pg"), self.watch)
        if name == "http":
            return doors.HttpDoor(system.gateway_address, self.watch)
        if name == "message":
            return MessageDoor(system.broker_kind, system.broker.harness, system.broker.destination)
        if name in CLIENTS:
            service = ServiceDoor(system.service_address(name), self.watch) if name in system.services else None
            driver = driver_of(self.seed, name, number, self.doors)
            door = ClientDoor(name, number, [*self.programs[name], driver], system.dsn("client-pg"), system.directory / f"{name}-{number}.log", service)
            ways = self.through.setdefault(name, [system.services[name][-1]] if name in system.services else [])
            ways += [driver] if driver not in ways else []
        elif name == "lib":
            door = doors.LibDoor(f"lib-{number}", system.build / "tests/torture/torture_client", system.dsn("client-pg"), system.directory / f"lib-{number}.log")
        else:
            door = doors.RunDoor(f"run-{number}", system.program, system.dsn("run-pg"), system.directory / "ledger.txt")
        system.extra.append(door.target)
        return door

    def retire(self):
        """At a third of the run the days of some keys go past the horizon."""
        if self.over.wait(self.system.seconds / 3):
            return
        self.days_open = False
        for _ in range(600):
            try:
                with psycopg2.connect(self.system.direct_dsn()) as connection, connection.cursor() as cursor:
                    cursor.execute("SET statement_timeout = '5s'")
                    cursor.execute("SELECT once.set_keeping(horizon_days => 1)")
                connection.close()
                return
            except psycopg2.Error:
                if self.over.wait(0.5):
                    return

    # What is known of the intents.

    def register(self, intent, events):
        fields = {"forget_after_s": FORGET_S.get(intent.scope), "events": events}
        fields |= {"at_most": True} if intent.at_most else {}
        fields |= {"final": True} if intent.final else {}
        with self.lock:
            self.states[intent.number] = State()
            self.intents[intent.number] = intent
            self.open[intent.door] = self.open.get(intent.door, 0) + 1
        self.recorder.intent(intent.number, intent.door, intent.mode, intent.tenant, intent.scope, intent.key, intent.payload, **fields)

    def open_of(self, name):
        return self.open.get(name, 0)

    def settle(self, intent, how):
        """True for the first that knows."""
        with self.lock:
            state = self.states[intent.number]
            if state.done is not None:
                return False
            state.done = how
            self.open[intent.door] -= 1
            return True

    # Attempts.

    def attempt(self, group, door, client, job):
        """Makes the attempts of a job, writes down how they ended, and says when there is to be another."""
        ready = [intent for intent in job.intents if not self.is_gone(intent)]
        if not ready:
            return
        draw = random.Random(f"{self.seed}/{ready[0].number}/{job.order}/{job.tries}")
        orders = self.orders(ready[0], job, draw)
        orders.neighbour = self.neighbour(group.name, ready[0], job, orders)
        made = []
        for intent in ready:
            more = {"payload": job.payload, "late": True if job.late else None, "door": group.name if group.name != intent.door else None}
            more |= {"isolation": orders.isolation} if group.name in ATTEMPTS_AS_IN_SQL else {}
            more |= {"neighbour": orders.neighbour}
            with self.lock:
                state = self.states[intent.number]
                state.attempts += 1
                state.began = state.began or time.monotonic()
            number = self.recorder.attempt(intent.number, client, **more)
            made.append((intent, number, job.payload or intent.payload))
        if group.name == "lib":
            answers = door.attempt_many(made, orders)
        else:
            answers = [door.attempt(intent, number, payload, orders) for intent, number, payload in made]
        for (intent, number, _), answer in zip(made, answers):
            self.recorder.answer(
                intent.number, number, answer.verdict, answer.code, answer.status, answer.body, answer.replayed,
                loose=answer.loose or None, cached=answer.cached or None,
            )
            self.follow(group, intent, job, answer, draw)

    def is_gone(self, intent):
        """Its key is soon forgotten, and with it the promise: no attempt begins any more."""
        began = self.states[intent.number].began
        if intent.gone_s is None or began is None or time.monotonic() < began + intent.gone_s:
            return False
        if self.settle(intent, "given up"):
            self.recorder.record("given_up", intent=intent.number)
        return True

    def is_slow(self, intent):
        """Its attempts last about as long as a lease: who comes next takes over, and is still at work when this one, which does not know, reports."""
        return intent.door in ATTEMPTS_AS_IN_SQL and random.Random(f"{self.seed}/{intent.number}/slow").random() < SLOW

    def orders(self, intent, job, draw):
        orders = Orders(isolation=draw.choices(("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"), (60, 20, 20))[0])
        if self.hastening or job.tries > 8:
            return orders
        if draw.random() < 0.12:
            orders.before_s = round(draw.uniform(0.02, 0.5), 3)
        if draw.random() < 0.12:
            orders.after_s = round(draw.uniform(0.02, 0.5), 3)
        if self.is_slow(intent):
            orders.before_s = round(LEASE_S * draw.uniform(0.9, 1.6), 3)
        if draw.random() < 0.06 and not intent.final:
            orders.retry = True
        if draw.random() < self.leave:
            orders.leave = draw.choice(("begun", "claimed", "written", "finished", "done"))
        elif intent.mode == "transaction" and draw.random() < 0.3:
            orders.pipeline = True
        if intent.mode == "transaction":
            orders.trying, orders.apart = draw.random() < 0.4, draw.random() < 0.03
        if intent.scope == "asked" and draw.random() < 0.5:
            orders.doubt_s = round(draw.uniform(0.2, 2), 3)
        orders.way = draw.choice(tuple(doors.WAYS))
        if intent.mode in ("transaction", "http") and not intent.final:  # drawn apart, so that the seeds of before mean what they did
            orders.swallow = random.Random(f"{self.seed}/{intent.number}/{job.order}/{job.tries}/swallow").random() < SWALLOWED
        return orders

    def neighbour(self, door, intent, job, orders):
        """What is around this attempt's effect, if it comes to one."""
        words = AROUND.get(door, {}).get(intent.mode, ())
        if not words or self.hastening or job.tries > 8 or orders.retry or orders.swallow:
            return None
        draw = random.Random(f"{self.seed}/{intent.number}/{job.order}/{job.tries}/neighbour")
        return draw.choice(words) if draw.random() < NEIGHBOURED else None

    def follow(self, group, intent, job, answer, draw):
        state = self.states[intent.number]
        verdict = answer.verdict
        again = verdict in ("busy", "failed", "unknown")
        if job.payload is not None or job.late:
            if again and job.left > 0:
                group.push(draw.uniform(0.1, 1), [intent], payload=job.payload, late=job.late, left=job.left - 1, tries=job.tries + 1)
            return
        if again:
            if state.done is None:
                pause = min(2.0, 0.05 * 2 ** min(job.tries, 6)) * draw.uniform(0.5, 1)
                self.elsewhere(group, intent, draw).push(pause, [intent], tries=job.tries + 1)
        elif verdict == "in_doubt":
            # Its attempt may still report, and it alone; or an operator decides.
            state.doubts += 1
            self.operator.ask(intent)
            if state.doubts >= 3 and intent.at_most:  # else somebody can be asked, and is, by a later attempt
                self.settle(intent, "in_doubt")
            elif state.done is None:
                group.push(2.5, [intent], tries=job.tries + 1)
        elif self.settle(intent, verdict) and verdict == "acknowledged" and not self.hastening:
            self.pester(group, intent, draw)

    def decided(self, intent):
        """It has an answer now, whatever its clients were told."""
        self.groups[intent.door].push(0.1, [intent], late=True, left=5)

    def elsewhere(self, group, intent, draw):
        """Attempts in SQL, with libpgonce and with a client are the same to the contract, and so are requests to any client's middleware, and messages to any
        client: the next may come by any of these doors."""
        same = SAME_TO_THE_CONTRACT.get(intent.mode, ())
        others = [name for name in same if name != group.name and name in self.groups and (intent.mode == "transaction" or self.groups[name].has(intent.mode))]
        if group.name in same and others and draw.random() < 0.3:
            return self.groups[others[0] if len(others) == 1 else draw.choice(others)]
        return group

    def pester(self, group, intent, draw):
        """What comes after an answer: late retries, and the same key with another payload."""
        if draw.random() < 0.2:
            self.elsewhere(group, intent, draw).push(draw.uniform(0.2, 15), [intent], late=True)
        if group.name == "http" and draw.random() < 0.3:  # as late as a copy in the gateway's memory may be
            group.push(draw.uniform(15, 60), [intent], late=True)
        if draw.random() < 0.12 and group.name != "message":
            other = json.loads(intent.payload) | {"other": draw.getrandbits(32)}
            group.push(draw.uniform(0, 5), [intent], payload=json.dumps(other))

    # The end.

    def finish(self, patience_s):
        """No new intents; each that there is comes to an answer, some are attempted once more, and all messages arrive. patience_s: for each
        of these three."""
        self.end_leases_of_the_future()
        deadline = time.monotonic() + patience_s
        for group in self.groups.values():  # so that each door has something to do after the faults
            with group.changed:
                for _ in range(2):
                    group.place()
                group.changed.notify_all()
        self.placing, self.hastening = False, True
        self.settled(deadline)
        draw = random.Random(f"{self.seed}/late")
        late = [number for number, state in sorted(self.states.items()) if state.done and self.intents[number].gone_s is None]
        aged = [number for number in late if self.intents[number].scope == "aged"]  # whose days are retired by now
        for number in draw.sample(late, min(LATE, len(late))) + draw.sample(aged, min(LATE // 4, len(aged))):
            self.groups[self.intents[number].door].push(draw.uniform(0, 1), [self.intents[number]], late=True, left=5)
        self.settled(time.monotonic() + patience_s)
        if self.dumper is not None:
            self.dumper.finish(patience_s)
        self.branch.finish(patience_s)
        self.drain(time.monotonic() + patience_s)
        self.stop()
        assert not self.problems, "\n".join(self.problems)

    def end_leases_of_the_future(self):
        """A lease that was taken while the clock was ahead lasts until then: nobody waits that long for it here. It ends soon, as if it had been
        taken by the true clock."""
        for _ in range(60):
            try:
                with psycopg2.connect(self.system.direct_dsn()) as connection, connection.cursor() as cursor:
                    cursor.execute("UPDATE once.intent SET lease_until = clock_timestamp() + interval '5 s'"
                                   " WHERE state IN ('processing', 'in_doubt') AND lease_until > clock_timestamp() + interval '1 minute'")
                connection.close()
                return
            except psycopg2.Error as error:
                last = error
                time.sleep(1)
        self.problems.append(f"the leases of the future: {last}")

    def settled(self, deadline):
        """Until nothing is to be attempted any more, or the patience is over: then the checker says what that means."""
        while time.monotonic() < deadline and not self.problems and not (self.operator.is_idle() and all(group.is_idle() for group in self.groups.values())):
            for group in self.groups.values():
                group.hurry()
            time.sleep(0.1)

    def stop(self):
        """Ends all clients."""
        self.placing = False
        self.over.set()
        for group in self.groups.values():
            with group.changed:
                group.changed.notify_all()
        for group in self.groups.values():
            for worker in group.workers:
                worker.join(3 * doors.PATIENCE_S)
        if self.operator.is_alive():
            self.operator.stop()
        if self.reborn is not None:
            self.reborn.stop()
        if self.dumper is not None:
            self.dumper.stop()
        if self.branch is not None:
            self.branch.stop()

    def drain(self, deadline):
        """Until every event and every message has been applied. Some are delivered once more first, and what is published last tells that
        all before it has come."""
        self.drained(deadline)
        self.deliver_again()
        if "message" in self.groups:
            group = self.groups["message"]
            with group.changed:
                for _ in range(8):
                    group.place()
                group.changed.notify_all()
            self.settled(deadline)
        self.drained(deadline)
        self.recorder.phase("drained" if time.monotonic() < deadline else "not drained")

    def deliver_again(self):
        try:
            with psycopg2.connect(self.system.direct_dsn()) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT once.parked_replay('torture', clock_timestamp() - interval '20 seconds', NULL, 'torture: once more')")
            connection.close()
        except psycopg2.Error as error:
            self.problems.append(f"outbox_replay: {error}")

    def drained(self, deadline):
        quiet = None
        while time.monotonic() < deadline:
            try:
                before, now = quiet, self.backlog()
                if now[0] == 0 and before == now:
                    return
                quiet = now
            except psycopg2.Error:
                quiet = None
            time.sleep(DRAIN_QUIET_S)

    def backlog(self):
        """(how many events and messages have not arrived, how many have)"""
        waiting = events = 0
        for name in ("torture", "branch"):
            with psycopg2.connect(self.system.direct_dsn(name)) as database:
                waiting += one(database, "SELECT coalesce(sum(events), 0)::integer FROM once.outbox_summary() WHERE state <> 'idle'")
                events += one(database, "SELECT count(*) FROM once.outbox")
            database.close()
        with psycopg2.connect(self.system.warehouse_dsn()) as warehouse:
            parked = one(warehouse, "SELECT count(*) FROM once.parked_message")
            arrived = one(warehouse, "SELECT count(DISTINCT message_id) FROM torture.applied WHERE NOT body ? 'direct'")
            direct = one(warehouse, "SELECT count(DISTINCT message_id) FROM torture.applied WHERE body ? 'direct'")
        warehouse.close()
        sent = sum(self.states[n].done == "acknowledged" for n, intent in self.intents.items() if intent.door == "message")
        return waiting + parked + max(0, events - arrived) + max(0, sent - direct), arrived + direct


def one(connection, query):
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]
