# SPDX-License-Identifier: PostgreSQL
"""pgonce_native: who may not do something in SQL may not do it in C either, and is told so alike."""

import pytest

from harness.native import library

from .sessions import F, Session, finish, start

pytestmark = pytest.mark.skipif(not library().exists(), reason="native/ is not built: no headers of a server")


def test_who_may_not_is_refused_alike(native):
    native.execute("DROP ROLE IF EXISTS native_stranger, native_app, native_bound")
    native.execute("CREATE ROLE native_stranger LOGIN; CREATE ROLE native_app LOGIN; CREATE ROLE native_bound LOGIN")
    native.execute("GRANT once_app TO native_app; GRANT once_tenant TO native_bound")
    native.execute("SELECT once.bind('native_bound', 't')")
    try:
        for role in ("native_stranger", "native_app", "native_bound"):
            told = []
            for way in ("on", "off"):
                session = Session(native, user=role)
                session.outcome(start("warm"))
                session(f"SET once.native = {way}")
                told.append([session.outcome(start()), session.outcome(f"SELECT * FROM once.start('s', 'k', {F}, 't')"), session.outcome("SELECT once.salt('t')"),
                             session.outcome("SELECT once.salt('a')"), session.outcome("SET ROLE native_app"), session.outcome(start())])
                if role == "native_app":
                    assert session.answered(f"RESET ROLE; {start()}") == (way == "on")
            assert told[0] == told[1]
        assert told[0][0][0] == "P4003"
    finally:
        native.execute("DROP ROLE native_stranger; REVOKE once_app FROM native_app; DROP ROLE native_app; REVOKE once_tenant FROM native_bound; DROP ROLE native_bound")


# (how a role came to its right, how it loses it)
LEAVINGS = [
    ("GRANT once_app TO native_leaver", "REVOKE once_app FROM native_leaver"),
    ("GRANT USAGE ON SCHEMA once TO native_leaver; GRANT EXECUTE ON FUNCTION once.start, once.any_tenant TO native_leaver",
     "REVOKE EXECUTE ON FUNCTION once.start FROM native_leaver"),
    ("ALTER ROLE native_leaver SUPERUSER", "ALTER ROLE native_leaver NOSUPERUSER"),
]


@pytest.mark.parametrize("given, taken", LEAVINGS)
def test_a_right_that_is_taken_away_is_missed_at_once(native, given, taken):
    native.execute(f"CREATE ROLE native_leaver LOGIN; {given}")
    try:
        session = Session(native, user="native_leaver")
        session(f"PREPARE p AS {start()}")
        for _ in range(7):
            session("EXECUTE p")
        assert session.answered("EXECUTE p") == 1
        native.execute(taken)
        assert session.outcome("EXECUTE p")[0] == "42501"
        assert session.outcome(start())[0] == "42501"
        native.execute(given)
        session("EXECUTE p")
        assert session.answered("EXECUTE p") == 1
        native.execute(taken)
    finally:
        native.execute("DROP OWNED BY native_leaver; DROP ROLE native_leaver")


def test_the_database_s_owner_changes(native):
    """Its rights go with the database, by pg_database_owner, of which nothing but the catalogue of databases tells."""
    if native.server.version < 14:
        pytest.skip("before PostgreSQL 14 there is no such role")
    native.execute("CREATE ROLE native_owner LOGIN; GRANT USAGE ON SCHEMA once TO pg_database_owner; "
                   "GRANT EXECUTE ON FUNCTION once.start, once.any_tenant TO pg_database_owner")
    name, = native.row("SELECT current_database()")
    before, = native.row("SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = current_database()")
    try:
        native.execute(f"ALTER DATABASE {name} OWNER TO native_owner")
        session = Session(native, user="native_owner")
        session(f"PREPARE p AS {start()}")
        for _ in range(7):
            session("EXECUTE p")
        assert session.answered("EXECUTE p") == 1
        native.execute(f"ALTER DATABASE {name} OWNER TO {before}")
        assert session.outcome("EXECUTE p")[0] == "42501"
    finally:
        native.execute(f"ALTER DATABASE {name} OWNER TO {before}; DROP ROLE native_owner")


def test_who_has_set_a_role_is_judged_by_that_role(roles):
    for role, tenant, code in (("native_bound", "b", "P4003"), ("native_none", "a", "42501"), ("native_bound", "a", "proceed"), ("native_app", "b", "proceed")):
        told = []
        for way in ("on", "off"):
            session = Session(roles, user="native_any")
            session(f"SELECT once.start('warm', 'up', {F})")
            session(f"SET once.native = {way}; SET ROLE {role}; BEGIN")
            told.append([session.outcome(f"SELECT * FROM once.start('s', 'k', {F}, '{tenant}')")])
            session("ROLLBACK; BEGIN")
            told[-1].append(session.outcome(f"SELECT once.finish_new('s', 'k', {F}, tenant => '{tenant}')"))
            session("ROLLBACK")
        assert told[0] == told[1]
        assert told[0][0][0] == code or told[0][0][0][0] == code


def test_a_right_is_missed_also_where_nothing_is_called(roles):
    """The executor asks when it begins."""
    session = Session(roles, user="native_none")
    roles.execute("GRANT USAGE ON SCHEMA once TO native_none; LOAD '$libdir/plpgsql'")
    session("SELECT once_native.load()")
    for call in (start(), finish(), f"SELECT once.finish_new('s', 'k', {F})"):
        name = call[call.index("once.") :].split("(")[0].removeprefix("once.")
        for query in (call, f"EXPLAIN {call}"):
            assert session.outcome(query)[:2] == ("42501", f"permission denied for function {name}")
        expression = call.replace("SELECT * FROM", "SELECT")
        assert session.outcome(f"{expression} FROM generate_series(1, 0)")[:2] == ("42501", f"permission denied for function {name}")


def test_a_substitute_that_may_not_be_called_is_none(roles):
    roles.execute("REVOKE EXECUTE ON FUNCTION once_native.start FROM PUBLIC")
    session = Session(roles, user="native_app")
    session(f"SELECT once.start('warm', 'up', {F})")
    assert session.outcome(start())[0][0] == "proceed"
    assert session.answered(start()) == 0
    assert session.answered(f"SELECT once.finish_new('s', 'l', {F})") == 1


def test_a_schema_of_that_name_runs_nobody_s_code_as_the_owner(db):
    db.execute("""CREATE SCHEMA once_native; CREATE TABLE public.fooled ();
        CREATE FUNCTION once_native.load() RETURNS void LANGUAGE plpgsql AS $$ BEGIN DROP TABLE public.fooled; END $$""")
    session = Session(db)
    session(start())
    assert db.value("SELECT to_regclass('public.fooled')") == "fooled"


def test_no_function_can_be_called_by_name(session):
    for call in ("once_native.start('a', 'b')", "once_native.start(NULL, NULL::text)", "once_native.finish(NULL::text, 1)"):
        assert session.outcome(f"SELECT {call}")[0] in ("42883", "42804", "42725", "0A000")


def test_who_asks_why_the_library_does_not_answer_keeps_no_lock_of_the_contract(roles):
    """Anybody may ask, and a transaction that stays open must not keep a day from being retired."""
    session = Session(roles, user="native_none")
    session("SELECT once_native.load(); BEGIN")
    tables = [row.oid for row in roles.rows("SELECT oid::bigint FROM pg_class WHERE relnamespace = 'once'::regnamespace")]
    for change, told in (("SELECT", None), ("CREATE INDEX more ON once.intent_d0 (state)", "intent_d0 has 2 indexes, but the contract's has one")):
        roles.execute(change)
        assert session.value("SELECT once_native.obstacle(false)") == told
        assert session.value("SELECT once_native.obstacle(true)") is None
        assert session.value("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation = ANY (%s::oid[])", tables) == 0
