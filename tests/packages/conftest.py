# SPDX-License-Identifier: PostgreSQL
"""What is released: packages, images, the chart, SQL alone. Quick tests run with all others. Those marked `whole` install on fresh machines and ask
registries: only `make test-packages` runs them."""

import os

import pytest

WHOLE = os.environ.get("PGONCE_PACKAGES") == "yes"


def pytest_configure(config):
    config.addinivalue_line("markers", "whole: on fresh machines or from registries; `make test-packages` alone runs it")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Before any fixture of the test is made."""
    if not WHOLE and item.get_closest_marker("whole"):
        pytest.skip("installs on fresh machines, or asks registries: make test-packages")
