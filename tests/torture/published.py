# SPDX-License-Identifier: PostgreSQL
"""What the relays have published, in the order in which the broker has it, repeats and all; and when each process began to be the active one.

Two relays read one outbox: `torture`, whose events the consumer applies, and `mirror`, whose events only the judge reads. They publish into one stream of NATS,
one cluster of Kafka, one vhost of RabbitMQ, one account of SQS. The relay `branch` reads another database (branch.py) and publishes into the destination of `torture`.

NATS and Kafka keep everything anyway, with the time at which they took it. RabbitMQ keeps it in queues of the harness's own, without a time. Nobody
reads a queue of SQS twice: what the relays have sent is recorded before it, when it has answered, also what it drops as a repeat."""

import datetime
import itertools
import json
import re
import time

from harness import aws

COPIES = ("torture", "mirror")  # the relays of one outbox
QUEUES = {"torture": "torture.published", "mirror": "mirror.published"}  # of RabbitMQ
TURN = re.compile(r"^(\S+)Z level=info relay=torture event=(?:active|took_over)\b", re.M)
BLAMED = re.compile(r"^\S+Z level=\w+ relay=\S+ (event=(?:parked|dead) .* attempts=[1-9].*\(MSG_SIZE_TOO_LARGE\).*)$", re.M)
FIELDS = ("tenant", "scope", "key", "aggregate", "step", "nth")


def read(system):
    """A list of dicts: tenant, scope, key, aggregate, step, nth; relay: one of COPIES, or branch; by: its process; event_id; at: seconds since 1970, None where the broker does
    not say. Events of one aggregate are in the broker's order, for each relay."""
    messages = {"nats": of_nats, "rabbitmq": of_rabbitmq, "kafka": of_kafka, "sqs": of_sqs}[system.broker_kind](system.broker.harness)
    found = []
    for relay, by, at, event_id, body in messages:
        said = json.loads(body)
        if not said.get("direct"):
            found.append({**{field: said[field] for field in FIELDS}, "relay": "branch" if said.get("branch") else relay, "by": by, "at": at, "event_id": event_id})
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
            yield message.subject.partition(".")[0], message.subject.rpartition(".")[2], nanoseconds / 1e9, message.header("Pgonce-Event-Id"), message.data


def of_rabbitmq(harness):
    """Nothing is acknowledged: all goes back when the connection is closed."""
    connection = harness.connect()
    try:
        channel = connection.channel()
        for relay, queue in QUEUES.items():
            for _ in range(channel.queue_declare(queue, passive=True).method.message_count):
                method, properties, body = channel.basic_get(queue)
                yield relay, method.routing_key, None, properties.headers.get("Pgonce-Event-Id"), body
    finally:
        connection.close()


def of_kafka(harness):
    for relay in COPIES:
        for message in harness.messages(relay):
            yield relay, message["headers"].get("ce_source"), message["ts"] / 1000, message["headers"].get("ce_id"), message["payload"]


def records(system):
    """What the topic of Kafka's consumers has: dicts of partition, offset, at, message_id. Nothing where the broker is another."""
    if system.broker_kind != "kafka":
        return []
    return [
        {"partition": message["partition"], "offset": message["offset"], "at": message["ts"] / 1000, "message_id": message["headers"].get("ce_id")}
        for message in system.broker.harness.messages("torture")
    ]


class Recorder(aws.Door):
    """Before SQS: what was published by which relay, once the queue has it. refuses: every second event of what is sent fails, as a service does that has trouble
    of its own."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.published = []
        self.refuses, self.entries = False, itertools.count()

    def pass_on(self, request):
        if request.target == "SendMessageBatch" and self.refuses:
            return self.pass_a_part(request)
        return self.pass_and_record(request)

    def pass_a_part(self, request):
        asked = json.loads(request.body)
        passed = [each for each in asked["Entries"] if next(self.entries) % 2]
        status, text, *headers = 200, b"{}"
        if passed:
            status, text, *headers = self.pass_and_record(request._replace(body=json.dumps({**asked, "Entries": passed}).encode()))
        if status != 200:
            return (status, text, *headers)
        answer = json.loads(text)
        answer["Failed"] = answer.get("Failed", []) + [
            {"Id": each["Id"], "Code": "InternalError", "Message": "said by the torture", "SenderFault": False} for each in asked["Entries"] if each not in passed
        ]
        return (status, json.dumps({"Successful": [], **answer}).encode(), *headers)

    def pass_and_record(self, request):
        status, text, *headers = super().pass_on(request)
        if request.target == "SendMessageBatch" and status == 200:
            stored = {each["Id"] for each in json.loads(text).get("Successful", ())}
            asked = json.loads(request.body)
            sent = [each for each in asked["Entries"] if each["Id"] in stored]
            relay = asked["QueueUrl"].rpartition("/")[2].partition(".")[0]
            with self.lock:
                self.published += [(relay, said_of(each, "ce-source"), None, said_of(each, "ce-id"), each["MessageBody"]) for each in sent]
        return (status, text, *headers)


def said_of(entry, attribute):
    return entry["MessageAttributes"][attribute]["StringValue"]


def of_sqs(harness):
    with harness.door.lock:
        return list(harness.door.published)


def blamed(system):
    """The events for which a relay has counted an attempt because Kafka refused something as too large, by its log: dicts of by and text. None is too large."""
    return [{"by": name, "text": said} for name, relay in system.relays.items() for said in BLAMED.findall(relay.log.read_text(errors="replace"))]


def turns(system):
    """When each process began to be the active one of the relay `torture`, by its own log: dicts of by and at."""
    found = []
    for name, relay in system.relays.items():
        for said in TURN.findall(relay.log.read_text(errors="replace")):
            at = datetime.datetime.fromisoformat(said).replace(tzinfo=datetime.timezone.utc)
            found.append({"by": name, "at": at.timestamp()})
    return found
