# SPDX-License-Identifier: PostgreSQL
"""What ends handlers that take too long."""

import threading

from pgonce._watch import Limit

PATIENCE_S = 20


def test_an_end_that_hangs_holds_up_no_other_one():
    """As of a database that does not answer: each end waits for it."""
    begun = threading.Barrier(3)
    ends = [Limit(0.01, lambda: begun.wait(PATIENCE_S)) for _ in range(2)]
    for each in ends:
        each.__enter__()
    begun.wait(PATIENCE_S)
    for each in ends:
        each.__exit__(None, None, None)
    assert all(each.passed for each in ends)


def test_an_end_that_has_begun_is_waited_for_and_none_begins_after_it():
    begun, go, ended = threading.Event(), threading.Event(), []

    def end():
        begun.set()
        assert go.wait(PATIENCE_S)
        ended.append(1)

    with Limit(0.01, end) as limit:
        assert begun.wait(PATIENCE_S)
        threading.Timer(0.05, go.set).start()
    assert ended == [1] and limit.passed
    with Limit(0.05, lambda: ended.append(2)) as limit:
        pass
    with Limit(0.1, begun.clear):
        while begun.is_set():
            pass
    assert ended == [1] and not limit.passed
