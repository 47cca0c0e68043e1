# SPDX-License-Identifier: PostgreSQL
"""The door of messages: straight to the broker, past the outbox. A message may be published several times under one id."""

import json
import subprocess
import uuid

import pika
import pika.exceptions
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from .doors import Answer

PATIENCE_S = 5


class MessageDoor:
    name = "message"

    def __init__(self, kind, harness, destination):
        self.harness, self.destination = harness, destination
        self.publish = {"nats": self.to_nats, "rabbitmq": self.to_rabbitmq, "kafka": self.to_kafka, "sqs": self.to_sqs}[kind]

    def close(self):
        """It keeps no connection."""

    def attempt(self, intent, _number, payload, _orders):
        body = json.dumps({"direct": True, "i": intent.number, "tenant": intent.tenant, "scope": intent.scope, "key": intent.key, "payload": payload})
        try:
            self.publish(intent.key, body.encode())
        except (OSError, AssertionError, ValueError, subprocess.SubprocessError, pika.exceptions.AMQPError, AMQPConnectorException) as lost:
            # Exactly these: nobody was there. A connection that is lost later is of another class.
            refused = type(lost) in (ConnectionRefusedError, pika.exceptions.AMQPConnectionError)
            return Answer("failed" if refused else "unknown", lost.__class__.__name__)
        return Answer("acknowledged", "confirmed")

    def to_nats(self, name, body):
        with self.harness.connect(timeout=PATIENCE_S) as client:
            answer = json.loads(client.request(self.destination, body, [("Pgonce-Event-Id", name)], timeout=PATIENCE_S).data)
            assert "error" not in answer, answer

    def to_rabbitmq(self, name, body):
        properties = pika.BasicProperties(delivery_mode=2, headers={"Pgonce-Event-Id": name})
        self.harness.publish(self.destination, [(body, properties)], timeout=PATIENCE_S)

    def to_kafka(self, name, body):
        options = ["-X", f"message.timeout.ms={PATIENCE_S * 1000}", "-X", "acks=all"]
        self.harness.kcat("-P", "-t", self.destination, "-H", f"ce_id={name}", *options, data=body + b"\n")

    def to_sqs(self, name, body):
        """Each of its repeats is another for the queue, which would drop it."""
        attributes = {"ce-id": {"DataType": "String", "StringValue": name}}
        group, each = f"direct.{uuid.uuid4()}", str(uuid.uuid4())
        self.harness.ask(
            "SendMessage", timeout=PATIENCE_S, QueueUrl=self.harness.of(self.destination), MessageBody=body.decode(), MessageAttributes=attributes,
            MessageGroupId=group, MessageDeduplicationId=each,
        )  # fmt: skip
