# SPDX-License-Identifier: PostgreSQL
"""A keeper for the tests, and the phases of a day that it retires: the oldest one, which alone is past the horizon."""

from .calls import Once, run, today, uuid7_days_ago

AGO = 7  # the oldest day that a new database has
STEPS = ("close", "doubt", "move", "detach", "drop")  # in this order they retire a day
# What of them is done; each name is that of the state that follows.
PHASES = {"open": 0, "closed": 1, "doubted": 2, "moved": 3, "detached": 4, "dropped": 5}


class Keeper:
    """A session that holds, or shares, a keeper's lease."""

    def __init__(self, connection, name="keeper"):
        self.connection = connection
        self.name = name
        assert run(connection, "SELECT once_job.keep_take(%s, '1 hour') AS taken", name)[0].taken

    def step(self, step, concurrently=False):
        return run(self.connection, "SELECT * FROM once_job.keep_step(%s, %s, %s)", self.name, step, concurrently)[0]

    def work(self, step, **arguments):
        """All of a step, as a daemon does it; what it said."""
        said = []
        while True:
            piece = self.step(step, **arguments)
            said.append(piece.detail)
            if piece.command:
                run(self.connection, piece.command)
            if not piece.more:
                return said

    def retire(self, until="dropped"):
        for step in STEPS[: PHASES[until]]:
            self.work(step)

    def round(self):
        for row in run(self.connection, "SELECT step FROM once_job.keep_steps()"):
            self.work(row.step)


def settled(db, horizon_days=AGO - 1):
    """The clock is trusted at once, and one day is past the horizon."""
    db.execute("SELECT once.set_keeping(clock_settle => '0', horizon_days => %s)", horizon_days)


def keeper(db, **arguments):
    settled(db)
    return Keeper(db.connect(), **arguments)


def old_key(db, number=0):
    return uuid7_days_ago(db, AGO, number)


def old_day(db):
    return today(db) - AGO


def finished(db, number, body=b"kept", expired=False, **more):
    """A finished intent of the day that is retired; its key."""
    key = old_key(db, number)
    Once(db.connect()).finish_new(key=key, response_body=body, **more)
    if expired:
        expire(db, key)
    return key


def expire(db, key):
    db.execute("UPDATE once.intent SET expires_at = clock_timestamp() - interval '1 hour' WHERE key = %s", key)


def phase_of(db):
    return [(row.day, row.phase) for row in db.rows("SELECT day, phase FROM once.closing ORDER BY day")]


def where(db, key):
    """In which tables the row is."""
    return [
        row.place
        for row in db.rows(
            "SELECT tableoid::regclass::text AS place FROM once.intent WHERE key = %s UNION ALL"
            " SELECT tableoid::regclass::text FROM once.archive WHERE key = %s",
            key,
            key,
        )
    ]
