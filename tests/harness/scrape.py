# SPDX-License-Identifier: PostgreSQL
"""Asking a long-running job for its metrics, as Prometheus does."""

import http.client
import re

from . import openmetrics
from .postgres import PATIENCE_S
from .prometheus import promtool

TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ACCEPT = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
ADDRESS = re.compile(r"event=metrics address=(\S+):([0-9]+)")


def address_in(log):
    """(host, port) that a job's log names; None: not yet."""
    found = ADDRESS.search(log)
    return found and (found[1].strip("[]"), int(found[2]))


def ask(address, path="/metrics", method="GET", body=None, accept=ACCEPT):
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, {"Accept": accept} if accept else {})
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


def assert_promtool_takes(address):
    """What a person pipes into it: curl URL | promtool check metrics."""
    status, headers, text = ask(address, accept="*/*")
    assert (status, headers["Content-Type"]) == (200, PLAIN_TYPE)
    status, said = promtool("check", "metrics", given=text)
    assert (status, said) == (0, ""), said


def figure(families, name, suffix="", **labels):
    """One sample; None where there is none. Counters without their _total."""
    family = families.get(name)
    if family is None:
        return None
    suffix = "_total" if family.type == "counter" else suffix
    return family.samples.get((suffix, tuple(sorted(labels.items()))))
