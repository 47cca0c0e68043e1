# SPDX-License-Identifier: PostgreSQL
"""Fingerprints that the client computes itself, by docs/reference/fingerprint.md, once it knows a tenant's salt: in the database they cost as
much as half of start. Those of JSON are the database's, since it has the canonical form."""

from __future__ import annotations

import hashlib
import weakref
from typing import Any, Dict, Optional

from .answer import HttpRequest

TENANTS_MAX = 1000


def hashed_of(request: Any) -> Optional[bytes]:
    """What is hashed after the salt; None where the database has to do it."""
    if isinstance(request, HttpRequest):
        if request.canonical_json:
            return None
        parts = (request.method.encode(), (request.content_type or "").encode(), request.body, request.target.encode())
        return b"r" + b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    if isinstance(request, (bytes, bytearray, memoryview)):
        return b"b" + bytes(request)
    return b"b" + request.encode() if isinstance(request, str) else None


def fingerprint(salt: bytes, hashed: bytes) -> bytes:
    return hashlib.sha256(salt + hashed).digest()


# By connection, where the adapter knows the driver's own: another one may lead to another database, as after a restore.
_SALTS: "weakref.WeakKeyDictionary[Any, Dict[str, bytes]]" = weakref.WeakKeyDictionary()


def salt_of(connection: Any, tenant: str) -> Optional[bytes]:
    own = getattr(connection, "own", None)
    return None if own is None else _SALTS.get(own, {}).get(tenant)


def remember(connection: Any, tenant: str, salt: bytes) -> None:
    own = getattr(connection, "own", None)
    if own is not None:
        salts = _SALTS.setdefault(own, {})
        if len(salts) >= TENANTS_MAX:
            salts.clear()
        salts[tenant] = salt
