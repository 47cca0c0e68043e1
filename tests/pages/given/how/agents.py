# SPDX-License-Identifier: PostgreSQL
from harness import postgres

BEFORE_SH = f"ln -s {postgres.ROOT}/clients/python/.venv .venv"  # clients/python/test.sh makes it
