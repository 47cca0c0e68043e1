# SPDX-License-Identifier: PostgreSQL
from harness import postgres

NEEDS = ("promtool",)
ENVIRONMENT = {"PGONCE": str(postgres.ROOT)}
BEFORE = "CREATE TABLE orders (id serial PRIMARY KEY, item text NOT NULL)"
