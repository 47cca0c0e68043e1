# SPDX-License-Identifier: PostgreSQL
"""What pgonce_native answers is what SQL answers: random histories (histories.py) in a database with the library and in one without it. PGONCE_DIFFERENTIAL_SEED
repeats what a failure names, PGONCE_DIFFERENTIAL_SECONDS says for how long new ones are made (without it 20)."""

import os
import random
import time

import pytest

from harness import native
from harness.mutation import mutate

from . import differ, histories

SECONDS = int(os.environ.get("PGONCE_DIFFERENTIAL_SECONDS", "20"))
SEED = os.environ.get("PGONCE_DIFFERENTIAL_SEED")
STEPS = 250
SMALLER_S = 60


def played(server, seed, change=lambda database: None, shrink=False):
    """One history; the difference, and how many calls C has answered."""
    users, steps = histories.make(seed, STEPS)

    def once_more(some):
        databases = server.new_database(), server.new_database()
        try:
            for database in databases:
                differ.setup(database)
            change(databases[1])
            # COMMIT asks for outcomes in a quarter of them: much of these is rolled back.
            return differ.play(*databases, users, some, strict="on" if seed % 4 == 0 else "off")
        finally:
            for database in databases:
                database.drop()

    difference, answered = once_more(steps)
    if difference and shrink:
        cut = steps[: difference.step + 1] if difference.step >= 0 else steps
        fewest = differ.smaller(cut, lambda some: once_more(some)[0], time.monotonic() + SMALLER_S)
        least = once_more(fewest)[0] or difference
        told = "\n".join(map(repr, fewest))
        return f"seed {seed}, users {users}: {difference}\nthe least that shows it:\n{told}\n{least}", answered
    return difference, answered


@pytest.mark.skipif(not native.library().exists(), reason="pgonce_native is not built: the server's headers are missing")
def test_c_answers_as_sql_does(server, capfd):
    # The same histories each time, unless it is to search for longer.
    seeds = iter([int(SEED)] if SEED else random.SystemRandom().sample(range(1 << 32), 1000) if "PGONCE_DIFFERENTIAL_SECONDS" in os.environ else range(1000))
    deadline, count, answered = time.monotonic() + SECONDS, 0, 0
    for seed in seeds:
        difference, more = played(server, seed, native.install_native, shrink=True)
        assert difference is None, difference
        count, answered = count + 1, answered + more
        if time.monotonic() > deadline:
            break
    with capfd.disabled():
        print(f"\n{count} histories of {STEPS} steps, the last of seed {seed}; C answered {answered} calls itself")
    assert answered > 2 * count, "C has answered next to nothing"


def test_sql_answers_as_sql_does(server):
    for seed in range(4):
        difference, _ = played(server, seed)
        assert difference is None, difference


MUTATIONS = {
    "no lock": ("start", "pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key))", "true"),
    "another message": ("errors", "another attempt of this intent is running", "somebody is at it"),
    "a fence too high": ("_first_fence", "+ 1", "+ 2"),
    "finish without a start": ("finish", "once._has_started(tenant, scope, key, fingerprint)", "true"),
    "a body is lost": ("_body_of", "convert_to(coalesce(response_text, response_json::text), 'UTF8')", "NULL::bytea"),
    "birthdays are none": ("receive", "IF birthdays IS NOT TRUE THEN", "IF true THEN"),
    "birthdays in a batch are none": ("receive_many", "opaque boolean := birthdays IS NOT TRUE", "opaque boolean := true"),
    "takeover in a batch is not heeded": ("claim_many", "retention, traceparents[ord], takeover) AS c", "retention, traceparents[ord], NULL) AS c"),
    "fences do not count": ("_report", "AND i.fence = fence AND ", "AND "),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_contract_that_answers_otherwise_is_noticed(server, name):
    for seed in range(10):
        if played(server, seed, lambda database: mutate(database, *MUTATIONS[name]))[0] is not None:
            return
    pytest.fail("ten histories have shown no difference")
