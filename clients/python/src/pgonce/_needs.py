# SPDX-License-Identifier: PostgreSQL
"""A framework comes with its application, not with pgonce. If it is missing, one line says how to install it."""

import importlib.util


def needs(module: str, package: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"this needs {package}, which is not installed: run pip install {package}", name=module)
