# SPDX-License-Identifier: PostgreSQL
"""What a page needs besides PostgreSQL (NEEDS of its given/ file): servers, on the ports that the page prints, and programs."""

import contextlib
import os
import re
import shutil

import pytest

from harness import elasticmq, kafka, maven, nats, nginx, rabbitmq
from harness.postgres import PORT
from harness.proxy import Proxy

# Server: its module, class, the ports that it takes in the order in which it asks for them, and what it is made with.
BROKERS = {
    "nats": (nats, "Nats", (4222,), {}),
    "rabbitmq": (rabbitmq, "RabbitMQ", (5672,), {}),
    "kafka": (kafka, "Kafka", (9092,), {"auto_create": True}),
    "elasticmq": (elasticmq, "ElasticMq", (9324,), {}),
}
# What shows that a page uses a server.
SIGNS = {"nats": r"\b4222\b|^nats ", "rabbitmq": r"\b5672\b|^rabbitmqctl ", "kafka": r"\b9092\b", "elasticmq": r"\b9324\b", "tcp": r"\b5432\b", "gateway": r"^pgonce gateway|^nginx "}


def left_out(why):
    if os.environ.get("CI") == "true":
        pytest.fail(why, pytrace=False)
    pytest.skip(f"NOT TESTED, {why}")


@contextlib.contextmanager
def broker(run, name):
    module, kind, printed, options = BROKERS[name]
    if name in ("kafka", "elasticmq"):
        maven.require(name, kafka.jars()[1] if name == "kafka" else maven.jars("elasticmq")[1])
    if name in ("nats", "rabbitmq") and shutil.which(f"{name}-server", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        left_out(f"{name}-server is not installed")
    real, wanted = module.free_port, [run.ports[port] for port in printed]
    module.free_port = lambda: wanted.pop(0) if wanted else real()
    try:
        made = getattr(module, kind)(**options)
    finally:
        module.free_port = real
    run.environment["NATS_URL"] = f"nats://127.0.0.1:{run.ports[4222]}"
    with made:
        if name == "rabbitmq":
            run.environment.update({key: value for key, value in made.environment().items() if key.startswith(("RABBITMQ_", "ERL_"))})
            run.environment["PATH"] = f"{rabbitmq.SCRIPTS}:{run.environment['PATH']}"
            run.environment["HOME"] = made.environment()["HOME"]  # with Erlang's cookie
        yield


@contextlib.contextmanager
def servers(run):
    """run.page.given.NEEDS: names of BROKERS, "tcp" (PostgreSQL at 127.0.0.1:5432), or of programs."""
    with contextlib.ExitStack() as stack:
        needs = set(run.page.given.NEEDS)
        typed = "\n".join(block.text for block in run.page.blocks if not block.shown)
        needs |= {"gateway"} if any(block.kind == "nginx" and not block.shown for block in run.page.blocks) else set()
        needs |= {name for name, sign in SIGNS.items() if re.search(sign, typed, re.M)}
        for name in sorted(needs):
            if name in BROKERS:
                stack.enter_context(broker(run, name))
            elif name == "tcp":
                proxy = stack.enter_context(Proxy(run.server, tcp=run.ports[5432]))
                proxy.target = f"{run.server.directory}/.s.PGSQL.{PORT}"
            elif name == "gateway":
                if not nginx.MODULE.exists() and not nginx.BUILT_IN or not os.access(nginx.PROGRAM, os.X_OK):
                    left_out("nginx or its module is not there")
            elif shutil.which(name, path=run.environment["PATH"]) is None:
                left_out(f"{name} is not installed")
        yield
