# SPDX-License-Identifier: PostgreSQL
NEEDS = ("kafka",)
