# SPDX-License-Identifier: PostgreSQL
"""The whole system under faults, and a judge of what it promised: tests/torture/README.md."""
