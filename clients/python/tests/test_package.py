# SPDX-License-Identifier: PostgreSQL
"""The package: its version, its licence, a wheel that works without any driver, keys by the vectors, and the quickstart."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import pgonce
from pgonce import http

from .conftest import ROOT

HERE = ROOT / "clients" / "python"


def test_the_version_is_the_releases():
    assert pgonce.__version__ == re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text())[1]


def test_the_licence_is_the_releases():
    assert (HERE / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("case", json.loads((ROOT / "tests/vectors/keys.json").read_text())["keys"], ids=lambda case: case["header"][:40])
def test_a_key_of_the_vectors(case):
    if "key" in case:
        assert http.key_of_header(case["header"]) == case["key"]
    else:
        with pytest.raises(http.BadKey) as bad:
            http.key_of_header(case["header"])
        assert str(bad.value) == case["refused"]


@pytest.mark.parametrize("name", sorted(json.loads((ROOT / "clients/conformance/problems.json").read_text())["problems"]))
def test_a_problem_is_the_gateways(name):
    row = json.loads((ROOT / "clients/conformance/problems.json").read_text())["problems"][name]
    if name not in http.PROBLEMS:
        assert name in ("busy", "unreached", "unanswered"), "the gateway's alone"
        return
    assert http.PROBLEMS[name] == (row["status"], row["title"], row["detail"], row["retry_after"])


def test_a_wheel_installs_alone_and_types_come_with_it(tmp_path):
    """Without a driver: they are the application's."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [tmp_path / "venv/bin/python", "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", str(HERE)], check=True, env=environment, cwd=tmp_path)
    code = "import pgonce, pgonce.aio, pathlib; print(pgonce.__version__, (pathlib.Path(pgonce.__file__).parent / 'py.typed').exists())"
    done = subprocess.run([tmp_path / "venv/bin/python", "-c", code], check=True, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == [pgonce.__version__, "True"]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.S | re.M)


def test_the_quickstart_line_by_line(server, tmp_path):
    """Each block of Python is written into the file that the page names, and each line of the shell's is run."""
    page = (ROOT / "docs/quickstart-python.md").read_text()
    database = server.database()
    environment = {**os.environ, "DATABASE_URL": database.dsn, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    for name, text in re.findall(r"^`(\w+\.py)`:\n\n```python\n(.*?)^```", page, re.S | re.M):
        (tmp_path / name).write_text(text)
    shown = blocks(page, "console")
    assert shown
    running = []
    try:
        for text in shown:
            for line, wanted in re.findall(r"^\$ (.*(?:\\\n.*)*)\n((?:(?!\$ ).*\n)*)", text, re.M):
                if line.startswith(("pip install", "pgonce dev", "export DATABASE_URL")):
                    continue  # done by test.sh, and by this test's own server
                if line.endswith(" &"):
                    running.append(subprocess.Popen(line[:-2].split(), cwd=tmp_path, env=environment))
                    wait_for_port()
                    continue
                done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
                assert done.returncode == 0, done.stderr
                for each in filter(None, wanted.splitlines()):
                    assert each.lower() in done.stdout.replace("\r", "").lower(), f"{line}\n{done.stdout}"
    finally:
        for process in running:
            process.terminate()
            process.wait(20)
    assert database.value("SELECT count(*)::int FROM payments") == 1


def wait_for_port():
    import socket
    import time

    end = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", 8000), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)


