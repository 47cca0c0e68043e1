# SPDX-License-Identifier: PostgreSQL
"""What there is when all is over: a dict of lists of plain dicts, read from the databases straight and by nobody's word but theirs."""

import base64
import re
import struct
import time

import psycopg2
import psycopg2.extras

from . import history, published

LEASE_S = 4
MANY = 2000  # intents that are asked about at once
STATEMENT_S = 60
COMMIT_PATIENCE_S = 30  # until Kafka knows what a group has read
PEEKS = 20
UUID_V7 = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", re.I)

EFFECTS = """
    SELECT tenant, scope, key, payload, intent, attempt, door, fence, aggregate, step, events, date_part('epoch', at) AS at,
           encode(sha256(body), 'hex') AS digest
    FROM torture.effect ORDER BY position"""
LEDGER = """
    SELECT tenant, scope, key, payload, intent, attempt, door, fence, date_part('epoch', at) AS at, encode(sha256(body), 'hex') AS digest
    FROM torture.ledger ORDER BY position"""
EVENTS = """
    SELECT event_id::text, payload ->> 'tenant' AS tenant, payload ->> 'scope' AS scope, payload ->> 'key' AS key,
           payload ->> 'aggregate' AS aggregate, (payload ->> 'step')::integer AS step, (payload ->> 'nth')::integer AS nth
    FROM once.outbox ORDER BY id"""
APPLIED = """
    SELECT position, message_id, body ->> 'tenant' AS tenant, body ->> 'scope' AS scope, body ->> 'key' AS key, body ->> 'aggregate' AS aggregate,
           (body ->> 'step')::integer AS step, (body ->> 'nth')::integer AS nth, coalesce((body ->> 'direct')::boolean, false) AS direct,
           coalesce((body ->> 'branch')::boolean, false) AS branch
    FROM torture.applied ORDER BY position"""
BRANCH = "SELECT tenant, scope, key, aggregate, step, events FROM torture.effect"
# But for keys whose claims are left behind on purpose (reborn.py).
STUCK = """
    SELECT tenant, scope, key, date_part('epoch', lease_until) AS lease_until, date_part('epoch', clock_timestamp()) AS now
    FROM once.intent WHERE state = 'processing' AND scope <> 'reborn' AND lease_until < clock_timestamp() - make_interval(secs => %s)"""
# Outcomes that commit with their effect, under a fence: final from then on.
FENCES = "SELECT tenant, scope, key, fence FROM once.intent WHERE scope IN ('fenced', 'handoff') AND state = 'succeeded'"
QUESTIONS = """
    SELECT tenant, scope, key, fence, state, answer, date_part('epoch', lease_until) AS lease_until, date_part('epoch', at) AS at,
           date_part('epoch', began) AS began
    FROM torture.question ORDER BY position"""
# Doubts that somebody else than an operator has decided while their attempt had its lease.
DECIDED_EARLY = """
    SELECT * FROM (SELECT tenant, scope, key, (before ->> 'fence')::integer AS fence, date_part('epoch', decided_at) AS at,
                          date_part('epoch', (before ->> 'lease_until')::timestamptz) AS lease_until
                   FROM once.decision WHERE from_state = 'in_doubt' AND kind <> 'resolve') AS d WHERE lease_until > at"""
PARKED_EVENTS = "SELECT relay, state, p::text AS text FROM once.parked_event AS p"
DECISIONS = "SELECT tenant, scope, key, d::text AS text FROM once.decision AS d ORDER BY decided_at"
PEEK = """
    SELECT ord, verdict, fence, state, attempts, date_part('epoch', lease_until) AS lease_until, response_status AS status, response_body AS body,
           error_code
    FROM once.peek_many(%s, %s, %s)"""


class Database:
    def __init__(self, dsn):
        self.connection = psycopg2.connect(dsn, cursor_factory=psycopg2.extras.RealDictCursor)
        self.connection.set_session(autocommit=True)
        self.rows(f"SET statement_timeout = '{STATEMENT_S}s'")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def rows(self, query, *values):
        with self.connection.cursor() as cursor:
            cursor.execute(query, values or None)
            return [dict(row) for row in cursor.fetchall()] if cursor.description is not None else []

    def value(self, query, *values):
        return next(iter(self.rows(query, *values)[0].values()))


def collect(system, online=False):
    """All of it. online: only what is cheap, while the run goes on; psycopg2.Error where a database is away."""
    with Database(system.direct_dsn()) as shop, Database(system.warehouse_dsn()) as warehouse:
        # The broker's and the consumer's before the shop's: what has arrived there was committed here.
        found = {"published": published.read(system), "copies": list(published.COPIES)}
        # After what they published: no turn of which it has something is missing.
        found["turns"], found["sleeps"] = published.turns(system), [dict(sleep) for sleep in system.sleeps]
        found["records"], found["blamed"] = published.records(system), published.blamed(system)
        # Before what is applied: who leaves the one is in the other.
        found["parked_messages"] = warehouse.rows("SELECT consumer, state, attempts, error, message_id AS text FROM once.parked_message")
        found["applied"] = warehouse.rows(APPLIED)
        found["events"] = shop.rows(EVENTS)
        found["effects"] = shop.rows(EFFECTS)
        with Database(system.direct_dsn("branch")) as branch:
            found["branch_events"], found["branch"] = branch.rows(EVENTS), branch.rows(BRANCH)
            found["parked_events"] = branch.rows(PARKED_EVENTS)
        found["fences"] = shop.rows(FENCES)
        found["questions"] = shop.rows(QUESTIONS)
        found["decided_early"] = shop.rows(DECIDED_EARLY)
        path = system.directory / "history.jsonl"
        found["ledger"] = shop.rows(LEDGER) + file_ledger(system.directory / "ledger.txt", path)
        found["parked_events"] += shop.rows(PARKED_EVENTS)
        found["dead"] = [row for row in found["parked_events"] + found["parked_messages"] if row["state"] == "dead"]
        if online:
            return found
        found["committed"] = committed(system, found["records"])
        found["intents"] = intents(shop, history.read(path))
        found["stuck"] = shop.rows(STUCK, 2 * LEASE_S)
        found["decisions"] = shop.rows(DECISIONS)
        found["events_pending"] = shop.rows("SELECT * FROM once.outbox_summary() WHERE state <> 'idle'")
        found["in_doubt"] = [row for row in found["intents"] if row["state"] == "in_doubt"]
        found["now"] = shop.value("SELECT date_part('epoch', clock_timestamp())")
        found["t"] = system.recorder.now()
        return found


def committed(system, records):
    """Of each partition: the offset that the consumers read next. They say so in the background, soon after they have read all."""
    highest = {}
    for record in records:
        highest[record["partition"]] = max(record["offset"], highest.get(record["partition"], -1))
    if not highest:
        return []
    deadline = time.monotonic() + COMMIT_PATIENCE_S
    while True:
        offsets = system.broker.harness.committed("warehouse", "torture", max(highest) + 1)
        if all(offsets[partition] > offset for partition, offset in highest.items()) or time.monotonic() > deadline:
            return [{"partition": partition, "offset": offset} for partition, offset in offsets.items()]
        time.sleep(0.5)


def peeked(shop, *arguments):
    """A day that is retired just then makes it 40001: ask again."""
    for _ in range(PEEKS):
        try:
            return shop.rows(PEEK, *arguments)
        except psycopg2.errors.SerializationFailure:
            time.sleep(0.2)
    return shop.rows(PEEK, *arguments)


def stored_as(record):
    """The key that an intent has in the database: once.receive takes a message's id for a name, so a UUIDv7 among them bears no day."""
    return f"pgonce:id:{record['key']}" if record["mode"] == "receive" and UUID_V7.fullmatch(record["key"]) else record["key"]


def intents(shop, log):
    """What is stored of every name in the history."""
    names = {}
    for record in log.of("intent"):
        if record["door"] != "message":
            names.setdefault(record["tenant"], set()).add((record["scope"], stored_as(record), record["key"]))
    archived = {(row["tenant"], row["scope"], row["key"]) for row in shop.rows("SELECT tenant, scope, key FROM once.archive")}
    found = []
    for tenant, each in names.items():
        each = sorted(each)
        for at in range(0, len(each), MANY):
            some = each[at : at + MANY]
            scopes, keys = [scope for scope, _, _ in some], [key for _, key, _ in some]
            for row in peeked(shop, scopes, keys, tenant):
                scope, stored, key = some[row.pop("ord") - 1]
                verdict = row.pop("verdict")
                if verdict in ("absent", "expired", "invalid"):
                    row["state"] = None
                if scope == "jobs" and row["body"] is not None:
                    row["status"], row["body"] = said_by_job(bytes(row["body"]))
                row["body"] = None if row["body"] is None else base64.b64encode(bytes(row["body"])).decode()
                found.append({"tenant": tenant, "scope": scope, "key": key, **row, "archived": (tenant, scope, stored) in archived})
    return found


def said_by_job(stored):
    """(exit status, standard output) of what pgonce run stores: see docs/reference/command.md."""
    at, out, status = 0, b"", None
    while at < len(stored):
        kind, size = struct.unpack_from(">cI", stored, at)
        data, at = stored[at + 5 : at + 5 + size], at + 5 + size
        if kind == b"o":
            out += data
        elif kind == b"x":
            status = data[0]
    return status, out


def file_ledger(path, log):
    """The lines that jobs wrote: fence, attempt, nonce, payload."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    known = {record["payload"]: record for record in history.read(log).of("intent") if record["door"] == "run"}
    other = {(record["intent"], record["attempt"]): record for record in history.read(log).of("attempt") if "payload" in record}
    by_number = {record["intent"]: record for record in known.values()}
    for (number, _), record in other.items():
        if number in by_number:
            known.setdefault(record["payload"], by_number[number])
    rows = []
    for line in lines:
        fence, attempt, _, payload = line.split(" ", 3)
        intent = known[payload]
        names = {name: intent[name] for name in ("tenant", "scope", "key", "intent")}
        rows.append({**names, "payload": payload, "attempt": int(attempt), "door": "run", "fence": int(fence), "at": None})
    return rows
