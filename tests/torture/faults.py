# SPDX-License-Identifier: PostgreSQL
"""What goes wrong in the torture: one table of the kinds of faults, each with its targets, its weight, what it does, how it is undone, and how long
it lasts. A target is the name of a process or of a link; which processes stand behind `primary` and `standby` changes with a failover."""

import contextlib
import dataclasses
import fnmatch
import math
import signal
import time

import psycopg2

from harness.postgres import wait_until

from .processes import send
from .services import service_link, service_name
from .system import LINKS, PREFETCH, NotNow

JOBS = ("gateway", "naive", "handoff", "relay-a", "relay-b", "broker", "consume", "keep")
NODES = ("primary", "standby", "warehouse")
CLIENT = "client"  # one of the workload's processes
PARTS = ("backend", "postmaster", "worker")
BACKLOG, BACKLOG_PATIENCE_S = 15, 3  # events
READ_S = 0.4  # until a relay has some of them in its hands
TAKEOVER_PATIENCE_S = 5
SLOW_S, SLOW_MOST_S, SLOW_AFTER_S = 0.15, 15, 5  # a message; during a churn and after it
LEAP_MOST_S = 18 * 3600  # never more than one midnight: the workload's horizon is a day


def process_of(system, target, pick=0):
    """Of the system; or, by a pattern, of the workload."""
    if target in NODES:
        return getattr(system, target)
    for each in system.processes:
        if each.name == target:
            return each
    found = [each for each in list(system.extra) if target == CLIENT or fnmatch.fnmatch(each.name, target)]
    if not found:
        raise NotNow(f"there is no {target}")
    return found[pick % len(found)]


def parts_of(target):
    """primary-backend: a part of a process. lib-1 has none: it is a name."""
    name, _, part = target.rpartition("-")
    return (name, part) if part in PARTS else (target, "")


# What a kind does. Each gets the system, the target and the drawn parameters, and is a context: what follows the yield undoes it.
# What is yielded is noted in the history.


@contextlib.contextmanager
def kill(system, target, pick):
    """A process with all that belongs to it, or a part of one: NAME-backend, NAME-postmaster, NAME-worker."""
    name, part = parts_of(target)
    process = process_of(system, name, pick)
    if part == "backend":
        yield process.kill_backend(pick)
        return
    if part == "worker":
        yield process.kill_worker(pick)
        return
    if part == "postmaster":
        process.kill_postmaster()
    else:
        process.kill()
    yield process.name
    process.wanted = True


@contextlib.contextmanager
def pause(system, target, pick):
    name, part = parts_of(target)
    process = process_of(system, name, pick)
    if not part:
        process.pause()
        yield process.name
        process.resume()
        return
    pids = process.pids()[1:]
    if not pids:
        raise NotNow("there is none")
    pid = pids[pick % len(pids)]
    process.pause_one(pid)
    yield f"{process.name} {pid}"
    send(pid, signal.SIGCONT)


def backlog(system):
    """The broker is far away for a while: so that the active relay has much in its hands."""
    link = system.links["relay-broker"]
    link.delay(100, 50)
    try:
        wait_until(lambda: system.waiting_events() >= BACKLOG, "a backlog", BACKLOG_PATIENCE_S)
        time.sleep(READ_S)
    except TimeoutError:
        pass  # then with what it has
    except psycopg2.Error as problem:
        link.whole()
        raise NotNow(str(problem).strip()) from None


def hand_over(system, relay):
    """The session of a relay that is stopped ends, as that of a machine that stands still does; the other takes over. Its name."""
    try:
        active = system.active_relay()
        if active is None or active[0] is not relay:
            raise NotNow("the relay has lost its turn meanwhile")
        system.primary.value("SELECT pg_terminate_backend(%s)", active[1])
        wait_until(lambda: (found := system.active_relay()) and found[0] is not relay, "the successor", TAKEOVER_PATIENCE_S)
        return next(other.name for other in system.relays.values() if other is not relay)
    except (psycopg2.Error, TimeoutError) as problem:
        raise NotNow(str(problem).strip()) from None


@contextlib.contextmanager
def takeover(system, target):
    """The active relay is stopped in the midst of a backlog, another takes over and goes on; then the first one wakes up."""
    del target
    if any(not relay.is_running() or relay.stopped for relay in system.relays.values()):
        raise NotNow("one of the two is down")
    try:
        active = system.active_relay()
    except psycopg2.Error as problem:
        raise NotNow(str(problem).strip()) from None
    if active is None:
        raise NotNow("no relay is active")
    relay = active[0]
    backlog(system)
    try:
        relay.pause()
        since = time.time()
        if not relay.is_running():
            raise NotNow(f"{relay.name} is down")
        system.links["relay-broker"].whole()  # what it has sent arrives
        successor = hand_over(system, relay)
        system.sleeps.append({"by": relay.name, "since": since})
        yield f"{relay.name} sleeps, {successor} took over"
    finally:
        relay.resume()


@contextlib.contextmanager
def refuse(system, target):
    """The broker is there and refuses what it is sent, or a part of it. Where it cannot be told that this is over, it learns it when all is healed."""
    del target
    if not system.broker.is_running() or system.broker.stopped or system.refuses:
        raise NotNow("the broker is away, or refuses already")
    system.refuses = True
    system.refuse(True)
    yield None
    with contextlib.suppress(NotNow):
        system.refuse(False)
        system.refuses = False


@contextlib.contextmanager
def churn(system, target, how):
    """A consumer leaves while the handlers are slow and the consumers have all that they may hold: it is killed, or stopped, which its broker takes for
    death after a while, or ends as it should. When it is back they are slow for a while yet, so that what was its own comes back to the full."""
    process = process_of(system, target)
    if not process.is_running() or process.stopped:
        raise NotNow(f"{target} is away already")
    try:
        system.slow_down(SLOW_S, SLOW_MOST_S)
        wait_until(lambda: system.waiting_messages() >= 2 * PREFETCH, "full consumers", BACKLOG_PATIENCE_S)
    except TimeoutError:
        pass  # then with what they have
    except psycopg2.Error as problem:
        raise NotNow(str(problem).strip()) from None
    with LEAVES[how](system, target):
        yield how
        with contextlib.suppress(psycopg2.Error):  # its server is away: then nobody is fast either
            system.slow_down(SLOW_S, SLOW_AFTER_S)


@contextlib.contextmanager
def failover(system, target, fenced):
    """The primary dies, the standby takes its place; the end is when the former one begins to be made anew, as a standby."""
    del target
    system.failover(fenced)
    yield f"to {system.primary.name}{', the other one fenced before' if fenced else ''}"
    system.must_rebuild.set()


@contextlib.contextmanager
def cut(system, target):
    system.links[target].cut()
    yield None
    system.links[target].whole()


@contextlib.contextmanager
def delay(system, target, ms, jitter):
    system.links[target].delay(ms, jitter)
    yield f"{ms} ms and up to {jitter} more"
    system.links[target].whole()


@contextlib.contextmanager
def loss(system, target, p):
    system.links[target].lossy(p)
    yield f"{100 * p:.0f} %"
    system.links[target].whole()


@contextlib.contextmanager
def half_open(system, target, direction):
    system.links[target].half_open(direction)
    yield direction
    system.links[target].whole()


@contextlib.contextmanager
def disk_full(system, target):
    node = process_of(system, target)
    node.shim.set_full(True)
    yield node.name
    node.shim.set_full(False)


@contextlib.contextmanager
def clock(system, target, ahead_s):
    node = process_of(system, target)
    node.shim.set_clock(ahead_s)
    yield f"{node.name} {ahead_s:+.1f} s"
    node.shim.set_clock(0)
    with contextlib.suppress(psycopg2.Error):  # heal() does it again
        node.wake_sleepers()


@contextlib.contextmanager
def reload(system, target):
    process_of(system, target).reload()
    yield None


@contextlib.contextmanager
def restart(system, target):
    """Ended as a service manager does it, and started again when it has ended, at the end of the fault at the soonest."""
    process = process_of(system, target)
    process.wanted = False
    with process.lock:
        if process.is_running():
            process.is_told_to_end = True
            process.end()
    yield None
    process.wanted = True


@contextlib.contextmanager
def terminate(system, target, pick, how, share):
    """Sessions of a PostgreSQL are ended, or what they do is cancelled."""
    query = f"""SELECT count(pg_{how}_backend(pid)) FROM pg_stat_activity
                 WHERE backend_type IN ('client backend', 'walsender') AND pid <> pg_backend_pid()
                   AND mod(hashint8(pid # %s) & 1023, 1024) < %s * 1024"""
    try:
        count = process_of(system, target).value(query, pick, share)
    except psycopg2.Error as problem:
        raise NotNow(str(problem).strip()) from None
    yield f"{how}: {count}"


LEAVES = {"kill": lambda system, target: kill(system, target, 0), "stop": lambda system, target: pause(system, target, 0), "end": restart}  # of a consumer


# How they are drawn.


def of_services(kind, languages):
    """The targets that a kind has besides, where clients serve HTTP (services.py)."""
    if kind in ("kill", "pause"):
        return tuple(service_name(language) for language in languages)
    return tuple(service_link(language) for language in languages) if kind in ("cut", "delay", "loss", "half_open") else ()


def nothing(_):
    return {}


def a_pick(draw):
    return {"pick": draw.randrange(1 << 30)}


def a_clock(draw):
    """What the product promises something for (tests/torture/README.md): a little, or so far forward that the keeper sees it, and not beyond the horizon."""
    how = draw.random()
    if how < 0.6:
        return {"ahead_s": round(draw.choice((-1, 1)) * draw.uniform(0.3, 3), 3)}
    return {"ahead_s": round(math.exp(draw.uniform(math.log(700), math.log(LEAP_MOST_S))), 3)}


@dataclasses.dataclass(frozen=True)
class Fault:
    """do: the context above. least, most: how long it lasts, in seconds; 0: it is over at once."""

    kind: str
    do: object
    targets: tuple
    weight: int
    least: float
    most: float
    draw: object = nothing


TABLE = (
    Fault("kill", kill, (*NODES, *JOBS, "primary-postmaster", "warehouse-postmaster", "primary-backend", "primary-backend", "warehouse-backend",
                         "gateway-worker", CLIENT, CLIENT), 6, 0.2, 3, a_pick),
    Fault("pause", pause, (*NODES, *JOBS, "primary-backend", "primary-backend", "gateway-worker", CLIENT, CLIENT), 5, 0.3, 8, a_pick),
    Fault("takeover", takeover, ("relay",), 2, 2, 5),
    Fault("churn", churn, ("consume", "consume-b"), 2, 4, 10, lambda draw: {"how": draw.choice(tuple(LEAVES))}),
    Fault("refuse", refuse, ("broker",), 2, 2, 8),
    Fault("failover", failover, ("primary",), 2, 0.2, 2, lambda draw: {"fenced": draw.random() < 0.5}),
    Fault("cut", cut, LINKS, 3, 0.3, 4),
    Fault("delay", delay, LINKS, 2, 2, 8, lambda draw: {"ms": draw.choice((5, 50, 300)), "jitter": draw.choice((5, 50, 300))}),
    Fault("loss", loss, LINKS, 3, 2, 6, lambda draw: {"p": draw.choice((0.01, 0.05, 0.2))}),
    Fault("half_open", half_open, LINKS, 4, 1, 6, lambda draw: {"direction": draw.choice(("up", "down", "both"))}),
    Fault("disk_full", disk_full, ("primary", "warehouse"), 1, 0.5, 3),
    Fault("clock", clock, ("primary", "warehouse"), 2, 2, 10, a_clock),
    Fault("reload", reload, ("gateway", "gateway", "primary", "warehouse"), 1, 0, 0),
    Fault("restart", restart, ("broker", "consume", "relay-a", "keep", "gateway", "standby", "primary"), 2, 0, 2),
    Fault("terminate", terminate, ("primary", "primary", "warehouse"), 2, 0, 0, lambda draw: {
        **a_pick(draw), "how": draw.choice(("terminate", "cancel")), "share": draw.choice((0.1, 0.5, 1))}),
)  # fmt: skip
KINDS = tuple(fault.kind for fault in TABLE)
BY_KIND = {fault.kind: fault for fault in TABLE}
