# SPDX-License-Identifier: PostgreSQL
"""Asking a long-running job for its metrics, as Prometheus does."""

import http.client
import re

from . import openmetrics
from .postgres import PATIENCE_S

TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
ADDRESS = re.compile(r"event=metrics address=(\S+):([0-9]+)")


def address_in(log):
    """(host, port) that a job's log names; None: not yet."""
    found = ADDRESS.search(log)
    return found and (found[1].strip("[]"), int(found[2]))


def ask(address, path="/metrics", method="GET", body=None):
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def scrape(address):
    """{family's name: Family}, of a text that is as it should be."""
    status, headers, text = ask(address)
    assert status == 200, text
    assert headers["Content-Type"] == TYPE
    return openmetrics.read(text)


def figure(families, name, suffix="", **labels):
    """One sample; None where there is none. Counters without their _total."""
    family = families.get(name)
    if family is None:
        return None
    suffix = "_total" if family.type == "counter" else suffix
    return family.samples.get((suffix, tuple(sorted(labels.items()))))
