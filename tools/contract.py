#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Combines the files of contract/. Only this file knows their order.

  contract.py install            the whole contract as one SQL script (what `pgonce init --print` shows)
  contract.py upgrade VERSION    the script from this version of the contract to the current one
  contract.py extension          the script of CREATE EXTENSION pgonce
  contract.py extension RELEASE  the script of ALTER EXTENSION pgonce UPDATE from this earlier release
  contract.py native RELEASE     the same for pgonce_native
  contract.py earlier            the releases from which these two upgrade
  contract.py embed OUT.c        the same files as a C table, for the command
"""
import hashlib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent / "contract"
RELEASE = re.search(r"version: '([^']+)'", (ROOT.parent / "meson.build").read_text()).group(1)


# In the order in which their tables are created.
ROOMS = ("policy", "key", "doubt", "lease", "start", "outbox", "inbox", "parked", "keep", "see", "slot", "access")
NOT_FUNCTIONS = ("tables.sql", "first_days.sql", "drop_views.sql", "grants.sql", "remember.sql", "restore.sql", "citus.sql")


def functions():
    """The files with a function, called functions before their callers; those with a leading underscore are private."""
    paths = [path for room in ROOMS for path in (ROOT / room).glob("*.sql") if path.name not in NOT_FUNCTIONS]
    return sorted(paths, key=lambda path: (ROOMS.index(path.parent.name), path.stem.startswith("_"), path.stem))


def schema_of(text):
    """The schema for a function's file: once for functions that applications and people call and for private ones; once_job for functions that only daemons call."""
    return re.search(r"^CREATE (?:FUNCTION|PROCEDURE) (once|once_job)\.", text, re.M)[1]


EXPANDED = re.compile(r"^([ \t]*)-- expand: (\w+)\((.*(?:\n[ \t]*--   .*)*)\)\n", re.M)


def text_of(path):
    """A file of contract/, with each line "-- expand: NAME(parameter => value, ...)" replaced by templates/NAME.sql without its head: code that several
    functions share and that would be slower as a function. The parameters may continue on lines that begin with "--   "."""
    def expand(match):
        indent, name, given = match.groups()
        given = re.sub(r"\n[ \t]*-- +", " ", given)
        values = dict(re.findall(r"(\w+) => (.*?)(?:, (?=\w+ => )|$)", given))
        template = re.sub(r"\A(?:--.*\n)*", "", text_of(ROOT / "templates" / f"{name}.sql"))
        filled = re.sub(r"\{(\w+)\}", lambda parameter: values[parameter[1]], template)
        return re.sub(r"^(?=.)", indent, filled, flags=re.M)

    return EXPANDED.sub(expand, path.read_text())


def parts():
    """(kind, version, name, text) in the order of installation. Version 1 consists of the folders' tables; each later version is a script
    in migrations/, from 0002 on, which upgrades the version before it."""
    yield "preparation", 0, "preparation", (ROOT / "preparation.sql").read_text()
    yield "schema", 0, "schema", (ROOT / "schema.sql").read_text()
    yield "record", 0, "migration_table", (ROOT / "migration_table.sql").read_text()
    yield "upgrade", 0, "upgrade", (ROOT / "upgrade.sql").read_text()
    yield "migration", 1, "tables", "\n".join(path.read_text() for path in (ROOT / room / "tables.sql" for room in ROOMS) if path.exists())
    for path in sorted((ROOT / "migrations").glob("[0-9]*.sql")):
        yield "migration", int(path.name[:4]), path.stem, path.read_text()
    code = [(ROOT / "job_schema.sql").read_text(), (ROOT / "slot/remember.sql").read_text(), *(text_of(path) for path in functions())]
    code.append((ROOT / "slot/restore.sql").read_text())
    code.append((ROOT / "see/drop_views.sql").read_text())
    code += [path.read_text() for path in sorted((ROOT / "see/views").glob("*.sql"))]
    code.append((ROOT / "access/grants.sql").read_text())
    code.append((ROOT / "slot/citus.sql").read_text())
    # Functions and views are replaced as a whole at each upgrade, so they carry no state and have one checksum.
    yield "code", 0, "functions and grants", re.sub(r"^CREATE (FUNCTION|PROCEDURE)", r"CREATE OR REPLACE \1", "\n".join(code), flags=re.M)
    yield "days", 0, "first_days", (ROOT / "keep/first_days.sql").read_text()


def newest():
    return max(version for _, version, _, _ in parts())


def checksum(text):
    return hashlib.sha256(text.encode()).hexdigest()


def record(version, name, text):
    return (f"INSERT INTO once.migration (version, name, checksum, pgonce) VALUES ({version}, '{name}', "
            f"'{checksum(text)}', '{RELEASE}');\n")


def released():
    """{release: its version of the contract}, as contract/releases.txt lists them."""
    lines = (ROOT / "releases.txt").read_text().splitlines()
    return {release: int(version) for release, version in (line.split() for line in lines if line and not line.startswith("#"))}


def dumped():
    """Without this pg_dump would not dump the rows of an extension's tables. Rows that CREATE EXTENSION writes itself (once.migration,
    once.transition) are written again by it."""
    for table in ("setting", "scope", "binding", "intent", "intent_d0", "fence_floor_seq", "archive", "decision", "outbox", "outbox_id_seq",
                  "outbox_day_seq", "delayed_event", "relay", "capture", "parked_event", "parked_message", "parked_message_position_seq", "parked_decision", "closing", "consumer_position", "slot_move"):
        yield f"SELECT pg_catalog.pg_extension_config_dump('once.{table}', '');\n"


def script(extension=False):
    out = []
    for kind, version, name, text in parts():
        if kind == "upgrade" or extension and kind in ("schema", "days"):
            continue
        out.append(text)
        if kind in ("migration", "code"):
            out.append(record(version, name, text))
    if extension:
        out += dumped()
    return "\n".join(out)


def upgrade(version, extension=False):
    """The script that `pgonce init` runs in a database whose last migration is this one. extension: ALTER EXTENSION runs it, and days are not
    the extension's."""
    out = []
    for kind, number, name, text in parts():
        if kind == "migration" and number > version:
            out += [text, record(number, name, text)]
        elif kind == "code":
            out += [text, "DELETE FROM once.migration WHERE version = 0;", record(number, name, text)]
        elif kind == "preparation" or kind == "days" and not extension or kind == "upgrade" and version < newest():
            out.append(text)
    if extension:
        out += dumped()
    return "\n".join(out)


def native():
    """All of its functions anew: it stores nothing."""
    text = next((ROOT.parent / "native").glob("pgonce_native--*.sql")).read_text()
    return """DO $$
DECLARE
    one regprocedure;
BEGIN
    FOR one IN SELECT p.oid FROM pg_catalog.pg_proc AS p WHERE p.pronamespace = 'once_native'::regnamespace LOOP
        EXECUTE 'DROP FUNCTION ' || one;
    END LOOP;
END $$;
""" + text[text.index("CREATE FUNCTION"):]


def c_string(text):
    lines = text.replace("\\", "\\\\").replace('"', '\\"').split("\n")
    return "\n".join(f'\t"{line}\\n"' for line in lines)


def embed():
    rows, bodies = [], []
    for number, (kind, version, name, text) in enumerate(parts()):
        # C guarantees string literals of only 4095 characters; every compiler that builds this accepts more.
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
    elif sys.argv[1:] == ["earlier"]:
        print("\n".join(release for release in released() if release != RELEASE))
    elif len(sys.argv) == 3 and sys.argv[1] == "extension" and sys.argv[2] in released():
        print('\\echo Use "ALTER EXTENSION pgonce UPDATE" to load this file. \\quit\n' + upgrade(released()[sys.argv[2]], extension=True))
    elif len(sys.argv) == 3 and sys.argv[1] == "native" and sys.argv[2] in released():
        print('\\echo Use "ALTER EXTENSION pgonce_native UPDATE" to load this file. \\quit\n' + native())
    elif sys.argv[1:] == ["extension"]:
        print('\\echo Use "CREATE EXTENSION pgonce" to load this file. \\quit\n' + script(extension=True))
    elif len(sys.argv) == 3 and sys.argv[1] == "embed":
        out, text = pathlib.Path(sys.argv[2]), embed()
        # Each build calls this: an unchanged file keeps its date, so the command is not linked again while it may be running.
        if not out.exists() or out.read_text() != text:
            out.write_text(text)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
