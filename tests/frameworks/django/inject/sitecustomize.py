# SPDX-License-Identifier: PostgreSQL
"""Puts our middleware last, nearest to the views, in each handler of Django's that is made."""

import os
import sys

sys.path[:0] = [os.path.join(os.environ["PGONCE_ROOT"], each) for each in ("tests/frameworks/python", "clients/python/src")]

from injected import KEY, OPTIONS, fresh_key, on_load  # noqa: E402

_MISSING = object()


def once(get_response):
    """The key is seen by our middleware alone: tests compare what a request has."""
    from pgonce.django import OnceMiddleware

    def inner(request):
        request.META.pop(KEY, None)
        return get_response(request)

    middleware = OnceMiddleware(inner)

    def protected(request):
        request.META.setdefault(KEY, fresh_key())
        return middleware(request)

    return protected


def base(module):
    from django.conf import settings

    load = module.BaseHandler.load_middleware

    def load_protected(self, is_async=False):
        """Asynchronous views are left out: their handlers do not take blocking middleware without a thread of its own."""
        cached = {name: settings.__dict__.get(name, _MISSING) for name in ("MIDDLEWARE", "PGONCE")}
        settings.__dict__["MIDDLEWARE"] = [*settings.MIDDLEWARE, *([] if is_async else ["sitecustomize.once"])]
        settings.__dict__["PGONCE"] = OPTIONS
        try:
            load(self, is_async)
        finally:
            for name, value in cached.items():
                if value is _MISSING:
                    settings.__dict__.pop(name, None)
                else:
                    settings.__dict__[name] = value

    module.BaseHandler.load_middleware = load_protected


def testcases(module):
    """A SimpleTestCase has no database, and our middleware needs one."""
    module.SimpleTestCase._add_databases_failures = classmethod(lambda cls: None)
    module.SimpleTestCase._remove_databases_failures = classmethod(lambda cls: None)


on_load(django__core__handlers__base=base, django__test__testcases=testcases)
