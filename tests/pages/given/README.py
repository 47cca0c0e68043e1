# SPDX-License-Identifier: PostgreSQL
from harness import postgres

ENVIRONMENT = {"PGONCE": str(postgres.ROOT)}
QUOTED = {
    "once.express(": "docs/start/node.md", "OnceMiddleware": "docs/start/python.md", "db.Middleware(": "docs/start/go.md", "@Idempotent(": "docs/start/java.md", "once required": "docs/start/gateway.md",
}  # fmt: skip
BEFORE = "CREATE TABLE orders (item text)"
