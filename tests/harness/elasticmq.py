# SPDX-License-Identifier: PostgreSQL
"""A private ElasticMQ: a server that speaks SQS (it looks at no signature). Its jars come by Maven (elasticmq/pom.xml). Queues are made, and
messages written and read, by a client of its own, which shares nothing with the one under test."""

import base64
import http.client
import json
import urllib.error
import urllib.request

from . import maven
from .broker import Broker, accepts, free_port, program
from .postgres import PATIENCE_S

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "AWS_REGION": "eu-central-1", "NO_PROXY": "*", "no_proxy": "*"}  # it looks at none


def require():
    """Skips the test where ElasticMQ is not to be had, and fails it where CI=true says that nothing may be left out."""
    maven.require("ElasticMQ", maven.jars("elasticmq")[1])


class SqsError(OSError):
    """What the server refused, with its code first; or how the connection ended."""


class ElasticMq(Broker):
    """durable: messages and queues outlive a kill, in a file. Use it in a with statement."""

    name = "elasticmq"

    def __init__(self, durable=False):
        super().__init__()
        self.jars, problem = maven.jars("elasticmq")
        if problem:
            raise RuntimeError(problem)
        self.port = free_port()
        lines = [
            f'node-address {{ protocol = http, host = "127.0.0.1", port = {self.port}, context-path = "" }}',
            f'rest-sqs {{ enabled = true, bind-port = {self.port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}',
            "rest-stats { enabled = false }",
        ]
        if durable:
            uri = f"jdbc:h2:{self.directory}/messages;WRITE_DELAY=0"
            lines.append(f'queues-storage {{ enabled = true, path = "{self.directory}/queues.conf" }}')
            lines.append(f'messages-storage {{ enabled = true, driver-class = "org.h2.Driver", uri = "{uri}", username = "", password = "" }}')
        (self.directory / "conf").write_text("\n".join(lines) + "\n")

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def command(self):
        options = ["-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dconfig.file={self.directory}/conf"]
        return [program("java", "default-jre-headless"), *options, "-cp", f"{self.jars}/*", "org.elasticmq.server.Main"]

    def is_ready(self):
        if not accepts(self.port):
            return False
        self.ask("ListQueues")
        return True

    def ask(self, action, timeout=PATIENCE_S, **request):
        """One call of the JSON protocol; its answer."""
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
        call = urllib.request.Request(self.url + "/", json.dumps(request).encode(), headers)
        try:
            with OPENER.open(call, timeout=timeout) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            said = json.loads(error.read())
            raise SqsError(f"{said['__type'].rpartition('#')[2]}: {said.get('Message')}") from None
        except http.client.HTTPException as broken:
            raise SqsError(repr(broken)) from None

    def of(self, queue):
        return f"{self.url}/000000000000/{queue}"

    def declare(self, queue, **attributes):
        """attributes: VisibilityTimeout=30, RedrivePolicy={...}."""
        given = {name: value if isinstance(value, str) else json.dumps(value) for name, value in attributes.items()}
        if queue.endswith(".fifo"):
            given["FifoQueue"] = "true"
        self.ask("CreateQueue", QueueName=queue, Attributes=given)
        return queue

    def delete(self, queue):
        self.ask("DeleteQueue", QueueUrl=self.of(queue))

    def publish(self, queue, messages):
        """Texts, or (text, group, {header: value}) each."""
        entries = []
        for number, each in enumerate(messages):
            text, group, headers = each if isinstance(each, tuple) else (each, "one", {})
            entry = {"MessageBody": text, "MessageAttributes": {name: attribute(value) for name, value in headers.items()}}
            if queue.endswith(".fifo"):
                entry |= {"MessageGroupId": group, "MessageDeduplicationId": f"{id(messages)}-{number}-{hash(text)}"}
            entries.append(entry)
        for first in range(0, len(entries), 10):
            batch = [{"Id": str(number), **entry} for number, entry in enumerate(entries[first : first + 10])]
            answer = self.ask("SendMessageBatch", QueueUrl=self.of(queue), Entries=batch)
            assert not answer.get("Failed"), answer

    def take(self, queue, wait_s=0):
        """All that can be received now, deleted: as the server gives them."""
        found = []
        while True:
            answer = self.ask(
                "ReceiveMessage", QueueUrl=self.of(queue), MaxNumberOfMessages=10, WaitTimeSeconds=wait_s, AttributeNames=["All"], MessageAttributeNames=["All"]
            )
            messages = answer.get("Messages") or []
            if not messages:
                return found
            found += messages
            entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(messages)]
            self.ask("DeleteMessageBatch", QueueUrl=self.of(queue), Entries=entries)

    def counts(self, queue):
        """(visible, invisible)"""
        found = self.ask("GetQueueAttributes", QueueUrl=self.of(queue), AttributeNames=["All"])["Attributes"]
        return int(found["ApproximateNumberOfMessages"]), int(found["ApproximateNumberOfMessagesNotVisible"])


def attribute(value):
    if isinstance(value, bytes):
        return {"DataType": "Binary", "BinaryValue": base64.b64encode(value).decode()}
    return {"DataType": "String", "StringValue": value}


def headers(message):
    """{name: value} of what take gives."""
    return {
        name: base64.b64decode(value["BinaryValue"]) if "BinaryValue" in value else value["StringValue"]
        for name, value in (message.get("MessageAttributes") or {}).items()
    }
