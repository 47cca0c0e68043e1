# SPDX-License-Identifier: PostgreSQL
NEEDS = ("nats",)
