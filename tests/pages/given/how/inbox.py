# SPDX-License-Identifier: PostgreSQL
SHOWN = {"`inbox.py`": "tests/clients/inbox/run.py gives it messages"}
