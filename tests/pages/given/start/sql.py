# SPDX-License-Identifier: PostgreSQL
from harness import postgres

DATABASE = None
ENVIRONMENT = {"PGONCE": str(postgres.ROOT)}
AFTER_SH = "test \"$(psql -Atc 'SELECT count(*) FROM orders' shop)\" = 3"
