# SPDX-License-Identifier: PostgreSQL
"""What the relays have published, in the order in which the broker has it, repeats and all; and when each relay began to be the active one.

NATS and Kafka keep everything anyway, with the time at which they took it. RabbitMQ keeps it in a queue of the harness's own, without a time. Nobody
reads a queue of SQS twice: what the relays have sent is recorded before it, when it has answered, also what it drops as a repeat."""

import datetime
import json
import re
import time

from harness import aws

QUEUE = "torture.published"
TURN = re.compile(r"^(\S+)Z level=info relay=\S+ event=(?:active|took_over)\b", re.M)
FIELDS = ("tenant", "scope", "key", "aggregate", "step", "nth")


def read(system):
    """A list of dicts: tenant, scope, key, aggregate, step, nth; by: the relay; at: seconds since 1970, None where the broker does not say. Events of one
    aggregate are in the broker's order."""
    messages = {"nats": of_nats, "rabbitmq": of_rabbitmq, "kafka": of_kafka, "sqs": of_sqs}[system.broker_kind](system.broker.harness)
    found = []
    for by, at, body in messages:
        said = json.loads(body)
        if not said.get("direct"):
            found.append({**{field: said[field] for field in FIELDS}, "by": by, "at": at})
    return found


def of_nats(harness):
    """By a consumer that is gone with its connection."""
    with harness.connect() as client:
        waiting = client.api("STREAM.INFO.TORTURE")["state"]["messages"]
        place, answer = f"published.{time.monotonic_ns()}", f"{client.inbox}.answer"
        client.subscribe(place)
        config = {"deliver_subject": place, "deliver_policy": "all", "ack_policy": "none", "replay_policy": "instant"}
        client.publish("$JS.API.CONSUMER.CREATE.TORTURE", json.dumps({"stream_name": "TORTURE", "config": config}), reply=answer)
        while waiting > 0:
            message = client.next()
            if message.subject == answer:  # it comes among the messages
                assert b'"error"' not in message.data, message
                continue
            # $JS.ACK.stream.consumer.deliveries.sequence.number.nanoseconds.pending
            nanoseconds, waiting = (int(word) for word in message.reply.split(".")[-2:])
            yield message.subject.rpartition(".")[2], nanoseconds / 1e9, message.data


def of_rabbitmq(harness):
    """Nothing is acknowledged: all goes back when the connection is closed."""
    connection = harness.connect()
    try:
        channel = connection.channel()
        for _ in range(channel.queue_declare(QUEUE, passive=True).method.message_count):
            method, _, body = channel.basic_get(QUEUE)
            yield method.routing_key, None, body
    finally:
        connection.close()


def of_kafka(harness):
    for message in harness.messages("torture"):
        yield message["headers"].get("ce_source"), message["ts"] / 1000, message["payload"]


class Recorder(aws.Door):
    """Before SQS: what was published by which relay, once the queue has it."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.published = []

    def pass_on(self, request):
        status, text, *headers = super().pass_on(request)
        if request.target == "SendMessageBatch" and status == 200:
            stored = {each["Id"] for each in json.loads(text).get("Successful", ())}
            sent = [each for each in json.loads(request.body)["Entries"] if each["Id"] in stored]
            with self.lock:
                self.published += [(each["MessageAttributes"]["ce-source"]["StringValue"], None, each["MessageBody"]) for each in sent]
        return (status, text, *headers)


def of_sqs(harness):
    with harness.door.lock:
        return list(harness.door.published)


def turns(system):
    """When each relay began to be the active one, by its own log: dicts of by and at."""
    found = []
    for name, relay in system.relays.items():
        for said in TURN.findall(relay.log.read_text(errors="replace")):
            at = datetime.datetime.fromisoformat(said).replace(tzinfo=datetime.timezone.utc)
            found.append({"by": name, "at": at.timestamp()})
    return found
