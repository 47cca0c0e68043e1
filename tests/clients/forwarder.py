#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Stands between a client and PostgreSQL on a free port of 127.0.0.1, and loses what it is told to lose, as a network does (tests/harness/proxy.py).

    forwarder.py SOCKET_DIRECTORY PORT      says {"host", "port"}; ends when its standard input is closed

Commands, a line each on standard input, each answered by one line. TEXT is a piece of a message of the client, such as COMMIT or once.finish: of a Query's or Parse's
text, or of a statement's name. Each rule fires once.
    lose_request TEXT            the connection is lost before the server sees it: {"rule": 1}
    lose_connection_after TEXT   the server gets it, and nobody waits for what becomes of it
    lose_answer TEXT             the server gets it and answers in full; the client never hears
    fired RULE                   has it fired? {"fired": 1}, or 0
    wait RULE                    when that rule has fired and the connection is cut: {"fired": true}, or false after 20 s
    forget                       no rule is left: {"done": "forget"}"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))

from harness.broker import free_port  # noqa: E402
from harness.proxy import Proxy  # noqa: E402

RULES = ("lose_request", "lose_connection_after", "lose_answer")


class Target:
    """What a Proxy wants to know of a server."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    directory, port = sys.argv[1:]
    with Proxy(Target(directory), tcp=free_port()) as proxy:
        proxy.target = f"{directory}/.s.PGSQL.{port}"
        rules = []
        print(json.dumps({"host": proxy.host, "port": proxy.port}), flush=True)
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            if word in RULES:
                rules.append(getattr(proxy, word)(rest))
                answer = {"rule": len(rules)}
            elif word == "wait":
                answer = {"fired": rules[int(rest) - 1].fired.wait(20)}
            elif word == "fired":
                answer = {"fired": int(rules[int(rest) - 1].fired.is_set())}
            elif word == "forget":
                proxy.rules.clear()
                answer = {"done": word}
            else:
                answer = {"error": f"no such command: {word}"}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
