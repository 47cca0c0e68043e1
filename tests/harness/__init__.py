# SPDX-License-Identifier: PostgreSQL
"""What the tests run against: real, private servers that the tests start and stop themselves."""
