# SPDX-License-Identifier: PostgreSQL
"""Servers in Java that the tests start (Kafka, ElasticMQ): their jars come by Maven (NAME/pom.xml here) into a cache, once."""

import functools
import os
import pathlib
import shutil
import subprocess
import uuid

from .postgres import clean_environment

FETCH_S = 900  # the first time


@functools.lru_cache(maxsize=None)
def jars(name):
    """(the directory with its jars, None), or (None, why there is none). name: "kafka"."""
    if shutil.which("java") is None:
        return None, "there is no java: apt-get install default-jre-headless"
    pom = pathlib.Path(__file__).parent / name / "pom.xml"
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "pgonce"
    directory = cache / f"{name}-{uuid.uuid5(uuid.NAMESPACE_OID, pom.read_text())}"
    if directory.exists():
        return directory, None
    if shutil.which("mvn") is None:
        return None, f"there is no Maven to fetch {name} with: apt-get install maven"
    unfinished = cache / f"unfinished-{name}-{os.getpid()}"
    cache.mkdir(parents=True, exist_ok=True)
    words = ["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={unfinished}"]
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, timeout=FETCH_S, cwd="/tmp", env=clean_environment()
    )
    if done.returncode != 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        return None, f"Maven could not fetch {name}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    try:
        unfinished.rename(directory)
    except OSError:  # another run was faster
        shutil.rmtree(unfinished, ignore_errors=True)
    return directory, None


def require(shown, problem):
    """Skips the test where there is a problem with the server `shown`, and fails it where CI=true says that nothing may be left out."""
    if problem is None:
        return
    import pytest  # here, since the benchmarks use the rest

    message = f"NOT TESTED, {shown} is not to be had: {problem}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    print(f"\n{message}", flush=True)
    pytest.skip(message)
