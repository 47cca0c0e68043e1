# SPDX-License-Identifier: PostgreSQL
"""Each mode of a link does what it says, seen from both ends; and what was lost is never followed by what came later.

Broken on purpose and seen to fail: a pass that leaves damaged connections alone, a half open link that passes an end on, a lossy one that loses only
the piece, a cut that leaves its listener open."""

import socket
import threading
import time

import pytest

from harness.broker import free_port
from harness.postgres import wait_until

from .links import Links

PATIENCE_S = 30


class Server:
    """Takes connections; the test reads and writes them. path None: on a port."""

    def __init__(self, path=None):
        if path is None:
            self.listener = socket.create_server(("127.0.0.1", free_port()))
            self.where = self.listener.getsockname()[1]
        else:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(str(path))
            self.listener.listen(8)
            self.where = path
        self.listener.settimeout(PATIENCE_S)

    def accept(self):
        connection = self.listener.accept()[0]
        connection.settimeout(PATIENCE_S)
        return connection

    def close(self):
        self.listener.close()


@pytest.fixture
def links():
    made = Links(seed=7)
    yield made
    made.destroy()


@pytest.fixture
def server():
    made = Server()
    yield made
    made.close()


@pytest.fixture
def link(links, server):
    return links.add("a-b", free_port(), server.where)


def connect(link):
    return socket.create_connection(link.address, timeout=PATIENCE_S)


def pair(link, server):
    """Both ends of a new connection, which has carried a byte each way."""
    client = connect(link)
    other = server.accept()
    assert passes(client, other) and passes(other, client)
    return client, other


def passes(one, other, data=b"x"):
    one.sendall(data)
    return other.recv(100) == data


def is_reset(end):
    end.settimeout(PATIENCE_S)
    try:
        return end.recv(100) == b""
    except ConnectionError:
        return True


def hears_nothing(end, seconds=0.3):
    end.settimeout(seconds)
    try:
        end.recv(100)
        return False
    except TimeoutError:
        return True


def test_a_whole_link_carries_bytes_and_ends_in_both_directions(links, tmp_path):
    unix = Server(tmp_path / "socket")
    link = links.add("a-b", free_port(), unix.where)
    client, other = pair(link, unix)
    data = bytes(range(256)) * 4096
    writer = threading.Thread(target=client.sendall, args=(data,))
    writer.start()
    got = bytearray()
    while len(got) < len(data):
        got += other.recv(65536)
    writer.join()
    assert got == data
    client.close()
    assert other.recv(1) == b""
    unix.close()


def test_a_server_that_is_away_is_seen_as_away(links, server):
    server.close()
    link = links.add("a-b", free_port(), server.where)
    try:
        assert is_reset(connect(link))
    except ConnectionResetError:
        pass  # so soon that the connection was not made yet


def test_a_cut_link_resets_what_is_open_and_refuses_what_is_new_until_it_is_whole(link, server):
    client, other = pair(link, server)
    link.cut()
    assert is_reset(client) and is_reset(other)
    with pytest.raises(ConnectionRefusedError):
        connect(link)
    link.whole()
    pair(link, server)


@pytest.mark.parametrize("direction", ["up", "down", "both"])
def test_a_half_open_link_swallows_its_direction_and_the_end_and_closes_nothing(link, server, direction):
    client, other = pair(link, server)
    link.half_open(direction)
    if direction == "up":
        assert passes(other, client)
        client.sendall(b"lost")
        assert hears_nothing(other)
        client.close()  # nor is the end heard
        assert hears_nothing(other)
    elif direction == "down":
        assert passes(client, other)
        other.sendall(b"lost")
        assert hears_nothing(client)
    else:
        client.sendall(b"lost")
        other.sendall(b"lost")
        assert hears_nothing(client) and hears_nothing(other)
    again = connect(link)  # is taken as ever
    assert server.accept() and again.fileno() > 0


def test_what_a_half_open_link_lost_is_not_followed_by_anything_when_it_is_whole(link, server):
    client, other = pair(link, server)
    idle = pair(link, server)
    link.half_open("up")
    client.sendall(b"lost")
    wait_until(lambda: link.figures()["damaged"] == 1, "the loss", PATIENCE_S)
    link.whole()
    assert is_reset(other) and is_reset(client)
    assert passes(*idle)  # it lost nothing


def test_a_lossy_link_resets_a_connection_or_loses_all_that_follows(link, server):
    fates = set()
    for _ in range(30):
        link.lossy(0)
        client, other = pair(link, server)
        link.lossy(1)
        client.sendall(b"one")
        wait_until(lambda: link.figures()["damaged"] or not link.figures()["open"], "the loss", PATIENCE_S)
        if link.figures()["open"]:
            client.sendall(b"two")
            assert hears_nothing(other)
            fates.add("lost")
            link.whole()
        else:
            fates.add("reset")
        assert is_reset(other)
        if len(fates) == 2:
            return
    pytest.fail(f"always {fates}")


def test_a_slow_link_delays_each_piece_and_loses_none(link, server):
    client, other = pair(link, server)
    link.delay(200, 50)
    begun = time.monotonic()
    assert passes(client, other, b"one") and passes(other, client, b"two")
    assert time.monotonic() - begun >= 0.4
    link.whole()
    assert passes(client, other)


def test_a_link_leads_new_connections_to_its_new_target(link, server):
    old = pair(link, server)
    elsewhere = Server()
    link.target(elsewhere.where)
    pair(link, elsewhere)
    assert passes(*old)
    elsewhere.close()


def test_the_links_end_with_their_harness(links, link, server):
    client, other = pair(link, server)
    links.process.stdin.close()
    links.process.wait(PATIENCE_S)
    assert is_reset(client) and is_reset(other)
