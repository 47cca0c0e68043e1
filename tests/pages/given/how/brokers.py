# SPDX-License-Identifier: PostgreSQL
NEEDS = ("rabbitmq",)
AFTER_SH = """test "$(psql -Atc 'SELECT quantity FROM stock')" = 8"""
