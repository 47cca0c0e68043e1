# SPDX-License-Identifier: PostgreSQL
"""A database in use is dumped and restored by the programs that people use for that, and is then what it was: every row, the application's
own tables included. It goes on where the dump left it, and is upgraded. The programs are the server's own; where it came alone, those that
PGONCE_PG_CLIENTS names (tools/matrix.py), or the installed ones, if they are no older."""

import functools
import os
import pathlib
import re
import subprocess
import types

import pytest

from harness.extension import extended_server
from harness.postgres import ROOT, Database, Postgres, clean_environment, wait_until

from .calls import DAY_MS, PRINT, Once, let_lease_pass, now_ms, refused, run, upgrade_script, uuid7
from .keeping import Keeper
from .relaying import Relay, emit, ids, parking
from .test_receive_many import park, receive_many
from .upgrading import Next

COMMAND = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build")) / "cli/pgonce"
OWNERS = ("postgres", "plain_owner")
ROWS = 1000

SHOP = r"""
CREATE SCHEMA shop;
CREATE TABLE shop.customer (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL UNIQUE);
CREATE TABLE shop.purchase (
    id bigserial PRIMARY KEY, customer integer NOT NULL REFERENCES shop.customer, key text NOT NULL UNIQUE, amount numeric NOT NULL,
    net numeric GENERATED ALWAYS AS (round(amount / 1.19, 2)) STORED, note text, answer bytea, made_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX purchase_amount ON shop.purchase (amount) WHERE amount > 100;
CREATE FUNCTION shop.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    new.note := coalesce(new.note, 'begin; -- end $ \. case');
    RETURN new;
END $$;
CREATE TRIGGER note BEFORE INSERT ON shop.purchase FOR EACH ROW EXECUTE FUNCTION shop.note();
INSERT INTO shop.customer (name) SELECT 'customer ' || n FROM generate_series(1, 10) AS n;
INSERT INTO shop.purchase (customer, key, amount, note, answer)
SELECT 1 + n % 10, 'old ' || n, n * 1.01, CASE WHEN n % 2 = 0 THEN E'a tab\t, a \\. and\n\\.\n; "quotes" ''and'' $$' END, sha256(n::text::bytea)
  FROM generate_series(1, 1000) AS n;
CREATE FUNCTION shop.buy(key text, amount numeric) RETURNS bytea LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    print bytea := once.fingerprint(jsonb_build_object('amount', amount));
    started once.started := once.start('purchases', key, print);
    bought bigint;
BEGIN
    IF started.verdict = 'proceed' THEN
        INSERT INTO shop.purchase (customer, key, amount) VALUES (1, key, amount) RETURNING id INTO bought;
        PERFORM once.emit('bought', jsonb_build_object('id', bought), 'purchase', key, scope => 'purchases', key => key);
        PERFORM once.finish('purchases', key, print, 201, format('{"id": %s}', bought),
            response_headers => '{"Location": "/x"}', result_type => 'purchase', result_id => bought::text);
        started := once.start('purchases', key, print);
    END IF;
    RETURN started.response_body;
END $$;
CREATE FUNCTION shop.verify(tenant text, scope text, key text) RETURNS once.verification LANGUAGE plpgsql AS $$
DECLARE
    said once.verification;
BEGIN
    said.answer := 'absent';
    RETURN said;
END $$;
CREATE FUNCTION shop.take(message once.message) RETURNS void LANGUAGE sql AS 'INSERT INTO shop.customer (name) VALUES (message.id)';
CREATE VIEW shop.large AS SELECT p.id, p.note FROM shop.purchase AS p WHERE p.amount > 900;
"""
# psql takes a body of this kind apart by itself: from 14 on.
ATOMIC = """
CREATE FUNCTION shop.total() RETURNS numeric LANGUAGE sql BEGIN ATOMIC SELECT CASE WHEN true THEN sum(amount) END FROM shop.purchase; END;
CREATE FUNCTION shop.peek(key text) RETURNS text LANGUAGE sql BEGIN ATOMIC SELECT (once.peek('purchases', key)).state; END;
"""

# What has rows, besides the tables of days.
USED = [f"once.{name}" for name in "intent_d0 setting scope binding decision relay parked_event parked_message consumer_position closing migration".split()]
# What CREATE EXTENSION fills, and what a keeper learns anew; nothing depends on what they held. The counters begin anew as after a crash.
ANEW = re.compile(r"once\.(migration|transition|clock|keeper|keeper_step|swept|sweeping|untaken|untaking|counted_[a-z_]+)$")
# What restoring says of an extension's partitions, whose indexes come twice: with the partition, and by themselves.
TWICE = re.compile(
    r'multiple primary keys for table "(intent|archive)_\w+" are not allowed$|relation "outbox_\w+" already exists$'
    r'|relation "once\.intent_d\d+_pkey" does not exist$'  # of a day that is being retired: its table has another name by now
)

OBJECTS = """
    WITH ours AS (SELECT n.oid FROM pg_namespace AS n WHERE n.nspname IN ('once', 'once_job', 'shop')),
    relation AS (SELECT c.* FROM pg_class AS c JOIN ours ON ours.oid = c.relnamespace)
    SELECT concat_ws(' ', n.nspname, n.nspowner::regrole, obj_description(n.oid, 'pg_namespace'), ARRAY(SELECT a::text FROM unnest(n.nspacl) AS a ORDER BY 1)) AS what
      FROM pg_namespace AS n JOIN ours ON ours.oid = n.oid
     UNION ALL
    SELECT concat_ws(' ', p.oid::regprocedure, md5(pg_get_functiondef(p.oid)), p.proowner::regrole, obj_description(p.oid, 'pg_proc'),
                     ARRAY(SELECT a::text FROM unnest(p.proacl) AS a ORDER BY 1)) AS what
      FROM pg_proc AS p JOIN ours ON ours.oid = p.pronamespace
     UNION ALL
    SELECT concat_ws(' ', c.oid::regclass, c.relkind, c.relpersistence, c.relowner::regrole, c.reloptions, pg_get_expr(c.relpartbound, c.oid),
                     obj_description(c.oid, 'pg_class'), ARRAY(SELECT a::text FROM unnest(c.relacl) AS a ORDER BY 1), c.relreplident,
                     CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END)
      FROM relation AS c WHERE c.relkind IN ('r', 'p', 'v', 'S')
     UNION ALL
    SELECT concat_ws(' ', a.attrelid::regclass, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated,
                     (SELECT l.collname FROM pg_collation AS l WHERE l.oid = a.attcollation), pg_get_expr(d.adbin, d.adrelid))
      FROM pg_attribute AS a JOIN relation AS c ON c.oid = a.attrelid
      LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE c.relkind IN ('r', 'p', 'c') AND a.attnum > 0 AND NOT a.attisdropped
     UNION ALL
    SELECT concat_ws(' ', regexp_replace(pg_get_indexdef(x.indexrelid), ' INDEX .* ON', ' ON'), x.indisprimary, x.indisvalid,
                     EXISTS (SELECT FROM pg_inherits AS h WHERE h.inhrelid = x.indexrelid))
      FROM pg_index AS x JOIN relation AS c ON c.oid = x.indrelid
     UNION ALL
    SELECT concat_ws(' ', k.conrelid::regclass, pg_get_constraintdef(k.oid)) FROM pg_constraint AS k JOIN ours ON ours.oid = k.connamespace
     UNION ALL
    SELECT pg_get_triggerdef(t.oid) FROM pg_trigger AS t WHERE NOT t.tgisinternal
     ORDER BY 1"""


# ---- the programs ----


@functools.lru_cache
def program(bindir, name, server_version):
    for place in (pathlib.Path(bindir), pathlib.Path(os.environ.get("PGONCE_PG_CLIENTS", "/nowhere")), installed_bindir()):
        path = place / name
        if path.exists() and version_of(path) >= server_version:
            return path
    return None


def version_of(path):
    return int(re.search(r"\) (\d+)", subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout).group(1))


def installed_bindir():
    """Whatever server is under test."""
    return next(iter(sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parent.name))), pathlib.Path("/nowhere"))


class Programs:
    """pg_dump, psql and the others, as one user of one server."""

    def __init__(self, server, user="postgres"):
        self.server = server
        self.environment = {**clean_environment(), "PGHOST": str(server.directory), "PGUSER": user, "PGCLIENTENCODING": "UTF8"}

    def __call__(self, name, *words, stdin=None, fails=False):
        path = program(self.server.bindir, name, self.server.version)
        if path is None:
            pytest.skip(f"there is no {name} for PostgreSQL {self.server.version}")
        done = subprocess.run([path, *map(str, words)], input=stdin, capture_output=True, env=self.environment, timeout=120, check=False)
        assert fails or done.returncode == 0, done.stderr.decode()
        return done

    def dump(self, db, *words):
        return self("pg_dump", *words, db.name).stdout

    def psql(self, db, script, *words):
        """As one does: psql goes on after an error, and its status tells nothing of it. What it said."""
        return said(self("psql", "-X", "-q", "-o", os.devnull, *words, "-d", getattr(db, "name", db), stdin=script))


def said(done):
    """Without what an owner is told of schema public, which is not his, where pg_dump is newer than the server."""
    public = re.compile(r'WARNING:  no privileges (were granted|could be revoked) for "public"$')
    return [line for line in done.stderr.decode().splitlines() if line.strip() and not public.search(line)]


def errors(lines):
    return [line.partition("ERROR:")[2].strip() for line in lines if "ERROR:" in line]


# Each: a dump of one database, restored into an empty one by the same user; what the restoring program said.


def plain(run_, source, target, folder):
    return run_.psql(target, run_.dump(source))


def plain_that_stops(run_, source, target, folder):
    return run_.psql(target, run_.dump(source), "-v", "ON_ERROR_STOP=1")


def plain_in_one_transaction(run_, source, target, folder):
    return run_.psql(target, run_.dump(source), "-1", "-v", "ON_ERROR_STOP=1")


def plain_with_inserts(run_, source, target, folder):
    return run_.psql(target, run_.dump(source, "--inserts"))


def custom(run_, source, target, folder):
    return said(run_("pg_restore", "-d", target.name, stdin=run_.dump(source, "-Fc"), fails=True))


def custom_in_one_transaction(run_, source, target, folder):
    return said(run_("pg_restore", "-1", "-d", target.name, stdin=run_.dump(source, "-Fc"), fails=True))


def custom_as_text(run_, source, target, folder):
    return run_.psql(target, run_("pg_restore", "-f", "-", stdin=run_.dump(source, "-Fc")).stdout)


def directory(run_, source, target, folder):
    run_.dump(source, "-Fd", "-j2", "-f", folder / "dump")
    return said(run_("pg_restore", "-j2", "-d", target.name, folder / "dump", fails=True))


def schema_then_data(run_, source, target, folder):
    return run_.psql(target, run_.dump(source, "--schema-only")) + run_.psql(target, run_.dump(source, "--data-only"))


def once_then_the_rest(run_, source, target, folder):
    return run_.psql(target, run_.dump(source, "-n", "once", "-n", "once_job")) + run_.psql(target, run_.dump(source, "-N", "once", "-N", "once_job"))


WAYS = (
    plain, plain_that_stops, plain_in_one_transaction, plain_with_inserts, custom, custom_in_one_transaction, custom_as_text, directory,
    schema_then_data, once_then_the_rest,
)  # fmt: skip
BY_NAME = {way.__name__: way for way in WAYS}


# ---- the database ----


def in_one(connection, *calls):
    """The calls in one transaction of a connection that commits by itself; the last one's rows."""
    run(connection, "BEGIN")
    rows = [run(connection, *call) for call in calls]
    run(connection, "COMMIT")
    return rows[-1]


def finish(connection, key, scope="orders", tenant="", **more):
    more = {"response_status": 200, "response_body": b"\x00\xff\\x41", **more}
    named = ", ".join(f"{name} => %s" for name in more)
    in_one(
        connection,
        ("SELECT * FROM once.start(%s, %s, %s, tenant => %s)", scope, key, PRINT, tenant),
        (f"SELECT once.finish(%s, %s, %s, tenant => %s, {named})", scope, key, PRINT, tenant, *more.values()),
    )


def in_use(server, how, owner, contract=None):
    """A database in use, and what the tests ask of its copy, besides that it holds the same. contract: SQL that installs it, if not that of today."""
    db = server.empty_database(owner)
    if contract is not None:
        run(db.connect(owner), contract)
    elif how == "script":
        db.install(owner)
    else:
        connection = db.connect(owner)
        run(connection, "CREATE EXTENSION pgonce")
        run(connection, "SELECT once.add_days()")
    for role in ("acme", "app"):
        if not db.rows("SELECT 1 FROM pg_roles WHERE rolname = %s", role):
            db.execute(f"CREATE ROLE {role} LOGIN")
    connection = db.connect(owner)
    run(connection, SHOP + (ATOMIC if server.version >= 14 else ""))
    db.execute("GRANT once_app TO app; GRANT once_tenant TO acme")
    run(connection, "GRANT USAGE ON SCHEMA shop TO app; GRANT INSERT, SELECT ON ALL TABLES IN SCHEMA shop TO app; GRANT USAGE ON ALL SEQUENCES IN SCHEMA shop TO app")
    old = types.SimpleNamespace(db=db, how=how, owner=owner)
    fill(old, connection)
    held = contents(db)
    assert len(held["shop.purchase"]) > ROWS and all(held[name] for name in USED)
    db.close()
    return old


def fill(old, connection):
    db, once = old.db, Once(connection)
    run(connection, "SELECT once.set_scope('orders', lease => '1 day', retention => '3 days', max_attempts => 9)")
    run(connection, "SELECT once.set_scope('held', retention => '90 days')")
    run(connection, "SELECT once.set_scope('payments', on_stale => 'verify', verify => 'shop.verify')")
    run(connection, "SELECT once.set_keeping(clock_settle => '0', horizon_days => 5, outbox_retention => '2 days')")
    run(connection, "SELECT once.bind('acme', 'acme')")
    # Intents in every state, with keys of both kinds.
    now = now_ms(db)
    today, closing = uuid7(now, 1), uuid7(now - 5 * DAY_MS, 6)
    archived = [uuid7(now - 7 * DAY_MS, 4), uuid7(now - 6 * DAY_MS, 5)]
    orders = ["done", today, uuid7(now - DAY_MS, 2), closing]
    for key in orders:
        finish(connection, key, response_headers='{"X-A": "b", "Set": "\\u00e4\\\\"}', result_type="order", result_id="17")
    finish(connection, "failed for good", state="failed_final", error_code="E1", error_message="no\tmoney")
    finish(connection, "try again", state="failed_retryable")
    finish(connection, "done", tenant="acme", response_body=b"acme's")
    run(connection, "SELECT shop.buy('bought', 12.50)")
    old.fences = {key: once.claim(key=key, owner="worker").fence for key in ("open", "passed", "doubtful", "resolved", uuid7(now, 3))}
    for key in ("passed", "doubtful", "resolved"):
        let_lease_pass(db, key)
    run(connection, "SELECT once.set_scope('orders', on_stale => 'in_doubt')")
    assert [once.claim(key=key).verdict for key in ("doubtful", "resolved")] == ["in_doubt"] * 2
    run(connection, "SELECT once.set_scope('orders', on_stale => 'takeover')")
    once.resolve(key="resolved", as_state="failed_final", reason="the provider's list")
    # Days in the archive, and one on its way there.
    for key in [*archived, "held"]:
        finish(connection, key, scope="held")
    keeper = Keeper(connection)
    keeper.retire()
    keeper.round()
    run(connection, "SELECT once.set_keeping(horizon_days => 4)")
    keeper.retire("closed")
    run(connection, "SELECT once_job.keep_release('keeper')")
    # The way out: of what a relay has passed one event is parked, one behind it, one dead; three are pending.
    relay = Relay(connection, topics=["t", "bought"])
    relay.batch()
    for aggregate in ("a", "a", "b"):
        emit(connection, aggregate, headers='{"h": "1"}')
    events = relay.fetch(relay.list())
    relay.park(parking(events[0]), parking(events[1], "waiting", 0), parking(events[2], "dead"))
    old.parked = [event.event_id for event in events[:2]]
    old.pending = [emit(connection, "a"), emit(connection, "c"), emit(connection)]
    run(connection, "SELECT pg_advisory_unlock_all()")
    # The way in.
    assert receive_many(connection, ["m1", "m2", today], birthdays=True) == ["process"] * 3
    park(connection, "p1", "k")
    park(connection, "p2", "k", "waiting")
    park(connection, "p3", state="dead")
    run(connection, "SELECT once.consumer_report('mailer', now() - interval '1 hour', part => '3')")
    old.finished = [("orders", key) for key in orders] + [("held", key) for key in [*archived, "held"]]
    old.answers = answers(once, old)
    old.bought = db.value("SELECT shop.buy('bought', 12.50)")
    old.salt = db.value("SELECT once.salt('acme')")
    old.fingerprint = db.value("SELECT once.fingerprint('a'::text)")
    assert {state for (state,) in db.rows("SELECT DISTINCT state FROM once.intent")} == {
        "processing", "succeeded", "failed_retryable", "failed_final", "in_doubt",
    }  # fmt: skip


def answers(once, old):
    return [once.start(scope=scope, key=key) for scope, key in old.finished]


def contents(db):
    """Every row of every table and where every sequence is, by name."""
    relations = db.rows(
        "SELECT c.oid::regclass::text AS name, c.relkind FROM pg_class AS c WHERE c.relnamespace::regnamespace::text IN ('once', 'shop')"
        " AND c.relkind IN ('r', 'S') ORDER BY 1"
    )
    return {
        relation.name: db.rows(
            f"SELECT t::text FROM {relation.name} AS t ORDER BY t::text COLLATE \"C\""
            if relation.relkind == "r"
            else f"SELECT last_value, is_called FROM {relation.name}"
        )
        for relation in relations
    }


def assert_same(old, restored, but=()):
    there, here = contents(old.db), contents(restored)
    assert sorted(there) == sorted(here)
    for name in there:
        if not (old.how == "extension" and ANEW.match(name) or name in but):
            assert here[name] == there[name], name
    if old.how == "extension":  # once._today() is as installed: until a keeper comes, calls are slower
        assert restored.value("SELECT once._today()") is None and restored.value("SELECT once.add_days()") == 0
    assert restored.rows(OBJECTS) == old.db.rows(OBJECTS)


def goes_on(old, restored, other_cluster=False):
    """It is used as the old one would have been."""
    connection = restored.connect(old.owner)
    once = Once(connection)
    assert answers(once, old) == old.answers and {row.verdict for row in old.answers} == {"replay_success"}
    with refused("P4030") as failed:
        once.start(key="failed for good")
    assert "E1" in str(failed.value)
    assert restored.value("SELECT once.salt('acme')") == old.salt
    assert restored.value("SELECT once.fingerprint('a'::text)") == old.fingerprint
    delivers(old, restored, connection, other_cluster)
    # The application's functions, and its own rows, behind a key that is known and one that is not.
    assert run(connection, "SELECT shop.buy('bought', 12.50)") == [(old.bought,)]
    with refused("P4002"):
        run(connection, "SELECT shop.buy('bought', 12.51)")
    assert run(restored.connect("app"), "SELECT shop.buy('new', 1)") != [(None,)]
    assert restored.value("SELECT count(*) FROM shop.purchase WHERE key IN ('new', 'bought')") == 2
    finish(connection, uuid7(now_ms(restored), 9))
    # A lease that is open, one that passed, one in doubt.
    with refused("P4029"):
        once.start(key="open")
    assert once.claim(key="open").verdict == "processing_active"
    assert once.complete(key="open", fence=old.fences["open"], response_body=b"late") is True
    assert once.start(key="open").response_body == b"late"
    taken = once.claim(key="passed", takeover=True)
    assert taken.verdict == "processing_stale" and taken.fence > old.fences["passed"]
    assert once.claim(key="doubtful").verdict == "in_doubt"
    assert once.claim(key="try again").verdict == "retryable_failure"
    # Tenants are bound as they were.
    acme = restored.connect("acme")
    assert run(acme, "SELECT response_body FROM once.start('orders', 'done', %s, tenant => 'acme')", PRINT) == [(b"acme's",)]
    with refused("P4003"):
        run(acme, "SELECT * FROM once.start('orders', 'done', %s)", PRINT)
    # The way in.
    assert receive_many(connection, ["m1", "m2", "m3"]) == ["duplicate", "duplicate", "process"]
    assert [row.message_id for row in restored.rows("SELECT * FROM once_job.message_due('mailer', '', 9)")] == ["p1"]
    park(connection, "p4", "k", "waiting")
    assert restored.value("SELECT max(position) = (SELECT position FROM once.parked_message WHERE message_id = 'p4') FROM once.parked_message")
    keeps(restored, old.owner)


def delivers(old, restored, connection, other_cluster):
    """A relay refuses, as its progress came with a dump. Where transactions are counted as they were it then goes on where it was, in another
    cluster with what is emitted from now on."""
    if other_cluster:
        with refused("P4080"):
            Relay(connection, topics=["t", "bought"])
    run(connection, "SELECT once.relay_adopt('r', 'restored', xids_continue => %s)", not other_cluster)
    expected = [emit(connection, "new")] if other_cluster else old.pending
    relay = Relay(connection, topics=["t", "bought"])
    listed = relay.fetch(relay.list())
    assert [event.event_id for event in listed if event.topic == "t"] == expected
    numbers = [row.id for row in restored.rows("SELECT id FROM once.outbox")]
    assert len(numbers) == len(set(numbers))
    assert [event.event_id for event in relay.due()] == old.parked
    relay.settle()
    run(connection, "SELECT pg_advisory_unlock_all()")


def keeps(restored, owner):
    Keeper(restored.connect(owner)).round()
    assert restored.value("SELECT once.add_days(4)") == 4, "of intents and events, two days more each"


@pytest.fixture(scope="module")
def cluster():
    with extended_server(settings={"log_min_messages": "error"}) as server:
        admin = server.connect()
        run(admin, "CREATE ROLE plain_owner LOGIN")
        admin.close()
        server.empty_database().install()  # the roles
        yield server


@pytest.fixture(scope="module")
def sources(cluster):
    made = {}

    def get(how, owner):
        if (how, owner) not in made:
            made[how, owner] = in_use(cluster, how, owner)
        return made[how, owner]

    return get


# ---- the tests ----


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("way", BY_NAME)
def test_a_restored_database_is_what_it_was_and_goes_on(cluster, sources, tmp_path, way, owner):
    old = sources("script", owner)
    restored = cluster.empty_database(owner)
    assert BY_NAME[way](Programs(cluster, owner), old.db, restored, tmp_path) == []
    assert_same(old, restored)
    goes_on(old, restored)
    restored.drop()


# What stops at an error, or undoes all, is not for an extension; nor is a part of the database, which leaves CREATE EXTENSION out.
@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("way", ["plain", "plain_with_inserts", "custom", "custom_as_text", "directory", "schema_then_data"])
def test_a_restored_extension_is_what_it_was_but_its_indexes_are_made_twice(cluster, sources, tmp_path, way, owner):
    old = sources("extension", owner)
    restored = cluster.empty_database(owner)
    complaints = BY_NAME[way](Programs(cluster, owner), old.db, restored, tmp_path)
    assert [error for error in errors(complaints) if not TWICE.match(error)] == []
    assert_same(old, restored)
    goes_on(old, restored)
    restored.drop()


# What pg_dump lets `pg_restore --clean` try with every partitioned table that has a primary key, before it drops the table itself.
INHERITED = re.compile(r'cannot drop inherited constraint "(intent|archive|outbox)_\w+" of relation "(intent|archive|outbox)_\w+"$')


def over_what_is_there(run_, restored, dump):
    return said(run_("pg_restore", "--clean", "--if-exists", "-d", restored.name, stdin=dump, fails=True))


def over_a_dropped_schema(run_, restored, dump):
    run_("psql", "-X", "-q", "-d", restored.name, "-c", "SET client_min_messages = warning; DROP SCHEMA IF EXISTS once, once_job CASCADE")
    return said(run_("pg_restore", "--clean", "--if-exists", "-1", "-d", restored.name, stdin=dump))


def over_a_dropped_database(run_, restored, dump):
    restored.close()
    return said(run_("pg_restore", "--clean", "--if-exists", "--create", "-d", "postgres", stdin=dump))


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("way", [over_what_is_there, over_a_dropped_schema, over_a_dropped_database])
def test_a_database_is_restored_over_an_earlier_copy(cluster, sources, tmp_path, way, owner):
    """As docs/how/failover.md says: in each way all of it comes back; where partitions are in the way it is not said quietly."""
    old = sources("script", owner)
    restored = cluster.empty_database(owner)
    programs = Programs(cluster, owner)
    if owner != "postgres" and way is over_a_dropped_database:
        restored.execute(f"ALTER ROLE {owner} CREATEDB")
    assert custom(programs, old.db, restored, tmp_path) == []
    dump = programs.dump(restored, "-Fc")
    goes_on(old, restored)
    complaints = way(programs, restored, dump)
    assert [error for error in errors(complaints) if not INHERITED.match(error)] == []
    assert bool(errors(complaints)) == (way is over_what_is_there)
    assert_same(old, restored)
    goes_on(old, restored)
    restored.drop()


def test_a_whole_cluster_is_what_it_was_and_its_relays_are_asked_first(cluster, sources):
    # An extension belongs to whoever restores it.
    olds = [sources("script", "postgres"), sources("script", "plain_owner"), sources("extension", "postgres")]
    path = program(cluster.bindir, "pg_dumpall", cluster.version)
    if path is not None and version_of(path) > cluster.version:
        pytest.skip("a newer pg_dumpall makes databases with options that this server does not know")
    dumped = Programs(cluster)("pg_dumpall").stdout
    with Postgres(bindir=cluster.bindir) as other:
        # The one who restores is there already.
        complaints = Programs(other).psql("postgres", dumped)
        assert [error for error in errors(complaints) if not TWICE.match(error)] == ['role "postgres" already exists']
        for old in olds:
            restored = Database(other, old.db.name)
            assert_same(old, restored)
            goes_on(old, restored, other_cluster=True)
            restored.close()


@pytest.mark.parametrize("owner", OWNERS)
def test_a_restored_database_is_upgraded(cluster, sources, tmp_path, owner):
    """By the present script, by the command, and to a version with other tables."""
    old = sources("script", owner)
    restored = cluster.empty_database(owner)
    assert plain(Programs(cluster, owner), old.db, restored, tmp_path) == []
    run(restored.connect(owner), upgrade_script(restored.value("SELECT once.contract_version()")))
    assert_same(old, restored, but=("once.migration",))
    if COMMAND.exists():
        restored.execute("UPDATE once.migration SET checksum = repeat('0', 64) WHERE version = 0")
        for _ in range(2):
            done = subprocess.run([COMMAND, "init", "--dsn", restored.dsn(owner)], env=clean_environment(), capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
        assert_same(old, restored, but=("once.migration",))
    run(restored.connect(owner), Next(tmp_path / "next").script("upgrade", "1"))
    assert restored.value("SELECT once.contract_version()") == 2
    goes_on(old, restored)
    restored.drop()


def test_every_table_can_be_published(sources):
    """PostgreSQL refuses to change a row of one that has no replica identity, and a publication FOR ALL TABLES has them all."""
    without = sources("script", "postgres").db.rows(
        "SELECT c.oid::regclass::text FROM pg_class AS c WHERE c.relnamespace = 'once'::regnamespace AND c.relkind = 'r' AND c.relreplident IN ('d', 'n')"
        " AND NOT EXISTS (SELECT FROM pg_index AS x WHERE x.indrelid = c.oid AND x.indisprimary)"
    )
    assert without == []


def test_a_logical_copy_holds_every_row_and_goes_on_once_its_sequences_do(cluster):
    settings = {"wal_level": "logical", "max_replication_slots": 60, "max_wal_senders": 60, "max_sync_workers_per_subscription": 8, "max_worker_processes": 20,
                "max_logical_replication_workers": 12}  # fmt: skip
    with Postgres(bindir=cluster.bindir, settings=settings) as first, Postgres(bindir=cluster.bindir, settings=settings) as second:
        old = in_use(first, "script", "postgres")
        there, here = Programs(first), Programs(second)
        here.psql("postgres", there("pg_dumpall", "--roles-only").stdout)
        copy = second.empty_database()
        assert here.psql(copy, there.dump(old.db, "--schema-only")) == []
        old.db.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        copy.execute(f"CREATE SUBSCRIPTION copy CONNECTION '{old.db.dsn()}' PUBLICATION everything")
        wait_until(lambda: not copy.rows("SELECT 1 FROM pg_subscription_rel WHERE srsubstate <> 'r'"), "the tables to be copied")
        lives_on(old)
        end = old.db.value("SELECT pg_current_wal_flush_lsn()")
        wait_until(lambda: old.db.value("SELECT bool_and(replay_lsn >= %s) FROM pg_stat_replication", end), "the changes to arrive")
        copy.execute("DROP SUBSCRIPTION copy")
        tables = {name: rows for name, rows in contents(old.db).items() if "_seq" not in name and not name.startswith("once.counted")}
        copied = contents(copy)
        assert {name: copied[name] for name in tables} == tables
        # What is the application's to do for its own tables; pgonce does it for its own when a relay is adopted.
        copy.execute("SELECT setval('shop.purchase_id_seq', max(id)) FROM shop.purchase")
        goes_on(old, copy, other_cluster=True)


def lives_on(old):
    """Rows are written, changed and deleted in the old database."""
    connection = old.db.connect()
    finish(connection, "live")
    once = Once(connection)
    assert once.complete(key="live 2", fence=once.claim(key="live 2").fence) is True
    run(connection, "SELECT shop.buy('live', 3)")
    run(connection, "UPDATE once.decision SET decided_at = now() - interval '500 days' WHERE key = 'resolved'")
    Keeper(connection).round()
    assert old.db.value("SELECT count(*) FROM once.decision WHERE key = 'resolved'") == 0


def test_this_finds_what_a_function_called_begin_does_to_a_dump(cluster, sources, tmp_path):
    """psql takes it for the start of a body and what follows for one endless statement; its status is 0."""
    if program(cluster.bindir, "psql", 14) is None:
        pytest.skip("psql takes no bodies apart before 14")
    source = sources("script", "postgres").db
    source.close()
    renamed = cluster.empty_database(template=source.name)
    renamed.execute("ALTER FUNCTION once.start RENAME TO begin")
    old = types.SimpleNamespace(db=renamed, how="script")
    restored = cluster.empty_database()
    programs = Programs(cluster)
    complaints = plain(programs, renamed, restored, tmp_path)
    assert restored.value("SELECT to_regclass('shop.purchase') IS NULL"), complaints
    with pytest.raises(AssertionError):
        assert_same(old, restored)
    restored.drop()
    renamed.drop()
