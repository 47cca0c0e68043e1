# SPDX-License-Identifier: PostgreSQL
"""A replay has the first answer's headers, as the client got them: also those that nginx has rewritten on the way, such as a Location."""

import pytest

from harness.broker import free_port
from harness.client import Http1
from harness.upstream import Answer

from .door import BODY, new_key, same_answer

PORT = free_port()
CONFIG = f"""
    listen 127.0.0.1:{PORT};
    server_name first.test second.test;
    once_tenant $http_x_tenant;
    once required;
    once_scope pay;
    location /default/ {{ proxy_pass http://app/service/; }}
    location /explicit {{ proxy_redirect http://inside.test:3000/ /outside/; proxy_pass http://app; }}
    location /elsewhere {{ proxy_redirect http://inside.test:3000/ https://outside.test/; proxy_pass http://app; }}
    location /pattern {{ proxy_redirect ~^http://([a-z]+)\\.test:3000/(.*)$ /$1/$2; proxy_pass http://app; }}
    location /host {{ proxy_redirect http://inside.test:3000/ $scheme://$http_host/; proxy_pass http://app; }}
    location /off {{ proxy_redirect off; proxy_pass http://app; }}
    location /as-relative {{ absolute_redirect off; proxy_redirect http://inside.test:3000/ /outside/; proxy_pass http://app; }}
    location /no-port {{ port_in_redirect off; proxy_redirect http://inside.test:3000/ /outside/; proxy_pass http://app; }}
    location /by-name {{ server_name_in_redirect on; proxy_redirect http://inside.test:3000/ /outside/; proxy_pass http://app; }}
    location /added {{
        add_header X-Added $status always;
        expires 1h;
        proxy_cookie_domain inside.test outside.test;
        proxy_cookie_path / /outside/;
        proxy_redirect http://inside.test:3000/ /outside/;
        proxy_pass http://app;
    }}
    location /once-more {{ expires -1; add_header Cache-Control private; proxy_pass http://app; }}
    location /accelerated {{ proxy_pass http://app; }}
    location /moved {{ internal; once off; return 302 /there; }}
"""
TARGETS = ["/default/x", "/explicit", "/elsewhere", "/pattern", "/host", "/off", "/as-relative", "/no-port", "/by-name", "/added", "/once-more"]
LOCATIONS = ["http://inside.test:3000/a?b=c", "/a?b=c", "a?b=c", "//inside.test/a", "http://app/service/a", "http://third.test/"]
# What belongs to one connection, one moment, or says that this is a replay. Cookies and dates that are counted from now are never replayed.
ITS_OWN = {"date", "connection", "content-length", "transfer-encoding", "idempotency-replayed", "set-cookie"}


def kept(answer):
    return sorted(header for header in answer.headers if header[0] not in ITS_OWN)


def without_expires(headers):
    return [header for header in headers if header[0] != "expires"]


def ask(door, key, target, protocol, host="first.test"):
    """HTTP/1.1 over TCP, where a redirect has a port."""
    if protocol != "HTTP/1.1":
        return door.attempt(key, target, protocol=protocol)
    with Http1(("127.0.0.1", PORT)) as connection:
        headers = [("Host", host), *door.headers_of(key)]
        return connection.send("POST", target, headers, BODY, close=True).receive()


@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2", "TLS"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_replay_has_the_headers_of_the_first_answer_as_nginx_has_rewritten_them(door, target, protocol):
    for location in LOCATIONS:
        for status in (201, 303):
            key = new_key()
            said = (("Content-Type", "text/plain"), ("Location", location), ("Refresh", f"5; url={location}"), ("Cache-Control", "max-age=5"))
            said += (("Set-Cookie", "a=b; Domain=inside.test; Path=/"), ("Content-Location", location), ("X-Own", location))
            door.upstream.script(key, Answer(status, headers=said, body=b"paid"))
            first = ask(door, key, target, protocol)
            assert first.header("Location") and not first.replayed
            again = ask(door, key, target, protocol)
            assert again.replayed and same_answer(first, again)
            assert without_expires(kept(again)) == without_expires(kept(first))
            assert again.all("Set-Cookie") == [] and len(first.all("Set-Cookie")) == 1
            assert (first.header("Expires") is None) == (again.header("Expires") is None)
            assert door.count(key) == 1


@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
def test_a_redirect_of_nginx_itself_that_the_service_asked_for_is_replayed_as_it_was(door, protocol):
    key = new_key()
    door.upstream.script(key, Answer(200, headers=(("X-Accel-Redirect", "/moved"),), body=b""))
    first = ask(door, key, "/accelerated", protocol)
    assert first.status == 302 and first.header("Location").startswith("http://")
    again = ask(door, key, "/accelerated", protocol)
    assert again.replayed and same_answer(first, again) and kept(again) == kept(first)


def test_the_redirect_that_nginx_makes_absolute_is_as_its_directives_say(door):
    """What a protected location answers is no other than what any location does."""
    wanted = {
        "/explicit": f"http://first.test:{PORT}/outside/a",
        "/as-relative": "/outside/a",
        "/no-port": "http://first.test/outside/a",
        "/by-name": f"http://first.test:{PORT}/outside/a",
        "/off": "http://inside.test:3000/a",
    }
    for target, location in wanted.items():
        key = new_key()
        door.upstream.script(key, Answer(201, headers=(("Location", "http://inside.test:3000/a"),), body=b"paid"))
        assert ask(door, key, target, "HTTP/1.1").header("Location") == location
        assert ask(door, key, target, "HTTP/1.1").header("Location") == location
    key = new_key()
    door.upstream.script(key, Answer(201, headers=(("Location", "http://inside.test:3000/a"),), body=b"paid"))
    assert ask(door, key, "/explicit", "HTTP/1.1", "second.test").header("Location") == f"http://second.test:{PORT}/outside/a"


def test_without_a_host_a_redirect_names_the_address_that_the_client_came_to(door):
    """HTTP/1.0, where a request needs no Host."""
    key = new_key()
    door.upstream.script(key, Answer(201, headers=(("Location", "http://inside.test:3000/a"),), body=b"paid"))
    for replayed in (False, True):
        with Http1(("127.0.0.1", PORT)) as connection:
            request = Http1.bytes_of("POST", "/explicit", door.headers_of(key), BODY, version="1.0")
            connection.socket.sendall(request.replace(b"Host: test\r\n", b""))
            answer = connection.receive()
        assert (answer.replayed, answer.status) == (replayed, 201)
        assert answer.header("Location") == f"http://127.0.0.1:{PORT}/outside/a"
    assert door.count(key) == 1
