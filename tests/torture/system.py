# SPDX-License-Identifier: PostgreSQL
"""The whole system on one machine: PostgreSQL with a synchronous standby, a second one for the consumer, the gateway and two upstreams, relay,
broker, consumer, keeper; each pair joined by a link (links.py) that can be broken. Two processes run the relays (published.py): of each relay one is active."""

import atexit
import contextlib
import pathlib
import shutil
import subprocess
import sys
import threading
import time

import pika.exceptions
import psycopg2
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from harness import kafka as kafka_harness
from harness import maven
from harness.broker import free_port
from harness.elasticmq import ElasticMq
from harness.kafka import Kafka
from harness.nats import Nats
from harness.native import native_script
from harness.nginx import BUILD
from harness.postgres import install_script, wait_until
from harness.rabbitmq import RabbitMQ

from .links import Links
from . import published, services as services_of
from .processes import Broker, Gateway, Job, Node, StandingBroker, short_directory

HERE = pathlib.Path(__file__).parent
PREFETCH = 40  # of a consumer; soon full when its handler is slow
BATCH = 20
TOPIC = {"message_timestamp_type": "LogAppendTime"}
FULL = "full"  # a queue of RabbitMQ that has room for one message
REFUSE_PATIENCE_S = 5
ROOM = 10  # messages that a stream of NATS still takes when it begins to refuse
SMALL_BYTES = 1300  # of a batch of Kafka: more than any event has, and less than three
SHARED = ("kafka", "sqs")  # brokers that give the messages to several consumers at a time, in order
SURELY_SYNCHRONOUS_S = 10  # longer than a fault stops a process
PATIENCE_S = 120  # a start, on a machine that has much to do
FIRST_PATIENCE_S = 5 * PATIENCE_S  # of all of them at once, beside those of other runs
SHIM = BUILD / "tests/torture/torture_shim.so"
REPLICA = "torture_standby"

# So that whoever is gone is noticed within seconds, as docs/how/harden.md advises; and that short runs see checkpoints.
NODE = {
    "max_connections": "150",
    "autovacuum": "on",
    "wal_level": "replica",
    "max_wal_senders": "8",
    "wal_keep_size": "1GB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30s",
    "wal_sender_timeout": "4s",
    "wal_receiver_timeout": "4s",
    "wal_receiver_status_interval": "1s",
    "wal_retrieve_retry_interval": "300ms",
    "hot_standby": "on",
    "idle_in_transaction_session_timeout": "8s",
    "client_connection_check_interval": "1s",
    "statement_timeout": "20s",
    "lock_timeout": "15s",
    "log_line_prefix": "%m [%p] %a ",
    "restart_after_crash": "on",
}
CLIENT = "connect_timeout=3 tcp_user_timeout=3000 keepalives_idle=2 keepalives_interval=1 keepalives_count=2 sslmode=disable gssencmode=disable"
# Who comes through which link to a database, and to which one.
USERS = {
    "client-pg": "torture_client",
    "run-pg": "torture_run",
    "gateway-pg": "torture_gateway",
    "handoff-pg": "torture_handoff",
    "naive-ledger": "torture_ledger",
    "relay-pg": "torture_relay_a",
    "keeper-pg": "torture_keeper",
    "consumer-pg": "torture_consumer",
}
ROLES = {
    "once_app": ["torture_client", "torture_run", "torture_gateway", "torture_handoff", "torture_ledger"],
    "once_relay": ["torture_relay_a", "torture_relay_b"],
    "once_keeper": ["torture_keeper"],
    "once_consumer": ["torture_consumer"],
}
PRIMARY_LINKS = [name for name in USERS if name != "consumer-pg"] + ["standby-primary"]
LINKS = (*USERS, "standby-primary", "client-gateway", "gateway-naive", "gateway-handoff", "relay-broker", "consumer-broker", "client-broker")
RELAYS = {"relay-a": "torture_relay_a", "relay-b": "torture_relay_b"}  # the processes; name: role, by which PostgreSQL tells them apart
SCRIPTS = {"torture": "schema.sql", "branch": "branch.sql", "warehouse": "warehouse.sql"}  # of the databases, beside the contract
BROKERS = ("nats", "rabbitmq", "kafka", "sqs")
GATEWAY = """
    once_database "{dsn}";
    once_timeout 2s;
    {cache}
    send_timeout 10s;
    upstream naive {{ server 127.0.0.1:{naive}; keepalive 8; }}
    upstream handoff {{ server 127.0.0.1:{handoff}; keepalive 8; }}
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_connect_timeout 2s;
    proxy_send_timeout 4s;
    proxy_read_timeout 4s;
"""
LOCATIONS = """
    once_tenant $http_x_tenant;
    once_lease 3s;
    add_header X-Cache "$once_cache" always;
    location /naive { once required; once_scope naive; proxy_pass http://naive; }
    location /handoff { once required; once_scope handoff; once_in_doubt retry; once_wait 2s; proxy_pass http://handoff; }
"""


class NotNow(Exception):
    """A fault that cannot be done as things are; the text says why."""


class System:
    """mutation: an object that may have contract(sql) -> sql, which is installed instead, and build, where the programs are instead.
    cache: the gateway has once_replay_cache. native: the databases have pgonce_native. services: of languages, whose clients serve HTTP: the words that
    start their programs, up to their frameworks."""

    def __init__(self, seed, directory, broker="nats", seconds=60, mutation=None, cache=True, native=False, services=None):
        self.cache, self.native, self.services = cache, native, services or {}
        self.seed, self.directory, self.broker_kind, self.seconds, self.mutation = seed, pathlib.Path(directory), broker, seconds, mutation
        self.build = pathlib.Path(getattr(mutation, "build", None) or BUILD)
        self.program = self.build / "cli/pgonce"
        self.links = None
        self.processes = []  # in the order of their start
        self.extra = []  # of the workload: with name, pid, kill(), pause(), resume()
        self.ended = []  # (when, name, status) of those that ended by themselves
        self.problems = []  # of the tending thread
        self.notes = []  # what was unusual, for a reader
        self.recorder = None  # the history, once there is a workload
        self.primary = self.standby = self.warehouse = self.broker = self.gateway = None
        self.naive = self.handoff = self.consumer = self.keeper = None
        self.relays = {}  # by name
        self.sleeps = []  # of relays that were stopped until another had taken over: by, since (seconds since 1970)
        self.refuses = False  # the broker does, or may
        self.sockets = None
        self.begun = time.monotonic()
        self.over = threading.Event()
        self.must_rebuild = threading.Event()  # the standby is a former primary
        self.synchronous_since = None  # when commits began to wait for the standby
        self.promoting = threading.Event()  # the primary is not known to be one yet
        self.threads = []

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.destroy()
            raise

    def __exit__(self, *_):
        self.destroy()

    # What the workload asks.

    def dsn(self, link, user=None, dbname=None):
        """Through a link to a database."""
        database = dbname or ("warehouse" if link == "consumer-pg" else "torture")
        port = self.links[link].port
        return f"hostaddr=127.0.0.1 port={port} dbname={database} user={user or USERS[link]} application_name={link} {CLIENT}"

    @property
    def gateway_address(self):
        return self.links["client-gateway"].address

    def service_address(self, language):
        return self.links[services_of.service_link(language)].address

    @property
    def handoff_dsn(self):
        return self.dsn("handoff-pg")

    def direct_dsn(self, dbname="torture"):
        """The primary's, as its superuser, through no link."""
        return self.primary.server.dsn(dbname) + " connect_timeout=5"

    def warehouse_dsn(self):
        return self.warehouse.server.dsn("warehouse") + " connect_timeout=5"

    # Starting.

    def start(self):
        atexit.register(self.destroy)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.sockets = short_directory()
        self._broker()  # it takes longest
        self.primary = self._node("postgres-a")
        self.warehouse = self._node("postgres-w")
        for node in (self.primary, self.warehouse):
            self._begin(node)
        self._await(self.primary, self.warehouse, patience_s=FIRST_PATIENCE_S)
        self._databases()
        self._links()
        self.standby = self._node("postgres-b", copy_of=self.primary.server)
        self._follow(self.standby)
        self._begin(self.standby)
        self._await(self.broker, patience_s=FIRST_PATIENCE_S)
        self._topics()
        self._jobs()
        self._await(*self.processes, patience_s=FIRST_PATIENCE_S)
        wait_until(lambda: self._follows("async"), "the standby", FIRST_PATIENCE_S)
        self._wait_for_standby()
        wait_until(self.in_sync, "the standby", FIRST_PATIENCE_S)
        self.threads = [threading.Thread(target=each, name=each.__name__, daemon=True) for each in (self._tend, self._keep_standby)]
        for thread in self.threads:
            thread.start()
        return self

    def _node(self, name, copy_of=None):
        return Node(name, self.directory / f"{name}.log", SHIM, NODE, copy_of)

    def _begin(self, process):
        self.processes.append(process)
        process.start()

    def _await(self, *processes, patience_s=PATIENCE_S):
        for process in processes:
            try:
                wait_until(process.is_ready, process.name, patience_s)
            except TimeoutError as late:
                raise TimeoutError(f"{late}\n{process.tail()}") from late

    def _broker(self):
        ports = {name: free_port() for name in LINKS}
        if self.broker_kind == "nats":
            harness, destination = Nats(), "torture.direct"
            targets = dict.fromkeys(("relay-broker", "consumer-broker", "client-broker"), harness.port)
        elif self.broker_kind == "rabbitmq":
            harness, destination = RabbitMQ(), "torture"
            targets = dict.fromkeys(("relay-broker", "consumer-broker", "client-broker"), harness.port)
        elif self.broker_kind == "sqs":
            assert maven.jars("elasticmq")[1] is None, maven.jars("elasticmq")[1]
            harness, destination = ElasticMq(), "torture.fifo"
            harness.door = published.Recorder(harness.port, remembers=False).__enter__()
            targets = {"relay-broker": harness.door.port, "consumer-broker": harness.port, "client-broker": harness.port}
        else:
            assert self.broker_kind == "kafka", self.broker_kind
            assert kafka_harness.jars()[1] is None, kafka_harness.jars()[1]
            # A client of Kafka goes where the broker says that it is: to its link, each.
            ways = {"RELAY": "relay-broker", "CONSUMER": "consumer-broker", "CLIENT": "client-broker"}
            harness, destination = Kafka(ways={name: ports[link] for name, link in ways.items()}), "torture"
            targets = {link: harness.ports[name] for name, link in ways.items()}
        self.ports, self.targets = ports, targets
        self.broker = (StandingBroker if self.broker_kind == "sqs" else Broker)(harness, destination, self.directory)
        self._begin(self.broker)

    def _databases(self):
        contract = install_script()
        if hasattr(self.mutation, "contract"):
            contract = self.mutation.contract(contract)
        known = set()  # roles are a server's
        for node, name in ((self.primary, "torture"), (self.primary, "branch"), (self.warehouse, "warehouse")):
            connection = node.connect()
            connection.cursor().execute(f"CREATE DATABASE {name}")
            connection.close()
            with node.connect(name) as connection, connection.cursor() as cursor:
                cursor.execute("SET statement_timeout = 0")
                cursor.execute(contract)
                if self.native:
                    cursor.execute(native_script(self.build / "native/pgonce_native.so"))
                for role, group in [(role, group) for group, roles in ROLES.items() for role in roles if node not in known]:
                    cursor.execute(f"CREATE ROLE {role} LOGIN IN ROLE {group}")
                known.add(node)
                # What a leap of the clock leaves alone, and how soon a steady one is believed again.
                cursor.execute("SELECT once.set_keeping(horizon_days => 4, clock_settle => '25 seconds')")
                cursor.execute("SELECT once.add_days()")
                cursor.execute((HERE / SCRIPTS[name]).read_text())
            connection.close()

    def _links(self):
        self.links = Links(self.seed, self.directory / "links.log")
        self.targets["client-gateway"] = self.sockets / "none"  # until it is there
        self.targets["gateway-naive"], self.targets["gateway-handoff"] = self.sockets / "naive", self.sockets / "handoff"
        self.targets["consumer-pg"] = self.warehouse.socket
        for name in PRIMARY_LINKS:
            self.targets[name] = self.primary.socket
        for name in LINKS:
            self.links.add(name, self.ports[name], self.targets[name])
        self.targets |= {language: free_port() for language in self.services}
        for language in self.services:
            self.links.add(services_of.service_link(language), free_port(), self.targets[language])

    def _follow(self, node):
        """It becomes the standby of whoever is primary, through its link."""
        port = self.links["standby-primary"].port
        node.become_standby(f"host=127.0.0.1 port={port} user=postgres application_name={REPLICA} {CLIENT}")

    def _topics(self):
        harness = self.broker.harness
        if self.broker_kind == "nats":
            # ns: NATS itself shall drop nothing of what a relay publishes again; what two relays publish comes at nearly the same time.
            harness.add_stream("TORTURE", "torture.>", "mirror.>", duplicate_window=100_000_000)
        elif self.broker_kind == "rabbitmq":
            for queue, exchange in (("torture", "torture"), *((queue, relay) for relay, queue in published.QUEUES.items())):
                harness.declare(queue, exchange, [""], "fanout")
            harness.declare(FULL, x_max_length=1, x_overflow="reject-publish")
            harness.keep()
        elif self.broker_kind == "sqs":
            for relay in published.COPIES:
                harness.declare(f"{relay}.fifo")
        else:
            for relay in published.COPIES:
                harness.create_topic(relay, 4, **TOPIC)

    def _sink(self, relay, name):
        """Where a relay publishes, as one process of it has it. Each event says which process has published it: by its subject, its routing key, or its source."""
        relay = "torture" if relay == "branch" else relay  # into one destination
        out = "127.0.0.1:%d" % self.links["relay-broker"].port
        if self.broker_kind == "nats":
            prefix = "" if relay == "torture" else f"{relay}."
            return ["sink = nats", f"url = nats://{out}", f"route = torture.* -> {prefix}{{topic}}.{name}"]
        if self.broker_kind == "rabbitmq":
            return ["sink = rabbitmq", f"url = amqp://guest:guest@{out}/%2f", f"exchange = {relay}", f"route = torture.* -> {name}"]
        if self.broker_kind == "sqs":
            return ["sink = sqs", f"url = http://{out}", f"route = torture.* -> {relay}.fifo", "envelope = cloudevents", f"ce_source = {name}"]
        sink = ["sink = kafka", f"url = kafka://{out}", f"route = torture.* -> {relay}", "envelope = cloudevents", f"ce_source = {name}"]
        return sink + (["fence = broker"] if self.seed % 2 else [])

    def _config(self, name):
        """Of one process of the relays, and of the consumer."""
        into = "127.0.0.1:%d" % self.links["consumer-broker"].port
        if self.broker_kind == "nats":
            source = ["source = nats", f"url = nats://{into}", "stream = TORTURE", "subject = torture.>", "ack_wait = 5s"]
        elif self.broker_kind == "rabbitmq":
            source = ["source = rabbitmq", f"url = amqp://guest:guest@{into}/%2f", "queue = torture"]
        elif self.broker_kind == "sqs":
            source = ["source = sqs", f"url = http://{into}", "queue = torture.fifo", "wait = 1s", "visibility = 10s", "id = header:ce-id"]
        else:
            source = ["source = kafka", f"url = kafka://{into}", "topics = torture", "id = header:ce_id"]
            source += ["kafka.session.timeout.ms = 6000", "kafka.heartbeat.interval.ms = 1000"]
        quick = ["retry_first = 100ms", "retry_most = 1s", "attempts = 1000", "on_dead = block"]
        path = self.directory / f"{name}.conf"
        lines = []
        for relay in (*published.COPIES, "branch"):
            dsn = self.dsn("relay-pg", RELAYS[name], "branch" if relay == "branch" else "torture")
            lines += [f"[relay {relay}]", f"dsn = {dsn}", *self._sink(relay, name), *quick, "timeout = 4s", "batch = 200", ""]
        lines += ["[consume warehouse]", f"dsn = {self.dsn('consumer-pg')}", *source, "handler = torture.apply", *quick, f"batch = {BATCH}", f"prefetch = {PREFETCH}", ""]
        path.write_text("\n".join(lines))
        path.chmod(0o600)
        return path

    def _job(self, name, words, listens=None):
        job = Job(name, words, self.directory / f"{name}.log", cwd=HERE.parent, listens=listens)
        self._begin(job)
        return job

    def _jobs(self):
        configs = {name: self._config(name) for name in RELAYS}
        upstream = [sys.executable, "-m", "torture.upstream"]
        self.naive = self._job("naive", [*upstream, "naive", self.sockets / "naive", self.dsn("naive-ledger")], self.sockets / "naive")
        self.handoff = self._job("handoff", [*upstream, "handoff", self.sockets / "handoff", self.handoff_dsn], self.sockets / "handoff")
        ports = {name: self.links[f"gateway-{name}"].port for name in ("naive", "handoff")}
        module = self.build / "gateway/ngx_http_once_module.so"
        http = GATEWAY.format(dsn=self.dsn("gateway-pg"), cache="once_replay_cache zone=replays:1m;" if self.cache else "", **ports)
        self.gateway = Gateway("gateway", self.directory, server=LOCATIONS, http=http, workers=2, module=module)
        self._begin(self.gateway)
        self.links["client-gateway"].target(self.gateway.nginx.h1)
        self.relays = {name: self._job(name, [self.program, "relay", "--config", config]) for name, config in configs.items()}
        for language, words in self.services.items():
            port = self.targets[language]
            self._job(services_of.service_name(language), [*words, self.dsn("client-pg"), port], port)
        consume = [self.program, "consume", "--config", configs["relay-a"]]
        self.consumer = self._job("consume", consume)
        if self.broker_kind in SHARED:
            self._job("consume-b", consume)
        self.keeper = self._job("keep", [self.program, "keep", "--dsn", self.dsn("keeper-pg"), "--name", "torture", "--interval", "1s"])

    # Tending: what should run and does not is started again.

    def _tend(self):
        while not self.over.wait(0.1):
            for process in list(self.processes):
                try:
                    status = process.tend()
                    if status is not None:
                        self.ended.append((round(time.monotonic() - self.begun, 3), process.name, status))
                except Exception as problem:  # pylint: disable=broad-except
                    self.problems.append(f"{process.name}: {problem!r}")

    # The standby.

    def in_sync(self):
        """Do commits wait for the standby, and has it everything that was committed until now?"""
        return self.synchronous_since is not None and self._follows("sync")

    def _follows(self, *states):
        try:
            lsn = self.primary.value("SELECT pg_current_wal_flush_lsn()::text")
            return self.primary.value(
                """SELECT EXISTS (SELECT FROM pg_stat_replication WHERE application_name = %s AND state = 'streaming'
                                     AND sync_state = ANY (%s) AND flush_lsn >= %s::pg_lsn)""", REPLICA, list(states), lsn)  # fmt: skip
        except psycopg2.Error:
            return False

    def failover(self, fenced, patience_s=3):
        """As a careful manager does it: the old primary dead for certain, then the standby promoted, and everybody led to it; only to a standby that
        has everything, for which commits wait. fenced: first nobody reaches the old primary, then the standby gets all of it. Otherwise
        it dies in the midst of its work, which asks for more: commits have waited for long enough that each of its processes knows that they must (one
        may have been stopped), and what was committed when its wait was interrupted has reached the standby, too. NotNow where this is not so.
        The old one stays dead until must_rebuild is set."""
        old, new = self.primary, self.standby
        if not (old.is_running() and new.is_running()) or old.stopped or new.stopped:
            raise NotNow("one of the two is down")
        if self.synchronous_since is None or time.monotonic() < self.synchronous_since + SURELY_SYNCHRONOUS_S:
            raise NotNow("commits do not wait for the standby for long enough")
        if fenced:
            for name in PRIMARY_LINKS:
                if name != "standby-primary":
                    self.links[name].cut()
        try:
            wait_until(self.in_sync, "the standby", patience_s)
        except TimeoutError:
            if fenced:
                for name in PRIMARY_LINKS:
                    self.links[name].whole()
            raise NotNow("the standby is not in sync") from None
        old.is_former = True
        old.kill()
        self.primary, self.standby, self.synchronous_since = new, old, None
        self.promoting.set()
        for name in PRIMARY_LINKS:
            self.links[name].target(new.socket)
            self.links[name].whole()

        def promoted():
            try:
                return new.value("SELECT NOT pg_is_in_recovery() OR pg_promote(false)")
            except psycopg2.Error:
                return False

        wait_until(promoted, "the promotion", PATIENCE_S)

    def _promote(self):
        """A promotion may fail (its disk is full, it is killed), and leaves a standby then."""
        if self.primary.value("SELECT NOT pg_is_in_recovery()"):
            self.promoting.clear()
        else:
            self.primary.value("SELECT pg_promote(false)")

    def _keep_standby(self):
        """Sees to it that the primary is promoted; where the standby is a former primary, it is made anew, as a copy of the primary; and when a standby
        follows, commits begin to wait for it. Again and again where that fails, since both have faults."""
        while not self.over.wait(0.2):
            try:
                if self.promoting.is_set():
                    self._promote()
                elif self.must_rebuild.is_set():
                    self._rebuild()
                    self.must_rebuild.clear()
                elif self.synchronous_since is None and not self.standby.is_former and self._follows("async", "sync"):
                    self._wait_for_standby()
            except (RuntimeError, OSError, subprocess.SubprocessError, psycopg2.Error) as problem:
                self.notes.append(f"the standby {self.standby.name}: {str(problem).splitlines()[0]}")
                self.over.wait(0.5)

    def _wait_for_standby(self):
        """From now on commits do."""
        connection = self.primary.connect(connect_timeout=2)
        try:
            connection.cursor().execute(f"ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 ({REPLICA})'")
            connection.cursor().execute("SELECT pg_reload_conf()")
        finally:
            connection.close()
        self.synchronous_since = time.monotonic()

    def _rebuild(self):
        standby = self.standby
        with standby.lock:
            standby.kill()
            standby.shim.true()
            standby.server.copy(self.primary.server)
            standby.server.configure()
            self._follow(standby)
            standby.is_former, standby.wanted = False, True

    # The relays.

    def active_relay(self):
        """(its process, its session's process); None where no relay has the lock. psycopg2.Error where the database is away."""
        connection = self.primary.connect("torture", connect_timeout=2)
        try:
            with connection.cursor() as cursor:
                cursor.execute(
                    """SELECT a.usename, a.pid FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) WHERE l.locktype = 'advisory' AND l.granted
                        AND l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = once._relay_lock('torture')""")  # fmt: skip
                row = cursor.fetchone()
        finally:
            connection.close()
        return row and (next(self.relays[name] for name, role in RELAYS.items() if role == row[0]), row[1])

    def waiting_events(self):
        """That the relay `torture` has not passed yet."""
        waiting = "SELECT coalesce(sum(events), 0)::integer FROM once.outbox_summary() WHERE relay = 'torture' AND state <> 'idle'"
        return self.primary.value(waiting, dbname="torture")

    # The broker.

    def refuse(self, refuses, patience_s=REFUSE_PATIENCE_S):
        """True: from now on the broker refuses what comes in batches (Kafka), all but a few (NATS), everything, for one queue of the exchange is full (RabbitMQ), or
        every second event of a call (SQS). NotNow where nobody answers."""
        harness = self.broker.harness
        try:
            if self.broker_kind == "kafka":
                harness.change_topic("torture", patience_s, **TOPIC, **({"max_message_bytes": SMALL_BYTES} if refuses else {}))
            elif self.broker_kind == "rabbitmq":
                with contextlib.closing(harness.connect(patience_s)) as connection:
                    channel = connection.channel()
                    (channel.queue_bind if refuses else channel.queue_unbind)(FULL, "torture", "")
            elif self.broker_kind == "nats":
                with harness.connect(timeout=patience_s) as client:
                    held = client.api("STREAM.INFO.TORTURE")["state"]["messages"]
                harness.change_stream("TORTURE", max_msgs=held + ROOM if refuses else -1, discard="new" if refuses else "old")
            else:
                harness.door.refuses = refuses
        except (OSError, AssertionError, subprocess.SubprocessError, pika.exceptions.AMQPError, AMQPConnectorException) as problem:
            raise NotNow(f"the broker does not answer: {str(problem)[:200]}") from None

    # The consumers.

    def slow_down(self, seconds, for_s):
        """So long each message takes its handler, for so long from now on."""
        connection = self.warehouse.connect("warehouse", connect_timeout=2)
        try:
            with connection.cursor() as cursor:
                cursor.execute("DELETE FROM torture.pace")
                cursor.execute("INSERT INTO torture.pace VALUES (clock_timestamp() + make_interval(secs => %s), %s)", (for_s, seconds))
        finally:
            connection.close()

    def waiting_messages(self):
        """Events of the shop that no consumer has applied yet."""
        made = self.primary.value("SELECT coalesce(sum(events), 0)::integer FROM torture.effect", dbname="torture")
        return made - self.warehouse.value("SELECT count(*) FROM torture.applied WHERE NOT body ? 'direct' AND NOT body ? 'branch'", dbname="warehouse")

    # The end of all faults.

    def heal(self, patience_s=PATIENCE_S):
        """All links whole, all processes at work, clocks true, disks free, the standby in sync."""
        self.links.whole()
        for node in (self.primary, self.standby, self.warehouse):
            node.shim.true()
        for process in [*self.processes, *self.extra]:
            process.resume()
        for process in self.processes:
            process.wanted = True
        if self.standby.is_former:
            self.must_rebuild.set()
        self._await_node(self.primary, patience_s)
        wait_until(lambda: not self.promoting.is_set(), "the end of the promotion", patience_s)
        try:
            wait_until(self.in_sync, "the standby", patience_s / 2)
        except TimeoutError:
            self.note(f"the standby did not come back by itself:\n{self.standby.tail()}")
            self.must_rebuild.set()
        for process in self.processes:
            if isinstance(process, Node):
                self._await_node(process, patience_s)
            else:
                self._await(process, patience_s=patience_s)
        self._refuse_no_more(patience_s)
        wait_until(self.in_sync, "the standby after the faults", patience_s)
        for node in (self.primary, self.warehouse):
            node.wake_sleepers()
        assert not self.problems, self.problems

    def _refuse_no_more(self, patience_s):
        """A broker that has just begun may be slow to answer: it is asked again."""
        deadline = time.monotonic() + patience_s
        while self.refuses:
            try:
                self.refuse(False, max(REFUSE_PATIENCE_S, deadline - time.monotonic()))
                self.refuses = False
            except NotNow as problem:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"waited {patience_s} s for the broker to refuse no more: {problem}") from problem
                time.sleep(0.1)

    def _await_node(self, node, patience_s):
        """A PostgreSQL that is not ready after half of the patience is killed and started again, once, as an operator would. A postmaster gives its
        children five seconds to end, by the clock of the day: where that was ahead and is true again, it waits as long as it was ahead."""
        try:
            self._await(node, patience_s=patience_s / 2)
        except TimeoutError as stuck:
            self.note(f"{node.name} was stuck, and is killed and started again: {stuck}")
            node.kill()
            node.wanted = True
            self._await(node, patience_s=patience_s / 2)

    def note(self, text):
        """For a reader: of the run's record, too, where there is one."""
        self.notes.append(text)
        if self.recorder is not None:
            self.recorder.record("note", text=text)

    def destroy(self):
        """Ends every process, and removes what is not in the system's directory."""
        atexit.unregister(self.destroy)
        self.over.set()
        for thread in self.threads:
            thread.join()
        self.threads = []
        for process in reversed(self.processes):
            process.destroy()
        self.processes.clear()
        if self.links is not None:
            self.links.destroy()
            self.links = None
        if self.sockets is not None:
            shutil.rmtree(self.sockets, ignore_errors=True)
            self.sockets = None
