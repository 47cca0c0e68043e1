# SPDX-License-Identifier: PostgreSQL
"""The tests of the command."""
