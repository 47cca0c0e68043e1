# SPDX-License-Identifier: PostgreSQL
"""Several nodes that share the tenants (docs/how/scale.md): which of them serves a tenant. The nodes say so; nothing is computed here. This knowledge is a hint: the
guard of a node refuses every other tenant, and then all nodes are asked again."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import itertools
import threading
import time
import urllib.parse
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set

from . import _core, errors
from ._drivers import source_of
from ._io import Steps, drive, drive_async
from ._trouble import is_a, module

ASK_S = 5.0  # for the answer of a node
AGAIN_S = 1.0  # between two inquiries because a node is away
TENANTS_MAX = 10_000  # whose slots are remembered

_SLOTS = "SELECT string_agg(concat(s.epoch, CASE WHEN s.open THEN '+' ELSE '-' END), ' ' ORDER BY s.slot) FROM once.slots() AS s"
_SLOT_OF = "SELECT once.slot_of(CAST($1 AS text))"


class _Slot(NamedTuple):
    epoch: int
    is_open: bool


class _Place(NamedTuple):
    """Where a tenant is served, as far as is known; or why nobody can tell."""

    pool: Any = None
    slot: _Slot = _Slot(0, True)
    fault: Optional[errors.OnceError] = None


def _address(pool: Any) -> str:
    """Host, port and database, for people; never a password. Empty for what does not tell."""
    with contextlib.suppress(Exception):
        host = port = database = None
        if is_a(pool, "psycopg_pool", "ConnectionPool", "AsyncConnectionPool"):
            known = module("psycopg.conninfo").conninfo_to_dict(pool.conninfo, **(pool.kwargs or {}))
            host, port, database = known.get("host") or known.get("hostaddr"), known.get("port"), known.get("dbname")
        elif is_a(pool, "asyncpg.pool", "Pool"):
            url, named = urllib.parse.urlsplit(str((*pool._connect_args, "")[0])), pool._connect_kwargs
            host, port, database = named.get("host") or url.hostname, named.get("port") or url.port, named.get("database") or url.path[1:]
        elif hasattr(pool, "kw"):  # a factory of SQLAlchemy's sessions
            url = pool.kw["bind"].url
            host, port, database = url.host, url.port, url.database
        if host is not None or database is not None:
            return f" ({host or 'localhost'}:{port or 5432}/{database or ''})"
    return ""


class _Node:
    """slots: by their numbers; none if the node is not divided, and None before its first answer. away: why it did not answer the last time."""

    def __init__(self, number: int, pool: Any, asynchronous: bool) -> None:
        self.number, self.pool, self.source = number, pool, source_of(pool, asynchronous)
        self.slots: Optional[List[_Slot]] = None
        self.away: Optional[BaseException] = None
        self.heard = 0  # the inquiry that this is of

    def __str__(self) -> str:
        return f"node {self.number}{_address(self.pool)}"

    def note(self, inquiry: int, slots: Optional[List[_Slot]], away: Optional[BaseException]) -> None:
        if inquiry >= self.heard:
            self.heard, self.away = inquiry, away
            self.slots = self.slots if slots is None else slots

    def hear(self, inquiry: int) -> Steps[None]:
        try:
            (told,) = yield from _core.alone_at(self.source, _SLOTS, (), ASK_S)
        except Exception as raised:
            self.note(inquiry, None, raised)
        else:
            self.note(inquiry, [_Slot(int(each[:-1]), each[-1] == "+") for each in (told or "").split()], None)


class BaseNodes:
    """What both doors' routers are. A router is a function of the tenant; refused: its node has just refused the tenant."""

    def __init__(self, pools: Sequence[Any], asynchronous: bool) -> None:
        self._nodes = [_Node(number, pool, asynchronous) for number, pool in enumerate(pools, 1)]
        if not self._nodes:
            raise errors.UsageError("nodes([pool, ...]) needs the pools of the nodes")
        self._tenants: "collections.OrderedDict[str, int]" = collections.OrderedDict()
        self._lock = threading.Lock()
        self._under_way: Dict[str, Any] = {}
        self._inquiries = itertools.count(1)
        self._asked_at: Optional[float] = None

    def _share(self, name: str, make: Callable[[], Steps[Any]]) -> Any:
        """What these steps give; those who come meanwhile get the same."""
        raise NotImplementedError

    def _together(self, steps: List[Steps[None]]) -> Any:
        """All at once, and no longer than ASK_S."""
        raise NotImplementedError

    def _inquire(self) -> Any:
        return self._share("", self._ask_all)

    def _ask_all(self) -> Steps[None]:
        """Asks every node for its slots."""
        inquiry = next(self._inquiries)
        yield self._together([node.hear(inquiry) for node in self._nodes])
        for node in self._nodes:
            if node.heard < inquiry:
                node.away = TimeoutError("it is silent")
        self._asked_at = time.monotonic()

    def _route(self, tenant: str, refused: Optional[errors.SlotClosed]) -> Steps[Any]:
        if self._asked_at is None:
            yield self._inquire()
        place = yield from self._find(tenant)
        if refused is not None:
            # Also an inquiry that was under way when the node refused may be too old.
            for tries in range(2):
                if place.fault is None and refused.epoch is not None and place.slot.epoch > refused.epoch:
                    break
                if tries == 1 and (place.fault is not None or not place.slot.is_open):
                    break
                yield self._inquire()
                place = yield from self._find(tenant)
        elif place.fault is not None and time.monotonic() - (self._asked_at or 0.0) >= AGAIN_S:
            yield self._inquire()
            place = yield from self._find(tenant)
        if place.fault is not None:
            raise place.fault
        return place.pool

    def _find(self, tenant: str) -> Steps[_Place]:
        """Without an inquiry."""
        alone = len(self._nodes) == 1
        for node in self._nodes:
            if node.slots == []:
                if alone:
                    return _Place(node.pool)
                wrong = errors.UsageError(f"{node} is not divided, so it cannot share the tenants with others: CALL once.divide(...) there")
                return _Place(fault=wrong)
        if all(node.slots is None for node in self._nodes):
            return _Place(fault=self._unavailable("no node is known"))
        slot = self._known_slot(tenant)
        if slot is None:
            slot = yield self._share(f"slot of {tenant}", lambda: self._ask_slot(tenant))
        return self._place(slot)

    def _place(self, number: int) -> _Place:
        places = [(node, _Place(node.pool, node.slots[number])) for node in self._nodes if node.slots]
        highest = max(place.slot.epoch for _, place in places)
        # Another node that has it open is older: its answer, while it is away, or itself, as a standby that was promoted without a close.
        found = [place for _, place in places if place.slot.is_open and place.slot.epoch == highest]
        if not found and any(node.away is not None for node in self._nodes):
            return _Place(fault=self._unavailable(f"no node is known that serves slot {number}"))
        # Where it is open nowhere, the node refuses it.
        return next(place for place in found or [place for _, place in places] if place.slot.epoch == highest)

    def _unavailable(self, what: str) -> errors.OnceError:
        away = [node for node in self._nodes if node.away is not None]
        made = errors.ConnectionLost(f"{what}: {' and '.join(map(str, away))} did not answer; nothing was done")
        made.__cause__ = away[0].away if away else None
        return made

    def _known_slot(self, tenant: str) -> Optional[int]:
        with self._lock:
            if tenant in self._tenants:
                self._tenants.move_to_end(tenant)
            return self._tenants.get(tenant)

    def _ask_slot(self, tenant: str) -> Steps[int]:
        """Of any node: the function is the same on each."""
        unanswered: Optional[Exception] = None
        for node in sorted(self._nodes, key=lambda node: node.away is not None):
            try:
                (slot,) = yield from _core.alone_at(node.source, _SLOT_OF, [tenant], _core.DEADLINE_S)  # many may ask at once
            except Exception as raised:
                unanswered = unanswered or raised
                continue
            with self._lock:
                self._tenants[tenant] = slot
                if len(self._tenants) > TENANTS_MAX:  # the one that was used longest ago
                    self._tenants.popitem(last=False)
            return int(slot)
        assert unanswered is not None
        raise unanswered


class Nodes(BaseNodes):
    def __init__(self, pools: Sequence[Any]) -> None:
        super().__init__(pools, False)

    def __call__(self, tenant: str, refused: Optional[errors.SlotClosed] = None) -> Any:
        return drive(self._route(tenant, refused))

    def _share(self, name: str, make: Callable[[], Steps[Any]]) -> Any:
        with self._lock:
            under_way = self._under_way.get(name)
            if under_way is None:
                mine: "concurrent.futures.Future[Any]" = concurrent.futures.Future()
                self._under_way[name] = mine
        if under_way is not None:
            return under_way.result()
        try:
            mine.set_result(drive(make()))
        except BaseException as raised:
            mine.set_exception(raised)
        finally:
            with self._lock:
                del self._under_way[name]
        return mine.result()

    def _together(self, steps: List[Steps[None]]) -> None:
        threads = [threading.Thread(target=drive, args=(each,), name="pgonce-nodes", daemon=True) for each in steps]
        for thread in threads:
            thread.start()
        end = time.monotonic() + ASK_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))


class AsyncNodes(BaseNodes):
    def __init__(self, pools: Sequence[Any]) -> None:
        super().__init__(pools, True)
        self._tasks: "Set[asyncio.Future[Any]]" = set()  # asyncio itself does not keep them

    async def __call__(self, tenant: str, refused: Optional[errors.SlotClosed] = None) -> Any:
        return await drive_async(self._route(tenant, refused))

    def _task(self, steps: Steps[Any], ended: Callable[[Any], Any]) -> "asyncio.Future[Any]":
        task = asyncio.ensure_future(drive_async(steps))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(ended)
        return task

    def _share(self, name: str, make: Callable[[], Steps[Any]]) -> Any:
        task = self._under_way.get(name)
        if task is None:

            def ended(task: Any) -> None:
                del self._under_way[name]
                task.cancelled() or task.exception()  # looked at, so that asyncio does not log it

            task = self._under_way[name] = self._task(make(), ended)
        return asyncio.shield(task)  # it is also for others

    async def _together(self, steps: List[Steps[None]]) -> None:
        await asyncio.wait([self._task(each, lambda task: None) for each in steps], timeout=ASK_S)


def nodes(pools: Sequence[Any]) -> Nodes:
    """A router over the nodes that share the tenants: it asks them which of them serves a tenant. For Once, run, claim and the middlewares, in place of a pool."""
    return Nodes(pools)
