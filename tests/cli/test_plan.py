# SPDX-License-Identifier: PostgreSQL
"""pgonce plan: its model against tables that were really written, and its command line."""
import json
import re

import pytest

from harness.postgres import Postgres

from .command import Command

ROWS = 2_000
ROWS_OF_ONE = 10_000
TOLERANCE = 0.15
TINY = 8  # bytes per row: what a few pages more or less make of a part that is hardly there

# keys (None: UUIDv7), body, leased, events
SHAPES = {
    "dated, bare": ("uuidv7", 0, False, 0),
    "dated, small answers": ("uuidv7", 200, False, 0),
    "dated, answers in the row": ("uuidv7", 1000, False, 0),
    "dated, answers in TOAST": ("uuidv7", 2048, False, 0),
    "dated, with events": ("uuidv7", 200, False, 2),
    "dated, leased": ("uuidv7", 0, True, 0),
    "dated, leased, small answers": ("uuidv7", 600, True, 0),
    "random": ("uuidv4", 200, False, 0),
    "random, leased": ("uuidv4", 200, True, 0),
    "random, long": ("100", 200, False, 0),
}
HEADERS = {"Content-Type": "application/json"}

# Keys as clients make them: a UUIDv7 of now, a random one, or random text of some length.
MAKE_KEY = r"""
CREATE FUNCTION make_key(kind text) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT CASE kind
        WHEN 'uuidv7' THEN regexp_replace(lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0'),
                                          '(.{8})(.{4})', '\1-\2-7') || substr(g, 16, 3) || '-8' || substr(g, 21, 3) || '-' || substr(g, 25)
        WHEN 'uuidv4' THEN g
        ELSE left(md5(g) || g || g || g, kind::integer) END
      FROM (SELECT gen_random_uuid()::text AS g) AS made
$$"""
# Bytes that do not compress, another piece of them for each row.
NOISE = "CREATE TABLE noise AS SELECT string_agg(sha512(n::text::bytea), '' ORDER BY n) AS bytes FROM generate_series(1, 1000) AS n"
WRITE = """
DO $$
DECLARE key text; print bytea; body bytea; fence integer; noise bytea := (SELECT bytes FROM noise);
BEGIN
    FOR n IN 1 .. {rows} LOOP
        key := make_key('{kind}');
        print := sha256(key::bytea);
        body := NULLIF(substr(noise, 1 + (n * 64) % 50000, {body}), '');
        {act}
        COMMIT;
    END LOOP;
END $$"""
FINISHED = "PERFORM once.start('scope-ten-', key, print); {emits} PERFORM once.finish('scope-ten-', key, print, 200, response_body => body, response_headers => {headers});"
LEASED = """fence := (once.claim('scope-ten-', key, print, owner => 'worker-one')).fence;
        COMMIT;
        PERFORM once.complete('scope-ten-', key, fence, 200, response_body => body, response_headers => {headers});"""
EMIT = "PERFORM once.emit('topic-ten-', jsonb_build_object('pad', repeat('x', 80)), event_type => 'event-{n}--', scope => 'scope-ten-', key => key);"

SIZES = """
SELECT sum(pg_relation_size(c.oid)) AS heap, sum(pg_indexes_size(c.oid)) AS index,
       sum(coalesce(pg_total_relation_size(NULLIF(c.reltoastrelid, 0)), 0)) AS toast,
       sum(CASE WHEN c.relname LIKE 'outbox%%' THEN pg_relation_size(c.oid) + pg_indexes_size(c.oid) ELSE 0 END) AS outbox
  FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
 WHERE h.inhparent = 'once.{parent}'::regclass"""


@pytest.fixture(scope="module")
def quiet():
    """Nothing but the intents writes WAL here: no page images, no checkpoint, no vacuum."""
    settings = {"full_page_writes": "off", "checkpoint_timeout": "1d", "max_wal_size": "10GB", "synchronous_commit": "off"}
    with Postgres(settings=settings) as server:
        yield server


@pytest.fixture
def measured(quiet):
    database = quiet.new_database()
    database.execute(MAKE_KEY)
    database.execute(NOISE)
    yield database
    database.drop()


def measure(database, rows, kind, body, leased, events):
    """Bytes per intent, by part."""
    headers = f"""'{json.dumps(HEADERS)}'::jsonb""" if body else "NULL"
    emits = " ".join(EMIT.format(n=n) for n in range(events))
    act = (LEASED if leased else FINISHED).format(headers=headers, emits=emits)
    before = {parent: database.row(SIZES.format(parent=parent)) for parent in ("intent", "outbox")}
    start = database.value("SELECT pg_current_wal_insert_lsn()")
    database.execute(WRITE.format(rows=rows, kind=kind, body=body, act=act))
    wal = database.value("SELECT pg_current_wal_insert_lsn() - %s::pg_lsn", start)
    after = {parent: database.row(SIZES.format(parent=parent)) for parent in ("intent", "outbox")}
    grown = {name: getattr(after["intent"], name) - getattr(before["intent"], name) for name in ("heap", "index", "toast")}
    grown["outbox"] = after["outbox"].outbox - before["outbox"].outbox
    grown["wal"] = wal
    return {name: float(size) / rows for name, size in grown.items()}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_model_is_within_fifteen_percent_of_what_is_written(measured, offline, shape):
    kind, body, leased, events = SHAPES[shape]
    rows = ROWS_OF_ONE if shape == "dated, small answers" else ROWS
    real = measure(measured, rows, kind, body, leased, events)
    payload = measured.value("SELECT coalesce(max(pg_column_size(payload)), 1) FROM once.outbox")
    headers = measured.value("SELECT coalesce(max(pg_column_size(response_headers)), 0) FROM once.intent")
    words = ["plan", "--rate", "100", "--key-form", kind, "--body-bytes", str(body), "--header-bytes", str(headers), "--events-per-intent", str(events),
             "--event-bytes", str(payload), "--scope-bytes", "10", "--json", *(["--leased"] if leased else [])]
    said = json.loads(offline(*words).stdout)["per_intent"]
    for part, bytes_per_row in real.items():
        told = said[f"{part}_bytes"]
        assert abs(told - bytes_per_row) <= TOLERANCE * bytes_per_row + TINY, f"{part}: {told} told, {bytes_per_row:.1f} measured of {real}"


def test_random_keys_need_the_whole_index_in_memory_and_dated_ones_the_last_hour(offline):
    def told(key, retention):
        return json.loads(offline("plan", "--rate", "1000", "--retention", retention, "--key-form", key, "--json").stdout)

    week, month = told("uuidv7", "7d"), told("uuidv7", "28d")
    assert week["held"]["hot_index_bytes"] == month["held"]["hot_index_bytes"] < week["held"]["index_bytes"] / 100
    assert month["held"]["bytes"] > 3 * week["held"]["bytes"] and month["held"]["partitions"] == week["held"]["partitions"] + 21
    random = told("uuidv4", "7d")
    assert random["held"]["hot_index_bytes"] == random["held"]["index_bytes"]
    assert random["per_day"]["full_page_bytes"] > 100 * week["per_day"]["full_page_bytes"]
    assert random["per_day"]["purge_wal_bytes"] > 0 == week["per_day"]["purge_wal_bytes"]
    assert [row["retention_days"] for row in week["longer"]] == [14, 28, 56]
    assert week["longer"][1]["bytes"] == month["held"]["bytes"]


def test_it_is_told_in_words_without_a_database(offline):
    text = offline("plan", "--rate", "10000", "--retention", "7d", "--body-bytes", "2KB", env={"PGHOST": "/nowhere"}).stdout.decode()
    assert "864000000 rows" in text and "in TOAST" in text
    assert len(re.findall(r"^  [0-9.]+ +\S+ .B", text, re.M)) == 4
    assert max(map(len, text.splitlines())) <= 130


@pytest.mark.parametrize("arguments, said", [
    ((), "--rate N is required"),
    (("--rate", "0"), "out of range"),
    (("--rate", "1", "--key-form", "uuid"), "neither uuidv7"),
    (("--rate", "1", "--key-form", "0"), "neither uuidv7"),
    (("--rate", "1", "--key-form", "256"), "neither uuidv7"),
    (("--rate", "1", "--body-bytes", "2XB"), "no size"),
    (("--rate", "1", "--leased", "--same-transaction"), "only one of them"),
])
def test_a_wrong_plan_is_refused(tmp_path, arguments, said):
    done = Command(None, tmp_path)("plan", *arguments)
    assert done.returncode == 2 and said in done.stderr.decode()
