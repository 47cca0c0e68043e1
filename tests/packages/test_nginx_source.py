# SPDX-License-Identifier: PostgreSQL
"""The module in an nginx that was built from nginx.org's source: `make test-nginx-source` runs the gateway's tests on one. Here is what is refused before."""

import json
import os
import pathlib
import re
import shlex
import subprocess

import pytest

from harness.mutation import including
from harness.postgres import ROOT

BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
SCRIPT = ROOT / "gateway/source.sh"


def compiled(tmp_path, without):
    """Compiles one file of the module as in the build, but with an nginx that was configured without this."""
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    found = [each for each in commands if each["file"].endswith("gateway/ngx_http_once_step.c")]
    if not found:
        pytest.skip("the module is not built here")
    words = shlex.split(found[0]["command"])
    words = words[: words.index("-o")]
    config = (BUILD / "gateway/ngx_auto_config.h").read_text()
    assert "define NGX_COMPAT  1" in config and (not without or f"define {without}  1" in config)
    (tmp_path / "ngx_auto_config.h").write_text(re.sub(rf"#ifndef {without}\n.*?#endif\n", "", config, flags=re.S) if without else config)
    done = subprocess.run(
        [*including(tmp_path, words), "-fsyntax-only", ROOT / "gateway/ngx_http_once_step.c"], cwd=found[0]["directory"], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("option", ["NGX_HTTP_SSL", "NGX_HTTP_V2"])
def test_a_module_that_would_misread_requests_of_the_nginx_that_loads_it_is_not_compiled(tmp_path, option):
    """--with-compat lets it be loaded into an nginx that has these, since the signature does not tell."""
    assert compiled(tmp_path, "") == (0, "")
    status, said = compiled(tmp_path, option)
    assert status != 0 and "configure nginx with --with-http_ssl_module and --with-http_v2_module, too" in said


@pytest.mark.parametrize("source, said", {"": "NGINX_SOURCE=DIR", "empty": "is no source of nginx: unpack a release of nginx.org there, or clone its repository"}.items())
def test_a_folder_that_is_no_source_of_nginx_is_refused_in_one_line(tmp_path, source, said):
    (tmp_path / "empty").mkdir()
    done = subprocess.run([SCRIPT, tmp_path / source if source else "", tmp_path / "out", "dynamic", "--"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
