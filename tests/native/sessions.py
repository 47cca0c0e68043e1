# SPDX-License-Identifier: PostgreSQL
"""What the tests of pgonce_native share: sessions that tell what C has answered, calls, and what both ways are compared by."""

import contextlib
import re
import threading
import time
import uuid

import psycopg2

from harness.native import install_native
from harness.postgres import wait_until

F = "'0123456789abcdef'::bytea"
OTHER = "'fedcba9876543210'::bytea"
ANSWERED = "SELECT once_native.answered()"


def today():
    """The day's number, when it is asked for: a run may last beyond midnight."""
    return int(time.time() // 86400)


def uuid7(ms=None):
    ms = int(time.time() * 1000) if ms is None else ms
    return f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7{uuid.uuid4().hex[:3]}-8{uuid.uuid4().hex[:3]}-{uuid.uuid4().hex[:12]}"


class Session:
    """One connection, and what of its last statement C has answered. What it starts it need not finish."""

    def __init__(self, db, **arguments):
        self.connection = db.connect(**{"once.strict": "off", **arguments})
        self.cursor = self.connection.cursor()

    def __call__(self, query, *values):
        self.cursor.execute(query, values or None)
        return self.cursor.fetchall() if self.cursor.description else None

    def value(self, query, *values):
        return self(query, *values)[0][0]

    def answered(self, query, *values):
        """How many calls of this statement C has answered, whether it raises or not."""
        before = self.value(ANSWERED)
        try:
            self(query, *values)
        except psycopg2.Error:
            pass
        return self.value(ANSWERED) - before

    def outcome(self, query, *values):
        """Its rows, or what it raised."""
        try:
            return [tuple(row) for row in self(query, *values) or []]
        except psycopg2.Error as error:
            return error.pgcode, error.diag.message_primary, error.diag.message_detail, error.diag.message_hint


class Days:
    """The keys of today and of the days around it that statements name, as @today1@ or @tomorrow2@: made when they are first met, so that they are of
    that day when they are used. @today1 upper@ and @today1 bare@ are other spellings of the same."""

    def __init__(self):
        self.day, self.keys = today(), {}

    def __call__(self, statement):
        return re.sub(r"@(yesterday|today|tomorrow)(\d)( upper| bare)?@", self.key, statement)

    def key(self, found):
        day, number, form = found.groups()
        ms = (time.time() + 86400 * ["yesterday", "today", "tomorrow"].index(day) - 86400) * 1000
        key = self.keys.setdefault((day, number), uuid7(int(ms)))
        return key.upper() if form == " upper" else key.replace("-", "") if form else key


def start(key="k", fingerprint=F, more=""):
    return f"SELECT * FROM once.start('s', '{key}', {fingerprint}{more})"


def finish(key="k", more="", fingerprint=F):
    return f"SELECT once.finish('s', '{key}', {fingerprint}{more})"


CLAIM = f"SELECT verdict, fence, state, response_body, lease_until > now(), attempts, traceparent FROM once.claim('s', 'k', {F})"
RECEIVE = f"SELECT once.receive('s', 'm', {F})"


def emit(key="k", more="", payload='{"n": 1}'):
    return f"SELECT once.emit('t', '{payload}', key => '{key}', scope => 's'{more})".replace("scope => 's', scope", "scope")


def with_more(call, more):
    """more: ends with the parenthesis."""
    return call.removesuffix(")") + more


TABLE_CHANGES = [
    ("CREATE TRIGGER x BEFORE INSERT ON once.intent_d0 FOR EACH ROW EXECUTE FUNCTION once._refuse_closed()", "DROP TRIGGER x ON once.intent_d0"),
    ("ALTER TABLE once.intent_d0 ADD CONSTRAINT x CHECK (key <> 'z')", "ALTER TABLE once.intent_d0 DROP CONSTRAINT x"),
    ("ALTER TABLE once.intent ADD COLUMN x integer", "ALTER TABLE once.intent DROP COLUMN x"),
    ("CREATE INDEX x ON once.intent_d0 (created_at)", "DROP INDEX once.x"),
    ("ALTER TABLE once.intent_d0 ENABLE ROW LEVEL SECURITY", "ALTER TABLE once.intent_d0 DISABLE ROW LEVEL SECURITY"),
    ("CREATE RULE x AS ON INSERT TO once.intent DO ALSO NOTHING", "DROP RULE x ON once.intent"),
    ("ALTER TABLE once.intent DETACH PARTITION once.intent_d0", "ALTER TABLE once.intent ATTACH PARTITION once.intent_d0 FOR VALUES FROM (0) TO (1)"),
    ("ALTER FUNCTION once.finish SET enable_seqscan = off", "ALTER FUNCTION once.finish RESET enable_seqscan"),
    ("ALTER FUNCTION once.finish SECURITY INVOKER", "ALTER FUNCTION once.finish SECURITY DEFINER"),
]  # fmt: skip
ROWS = """SELECT bucket, fence, attempts, response_status, state, format_version, tenant, scope, key, fingerprint, owner, result_type, result_id, error_code,
    error_message, traceparent, response_body, response_headers, expires_at - created_at AS kept, lease_until - updated_at AS leased, attempts > 1 OR completed_at = created_at AS at_once FROM once.intent ORDER BY tenant, scope, key"""
EVENTS = """SELECT id, day, xid = pg_snapshot_xmin(pg_current_snapshot()) AS current, created_at > now() - interval '1 hour', CASE WHEN key IS NOT NULL THEN event_id END AS event_id,
    topic, event_type, aggregate_type, aggregate_id, tenant, scope, key, traceparent, headers, payload::text, payload_bytes, content_type FROM once.outbox ORDER BY id"""
COUNTS = " UNION ALL ".join(f"SELECT last_value, is_called FROM once.counted_{each}" for each in ("new", "replay", "process", "duplicate", "message_mismatch"))
# Of a relation the strongest that is held: a weaker one beside it makes no difference.
LOCKS = """SELECT locktype, classid, objid, objsubid, CASE WHEN locktype = 'relation' THEN relation::regclass::text END AS relation,
        max(array_position(ARRAY['AccessShareLock', 'RowShareLock', 'RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock',
            'ExclusiveLock', 'AccessExclusiveLock'], mode))
    FROM pg_locks WHERE pid = pg_backend_pid() AND granted AND (locktype = 'advisory' OR relation::regclass::text IN ('once.intent', 'once.intent_d0',
        'once.counted_new', 'once.counted_replay', 'once.outbox', 'once.outbox_id_seq', 'once.counted_process', 'once.counted_duplicate'))
    GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5"""


def told_both_ways(server, transactions, warm=(), locks=LOCKS):
    """{way: what each statement has answered and locked, and what is stored in the end, and how many calls C has answered}. warm: statements that SQL
    runs first, and that are taken back."""
    for _ in range(2):  # once more where midnight came in between
        days = Days()
        told = told_of(server, transactions, warm, locks, days)
        if days.day == today():
            break
    return told


def told_of(server, transactions, warm, locks, days):
    told, answered = {}, {}
    for way in ("on", "off"):
        db = server.new_database()
        install_native(db)
        session = Session(db)
        session(f"SELECT once.start('warm', 'up', {F})")
        session("BEGIN")
        session("SET LOCAL once.native = off")
        for statement in warm:
            session(days(statement))
        session("ROLLBACK")
        session(f"SET once.native = {way}")
        lines = told[way] = []
        for transaction in transactions:
            session("BEGIN")
            for statement in transaction:
                lines.append(session.outcome(days(statement)))
                if session.connection.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_INERROR:
                    break
                lines.append(session("SELECT current_setting('once.started', true)"))
                lines.append(session(locks))
            session("ROLLBACK" if session.connection.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_INERROR else "COMMIT")
        lines.append(session(ROWS))
        lines.append(session(COUNTS))
        lines.append(session(EVENTS))
        answered[way] = session.value(ANSWERED)
        db.drop()
    return told, answered


@contextlib.contextmanager
def roles_of(native):
    """One who may be anybody of the others."""
    native.execute("DROP ROLE IF EXISTS native_app, native_bound, native_none, native_any")
    native.execute("""CREATE ROLE native_app LOGIN; CREATE ROLE native_bound LOGIN; CREATE ROLE native_none LOGIN; CREATE ROLE native_any LOGIN;
        GRANT once_app TO native_app, native_any; GRANT once_tenant TO native_bound; GRANT native_app, native_bound, native_none TO native_any;
        SELECT once.bind('native_bound', 'a')""")
    try:
        yield native
    finally:
        native.execute("DROP OWNED BY native_app, native_bound, native_none, native_any; DROP ROLE native_app, native_bound, native_none, native_any")


def claimed(session, key="k"):
    session(f"SELECT once.claim('s', '{key}', {F})")
    return f"SELECT once.complete('s', '{key}', 1, 200, response_text => 'done')"


def in_a_thread(native, session, query, meanwhile):
    """What a statement comes to that waits for another transaction until that has done its part."""
    ended = []
    thread = threading.Thread(target=lambda: ended.append(session.outcome(query)))
    thread.start()
    pid = session.connection.info.backend_pid
    try:
        wait_until(lambda: native.value("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", pid) == "Lock" or ended, "the statement to wait")
    finally:
        waited = not ended
        meanwhile()
        thread.join()
    assert waited, ended
    return ended[0]
