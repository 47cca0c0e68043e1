# SPDX-License-Identifier: PostgreSQL
"""The doors through which intents are attempted: SQL, HTTP, libpgonce, `pgonce run`, and the broker.

A door makes one attempt and says how it ended. It is the honest caller that the contract asks for: it claims to know only what
it was told. `failed` is said only where this attempt certainly neither had an effect nor left a claim behind; whatever is lost on
the way is `unknown`."""

import contextlib
import dataclasses
import heapq
import itertools
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import threading
import time

import psycopg2

from harness.client import Http1, as_bytes
from harness.postgres import clean_environment, tied

PATIENCE_S = 9  # of one attempt: longer than a lease and than every timeout on the way
CONNECT_S = 4


@dataclasses.dataclass
class Intent:
    """What a caller wants. gone_s: None, or so long after its first attempt no attempt may begin, because its key is forgotten."""

    number: int
    door: str
    mode: str
    tenant: str
    scope: str
    key: str
    payload: str
    final: bool = False
    at_most: bool = False
    gone_s: float = None


@dataclasses.dataclass
class Orders:
    """What an attempt is to do besides: pause before its effect and after it, fail retryably in place of the effect, go away (as a
    process that dies) at some step. isolation: of SQL transactions."""

    before_s: float = 0
    after_s: float = 0
    retry: bool = False
    leave: str = None
    isolation: str = "READ COMMITTED"
    pipeline: bool = False  # with libpgonce: all statements in one round trip
    trying: bool = False  # in SQL: once.try_start in place of once.start
    apart: bool = False  # in SQL: each statement a transaction of its own, as of somebody who forgot BEGIN
    way: str = "body"  # in SQL: as what the answer is given, where it is that
    doubt_s: float = 0  # a leased attempt says that it does not know, and goes on after this pause
    swallow: bool = False  # with a client: a statement of the effect fails, and the effect goes on as if it had not
    neighbour: str = None  # what else is around the effect: languages.py and upstream.py have the words


@dataclasses.dataclass
class Answer:
    """loose: nothing was done, but a claim may have been left behind."""

    verdict: str
    code: str = ""
    status: int = None
    body: bytes = None
    replayed: bool = None
    loose: bool = False
    cached: bool = False  # the gateway asked no database


class Left(Exception):
    """This attempt goes away in the middle."""


def leave_at(orders, step):
    if orders.leave == step:
        raise Left(step)


class Watch(threading.Thread):
    """Ends conversations that last too long. A connection whose other side neither answers nor closes would hold a thread for ever:
    what the kernel's own timeouts are for, only sooner."""

    def __init__(self):
        super().__init__(daemon=True, name="watch")
        self.changed = threading.Condition()
        self.waiting, self.numbers = [], itertools.count()
        self.start()

    def run(self):
        while True:
            with self.changed:
                now = time.monotonic()
                while self.waiting and self.waiting[0][0] <= now:
                    self.waiting[0][2].fire()
                    heapq.heappop(self.waiting)
                self.changed.wait(min(0.5, self.waiting[0][0] - now) if self.waiting else 0.5)

    def limit(self, descriptor, seconds):
        limit = Limit(descriptor)
        with self.changed:
            heapq.heappush(self.waiting, (time.monotonic() + seconds, next(self.numbers), limit))
        return limit


class Limit:
    """It has the socket under a descriptor of its own, so that it never hits another that got the same number."""

    def __init__(self, descriptor):
        self.lock = threading.Lock()
        self.socket = socket.socket(fileno=os.dup(descriptor))

    def release(self):
        """Afterwards it does nothing any more."""
        with self.lock:
            self.socket.close()
            self.socket = None

    def fire(self):
        with self.lock:
            if self.socket is not None:
                try:
                    self.socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


# ---- SQL


# What PostgreSQL says when a statement certainly had no lasting effect. Everything else (57P01 in the middle of a COMMIT, a lost
# connection) leaves that open.
DEFINITE = ("P4", "40", "55", "57014", "53", "25", "22", "42", "23", "0A", "P0")
VERDICTS = {
    "P4002": "mismatch", "P4029": "busy", "P4031": "in_doubt", "P4041": "expired", "P4000": "refused", "P4001": "refused", "P4003": "refused",
}  # fmt: skip


def is_definite(error):
    return error.pgcode is not None and error.pgcode.startswith(DEFINITE)


class Uncertain(Exception):
    """The statement that would have settled something has no answer."""

    def __init__(self, error):
        super().__init__(str(error))
        self.code = getattr(error, "pgcode", None) or "lost"


class Session:
    """One connection, opened when it is needed, for one conversation at a time."""

    def __init__(self, dsn, watch):
        self.dsn, self.watch, self.connection = dsn, watch, None
        self.deadline, self.limits = 0, []

    @contextlib.contextmanager
    def within(self, seconds):
        """A conversation of at most so long, from a connection that is idle to one that is idle, or closed."""
        self.deadline = time.monotonic() + seconds
        try:
            if not self.open():
                self.guard()
            yield self
        finally:
            self.reset()
            for limit in self.limits:
                limit.release()
            self.limits.clear()

    def open(self):
        """True where it opened one."""
        if self.connection is not None and not self.connection.closed:
            return False
        self.connection = psycopg2.connect(self.dsn, connect_timeout=CONNECT_S)
        self.connection.autocommit = True
        self.guard()
        return True

    def guard(self):
        self.limits.append(self.watch.limit(self.connection.fileno(), max(0.1, self.deadline - time.monotonic())))

    def close(self):
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def row(self, query, *values):
        with self.connection.cursor() as cursor:
            cursor.execute(query, values or None)
            if not cursor.description:
                return None
            names = [column.name for column in cursor.description]
            return dict(zip(names, cursor.fetchone()))

    def value(self, query, *values):
        return next(iter(self.row(query, *values).values()))

    def settle(self, query, *values):
        """A statement that commits. Uncertain where it may have, and may not have."""
        try:
            return self.row(query, *values)
        except psycopg2.Error as error:
            if is_definite(error):
                raise
            raise Uncertain(error) from error

    def commit(self):
        with self.connection.cursor() as cursor:
            try:
                cursor.execute("COMMIT")
            except psycopg2.Error as error:
                if error.pgcode and error.pgcode.startswith("40"):
                    raise
                raise Uncertain(error) from error
            if cursor.statusmessage != "COMMIT":
                raise psycopg2.InternalError(f"COMMIT said {cursor.statusmessage}")

    def reset(self):
        """Idle again, or closed."""
        try:
            if self.connection is not None and not self.connection.closed:
                self.row("ROLLBACK")
        except psycopg2.Error:
            self.close()


BEGIN = "SELECT * FROM once.start(%s, %s, once.fingerprint(%s::bytea, %s), %s)"
TRY = BEGIN.replace("once.start", "once.try_start")
FINISH = "SELECT once.finish(%s, %s, once.fingerprint(%s::bytea, %s), %s, response_body => %s::bytea, tenant => %s, state => %s)"
CLAIM = "SELECT * FROM once.claim(%s, %s, once.fingerprint(%s::bytea, %s), owner => %s, tenant => %s)"
PEEK = "SELECT * FROM once.peek(%s, %s, %s)"
COMPLETE = "SELECT once.complete(%s, %s, %s, %s, response_body => %s::bytea, tenant => %s)"
FAIL = "SELECT once.fail(%s, %s, %s, %s, response_status => %s, response_body => %s::bytea, tenant => %s)"
RENEW = "SELECT once.renew(%s, %s, %s, tenant => %s)"
RELEASE = "SELECT once.release(%s, %s, %s, tenant => %s)"
ACT = "SELECT torture.act(%s, %s, %s, %s, %s, %s, %s)"
WRITE = "SELECT torture.write(%s, %s, %s, %s, %s, %s, %s, %s)"
# What a verdict of once.try_start is to an attempt that may not run.
TOLD = {
    "replay_success": "acknowledged", "final_failure": "acknowledged", "processing_active": "busy", "in_doubt": "in_doubt", "mismatch": "mismatch", "expired": "expired",
}  # fmt: skip


WAYS = {"body": "response_body => %s::bytea", "text": "response_text => %s::text", "json": "response_json => %s::jsonb"}


def given(query, body, way):
    """The query and its value for an answer's bytes that are given in one of WAYS; what is no JSON is given as text. JSON is padded: what is stored is what
    jsonb makes of it, and these bytes again."""
    if body is None or way == "body":
        return query, body
    text = body.decode()
    if way == "json" and is_json(text):
        return query.replace(WAYS["body"], WAYS["json"]), f"\n {text} "
    return query.replace(WAYS["body"], WAYS["text"]), text


def is_json(text):
    try:
        json.loads(text)
        return True
    except ValueError:
        return False


def failure_body():
    return json.dumps({"refused": os.urandom(12).hex()}).encode()


class SqlDoor:
    """psycopg2. Modes: transaction (start and finish), fenced (the effect and complete in one transaction), verified and doubtful
    (the effect in a transaction of its own, after which complete is called)."""

    name = "sql"

    def __init__(self, dsn, watch):
        self.session = Session(dsn, watch)

    def close(self):
        self.session.close()

    def attempt(self, intent, number, payload, orders):
        session = self.session
        do = self.transaction if intent.mode == "transaction" else self.leased
        try:
            with session.within(PATIENCE_S):
                return do(intent, number, payload.encode(), orders)
        except Uncertain as lost:
            session.close()
            return Answer("unknown", lost.code)
        except Left as step:
            session.close()
            return Answer("unknown", f"left {step}")
        except psycopg2.Error as error:
            if error.pgcode == "P4030":
                return self.look(intent)
            return Answer(VERDICTS.get(error.pgcode, "failed"), error.pgcode or "lost")

    def look(self, intent):
        """The stored answer of an intent that failed for good."""
        try:
            with self.session.within(PATIENCE_S / 2):
                stored = self.session.row(PEEK, intent.scope, intent.key, intent.tenant)
                return Answer("acknowledged", "P4030", stored["response_status"], stored["response_body"], True)
        except psycopg2.Error as error:
            return Answer("failed", error.pgcode or "lost")

    def transaction(self, intent, number, payload, orders):
        session = self.session
        name, mark = (intent.scope, intent.key), (payload, intent.tenant)
        if orders.apart:
            return self.apart(intent, name, mark)
        session.row(f"BEGIN ISOLATION LEVEL {orders.isolation}")
        begun = session.row(TRY if orders.trying else BEGIN, *name, *mark, intent.tenant)
        if begun["verdict"] != "proceed":
            session.row("COMMIT")
            return self.told(begun)
        leave_at(orders, "begun")
        time.sleep(orders.before_s)
        if orders.retry:
            session.row(FINISH, *name, *mark, None, None, intent.tenant, "failed_retryable")
            session.commit()
            return Answer("failed", "retryable")
        if intent.final:
            status, state, body = 422, "failed_final", failure_body()
        else:
            status, state = 201, "succeeded"
            body = session.value(ACT, intent.tenant, *name, payload.decode(), number, self.name, None)
        time.sleep(orders.after_s)
        finish, value = given(FINISH, body, orders.way)
        session.row(finish, *name, *mark, status, value, intent.tenant, state)
        leave_at(orders, "finished")
        session.commit()
        return Answer("acknowledged", "", status, body, False)

    def apart(self, intent, name, mark):
        """Nothing guards an effect between two transactions: finish must refuse, and so there is none. An acknowledgement would be one without its effect."""
        session, body = self.session, failure_body()
        begun = session.row(BEGIN, *name, *mark, intent.tenant)
        if begun["verdict"] != "proceed":
            return self.told(begun)
        session.settle(FINISH, *name, *mark, 201, body, intent.tenant, "succeeded")
        return Answer("acknowledged", "apart", 201, body, False)

    @staticmethod
    def told(begun):
        verdict = TOLD[begun["verdict"]]
        if verdict == "acknowledged":
            return Answer(verdict, begun["verdict"], begun["response_status"], begun["response_body"], True)
        return Answer(verdict, begun["verdict"])

    def leased(self, intent, number, payload, orders):
        session = self.session
        name = (intent.scope, intent.key)
        claimed = session.settle(CLAIM, *name, payload, intent.tenant, f"attempt {number}", intent.tenant)
        verdict, fence = claimed["verdict"], claimed["fence"]
        if verdict in ("replay_success", "final_failure"):
            return Answer("acknowledged", verdict, claimed["response_status"], claimed["response_body"], True)
        if verdict not in ("new_claim", "retryable_failure", "processing_stale"):
            return Answer({"processing_active": "busy"}.get(verdict, verdict), verdict)
        leave_at(orders, "claimed")
        time.sleep(orders.before_s)
        try:
            if orders.retry:
                # What was put in doubt meanwhile is not released; that it failed is believed.
                if number % 2 or not self.report(RELEASE, *name, fence, intent.tenant)["release"]:
                    self.report(FAIL, *name, fence, True, None, None, intent.tenant)
                return Answer("failed", "retryable")
            if intent.final:
                body = failure_body()
                fail, value = given(FAIL, body, orders.way)
                self.report(fail, *name, fence, False, 422, value, intent.tenant)
                return Answer("acknowledged", verdict, 422, body, False)
            if orders.doubt_s:
                self.report(FAIL, *name, fence, None, None, None, intent.tenant)
                time.sleep(orders.doubt_s)
        except psycopg2.Error as refused:
            return Answer("failed", refused.pgcode or "lost", loose=refused.pgcode != "P4011")
        try:
            body = self.effect(intent, number, payload.decode(), orders, fence)
        except psycopg2.Error as error:
            # Certainly no effect, and the next attempt may know that.
            session.reset()
            try:
                self.report(FAIL, *name, fence, True, None, None, intent.tenant)
            except psycopg2.Error as refused:
                return Answer("failed" if intent.mode == "fenced" and refused.pgcode == "P4011" else "unknown", error.pgcode or "lost")
            return Answer("failed", error.pgcode or "lost")
        if intent.mode != "fenced":
            leave_at(orders, "done")
            time.sleep(orders.after_s)
            if orders.doubt_s and number % 2:
                return Answer("unknown", "doubt")
            try:
                complete, value = given(COMPLETE, body, orders.way)
                self.report(complete, *name, fence, 201, value, intent.tenant)
            except psycopg2.Error as error:  # somebody else has decided meanwhile: what is stored says the next attempt
                raise Uncertain(error) from error
        return Answer("acknowledged", verdict, 201, body, False)

    def effect(self, intent, number, payload, orders, fence):
        session = self.session
        arguments = (intent.tenant, intent.scope, intent.key, payload, number, self.name, fence)
        session.row(f"BEGIN ISOLATION LEVEL {orders.isolation}")
        if intent.mode == "fenced":
            body = session.value(ACT, *arguments)
            time.sleep(orders.after_s)
            complete, value = given(COMPLETE, body, orders.way)
            session.row(complete, intent.scope, intent.key, fence, 201, value, intent.tenant)
        else:
            body = session.value(WRITE, *arguments, intent.mode == "verified")
        leave_at(orders, "written")
        session.commit()
        return body

    def report(self, query, *values):
        """Says how the attempt ended, again on a new connection where one is lost: the fence makes that safe."""
        while True:
            try:
                self.session.open()
                return self.session.row(query, *values)
            except psycopg2.Error as error:
                if error.pgcode == "25006":
                    self.session.close()  # of a primary that is none any more
                elif is_definite(error) and error.pgcode not in ("40001", "40P01", "57014", "55P03"):
                    raise
                if time.monotonic() > self.session.deadline - 1:
                    raise Uncertain(error) from error
                time.sleep(0.1)


# ---- HTTP


PROBLEMS = {
    "mismatch": "mismatch", "active": "busy", "in-doubt": "in_doubt", "expired": "expired", "unavailable": "failed", "timed-out": "failed", "unreached": "failed", "key-malformed": "refused",
    "tenant-missing": "refused", "key-missing": "refused", "key-repeated": "refused", "refused": "refused",
}  # fmt: skip


def quoted(key):
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


class HttpDoor:
    """POST /handoff or /naive through the gateway, on a connection that is kept."""

    name = "http"

    def __init__(self, address, watch):
        self.address, self.watch, self.connection = address, watch, None

    def close(self):
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def attempt(self, intent, number, payload, orders):
        said = {"attempt": number, "before_s": orders.before_s, "after_s": orders.after_s, "retry": orders.retry, "leave": orders.leave, "neighbour": orders.neighbour}
        headers = [
            ("Idempotency-Key", quoted(intent.key).encode()), ("X-Tenant", intent.tenant.encode()), ("Content-Type", "application/json"),
            ("X-Orders", json.dumps(said)),
        ]  # fmt: skip
        return self.ask(f"/{intent.mode}", headers, payload, orders)

    def ask(self, target, headers, payload, orders):
        """One request, and what its answer says."""
        fresh = self.connection is None
        try:
            if fresh:
                self.connection = Http1(self.address, timeout=PATIENCE_S)
        except OSError as error:
            return Answer("failed", f"connect: {error.__class__.__name__}")
        try:
            limit = self.watch.limit(self.connection.socket.fileno(), PATIENCE_S)
            try:
                response = self.exchange("POST", target, headers, as_bytes(payload.encode()), orders)
            finally:
                limit.release()
        except (OSError, ValueError) as error:
            self.close()
            return Answer("unknown", "lost" if fresh else f"lost: {error.__class__.__name__}")
        except Exception as error:  # pylint: disable=broad-except  # http.client's own, of a cut head
            self.close()
            return Answer("unknown", f"cut: {error.__class__.__name__}")
        if not response.whole or response.header("Connection") == "close":
            self.close()
        return dataclasses.replace(self.judge(response), cached=response.header("X-Cache") == "hit")

    def exchange(self, method, target, headers, body, orders):
        """A response; OSError where there is none."""
        del orders
        self.connection.send(method, target, headers, body)
        return self.connection.receive()

    @staticmethod
    def judge(response):
        if not response.whole:
            return Answer("unknown", f"{response.status} cut", response.status)
        problem = None
        if response.header("Content-Type") == "application/problem+json":
            problem = json.loads(response.body)["type"].rpartition(":")[2]
        if problem is not None:
            return Answer(PROBLEMS.get(problem, "unknown"), f"{response.status} {problem}", response.status, loose=problem == "unavailable")
        if response.status == 503 and response.header("X-Done") == "no":
            return Answer("failed", "503 upstream", response.status)
        if response.status >= 500 or response.status in (400, 408, 413, 429, 499):
            return Answer("unknown", str(response.status), response.status)
        return Answer("acknowledged", str(response.status), response.status, response.body, response.replayed)


# ---- Programs


class Program:
    """A process that the nemesis may kill and pause. All of it by its number, and only while it runs."""

    def __init__(self, name):
        self.name, self.process, self.lock = name, None, threading.Lock()

    def spawn(self, words, **options):
        with self.lock:
            self.process = subprocess.Popen(tied(words), env={**clean_environment(), **options.pop("more", {})}, **options)
        return self.process

    @property
    def pid(self):
        process = self.process
        return process.pid if process is not None and process.poll() is None else None

    def is_running(self):
        return self.pid is not None

    def signal(self, number):
        with self.lock:
            if self.process is not None and self.process.poll() is None:
                self.process.send_signal(number)
                return True
            return False

    def kill(self):
        return self.signal(signal.SIGKILL)

    def pause(self):
        return self.signal(signal.SIGSTOP)

    def resume(self):
        return self.signal(signal.SIGCONT)

    def start(self):
        """Its user starts it when it is needed."""


class LineDoor:
    """A process that takes its orders from standard input, and answers in lines. Killed in the middle of an attempt it is started again for the next."""

    def __init__(self, name, words, log):
        self.words, self.log = words, log
        self.target = Program(name)

    def close(self):
        process = self.target.process
        if process is not None:
            self.target.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
            self.target.process = None

    def converse(self, orders, count):
        """So many lines of answers. OSError where the process was killed, TimeoutError where it said nothing in time."""
        if not self.target.is_running():
            self.close()
            with open(self.log, "ab") as log:
                self.target.spawn(self.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0)
            self.started()
        self.target.process.stdin.write(orders)
        return self.hear(count, PATIENCE_S)

    def started(self):
        """After a start, before the first order."""

    def hear(self, count, patience_s):
        process = self.target.process
        deadline, got = time.monotonic() + patience_s, b""
        while got.count(b"\n") < count:
            ready, _, _ = select.select([process.stdout], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("no answer")
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                raise OSError("killed")
            got += piece
        return got.decode().splitlines()


class LibDoor(LineDoor):
    """libpgonce: tests/torture/client.c."""

    name = "lib"

    def __init__(self, name, program, dsn, log):
        super().__init__(name, [program, dsn], log)

    def attempt(self, intent, number, payload, orders):
        return self.attempt_many([(intent, number, payload)], orders)[0]

    def attempt_many(self, each, orders):
        """Attempts of one tenant, scope and mode, in one go."""
        mode = {"doubtful": "batch", "transaction": "statements" if orders.pipeline else "execute"}.get(each[0][0].mode, each[0][0].mode)
        pauses = f"{int(orders.before_s * 1000)}\t{int(orders.after_s * 1000)}"
        lines = [f"{mode}\t{len(each)}\t{pauses}\t{orders.leave or '-'}\t{orders.isolation.lower()}"]
        for intent, number, payload in each:
            end = "retry" if orders.retry else "final" if intent.final else "effect"
            lines.append(f"{number}\t{end}\t{intent.tenant}\t{intent.scope}\t{intent.key}\t{payload}")
        try:
            said = self.converse(("\n".join(lines) + "\n").encode(), len(each))
        except (OSError, TimeoutError) as lost:
            self.close()
            return [Answer("unknown", str(lost) or "killed")] * len(each)
        return [self.read(line) for line in sorted(said, key=lambda line: int(line.split("\t")[0]))]

    @staticmethod
    def read(line):
        _, verdict, code, status, replayed, body = line.split("\t")
        return Answer(verdict, code, int(status) or None, None if body == "-" else bytes.fromhex(body), replayed == "1" if verdict == "acknowledged" else None)


# What it does is one write of one line, and then its answer. Orders of an attempt come by the environment, which is no part of
# what makes two calls the same request.
JOB = """
[ "$TORTURE_LEAVE" != claimed ] || { kill -9 "$PPID"; exit; }
[ -z "$TORTURE_BEFORE" ] || sleep "$TORTURE_BEFORE"
[ -z "$TORTURE_RETRY" ] || exit 75
[ "$2" != final ] || { cat /proc/sys/kernel/random/uuid; exit 7; }
read -r nonce < /proc/sys/kernel/random/uuid
printf '%s %s %s %s\\n' "$PGONCE_FENCE" "$TORTURE_ATTEMPT" "$nonce" "$1" >> "$TORTURE_LEDGER" || exit 75
[ "$TORTURE_LEAVE" != done ] || { kill -9 "$PPID"; exit; }
[ -z "$TORTURE_AFTER" ] || sleep "$TORTURE_AFTER"
echo "$nonce"
"""
RUN_VERDICTS = {3: "failed", 4: "failed", 10: "refused", 11: "busy", 12: "in_doubt", 13: "mismatch", 14: "expired"}


class RunDoor:
    """`pgonce run`: a shell that appends a line to a file."""

    name = "run"

    def __init__(self, name, program, dsn, ledger):
        self.program, self.dsn, self.ledger = program, dsn, pathlib.Path(ledger)
        self.target = Program(name)

    def close(self):
        if self.target.process is not None:
            self.target.kill()
            self.target.process.wait()

    def attempt(self, intent, number, payload, orders):
        words = [self.program, "run", "--dsn", self.dsn, f"--scope={intent.scope}", f"--key={intent.key}", f"--tenant={intent.tenant}"]
        words += [] if intent.final else ["--retry-failed"]
        words += ["--", "sh", "-c", JOB, "job", payload, "final" if intent.final else "effect"]
        more = {
            "TORTURE_LEDGER": str(self.ledger), "TORTURE_ATTEMPT": str(number), "TORTURE_RETRY": "1" if orders.retry and not intent.final else "",
            "TORTURE_BEFORE": str(orders.before_s or ""), "TORTURE_AFTER": str(orders.after_s or ""),
            "TORTURE_LEAVE": orders.leave or "",
        }  # fmt: skip
        process = self.target.spawn(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, more=more)
        try:
            out, err = process.communicate(timeout=2 * PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.target.kill()
            process.communicate()
            return Answer("unknown", "no end")
        status, own = process.returncode, b"pgonce run:" in err
        # These three are none of its own; where it has something to remark besides, they are the command's nevertheless.
        if status in (0, 7):
            return Answer("acknowledged", str(status), status, out)
        if status == 75:
            return Answer("failed", "retryable")
        return Answer(RUN_VERDICTS.get(status, "unknown") if own else "unknown", str(status), loose=status == 3)
