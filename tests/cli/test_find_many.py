# SPDX-License-Identifier: PostgreSQL
"""pgonce find of very many intents: as it comes, in a memory that does not grow with them; and what an end in the middle looks like."""
import json
import os
import re
import subprocess

import pytest

from harness.postgres import PATIENCE_S
from harness.proxy import Proxy

from .command import Command, ends

MANY, FEW = 100_000, 5_000  # the few are more than a pipe holds


@pytest.fixture
def stored(db):
    """Finished intents, the oldest of which is number 1."""

    def store(count, scope):
        db.execute("INSERT INTO once.intent SELECT c, c, c, NULL, NULL, 0, 1, 1, NULL, 'succeeded', 1, '', %s, 'key ' || n::text, '\\x00'"
                   " FROM generate_series(1, %s) AS n, LATERAL (SELECT now() - interval '1 day' + n * interval '1 ms') AS t (c)", scope, count)

    return store


def peak_kb(process):
    status = open(f"/proc/{process.pid}/status", encoding="utf-8").read()
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return int(found[1]) if found else 0


def read_and_watch(pgonce, *words):
    """(what it wrote, its largest memory): looked at while it waits for us to read on, the last time shortly before its end."""
    process = pgonce.start("find", *words)
    out, peak = [], 0
    while True:
        piece = os.read(process.stdout.fileno(), 4096)
        if not piece:
            break
        out.append(piece)
        if len(out) % 16 == 1:
            peak = max(peak, peak_kb(process))
    assert process.wait(PATIENCE_S) == 0, process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    assert peak > 0
    return b"".join(out), peak


@pytest.mark.skipif("PGONCE_SANITIZED" in os.environ, reason="the sanitizers keep what is freed")
@pytest.mark.parametrize("words", [["--json"], []], ids=["json", "text"])
def test_many_take_no_more_memory_than_few(pgonce, stored, words):
    stored(MANY, "many")
    stored(FEW, "few")
    few, few_kb = read_and_watch(pgonce, *words, "--scope", "few", "--limit", str(MANY))
    many, many_kb = read_and_watch(pgonce, *words, "--scope", "many", "--limit", str(MANY))
    if words:
        assert (len(json.loads(few)), len(json.loads(many))) == (FEW, MANY)
        assert [row["key"] for row in json.loads(many)] == [f"key {n}" for n in range(MANY, 0, -1)]
    else:
        assert [line.split()[2] for line in many.decode().splitlines() if line.startswith("many ")] == [str(n) for n in range(MANY, 0, -1)]
    assert many_kb < few_kb + 4096, f"{few_kb} kB for {FEW}, {many_kb} kB for {MANY}"


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_the_document_is_as_it_always_was(pgonce, stored, count):
    stored(count, "s")
    done = pgonce("find", "--json")
    found = json.loads(done.stdout)
    assert done.stdout.decode() == (json.dumps(found, indent=2) + "\n" if found else "[]\n")
    assert (done.returncode, len(found)) == (0 if count else 5, count)


def test_the_list_for_people_has_one_head_and_columns_that_fit(pgonce, stored):
    stored(2500, "s")
    text = pgonce("find", "--limit", "2500").stdout.decode().splitlines()
    assert [number for number, line in enumerate(text) if line.startswith("SCOPE")] == [0]
    assert text[-1] == "the whole story: pgonce show --scope SCOPE --key KEY" and len(text) == 2503
    assert {line.index("succeeded") for line in text[1:2501]} == {text[0].index("STATE")}
    stored(1, "only")
    assert b"pgonce show --scope=only --key='key 1'" in pgonce("find", "--scope", "only").stdout


@pytest.mark.parametrize("words", [["--json"], []], ids=["json", "text"])
def test_a_connection_that_is_lost_in_the_middle_is_told_and_the_document_is_not_whole(server, db, stored, words):
    stored(3000, "s")
    with Proxy(server) as proxy:
        proxy.lose_from_server(b"D", b"key 500")
        done = Command(proxy.dsn(db.name))("find", "--limit", "3000", *words)
    assert done.returncode == 3 and b"server closed the connection" in done.stderr, done.stderr
    assert b"the list is incomplete: 2500 intents" in done.stderr
    assert done.stdout.count(b"key ") == 2500 and b"whole story" not in done.stdout
    if words:
        with pytest.raises(ValueError):
            json.loads(done.stdout)
        assert all("exit" in line["error"] if "error" in line else "note" in line for line in map(json.loads, done.stderr.splitlines()))


def test_a_server_that_ends_the_search_in_the_middle_is_told(pgonce, db, stored):
    stored(MANY, "s")
    process = pgonce.start("find", "--json", "--limit", str(MANY))
    begun = os.read(process.stdout.fileno(), 4096)
    db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgonce' AND datname = current_database()")
    status, out, err = ends(process)
    assert status == 3 and b"the list is incomplete" in err, err
    with pytest.raises(ValueError):
        json.loads(begun + out)


def test_a_full_disk_ends_it_soon(pgonce, db, stored):
    stored(MANY, "s")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(pgonce.words("find", "--json", "--limit", str(MANY)), stdout=full, stderr=subprocess.PIPE, check=False,
                              env=pgonce.environment(None), timeout=PATIENCE_S)
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"cannot write to standard output: No space left" in done.stderr
