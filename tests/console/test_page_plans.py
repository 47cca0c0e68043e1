# SPDX-License-Identifier: PostgreSQL
"""How the pages read: no sequential scan of the tables of intents and events, and no sort but of a part of a table. auto_explain shows the plans of
the statements within functions."""

import json
import re

import psycopg2
import pytest
from contract.calls import uuid7_days_ago

from .pages import page
from .test_pages import TRACE, insert, park

MANY = 30_000
BIG = re.compile(r"^(intent|archive|outbox)(_|$)")
ROWS_MAX = 256 * 120  # of the blocks that one statement reads
INTENT = {"scope": "orders", "key": "k5"}
PAGES = {
    "overview": ("overview", {}),
    "sample": ("sample", {}),
    "the newest": ("find", {}),
    "a state": ("find", {"state": "in_doubt"}),
    "a time": ("find", {"since": "2000-01-01", "until": "2100-01-01", "scope": "orders"}),
    "a key": ("find", {"q": "k77"}),
    "a key of a scope": ("find", {"q": "k77", "scope": "orders"}),
    "a key of a tenant": ("find", {"q": "k77", "tenant": "acme"}),
    "a key of a day": ("find", {"q": "dated"}),
    "a result": ("find", {"q": "charge:ch_17"}),
    "nothing": ("find", {"q": "no such thing"}),
    "a trace": ("find", {"q": TRACE}),
    "an event": ("find", {"q": "f07f1fac-8459-4000-80c2-a121378a2b82"}),
    "an intent": ("intent", {**INTENT, "body": 1}),
    "no intent": ("intent", {"scope": "orders", "key": "nothing"}),
    "doubts": ("doubts", {}),
    "doubts of a scope": ("doubts", {"scope": "orders", "error": "timeout"}),
    "a doubt": ("doubt", INTENT),
    "a decision": ("decide", {**INTENT, "fence": 1, "state": "in_doubt", "decision": "absent", "reason": "why"}),
    "messages": ("messages", {}),
    "pending": ("messages", {"state": "pending"}),
    "parked of a type": ("messages", {"event_type": "e7"}),
    "a parked event": ("message", {"id": "parked"}),
    "an event of an intent": ("message", {"id": "f07f1fac-8459-4000-80c2-a121378a2b82", **INTENT}),
    "scopes": ("scopes", {}),
    "a scope": ("scope", {"scope": "orders"}),
}  # fmt: skip


def walk(plan, above=()):
    yield plan, above
    for each in plan.get("Plans", ()):
        yield from walk(each, (*above, plan))


def plans_of(connection, call):
    """The plans of all statements that the call runs, those within functions, too."""
    with connection.cursor() as cursor:
        cursor.execute("SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on; SET auto_explain.log_format = json;"
                       " SET auto_explain.log_analyze = on; SET auto_explain.log_timing = off; SET client_min_messages = log")  # fmt: skip
        del connection.notices[:]
        call()
        cursor.execute("SET client_min_messages = warning; SET auto_explain.log_min_duration = -1")
    texts = [notice.partition("plan:\n")[2] for notice in connection.notices if "plan:\n" in notice]
    return [json.loads(text) for text in texts]


@pytest.fixture(scope="module")
def full(server):
    """Tables with more rows than one statement may read, on a server that would rather scan them: never analysed."""
    db = server.new_database()
    insert(db, [f"k{number}" for number in range(MANY)], traceparent="repeat('x', 55)")
    for scope in ("orders", "a", "b"):
        insert(db, [uuid7_days_ago(db, 0, number) for number in range(MANY // 10)], scope=scope, tenant="acme")
    db.execute("UPDATE once.intent SET state = 'in_doubt', completed_at = NULL, error_code = 'timeout' WHERE key IN ('k5', 'k6')")
    db.execute(
        "INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, tenant, scope, key, payload)"
        " SELECT floor(extract(epoch FROM clock_timestamp()) / 86400), now(), gen_random_uuid(), 't', 't', '', 'orders', 'x' || n, '{}'"
        " FROM generate_series(1, %s) AS n",
        MANY,
    )
    park(db, events=200, first=MANY)  # relays that have passed what was there
    yield db
    db.drop()


@pytest.fixture
def explained(full):
    connection = full.connect()
    try:
        connection.cursor().execute("LOAD 'auto_explain'")
    except psycopg2.Error:
        pytest.skip("this server has no auto_explain")
    return connection


def faults(plans):
    """What reads a whole table, or sorts one."""
    found = []
    for plan in plans:
        for node, above in walk(plan["Plan"]):
            name = node.get("Relation Name", "")
            if not BIG.match(name):
                continue
            if node["Node Type"] == "Seq Scan":
                found.append(("scan", name, plan["Query Text"][:200]))
            for upper in above:
                if "Sort" in upper["Node Type"] and not node["Node Type"].startswith("Tid") and upper["Plans"][0]["Actual Rows"] > 1000:
                    found.append(("sort", name, plan["Query Text"][:200]))
            if node["Node Type"].startswith("Tid") and node["Actual Rows"] > ROWS_MAX:
                found.append(("part", name, node["Actual Rows"]))
    return found


@pytest.mark.parametrize("what", PAGES)
def test_no_page_scans_or_sorts_a_table(full, explained, what):
    name, given = PAGES[what]
    given = {key: {"dated": uuid7_days_ago(full, 0), "parked": None}.get(value, value) for key, value in given.items()}
    if "id" in given and given["id"] is None:
        given["id"] = str(full.value("SELECT event_id FROM once.parked_event LIMIT 1"))
    plans = plans_of(explained, lambda: page(explained, name, **given))
    assert plans and faults(plans) == []


def test_a_scan_and_a_sort_of_a_table_would_be_noticed(explained):
    def run(query):
        return lambda: explained.cursor().execute(query)

    assert {each[0] for each in faults(plans_of(explained, run("SELECT count(*) FROM once.find(result_id => 'x')")))} == {"scan"}
    sorted_ = "SET enable_seqscan = off; SELECT key FROM once.intent WHERE bucket = 0 AND scope = 'orders' ORDER BY created_at LIMIT 1"
    assert "sort" in {each[0] for each in faults(plans_of(explained, run(sorted_)))}
