# SPDX-License-Identifier: PostgreSQL
"""The parts of a way from one database to another: two PostgreSQL servers, a broker, pgonce relay and pgonce consume. Each can be killed
(SIGKILL) and started again, by one interface: kill(), start(), name."""

import pathlib
import subprocess

from harness import elasticmq
from harness import kafka as kafka_harness
from harness.elasticmq import ElasticMq
from harness.kafka import Kafka
from harness.nats import Nats
from harness.nginx import BUILD
from harness.postgres import PATIENCE_S, ROOT, Postgres, clean_environment, tied
from harness.rabbitmq import RabbitMQ

PROGRAM = BUILD / "cli/pgonce"
EXAMPLES = ROOT / "examples"
BROKERS = ("nats", "rabbitmq", "kafka", "sqs")


class Job:
    """pgonce relay or pgonce consume."""

    def __init__(self, command, config):
        self.name, self.config = command, config
        self.log = pathlib.Path(config).parent / f"{command}.log"
        self.process = None

    def words(self, *options):
        return tied([PROGRAM, self.name, "--config", self.config, *options])

    @staticmethod
    def environment():
        return clean_environment() | elasticmq.CREDENTIALS

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.words(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.environment(), cwd=self.log.parent
            )

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self):
        """As it is meant to be ended."""
        self.process.terminate()
        assert self.process.wait(PATIENCE_S) == 0, self.tail()

    def once(self, patience_s=2 * PATIENCE_S):
        """Until there is nothing left to do."""
        with open(self.log, "ab") as log:
            done = subprocess.run(
                self.words("--once"), stdout=log, stderr=log, env=self.environment(), cwd=self.log.parent, timeout=patience_s, check=False
            )
        assert done.returncode == 0, self.tail()

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def tail(self, characters=4000):
        return f"{self.name}:\n" + (self.log.read_text(errors="replace")[-characters:] if self.log.exists() else "")

    def destroy(self):
        if self.is_running():
            self.kill()


class Database:
    """A server of its own with one database, which has the contract and what the scripts say. Nothing that is committed gets lost: fsync."""

    def __init__(self, name, *scripts, settings=None):
        self.name = name
        self.server = Postgres(fsync=True, settings={"max_wal_size": "4GB", **(settings or {})})
        self.server.start()
        self.database = self.server.new_database()
        for script in scripts:
            self.database.execute(pathlib.Path(script).read_text())

    def dsn(self, user="postgres"):
        return self.database.dsn(user)

    def role(self, name, *roles):
        self.database.execute(f"CREATE ROLE {name} LOGIN IN ROLE {', '.join(roles)}")
        return self.dsn(name)

    def start(self):
        self.server.start()

    def kill(self):
        self.server.kill()

    def again(self):
        """After a kill the short forms need a new connection."""
        self.database.own = None
        return self.database

    def destroy(self):
        self.server.destroy()


class StandingStill(ElasticMq):
    """Killed it only stands still until its start: what a FIFO queue of AWS keeps through anything, its order and what is out, this has in memory alone."""

    def kill(self):
        self.pause()

    def start(self, wait=True):
        if self.process is None:
            return super().start(wait)
        self.resume()
        return self


def open_broker(kind):
    """(the broker, started; the lines of the relay's section; those of the consumer's)."""
    if kind == "nats":
        broker = Nats().start()
        broker.add_stream("ORDERS", "order.>")
        return broker, ["sink = nats", f"url = {broker.url}", "route = order.* -> {topic}"], [
            "source = nats", f"url = {broker.url}", "stream = ORDERS", "subject = order.>",
        ]  # fmt: skip
    if kind == "rabbitmq":
        broker = RabbitMQ().start()
        broker.declare("orders")
        broker.keep()
        return broker, ["sink = rabbitmq", f"url = {broker.url}", "route = order.* -> orders"], [
            "source = rabbitmq", f"url = {broker.url}", "queue = orders",
        ]  # fmt: skip
    if kind == "sqs":
        elasticmq.require()
        broker = StandingStill().start()
        broker.declare("orders.fifo")
        # What a consumer that was killed had is invisible for its visibility: as short as may be, or each kill would cost a minute.
        return broker, ["sink = sqs", f"url = {broker.url}", "route = order.* -> orders.fifo", "timeout = 5s"], [
            "source = sqs", f"url = {broker.url}", "queue = orders.fifo", "wait = 1s", "visibility = 10s",
        ]  # fmt: skip
    kafka_harness.require()
    broker = Kafka().start()
    broker.create_topic("orders", 4)
    url = f"kafka://{broker.servers}"
    # A consumer that was killed is dead for its group after its session: as short as a broker allows, or each kill would cost 45 s.
    return broker, ["sink = kafka", f"url = {url}", "route = order.* -> orders"], [
        "source = kafka", f"url = {url}", "topics = orders", "kafka.session.timeout.ms = 6000", "kafka.heartbeat.interval.ms = 1000",
    ]  # fmt: skip


def write_config(directory, relay, consumer):
    """pgonce.conf with a relay and a consumer: lists of lines."""
    path = directory / "pgonce.conf"
    path.write_text("\n".join(["[relay orders]", *relay, "", "[consume warehouse]", *consumer, ""]))
    return path
