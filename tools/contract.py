#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Puts the files of contract/ together. The one place that knows their order.

  contract.py install            the whole contract as one SQL script (what `pgonce init --print` shows)
  contract.py upgrade VERSION    what takes a database from this version of the contract to the present one
  contract.py extension          the script of CREATE EXTENSION pgonce
  contract.py embed OUT.c        the same files as a C table, for the command
"""
import hashlib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent / "contract"
RELEASE = re.search(r"version: '([^']+)'", (ROOT.parent / "meson.build").read_text()).group(1)


# In the order in which their tables are made.
ROOMS = ("policy", "key", "doubt", "lease", "start", "outbox", "inbox", "keep", "see", "access")
NOT_FUNCTIONS = ("tables.sql", "first_days.sql", "drop_views.sql", "grants.sql")


def functions():
    """The files that hold a function, those that are called first: what begins with an underscore is the contract's own."""
    paths = [path for room in ROOMS for path in (ROOT / room).glob("*.sql") if path.name not in NOT_FUNCTIONS]
    return sorted(paths, key=lambda path: (ROOMS.index(path.parent.name), path.stem.startswith("_"), path.stem))


def schema_of(text):
    """Of a function's file: once for what applications and people call, and for all private functions; once_job for what only daemons call."""
    return re.search(r"^CREATE (?:FUNCTION|PROCEDURE) (once|once_job)\.", text, re.M)[1]


EXPANDED = re.compile(r"^([ \t]*)-- expand: (\w+)\((.*(?:\n[ \t]*--   .*)*)\)\n", re.M)


def text_of(path):
    """A file of contract/, with each line "-- expand: NAME(parameter => value, ...)" replaced by templates/NAME.sql without its head: what several functions do
    alike and a function of its own would make slower. What it is given may go on in lines that begin with "--   "."""
    def expand(match):
        indent, name, given = match.groups()
        given = re.sub(r"\n[ \t]*-- +", " ", given)
        values = dict(re.findall(r"(\w+) => (.*?)(?:, (?=\w+ => )|$)", given))
        template = re.sub(r"\A(?:--.*\n)*", "", text_of(ROOT / "templates" / f"{name}.sql"))
        filled = re.sub(r"\{(\w+)\}", lambda parameter: values[parameter[1]], template)
        return re.sub(r"^(?=.)", indent, filled, flags=re.M)

    return EXPANDED.sub(expand, path.read_text())


def parts():
    """(kind, version, name, text) in the order of installation. Version 1 are the rooms' tables; what a later version does to a
    database of the one before it is in migrations/, from 0002 on."""
    yield "preparation", 0, "preparation", (ROOT / "preparation.sql").read_text()
    yield "schema", 0, "schema", (ROOT / "schema.sql").read_text()
    yield "record", 0, "migration_table", (ROOT / "migration_table.sql").read_text()
    yield "migration", 1, "tables", "\n".join((ROOT / room / "tables.sql").read_text() for room in ROOMS)
    for path in sorted((ROOT / "migrations").glob("[0-9]*.sql")):
        yield "migration", int(path.name[:4]), path.stem, path.read_text()
    code = [(ROOT / "job_schema.sql").read_text(), *(text_of(path) for path in functions())]
    code.append((ROOT / "see/drop_views.sql").read_text())
    code += [path.read_text() for path in sorted((ROOT / "see/views").glob("*.sql"))]
    code.append((ROOT / "access/grants.sql").read_text())
    # Functions and views are replaced as a whole at each upgrade, so they carry no state and have one checksum.
    yield "code", 0, "functions and grants", re.sub(r"^CREATE (FUNCTION|PROCEDURE)", r"CREATE OR REPLACE \1", "\n".join(code), flags=re.M)
    yield "days", 0, "first_days", (ROOT / "keep/first_days.sql").read_text()


def checksum(text):
    return hashlib.sha256(text.encode()).hexdigest()


def record(version, name, text):
    return (f"INSERT INTO once.migration (version, name, checksum, pgonce) VALUES ({version}, '{name}', "
            f"'{checksum(text)}', '{RELEASE}');\n")


def script(extension=False):
    out = []
    for kind, version, name, text in parts():
        if extension and kind in ("schema", "days"):
            continue
        out.append(text)
        if kind in ("migration", "code"):
            out.append(record(version, name, text))
    if extension:
        # Without this pg_dump would leave the rows of an extension's tables behind. Those that CREATE EXTENSION
        # itself writes (once.migration, once.transition) come back with it.
        for table in ("setting", "scope", "binding", "intent", "intent_d0", "fence_floor_seq", "archive", "decision", "outbox", "outbox_id_seq",
                      "outbox_day_seq", "delayed_event", "relay", "capture", "parked_event", "parked_message", "parked_message_position_seq", "parked_decision", "closing", "consumer_position"):
            out.append(f"SELECT pg_catalog.pg_extension_config_dump('once.{table}', '');\n")
    return "\n".join(out)


def upgrade(version):
    """What `pgonce init` runs in a database whose last migration is this one."""
    out = []
    for kind, number, name, text in parts():
        if kind == "migration" and number > version:
            out += [text, record(number, name, text)]
        elif kind == "code":
            out += [text, "DELETE FROM once.migration WHERE version = 0;", record(number, name, text)]
        elif kind in ("preparation", "days"):
            out.append(text)
    return "\n".join(out)


def c_string(text):
    lines = text.replace("\\", "\\\\").replace('"', '\\"').split("\n")
    return "\n".join(f'\t"{line}\\n"' for line in lines)


def embed():
    rows, bodies = [], []
    for number, (kind, version, name, text) in enumerate(parts()):
        # C promises string literals of 4095 characters only; every compiler that builds this takes more.
        bodies.append(f"static const char part_{number}[] =\n{c_string(text)};\n")
        rows.append(f'\t{{.kind = CONTRACT_{kind.upper()}, .version = {version}, .name = "{name}", '
                    f'.checksum = "{checksum(text)}", .sql = part_{number}}},')
    return ("/* Generated by tools/contract.py from contract/. */\n#include \"contract.h\"\n\n"
            "#pragma GCC diagnostic ignored \"-Woverlength-strings\"\n\n" + "\n".join(bodies)
            + "\nconst contract_part contract_parts[] = {\n" + "\n".join(rows)
            + "\n};\nconst int contract_part_count = (int)(sizeof contract_parts / sizeof contract_parts[0]);\n")


def main():
    if sys.argv[1:] == ["install"]:
        print("BEGIN;\n" + script() + "\nCOMMIT;")
    elif len(sys.argv) == 3 and sys.argv[1] == "upgrade" and sys.argv[2].isdigit():
        print("BEGIN;\n" + upgrade(int(sys.argv[2])) + "\nCOMMIT;")
    elif sys.argv[1:] == ["extension"]:
        print('\\echo Use "CREATE EXTENSION pgonce" to load this file. \\quit\n' + script(extension=True))
    elif len(sys.argv) == 3 and sys.argv[1] == "embed":
        out, text = pathlib.Path(sys.argv[2]), embed()
        # The build asks each time: what has not changed keeps its date, and the command is not linked anew under whoever runs it.
        if not out.exists() or out.read_text() != text:
            out.write_text(text)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
