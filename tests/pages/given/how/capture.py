# SPDX-License-Identifier: PostgreSQL
SETTINGS = {"wal_level": "logical"}
