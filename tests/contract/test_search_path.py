# SPDX-License-Identifier: PostgreSQL
"""No way in through search_path: whoever puts tables, types, functions and operators of their own before those of pg_catalog has none of them run
by a function of the contract."""

import re

from .calls import PRINT, code_of, uuid7_days_ago
from .logins import TENANT_CALLS, make_logins, run


def definers(db):
    return db.rows(
        "SELECT p.oid::regprocedure::text AS name, p.proname, p.prosrc, coalesce(p.proconfig, '{}') AS settings FROM"
        " pg_proc AS p WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace) AND p.prosecdef ORDER BY 1"
    )


def test_every_security_definer_function_has_a_fixed_search_path_with_pg_temp_last(db):
    assert len(definers(db)) >= 20
    for function in definers(db):
        assert "search_path=pg_catalog, pg_temp" in function.settings, function.name


def test_every_function_that_a_role_may_call_has_a_fixed_search_path(db):
    for row in db.rows(
        "SELECT p.oid::regprocedure::text AS name, coalesce(p.proconfig, '{}') AS settings FROM pg_proc AS p "
        # A procedure that commits may have no settings: once.keep names the schema of everything instead. So does once.slot_of, which is inlined.
        "WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace) AND p.proname !~ '^_' AND p.prokind = 'f'"
        " AND p.proname <> 'slot_of'"
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
        row.prosrc for row in db.rows("SELECT p.prosrc FROM pg_proc AS p WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace)")
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
    "parked_show": ["once.parked_show('k', 's')", "once.parked_show(once.emit('t', '{}')::text)"],
    "parked_retry": ["once.parked_retry('k', 'why', consumer => 's')", "once.parked_retry(pg_catalog.gen_random_uuid()::text, 'why')"],
    "parked_discard": ["once.parked_discard('k', 'why', consumer => 's')", "once.parked_discard(pg_catalog.gen_random_uuid()::text, 'why', 'r')"],
    **{
        f"parked_{what}_many": [
            f"once.parked_{what}_many()", f"once.parked_{what}_many('why', 'message', dry_run => false)", f"once.parked_{what}_many('why', state => 'delayed')",
            f"once.parked_{what}_many('why', 'event', 'r', NULL, '', 't', 'e', 'e', 'dead', pg_catalog.now(), false)"]
        for what in ("retry", "discard")
    },
    "finish": [
        f"once.start('s', {key}, %(print)s) AS started,"
        f" LATERAL once.finish('s', {key}, %(print)s, response_text => {body}, result_id => started.fence::pg_catalog.text)"
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
    "attempt_counts": ["once.attempt_counts()"],
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
        "once.receive_many('s', ARRAY[%(expired)s, %(today)s], NULL, ARRAY[%(print)s, %(print)s], birthdays => true)",
        "once_job.message_park('s', '', ARRAY[ROW('p', 't', 'a', NULL, '', %(print)s, 'dead', 1, 0, 'why', '22000')]::once.parked[])",
        "once.receive_many('s', ARRAY['p', 'n'], ARRAY['a', 'a'], ARRAY[%(print)s, %(print)s], skip_dead => true)",
    ],
    "relay_take": ["once_job.relay_take('r', ARRAY['t'])", "once_job.relay_take('r', NULL)", "once_job.relay_take('n', NULL, true)"],
    "relay_look": ["once_job.relay_look('r', '3:3:')"],
    "relay_flush": ["once_job.relay_flush()"],
    "relay_list": ["once_job.relay_list('r', '3:3:', '99999999:99999999:', 0, 10)", "once_job.relay_list('r', '3:5:3,4', '9:9:', 1, 10)"],
    "relay_fetch": ["once_job.relay_fetch('r', ARRAY[1::bigint], ARRAY['3'::pg_catalog.xid8], ARRAY[20000])"],
    "relay_settle": [
        (
            "once_job.relay_settle('r', '3:3:', '5:5:', 1, ARRAY[7::bigint], ARRAY[ROW(8, '4', 20000, pg_catalog.gen_random_uuid(),"
            " 't', '', 'a', 'b', 'waiting', 1, 0, 'why', false)]::once.parking[])"
        ),
        "once_job.relay_settle('r', '3:3:', NULL, 0)",
    ],
    "relay_due": ["once_job.relay_due('r', 10)"],
    "relay_parked": ["once_job.relay_parked('r', 10)", "once_job.relay_parked('r', 10, true)"],
    "parked_list": ["once.parked_list()", "once.parked_list(relay => 'r', topic => 't', event_type => 'e', error => 'e', state => 'waiting', take => 5)",
                    "once.parked_list('message', consumer => 's', event_type => 'e', before => pg_catalog.now())", "once.parked_list(state => 'delayed')",
                    "once.parked_list(state => 'pending', id => 'x')"],
    "parked_summary": ["once.parked_summary()"],
    "outbox_summary": ["once.outbox_summary()"],
    "relay_release": ["once_job.relay_release(10)"],
    "outbox_untaken": ["once.outbox_untaken()"],
    "outbox_delayed": ["once.outbox_delayed()"],
    "emit_bytes": ["once.emit_bytes('t', 'x', 'text/plain', scope => 's', key => 'bytes')"],
    "emit_later": [
        "once.emit_later(pg_catalog.now() OPERATOR(pg_catalog.+) pg_catalog.make_interval(days => 1), 't', '{}', scope => 's', key => 'later')",
        "once.emit_later('2000-01-01', 't', '{}', scope => 's', key => 'past')",
    ],
    "cancel_event": ["once.cancel_event(pg_catalog.gen_random_uuid())"],
    "parked_replay": ["once.parked_replay('r', pg_catalog.now(), 't', 'why')", "once.parked_replay('r', '2000-01-01', NULL, 'why', false)"],
    "relay_adopt": ["once.relay_adopt('r', 'why', false)"],
    "add_capture": ["once.add_capture('s')"],
    "capture_list": ["once.capture_list()"],
    "drop_relay": ["once.drop_relay('r', 'why')"],
    "retire_outbox": ["once.retire_outbox(19000)", "once.retire_outbox(99999)"],
    "anchor": ["once.anchor()"],
    "slots": ["once.slots()"],
    "slot_of": ["once.slot_of('acme')"],
    "close_slot": ["once_job.close_slot(1)"],
    "open_slot": ["once_job.open_slot(1, 2)"],
    "keep_take": ["once_job.keep_take('k')"],
    "keep_step": [
        f"once_job.keep_step('k', '{step}')"
        for step in (
            *("days", "clock", "close", "doubt", "move", "detach", "drop"),
            *("delayed", "untaken", "outbox", "purge", "sweep", "archive", "dead", "decisions"),
        )
    ],
    "keep_failed": ["once_job.keep_failed('k', 'days', '40001', 'why')"],
    "keep_release": ["once_job.keep_release('k')"],
    "keep_steps": ["once_job.keep_steps()"],
    "find_part": ["once.find_part('k')", "once.find_part('4bf92f3577b34da6a3ce929d0e0e4736')", "once.find_part(NULL, state => 'in_doubt')"],
    "outline": ["once.outline('s', 'k', body => true)", "once.outline('s', 'nothing')"],
    "parked_outline": ["once.parked_outline('k')", "once.parked_outline('k', 's', body => true)"],
    "doubts_part": ["once.doubts_part()"],
    "ask": ["once.ask('s', 'k')"],
    "resolve_seen": ["once.resolve_seen('s', 'k', 1, 'in_doubt', 'succeeded', 'why')",
                     "once.resolve_seen('s', 'k', 1, 'in_doubt', 'succeeded', 'why', 200, 'text', dry_run => false)"],
    "latency": ["once.latency()"],
    "readable": ["once.readable('a', 16)", "once.readable(pg_catalog.decode('00ff', 'hex'), 16)"],
    "scope_list": ["once.scope_list()"],
    "consumer_list": ["once.consumer_list()"],
    "keeper_status": ["once.keeper_status()"],
    "keeper_lease": ["once.keeper_lease()"],
    "retention_held": ["once.retention_held()"],
    "recover": ["once.recover()"],
    "set_keeping": ["once.set_keeping(clock_settle => '0')"],
}


def attack(db):
    """Returns the functions in which the attacker's code ran. The node is divided, so that its guard is attacked, too."""
    make_logins(db)
    db.execute("CALL once.divide(true)")
    plant_shadows(db)
    for row in db.rows(
        "SELECT p.oid::regprocedure::text AS name FROM pg_proc AS p WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace) AND"
        " p.proname !~ '^_' AND p.prokind = 'f'"
    ):
        db.execute(f"GRANT EXECUTE ON FUNCTION {row.name} TO attacker")
    db.execute("GRANT USAGE ON SCHEMA once_job TO attacker")
    values = {"print": PRINT, "today": uuid7_days_ago(db, 0), "expired": uuid7_days_ago(db, 100)}
    connection = db.connect("attacker")
    shadow_path(connection)
    fallen = set()
    for name, texts in ATTACKED.items():
        for text in texts:
            # Typed at the edge by the server's own casts, since even text = text is trapped for this session.
            code = code_of(lambda: run(connection, f"SELECT * FROM {text}", values))
            assert code not in ("42883", "42804", "42601", "42501"), (text, code)
            if code == "XX999":
                fallen.add(name)
    return fallen


def test_every_function_that_a_role_may_call_is_attacked_here(db):
    assert {
        row.proname
        for row in db.rows(
            # once.keep, a procedure, has its caller's rights and no others.
            "SELECT p.proname FROM pg_proc AS p WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace) AND p.proname !~ '^_'"
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
