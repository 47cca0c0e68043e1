# SPDX-License-Identifier: PostgreSQL
"""What the HTTP doors share, without a framework: the key's grammar, the problem documents, which headers are kept, what
an answer means. The gateway's rules (lib/src/key.c, lib/http/): the same request may come through either. Pure."""

from __future__ import annotations

import functools
import json
import re
import secrets
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import unquote_to_bytes

from .errors import AnswerNotWhole, UsageError

Headers = List[Tuple[str, str]]

# ---- the key ----

# spec: key-faults
_EMPTY = "The key is empty."
_UNTERMINATED = "The key begins with a quote and has no closing one."
_BAD_ESCAPE = "In a quoted key a backslash must be followed by a quote or a backslash."
_BAD_BYTE = "The key's header holds a control character or one that is not ASCII."
_TRAILING = "After the quoted key comes something that is not a parameter; a list of keys is not allowed."
_BAD_PARAMETER = "A parameter after the quoted key is malformed."
_NOT_A_STRING = "The key must be a quoted string, such as \"8e03978e-40d5-43dd-bc93-6894a57f9324\"; without quotes it holds characters that are not allowed there, or quotes are required."
_TOO_LONG = "The key is too long."
KEY_MAX = 255
# end of spec

_SPACED = ' "\\,;'
_PRINTABLE = re.compile(r"[ -~]*\Z")
_ITEM = re.compile(
    r"-?(?:[0-9]{1,12}\.[0-9]{1,3}(?![0-9])|[0-9]{1,15}(?![0-9.]))"  # RFC 8941, section 3.3
    r"|[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*"
    r'|"(?:[^"\\]|\\["\\])*"'
    r"|:(?P<base64>[A-Za-z0-9+/]*)(?P<padding>=*):"
    r"|\?[01]"
)
_PARAMETER = re.compile(r"; *[a-z*][a-z0-9_.*-]*")


class BadKey(Exception):
    """Its text is the sentence that the problem document has."""


def _parameters_end(text: str) -> int:
    """How far parameters reach, or -1 where one is malformed."""
    at = 0
    while at < len(text) and text[at] == ";":
        name = _PARAMETER.match(text, at)
        if name is None:
            return -1
        at = name.end()
        if at < len(text) and text[at] == "=":
            item = _ITEM.match(text, at + 1)
            if item is None:
                return -1
            if item["base64"] is not None:
                count, padding = len(item["base64"]), len(item["padding"])
                if count % 4 == 1 or (padding and (padding > 2 or (count + padding) % 4)):
                    return -1
            at = item.end()
    return at


def key_of_header(value: str, strict: bool = False, length_max: int = KEY_MAX) -> str:
    """The key in an Idempotency-Key header; raises BadKey. docs/reference/fingerprint.md specifies it."""
    if not _PRINTABLE.match(value):
        raise BadKey(_BAD_BYTE)
    value = value.strip(" ")
    if not value:
        raise BadKey(_EMPTY)
    if value[0] == '"':
        key, rest = _quoted(value[1:], length_max)
        end = _parameters_end(rest)
        if end < 0:
            raise BadKey(_BAD_PARAMETER)
        if end < len(rest):
            raise BadKey(_TRAILING)
    else:
        key = value
        for at, c in enumerate(value if not strict else _SPACED):
            if c in _SPACED:
                raise BadKey(_NOT_A_STRING)
            if at == length_max:
                raise BadKey(_TOO_LONG)
    if not key:
        raise BadKey(_EMPTY)
    return key


def _quoted(text: str, length_max: int) -> Tuple[str, str]:
    """After the opening quote: the key, and what follows the closing one."""
    plain = text.find('"')
    if 0 <= plain <= length_max and "\\" not in text[:plain]:
        return text[:plain], text[plain + 1 :]
    key: List[str] = []
    at = 0
    while at < len(text):
        c = text[at]
        at += 1
        if c == '"':
            return "".join(key), text[at:]
        if c == "\\":
            if at == len(text):
                break
            c = text[at]
            at += 1
            if c not in '"\\':
                raise BadKey(_BAD_ESCAPE)
        if len(key) == length_max:
            raise BadKey(_TOO_LONG)
        key.append(c)
    raise BadKey(_UNTERMINATED)


# ---- problems ----

# spec: problem-base
PROBLEM_BASE = "urn:pgonce:problem:"
_BASE_MAX = 256
_BASE_REFUSED = "\"\\<>^`{|}"
# end of spec

# status, title, detail, Retry-After
PROBLEMS = {
    # spec: problems
    "key-missing": (400, "Idempotency-Key is missing",
        "This operation needs an Idempotency-Key header. Nothing was done.", None),
    "key-malformed": (400, "Idempotency-Key is malformed",
        "Nothing was done.", None),
    "key-repeated": (400, "Idempotency-Key is sent more than once",
        "Send one Idempotency-Key header with one key. Nothing was done.", None),
    "tenant-missing": (400, "The request does not say whose key this is",
        "What tells callers apart (a header, a claim, a certificate) is empty. Nothing was done.", None),
    "mismatch": (422, "Idempotency-Key is already used",
        "This key was first used with another request, whose answer is untouched. Use a new key for a new request.", None),
    "active": (409, "A request with this Idempotency-Key is outstanding",
        "The first request with this key is still running. Send the same request again later.", 1),
    "in-doubt": (409, "The outcome of this request is unknown",
        "An earlier attempt ended, and it is unknown whether it took effect. A retry does not run until that is known. Do not send it under a new key.", None),
    "expired": (409, "Idempotency-Key is too old",
        "This key is older than the keys that are kept, so it is unknown whether it was used. Nothing was done now. Find out before you use a new key.", None),
    "too-large": (409, "Done, but its answer was too large to keep",
        "The request with this key was carried out, and its answer was passed on once. It will not be run again while this key is kept.", None),
    "no-answer": (409, "Finished, without an answer to repeat",
        "The request with this key is finished, and no HTTP answer is stored for it. It will not be run again while this key is kept.", None),
    "body-too-large": (413, "The request body is too large",
        "A body of this size cannot be protected here. Nothing was done.", None),
    "refused": (403, "The tenant or the scope is refused",
        "No key may be kept for this caller. Nothing was done.", None),
    "unavailable": (503, "Idempotency keys cannot be checked right now",
        "Nothing was done. Send the same request with the same key again later.", 5),
    "not-stored": (503, "The answer could not be stored",
        "The request may have taken effect. Send it again with the same key, never with a new one, to learn its outcome.", 5),
    "unreached": (502, "The service could not be reached",
        "Nothing was done. Send the same request with the same key again later.", 5),
    "timed-out": (503, "The request took too long",
        "It was stopped, and its changes were rolled back. Nothing was done. Send the same request with the same key again later.", 5),
    # end of spec
}  # fmt: skip


class Response(NamedTuple):
    """An answer as it goes over HTTP. replayed: it is a stored one. request: of a problem document, its name in a log. native: the framework's own, which
    is sent as it is. endless: a stream of events, which has no end that could be waited for. effect: what a gateway in front is told of an answer that is
    not stored here."""

    status: int
    headers: Headers
    body: bytes
    replayed: bool = False
    request: str = ""
    native: Any = None
    endless: bool = False
    effect: str = ""


MORE_MAX = 300  # bytes, as they are escaped


def _escaped(text: str) -> str:
    """As every door writes it, whole escapes alone: other bytes than those of printable ASCII are a question mark."""
    out = ""
    for byte in text.encode("utf-8"):
        c = chr(byte)
        piece = "\\" + c if c in '"\\' else f"\\u{byte:04x}" if byte < 0x20 else c if c <= "~" else "?"
        if len(out) + len(piece) > MORE_MAX:
            break
        out += piece
    return out


def problem(name: str, more: str = "", base: str = PROBLEM_BASE, trace: Optional[str] = None) -> Response:
    status, title, detail, retry_after = PROBLEMS[name]
    detail += f" {_escaped(more)}" if more else ""
    request = secrets.token_hex(16)
    text = (
        f'{{"type":"{base}{name}","title":"{title}","status":{status},"detail":"{detail}",'
        f'"instance":"urn:pgonce:request:{request}","retryable":{"true" if retry_after is not None else "false"}}}'
    )
    headers = [("Content-Type", "application/problem+json"), ("Cache-Control", "no-store")]
    if trace is not None:
        headers.append(("Idempotency-Traceparent", trace))
    if retry_after is not None:
        headers.append(("Retry-After", str(retry_after)))
    return Response(status, headers, text.encode("ascii"), request=request)


# ---- headers ----

_KEPT = (
    # spec: headers-kept
    # By default: what describes the answer and holds for every attempt alike. Names that an application invents are usually X-; those of
    # browsers' access control belong to the answer, or a page could read the first one and not its replay.
    "accept-patch", "accept-post", "access-control-*", "allow", "cache-control", "content-*", "cross-origin-*", "deprecation", "digest", "etag",
    "expires", "last-modified", "link", "location", "permissions-policy", "pragma", "preference-applied", "ratelimit-*", "refresh", "repr-digest",
    "referrer-policy", "request-id", "retry-after", "sunset", "traceparent", "vary", "warning", "x-*",
    # end of spec
)  # fmt: skip
_NEVER = (
    # spec: headers-never
    # Credentials: meant for the client of the first attempt, at that moment.
    "set-cookie", "set-cookie2", "www-authenticate", "authentication-info", "authentication-control", "proxy-authenticate",
    "proxy-authentication-info", "authorization", "proxy-authorization", "clear-site-data", "dpop-nonce", "replay-nonce",
    # Of one connection.
    "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "alt-svc", "http2-settings",
    # Framing, and what the server says anew.
    "content-length", "accept-ranges", "date", "server", "age", "via", "status",
    # Instructions to the proxy.
    "x-accel-*", "x-sendfile",
    # The door's own.
    "idempotency-replayed", "idempotency-traceparent", "idempotency-key", "once-*",
    # end of spec
)  # fmt: skip
_SECRET = (
    # spec: headers-secret
    # Words in the name of a header whose value is a credential, also as a part of a longer name.
    "access-key", "access-token", "api-key", "apikey", "auth-token", "bearer", "credential", "csrf", "id-token", "jwt", "passwd", "password",
    "private-key", "refresh-token", "secret", "security-token", "session-id", "session-token", "xsrf",
    # end of spec
)  # fmt: skip
_HEADERS_MAX = 1024
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")


# An application has few names of headers, and the same ones in each answer.
_remembered = functools.lru_cache(maxsize=1024)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(name.startswith(each[:-1]) if each.endswith("*") else name == each for each in patterns)


@_remembered
def never(name: str) -> bool:
    lower = name.lower()
    # Access-Control-Allow-Credentials holds none: it says that a page may send them.
    return _matches(lower, _NEVER) or (not lower.startswith("access-control-") and any(word in lower for word in _SECRET))


@_remembered
def _kept(name: str, allowed: Optional[Tuple[str, ...]]) -> bool:
    """And can be sent again."""
    if never(name) or _NAME.match(name) is None:
        return False
    return _matches(name.lower(), _KEPT if not allowed else [each.lower() for each in allowed])


@_remembered
def reserved(name: str) -> bool:
    """Only the door says that an answer is a replay, and Once-Effect is for it alone."""
    name = name.lower().replace("_", "-")
    return name in ("idempotency-replayed", "idempotency-traceparent") or name.startswith("once-")


_BREAKS = re.compile(r"[\0\r\n]")
_PLAIN = re.compile(r"[\t -~]*\Z")


def _sendable(name: str, value: str) -> bool:
    return _NAME.match(name) is not None and _BREAKS.search(value) is None


def can_be_sent(status: int, headers: Headers) -> bool:
    """Or the server breaks it off."""
    return 100 <= status <= 999 and all(_sendable(name, value) for name, value in headers)


def encode_headers(headers: Headers, allowed: Optional[Sequence[str]]) -> Any:
    """As they are stored: pairs in their order; a value that is no printable ASCII in hexadecimal. None: too many."""
    pairs: List[Any] = []
    chosen = None if allowed is None else tuple(allowed)
    for name, value in headers:
        if _kept(name, chosen) and _BREAKS.search(value) is None:
            pairs.append([name, value] if _PLAIN.match(value) else [name, None, value.encode("latin-1").hex()])
    return {"h": pairs} if len(pairs) <= _HEADERS_MAX else None


def decode_headers(stored: Any) -> Optional[Headers]:
    """None: what is stored cannot be sent as headers."""
    headers: Headers = []
    if stored is None:
        return headers
    if not isinstance(stored, Mapping):
        return None
    pairs = stored.get("h")
    if len(stored) == 1 and isinstance(pairs, list) and pairs and isinstance(pairs[0], list):
        given = [(pair[0], pair[1] if len(pair) == 2 else bytes.fromhex(pair[2]).decode("latin-1")) for pair in pairs]
    elif len(stored) == 1 and pairs == []:
        given = []
    else:
        given = []
        for name, values in stored.items():
            for value in values if isinstance(values, list) else [values]:
                if value is None:
                    continue
                if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                    return None
                given.append((name, value if isinstance(value, str) else json.dumps(value)))
    for name, value in given:
        if not isinstance(name, str) or not isinstance(value, str) or not _sendable(name, value):
            return None
        # Text beyond ASCII goes as its UTF-8, in the one spelling that HTTP libraries take.
        headers.append((name, value if all(ord(c) < 256 for c in value) else value.encode("utf-8").decode("latin-1")))
    return headers


# ---- what an answer means ----

DONE, NONE, UNKNOWN = "done", "none", "unknown"
_REFUSALS = (
    # spec: statuses-rolled-back
    # In a transaction of the client's. By HTTP nothing was done, and the same request may well be answered otherwise soon. So is a 4xx with
    # Retry-After, each 5xx, and what is no final status of HTTP (below 200, above 599).
    307, 308, 401, 403, 407, 408, 409, 421, 423, 425, 429,
    # end of spec
)
_ASKING = {
    # spec: statuses-asking
    # Elsewhere: the header with which a status asks for the same request once more, so that nothing was done. A 4xx or a 503 asks with
    # Retry-After.
    307: "location",
    308: "location",
    401: "www-authenticate",
    407: "proxy-authenticate",
    # end of spec
}
_ASKING_ALWAYS = (
    # spec: statuses-asking-always
    # Elsewhere: HTTP itself says of these that the same request is sent again: over another connection (RFC 9110, 15.5.20), or after the
    # handshake (RFC 8470, 5.2).
    421, 425,
    # end of spec
)
EFFECT_HEADER = "once-effect"
TOO_LARGE = "once.too_large"


def said_of(headers: Headers) -> Optional[str]:
    said = [value.strip().lower() for name, value in headers if name.lower() == EFFECT_HEADER]
    return said[0] if len(said) == 1 and said[0] in (DONE, NONE, UNKNOWN) else None


def effect_of(status: int, headers: Headers) -> str:
    """What the answer says of the effect. A 5xx, and what is no final status of HTTP: rolled back here, so nothing was done. So is a 4xx that asks for the same request later."""
    said = said_of(headers)
    if said is not None:
        return said
    later = 400 <= status <= 499 and any(name.lower() == "retry-after" for name, _ in headers)
    return NONE if later or status in _REFUSALS or not 200 <= status <= 499 else DONE


def effect_elsewhere_of(status: int, headers: Headers) -> str:
    """The same of an effect that no rollback takes back: the gateway's rule (lib/http/decide.c)."""
    said = said_of(headers)
    if said is not None:
        return said
    if not 200 <= status <= 599:
        return UNKNOWN
    names = {name.lower() for name, _ in headers}
    later = (400 <= status <= 499 or status == 503) and "retry-after" in names
    if later or status in _ASKING_ALWAYS or _ASKING.get(status) in names:
        return NONE
    return UNKNOWN if status >= 500 or status == 408 else DONE


def is_endless(headers: Headers) -> bool:
    """A stream of events."""
    return any(name.lower() == "content-type" and value.split(";")[0].strip().lower() == "text/event-stream" for name, value in headers)


def check_whole(method: str, status: int, headers: Headers, length: int) -> None:
    """An answer is whole when it has as many bytes as it says."""
    said = {value.strip() for name, value in headers if name.lower() == "content-length"}
    if any(not each.isdigit() or int(each) != length for each in said) and method != "HEAD" and status not in (204, 304):
        raise AnswerNotWhole(f"the answer has {length} bytes, and its Content-Length says {', '.join(sorted(said))}: it is not whole")


_FENCE = re.compile(r"[1-9][0-9]{0,9}\Z")
CLAIM = ("once-tenant", "once-scope", "once-key", "once-fence")


def fence_of(said: Sequence[Sequence[str]], tenant: str, scope: str, key: str) -> Optional[int]:
    """The fence under which a gateway in front holds this very intent, by the values of the headers CLAIM; None: none does. The gateway percent-encodes
    what a header cannot hold."""
    if any(len(values) != 1 for values in said):
        return None
    *names, fence = (values[0] for values in said)
    for encoded, name in zip(names, (tenant, scope, key)):
        if unquote_to_bytes(encoded) != name.encode():
            return None
    return int(fence) if _FENCE.match(fence) and int(fence) < 1 << 31 else None


_TRACE = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")


def traceparent_of(values: Sequence[str]) -> Optional[str]:
    """Several, or a malformed one, count as none."""
    return values[0] if len(values) == 1 and _TRACE.match(values[0]) else None


def check_base(base: str) -> str:
    if not 1 <= len(base) <= _BASE_MAX or any(not "!" <= each <= "~" or each in _BASE_REFUSED for each in base):
        raise UsageError(f"problem_base is the start of a URI: 1 to {_BASE_MAX} characters of ASCII, without spaces and {_BASE_REFUSED}")
    return base
