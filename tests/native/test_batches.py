# SPDX-License-Identifier: PostgreSQL
"""pgonce_native's batches: what C answers of many intents at once is what SQL answers, and what is not plain in them goes to SQL."""

import threading
import time

import pytest

from harness.native import install_native, library
from harness.postgres import Postgres, wait_until

from .sessions import ANSWERED, LOCKS, OTHER, TABLE_CHANGES, F, Session, in_a_thread, today, told_both_ways, uuid7

pytestmark = pytest.mark.skipif(not library().exists(), reason="native/ is not built: no headers of a server")

DAY_MS = 86_400_000
NAMES = ["k1", "k2", "k3"]
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


def text(value):
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


def array(values, kind="text"):
    """values: already SQL, but for texts."""
    return f"ARRAY[{', '.join(text(each) if kind == 'text' else str(each) for each in values)}]::{kind}[]"


def claims(keys=NAMES, more="", scopes=None, prints=None):
    """claim_many; of moments and terms it tells only what is the same each time."""
    scopes, prints = scopes or ["s"] * len(keys), prints or [F] * len(keys)
    call = f"once.claim_many({array(scopes)}, {array(keys)}, {array(prints, 'bytea')}{more})"
    return f"""SELECT ord, verdict, fence, state, response_status, response_body, error_code, error_message, round(extract(epoch FROM lease_until - clock_timestamp())) AS lease, attempts,
        traceparent, kept_ms IS NULL FROM {call}"""


def many(size, scope="'s'::text", more=""):
    """So many keys, and the fewest words about them."""
    listed = f"(SELECT array_agg({{}}) FROM generate_series(1, {size}) AS n)"
    return f"""SELECT count(*), min(ord) AS a, max(ord) AS b, sum(ord) AS c, min(verdict) AS d, max(verdict) AS e, min(fence) AS f, max(fence) AS g
        FROM once.claim_many({listed.format(scope)}, {listed.format("'k' || n")}, {listed.format(F)}{more})"""


TODAY = ["@today1@", "@today2@", "@today3@"]  # see sessions.Days
MORE_OF_TODAY = ["@today4@", "@today5@"]
YESTERDAY = ["@yesterday1@", "@yesterday2@", "@yesterday3@"]
TOMORROW = "@tomorrow1@"

STORIES = {
    "claims": [[claims()], [claims()], [claims(["k3", "k4"])]],
    "claims of today": [[claims(TODAY)], [claims(TODAY)], [claims([MORE_OF_TODAY[0], TODAY[0]])]],
    "claims of yesterday and tomorrow": [[claims(YESTERDAY)], [claims([TOMORROW])], [claims([TODAY[0], TOMORROW])]],
    "claims of several days": [[claims([*TODAY, *NAMES])], [claims([*YESTERDAY, *TODAY])]],
    "a claim alone": [[claims(["k"])], [claims(["k"], prints=[OTHER])]],
    "twice in a batch": [[claims(["k", "l", "k"])], [claims(["m", "m"], prints=[F, OTHER])], [claims(["n", "n"], scopes=["s", "t"])]],
    "some that are there": [[f"SELECT once.receive('s', 'k2', {F})"], [claims()]],
    "all that a claim has": [[claims(more=f", 'me', '90 s', NULL, 't', {array([TRACE, None, 'none'])}")], [claims(TODAY, f", owner => 'x', lease => '1 hour', traceparents => {array([None, TRACE, TRACE])}")]],
    "terms that are no hours, or none": [[claims([f"{number}a", f"{number}b"], f", {more}")] for number, more in enumerate(("lease => '0 s'", "lease => '-1 s'", "lease => '8 days'", "lease => '1 day'", "lease => '200 h'", "lease => '1 mon -29 days'", "retention => '1 day'", "lease => NULL", "retention => '0'"))],
    "an owner that is long": [[claims(more=f", owner => '{'ü' * 200}'")], [claims(TODAY, f", owner => '{'ü' * 300}'")]],
    "a policy of the scope, and another": [["SELECT once.set_scope('s', lease => '2 hours')", "SELECT once.set_scope('t', lease => '3 hours')", claims()], [claims(["a", "b", "c"], scopes=["s", "t", "u"])], [claims(["d", "e"], scopes=["u", "u"])],
        [claims(["f", "g"], ", lease => '1 hour'", scopes=["s", "t"])]],
    "the fence after a purge": [["SELECT setval('once.fence_floor_seq', 7)", claims()], [claims(TODAY)]],
    "elements that are NULL": [[claims(["a", None])], [claims(["b", "c"], scopes=["s", None])], [claims(["d", "e"], prints=[F, "NULL"])], [claims([None], scopes=[None], prints=["NULL"])]],
    "elements that are none": [[claims(["a", ""])], [claims(["b", "c"], scopes=["s", ""])], [claims(["d", "e"], prints=[F, "'short'"])], [claims(["f", "g"], prints=[F, f"{F} || {F} || {F} || {F} || {F}"])],
        [claims(["h", "ä"])], [claims(["i", "x" * 256])], [claims(["j", "x" * 255])], [claims(["k", "l"], scopes=["s", "s" * 256])], [claims(["m", "n"], scopes=["ü" * 200, "s" * 255])], [claims(["o", "p\n"])]],
    "spellings of a UUIDv7": [[claims(["a", "@today1 upper@"])], [claims(["b", "{" + TODAY[1] + "}"])], [claims(["c", "@today3 bare@"])], [claims(["@today1 upper@"])]],
    "fingerprints of unusual length": [[claims(["a", "b"], prints=[f"substr({F} || {F}, 1, 17)", f"{F} || {F} || {F} || {F}"])]],
    "shapes of arrays": [
        [claims([])], [f"SELECT * FROM once.claim_many('{{}}', '{{}}', '{{}}')"], [claims(scopes=["s"])], [claims(prints=[F])], [claims(more=f", traceparents => {array(['x'])}")], ["SELECT * FROM once.claim_many(NULL, NULL, NULL)"],
        ["SELECT * FROM once.claim_many('{{s,s}}', '{{k,l}}', '{{0123456789abcdef,0123456789abcdef}}')"], ["SELECT ord, verdict FROM once.claim_many('[0:1]={s,s}', '[0:1]={k,l}', '[0:1]={0123456789abcdef,0123456789abcdef}')"],
        ["SELECT ord, verdict FROM once.claim_many('[0:1]={s,s}', '{k,l}', '{0123456789abcdef,0123456789abcdef}')"], [f"SELECT * FROM once.claim_many({array(['s'])}, NULL, {array([F], 'bytea')})"]],
    "keys that other tenants have": [[claims(more=f", tenant => '{tenant}'")] for tenant in "acbbca"],
    "tenants": [[claims(more=", tenant => 't'")], [claims(more=", tenant => NULL")], [claims(more=f", tenant => '{'t' * 256}'")], [claims(more=f", tenant => '{'ü' * 200}'")], [claims(more=f", tenant => '{'t' * 255}'")]],
    "other isolation": [[f"SET TRANSACTION {level}", claims([f"{number}a", f"{number}b"])] for number, level in enumerate(("ISOLATION LEVEL REPEATABLE READ", "ISOLATION LEVEL SERIALIZABLE", "READ ONLY"))],
    "a savepoint takes it back": [["SAVEPOINT x", claims(), "ROLLBACK TO x", claims(prints=[OTHER] * 3)], [claims()]],
    "in an expression": [
        [f"SELECT (c).verdict FROM (SELECT once.claim_many({array(['s', 's'])}, {array(['a', 'b'])}, {array([F, F], 'bytea')}) AS c) AS x"],
        [f"SELECT n, (once.claim_many({array(['s'])}, ARRAY['n' || n], {array([F], 'bytea')})).verdict FROM generate_series(1, 3) AS n"],
        [f"SELECT x.verdict, x.ordinality, n FROM generate_series(1, 3) AS n, LATERAL once.claim_many({array(['s'])}, ARRAY['l' || n], {array([F], 'bytea')}) WITH ORDINALITY AS x"],
        [f"SELECT x.verdict, x.g FROM ROWS FROM (once.claim_many({array(['s', 's'])}, {array(['r1', 'r2'])}, {array([F, F], 'bytea')}), generate_series(1, 3)) AS x (ord, verdict, fence, a, b, c, d, e, f, h, i, j, k, l, m, g)"],
        [f"SELECT a.verdict, b.verdict AS other FROM once.claim_many(key => {array(['o', 'p'])}, fingerprint => {array([F, F], 'bytea')}, scope => {array(['s', 's'])}) AS a JOIN once.claim_many({array(['s', 's'])}, {array(['p', 'o'])}, {array([F, F], 'bytea')}) AS b USING (ord)"],
        [f"WITH c AS MATERIALIZED (SELECT * FROM once.claim_many({array(['s', 's'])}, {array(['v', 'w'])}, {array([F, F], 'bytea')})) SELECT ord, verdict FROM c WHERE ord > 1"],
        [f"SELECT verdict FROM once.claim_many({array(['s', 's'])}, {array(['y', 'z'])}, {array([F, F], 'bytea')}) LIMIT 1"]],
    "one is seen by the next": [[claims(), f"SELECT once.complete('s', key, fence) FROM once.intent WHERE scope = 's'", claims()]],
    "as many as there may be, and one more": [[many(10000)], [many(10001, "'t'::text")], [many(10000)], [many(130, more=", lease => '1 minute'", scope="'s' || n % 7")]],
}  # fmt: skip
STORIES["among many others"] = [[many(1000)], [claims([f"k{number}x" for number in range(0, 1000, 40)] + ["k999"])], [claims([f"k{number}x" for number in range(1, 1000, 40)])], [claims(["k998", "k999x"])],
    [claims([f"k{number}" for number in range(1001, 1030)])], [claims(["k1", "k1"], scopes=["r", "t"])], [claims(["k500x", "k1"], ", lease => '1 hour'", ["s", "t"])]]  # fmt: skip
# SQL's plans lock the tables of other days, too, for a look.
LOCKED = "SELECT * FROM (" + LOCKS.replace("'once.intent_d0'", "'once.intent_d0', 'once.scope', 'once.parked_message', 'once.intent_d' || floor(extract(epoch FROM clock_timestamp()) / 86400)") + ") AS l WHERE max > 1"
WARM = [claims(["warm1", "warm2"]), claims(MORE_OF_TODAY)]


@pytest.mark.parametrize("story", STORIES)
def test_c_answers_batches_as_sql_does(server, story):
    told, _ = told_both_ways(server, STORIES[story], WARM, LOCKED)
    assert told["on"] == told["off"]


def test_plain_batches_are_answered_in_c(session):
    for keys in (NAMES, [uuid7() for _ in range(3)], ["alone"], [f"k-{number}" for number in range(200)]):
        assert session.answered(claims(keys)) == 1
    assert session.value("SELECT count(*) FROM once.intent WHERE state = 'processing' AND scope = 's' AND bucket > 0") == 3
    assert session.answered(claims([uuid7(), uuid7()], ", 'me', '90 s'")) == 1


def test_a_batch_that_is_not_plain_is_sql_s_business(session):
    session(claims())
    assert session.answered(claims(["new", "k2"])) == 0
    assert session.answered(claims(["a", "a"])) == 0
    assert session.answered(claims(["a", uuid7()])) == 0
    for days in (-1, 1):
        assert session.answered(claims([uuid7(int(time.time() * 1000) + days * DAY_MS)])) == 0
    assert session.answered(claims(["b", "c"], scopes=["s", "t"])) == 0
    assert session.answered(claims(["d"], ", retention => '1 day'")) == 0


def test_the_indexes_are_whole_after_batches_of_any_size(native, session):
    native.execute("CREATE EXTENSION amcheck")
    for number, size in enumerate((1, 63, 64, 65, 128, 129, 3000)):
        assert session.answered(many(size, f"'s{number}'::text")) == 1
    assert native.value("SELECT count(*) FROM once.intent WHERE scope <> 'warm'") == 3450
    assert native.value("SELECT count(DISTINCT (scope, key)) FROM once.intent WHERE scope <> 'warm'") == 3450
    native.execute("SELECT bt_index_check('once.intent_d0_pkey', true), verify_heapam('once.intent_d0')")
    assert native.value("SELECT count(*) FROM verify_heapam('once.intent_d0')") == 0


@pytest.mark.parametrize("change", ["INCREMENT 5", "MAXVALUE 20", "CACHE 10", "RESTART 7"])
def test_a_counter_that_somebody_has_changed_counts_as_nextval_does(native, change):
    told = {}
    for way in ("on", "off"):
        session = Session(native)
        session(f"SELECT once.start('warm', 'up', {F})")
        native.execute(f"ALTER SEQUENCE once.counted_new INCREMENT 1 CACHE 1 NO MAXVALUE RESTART 1; ALTER SEQUENCE once.counted_new {change}")
        session(f"SET once.native = {way}")
        told[way] = []
        for number in range(5):
            outcome = session.outcome(claims([f"{way}-{number}-{each}" for each in range(6)]))
            told[way].append((outcome[0], native.row("SELECT last_value, is_called FROM once.counted_new")))
    assert told["on"] == told["off"]


def test_a_counter_that_is_logged_outlives_a_crash():
    with Postgres() as server:
        if server.version < 15:
            pytest.skip("before PostgreSQL 15 all are, and are counted one by one")
        database = server.new_database()
        install_native(database)
        database.execute("ALTER SEQUENCE once.counted_new SET LOGGED")
        session = Session(database)
        session(f"SELECT once.start('warm', 'up', {F})")
        assert session.answered(claims(["first"])) == session.answered(many(200)) == 1
        session.connection.close()
        database.close()
        server.restart("immediate")
        assert database.value("SELECT last_value FROM once.counted_new") >= 201


def test_an_intent_that_another_transaction_claims_is_left_out_and_the_others_are_claimed(native, session):
    other = Session(native)
    other("BEGIN")
    other(claims(["k2"]))
    assert session.answered(claims()) == 0
    assert [tuple(row) for row in session("SELECT key FROM once.intent WHERE scope = 's' ORDER BY key")] == [("k1",), ("k3",)]
    other("ROLLBACK")
    assert [row.verdict for row in session(claims())] == ["processing_active", "new_claim", "processing_active"]


def test_an_intent_that_another_transaction_has_started_is_left_out(native, session):
    """Of which there is no row yet, but its lock."""
    other = Session(native)
    other("BEGIN")
    other(f"SELECT once.start('s', 'k2', {F})")
    assert [row.verdict for row in session(claims())] == ["new_claim", "processing_active", "new_claim"]
    other("ROLLBACK")


def test_a_substitute_that_returns_other_columns_is_none(native, session):
    assert session.answered(claims()) == 1
    path = native.value("SELECT p.probin FROM pg_proc AS p WHERE p.oid = 'once_native.load'::regproc")
    native.execute(f"""DROP FUNCTION once_native.claim_many;
        CREATE FUNCTION once_native.claim_many(internal, anyelement) RETURNS TABLE (ord integer, verdict text) LANGUAGE c AS '{path}', 'native_claim_many'""")
    assert [row.verdict for row in session(claims())] == ["processing_active"] * 3
    assert session.answered(claims(["k4", "k5"])) == 0


def test_batches_in_opposite_order_share_the_intents(native):
    """Whoever comes second is answered, and never waits."""
    first, second = Session(native), Session(native)
    for each in (first, second):
        each(f"SELECT once.start('warm', 'up', {F})")
    first("BEGIN")
    assert first.answered(claims()) == 1
    second("SET lock_timeout = '1s'")
    assert [row.verdict for row in second(claims(["k9", *reversed(NAMES)]))] == ["new_claim"] + ["processing_active"] * 3
    first("COMMIT")


def test_an_insert_by_hand_in_an_open_transaction_is_sql_s_business(native, session):
    """Without the lock it holds up SQL's INSERT, and C's would raise an error."""
    hand = native.connect(autocommit=False)
    hand.cursor().execute(f"""INSERT INTO once.intent (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint)
        VALUES (now(), now(), now(), 0, 1, 1, 'succeeded', '', 's', 'k2', {F})""")
    before = session.value(ANSWERED)
    told = in_a_thread(native, session, claims(), hand.rollback)
    assert [row[1] for row in told] == ["new_claim"] * 3
    assert session.value(ANSWERED) == before


@pytest.mark.parametrize("change, back", TABLE_CHANGES)
def test_a_change_of_the_table_sends_batches_to_sql(native, session, change, back):
    # What stands on the parent alone does not concern an INSERT into the partition of undated keys.
    keys = [uuid7() if "RULE" in change else f"k{number}" for number in range(6)]
    assert session.answered(claims(keys[:2])) == 1
    native.execute(change)
    assert session.answered(claims(keys[2:4])) == 0
    native.execute(back)
    assert session.answered(claims(keys[4:])) == 1


def test_who_has_set_a_role_or_may_not_is_judged_by_sql(roles):
    member = Session(roles, user="native_any")
    member(claims(["warm"]))
    assert member.answered(claims(["a", "b"], ", tenant => 'b'")) == 1
    member("SET ROLE native_bound")
    assert member.outcome(claims(["c", "d"], ", tenant => 'b'"))[0] == "P4003"
    member("SET ROLE native_none")
    assert member.outcome(claims(["c", "d"]))[0] == "42501"
    bound = Session(roles, user="native_bound")
    assert bound.outcome(claims(["c", "d"], ", tenant => 'b'"))[0] == "P4003"
    assert [row.verdict for row in bound(claims(["c", "d"], ", tenant => 'a'"))] == ["new_claim"] * 2


def test_a_large_batch_ends_in_time(native, session):
    session("SET statement_timeout = '40ms'")
    work = many(10000).replace("'k' || n", "'k' || o || '-' || n").replace("FROM once.claim_many", "FROM generate_series(1, 100000) AS o, LATERAL once.claim_many")
    assert session.outcome(work)[0] == "57014"
    session("RESET statement_timeout")
    assert session.value("SELECT count(*) FROM once.intent WHERE scope = 's'") == 0
    assert session.answered(claims()) == 1


def test_a_batch_that_is_cancelled_while_it_waits_for_the_table_leaves_nothing(native, session):
    hand, ended = native.connect(autocommit=False), []
    hand.cursor().execute("LOCK TABLE once.intent_d0 IN SHARE MODE")
    thread = threading.Thread(target=lambda: ended.append(session.outcome(claims())))
    thread.start()
    pid = session.connection.info.backend_pid
    wait_until(lambda: native.value("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", pid) == "Lock", "the claims to wait")
    native.execute("SELECT pg_cancel_backend(%s)", pid)
    thread.join()
    hand.rollback()
    assert ended[0][0] == "57014"
    assert session.answered(claims()) == 1


# Reports.


def completions(keys=NAMES, fences=None, more="", scopes=None):
    scopes, fences = scopes or ["s"] * len(keys), fences or [1] * len(keys)
    return f"SELECT * FROM once.complete_many({array(scopes)}, {array(keys)}, {array(fences, 'integer')}{more})"


def many_completions(size, fence="1", more=""):
    listed = f"(SELECT array_agg({{}}) FROM generate_series(1, {size}) AS n)"
    return f"""SELECT count(*), min(ord) AS a, max(ord) AS b, sum(ord) AS c, min(verdict) AS d, max(verdict) AS e, min(error_code) AS f
        FROM once.complete_many({listed.format("'s'::text")}, {listed.format("'k' || n")}, {listed.format(fence)}{more})"""


STATUSES = ", response_status => ARRAY[200, 404, NULL]"
REPORTS = {
    "reports": [[claims()], [completions(more=STATUSES + ", response_text => ARRAY['x', NULL, '']")], [completions(more=STATUSES + ", response_text => ARRAY['x', NULL, '']")], [completions()], [claims()]],
    "reports of today": [[claims(TODAY)], [completions(TODAY, more=STATUSES)], [claims(TODAY)]],
    "in the transaction of the claims": [[claims(), completions(more=STATUSES), claims()]],
    "a report alone": [[claims(["k"])], [completions(["k"])], [completions(["k"])], [completions(["l"])]],
    "bodies of three kinds": [[claims()], [completions(more=", response_text => ARRAY[NULL, 'ü\\x41', NULL], response_json => ARRAY['{\"b\": [1, null], \"a\": 2}', NULL, NULL]::jsonb[], response_body => ARRAY[NULL, NULL, '\\x00ff']::bytea[]")], [claims()]],
    "two bodies of one": [[claims()], [completions(more=", response_text => ARRAY['a', 'b', NULL], response_json => ARRAY[NULL, '1', NULL]::jsonb[]")]],
    "bodies of another type": [[claims()], [completions(more=", response_body => ARRAY['a', 'b', 'c']::text[]")], [completions(more=", response_body => NULL::text[]")]],
    "large bodies": [[claims()], [completions(more=", response_text => ARRAY[repeat('a', 8192), (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 250) AS n), NULL]")], [claims()]],
    "bodies that are too large": [[claims()], [completions(more=", response_text => ARRAY['a', repeat('a', 8193), repeat('b', 2000000)]")]],
    "statuses that are none": [[claims()], [completions(more=", response_status => ARRAY[999, 1000, 0]")], [completions(["k2"], more=", response_status => ARRAY[-1]")]],
    "headers": [[claims()], [completions(more=", response_headers => ARRAY['{\"H\": \"1\"}', NULL, '{}']::jsonb[]")], [claims()]],
    "headers that are none": [[claims()], [completions(more=", response_headers => ARRAY['{\"H\": \"1\"}', '[1]', 'null']::jsonb[]")]],
    "results": [[claims()], [completions(more=", result_type => ARRAY['t', NULL, ''], result_id => ARRAY['i', 'j', NULL]")], [claims()]],
    "other fences": [[claims()], [completions(fences=[1, 2, 1])], [completions(fences=[0, 1, 1])], [claims()]],
    "intents that are not there": [[claims()], [completions(["k0", "k1", "k11", "k2", "k4"])], [completions(["x", "y"])], [completions(["k3"], scopes=["t"])]],
    "some that are completed": [[claims(), "SELECT once.complete('s', 'k2', 1, 201)"], [completions(more=", response_status => ARRAY[201, 201, 201]")], [completions(more=", response_status => ARRAY[201, 200, 201]")]],
    "some that have failed, or are in doubt": [[claims([*NAMES, "k4"])], ["SELECT once.fail('s', 'k1', 1, retryable => false)", "SELECT once.release('s', 'k2', 1)", "UPDATE once.intent SET state = 'in_doubt', error_code = 'e' WHERE key = 'k3'"],
        [completions(["k1", "k2", "k3", "k4"], more=", response_text => ARRAY['a', 'b', 'c', 'd']")]],
    "a message that is no attempt": [[f"SELECT once.receive('s', 'k2', {F})", claims(["k1"])], [completions(["k1", "k2"])]],
    "the same twice": [[claims()], [completions(["k1", "k2", "k1", "k3", "k2"], more=", response_status => ARRAY[200, 200, 201, 200, 200]")], [claims()]],
    "after the lease": [[claims()], ["UPDATE once.intent SET lease_until = now() - interval '1 hour', error_code = 'e', response_body = 'old' WHERE scope = 's'"], [completions(more=STATUSES)]],
    "reports of several days": [[claims(), claims(TODAY)], [completions([TODAY[0], "k1", TODAY[1], "k2"])], [completions([*TODAY, *NAMES])]],
    "reports of no attempt of yesterday": [[completions(YESTERDAY)], [completions([TOMORROW, TOMORROW])]],
    "reports that are NULL": [[claims()], [completions(["k1", None])], [completions(["k2", "k3"], scopes=["s", None])], [completions(["k2", "k3"], ["NULL", "1"])]],
    "reports that are none": [[claims()], [completions(["k1", ""])], [completions(["k2", "x"], scopes=["s", ""])], [completions(["k3", "ä"])], [completions(["k3", "k4"], scopes=["s", "s" * 256])]],
    "shapes of arrays of reports": [[claims()], [completions([])], [completions(scopes=["s"])], [completions(fences=[1])], [completions(more=", response_status => ARRAY[200]")], [completions(more=", result_id => '{}'")], ["SELECT * FROM once.complete_many(NULL, NULL, NULL)"],
        ["SELECT * FROM once.complete_many('[0:1]={s,s}', '[0:1]={k1,k2}', '[0:1]={1,1}')"], ["SELECT * FROM once.complete_many('{s,s}', '{k1,k2}', '[0:1]={1,1}')"], [completions(more=", result_type => NULL")]],
    "reports on keys that other tenants have": [*([claims(more=f", tenant => '{tenant}'")] for tenant in "acd"), *([completions(more=f", tenant => '{tenant}'")] for tenant in "bcadc")],
    "reports of tenants": [[claims(more=", tenant => 't'")], [completions(more=", tenant => 't'")], [completions()], [completions(more=", tenant => NULL")], [completions(more=f", tenant => '{'t' * 256}'")]],
    "reports at other isolation": [[claims()], *([f"SET TRANSACTION {level}", completions([f"k{number}"])] for number, level in enumerate(("READ ONLY", "ISOLATION LEVEL REPEATABLE READ", "ISOLATION LEVEL SERIALIZABLE")))],
    "reports that are taken back": [[claims()], ["SAVEPOINT x", completions(more=STATUSES), "ROLLBACK TO x", completions(more=", response_status => ARRAY[1, 2, 3]")], [claims()]],
    "reports in an expression": [
        [f"SELECT c.verdict, d.verdict AS other FROM once.claim_many({array(['s', 's'])}, {array(['q1', 'q2'])}, {array([F, F], 'bytea')}) AS c, LATERAL once.complete_many(ARRAY['s', 's'], ARRAY['q' || c.ord, 'none'], ARRAY[c.fence, 1]) AS d"],
        [claims()], ["SELECT once.complete_many(ARRAY['s', 's'], ARRAY['k3', 'k1'], ARRAY[1, 7])"], ["SELECT (once.complete_many(ARRAY['s', 's'], ARRAY['k2', 'k1'], ARRAY[n, n])).* FROM generate_series(1, 2) AS n"]],
    "as many reports as there may be": [[many(10000)], [many_completions(10000, "CASE WHEN n % 3 = 0 THEN 2 ELSE 1 END")], [many_completions(10000)], [many_completions(10001)]],
}  # fmt: skip
MORE_WARM = [*WARM, completions(["warm1", "warm2"]), completions(MORE_OF_TODAY)]


@pytest.mark.parametrize("story", REPORTS)
def test_c_answers_batches_of_reports_as_sql_does(server, story):
    told, _ = told_both_ways(server, REPORTS[story], MORE_WARM, "SELECT 1")
    assert told["on"] == told["off"]


def test_plain_batches_of_reports_are_answered_in_c(session):
    for keys in (NAMES, [uuid7() for _ in range(3)], ["alone"], [f"k-{number}" for number in range(200)]):
        session(claims(keys))
        assert session.answered(completions(keys, more=f", response_status => array_fill(200, ARRAY[{len(keys)}]), response_text => array_fill('done'::text, ARRAY[{len(keys)}])")) == 1
        assert {(row.state, bytes(row.response_body)) for row in session("SELECT state, response_body FROM once.intent WHERE key = ANY (%s)", keys)} == {("succeeded", b"done")}


@pytest.mark.parametrize("of_today", [False, True])
def test_a_batch_of_reports_locks_the_table_that_it_is_of(session, of_today):
    keys, tables = ([uuid7(), uuid7()], ["intent", f"intent_d{today()}"]) if of_today else (NAMES, ["intent_d0"])
    session(claims(keys))
    session("BEGIN")
    assert session.answered(completions(keys)) == 1
    locks = session("SELECT c.relname, l.mode FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation WHERE l.pid = pg_backend_pid() AND c.relname LIKE 'intent%' AND c.relkind IN ('r', 'p') ORDER BY 1")
    assert [tuple(row) for row in locks] == [(table, "RowExclusiveLock") for table in tables]
    session("ROLLBACK")


def test_of_a_batch_of_reports_sql_is_asked_about_the_rest_alone(session):
    session(claims([f"k{number}" for number in range(50)]))
    session(f"SELECT once.fail('s', 'k{7}', 1, retryable => false)")
    assert session.answered(completions([f"k{number}" for number in range(60)])) == 1
    assert session.answered(completions([f"k{number}" for number in range(60)])) == 0  # nothing is plain in it
    assert session.value("SELECT count(*) FROM once.intent WHERE state = 'succeeded' AND scope = 's'") == 49


OTHERS = [
    ("SELECT once.renew('s', 'k2', 1)", True, "stored"), ("SELECT once.renew('s', 'k2', 1)", False, "stored"),
    ("SELECT once.fail('s', 'k2', 1, retryable => false)", True, "refused"), ("SELECT once.fail('s', 'k2', 1, retryable => false)", False, "stored"),
    ("SELECT once.complete('s', 'k2', 1, 404)", True, "repeated"), ("SELECT once.complete('s', 'k2', 1, 201)", True, "refused"),
    ("DELETE FROM once.intent WHERE key = 'k2'", True, "refused"), ("SELECT FROM once.intent WHERE key = 'k2' FOR UPDATE", True, "stored"),
]  # fmt: skip


@pytest.mark.parametrize("other, committed, told", OTHERS)
def test_a_batch_of_reports_waits_for_another_change_of_one_of_its_intents_and_looks_again(native, session, other, committed, told):
    session(claims())
    hand = native.connect(autocommit=False)
    hand.cursor().execute(other)
    before = session.value(ANSWERED)
    rows = in_a_thread(native, session, completions(more=STATUSES), hand.commit if committed else hand.rollback)
    assert [row[:2] for row in rows] == [(1, "stored"), (2, told), (3, "stored")]
    assert rows[1][2] == ("P4010" if told == "refused" else None)
    assert session.value(ANSWERED) == before + 1
    assert native.value("SELECT count(*) FROM once.intent WHERE state = 'succeeded' AND scope = 's'") == 2 + (told != "refused" or "once.complete" in other)


def test_two_batches_of_reports_in_opposite_order_do_not_deadlock(native, session):
    """One is held up at an intent that a third has; the other wants the same intents."""
    session(claims())
    other, hand, ended = Session(native), native.connect(autocommit=False), []
    other(claims(["warm"]))
    hand.cursor().execute("SELECT FROM once.intent WHERE key = 'k2' FOR UPDATE")
    threads = [threading.Thread(target=lambda each=each, keys=keys: ended.append(each.outcome(completions(keys)))) for each, keys in ((session, ["k2", "k1"]), (other, ["k1", "k2"]))]
    for thread, each in zip(threads, (session, other)):
        thread.start()
        pid = each.connection.info.backend_pid
        wait_until(lambda pid=pid: native.value("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", pid) == "Lock", "the reports to wait")
    hand.commit()
    for thread in threads:
        thread.join()
    assert sorted(tuple(row[1] for row in rows) for rows in ended) == [("repeated", "repeated"), ("stored", "stored")]


def test_the_index_is_whole_after_batches_of_reports_that_are_hot_updates_and_others(native, session):
    native.execute("CREATE EXTENSION amcheck; ALTER TABLE once.intent_d0 SET (fillfactor = 80)")
    session(many(3000))
    session("BEGIN")
    assert session.answered(many_completions(3000, more=", result_id => (SELECT array_agg(repeat('x', n % 100)) FROM generate_series(1, 3000) AS n)")) == 1
    hot, updated = session("SELECT pg_stat_get_xact_tuples_hot_updated('once.intent_d0'::regclass), pg_stat_get_xact_tuples_updated('once.intent_d0'::regclass)")[0]
    assert 0 < hot < updated == 3000
    session("COMMIT")
    native.execute("SELECT bt_index_check('once.intent_d0_pkey', true)")
    assert native.value("SELECT count(*) FROM verify_heapam('once.intent_d0')") == 0
    assert native.value("SELECT count(*) FROM once.intent WHERE state = 'succeeded' AND result_id = repeat('x', substr(key, 2)::integer % 100)") == 3000


@pytest.mark.parametrize("change, back", TABLE_CHANGES)
def test_a_change_of_the_table_sends_reports_to_sql(native, session, change, back):
    keys = [uuid7() if "RULE" in change else f"k{number}" for number in range(6)]
    session(claims(keys))
    assert session.answered(completions(keys[:2])) == 1
    native.execute(change)
    assert session.answered(completions(keys[2:4])) == 0
    native.execute(back)
    assert session.answered(completions(keys[4:])) == 1


# Messages.


def messages(ids=NAMES, more="", prints=None, consumer="s", keys=None):
    prints, keys = prints or [F] * len(ids), "NULL" if keys is None else array(keys)
    return f"SELECT * FROM once.receive_many('{consumer}', {array(ids)}, {keys}, {array(prints, 'bytea')}{more})"


def many_messages(size, consumer="s"):
    listed = f"(SELECT array_agg({{}}) FROM generate_series(1, {size}) AS n)"
    return f"""SELECT count(*), min(ordinal) AS a, max(ordinal) AS b, sum(ordinal) AS c, min(verdict) AS d, max(verdict) AS e, min(code) AS f
        FROM once.receive_many('{consumer}', {listed.format("'k' || n")}, NULL, {listed.format(F)})"""


def parked(message, key, state="retrying", consumer="s", tenant=""):
    return f"SELECT once_job.message_park('{consumer}', '{tenant}', ARRAY[ROW('{message}', 't', {text(key)}, '{{}}', 'body'::bytea, {F}, '{state}', 1, 3600000, 'why', '22000')]::once.parked[])"


MESSAGES = {
    "messages": [[messages()], [messages()], [messages(["k3", "k4"])], [messages(prints=[OTHER] * 3)]],
    "messages of today": [[messages(TODAY)], [messages(TODAY)], [messages([MORE_OF_TODAY[0], TODAY[0]])]],
    "messages of today, by their birthdays": [[messages(TODAY, ", birthdays => true")], [messages(TODAY, ", birthdays => true")]],
    "messages of other days": [[messages(YESTERDAY)], [messages([TOMORROW])], [messages([TODAY[0], TOMORROW])], [messages([*TODAY, *NAMES])], [messages([*YESTERDAY, *TODAY])]],
    "a message alone": [[messages(["k"])], [messages(["k"])]],
    "a message twice": [[messages(["k", "l", "k"])], [messages(["m", "m"], prints=[F, OTHER])]],
    "messages with keys and traces": [[messages(keys=["a", None, "a"], more=f", traceparents => {array([TRACE, None, 'none'])}")], [messages(TODAY, keys=["a", "a", "b"], more=", 't', true")], [messages(["x", "y"], more=", skip_dead => NULL")]],
    "messages behind one that is parked": [[messages(["k0"]), parked("k9", "a")], [messages(keys=["a", "b", "a"])], [messages(["k4", "k5"], consumer="other", keys=["a", "a"])], [messages(["k6", "k7"], keys=["a", "c"], more=", 't'")], [messages(["k9", "k8"], keys=["a", "c"])]],
    "messages behind one that is dead": [[parked("k9", "a", "dead")], [messages(keys=["a", "b", "a"])], [messages(["k4", "k5"], keys=["a", "b"], more=", skip_dead => true")]],
    "one that is parked for another": [[parked("k9", "a", consumer="other"), parked("k9", "a", tenant="t")], [messages(keys=["a", "b", "a"])], [messages(TODAY, consumer="t")]],
    "messages that are attempts": [[claims(["k2"])], [messages()]],
    "messages that are NULL or none": [[messages(["a", None])], [messages(["b", "c"], prints=[F, "NULL"])], [messages(["d", ""])], [messages(["e", "ä"])], [messages(["f", "g"], prints=[F, "'short'"])], [messages(["h", "x" * 256])], [messages(["i"], prints=[f"{F} || {F} || {F} || {F} || {F}"])]],
    "consumers": [[messages(consumer="")], [messages(consumer="s" * 255)], [messages(consumer="s" * 256)], [messages(consumer="ü" * 200)], ["SELECT * FROM once.receive_many(NULL, ARRAY['a'], NULL, ARRAY['0123456789abcdef'::bytea])"]],
    "tenants of messages": [[messages(more=", tenant => 't'")], [messages(more=", tenant => NULL")], [messages(more=f", tenant => '{'t' * 256}'")]],
    "shapes of arrays of messages": [[messages([])], [messages(prints=[F])], [messages(keys=["a"])], [messages(more=f", traceparents => {array(['x'])}")], ["SELECT * FROM once.receive_many('s', NULL, NULL, NULL)"],
        ["SELECT * FROM once.receive_many('s', '[0:1]={k,l}', NULL, '[0:1]={0123456789abcdef,0123456789abcdef}')"]],
    "messages at other isolation": [[f"SET TRANSACTION {level}", messages([f"{number}a", f"{number}b"])] for number, level in enumerate(("ISOLATION LEVEL REPEATABLE READ", "ISOLATION LEVEL SERIALIZABLE", "READ ONLY"))],
    "messages that are taken back": [["SAVEPOINT x", messages(), "ROLLBACK TO x", messages(prints=[OTHER] * 3)], [messages()]],
    "messages in an expression": [["SELECT once.receive_many('s', ARRAY['a', 'b'], NULL, ARRAY['0123456789abcdef', '0123456789abcdef']::bytea[])"], [f"SELECT x.verdict, n FROM generate_series(1, 3) AS n, LATERAL once.receive_many('s', ARRAY['a' || n, 'l'], NULL, {array([F, F], 'bytea')}) AS x"]],
    "the fence of a message after a purge": [["SELECT setval('once.fence_floor_seq', 7)", messages()], [messages(TODAY)]],
    "as many messages as there may be": [[many_messages(10000)], [many_messages(10001, "t")], [many_messages(10000)]],
}  # fmt: skip


@pytest.mark.parametrize("story", MESSAGES)
def test_c_answers_batches_of_messages_as_sql_does(server, story):
    told, _ = told_both_ways(server, MESSAGES[story], [messages(["warm1", "warm2"]), messages(MORE_OF_TODAY)], LOCKED)
    assert told["on"] == told["off"]


def test_plain_batches_of_messages_are_answered_in_c(native, session):
    for keys in (NAMES, [uuid7() for _ in range(3)], ["alone"], [f"k-{number}" for number in range(200)]):
        assert session.answered(messages(keys, keys=["one"] * len(keys))) == 1
        assert session.answered(messages(keys)) == 0  # duplicates
    native.execute(parked("k9", "a", consumer="other"))
    native.execute(parked("k9", "a", tenant="t"))
    assert session.answered(messages(["new", "newer"])) == 1
    native.execute(parked("k9", "a"))
    assert session.answered(messages(["new too", "newer too"])) == 0
    assert session.value("SELECT count(*) FROM once.intent WHERE state = 'succeeded' AND scope = 's'") == 211


def test_a_message_that_another_transaction_applies_is_left_out(native, session):
    other = Session(native)
    other("BEGIN")
    other(f"SELECT once.start('s', 'k2', {F})")
    session("BEGIN")
    assert [tuple(row) for row in session(messages())] == [(1, "process", None), (2, "processing_active", "P4029"), (3, "process", None)]
    session("ROLLBACK")
    other("ROLLBACK")
    assert session.answered(messages()) == 1


def test_a_message_that_somebody_inserts_by_hand_is_sql_s_business(native, session):
    hand = native.connect(autocommit=False)
    hand.cursor().execute(f"""INSERT INTO once.intent (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint)
        VALUES (now(), now(), now(), 0, 1, 1, 'succeeded', '', 's', 'k2', {F})""")
    before = session.value(ANSWERED)
    assert in_a_thread(native, session, messages(), hand.rollback) == [(1, "process", None), (2, "process", None), (3, "process", None)]
    assert session.value(ANSWERED) == before


@pytest.mark.parametrize("change, back", [*TABLE_CHANGES, ("ALTER TABLE once.parked_message ENABLE ROW LEVEL SECURITY", "ALTER TABLE once.parked_message DISABLE ROW LEVEL SECURITY")])
def test_a_change_of_the_table_sends_messages_to_sql(native, session, change, back):
    keys = [uuid7() if "RULE" in change else f"k{number}" for number in range(6)]
    birthdays = ", birthdays => true"  # a rule of the parent is for those alone
    assert session.answered(messages(keys[:2], birthdays)) == 1
    native.execute(change)
    assert session.answered(messages(keys[2:4], birthdays)) == 0
    native.execute(back)
    assert session.answered(messages(keys[4:], birthdays)) == 1
