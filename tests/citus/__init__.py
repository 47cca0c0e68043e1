# SPDX-License-Identifier: PostgreSQL
"""The contract on nodes of a Citus cluster: make test-citus SOURCE=DIR builds it (tools/citus.sh)."""
