# SPDX-License-Identifier: PostgreSQL
"""What calls and answers may hold besides JSON's own kinds."""

import asyncio
import dataclasses
import datetime
import decimal
import enum
import uuid

import psycopg_pool
import pydantic
import pytest

import pgonce
import pgonce.aio


@dataclasses.dataclass
class Line:
    amount: decimal.Decimal


class Order(pydantic.BaseModel):
    id: uuid.UUID
    day: datetime.date


class Kind(enum.Enum):
    CARD = "card"


VALUES = {
    "amount": decimal.Decimal("12.50"), "id": uuid.UUID(int=7), "day": datetime.date(2026, 1, 2), "at": datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.timezone.utc),
    "time": datetime.time(3, 4), "line": Line(decimal.Decimal("1.0")), "order": Order(id=uuid.UUID(int=8), day=datetime.date(2026, 1, 3)), "kind": Kind.CARD,
}  # fmt: skip
AS_JSON = {
    "amount": "12.50", "id": "00000000-0000-0000-0000-000000000007", "day": "2026-01-02", "at": "2026-01-02T03:04:00+00:00", "time": "03:04:00", "line": {"amount": "1.0"},
    "order": {"id": "00000000-0000-0000-0000-000000000008", "day": "2026-01-03"}, "kind": "card",
}  # fmt: skip


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_decorated_function_takes_and_gives_what_applications_have(db, asynchronous):
    key = f"values-{asynchronous}"
    runs = []

    def work(values):
        runs.append(1)
        return values

    async def work_async(values):
        return work(values)

    if asynchronous:

        async def main():
            async with psycopg_pool.AsyncConnectionPool(db.url, min_size=0, max_size=2, open=False) as pool:
                once = pgonce.aio.Once(pool).effect(scope="values", key=key)(work_async)
                answers = [await once(VALUES), await once(VALUES)]
                with pytest.raises(pgonce.Mismatch):
                    await once({**VALUES, "amount": decimal.Decimal("12.51")})
                return answers

        answers = asyncio.run(main())
    else:
        with psycopg_pool.ConnectionPool(db.url, min_size=0, max_size=2, open=True) as pool:
            once = pgonce.Once(pool).effect(scope="values", key=key)(work)
            answers = [once(VALUES), once(VALUES)]
            with pytest.raises(pgonce.Mismatch):
                once({**VALUES, "amount": decimal.Decimal("12.51")})
    assert answers == [AS_JSON, AS_JSON] and len(runs) == 1


def test_request_says_what_distinguishes_a_call(db):
    with psycopg_pool.ConnectionPool(db.url, min_size=0, max_size=2, open=True) as pool:

        @pgonce.Once(pool).effect(scope="values", key="{order}", request=lambda session, order, amount: {"amount": amount})
        def charge(session, order, amount):
            assert session is not None
            return amount

        assert [charge(object(), 7, decimal.Decimal(5)), charge(object(), 7, decimal.Decimal(5))] == ["5", "5"]
        with pytest.raises(pgonce.Mismatch):
            charge(object(), 7, decimal.Decimal(6))


def test_a_value_that_is_no_json_is_named(db):
    with psycopg_pool.ConnectionPool(db.url, min_size=0, max_size=2, open=True) as pool, pytest.raises(pgonce.UsageError, match="dataclasses"):
        pgonce.run(pool, "values", "none", {"a": object()}, pytest.fail)
