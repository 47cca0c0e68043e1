# SPDX-License-Identifier: PostgreSQL
"""Puts protect() on each view of Flask as it is registered."""

import functools
import os
import sys
import weakref

sys.path[:0] = [os.path.join(os.environ["PGONCE_ROOT"], each) for each in ("tests/frameworks/python", "clients/python/src")]

from injected import KEY, OPTIONS, URL, fresh_key, on_load  # noqa: E402

_PROTECTED = weakref.WeakKeyDictionary()


@functools.lru_cache(maxsize=1)
def decorator():
    import atexit

    import psycopg_pool

    from pgonce.flask import protect

    pool = psycopg_pool.ConnectionPool(URL, min_size=0, max_size=4, open=True)
    atexit.register(pool.close)
    return protect(pool, **OPTIONS)


def protected(view):
    """Of one view it is one and the same."""
    if not callable(view) or getattr(view, "_pgonce_policy", None) is not None:
        return view
    if view not in _PROTECTED:
        _PROTECTED[view] = decorator()(view)
    return _PROTECTED[view]


class Views(dict):
    def __setitem__(self, endpoint, view):
        super().__setitem__(endpoint, protected(view))


def app(module):
    Flask = module.Flask
    plain_init, plain_add, plain_context = Flask.__init__, Flask.add_url_rule, Flask.request_context

    @functools.wraps(plain_init)
    def init(self, *given, **named):
        plain_init(self, *given, **named)
        self.view_functions = Views(self.view_functions)

    @functools.wraps(plain_add)
    def add_url_rule(self, rule, endpoint=None, view_func=None, *given, **named):
        return plain_add(self, rule, endpoint, view_func if view_func is None else protected(view_func), *given, **named)

    def request_context(self, environ):
        environ.setdefault(KEY, fresh_key())
        return plain_context(self, environ)

    Flask.__init__, Flask.add_url_rule, Flask.request_context = init, add_url_rule, request_context


on_load(flask__app=app)
