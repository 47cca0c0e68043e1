# SPDX-License-Identifier: PostgreSQL
"""The runner of the transparency suite sees each kind of difference, and nothing where there is none."""

import copy
import json
import socket
import sys
import threading
import types

import pytest

from . import http1, run

HEAD = b"HTTP/1.1 201 Created\r\nContent-Type: text/plain\r\nLink: </a>\r\nLink: </b>\r\nDate: today\r\nStrange: yes\r\n"
PLAIN = HEAD + b"Content-Length: 4\r\n\r\nbody"


def read(data, method="POST"):
    """The answer that a server gives by these bytes before it closes."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        with server.accept()[0] as peer:
            peer.recv(1)
            peer.sendall(data)

    thread = threading.Thread(target=serve)
    thread.start()
    with server, http1.Connection(server.getsockname()[1]) as connection:
        connection.send(b"x")
        answer = connection.answer(method)
    thread.join()
    answer.kept = True
    return answer


def of(differences):
    return sorted(what for what, _ in differences)


def test_the_same_answer_does_not_differ_and_its_date_may():
    assert of(run.same({}, read(PLAIN), read(PLAIN.replace(b"today", b"tomorrow")))) == []


@pytest.mark.parametrize(
    ("was", "is_", "what"),
    [
        (b"201 Created", b"200 OK", ["status"]),
        (b"201 Created", b"201 Made", ["status"]),
        (b"Link: </b>\r\n", b"", ["header link"]),
        (b"Link: </b>\r\n", b"Link: </b>\r\nLink: </b>\r\n", ["header link"]),
        (b"Link: </a>\r\nLink: </b>", b"Link: </b>\r\nLink: </a>", ["header link"]),
        (b"Link: </a>\r\nLink: </b>", b"Link: </a>, </b>", ["header link"]),
        (b"Strange: yes\r\n", b"", ["header strange"]),
        (b"Strange", b"STRANGE", ["header strange"]),
        (b"Date: today\r\nStrange: yes", b"Strange: yes\r\nDate: today", ["order"]),
        (b"\r\n\r\nbody", b"\r\n\r\nBODY", ["body"]),
        (b"Content-Length: 4\r\n\r\nbody", b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n", ["framing"]),
        (b"Content-Length: 4\r\n\r\nbody", b"\r\nbody", ["framing"]),
        (b"Content-Length: 4", b"Content-Length: 5", ["end"]),
        (b"HTTP/1.1 201", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 201", ["interim"]),
        (PLAIN, b"", ["end"]),
    ],
)
def test_a_difference_is_seen(was, is_, what):
    assert PLAIN.count(was) == 1
    assert of(run.same({}, read(PLAIN), read(PLAIN.replace(was, is_)))) == what


def test_trailers_and_the_connection_are_compared():
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n"
    with_them, without = read(chunked + b"X-Checksum: 42\r\n\r\n"), read(chunked + b"\r\n")
    assert of(run.same({}, with_them, without)) == ["trailers"]
    closed = copy.copy(without)
    closed.kept = False
    assert of(run.same({}, without, closed)) == ["kept"]


def test_what_a_case_says_to_vary_varies_and_nothing_else():
    case = {"varies": [{"header": "link", "pattern": "[ab]"}, {"body": "o.y"}]}
    assert of(run.same(case, read(PLAIN), read(PLAIN.replace(b"</a>", b"</b>").replace(b"\r\n\r\nbody", b"\r\n\r\nboxy")))) == []
    assert of(run.same(case, read(PLAIN), read(PLAIN.replace(b"</a>", b"</c>").replace(b"\r\n\r\nbody", b"\r\n\r\nbodi")))) == ["body", "header link"]


REPLAY = PLAIN.replace(b"Strange: yes", b"Idempotency-Replayed: true")


def test_a_replay_may_lose_what_is_not_stored():
    assert of(run.replayed({}, read(PLAIN), read(REPLAY))) == []


@pytest.mark.parametrize(
    ("was", "is_", "what"),
    [
        (b"201 Created", b"200 OK", "status"),
        (b"Idempotency-Replayed: true\r\n", b"", "header idempotency-replayed"),
        (b"Link: </b>\r\n", b"", "header link"),
        (b"Link: </a>\r\n", b"Link: </a>\r\nLink: </a>\r\n", "header link"),
        (b"Idempotency-Replayed", b"Odd: new\r\nIdempotency-Replayed", "header odd"),
        (b"\r\n\r\nbody", b"\r\n\r\nBODY", "body"),
        (REPLAY, b"", "end"),
    ],
)
def test_a_replay_that_is_not_the_answer_is_seen(was, is_, what):
    assert of(run.replayed({}, read(PLAIN), read(REPLAY.replace(was, is_)))) == [what]


def test_a_broken_answer_is_broken_both_times():
    cut = PLAIN.replace(b"Length: 4", b"Length: 5")
    assert of(run.same({}, read(cut), read(b""))) == []
    assert of(run.as_ours({"broken": True}, read(cut), None)) == []
    assert of(run.as_ours({"broken": True}, read(PLAIN), None)) == ["end"]


def test_an_exception_that_no_longer_differs_is_a_failure():
    application = types.SimpleNamespace(used=set(), differs=[{"cases": ["one"], "phase": "first", "what": "framing", "reason": "so"}])
    assert run.judged(application, {"name": "one"}, [("first", "framing", "differs")]) == []
    assert run.judged(application, {"name": "two"}, [("first", "framing", "differs")]) == ["first: framing: differs"]
    assert len(run.judged(application, {"name": "one"}, [])) == 1


@pytest.mark.parametrize(
    ("says", "lacks"),
    [
        ("print('go version go1.24 linux/amd64')", None),
        ("print('go version go1.24.13 linux/amd64')", None),
        ("print('go version go1.100.1 linux/amd64')", None),
        ("print('go version go1.19.8 linux/amd64')", "it needs go 1.24 or later, and 1.19.8 is here"),
        ("raise SystemExit(1)", "it needs go 1.24 or later, which is missing"),
    ],
)
def test_an_application_is_left_out_where_its_toolchain_is_too_old(monkeypatch, capsys, says, lacks):
    monkeypatch.setattr(run, "TOOLCHAINS", {"go": [sys.executable, "-c", says]})
    application = run.Application("net-http")
    assert application.requires == {"go": "1.24"}
    assert application.lacks() == lacks
    if lacks:
        assert run.run(application, None, 0, None, None)
        assert capsys.readouterr().out == f"net-http: left out: {lacks}\n"


def test_a_toolchain_that_there_is_not_is_missing(monkeypatch):
    monkeypatch.setattr(run, "TOOLCHAINS", {"go": ["/nowhere/go", "version"]})
    assert run.Application("net-http").lacks() == "it needs go 1.24 or later, which is missing"


def test_each_application_says_which_cases_it_cannot_have_and_why():
    for name in run.applications():
        application = run.Application(name)
        assert len(application.cases) - len([case for case in application.cases if application.cannot_say(case)]) >= 60, name
        assert all(reason.endswith(".") for reason in [*application.cannot.values(), *application.refuses.values()]), name
        assert all(each["reason"].endswith(".") and each["phase"] in (run.FIRST, run.REPLAY, run.OTHER) for each in application.differs), name


def test_every_case_has_a_handler_that_is_described_and_every_handler_a_case():
    cases, handlers = run.load()
    used = {run.handler_of(case) for case in cases}
    assert set(handlers) <= used
    assert json.loads((run.HERE / "cases.json").read_text())["cases"] == cases


class Fake:
    """A process of which somebody holds what `held` says."""

    process = types.SimpleNamespace(poll=lambda: None)
    held = None

    def settled(self):
        return self.held

    def begin(self):
        return self

    stop = start = wait = begin


def recovery(monkeypatch, took, statuses=(200,), held=None):
    """What is found where a new request takes so long, without pgonce and with it, again and again."""
    off, on = Fake(), Fake()
    on.held = held
    took = iter(took)

    def exhaust(process, *_):
        return [types.SimpleNamespace(end="whole", status=status, line="", body=b"") for status in statuses if process is on], next(took)

    monkeypatch.setattr(run, "exhaust", exhaust)
    case = {"name": "one", "request": {"path": "/gate"}, "exhausted": "gate", "expect": {"status": 200}}
    return [what for _, what, _ in run.Case(case, off, on, False).run()]


def test_a_pool_that_recovers_late_is_seen_and_a_busy_machine_is_no_reason(monkeypatch):
    assert recovery(monkeypatch, (0.1, 0.1)) == []
    assert recovery(monkeypatch, (2.0, 9.0)) == []  # both were late
    assert recovery(monkeypatch, (0.1, 9.0, 0.1, 0.1)) == []  # one of them, once
    assert recovery(monkeypatch, (0.1, 9.0) * run.RECOVERY_TRIES) == ["recovery"]


def test_a_handler_that_waited_in_vain_and_a_connection_that_is_held_are_seen(monkeypatch):
    assert recovery(monkeypatch, (0.1, 0.1), statuses=(200, 503)) == ["status"]
    assert recovery(monkeypatch, (0.1, 0.1), held="a connection") == ["held"]


def test_only_a_case_about_the_limit_has_a_short_one():
    off, on, limited = Fake(), Fake(), Fake()
    assert run.Case({}, off, on, False, limited).on is on
    assert run.Case({"limited": True}, off, on, False, limited).on is limited
