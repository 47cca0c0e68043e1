# SPDX-License-Identifier: PostgreSQL
"""The network of the torture: every pair of processes talks through a link, a proxy of our own that can be cut, slow, lossy, or half open. All
links live in one child process, which has no part in what the harness measures; it ends when the harness does (its standard input ends).

A link listens on TCP at 127.0.0.1; its target, a port or the path of a unix socket, may change. Bytes that a link has lost are never followed by later
ones: the connection that they were part of is reset, at the latest when the link is whole again."""

import asyncio
import json
import pathlib
import random
import socket
import struct
import subprocess
import sys
import threading

PIECE = 65536
UP, DOWN = "up", "down"  # from the client to the server, and back
RESET = struct.pack("ii", 1, 0)  # a linger of zero: closing resets


class Link:
    """One link as the harness sees it. up: what the client says to the server; down: what it is answered."""

    def __init__(self, links, name, port):
        self.links, self.name, self.port = links, name, port

    @property
    def address(self):
        return ("127.0.0.1", self.port)

    def _mode(self, mode, **parameters):
        return self.links.ask("mode", self.name, mode=mode, **parameters)

    def target(self, where):
        """Where new connections lead: a port of 127.0.0.1, or a path. Those that are open stay as they are."""
        return self.links.ask("target", self.name, where=where if isinstance(where, int) else str(where))

    def whole(self):
        return self._mode("pass")

    def cut(self):
        """Connections are reset, new ones refused."""
        return self._mode("cut")

    def delay(self, ms, jitter=0):
        """Each piece, in either direction, comes so much later, and up to jitter ms more."""
        return self._mode("delay", ms=ms, jitter=jitter)

    def lossy(self, probability):
        """Each piece with this probability resets its connection, or is lost with all that follows it in its direction."""
        return self._mode("lossy", p=probability)

    def half_open(self, direction="both"):
        """'up', 'down' or 'both': nothing comes through in it, not even an end. Connections are accepted as ever."""
        return self._mode("half_open", direction=direction)

    def figures(self):
        """open, accepted, and how many are damaged (have lost something, and will be reset)."""
        return self.links.ask("figures", self.name)


class Links:
    """All links by name, and their process."""

    def __init__(self, seed=0, log=None):
        with open(log or "/dev/null", "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(pathlib.Path(__file__).resolve()), str(seed)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True, start_new_session=True,
            )  # fmt: skip
        self.lock = threading.Lock()
        self.by_name = {}

    def __getitem__(self, name):
        return self.by_name[name]

    def __iter__(self):
        return iter(self.by_name)

    def add(self, name, port, where):
        """port: to listen at. where: the target."""
        self.ask("add", name, port=port, where=where if isinstance(where, int) else str(where))
        self.by_name[name] = Link(self, name, port)
        return self.by_name[name]

    def ask(self, what, name, **parameters):
        with self.lock:
            self.process.stdin.write(json.dumps({"ask": what, "name": name, **parameters}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the process of the links has ended")
        answer = json.loads(line)
        if "problem" in answer:
            raise RuntimeError(f"link {name}: {answer['problem']}")
        return answer

    def whole(self):
        for link in self.by_name.values():
            link.whole()

    def destroy(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.process.stdout.close()


# The process.


class Connection:
    """One connection through a link: two streams and a task for each direction."""

    def __init__(self, route, client, server):
        self.route, self.client, self.server = route, client, server
        self.lost = set()  # directions in which something was lost: nothing follows
        self.is_reset = False

    def reset(self):
        self.is_reset = True
        for _, writer in (self.client, self.server):
            sock = writer.get_extra_info("socket")
            if sock is not None and sock.family == socket.AF_INET:
                try:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                except OSError:
                    pass
            writer.transport.abort()

    async def run(self):
        self.route.connections.add(self)
        try:
            # A direction that has lost something never ends by itself; then the other one's end is not passed on either.
            await asyncio.gather(self.pump(self.client[0], self.server[1], UP), self.pump(self.server[0], self.client[1], DOWN))
        except OSError:
            self.reset()
        finally:
            self.route.connections.discard(self)
            for _, writer in (self.client, self.server):
                writer.close()

    async def pump(self, reader, writer, direction):
        while True:
            try:
                piece = await reader.read(PIECE)
            except OSError:
                piece = b""
            if self.is_reset:
                return
            if not await self.fate(direction, piece):
                if not piece:
                    await self.route.mended.wait()  # the end was lost: this connection stays until the link is whole
                    raise ConnectionResetError
                continue
            if not piece:
                writer.close()
                return
            writer.write(piece)
            await writer.drain()

    async def fate(self, direction, piece):
        """Does it come through? It may take its time; ConnectionResetError where it ends the connection."""
        route = self.route
        if route.mode == "delay":
            await asyncio.sleep((route.parameters["ms"] + route.random.uniform(0, route.parameters["jitter"])) / 1000)
        # Asked after the delay: the link may be cut or half open by now.
        if route.mode == "half_open" and route.parameters["direction"] in (direction, "both"):
            self.lost.add(direction)
        elif route.mode == "lossy" and piece and route.random.random() < route.parameters["p"]:
            if route.random.random() < 0.5:
                raise ConnectionResetError
            self.lost.add(direction)
        return direction not in self.lost


class Route:
    """A link in its process."""

    def __init__(self, name, port, where, seed):
        self.name, self.port, self.where = name, port, where
        self.random = random.Random(f"{seed}/link/{name}")
        self.mode, self.parameters = "pass", {}
        self.connections, self.accepted, self.listener = set(), 0, None
        self.mended = asyncio.Event()

    async def listen(self):
        if self.listener is None:
            self.listener = await asyncio.start_server(self.serve, "127.0.0.1", self.port, backlog=1024)

    async def serve(self, reader, writer):
        self.accepted += 1
        try:
            if isinstance(self.where, int):
                server = await asyncio.open_connection("127.0.0.1", self.where)
            else:
                server = await asyncio.open_unix_connection(self.where)
        except OSError:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()  # the server is down: so are we
            return
        connection = Connection(self, (reader, writer), server)
        if self.mode == "cut":
            connection.reset()  # cut since it was accepted
            return
        await connection.run()

    async def change(self, mode, parameters):
        self.mode, self.parameters = mode, parameters
        self.mended.set()
        self.mended = asyncio.Event()
        if mode == "cut":
            if self.listener is not None:
                self.listener.close()
                self.listener = None
            damaged = list(self.connections)
        else:
            await self.listen()
            damaged = [each for each in self.connections if each.lost]
        for connection in damaged:
            connection.reset()


async def answer(routes, seed, question):
    what, name = question.pop("ask"), question.pop("name")
    if what == "add":
        routes[name] = Route(name, question["port"], question["where"], seed)
        await routes[name].listen()
        return {}
    route = routes[name]
    if what == "mode":
        await route.change(question.pop("mode"), question)
    elif what == "target":
        route.where = question["where"]
    elif what == "figures":
        lost = sum(bool(each.lost) for each in route.connections)
        return {"open": len(route.connections), "accepted": route.accepted, "damaged": lost, "mode": route.mode}
    return {}


async def serve_all(seed):
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: print(context, file=sys.stderr, flush=True))
    questions = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    routes = {}
    while line := await questions.readline():
        try:
            said = await answer(routes, seed, json.loads(line))
        except (OSError, KeyError) as problem:
            said = {"problem": repr(problem)}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    asyncio.run(serve_all(sys.argv[1]))
