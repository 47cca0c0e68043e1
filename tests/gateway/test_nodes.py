# SPDX-License-Identifier: PostgreSQL
"""once_nodes: each tenant's requests go to the node that has its slot open, also while slots move and nodes die: nothing is lost, and nothing happens
twice."""

import json
import threading
import time

import pytest

from cli.command import Command
from harness.mutation import mutate
from harness.nginx import Nginx, Refused
from harness.postgres import Postgres, wait_until
from harness.upstream import NOT_NOW, Answer

from move.conftest import SETTINGS

from .copies import pieces_only
from .door import Door, assert_problem, new_key, soon
from .load import Load
from .mutant import mutant
from .nodes import (
    CONFIG,
    NODES_HTTP,
    carry,
    close,
    divide,
    lines_of,
    move,
    open_at,
    opened,
    ready,
    row,
    state,
    tenant_of,
    wait_connected,
    write,
)
from .test_status import page

CACHE = "once_replay_cache zone=nodes:1m;"


@pytest.fixture
def nodes(server):
    both = [server.new_database(), server.new_database()]
    divide(*both)
    yield both
    for database in both:
        database.drop()


@pytest.fixture
def door(nodes, upstream):
    with opened(nodes, upstream) as running:
        yield running


def rerouted(door):
    return page(door)["rerouted"]


# ---- Where a request goes


def test_each_tenant_is_served_by_the_node_that_has_its_slot_open(nodes, upstream):
    first, second = nodes
    move(first, second, 7)
    with opened(nodes, upstream, workers=2) as door:
        for slot, own, other in ((6, first, second), (7, second, first)):
            tenant, key = tenant_of(first, slot), new_key()
            answer = door.attempt(key, tenant=tenant)
            assert answer.status == 201
            again = door.attempt(key, tenant=tenant)
            assert again.replayed and again.body == answer.body and door.count(key) == 1
            assert (state(own, key, tenant), state(other, key, tenant)) == ("succeeded", None)
            assert_problem(door.attempt(key, tenant=tenant, body=b"{}"), 422, "mismatch")
        assert rerouted(door) == 0


def test_the_installation_decides_which_slot_a_tenant_has(server, upstream):
    both = [server.new_database(), server.new_database()]
    try:
        own = "CREATE OR REPLACE FUNCTION once.slot_of(tenant text) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT length(tenant)'"
        both[0].execute(own)
        divide(*both)
        move(*both, 4)
        with opened(both, upstream) as door:
            for tenant, node in (("four", both[1]), ("fiver", both[0])):
                key = new_key()
                assert door.attempt(key, tenant=tenant).status == 201
                assert state(node, key, tenant) == "succeeded"
            assert rerouted(door) == 0
    finally:
        for database in both:
            database.drop()


def relearn(nodes, upstream, **options):
    """Both nodes have another hash since the worker learnt it."""
    first, second = nodes
    move(first, second, 7)
    with opened(nodes, upstream, **options) as door:
        tenant = tenant_of(first, 6)
        assert door.attempt(new_key(), tenant=tenant).status == 201
        for node in nodes:
            node.execute("CREATE OR REPLACE FUNCTION once.slot_of(tenant text) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 7'")
        key = new_key()
        assert door.attempt(key, tenant=tenant).status == 201
        assert state(second, key, tenant) == "succeeded"


def test_a_node_that_names_another_slot_is_believed(nodes, upstream):
    relearn(nodes, upstream)


def test_a_tenant_whose_slot_no_node_tells_gets_503_and_runs_nowhere(nodes, upstream):
    """The installation's own function fails for it; other tenants are served."""
    first, second = nodes
    with opened(nodes, upstream) as door:
        known, key = tenant_of(first, 9), new_key()
        for node in nodes:
            node.execute("ALTER FUNCTION once.slot_of(text) RENAME TO slot_of_others")
            node.execute("CREATE FUNCTION once.slot_of(tenant text) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN IF tenant = 'odd' THEN RAISE 'odd'; END IF; "
                         "RETURN once.slot_of_others(tenant); END $$")
            node.execute("GRANT EXECUTE ON FUNCTION once.slot_of(text) TO PUBLIC")
        answer = door.attempt(key, tenant="odd")
        assert (answer.status, door.count(key)) == (503, 0)
        assert (state(first, key, "odd"), state(second, key, "odd")) == (None, None)
        assert door.attempt(new_key(), tenant=known).status == 201


def stale_epoch(nodes, upstream, **options):
    first, second = nodes
    open_at(second, 9, 2)  # nobody may do this: it is open on both
    tenant, key = tenant_of(first, 9), new_key()
    with opened(nodes, upstream, **options) as door:
        assert door.attempt(key, tenant=tenant).status == 201
        assert (state(first, key, tenant), state(second, key, tenant)) == (None, "succeeded")


def test_of_two_nodes_with_an_open_slot_the_one_with_the_higher_epoch_serves_it(nodes, upstream):
    stale_epoch(nodes, upstream)


@pytest.mark.parametrize("case", ["closed with a higher epoch", "open twice with one epoch"])
def test_where_no_node_is_known_to_serve_a_slot_no_request_runs(nodes, upstream, case):
    unclear(nodes, upstream, case)


def unclear(nodes, upstream, case, **options):
    """Nobody may do this: one node is a copy of the other, or from before the slot moved."""
    first, second = nodes
    tenant, key = tenant_of(first, 9), new_key()
    if case.startswith("closed"):
        open_at(second, 9, 3)
        close(second, 9)
    else:
        second.execute("SELECT setval('once.slot_9_seq', 3)")  # as the first has it
    with opened(nodes, upstream, **options) as door:
        assert_problem(door.attempt(key, tenant=tenant), 503, "unavailable")
        assert_problem(door.attempt(key, "/open", tenant=tenant), 503, "unavailable")
        assert door.count(key) == 0
        assert door.attempt(new_key(), tenant=tenant_of(first, 8)).status == 201
        open_at(second, 9, 5) if case.startswith("closed") else close(second, 9)
        assert soon(door, key, tenant=tenant).status == 201


def test_a_node_that_is_not_divided_gets_no_request_from_a_file_of_several(server, nodes, upstream):
    plain = server.new_database()
    try:
        tenant = tenant_of(nodes[0], 3)
        with opened([plain, nodes[0]], upstream, connected=1) as door:
            key = new_key()
            assert door.attempt(key, tenant=tenant).status == 201
            assert state(nodes[0], key, tenant) == "succeeded"
            close(nodes[0], 3)
            assert_problem(door.attempt(new_key(), tenant=tenant), 503, "unavailable")
            assert plain.value("SELECT count(*) FROM once.intent") == 0
            assert ready(door) == (200, {"ready": True, "away": [name_of(plain)]})
            assert f"node {name_of(plain)} does not answer" in door.nginx.log() and "this node is not divided" in door.nginx.log()
    finally:
        plain.drop()


def name_of(database):
    parts = dict(part.split("=", 1) for part in database.dsn().split())
    return f"{parts['host']}:{parts['port']}/{parts['dbname']}"


# ---- A slot moves


def moved(nodes, upstream, **options):
    """The client sees nothing of it."""
    first, second = nodes
    tenant, before, after = tenant_of(first, 5), new_key(), new_key()
    with opened(nodes, upstream, **options) as door:
        answer = door.attempt(before, tenant=tenant)
        move(first, second, 5)
        assert door.attempt(after, tenant=tenant).status == 201
        assert door.count(after) == 1 and state(second, after, tenant) == "succeeded" and state(first, after, tenant) is None
        again = door.attempt(before, tenant=tenant)
        assert again.replayed and again.body == answer.body and door.count(before) == 1
        assert rerouted(door) == 1  # since then it is known
        assert door.attempt(new_key(), tenant=tenant_of(first, 6)).status == 201 and rerouted(door) == 1


def test_a_slot_that_has_moved_is_found_again_within_the_request(nodes, upstream):
    moved(nodes, upstream)


def closed_everywhere(nodes, upstream, **options):
    first, second = nodes
    tenant, keys = tenant_of(first, 5), [new_key() for _ in range(3)]
    with opened(nodes, upstream, **options) as door:
        assert door.attempt(new_key(), tenant=tenant).status == 201
        close(first, 5)
        for key, target in zip(keys, ("/pay", "/open", "/open")):
            answer = assert_problem(door.attempt(key, target, tenant=tenant, timeout=10), 503, "unavailable")
            assert answer.header("Retry-After")
            assert door.count(key) == 0
        assert door.attempt(new_key(), tenant=tenant_of(first, 6)).status == 201
        open_at(second, 5, 2)
        for key in keys:
            assert door.attempt(key, tenant=tenant).status == 201 and door.count(key) == 1
        assert all(state(second, key, tenant) == "succeeded" for key in keys)


def test_a_slot_that_is_closed_everywhere_is_503_and_passes_nowhere(nodes, upstream):
    closed_everywhere(nodes, upstream)


def slow_third(server, nodes, upstream, **options):
    """A node that does not tell its slots holds up nobody whose slot another node has opened."""
    first, second = nodes
    third = server.new_database()
    try:
        assert third.value("SELECT joined FROM once._join(%s::jsonb)", json.dumps(first.value("SELECT once._node()")))
        third.execute("CALL once.divide()")
        tenant = tenant_of(first, 5)
        with opened([third, first, second], upstream, **options) as door:
            assert door.attempt(new_key(), tenant=tenant).status == 201
            holder = third.connect()
            holder.cursor().execute("SELECT pg_advisory_lock(77)")
            mutate(third, "slots", "generate_series(0, 63) AS g (n)", "generate_series(0, 63) AS g (n), pg_advisory_lock_shared(77)")
            move(first, second, 5)
            key = new_key()
            before = time.monotonic()
            assert door.attempt(key, tenant=tenant).status == 201
            assert time.monotonic() - before < 2.5 and state(second, key, tenant) == "succeeded"  # once_timeout is 5s
            holder.close()
    finally:
        third.drop()


@pytest.mark.alone
def test_a_node_that_is_slow_to_answer_holds_up_no_request_of_another(server, nodes, upstream):
    slow_third(server, nodes, upstream)


def refused_twice(nodes, upstream, **options):
    """The node says that its slot is open, and refuses the tenant nevertheless."""
    first, _ = nodes
    mutate(first, "slots", "s.state % 2 = 1", "true")
    tenant, key = tenant_of(first, 5), new_key()
    with opened(nodes, upstream, **options) as door:
        close(first, 5)
        assert_problem(door.attempt(key, tenant=tenant, timeout=5), 503, "unavailable")
        assert door.count(key) == 0 and rerouted(door) == 1


def test_a_request_is_sent_once_more_and_not_again(nodes, upstream):
    refused_twice(nodes, upstream)


def test_slots_that_move_under_load_lose_no_request_and_run_none_twice(nodes, upstream):
    first, second = nodes
    slot = first.value("SELECT once.slot_of('acme')")
    with opened(nodes, upstream, workers=2) as door:
        with Load(door, clients=8) as load:
            for origin, target in ((first, second), (second, first), (first, second)):
                load.wait_more(10)
                move(origin, target, slot)
            load.wait_more(10)
        door.database = second
        load.assert_safe(doubt=False)
        assert all(door.count(ended.key) == 1 for ended in load.ended)
        assert set(load.hindrances()) <= {"active", "unavailable", "not-stored"}, set(load.hindrances())
        assert rerouted(door) >= 3
        assert first.value("SELECT count(*) FROM once.intent WHERE state = 'succeeded'") < len(load.ended)


def test_pgonce_rehome_moves_slots_under_load(upstream, tmp_path):
    with Postgres(settings=SETTINGS) as server:
        if server.version < 15:
            pytest.skip("row filters need PostgreSQL 15")
        first, second = server.new_database(), server.new_database()
        divide(first, second)
        slot = str(first.value("SELECT once.slot_of('acme')"))
        with opened([first, second], upstream, workers=2) as door:
            with Load(door, clients=6) as load:
                for origin, target in ((first, second), (second, first)):
                    load.wait_more(10)
                    done = Command(None, tmp_path)("rehome", slot, "--from", origin.dsn(), "--to", target.dsn())
                    assert done.returncode == 0, done.stderr
                load.wait_more(10)
            door.database = first
            load.assert_safe(doubt=False)
            assert all(door.count(ended.key) == 1 for ended in load.ended)
            assert set(load.hindrances()) <= {"active", "unavailable", "not-stored"}, set(load.hindrances())
            assert rerouted(door) >= 2


def test_a_duplicate_that_waits_finds_its_original_at_the_new_node(nodes, upstream, door):
    first, second = nodes
    tenant, key, hold = tenant_of(first, 5), new_key(), threading.Event()
    door.upstream.script(key, Answer(hold=hold))
    original = door.start(key, "/wait", tenant=tenant)
    door.upstream.wait(key)
    duplicate = door.start(key, "/wait", tenant=tenant)
    wait_until(lambda: page(door)["waiting"] == 1, "the duplicate to wait")
    carry(first, second, 5)
    open_at(second, 5, 2)  # before the other closes: the duplicate looks at any time
    close(first, 5)
    hold.set()
    assert original.result().status == 201
    again = duplicate.result()
    assert again.replayed and again.body == original.result().body and door.count(key) == 1


# ---- The end of an attempt whose slot has moved meanwhile

REPORTS = {
    "an answer": (Answer(), 201, "succeeded"),
    "a refusal": (Answer(402), 402, "failed_final"),
    "a failure": (Answer(500), 500, "in_doubt"),
    "an answer that asks again": (NOT_NOW, 503, "failed_retryable"),
}


def reported(nodes, upstream, answer, status, said, **options):
    first, second = nodes
    tenant, key, hold = tenant_of(first, 5), new_key(), threading.Event()
    with opened(nodes, upstream, **options) as door:
        door.upstream.script(key, Answer(answer.status, headers=answer.headers, hold=hold))
        attempt = door.start(key, tenant=tenant)
        door.upstream.wait(key)
        move(first, second, 5)
        assert state(second, key, tenant) == "processing"
        hold.set()
        assert attempt.result().status == status and attempt.result().problem is None
        assert (state(first, key, tenant), state(second, key, tenant)) == ("processing", said)
        assert rerouted(door) == 1


@pytest.mark.parametrize("case", REPORTS)
def test_a_report_follows_its_intent_to_the_new_node(nodes, upstream, case):
    reported(nodes, upstream, *REPORTS[case])


def renewed(nodes, upstream, **options):
    first, second = nodes
    tenant, key, hold = tenant_of(first, 5), new_key(), threading.Event()
    with opened(nodes, upstream, **options) as door:
        door.upstream.script(key, Answer(hold=hold))
        attempt = door.start(key, "/brief", tenant=tenant)
        door.upstream.wait(key)
        move(first, second, 5)
        before = row(second, key, tenant).lease_until
        try:
            wait_until(lambda: row(second, key, tenant).lease_until > before, "a renewal at the new node", 10)
            again = door.attempt(key, "/brief", tenant=tenant)
            assert_problem(again, 409, "active")
        finally:
            hold.set()
        assert attempt.result().status == 201 and state(second, key, tenant) == "succeeded"


def test_a_lease_is_renewed_at_the_new_node(nodes, upstream):
    renewed(nodes, upstream)


def test_a_report_while_no_node_has_the_slot_open_is_repeated_until_one_has(nodes, upstream):
    first, second = nodes
    tenant, key, hold = tenant_of(first, 5), new_key(), threading.Event()
    with opened(nodes, upstream) as door:
        door.upstream.script(key, Answer(hold=hold))
        attempt = door.start(key, tenant=tenant)
        door.upstream.wait(key)
        close(first, 5)
        hold.set()
        assert_problem(attempt.result(), 503, "not-stored")
        carry(first, second, 5)
        open_at(second, 5, 2)
        wait_until(lambda: state(second, key, tenant) == "succeeded", "the report at the new node")
        again = door.attempt(key, tenant=tenant)
        assert again.replayed and again.status == 201 and door.count(key) == 1


# ---- A node is away


@pytest.fixture
def mortal():
    with Postgres() as one, Postgres() as two:
        yield one, two


def test_a_node_that_is_killed_takes_only_its_own_tenants_with_it(mortal, upstream):
    first, second = (server.new_database() for server in mortal)
    divide(first, second)
    move(first, second, 7)
    here, there = tenant_of(first, 6), tenant_of(first, 7)
    with opened([first, second], upstream) as door:
        key = new_key()
        kept = door.attempt(key, tenant=there)
        assert kept.status == 201 and ready(door) == (200, {"ready": True})
        second.close()
        mortal[1].kill()
        wait_until(lambda: page(door)["nodes"][name_of(second)] == {"claims": 0, "reports": 0}, "the loss")
        assert page(door)["nodes"][name_of(first)] == {"claims": 1, "reports": 1}
        assert ready(door) == (200, {"ready": True, "away": [name_of(second)]})
        refused, passed = new_key(), new_key()
        assert_problem(door.attempt(refused, tenant=there), 503, "unavailable")
        assert door.count(refused) == 0
        assert door.attempt(passed, "/open", tenant=there).status == 201 and door.count(passed) == 1
        assert door.attempt(new_key(), tenant=here).status == 201
        # A tenant of neither memory: its slot is asked where somebody answers.
        assert door.attempt(new_key(), tenant=tenant_of(first, 6, 1)).status == 201
        assert_problem(door.attempt(new_key(), tenant=tenant_of(first, 7, 1)), 503, "unavailable")
        mortal[1].start()
        again = soon(door, key, tenant=there)
        assert again.replayed and again.body == kept.body
        assert soon(door, refused, tenant=there).status == 201
        wait_connected(door, 2)
        assert ready(door) == (200, {"ready": True})
        first.close()
        second.close()
        for server in mortal:
            server.kill()
        wait_until(lambda: ready(door)[0] == 503, "both to be lost")
        assert ready(door)[1]["away"] == [name_of(first), name_of(second)]


def closed_here_and_away_there(mortal, upstream, **options):
    """The other node may remember the key."""
    first, second = (server.new_database() for server in mortal)
    divide(first, second)
    tenant = tenant_of(first, 7)
    with opened([first, second], upstream, **options) as door:
        assert door.attempt(new_key(), tenant=tenant).status == 201
        second.close()
        mortal[1].kill()
        wait_connected(door, 1)
        close(first, 7)
        key = new_key()
        assert_problem(door.attempt(key, "/open", tenant=tenant), 503, "unavailable")
        assert door.count(key) == 0
        # From now on nothing is known of the slot, as of a database that is away.
        assert door.attempt(key, "/open", tenant=tenant).status == 201
        assert_problem(door.attempt(new_key(), tenant=tenant), 503, "unavailable")


def test_a_request_that_a_node_has_sent_away_never_passes_unprotected(mortal, upstream):
    closed_here_and_away_there(mortal, upstream)


def test_nginx_starts_without_a_node_and_finds_it_later(mortal, upstream):
    first, second = (server.new_database() for server in mortal)
    divide(first, second)
    move(first, second, 7)
    here, there = tenant_of(first, 6), tenant_of(first, 7)
    first.close()
    mortal[0].stop()
    with opened([first, second], upstream, connected=1, workers=2) as door:
        assert door.attempt(new_key(), tenant=there).status == 201
        assert_problem(door.attempt(new_key(), tenant=here), 503, "unavailable")
        mortal[0].start()
        assert soon(door, new_key(), tenant=here).status == 201


def test_a_slot_whose_node_has_died_is_found_where_it_is_opened_instead(mortal, upstream):
    first, second = (server.new_database() for server in mortal)
    divide(first, second)
    move(first, second, 7)
    tenant = tenant_of(first, 7)
    with opened([first, second], upstream) as door:
        assert door.attempt(new_key(), tenant=tenant).status == 201
        second.close()
        mortal[1].kill()
        wait_connected(door, 1)
        assert_problem(door.attempt(new_key(), tenant=tenant), 503, "unavailable")
        open_at(first, 7, 3)
        key = new_key()
        assert soon(door, key, tenant=tenant).status == 201 and state(first, key, tenant) == "succeeded"


# ---- Copies of answers


def copied(nodes, upstream, idle, **options):
    """A key whose answer is in the cache, and another one in the memory; the slot moves, and comes back."""
    first, second = nodes
    tenant, key = tenant_of(first, 5), new_key()
    with opened(nodes, upstream, CACHE, **options) as door:
        answer = door.attempt(key, tenant=tenant)
        assert door.attempt(key, tenant=tenant).header("X-Cache") == "hit"
        assert first.value("UPDATE once.intent SET response_body = 'changed' WHERE key = %s RETURNING 1", key) == 1
        assert door.attempt(key, tenant=tenant).body == answer.body
        for origin, target in ((first, second), (second, first)):
            move(origin, target, 5)
            if idle:
                wait_until(lambda: door.attempt(key, tenant=tenant).body == b"changed", "the copy to be left alone", 5)
            else:
                assert door.attempt(new_key(), tenant=tenant).status == 201  # hears of it
            again = door.attempt(key, tenant=tenant)
            assert again.replayed and again.body == b"changed" and door.count(key) == 1
            assert door.attempt(key, tenant=tenant).header("X-Cache") == "hit"
            target.execute("UPDATE once.intent SET response_body = 'changed again' WHERE key = %s", key)
            assert door.attempt(key, tenant=tenant).body == b"changed"  # the node's own copies are served
            target.execute("UPDATE once.intent SET response_body = 'changed' WHERE key = %s", key)
        other = tenant_of(first, 6)
        assert door.attempt(key, tenant=other).replayed is False


@pytest.mark.parametrize("idle", [False, True], ids=["noticed by a request", "noticed while idle"])
def test_a_copy_of_an_answer_is_not_served_for_a_slot_that_has_moved(nodes, upstream, idle):
    copied(nodes, upstream, idle)


def test_replays_from_copies_are_counted_at_the_node_that_has_the_answer(nodes, upstream):
    first, second = nodes
    move(first, second, 5)
    counts = "SELECT count FROM once.counts() WHERE verdict = 'replay'"
    with opened(nodes, upstream, CACHE) as door:
        tenant, key = tenant_of(first, 5), new_key()
        door.attempt(key, tenant=tenant)
        for _ in range(3):
            assert door.attempt(key, tenant=tenant).header("X-Cache") == "hit"
        wait_until(lambda: second.value(counts) == 3, "the count")
        assert first.value(counts) == 0


# ---- The file


@pytest.fixture(scope="module")
def checked():
    never_started = Nginx()
    yield never_started
    never_started.destroy()


def check(nginx, text, directives="once_nodes @dir@/nodes;"):
    path = nginx.directory / "nodes"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(0o644)
    nginx.write(http=directives)
    return nginx.check()


def refusal(*args):
    with pytest.raises(Refused) as refused:
        check(*args)
    return str(refused.value)


def test_a_file_of_64_nodes_is_read(checked):
    said = check(checked, "# comment\n\n \t\r\n" + "".join(f"\t host=/nowhere dbname=n{i}\r\n" for i in range(64)))
    assert "successful" in said
    check(checked, "postgresql:///app?host=/nowhere")
    assert 'line 2 of "' in check(checked, "\nhost=db.example") and "blocks the whole worker" in check(checked, "host=db.example")


BAD_FILES = {
    "empty": ("", "names no node"),
    "without a node": ("# nothing\n\n  # but words\n", "names no node"),
    "65 nodes": ("# first\n" + "".join(f"dbname=n{i}\n" for i in range(65)), 'line 66 of "@dir@/nodes": a file has at most 64 nodes'),
    "one node twice": ("dbname=a\ndbname=b\n dbname=a \n", 'line 3 of "@dir@/nodes" is there twice'),
    "an unreadable line": ("dbname=app\n\nhost=db password=hush nonsense\n", 'line 3 of "@dir@/nodes": libpq cannot read this connection string'),
    "a zero byte": (b"dbname=app\0\n", "contains a zero byte"),
    "too large": (b"#" * (1 << 20), "is too large"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_file_that_is_no_list_of_nodes_is_refused_with_its_name(checked, case):
    text, said = BAD_FILES[case]
    found = refusal(checked, text)
    assert said.replace("@dir@", str(checked.directory)) in found and str(checked.directory / "nodes") in found
    assert "hush" not in found


def test_a_file_that_is_not_there_or_cannot_be_read_is_refused(checked):
    assert f'the file "{checked.directory}/none" cannot be opened' in refusal(checked, None, "once_nodes @dir@/none;")
    assert "none" in refusal(checked, None, "once_nodes none;")
    found = refusal(checked, None, "once_nodes @dir@;")
    assert f'the file "{checked.directory}" cannot be read' in found
    assert "is empty" in refusal(checked, None, 'once_nodes "";')


def test_once_nodes_and_once_database_exclude_each_other(checked):
    database, file = 'once_database "dbname=app";', "once_nodes @dir@/nodes;"
    for directives in (database + file, file + database):
        assert "exclude each other" in refusal(checked, "dbname=app", directives)
    assert "is duplicate" in refusal(checked, "dbname=app", file + file)
    assert "once is on, but there is no once_database" in refusal_of_server(checked)


def refusal_of_server(nginx):
    nginx.write(http="", server="location /pay { once on; once_tenant none; proxy_pass http://127.0.0.1:9; }")
    try:
        with pytest.raises(Refused) as refused:
            nginx.check()
    finally:
        nginx.write(server="")
    return str(refused.value)


def test_a_reload_reads_the_file_again(server, nodes, upstream):
    first, second = nodes
    tenant = tenant_of(first, 5)
    with opened([first], upstream, workers=2) as door:
        key = new_key()
        door.attempt(key, tenant=tenant)
        move(first, second, 5)
        assert_problem(door.attempt(key, tenant=tenant), 503, "unavailable")
        assert "nodes" not in page(door)
        write(door, lines_of(second, first))
        door.nginx.reload()
        again = soon(door, key, tenant=tenant)
        assert again.replayed and door.count(key) == 1
        wait_until(lambda: set(page(door)["nodes"]) == {name_of(first), name_of(second)}, "the nodes' names")
        write(door, lines_of(second))
        door.nginx.reload()
        wait_until(lambda: "nodes" not in page(door), "the old workers' end")
        assert door.attempt(key, tenant=tenant).replayed
        assert_problem(door.attempt(new_key(), tenant=tenant_of(first, 6)), 503, "unavailable")


def test_a_file_of_one_line_is_like_once_database(fresh, upstream):
    with opened([fresh], upstream) as door:  # it is not divided
        key = new_key()
        assert door.attempt(key).status == 201 and door.attempt(key).replayed
        assert ready(door) == (200, {"ready": True}) and "nodes" not in page(door)
        fresh.execute("CALL once.divide(true)")
        close(fresh, fresh.value("SELECT once.slot_of('acme')"))
        assert_problem(door.attempt(new_key(), "/open"), 503, "unavailable")
        assert rerouted(door) == 0
        assert "pgonce_node_connections" not in door.nginx.ask("GET", "/metrics").body.decode()


def test_nodes_are_shown_by_name_and_never_by_connection_string(nodes, upstream):
    text = "".join(f"{node.dsn()} password=hush\n" for node in nodes) + nodes[0].dsn() + " application_name=again\n"
    with opened([*nodes, nodes[0]], upstream, text=text) as door:
        seen = [name_of(nodes[0]), name_of(nodes[1]), name_of(nodes[0]) + " (line 3)"]
        assert list(page(door)["nodes"]) == seen
        metrics = door.nginx.ask("GET", "/metrics").body.decode()
        for name in seen:
            assert f'pgonce_node_connections{{node="{name}",connection="claims"}} 1' in metrics
        assert "pgonce_rerouted_operations_total 0" in metrics and 'pgonce_connections{connection="claims"} 3' in metrics
        assert "hush" not in metrics + str(page(door)) + door.nginx.log()


# ---- Each guarantee taken out

NODES, CACHED, CONNINFO = "ngx_http_once_nodes.c", "ngx_http_once_cache.c", "ngx_http_once_conninfo.c"
NEVER_AGAIN = ("attempt->route.moved = 1;", "return 0;")
UNRENEWED = [("answer == NULL && send_elsewhere(attempt, error, renew)", "0"), ('"renew_failed", error); gate_nodes_look();', '"renew_failed", error);')]
TAKEN_OUT = {
    "a second try": (NODES, NEVER_AGAIN, moved, ()),
    "a second try of a report": (NODES, NEVER_AGAIN, reported, REPORTS["an answer"]),
    "a second try of a failure": (NODES, NEVER_AGAIN, reported, REPORTS["a failure"]),
    "a renewal elsewhere": ("ngx_http_once_report.c", UNRENEWED, renewed, ()),
    "a look at the slots": (NODES, ("wait_in(&nodes.next, attempt, then);", "then(attempt);"), moved, ()),
    "only one more try": (NODES, ("|| attempt->route.moved) { return 0;", ") { return 0;"), refused_twice, ()),
    "the higher epoch": (NODES, ("if (said > *epoch) {", "if (*epoch == 0) {"), stale_epoch, ()),
    "closed epochs": (NODES, ("if (said > *epoch) {", "if (open && said > *epoch) {"), unclear, ("closed with a higher epoch",)),
    "one node for an epoch": (NODES, ("return owners == 1 ?", "return owners >= 1 ?"), unclear, ("open twice with one epoch",)),
    "the node's own word": (NODES, ("learn(attempt, once_error_detail(error));", ""), relearn, ()),
    "the slot of a copy": (CACHED, ("if (cached->source != source->node || cached->epoch != source->epoch) {", "if (0) {"), copied, (False,)),
    "a look at the slots of copies": (CACHED, ("gate_nodes_refresh();", ""), copied, (True,)),
}


@pieces_only
@pytest.mark.parametrize("case", TAKEN_OUT)
def test_without_its_guarantee_the_test_fails(nodes, upstream, case):
    name, pieces, check_it, arguments = TAKEN_OUT[case]
    with mutant(name, *(pieces if isinstance(pieces, list) else [pieces])) as module:
        with pytest.raises((AssertionError, TimeoutError, ConnectionError, OSError)):
            check_it(nodes, upstream, *arguments, module=module)


@pieces_only
def test_without_it_the_test_of_a_request_that_was_sent_away_fails(mortal, upstream):
    with mutant("ngx_http_once_step.c", ("if (attempt->step == HTTP_PASS && attempt->route.moved) {", "if (0) {")) as module:
        with pytest.raises(AssertionError):
            closed_here_and_away_there(mortal, upstream, module=module)


@pieces_only
@pytest.mark.alone
def test_without_it_the_test_of_a_slow_node_fails(server, nodes, upstream):
    with mutant(NODES, ("wake_found();", "")) as module:
        with pytest.raises(AssertionError):
            slow_third(server, nodes, upstream, module=module)


@pieces_only
def test_without_a_limit_the_test_of_a_file_of_65_nodes_fails():
    with mutant(CONNINFO, ("if (main->nodes.nelts == GATE_NODES_MAX) {", "if (0) {")) as module:
        nginx = Nginx(module=module)
        try:
            with pytest.raises(pytest.fail.Exception):
                refusal(nginx, BAD_FILES["65 nodes"][0])
        finally:
            nginx.destroy()
