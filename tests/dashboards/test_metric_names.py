# SPDX-License-Identifier: PostgreSQL
"""The names of metrics: each that a program can print has a row in the documentation, and each that a page, an alert or the dashboard names is printed."""

import re

from harness.postgres import ROOT

# Where a program or the contract declares its metrics: with their kind, help and name, or as a family of the gateway's.
DECLARED = (
    (r'METRIC_(COUNTER|GAUGE),\s*"(pgonce_\w+)"', ("relay", "consume", "keeper", "runtime", "cli"), (".c", ".h")),
    (r"\('(pgonce_\w+)', '(counter|gauge)'", ("contract",), (".sql",)),
    (r'openmetrics_family\(\s*out, "(counter|gauge|histogram)",\s*"(pgonce_\w+)"', ("lib", "gateway"), (".c", ".h")),
    (r'\b(counter|gauge)(?:_pair)?\(&?out, "(pgonce_\w+)"', ("lib", "gateway"), (".c", ".h")),
)
# Other names with the prefix, in sources or documents: a header, an extension, sessions of the database.
NO_METRICS = {"pgonce_batcher", "pgonce_doctor", "pgonce_handler", "pgonce_native", "pgonce_rehome", "pgonce_upgrade"}
NAME = re.compile(r"\bpgonce_[a-z_]*[a-z]\b(?!_)")


def sources(folders, suffixes):
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.suffix in suffixes]


def printed():
    """{name as it is scraped: where it is declared}."""
    found = {}
    for pattern, folders, suffixes in DECLARED:
        for path in sources(folders, suffixes):
            for one, other in re.findall(pattern, path.read_text()):
                name, kind = (one, other) if one.startswith("pgonce_") else (other, one)
                found[name + ("_total" if kind.lower() == "counter" else "")] = path.relative_to(ROOT)
    return found


def rows():
    """The metrics that a table of the documentation has a row for."""
    text = (ROOT / "docs/reference/metrics.md").read_text()
    return set(re.findall(r"^\| `(pgonce_\w+)(?:\{[^`]*\})?` \|", text, re.M))


PRINTED = printed()


def test_each_metric_that_is_printed_has_a_row_and_each_row_is_of_a_metric_that_is_printed():
    assert len(PRINTED) > 80
    assert sorted(set(PRINTED) - rows()) == []
    assert sorted(rows() - set(PRINTED)) == []


def test_no_source_prints_a_metric_that_it_does_not_declare():
    """The patterns above would overlook a new way to declare one."""
    declared = {name.removesuffix("_total") for name in PRINTED} | NO_METRICS
    for path in sources(("relay", "consume", "keeper", "runtime", "cli", "lib", "gateway"), (".c", ".h")):
        assert sorted(set(re.findall(r'"(pgonce_[a-z_]+)"', path.read_text())) - declared) == [], path


def test_each_metric_that_a_page_an_alert_or_the_dashboard_names_is_printed():
    known = set(PRINTED) | {f"{name}_{part}" for name in PRINTED for part in ("bucket", "count", "sum")} | NO_METRICS
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "dashboards").iterdir(), *(ROOT / "packaging").iterdir(), ROOT / "README.md"]
    named = {path: set(NAME.findall(path.read_text())) for path in pages if path.is_file()}
    assert sum(map(len, named.values())) > 150
    assert {str(path): sorted(names - known) for path, names in named.items() if names - known} == {}
