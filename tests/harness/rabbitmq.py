# SPDX-License-Identifier: PostgreSQL
"""A private RabbitMQ. Nothing of the system's own is used: not its node, its data, its settings, its Erlang cookie, nor its port mapper.
Read and written with pika, which shares nothing with the client under test."""

import os
import pathlib
import ssl
import subprocess

import pika
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from .broker import Broker, accepts, certificates, free_port, program
from .postgres import PATIENCE_S, clean_environment, wait_until

SCRIPTS = pathlib.Path("/usr/lib/rabbitmq/bin")  # those in /usr/sbin insist on being root or rabbitmq


class RabbitMQ(Broker):
    """user guest, password guest. tls: an amqps listener as well (certificates in the directory). more: lines of rabbitmq.conf."""

    name = "rabbitmq"

    def __init__(self, tls=False, more=""):
        super().__init__()
        if not (SCRIPTS / "rabbitmq-server").exists():
            raise RuntimeError("RabbitMQ is not installed: apt-get install rabbitmq-server")
        self.port, self.distribution_port, self.epmd_port = free_port(), free_port(), free_port()
        self.tls_port = free_port() if tls else None
        self.node = f"pgonce-{self.port}@localhost"
        self.epmd = None
        lines = [f"listeners.tcp.1 = 127.0.0.1:{self.port}", "log.console = true", "log.console.level = info", more]
        if tls:
            certificates(self.directory)
            lines += [
                f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}",
                f"ssl_options.cacertfile = {self.directory}/ca.pem",
                f"ssl_options.certfile = {self.directory}/server.pem",
                f"ssl_options.keyfile = {self.directory}/server.key",
                "ssl_options.verify = verify_peer",
                "ssl_options.fail_if_no_peer_cert = false",
            ]
        (self.directory / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (self.directory / "plugins").write_text("[].\n")
        (self.directory / "env").write_text("")

    @property
    def url(self):
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2f"

    @property
    def tls_url(self):
        return f"amqps://guest:guest@127.0.0.1:{self.tls_port}/%2f"

    def environment(self):
        kept = {name: value for name, value in clean_environment().items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        loopback = '-kernel inet_dist_use_interface {127,0,0,1}'
        return {
            **kept,
            "HOME": str(self.directory),  # for .erlang.cookie
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the server instead of its parent
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "RABBITMQ_BASE": str(self.directory),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.directory / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(self.directory / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "env"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{loopback} -start_epmd false +S 2:2",
            "RABBITMQ_CTL_ERL_ARGS": loopback,
            "RABBITMQ_CTL_DIST_PORT_MIN": "19000",  # none that free_port gives
            "RABBITMQ_CTL_DIST_PORT_MAX": "19999",
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP": "/dev/null",
        }

    def command(self):
        return [SCRIPTS / "rabbitmq-server"]

    def start(self, wait=True):
        if self.epmd is None:
            self.epmd = self.launch([program("epmd", "erlang-base"), "-port", self.epmd_port, "-address", "127.0.0.1"])
            wait_until(lambda: accepts(self.epmd_port), "Erlang's port mapper")
        return super().start(wait)

    def is_ready(self):
        if not accepts(self.port):
            return False
        try:
            self.connect().close()
            return True
        except (pika.exceptions.AMQPError, AMQPConnectorException, OSError):
            return False

    def destroy(self):
        super().destroy()
        if self.epmd is not None:
            self.epmd.kill()
            self.epmd.wait(PATIENCE_S)
            self.epmd = None

    def control(self, *words):
        """rabbitmqctl; takes a second or two. Returns what it prints."""
        done = subprocess.run(
            [str(SCRIPTS / "rabbitmqctl"), "--quiet", *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment(),
            cwd=self.directory,
            timeout=2 * PATIENCE_S,
        )
        assert done.returncode == 0, f"rabbitmqctl {words}: {done.stdout}{done.stderr}"
        return done.stdout

    def connect(self, timeout=PATIENCE_S):
        """A pika.BlockingConnection, on the TLS listener where there is one."""
        context = None
        if self.tls_port:
            context = pika.SSLOptions(ssl.create_default_context(cafile=self.directory / "ca.pem"), "localhost")
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1",
                self.tls_port or self.port,
                credentials=pika.PlainCredentials("guest", "guest"),
                ssl_options=context,
                socket_timeout=min(10, timeout),
                stack_timeout=min(15, timeout),
                blocked_connection_timeout=timeout,
            )
        )

    def declare(self, queue, exchange="", routing_keys=(), kind="topic", **arguments):
        """A durable queue, and a durable exchange that is bound to it. arguments: of the queue, "_" for "-": x_max_length=10, ..."""
        connection = self.connect()
        channel = connection.channel()
        names = {name.replace("_", "-"): value for name, value in arguments.items()}
        channel.queue_declare(queue, durable=True, arguments=names)
        if exchange:
            channel.exchange_declare(exchange, kind, durable=True)
        for key in routing_keys:
            channel.queue_bind(queue, exchange, key)
        connection.close()

    def keep(self):
        """Returns when what was declared is on disk: the server writes its tables after it has answered, and a SIGKILL loses what it has not."""
        self.control("eval", "dumped = mnesia:dump_log().")

    def take(self, queue, most=1_000_000):
        """The messages that are in the queue now: (method, properties, body) each; they are gone from it."""
        connection = self.connect()
        channel = connection.channel()
        found = []
        while len(found) < most:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                break
            found.append((method, properties, body))
        connection.close()
        return found

    def count(self, queue):
        """How many messages are ready in the queue."""
        connection = self.connect()
        count = connection.channel().queue_declare(queue, passive=True).method.message_count
        connection.close()
        return count

    def publish(self, queue, messages, timeout=PATIENCE_S):
        """(body) or (body, pika.BasicProperties) each, through the default exchange; returns when they are stored."""
        connection = self.connect(timeout)
        channel = connection.channel()
        channel.confirm_delivery()
        for message in messages:
            body, properties = message if isinstance(message, tuple) else (message, None)
            channel.basic_publish("", queue, body, properties or pika.BasicProperties(delivery_mode=2), mandatory=True)
        connection.close()
