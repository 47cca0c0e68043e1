#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""The pictures and tables of docs/why/performance.md and bench/RESULTS.md.

  plots.py           makes them from bench/measured.json
  plots.py --take    first puts into that file what the benchmarks have written: bench/{results,native,gateway,gateway_native,events,keeper,nodes,console,clients,clients_native,
                     instructions,instructions_native}.json and those of a slow disk (gateway_fsync_2_ms.json), those of them that are here

measured.json holds medians only, and is committed: `make lint` says where something made of it is not current. Nothing but the standard library."""

import argparse
import json
import math
import pathlib
import re
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
MEASURED = ROOT / "bench/measured.json"
PICTURED = ROOT / "docs/pictures"
WIDTH, HEIGHT = 760, 360
LEFT, RIGHT, TOP, BOTTOM = 80, 190, 56, 52
# Told apart without colours too: by the names at the lines' ends.
COLOURS = ["#0b6e99", "#c2570c", "#4d7c0f", "#7c3aed", "#6b7280"]


# ---- what was measured


def take(measured, note):
    """The medians of what the benchmarks wrote; of one that did not run, what was there."""
    found = dict(measured)
    for path in sorted((ROOT / "bench").glob("*.json")):
        if not (name := re.fullmatch(r"(\w+?)(?:_fsync_([\d.]+)_ms)?", path.stem)) or name[1] not in KEPT:
            continue
        run = json.loads(path.read_text())
        if run.get("native", False) != name[1].endswith("native"):
            raise ValueError(f"bench/{path.name} was measured {'with pgonce_native' if run['native'] else 'in SQL'}")
        if run.get("fsync_ms", 0) != float(name[2] or 0):
            raise ValueError(f"bench/{path.name} was measured with a disk that is {run.get('fsync_ms', 0):g} ms slower")
        kept = {field: run[field] for field in ("cpus", "postgresql", "disk", "left_out") if run.get(field)}
        found[path.stem] = kept | KEPT[name[1]](run) | {"goals": run["goals"]} | ({"note": note} if note else {})
    return found


def rounded(value):
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return type(value)(float(f"{value:.4g}")) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def kept_results(run):
    return {"per_second": rounded(run["medians"])}


def kept_gateway(run):
    rows = [{name: row[name] for name in ("way", "connections", "per_second", "p50_ms", "p99_ms", "us", "batch") if name in row} for row in run["measured"]]
    return {"measured": [rounded(row) for row in rows]}


def kept_events(run):
    return {"measured": rounded(run["measured"])}


def kept_keeper(run):
    return {"rows": run["rows"], "stored": run["stored"], "medians": rounded(run["medians"])}


def kept_clients(run):
    rows = {language: {way: {name: row[name] for name in ("per_second", "p50_ms", "cpu_us")} for way, row in ways.items()} for language, ways in run["measured"].items()}
    return {"connections": run["connections"], "measured": rounded(rows)}


def kept_instructions(run):
    return {"counts": run["counts"], "batches": rounded(run["batches"])}


KEPT = {"results": kept_results, "native": kept_results, "gateway": kept_gateway, "gateway_native": kept_gateway, "events": kept_events, "keeper": kept_keeper,
        "nodes": lambda run: {"rows": run["rows"]}, "console": lambda run: {"stored": run["stored"]}, "clients": kept_clients, "clients_native": kept_clients, "instructions": kept_instructions,
        "instructions_native": kept_instructions}  # fmt: skip


# ---- drawing


def short(value):
    """100000 -> 100k."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def steps(most):
    """Round numbers from 0 to at least `most`, five or so."""
    size = 10 ** math.floor(math.log10(most))
    step = next(size * part for part in (0.2, 0.5, 1, 2) if most / (size * part) <= 6)
    return [step * n for n in range(math.ceil(most / step) + 1)]


class Picture:
    def __init__(self, title, below):
        self.parts = []
        self.text(LEFT, 22, title, size=15, weight="bold")
        self.text(LEFT, 40, below, colour="#4b5563")

    def text(self, x, y, words, size=12, anchor="start", colour="#111827", weight="normal"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" font-weight="{weight}">'
                          f"{escape(words)}</text>")  # fmt: skip

    def line(self, x1, y1, x2, y2, colour="#e5e7eb", width=1):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>')

    def dot(self, x, y, colour, hollow=False):
        fill = "#ffffff" if hollow else colour
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" stroke="{colour}" stroke-width="2"/>')

    def svg(self, height=HEIGHT):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" role="img">\n'
                f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n' + "\n".join(self.parts) + "\n</svg>\n")  # fmt: skip


def lines(title, below, across, unit, series):
    """series: name -> {x: y}; the x are names of places, evenly apart. Each line is named at its end."""
    picture = Picture(title, below)
    places = sorted({x for values in series.values() for x in values})
    marks = steps(max(y for values in series.values() for y in values.values()))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def at(x, y):
        return LEFT + (right - LEFT) * (places.index(x) + 0.5) / len(places), bottom - (bottom - TOP) * y / marks[-1]

    for mark in marks:
        _, y = at(places[0], mark)
        picture.line(LEFT, y, right, y)
        picture.text(LEFT - 8, y + 4, short(mark), anchor="end", colour="#4b5563")
    for place in places:
        picture.text(at(place, 0)[0], bottom + 18, short(place), anchor="middle", colour="#4b5563")
    picture.text((LEFT + right) / 2, HEIGHT - 12, across, anchor="middle", colour="#4b5563")
    picture.text(LEFT - 8, TOP - 14, unit, anchor="end", colour="#4b5563")
    ends = []
    for (name, values), colour in zip(series.items(), COLOURS):
        points = [at(x, values[x]) for x in sorted(values)]
        for (x1, y1), (x2, y2) in zip(points, points[1:]):
            picture.line(x1, y1, x2, y2, colour, 2)
        for x, y in points:
            picture.dot(x, y, colour)
        ends.append([points[-1][1], points[-1][0], name, colour])
    lowest = -math.inf     # names that would lie on each other are moved apart
    for y, x, name, colour in sorted(ends):
        lowest = max(y, lowest + 15)
        picture.text(x + 12, lowest + 4, name, colour=colour)
    return picture.svg()


def spans(title, below, unit, rows):
    """rows: (name, p50 or None, p99); from one to the other, on a scale of powers of ten."""
    picture = Picture(title, below)
    height = TOP + 26 * len(rows) + BOTTOM
    left, right, bottom = 250, WIDTH - 70, height - BOTTOM
    low = math.floor(math.log10(min(row[1] or row[2] for row in rows)))
    high = math.ceil(math.log10(max(row[2] for row in rows)))

    def at(value):
        return left + (right - left) * (math.log10(value) - low) / (high - low)

    for power in range(low, high + 1):
        picture.line(at(10**power), TOP, at(10**power), bottom)
        picture.text(at(10**power), bottom + 18, short(10**power), anchor="middle", colour="#4b5563")
    picture.text((left + right) / 2, height - 12, f"{unit}; hollow: half are faster (p50), filled: 99 of 100 are (p99)", anchor="middle", colour="#4b5563")
    for number, (name, p50, p99) in enumerate(rows):
        y = TOP + 26 * number + 13
        colour = COLOURS[0] if name.startswith("pgonce") else COLOURS[4]
        picture.text(left - 14, y + 4, name, anchor="end")
        if p50 is not None:
            picture.line(at(p50), y, at(p99), y, colour, 2)
            picture.dot(at(p50), y, colour, hollow=True)
        picture.dot(at(p99), y, colour)
        picture.text(at(p99) + 10, y + 4, short(p99), colour=colour)
    return picture.svg(height)


# ---- the pictures


def throughput(measured):
    rates = measured["results"]["per_second"]
    names = {"plain_bare": "without pgonce", "plain_place": "start and finish", "seed000": "written by hand"}
    return lines("One effect in one transaction", "An order and its event by one call of a function; UUIDv7 keys, fsync on", "clients", "per s",
                 {name: {int(way.split("/")[2]): rate for way, rate in rates.items() if way.startswith(f"{script}/v7/")}
                  for script, name in names.items()})  # fmt: skip


GATEWAY = {"plain/unique": "plain nginx", "gateway/replay": "pgonce, replays", "gateway/unique": "pgonce, new keys",
           "peer_always/unique": "Redis, always", "peer_everysec/unique": "Redis, everysec"}  # fmt: skip


def gateway(measured):
    rows = measured["gateway"]["measured"]
    return lines("The gateway", "Requests to a service that answers at once; on Redis: Express and its middleware, new keys", "connections", "per s",
                 {name: {row["connections"]: row["per_second"] for row in rows if row["way"] == way} for way, name in GATEWAY.items()
                  if any(row["way"] == way for row in rows)})  # fmt: skip


def latency(measured):
    rows = [(f"{GATEWAY[row['way']]}", row["p50_ms"], row["p99_ms"]) for row in measured["gateway"]["measured"]
            if row["connections"] == 64 and row["way"] in GATEWAY]  # fmt: skip
    rows += [(f"pgonce relay, to {way.split('/')[1]}", row["p50_ms"], row["p99_ms"]) for way, row in measured["events"]["measured"].items()
             if way.startswith("latency/") and "beside" not in way]  # fmt: skip
    return spans("How long it takes", "The gateway at 64 connections; the relay from COMMIT to the broker, at 1,000 events a second", "milliseconds", rows)


def stored(measured):
    medians = measured["keeper"]["medians"]
    rows = [(f"pgonce, {int(count):,} stored, {kind}", row["p50"], row["p99"]) for kind, name in (("UUIDv7", "v7"), ("UUIDv4", "v4"))
            for count, row in medians.get(name, {}).items() if count.isdigit()]  # fmt: skip
    return spans("A claim among stored intents", "One client; without the commit's wait for the disk, which would hide the difference", "milliseconds", rows)


PICTURES = {"throughput": throughput, "gateway": gateway, "latency": latency, "stored": stored}


# ---- the tables


def figure(value):
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def cells(goal):
    """goal, measured, limit, met"""
    if goal is None:
        return ["", "", "", ""]
    return [goal["goal"] or "", figure(goal["measured"]), figure(goal.get("limit")), {True: "yes", False: "no", None: ""}[goal["met"]]]


def named(goals):
    """{whole name: goal}: what is indented is more of what stands before it."""
    found, whole = {}, ""
    for goal in goals:
        whole = whole if goal["what"].startswith(" ") else goal["what"]
        what = whole if goal["what"] == whole else f"{whole}: {goal['what'].strip()}"
        found[what + (f", at {goal['connections']}" if "connections" in goal else "")] = goal
    return found


def table(*head):
    return [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]


def both(measured, name):
    """Rows of a benchmark's goals, in SQL and with pgonce_native beside each other."""
    sql, native = (named(measured.get(each, {}).get("goals", [])) for each in (name, in_native(name)))
    return ["| " + " | ".join([what, *cells(sql.get(what)), *cells(native.get(what))]) + " |" for what in {**sql, **native}]


NATIVE = {"results": "native", "gateway": "gateway_native", "clients": "clients_native"}
BOTH = ("compared", "SQL: goal", "measured", "limit", "met", "native: goal", "measured", "limit", "met")


# What docs/why/performance.md shows of the goals: (benchmark, whole name of the goal, what the page calls it). bench/RESULTS.md has all of them.
REQUEST = (
    *(("clients", f"{name.lower()}: pgonce, of bare", f"an endpoint in {name}, of the same without pgonce") for name in ("Node", "Python", "Go", "Java")),
    ("results", "one server-side call, of bare", "one call of a function that does all of it, of the same without pgonce"),
    ("results", "once_execute, of its effect bare: one client", "the C library, one client, of the same without pgonce"),
    ("results", "pipelined, of step by step", "pipelined, of one statement after the other"),
    ("results", "batches of 64, of one by one, one backend", "batches of 64 claims, of one by one"),
    ("results", "of the pattern written by hand, with its event", "of a table of keys written by hand, with pgonce's outbox"),
    ("results", "of the pattern written by hand, with its event: with a plain event table", "the same, both with a plain table of events"),
    ("results", "replays, of SELECT 1", "a replay in SQL, of SELECT 1"),
    ("gateway", "unique keys, of plain nginx, at 64", "gateway, new keys, of plain nginx, 64 connections"),
    ("gateway", "replays from memory, of plain nginx, at 64", "gateway, replays from memory, of plain nginx"),
    ("gateway", "p99 of unique keys, of plain nginx's, at 64", "gateway, 99th percentile of new keys, of plain nginx's"),
    ("results", "dead tuples of start and finish, UUIDv7", "dead rows that start and finish leave"),
)
PEERS = {"node": "express-idempotency", "python": "asgi-idempotency-header", "go": "Fiber's idempotency", "java": "a filter over Spring Data Redis"}
CONNECTIONS = (1, 8, 64, 256)
DURABLE = (
    *(("gateway", f"unique keys, of the peer, always, at {at}", f"always: gateway, {at} connections") for at in CONNECTIONS),
    *(("clients", f"{name}: pgonce, of the peer on Redis, always ({peer})", f"always: {name.capitalize()}, of {peer}") for name, peer in PEERS.items()),
    *(("gateway", f"unique keys, of the peer, everysec, at {at}", f"everysec: gateway, {at} connections") for at in CONNECTIONS),
    *(("clients", f"{name}: pgonce, of the peer on Redis, everysec ({peer})", f"everysec: {name.capitalize()}, of {peer}") for name, peer in PEERS.items()),
)
SLOW = (
    ("results_fsync_2_ms", "one server-side call, of bare", "one call of a function, of the same without pgonce"),
    ("results_fsync_2_ms", "once_execute, of its effect bare: one client", "the C library, one client, of the same without pgonce"),
    ("results_fsync_2_ms", "of the pattern written by hand, with its event", "of a table of keys written by hand, with pgonce's outbox"),
    *(("gateway_fsync_2_ms", f"unique keys, of the peer, always, at {at}", f"gateway, {at} connections, of Redis, always") for at in CONNECTIONS),
    *(("gateway_fsync_2_ms", f"unique keys, of the peer, everysec, at {at}", f"gateway, {at} connections, of Redis, everysec") for at in CONNECTIONS),
    ("gateway_fsync_2_ms", "unique keys, of commit 9b7ba446 on this machine, at 64", "gateway, 64 connections, of an early version of itself"),
)


def in_native(name):
    """The benchmark with pgonce_native that belongs to this one."""
    base = name.partition("_fsync")[0]
    return NATIVE[base] + name[len(base) :]


def shown(measured, chosen):
    """Rows that a page shows, without the limits."""
    rows = table("compared", "in SQL", "goal", "met", "pgonce_native", "goal", "met")
    for benchmark, what, words in chosen:
        sql, native = (cells(named(measured.get(name, {}).get("goals", [])).get(what)) for name in (benchmark, in_native(benchmark)))
        rows.append(f"| {words} | {sql[1]} | {sql[0]} | {sql[3]} | {native[1]} | {native[0]} | {native[3]} |")
    return rows


def request(measured):
    return shown(measured, REQUEST)


def cpu(measured):
    """What a request takes more with pgonce, in microseconds of CPU and of waiting."""
    written = table("endpoint", "PostgreSQL, more us", "service, more us", "of bare, us", "with pgonce_native: PostgreSQL", "service")
    for language, ways in measured.get("clients", {}).get("measured", {}).items():
        more = [{part: run["pgonce"]["cpu_us"][part] - run["bare"]["cpu_us"][part] for part in ("postgresql", "service")}
                for run in (ways, measured.get("clients_native", {}).get("measured", {}).get(language)) if run]  # fmt: skip
        bare = sum(ways["bare"]["cpu_us"][part] for part in ("postgresql", "service"))
        cells_of = [f"{each[part]:.0f}" for each in more for part in ("postgresql", "service")] + [""] * (4 - 2 * len(more))
        written.append(f"| {language} | {cells_of[0]} | {cells_of[1]} | {bare:.0f} | {cells_of[2]} | {cells_of[3]} |")
    return written


def grows(measured):
    return goals_of(measured, "keeper")


def durable(measured):
    return shown(measured, DURABLE)


def slower(measured):
    return shown(measured, SLOW)


def events_goals(measured):
    return goals_of(measured, "events")


def met(measured):
    """How many goals were met, and which not."""
    written = table("benchmark", "goals", "met")
    for name, run in measured.items():
        goals = [goal for goal in run["goals"] if goal["met"] is not None]
        if goals:
            base, slower_by = name.partition("_fsync")[0], f" FSYNC_MS={name.split('_')[-2]}" if "_fsync_" in name else ""
            written.append(f"| `{COMMANDS[base]}{slower_by}` | {len(goals)} | {sum(goal['met'] for goal in goals)} |")
    return written


def all_goals(measured):
    """The goals of the benchmarks that have both kinds, as they are."""
    written = []
    for name in ("results", "clients", "gateway"):
        written += [f"`{COMMANDS[name]}`:", "", *table(*BOTH), *both(measured, name), ""]
    return [*written, *slow(measured)]


def slow(measured):
    written = []
    for name in sorted(name for name in measured if "_fsync_" in name and "native" not in name):
        kind = name.partition("_fsync")[0]
        written += [f"`{COMMANDS[kind]} FSYNC_MS={name.split('_')[-2]}`: {measured[name].get('disk', '')}.", "", *table(*BOTH), *both(measured, name), ""]
    return written[:-1] or ["Not measured yet."]


COMMANDS = {"results": "make bench", "native": "make bench NATIVE=yes", "gateway": "make bench-gateway", "gateway_native": "make bench-gateway NATIVE=yes",
            "events": "make bench-events", "keeper": "make bench-keeper", "nodes": "make bench-nodes", "console": "make bench-console", "clients": "make bench-clients",
            "clients_native": "make bench-clients NATIVE=yes", "instructions": "make bench-instructions",
            "instructions_native": "make bench-instructions NATIVE=yes"}  # fmt: skip


def goals_of(measured, name):
    if name not in measured:
        return ["Not measured yet."]
    return [*table("compared", "goal", "measured", "limit", "met"),
            *(f"| {what} | {' | '.join(cells(goal))} |" for what, goal in named(measured[name]["goals"]).items())]  # fmt: skip


def others(measured):
    """The goals of the benchmarks that have one kind only, and that docs/why/performance.md does not show."""
    written = []
    for name in ("instructions", "instructions_native", "nodes", "console"):
        if name in measured:
            written += [f"`{COMMANDS[name]}`:", "", *goals_of(measured, name), ""]
    return written[:-1]


def runs(measured):
    """Where each figure comes from."""
    written = [*table("figures of", "CPUs", "PostgreSQL", "disk", "load", "left out")]
    for name, run in measured.items():
        base, slower = name.partition("_fsync")[0], f" FSYNC_MS={name.split('_')[-2]}" if "_fsync_" in name else ""
        left_out = re.sub(r"[\s|]+", " ", "; ".join(f"{what}: {why[:200]}" for what, why in run.get("left_out", {}).items()))
        written.append(f"| `{COMMANDS[base]}{slower}` | {run.get('cpus', '')} | {run.get('postgresql', '')} | {run.get('disk', '')} | {run.get('note', '')} | {left_out} |")
    return written


def rates(measured):
    """All ways of bench/run.py, a second."""
    sql, native = (measured.get(name, {}).get("per_second", {}) for name in ("results", "native"))
    written = table("way/keys/clients", "SQL", "with pgonce_native")
    return [*written, *(f"| {way} | {figure(sql.get(way))} | {figure(native.get(way))} |" for way in {**sql, **native})]


def gateway_rates(measured):
    """Requests a second, p99 and CPU time, of each way at each number of connections."""
    written = []
    for name in ("gateway", "gateway_native"):
        if name not in measured:
            continue
        written += [f"`{COMMANDS[name]}`:", "", *table("way", "connections", "per second", "p50 ms", "p99 ms", "CPU time of a request by part, us")]
        for row in measured[name]["measured"]:
            parts = ", ".join(f"{part} {us:.0f}" for part, us in row.get("us", {}).items())
            written.append(f"| {row['way']} | {row['connections']} | {figure(row['per_second'])} | {row['p50_ms']:.2f} | {row['p99_ms']:.2f} | {parts} |")
        written.append("")
    return written[:-1]


CLIENTS = {"bare": "bare", "pgonce": "with pgonce", "redis_always": "Redis, always", "redis_everysec": "Redis, everysec"}


def clients_rates(measured):
    """Requests a second of each way, and where the CPU of one goes."""
    written = []
    for name in ("clients", "clients_native"):
        if name not in measured:
            continue
        run = measured[name]
        written += [f"`{COMMANDS[name]}`, at {run['connections']} connections: requests per second, and CPU of one in microseconds (service + PostgreSQL):", "",
                    *table("language", *CLIENTS.values())]  # fmt: skip
        for language, ways in run["measured"].items():
            parts = (f"{figure(way['per_second'])} ({way['cpu_us']['service']:.0f} + {way['cpu_us']['postgresql']:.0f})" if (way := ways.get(each)) else "" for each in CLIENTS)
            written.append(f"| {language} | {' | '.join(parts)} |")
        written.append("")
    return written[:-1]


def events_rates(measured):
    if "events" not in measured:
        return []
    rows = measured["events"]["measured"].items()
    return [*table("way", "measured"), *(f"| {way} | {', '.join(f'{name} {figure(value)}' for name, value in row.items())} |" for way, row in rows)]


TABLES = {
    "docs/why/performance.md": {"request": request, "cpu": cpu, "grows": grows, "durable": durable, "slow": slower, "events": events_goals, "met": met},
    "bench/RESULTS.md": {"runs": runs, "goals": all_goals, "rates": rates, "others": others, "gateway": gateway_rates, "clients": clients_rates, "events": events_rates},
}


def filled(page, made):
    """The page with what is made between its marks."""
    for name, make in made.items():
        begin, end = f"<!-- {name}: made by bench/plots.py of bench/measured.json -->\n", f"<!-- end of {name} -->\n"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"a page lacks the marks of {name}")
        page = before + begin + "\n".join(make) + "\n" + end + after
    return page


def drawn():
    """{path: what it should hold}"""
    measured = json.loads(MEASURED.read_text())
    made = {PICTURED / f"{name}.svg": draw(measured) for name, draw in PICTURES.items()}
    pages = {ROOT / name: filled((ROOT / name).read_text(), {part: make(measured) for part, make in parts.items()}) for name, parts in TABLES.items()}
    return made | pages


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--take", action="store_true", help="take what the benchmarks have written")
    parser.add_argument("--note", help="with --take: what stands beside these figures: the load, how long it ran")
    options = parser.parse_args()
    if options.take:
        MEASURED.write_text(json.dumps(take(json.loads(MEASURED.read_text()) if MEASURED.exists() else {}, options.note), indent=1) + "\n")
    for path, text in drawn().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
