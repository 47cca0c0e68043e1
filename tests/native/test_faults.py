# SPDX-License-Identifier: PostgreSQL
"""At each call that pgonce_native makes of the server, in turn: memory runs out there, or all that is known of catalogues is forgotten there, as
debug_discard_caches does on a server that is built with assertions. The first must end in an ERROR that a savepoint takes back whole, the second must
not show at all."""

import platform
import shutil

import psycopg2
import pytest

from harness.native import ARM, install_native, library, with_points
from harness.postgres import private_directory

from .sessions import ANSWERED, F, Session

pytestmark = [
    pytest.mark.skipif(not library().exists(), reason="native/ is not built: no headers of a server"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the trampolines are written for x86-64"),
]
NOTHING, OUT_OF_MEMORY, FORGET, FORGET_ALWAYS = range(4)
POINTS_MAX = 4000
STORED = "SELECT tenant, scope, replace(key, %s, ''), bucket > 0, fence, attempts, state, response_status, response_body, owner FROM once.intent WHERE key LIKE %s ORDER BY 2, 3"

EVENTS = "SELECT topic, event_type, aggregate_id, replace(key, %s, ''), payload FROM once.outbox WHERE key LIKE %s"


@pytest.fixture(scope="module")
def points():
    directory = private_directory("pgonce-native-")
    path, names = with_points(directory)
    assert {"CatalogTupleInsert", "LockAcquire", "try_relation_open", "index_getnext_slot"} <= set(names)
    yield path
    shutil.rmtree(directory)


@pytest.fixture(scope="module", autouse=True)
def begun(server):
    """How long the server's log was."""
    return server.log.stat().st_size


@pytest.fixture
def prepared(server, points):
    db = server.new_database()
    install_native(db, points)
    db.execute(ARM.format(path=points))
    yield db
    db.drop()


def work(prefix):
    """What an application does, on keys that begin so."""
    return [
        "BEGIN",
        f"SELECT verdict, fence FROM once.start('s', '{prefix}a', {F})",
        f"SELECT once.finish('s', '{prefix}a', {F}, 201, response_json => '{{\"a\": 1}}', response_headers => '{{\"H\": \"1\"}}')",
        "COMMIT",
        f"SELECT verdict, response_status, response_body FROM once.start('s', '{prefix}a', {F}, traceparent => '00-{'a' * 32}-{'b' * 16}-01')",
        f"SELECT once.finish_new('s', '{prefix}b', {F}, 200, response_text => repeat('text', 1000))",
        f"SELECT verdict, fence FROM once.try_start('s', '{prefix}f', {F})",
        f"SELECT verdict, fence FROM once.start('s', '{prefix}c', {F})",
        f"SELECT verdict, fence, attempts FROM once.claim('s', '{prefix}d', {F}, 'me')",
        f"SELECT once.complete('s', '{prefix}d', 1, 200, response_text => 'done')",
        f"SELECT once.receive('s', '{prefix}e', {F})",
        f"SELECT once.receive('s', '{prefix}e', {F})",
        f"SELECT ord, verdict, fence, attempts FROM once.claim_many(ARRAY['s', 's'], ARRAY['{prefix}g', '{prefix}h'], ARRAY[{F}, {F}], 'me')",
        f"SELECT * FROM once.complete_many(ARRAY['s', 's', 's'], ARRAY['{prefix}g', '{prefix}h', '{prefix}none'], ARRAY[1, 1, 1], ARRAY[200, 201, 202])",
        f"SELECT * FROM once.receive_many('s', ARRAY['{prefix}i', '{prefix}j'], NULL, ARRAY[{F}, {F}])",
        f"SELECT once.emit('t', '{{\"n\": 1}}', 'order', '7', scope => 's', key => '{prefix}a') IS NULL",
    ]


def run(session, prefix):
    told = []
    for query in work(prefix):
        told.append(session.outcome(query))
        if session.connection.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_INERROR:
            session("ROLLBACK")
            break
    return told


def stored(session, prefix):
    return [tuple(row) for query in (STORED, EVENTS) for row in session(query, prefix, prefix + "%")]


def fresh(db):
    session = Session(db)
    session(f"SELECT once.start('warm', 'up', {F}), once.emit('t', '1', scope => 's', key => 'warm')")
    assert session.value("SHOW once.native") == "on"
    return session


def whole(db):
    db.execute("CREATE EXTENSION IF NOT EXISTS amcheck")
    db.execute("""SELECT bt_index_check(i.indexrelid, true) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
        WHERE c.relnamespace = 'once'::regnamespace AND c.relkind = 'i' AND c.relam = (SELECT a.oid FROM pg_am AS a WHERE a.amname = 'btree')""")


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("query", [number for number, text in enumerate(work("")) if "once." in text])
def test_memory_that_runs_out_at_any_call_ends_in_an_error_and_leaves_nothing(prepared, query, warm):
    """warm: what the library knows of the contract was looked up before."""
    session, pid = fresh(prepared), None
    for at in range(1, POINTS_MAX):
        prefix = f"{at}-{query}-{warm}-"
        for before in work(prefix)[:query]:
            session(before)
        if not warm:
            prepared.execute("COMMENT ON FUNCTION once._trace IS NULL; ALTER FUNCTION once._trace COST 100; ANALYZE once.intent_d0; ANALYZE once.outbox")
        inside = query < 3
        if inside:
            session("SAVEPOINT x")
        earlier = stored(session, prefix)
        session(f"SELECT once_native.arm({OUT_OF_MEMORY}, {at}, 1)")
        told = session.outcome(work(prefix)[query])
        if inside and told and told[0] == "53200":
            session("ROLLBACK TO x")
        failed = told and told[0] == "53200"
        session(f"SELECT once_native.arm({NOTHING}, 0, 0)")
        pid = pid or session.connection.info.backend_pid
        assert session.value("SELECT pg_backend_pid()") == pid
        assert session.value("SELECT current_user = session_user")
        if failed:
            assert told[2].endswith("on purpose."), told
            assert stored(session, prefix) == earlier
            assert session.value("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'") <= int(inside)
        # The session is as good as new.
        rest = [session.outcome(each) for each in work(prefix)[query if failed else query + 1 :]]
        assert all(isinstance(each, list) for each in rest), rest
        assert len(stored(session, prefix)) == 9
        if not failed:
            break
    else:
        pytest.fail("there is no end of it")
    assert at > 5
    whole(prepared)


def test_catalogues_that_are_forgotten_at_any_call_change_no_answer(prepared):
    session = fresh(prepared)
    session("SET once.native = off")
    expected = run(session, "off-")
    rows = stored(session, "off-")
    session("SET once.native = on")
    for at in range(1, POINTS_MAX):
        prefix = f"f{at}-"
        session(f"SELECT once_native.arm({FORGET}, {at}, {len(work(''))})")
        assert run(session, prefix) == expected, at
        count = session.value(f"SELECT once_native.arm({NOTHING}, 0, 0)")
        assert stored(session, prefix) == rows
        if count < at:
            break
    else:
        pytest.fail("there is no end of it")
    assert at > 50
    session(f"SELECT once_native.arm({FORGET_ALWAYS}, 0, {3 * len(work(''))})")
    for number in range(3):
        assert run(session, f"always{number}-") == expected
    assert session.value(f"SELECT once_native.arm({NOTHING}, 0, 0)") > 50
    before = session.value(ANSWERED)
    assert run(session, "after-") == expected
    assert session.value(ANSWERED) == before + sum("once." in each for each in work(""))
    whole(prepared)


def test_debug_discard_caches_is_not_to_be_had_here_or_changes_no_answer(server, prepared):
    """Debian's servers are built without assertions and refuse the setting; where one takes it, it is used."""
    session = fresh(prepared)
    name = "debug_discard_caches" if server.version >= 14 else "debug_invalidate_system_caches_always"
    if server.version < 14:
        pytest.skip("no setting of such a name before PostgreSQL 14")
    expected = run(session, "plain-")
    told = session.outcome(f"SET {name} = 1")
    assert told in ([],) or told[0] == "22023", told
    assert run(session, "discarding-") == expected


def test_the_server_was_never_restarted(server, begun):
    """Last of its file: no backend has crashed meanwhile. Before, one may have: other files break the library on purpose."""
    text = server.log.read_bytes()[begun:].decode(errors="replace")
    assert "terminated by signal" not in text and "PANIC" not in text
