# SPDX-License-Identifier: PostgreSQL
"""A guarantee taken out on purpose, by a piece of text that is replaced, and the checks that must notice."""
import re

import psycopg2


def replaced(text, old, new, where):
    """However it is wrapped; fails where the piece is not there, so that no mutation can quietly do nothing."""
    pattern = r"\s+".join(map(re.escape, old.split()))
    if not re.search(pattern, text):  # no AssertionError, which is how a mutation is noticed
        raise LookupError(f"{where} does not contain {old!r}")
    return re.sub(pattern, lambda _: new, text)


def mutate(db, function, old, new):
    """Replaces a piece of a function of the contract in this database."""
    text = db.value(
        "SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace) AND p.proname = %s", function
    )
    db.execute(replaced(text, old, new, f"once.{function}"))


# Mutations are functions of the database.


def replace(function, old, new):
    return lambda db: mutate(db, function, old, new)


def both(*mutations):
    return lambda db: [each(db) for each in mutations]


def run_sql(text):
    return lambda db: db.execute(text)


def assert_noticed(server, mutation, checks, does_its_plain_work, also=()):
    """Each check fails in a database of its own with the mutation, in which the contract still does its plain work: so it fails for the missing
    guarantee, and not for a contract that is broken altogether. also: what else than a failed assertion or an error of the database is a failure."""
    import pytest  # here, since the benchmarks use the rest

    assert checks
    for check in checks:
        db = server.new_database()
        try:
            mutation(db)
            does_its_plain_work(db)
            with pytest.raises((AssertionError, psycopg2.Error, pytest.fail.Exception, *also)):
                check(db)
        finally:
            db.drop()


def including(folder, words):
    """The words that compile a file, so that they look into this folder first. Before the compiler there may be another program, such as ccache."""
    at = next(number for number, word in enumerate(words) if word.startswith("-"))
    return [*words[:at], f"-I{folder}", *words[at:]]
