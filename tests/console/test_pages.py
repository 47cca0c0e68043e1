# SPDX-License-Identifier: PostgreSQL
"""The JSON of the console's pages, by their statements: what each answers, to whom, and that lists page through everything."""

import json
import uuid

import pytest
from contract.calls import DAY_MS, PRINT, Once, code_of, let_lease_pass, now_ms, refused, today, uuid7, uuid7_days_ago
from contract.keeping import Keeper, settled
from contract.logins import make_logins
from contract.relaying import Relay
from harness.mutation import mutate

from .pages import PARAMETERS, ROOT, SQL, all_pages, page

SAMPLES = ROOT / "tests/console/samples"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
HOSTILE = ("<script>alert(1)</script>", "' OR 1=1 --", '"><img src=x>', "invoice \u202egnp.exe", "{{key}}", "%s$1\\")


def insert(db, keys, state="succeeded", scope="orders", tenant="", **columns):
    """Intents, without a call for each; created_at as the place in the list says."""
    named = {"created_at": "now()", "updated_at": "now()", "completed_at": "now()", "expires_at": "now() + interval '90 days'", **columns}
    db.execute(
        f"INSERT INTO once.intent (bucket, fence, attempts, state, tenant, scope, key, fingerprint, {', '.join(named)})"
        f" SELECT once._bucket(k), 1, 1, %s::once.state, %s, %s, k, %s, {', '.join(named.values())} FROM unnest(%s::text[]) WITH ORDINALITY AS u (k, n)",
        state, tenant, scope, PRINT, list(keys),
    )  # fmt: skip


def names(intents):
    return sorted((each["tenant"], each["scope"], each["key"]) for each in intents)


def keys(intents):
    return [each["key"] for each in intents]


def find(db, *, connection=None, **given):
    return all_pages(connection or db.connect(), "find", "intents", **given)[0]


def fill(db):
    """Some of everything, with hostile names. Returns what the pages are asked about."""
    once = Once(db.connect())
    db.execute("CREATE SCHEMA IF NOT EXISTS shop")
    db.execute(
        "CREATE OR REPLACE FUNCTION shop.verify(tenant text, scope text, key text) RETURNS once.verification LANGUAGE plpgsql AS $$ BEGIN"
        " IF key = 'raises' THEN RAISE EXCEPTION 'boom <script>'; END IF;"
        " RETURN ROW('happened', 201, convert_to('{\"id\": \"ch_17\"}', 'UTF8'), NULL, 'charge', 'ch_17')::once.verification; END $$"
    )
    db.execute("SELECT once.set_scope('verified', on_stale => 'verify', verify => 'shop.verify')")
    relay = Relay(db.connect(), "orders")
    once.claim(key="order-17", scope="charge", owner="worker-7", traceparent=PARENT)
    db.execute("SELECT once.emit('order', '{\"a\": 12.50}', scope => 'charge', key => 'order-17', event_type => 'paid', headers => '{\"X\": \"<b>\"}')")
    db.execute("SELECT once.emit('nobody', '{}', scope => 'charge', key => 'order-17', event_type => 'lost')")
    once.complete(key="order-17", scope="charge", fence=1, response_status=201, response_text='{"id":  "ch_17", "amount": 12.50}', result_type="charge", result_id="ch_17",
                  response_headers='{"Content-Type": "application/json"}')  # fmt: skip
    for scope, key in (("verified", "asked"), ("verified", "raises"), ("charge", "doubtful")):
        once.claim(key=key, scope=scope)
        once.fail(key=key, scope=scope, fence=1, retryable=None, error_code="timeout", error_message="no answer\nwithin 30 s \x1b[31m")
    for name in HOSTILE:
        once.claim(key="hostile", scope=name, tenant=name, owner=name)
        once.fail(key="hostile", scope=name, tenant=name, fence=1, retryable=True, error_code=name, error_message=name)
    event = str(db.value("SELECT event_id FROM once.outbox WHERE topic = 'order'"))
    db.execute(
        "INSERT INTO once.parked_event (relay, id, xid, day, event_id, topic, tenant, state, attempts, next_at, error, parked_at, updated_at)"
        " SELECT 'orders', id, xid, day, event_id, topic, tenant, 'dead', 3, now(), '503 <script>', now(), now() FROM once.outbox WHERE topic = 'order'"
    )
    db.execute(
        "INSERT INTO once.parked_message (consumer, tenant, message_id, topic, headers, payload, fingerprint, state, next_at, error, sqlstate, parked_at,"
        " updated_at) VALUES ('mailer', '', 'm<b>', 't', '{\"h\": \"<b>\"}', '\\x00ff', %s, 'dead', now(), 'err', '23505', now(), now())",
        PRINT,
    )
    db.execute("SELECT once.consumer_report('mailer', now() - interval '10 s')")
    Keeper(db.connect()).work("sweep")
    return {"relay": relay, "event": event}


def members(value, path=""):
    """The names of all members, at each place; of a list those of all its elements."""
    if isinstance(value, dict):
        return {f"{path}.{name}" for name in value}.union(*(members(each, f"{path}.{name}") for name, each in value.items()))
    if isinstance(value, list):
        return set().union(*(members(each, f"{path}[]") for each in value))
    return set()


# What is as users or the state of the moment have it, not as the statement says.
FREE = (".is.", ".decides.", ".response_headers.", ".headers.", "[].before.", "[].after.", ".before.", ".after.")


def told(document):
    return {name for name in members(document) if not any(free in name for free in FREE)}


def answers(db):
    """Each sample's name, and an answer that has all of its members."""
    made = fill(db)
    connection = db.connect()
    charge, doubt = {"scope": "charge", "key": "order-17"}, {"scope": "charge", "key": "doubtful"}
    decide = {**doubt, "fence": 1, "state": "in_doubt", "decision": "happened", "status": 201, "body": "{}", "reason": "seen"}
    db.execute("SELECT once.parked_retry(%s, 'why'), once.set_scope('charge', lease => '5 s')", made["event"])
    db.execute("UPDATE once.parked_event SET state = 'dead'")
    yield "overview", page(connection, "overview")
    yield "sample", page(connection, "sample")
    yield "find", page(connection, "find", take=2)
    yield "intent", page(connection, "intent", **charge)
    yield "intent_json_body", page(connection, "intent", body=1, **charge)
    yield "intent_bytes_body", page(connection, "intent", body=1, **charge)
    yield "intent_missing", page(connection, "intent", scope="charge", key="nothing")
    yield "doubts", page(connection, "doubts", take=2)
    yield "doubt", page(connection, "doubt", scope="verified", key="asked")
    yield "doubt_verify_fails", page(connection, "doubt", scope="verified", key="raises")
    yield "decide_preview", page(connection, "decide", dry_run=1, **decide)
    page(connection, "decide", **decide)
    yield "decide", page(connection, "decide", **decide)
    yield "doubt_decided", page(connection, "doubt", **doubt)
    yield "messages", page(connection, "messages", take=1)
    yield "message", page(connection, "message", id=made["event"], body=1)
    yield "message_of_consumer", page(connection, "message", id="m<b>", consumer="mailer", body=1)
    yield "message_missing", page(connection, "message", id="nothing")
    yield "change", page(connection, "change", action="retry", state="dead", reason="why", dry_run=1)
    yield "scopes", page(connection, "scopes")
    yield "scope", page(connection, "scope", scope="verified")
    yield "set_scope", page(connection, "set_scope", scope="charge", retention="14 days", on_stale="takeover", dry_run=1)


def test_the_samples_have_the_members_of_what_the_pages_answer(db):
    """So a template that shows the samples shows the answers. A list of decisions may be empty here or there."""
    seen = set()
    for name, answer in answers(db):
        sample = json.loads((SAMPLES / f"{name}.json").read_text())
        seen.add(name)
        empty = [path for path in ("decisions", "relays", "picture.spans", "events", "untaken", "header_list", "headers", "verify_functions", "parts", "first", "decided",
                                   "partitions", "consumers", "timeline", "verify", "body")]  # fmt: skip
        missing = {each for each in told(sample) ^ told(answer) if not any(f".{path}[]" in each or f".{path}." in each for path in empty)}
        assert not missing, (name, missing)
    assert seen == {path.stem for path in SAMPLES.glob("*.json")}


def test_each_member_of_a_nested_document_is_in_its_sample(db):
    for name, answer in answers(db):
        sample = json.loads((SAMPLES / f"{name}.json").read_text())
        assert told(answer) <= told(sample), (name, told(answer) - told(sample))


def test_every_statement_of_the_console_that_makes_a_page_is_tried_here():
    assert set(PARAMETERS) | {"limit", "who"} >= {path.stem for path in SQL.glob("*.sql")}


EMPTY = {"intent": {"scope": "s", "key": "k"}, "doubt": {"scope": "s", "key": "k"}, "message": {"id": "x"}, "scope": {"scope": "s"}}


@pytest.mark.parametrize("name", [each for each in PARAMETERS if each not in ("decide", "change", "set_scope")])
@pytest.mark.parametrize("login", ["support", "reader", "admin"])
def test_readers_and_admins_see_every_page_empty_or_full(db, name, login):
    make_logins(db)
    connection = db.connect(login)
    assert page(connection, name, **EMPTY.get(name, {}))
    fill(db)
    assert page(connection, name, **EMPTY.get(name, {}))


@pytest.mark.parametrize("name", [each for each in PARAMETERS])
@pytest.mark.parametrize("login", ["app", "bound", "nobody_in_particular"])
def test_other_roles_see_no_page(db, name, login):
    make_logins(db)
    assert code_of(lambda: page(db.connect(login), name, **EMPTY.get(name, {}))) == "42501"


CHANGE = {
    "decide": {"scope": "charge", "key": "doubtful", "fence": 1, "state": "in_doubt", "decision": "absent", "reason": "why"},
    "change": {"action": "discard", "reason": "why"},
    "set_scope": {"scope": "charge", "lease": "5 s"},
}


@pytest.mark.parametrize("name", CHANGE)
def test_a_reader_changes_nothing(db, name):
    make_logins(db)
    fill(db)
    for login in ("reader", "support"):
        assert code_of(lambda: page(db.connect(login), name, **CHANGE[name])) == "42501"
    assert page(db.connect("admin"), name, **CHANGE[name])


@pytest.mark.parametrize("name", CHANGE)
def test_a_dry_run_changes_nothing(db, name):
    fill(db)
    tables = ("once.intent", "once.scope", "once.decision", "once.parked_decision", "once.parked_event", "once.parked_message")

    def state():
        return [db.rows(f"SELECT t::text, xmin::text FROM {table} AS t ORDER BY 1") for table in tables]

    before = state()
    assert page(db.connect(), name, dry_run=1, **CHANGE[name])["dry_run"] is True
    assert state() == before
    assert page(db.connect(), name, **CHANGE[name])["dry_run"] is False
    assert state() != before


def bind_reader(db):
    """A role of one tenant that was granted what the pages call."""
    make_logins(db)
    db.execute(
        "GRANT EXECUTE ON FUNCTION once.find_part, once.scope_list, once.doubts_part, once.outline, once.ask, once.readable, once.latency,"
        " once.peek(text, text, text) TO bound"
    )
    return db.connect("bound")


def test_a_bound_role_sees_its_tenant_alone_and_learns_nothing_about_others(db):
    bound = bind_reader(db)
    once = Once(db.connect())
    for tenant in ("mine", "theirs"):
        once.claim(key="k", tenant=tenant)
        once.fail(key="k", tenant=tenant, fence=1, retryable=None)
    assert names(page(bound, "find", q="k", tenant="mine")["intents"]) == [("mine", "orders", "k")]
    assert names(page(bound, "doubts", tenant="mine")["doubts"]) == [("mine", "orders", "k")]
    for tenant in (None, "theirs", "unknown"):
        for name, given in (("find", {"q": "k"}), ("doubts", {})):
            with refused("P4003"):
                page(bound, name, tenant=tenant, **given)
    for tenant in ("theirs", "unknown"):
        for name in ("intent", "doubt"):
            with refused("P4003"):
                page(bound, name, scope="orders", key="k", tenant=tenant)


# ---- find


def test_whatever_is_known_of_an_intent_finds_it(db):
    fill(db)
    event = str(db.value("SELECT event_id FROM once.outbox WHERE topic = 'order'"))
    for q, by in {
        "order-17": "key",
        "charge:ch_17": "result",
        "ch_17": "result",
        "worker-7": "owner",
        PARENT: "trace",
        TRACE: "trace",
        event: "event",
        event.upper(): "event",
    }.items():
        assert [(each["scope"], each["key"], each["found_by"]) for each in find(db, q=q)] == [("charge", "order-17", by)], q
    assert keys(find(db, q="doubt")) == ["doubtful"]
    assert sorted(keys(find(db, q="timeout"))) == ["asked", "doubtful", "raises"]
    assert sorted(keys(find(db, q="NO ANSWER"))) == ["asked", "doubtful", "raises"]
    assert find(db, q="nothing of this name") == []
    for name in HOSTILE:
        assert [(each["tenant"], each["found_by"]) for each in find(db, q=name)] == [(name, "owner")], name


def test_a_key_is_found_in_every_scope_and_tenant_of_an_open_a_closed_and_an_archived_day(db):
    dated = uuid7_days_ago(db, 7)
    for tenant in ("", "b", "a"):
        for scope in ("z", "a", "m"):
            insert(db, [dated, "plain"], scope=scope, tenant=tenant)
    insert(db, ["plainer", "plai", "other"], scope="b")
    wanted = sorted((tenant, scope) for tenant in ("", "a", "b") for scope in ("a", "m", "z"))

    def found(key, **given):
        assert page(db.connect(), "find", q=key, take=500, **given)["intents"][:1]
        exact = [each for each in find(db, q=key, take=2, **given) if each["key"] == key]
        assert {each["found_by"] for each in exact} == {"key"}
        return sorted((each["tenant"], each["scope"]) for each in exact)

    assert found("plain") == found(dated) == wanted
    assert found("plain", scope="m") == [(tenant, "m") for tenant in ("", "a", "b")]
    assert found("plain", tenant="a") == [("a", scope) for scope in ("a", "m", "z")]
    assert sorted(keys(find(db, q="plain"))) == ["plain"] * 9 + ["plainer"]
    settled(db)
    keeper = Keeper(db.connect())
    for step in ("close", "doubt", "move", "detach", "drop"):
        keeper.work(step)
        assert found(dated) == wanted, step
    assert db.value("SELECT count(*) FROM once.archive") == 9
    assert {each["archived"] for each in find(db, q=dated)} == {True}


def test_filters_narrow_what_is_found(db):
    fill(db)
    assert keys(find(db, scope="charge", state="in_doubt")) == ["doubtful"]
    assert keys(find(db, q="order-17", state="in_doubt")) == []
    assert keys(find(db, q="hostile", tenant=HOSTILE[0])) == ["hostile"]
    assert find(db, since="2100-01-01") == find(db, q="k", since="2100-01-01") == find(db, until="2000-01-01") == []
    assert len(find(db, since="2000-01-01", until="2100-01-01")) == 4 + len(HOSTILE)
    for wrong in ({"state": "x"}, {"after": "x"}, {"after": "1:2:3:4"}):
        with refused("22023"):
            page(db.connect(), "find", **wrong)
    with refused("22007"):
        page(db.connect(), "find", since="when")


def test_an_event_s_trace_finds_its_intent_once(db):
    once = Once(db.connect())
    for key, own in (("own", PARENT), ("by events", None)):
        once.claim(key=key, traceparent=own)
        for kind in "abc":
            db.execute("SELECT once.emit('t', '{}', scope => 'orders', key => %s, event_type => %s, traceparent => %s)", key, kind, PARENT)
    assert sorted(keys(find(db, q=TRACE))) == ["by events", "own"]
    assert sorted(keys(find(db, q=TRACE, take=1))) == ["by events", "own"]


@pytest.mark.parametrize("take", [1, 7, 500])
def test_small_lists_page_through_everything(db, take):
    names = [f"k{number}" for number in range(40)] + [uuid7_days_ago(db, days, number) for days in range(7) for number in range(5)]
    insert(db, names)
    assert sorted(keys(find(db, take=take))) == sorted(names)


def test_thousands_page_without_gap_or_repetition_while_others_insert_and_days_are_closed_and_archived(db):
    make_logins(db)
    old = [uuid7_days_ago(db, days, number) for days in range(8) for number in range(300)]
    plain = [f"k{number}" for number in range(4000)]
    insert(db, plain[:2000])
    insert(db, old)
    insert(db, plain[2000:])
    settled(db)
    keeper = Keeper(db.connect())
    steps = iter([(horizon, step) for horizon in (6, 5, 4, 3) for step in ("close", "doubt", "move", "detach", "drop")])
    archived = []

    def meanwhile(nth):
        insert(db, [f"late{nth}-{number}" for number in range(50)] + [uuid7(now_ms(db), nth * 1000 + number) for number in range(50)])
        following = next(steps, None) if nth % 3 == 0 else None
        if following:
            db.execute("SELECT once.set_keeping(horizon_days => %s)", following[0])
            keeper.work(following[1])
            archived.append(db.value("SELECT count(*) FROM once.archive"))

    found, pages = all_pages(db.connect("reader"), "find", "intents", take=97, between=meanwhile)
    met = [each["key"] for each in found if each["key"] in set(old + plain)]
    assert pages > 60 and archived[-1] >= 300
    assert set(met) == set(old + plain)
    # A day that was closed while the search stood in it begins again there: at most that one is repeated.
    repeated = {each for each in met if met.count(each) > 1} if len(met) != len(set(met)) else set()
    assert len({each[:13] for each in repeated}) <= 1, len(repeated)
    assert not repeated


def test_a_day_that_is_closed_while_the_search_stands_in_it_loses_nothing(db):
    old = [uuid7_days_ago(db, 7, number) for number in range(300)]
    insert(db, old)
    settled(db)
    keeper = Keeper(db.connect())

    def meanwhile(nth):
        if nth == 1:
            keeper.retire()

    found, _ = all_pages(db.connect(), "find", "intents", take=100, between=meanwhile)
    assert set(keys(found)) == set(old)
    assert {each["archived"] for each in found} == {False, True}


def test_a_search_stops_in_time_and_says_how_far_it_came(db):
    """A look at many rows that match nothing ends after its time, here at once; the next one goes on."""
    for part in range(4):
        insert(db, [f"k{part}-{number}" for number in range(5000)], error_message="repeat('x', 60)")
    mutate(db, "_find_part", "'30 milliseconds'", "'1 microsecond'")
    connection = db.connect()
    found, shares, after = [], [], None
    while True:
        answer = page(connection, "find", q="k3-19", state="failed_final", after=after)
        found += answer["intents"]
        shares.append(answer["searched"]["share"])
        after = answer["next"]
        if answer["done"]:
            break
        assert answer["searched"]["to"] is not None
    assert found == [] and shares[-1] == 1 and shares == sorted(shares) and len(shares) > 3
    assert keys(find(db, q="k0-77", take=500))[:1] == ["k0-77"]


# ---- one intent


def test_a_body_is_shown_only_if_asked_for_and_to_those_who_may_read_answers(db):
    fill(db)
    make_logins(db)
    shown = page(db.connect("reader"), "intent", scope="charge", key="order-17", body=1)
    assert shown["body"]["json"] == '{\n    "id": "ch_17",\n    "amount": 12.50\n}' and shown["body"]["text"].startswith('{"id":  "ch_17"')
    hidden = page(db.connect("reader"), "intent", scope="charge", key="order-17")
    assert hidden["body"] is None and hidden["may_see_body"] and not hidden["body_asked"] and hidden["response_bytes"] == 33
    assert "12.50" not in json.dumps(hidden)
    event = page(db.connect(), "messages", kind="event")["items"][0]["id"]
    assert page(db.connect("reader"), "message", id=event)["body"] is None
    assert page(db.connect("reader"), "message", id=event, body=1)["body"]["text"] == '{"a": 12.50}'


def test_a_role_for_support_sees_every_page_and_no_body(db):
    made = fill(db)
    make_logins(db)
    support = db.connect("support")
    event, message = {"id": made["event"]}, {"id": "m<b>", "consumer": "mailer"}
    for name, given in (("intent", {"scope": "charge", "key": "order-17"}), ("message", event), ("message", message)):
        seen, whole = page(support, name, body=1, **given), page(db.connect("reader"), name, body=1, **given)
        assert whole["body"] and whole["may_see_body"] and whole["body_asked"]
        assert seen["body"] is None and not seen["may_see_body"] and not seen["body_asked"]
        assert "12.50" not in json.dumps(seen) and "AP8=" not in json.dumps(seen)
        assert seen.get("response_bytes") == whole.get("response_bytes") and seen.get("payload_bytes") == whole.get("payload_bytes")
    for call in ("once.story('charge', 'order-17')", "once.peek('charge', 'order-17')", "once.parked_show('m<b>', 'mailer')", "once.in_doubt", "once.intent"):
        with refused("42501"), support.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {call}")
    with support.cursor() as cursor:
        for call in ("once.outline('charge', 'order-17', body => true)", f"once.parked_outline('{made['event']}', body => true)", "once.parked_outline('m<b>', 'mailer', body => true)"):
            cursor.execute(f"SELECT ({call})::text AS shown")
            shown = cursor.fetchall()[0].shown
            assert "12.50" not in shown and "AP8=" not in shown and '"payload":' not in shown


def test_bytes_are_shown_as_json_as_text_or_in_hex(db):
    def readable(value, *more):
        return db.value(f"SELECT once.readable(%s{', %s' * len(more)})", value, *more)

    assert readable(b'{"a": 1.50}')["json"] == '{\n    "a": 1.50\n}'
    assert readable("h\u00e9llo\n\t".encode())["text"] == "h\u00e9llo\n\t" and readable(b"plain")["json"] is None
    for raw in (b"\x00", b"\xff\xfe", b"a\x1b[31m", "h\u00e9".encode()[:2], b'"\\u0000"'[:2] + b"\x07"):
        assert readable(raw)["text"] is None and readable(raw)["hex"].startswith("00000000  " + raw.hex(" ")), raw
    dump = readable(bytes(range(40)))["hex"].split("\n")
    assert len(dump) == 3 and dump[2] == f"{'00000020':8}  20 21 22 23 24 25 26 27{' ' * 25} | !\"#$%&'|"
    assert readable(b"|<script>\\\x00")["hex"].endswith("||<script>..|")
    cut = readable("\u20ac".encode() * 100, 100)
    assert cut["text"] == "\u20ac" * 33 and cut["cut"] and cut["shown_bytes"] == 99 and cut["bytes"] == 300
    assert readable(b'{"a": "' + b"x" * 100 + b'"}', 50)["json"] is None
    assert readable(b"\xff" * 5000)["shown_bytes"] == 4096
    assert readable(b"") == {"bytes": 0, "shown_bytes": 0, "cut": False, "json": None, "text": "", "hex": None}
    assert readable(None)["hex"] is None


def test_the_picture_of_a_story_has_its_entries_in_order_within_it(db):
    once = Once(db.connect())
    once.claim(key="k", owner="first")
    db.execute("UPDATE once.intent SET created_at = created_at - interval '1 hour', updated_at = updated_at - interval '1 hour'")
    let_lease_pass(db, "k")
    once.claim(key="k", owner="second", takeover=True)
    once.fail(key="k", fence=2, retryable=None, error_code="timeout")
    once.resolve(key="k", as_state="succeeded")
    story = page(db.connect(), "intent", scope="orders", key="k")
    placed = [each["place"] for each in story["timeline"] if each["place"] is not None]
    assert placed == sorted(placed) and placed[0] == 0 and placed[-1] == 1000
    assert {each["what"]: each["lane"] for each in story["timeline"]} == {"created": 0, "takeover": 0, "doubt": 0, "outcome": 0, "decision": 1, "expires": 3}
    spans = story["picture"]["spans"]
    assert [each["owner"] for each in spans] == ["first", "second"] and all(20 <= each["x"] and each["x"] + each["width"] <= 984 for each in spans)
    assert spans[0]["x"] + spans[0]["width"] <= spans[1]["x"] + 2 and story["took_ms"] >= 3_600_000


# ---- doubts


def test_doubts_page_through_everything_while_others_come_and_days_are_archived(db):
    old = [uuid7_days_ago(db, 7, number) for number in range(150)]
    plain = [f"k{number}" for number in range(1500)]
    insert(db, old + plain, state="in_doubt", completed_at="NULL", error_code="'timeout'")
    insert(db, [f"done{number}" for number in range(1500)])
    settled(db)
    keeper = Keeper(db.connect())

    def meanwhile(nth):
        insert(db, [f"late{nth}-{number}" for number in range(20)], state="in_doubt")
        if nth == 2:
            keeper.retire()

    found, pages = all_pages(db.connect(), "doubts", "doubts", take=100, error="timeout", between=meanwhile)
    assert pages >= 16 and sorted(keys(found)) == sorted(old + plain)
    assert {each["key"] for each in found if each["archived"]} == set(old)


def test_the_verify_function_is_asked_for_those_who_may_and_its_error_is_shown(db):
    fill(db)
    make_logins(db)
    verified = {"scope": "verified", "key": "asked"}
    assert page(db.connect("admin"), "doubt", **verified)["verify"] == {
        "answer": "happened", "response_status": 201, "response_bytes": 15, "text": '{"id": "ch_17"}', "result_type": "charge", "result_id": "ch_17", "error": None,
    }  # fmt: skip
    assert page(db.connect("reader"), "doubt", **verified)["verify"] is None
    failed = page(db.connect("admin"), "doubt", scope="verified", key="raises")["verify"]
    assert failed["answer"] == "unknown" and failed["error"] == "verify raised P0001: boom <script>"
    assert page(db.connect("admin"), "doubt", scope="charge", key="doubtful")["verify"] is None


DECISIONS = {"happened": "succeeded", "absent": "failed_retryable", "never": "failed_final"}


@pytest.mark.parametrize("decision", DECISIONS)
def test_a_decision_counts_if_the_intent_is_as_it_was_seen(db, decision):
    fill(db)
    seen = page(db.connect(), "doubt", scope="charge", key="doubtful")
    assert seen["decidable"] and seen["decided"] is None
    given = {"scope": "charge", "key": "doubtful", "fence": seen["fence"], "state": seen["state"], "decision": decision, "status": 201, "body": "a\nb",
             "result_type": "charge", "result_id": "ch_1", "reason": "seen there (by <b>, console)"}  # fmt: skip
    done = page(db.connect(), "decide", **given)
    assert done["decided"] and done["why"] is None and (done["state"], done["fence"]) == (DECISIONS[decision], 2)
    stored = db.row("SELECT state::text, response_status, response_body, result_id FROM once.intent WHERE key = 'doubtful'")
    happened = decision == "happened"
    assert stored == (DECISIONS[decision], 201 if happened else None, b"a\nb" if happened else None, "ch_1" if happened else None)
    assert db.row("SELECT reason, kind, to_state::text FROM once.decision WHERE key = 'doubtful'") == (given["reason"], "resolve", DECISIONS[decision])


def test_whoever_decides_second_is_told_about_the_first_and_changes_nothing(db):
    fill(db)
    make_logins(db)
    given = {"scope": "charge", "key": "doubtful", "fence": 1, "state": "in_doubt", "reason": "mine"}
    assert page(db.connect("admin"), "decide", decision="absent", **given)["decided"]
    before = db.rows("SELECT i::text FROM once.intent AS i ORDER BY 1"), db.value("SELECT count(*) FROM once.decision")
    for dry_run in (1, None):
        late = page(db.connect(), "decide", decision="happened", dry_run=dry_run, **{**given, "reason": "theirs"})
        assert not late["decided"] and late["why"] == "changed" and (late["state"], late["fence"]) == ("failed_retryable", 2)
        assert (late["first"]["by"], late["first"]["reason"], late["first"]["to"]) == ("admin", "mine", "failed_retryable")
    assert before == (db.rows("SELECT i::text FROM once.intent AS i ORDER BY 1"), db.value("SELECT count(*) FROM once.decision"))


def test_the_attempt_that_reports_first_is_a_change_though_its_fence_is_the_same(db):
    fill(db)
    Once(db.connect()).fail(key="doubtful", scope="charge", fence=1, retryable=True)
    late = page(db.connect(), "decide", scope="charge", key="doubtful", fence=1, state="in_doubt", decision="happened", reason="why")
    assert not late["decided"] and late["why"] == "changed" and late["state"] == "failed_retryable" and late["first"] is None


def test_another_doubt_of_the_same_intent_is_not_the_one_that_was_seen(db):
    fill(db)
    once = Once(db.connect())
    once.resolve(key="doubtful", scope="charge", as_state="failed_retryable", reason="first")
    once.claim(key="doubtful", scope="charge")
    once.fail(key="doubtful", scope="charge", fence=3, retryable=None)
    late = page(db.connect(), "decide", scope="charge", key="doubtful", fence=1, state="in_doubt", decision="happened", reason="why")
    assert not late["decided"] and late["why"] == "changed" and (late["state"], late["fence"]) == ("in_doubt", 3)


def test_of_two_who_decide_at_once_the_second_waits_and_sees_the_first(db):
    fill(db)
    first = db.connect(isolation="READ COMMITTED")
    with first.cursor() as cursor:
        cursor.execute("SELECT once.resolve('charge', 'doubtful', 'succeeded', 'first')")
    given = {"scope": "charge", "key": "doubtful", "fence": 1, "state": "in_doubt", "decision": "absent", "reason": "second"}
    held = page(db.connect(), "decide", **given)
    assert not held["decided"] and held["why"] == "running"
    first.commit()
    late = page(db.connect(), "decide", **given)
    assert late["why"] == "changed" and late["first"]["reason"] == "first"


def test_a_decision_needs_a_reason_and_a_known_word_and_leaving_it_changes_nothing(db):
    fill(db)
    given = {"scope": "charge", "key": "doubtful", "fence": 1, "state": "in_doubt"}
    for wrong in ({"decision": "absent", "reason": " "}, {"decision": "absent"}, {"decision": "x", "reason": "why"}, {"decision": "absent", "reason": "why", "fence": None}):
        for dry_run in (1, None):
            with refused("22023"):
                page(db.connect(), "decide", **{**given, **wrong, "dry_run": dry_run})
    assert not page(db.connect(), "decide", decision="leave", **given)["decided"]
    assert page(db.connect(), "decide", decision="absent", reason="why", **{**given, "key": "no such"})["why"] == "gone"
    Once(db.connect()).claim(key="live", scope="charge")
    assert page(db.connect(), "decide", decision="absent", reason="why", **{**given, "key": "live", "state": "processing"})["why"] == "running"
    assert db.value("SELECT count(*) FROM once.decision") == 0


# ---- messages


def park(db, events=40, messages=20, first=0):
    """Each event once for each of two relays; first: the id of the last event that the relays have passed before."""
    for name in "ab":
        Relay(db.connect(), name)
    db.execute("UPDATE once.relay SET seen = pg_current_snapshot(), written_by = pg_current_xact_id()::xid")
    db.execute("SELECT once.emit('t', '{}', event_type => 'e' || n) FROM generate_series(1, %s) AS n", events + 10)
    db.execute("SELECT once.emit_later(now() + interval '1 hour' + n % 3 * interval '1 s', 't', '{}', event_type => 'd' || n) FROM generate_series(1, 12) AS n")
    db.execute(
        "INSERT INTO once.parked_event (relay, id, xid, day, event_id, topic, tenant, state, attempts, next_at, error, parked_at, updated_at)"
        " SELECT r.relay, o.id, o.xid, o.day, o.event_id, o.topic, o.tenant, (ARRAY['dead', 'retrying', 'waiting'])[1 + o.id %% 3], 3, now(), '503', now(), now()"
        " FROM once.outbox AS o, once.relay AS r WHERE o.id > %s AND o.id <= %s",
        first, first + events,
    )
    db.execute(
        "INSERT INTO once.parked_message (consumer, tenant, message_id, topic, fingerprint, state, next_at, parked_at, updated_at)"
        " SELECT c, '', 'm' || n, 't', %s, (ARRAY['dead', 'retrying', 'waiting'])[1 + n %% 3], now(), now(), now()"
        " FROM generate_series(1, %s) AS n, unnest('{x,y:z}'::text[]) AS c ORDER BY n, c",
        PRINT, messages,
    )  # fmt: skip


@pytest.mark.parametrize("given", [{}, {"kind": "event"}, {"consumer": "y:z"}, {"state": "waiting"}, {"state": "pending"}, {"state": "delayed"}], ids=str)
def test_parked_events_and_messages_page_through_everything_in_the_same_order(db, given):
    park(db)
    whole = page(db.connect(), "messages", take=500, **given)["items"]
    for take in (1, 7):
        found, _ = all_pages(db.connect(), "messages", "items", take=take, **given)
        assert [(each["kind"], each["holder"], each["state"], each["id"]) for each in found] == [
            (each["kind"], each["holder"], each["state"], each["id"]) for each in whole]  # fmt: skip
    assert len(whole) == {"{}": 120, "{'kind': 'event'}": 80, "{'consumer': 'y:z'}": 20, "{'state': 'waiting'}": 40, "{'state': 'pending'}": 100,
                          "{'state': 'delayed'}": 12}[str(given)]  # fmt: skip


def test_a_place_of_another_list_is_refused(db):
    park(db)
    place = page(db.connect(), "messages", state="pending", take=1)["next"]
    for wrong in (place, "x", "1:event:1.2:a", "4:event:1:a", "9:event:1:a"):
        with refused("22023"):
            page(db.connect(), "messages", after=wrong)


def test_a_change_touches_what_matches_or_the_named_ones_and_says_so(db):
    park(db)
    dead = page(db.connect(), "messages", kind="event", relay="a", state="dead", take=500)["items"]
    preview = page(db.connect(), "change", action="retry", relay="a", state="dead", reason="why", dry_run=1)
    assert preview["items"] == len(dead) and preview["done"] and [part["holder"] for part in preview["parts"]] == ["a"]
    one = json.dumps([dead[0]["id"]])
    preview = page(db.connect(), "change", action="retry", relay="a", ids=one, reason="why", dry_run=1)
    assert preview["items"] == 1
    assert page(db.connect(), "change", action="retry", relay="a", ids=one, reason="why")["items"] == 1
    assert db.rows("SELECT what, relay, subject, reason FROM once.parked_decision") == [("retry", "a", dead[0]["id"], "why")]
    assert len(page(db.connect(), "messages", kind="event", relay="a", state="dead", take=500)["items"]) == len(dead) - 1
    both = page(db.connect(), "change", action="discard", consumer="x", ids=json.dumps(["m1", "m2", "no such"]), reason="why")
    assert both["items"] == 2 and len(page(db.connect(), "messages", consumer="x")["items"]) == 18
    after = None
    while True:
        part = page(db.connect(), "change", action="discard", reason="why", after=after)
        after = part["next"]
        if part["done"]:
            break
    assert page(db.connect(), "messages")["items"] == []


def test_ids_never_touch_what_was_not_named(db):
    """The statement also has a call for all that match: with ids it must not be made."""
    park(db)
    for action in ("retry", "discard"):
        page(db.connect(), "change", action=action, ids=json.dumps(["no such"]), reason="why")
        page(db.connect(), "change", action=action, ids="[]", reason="why")
    assert db.value("SELECT count(*) FROM once.parked_decision") == 0
    assert len(page(db.connect(), "messages", take=500)["items"]) == 120


def test_a_replay_is_counted_first_and_then_made(db):
    relay = Relay(db.connect(), "r")
    db.execute("SELECT once.emit('t', '{}', event_type => 'e' || n) FROM generate_series(1, 5) AS n")
    relay.batch()
    given = {"action": "replay", "relay": "r", "since": "2020-01-01", "reason": "again"}
    preview = page(db.connect(), "change", dry_run=1, **given)
    assert preview["items"] == 5 and db.value("SELECT count(*) FROM once.parked_event") == 0 == db.value("SELECT count(*) FROM once.parked_decision")
    assert page(db.connect(), "change", **given)["items"] == 5
    assert db.value("SELECT count(*) FROM once.parked_event") == 5
    assert page(db.connect(), "change", dry_run=1, **given)["items"] == 0


def test_an_event_of_an_intent_is_found_by_its_names_wherever_it_is(db):
    fill(db)
    lost = str(db.value("SELECT event_id FROM once.outbox WHERE topic = 'nobody'"))
    shown = page(db.connect(), "message", id=lost, scope="charge", key="order-17")
    assert shown["topic"] == "nobody" and shown["relays"][0]["relay"] == "orders" and shown["body"] is None and shown["payload_bytes"] == 2
    assert page(db.connect(), "message", id=lost, scope="charge", key="another")["missing"]
    assert page(db.connect(), "message", id=lost)["topic"] == "nobody"
    assert page(db.connect(), "message", id=str(uuid.uuid4()))["missing"]


# ---- scopes and the overview


def test_a_policy_is_previewed_with_its_consequences_and_then_set(db):
    given = {"scope": "charge", "retention": "14 days", "on_stale": "takeover", "lease": "5 s", "max_attempts": 0}
    preview = page(db.connect(), "set_scope", dry_run=1, **given)
    assert {each["name"]: (each["old"], each["new"]) for each in preview["changes"]} == {
        "lease": ("00:01:00", "00:00:05"), "on_stale": ("in_doubt", "takeover"), "retention": ("7 days", "14 days")}  # fmt: skip
    assert preview["takeover"] and preview["lease_shorter"] and preview["retention_longer"] and preview["storage_times"] == 2 and preview["becomes_own"]
    assert page(db.connect(), "scopes")["scopes"] == []
    saved = page(db.connect(), "set_scope", **given)
    assert saved["saved"] and saved["new"] == preview["new"]
    assert page(db.connect(), "scope", scope="charge")["on_stale"] == "takeover" and page(db.connect(), "scope", scope="another")["own"] is False
    assert page(db.connect(), "set_scope", dry_run=1, **given)["nothing_changes"]
    for wrong, code in (({"lease": "8 days"}, "23514"), ({"retention": "x"}, "22007"), ({"on_stale": "x"}, "23514"), ({"on_stale": "verify", "verify": "no.such"}, "3F000 42883")):
        assert code_of(lambda: page(db.connect(), "set_scope", dry_run=1, **{**given, **wrong})) in code.split()
    assert page(db.connect(), "scope")["scope"] == "" and page(db.connect(), "scope")["lease"] == "00:01:00"


def test_the_overview_counts_what_is_so(db):
    fill(db)
    seen = page(db.connect(), "overview")
    assert seen["attempts"]["new"] == 4 + len(HOSTILE) and seen["in_doubt"] == 3 and seen["dead"] == 2 and seen["untaken"] == 0
    assert [each["relay"] for each in seen["relays"] if each["dead"]] == ["orders"]
    assert [(each["consumer"], each["parts"], each["dead"]) for each in seen["consumers"]] == [("mailer", 1, 1)]
    assert 9_000 <= seen["consumers"][0]["lag_ms"] <= 60_000 and seen["latency"]["outcomes"] == 1 + len(HOSTILE)
    sample = page(db.connect(), "sample")
    assert {name: sample[name] for name in ("new", "in_doubt", "dead")} == {"new": 4 + len(HOSTILE), "in_doubt": 3, "dead": 2}


def test_recent_latency_is_that_of_the_last_hour(db):
    insert(db, ["old"], created_at="now() - interval '3 hours'", completed_at="now() - interval '2 hours'")
    assert db.row("SELECT outcomes, p50_ms FROM once.latency()") == (0, None)
    insert(db, [f"k{number}" for number in range(100)], created_at="now() - n * interval '1 s'", completed_at="now()")
    seen = db.row("SELECT * FROM once.latency()")
    assert (seen.outcomes, seen.p50_ms, seen.p95_ms, seen.p99_ms) == (100, 50_000, 95_000, 99_000)
