# SPDX-License-Identifier: PostgreSQL
"""What is injected into the suites of Python's frameworks has in common: our options, and a key for each request that has none."""

import os
import sys
import uuid

URL = os.environ["DATABASE_URL"]
# All of them: most of a framework's tests send GET.
OPTIONS = {"scope": "frameworks", "tenant": None, "methods": ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE")}
KEY = "HTTP_IDEMPOTENCY_KEY"


def fresh_key():
    return f'"{uuid.uuid4()}"'


class OnLoad:
    """on_load(name, change): change(module) once a module of this name has been loaded. Nothing is imported before the suite does it."""

    def __init__(self, changes):
        self.changes = changes

    def find_spec(self, name, path=None, target=None):
        change = self.changes.pop(name, None)
        if change is None:
            return None
        import importlib.util

        spec = importlib.util.find_spec(name)
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            change(module)

        loader.exec_module = exec_module
        return spec


def on_load(**changes):
    sys.meta_path.insert(0, OnLoad({name.replace("__", "."): change for name, change in changes.items()}))
