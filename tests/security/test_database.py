# SPDX-License-Identifier: PostgreSQL
"""What a database role can do to others beyond tests/contract/test_roles.py: learn by time, mislead with settings of its session, hold a lock.
And what roles can do by design, which docs/why/threat-model.md says plainly: here is the proof that it speaks the truth."""

import psycopg2

from contract.calls import PRINT, Once, code_of, refused
from contract.logins import LOGINS, TENANT_CALLS, grant_everything_tenant_bound, make_logins, run

ROWS_OF_TENANTS = """SELECT coalesce(sum(seq_scan + coalesce(idx_scan, 0)), 0) FROM pg_stat_xact_all_tables
    WHERE schemaname = 'once' AND relname ~ '^(intent|archive|outbox|decision|parked|consumer_position)'"""


def looks(connection, text, tenant):
    """How often this call looked into a table that holds rows of tenants."""
    before = run(connection, ROWS_OF_TENANTS)[0][0]
    run(connection, "SAVEPOINT call")
    try:
        run(connection, f"SELECT * FROM {text}", {"tenant": tenant, "print": PRINT})
        code = None
    except psycopg2.Error as error:
        code = error.pgcode
    run(connection, "ROLLBACK TO call")
    return code, run(connection, ROWS_OF_TENANTS)[0][0] - before


def refused_looks(db):
    make_logins(db)
    grant_everything_tenant_bound(db)
    Once(db.connect()).finish_new(scope="s", key="k", tenant="theirs")
    connection = db.connect("bound", autocommit=False)
    return {function: looks(connection, text, "theirs") for function, text in TENANT_CALLS.items()}


def test_a_refused_tenant_is_refused_before_any_row_of_a_tenant_is_read_so_that_time_tells_nothing(db):
    assert set(refused_looks(db).values()) == {("P4003", 0)}
    assert looks(db.connect("bound", autocommit=False), TENANT_CALLS["claim"], "mine")[1] > 0


def test_a_look_before_the_refusal_would_be_noticed(db):
    db.execute(
        """DO $$ BEGIN EXECUTE replace(pg_get_functiondef('once._may_name'::regproc), 'PERFORM FROM once.binding',
           'PERFORM FROM once.intent AS i WHERE i.tenant = _may_name.tenant; PERFORM FROM once.binding'); END $$"""
    )
    assert {count for _, count in refused_looks(db).values()} != {0}


# ---- Settings that any role may change for its session, each of which has misled some function of somebody's.

SETTINGS = {
    "array_nulls": "off",
    "transform_null_equals": "on",
    "TimeZone": "Pacific/Kiritimati",
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "bytea_output": "escape",
    "standard_conforming_strings": "off",
    "extra_float_digits": "-15",
    "quote_all_identifiers": "on",
    "check_function_bodies": "off",
    "row_security": "off",
    "default_transaction_isolation": "serializable",
    "plan_cache_mode": "force_custom_plan",
    "enable_indexscan": "off",
    "work_mem": "64kB",
}


def told(connection):
    """What the contract says to a life of intents, events and messages; without what is of the moment."""
    # psycopg2 reads dates of one style only, and those of the moment are not compared.
    psycopg2.extensions.register_type(psycopg2.extensions.new_type((1184,), "MOMENT", lambda value, cursor: None), connection)
    once = Once(connection)
    late = "01000000-0000-7000-8000-000000000001"
    calls = (
        lambda: once.claim(key="a", lease="90 s", retention="3 days"),
        lambda: once.claim(key="a"),
        lambda: once.renew(key="a", fence=1, lease="2 min"),
        lambda: once.complete(key="a", fence=1, response_status=201, response_body=b"\x00\\x\xff", response_headers='[["A", "b"]]'),
        lambda: once.claim(key="a"),
        lambda: once.claim_many(key=["m1", None, "m2", "NULL", "m1"]),
        lambda: once.complete_many(key=["m1", "m2"], fence=[1, 1], response_body=[None, b"\\"], result_type=[None, "NULL"]),
        lambda: once.peek_many(key=["m1", "m2", "NULL"]),
        lambda: once.fail(key="NULL", fence=1, retryable=None, error_code="e"),
        lambda: once.claim(key="NULL"),
        lambda: once.start(key=late),
        lambda: once.finish_new(key="b", response_body=b""),
        lambda: once.start(key="b"),
        lambda: run(connection, "SELECT length(once.emit('t', '{\"a\": [null, 1.10]}', 'thing', '7', scope => 'orders', key => 'b')::text)"),
        lambda: once.receive(message_id="m"),
        lambda: once.receive(message_id="m"),
    )
    said = []
    for call in calls:
        try:
            rows = call()
        except psycopg2.Error as error:
            said.append(error.pgcode)
            continue
        for row in rows if isinstance(rows, list) else [rows]:
            values = row._asdict().items() if hasattr(row, "_asdict") else [("value", row)]
            said.append([(name, value) for name, value in values if not name.endswith(("_at", "_until", "_ms"))])
    return said


def kept(db):
    """Where it lies: the day of the partition and the terms, which hang on no session's clock face."""
    return (
        db.rows("SELECT key, state, fence, bucket, response_body, response_headers::text, round(extract(epoch FROM expires_at - created_at)) FROM once.intent ORDER BY 1"),
        db.rows("SELECT day - floor(extract(epoch FROM created_at) / 86400), topic, payload FROM once.outbox"),
    )


def test_no_setting_of_the_callers_session_changes_what_the_contract_says_or_keeps(db, server):
    make_logins(db)
    wanted = told(db.connect("app")), kept(db)
    assert len(wanted[0]) > 16 and len(wanted[1][0]) == 6 and len(wanted[1][1]) == 1
    other = server.new_database()
    try:
        make_logins(other)
        odd = other.connect("app")
        for name, value in SETTINGS.items():
            run(odd, f"SET {name} = '{value}'")
        assert (told(odd), kept(other)) == wanted
    finally:
        other.drop()


# ---- What docs/why/threat-model.md says of a user of the database without a role, and of roles that trust each other.

LOCK = "SELECT {}(hash_array_extended(ARRAY['', 'orders', 'k'] COLLATE \"C\", 20778))"


def test_a_user_without_a_role_can_make_an_intent_look_active_and_do_nothing_else_to_it(db):
    make_logins(db)
    nobody, once = db.connect("nobody_in_particular"), Once(db.connect("app"))
    run(nobody, LOCK.format("pg_advisory_lock"))
    with refused("P4029"):
        once.start(key="k")
    assert code_of(lambda: run(nobody, "SELECT * FROM once.peek('orders', 'k')")) == "42501"
    run(nobody, LOCK.format("pg_advisory_unlock"))
    assert once.start(key="k").verdict == "proceed"


def test_a_fence_is_no_secret_so_whoever_may_name_the_tenant_and_knows_the_key_can_report_for_it(db):
    make_logins(db)
    Once(db.connect("app")).claim(key="k", owner="the worker")
    assert Once(db.connect("attacker")).complete(key="k", fence=1, response_body=b"forged") is True
    with refused("P4010"):
        Once(db.connect("app")).complete(key="k", fence=1, response_body=b"true")


def test_a_bound_role_cannot_report_for_another_tenants_intent_though_it_knows_key_and_fence(db):
    make_logins(db)
    Once(db.connect("app")).claim(key="k", tenant="theirs")
    with refused("P4003"):
        Once(db.connect("bound")).complete(key="k", fence=1, tenant="theirs", response_body=b"forged")
    assert Once(db.connect("app")).complete(key="k", fence=1, tenant="theirs") is True


def test_an_administrator_can_run_code_as_the_owner_so_that_role_is_for_those_who_could_be_owner(db):
    make_logins(db)
    db.execute(f"GRANT CREATE ON DATABASE {db.name} TO admin")
    admin = db.connect("admin")
    run(admin, "CREATE SCHEMA mine; CREATE TABLE mine.ran_as (who text); GRANT USAGE ON SCHEMA mine TO PUBLIC; GRANT INSERT ON mine.ran_as TO PUBLIC")
    run(
        admin,
        """CREATE FUNCTION mine.v(text, text, text) RETURNS once.verification LANGUAGE plpgsql AS $$
           BEGIN INSERT INTO mine.ran_as VALUES (current_user); RETURN ROW('unknown', NULL, NULL, NULL, '', '')::once.verification; END $$""",
    )
    run(admin, "SELECT once.set_scope('orders', verify => 'mine.v')")
    Once(db.connect("app")).claim(key="k")
    run(admin, "SELECT once.verify('orders', 'k')")
    assert run(admin, "SELECT who FROM mine.ran_as") == [("postgres",)]


def test_nobody_but_an_administrator_can_name_code_that_runs_as_the_owner_decide_or_bind(db):
    make_logins(db)
    for login, role in LOGINS.items():
        connection = db.connect(login)
        for call in (
            "once.set_scope('s', verify => 'pg_catalog.version')",
            "once.bind('bound', 'theirs')",
            "once.resolve('s', 'k', 'succeeded', 'why')",
            "once.resolve_many('s', 'succeeded', 'why')",
            "once.set_keeping(horizon_days => 1)",
            "once.parked_discard(gen_random_uuid()::text, 'why', 'r')",
            "once.parked_discard_many()",
            "once.parked_discard_many()",
            "once.drop_relay('r', 'why')",
        ):
            assert (code_of(lambda: run(connection, f"SELECT {call}")) == "42501") == (role != "once_admin"), (login, call)
