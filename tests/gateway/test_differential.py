# SPDX-License-Identifier: PostgreSQL
"""Protection changes nothing but what it is for: with each directive of nginx, a protected location gives the first attempt the answer of one that is not
protected, sends the service the same request, and gives every later attempt the same answer again. What cannot hold is refused by nginx -t."""

import base64
import dataclasses
import gzip
import hashlib
import re

import pytest

from harness.client import Http1
from harness.directives import HTTP, LOCATION, SERVER, UPSTREAM, directives_of
from harness.nginx import PROGRAM, Nginx, Refused
from harness.upstream import FastCgi, Scgi, Uwsgi

from .directives import NEITHER, NEITHER_KIN, REFUSED, REFUSED_KIN, ROWS
from .door import HTTP as BASE
from .door import Door, new_key

KNOWN = {name for name, kind in directives_of(PROGRAM).items() if kind & (HTTP | SERVER | LOCATION | UPSTREAM)}
KIN = {"fastcgi": FastCgi, "uwsgi": Uwsgi, "scgi": Scgi}
PARAMETERS = """
    {kind}_param REQUEST_METHOD $request_method;
    {kind}_param REQUEST_URI $request_uri;
    {kind}_param CONTENT_TYPE $content_type;
    {kind}_param CONTENT_LENGTH $content_length;
"""
PROTECTION = "once required;"
AROUND = """
    once_scope pay;
    once_tenant $http_x_tenant;
    once_methods POST PUT PATCH DELETE;
    map $uri $upstream_of_map { default app; }
    limit_req_zone $binary_remote_addr zone=requests:1m rate=1000r/s;
    limit_conn_zone $binary_remote_addr zone=connections:1m;
    charset_map windows-1252 utf-8 { E9 C3A9; }
    proxy_cache_path @dir@/proxy_cache keys_zone=c:1m;
    fastcgi_cache_path @dir@/fastcgi_cache keys_zone=c_fastcgi:1m;
    uwsgi_cache_path @dir@/uwsgi_cache keys_zone=c_uwsgi:1m;
    scgi_cache_path @dir@/scgi_cache keys_zone=c_scgi:1m;
"""
BESIDE = """
    location = /included { return 200 "included"; }
    location = /mirrored { return 204; }
    location = /fetched { internal; proxy_pass_request_body off; proxy_set_header Content-Length ""; proxy_pass http://app/fetched?plain; }
    location = /own { return 200 "own"; }
    location = /allowed { return 204; }
    location = /denied { return 403; }
    location = /asked { internal; proxy_pass_request_body off; proxy_set_header Content-Length ""; proxy_pass http://app; }
"""


# ---- The table.


def spelled(text, kind):
    """A row's settings in the words of one of the kin; None where it has no such words."""
    text = re.sub(r"\bproxy_cache c;", f"proxy_cache c_{kind};", text)
    words = {word: word.replace("proxy_", f"{kind}_", 1) for word in re.findall(r"\bproxy_\w+", text)}
    if not set(words.values()) <= KNOWN:
        return None
    for word, other in words.items():
        text = re.sub(rf"\b{word}\b", other, text)
    return re.sub(rf"@dir@/{kind}\b(?!_)", f"@dir@/{kind}", text.replace("@dir@/proxy;", f"@dir@/{kind};"))


def all_rows():
    """(kind, row): each row that this nginx knows the directive of, and proxy_pass's in the words of its kin."""
    found = []
    for row in ROWS:
        if row.name in KNOWN:
            found.append((row.name.split("_")[0] if row.name.split("_")[0] in KIN else "proxy", row, row.text))
        if row.name.startswith("proxy_") and row.handler is None:
            found += [(kind, row, text) for kind in KIN for text in [spelled(row.text, kind)] if text]
    return found


ALL = all_rows()


def pass_of(kind):
    return "proxy_pass http://app;" if kind == "proxy" else f"{kind}_pass unix:@{kind}@; include @dir@/{kind}.conf;"


def location(n, pair):
    kind, row, text = ALL[n]
    settings = (text + " " + (pass_of(kind) if row.handler is None else row.handler)).replace("{n}", str(n)).replace("{pair}", pair)
    for each in KIN:
        settings = settings.replace(f"@{each}_pass@", pass_of(each))
    protection = PROTECTION if pair == "once" else "once off;"
    if row.where == "server":
        settings = pass_of(kind)
    elif pair == "bare":
        settings = settings.replace("once_handoff off;", "")
    beside = row.beside.format(n=n, pair=pair, protection=protection) if row.beside else ""
    return f"location /{pair}/{n}/ {{ {protection} {settings} }} {beside}\n"


def configuration():
    """(what stands in the server, what stands in http)"""
    inner, servers = BESIDE, ""
    for n, (_, row, text) in enumerate(ALL):
        pair = location(n, "once") + location(n, "bare")
        if row.where == "server":
            servers += f"server {{ listen unix:@dir@/s{n}; {text} {pair} }}\n"
        else:
            inner += pair
    return inner, AROUND + servers


@pytest.fixture(scope="module")
def services(upstream):
    running = {kind: made() for kind, made in KIN.items()}
    yield {"proxy": upstream, **running}
    for each in running.values():
        each.close()


@pytest.fixture(scope="module")
def door(database, upstream, services):
    server, http = configuration()
    for kind in KIN:
        server = server.replace(f"@{kind}@", str(services[kind].path))
        http = http.replace(f"@{kind}@", str(services[kind].path))
    door = Door(database, upstream, server, http, base=BASE.replace('proxy_set_header Connection "";', ""))
    for kind in KIN:
        (door.nginx.directory / f"{kind}.conf").write_text(PARAMETERS.format(kind=kind))
    digest = base64.b64encode(hashlib.sha1(b"ann").digest()).decode()
    (door.nginx.directory / "users").write_text(f"ann:{{SHA}}{digest}\n")
    with door:
        yield door


# ---- What is compared.


def same_names(value, mark=b"/bare/", by=b"/once/"):
    return value.replace(mark, by) if isinstance(value, bytes) else value.replace(mark.decode(), by.decode())


def seen_of(answer, row, without=()):
    """All that the client sees, but for the date and the place's name. Of a body in chunks, or up to the connection's end, the length is left out."""
    unframed = {"content-length", "transfer-encoding"}
    headers = sorted(
        (name, "masked" if name in row.masked else same_names(value))
        for name, value in answer.headers
        if name not in {"date", "idempotency-replayed", *without, *row.apart} | unframed
    )
    packed = ("content-encoding", "gzip") in answer.headers
    return answer.status, headers, same_names(gzip.decompress(answer.body) if packed else answer.body), answer.whole


def sent(requests):
    """All that the service sees, but for the hand-off."""
    return [
        (
            request.method,
            same_names(request.target),
            request.version,
            sorted((name.lower(), same_names(value)) for name, value in request.headers if not name.lower().startswith("once-")),
            same_names(request.body),
        )
        for request in requests
    ]


def ask(door, n, pair, key, method=None):
    _, row, _ = ALL[n]
    path = door.nginx.directory / f"s{n}" if row.where == "server" else door.nginx.h1
    headers = door.headers_of(key, list(row.headers))
    with Http1(path) as connection:
        body = row.body if method is None else None
        method = method or row.method
        return connection.send(method, f"/{pair}/{n}/{row.target}", headers, body, close=row.close).receive(method)


def ask_again(door, n, key):
    """A claim that came to nothing (try_files found none) is given back when its request has gone."""
    again = ask(door, n, "once", key)
    while again.problem == "active":
        again = ask(door, n, "once", key)
    return again


def cases():
    for n, (kind, _, text) in enumerate(ALL):
        yield pytest.param(n, id=f"{n} {kind}: {text[:60]}")


@pytest.mark.parametrize("n", cases())
def test_a_directive_makes_no_difference_between_protected_and_not(door, services, n):
    kind, row, _ = ALL[n]
    service, key = services[kind], new_key()
    service.script(key, row.answer)
    bare = ask(door, n, "bare", key)
    count = service.count(key)
    first = ask(door, n, "once", key)
    assert seen_of(first, row) == seen_of(bare, row)
    assert sent(service.seen(key)[count:]) == sent(service.seen(key)[:count])
    count = service.count(key)
    again = ask_again(door, n, key)
    assert seen_of(again, row, row.lost) == seen_of(first, row, row.lost)
    assert again.replayed == row.stored and not first.replayed
    assert service.count(key) - count == row.asks


@pytest.mark.parametrize("n", [pytest.param(n, id=f"{n} {kind}: {text[:60]}") for n, (kind, row, text) in enumerate(ALL) if row.where == "location" and not row.counts])
def test_a_directive_makes_no_difference_to_a_get_that_nobody_protects(door, services, n):
    """Also with a key, and where ranges are made of an answer."""
    kind, row, _ = ALL[n]
    key = new_key()
    services[kind].script(key, row.answer)
    bare, other = (ask(door, n, pair, key, "GET") for pair in ("bare", "once"))
    assert seen_of(other, dataclasses.replace(row, apart=())) == seen_of(bare, dataclasses.replace(row, apart=()))
    assert not other.replayed


# ---- What cannot hold.


@pytest.mark.parametrize("settings, reason", REFUSED, ids=[settings for settings, _ in REFUSED])
def test_what_would_make_a_difference_is_refused(settings, reason):
    nginx = Nginx(http='once_database "host=/nowhere"; once_tenant none; proxy_cache_path @dir@/c keys_zone=c:1m; upstream app { server unix:/nowhere; }')
    try:
        nginx.write(server=f"set $memcached_key x; location / {{ once off; {settings} }}")
        nginx.check()
        nginx.write(server=f"set $memcached_key x; location / {{ once on; {settings} }}")
        with pytest.raises(Refused) as refused:
            nginx.check()
        assert reason in str(refused.value)
    finally:
        nginx.destroy()


# ---- The table is whole.


def test_each_directive_of_this_nginx_has_a_row_or_touches_neither_request_nor_answer():
    rows = {text.split()[0].rstrip(";") for _, _, text in ALL} | {settings.split()[0] for settings, _ in REFUSED}
    neither = {name for names in NEITHER.values() for name in names.split()}
    ours = {name for name in KNOWN if name.startswith("once")}
    left = {name for name in KNOWN - rows - neither - ours if not name.startswith(REFUSED_KIN + NEITHER_KIN)}
    assert not left
    assert not rows & neither


def test_the_program_was_read_rightly():
    assert {"proxy_pass", "location", "gzip", "keepalive", "ssl_certificate", "auth_request"} <= KNOWN and len(KNOWN) > 400
    assert not {"worker_processes", "daemon", "nginx", "http"} & KNOWN
