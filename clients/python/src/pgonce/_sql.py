# SPDX-License-Identifier: PostgreSQL
"""Every statement that the client sends, with parameters $1, $2, ... as the server knows them.

Every parameter is cast, so that drivers with and without parameter types call the same function. `spelled` turns the numbers into a driver's
placeholders."""

import functools
import re

# spec: statements
# Start an intent whose fingerprint only the database can compute. OFFSET 0 keeps the planner from computing it twice.
# Parameters: scope, key, traceparent.
START = {
    "json": (
        "SELECT f.print, s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, "
        "s.result_type, s.result_id, s.error_code, s.error_message, s.traceparent FROM (SELECT once.fingerprint(CAST(CAST($1 AS text) AS jsonb), "
        "CAST($2 AS text)) AS print OFFSET 0) AS f, LATERAL once.try_start(CAST($3 AS text), CAST($4 AS text), f.print, CAST($2 AS text), CAST($5 "
        "AS text)) AS s"
    ),
    "text": (
        "SELECT f.print, s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, "
        "s.result_type, s.result_id, s.error_code, s.error_message, s.traceparent FROM (SELECT once.fingerprint(CAST($1 AS text), CAST($2 AS text))"
        " AS print OFFSET 0) AS f, LATERAL once.try_start(CAST($3 AS text), CAST($4 AS text), f.print, CAST($2 AS text), CAST($5 AS text)) AS s"
    ),
    "bytes": (
        "SELECT f.print, s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, "
        "s.result_type, s.result_id, s.error_code, s.error_message, s.traceparent FROM (SELECT once.fingerprint(CAST($1 AS bytea), CAST($2 AS "
        "text)) AS print OFFSET 0) AS f, LATERAL once.try_start(CAST($3 AS text), CAST($4 AS text), f.print, CAST($2 AS text), CAST($5 AS text)) AS"
        " s"
    ),
    "http": (
        "SELECT f.print, s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, "
        "s.result_type, s.result_id, s.error_code, s.error_message, s.traceparent FROM (SELECT once.request_fingerprint(CAST($3 AS text), CAST($4 "
        "AS text), CAST($5 AS text), CAST($1 AS bytea), CAST($2 AS text), CAST($6 AS boolean)) AS print OFFSET 0) AS f, LATERAL "
        "once.try_start(CAST($7 AS text), CAST($8 AS text), f.print, CAST($2 AS text), CAST($9 AS text)) AS s"
    ),
}

# The same with a fingerprint that the client has computed.
# Parameters: scope, key, fingerprint, tenant, traceparent.
START_KNOWN = (
    "SELECT CAST($3 AS bytea), s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, "
    "s.result_type, s.result_id, s.error_code, s.error_message, s.traceparent FROM once.try_start(CAST($1 AS text), CAST($2 AS text), CAST($3 "
    "AS bytea), CAST($4 AS text), CAST($5 AS text)) AS s"
)

# The same before the client knows the tenant's salt, which comes back. hashed: the bytes that are hashed after the salt.
# Parameters: scope, key, hashed, tenant, traceparent.
START_SALTED = (
    "SELECT f.salt, s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, "
    "s.result_type, s.result_id, s.error_code, s.error_message, s.traceparent FROM (SELECT once.salt(CAST($4 AS text)) AS salt OFFSET 0) AS f, "
    "LATERAL once.try_start(CAST($1 AS text), CAST($2 AS text), sha256(f.salt || CAST($3 AS bytea)), CAST($4 AS text), CAST($5 AS text)) AS s"
)

# Store the outcome of an intent in the transaction that started it.
# Parameters: scope, key, fingerprint, status, text, json, body, headers, result_type, result_id, state, error_code, error_message, tenant,
# traceparent.
FINISH = (
    "SELECT once.finish(CAST($1 AS text), CAST($2 AS text), CAST($3 AS bytea), CAST($4 AS integer), CAST($5 AS text), CAST(CAST($6 AS text) AS "
    "jsonb), CAST($7 AS bytea), CAST(CAST($8 AS text) AS jsonb), CAST($9 AS text), CAST($10 AS text), CAST($11 AS text), CAST($12 AS text), "
    "CAST($13 AS text), CAST($14 AS text), CAST($15 AS text))"
)

# Claim an intent for work outside of the database.
# Parameters: scope, key, owner, lease_s, retention_s, traceparent, takeover.
CLAIM = {
    "json": (
        "SELECT s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, s.result_type, "
        "s.result_id, s.error_code, s.error_message, s.traceparent, extract(epoch FROM s.lease_until - clock_timestamp())::double precision AS "
        "lease_left_s FROM (SELECT once.fingerprint(CAST(CAST($1 AS text) AS jsonb), CAST($2 AS text)) AS print OFFSET 0) AS f, LATERAL "
        "once.claim(CAST($3 AS text), CAST($4 AS text), f.print, CAST($5 AS text), make_interval(secs => CAST($6 AS double precision)), "
        "make_interval(secs => CAST($7 AS double precision)), CAST($2 AS text), CAST($8 AS text), CAST($9 AS boolean)) AS s"
    ),
    "text": (
        "SELECT s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, s.result_type, "
        "s.result_id, s.error_code, s.error_message, s.traceparent, extract(epoch FROM s.lease_until - clock_timestamp())::double precision AS "
        "lease_left_s FROM (SELECT once.fingerprint(CAST($1 AS text), CAST($2 AS text)) AS print OFFSET 0) AS f, LATERAL once.claim(CAST($3 AS "
        "text), CAST($4 AS text), f.print, CAST($5 AS text), make_interval(secs => CAST($6 AS double precision)), make_interval(secs => CAST($7 AS "
        "double precision)), CAST($2 AS text), CAST($8 AS text), CAST($9 AS boolean)) AS s"
    ),
    "bytes": (
        "SELECT s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, s.result_type, "
        "s.result_id, s.error_code, s.error_message, s.traceparent, extract(epoch FROM s.lease_until - clock_timestamp())::double precision AS "
        "lease_left_s FROM (SELECT once.fingerprint(CAST($1 AS bytea), CAST($2 AS text)) AS print OFFSET 0) AS f, LATERAL once.claim(CAST($3 AS "
        "text), CAST($4 AS text), f.print, CAST($5 AS text), make_interval(secs => CAST($6 AS double precision)), make_interval(secs => CAST($7 AS "
        "double precision)), CAST($2 AS text), CAST($8 AS text), CAST($9 AS boolean)) AS s"
    ),
    "http": (
        "SELECT s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, s.result_type, "
        "s.result_id, s.error_code, s.error_message, s.traceparent, extract(epoch FROM s.lease_until - clock_timestamp())::double precision AS "
        "lease_left_s FROM (SELECT once.request_fingerprint(CAST($3 AS text), CAST($4 AS text), CAST($5 AS text), CAST($1 AS bytea), CAST($2 AS "
        "text), CAST($6 AS boolean)) AS print OFFSET 0) AS f, LATERAL once.claim(CAST($7 AS text), CAST($8 AS text), f.print, CAST($9 AS text), "
        "make_interval(secs => CAST($10 AS double precision)), make_interval(secs => CAST($11 AS double precision)), CAST($2 AS text), CAST($12 AS "
        "text), CAST($13 AS boolean)) AS s"
    ),
}

# Store the answer of a claim.
# Parameters: scope, key, fence, status, text, json, body, headers, result_type, result_id, tenant.
COMPLETE = (
    "SELECT once.complete(CAST($1 AS text), CAST($2 AS text), CAST($3 AS integer), CAST($4 AS integer), CAST($5 AS text), CAST(CAST($6 AS text)"
    " AS jsonb), CAST($7 AS bytea), CAST(CAST($8 AS text) AS jsonb), CAST($9 AS text), CAST($10 AS text), CAST($11 AS text))"
)

# Store the failure of a claim. retryable NULL: the outcome is unknown.
# Parameters: scope, key, fence, retryable, error_code, error_message, status, text, json, body, headers, tenant.
FAIL = (
    "SELECT once.fail(CAST($1 AS text), CAST($2 AS text), CAST($3 AS integer), CAST($4 AS boolean), CAST($5 AS text), CAST($6 AS text), CAST($7"
    " AS integer), CAST($8 AS text), CAST(CAST($9 AS text) AS jsonb), CAST($10 AS bytea), CAST(CAST($11 AS text) AS jsonb), CAST($12 AS text))"
)

# Put an intent in doubt: claim it, and report an unknown outcome at once. NULL: another attempt has claimed it or has finished, and its claim is
# left alone.
# Parameters: scope, key, tenant, fingerprint, traceparent, error_code, error_message, status.
DOUBT = (
    "SELECT CASE WHEN c.verdict IN ('new_claim', 'processing_stale', 'retryable_failure') THEN once.fail(c.scope, c.key, c.fence, NULL, "
    "c.error_code, c.error_message, response_status => c.status, tenant => c.tenant) END FROM (SELECT i.*, s.verdict, s.fence FROM (SELECT "
    "CAST($1 AS text) AS scope, CAST($2 AS text) AS key, CAST($3 AS text) AS tenant, CAST($4 AS bytea) AS print, CAST($5 AS text) AS "
    "traceparent, CAST($6 AS text) AS error_code, CAST($7 AS text) AS error_message, CAST($8 AS integer) AS status) AS i, LATERAL "
    "once.claim(i.scope, i.key, i.print, tenant => i.tenant, traceparent => i.traceparent) AS s) AS c"
)

# Renew the lease of a claim.
# Parameters: scope, key, fence, lease_s, tenant.
RENEW = (
    "SELECT once.renew(CAST($1 AS text), CAST($2 AS text), CAST($3 AS integer), make_interval(secs => CAST($4 AS double precision)), CAST($5 AS"
    " text))"
)

# Give back a claim whose work did not begin.
# Parameters: scope, key, fence, tenant.
RELEASE = "SELECT once.release(CAST($1 AS text), CAST($2 AS text), CAST($3 AS integer), CAST($4 AS text))"

# Read an intent: who holds it, or what was stored.
# Parameters: scope, key, tenant.
PEEK = (
    "SELECT s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, s.result_type, "
    "s.result_id, s.error_code, s.error_message, s.traceparent, extract(epoch FROM s.lease_until - clock_timestamp())::double precision AS "
    "lease_left_s, s.owner, s.attempts FROM once.peek(CAST($1 AS text), CAST($2 AS text), CAST($3 AS text)) AS s"
)

# Publish an event with the transaction.
# Parameters: topic, payload, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent.
EMIT = (
    "SELECT once.emit(topic => CAST($1 AS text), payload => CAST(CAST($2 AS text) AS jsonb), aggregate_type => CAST($3 AS text), aggregate_id "
    "=> CAST($4 AS text), event_type => CAST($5 AS text), scope => CAST($6 AS text), key => CAST($7 AS text), headers => CAST(CAST($8 AS text) "
    "AS jsonb), tenant => CAST($9 AS text), traceparent => CAST($10 AS text))::text AS id"
)

# The same at a later time.
# Parameters: topic, payload, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent, not_before.
EMIT_LATER = (
    "SELECT once.emit_later(topic => CAST($1 AS text), payload => CAST(CAST($2 AS text) AS jsonb), aggregate_type => CAST($3 AS text), "
    "aggregate_id => CAST($4 AS text), event_type => CAST($5 AS text), scope => CAST($6 AS text), key => CAST($7 AS text), headers => "
    "CAST(CAST($8 AS text) AS jsonb), tenant => CAST($9 AS text), traceparent => CAST($10 AS text), not_before => CAST(CAST($11 AS text) AS "
    "timestamptz))::text AS id"
)

# Publish an event whose payload is bytes.
# Parameters: topic, bytes, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent, content_type.
EMIT_BYTES = (
    "SELECT once.emit_bytes(topic => CAST($1 AS text), payload => CAST($2 AS bytea), aggregate_type => CAST($3 AS text), aggregate_id => "
    "CAST($4 AS text), event_type => CAST($5 AS text), scope => CAST($6 AS text), key => CAST($7 AS text), headers => CAST(CAST($8 AS text) AS "
    "jsonb), tenant => CAST($9 AS text), traceparent => CAST($10 AS text), content_type => CAST($11 AS text))::text AS id"
)

# Receive a message: process, or duplicate.
# Parameters: consumer, message, traceparent.
RECEIVE = {
    "json": (
        "SELECT s.verdict FROM (SELECT once.fingerprint(CAST(CAST($1 AS text) AS jsonb), CAST($2 AS text)) AS print OFFSET 0) AS f, LATERAL "
        "once.receive(CAST($3 AS text), CAST($4 AS text), f.print, CAST($2 AS text), CAST($5 AS text)) AS s(verdict)"
    ),
    "text": (
        "SELECT s.verdict FROM (SELECT once.fingerprint(CAST($1 AS text), CAST($2 AS text)) AS print OFFSET 0) AS f, LATERAL once.receive(CAST($3 "
        "AS text), CAST($4 AS text), f.print, CAST($2 AS text), CAST($5 AS text)) AS s(verdict)"
    ),
    "bytes": (
        "SELECT s.verdict FROM (SELECT once.fingerprint(CAST($1 AS bytea), CAST($2 AS text)) AS print OFFSET 0) AS f, LATERAL once.receive(CAST($3 "
        "AS text), CAST($4 AS text), f.print, CAST($2 AS text), CAST($5 AS text)) AS s(verdict)"
    ),
    "http": (
        "SELECT s.verdict FROM (SELECT once.request_fingerprint(CAST($3 AS text), CAST($4 AS text), CAST($5 AS text), CAST($1 AS bytea), CAST($2 AS"
        " text), CAST($6 AS boolean)) AS print OFFSET 0) AS f, LATERAL once.receive(CAST($7 AS text), CAST($8 AS text), f.print, CAST($2 AS text), "
        "CAST($9 AS text)) AS s(verdict)"
    ),
}

# Take a lock on a name until the transaction ends; wait at most this long.
# Parameters: resource, wait_s.
LOCK = "SELECT once.lock(CAST($1 AS text), make_interval(secs => CAST($2 AS double precision)))"

# Take it only if it is free.
# Parameters: resource.
TRY_LOCK = "SELECT once.try_lock(CAST($1 AS text))"
# end of spec


def _once(report: str, tenant: str) -> str:
    """A report that fails if it does not store the outcome itself: another run under this fence may have stored the same one."""
    refused = f"once.complete(CAST($1 AS text), CAST($2 AS text), 0, tenant => CAST({tenant} AS text))"  # no fence is 0: P4010
    return report.replace("SELECT ", "SELECT CASE WHEN ", 1) + f" THEN CAST(NULL AS bytea) ELSE CAST(CAST({refused} AS text) AS bytea) END"


# In place of FINISH, for a claim of a gateway in front.
COMPLETE_ONCE = _once(COMPLETE, "$11")
FAIL_ONCE = _once(FAIL, "$12")

# Before COMMIT: it fails if a statement has failed, in which case COMMIT would roll back.
SETTLED = "SELECT 1"
SAVEPOINT = "SAVEPOINT pgonce_effect"
RELEASE_SAVEPOINT = "RELEASE SAVEPOINT pgonce_effect"
ROLLBACK_TO_SAVEPOINT = "ROLLBACK TO SAVEPOINT pgonce_effect"
OWN_ROLE = "SET LOCAL ROLE NONE"
SAVEPOINT_STORE = "SAVEPOINT pgonce_store"
ROLLBACK_TO_STORE = "ROLLBACK TO SAVEPOINT pgonce_store"
ISOLATION = {
    "read committed": "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "repeatable read": "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "serializable": "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
}


@functools.lru_cache(maxsize=256)
def spelled(sql: str, parameter: str) -> str:
    """With `%(p1)s` or `:p1` for `$1`: parameter is such a pattern with {} for the number."""
    return re.sub(r"\$(\d+)", lambda found: parameter.format(found[1]), sql)
