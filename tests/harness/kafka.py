# SPDX-License-Identifier: PostgreSQL
"""A private Apache Kafka: one node that is broker and controller (KRaft). Its jars come by Maven (kafka/pom.xml) into a cache, once. Messages are
read and written with kcat; topics are made with librdkafka's admin calls."""

import contextlib
import ctypes
import json
import shutil
import subprocess

from . import maven
from .broker import Broker, accepts, certificates, free_port, program
from .postgres import PATIENCE_S, clean_environment

STUCK = b"Cannot transition to Candidate"
RESTARTS = 2
LOG4J = """log4j.rootLogger=WARN, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d %p %m (%c)%n
"""


def jars():
    """(the directory with Kafka's jars, None), or (None, why there is none)."""
    if shutil.which("kcat") is None:
        return None, "there is no kcat to read it with: apt-get install kcat"
    return maven.jars("kafka")


def require():
    """Skips the test where Kafka is not to be had, and fails it where CI=true says that nothing may be left out."""
    maven.require("Kafka", jars()[1])


class Kafka(Broker):
    """tls: an SSL listener as well. users: {name: password}; a SASL_PLAINTEXT listener (PLAIN), with tls a SASL_SSL one too. Topics are made by
    create_topic alone, unless auto_create. ways: {NAME: port}; a plain listener for each (in ports), which tells its clients to come to that port."""

    name = "kafka"

    def __init__(self, tls=False, users=None, auto_create=False, more="", ways=None):
        super().__init__()
        self.jars, problem = jars()
        if problem:
            raise RuntimeError(problem)
        listeners = {"PLAINTEXT": free_port(), "CONTROLLER": free_port()}
        if tls:
            certificates(self.directory)
            listeners["SSL"] = free_port()
        if users:
            listeners["SASL_PLAINTEXT"] = free_port()
            if tls:
                listeners["SASL_SSL"] = free_port()
        for name in ways or ():
            listeners[name] = free_port()
        advertised = {**listeners, **(ways or {})}
        protocols = {name: "PLAINTEXT" if name in (*(ways or ()), "CONTROLLER") else name for name in listeners}
        self.ports = listeners
        lines = [
            "process.roles=broker,controller",
            "node.id=1",
            f"controller.quorum.voters=1@127.0.0.1:{listeners['CONTROLLER']}",
            "controller.listener.names=CONTROLLER",
            "inter.broker.listener.name=PLAINTEXT",
            "listener.security.protocol.map=" + ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "listeners=" + ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items()),
            "advertised.listeners="
            + ",".join(f"{name}://127.0.0.1:{port}" for name, port in advertised.items() if name != "CONTROLLER"),
            f"log.dirs={self.directory}/data",
            f"auto.create.topics.enable={'true' if auto_create else 'false'}",
            "offsets.topic.num.partitions=1",
            "offsets.topic.replication.factor=1",
            "transaction.state.log.num.partitions=1",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
            "group.initial.rebalance.delay.ms=0",
            "num.network.threads=2",
            "num.io.threads=2",
            "log.cleaner.enable=false",
            "broker.session.timeout.ms=1500",  # after a kill it waits so long for its own former self
            "broker.heartbeat.interval.ms=300",
            more,
        ]
        if tls:
            # PEM files; the certificate follows the key in one.
            pem = (self.directory / "server.key").read_text() + (self.directory / "server.pem").read_text()
            (self.directory / "keystore.pem").write_text(pem)
            lines += [
                "ssl.keystore.type=PEM",
                f"ssl.keystore.location={self.directory}/keystore.pem",
                "ssl.truststore.type=PEM",
                f"ssl.truststore.location={self.directory}/ca.pem",
                "ssl.client.auth=requested",
            ]
        if users:
            known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
            login = f"org.apache.kafka.common.security.plain.PlainLoginModule required {known};"
            lines.append("sasl.enabled.mechanisms=PLAIN")
            lines += [
                f"listener.name.{name.lower()}.plain.sasl.jaas.config={login}" for name in listeners if name.startswith("SASL")
            ]
        self.properties = self.directory / "server.properties"
        self.properties.write_text("\n".join(lines) + "\n")
        (self.directory / "log4j.properties").write_text(LOG4J)
        self.formatted = False

    @property
    def servers(self):
        return f"127.0.0.1:{self.ports['PLAINTEXT']}"

    def servers_of(self, listener):
        return f"127.0.0.1:{self.ports[listener]}"

    def java(self, main, *words):
        # C1 only: it starts twice as fast, and a test is over before C2 would pay.
        options = ["-Xmx384m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]
        log = f"-Dlog4j.configuration=file:{self.directory}/log4j.properties"
        return [program("java", "default-jre-headless"), *options, log, "-cp", f"{self.jars}/*", main, *map(str, words)]

    def command(self):
        return self.java("kafka.Kafka", self.properties)

    def start(self, wait=True):
        if not self.formatted:
            words = self.java("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", self.properties)
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=clean_environment())
            assert done.returncode == 0, done.stdout + done.stderr
            self.formatted = True
        return super().start(wait)

    def launch(self, command, environment=None):
        self.log_before = self.log.stat().st_size if self.log.exists() else 0
        return super().launch(command, environment)

    def is_stuck(self):
        with open(self.log, "rb") as log:
            log.seek(self.log_before)
            return STUCK in log.read()

    def wait_ready(self):
        """Killed in its first seconds it sometimes does not come up again, since it cannot become its own controller. Started once more it does."""
        for left in reversed(range(RESTARTS + 1)):
            try:
                return super().wait_ready()
            except RuntimeError:
                if left == 0 or not self.is_stuck():
                    raise
            self.kill()
            self.process = self.launch(self.command())
        return None

    def is_ready(self):
        if self.is_stuck():
            raise RuntimeError(f"Kafka has no controller:\n{self.log_tail()}")
        if not accepts(self.ports["PLAINTEXT"]):
            return False
        done = self.kcat("-L", "-m", "5", check=False)
        return done.returncode == 0 and b"broker 1 at" in done.stdout

    def kcat(self, *words, data=None, check=True):
        done = subprocess.run(
            [program("kcat", "kcat"), "-b", self.servers, *map(str, words)],
            input=data,
            capture_output=True,
            check=False,
            timeout=PATIENCE_S,
            env=clean_environment(),
        )
        assert not check or done.returncode == 0, done.stderr.decode()
        return done

    def messages(self, topic, isolation="read_committed"):
        """All of a topic, each partition's in its order: dicts with partition, offset, key, payload (text), headers ([name, value, ...]), ts."""
        done = self.kcat("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-J", "-X", f"isolation.level={isolation}")
        found = [json.loads(line) for line in done.stdout.splitlines()]
        for message in found:
            flat = message.get("headers") or []
            message["headers"] = dict(zip(flat[::2], flat[1::2]))
        return found

    def publish(self, topic, messages):
        """(key, value) each, of text without a newline or a tab; they are in that order in their partitions, also where a batch has to be sent again."""
        data = "".join(f"{key}\t{value}\n" for key, value in messages).encode()
        self.kcat("-P", "-X", "enable.idempotence=true", "-t", topic, "-K", "\t", data=data)

    def create_topic(self, topic, partitions=1, **settings):
        """settings: of the topic, "_" for ".": max_message_bytes=1000, ..."""
        with Admin(self.servers) as admin:
            admin.create(topic, partitions, {name.replace("_", "."): str(value) for name, value in settings.items()})

    def throttle(self, bytes_a_second=None):
        """All who publish are held up, or no longer; takes seconds."""
        words = ["--bootstrap-server", self.servers, "--alter", "--entity-type", "clients", "--entity-default"]
        words += ["--delete-config", "producer_byte_rate"] if bytes_a_second is None else ["--add-config", f"producer_byte_rate={bytes_a_second}"]
        done = subprocess.run(
            self.java("kafka.admin.ConfigCommand", *words), capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=clean_environment()
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def delete_records(self, topic, partition, before):
        """What has a lower offset."""
        with Admin(self.servers) as admin:
            admin.delete_records(topic, partition, before)

    def change_topic(self, topic, patience_s=PATIENCE_S, **settings):
        """All that is set of it from now on; what is not named is the broker's default: max_message_bytes=... AssertionError without an answer."""
        with Admin(self.servers) as admin:
            admin.configure(topic, {name.replace("_", "."): str(value) for name, value in settings.items()}, patience_s)

    def committed(self, group, topic, partitions):
        """{partition: the offset that the group reads next}; of a partition of which it has committed none: 0."""
        with Admin(self.servers, group) as admin:
            return admin.committed(topic, partitions)

    def commit(self, group, topic, partition, offset):
        """As the group's, which has no member."""
        with Admin(self.servers, group) as admin:
            admin.commit(topic, partition, offset)

    def forget(self, group):
        """The group, which has no member, and its offsets: as if they had expired."""
        with Admin(self.servers) as admin:
            admin.delete_group(group)

    def allow(self, user, operation, topic):
        """For a broker with an authorizer: the user may "write", "describe" or "read" the topic."""
        with Admin(self.servers) as admin:
            admin.allow(user, operation, topic)

    def allow_transactions(self, user, name):
        """The transactional id, for which librdkafka 2.0 has no word yet."""
        words = ("--bootstrap-server", self.servers, "--add", "--allow-principal", f"User:{user}", "--operation", "write", "--transactional-id", name)
        done = subprocess.run(
            self.java("kafka.admin.AclCommand", *words), capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=clean_environment()
        )
        assert done.returncode == 0, done.stdout + done.stderr


class Place(ctypes.Structure):
    """rd_kafka_topic_partition_t"""

    _fields_ = [("topic", ctypes.c_char_p), ("partition", ctypes.c_int32), ("offset", ctypes.c_int64), ("metadata", ctypes.c_void_p),
                ("metadata_size", ctypes.c_size_t), ("opaque", ctypes.c_void_p), ("error", ctypes.c_int), ("private", ctypes.c_void_p)]  # fmt: skip


class Places(ctypes.Structure):
    """rd_kafka_topic_partition_list_t"""

    _fields_ = [("count", ctypes.c_int), ("size", ctypes.c_int), ("elements", ctypes.POINTER(Place))]


class Admin:
    """librdkafka by ctypes: making topics would cost a start of Java each. group: a consumer's, which it asks about and does not join."""

    TOPIC, LITERAL, ALLOW, OPERATIONS = 2, 3, 3, {"read": 3, "write": 4, "describe": 8}  # of rdkafka.h

    def __init__(self, servers, group=None):
        self.lib = lib = ctypes.CDLL("librdkafka.so.1")
        for name in ("conf_new", "new", "queue_new", "queue_poll", "event_error_string", "error_string", "topic_partition_list_new",
                     "NewTopic_new", "event_CreateTopics_result", "CreateTopics_result_topics", "topic_result_error_string",
                     "ConfigResource_new", "event_AlterConfigs_result", "AlterConfigs_result_resources", "ConfigResource_error_string",
                     "DeleteRecords_new", "event_DeleteRecords_result", "DeleteRecords_result_offsets",
                     "DeleteGroup_new", "event_DeleteGroups_result", "DeleteGroups_result_groups", "group_result_error",
                     "AclBinding_new", "event_CreateAcls_result", "CreateAcls_result_acls", "acl_result_error"):  # fmt: skip
            getattr(lib, f"rd_kafka_{name}").restype = ctypes.c_void_p
        self.error = ctypes.create_string_buffer(512)
        conf = ctypes.c_void_p(lib.rd_kafka_conf_new())
        assert lib.rd_kafka_conf_set(conf, b"bootstrap.servers", servers.encode(), self.error, 512) == 0, self.error.value
        assert group is None or lib.rd_kafka_conf_set(conf, b"group.id", group.encode(), self.error, 512) == 0, self.error.value
        self.client = ctypes.c_void_p(lib.rd_kafka_new(0 if group is None else 1, conf, self.error, 512))
        assert self.client, self.error.value

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lib.rd_kafka_destroy(self.client)

    @contextlib.contextmanager
    def asked(self, call, kind, item, what, patience_s=PATIENCE_S):
        """An admin call for one item of this kind, which it destroys. Gives the answer, whose item has an error of its own that the caller looks at."""
        lib, event = self.lib, None
        queue = ctypes.c_void_p(lib.rd_kafka_queue_new(self.client))
        try:
            getattr(lib, f"rd_kafka_{call}")(self.client, (ctypes.c_void_p * 1)(item), ctypes.c_size_t(1), None, queue)
            getattr(lib, f"rd_kafka_{kind}_destroy")(item)
            event = ctypes.c_void_p(lib.rd_kafka_queue_poll(queue, int(patience_s * 1000)))
            assert event, f"no answer to {what}"
            assert lib.rd_kafka_event_error(event) == 0, self.text("event_error_string", event)
            yield ctypes.c_void_p(getattr(lib, f"rd_kafka_event_{call}_result")(event))
        finally:
            lib.rd_kafka_event_destroy(event)
            lib.rd_kafka_queue_destroy(queue)

    def only(self, results_of, answer):
        """The one item of an answer."""
        count = ctypes.c_size_t()
        results = getattr(self.lib, f"rd_kafka_{results_of}")(answer, ctypes.byref(count))
        assert count.value == 1, f"{results_of} has {count.value} items"
        return ctypes.c_void_p(ctypes.cast(results, ctypes.POINTER(ctypes.c_void_p))[0])

    def text(self, name, of):
        found = getattr(self.lib, f"rd_kafka_{name}")(of)
        return found and ctypes.string_at(found)

    def create(self, topic, partitions, settings):
        lib = self.lib
        new = ctypes.c_void_p(lib.rd_kafka_NewTopic_new(topic.encode(), partitions, 1, self.error, ctypes.c_size_t(512)))
        assert new, self.error.value
        for name, value in settings.items():
            assert lib.rd_kafka_NewTopic_set_config(new, name.encode(), value.encode()) == 0
        with self.asked("CreateTopics", "NewTopic", new, f"the making of topic {topic}") as answer:
            made = self.only("CreateTopics_result_topics", answer)
            assert lib.rd_kafka_topic_result_error(made) == 0, self.text("topic_result_error_string", made)

    def configure(self, topic, settings, patience_s):
        lib = self.lib
        resource = ctypes.c_void_p(lib.rd_kafka_ConfigResource_new(self.TOPIC, topic.encode()))
        for name, value in settings.items():
            assert lib.rd_kafka_ConfigResource_set_config(resource, name.encode(), value.encode()) == 0
        with self.asked("AlterConfigs", "ConfigResource", resource, f"the settings of topic {topic}", patience_s) as answer:
            changed = self.only("AlterConfigs_result_resources", answer)
            assert lib.rd_kafka_ConfigResource_error(changed) == 0, self.text("ConfigResource_error_string", changed)

    def committed(self, topic, partitions):
        lib = self.lib
        asked = ctypes.cast(ctypes.c_void_p(lib.rd_kafka_topic_partition_list_new(partitions)), ctypes.POINTER(Places))
        for partition in range(partitions):
            lib.rd_kafka_topic_partition_list_add(asked, topic.encode(), partition)
        error = lib.rd_kafka_committed(self.client, asked, PATIENCE_S * 1000)
        found = {each.partition: max(0, each.offset) for each in asked.contents.elements[:partitions]}
        lib.rd_kafka_topic_partition_list_destroy(asked)
        assert error == 0, f"the offsets of a group: error {error}"
        return found

    def commit(self, topic, partition, offset):
        lib = self.lib
        offsets = ctypes.c_void_p(lib.rd_kafka_topic_partition_list_new(1))
        lib.rd_kafka_topic_partition_list_add(offsets, topic.encode(), partition)
        assert lib.rd_kafka_topic_partition_list_set_offset(offsets, topic.encode(), partition, ctypes.c_int64(offset)) == 0
        error = lib.rd_kafka_commit(self.client, offsets, 0)
        lib.rd_kafka_topic_partition_list_destroy(offsets)
        assert error == 0, f"the offset of a group: error {error}"

    def delete_group(self, group):
        lib = self.lib
        word = ctypes.c_void_p(lib.rd_kafka_DeleteGroup_new(group.encode()))
        with self.asked("DeleteGroups", "DeleteGroup", word, f"the deleting of group {group}") as answer:
            error = lib.rd_kafka_group_result_error(self.only("DeleteGroups_result_groups", answer))
            assert error is None, self.text("error_string", ctypes.c_void_p(error))

    def delete_records(self, topic, partition, before):
        lib = self.lib
        offsets = ctypes.c_void_p(lib.rd_kafka_topic_partition_list_new(1))
        lib.rd_kafka_topic_partition_list_add(offsets, topic.encode(), partition)
        assert lib.rd_kafka_topic_partition_list_set_offset(offsets, topic.encode(), partition, ctypes.c_int64(before)) == 0
        words = ctypes.c_void_p(lib.rd_kafka_DeleteRecords_new(offsets))
        lib.rd_kafka_topic_partition_list_destroy(offsets)
        with self.asked("DeleteRecords", "DeleteRecords", words, f"the deleting of records of {topic}") as answer:
            deleted = ctypes.cast(lib.rd_kafka_DeleteRecords_result_offsets(answer), ctypes.POINTER(Places)).contents
            assert [each.error for each in deleted.elements[: deleted.count]] == [0], f"records of {topic}: error {deleted.elements[0].error}"

    def allow(self, user, operation, topic):
        lib = self.lib
        words = (self.TOPIC, topic.encode(), self.LITERAL, f"User:{user}".encode(), b"*", self.OPERATIONS[operation], self.ALLOW)
        binding = ctypes.c_void_p(lib.rd_kafka_AclBinding_new(*words, self.error, ctypes.c_size_t(512)))
        assert binding, self.error.value
        with self.asked("CreateAcls", "AclBinding", binding, f"the permission for {user}") as answer:
            error = lib.rd_kafka_acl_result_error(self.only("CreateAcls_result_acls", answer))
            assert error is None, self.text("error_string", ctypes.c_void_p(error))
