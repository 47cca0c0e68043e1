# SPDX-License-Identifier: PostgreSQL
"""No test begins so shortly before midnight that its day would be another before it ends."""

import pytest

from harness.midnight import DAY_S, NEAR_S, let_pass

MIDNIGHT = 20781 * DAY_S


class Clock:
    """Advances when somebody sleeps, a little less than they wanted, as a machine's may."""

    def __init__(self, now_s):
        self.now_s = now_s

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += max(seconds - 0.25, 0.001)


@pytest.mark.parametrize("before_s", [NEAR_S - 1, 1, 0.001])
def test_a_test_begins_after_midnight_where_it_is_near(before_s):
    clock = Clock(MIDNIGHT - before_s)
    let_pass(clock, clock.sleep)
    assert MIDNIGHT <= clock.now_s < MIDNIGHT + 1


@pytest.mark.parametrize("after_s", [-NEAR_S - 1, 0, 1, DAY_S / 2])
def test_a_test_begins_at_once_at_any_other_time(after_s):
    clock = Clock(MIDNIGHT + after_s)
    let_pass(clock, clock.sleep)
    assert clock.now_s == MIDNIGHT + after_s
