# SPDX-License-Identifier: PostgreSQL
"""The guarantees of the SQL contract. A test whose only parameters are plain values and a database can be called from
test_broken_on_purpose.py too, which takes the guarantee out and expects it to fail."""
