# SPDX-License-Identifier: PostgreSQL
from harness import postgres

BEFORE_SH = f"ln -s {postgres.ROOT}/clients/python/.venv .venv"  # clients/python/test.sh makes it
FILES = {
    "redis.py": '''
"""As much of Redis as the page needs, in place of its client and its server."""

class Redis:
    def __init__(self):
        self.values = {}

    def set(self, name, value, nx=False, ex=None):
        if nx and name in self.values:
            return None
        self.values[name] = value.encode()
        return True

    def get(self, name):
        return self.values.get(name)

    def delete(self, name):
        self.values.pop(name, None)
''',
    "imported.py": """
import pgonce
from psycopg_pool import ConnectionPool

with ConnectionPool("") as pool:
    answer = pgonce.run(pool, "orders", "cart-3", {"item": "lamp"}, lambda tx: 1 / 0)
    assert answer.replayed and answer.json() == {"item": "lamp"}
""",
}
AFTER_SH = "if [ -e .venv/bin/python ]; then .venv/bin/python imported.py; fi"
