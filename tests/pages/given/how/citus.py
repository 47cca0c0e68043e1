# SPDX-License-Identifier: PostgreSQL
why = "needs a cluster of Citus: tests/citus/test_page.py types it there"
SHOWN = {"export COORDINATOR": why, "SELECT once.anchor()": why, "`order.sql`": why, "create_distributed_table": why}
