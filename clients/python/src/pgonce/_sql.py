# SPDX-License-Identifier: PostgreSQL
"""Every statement that the client sends, with parameters $1, $2, ... as the server knows them.

Every parameter is cast, so that a driver that sends no types and one that sends its own call the same function. `spelled`
turns the numbers into a driver's own spelling."""

import functools
import re

_STORED = (
    "s.state, s.response_status, CAST(s.response_headers AS text), s.response_body, s.result_type, s.result_id,"
    " s.error_code, s.error_message, s.traceparent"
)

# The fingerprint of a request, by its kind, as a function's call in FROM. The server computes it: the salt stays there,
# and so does the decision what is the same request.
FINGERPRINTS = {
    "json": "once.fingerprint(CAST(CAST($1 AS text) AS jsonb), CAST($2 AS text))",
    "text": "once.fingerprint(CAST($1 AS text), CAST($2 AS text))",
    "bytes": "once.fingerprint(CAST($1 AS bytea), CAST($2 AS text))",
    "http": (
        "once.request_fingerprint(CAST($3 AS text), CAST($4 AS text), CAST($5 AS text), CAST($1 AS bytea),"
        " CAST($2 AS text), CAST($6 AS boolean))"
    ),
}
FINGERPRINT_PARAMETERS = {"json": 2, "text": 2, "bytes": 2, "http": 6}


def _after(kind: str, text: str) -> str:
    """text counts its own parameters from $a on: they follow those of the fingerprint, whose $2 is the tenant."""
    first = FINGERPRINT_PARAMETERS[kind]
    return re.sub(r"\$([a-z])", lambda found: f"${first + 1 + ord(found[1]) - ord('a')}", text)


# scope, key, traceparent
START = {
    kind: f"SELECT f.print, s.verdict, s.fence, {_STORED} FROM {call} AS f(print), "
    + _after(kind, "once.try_start(CAST($a AS text), CAST($b AS text), f.print, CAST($2 AS text), CAST($c AS text)) AS s")
    for kind, call in FINGERPRINTS.items()
}

# scope, key, tenant, fingerprint, traceparent
_STARTED = f"s.verdict, s.fence, {_STORED}"
_TRY_START = "once.try_start(CAST($1 AS text), CAST($2 AS text), {0}, CAST($3 AS text), CAST($5 AS text)) AS s"
START_KNOWN = f"SELECT CAST($4 AS bytea), {_STARTED} FROM " + _TRY_START.format("CAST($4 AS bytea)")
# The same with what is hashed after the salt, which is the first column.
START_SALTED = (
    f"SELECT f.salt, {_STARTED} FROM (SELECT once.salt(CAST($3 AS text)) AS salt OFFSET 0) AS f, "
    + _TRY_START.format("sha256(f.salt || CAST($4 AS bytea))")
)

# scope, key, owner, lease in seconds, retention in seconds, traceparent, takeover
CLAIM = {
    kind: f"SELECT f.print, s.verdict, s.fence, {_STORED},"
    f" CAST(extract(epoch FROM s.lease_until - clock_timestamp()) AS double precision) FROM {call} AS f(print), "
    + _after(
        kind,
        "once.claim(CAST($a AS text), CAST($b AS text), f.print, CAST($c AS text),"
        " make_interval(secs => CAST($d AS double precision)), make_interval(secs => CAST($e AS double precision)),"
        " CAST($2 AS text), CAST($f AS text), CAST($g AS boolean)) AS s",
    )
    for kind, call in FINGERPRINTS.items()
}

FINGERPRINT = {kind: f"SELECT {call}" for kind, call in FINGERPRINTS.items()}

_BODY = "CAST(CAST({0} AS text) AS text), CAST(CAST({1} AS text) AS jsonb), CAST({2} AS bytea), CAST(CAST({3} AS text) AS jsonb)"

FINISH = (
    "SELECT once.finish(CAST($1 AS text), CAST($2 AS text), CAST($3 AS bytea), CAST($4 AS integer), "
    + _BODY.format("$5", "$6", "$7", "$8")
    + ", CAST($9 AS text), CAST($10 AS text), CAST($11 AS text), CAST($12 AS text), CAST($13 AS text), CAST($14 AS text),"
    " CAST($15 AS text))"
)

COMPLETE = (
    "SELECT once.complete(CAST($1 AS text), CAST($2 AS text), CAST($3 AS integer), CAST($4 AS integer), "
    + _BODY.format("$5", "$6", "$7", "$8")
    + ", CAST($9 AS text), CAST($10 AS text), CAST($11 AS text))"
)

FAIL = (
    "SELECT once.fail(CAST($1 AS text), CAST($2 AS text), CAST($3 AS integer), CAST($4 AS boolean), CAST($5 AS text),"
    " CAST($6 AS text), CAST($7 AS integer), "
    + _BODY.format("$8", "$9", "$10", "$11")
    + ", CAST($12 AS text), CAST($13 AS bytea))"
)

# scope, key, fingerprint, tenant, traceparent, status, why in a word and in a sentence: what is not known is claimed, and in doubt at once; the claim of another attempt is its own
DOUBT = (
    "SELECT CASE WHEN c.verdict IN ('new_claim', 'retryable_failure', 'processing_stale') THEN"
    " once.fail(CAST($1 AS text), CAST($2 AS text), c.fence, NULL, CAST($7 AS text), CAST($8 AS text),"
    " response_status => CAST($6 AS integer), tenant => CAST($4 AS text)) END"
    " FROM once.claim(CAST($1 AS text), CAST($2 AS text), CAST($3 AS bytea), tenant => CAST($4 AS text),"
    " traceparent => CAST($5 AS text)) AS c"
)

def _once(report: str, tenant: str) -> str:
    """A report that is an error where it is not the one that stores the outcome: the same may be stored by another run under this fence."""
    refused = f"once.complete(CAST($1 AS text), CAST($2 AS text), 0, tenant => CAST({tenant} AS text))"  # no fence is 0: P4010
    return report.replace("SELECT ", "SELECT CASE WHEN ", 1) + f" THEN CAST(NULL AS bytea) ELSE CAST(CAST({refused} AS text) AS bytea) END"


# As finish, of a claim of a gateway in front.
COMPLETE_ONCE = _once(COMPLETE, "$11")
FAIL_ONCE = _once(FAIL, "$12")

RENEW = (
    "SELECT once.renew(CAST($1 AS text), CAST($2 AS text), CAST($3 AS integer),"
    " make_interval(secs => CAST($4 AS double precision)), CAST($5 AS text))"
)

RELEASE = "SELECT once.release(CAST($1 AS text), CAST($2 AS text), CAST($3 AS integer), CAST($4 AS text))"

PEEK = (
    f"SELECT s.verdict, s.fence, {_STORED}, s.owner,"
    " CAST(extract(epoch FROM s.lease_until - clock_timestamp()) AS double precision), s.attempts"
    " FROM once.peek(CAST($1 AS text), CAST($2 AS text), CAST($3 AS text)) AS s"
)

EMIT = (
    "SELECT CAST(once.emit(CAST($1 AS text), CAST(CAST($2 AS text) AS jsonb), CAST($3 AS text), CAST($4 AS text),"
    " CAST($5 AS text), CAST($6 AS text), CAST($7 AS text), CAST(CAST($8 AS text) AS jsonb), CAST($9 AS text),"
    " CAST($10 AS text)) AS text)"
)

# The arguments of EMIT, and when.
EMIT_LATER = EMIT.replace("once.emit(", "once.emit_later(CAST(CAST($11 AS text) AS timestamptz), ")

# The arguments of EMIT, the payload as bytes, and its content type.
EMIT_BYTES = EMIT.replace("once.emit(", "once.emit_bytes(").replace("CAST(CAST($2 AS text) AS jsonb)", "CAST($2 AS bytea), CAST($11 AS text)")

# consumer, message id, traceparent
RECEIVE = {
    kind: f"SELECT s.verdict FROM {call} AS f(print), "
    + _after(
        kind,
        "once.receive(CAST($a AS text), CAST($b AS text), f.print, CAST($2 AS text), CAST($c AS text)) AS s(verdict)",
    )
    for kind, call in FINGERPRINTS.items()
}

TRY_LOCK = "SELECT once.try_lock(CAST($1 AS text))"
LOCK = "SELECT once.lock(CAST($1 AS text), make_interval(secs => CAST($2 AS double precision)))"

# Before COMMIT: an error where a statement has failed, and COMMIT would be a ROLLBACK.
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
