# SPDX-License-Identifier: PostgreSQL
SHOWN = {f"`{name}`": "tests/clients/inbox/run.py gives it messages" for name in ("inbox.js", "inbox.go", "Inbox.java")}
