#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""The pictures of docs/performance.md, and its tables of goals.

  plots.py           makes them from docs/performance/measured.json
  plots.py --take    first puts into that file what the benchmarks have written: bench/{results,native,gateway,gateway_native,events,keeper,clients,clients_native}.json, those of them that are here

measured.json holds medians only, and is committed: `make lint` says where something made of it is not current. Nothing but the standard library."""

import argparse
import json
import math
import pathlib
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
HERE = ROOT / "docs/performance"
WIDTH, HEIGHT = 760, 360
LEFT, RIGHT, TOP, BOTTOM = 80, 190, 56, 52
# Told apart without colours too: by the names at the lines' ends.
COLOURS = ["#0b6e99", "#c2570c", "#4d7c0f", "#7c3aed", "#6b7280"]


# ---- what was measured


def take(measured, note):
    """The medians of what the benchmarks wrote; of one that did not run, what was there."""
    found = dict(measured)
    for name, kept in (("results", kept_results), ("native", kept_results), ("gateway", kept_gateway), ("gateway_native", kept_gateway), ("events", kept_events),
                       ("keeper", kept_keeper), ("clients", kept_clients), ("clients_native", kept_clients)):  # fmt: skip
        path = ROOT / f"bench/{name}.json"
        if path.exists():
            run = json.loads(path.read_text())
            if run.get("native", False) != name.endswith("native"):
                raise ValueError(f"bench/{name}.json was measured {'with pgonce_native' if run['native'] else 'in SQL'}")
            found[name] = kept(run) | ({"note": note} if note else {})
    return found


def rounded(value):
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return float(f"{value:.4g}") if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def kept_results(run):
    return {"postgresql": run["postgresql"], "cpus": run["cpus"], "per_second": rounded(run["medians"]), "goals": run["goals"]}


def kept_gateway(run):
    rows = [{name: row[name] for name in ("way", "connections", "per_second", "p50_ms", "p99_ms")} for row in run["measured"]]
    return {"postgresql": run["postgresql"], "cpus": run["cpus"], "measured": [rounded(row) for row in rows], "goals": run["goals"]}


def kept_events(run):
    return {"cpus": run["cpus"], "measured": rounded(run["measured"]), "goals": run["goals"]}


def kept_keeper(run):
    return {"cpus": run["cpus"], "rows": run["rows"], "stored": run["stored"], "medians": rounded(run["medians"]), "goals": run["goals"]}


def kept_clients(run):
    rows = {language: {way: {name: row[name] for name in ("per_second", "p50_ms", "cpu_us")} for way, row in ways.items()} for language, ways in run["measured"].items()}
    return {"postgresql": run["postgresql"], "cpus": run["cpus"], "connections": run["connections"], "measured": rounded(rows), "goals": run["goals"]}


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
           "peer_everysec/unique": "Express and Redis, new keys"}  # fmt: skip


def gateway(measured):
    rows = measured["gateway"]["measured"]
    return lines("The gateway", "Requests to a service that answers at once", "connections", "per s",
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


def tables(measured):
    """The goals of each benchmark, met or not, under the load that there was."""
    written = []
    for name, task in (("results", "make bench"), ("native", "make bench NATIVE=yes"), ("gateway", "make bench-gateway"),
                       ("gateway_native", "make bench-gateway NATIVE=yes"), ("events", "make bench-events"),
                       ("keeper", "make bench-keeper"), ("clients", "make bench-clients"), ("clients_native", "make bench-clients NATIVE=yes")):  # fmt: skip
        if name not in measured:
            continue
        run = measured[name]
        written += [f"`{task}`, on {run['cpus']} CPUs{', ' + run['note'] if run.get('note') else ''}:", "", "| goal | wanted | measured | met |",
                    "| --- | --- | --- | --- |"]  # fmt: skip
        whole = ""
        for goal in run["goals"]:
            # What is indented is more of what stands before it.
            whole = whole if goal["what"].startswith(" ") else goal["what"]
            what = whole if goal["what"] == whole else f"{whole}: {goal['what'].strip()}"
            what += f", at {goal['connections']}" if "connections" in goal else ""
            measured_value = f"{goal['measured']:,.0f}" if abs(goal["measured"]) >= 1000 else f"{goal['measured']:.3g}"
            if goal["met"] is not None:
                written.append(f"| {what} | {goal['goal']} | {measured_value} | {'yes' if goal['met'] else 'no'} |")
        written.append("")
    for name, task in (("clients", "make bench-clients"), ("clients_native", "make bench-clients NATIVE=yes")):
        if name in measured:
            written += clients(measured[name], task)
    return "\n".join(written)


def clients(run, task):
    """Requests a second of each way, and where the CPU of one goes."""
    written = [f"The endpoints of `{task}`, at {run['connections']} connections: requests per second, and CPU of one request in microseconds (service + PostgreSQL):", "",
               "| language | bare | with pgonce | on Redis |", "| --- | --- | --- | --- |"]  # fmt: skip
    for language, ways in run["measured"].items():
        cells = (f"{way['per_second']:,.0f} ({way['cpu_us']['service']:.0f} + {way['cpu_us']['postgresql']:.0f})" for way in (ways[name] for name in ("bare", "pgonce", "redis")))
        written.append(f"| {language} | {' | '.join(cells)} |")
    return [*written, ""]


BEGIN, END = "<!-- Made by bench/plots.py of docs/performance/measured.json. -->\n", "<!-- As far as here. -->\n"


def drawn():
    """{path: what it should hold}"""
    measured = json.loads((HERE / "measured.json").read_text())
    page = (ROOT / "docs/performance.md").read_text()
    before, _, rest = page.partition(BEGIN)
    made = {HERE / f"{name}.svg": draw(measured) for name, draw in PICTURES.items()}
    return made | {ROOT / "docs/performance.md": f"{before}{BEGIN}{tables(measured)}{END}{rest.partition(END)[2]}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--take", action="store_true", help="take what the benchmarks have written")
    parser.add_argument("--note", help="with --take: what stands beside these figures: the load, how long it ran")
    options = parser.parse_args()
    if options.take:
        HERE.mkdir(exist_ok=True)
        path = HERE / "measured.json"
        path.write_text(json.dumps(take(json.loads(path.read_text()) if path.exists() else {}, options.note), indent=1) + "\n")
    for path, text in drawn().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
