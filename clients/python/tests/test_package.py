# SPDX-License-Identifier: PostgreSQL
"""The package: its version, its licence, a wheel that works without any driver, and keys by the vectors."""

import base64
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import pgonce
from pgonce import _gate, errors, http
from pgonce._fingerprint import fingerprint, hashed_of

from .conftest import ROOT

HERE = ROOT / "clients" / "python"
ERRORS = {code: row for code, row in json.loads((ROOT / "spec/errors.json").read_text())["errors"].items() if row["status"]}


def test_the_version_is_the_releases():
    assert pgonce.__version__ == re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text())[1]


def test_the_licence_is_the_releases():
    assert (HERE / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("case", json.loads((ROOT / "spec/statuses.json").read_text())["cases"], ids=json.dumps)
def test_what_an_answer_says_of_its_effect(case):
    named = {http.NONE: "released", http.UNKNOWN: "in_doubt"}
    for status in case["statuses"]:
        headers = [(name, "1") for name in case.get("headers", ())] + ([("Once-Effect", case["said"])] if "said" in case else [])
        done = "refused" if _gate.is_refused(http.Response(status, headers, b"")) else "stored"
        assert named.get(http.effect_of(status, headers), done) == case["transaction"], status
        assert named.get(http.effect_elsewhere_of(status, headers), done) == case["elsewhere"], status


@pytest.mark.parametrize("case", json.loads((ROOT / "spec/problems.json").read_text())["cases"], ids=lambda case: case.get("more", "")[-10:])
def test_a_problem_document_is_the_specs_byte_for_byte(case):
    made = http.problem(case["problem"], case.get("more", ""))
    assert made.body.decode().replace(made.request, "0123456789abcdef0123456789abcdef") == case["document"]


NOT_A_STRING = json.loads((ROOT / "spec/keys.json").read_text())["faults"]["not_a_string"]
BASES = json.loads((ROOT / "spec/problems.json").read_text())["type_bases"]


@pytest.mark.parametrize("base", BASES["good"] + BASES["bad"], ids=lambda base: repr(base[:20]))
def test_a_base_of_problem_types_that_would_break_the_document_is_refused(base):
    if base in BASES["good"]:
        assert http.check_base(base) == base
        assert json.loads(http.problem("active", base=base).body)["type"] == base + "active"
    else:
        with pytest.raises(errors.UsageError):
            http.check_base(base)


@pytest.mark.parametrize("case", json.loads((ROOT / "spec/vectors/keys.json").read_text())["keys"], ids=lambda case: case["header"][:40])
def test_a_key_of_the_vectors(case):
    if not case["header"].lstrip(" ").startswith('"'):
        with pytest.raises(http.BadKey) as strict:
            http.key_of_header(case["header"], strict=True)
        assert str(strict.value) in (case.get("refused"), NOT_A_STRING)
    if "key" in case:
        assert http.key_of_header(case["header"]) == case["key"]
        assert not case["header"].lstrip(" ").startswith('"') or http.key_of_header(case["header"], strict=True) == case["key"]
    else:
        with pytest.raises(http.BadKey) as bad:
            http.key_of_header(case["header"])
        assert str(bad.value) == case["refused"]


def test_fingerprints_that_the_client_computes_are_those_of_the_vectors():
    vectors = json.loads((ROOT / "spec/vectors/fingerprints.json").read_text())
    compared = 0

    def same(vector, request):
        assert fingerprint(bytes.fromhex(vectors["salts"][vector["tenant"]]), hashed_of(request)).hex() == vector["fingerprint"], vector

    for each in vectors["requests"] + vectors["bytes"]:
        body = each["text"].encode() if "text" in each else base64.b64decode(each["base64"])
        if "method" not in each:
            same(each, body)
            if "text" in each:
                same(each, each["text"])
            compared += 1
            continue
        request = pgonce.HttpRequest(each["method"], each["target"], each["content_type"], body, each["canonical_json"])
        if each["canonical_json"]:
            assert hashed_of(request) is None, "it is the database's"
        else:
            same(each, request)
            compared += 1
    assert compared > 20


@pytest.mark.parametrize("sqlstate", sorted(ERRORS))
def test_an_error_of_the_contract_has_a_class_that_can_be_caught_by_name(sqlstate):
    error = pgonce.errors.of_sqlstate(sqlstate)
    assert type(error).__name__ in pgonce.__all__ and getattr(pgonce, type(error).__name__) is type(error)
    assert (error.sqlstate, error.status, error.retryable) == (sqlstate, ERRORS[sqlstate]["status"], ERRORS[sqlstate]["retry"])


def test_a_wheel_installs_alone_and_types_come_with_it(tmp_path):
    """Without a driver: they are the application's."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [tmp_path / "venv/bin/python", "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", str(HERE)], check=True, env=environment, cwd=tmp_path)
    code = "import pgonce, pgonce.aio, pathlib; print(pgonce.__version__, (pathlib.Path(pgonce.__file__).parent / 'py.typed').exists())"
    done = subprocess.run([tmp_path / "venv/bin/python", "-c", code], check=True, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == [pgonce.__version__, "True"]
