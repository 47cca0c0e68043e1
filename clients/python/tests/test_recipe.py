# SPDX-License-Identifier: PostgreSQL
"""The endpoint of README.md whose effect is elsewhere, as it stands there: what each answer of the provider becomes, for the first caller and for a retry."""

import contextlib
import http.server
import json
import re
import threading

import httpx
import pytest
import uvicorn

from .conftest import ROOT
from frameworks import free_port

PATIENCE_S = 30
CHARGED = b'{"charge": 1, "10": true,  "b": [1.0, "\\u00e9"]}'


class Provider:
    """Answers as it is told, and notes what it is asked."""

    def __init__(self):
        self.asked, self.answer = [], (201, {}, CHARGED)
        self.begun, self.held = threading.Semaphore(0), threading.Event()
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                provider.asked.append((self.headers["Idempotency-Key"], body))
                provider.begun.release()
                assert provider.held.wait(PATIENCE_S)
                if provider.answer is None:  # it breaks off
                    return
                status, headers, text = provider.answer
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", "Content-Length": str(len(text)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        self.held.set()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answers(self, status, headers=None, text=b"{}"):
        self.asked.clear()
        self.answer = status, headers or {}, text


@pytest.fixture(scope="module")
def recipe(server):
    db = server.database()
    provider = Provider()
    readme = (ROOT / "clients/python/README.md").read_text()
    code = re.search(r"^## An endpoint whose effect is elsewhere\n.*?^```python\n(.*?)^```", readme, re.S | re.M)[1]
    with pytest.MonkeyPatch.context() as patch:
        settings = {"PGHOST": db.said["host"], "PGPORT": db.said["port"], "PGUSER": db.said["user"], "PGDATABASE": db.name}
        for name, value in {**settings, "PROVIDER_URL": f"http://127.0.0.1:{provider.server.server_port}"}.items():
            patch.setenv(name, str(value))
        names = {}
        exec(compile(code, "charges.py", "exec"), names)
        service = uvicorn.Server(uvicorn.Config(names["app"], host="127.0.0.1", port=free_port(), log_level="critical", lifespan="on"))
        thread = threading.Thread(target=service.run, daemon=True)
        thread.start()
        while not service.started:
            assert thread.is_alive()
            threading.Event().wait(0.005)
        with httpx.Client(base_url=f"http://127.0.0.1:{service.config.port}", timeout=PATIENCE_S) as client:
            yield Recipe(db, provider, client)
        service.should_exit = True
        thread.join()
        provider.server.shutdown()
        provider.server.server_close()


class Recipe:
    def __init__(self, db, provider, client):
        self.db, self.provider, self.client = db, provider, client

    def ask(self, key, amount=1, customer="ann"):
        headers = {"X-Customer": customer} | ({} if key is None else {"Idempotency-Key": key})
        return self.client.post("/charges", headers=headers, json={"amount": amount})


def problem_of(answer):
    assert answer.headers["content-type"] == "application/problem+json", answer.content
    return answer.status_code, answer.json()["type"].split(":")[-1], answer.headers.get("retry-after")


def bytes_of(answer):
    return answer.status_code, answer.content, answer.headers["content-type"]


def test_a_charge_is_made_once_and_each_retry_gets_the_same_bytes(recipe):
    recipe.provider.answers(201, text=CHARGED)
    first = recipe.ask("paid")
    assert first.status_code == 201 and first.json() == json.loads(CHARGED)
    recipe.provider.answers(500)
    assert bytes_of(recipe.ask('"paid"')) == bytes_of(first)
    assert problem_of(recipe.ask("paid", 2)) == (422, "mismatch", None)
    assert recipe.provider.asked == []
    recipe.provider.answers(201, text=CHARGED)
    assert recipe.ask("paid", 2, "bob").status_code == 201, "his key is another"
    assert recipe.provider.asked == [("bob/paid", {"amount": 2})]


def test_a_refusal_is_final_with_its_bytes(recipe):
    recipe.provider.answers(402, {"Content-Type": "application/x-own"}, b"declined\\x\x00\xff")
    first = recipe.ask("declined")
    recipe.provider.answers(201)
    again = recipe.ask("declined")
    assert bytes_of(first) == bytes_of(again) == (402, b"declined\\x\x00\xff", "application/x-own")
    assert [each.headers.get("idempotency-replayed") for each in (first, again)] == [None, "true"] and recipe.provider.asked == []


@pytest.mark.parametrize("status", [503, 429])
def test_retry_after_says_that_nothing_was_done(recipe, status):
    recipe.provider.answers(status, {"Retry-After": "1"})
    assert problem_of(recipe.ask(f"busy-{status}")) == (502, "unreached", "5")
    recipe.provider.answers(201)
    assert recipe.ask(f"busy-{status}").status_code == 201


@pytest.mark.parametrize("status", [503, 500, 504, 408, None])
def test_what_does_not_say_what_was_done_leaves_a_doubt(recipe, status):
    key = f"doubt-{status}"
    recipe.provider.answers(status)
    if status is None:
        recipe.provider.answer = None
    assert problem_of(recipe.ask(key)) == (409, "in-doubt", None)
    recipe.provider.answers(201)
    assert problem_of(recipe.ask(key)) == (409, "in-doubt", None) and recipe.provider.asked == []
    ((code, message),) = recipe.db.rows("SELECT error_code, error_message FROM once.peek('charges', %s, 'ann')", key)
    assert (code, message) == ("RuntimeError", f"the provider answered {status}") if status else code == "RemoteProtocolError"
    recipe.db.rows("SELECT once.resolve('charges', %s, 'failed_retryable', 'asked', tenant => 'ann')", key)
    assert recipe.ask(key).status_code == 201


def test_a_duplicate_of_a_running_one_is_told_to_come_again(recipe):
    recipe.provider.answers(201)
    while recipe.provider.begun.acquire(blocking=False):
        pass
    recipe.provider.held.clear()
    box = []
    first = threading.Thread(target=lambda: box.append(recipe.ask("running")))
    first.start()
    try:
        assert recipe.provider.begun.acquire(timeout=PATIENCE_S)
        assert problem_of(recipe.ask("running")) == (409, "active", "1")
    finally:
        recipe.provider.held.set()
        first.join()
    assert box[0].status_code == 201


@pytest.mark.parametrize("key, told", [(None, (400, "key-missing")), ('"open', (400, "key-malformed")), ("01600000-0000-7000-8000-000000000000", (409, "expired"))])
def test_a_bad_key_is_refused_and_the_provider_is_not_asked(recipe, key, told):
    recipe.provider.answers(201)
    assert problem_of(recipe.ask(key)) == (*told, None) and recipe.provider.asked == []


def test_a_provider_that_cannot_be_reached_was_not_asked(recipe):
    provider, port = recipe.provider, recipe.provider.server.server_port
    provider.server.shutdown()
    provider.server.server_close()
    assert problem_of(recipe.ask("unreached")) == (502, "unreached", "5")
    provider.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), provider.server.RequestHandlerClass)
    threading.Thread(target=provider.server.serve_forever, daemon=True).start()
    provider.answers(201)
    assert recipe.ask("unreached").status_code == 201
