# SPDX-License-Identifier: PostgreSQL
"""The topology `servers`: two plain PostgreSQL servers share the tenants (docs/how/scale.md), and slots move between them with `pgonce rehome`
while clients work. Clients route as programs do: they ask once.slots() of each node at their start and after P4097. Nodes, backends, clients and the
command are killed. A witness looks all the time whether a slot is open on both nodes."""

import atexit
import contextlib
import pathlib
import random
import signal
import subprocess
import threading
import time

import psycopg2

from harness.nats import Nats
from harness.native import native_script
from harness.nginx import BUILD
from harness.postgres import clean_environment, install_script, tied, wait_until

from . import doors, facts as facts_of, history, published
from .processes import Broker, Job, Node
from .reborn import Reborn
from .system import FIRST_PATIENCE_S, NODE, ROLES, SHIM, NotNow
from .workload import AGGREGATES, Workload

HERE = pathlib.Path(__file__).parent
NAMES = ("node-a", "node-b")
TENANTS = tuple(f"tenant {number}" for number in range(8))
SETTINGS = NODE | {
    "wal_level": "logical", "max_replication_slots": "20", "max_wal_senders": "20", "max_worker_processes": "20", "max_logical_replication_workers": "12",
    "wal_retrieve_retry_interval": "200ms", "checkpoint_timeout": "30s",
}  # fmt: skip
# Effects that are where their memory is, or that nobody looks up: a ledger that verify asks would have to be one for both nodes.
DOORS = tuple(f"{door}/{scope}" for door in ("sql", "lib") for scope in ("accounts", "fenced", "doubtful", "brief"))
KINDS = ("move", "kill", "backend", "pause", "client")
FAULTS = {"kill": 2, "backend": 3, "pause": 1, "client": 1}  # by their weights; slots move beside them
PACE_S = 3.0  # between two faults
MOVE_PACE_S = 1.0
KILLED = 0.35  # of the commands that move slots
WAIT = "2s"
AGAIN_S = 120  # until the last of them is through, when all is healed
LOOK_S = 0.02
ROLE = "torture_client"
STALE_S = 1.0
MORE_AGGREGATES = f"INSERT INTO torture.aggregate SELECT 'a' || n FROM generate_series(82, {len(TENANTS) * AGGREGATES}) AS n"


def kinds_of(text):
    """As nemesis.kinds_of. ValueError where a name is none."""
    if text in ("all", "none", ""):
        return () if text == "none" else KINDS
    entries = tuple(text.split(","))
    unknown = [entry for entry in entries if entry not in KINDS]
    if unknown:
        raise ValueError(f"no such fault of several servers: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    return entries


class Servers:
    """What System is for one database: start(), heal(), destroy(), collect(), and what the workload asks."""

    tenants = TENANTS
    services = {}
    broker_kind = "nats"
    settings, bindir = SETTINGS, None
    names = NAMES  # of the PostgreSQL servers; the first two are the nodes
    preamble = ()  # statements at the begin of each script

    def __init__(self, seed, directory, seconds, mutation=None, native=False):
        self.seed, self.directory, self.seconds, self.mutation, self.native = seed, pathlib.Path(directory), seconds, mutation, native
        self.build = pathlib.Path(getattr(mutation, "build", None) or BUILD)
        self.program = self.build / "cli/pgonce"
        self.servers, self.processes, self.extra, self.problems, self.ended = [], [], [], [], []
        self.recorder = self.broker = None
        self.slots = {}  # of the tenants
        self.over = threading.Event()
        self.tending = threading.Thread(target=self._tend, daemon=True, name="tend")

    @property
    def nodes(self):
        return self.servers[: len(NAMES)]

    def start(self):
        atexit.register(self.destroy)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.broker = Broker(Nats(), "torture.direct", self.directory)
        self._begin(self.broker)
        for name in self.names:
            server = Node(name, self.directory / f"{name}.log", SHIM, self.settings, bindir=self.bindir)
            self.servers.append(server)
            self._begin(server)
        self._wait_for_servers()
        if self.nodes[0].server.version < 15:
            raise RuntimeError("slots move from PostgreSQL 15 on")
        wait_until(self.broker.is_ready, "the broker", FIRST_PATIENCE_S)
        self.broker.harness.add_stream("TORTURE", "torture.>", duplicate_window=100_000_000)
        self._databases()
        for node in self.nodes:
            self._begin(Job(f"relay-{node.name}", [self.program, "relay", "--config", self._relay(node)], self.directory / f"relay-{node.name}.log"))
            words = [self.program, "keep", "--dsn", node.server.dsn("torture", "torture_keeper"), "--name", node.name, "--interval", "1s"]
            self._begin(Job(f"keep-{node.name}", words, self.directory / f"keep-{node.name}.log"))
        self.tending.start()
        return self

    def _begin(self, process):
        self.processes.append(process)
        process.start()

    def _wait_for_servers(self):
        for server in self.servers:
            wait_until(server.is_ready, server.name, FIRST_PATIENCE_S)

    def _databases(self):
        first, *others = self.nodes
        for server in self.servers:
            self._script(server, "CREATE DATABASE torture", "postgres")
        self._prepare()
        self._script(first, install_script())
        self._roles(first)
        self._script(first, "SELECT once.set_keeping(clock_settle => '25 seconds')", "SELECT once.add_days()")
        self._schema(first)
        self._script(first, "CALL once.divide(true)")
        for node in others:
            done = self.command("init", "--dsn", node.server.dsn("torture"), "--join", first.server.dsn("torture"))
            assert done.returncode == 0, done.stderr
            self._roles(node)
            self._schema(node)
        for node in self.nodes:
            if self.native:
                self._script(node, native_script(self.build / "native/pgonce_native.so"))
            if self.mutation is not None:
                self._script(node, self.mutation.changes(install_script()))
                self._script(node, "CALL once.divide()")
        self._complete()
        with facts_of.Database(self.direct_dsn(first)) as database:
            self.slots = {tenant: database.value("SELECT once.slot_of(%s)", tenant) for tenant in TENANTS}

    def _prepare(self):
        """For subclasses: before the contract is installed."""

    def _schema(self, node):
        self._script(node, (HERE / "schema.sql").read_text(), MORE_AGGREGATES)

    def _complete(self):
        """For subclasses: when all nodes are made."""

    def _relay(self, node):
        path = self.directory / f"relay-{node.name}.conf"
        lines = ["[relay torture]", f"dsn = {node.server.dsn('torture', 'torture_relay_a')}", "sink = nats", f"url = nats://127.0.0.1:{self.broker.harness.port}",
                 f"route = torture.* -> {{topic}}.{node.name}", "retry_first = 100ms", "retry_most = 1s", "attempts = 1000", "on_dead = block", "timeout = 4s", "batch = 200", ""]  # fmt: skip
        path.write_text("\n".join(lines))
        path.chmod(0o600)
        return path

    def _script(self, node, *texts):
        dbname = "torture"
        if texts[-1] == "postgres":
            *texts, dbname = texts
        connection = node.connect(dbname)
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = 0")
            for text in (*self.preamble, *texts):
                cursor.execute(text)
        connection.close()

    def _roles(self, node):
        self._script(node, *(f"CREATE ROLE {role} LOGIN IN ROLE {group}" for group, roles in ROLES.items() for role in roles))

    def command(self, *words, timeout=120):
        return subprocess.run([str(self.program), *map(str, words)], capture_output=True, text=True, timeout=timeout, env=clean_environment(), check=False)

    def direct_dsn(self, node):
        return node.server.dsn("torture") + " connect_timeout=3"

    def client_dsn(self, node):
        return node.server.dsn("torture", ROLE) + " connect_timeout=3"

    def _tend(self):
        while not self.over.wait(0.1):
            for process in list(self.processes):
                try:
                    process.tend()
                except Exception as problem:  # pylint: disable=broad-except
                    self.problems.append(f"{process.name}: {problem!r}")

    def heal(self):
        for process in self.processes:
            process.resume()
            if not process.is_running():
                process.start()
        for each in self.extra:
            with contextlib.suppress(OSError):
                each.resume()
        self._wait_for_servers()

    def destroy(self):
        atexit.unregister(self.destroy)
        self.over.set()
        if self.tending.is_alive():
            self.tending.join()
        for process in reversed(self.processes):
            process.destroy()
        for server in self.servers:
            server.server.destroy()
        self.servers, self.processes = [], []

    # What there is.

    def open_on(self, node, patience=3):
        """{slot: epoch} of those that are open on this node. psycopg2.Error: it is away."""
        connection = psycopg2.connect(self.direct_dsn(node), options=f"-c statement_timeout={patience}s")
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT slot, epoch FROM once.slots() WHERE open")
                return dict(cursor.fetchall())
        finally:
            connection.close()

    def collect(self, online=False):
        """Facts, as facts.collect has them: of both nodes. Rows of the memory count where their slot is open: elsewhere they are leftovers."""
        found = {"consumed": False, "copies": ["torture"], "published": published.read(self)}  # before what was committed
        found |= {name: [] for name in ("ledger", "events", "fences", "intents", "stuck", "slots")}
        log = None if online else history.read(self.directory / "history.jsonl")
        found["effects"] = self.effects()
        for node in self.nodes:
            is_open = self.open_on(node)
            here = {tenant for tenant, slot in self.slots.items() if slot in is_open}
            found["slots"] += [{"node": node.name, "slot": slot, "epoch": epoch} for slot, epoch in sorted(is_open.items())]
            with facts_of.Database(self.direct_dsn(node)) as database:
                for what, query in (("ledger", facts_of.LEDGER), ("events", facts_of.EVENTS)):
                    found[what] += [row | {"node": node.name} for row in database.rows(query)]
                if online:
                    continue
                found["fences"] += [row for row in database.rows(facts_of.FENCES) if row["tenant"] in here]
                found["stuck"] += [row for row in database.rows(facts_of.STUCK, 2 * facts_of.LEASE_S) if row["tenant"] in here]
                mine = history.History(record for record in log.records if record["kind"] == "intent" and record["tenant"] in here)
                found["intents"] += facts_of.intents(database, mine)
                found["now"] = max(found.get("now", 0), database.value("SELECT date_part('epoch', clock_timestamp())"))
        for row in found["published"]:
            row["by"] = row["by"].removeprefix("torture.")
        self.number(found)
        found["t"] = self.recorder.now() if self.recorder else 0
        return found

    def effects(self):
        found = []
        for node in self.nodes:
            with facts_of.Database(self.direct_dsn(node)) as database:
                found += [row | {"node": node.name} for row in database.rows(facts_of.EFFECTS)]
        return found

    @staticmethod
    def number(found):
        renumber(found)


def renumber(found):
    """Each node counts the steps of an aggregate by itself. Numbers them over both: in the order in which its effects happened."""
    steps, places = {}, {}
    for row in sorted(found["effects"], key=lambda row: row["at"]):
        steps[row["aggregate"]] = places[row["node"], row["aggregate"], row["step"]] = steps.get(row["aggregate"], 0) + 1
        row["step"] = steps[row["aggregate"]]
    for row, node in [*((row, row["node"]) for row in found["events"]), *((row, row["by"]) for row in found["published"])]:
        row["step"] = places.get((node, row["aggregate"], row["step"]), 0)


# ---- Clients


class Router:
    """Which node serves a tenant, as once.slots() of the nodes said last: the highest epoch wins. For many threads."""

    def __init__(self, system):
        self.system, self.lock = system, threading.Lock()
        self.told = {}  # node: {slot: epoch}
        self.asked = 0.0
        self.ask()

    def ask(self):
        with self.lock:
            for number, node in enumerate(self.system.nodes):
                with contextlib.suppress(psycopg2.Error):
                    self.told[number] = self.system.open_on(node)
            self.asked = time.monotonic()

    def node_of(self, tenant):
        slot = self.system.slots[tenant]
        with self.lock:
            return max(range(len(self.system.nodes)), key=lambda number: self.told.get(number, {}).get(slot, -1))

    def node_soon(self, tenant):
        """For a client that does not look at its refusals."""
        if time.monotonic() > self.asked + STALE_S:
            self.ask()
        return self.node_of(tenant)


class RoutedDoor:
    """A door to each node. An attempt that was refused because of its slot, and has left nothing, is made once more where the slot is now."""

    def __init__(self, each, router):
        self.doors, self.router, self.name = each, router, each[0].name

    def close(self):
        for door in self.doors:
            door.close()

    def attempt(self, intent, number, payload, orders):
        return self.attempt_many([(intent, number, payload)], orders)[0]

    def attempt_many(self, each, orders):
        answers = self.once(each, orders)
        if any(answer.code == "P4097" for answer in answers):
            self.router.ask()
            if all(answer.code == "P4097" and answer.verdict == "failed" and not answer.loose for answer in answers):
                answers = self.once(each, orders)
        return answers

    def once(self, each, orders):
        door = self.doors[self.router.node_of(each[0][0].tenant)]
        if hasattr(door, "attempt_many"):
            return door.attempt_many(each, orders)
        return [door.attempt(intent, number, payload, orders) for intent, number, payload in each]


class RoutedReborn(Reborn):
    """reborn.py, of several nodes."""

    def __init__(self, system, router, watch, *rest):
        super().__init__("", watch, *rest, system.tenants)
        self.router = router
        self.sessions = [doors.Session(system.client_dsn(node), watch) for node in system.nodes]

    def turn_to(self, tenant):
        self.session = self.sessions[self.router.node_soon(tenant)]

    def stop(self):
        super().stop()
        for session in self.sessions:
            session.close()


class NoOperator:
    """Nobody decides what is in doubt."""

    def ask(self, intent):
        pass

    @staticmethod
    def is_idle():
        return True

    @staticmethod
    def is_alive():
        return False


class RoutedWorkload(Workload):
    """The doors to SQL and of libpgonce, to several nodes."""

    tenants = TENANTS

    def __init__(self, system, recorder, seed, **more):
        super().__init__(system, recorder, seed, **more)
        self.operator, self.router = NoOperator(), None

    def start(self):
        self.watch = doors.Watch()
        self.router = Router(self.system)
        self.placing = True
        self.reborn = RoutedReborn(self.system, self.router, self.watch, self.recorder, self.seed, self.problems)
        self.reborn.start()
        for group in self.groups.values():
            group.start()
        return self

    def make_door(self, name, number):
        system = self.system
        if name == "sql":
            return RoutedDoor([doors.SqlDoor(system.client_dsn(node), self.watch) for node in system.nodes], self.router)
        program = system.build / "tests/torture/torture_client"
        each = [doors.LibDoor(f"lib-{number}-{node.name}", program, system.client_dsn(node), system.directory / f"lib-{number}-{node.name}.log") for node in system.nodes]
        system.extra += [door.target for door in each]
        return RoutedDoor(each, self.router)

    def finish(self, patience_s):
        for group in self.groups.values():  # so that each door has something to do after the faults
            with group.changed:
                for _ in range(2):
                    group.place()
                group.changed.notify_all()
        self.placing, self.hastening = False, True
        self.settled(time.monotonic() + patience_s)
        draw = random.Random(f"{self.seed}/late")
        late = [number for number, state in sorted(self.states.items()) if state.done and self.intents[number].gone_s is None]
        for number in draw.sample(late, min(len(late), 120)):
            self.groups[self.intents[number].door].push(draw.uniform(0, 1), [self.intents[number]], late=True, left=5)
        self.settled(time.monotonic() + patience_s)
        wait_until(self.all_published, "the relays", patience_s)
        self.stop()
        assert not self.problems, "\n".join(self.problems)


    def all_published(self):
        with contextlib.suppress(psycopg2.Error):
            for node in self.system.nodes:
                with facts_of.Database(self.system.direct_dsn(node)) as database:
                    if database.rows("SELECT FROM once.outbox_summary() WHERE state <> 'idle'"):
                        return False
            return True
        return False


# ---- What goes wrong


class Mover(threading.Thread):
    """Moves slots to and fro, and kills the command now and then. A slot whose move was killed is moved on, as an operator would do, sooner or later."""

    def __init__(self, system, recorder, seed):
        super().__init__(daemon=True, name="mover")
        self.system, self.recorder = system, recorder
        self.draw = random.Random(f"{seed}/mover")
        self.over = threading.Event()
        self.left = None  # (slots, source, target) of a move that is not through
        self.moved = 0

    def run(self):
        try:
            while not self.over.wait(self.draw.expovariate(1 / MOVE_PACE_S)):
                with contextlib.suppress(psycopg2.Error):  # a node is away
                    self.move(*(self.left or self.chosen()))
        except Exception as problem:  # pylint: disable=broad-except
            self.system.problems.append(f"mover: {problem!r}")

    def chosen(self):
        slots, source = [], self.draw.randrange(len(NAMES))
        while not slots:
            source = 1 - source
            is_open = self.system.open_on(self.system.nodes[source])
            slots = sorted(slot for slot in set(self.system.slots.values()) if slot in is_open)
        return self.draw.sample(slots, min(len(slots), self.draw.randint(1, 2))), source, 1 - source

    def words(self, slots, source, target):
        nodes = self.system.nodes
        dsn = [nodes[number].server.dsn("torture") for number in (source, target)]
        return ["rehome", *slots, "--from", dsn[0], "--to", dsn[1], "--wait", WAIT]

    def move(self, slots, source, target):
        what = f"{' '.join(map(str, slots))} {NAMES[source]} to {NAMES[target]}"
        kill_s = self.draw.uniform(0.02, 1.5) if self.draw.random() < KILLED else None
        self.recorder.fault("move", what, "begin")
        status, said = self.attempt(slots, source, target, kill_s)
        self.recorder.fault("move", what, "end", f"{status} {said}")

    def attempt(self, slots, source, target, kill_s=None):
        status, said = self.run_command(self.words(slots, source, target), kill_s)
        self.left = None if status == 0 else (slots, source, target)
        if status == 0:
            self.moved += len(slots)
            self.recorder.record("moved", slots=slots, on=NAMES[target])
        return status, said

    def run_command(self, words, kill_s):
        command = [str(self.system.program), *map(str, words)]
        with subprocess.Popen(tied(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, env=clean_environment()) as process:
            try:
                said, _ = process.communicate(timeout=60 if kill_s is None else kill_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                said, _ = process.communicate()
        return process.returncode, said.strip()[-400:]

    def finish(self):
        """All is healed: the last move comes to its end."""
        self.over.set()
        self.join()
        deadline = time.monotonic() + AGAIN_S
        while self.left is not None or not self.moved:
            status, said = self.attempt(*(self.left or self.chosen()))
            if status != 0 and time.monotonic() > deadline:
                raise TimeoutError(f"{self.left} does not come to its end: {said}")
            time.sleep(0 if status == 0 else 0.5)


class Witness(threading.Thread):
    """Looks whether a slot is open on both nodes: on the first, on the second, and with the same epoch still on the first."""

    def __init__(self, system, recorder):
        super().__init__(daemon=True, name="witness")
        self.system, self.recorder, self.over, self.looks = system, recorder, threading.Event(), 0

    def run(self):
        while not self.over.wait(LOOK_S):
            with contextlib.suppress(psycopg2.Error):
                first, second = self.system.nodes
                before, there, after = (self.system.open_on(node, 2) for node in (first, second, first))
                self.looks += 1
                for slot, epoch in there.items():
                    if slot in before and after.get(slot) == before[slot]:
                        self.recorder.record("open_twice", slot=slot, on=[[first.name, before[slot]], [second.name, epoch]])

    def stop(self):
        self.over.set()
        self.join()


class ServersNemesis:
    """Follows a plan that the seed decides. kinds: of KINDS. scale: so many times as many faults."""

    def __init__(self, system, recorder, seed, kinds=KINDS, scale=1):
        self.system, self.recorder, self.kinds, self.scale = system, recorder, kinds, scale
        self.draw = random.Random(f"{seed}/servers")
        self.mover = Mover(system, recorder, seed) if "move" in kinds else None
        self.witness = Witness(system, recorder)

    def run(self, seconds, until=None):
        """until: a condition; when it is true it ends early."""
        end = time.monotonic() + seconds
        faults = [kind for kind, weight in FAULTS.items() if kind in self.kinds for _ in range(weight)]
        self.witness.start()
        if self.mover is not None:
            self.mover.start()
        due = time.monotonic() + PACE_S / self.scale
        while time.monotonic() < end and not (until is not None and until()):
            if faults and time.monotonic() >= due:
                self.fault(self.draw.choice(faults), self.draw.randrange(len(self.system.servers)), self.draw.uniform(0.1, 1.5))
                due = time.monotonic() + self.draw.expovariate(self.scale / PACE_S)
            time.sleep(0.1)

    def fault(self, kind, number, seconds):
        node = self.system.servers[number]
        if kind == "client":
            self.kill_client(node)
            return
        self.recorder.fault(kind, node.name, "begin", f"for {seconds:.1f} s")
        detail = None
        if kind == "kill":
            node.kill()
            time.sleep(seconds)
            node.start()
        elif kind == "pause":
            node.pause()
            time.sleep(seconds)
            node.resume()
        else:
            detail = node.kill_backend(self.draw.randrange(1 << 20))
        self.recorder.fault(kind, node.name, "end", detail)

    def kill_client(self, node):
        each = [target for target in self.system.extra if target.name.endswith(node.name)]
        if not each:
            return
        target = self.draw.choice(each)
        self.recorder.fault("client", target.name, "begin")
        with contextlib.suppress(NotNow, OSError):
            target.kill()
        self.recorder.fault("client", target.name, "end")

    def heal(self):
        self.system.heal()
        if self.mover is not None:
            self.mover.finish()

    def close(self):
        for each in (self.mover, self.witness):
            if each is not None and each.is_alive():
                each.over.set()
                each.join()
