# SPDX-License-Identifier: PostgreSQL
"""Puts our middleware around the user's own of each application of Starlette, and around whatever else a test gives to its client."""

import functools
import os
import sys

sys.path[:0] = [os.path.join(os.environ["PGONCE_ROOT"], each) for each in ("tests/frameworks/python", "clients/python/src")]

from injected import OPTIONS, URL, fresh_key, on_load  # noqa: E402

_PLAIN, _SEEN = "frameworks.headers", "frameworks.seen"


class Protected:
    """The key is seen by our middleware alone: tests compare the headers that an application gets. Of an application in another one the outer one's has seen
    the request. psycopg does not run on trio."""

    def __init__(self, app):
        import psycopg

        from pgonce.asgi import OnceMiddleware

        self.app = app
        self.once = OnceMiddleware(self.inner, functools.partial(psycopg.AsyncConnection.connect, URL), **OPTIONS)

    async def inner(self, scope, receive, send):
        if _PLAIN in scope:
            scope["headers"] = scope.pop(_PLAIN)
        await self.app(scope, receive, send)

    async def __call__(self, scope, receive, send):
        import sniffio

        # Some tests hand over a scope without headers, which ASGI does not have: it could not bear a key.
        if scope["type"] != "http" or _SEEN in scope or "headers" not in scope or sniffio.current_async_library() != "asyncio":
            await self.app(scope, receive, send)
            return
        scope[_SEEN] = True
        headers = scope["headers"]
        if not any(name.lower() == b"idempotency-key" for name, _ in headers):
            scope[_PLAIN], scope["headers"] = headers, [*headers, (b"idempotency-key", fresh_key().encode())]
        await self.once(scope, receive, send)


def applications(module):
    from starlette.middleware import Middleware

    build = module.Starlette.build_middleware_stack

    def build_protected(self):
        users = self.user_middleware
        self.user_middleware = [Middleware(Protected), *users]
        try:
            return build(self)
        finally:
            self.user_middleware = users

    module.Starlette.build_middleware_stack = build_protected


def clients(module):
    plain = module._TestClientTransport.__init__

    def init(self, app, *given, **named):
        from starlette.applications import Starlette

        plain(self, app if isinstance(app, Starlette) else Protected(app), *given, **named)

    module._TestClientTransport.__init__ = init


on_load(starlette__applications=applications, starlette__testclient=clients)
