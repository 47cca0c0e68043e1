# SPDX-License-Identifier: PostgreSQL
"""A run that SIGINT or SIGTERM ends early prints its results so far, and its JSON is written in one piece."""

import contextlib
import json
import os
import pathlib
import signal
import sys
import types


class Interrupted(Exception):
    """SIGINT or SIGTERM has come: the run ends with what it has."""


def interrupt(number, _frame):
    raise Interrupted(number)


@contextlib.contextmanager
def until_interrupted(how_far):
    """Runs the block to its end, or until a signal comes. Gives what then has `status`: 0, or 128 and the signal. how_far(): "1 of 3 rounds"."""
    ended = types.SimpleNamespace(status=0)
    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    except Interrupted as interrupted:
        ended.status = 128 + interrupted.args[0]
        print(f"bench: interrupted after {how_far()}; the results so far:", file=sys.stderr, flush=True)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def write(path, told, whole=True):
    """Results into the file of --json; those of a run that is not over into FILE.part."""
    if not path:
        return
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(f"{path}.part").write_text(json.dumps(told, indent=1) + "\n")
    if whole:
        os.replace(f"{path}.part", path)
