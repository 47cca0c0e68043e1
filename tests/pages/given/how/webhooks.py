# SPDX-License-Identifier: PostgreSQL
SHOWN = {f"`{name}`": "tests/clients/inbox/run.py gives it deliveries" for name in ("webhooks.py", "webhooks.js", "webhooks.go", "Webhooks.java")}
