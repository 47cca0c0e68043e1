# SPDX-License-Identifier: PostgreSQL
"""Who may do what: no table but for the owner, no function but those granted, no tenant but one's own, and no way in
through search_path."""

import re

import psycopg2
import pytest

from .calls import PRINT, Once, code_of, refused, retire, shorten_horizon, upgrade_script, uuid7_days_ago

KEEPING = {"keep_steps", "keeper_status", "keeper_lease", "retention_held"}
KEPT = KEEPING | {"keep", "keep_take", "keep_release", "keep_step", "keep_failed", "recover"}
SEEING = {"counts", "metrics", "find", "top"}
GRANTED = {
    "once_app": {
        "start",
        "start_new",
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
        "try_lock",
        "lock",
        "errors",
        "contract_version",
        "count_cached",
        "any_tenant",
        "receive_many",
        "message_park",
        "message_due",
        "message_applied",
        "message_look",
        "message_count",
        "consumer_report",
        "consumer_ids",
    },
    "once_relay": {
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
        "metrics",
    },
    "once_capture": {"errors", "contract_version"},
    "once_consumer": {
        "errors",
        "contract_version",
        "add_days",
        "any_tenant",
        "receive",
        "receive_many",
        "message_park",
        "message_due",
        "message_applied",
        "message_look",
        "message_count",
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
    | {"errors", "contract_version", "add_days", "retire_day", "retire_outbox", "any_tenant", "counts", "metrics"},
    "once_reader": KEEPING
    | SEEING
    | {
        "errors",
        "contract_version",
        "peek",
        "peek_many",
        "story",
        "any_tenant",
        "outbox_list",
        "outbox_summary",
        "outbox_event",
        "capture_list",
        "dead_list",
        "dead_show",
    },
}
GRANTED["once_tenant"] = GRANTED["once_app"] - {"any_tenant"}
GRANTED["once_admin"] = GRANTED["once_app"] | KEPT | SEEING | {
    "set_keeping",
    "story",
    "verify",
    "resolve",
    "resolve_many",
    "set_scope",
    "bind",
    "unbind",
    "add_days",
    "retire_day",
    "retire_outbox",
    "outbox_list",
    "outbox_summary",
    "outbox_event",
    "capture_list",
    "outbox_retry",
    "outbox_discard",
    "outbox_replay",
    "relay_adopt",
    "add_capture",
    "drop_relay",
    "dead_list",
    "dead_show",
    "dead_retry",
    "dead_discard",
}
LOGINS = {
    "app": "once_app",
    "bound": "once_tenant",
    "bound_elsewhere": "once_tenant",
    "reader": "once_reader",
    "admin": "once_admin",
    "relay": "once_relay",
    "consumer": "once_consumer",
    "keeper": "once_keeper",
    "nobody_in_particular": None,
    "attacker": "once_app",
}

# A call of each function that takes a tenant, with %(tenant)s; the keys are of the one intent that the tests look for.
TENANT_CALLS = {
    "start": "once.start('s', 'k', %(print)s, %(tenant)s)",
    "start_new": "once.start_new('s', 'k', %(print)s, %(tenant)s)",
    "try_start": "once.try_start('s', 'k', %(print)s, %(tenant)s)",
    "finish": "once.start_new('s', 'k', %(print)s, %(tenant)s) AS started,"
    " LATERAL once.finish('s', 'k', %(print)s, result_id => started::text, tenant => %(tenant)s)",
    "finish_new": "once.finish_new('s', 'k', %(print)s, tenant => %(tenant)s)",
    "claim": "once.claim('s', 'k', %(print)s, tenant => %(tenant)s)",
    "claim_many": "once.claim_many(ARRAY['s'], ARRAY['k'], ARRAY[%(print)s], tenant => %(tenant)s)",
    "complete": "once.complete('s', 'k', 1, tenant => %(tenant)s)",
    "complete_many": "once.complete_many(ARRAY['s'], ARRAY['k'], ARRAY[1], tenant => %(tenant)s)",
    "fail": "once.fail('s', 'k', 1, true, tenant => %(tenant)s)",
    "fail_many": "once.fail_many(ARRAY['s'], ARRAY['k'], ARRAY[1], ARRAY[true], tenant => %(tenant)s)",
    "renew": "once.renew('s', 'k', 1, tenant => %(tenant)s)",
    "renew_many": "once.renew_many(ARRAY['s'], ARRAY['k'], ARRAY[1], tenant => %(tenant)s)",
    "release": "once.release('s', 'k', 1, tenant => %(tenant)s)",
    "peek": "once.peek('s', 'k', %(tenant)s)",
    "peek_many": "once.peek_many(ARRAY['s'], ARRAY['k'], %(tenant)s)",
    "story": "once.story('s', 'k', %(tenant)s)",
    "verify": "once.verify('s', 'k', %(tenant)s)",
    "resolve": "once.resolve('s', 'k', 'succeeded', 'why', tenant => %(tenant)s)",
    "resolve_many": "once.resolve_many('s', 'succeeded', 'why', tenant => %(tenant)s)",
    "find": "once.find(%(tenant)s)",
    "salt": "once.salt(%(tenant)s)",
    "fingerprint": (
        "once.fingerprint('{}'::jsonb, %(tenant)s) AS a, once.fingerprint('a'::bytea, %(tenant)s) AS b,"
        " once.fingerprint('a'::text, %(tenant)s) AS c"
    ),
    "request_fingerprint": (
        "once.request_fingerprint('POST', '/', NULL, 'a'::bytea, %(tenant)s) AS a,"
        " once.request_fingerprint('POST', '/', NULL, '[1.0]'::text, %(tenant)s, true) AS b"
    ),
    "receive": "once.receive('s', 'k', %(print)s, %(tenant)s)",
    "emit": "once.emit('t', '{}', scope => 's', key => 'k', tenant => %(tenant)s)",
    "receive_many": "once.receive_many('s', ARRAY['k'], ARRAY['a'], ARRAY[%(print)s], %(tenant)s)",
    "message_park": (
        "once.message_park('s', %(tenant)s, ARRAY[ROW('k', 't', 'a', '{}', '', %(print)s, 'dead', 1, 0, 'why', '22000')]"
        "::once.parked[])"
    ),
    "message_due": "once.message_due('s', %(tenant)s, 10)",
    "message_applied": "once.message_applied('s', %(tenant)s, ARRAY['k'])",
    "message_look": "once.message_look('s', %(tenant)s, ARRAY['k'], ARRAY['a'])",
    "message_count": "once.message_count('s', %(tenant)s)",
    "consumer_report": "once.consumer_report('s', now(), %(tenant)s)",
    "consumer_ids": "once.consumer_ids('s', %(tenant)s)",
    "dead_show": "once.dead_show('s', 'k', %(tenant)s)",
    "dead_retry": "once.dead_retry('s', 'k', %(tenant)s, 'why')",
    "dead_discard": "once.dead_discard('s', 'k', %(tenant)s, 'why')",
}


def make_logins(db):
    """Roles belong to the cluster; they are made once and mean nothing outside their database."""
    for login, group in LOGINS.items():
        if not db.rows("SELECT 1 FROM pg_roles WHERE rolname = %s", login):
            db.execute(f"CREATE ROLE {login} LOGIN")
            if group:
                db.execute(f"GRANT {group} TO {login}")
    db.execute("SELECT once.bind('bound', 'mine')")
    db.execute("SELECT once.bind('bound_elsewhere', 'theirs')")


def call_as(connection, text, tenant):
    return run(connection, f"SELECT * FROM {text}", {"tenant": tenant, "print": PRINT})


def run(connection, query, values=None):
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return cursor.fetchall() if cursor.description is not None else []


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
    """What anybody holds in the schema who is neither the owner nor a role that the contract grants it to."""
    return {
        tuple(row)
        for row in db.rows(
            "SELECT o.name, a.grantee::regrole::text, a.privilege_type FROM ("
            "SELECT c.oid::regclass::text AS name, c.relowner AS owner, c.relacl AS acl, c.relkind::text AS kind FROM pg_class AS c"
            " WHERE c.relnamespace = 'once'::regnamespace UNION ALL "
            "SELECT p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner)), 'function' FROM pg_proc AS p"
            " WHERE p.pronamespace = 'once'::regnamespace UNION ALL "
            "SELECT n.nspname, n.nspowner, n.nspacl, 'schema' FROM pg_namespace AS n WHERE n.nspname = 'once') AS o,"
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
    db.execute("GRANT SELECT ON once.intent TO acme; GRANT EXECUTE ON FUNCTION once.resolve TO acme; GRANT USAGE ON SCHEMA once TO acme")
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
            "SELECT DISTINCT p.proname FROM pg_proc AS p WHERE p.pronamespace = 'once'::regnamespace "
            "AND has_schema_privilege(%s, 'once', 'usage') AND has_function_privilege(%s, p.oid, 'execute')",
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
            "SELECT DISTINCT p.proname FROM pg_proc AS p WHERE p.pronamespace = 'once'::regnamespace AND p.proname !~"
            " '^_' AND 'tenant' = ANY (p.proargnames) AND p.proname NOT IN ('bind', 'unbind', 'recover', 'retention_held')"
        )
    }


def test_every_function_that_takes_a_tenant_is_tried_here(db):
    assert tenant_functions(db) == set(TENANT_CALLS)


def grant_everything_tenant_bound(db):
    """Even a bound role that was granted more than once_tenant stays bound."""
    db.execute(
        "GRANT EXECUTE ON FUNCTION once.find, once.story(text, text, text), once.verify(text, text, text), once.resolve(text, text, text, text, integer, text,"
        " jsonb, anynonarray, jsonb, text, text, text, text, text), once.dead_show, once.dead_retry, once.dead_discard"
        ", once.resolve_many TO bound, bound_elsewhere"
    )


@pytest.mark.parametrize("function", TENANT_CALLS)
def test_a_bound_role_is_refused_another_tenant_in_the_same_words_whether_or_not_the_key_exists(db, function):
    make_logins(db)
    grant_everything_tenant_bound(db)
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


def test_each_tenant_has_its_own_salt_and_fingerprints(db):
    assert db.value(
        "SELECT once.salt('a') <> once.salt('b') AND once.salt() = once.salt('') AND length(once.salt()) = 32"
    )
    assert db.value("SELECT once.fingerprint('x'::text, 'a') <> once.fingerprint('x'::text, 'b')")


def definers(db):
    return db.rows(
        "SELECT p.oid::regprocedure::text AS name, p.proname, p.prosrc, coalesce(p.proconfig, '{}') AS settings FROM"
        " pg_proc AS p WHERE p.pronamespace = 'once'::regnamespace AND p.prosecdef ORDER BY 1"
    )


def test_every_security_definer_function_has_a_fixed_search_path_with_pg_temp_last(db):
    assert len(definers(db)) >= 20
    for function in definers(db):
        assert "search_path=pg_catalog, pg_temp" in function.settings, function.name


def test_every_function_that_a_role_may_call_has_a_fixed_search_path(db):
    for row in db.rows(
        "SELECT p.oid::regprocedure::text AS name, coalesce(p.proconfig, '{}') AS settings FROM pg_proc AS p "
        # A procedure that commits may have no settings: once.keep names the schema of everything instead.
        "WHERE p.pronamespace = 'once'::regnamespace AND p.proname !~ '^_' AND p.prokind = 'f'"
    ):
        assert "search_path=pg_catalog, pg_temp" in row.settings, row.name


TYPES = (
    "text",
    "integer",
    "bigint",
    "boolean",
    "bytea",
    "interval",
    "timestamptz",
    "date",
    "numeric",
    '"char"',
    "name",
    "uuid",
    "jsonb",
    "oid",
    "xid8",
    "double precision",
    "regclass",
    "anyarray",
)
OPERATORS = ("=", "<>", "<", "<=", ">", ">=", "||", "+", "-", "*", "/", "~", "!~", "~~", "!~~")


def plant_shadows(db):
    """A schema of the attacker's with a function for every pg_catalog function that the contract names, an operator
    for every operator, and tables for its tables. Each raises XX999: whoever runs one has run the attacker's code."""
    db.execute(f"GRANT CREATE, TEMPORARY ON DATABASE {db.name} TO attacker")
    connection = db.connect("attacker")
    run(connection, "CREATE SCHEMA attacker; GRANT USAGE ON SCHEMA attacker TO PUBLIC")
    bodies = " ".join(
        row.prosrc for row in db.rows("SELECT p.prosrc FROM pg_proc AS p WHERE p.pronamespace = 'once'::regnamespace")
    )
    words = sorted(set(re.findall(r"\b([a-z_0-9]+)\s*\(", bodies)))
    functions = db.rows(
        "SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS arguments, p.prorettype::regtype::text AS"
        " result FROM pg_proc AS p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND NOT"
        " p.proretset AND p.proname = ANY (%s) AND p.provariadic = 0 AND NOT EXISTS (SELECT FROM pg_type AS t WHERE"
        " t.oid = ANY (p.proargtypes::oid[] || p.prorettype) AND t.typtype = 'p')",
        words,
    )
    trap = (
        "LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'attacker code ran as %', current_user USING ERRCODE = 'XX999';"
        " END$$"
    )
    for function in functions:
        run(
            connection,
            f"CREATE FUNCTION attacker.{function.proname}({function.arguments}) RETURNS {function.result} {trap}",
        )
    assert len(functions) > 50
    operators = db.rows(
        "SELECT DISTINCT o.oprname, o.oprleft::regtype::text AS l, o.oprright::regtype::text AS r,"
        " o.oprresult::regtype::text AS result FROM pg_operator AS o WHERE o.oprnamespace = 'pg_catalog'::regnamespace"
        " AND o.oprname = ANY (%s) AND o.oprkind = 'b' AND o.oprleft::regtype::text = ANY (%s) AND"
        " o.oprright::regtype::text = ANY (%s) AND o.oprresult <> 0",
        list(OPERATORS),
        [canonical(t) for t in TYPES],
        [canonical(t) for t in TYPES],
    )
    assert len(operators) > 100
    for number, op in enumerate(operators):
        if "any" in op.l + op.r:
            continue
        run(connection, f"CREATE FUNCTION attacker.trap_{number}({op.l}, {op.r}) RETURNS {op.result} {trap}")
        run(
            connection,
            f"CREATE OPERATOR attacker.{op.oprname} (LEFTARG = {op.l}, RIGHTARG = {op.r}, FUNCTION ="
            f" attacker.trap_{number})",
        )
    return connection


def canonical(type_name):
    return {"timestamptz": "timestamp with time zone"}.get(type_name, type_name)


def shadow_path(connection):
    """What each attacking session does first: temporary tables and types named like the real ones, and its own
    schemas before pg_catalog."""
    for table in (
        "intent",
        "scope",
        "setting",
        "binding",
        "archive",
        "decision",
        "outbox",
        "relay",
        "parked_event",
        "parked_message",
        "parked_decision",
        "pg_locks",
        "pg_database",
        "pg_proc",
        "pg_class",
        "pg_roles",
        "pg_namespace",
    ):
        run(connection, f"CREATE TEMPORARY TABLE {table} (state text, scope text, key text, tenant text, oid oid)")
    for name in ("regclass", "regprocedure", "state", "timestamptz", "pg_snapshot", "pg_lsn", "xid8"):
        run(connection, f"CREATE TYPE pg_temp.{name} AS ENUM ('trap')")
    run(connection, "SET search_path = pg_temp, attacker, pg_catalog")


# Every function that a role may call, so that the attack is tried on each. set_scope and so on are granted to the
# attacker for it.
ATTACKED = {
    **{name: [text.replace("%(tenant)s", "''")] for name, text in TENANT_CALLS.items()},
    "finish": [
        f"once.start_new('s', {key}, %(print)s) AS started,"
        f" LATERAL once.finish('s', {key}, %(print)s, response_text => {body}, result_id => started::pg_catalog.text)"
        for key, body in (("'k'", "NULL"), ("'big'", "pg_catalog.repeat('x', 9000)"), ("%(today)s", "NULL"))
    ],
    "finish_new": [
        "once.finish_new('s', 'new', %(print)s)",
        "once.finish_new('s', 'k1', %(print)s)",
        "once.finish_new('s', %(today)s, %(print)s)",
        "once.finish_new('s', %(expired)s, %(print)s)",
    ],
    "claim": [
        "once.claim('s', 'k1', %(print)s)",
        "once.claim('s', 'k1', %(print)s)",
        "once.claim('s', %(today)s, %(print)s)",
        "once.claim('s', %(expired)s, %(print)s)",
    ],
    "start": [
        "once.start('s', 'k', %(print)s)",
        "once.start('s', 'new', %(print)s)",
        "once.start('s', 'k1', %(print)s)",
        "once.start('s', %(expired)s, %(print)s)",
    ],
    "add_days": ["once.add_days(3)"],
    "retire_day": ["once.retire_day(1)"],
    "set_scope": ["once.set_scope('s', lease => '5 s')"],
    "bind": ["once.bind('bound', 'x')"],
    "unbind": ["once.unbind('bound', 'x')"],
    "any_tenant": ["once.any_tenant()"],
    "errors": ["once.errors()"],
    "contract_version": ["once.contract_version()"],
    "key_of_header": ["once.key_of_header('k')", "once.key_of_header('\"k\"; a=1')", "once.key_of_header('\"')"],
    "counts": ["once.counts()"],
    "count_cached": ["once.count_cached(1, 1, 1)"],
    "metrics": ["once.metrics()"],
    "top": ["once.top()"],
    "find": [
        "once.find()",
        "once.find('', trace => '0af7651916cd43dd8448eb211c80319c')",
        "once.find(event => pg_catalog.gen_random_uuid())",
    ],
    "try_lock": ["once.try_lock('r')"],
    "lock": ["once.lock('r', '1 s')"],
    "receive_many": [
        "once.receive_many('s', ARRAY['m'], ARRAY['a'], ARRAY[%(print)s])",
        "once.receive_many('s', ARRAY['m', 'm'], ARRAY['a', 'a'], ARRAY[%(print)s, %(print)s])",
        "once.receive_many('s', ARRAY[%(expired)s, %(today)s], NULL, ARRAY[%(print)s, %(print)s])",
        "once.message_park('s', '', ARRAY[ROW('p', 't', 'a', NULL, '', %(print)s, 'dead', 1, 0, 'why', '22000')]::once.parked[])",
        "once.receive_many('s', ARRAY['p', 'n'], ARRAY['a', 'a'], ARRAY[%(print)s, %(print)s], skip_dead => true)",
    ],
    "relay_take": ["once.relay_take('r', ARRAY['t'])", "once.relay_take('r', NULL)", "once.relay_take('n', NULL, true)"],
    "relay_look": ["once.relay_look('r', '3:3:')"],
    "relay_flush": ["once.relay_flush()"],
    "relay_list": ["once.relay_list('r', '3:3:', '99999999:99999999:', 0, 10)", "once.relay_list('r', '3:5:3,4', '9:9:', 1, 10)"],
    "relay_fetch": ["once.relay_fetch('r', ARRAY[1::bigint], ARRAY['3'::pg_catalog.xid8], ARRAY[20000])"],
    "relay_settle": [
        (
            "once.relay_settle('r', '3:3:', '5:5:', 1, ARRAY[7::bigint], ARRAY[ROW(8, '4', 20000, pg_catalog.gen_random_uuid(),"
            " 't', '', 'a', 'b', 'waiting', 1, 0, 'why', false)]::once.parking[])"
        ),
        "once.relay_settle('r', '3:3:', NULL, 0)",
    ],
    "relay_due": ["once.relay_due('r', 10)"],
    "relay_parked": ["once.relay_parked('r', 10)"],
    "outbox_list": ["once.outbox_list()", "once.outbox_list('r', 't', 'waiting', 5)"],
    "outbox_summary": ["once.outbox_summary()"],
    "outbox_event": ["once.outbox_event(pg_catalog.gen_random_uuid())", "once.outbox_event(once.emit('t', '{}'))"],
    "outbox_retry": ["once.outbox_retry(pg_catalog.gen_random_uuid(), NULL, 'why')"],
    "outbox_discard": ["once.outbox_discard(pg_catalog.gen_random_uuid(), 'r', 'why')"],
    "outbox_replay": ["once.outbox_replay('r', pg_catalog.now(), 't', 'why')"],
    "relay_adopt": ["once.relay_adopt('r', 'why')"],
    "add_capture": ["once.add_capture('s')"],
    "capture_list": ["once.capture_list()"],
    "drop_relay": ["once.drop_relay('r', 'why')"],
    "retire_outbox": ["once.retire_outbox(19000)", "once.retire_outbox(99999)"],
    "dead_list": ["once.dead_list()", "once.dead_list('s', NULL, 5)"],
    "keep_take": ["once.keep_take('k')"],
    "keep_step": [
        f"once.keep_step('k', '{step}')"
        for step in (
            *("days", "clock", "close", "doubt", "move", "detach", "drop"),
            *("outbox", "purge", "sweep", "archive", "dead", "decisions"),
        )
    ],
    "keep_failed": ["once.keep_failed('k', 'days', '40001', 'why')"],
    "keep_release": ["once.keep_release('k')"],
    "keep_steps": ["once.keep_steps()"],
    "keeper_status": ["once.keeper_status()"],
    "keeper_lease": ["once.keeper_lease()"],
    "retention_held": ["once.retention_held()"],
    "recover": ["once.recover()"],
    "set_keeping": ["once.set_keeping(clock_settle => '0')"],
}


def attack(db):
    """Returns the functions in which the attacker's code ran."""
    make_logins(db)
    plant_shadows(db)
    for row in db.rows(
        "SELECT p.oid::regprocedure::text AS name FROM pg_proc AS p WHERE p.pronamespace = 'once'::regnamespace AND"
        " p.proname !~ '^_' AND p.prokind = 'f'"
    ):
        db.execute(f"GRANT EXECUTE ON FUNCTION {row.name} TO attacker")
    values = {"print": PRINT, "today": uuid7_days_ago(db, 0), "expired": uuid7_days_ago(db, 100)}
    connection = db.connect("attacker")
    shadow_path(connection)
    fallen = set()
    for name, texts in ATTACKED.items():
        for text in texts:
            # Typed at the edge by the server's own casts, since even text = text is trapped for this session.
            code = code_of(lambda: run(connection, f"SELECT * FROM {text}", values))
            assert code not in ("42883", "42804", "42601"), (text, code)
            if code == "XX999":
                fallen.add(name)
    return fallen


def test_every_function_that_a_role_may_call_is_attacked_here(db):
    assert {
        row.proname
        for row in db.rows(
            # once.keep, a procedure, has its caller's rights and no others.
            "SELECT p.proname FROM pg_proc AS p WHERE p.pronamespace = 'once'::regnamespace AND p.proname !~ '^_'"
            " AND p.prokind = 'f'"
        )
    } == set(ATTACKED)


def test_a_search_path_attack_runs_no_attacker_code_in_any_function(db):
    assert attack(db) == set()


def test_the_attack_would_be_noticed(db):
    """The traps are real: the attacker's own session falls into them."""
    make_logins(db)
    plant_shadows(db)
    connection = db.connect("attacker")
    shadow_path(connection)
    assert code_of(lambda: run(connection, "SELECT length('a'::text)")) == "XX999"
    assert code_of(lambda: run(connection, "SELECT 1 WHERE 'a'::text = 'a'::text")) == "XX999"


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
