# SPDX-License-Identifier: PostgreSQL
"""Midnight (UTC), when the contract's day becomes another. A test that asks twice which day it is, or makes a key of today and then looks where it
went, would see two days: so none begins in the minute before. What happens at midnight has tests of its own (tests/contract/test_today.py)."""

import time

import pytest

DAY_S = 86400
NEAR_S = 60


def let_pass(clock=time.time, sleep=time.sleep):
    """Where midnight is less than a minute away, waits until it is over."""
    day = clock() // DAY_S
    while clock() // DAY_S == day and (left_s := DAY_S - clock() % DAY_S) < NEAR_S:
        sleep(left_s)


class Midnight:
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self):
        let_pass()
