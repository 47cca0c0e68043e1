# SPDX-License-Identifier: PostgreSQL
"""Fingerprints: the same request has the same one, however serialised, and whatever a driver says of a parameter's type; another request,
kind or tenant has another."""

import ctypes
import ctypes.util
import hashlib

import psycopg2
import pytest

from .calls import refused


def fingerprint(db, expression, tenant=""):
    return db.value(f"SELECT once.fingerprint({expression}, %s)", tenant)


def test_a_fingerprint_of_json_is_of_its_canonical_form(db):
    same = (
        """'{"a": 1, "b": [1, 2]}'::jsonb""",
        """'{"b":[1,2],"a":1}'::jsonb""",
        """E'{\\n"a" : 1, "b":[ 1,2 ]}'::jsonb""",
        """'{"a": 1.0, "b": [10e-1, 2.00]}'::jsonb""",
        # jsonb itself keeps the last of two members with one name.
        """'{"a": 0, "b": [1, 2], "a": 1}'::jsonb""",
    )
    assert len({fingerprint(db, each) for each in same}) == 1
    others = (
        """'{"a": 2, "b": [1, 2]}'::jsonb""",
        """'{"a": 1, "b": [2, 1]}'::jsonb""",
        """'{"a": "1", "b": [1, 2]}'::jsonb""",
        """'{"a": 1.01, "b": [1, 2]}'::jsonb""",
        """'{"a": 1}'::jsonb""",
        "'null'::jsonb",
    )
    assert len({fingerprint(db, each) for each in (same[0], *others)}) == 1 + len(others)


def test_json_and_bytes_of_the_same_characters_never_coincide(db):
    assert len({fingerprint(db, f"'1'::{kind}") for kind in ("jsonb", "bytea")}) == 2


def test_zeros_in_a_string_of_json_are_no_number(db):
    texts = ('["1.50"]', '["1.5"]', '["1.50, ", 1]', '["1.5, ", 1]', '["\\"1.50, ", 1.0]', '["\\"1.5, ", 1.0]')
    assert len({fingerprint(db, f"'{text}'::jsonb") for text in texts}) == len(texts)


def test_a_fingerprint_of_bytes_and_text_is_of_exactly_these_bytes(db):
    assert (
        len(
            {
                fingerprint(db, each)
                for each in (
                    "'a'::text",
                    "'a '::text",
                    "'A'::text",
                    "''::text",
                    "'\\x6100'::bytea",
                )
            }
        )
        == 5
    )


@pytest.mark.parametrize("text", ["", "a", "ü €", "\\x61", "C:\\dir", '{"a": "\\n"}'])
def test_a_text_and_its_bytes_have_one_fingerprint(db, text):
    same = "SELECT once.fingerprint(%s::text, 't') AS a, once.fingerprint(%s::bytea, 't') AS b"
    assert len(set(db.rows(same, text, psycopg2.Binary(text.encode()))[0])) == 1
    request = "once.request_fingerprint('POST', '/', ''"
    same = f"SELECT {request}, %s::text) AS a, {request}, %s::bytea) AS b"
    assert len(set(db.rows(same, text, psycopg2.Binary(text.encode()))[0])) == 1


def test_a_fingerprint_is_the_salted_sha256_that_a_client_can_compute_itself(db):
    salt = db.value("SELECT once.salt('t')")
    assert fingerprint(db, "'body'::text", "t") == hashlib.sha256(salt + b"b" + b"body").digest()
    assert fingerprint(db, "'body'::bytea", "t") == hashlib.sha256(salt + b"b" + b"body").digest()
    assert (
        fingerprint(db, """'{"b":1,"a":2}'::jsonb""", "t") == hashlib.sha256(salt + b"j" + b'{"a": 2, "b": 1}').digest()
    )


def test_a_tenant_and_an_installation_have_their_own_salt(db, server):
    assert fingerprint(db, "'a'::text", "t") != fingerprint(db, "'a'::text", "u") != fingerprint(db, "'a'::text")
    other = server.empty_database()
    other.install()
    assert other.value("SELECT once.salt()") != db.value("SELECT once.salt()")
    other.drop()


@pytest.mark.parametrize("kind", ["jsonb", "bytea", "text"])
def test_a_fingerprint_of_null_is_null_which_start_refuses(db, kind):
    assert fingerprint(db, f"NULL::{kind}") is None
    with refused("P4003"):
        db.execute(f"SELECT once.start('orders', 'k', once.fingerprint(NULL::{kind}))")


@pytest.mark.parametrize("missing", ["method", "target"])
def test_a_request_without_method_or_target_has_no_fingerprint(db, missing):
    said = {"method": "'POST'", "target": "'/'"} | {missing: "NULL"}
    assert db.value(f"SELECT once.request_fingerprint({said['method']}, {said['target']}, '', ''::bytea)") is None


def test_no_content_type_is_an_empty_one_and_no_body_too(db):
    empty = db.value("SELECT once.request_fingerprint('DELETE', '/7', '', ''::bytea)")
    assert db.value("SELECT once.request_fingerprint('DELETE', '/7', NULL, NULL)") == empty
    assert db.value("SELECT once.request_fingerprint('DELETE', '/7', NULL, NULL::bytea, canonical_json => true)") == empty


# ---- Drivers. What each says in the extended protocol of a parameter: its type (0: none, the server chooses) and its format.

TEXT, BINARY = 0, 1
OIDS = {"none": 0, "bytea": 17, "text": 25, "varchar": 1043}
DRIVERS = {
    "node-pg, a string; psycopg 3, a str; pgx, a string": (OIDS["none"], TEXT, bytes),
    "node-pg, a Buffer; pgx, a []byte": (OIDS["none"], BINARY, bytes),
    "psycopg 3, bytes; JDBC, setBytes": (OIDS["bytea"], BINARY, bytes),
    "bytes as hexadecimal digits": (OIDS["bytea"], TEXT, lambda value: b"\\x" + value.hex().encode()),
    "a str with its type": (OIDS["text"], BINARY, bytes),
    "JDBC, setString": (OIDS["varchar"], TEXT, bytes),
}
CALLS = ("once.fingerprint($1, 't')", "once.request_fingerprint('POST', '/orders', 'application/json', $1, 't')")


class Wire:
    """libpq's PQexecParams: Parse, Bind and Execute, with the types and formats that are given and no others."""

    def __init__(self, dsn):
        self.pq = ctypes.CDLL(ctypes.util.find_library("pq"))
        for function in ("PQconnectdb", "PQexecParams"):
            getattr(self.pq, function).restype = ctypes.c_void_p
        for function in ("PQgetvalue", "PQresultErrorField"):
            getattr(self.pq, function).restype = ctypes.c_char_p
        self.connection = ctypes.c_void_p(self.pq.PQconnectdb(dsn.encode()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.pq.PQfinish(self.connection)

    def ask(self, query, oid, form, value):
        """The one value of the one row as text, or the SQLSTATE."""
        given = [(ctypes.c_uint * 1)(oid), (ctypes.c_char_p * 1)(value), (ctypes.c_int * 1)(len(value)), (ctypes.c_int * 1)(form)]
        result = ctypes.c_void_p(self.pq.PQexecParams(self.connection, query.encode(), 1, *given, 0))
        failed = self.pq.PQresultErrorField(result, ord("C"))
        said = (failed or self.pq.PQgetvalue(result, 0, 0)).decode()
        self.pq.PQclear(result)
        return said


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("value", ["body", '{"path": "C:\\\\dir", "quote": "\\"", "x": "\\\\x41"}', "\\x626f6479", "ü €", ""])
def test_every_driver_gives_a_value_the_same_fingerprint(db, call, value):
    value = value.encode()
    with Wire(db.dsn()) as wire:
        made = {driver: wire.ask(f"SELECT encode({call}, 'hex')", oid, form, made_of(value)) for driver, (oid, form, made_of) in DRIVERS.items()}
    assert len(set(made.values())) == 1 and len(made.popitem()[1]) == 64, made


@pytest.mark.parametrize("call", CALLS)
def test_bytes_that_are_no_text_are_refused_where_their_type_is_not_said_and_never_changed(db, call):
    value = b"\xff\x01"
    with Wire(db.dsn()) as wire:
        assert wire.ask(f"SELECT encode({call}, 'hex')", OIDS["none"], BINARY, value) == "22021"
        assert len(wire.ask(f"SELECT encode({call}, 'hex')", OIDS["bytea"], BINARY, value)) == 64
