# SPDX-License-Identifier: PostgreSQL
NEEDS = ("nats",)
AFTER_SH = """test "$(psql -Atc 'SELECT quantity FROM stock')" = 11"""  # two orders, then the one that was dead
