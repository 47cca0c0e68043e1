# SPDX-License-Identifier: PostgreSQL
"""Logins with each role of the contract, and a call of each function that takes a tenant: for tests of who may do what."""

from .calls import PRINT

LOGINS = {
    "app": "once_app",
    "bound": "once_tenant",
    "bound_elsewhere": "once_tenant",
    "reader": "once_reader",
    "support": "once_support",
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
    "try_start": "once.try_start('s', 'k', %(print)s, %(tenant)s)",
    "finish": "once.start('s', 'k', %(print)s, %(tenant)s) AS started,"
    " LATERAL once.finish('s', 'k', %(print)s, result_id => started.fence::text, tenant => %(tenant)s)",
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
    "doubts_part": "once.doubts_part(%(tenant)s)",
    "ask": "once.ask('s', 'k', %(tenant)s)",
    "resolve_seen": "once.resolve_seen('s', 'k', 1, 'in_doubt', 'succeeded', 'why', tenant => %(tenant)s, dry_run => false)",
    "outline": "once.outline('s', 'k', %(tenant)s, true)",
    "parked_outline": "once.parked_outline('k', 's', %(tenant)s)",
    "find_part": "once.find_part('k', %(tenant)s)",
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
    "emit_bytes": "once.emit_bytes('t', 'x', 'text/plain', scope => 's', key => 'k', tenant => %(tenant)s)",
    "emit_later": "once.emit_later('2100-01-01', 't', '{}', scope => 's', key => 'k', tenant => %(tenant)s)",
    "cancel_event": "once.cancel_event(gen_random_uuid(), %(tenant)s)",
    "receive_many": "once.receive_many('s', ARRAY['k'], ARRAY['a'], ARRAY[%(print)s], %(tenant)s)",
    "message_park": (
        "once_job.message_park('s', %(tenant)s, ARRAY[ROW('k', 't', 'a', '{}', '', %(print)s, 'dead', 1, 0, 'why', '22000')]"
        "::once.parked[])"
    ),
    "message_due": "once_job.message_due('s', %(tenant)s, 10)",
    "message_applied": "once_job.message_applied('s', %(tenant)s, ARRAY['k'])",
    "message_look": "once_job.message_look('s', %(tenant)s, ARRAY['k'], ARRAY['a'])",
    "message_count": "once_job.message_count('s', %(tenant)s)",
    "consumer_report": "once.consumer_report('s', now(), %(tenant)s)",
    "consumer_ids": "once.consumer_ids('s', %(tenant)s)",
    "consumer_remembers": "once_job.consumer_remembers('s', %(tenant)s)",
    "parked_list": "once.parked_list(tenant => %(tenant)s)",
    "parked_show": "once.parked_show('k', 's', %(tenant)s)",
    "parked_retry": "once.parked_retry('k', 'why', consumer => 's', tenant => %(tenant)s)",
    "parked_discard": "once.parked_discard('k', 'why', consumer => 's', tenant => %(tenant)s)",
    "parked_retry_many": "once.parked_retry_many('why', tenant => %(tenant)s, dry_run => false)",
    "parked_discard_many": "once.parked_discard_many('why', tenant => %(tenant)s, dry_run => false)",
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


def grant_everything_tenant_bound(db):
    """Even a bound role that was granted more than once_tenant stays bound."""
    db.execute(
        "GRANT EXECUTE ON FUNCTION once.find, once.find_part, once.doubts_part, once.ask, once.outline, once.parked_outline, once.resolve_seen, once.story(text, text, text), once.verify(text, text, text), once.resolve(text, text, text, text, integer, text,"
        " jsonb, anynonarray, jsonb, text, text, text, text, text), once.parked_list, once.parked_show, once.parked_retry, once.parked_discard"
        ", once.resolve_many, once.parked_retry_many, once.parked_discard_many, once_job.message_park, once_job.message_due, once_job.message_applied"
        ", once_job.message_look, once_job.message_count, once_job.consumer_remembers TO bound, bound_elsewhere;"
        " GRANT USAGE ON SCHEMA once_job TO bound, bound_elsewhere"
    )
