# SPDX-License-Identifier: PostgreSQL
"""Calling the contract from the tests: Once(connection).claim(key='k'), refused('P4010'), keys, and a way to let a
lease pass."""

import concurrent.futures
import contextlib
import subprocess

import psycopg2
import pytest

from harness.postgres import ROOT

PRINT = bytes(range(32))  # a fingerprint: any 16 to 64 bytes
OTHER_PRINT = bytes(range(1, 33))
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
DAY_MS = 86_400_000

NAMED = {"scope": "orders"}
DEFAULTS = {
    **{name: {**NAMED, "fingerprint": PRINT} for name in ("start", "try_start", "finish", "finish_new", "claim")},
    **{name: NAMED for name in ("complete", "fail", "renew", "release", "peek", "resolve", "story")},
    "resolve": {**NAMED, "reason": "the test says so"},
    "receive": {"consumer": "mailer", "fingerprint": PRINT},
}
ARRAYS = {
    "scope": "text[]",
    "key": "text[]",
    "fingerprint": "bytea[]",
    "fence": "integer[]",
    "response_status": "integer[]",
    "response_text": "text[]",
    "response_json": "jsonb[]",
    "response_body": "bytea[]",
    "response_headers": "jsonb[]",
    "result_type": "text[]",
    "result_id": "text[]",
    "retryable": "boolean[]",
    "error_code": "text[]",
    "error_message": "text[]",
    "redirect": "bytea[]",
}
PADDED = ("claim_many", "complete_many", "fail_many")


class Once:
    """Each attribute is a function of the contract, called with named arguments. A batch gives its rows, another
    function its row, or its value where there is but one. A batch of one has a way of its own in the contract: it gets a
    second element, which cannot be an intent, unless the call says alone=True."""

    def __init__(self, connection, **defaults):
        self.connection = connection
        self.defaults = defaults

    def __getattr__(self, function):
        def call(**arguments):
            many = function.endswith("_many")
            alone = arguments.pop("alone", False)
            arguments = {**DEFAULTS.get(function, {}), **self.defaults, **arguments}
            if many and "scope" not in arguments:
                arguments["scope"] = ["orders"] * len(arguments["key"])
            if function == "claim_many" and "fingerprint" not in arguments:
                arguments["fingerprint"] = [PRINT] * len(arguments["key"])
            lists = [name for name, value in arguments.items() if isinstance(value, list)]
            padded = function in PADDED and not alone and {len(arguments[name]) for name in lists} == {1}
            if padded:
                arguments = {**arguments, **{name: arguments[name] * 2 for name in lists}, "scope": [*arguments["scope"], ""]}
            listed = ", ".join(
                f"{name} => %s" + (f"::{ARRAYS[name]}" if many and name in ARRAYS else "::bytea" if name == "response_body" else "")
                for name in arguments
            )
            with self.connection.cursor() as cursor:
                cursor.execute(f"SELECT * FROM once.{function}({listed})", list(arguments.values()))
                rows = cursor.fetchall()
            if many:
                return rows[:1] if padded else rows
            assert len(rows) == 1
            return rows[0] if len(rows[0]) > 1 else rows[0][0]

        return call


@contextlib.contextmanager
def refused(*codes):
    """The block must raise one of these SQLSTATEs."""
    with pytest.raises(psycopg2.Error) as caught:
        yield caught
    assert caught.value.pgcode in codes, f"{caught.value.pgcode}: {caught.value}"


def code_of(call):
    """The SQLSTATE that call raises; None where it raises nothing."""
    try:
        call()
    except psycopg2.Error as error:
        assert error.pgcode, error
        return error.pgcode
    return None


def run(connection, query, *values):
    with connection.cursor() as cursor:
        cursor.execute(query, values or None)
        return cursor.fetchall() if cursor.description is not None else []


def upgrade_script(version):
    return subprocess.run(
        ["/usr/bin/python3", ROOT / "tools/contract.py", "upgrade", str(version)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def make_effect(connection, key, attempt=None):
    run(connection, "INSERT INTO effect VALUES (%s, %s)", key, attempt)


def effects(db, key):
    return db.value("SELECT count(*) FROM effect WHERE key = %s", key)


def allow_takeover(db, scope="orders"):
    """What this scope's attempts do is safe to repeat."""
    db.execute("SELECT once.set_scope(%s, on_stale => 'takeover')", scope)


def let_lease_pass(db, key):
    """What time would do, without waiting for it."""
    db.execute(
        "UPDATE once.intent SET lease_until = clock_timestamp() - interval '1 second' WHERE key = %s AND state IN"
        " ('processing', 'in_doubt')",
        key,
    )


def now_ms(db):
    """The database's clock, which is the only one that counts."""
    return db.value("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")


def today(db):
    return now_ms(db) // DAY_MS


def uuid7(ms, number=0):
    """A UUIDv7 (RFC 9562) of this time."""
    return f"{ms >> 16:08x}-{ms & 0xffff:04x}-7{number >> 12 & 0xfff:03x}-8{number & 0xfff:03x}-{number:012x}"


def uuid7_days_ago(db, days, number=0):
    return uuid7(now_ms(db) - days * DAY_MS, number)


def shorten_horizon(db, days=1):
    """Lets a day be retired that still has a partition."""
    db.execute("UPDATE once.setting SET horizon_days = %s", days)


def retire(db, days_ago):
    return db.value("SELECT once.retire_day(%s)", today(db) - days_ago)


def hold_days(db):
    """As while another transaction makes days: until this connection's ends, no call can make one."""
    holder = db.connect(isolation="READ COMMITTED")
    run(holder, "SELECT pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778))")
    return holder


def in_threads(functions, patience_s=60):
    """Runs all at once and returns their results in order; the first exception of one is raised here, even if another then waits in vain."""
    with concurrent.futures.ThreadPoolExecutor(len(functions)) as pool:
        futures = [pool.submit(function) for function in functions]
        ended, running = concurrent.futures.wait(futures, patience_s, concurrent.futures.FIRST_EXCEPTION)
        for future in ended:
            future.result()
        if running:
            raise TimeoutError(f"{len(running)} of {len(functions)} still run after {patience_s} s")
        return [future.result() for future in futures]
