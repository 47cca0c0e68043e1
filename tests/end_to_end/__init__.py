# SPDX-License-Identifier: PostgreSQL
"""From one database, through a broker, into another: all parts real."""
