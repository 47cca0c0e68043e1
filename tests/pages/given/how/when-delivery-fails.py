# SPDX-License-Identifier: PostgreSQL
NEEDS = ("nats",)
AFTER_SH = """nats stream get ORDERS 1 | grep '"order": 7'
nats stream get INVOICES 2 | grep 'Pgonce-Event-Type: invoice.paid'"""
