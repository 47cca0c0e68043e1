# SPDX-License-Identifier: PostgreSQL
"""The tests of the gateway: a real nginx with the module, a real PostgreSQL, and services that count what they do."""
