# SPDX-License-Identifier: PostgreSQL
"""once_replay_cache: an answer that nothing changes any more is given from memory that all workers share. copies.py tells how this is seen; what other
servers and other workers do to it is in test_replay_cache_servers.py."""

import os
import threading
import time

import pytest

from harness.mutation import mutate
from harness.nginx import Refused
from harness.postgres import Postgres, wait_until
from harness.upstream import NOT_NOW, Answer

from .copies import (
    H1,
    H2,
    TRACE,
    HTTP,
    CONFIG,
    FROM_CACHE,
    FROM_DATABASE,
    opened,
    counted,
    since,
    change,
    done,
    is_cached,
    described,
    broken,
    pieces_only,
    forgotten,
)
from .door import Door, assert_problem, new_key, soon
from .mutant import mutant
from .test_status import metrics, page


@pytest.fixture(scope="module")
def door(database, upstream):
    with opened(database, upstream) as running:
        yield running


# ---- Serving


def test_a_replay_is_served_from_memory_and_asks_the_database_nothing(door):
    key, first = done(door)
    operations, before = page(door)["batches"], counted(door)
    for _ in range(50):
        assert is_cached(door, key, first)
    assert since(before, counted(door)) == {"hit": 50}
    # No more than the news of each second.
    assert page(door)["batches"]["claims"] - operations["claims"] < 10
    assert page(door)["batches"]["reports"] == operations["reports"]
    assert door.count(key) == 1
    assert "verdict=replay_success" in door.nginx.access_log.read_text().splitlines()[-4]


ANSWERS = {
    "plain": Answer(),
    "no content": Answer(204, headers=(("X-Of", "a"),), body=b""),
    "an empty body": Answer(200, body=b""),
    "bytes": Answer(200, (("Content-Type", "application/octet-stream"),), bytes(range(256)) * 16),
    "many headers": Answer(201, tuple((f"X-{n}", f"{n} \xe4\u20ac".encode()) for n in range(60)) + (("Link", "<a>"), ("Link", "<b>")), b"x"),
    "headers of policy": Answer(200, (("Set-Cookie", "a=b"), ("Cache-Control", "max-age=1"), ("Cache-Control", "private"), ("ETag", '"e"')), b"x"),
    "a charset": Answer(200, (("Content-Type", "text/html; charset=koi8-r"), ("Last-Modified", "Mon, 06 Nov 2023 10:00:00 GMT")), b"x"),
    "a refusal": Answer(422, (("Content-Type", "text/plain"),), b"no"),
    "elsewhere": Answer(303, (("Location", "/there"),), b"see"),
}


@pytest.mark.parametrize("protocol", [H1, H2])
@pytest.mark.parametrize("kind", ANSWERS)
def test_the_answer_is_that_of_the_database_to_the_byte(door, upstream, kind, protocol):
    """Copied when it was stored, and when it was replayed: a door without a cache says what the database says."""
    key = new_key()
    upstream.script(key, ANSWERS[kind])
    with opened(door.database, upstream, "") as bare:
        first = door.attempt(key, headers=[TRACE], protocol=protocol)
        of_database = bare.attempt(key, protocol=protocol)
        stored = door.attempt(key, protocol=protocol)
        assert of_database.replayed and described(of_database) == described(stored)
        assert (first.status, first.body) == (stored.status, stored.body)
        assert stored.header("X-Cache").startswith("hit ") and stored.header("Idempotency-Traceparent") == TRACE[1]
        # The other way: completed elsewhere, so the first replay is the database's.
        other = new_key()
        upstream.script(other, ANSWERS[kind])
        bare.attempt(other, headers=[TRACE], protocol=protocol)
        of_database, again = (door.attempt(other, protocol=protocol) for _ in range(2))
        assert of_database.header("X-Cache").startswith("miss ") and again.header("X-Cache").startswith("hit ")
        assert described(of_database) == described(again)


def test_a_final_failure_is_served_from_memory(door):
    key = new_key()
    door.database.execute("SELECT once.claim('pay', %s, once.request_fingerprint('POST', 'test/pay', 'x', ''), tenant => 'acme')", key)
    door.database.execute("DELETE FROM once.intent WHERE key = %s", key)
    door.upstream.script(key, Answer())
    door.attempt(key)
    door.database.execute("UPDATE once.intent SET state = 'failed_final', error_code = 'no' WHERE key = %s", key)
    with forgotten(door):
        pass
    assert door.attempt(key).header("X-Cache") == "miss final_failure 1 replay failed_final"
    assert door.attempt(key).header("X-Cache") == "hit final_failure 1 replay failed_final"


def test_duplicates_that_waited_are_served_from_memory(door, upstream):
    key, hold = new_key(), threading.Event()
    upstream.script(key, Answer(201, body=b"once", hold=hold))
    before = counted(door)
    attempts = [door.start(key, "/wait") for _ in range(10)]
    wait_until(lambda: page(door)["waiting"] == 9, "the duplicates to wait")
    hold.set()
    answers = [attempt.result() for attempt in attempts]
    assert {answer.body for answer in answers} == {b"once"} and door.count(key) == 1
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 9
    assert since(before, counted(door))["hit"] >= 1


def test_where_nothing_is_protected_the_variable_is_empty(door):
    assert door.attempt(new_key(), "/open").header("X-Cache") == "[]"


# ---- Not serving


@pytest.mark.parametrize("protocol", [H1, H2])
def test_another_request_with_the_key_is_a_mismatch_and_the_database_is_not_asked(door, protocol):
    key, first = done(door)
    door.database.execute("UPDATE once.intent SET fingerprint = sha256('another') WHERE key = %s", key)
    before = counted(door)
    for _ in range(3):
        refused = assert_problem(door.attempt(key, body=b"other", protocol=protocol), 422, "mismatch")
        assert refused.header("X-Cache").strip() == "hit mismatch  refuse" and refused.header("Idempotency-Traceparent") is None
        assert first.body not in refused.body
    assert since(before, counted(door)) == {"mismatch": 3}
    assert is_cached(door, key, first)


def test_the_same_request_to_the_database_reads_the_same_mismatch(door, upstream):
    key, _ = done(door)
    with opened(door.database, upstream, "") as bare:
        said = [each.attempt(key, body=b"other") for each in (door, bare)]
    assert said[0].status == said[1].status == 422

    def text(answer):
        return [header for header in answer.headers if header[0] not in ("x-cache", "date", "content-length")]

    assert text(said[0]) == text(said[1])


def test_tenants_and_scopes_have_their_own_answers(door):
    key = new_key()
    answers = {
        (target, tenant): door.attempt(key, target, tenant=tenant) for target in ("/pay", "/other/pay") for tenant in ("acme", "acme2", "acm")
    }
    assert len({answer.body for answer in answers.values()}) == 6 == door.count(key)
    for (target, tenant), answer in answers.items():
        again = door.attempt(key, target, tenant=tenant)
        assert again.body == answer.body and again.header("X-Cache") == FROM_CACHE
    assert door.attempt(key, tenant="acme3").header("X-Cache").startswith("miss new_claim")


def test_names_that_read_alike_together_are_apart(door):
    """'ab' and 'c' are not 'a' and 'bc'."""
    key = new_key()
    first, second = door.attempt("x" + key, tenant="a"), door.attempt(key, tenant="ax")
    assert first.body != second.body and not second.replayed


def test_who_may_not_come_in_gets_no_copy(door):
    key, first = done(door, "/password", headers=[("Authorization", "Basic a25vd246c2VjcmV0")])
    before = counted(door)
    assert door.attempt(key, "/password").status == 401
    assert door.attempt(key, "/password", headers=[("Authorization", "Basic a25vd246d3Jvbmc=")]).status == 401
    assert since(before, counted(door)) == {}
    assert is_cached(door, key, first, "/password", headers=[("Authorization", "Basic a25vd246c2VjcmV0")])
    key, first = done(door)
    refused = door.attempt(key, "/closed")
    assert refused.status == 403 and first.body not in refused.body


NOT_KEPT = {"doubt": Answer(500), "released": NOT_NOW, "redirected": Answer(307, (("Location", "/there"),)), "cut": Answer(200, body=b"abcdef", cut=3)}


@pytest.mark.parametrize("kind", NOT_KEPT)
def test_what_is_no_final_outcome_is_not_kept(door, kind):
    key = new_key()
    door.upstream.script(key, NOT_KEPT[kind], Answer())
    before = counted(door)
    door.attempt(key)
    assert since(before, counted(door)) == {"miss": 1}
    door.attempt(key)
    assert "hit" not in since(before, counted(door))


def test_an_intent_with_several_fingerprints_is_left_to_the_database(door):
    """Who was led elsewhere may come with either request: a copy has one of them, and would call the other a mismatch."""
    key = new_key()
    door.upstream.script(key, Answer(307, (("Location", "/there"),)), Answer(201, body=b"paid"))
    assert door.attempt(key).status == 307
    assert door.attempt(key, "/there").body == b"paid"
    for target in ("/there", "/pay", "/there", "/pay"):
        again = door.attempt(key, target)
        assert again.body == b"paid" and again.header("X-Cache") == FROM_DATABASE


def test_a_report_that_was_not_stored_is_not_kept(door):
    """The service has completed the intent itself, with another answer."""
    key = new_key()

    def complete(request):
        door.database.execute(
            "SELECT once.complete('pay', %s, %s, 200, response_body => 'its own'::bytea, tenant => 'acme')", key, int(request.header("Once-Fence"))
        )

    door.upstream.script(key, Answer(201, body=b"said", do=complete))
    before = counted(door)
    assert door.attempt(key).body == b"its own"
    assert "kept" not in since(before, counted(door))
    assert door.attempt(key).body == b"its own"


@pytest.mark.parametrize("size, kept", [(64 * 1024, True), (64 * 1024 + 1, False), (900_000, False)])
def test_a_body_above_64_kb_is_not_kept(door, size, kept):
    key, first = done(door, answer=Answer(200, body=os.urandom(size)))
    assert is_cached(door, key, first) == kept


def test_headers_above_32_kb_are_not_kept(door):
    key = new_key()
    door.upstream.script(key, Answer(200, tuple((f"X-{n}", "v" * 3000) for n in range(12)), b"x"))
    with opened(door.database, door.upstream, HTTP + "proxy_buffer_size 64k; proxy_buffers 8 64k; proxy_busy_buffers_size 64k;") as large:
        assert large.attempt(key).status == 200
        assert [large.attempt(key).header("X-Cache") for _ in range(2)] == [FROM_DATABASE] * 2


# ---- Its end


@pytest.mark.alone
def test_nothing_is_served_after_its_retention(door):
    began = time.monotonic()
    key, first = done(door, "/short")
    cached = is_cached(door, key, first, "/short")
    assert cached or time.monotonic() - began > 0.9
    wait_until(lambda: not is_cached(door, key, first, "/short"), "the end of its second")
    assert time.monotonic() - began > 0.9


@pytest.mark.alone
def test_a_replay_of_the_database_is_kept_for_what_is_left_of_its_retention(door, upstream):
    with opened(door.database, upstream, "") as bare:
        key, first = done(bare, "/short")
        later = "completed_at = completed_at + interval '1 second', created_at = created_at - interval '1 second'"
        door.database.execute(f"UPDATE once.intent SET {later} WHERE key = %s", key)
    began = time.monotonic()
    assert door.attempt(key, "/short").body == b"changed"
    door.database.execute("UPDATE once.intent SET response_body = 'again' WHERE key = %s", key)
    wait_until(lambda: door.attempt(key, "/short").body == b"again", "the end of what was left")
    assert time.monotonic() - began < 4.5
    # Now it is over, and only the keeper has not come yet.
    wait_until(lambda: door.database.value("SELECT completed_at + (expires_at - created_at) < clock_timestamp() FROM once.intent WHERE key = %s", key), "its end")
    before = counted(door)
    for _ in range(3):
        assert door.attempt(key, "/short").body == b"again"
    assert "kept" not in since(before, counted(door))


def test_the_shortest_retention_of_all_scopes_holds_for_all(fresh, upstream):
    fresh.execute("SELECT once.set_scope('brief', retention => '1 second')")
    with opened(fresh, upstream) as door:
        key, first = done(door)
        wait_until(lambda: not is_cached(door, key, first), "the end of its second")  # of the seven days that its own scope has
        fresh.execute("SELECT once.set_scope('brief', retention => '7 days')")
        key, first = done(door)
        wait_until(lambda: is_cached(door, *done(door)), "the longer one to be known")


def test_what_claim_many_says_of_how_long_an_outcome_is_kept(fresh):
    fresh.execute("SELECT once.set_scope('short', retention => '10 seconds')")
    fingerprint = b"f" * 32

    def claimed(scope, key, retention=None):
        query = "SELECT verdict, kept_ms FROM once.claim_many(ARRAY[%s], ARRAY[%s], ARRAY[%s::bytea], retention => %s::interval)"
        return tuple(fresh.row(query, scope, key, fingerprint, retention))

    for scope, key, retention, least, most in (
        ("short", "a", None, 9_000, 10_000),
        ("long", "b", None, 86_400_000, 86_400_000),
        ("long", "c", "5 seconds", 4_000, 5_000),
        ("short", new_key()[:8], "100 years", 86_400_000, 86_400_000),
    ):
        assert claimed(scope, key, retention) == ("new_claim", None)
        assert claimed(scope, key) == ("processing_active", None)
        fresh.execute("SELECT once.complete(%s, %s, (SELECT fence FROM once.intent WHERE key = %s), 200)", scope, key, key)
        verdict, kept = claimed(scope, key)
        assert verdict == "replay_success" and least <= kept <= most
        fresh.execute("UPDATE once.intent SET redirects = ARRAY['\\x01'::bytea] WHERE key = %s", key)
        assert claimed(scope, key) == ("replay_success", None)
        fresh.execute("UPDATE once.intent SET redirects = NULL, completed_at = completed_at - interval '101 years' WHERE key = %s", key)
        assert claimed(scope, key) == ("replay_success", 0)


def test_a_zone_that_is_full_lets_go_of_what_was_used_longest_ago(database, upstream):
    with opened(database, upstream, "once_replay_cache zone=small:256k;") as door:
        keys = [done(door, answer=Answer(200, body=os.urandom(20_000)))[0] for _ in range(30)]
        found = counted(door)
        assert found["kept"] == 30 and 15 < found["evicted"] < 30
        served = [door.attempt(key).header("X-Cache") == FROM_CACHE for key in reversed(keys)]
        assert served[0] and not served[-1]


def test_an_answer_that_has_no_room_at_all_is_not_kept_and_nothing_breaks(database, upstream):
    with opened(database, upstream, "once_replay_cache zone=small:32k;") as door:
        key, first = done(door, answer=Answer(200, body=os.urandom(60_000)))
        assert counted(door)["kept"] == 0
        assert not is_cached(door, key, first)
        key, first = done(door)
        assert is_cached(door, key, first)


def test_a_lost_connection_empties_it(door):
    key, first = done(door)
    assert is_cached(door, key, first)
    with forgotten(door):
        pass
    assert soon(door, key).body == b"changed"
    again = done(door)
    assert is_cached(door, *again)


def test_an_answer_that_was_under_way_when_a_connection_was_lost_is_not_kept(door):
    key = new_key()
    answer = Answer(201, hold=threading.Event())
    door.upstream.script(key, answer)
    attempt = door.start(key)
    wait_until(lambda: door.count(key) == 1, "the attempt to run")
    with forgotten(door):
        pass
    assert is_cached(door, *done(door))  # it is in use again
    before = counted(door)
    answer.hold.set()
    assert attempt.result().status == 201
    assert "kept" not in since(before, counted(door))
    change(door, key)
    assert door.attempt(key).body == b"changed"


# ---- What is said of it


def test_hits_are_counted_on_the_page_in_the_metrics_and_in_the_database(fresh, upstream):
    with opened(fresh, upstream) as door:
        counts = dict(fresh.rows("SELECT * FROM once.counts()"))
        key, first = done(door)
        for _ in range(7):
            assert is_cached(door, key, first)
        for _ in range(2):
            door.attempt(key, body=b"other")
        assert counted(door) == {"hit": 7, "mismatch": 2, "miss": 1, "kept": 1, "evicted": 0, "emptied": 0}
        samples = metrics(door)["pgonce_cache"].samples
        assert {dict(labels)["event"]: value for (_, labels), value in samples.items()} == counted(door)
        assert page(door)["scopes"]["pay"]["replay"] == 7 and page(door)["scopes"]["pay"]["mismatch"] == 2

        def told():
            now = dict(fresh.rows("SELECT * FROM once.counts()"))
            return {verdict: now[verdict] - counts[verdict] for verdict in ("new", "replay", "mismatch")} == {"new": 1, "replay": 7, "mismatch": 2}

        wait_until(told, "the database to be told")


def replays(database):
    return dict(database.rows("SELECT * FROM once.counts()"))["replay"]


@pytest.mark.parametrize("ends", ["reload", "stop"])
def test_a_worker_that_ends_in_peace_tells_of_its_last_hits_first(fresh, upstream, ends):
    end_in_peace(fresh, upstream, ends)


def end_in_peace(fresh, upstream, ends, **options):
    with opened(fresh, upstream, **options) as door:
        before = replays(fresh)
        key, first = done(door)
        for _ in range(5):
            assert is_cached(door, key, first)
        assert replays(fresh) == before
        if ends == "reload":
            door.nginx.reload()
            wait_until(lambda: replays(fresh) == before + 5, "the old worker to tell")
        else:
            door.nginx.stop()
            assert replays(fresh) == before + 5


def test_a_worker_that_ends_without_a_database_does_not_stay_for_its_hits(upstream):
    with Postgres() as server:
        with opened(server.new_database(), upstream, HTTP + "once_timeout 1s;") as door:
            key, first = done(door)
            assert is_cached(door, key, first)
            server.stop("immediate")
            door.nginx.stop()  # or this waits for ever, and raises


def test_hits_that_could_not_be_told_are_told_later(fresh, upstream):
    with opened(fresh, upstream, HTTP + "once_timeout 1s;") as door:
        key, first = done(door)
        counts = dict(fresh.rows("SELECT * FROM once.counts()"))
        mutate(fresh, "count_cached", "IF replays", "IF replays > 0 THEN RAISE SQLSTATE 'P0001'; END IF; IF replays")
        for _ in range(5):
            assert is_cached(door, key, first)
        failed = page(door)["operations"]["claims"]
        wait_until(lambda: page(door)["operations"]["claims"] > failed + 1, "two tries to tell")
        assert dict(fresh.rows("SELECT * FROM once.counts()"))["replay"] == counts["replay"]
        mutate(fresh, "count_cached", "IF replays > 0 THEN RAISE SQLSTATE 'P0001'; END IF; IF replays", "IF replays")
        wait_until(lambda: dict(fresh.rows("SELECT * FROM once.counts()"))["replay"] == counts["replay"] + 5, "the database to be told")


@pytest.mark.parametrize(
    "value, said",
    [
        ("on", "takes zone=NAME:SIZE, or off"),
        ("zone=", "takes zone=NAME:SIZE, or off"),
        ("zone=a", "with a name and a size"),
        ("zone=:1m", "with a name and a size"),
        ("zone=a:", "no valid size"),
        ("zone=a:large", "no valid size"),
        ("zone=a:16k", "at least 8 pages of memory"),
        ("zone=once_status:1m", "needs another name"),
        ("zone=a:1m; once_replay_cache off", "is duplicate"),
        ("off; once_replay_cache zone=a:1m", "is duplicate"),
        ("zone=a:1m; limit_req_zone $uri zone=a:1m rate=1r/s", "already"),
    ],
)
def test_what_it_does_not_take_is_explained(database, upstream, value, said):
    with pytest.raises(Refused) as refused:
        Door(database, upstream, CONFIG, f"once_replay_cache {value};").nginx.check()
    assert said in str(refused.value)


# ---- Each guarantee taken out

WITHOUT = {
    "emptied when a connection is lost": (
        ("static void on_lost(void) { lock(); throw_away();", "static void on_lost(void) { lock();"),
        test_a_lost_connection_empties_it,
    ),
    "not kept where a connection was lost meanwhile": (
        ("attempt->claim.generation == cache.zone->generation && source.node", "source.node"),
        test_an_answer_that_was_under_way_when_a_connection_was_lost_is_not_kept,
    ),
    "of one tenant": (
        ("!put_name(names, intent->tenant) || !put_name(names, intent->scope)", "!put_name(names, intent->scope)"),
        test_tenants_and_scopes_have_their_own_answers,
    ),
    "of one scope": (
        ("!put_name(names, intent->scope) || !put_name(names, intent->key)", "!put_name(names, intent->key)"),
        test_tenants_and_scopes_have_their_own_answers,
    ),
    "of one request": (
        ("if (ngx_memcmp(cached->fingerprint, fingerprint->bytes, ONCE_FINGERPRINT_BYTES) != 0) {", "if (0) {"),
        lambda door: test_another_request_with_the_key_is_a_mismatch_and_the_database_is_not_asked(door, H1),
    ),
    "within the retention": (
        ("if ((ngx_msec_int_t)(cached->until - ngx_current_msec) <= 0) { forget", "if (0) { forget"),
        test_nothing_is_served_after_its_retention,
    ),
    "of at most 64 kB": (
        ("answer->body.length > BODY_BYTES_MAX", "answer->body.length > 65537"),
        lambda door: test_a_body_above_64_kb_is_not_kept(door, 65537, False),
    ),
}


@pieces_only
@pytest.mark.parametrize("guarantee", list(WITHOUT))
def test_without_its_guarantee_the_test_fails(database, upstream, guarantee):
    piece, check = WITHOUT[guarantee]
    with broken(database, upstream, piece) as door:
        assert is_cached(door, *done(door))  # the door itself works
        with pytest.raises((AssertionError, TimeoutError)):
            check(door)


@pieces_only
def test_without_staying_the_test_of_a_worker_that_ends_fails(fresh, upstream):
    with mutant("ngx_http_once_cache.c", ("cache.timer.cancelable = !has_news();", "cache.timer.cancelable = 1;")) as module:
        with pytest.raises(AssertionError):
            end_in_peace(fresh, upstream, "stop", module=module)
