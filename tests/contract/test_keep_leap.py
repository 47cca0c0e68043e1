# SPDX-License-Identifier: PostgreSQL
"""A clock that leaps between the keeper's look at it and its use of it: the model of the protocol found this (model/README.md, clock_read_twice)."""
import pytest

from .calls import Once
from .keeping import AGO, Keeper, finished
from .test_retention_property import inject_clock


@pytest.fixture
def leaping(db):
    """A keeper whose clock has been steady for long, and leaps by eight days as soon as a piece of its work has read it."""
    inject_clock(db)
    db.execute("SELECT once.set_keeping(clock_settle => '1 hour', horizon_days => %s)", AGO)
    keeper = Keeper(db.connect())
    keeper.step("clock")
    db.execute(
        "UPDATE once.clock SET steady = '2 hours', read_at = public.test_clock() - interval '1 minute';"
        "CREATE FUNCTION public.leap() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN UPDATE public.test_offset SET by = by + interval '8 days'; RETURN NULL; END $$;"
        "CREATE TRIGGER leap AFTER UPDATE ON once.clock FOR EACH ROW EXECUTE FUNCTION public.leap()"
    )
    return keeper


def test_a_leap_during_a_purge_lets_nothing_be_forgotten(db, leaping):
    once = Once(db.connect())
    once.finish_new(key="a key without a day", response_body=b"kept")
    leaping.step("purge")
    db.execute("UPDATE public.test_offset SET by = '0'")
    assert once.start(key="a key without a day").response_body == b"kept"


def test_a_leap_during_a_closing_closes_no_day(db, leaping):
    key = finished(db, 0)
    leaping.step("close")
    assert db.value("SELECT count(*) FROM once.closing WHERE phase <> 'look'") == 0
    db.execute("UPDATE public.test_offset SET by = '0'")
    assert Once(db.connect()).start(key=key).response_body == b"kept"
