#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Draws the pictures of docs/pictures from the texts beside them.

  pictures.py            writes NAME.svg of each NAME.seq, NAME.lane and NAME.cast, and with Graphviz of each NAME.dot
  pictures.py --check    says which are not current; exit status 1 then

NAME.seq: who sends what to whom, in panels side by side.

  title: what the picture says, in a sentence or two
  panel: Without pgonce
  actors: client, service
  client -> service: a message            service => client: the same, in green: what is good
  service -x client: one that gets lost   service !> client: the same, in red: what is bad
  * service: something that it does       { what the messages up to } have in common: a frame
  = what came of it                       =! the same, in red

NAME.lane: what lasts how long, on a common axis from 0 to 100.

  title: ...
  lane: a name
  bar: 10 40 blue text                    colours: blue, green, red, grey, yellow
  mark: 45 text                           a line across all lanes
  = what follows from it

NAME.cast: a terminal, recorded by tools/record.py (asciicast, version 2). Its lines come as they came, none too fast to read.

The first line of a text is its licence, after #. Of NAME.dot the picture holds the hash, since releases of Graphviz draw differently; the others are
compared byte by byte. Nothing but the standard library, so that make lint needs none."""

import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import sys
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
HERE = ROOT / "docs/pictures"
INK, MUTED, LINE, GOOD, BAD = "#111827", "#4b5563", "#d1d5db", "#15803d", "#b91c1c"
FILLS = {"blue": ("#dbeafe", "#1d4ed8"), "green": ("#dcfce7", "#15803d"), "red": ("#fee2e2", "#b91c1c"), "grey": ("#f3f4f6", "#6b7280"), "yellow": ("#fef9c3", "#a16207")}
# Of the font's size: the width of an average character, on the safe side.
CHARACTER = 0.54


def width(text, size):
    return len(text) * size * CHARACTER


def label(x, y, text, size=12, fill=INK, anchor="middle", bold=False):
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{weight}>{escape(text)}</text>'


def svg(name, title, wide, high, parts):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" width="{wide:g}" height="{high:g}" font-family="system-ui, sans-serif" role="img" aria-labelledby="title">',
        f"<!-- SPDX-License-Identifier: PostgreSQL; made by tools/pictures.py of {name} -->",
        f'<title id="title">{escape(title)}</title>',
        f'<rect width="{wide:g}" height="{high:g}" fill="#ffffff"/>',
        *parts,
        "</svg>\n",
    ])  # fmt: skip


def lines_of(path):
    """Of a text: (number, line), without its comments."""
    for number, line in enumerate(path.read_text().split("\n"), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()


# ---- who sends what to whom

ROW, HEAD, SIDE = 34, 70, 24
ARROWS = {"->": (INK, False), "=>": (GOOD, False), "!>": (BAD, False), "-x": (BAD, True)}


def read_sequence(path):
    title, panels = "", []
    for number, line in lines_of(path):
        if line.startswith("title: "):
            title = line[7:]
        elif line.startswith("panel: "):
            panels.append({"name": line[7:], "actors": [], "rows": []})
        elif line.startswith("actors: "):
            panels[-1]["actors"] = line[8:].split(", ")
        elif found := re.fullmatch(r"(.+?) (->|=>|!>|-x) (.+?): (.*)", line):
            if not {found[1], found[3]} <= set(panels[-1]["actors"]):
                raise ValueError(f"{path.name}:{number}: no such actor")
            panels[-1]["rows"].append(("message", found[1], found[2], found[3], found[4]))
        elif found := re.fullmatch(r"\* (.+?): (.*)", line):
            panels[-1]["rows"].append(("act", found[1], found[2]))
        elif found := re.fullmatch(r"(\{|\}|=!|=) ?(.*)", line):
            panels[-1]["rows"].append(({"{": "open", "}": "close", "=": "good", "=!": "bad"}[found[1]], found[2]))
        else:
            raise ValueError(f"{path.name}:{number}: {line!r} is no line of a sequence")
    return title, panels


def columns(panel):
    """Where each actor stands, so that each message has room, and how wide the panel is."""
    actors = panel["actors"]
    places = [max(width(actors[0], 13) / 2, 30)]
    for at in range(1, len(actors)):
        room = [width(actors[at], 13) / 2 + width(actors[at - 1], 13) / 2 + 20, 90]
        for row in panel["rows"]:
            if row[0] == "message":
                ends = sorted((actors.index(row[1]), actors.index(row[3])))
                if ends[1] == at:
                    room.append(width(row[4], 12) + 26 - (places[at - 1] - places[ends[0]]))
            elif row[0] == "act" and row[1] in actors[at - 1 : at + 1]:
                room.append(width(row[2], 12) / 2 + 24)
        places.append(places[-1] + max(room))
    last = max([width(actors[-1], 13) / 2, 30] + [width(row[2], 12) / 2 + 8 for row in panel["rows"] if row[0] == "act" and row[1] == actors[-1]])
    first = max([0] + [width(row[2], 12) / 2 + 8 - places[0] for row in panel["rows"] if row[0] == "act" and row[1] == actors[0]])
    whole = max(places[-1] + last + first, *(width(row[1], 13) for row in panel["rows"] if row[0] in ("good", "bad")), width(panel["name"], 15))
    return [place + first for place in places], whole


def arrow(start, end, y, colour, lost):
    towards = 1 if end > start else -1
    if lost:
        middle = (start + end) / 2
        return [f'<line x1="{start:g}" y1="{y}" x2="{middle:g}" y2="{y}" stroke="{colour}" stroke-width="1.5" stroke-dasharray="5 3"/>',
                f'<path d="M{middle - 5:g} {y - 5} L{middle + 5:g} {y + 5} M{middle - 5:g} {y + 5} L{middle + 5:g} {y - 5}" stroke="{colour}" stroke-width="2"/>']  # fmt: skip
    return [f'<line x1="{start:g}" y1="{y}" x2="{end - 6 * towards:g}" y2="{y}" stroke="{colour}" stroke-width="1.5"/>',
            f'<path d="M{end:g} {y} L{end - 8 * towards:g} {y - 4} L{end - 8 * towards:g} {y + 4} Z" fill="{colour}"/>']  # fmt: skip


def draw_panel(panel, left, rows):
    places, whole = columns(panel)
    at = {actor: left + place for actor, place in zip(panel["actors"], places)}
    below, y, opened = HEAD + rows * ROW - 4, HEAD + 8, None
    frames, parts = [], [label(left + whole / 2, 28, panel["name"], 15, bold=True)]
    for actor, x in at.items():
        parts += [f'<line x1="{x:g}" y1="{HEAD - 6}" x2="{x:g}" y2="{below}" stroke="{LINE}"/>', label(x, HEAD - 14, actor, 13, bold=True)]
    for row in panel["rows"]:
        if row[0] == "message":
            colour, lost = ARROWS[row[2]]
            y += ROW
            middle = (at[row[1]] + at[row[3]]) / 2
            parts += [*arrow(at[row[1]], at[row[3]], y, colour, lost), label(middle, y - 7, row[4], 12, colour)]
        elif row[0] == "act":
            y += ROW
            half = width(row[2], 12) / 2 + 6
            parts += [f'<rect x="{at[row[1]] - half:g}" y="{y - 19}" width="{2 * half:g}" height="24" rx="5" fill="#f3f4f6" stroke="{LINE}"/>', label(at[row[1]], y - 3, row[2], 12)]
        elif row[0] == "open":
            y += ROW
            opened = (y - 20, row[1])
        elif row[0] == "close":
            frames.append((*opened, y + 10))
        else:
            y += ROW
            parts.append(label(left + whole / 2, y - 2, row[1], 13, GOOD if row[0] == "good" else BAD, bold=True))
    behind = []
    for top, said, bottom in frames:
        behind.append(f'<rect x="{left - 8:g}" y="{top}" width="{whole + 16:g}" height="{bottom - top}" rx="6" fill="#eff6ff" stroke="#93c5fd"/>')
        parts.append(label(left, top + 14, said, 11, "#1d4ed8", "start"))
    return behind + parts, whole


def height_in_rows(panel):
    return sum(row[0] != "close" for row in panel["rows"]) + 0.4


def sequence(path):
    title, panels = read_sequence(path)
    rows = max(map(height_in_rows, panels))
    parts, left = [], SIDE
    for panel in panels:
        if left > SIDE:
            parts.append(f'<line x1="{left - SIDE:g}" y1="20" x2="{left - SIDE:g}" y2="{HEAD + rows * ROW:g}" stroke="{LINE}"/>')
        drawn, whole = draw_panel(panel, left, rows)
        parts += drawn
        left += whole + 2 * SIDE
    return svg(path.name, title, round(left - SIDE), round(HEAD + rows * ROW + 16), parts)


# ---- what lasts how long

LANE, AXIS = 44, 720


def lanes(path):
    title, rows, marks, said = "", [], [], []
    for number, line in lines_of(path):
        if line.startswith("title: "):
            title = line[7:]
        elif line.startswith("lane: "):
            rows.append((line[6:], []))
        elif found := re.fullmatch(r"bar: ([\d.]+) ([\d.]+) (\w+) ?(.*)", line):
            rows[-1][1].append((float(found[1]), float(found[2]), FILLS[found[3]], found[4]))
        elif found := re.fullmatch(r"mark: ([\d.]+) (.*)", line):
            marks.append((float(found[1]), found[2]))
        elif line.startswith("= "):
            said.append(line[2:])
        else:
            raise ValueError(f"{path.name}:{number}: {line!r} is no line of lanes")
    left = SIDE + max(width(name, 13) for name, _ in rows) + 16
    top, below = 44, 44 + LANE * len(rows)
    parts = []
    for number, (name, bars) in enumerate(rows):
        y = top + number * LANE
        parts += [f'<line x1="{left:g}" y1="{y + LANE - 2}" x2="{left + AXIS:g}" y2="{y + LANE - 2}" stroke="#f3f4f6"/>', label(SIDE, y + 27, name, 13, anchor="start", bold=True)]
        for start, end, (fill, ink), text in bars:
            x, wide = left + start * AXIS / 100, (end - start) * AXIS / 100
            if width(text, 12) > wide:
                raise ValueError(f"{path.name}: no room for {text!r}: {width(text, 12):.0f} of {wide:.0f}")
            parts += [f'<rect x="{x:g}" y="{y + 8}" width="{wide:g}" height="28" rx="5" fill="{fill}" stroke="{ink}"/>', label(x + wide / 2, y + 26, text, 12, ink)]
    for place, text in marks:
        x = left + place * AXIS / 100
        parts += [f'<line x1="{x:g}" y1="{top - 8}" x2="{x:g}" y2="{below}" stroke="{MUTED}" stroke-dasharray="4 3"/>', label(x, top - 14, text, 12, MUTED)]
    for number, text in enumerate(said):
        parts.append(label(SIDE, below + 24 + 20 * number, text, 13, INK, "start"))
    wide = max([left + AXIS + 40] + [width(text, 13) + 2 * SIDE for text in said])
    return svg(path.name, title, round(wide), below + 20 + 20 * len(said), parts)


# ---- a terminal

SHOWN, CELL, STEP = 30, 7.3, 17
# In seconds: the longest pause that is shown, what each line takes at least, so that it can be read, and how long the end is shown.
PAUSE_MAX, LINE_MIN, REST = 0.6, 0.15, 8.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b\][^\x07]*\x07")


def typed_lines(path):
    """Of a record: its title, its columns, and (when, line) of each line."""
    head, *events = [json.loads(line) for line in path.read_text().split("\n") if line and not line.startswith("#")]
    now, then, unfinished, out = 0.0, 0.0, "", []
    for when, kind, text in events:
        now += min(when - then, PAUSE_MAX)
        then = when
        if kind != "o":
            continue
        *whole, unfinished = (unfinished + ESCAPES.sub("", text).replace("\r\n", "\n")).split("\n")
        for line in whole:
            out.append((now, line.split("\r")[-1]))
            now += LINE_MIN
    if unfinished:
        out.append((now, unfinished))
    return head["title"], head["width"], out


def cast(path):
    """Each line is one text; the whole is moved up by a line when it has no more room. It starts again after a rest."""
    title, across, lines = typed_lines(path)
    rows = []
    for when, line in lines:
        pieces = [line[at : at + across] for at in range(0, len(line), across)] or [""]
        rows += [(when, piece) for piece in pieces]
    shown = max(len(rows) - SHOWN, 0)
    lasts = rows[-1][0] + REST
    wide, high = round(across * CELL + 2 * SIDE), SHOWN * STEP + 60
    moved = [(when, number - SHOWN + 1) for number, (when, _) in enumerate(rows) if number >= SHOWN]
    steps, seen = ["0%{transform:translateY(0)}"], set()
    for when, up in moved:
        at = f"{when / lasts * 100:.2f}%"
        if at in seen:
            steps.pop()
        seen.add(at)
        steps.append(f"{at}{{transform:translateY(-{up * STEP}px)}}")
    steps.append(f"100%{{transform:translateY(-{shown * STEP}px)}}")
    style = (f"text{{font:12px ui-monospace,monospace;white-space:pre}}.up{{animation:up {lasts:.1f}s step-end infinite}}@keyframes up{{{''.join(steps)}}}"
             f".line{{animation:show {lasts:.1f}s step-end infinite}}@keyframes show{{0%{{visibility:visible}}}}"
             "@media (prefers-reduced-motion:reduce){.up,.line{animation:none}.up{transform:translateY(-" + str(shown * STEP) + "px)}}")  # fmt: skip
    parts = [f"<style>{style}</style>", f'<rect width="{wide}" height="{high}" rx="8" fill="#111827"/>',
             *(f'<circle cx="{20 + 18 * number}" cy="18" r="5.5" fill="{colour}"/>' for number, colour in enumerate(("#f87171", "#fbbf24", "#34d399"))),
             f'<clipPath id="screen"><rect x="0" y="34" width="{wide}" height="{SHOWN * STEP + 10}"/></clipPath>',
             '<g clip-path="url(#screen)"><g class="up">']  # fmt: skip
    for number, (when, line) in enumerate(rows):
        if line.strip():
            colour = "#93c5fd" if line.startswith("$ ") else "#e5e7eb"
            late = f' class="line" style="animation-name:show{number}"' if when > 0 else ""
            if late:
                parts.append(f"<style>@keyframes show{number}{{0%{{visibility:hidden}}{when / lasts * 100:.2f}%{{visibility:visible}}}}</style>")
            parts.append(f'<text x="{SIDE}" y="{50 + number * STEP}" fill="{colour}" xml:space="preserve"{late}>{escape(line)}</text>')
    parts.append("</g></g>")
    return svg(path.name, title, wide, high, parts)


# ---- what Graphviz draws


def mark(path):
    return f"<!-- SPDX-License-Identifier: PostgreSQL; made by tools/pictures.py of {path.name}, {hashlib.sha256(path.read_bytes()).hexdigest()[:16]} -->"


def draw_graph(path):
    made = path.with_suffix(".svg")
    if not made.exists() or mark(path) not in made.read_text():
        drawn = subprocess.run(["dot", "-Tsvg", path], text=True, capture_output=True, check=True).stdout
        made.write_text(re.sub(r"<!-- Generated by.*?-->", mark(path), drawn, count=1, flags=re.S))


DRAWN = {".seq": sequence, ".lane": lanes, ".cast": cast}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = []
    for path in sorted(HERE.iterdir()):
        made = path.with_suffix(".svg")
        if path.suffix in DRAWN:
            text = DRAWN[path.suffix](path)
            if not options.check:
                made.write_text(text)
            elif not made.exists() or made.read_text() != text:
                stale.append(f"{made.relative_to(ROOT)} is not current: run make docs")
        elif path.suffix == ".dot":
            if not options.check:
                draw_graph(path)
            elif not made.exists() or mark(path) not in made.read_text():
                stale.append(f"{path.relative_to(ROOT)} was changed after its picture was made: install Graphviz, and run make docs")
    print("\n".join(stale), end="\n" if stale else "")
    sys.exit(1 if stale else 0)


if __name__ == "__main__":
    main()
