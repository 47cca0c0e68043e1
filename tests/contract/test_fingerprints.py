# SPDX-License-Identifier: PostgreSQL
"""Fingerprints: the same request has the same one, however serialised; another request, kind or tenant has another."""

import hashlib

import pytest

from .calls import refused


def fingerprint(db, expression, tenant=""):
    return db.value(f"SELECT once.fingerprint({expression}, %s)", tenant)


def test_a_fingerprint_of_json_is_of_its_canonical_form(db):
    same = (
        """'{"a": 1, "b": [1, 2]}'::jsonb""",
        """'{"b":[1,2],"a":1}'::jsonb""",
        """E'{\\n"a" : 1, "b":[ 1,2 ]}'::jsonb""",
        """'{"a": 0, "b": [1, 2], "a": 1}'::jsonb""",
    )
    assert len({fingerprint(db, each) for each in same}) == 1
    others = (
        """'{"a": 2, "b": [1, 2]}'::jsonb""",
        """'{"a": 1, "b": [2, 1]}'::jsonb""",
        """'{"a": "1", "b": [1, 2]}'::jsonb""",
        """'{"a": 1}'::jsonb""",
        "'null'::jsonb",
    )
    assert len({fingerprint(db, each) for each in (same[0], *others)}) == 1 + len(others)


def test_text_bytes_and_json_of_the_same_characters_never_coincide(db):
    assert len({fingerprint(db, f"'1'::{kind}") for kind in ("jsonb", "bytea", "text")}) == 3


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
                    "'a'::bytea",
                    "'\\x6100'::bytea",
                    "''::bytea",
                )
            }
        )
        == 7
    )


def test_a_fingerprint_is_the_salted_sha256_that_a_client_can_compute_itself(db):
    salt = db.value("SELECT once.salt('t')")
    assert fingerprint(db, "'body'::text", "t") == hashlib.sha256(salt + b"t" + b"body").digest()
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
def test_a_fingerprint_of_null_is_null_which_begin_refuses(db, kind):
    assert fingerprint(db, f"NULL::{kind}") is None
    with refused("P4003"):
        db.execute(f"SELECT once.begin('orders', 'k', once.fingerprint(NULL::{kind}))")
