# SPDX-License-Identifier: PostgreSQL
"""What run.py reads of a suite's results, and what it calls a difference. The suites themselves need the network: make test-frameworks."""

import argparse
import json
import pathlib
import subprocess
import sys
import tarfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from frameworks import run  # noqa: E402

JUNIT = """<testsuites><testsuite name="outer">
  <testsuite name="inner"><testcase name="one"/><testcase name="two"><failure>no</failure></testcase></testsuite>
  <testcase classname="a.Class" name="three"><skipped/></testcase><testcase classname="a.Class" name="four"><error/></testcase>
</testsuite></testsuites>"""
GO = """not JSON
{"Action": "run", "Package": "net/http", "Test": "TestOne"}
{"Action": "pass", "Package": "net/http", "Test": "TestOne"}
{"Action": "fail", "Package": "net/http", "Test": "TestTwo/sub"}
{"Action": "fail", "Package": "net/http"}
"""


@pytest.mark.parametrize(
    ("form", "text", "outcomes"),
    [
        ("junit", JUNIT, [("outer > inner > one", "passed"), ("outer > inner > two", "failed"), ("a.Class > three", "skipped"), ("a.Class > four", "failed")]),
        ("go", GO, [("net/http > TestOne", "passed"), ("net/http > TestTwo/sub", "failed")]),
        ("json", '[["one", "passed"], ["two", "skipped"]]', [("one", "passed"), ("two", "skipped")]),
    ],
)
def test_results_are_read(form, text, outcomes):
    assert list(run.READERS[form](text)) == outcomes


def test_a_test_differs_by_its_outcome_or_by_being_missing():
    plain = {"same": ["passed"], "worse": ["passed"], "gone": ["passed"], "one of two": ["passed", "passed"]}
    ours = {"same": ["passed"], "worse": ["failed"], "new": ["passed"], "one of two": ["failed", "passed"]}
    assert set(run.different(plain, ours)) == {"worse", "gone", "new", "one of two"}


def test_what_differs_is_listed_and_what_is_listed_differs():
    found = {"listed": (["passed"], ["failed"]), "not listed": (["passed"], ["missing"])}
    assert run.judged("express", {"listed": False, "by luck": True, "gone": False}, found) == [
        "express: not listed: passed without pgonce, missing with it",
        "express: gone: it no longer differs: take the exception out of suite.json",
    ]


class Server:
    """A server whose databases have so many stored answers."""

    name = "database"

    def __init__(self, stored):
        self.stored = stored

    def new_database(self):
        return self

    def value(self, _):
        return self.stored


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """A suite whose tests say what became of them in the file outcomes-on or outcomes-off of its source, line by line for each round."""
    monkeypatch.setattr(run, "HERE", tmp_path)
    source = tmp_path / "source"
    source.mkdir()
    with tarfile.open(tmp_path / "fetched.tar", "w") as archive:
        archive.add(source, "source")
    monkeypatch.setitem(run.SOURCES, "git", lambda _suite, _said, to: run.unpack(tmp_path / "fetched.tar", to))
    (tmp_path / "made").mkdir()
    (tmp_path / "made/suite.json").write_text(json.dumps({
        "title": "Made up", "language": "python", "source": {"git": ["nowhere", "v1"]}, "inject": {"INJECTED": "{source}"},
        "run": ["sh", "-c", "at={here}/outcomes-$PGONCE; head -1 $at; sed -i 1d $at; [ $PGONCE = off ] || [ -d $INJECTED ]"],
        "results": {"form": "json"}, "differs": [{"test": "listed", "reason": "It is made so."}],
    }))  # fmt: skip
    made = run.Suite("made")
    made.build = tmp_path / "build"
    made.source, made.results = made.build / "source", made.build / "results"

    def rounds(*outcomes):
        for which, said in zip(("off", "on"), zip(*outcomes)):
            lines = [json.dumps([["a test", each], ["listed", "passed" if which == "off" else "failed"]]) for each in said]
            (tmp_path / f"made/outcomes-{which}").write_text("\n".join(lines) + "\n")
        return made

    return rounds


@pytest.mark.parametrize(
    ("rounds", "passes"),
    [([("passed", "passed")], True), ([("passed", "failed"), ("passed", "passed")], True), ([("passed", "failed"), ("passed", "failed")], False), ([("failed", "failed")], True)],
)
def test_a_difference_counts_if_it_comes_twice(suite, capsys, rounds, passes):
    given = argparse.Namespace(verbose=False, once=False)
    assert run.run(suite(*rounds), Server(7), 1, given) is passes
    said = capsys.readouterr().out
    assert "7 answers stored; 1 differences listed" in said
    assert passes or "made: a test: passed without pgonce, failed with it" in said


def test_a_middleware_that_has_stored_nothing_is_not_there(suite):
    with pytest.raises(run.Broken, match="nothing was stored"):
        run.run(suite(("passed", "passed")), Server(0), 1, argparse.Namespace(verbose=False, once=False))


def test_what_comes_from_git_comes_from_a_clone_that_is_here(suite, tmp_path, monkeypatch):
    made = suite()
    made.build.mkdir()
    git = ["git", "-C", tmp_path / "sources/express.git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    (tmp_path / "sources/express.git").mkdir(parents=True)
    (tmp_path / "sources/express.git/file").write_text("text")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "x"], ["tag", "v5"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setenv("SOURCES", str(tmp_path / "sources"))
    run.from_git(made, ["https://nowhere.invalid/expressjs/express", "v5"], made.source)
    assert (made.source / "file").read_text() == "text"
    with pytest.raises(run.LeftOut):
        run.from_git(made, ["https://nowhere.invalid/expressjs/express", "v6"], made.build / "other")


def test_each_suite_of_this_folder_is_described_as_it_is_to_be():
    for path in run.HERE.glob("*/suite.json"):
        said = run.Suite(path.parent.name).description
        assert said["language"] in ("node", "python", "go", "java") and said["title"] and said["run"] and said["inject"]
        assert said["results"]["form"] in run.READERS
        assert set(said["source"]) <= {*run.SOURCES, "goroot"}
