# SPDX-License-Identifier: PostgreSQL
"""What a relay does with the contract, and no more: take, look, list, fetch, settle. The tests' own reader of the outbox."""

import json

from .calls import run

FIELDS = ("id", "xid", "day", "event_id", "topic", "tenant", "aggregate_type", "aggregate_id")


def emit(connection, aggregate=None, topic="t", **more):
    """An event; its id."""
    arguments = {"topic": topic, "payload": "{}", "aggregate_id": aggregate, **more}
    if aggregate is not None:
        arguments.setdefault("aggregate_type", "thing")
    listed = ", ".join(f"{name} => %s" for name in arguments)
    return run(connection, f"SELECT once.emit({listed})", *arguments.values())[0][0]


def composite(values):
    """A row as PostgreSQL reads it."""
    return "(" + ",".join("" if value is None else json.dumps(str(value)) for value in values) + ")"


class Relay:
    """A session that works for a relay."""

    def __init__(self, connection, name="r", **arguments):
        self.connection = connection
        self.name = name
        named = "".join(f", {key} => %s" for key in arguments)
        answer = run(connection, f"SELECT * FROM once_job.relay_take(%s{named})", name, *arguments.values())[0]
        self.taken, self.seen, self.reading, self.after_id = answer

    def look(self):
        return run(self.connection, "SELECT * FROM once_job.relay_look(%s, %s)", self.name, self.seen)[0]

    def list(self, take=1000, reading=None):
        """What is listed between seen and reading (or now), after after_id: rows (id, xid, day)."""
        if reading is not None or self.reading is None:
            self.reading = reading or self.look().reading
        return run(
            self.connection,
            "SELECT id, xid::text AS xid, day FROM once_job.relay_list(%s, %s, %s, %s, %s)",
            self.name,
            self.seen,
            self.reading,
            self.after_id,
            take,
        )

    def fetch(self, listed, **arguments):
        named = "".join(f", {key} => %s" for key in arguments)
        return run(
            self.connection,
            f"SELECT * FROM once_job.relay_fetch(%s, %s::bigint[], %s::xid8[], %s::integer[]{named})",
            self.name,
            [row.id for row in listed],
            [row.xid for row in listed],
            [row.day for row in listed],
            *arguments.values(),
        )

    def due(self, take=1000, skip_dead=False):
        return run(self.connection, "SELECT * FROM once_job.relay_due(%s, %s, %s)", self.name, take, skip_dead)

    def settle(self, after_id=None, delivered=None, parked=None):
        """after_id None: the batch is done."""
        if after_id is None:
            self.seen, self.reading, self.after_id = self.reading or self.seen, None, 0
        else:
            self.after_id = after_id
        run(
            self.connection,
            "SELECT once_job.relay_settle(%s, %s, %s, %s, %s::bigint[], %s::once.parking[])",
            self.name,
            self.seen,
            self.reading,
            self.after_id,
            delivered,
            parked,
        )

    def batch(self):
        """A whole batch, fetched and settled as delivered."""
        events = self.fetch(self.list())
        self.settle()
        return events

    def park(self, *parkings):
        self.settle(parked=list(parkings))


def parking(event, state="retrying", attempts=1, wait_ms=0, error="refused", known=None):
    return composite([getattr(event, name) for name in FIELDS] + [state, attempts, wait_ms, error, known])


def parked(db, relay="r"):
    """What is parked: aggregate, state, attempts by id."""
    return {
        row.id: (row.aggregate_id, row.state, row.attempts)
        for row in db.rows("SELECT * FROM once.parked_event WHERE relay = %s ORDER BY id", relay)
    }


def ids(events):
    return [event.id for event in events]


def listed(relay):
    """The event ids of the next batch, which is then settled."""
    return [event.event_id for event in relay.batch()]
