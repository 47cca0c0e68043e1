# SPDX-License-Identifier: PostgreSQL
NEEDS = ("elasticmq",)
AFTER_SH = """test "$(psql -Atc 'SELECT quantity FROM stock')" = 8"""
