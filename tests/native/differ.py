# SPDX-License-Identifier: PostgreSQL
"""Plays one history (histories.py) in two databases, and compares after each step what was returned or refused and which locks each session holds, and in
the end what is stored. Moments are compared as distances from the present, random ids by the order in which they came."""

import contextlib
import dataclasses
import datetime
import decimal
import math
import re
import time
import uuid

import psycopg2
import psycopg2.extras

from harness.native import native_script

from .histories import ADMIN, SESSIONS

TOLERANCE_S = 20
LOCK_MODES = ("AccessShareLock", "RowShareLock", "RowExclusiveLock", "ShareUpdateExclusiveLock", "ShareLock", "ShareRowExclusiveLock", "ExclusiveLock",
              "AccessExclusiveLock")  # fmt: skip
# once.unfinished is SQL's own. Indexes are left out: what plans a statement locks all of its tables', and one side may plan anew what the other has planned before.
LOCKS = """
    SELECT l.pid, CASE l.locktype WHEN 'advisory' THEN concat_ws('/', l.classid, l.objid, l.objsubid) ELSE l.relation::regclass::text END AS what, l.locktype, l.mode
      FROM pg_locks AS l LEFT JOIN pg_class AS c ON c.oid = l.relation
     WHERE l.granted AND l.mode <> 'SIReadLock' AND l.pid = ANY (%s) AND (l.locktype = 'advisory' OR l.locktype = 'relation' AND c.relkind IN ('r', 'p', 'S') AND c.relnamespace = 'once'::regnamespace
            AND c.relname <> 'unfinished')
       AND (l.database = 0 OR l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()))"""
STORED = {
    "intents": "SELECT i.* FROM once.intent AS i ORDER BY i.tenant, i.scope, i.key",
    "archive": "SELECT i.* FROM once.archive AS i ORDER BY i.tenant, i.scope, i.key",
    "events": """SELECT o.day, o.created_at, o.event_id, o.topic, o.event_type, o.aggregate_type, o.aggregate_id, o.tenant, o.scope, o.key, o.traceparent,
                        o.headers, o.payload, o.payload_bytes, o.content_type FROM once.outbox AS o ORDER BY o.id""",
    "counts": "SELECT c.* FROM once.counts() AS c ORDER BY c.verdict",
}
# Every index of the contract is whole, and has each row of its table.
WHOLE = """SELECT count(bt_index_check(c.oid, true)) > 0 AS whole FROM pg_class AS c JOIN pg_am AS a ON a.oid = c.relam AND a.amname = 'btree'
             WHERE c.relnamespace = 'once'::regnamespace AND c.relkind = 'i'"""
TYPES = {"fence": "integer", "fences": "integer[]"}
# How a way calls; %s is the call of the contract's function with its arguments.
CALLS = {
    "plain": "SELECT * FROM %s", "fields": "SELECT (%s).*", "nested": "SELECT (SELECT t FROM %s AS t LIMIT 1)", "values": "SELECT %s",
    "cancelled": "SELECT x.*, pg_cancel_backend(pg_backend_pid()), pg_sleep(10) FROM %s AS x",
}  # fmt: skip
TEXT_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d(:?\d\d)?|Z)?")
SETUP = """
    DO $r$ DECLARE role text; BEGIN
        FOREACH role IN ARRAY '{native_app,native_bound,native_any,native_none}'::text[] LOOP
            IF to_regrole(role) IS NULL THEN EXECUTE format('CREATE ROLE %I LOGIN', role); END IF;
        END LOOP;
        GRANT once_app TO native_app, native_any;
        GRANT once_tenant TO native_bound;
        GRANT native_app, native_bound, native_none TO native_any;
    END $r$;
    SELECT once.bind('native_bound', 'a');
"""


@dataclasses.dataclass(frozen=True)
class Moment:
    """Seconds from the present; or for ever."""

    offset_s: float

    def __eq__(self, other):
        return isinstance(other, Moment) and (self.offset_s == other.offset_s or abs(self.offset_s - other.offset_s) < TOLERANCE_S)


@dataclasses.dataclass(frozen=True)
class Difference:
    step: int  # -1: in what is stored in the end
    what: str
    sql: object
    native: object

    def __str__(self):
        return f"step {self.step}: {self.what}\n    one:   {self.sql!r}\n    other: {self.native!r}"


class Side:
    """One database and the sessions in it."""

    def __init__(self, database, users, strict):
        self.database = database
        self.library = self.present = database.value("SELECT max(p.probin) FROM pg_proc AS p WHERE p.pronamespace = to_regnamespace('once_native')")
        self.fences, self.ids, self.prepared = {}, {}, {}
        self.admin = database.connect(lock_timeout="50ms", statement_timeout="20s")
        self.watcher = database.connect()
        self.sessions = [database.connect(user, lock_timeout="50ms", statement_timeout="20s", **{"once.strict": strict}) for user in users]
        self.holder = None

    def pids(self):
        return [session.info.backend_pid for session in self.sessions]

    # What is done.

    def play(self, step, number):
        session, kind, what = step
        if session == ADMIN:
            return self.upkeep(what)
        connection = self.sessions[session]
        if kind == "call" and number % 8:
            self.recover(connection)
        return self.answer(connection, what, ()) if kind == "do" else self.call(session, connection, *what)

    @staticmethod
    def recover(connection):
        """A transaction that has failed goes on from its first savepoint, or ends: a history would come to little else than "is aborted"."""
        if connection.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_INERROR:
            for text in ("ROLLBACK TO SAVEPOINT s1", "ROLLBACK"):
                with contextlib.suppress(psycopg2.Error):
                    connection.cursor().execute(text)
                    return

    def upkeep(self, what):
        if self.holder is not None:
            self.holder.cursor().execute("ROLLBACK")
            self.holder = None
        if what == "EXTENSION":  # comes and goes while sessions work, on the side that has it
            if self.library:
                self.present = not self.present
                self.admin.cursor().execute(native_script(self.library) if self.present else "SET client_min_messages = error; DROP SCHEMA once_native CASCADE; RESET client_min_messages")
            return None
        if what.startswith("HOLD"):  # until the next upkeep, what wants to write, or to look, waits for a lock, and gives up
            self.holder = self.admin
            return self.answer(self.admin, f"BEGIN; LOCK TABLE once.intent IN {what[5:]} MODE", ())
        # These lock another day, on which C holds no lock and SQL may; or an index, on which either may hold one. A right that is given or taken away is noticed in an open
        # transaction when it next waits for a lock: C looks before it plans.
        if what in ("DAY", "CLOSE", "MISSING", "EVENTS") or what.startswith(("ALTER TABLE", "REINDEX", "GRANT", "REVOKE")):
            for connection in self.sessions:
                with contextlib.suppress(psycopg2.Error):
                    connection.cursor().execute("COMMIT")
        today = int(time.time() // 86400)
        what = {"DAY": f"SELECT once.retire_day({today - 8})",
                "CLOSE": f"SELECT once._close_day(d) FROM once._days('once.intent', 'intent_d') AS d WHERE d < {today}",  # the oldest first
                "MISSING": f"DROP TABLE once.intent_d{today - 3}",
                "EVENTS": f"""SELECT once._make_day('outbox', {today - 1}) WHERE to_regclass('once.outbox_d{today - 1}') IS NULL;
                              UPDATE once.outbox SET day = {today - 1} WHERE day = {today}"""}.get(what, what)  # fmt: skip
        return self.answer(self.admin, what, ())

    def call(self, session, connection, way, function, arguments):
        names, types, values = [], [], []
        for name, value in arguments.items():
            names.append(name)
            type_, given = self.resolved(value, arguments)
            types.append(type_)
            values.append(given)
        listed = ", ".join(f"{name} => %s" + (f"::{type_}" if type_ else "") for name, type_ in zip(names, types))
        call = f"once.{function}({listed})"
        if way in CALLS:
            rows = self.answer(connection, CALLS[way] % call, values)
        elif way == "prepared":
            rows = self.execute_prepared(session, connection, function, names, types, values)
        elif way == "cursor":
            rows = self.answer(connection, f"DECLARE c CURSOR FOR SELECT * FROM {call}; FETCH ALL FROM c", values)
            with contextlib.suppress(psycopg2.Error):
                if connection.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_INTRANS:
                    connection.cursor().execute("CLOSE c")
        else:
            text = connection.cursor().mogrify(f"PERFORM x FROM {call} AS x", values).decode()
            caught = "EXCEPTION WHEN OTHERS THEN RAISE NOTICE '%, %', SQLSTATE, SQLERRM;" if way == "caught" else ""
            rows = self.answer(connection, f"DO $do$ BEGIN {text.replace('%', '%%')}; {caught} END $do$", ())
        self.learn(arguments, rows)
        return rows

    def execute_prepared(self, session, connection, function, names, types, values):
        """The same statement for the same arguments' names, as a driver does it."""
        which = (session, function, tuple(names), tuple(types))
        name = self.prepared.get(which)
        if name is None:
            name = f"p{len(self.prepared)}"
            listed = ", ".join(f"{n} => ${i}" + (f"::{t}" if t else "") for i, (n, t) in enumerate(zip(names, types), 1))
            made = self.answer(connection, f"PREPARE {name} AS SELECT * FROM once.{function}({listed})", ())
            if made[0] != "rows":
                return made
            self.prepared[which] = name
        told = self.answer(connection, f"EXECUTE {name}" + (f" ({', '.join(['%s'] * len(values))})" if values else ""), values)
        if told[:2] == ("refused", "42501"):  # one side may analyse it anew, which asks for the right to the schema before that to the function
            told = (*told[:2], re.sub(r"(schema|function) \w+$", "what it names", told[2]), *told[3:])
        return told

    def resolved(self, value, arguments):
        """(the type to name, the value)"""
        if not isinstance(value, tuple):
            return "", value
        if value[0] == "long":
            return "text", value[1] * "x"
        if value[0] == "as":
            return value[1], value[2].encode() if value[1] == "bytea" else value[2]
        tenant = arguments.get("tenant", "")
        if value[0] == "fence":
            return "integer", self.fences.get((tenant, arguments["scope"], arguments["key"]), 1) + value[1]
        names = zip(arguments["scope"][2], arguments["key"][2], value[1])
        return "integer[]", [self.fences.get((tenant, scope, key), 1) + more for scope, key, more in names]

    def learn(self, arguments, rows):
        """Fences that were granted."""
        if rows[0] != "rows" or "scope" not in arguments:
            return
        tenant = arguments.get("tenant", "")
        for number, row in enumerate(rows[1]):
            if isinstance(row, dict) and isinstance(row.get("fence"), int):
                if isinstance(arguments["scope"], tuple):
                    number = row.get("ord", number + 1) - 1
                    name = (tenant, arguments["scope"][2][number], arguments["key"][2][number])
                else:
                    name = (tenant, arguments["scope"], arguments["key"])
                self.fences[name] = row["fence"]

    def answer(self, connection, text, values):
        """("rows", [...], notices) or ("refused", SQLSTATE, message, detail, hint)."""
        del connection.notices[:]
        try:
            with connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
                cursor.execute(text, values or None)
                rows = [self.plain(dict(row)) for row in cursor.fetchall()] if cursor.description else []
            return "rows", rows, [self.text(notice) for notice in connection.notices]
        except psycopg2.Error as error:
            told = error.diag
            return ("refused", error.pgcode, *(self.text(each) for each in (told.message_primary, told.message_detail, told.message_hint)))

    # What can be compared.

    def plain(self, value):
        if isinstance(value, dict):
            return {name: Moment(each / 1000) if name == "kept_ms" and each is not None else self.plain(each) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.plain(each) for each in value]
        if isinstance(value, datetime.datetime):
            return Moment(value.timestamp() - time.time()) if value.year < 9999 else Moment(math.inf)
        if isinstance(value, uuid.UUID):
            value = str(value)
        if isinstance(value, str):
            return self.text(value)
        return float(value) if isinstance(value, decimal.Decimal) else value

    def text(self, value):
        if value is None:
            return None
        value = TEXT_TIME.sub("<time>", value)
        value = re.sub(r"process \d+|PID \d+", "<process>", value)
        return re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f-]{17}|[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f-]{16}", self.id_of, value)

    def id_of(self, found):
        return f"<id {self.ids.setdefault(found.group(), len(self.ids))}>"

    def locks(self):
        """For each session: (the advisory locks, {relation: its strongest mode})"""
        found = {pid: (set(), {}) for pid in self.pids()}
        with self.watcher.cursor() as cursor:
            cursor.execute(LOCKS, (list(found),))
            for row in cursor.fetchall():
                if row.locktype == "advisory":
                    found[row.pid][0].add((row.what, row.mode))
                else:
                    strongest = found[row.pid][1]
                    strongest[row.what] = max(strongest.get(row.what, 0), LOCK_MODES.index(row.mode))
        return list(found.values())

    def stored(self):
        for connection in self.sessions:
            connection.close()
        if self.holder is not None:
            self.holder.cursor().execute("ROLLBACK")
        self.answer(self.admin, "SELECT once.add_days(); CREATE EXTENSION amcheck", ())
        return {what: self.answer(self.admin, text, ()) for what, text in {**STORED, "indexes": WHOLE}.items()}

    def answered(self):
        """How many calls the library answered itself; 0 where it is not there."""
        total = 0
        if self.library and not self.present:
            self.upkeep("EXTENSION")
        for connection in self.sessions:
            with contextlib.suppress(psycopg2.Error), connection.cursor() as cursor:
                cursor.execute("ROLLBACK")
                cursor.execute("SELECT once_native.answered()")
                total += cursor.fetchone()[0]
        return total


def setup(database):
    """What a history needs: its roles."""
    database.execute(SETUP)


def locks_differ(one, other):
    """Of the first side's SQL and the other's C. Advisory locks are the same, since they are what keeps attempts apart. Of relations C may leave out what
    only a generic plan of SQL locks (the other days), and holds none that SQL does not, nor a stronger one."""
    for number in range(SESSIONS):
        if one[number][0] != other[number][0]:
            return f"advisory locks of session {number}", sorted(one[number][0]), sorted(other[number][0])
        for relation, mode in other[number][1].items():
            if mode > one[number][1].get(relation, -1):
                return f"locks of session {number} on {relation}", one[number][1].get(relation), mode
    return None


def play(first, second, users, steps, compare_locks=True, strict="off"):
    """(the first Difference or None, how many calls the second side answered in C)"""
    sides = Side(first, users, strict), Side(second, users, strict)
    for number, step in enumerate(steps):
        one, other = (side.play(step, number) for side in sides)
        if one != other:
            return Difference(number, repr(step), one, other), 0
        if compare_locks and step[0] != ADMIN:
            differ = locks_differ(*(side.locks() for side in sides))
            if differ:
                return Difference(number, f"{differ[0]} after {step!r}", differ[1], differ[2]), 0
    answered = sides[1].answered()
    one, other = (side.stored() for side in sides)
    for what in one:
        if one[what] != other[what]:
            rows = [(a, b) for a, b in zip(one[what][1], other[what][1]) if a != b] if one[what][0] == other[what][0] == "rows" else []
            a, b = rows[0] if rows else (one[what], other[what])
            return Difference(-1, what, a, b), answered
    return None, answered


def smaller(steps, fails, deadline):
    """The fewest steps found in time that still show a difference."""
    size = max(1, len(steps) // 2)
    while time.monotonic() < deadline:
        for start in range(0, len(steps), size):
            fewer = steps[:start] + steps[start + size :]
            if time.monotonic() > deadline:
                break
            if fewer and fails(fewer):
                steps = fewer
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return steps
