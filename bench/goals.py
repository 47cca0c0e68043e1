# SPDX-License-Identifier: PostgreSQL
"""What the benchmarks' goals have in common: the ratio that the machine allows (limit), how long a sync takes, rows, and how they are printed."""

import math
import os
import statistics
import time

BLOCK = 8192  # a page of WAL
SYNCS = 60


def possible(side, *, cpus, clients, sync_ms):
    """Requests per second that are possible if nothing waits but for CPUs and for syncs that all clients share. side: cpu_us, the CPU time of a request in all
    processes; syncs, durable writes that it waits for, one after the other; alone_us, the part of cpu_us in the busiest process that has one thread only."""
    most = [math.inf]
    if side["cpu_us"]:
        most.append(min(cpus, clients) / side["cpu_us"] * 1e6)  # a request is in one place at a time
    if side.get("alone_us"):
        most.append(1e6 / side["alone_us"])
    if side["syncs"] and sync_ms:
        most.append(clients / (side["syncs"] * sync_ms) * 1e3)
    return min(most)


def limit(ours, theirs, *, cpus, clients, sync_ms):
    """The ratio of both sides' requests per second if neither waited but for CPUs and for syncs that all clients share: possible() of ours by possible() of theirs.
    None if a CPU time is not known (as where so little was done that no tick of the clock was counted)."""
    if not ours.get("cpu_us") or not theirs.get("cpu_us"):
        return None
    machine = {"cpus": cpus, "clients": clients, "sync_ms": sync_ms}
    return possible(ours, **machine) / possible(theirs, **machine)


def sync_ms(directory, more_ms=0.0):
    """The median duration of fdatasync after a write of one page in this directory, as pg_test_fsync measures it; more_ms: what the server's syncs take besides."""
    path = os.path.join(directory, "sync-probe")
    times = []
    file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        os.pwrite(file, bytes(64 * BLOCK), 0)
        os.fsync(file)
        for number in range(SYNCS):
            begin = time.perf_counter()
            os.pwrite(file, os.urandom(BLOCK), number % 64 * BLOCK)
            os.fdatasync(file)
            times.append(time.perf_counter() - begin)
    finally:
        os.close(file)
        os.unlink(path)
    return statistics.median(times) * 1e3 + more_ms


def row(what, wanted, measured, bound=None, **more):
    """One goal. wanted: (">=" or "<=", number), or None if the row only informs."""
    if wanted is None:
        met = None
    else:
        sense, number = wanted
        met = measured >= number if sense == ">=" else measured <= number
    return {"what": what, **more, "goal": f"{wanted[0]} {wanted[1]:,g}" if wanted else None, "measured": round(measured, 3),
            "limit": None if bound is None else round(bound, 3), "met": met}  # fmt: skip


def figure(value):
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


def show(goals, title):
    width = max([len(title), *(len(goal["what"]) for goal in goals)]) + 2
    print(f"\n{title:<{width}}{'goal':>12}{'measured':>11}{'limit':>9}  met")
    for goal in goals:
        met = "-" if goal["met"] is None else "yes" if goal["met"] else "NO"
        print(f"{goal['what']:<{width}}{goal['goal'] or '-':>12}{figure(goal['measured']):>11}{figure(goal['limit']):>9}  {met}")
