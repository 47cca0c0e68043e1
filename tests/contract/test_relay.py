# SPDX-License-Identifier: PostgreSQL
"""What a relay reads: each committed event once, in the order of its aggregate's lock, whatever overlaps; and never what a
crash could still take away."""

import json
import random
import threading
import time

import psycopg2
import pytest

from harness.postgres import Postgres, wait_until

from .calls import code_of, refused, run
from .relaying import Relay, emit, ids, listed, parked, parking


# ---- what falls into which batch ----


def test_an_event_falls_into_the_first_batch_after_its_commit_and_into_no_other(db):
    relay = Relay(db.connect())
    writer = db.connect(isolation="READ COMMITTED")
    event = emit(writer)
    assert listed(relay) == []
    writer.commit()
    assert listed(relay) == [event]
    assert listed(relay) == []


def test_an_event_that_was_rolled_back_is_never_listed(db):
    relay = Relay(db.connect())
    writer = db.connect(isolation="READ COMMITTED")
    emit(writer)
    assert listed(relay) == []
    writer.rollback()
    assert listed(relay) == []


def test_an_event_of_a_subtransaction_counts_as_its_transaction_does(db):
    relay = Relay(db.connect())
    writer = db.connect(isolation="READ COMMITTED")
    first = emit(writer)
    run(writer, "SAVEPOINT a")
    second = emit(writer)
    run(writer, "SAVEPOINT b")
    emit(writer)
    run(writer, "ROLLBACK TO b")
    run(writer, "RELEASE a")
    assert listed(relay) == []
    writer.commit()
    assert listed(relay) == [first, second]


def test_a_transaction_that_commits_late_does_not_hold_up_the_others_and_is_not_skipped(db):
    relay = Relay(db.connect())
    slow = db.connect(isolation="READ COMMITTED")
    late = emit(slow)
    early = [emit(db.connect()) for _ in range(3)]
    assert listed(relay) == early
    more = emit(db.connect())
    assert listed(relay) == [more]
    slow.commit()
    assert listed(relay) == [late]


def test_what_commits_between_the_look_and_the_listing_belongs_to_the_next_batch(db):
    relay = Relay(db.connect())
    slow, slower = (db.connect(isolation="READ COMMITTED") for _ in range(2))
    late = emit(slow)
    early = emit(db.connect())
    reading = relay.look().reading
    later = emit(slower)
    slow.commit()
    slower.commit()
    assert [event.event_id for event in relay.fetch(relay.list(reading=reading))] == [early]
    relay.settle()
    assert sorted(listed(relay)) == sorted([late, later])


def test_a_prepared_transaction_is_listed_when_it_commits_even_after_a_restart_of_its_session(db):
    relay = Relay(db.connect())
    writer = db.connect()
    run(writer, "BEGIN")
    event = emit(writer)
    run(writer, f"PREPARE TRANSACTION '{db.name}'")
    writer.close()
    other = emit(db.connect())
    assert listed(relay) == [other]
    assert listed(relay) == []
    db.execute(f"COMMIT PREPARED '{db.name}'")
    assert listed(relay) == [event]


def test_a_prepared_transaction_that_is_rolled_back_is_never_listed(db):
    relay = Relay(db.connect())
    writer = db.connect()
    run(writer, "BEGIN")
    emit(writer)
    run(writer, f"PREPARE TRANSACTION '{db.name}'")
    assert listed(relay) == []
    db.execute(f"ROLLBACK PREPARED '{db.name}'")
    assert listed(relay) == []


def test_an_open_write_transaction_in_another_database_stalls_nothing(db, server):
    other = server.connect(autocommit=False)
    run(other, "SELECT pg_current_xact_id()")
    relay = Relay(db.connect())
    events = [emit(db.connect()) for _ in range(3)]
    assert listed(relay) == events
    other.rollback()
    other.close()
    assert listed(relay) == []


def test_a_writer_with_an_old_snapshot_is_listed_when_it_commits(db):
    relay = Relay(db.connect())
    writer = db.connect(isolation="REPEATABLE READ")
    run(writer, "SELECT 1 FROM once.errors()")
    others = [emit(db.connect()) for _ in range(2)]
    assert listed(relay) == others
    event = emit(writer)
    other = emit(db.connect())
    assert listed(relay) == [other]
    writer.commit()
    assert listed(relay) == [event]


@pytest.fixture
def thing(db):
    db.execute("CREATE TABLE thing (id text PRIMARY KEY, n integer NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO thing SELECT g FROM generate_series(1, 6) AS g")
    return "1"


def touch(connection, key):
    """Locks an aggregate and emits what it did: event n of its life."""
    n = run(connection, "UPDATE thing SET n = n + 1 WHERE id = %s RETURNING n", key)[0][0]
    return emit(connection, key, payload=json.dumps({"n": n}))


@pytest.mark.parametrize("batches", [1, 2])
def test_events_of_one_aggregate_are_published_in_the_order_of_its_lock_and_not_of_the_xids(db, thing, batches):
    relay = Relay(db.connect())
    first, second = (db.connect(isolation="READ COMMITTED") for _ in range(2))
    older = run(first, "SELECT pg_current_xact_id()::text::bigint")[0][0]
    earlier = touch(second, thing)
    assert run(second, "SELECT pg_current_xact_id()::text::bigint")[0][0] > older
    second.commit()
    published = listed(relay) if batches == 2 else []
    later = touch(first, thing)
    first.commit()
    assert published + listed(relay) == [earlier, later]


def test_an_event_that_waited_for_anothers_lock_never_comes_before_it(db, thing):
    """The waiter has its xid and its snapshot first; it reads the batch at each step."""
    relay = Relay(db.connect())
    first, second = (db.connect(isolation="READ COMMITTED") for _ in range(2))
    run(first, "SELECT pg_current_xact_id()")
    earlier = touch(second, thing)
    done = []
    waiter = threading.Thread(target=lambda: (done.append(touch(first, thing)), first.commit()))
    waiter.start()
    pid = first.get_backend_pid()
    wait_until(
        lambda: db.rows("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", pid), "the waiter"
    )
    published = listed(relay)
    second.commit()
    waiter.join(30)
    assert published + listed(relay) + listed(relay) == [earlier] + done


class Writer(threading.Thread):
    """Random transactions over the things, until it has done its number."""

    def __init__(self, db, seed, slots):
        super().__init__()
        self.random = random.Random(seed)
        self.db = db
        self.name = f"w{seed}"
        self.slots = slots
        self.failure = None
        self.connection = db.connect()

    def run(self):
        try:
            for number in range(40):
                self.one(f"{self.db.name}_{self.name}_{number}")
        except Exception as failure:  # pylint: disable=broad-except  # shown by the test
            self.failure = failure

    def one(self, name):
        dice, connection = self.random, self.connection
        level = dice.choice(("READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"))
        run(connection, f"BEGIN ISOLATION LEVEL {level}")
        try:
            if dice.random() < 0.3:
                run(connection, "SELECT pg_current_xact_id()")
            for key in sorted(dice.sample("123456", dice.randint(1, 3))):
                inside = dice.random()
                if inside < 0.4:
                    run(connection, "SAVEPOINT s")
                if dice.random() < 0.3:
                    time.sleep(dice.random() / 50)
                touch(connection, key)
                if inside < 0.2:
                    run(connection, "ROLLBACK TO s")
                elif inside < 0.4:
                    run(connection, "RELEASE s")
            emit(connection)
            end = dice.random()
            if end < 0.15:
                run(connection, "ROLLBACK")
            elif end < 0.3 and self.slots.acquire(blocking=False):
                try:
                    run(connection, f"PREPARE TRANSACTION '{name}'")
                    time.sleep(dice.random() / 20)
                    run(connection, f"{dice.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))} PREPARED '{name}'")
                finally:
                    self.slots.release()
            else:
                run(connection, "COMMIT")
        except psycopg2.Error as error:
            if error.pgcode not in ("40001", "40P01"):
                raise
            run(connection, "ROLLBACK")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_under_random_load_every_committed_event_is_listed_once_and_in_the_order_of_its_lock(db, server, thing, seed):
    dice = random.Random(seed)
    slots = threading.Semaphore(5)
    writers = [Writer(db, seed * 100 + n, slots) for n in range(8)]
    elsewhere = server.connect(autocommit=False)
    run(elsewhere, "SELECT pg_current_xact_id()")
    published = []

    def drain(relay, settle_all):
        """What one look finds, in small pieces; sometimes the relay dies in the middle and another goes on."""
        relay.list(1)
        while True:
            piece = relay.list(7)
            if not piece:
                relay.settle()
                return relay
            published.extend(relay.fetch(piece))
            relay.settle(after_id=piece[-1].id)
            if not settle_all and dice.random() < 0.1:
                relay.connection.close()
                heir = Relay(db.connect())
                wait_until(lambda: heir.taken or heir.__init__(heir.connection) or heir.taken, "the lock to be free")
                assert (heir.seen, heir.reading, heir.after_id) == (relay.seen, relay.reading, relay.after_id)
                relay = heir

    relay = Relay(db.connect())
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        relay = drain(relay, False)
    elsewhere.rollback()
    elsewhere.close()
    relay = drain(drain(relay, True), True)
    assert [writer.failure for writer in writers] == [None] * len(writers)
    committed = ids(db.rows("SELECT id FROM once.outbox"))
    assert len(committed) > 200
    assert sorted(ids(published)) == sorted(committed)
    for key in "123456":
        order = [event.payload["n"] for event in published if event.aggregate_id == key]
        assert order == list(range(1, len(order) + 1)), key
        assert len(order) == db.value("SELECT n FROM thing WHERE id = %s", key)


# ---- where it begins, and where it goes on ----


def test_a_new_relay_begins_with_everything_that_the_outbox_holds(db):
    events = [emit(db.connect()) for _ in range(3)]
    relay = Relay(db.connect())
    assert (relay.taken, relay.seen, relay.reading, relay.after_id) == (True, "3:3:", None, 0)
    assert listed(relay) == events


def test_a_new_relay_may_begin_with_what_commits_from_now_on(db):
    emit(db.connect())
    slow = db.connect(isolation="READ COMMITTED")
    late = emit(slow)
    relay = Relay(db.connect(), from_now=True)
    slow.commit()
    assert listed(relay) == [late]


def test_a_batch_that_was_left_in_the_middle_goes_on_exactly_there(db):
    for _ in range(10):
        emit(db.connect())
    first = Relay(db.connect())
    batch = first.list(4)
    first.settle(after_id=batch[-1].id)
    slow = db.connect(isolation="READ COMMITTED")
    new = emit(slow)
    slow.commit()
    first.connection.close()
    wait_until(lambda: Relay(db.connect()).taken, "the lock to be free")  # that one is closed with the test
    relay = Relay(db.connections[-1])
    assert (relay.seen, relay.reading, relay.after_id) == (first.seen, first.reading, batch[-1].id)
    rest = relay.list()
    assert [row.id - batch[-1].id for row in rest] == [1, 2, 3, 4, 5, 6]
    relay.settle()
    assert listed(relay) == [new]


def test_a_batch_is_listed_in_pieces_of_any_size_without_a_gap(db):
    db.execute(
        "INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, tenant, payload) SELECT"
        " floor(extract(epoch FROM clock_timestamp()) / 86400), now(), gen_random_uuid(),"
        " CASE WHEN g % 97 = 0 THEN 'rare' ELSE 'often' END, 't', '', '{}' FROM generate_series(1, 5000) AS g"
    )
    for topics in (None, ["rare"], ["often", "x"]):
        relay = Relay(db.connect(), name=str(topics), topics=topics)
        want = ids(db.rows("SELECT id FROM once.outbox WHERE %s IS NULL OR topic = ANY (%s) ORDER BY id", topics, topics))
        for size in (1000, 37, 7, 5000):
            relay.after_id = 0
            got = []
            while piece := relay.list(size):
                got += ids(piece)
                relay.after_id = piece[-1].id
            assert got == want, (topics, size)


def test_each_relay_reads_for_itself_and_only_its_topics(db):
    kinds = ["order.created", "order.paid", "stock.low", "order_x", "orders%"]
    events = {topic: emit(db.connect(), topic=topic) for topic in kinds}
    orders = Relay(db.connect(), "orders", topics=["order.%"])
    exact = Relay(db.connect(), "exact", topics=["stock.low", "order\\_x"])
    everything = Relay(db.connect(), "everything")
    assert listed(orders) == [events["order.created"], events["order.paid"]]
    assert listed(exact) == [events["stock.low"], events["order_x"]]
    assert listed(everything) == list(events.values())
    orders = Relay(orders.connection, "orders", topics=["stock%"])
    assert listed(orders) == []  # passed already
    low = emit(db.connect(), topic="stock.low")
    assert listed(orders) == [low]


def test_the_fetched_event_is_what_was_emitted(db):
    event_id = emit(
        db.connect(),
        "7",
        topic="order.created",
        payload='{"id": 7, "n": 12345678901234567890.10}',
        event_type="created",
        scope="orders",
        key="k",
        headers='{"a": "b"}',
        tenant="acme",
    )
    relay = Relay(db.connect())
    stored = db.row("SELECT * FROM once.outbox")
    (event,) = relay.fetch(relay.list())
    for name in ("id", "xid", "day", "topic", "event_type", "aggregate_type", "aggregate_id", "tenant", "scope", "key"):
        assert getattr(event, name) == getattr(stored, name), name
    assert (event.event_id, event.attempts, event.blocked) == (event_id, 0, False)
    assert (event.payload, event.headers, event.created_at) == (stored.payload, stored.headers, stored.created_at)
    assert (event.topic, event.aggregate_id, event.tenant) == ("order.created", "7", "acme")


def test_events_come_in_the_order_asked_for_and_one_that_is_gone_has_no_row(db):
    for _ in range(5):
        emit(db.connect())
    relay = Relay(db.connect())
    rows = relay.list()
    assert ids(relay.fetch(rows[::-1])) == ids(rows)[::-1]
    db.execute("DELETE FROM once.outbox WHERE id = %s", rows[2].id)
    assert ids(relay.fetch(rows)) == [row.id for row in rows if row != rows[2]]
    assert relay.fetch([]) == []


# ---- looking ----


def test_a_look_without_any_news_says_so(db):
    relay = Relay(db.connect())
    emit(db.connect())
    assert relay.look().changed
    relay.batch()
    relay.seen = relay.look().reading  # its own settling was a transaction, too
    assert not relay.look().changed
    slow = db.connect(isolation="READ COMMITTED")
    emit(slow)
    relay.seen = relay.look().reading
    assert not relay.look().changed
    slow.commit()
    assert relay.look().changed


def test_a_look_sees_the_end_of_an_old_transaction_though_no_new_one_began(db):
    slow, slower = (db.connect(isolation="READ COMMITTED") for _ in range(2))
    run(slow, "SELECT pg_current_xact_id()")
    run(slower, "SELECT pg_current_xact_id()")
    emit(db.connect())
    relay = Relay(db.connect())
    relay.seen = relay.look().reading
    assert not relay.look().changed
    slow.commit()
    assert relay.look().changed


def test_looking_and_listing_write_nothing(db):
    emit(db.connect())
    relay = Relay(db.connect(isolation="READ COMMITTED"))
    relay.connection.commit()
    relay.fetch(relay.list())
    relay.due()
    assert run(relay.connection, "SELECT pg_current_xact_id_if_assigned()") == [(None,)]


# ---- what a crash may still take away ----


@pytest.fixture(scope="module")
def forgetful():
    """A server of its own, since the others' tests would die with it."""
    with Postgres(fsync=True) as server:
        yield server


def until_flushed(relay, connection):
    """Once is enough, but others may write to the WAL between the flush and the look."""

    def flushed():
        run(connection, "SELECT once_job.relay_flush()")
        return relay.look().flushed

    wait_until(flushed, "a look right after a flush")


@pytest.mark.parametrize("gate", [True, False], ids=["flushed", "not flushed"])
def test_what_was_declared_flushed_survives_a_crash_of_the_server(forgetful, gate):
    """And what was not may be lost, which is why there is a gate: published, it would be an event without an effect."""
    db = forgetful.new_database()
    relay = Relay(db.connect())
    relay.batch()
    writer = db.connect(synchronous_commit="off")
    forgetful.hold_background()
    event = emit(writer)
    look = relay.look()
    assert look.changed and not look.flushed
    relay.reading = look.reading
    assert [row.event_id for row in relay.fetch(relay.list())] == [event]
    if gate:
        until_flushed(relay, db.connect(synchronous_commit="off"))
    forgetful.kill()
    db.close()
    forgetful.start()
    assert db.value("SELECT count(*) FROM once.outbox WHERE event_id = %s", event) == (1 if gate else 0)
    db.drop()


def test_with_a_synchronous_standby_nothing_counts_as_flushed_before_relay_flush(db):
    relay = Relay(db.connect())
    emit(db.connect())
    until_flushed(relay, relay.connection)
    db.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    try:
        db.execute("SELECT pg_reload_conf()")
        wait_until(lambda: run(relay.connection, "SHOW synchronous_standby_names") == [("nobody",)], "the setting")
        # What the server itself writes when its settings are read anew is on disk, too: nothing but the standby's name speaks against it.
        wait_until(lambda: db.value("SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()"), "the log to be on disk")
        assert not relay.look().flushed
    finally:
        db.execute("SET synchronous_commit = local")
        db.execute("ALTER SYSTEM RESET synchronous_standby_names")
        db.execute("SELECT pg_reload_conf()")
        wait_until(lambda: run(relay.connection, "SHOW synchronous_standby_names") == [("",)], "the setting")


def test_relay_flush_waits_for_the_disk_whatever_the_session_prefers_and_leaves_it_at_that(db):
    for wish, while_flushing in (("off", "on"), ("local", "on"), ("on", "on"), ("remote_apply", "remote_apply")):
        connection = db.connect(isolation="READ COMMITTED", synchronous_commit=wish)
        run(connection, "SELECT once_job.relay_flush()")
        assert run(connection, "SHOW synchronous_commit") == [(while_flushing,)]
        connection.commit()
        assert run(connection, "SHOW synchronous_commit") == [(wish,)]


# ---- one session at a time ----


def test_two_sessions_never_work_for_one_relay_and_the_second_takes_over_when_the_first_dies(db):
    first, second = Relay(db.connect()), Relay(db.connect())
    assert first.taken and not second.taken
    assert (second.seen, second.reading, second.after_id) == (None, None, None)
    assert Relay(db.connect(), "another").taken
    assert Relay(first.connection).taken  # again: it has it already
    db.execute("SELECT pg_terminate_backend(%s)", first.connection.get_backend_pid())
    wait_until(lambda: Relay(second.connection).taken, "the dead session's lock to be free")


def test_a_relay_taken_twice_by_its_session_is_free_after_one_release(db):
    first = db.connect()
    Relay(first)
    Relay(first)
    assert run(first, "SELECT pg_advisory_unlock(once._relay_lock('r'))") == [(True,)]
    assert Relay(db.connect()).taken


@pytest.mark.parametrize("lost", ["never had", "gave back", "another has"])
def test_a_session_that_does_not_hold_the_relay_cannot_settle(db, lost):
    holder = Relay(db.connect())
    event = emit(db.connect())
    zombie = Relay(db.connect())
    zombie.seen, zombie.reading, zombie.after_id = holder.seen, None, 0
    if lost == "gave back":
        zombie.connection, holder.connection = holder.connection, zombie.connection
        run(zombie.connection, "SELECT pg_advisory_unlock_all()")
    elif lost == "never had":
        run(holder.connection, "SELECT pg_advisory_unlock_all()")
        # Other locks of its own do not count: another relay's, and an advisory lock with a similar number.
        Relay(zombie.connection, "another")
        run(zombie.connection, "SELECT pg_advisory_lock(1, 2), pg_advisory_lock_shared(once._relay_lock('r'))")
    before = db.rows("SELECT * FROM once.relay ORDER BY relay")
    zombie.list()
    with refused("55000") as caught:
        zombie.settle()
    assert "relay='r'" in caught.value.diag.message_detail and caught.value.diag.message_hint
    assert db.rows("SELECT * FROM once.relay ORDER BY relay") == before
    if lost == "another has":
        assert listed(holder) == [event]


def test_a_relay_that_was_dropped_stops_at_its_next_look(db):
    relay = Relay(db.connect())
    db.execute("DELETE FROM once.relay")
    with refused("55000"):
        relay.look()
    with refused("55000"):
        relay.settle()


# ---- hostile input ----


@pytest.mark.parametrize("name", [None, "", "x" * 64])
def test_a_relay_without_a_proper_name_is_refused(db, name):
    with refused("22023"):
        Relay(db.connect(), name)


@pytest.mark.parametrize("topics", [[], [None], [""], ["a\\"], ["a", "b\\\\\\"]])
def test_topics_that_are_no_patterns_are_refused_at_once_and_not_while_listing(db, topics):
    with refused("22023"):
        run(db.connect(), "SELECT once_job.relay_take('r', %s::text[])", topics)
    assert db.value("SELECT count(*) FROM once.relay") == 0


def test_a_pattern_that_ends_in_an_escaped_backslash_is_one(db):
    relay = Relay(db.connect(), topics=["a\\\\"])
    event = emit(db.connect(), topic="a\\")
    assert listed(relay) == [event]


@pytest.mark.parametrize(
    "call, codes",
    [
        ("relay_list('x', '3:3:', '5:5:', 0, 1)", ("22023",)),
        ("relay_list(NULL, '3:3:', '5:5:', 0, 1)", ("22023",)),
        ("relay_list('r', NULL, '5:5:', 0, 1)", ("22023",)),
        ("relay_list('r', '3:3:', NULL, 0, 1)", ("22023",)),
        ("relay_list('r', '3:3:', '5:5:', 0, 0)", ("22023",)),
        ("relay_list('r', '3:3:', '5:5:', 0, NULL)", ("22023",)),
        ("relay_list('r', 'junk', '5:5:', 0, 1)", ("22P02",)),
        ("relay_look('r', NULL)", ("55000",)),
        ("relay_look('r', 'junk')", ("22P02",)),
        ("relay_look('x', '3:3:')", ("55000",)),
        ("relay_fetch('r', ARRAY[1], ARRAY['3'::xid8], ARRAY[]::integer[])", ("22023",)),
        ("relay_fetch('r', ARRAY[1, 2], ARRAY['3'::xid8], ARRAY[1])", ("22023",)),
        ("relay_fetch('r', ARRAY[1], NULL, ARRAY[1])", ("22023",)),
        ("relay_fetch('r', '[0:0]={1}'::bigint[], ARRAY['3'::xid8], ARRAY[1])", ("22023",)),
        ("relay_due('r', 0)", ("22023",)),
        ("relay_due('r', NULL)", ("22023",)),
        ("relay_settle('r', NULL, NULL, 0)", ("22023",)),
        ("relay_settle('r', '3:3:', '5:5:', NULL)", ("22023",)),
        ("relay_settle('r', '3:3:', NULL, 0, NULL, ARRAY[NULL]::once.parking[])", ("22023",)),
        (
            "relay_settle('r', '3:3:', NULL, 0, NULL, ARRAY[(1, '3', 1, gen_random_uuid(), 't', '', NULL, NULL,"
            " 'bogus', 1, 0, '', false)]::once.parking[])",
            ("22023",),
        ),
        ("relay_settle('x', '3:3:', NULL, 0)", ("55000",)),
        ("relay_settle(NULL, '3:3:', NULL, 0)", ("55000",)),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_and_changes_nothing(db, call, codes):
    connection = db.connect()
    Relay(connection)
    before = db.rows("SELECT * FROM once.relay")
    with refused(*codes) as caught:
        run(connection, f"SELECT * FROM once_job.{call}")
    if codes != ("22P02",):
        assert caught.value.diag.message_primary.startswith("pgonce: ")
    assert db.rows("SELECT * FROM once.relay") == before


def test_names_of_any_length_and_content_are_parked(db):
    """An aggregate's id has no bound; an index has."""
    relay = Relay(db.connect())
    long = "'; DROP TABLE once.relay; --\\\"{}," + "x" * 20_000
    for _ in range(2):
        emit(db.connect(), long, tenant="t" * 255)
    first, second = relay.fetch(relay.list())
    relay.park(parking(first, error=long * 5), parking(second, "waiting", 0))
    assert ids(relay.due()) == [first.id, second.id]
    assert db.value("SELECT length(error) FROM once.parked_event WHERE id = %s", first.id) == 2000
    assert parked(db) == {first.id: (long, "retrying", 1), second.id: (long, "waiting", 0)}


def test_an_ordinary_login_with_once_relay_can_do_all_of_it(db):
    if not db.rows("SELECT 1 FROM pg_roles WHERE rolname = 'relay'"):
        db.execute("CREATE ROLE relay LOGIN; GRANT once_relay TO relay")
    event = emit(db.connect(), "a")
    relay = Relay(db.connect("relay"))
    assert relay.look().changed
    run(relay.connection, "SELECT once_job.relay_flush()")
    (fetched,) = relay.fetch(relay.list())
    assert fetched.event_id == event
    relay.park(parking(fetched))
    assert len(relay.due()) == 1
    assert run(relay.connection, "SELECT once_job.relay_parked('r'), once.add_days()") == [(1, 0)]
    assert code_of(lambda: run(relay.connection, "SELECT once.parked_discard(%s::text, 'why', 'r')", event)) == "42501"
