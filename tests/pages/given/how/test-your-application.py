# SPDX-License-Identifier: PostgreSQL
import re

from harness import postgres

DATABASE = None
BEFORE_SH = f"ln -s {postgres.ROOT}/clients/python/.venv .venv"  # clients/python/test.sh makes it
FILES = {"service.py": re.search(r"`service.py`:\n\n```python\n(.*?)```", (postgres.ROOT / "docs/start/python.md").read_text(), re.S)[1]}
PATIENCE_S = 300
