# SPDX-License-Identifier: PostgreSQL
"""What Django's and Flask's doors share: a request by its WSGI environment, and the blocking way through _gate.py."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple
from urllib.parse import quote

from . import _core, _gate, _lease, _trace, errors, http
from ._io import drive
from ._watch import Limit
from .answer import HttpRequest
from .client import Claim


def values_of(environ: Dict[str, Any], name: str) -> List[str]:
    """A WSGI server joins lines of one name by a comma. No key of the grammar has one outside of quotes, so two keys are
    told by what stands between them."""
    value = environ.get(name)
    if value is None:
        return []
    return split(value) if name == "HTTP_IDEMPOTENCY_KEY" else [value]


def split(value: str) -> List[str]:
    """At commas without a space after them: how servers join lines. A list that a client wrote in one line has one as a rule."""
    parts, start, quoted, at = [], 0, False, 0
    while at < len(value):
        c = value[at]
        if quoted and c == "\\":
            at += 1
        elif c == '"':
            quoted = not quoted
        elif c == "," and not quoted and value[at + 1 : at + 2] != " ":
            parts.append(value[start:at])
            start = at + 1
        at += 1
    return [*parts, value[start:]]


def target_of(environ: Dict[str, Any], with_host: bool = True) -> str:
    """The host in lower case, then path and query as in the request line, where the server tells it."""
    host = str(environ.get("HTTP_HOST", "")).lower() if with_host else ""
    raw = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    if raw:
        raw = str(raw)
        if "://" in raw.split("?", 1)[0]:  # the absolute form
            raw = "/" + raw.split("://", 1)[1].partition("/")[2]
        return host + raw
    path = (environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")).encode("latin-1")
    query = environ.get("QUERY_STRING", "")
    return host + quote(path) + ("?" + query if query else "")


def protect(
    source: Any,
    policy: _gate.Policy,
    scope: str,
    environ: Dict[str, Any],
    given: Any,
    body: bytes,
    handle: Callable[[Any], http.Response],
) -> http.Response:
    """handle(tx) gives the framework's answer, read to its end. Raises _gate.Passes where there is no key, and none is required."""
    start = time.monotonic()

    def limited(connection: Any) -> http.Response:
        if connection is None:  # of mode "lease": no thread can be ended
            return handle(None)
        with Limit(policy.handler_ms / 1000 - (time.monotonic() - start), connection.interrupt) as limit:
            try:
                answer = handle(connection.tx)
            except Exception as raised:
                if limit.passed:
                    raise errors.TimedOut() from raised
                raise
        if limit.passed:
            raise errors.TimedOut()
        return answer

    try:
        key = _gate.key_of(policy, values_of(environ, "HTTP_IDEMPOTENCY_KEY"))
        tenant = _gate.tenant_of(policy, given)
        if len(body) > policy.body_max:
            return _gate.body_too_large(policy)
        claim = [values_of(environ, "HTTP_" + name.upper().replace("-", "_")) for name in http.CLAIM]
        request = HttpRequest(
            environ["REQUEST_METHOD"], target_of(environ, policy.host), environ.get("CONTENT_TYPE", ""), body, policy.canonical_json
        )
        trace: Optional[str] = http.traceparent_of(values_of(environ, "HTTP_TRACEPARENT"))
        with _trace.span("http", scope, trace) as span:
            intent = _gate.intent_of(policy, scope, key, tenant, claim, request, span.traceparent)
            if policy.mode == "lease":
                steps = _lease.serve(Claim, source, policy, intent, limited)
            else:
                steps = _gate.serve(source, policy, intent, limited)
            answer, _ = drive(steps)
            span.verdict("replay" if answer.replayed else "proceed")
            return answer
    except _gate.Refused as refused:
        return refused.answer


def is_cut_short(environ: Dict[str, Any], body: bytes) -> bool:
    """Fewer bytes than the request has said: its client has left, or somebody else has read them."""
    length = str(environ.get("CONTENT_LENGTH") or "")
    return length.isdigit() and len(body) < int(length)


def let_go(answers: Iterable[Any]) -> None:
    """Answers that are not sent: no server closes what they hold, such as files, and generators with a session open."""
    for answer in answers:
        # Django's own close tells everybody that the request is over.
        for close in getattr(answer, "_resource_closers", (answer.close,)):
            with contextlib.suppress(Exception):
                close()


def held(method: str, status: int, headers: http.Headers, pieces: Iterable[bytes], native: Any) -> Tuple[http.Response, List[bytes]]:
    """An answer of the framework's, read to its end; and its pieces. A stream of events is not begun."""
    if http.is_endless(headers):
        return http.Response(status, headers, b"", native=native, endless=True), []
    read, length = [], 0
    for piece in pieces:
        read.append(piece)
        length += len(piece)
        _gate.check_held(length)
    http.check_whole(method, status, headers, length)
    return http.Response(status, headers, b"".join(read), native=native), read
