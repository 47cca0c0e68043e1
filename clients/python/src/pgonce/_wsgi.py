# SPDX-License-Identifier: PostgreSQL
"""What Django's and Flask's doors share: a request by its WSGI environment, and the blocking way through _gate.py."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional
from urllib.parse import quote

from . import _core, _gate, _trace, http
from ._io import drive
from .answer import HttpRequest


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


def target_of(environ: Dict[str, Any]) -> str:
    """The host in lower case, then path and query as in the request line, where the server tells it."""
    host = str(environ.get("HTTP_HOST", "")).lower()
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
    """Raises _gate.Passes where there is no key, and none is required."""
    try:
        key = _gate.key_of(policy, values_of(environ, "HTTP_IDEMPOTENCY_KEY"))
        tenant = _gate.tenant_of(policy, given)
        if len(body) > policy.body_max:
            return _gate.body_too_large(policy)
        request = HttpRequest(
            environ["REQUEST_METHOD"], target_of(environ), environ.get("CONTENT_TYPE", ""), body, policy.canonical_json
        )
        trace: Optional[str] = http.traceparent_of(values_of(environ, "HTTP_TRACEPARENT"))
        with _trace.span("http", scope, trace) as span:
            intent = _core.Intent(scope, key, tenant, request, span.traceparent)
            answer, _ = drive(_gate.serve(source, policy, intent, handle))
            span.verdict("replay" if answer.replayed else "proceed")
            return answer
    except _gate.Refused as refused:
        return refused.answer
