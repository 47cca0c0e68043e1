# SPDX-License-Identifier: PostgreSQL
"""What the applications of Python share: what the environment says, and what answers say."""

import hashlib
import os

ON = os.environ["PGONCE"] == "on"
PORT = int(os.environ["PORT"])
URL = os.environ["DATABASE_URL"]
FILES = os.environ["FILES"]
OPTIONS = {"scope": "transparency", "tenant": None, "handler_ms": int(os.environ["HANDLER_MS"])}
ORDER = {"order": 7, "name": "Zoë ☃ 😀", "note": 'a/b <c> & "d"', "amount": 12.50}
TEXT = "Grüße, 世界\n"
PIECES = [bytes([250 + i]) * 1000 for i in range(5)]
LINES = ["eins ä\n", "zwei ☃\n", "drei 😀\n"]
INSERT = "INSERT INTO effect (name) VALUES (%s)"
LATE = "late-tx-after", "late-tx-refused"


def large(size):
    """size bytes in pieces of 64 KiB."""
    block = b"0123456789abcdef" * 4096
    for at in range(0, size, len(block)):
        yield block[: size - at]


def digest(data):
    return hashlib.sha256(data).hexdigest()
