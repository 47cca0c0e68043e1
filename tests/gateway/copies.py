# SPDX-License-Identifier: PostgreSQL
"""A door with copies of answers (once_replay_cache), and how a test tells what they hold from what the database holds: by changing the latter behind the
gateway's back, which nobody may do elsewhere."""

import contextlib
import shutil

import pytest

from harness.nginx import BUILT_IN
from harness.postgres import private_directory, wait_until

from .door import Door, new_key
from .mutant import mutant
from .test_status import page

H1, H2 = "HTTP/1.1", "HTTP/2"
TRACE = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
SIZE = "zone=replays:4m"
HTTP = f"once_replay_cache {SIZE};"
CONFIG = """
    once_tenant $http_x_tenant;
    once required;
    once_scope pay;
    add_header X-Cache "$once_cache $once_verdict $once_replay $once_step $once_state" always;
    location / { proxy_pass http://app; }
    location /other { once_scope other; proxy_pass http://app; }
    location /wait { once_wait 20s; proxy_pass http://app; }
    location /brief { once_lease 1s; proxy_pass http://app; }
    location /short { once_retention 1s; proxy_pass http://app; }
    location /store { once_on_5xx store; proxy_pass http://app; }
    location /closed { deny all; proxy_pass http://app; }
    location /password { auth_basic here; auth_basic_user_file @dir@/users; proxy_pass http://app; }
    location /open { once off; add_header X-Cache "[$once_cache]" always; proxy_pass http://app; }
    location = /status.json { once off; once_status json; }
    location = /metrics { once off; once_status; }
"""
FROM_CACHE = "hit replay_success 1 replay succeeded"
FROM_DATABASE = "miss replay_success 1 replay succeeded"


@contextlib.contextmanager
def opened(database, upstream, http=HTTP, **options):
    with Door(database, upstream, CONFIG, http, **{"workers": 1, **options}) as door:
        (door.nginx.directory / "users").write_text("known:{PLAIN}secret\n")
        wait_connected(door)
        yield door


def wait_connected(door):
    """Before, nobody is certain which server it is."""
    wait_until(lambda: page(door)["connected"] == {"claims": door.nginx.workers, "reports": door.nginx.workers}, "all workers to be connected")


def counted(door):
    return page(door)["cache"]


def since(before, after):
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


def change(door, key, scope="pay", tenant="acme"):
    """So that the database and a copy say different things."""
    text = "UPDATE once.intent SET response_body = 'changed' WHERE key = %s AND scope = %s AND tenant = %s RETURNING 1"
    assert door.database.value(text, key, scope, tenant) == 1


def done(door, target="/pay", scope="pay", answer=None, **options):
    """A key whose answer was given, and what the database holds since is another one; and the answer."""
    key = new_key()
    if answer is not None:
        door.upstream.script(key, answer)
    first = door.attempt(key, target, **options)
    assert not first.replayed
    change(door, key, scope)
    return key, first


def is_cached(door, key, first, target="/pay", **options):
    """The attempt is answered with the first one's answer, from the cache?"""
    again = door.attempt(key, target, **options)
    assert again.replayed, again
    assert again.body in (first.body, b"changed"), again
    assert again.header("X-Cache") == (FROM_CACHE if again.body == first.body else FROM_DATABASE)
    return again.body == first.body


def described(answer):
    """All of it but what tells the two ways apart, and when it was."""
    return answer.status, [header for header in answer.headers if header[0] not in ("x-cache", "date")], answer.body


@contextlib.contextmanager
def forgotten(door):
    """All copies are gone, since the connections were lost; each of them, since a loss that is noticed later empties the zone again."""
    emptied, connects = counted(door)["emptied"], page(door)["connects"]
    lost = cut(door)
    yield
    wait_until(lambda: page(door)["connects"] >= connects + lost, "the connections again")
    wait_connected(door)
    wait_until(lambda: counted(door)["emptied"] > emptied, "the copies to be thrown away")


def cut(door):
    said = door.database.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgonce' AND datname = %s", door.database.name)
    assert len(said) >= 2
    return len(said)


@contextlib.contextmanager
def broken(database, upstream, *pieces, http=HTTP, **options):
    directory = private_directory("pgonce-die-")
    try:
        pieces = [(old, new.replace("@dir@", str(directory))) for old, new in pieces]
        with mutant("ngx_http_once_cache.c", *pieces) as module:
            with opened(database, upstream, http, module=module, **options) as door:
                door.directory = directory
                yield door
    finally:
        shutil.rmtree(directory, ignore_errors=True)


pieces_only = pytest.mark.skipif(bool(BUILT_IN), reason="the module is built in")
