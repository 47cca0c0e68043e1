# SPDX-License-Identifier: PostgreSQL
"""pgonce_native: whatever changes under it, while it works, sends everything back to SQL, and it comes back afterwards."""

import pathlib
import shutil
import threading

import psycopg2
import pytest

from harness.native import install_native, library, native_script
from harness.postgres import wait_until

from .sessions import F, TABLE_CHANGES, Session, emit, finish, start, today, uuid7

pytestmark = pytest.mark.skipif(not library().exists(), reason="native/ is not built: no headers of a server")


def test_what_is_stored_names_the_contract_s_functions(session):
    session(f"CREATE VIEW looks AS SELECT once.start('s', 'k', {F}) AS s, x.verdict FROM once.start('s', 'l', {F}) AS x")
    session("CREATE TABLE t (a integer)")
    session(f"CREATE RULE r AS ON INSERT TO t DO ALSO SELECT once.start('s', 'k', {F})")
    if session.connection.server_version >= 140000:
        session(f"CREATE FUNCTION f() RETURNS text BEGIN ATOMIC SELECT (once.start('s', 'k', {F})).verdict; END")
    session(f"PREPARE p AS SELECT once.start('s', 'k', {F})")
    for _ in range(7):
        session("EXECUTE p")
        session("SELECT * FROM looks")
        session("INSERT INTO t VALUES (1)")
    assert session.answered("SELECT * FROM looks") == 2
    for text in ("SELECT pg_get_viewdef('looks')", "SELECT string_agg(definition, '') FROM pg_rules WHERE tablename = 't'",
                 "SELECT string_agg(pg_get_functiondef(oid), '') FROM pg_proc WHERE proname = 'f'"):  # fmt: skip
        assert "once_native" not in str(session.value(text))
    stored = "SELECT count(*) FROM pg_depend AS d JOIN pg_proc AS p ON d.refobjid = p.oid WHERE p.pronamespace = 'once_native'::regnamespace AND d.classid <> 'pg_extension'::regclass"
    assert session.value(stored) == 0


def test_a_function_without_the_library_s_schema_goes_back_to_sql_in_running_sessions(native, session):
    session(f"PREPARE p AS SELECT (once.start('s', 'k', {F})).verdict")
    session("CREATE FUNCTION f() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN (once.start('s', 'k', '0123456789abcdef')).verdict; END $$")
    for _ in range(7):
        assert session("EXECUTE p") == session("SELECT f()") == [("proceed",)]
    native.execute("DROP SCHEMA once_native CASCADE")
    assert session("EXECUTE p") == session("SELECT f()") == [("proceed",)]
    assert "once_native" not in str(session("EXPLAIN (VERBOSE) EXECUTE p"))
    install_native(native)
    assert session.answered("EXECUTE p") == 1


OTHER_TEXTS = [
    ("_quick_check", "scope <> ''", "scope <> '' AND scope <> 'k'"),
    ("_note_start", "'once.started'", "'once.begun'"),
    ("start", "'succeeded', i.response_status", "'done', i.response_status"),
    ("_bucket_of_other", "'^[ -~]+$'", "'^[a-z]+$'"),
]  # fmt: skip


@pytest.mark.parametrize("function, old, new", OTHER_TEXTS)
def test_another_text_of_what_the_library_mirrors_sends_all_to_sql(native, session, function, old, new):
    from harness.mutation import mutate

    session(f"PREPARE p AS {start()}")
    for _ in range(7):
        session("EXECUTE p")
    assert session.answered("EXECUTE p") == 1
    original = native.value("SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p WHERE p.pronamespace = 'once'::regnamespace AND p.proname = %s", function)
    mutate(native, function, old, new)
    assert session.answered("EXECUTE p") == 0 and session.answered(start()) == 0
    native.execute(original)
    assert session.answered("EXECUTE p") == 1


@pytest.mark.parametrize("change, back", TABLE_CHANGES)
def test_a_change_of_the_tables_sends_finish_to_sql(native, session, change, back):
    work = f"SELECT once.finish_new('s', md5(random()::text), {F})"
    assert session.answered(work) == 1
    native.execute(change)
    assert session.answered(work) == 0
    native.execute(back)
    assert session.answered(work) == 1


@pytest.mark.parametrize("change, back", [
    ("CREATE TRIGGER x BEFORE INSERT ON OUTBOX FOR EACH ROW EXECUTE FUNCTION once._refuse_closed()", "DROP TRIGGER x ON OUTBOX"),
    ("CREATE TRIGGER x BEFORE INSERT ON once.outbox FOR EACH STATEMENT EXECUTE FUNCTION once._refuse_closed()", "DROP TRIGGER x ON once.outbox"),
    ("ALTER TABLE OUTBOX ADD CONSTRAINT x CHECK (topic <> 'z')", "ALTER TABLE OUTBOX DROP CONSTRAINT x"),
    ("ALTER TABLE once.outbox ADD COLUMN x integer DEFAULT 7", "ALTER TABLE once.outbox DROP COLUMN x"),
    ("ALTER TABLE once.outbox ALTER COLUMN headers SET DEFAULT '{}'", "ALTER TABLE once.outbox ALTER COLUMN headers DROP DEFAULT"),
    ("CREATE INDEX x ON OUTBOX (created_at)", "DROP INDEX once.x"),
    ("DROP INDEX once.outbox_xid", "CREATE INDEX outbox_xid ON once.outbox (xid, id)"),
    ("ALTER TABLE OUTBOX ENABLE ROW LEVEL SECURITY", "ALTER TABLE OUTBOX DISABLE ROW LEVEL SECURITY"),
    ("CREATE RULE x AS ON INSERT TO once.outbox DO ALSO NOTHING", "DROP RULE x ON once.outbox"),
])  # fmt: skip
def test_a_change_of_the_outbox_sends_emit_to_sql(native, session, change, back):
    outbox = f"once.outbox_d{today()}"
    session(emit("first"))
    count = iter(range(100))
    assert session.answered(emit(next(count))) == 1
    native.execute(change.replace("OUTBOX", outbox))
    assert session.answered(emit(next(count))) == 0
    native.execute(back.replace("OUTBOX", outbox))
    assert session.answered(emit(next(count))) == 1


@pytest.mark.parametrize("change, back", [
    ("ALTER TABLE once.setting ENABLE ROW LEVEL SECURITY", "ALTER TABLE once.setting DISABLE ROW LEVEL SECURITY"),
    ("CREATE TABLE x () INHERITS (once.setting)", "DROP TABLE x; ANALYZE once.setting"),
    ("ALTER FUNCTION once.salt SECURITY INVOKER", "ALTER FUNCTION once.salt SECURITY DEFINER"),
])  # fmt: skip
def test_a_change_of_the_settings_sends_salt_to_sql(native, session, change, back):
    salt = session.value("SELECT once.salt('t')")
    assert session.answered("SELECT once.salt('t')") == 1
    native.execute(change)
    assert session.answered("SELECT once.salt('t')") == 0 and session.value("SELECT once.salt('t')") == salt
    native.execute(back)
    assert session.answered("SELECT once.salt('t')") == 1


def test_a_change_of_the_settings_sends_an_intent_s_event_to_sql(native, session):
    event = "SELECT once.emit('topic', '{}', scope => 's', key => '%s')"
    session(event % "k0")
    assert session.answered(event % "k1") == 1
    native.execute("ALTER TABLE once.setting ENABLE ROW LEVEL SECURITY")
    assert session.answered(event % "k2") == 0
    native.execute("ALTER TABLE once.setting DISABLE ROW LEVEL SECURITY")
    assert session.answered(event % "k3") == 1


def old_event(native, key, day):
    """The first one, under another key and on another day."""
    native.execute(f"""INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, tenant, scope, key, payload)
        SELECT {day}, created_at, event_id, topic, event_type, tenant, scope, '{key}', payload FROM once.outbox WHERE key = 'first'""")


def test_an_event_of_an_earlier_or_later_day_is_sql_s_business(native, session):
    """Of days that are over and have their outbox still, with others between them that have none; and where the clock has stepped back."""
    day = today()
    session(emit("first"))
    assert session.answered(emit("a")) == 1
    for back in (4, 2, 1):
        native.execute(f"SELECT once._make_day('outbox', {day - back})")
        old_event(native, f"old{back}", day - back)
        for older in (4, 2, 1):
            if older >= back:
                assert session.answered(emit(f"old{older}")) == 0
                assert native.value(f"SELECT count(*) FROM once.outbox WHERE key = 'old{older}'") == 1
        assert session.answered(emit(f"b{back}")) == 1 and session.answered(emit(f"b{back}")) == 0
        assert session.answered("SELECT once.emit('t', '1')") == 1
    native.execute(f"DROP TABLE once.outbox_d{day - 2}")
    assert session.answered(emit("old1")) == 0 and session.answered(emit("old4")) == 0
    assert session.answered(emit("old2")) == 1 and session.answered(emit("c")) == 1
    native.execute(f"SELECT setval('once.outbox_day_seq', {256 * (day + 1)})")
    assert session.answered(emit("d")) == 0
    old_event(native, "new", day + 1)
    assert session.answered(emit("new")) == 0
    assert native.value("SELECT count(*) FROM once.outbox WHERE key = 'new'") == 1


@pytest.mark.parametrize("change, back", [
    ("ALTER TABLE once.outbox DETACH PARTITION OUTBOX", "ALTER TABLE once.outbox ATTACH PARTITION OUTBOX FOR VALUES FROM (DAY) TO (DAY + 1)"),
    ("ALTER TABLE OUTBOX RENAME TO x", "ALTER TABLE once.x RENAME TO outbox_dDAY"),
    ("ALTER TABLE OUTBOX ADD CONSTRAINT x CHECK (topic <> 'z')", "ALTER TABLE OUTBOX DROP CONSTRAINT x"),
    ("CREATE INDEX x ON OUTBOX (created_at)", "DROP INDEX once.x"),
    ("ALTER TABLE OUTBOX ENABLE ROW LEVEL SECURITY", "ALTER TABLE OUTBOX DISABLE ROW LEVEL SECURITY"),
])  # fmt: skip
def test_a_change_of_an_earlier_day_s_outbox_sends_emit_to_sql(native, session, change, back):
    day = today() - 1

    def alter(text):
        native.execute(text.replace("OUTBOX", f"once.outbox_d{day}").replace("DAY + 1", str(day + 1)).replace("DAY", str(day)))

    native.execute(f"SELECT once._make_day('outbox', {day})")
    session(emit("first"))
    old_event(native, "old", day)
    count = iter(range(100))
    assert session.answered(emit(next(count))) == 1 and session.answered(emit("old")) == 0
    alter(change)
    assert session.answered(emit(next(count))) == ("DETACH" in change)
    alter(back)
    assert session.answered(emit(next(count))) == 1 and session.answered(emit("old")) == 0
    assert native.value("SELECT count(*) FROM once.outbox WHERE key = 'old'") == 1


def test_a_day_of_the_outbox_that_is_being_detached_is_sql_s_business(native, session):
    if native.value("SHOW server_version_num") < "140000":
        pytest.skip("DETACH CONCURRENTLY came with PostgreSQL 14")
    day = today() - 1
    native.execute(f"SELECT once._make_day('outbox', {day})")
    session(emit("first"))
    assert session.answered(emit("a")) == 1
    reader = native.connect(autocommit=False)
    reader.cursor().execute("SELECT FROM once.outbox")
    detaching = threading.Thread(target=lambda: native.connect().cursor().execute(f"ALTER TABLE once.outbox DETACH PARTITION once.outbox_d{day} CONCURRENTLY"))
    detaching.start()
    wait_until(lambda: native.value(f"SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = 'once.outbox_d{day}'::regclass"), "the day to be on its way")
    assert session.answered(emit("b")) == 0
    reader.rollback()
    detaching.join()
    assert session.answered(emit("c")) == 1


def test_an_event_that_somebody_inserts_on_an_earlier_day_is_sql_s_business(native, session):
    day, hand = today() - 1, native.connect(autocommit=False)
    native.execute(f"SELECT once._make_day('outbox', {day})")
    session(emit("first"))
    hand.cursor().execute(f"""INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, tenant, scope, key, payload)
        SELECT {day}, created_at, event_id, topic, event_type, tenant, scope, 'k', payload FROM once.outbox""")
    assert session.answered(emit()) == 0
    hand.rollback()


def test_more_days_of_the_outbox_than_c_looks_at_are_sql_s_business(native, session):
    day = today()
    session(emit("first"))
    native.execute(f"SELECT once._make_day('outbox', {day} - n) FROM generate_series(1, 31) AS n")
    old_event(native, "old", day - 31)
    assert session.answered(emit("a")) == 1 and session.answered(emit("old")) == 0
    native.execute(f"SELECT once._make_day('outbox', {day - 32})")
    assert session.answered(emit("b")) == 0


def test_a_closed_day_is_sql_s_business(native, session):
    key = uuid7()
    day = int(key.replace("-", "")[:12], 16) // 86400000
    session("BEGIN")
    session(start(key))
    session(finish(key))
    session("COMMIT")
    assert session.answered(start(key)) == 1
    native.execute(f"SELECT once._close_day(d) FROM once._days('once.intent', 'intent_d') AS d WHERE d <= {day}")
    assert session.answered(start(key)) == 0
    assert session.outcome(start(key))[0][0] == "replay_success"
    assert session.outcome(start(uuid7()))[0] == "P4041"


def test_off_counts_at_once_also_in_a_plan_that_was_made_before(native, session):
    session(f"PREPARE p AS SELECT set_config('once.native', CASE WHEN $1 THEN 'on' ELSE 'off' END, false), once.start('s', 'k', {F})")
    for _ in range(7):
        assert session.answered("EXECUTE p (true)") == 1
    assert session.answered("EXECUTE p (false)") == 0
    assert "once_native" not in str(session(f"EXPLAIN (VERBOSE) {start()}"))
    assert session.answered(start()) == 0
    session("SET once.native = on")
    assert "once_native" in str(session(f"EXPLAIN (VERBOSE) {start()}"))


@pytest.mark.parametrize("left", [None, b"", b"\x7fELF", "/lib/x86_64-linux-gnu/libm.so.6"])
def test_a_library_that_cannot_be_loaded_breaks_no_call(db, tmp_path, left):
    tmp_path.chmod(0o755)
    for above in list(tmp_path.parents)[:3]:
        above.chmod(above.stat().st_mode | 0o055)
    path = tmp_path / "pgonce_native.so"
    shutil.copy(library(), path)
    db.execute(native_script(path))
    path.unlink()
    if left is not None:
        path.write_bytes(left if isinstance(left, bytes) else pathlib.Path(left).read_bytes())
    session = Session(db)
    session("BEGIN")
    assert session.outcome(start())[0][0] == "proceed"
    session(finish())
    session("COMMIT")
    assert session.outcome(start())[0][0] == "replay_success"
    assert session.value("SELECT current_setting('once.native')") == "none"


def test_it_is_looked_for_once_also_after_discard_and_rollback(native, session):
    for number, statement in enumerate(("DISCARD ALL", "RESET ALL", "BEGIN", start("x"), "ROLLBACK", "SET once.native = ''")):
        session(statement)
        assert session.answered(start(f"k{number}")) == 1


def test_where_it_is_found_in_a_transaction_that_is_rolled_back_it_stays(native):
    session = Session(native)
    session("BEGIN; SAVEPOINT x")
    session(start())
    session("ROLLBACK TO x; ROLLBACK")
    assert session.answered(start()) == 1


def test_it_is_found_in_a_read_only_transaction(native):
    session = Session(native)
    session("BEGIN READ ONLY")
    assert session.outcome(start())[0][0] == "proceed"
    session("COMMIT")
    assert session.answered(start()) == 1


def test_a_cursor_goes_on_where_the_library_went_away(native, session):
    session("BEGIN")
    session(f"DECLARE c CURSOR FOR SELECT (once.start('s', 'k' || n, {F})).verdict FROM generate_series(1, 4) AS n")
    session("FETCH 2 FROM c")
    native.execute("DROP SCHEMA once_native CASCADE")
    assert session("FETCH 2 FROM c") == [("proceed",), ("proceed",)]
    session("COMMIT")


def test_a_policy_that_has_changed_counts_at_once(native, session):
    for lease in ("10 minutes", "3 days", "1 hour"):
        native.execute("SELECT once.set_scope('s', lease => %s)", lease)
        key = lease.replace(" ", "")
        assert session.answered(f"SELECT once.claim('s', '{key}', {F})") == 1
        assert native.value("SELECT lease_until - created_at = %s FROM once.intent WHERE key = %s", lease, key)


def test_work_goes_on_while_everything_changes_under_it(native):
    """Rows, answers and the index are whole after four sessions have worked beside one that does what administrators do."""
    native.execute("CREATE EXTENSION amcheck")
    text = native.value("SELECT pg_get_functiondef('once._note_start'::regproc)")
    changes = [
        text,
        "ANALYZE once.intent_d0",
        "ANALYZE once.outbox",
        f"CREATE INDEX y ON once.outbox_d{today()} (created_at)",
        "DROP INDEX once.y",
        "ALTER TABLE once.intent_d0 SET (fillfactor = 60)",
        "CREATE INDEX x ON once.intent_d0 (created_at)",
        "DROP INDEX once.x",
        "DROP SCHEMA once_native CASCADE",
        native_script(),
        "ALTER TABLE once.intent_d0 ADD CONSTRAINT x CHECK (key <> '')",
        "ALTER TABLE once.intent_d0 DROP CONSTRAINT x",
        "REINDEX TABLE once.intent_d0",
        "SELECT once.add_days()",
        "VACUUM FULL once.intent_d0",
    ]
    done, reported, received, emitted, wrong, over = [], [], [], [], [], threading.Event()

    def work(number):
        session = Session(native)
        session(f"PREPARE s (text) AS SELECT verdict FROM once.start('s', $1, {F})")
        session(f"PREPARE f (text) AS SELECT once.finish('s', $1, {F}, response_text => $1)")
        session(f"PREPARE c (text) AS SELECT verdict FROM once.claim('c', $1, {F})")
        session("PREPARE d (text) AS SELECT once.complete('c', $1, 1, 200, response_text => $1)")
        session("PREPARE e (text) AS SELECT once.emit('t', '1', scope => 's', key => $1)")
        session(f"PREPARE r (text) AS SELECT once.receive('r', $1, {F}, birthdays => true)")
        count = 0
        while not over.is_set():
            key = f"{number}-{count}" if count % 2 else uuid7()
            try:
                session("BEGIN")
                assert session.value("EXECUTE s (%s)", key) == "proceed"
                session("EXECUTE f (%s)", key)
                session("COMMIT")
                assert session.value("EXECUTE s (%s)", key) == "replay_success"
                done.append(key)
                assert session.value("EXECUTE c (%s)", key) == "new_claim"
                assert session.value("EXECUTE d (%s)", key) is True
                reported.append(key)
                assert session.value("EXECUTE r (%s)", key) == "process"
                received.append(key)
                session("EXECUTE e (%s)", key)
                emitted.append(key)
            except psycopg2.errors.DeadlockDetected:
                session("ROLLBACK")
            except (AssertionError, psycopg2.Error) as error:
                wrong.append(error)
                return
            count += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(6):
            for change in changes:
                before = len(done)
                for attempt in range(5):
                    try:
                        native.execute(change)
                        break
                    except (psycopg2.errors.DeadlockDetected, psycopg2.errors.InternalError_):
                        continue
                wait_until(lambda: len(done) > before + 20 or wrong, "the work to go on")  # pylint: disable=cell-var-from-loop
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert sorted(row.key for row in native.rows("SELECT key FROM once.intent WHERE response_body = convert_to(key, 'UTF8') AND scope = 's'")) == sorted(done)
    for query, expected in (("SELECT key FROM once.intent WHERE scope = 'c' AND state = 'succeeded'", reported), ("SELECT key FROM once.intent WHERE scope = 'r'", received),
                            ("SELECT key FROM once.outbox", emitted)):  # fmt: skip
        assert sorted(row.key for row in native.rows(query)) == sorted(expected)
    assert native.rows("""SELECT bt_index_check(i.indexrelid, true) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
        WHERE i.indrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent IN ('once.intent'::regclass, 'once.outbox'::regclass)) AND c.relkind = 'i'""")
