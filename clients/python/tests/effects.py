# SPDX-License-Identifier: PostgreSQL
"""Effects that leave a row, ways to the server that lose messages, and a task that is cancelled at one of its turns."""

import asyncio

from drivers import AsyncDoor

INSERT = "INSERT INTO effect (key) VALUES ('{}')"


def effect_of(door, key, after=lambda tries: None):
    """Leaves a row and answers; after(tries) happens within the effect, which counts its runs."""
    runs = []

    def effect(tx):
        runs.append(1)
        door.execute(tx, INSERT.format(key))
        after(len(runs))
        return 201, "done"

    async def effect_async(tx):
        runs.append(1)
        await door.execute(tx, INSERT.format(key))
        after(len(runs))
        return 201, "done"

    return runs, effect_async if isinstance(door, AsyncDoor) else effect


def reach(name, forwarder, db):
    url = f"postgresql://postgres@{forwarder.hello['host']}:{forwarder.hello['port']}/{db.name}"
    return url + ("?ssl=disable" if name.endswith("async-asyncpg") else "?sslmode=disable")


class Stepper:
    """Counts a task's turns, and cancels it after so many."""

    def __init__(self, coroutine, turns):
        self.coroutine, self.turns, self.left = coroutine, 0, turns

    def __await__(self):
        send, value = self.coroutine.send, None
        while True:
            try:
                future = send(value)
            except StopIteration as end:
                return end.value
            self.turns += 1
            send, value = self.coroutine.send, None
            try:
                if self.left is not None and self.turns == self.left:
                    asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
                value = yield future
            except BaseException as raised:
                send, value = self.coroutine.throw, raised
