# SPDX-License-Identifier: PostgreSQL
"""tools/circles.py: which files call each other, of objects that were built."""
import pathlib
import subprocess

import pytest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/circles.py"


@pytest.fixture
def circles(tmp_path):
    """What the tool says of these sources of relay/."""

    def look(**sources):
        (tmp_path / "relay").mkdir()
        (tmp_path / "build/relay/x.p").mkdir(parents=True)
        for name, text in sources.items():
            (tmp_path / f"relay/{name}.c").write_text(text)
            subprocess.run(["cc", "-c", f"relay/{name}.c", "-o", f"build/relay/x.p/{name}.c.o"], cwd=tmp_path, check=True)
        return subprocess.run([TOOL, "build"], cwd=tmp_path, capture_output=True, text=True, check=False)

    return look


def test_a_line_of_calls_is_fine(circles):
    done = circles(a="void b(void); void a(void) { b(); }", b="void c(void); void b(void) { c(); }", c="void c(void) {}")
    assert (done.returncode, done.stdout) == (0, ""), done


def test_a_circle_of_calls_is_found_and_its_names_are_told(circles):
    done = circles(a="void b(void); void a(void) { b(); }", b="void c(void); void b(void) { c(); }", c="extern int a; int c(void) { return a; }")
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["these files call each other: relay/a.c relay/b.c relay/c.c", "  relay/a.c -> relay/b.c: b",
                                        "  relay/b.c -> relay/c.c: c", "  relay/c.c -> relay/a.c: a"]


def test_a_call_against_the_order_of_the_folders_of_the_contract_is_found(circles, tmp_path):
    for name, code in (("policy/_scope", "'once._claim()'    -- once._bucket()"), ("key/_bucket", "once._scope()"), ("lease/_claim", "once._bucket()")):
        (tmp_path / "contract" / name).parent.mkdir(parents=True)
        (tmp_path / f"contract/{name}.sql").write_text(f"CREATE FUNCTION once.{name.split('/')[1]}() AS $$\n    {code}\n$$;\n")
    line = {"a": "void b(void); void a(void) { b(); }", "b": "void b(void) {}"}
    assert circles(**line).returncode == 0
    (tmp_path / "contract/key/_bucket.sql").write_text("CREATE FUNCTION once._bucket() AS $$ once._claim(once._scope()) $$;\n")
    done = subprocess.run([TOOL, "build"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (1, ["these calls of contract/ run the wrong way:", "  key/_bucket -> lease/_claim"])


@pytest.mark.parametrize("text, is_one", [
    ("from ._b import f\n", True),
    ("def late():\n    from . import _b\n", True),
    ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ._b import f\n", False),
    ("import _b\n", False),
])  # fmt: skip
def test_modules_of_the_python_client_that_import_each_other_are_found(circles, tmp_path, text, is_one):
    package = tmp_path / "clients/python/src/pgonce"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from ._a import late\n")
    (package / "_a.py").write_text(text)
    (package / "_b.py").write_text("from ._a import late\n")
    done = circles(a="void b(void); void a(void) { b(); }", b="void b(void) {}")
    found = [line for line in done.stdout.splitlines() if "clients/python" in line]
    assert found == (["these modules of clients/python import each other: _a _b"] if is_one else [])
    assert done.returncode == (1 if is_one else 0)


def test_nothing_built_is_no_good_news(circles):
    assert circles().returncode == 1
