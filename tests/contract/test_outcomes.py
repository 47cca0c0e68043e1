# SPDX-License-Identifier: PostgreSQL
"""The body of an answer is text, JSON or bytes, and comes back byte for byte, whatever a driver makes of a string. An outcome
that is none is refused where it is given."""

import json

import psycopg2
import pytest

from .calls import PRINT, Once, code_of, refused, run

TEXTS = ['{"path":"C:\\dir"}', "\\x41", '\\"', "\\\\", "\\000", "\\n", "Gr\u00fc\u00dfe \U0001f389", "", "'; DROP TABLE x; --"]
DOORS = ("finish_new", "finish", "complete", "complete_many", "fail", "fail_many", "resolve")


def give(once, door, key, **outcome):
    """Stores this outcome by this door."""
    if door == "finish_new":
        once.finish_new(key=key, **outcome)
    elif door == "finish":
        run(once.connection, "BEGIN")
        try:
            once.start(key=key)
            once.finish(key=key, **outcome)
        except psycopg2.Error:
            run(once.connection, "ROLLBACK")
            raise
        run(once.connection, "COMMIT")
    else:
        fence = once.claim(key=key).fence
        many = {name: [value] for name, value in outcome.items()}
        if door == "complete":
            once.complete(key=key, fence=fence, **outcome)
        elif door == "complete_many":
            return once.complete_many(key=[key], fence=[fence], **many)[0]
        elif door == "fail":
            once.fail(key=key, fence=fence, retryable=False, **outcome)
        elif door == "fail_many":
            return once.fail_many(key=[key], fence=[fence], retryable=[False], **many)[0]
        else:
            once.fail(key=key, fence=fence, retryable=None)
            once.resolve(key=key, as_state="succeeded", **outcome)
    return None


def stored(db, key):
    return db.value("SELECT response_body FROM once.intent WHERE key = %s", key)


@pytest.mark.parametrize("door", DOORS)
def test_text_is_stored_as_it_is(db, door):
    once = Once(db.connect())
    for number, text in enumerate(TEXTS):
        give(once, door, f"k{number}", response_text=text)
        assert stored(db, f"k{number}") == text.encode()


@pytest.mark.parametrize("door", DOORS)
def test_json_is_stored_as_postgresql_writes_it(db, door):
    once = Once(db.connect())
    value = {"path": "C:\\dir", "n": 1.50, "list": [None, True, "\u20ac"]}
    give(once, door, "k", response_json=json.dumps(value))
    assert stored(db, "k").decode() == db.value("SELECT %s::jsonb::text", json.dumps(value))


@pytest.mark.parametrize("door", DOORS)
def test_bytes_are_stored_as_they_are(db, door):
    once = Once(db.connect())
    give(once, door, "k", response_body=bytes(range(256)))
    assert stored(db, "k") == bytes(range(256))


@pytest.mark.parametrize(
    "call",
    [
        "once.finish_new('orders', 'k', %(print)s, response_body => '{\"path\":\"C:\\\\dir\"}')",
        "once.complete('orders', 'k', 1, response_body => '\\x41')",
        "once.fail('orders', 'k', 1, false, response_body => 'text')",
        "once.resolve('orders', 'k', 'succeeded', 'why', response_body => 'text')",
        "once.complete_many(ARRAY['orders'], ARRAY['k'], ARRAY[1], response_body => '{text}')",
        "once.finish_new('orders', 'k', %(print)s, response_body => 'text'::text)",
        "once.complete('orders', 'k', 1, response_body => '{}'::jsonb)",
    ],
)
def test_a_string_is_never_read_as_bytes(db, call):
    once = Once(db.connect())
    if "finish_new" not in call:
        once.claim(key="k")
    with refused("42804", "22023"):
        once.connection.cursor().execute(f"SELECT {call}", {"print": PRINT})
    assert db.value("SELECT count(*) FROM once.intent WHERE response_body IS NOT NULL") == 0


def test_a_string_in_the_fifth_place_is_text(db):
    """Where the bytes once stood: what people write."""
    db.execute("SELECT once.finish_new('orders', 'k', %s, 201, %s)", PRINT, '{"path":"C:\\dir"}')
    assert stored(db, "k") == b'{"path":"C:\\dir"}'


def test_where_strings_have_escapes_text_is_the_string(db):
    connection = db.connect(isolation="READ COMMITTED")
    run(connection, "SET standard_conforming_strings = off")
    with connection.cursor() as cursor:
        cursor.execute("SELECT once.finish_new('orders', 'k', '0123456789abcdef', response_text => E'C:\\\\dir')")
    connection.commit()
    assert stored(db, "k") == b"C:\\dir"


WRONG = [
    {"response_text": "a", "response_json": "1"},
    {"response_text": "a", "response_body": b"b"},
    {"response_json": "1", "response_body": b""},
    {"response_status": 99999},
    {"response_status": -1},
    {"response_status": 1000},
    {"response_headers": "[]"},
    {"response_headers": '"Content-Type"'},
    {"response_headers": "null"},
]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_an_outcome_that_is_none_is_refused_at_every_door_and_stores_nothing(db, wrong, door):
    once = Once(db.connect())
    told = None
    try:
        told = give(once, door, "k", **wrong)
    except psycopg2.Error as error:
        assert error.pgcode == "22023"
        assert len(wrong) == 1 or "more than one way" in str(error)
    else:
        assert (told.verdict, told[2]) == ("invalid", "22023") and told[3]
    assert db.value("SELECT count(*) FROM once.intent WHERE completed_at IS NOT NULL AND state <> 'in_doubt'") == 0


def test_a_wrong_outcome_within_a_batch_stops_none_of_the_others(db):
    once = Once(db.connect())
    once.claim_many(key=["a", "b", "c"])
    rows = once.complete_many(key=["a", "b", "c"], fence=[1, 1, 1], response_status=[200, 99999, 201], response_text=["a", "b", None])
    assert [(row.verdict, row.error_code) for row in rows] == [("stored", None), ("invalid", "22023"), ("stored", None)]
    assert db.value("SELECT state::text FROM once.intent WHERE key = 'b'") == "processing"


@pytest.mark.parametrize("status", [0, 3, 200, 204, 404, 599, 999, None])
def test_a_status_of_http_or_of_a_command_or_none_is_taken(db, status):
    once = Once(db.connect())
    once.finish_new(key="k", response_status=status)
    assert once.start(key="k").response_status == status


def test_text_counts_as_its_bytes(db):
    db.execute("SELECT once.set_scope('orders', response_bytes_max => 10000)")
    once = Once(db.connect())
    once.finish_new(key="fits", response_text="\u20ac" * 3333)
    assert code_of(lambda: once.finish_new(key="k", response_text="\u20ac" * 3334)) == "P4060"


POLYMORPHIC = {
    "finish": "once.start('s', 'new', %(print)s, 't') AS started, LATERAL once.finish('s', 'new', %(print)s, started.fence, {body}, tenant => 't')",
    "finish_new": "once.finish_new('s', 'new', %(print)s, {body}, tenant => 't')",
    "complete": "once.complete('s', 'k', 1, {body}, tenant => 't')",
    "complete_many": "once.complete_many(ARRAY['s'], ARRAY['k'], ARRAY[1], {body}, tenant => 't')",
    "fail": "once.fail('s', 'k', 1, false, {body}, tenant => 't')",
    "fail_many": "once.fail_many(ARRAY['s'], ARRAY['k'], ARRAY[1], ARRAY[false], {body}, tenant => 't')",
    "resolve": "once.resolve('s', 'k', 'succeeded', 'why', {body}, tenant => 't')",
    "resolve_many": "once.resolve_many('s', 'succeeded', 'why', {body}, tenant => 't')",
}


def test_every_function_that_takes_a_value_of_any_type_is_attacked_here(db):
    found = db.rows("""SELECT p.proname FROM pg_proc AS p WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace) AND p.prosecdef
                        AND p.proargtypes::oid[] && ARRAY['anyelement', 'anyarray', 'anynonarray', 'anyenum', 'anyrange', '"any"']::regtype[]::oid[]""")
    assert {row.proname for row in found} == set(POLYMORPHIC)


@pytest.mark.parametrize("body", ["response_body => {evil}", "response_text => {text}, response_body => {none}"])
@pytest.mark.parametrize("function", POLYMORPHIC)
def test_a_type_of_the_callers_runs_nothing_with_the_owners_rights(db, function, body):
    """A cast to bytea, and the check of a domain, are the caller's own functions."""
    db.execute("CREATE ROLE caster LOGIN; GRANT once_admin TO caster; GRANT TEMPORARY ON DATABASE %s TO caster" % db.name)
    connection = None
    try:
        Once(db.connect()).claim(scope="s", key="k", tenant="t")
        connection = db.connect("caster")
        run(
            connection,
            """CREATE TYPE pg_temp.evil AS ENUM ('x');
               CREATE FUNCTION pg_temp.seize(pg_temp.evil) RETURNS bytea LANGUAGE plpgsql AS
                   'BEGIN RAISE EXCEPTION USING ERRCODE = ''0Z999'', MESSAGE = current_user; END';
               CREATE FUNCTION pg_temp.seize(pg_temp.evil[]) RETURNS bytea[] LANGUAGE plpgsql AS
                   'BEGIN RAISE EXCEPTION USING ERRCODE = ''0Z999'', MESSAGE = current_user; END';
               CREATE CAST (pg_temp.evil AS bytea) WITH FUNCTION pg_temp.seize(pg_temp.evil) AS IMPLICIT;
               CREATE FUNCTION pg_temp.judge(bytea) RETURNS boolean LANGUAGE plpgsql AS
                   'BEGIN IF $1 IS NOT NULL THEN RAISE EXCEPTION USING ERRCODE = ''0Z999'', MESSAGE = current_user; END IF; RETURN true; END';
               CREATE DOMAIN pg_temp.judged AS bytea CHECK (pg_temp.judge(VALUE))""",
        )
        many = function in ("complete_many", "fail_many")
        values = (
            {"evil": "ARRAY['x'::pg_temp.evil]", "text": "ARRAY['a']", "none": "NULL::pg_temp.judged[]"}
            if many
            else {"evil": "'x'::pg_temp.evil", "text": "'a'", "none": "NULL::pg_temp.judged"}
        )
        with connection.cursor() as cursor, refused("22023") as told:
            cursor.execute(f"SELECT * FROM {POLYMORPHIC[function].format(body=body.format(**values))}", {"print": PRINT})
        assert "of type bytea" in str(told.value)
    finally:
        if connection:
            connection.close()
        db.execute("DROP OWNED BY caster CASCADE; DROP ROLE caster")
