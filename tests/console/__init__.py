# SPDX-License-Identifier: PostgreSQL
"""The tests of the web console."""
# SPDX-License-Identifier: PostgreSQL
