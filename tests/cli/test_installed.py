# SPDX-License-Identifier: PostgreSQL
"""What `make install` puts where: the programs, and all that goes with them; the documents lead to each other, the man pages can be read, and the units
start what is there."""
import contextlib
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from harness.native import library as native_library
from harness.postgres import ROOT, clean_environment
from harness.release import VERSION

from .command import COMMANDS, PROGRAM

BUILD = PROGRAM.parents[1]
PKGLIBDIR = subprocess.run(["pg_config", "--pkglibdir"], capture_output=True, text=True, check=True).stdout.strip()
pytestmark = pytest.mark.skipif("PGONCE_SANITIZED" in os.environ, reason="what is sanitized is not installed")

DOCUMENTS = {"CHANGELOG.md", "CODE_OF_CONDUCT.md", "compose.yaml", "packaging/images/Containerfile", "packaging/images/Containerfile.nginx", "packaging/images/compose/gateway.conf", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md", "dashboards", "bench/RESULTS.md", "bench/measured.json", "model/README.md", "tests/torture/README.md", "examples/pgonce.conf", "clients/node/LICENSE", "spec/cases/README.md"}
DOCUMENTS |= {str(path.relative_to(ROOT)) for folder in ("docs", "spec/vectors") for path in (ROOT / folder).rglob("*") if path.is_file()}
DOCUMENTS |= {"packaging/helm/pgonce/README.md", "packaging/helm/pgonce/values.yaml"}
DOCUMENTS |= {str(path.relative_to(ROOT)) for path in (ROOT / "clients").glob("*/README.md")}
# What somebody has built in the folder of an example.
BUILT = {"node_modules", "target", ".venv", "__pycache__", ".gitignore", "meson.build"}
EXAMPLES = {str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.*") if path.is_file() and not BUILT & set(path.parts)}
STRAY = ("examples/spring-payments/__pycache__", "examples/spring-payments/target", "examples/express-orders/node_modules", "examples/fastapi-payments/.venv")
EXPECTED = (
    {"bin/pgonce", "include/pgonce.h", "include/pgonce_batcher.h", "LIB/libpgonce.a", "LIB/libpgonce.so", "LIB/libpgonce.so.1", f"LIB/libpgonce.so.{VERSION}", "LIB/pkgconfig/libpgonce.pc"}
    | {"lib/nginx/modules/ngx_http_once_module.so"}
    | {f"lib/systemd/system/pgonce-{job}.service" for job in ("keep", "relay@", "consume@", "console")} | {"lib/sysusers.d/pgonce.conf"}
    | {"share/bash-completion/completions/pgonce.bash", "share/fish/vendor_completions.d/pgonce.fish", "share/zsh/site-functions/_pgonce"}
    | {f"share/doc/pgonce/{name}" for name in DOCUMENTS | EXAMPLES}
    | {"share/man/man1/pgonce.1", "share/man/man5/pgonce.conf.5"} | {f"share/man/man1/pgonce-{name}.1" for name in COMMANDS}
    | {"share/pgonce/dashboards/alerts.yml", "share/pgonce/dashboards/grafana.json", "share/pgonce/pgonce.spdx.json"}
)  # fmt: skip


@pytest.fixture(scope="module")
def destination(tmp_path_factory):
    directory = tmp_path_factory.mktemp("installed")
    strays = [ROOT / folder / f"stray-{os.getpid()}.pyc" for folder in STRAY]
    made = [path.parent for path in strays if not path.parent.exists()]
    for path in strays:
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    try:
        return installed(directory)
    finally:
        for path in strays:
            path.unlink()
        for folder in made:
            with contextlib.suppress(OSError):  # somebody builds there meanwhile
                folder.rmdir()


def installed(directory):
    done = subprocess.run(["meson", "install", "--no-rebuild", "-C", BUILD, "--destdir", directory], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.fixture(scope="module")
def prefix(destination):
    (program,) = destination.rglob("bin/pgonce")
    return program.parents[1]


def test_all_of_it_is_installed_and_nothing_else(destination, prefix):
    """Nor what is built in the folders of the examples: the fixture has left something of it there."""
    assert not list(destination.rglob("stray-*"))
    library = next(prefix.rglob("libpgonce.a")).parent
    found = set()
    for path in destination.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            continue
        if prefix in path.parents:
            found.add(f"LIB/{path.relative_to(library)}" if library in path.parents and "nginx" not in path.parts and "systemd" not in path.parts
                      else str(path.relative_to(prefix)))
        else:
            assert re.search(rf"/extension/pgonce(_native)?(--{re.escape(VERSION)}\.sql|\.control)$", str(path)) or str(path) == f"{destination}{PKGLIBDIR}/pgonce_native.so", path
    assert found == EXPECTED
    assert len(list(destination.rglob("pgonce_native*"))) == (3 if native_library().exists() else 0)
    assert not [path for path in destination.rglob("*") if path.is_symlink() and not path.exists()], "links that lead nowhere"


def test_the_documents_lead_to_each_other(prefix):
    for document in (prefix / "share/doc/pgonce").rglob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)", document.read_text()):
            if "://" not in target and document.name != "CHANGELOG.md":
                assert (document.parent / target).exists(), f"{document.relative_to(prefix)} leads to {target}"


def test_the_man_pages_can_be_read_and_lead_to_each_other(prefix):
    pages = list((prefix / "share/man").rglob("*.[15]"))
    names = {page.name for page in pages}
    assert "pgonce.conf (5)" in (prefix / "share/man/man1/pgonce-relay.1").read_text()
    for page in pages:
        text = page.read_text()
        for name, section in re.findall(r"^\.BR ([\w.\\-]+) \((\d)\)", text, re.M):
            assert f"{name}.{section}".replace("\\", "") in names, f"{page.name} names {name}"
        if shutil.which("groff"):
            done = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-P-cbou", page], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), page.name
            assert "NAME" in done.stdout and len(done.stdout) > 500


def test_the_page_of_the_configuration_file_has_every_option_of_the_reference(prefix):
    page = (prefix / "share/man/man5/pgonce.conf.5").read_text().replace("\\-", "-")
    reference = (ROOT / "docs/reference/configuration.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| (.*?) \| (.*?) \| (.*) \|$", reference, re.M)
    assert len(rows) > 60 and len(re.findall(r"^\.B ", page, re.M)) == len(rows)
    for name, _, _, text in rows:
        assert f".B {name}\n" in page, name
        assert text.split(" (")[0].replace("\\|", "|").split(";")[0] in page.replace("\\&", ""), name
    for heading in re.findall(r"^### (.*)$", reference, re.M):
        assert f".SS {heading}\n" in page


def test_the_example_of_a_configuration_is_right(prefix):
    for command in ("relay", "consume"):
        done = subprocess.run([PROGRAM, command, "--check-config", "--config", prefix / "share/doc/pgonce/examples/pgonce.conf"], capture_output=True,
                              text=True, env=clean_environment(), check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("job", ["keep", "relay@", "consume@", "console"])
def test_the_units_start_and_reload_what_is_there(destination, prefix, job, tmp_path):
    path = prefix / f"lib/systemd/system/pgonce-{job}.service"
    text = path.read_text()
    words = re.search("^ExecStart=(.*)$", text, re.M)[1].split()
    name = job.rstrip("@")
    assert destination / words[0].lstrip("/") == prefix / "bin/pgonce" and words[1] == name
    assert words[-1] == f"${name.upper()}_OPTIONS" and "ExecReload=/bin/kill -HUP $MAINPID\n" in text
    assert ("%i" in words) == job.endswith("@") and not re.search("@[A-Z]+@", text)
    # Its other words are taken by the command.
    done = subprocess.run([PROGRAM, *words[1:-1], "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if shutil.which("systemd-analyze"):
        there = tmp_path / path.name.replace("@", "@orders")
        there.write_text(text.replace(words[0], str(PROGRAM.resolve())).replace("User=pgonce", "User=root").replace("DynamicUser=yes", ""))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", there], capture_output=True, text=True, check=False)
        assert there.name not in done.stderr, done.stderr


# What is left is what the work needs: the network (databases, brokers), the sockets of PostgreSQL, /run/credentials, and the user that peer authentication knows.
EXPOSED_MOST = 2.6


def test_the_units_are_hardened(prefix):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    for path in (prefix / "lib/systemd/system").glob("*.service"):
        done = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--no-pager", path], capture_output=True, text=True, check=False)
        assert float(re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)[1]) <= EXPOSED_MOST, done.stdout + done.stderr


def test_systemd_makes_their_user(prefix, tmp_path):
    if not shutil.which("systemd-sysusers") or os.geteuid() != 0:
        pytest.skip("needs systemd-sysusers, and root")
    (tmp_path / "etc").mkdir()
    done = subprocess.run(["systemd-sysusers", f"--root={tmp_path}", prefix / "lib/sysusers.d/pgonce.conf"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^pgonce:x:\d+:\d+:[^:]+:/nonexistent:/usr/sbin/nologin$", (tmp_path / "etc/passwd").read_text(), re.M)


def test_they_may_be_read_by_everybody(prefix):
    for path in (prefix / "share").rglob("*"):
        assert pathlib.Path(path).stat().st_mode & 0o004, path
