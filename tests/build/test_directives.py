# SPDX-License-Identifier: PostgreSQL
"""docs/reference/directives.md is made of the gateway's source and of spec/directives.json, which may not say different things."""

import shutil
import subprocess
import sys

import pytest

from harness.postgres import ROOT

FILES = ("tools/directives.py", "spec/directives.json", "spec/headers.json", "gateway/ngx_http_once_module.c", "gateway/ngx_http_once_variables.c")
MODULE = "gateway/ngx_http_once_module.c"


@pytest.fixture
def copy(tmp_path):
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def change(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def made(folder):
    return subprocess.run([sys.executable, "-c", "import directives; print(directives.document())"], cwd=folder / "tools", capture_output=True, text=True, check=False)


def test_values_and_defaults_come_from_the_source(copy):
    change(copy / MODULE, 'ngx_string("closed"), 0}', 'ngx_string("shut"), 0}')
    change(copy / MODULE, "conf->lease_ms, prev->lease_ms, 30000", "conf->lease_ms, prev->lease_ms, 45000")
    page = made(copy).stdout
    assert "| [once_fail](#once_fail) | shut | http, server, location |" in page and "Takes: shut, open. Default: shut." in page
    assert "Takes: time, at least 1s. Default: 45s." in page


@pytest.mark.parametrize("file, old, new, said", [
    (MODULE, 'MAIN_DIRECTIVE("once_prepare"', 'MAIN_DIRECTIVE("once_prepared"', "['once_prepare', 'once_prepared']"),
    ("gateway/ngx_http_once_variables.c", 'ngx_string("once_cache")', 'ngx_string("once_copy")', "['once_cache', 'once_copy']"),
    ("spec/directives.json", '"once_prepare": {"text"', '"once_prepare": {"default": "on", "text"', "of once_prepare what the source says"),
    ("spec/directives.json", '"once_batch_bytes": {"takes": "size", ', '"once_batch_bytes": {', "too little of once_batch_bytes"),
])  # fmt: skip
def test_what_differs_or_is_missing_is_found(copy, file, old, new, said):
    change(copy / file, old, new)
    done = made(copy)
    assert done.returncode == 1 and said in done.stderr, done.stderr
