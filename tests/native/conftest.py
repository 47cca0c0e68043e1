# SPDX-License-Identifier: PostgreSQL
"""A database with the library, a session that has found it, and roles."""

import pytest

from harness.native import install_native

from .sessions import F, Session, roles_of


@pytest.fixture
def native(db):
    install_native(db)
    return db


@pytest.fixture
def session(native):
    made = Session(native)
    made(f"SELECT once.start('warm', 'up', {F})")  # finds the library
    assert made.value("SHOW once.native") == "on"
    return made


@pytest.fixture
def roles(native):
    with roles_of(native):
        yield native
