# SPDX-License-Identifier: PostgreSQL
"""Who may do what: no table but for the owner, no function but those granted, no tenant but one's own."""

import psycopg2
import pytest

from .calls import PRINT, Once, code_of, refused, retire, shorten_horizon, upgrade_script, uuid7_days_ago
from .logins import LOGINS, TENANT_CALLS, call_as, grant_everything_tenant_bound, make_logins, run

KEEPING = {"keeper_status", "keeper_lease", "retention_held"}
KEPT = KEEPING | {"keep", "keep_steps", "keep_take", "keep_release", "keep_step", "keep_failed", "recover"}
PARKED = {"message_park", "message_due", "message_applied", "message_look", "message_count", "consumer_remembers"}
SEEING = {"slot_of", "slots", "counts", "attempt_counts", "metrics", "find", "top", "find_part", "scope_list", "consumer_list", "latency", "readable", "doubts_part", "ask", "outline", "parked_outline"}
GRANTED = {
    "once_app": {
        "start",
        "try_start",
        "finish",
        "finish_new",
        "claim",
        "claim_many",
        "complete",
        "complete_many",
        "fail",
        "fail_many",
        "renew",
        "renew_many",
        "release",
        "peek",
        "peek_many",
        "salt",
        "fingerprint",
        "request_fingerprint",
        "key_of_header",
        "receive",
        "emit",
        "emit_bytes",
        "emit_later",
        "cancel_event",
        "try_lock",
        "lock",
        "errors",
        "contract_version",
        "slot_of",
        "slots",
        "count_cached",
        "any_tenant",
        "receive_many",
        "consumer_report",
        "consumer_ids",
    },
    "once_relay": {
        "slots",
        "errors",
        "contract_version",
        "add_days",
        "any_tenant",
        "relay_take",
        "relay_look",
        "relay_flush",
        "relay_list",
        "relay_fetch",
        "relay_due",
        "relay_settle",
        "relay_parked",
        "relay_release",
        "metrics",
    },
    "once_capture": {"errors", "contract_version"},
    "once_consumer": PARKED
    | {
        "slots",
        "errors",
        "contract_version",
        "add_days",
        "any_tenant",
        "receive",
        "receive_many",
        "salt",
        "claim_many",
        "complete_many",
        "fail_many",
        "renew_many",
        "peek_many",
        "release",
        "consumer_report",
        "consumer_ids",
        "metrics",
    },
    "once_keeper": KEPT
    | {"slots", "errors", "contract_version", "add_days", "retire_day", "retire_outbox", "any_tenant", "counts", "metrics"},
    "once_reader": KEEPING
    | SEEING
    | {
        "errors",
        "contract_version",
        "peek",
        "peek_many",
        "story",
        "any_tenant",
        "outbox_summary",
        "outbox_untaken",
        "outbox_delayed",
        "capture_list",
        "parked_summary",
        "parked_list",
        "parked_show",
    },
}
GRANTED["once_support"] = GRANTED["once_reader"] - {"peek", "peek_many", "story", "parked_show"}
GRANTED["once_tenant"] = GRANTED["once_app"] - {"any_tenant"}
GRANTED["once_admin"] = GRANTED["once_app"] | PARKED | KEPT | SEEING | {
    "close_slot",
    "open_slot",
    "set_keeping",
    "story",
    "verify",
    "resolve",
    "resolve_many",
    "resolve_seen",
    "set_scope",
    "bind",
    "unbind",
    "add_days",
    "retire_day",
    "retire_outbox",
    "outbox_summary",
    "outbox_untaken",
    "outbox_delayed",
    "capture_list",
    "relay_adopt",
    "add_capture",
    "drop_relay",
    "parked_summary",
    "parked_list",
    "parked_show",
    "parked_retry",
    "parked_discard",
    "parked_retry_many",
    "parked_discard_many",
    "parked_replay",
}


@pytest.mark.parametrize("login", LOGINS)
def test_no_role_but_the_owner_can_touch_any_table(db, login):
    make_logins(db)
    Once(db.connect()).finish_new(key="k")
    connection = db.connect(login)
    tables = [
        row.name
        for row in db.rows(
            "SELECT c.oid::regclass::text AS name FROM pg_class AS c "
            "WHERE c.relnamespace = 'once'::regnamespace AND c.relkind IN ('r', 'p', 'm', 'f')"
        )
    ]
    assert len(tables) > 15
    for table in tables:
        for statement in (
            f"SELECT 1 FROM {table}",
            f"INSERT INTO {table} DEFAULT VALUES",
            f"DELETE FROM {table}",
            f"TRUNCATE {table}",
            f"BEGIN; LOCK {table}",
            f"CREATE INDEX ON {table} ((1))",
            f"DROP TABLE {table}",
            f"COPY {table} TO STDOUT",
        ):
            with pytest.raises(psycopg2.Error) as caught:
                cursor = connection.cursor()
                if statement.startswith("COPY"):
                    cursor.copy_expert(statement, open("/dev/null", "wb"))  # pylint: disable=consider-using-with
                else:
                    cursor.execute(statement)
            assert caught.value.pgcode == "42501", (statement, caught.value)
            run(connection, "ROLLBACK")
    for sequence in db.rows(
        "SELECT c.oid::regclass::text AS name FROM pg_class AS c WHERE c.relnamespace = 'once'::regnamespace AND"
        " c.relkind = 'S'"
    ):
        with refused("42501"):
            run(connection, f"SELECT nextval('{sequence.name}')")
    with refused("42501"):
        run(connection, "CREATE TABLE once.mine ()")


def strangers(db):
    """What anybody holds in the two schemas who is neither the owner nor a role that the contract grants it to."""
    return {
        tuple(row)
        for row in db.rows(
            "SELECT o.name, a.grantee::regrole::text, a.privilege_type FROM ("
            "SELECT c.oid::regclass::text AS name, c.relowner AS owner, c.relacl AS acl, c.relkind::text AS kind FROM pg_class AS c"
            " WHERE c.relnamespace = 'once'::regnamespace UNION ALL "
            "SELECT p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner)), 'function' FROM pg_proc AS p"
            " WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace) UNION ALL "
            "SELECT n.nspname, n.nspowner, n.nspacl, 'schema' FROM pg_namespace AS n WHERE n.nspname IN ('once', 'once_job')) AS o,"
            " aclexplode(o.acl) AS a WHERE a.grantee <> o.owner AND NOT (a.grantee <> 0 AND a.grantee::regrole::text ~ '^once_' AND"
            " (o.kind, a.privilege_type) IN (('v', 'SELECT'), ('function', 'EXECUTE'), ('schema', 'USAGE')))"
            " AND (o.name, a.grantee::regrole::text, a.privilege_type) <> ('once.outbox', 'once_capture', 'SELECT')"
        )
    }


def open_by_default(db):
    """As an administrator does who wants a role to use whatever will be made."""
    db.execute("DO $$ BEGIN CREATE ROLE acme LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    for kind in ("TABLES", "SEQUENCES", "FUNCTIONS", "SCHEMAS", "TYPES"):
        db.execute(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO acme WITH GRANT OPTION")
    db.execute("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC")
    db.execute("ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO once_reader")


def test_default_privileges_open_nothing_that_an_installation_makes(server, db):  # db: the roles are there
    fresh = server.empty_database()
    open_by_default(fresh)
    fresh.install()
    assert strangers(fresh) == set()
    connection = fresh.connect("acme")
    for statement in ("SELECT salt FROM once.setting", "DELETE FROM once.intent", "SELECT once.any_tenant()"):
        with refused("42501"):
            run(connection, statement)
    make_logins(fresh)
    assert Once(fresh.connect("app")).claim(key="k").verdict == "new_claim"
    run(fresh.connect("reader"), "SELECT * FROM once.stuck")
    fresh.drop()


def test_default_privileges_open_nothing_that_is_made_later(db):
    open_by_default(db)
    old = uuid7_days_ago(db, 3)
    Once(db.connect()).finish_new(key=old)
    assert db.value("SELECT once.add_days(5)") == 6
    db.execute("SELECT once.set_scope('orders', retention => '20 days')")
    shorten_horizon(db)
    assert retire(db, 3) == 1
    assert db.value("SELECT count(*) FROM once.archive") == 1
    assert strangers(db) == set()


def test_an_installation_that_is_run_again_takes_back_what_strangers_hold(db):
    """And leaves a schema that works: the views are made anew, and default privileges would open them."""
    open_by_default(db)
    db.execute("GRANT SELECT ON once.intent TO acme; GRANT EXECUTE ON FUNCTION once.resolve TO acme; GRANT USAGE ON SCHEMA once, once_job TO acme")
    db.execute(upgrade_script(db.value("SELECT once.contract_version()")))
    assert strangers(db) == set()


@pytest.mark.parametrize("login", LOGINS)
def test_only_readers_and_administrators_read_the_views_and_nobody_writes_through_them(db, login):
    make_logins(db)
    connection = db.connect(login)
    views = [
        row.name
        for row in db.rows(
            "SELECT c.oid::regclass::text AS name FROM pg_class AS c WHERE c.relnamespace = 'once'::regnamespace"
            " AND c.relkind = 'v'"
        )
    ]
    assert len(views) >= 5
    for view in views:
        if LOGINS[login] in ("once_reader", "once_admin"):
            run(connection, f"SELECT * FROM {view}")
        else:
            with refused("42501"):
                run(connection, f"SELECT 1 FROM {view}")
        with refused("42501", "55000"):
            run(connection, f"DELETE FROM {view}")


@pytest.mark.parametrize("login", LOGINS)
def test_a_role_can_execute_exactly_the_functions_granted_to_it(db, login):
    make_logins(db)
    may = {
        row.proname
        for row in db.rows(
            "SELECT DISTINCT p.proname FROM pg_proc AS p WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace) "
            "AND has_schema_privilege(%s, p.pronamespace, 'usage') AND has_function_privilege(%s, p.oid, 'execute')",
            login,
            login,
        )
    }
    assert may == GRANTED.get(LOGINS[login], set())
    assert not {name for name in may if name.startswith("_")}


def test_an_app_role_can_do_all_that_an_application_needs(db):
    make_logins(db)
    once = Once(db.connect("app"))
    once.start(key="a")
    once.finish_new(key="a", response_body=b"x")
    assert once.start(key="a").response_body == b"x"
    once.claim(key="b")
    once.renew(key="b", fence=1)
    once.complete(key="b", fence=1)
    once.claim_many(key=["c", "d"])
    once.complete_many(key=["c"], fence=[1])
    once.fail_many(key=["d"], fence=[1], retryable=[True])
    once.start(key="d")
    once.finish_new(key="d")
    assert once.receive(message_id="m") == "process"
    once.emit(topic="t", payload="{}", scope="orders", key="a")
    assert len(run(db.connect("app"), "SELECT once.fingerprint('{}'::jsonb)")[0][0]) == 32
    assert run(db.connect("app"), "SELECT once.try_lock('a'), once.lock('b', '1s')") == [(True, True)]


def test_an_admin_role_can_administer(db):
    make_logins(db)
    connection = db.connect("admin")
    once = Once(connection)
    run(connection, "SELECT once.set_scope('orders', lease => '5 s')")
    once.claim(key="k")
    once.fail(key="k", fence=1, retryable=None)
    assert once.resolve(key="k", as_state="succeeded") == "in_doubt"
    assert once.story(key="k")["decisions"][0]["by"] == "admin"
    run(connection, "SELECT once.bind('bound', 'another'), once.unbind('bound', 'another'), once.add_days()")


def tenant_functions(db):
    return {
        row.proname
        for row in db.rows(
            "SELECT DISTINCT p.proname FROM pg_proc AS p WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace) AND p.proname !~"
            " '^_' AND 'tenant' = ANY (p.proargnames) AND p.proname NOT IN ('bind', 'unbind', 'recover', 'retention_held', 'slot_of', 'consumer_list')"
        )
    }


def test_every_function_that_takes_a_tenant_is_tried_here(db):
    assert tenant_functions(db) == set(TENANT_CALLS)


@pytest.mark.parametrize("function", TENANT_CALLS)
def test_a_bound_role_is_refused_another_tenant_in_the_same_words_whether_or_not_the_key_exists(db, function):
    make_logins(db)
    grant_everything_tenant_bound(db)
    db.execute("SELECT nextval('once.outbox_day_seq')")  # the first event of a day has a way of its own
    bound = db.connect("bound")
    said = []
    for prepare in (
        None,
        lambda once: once.finish_new(scope="s", key="k", tenant="theirs", response_body=b"secret"),
        lambda once: once.claim(scope="s", key="k", tenant="theirs"),
        lambda once: call_as(once.connection, TENANT_CALLS["message_park"], "theirs"),
    ):
        db.execute("DELETE FROM once.intent")
        if prepare:
            prepare(Once(db.connect()))
        before = db.rows("SELECT * FROM once.intent")
        with refused("P4003") as caught:
            call_as(bound, TENANT_CALLS[function], "theirs")
        diag = caught.value.diag
        said.append((diag.message_primary, diag.message_detail, diag.message_hint, diag.context))
        assert db.rows("SELECT * FROM once.intent") == before
    assert len(set(said)) == 1, said
    assert "secret" not in str(said)


@pytest.mark.parametrize("function", TENANT_CALLS)
def test_a_bound_role_may_name_its_own_tenant(db, function):
    make_logins(db)
    grant_everything_tenant_bound(db)
    assert code_of(lambda: call_as(db.connect("bound"), TENANT_CALLS[function], "mine")) in (
        None,
        "P4010",
        "P4011",
        "P4070",
    )


@pytest.mark.parametrize("tenant", ["", "Mine", "mine ", "theirs"])
def test_a_bound_role_may_name_no_tenant_but_its_own_to_the_letter(db, tenant):
    make_logins(db)
    for text in TENANT_CALLS.values():
        assert code_of(lambda: call_as(db.connect("bound"), text, tenant)) in ("P4003", "42501")


def test_set_role_to_a_bound_role_binds(db):
    """A pooler logs in as one role and sets another: the one that is set counts."""
    make_logins(db)
    connection = db.connect()
    run(connection, "SET ROLE bound")
    for function in GRANTED["once_tenant"] & set(TENANT_CALLS):
        with refused("P4003"):
            call_as(connection, TENANT_CALLS[function], "theirs")
    assert run(connection, "SELECT verdict FROM once.claim('s', 'k', %s, tenant => 'mine')", (PRINT,)) == [
        ("new_claim",)
    ]
    run(connection, "RESET ROLE")
    assert run(connection, "SELECT verdict FROM once.claim('s', 'k', %s, tenant => 'theirs')", (PRINT,)) == [
        ("new_claim",)
    ]


@pytest.mark.parametrize("key", ["k", "of today"])
def test_a_role_that_is_set_between_start_and_finish_binds(db, key):
    """What the transaction has started does not speak for who finishes it."""
    make_logins(db)
    named = {"key": uuid7_days_ago(db, 0) if key == "of today" else key, "tenant": "theirs"}
    connection = db.connect(isolation="READ COMMITTED")
    once = Once(connection)
    assert once.start(**named).verdict == "proceed"
    run(connection, "SET LOCAL ROLE bound")
    with refused("P4003"):
        once.finish(**named)
    connection.rollback()
    assert once.start(**named).verdict == "proceed"


def test_set_local_role_binds_until_the_transaction_ends(db):
    make_logins(db)
    connection = db.connect(isolation="READ COMMITTED")
    run(connection, "SET LOCAL ROLE bound")
    with refused("P4003"):
        call_as(connection, TENANT_CALLS["start"], "theirs")
    connection.rollback()
    assert call_as(connection, TENANT_CALLS["start"], "theirs")[0].verdict == "proceed"


def test_a_bound_login_stays_bound_inside_a_security_definer_function(db):
    make_logins(db)
    db.execute(
        "CREATE FUNCTION public.wrapper(tenant text) RETURNS text LANGUAGE sql SECURITY DEFINER AS "
        "$$ SELECT verdict FROM once.claim('s', 'k', '0123456789abcdef'::bytea, tenant => tenant) $$"
    )
    with refused("P4003"):
        run(db.connect("bound"), "SELECT public.wrapper('theirs')")


def test_an_unbound_tenant_role_may_name_no_tenant_and_unbind_takes_back(db):
    make_logins(db)
    bound = db.connect("bound")
    assert call_as(bound, TENANT_CALLS["claim"], "mine")[0].verdict == "new_claim"
    assert db.value("SELECT once.unbind('bound', 'mine')") is True
    assert db.value("SELECT once.unbind('bound', 'mine')") is False
    with refused("P4003"):
        call_as(bound, TENANT_CALLS["claim"], "mine")


def test_a_role_that_may_name_any_tenant_cannot_be_bound(db):
    make_logins(db)
    for login in ("app", "admin", "postgres"):
        with refused("42501"):
            db.execute("SELECT once.bind(%s, 'mine')", login)


@pytest.mark.parametrize("control", ["\x01", "\n", "\x1e", "\x1f", "\x7f"], ids=ascii)
def test_no_role_is_bound_to_a_tenant_with_a_control_character(db, control):
    make_logins(db)
    with refused("P4003"):
        db.execute("SELECT once.bind('bound', %s)", f"a{control}b")
    db.execute("SELECT once.bind('bound', 'a b~ö')")


def test_each_tenant_has_its_own_salt_and_fingerprints(db):
    assert db.value(
        "SELECT once.salt('a') <> once.salt('b') AND once.salt() = once.salt('') AND length(once.salt()) = 32"
    )
    assert db.value("SELECT once.fingerprint('x'::text, 'a') <> once.fingerprint('x'::text, 'b')")


def test_a_verify_function_must_be_named_with_its_schema_by_an_administrator(db):
    make_logins(db)
    db.execute(
        "CREATE FUNCTION public.v(text, text, text) RETURNS once.verification LANGUAGE sql AS $$SELECT 'absent', 1,"
        " NULL::bytea, NULL::jsonb, '', ''$$"
    )
    with refused("42501"):
        run(db.connect("app"), "SELECT once.set_scope('s', verify => 'public.v')")
    with refused("42883"):
        run(db.connect("admin"), "SELECT once.set_scope('s', verify => 'v')")
    run(db.connect("admin"), "SELECT once.set_scope('s', verify => 'public.v')")
