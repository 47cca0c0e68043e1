# SPDX-License-Identifier: PostgreSQL
"""Fingerprints that the client computes itself, by docs/fingerprint.md, once it knows a tenant's salt: in the database they cost as
much as half of start. Those of JSON are the database's, since it has the canonical form."""

from __future__ import annotations

import hashlib
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


class Salts:
    """By tenant, of one source of connections, until one of these is lost: the next one may lead to another database, as after a
    restore."""

    def __init__(self) -> None:
        self._of: Dict[str, bytes] = {}

    def of(self, tenant: str) -> Optional[bytes]:
        return self._of.get(tenant)

    def remember(self, tenant: str, salt: bytes) -> None:
        # Never changed in place: other threads may be reading.
        self._of = {**self._of, tenant: salt} if len(self._of) < TENANTS_MAX else {tenant: salt}

    def forget(self) -> None:
        self._of = {}
