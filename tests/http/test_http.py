# SPDX-License-Identifier: PostgreSQL
"""What the HTTP door decides without a server: its C tests, plain and under the sanitizers; the two texts of the status page; and that
the page of problems names directives which exist."""
import json
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
SANITIZED = pathlib.Path(os.environ.get("PGONCE_BUILD_SANITIZED", ROOT / "build-sanitized"))
C_TESTS = ["key", "problem", "headers", "decide", "metrics", "openmetrics", "hash"]


def run(build, name, *arguments):
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    return subprocess.run([str(build / "tests/http" / f"test_{name}"), *arguments], env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)


@pytest.mark.parametrize("build", [BUILD, SANITIZED], ids=["plain", "sanitized"])
@pytest.mark.parametrize("name", C_TESTS)
def test_the_c_tests_pass(build, name):
    done = run(build, name)
    assert done.returncode == 0, done.stdout[-6000:]


def sample(form):
    done = run(BUILD, "metrics", form)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_status_page_is_json():
    page = json.loads(sample("json"))
    assert page["workers"] == 1 and page["running"] == 9 and page["waiting"] == 5 and page["held"] == 6
    assert page["connected"] == {"claims": 1, "reports": 0} and page["more_connections"] == 2
    assert page["operations"] == {"claims": 100, "reports": 200}
    assert page["reports"]["in-doubt"] == 1 and page["reports_refused"] == 2 and page["reports_unstored"] == 3
    assert page["scopes"]["payments"]["run"] == 2 and page["scopes"]["payments"]["mismatch"] == 1
    assert page["scopes"]['a"b\\c\nd\xe9']["pass"] == 1
    latency = page["database_seconds"]
    assert [bucket["count"] for bucket in latency["buckets"]] == list(range(1, 16)) and latency["count"] == 16
    assert latency["sum"] == 2.500001 and latency["buckets"][0]["le"] == 0.0001


LABELS = r'\{[a-z_]+="(?:[^"\\\n]|\\[\\"n])*"(?:,[a-z_]+="(?:[^"\\\n]|\\[\\"n])*")*\}'
SAMPLE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)({LABELS})? ([0-9.+eInf-]+)")
SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}


def test_the_status_page_is_openmetrics():
    """The rules of OpenMetrics 1.0: metadata first, families unbroken and unique, suffixes by type, no sample twice, # EOF last."""
    text = sample("openmetrics")
    assert text.endswith("# EOF\n")
    lines = text.split("\n")[:-2]
    families, samples, family, sampled = {}, {}, None, set()
    for line in lines:
        metadata = re.fullmatch(r"# (TYPE|HELP|UNIT) (\S+) (.+)", line)
        if metadata:
            kind, name, value = metadata.groups()
            if kind == "TYPE":
                assert name not in families and not name.endswith("_total")
                families[name] = value
                family = name
            assert name == family and family not in sampled
            assert kind != "UNIT" or name.endswith("_" + value)
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        name, labels, value = match.groups()
        assert any(name == family + suffix for suffix in SUFFIXES[families[family]]), line
        assert (name, labels) not in samples
        samples[name, labels] = float(value)
        sampled.add(family)
    assert sampled == set(families)
    assert families["pgonce_decisions"] == "counter" and families["pgonce_database_seconds"] == "histogram"
    buckets = [(float(re.search(r'le="([^"]+)"', labels)[1]), value) for (name, labels), value in samples.items() if name.endswith("_bucket")]
    assert buckets == sorted(buckets) and buckets[-1][0] == float("inf")
    assert buckets[-1][1] == samples["pgonce_database_seconds_count", None]


def test_the_page_of_problems_can_be_published_alone():
    """It is for callers: no directive, no command and no link to another page."""
    page = (ROOT / "docs/reference/problems.md").read_text()
    assert re.findall(r"`(?:\$?once_|pgonce )|\]\((?!#)", page) == []


def test_the_page_of_problems_has_a_section_and_a_row_for_each_and_says_of_which_a_program_waits_and_sends_again():
    page, problems = (ROOT / "docs/reference/problems.md").read_text(), json.loads((ROOT / "spec/problems.json").read_text())["problems"]
    sections = re.findall(r"^## (.*)$\n\n(.*)$", page, re.M)
    assert sorted(slug for slug, _ in sections) == sorted(problems)
    rows = re.findall(r"^\| (\[.*\)) \| .* \| (.*) \|$", page, re.M)
    named = [(slug, advice) for slugs, advice in rows for slug in re.findall(r"\]\(#([a-z-]+)\)", slugs)]
    assert sorted(slug for slug, _ in named) == sorted(problems)
    assert {slug for slug, advice in named if "Retry-After" in advice} == {slug for slug, row in problems.items() if row["retry_after"] is not None}
