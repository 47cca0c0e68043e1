# SPDX-License-Identifier: PostgreSQL
"""The chart's files, without helm: what it shares with the rest has one home, and its package is the same each time."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

from harness.postgres import ROOT

from .chart import BUILD, CHART, packed, release


def test_the_package_has_the_dashboards_themselves_and_the_release(tmp_path):
    package = packed(tmp_path)
    assert package.name == f"pgonce-chart-{release()}.tgz"
    with tarfile.open(package) as archive:
        files = {each.name: archive.extractfile(each).read() for each in archive.getmembers()}
        assert all(each.isreg() and each.mode == 0o644 and each.uid == each.gid == 0 for each in archive.getmembers())
    assert files["pgonce/files/alerts.yml"] == (ROOT / "dashboards/alerts.yml").read_bytes()
    assert files["pgonce/files/grafana.json"] == (ROOT / "dashboards/grafana.json").read_bytes()
    chart = files["pgonce/Chart.yaml"].decode()
    assert re.findall(r'^(?:version|appVersion): "?([\d.]+)"?$', chart, re.M) == [release()] * 2
    assert {"pgonce/README.md", "pgonce/values.yaml", "pgonce/values.schema.json", "pgonce/templates/NOTES.txt"} <= files.keys()


def test_the_source_names_the_release_too():
    """So that the chart can be installed from the tree, without the rules and the dashboard."""
    assert re.findall(r'^(?:version|appVersion): "?([\d.]+)"?$', (CHART / "Chart.yaml").read_text(), re.M) == [release()] * 2


def test_a_package_is_equal_byte_for_byte_in_another_folder_for_another_user(tmp_path):
    first = packed(tmp_path / "first")
    clone = tmp_path / "clone"
    # As an unpacked source archive: no git.
    for folder in ("packaging/helm", "dashboards", "tools"):
        shutil.copytree(ROOT / folder, clone / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("meson.build", ".gitignore"):
        shutil.copy(ROOT / name, clone)
    for path in clone.rglob("*"):
        if path.is_file():
            path.chmod(0o700 if os.access(path, os.X_OK) else 0o600)
            os.utime(path, (0, 0))
    sys.path.insert(0, str(ROOT / "tools"))
    import sources  # pylint: disable=import-outside-toplevel,import-error

    second = tmp_path / "second"
    subprocess.run(["sh", "-c", 'umask 077; exec "$@"', "sh", clone / "packaging/helm/build", second], check=True, capture_output=True,
                   env={**os.environ, "SOURCE_DATE_EPOCH": str(sources.epoch(ROOT))})  # fmt: skip
    assert (second / first.name).read_bytes() == first.read_bytes()


def test_nothing_that_lies_about_is_packed(tmp_path):
    stray = CHART / "templates/stray.yaml"
    stray.write_text("password: secret\n")
    try:
        with tarfile.open(packed(tmp_path)) as archive:
            assert "pgonce/templates/stray.yaml" not in archive.getnames()
    finally:
        stray.unlink()


def test_each_option_that_a_template_passes_is_one_of_the_command():
    """Without helm: the words of args. The rendered ones are compared in test_helm_chart.py."""
    for file, command in (("keep.yaml", "keep"), ("console.yaml", "console"), ("_jobs.tpl", "relay"), ("_jobs.tpl", "consume")):
        known = subprocess.run([BUILD / "cli/pgonce", "help", command], capture_output=True, text=True, check=True).stdout
        options = set(re.findall(r"^ +- (--[a-z-]+)$", (CHART / "templates" / file).read_text(), re.M))
        assert options
        assert not [option for option in options if not re.search(rf"(?<![\w-]){option}(?![\w-])", known)], command


def test_the_gateway_is_rendered_with_directives_that_it_has():
    text = (CHART / "templates/_gateway.tpl").read_text()
    used = set(re.findall(r"^\s*(?:location [^{]+\{[^}]*?)?(once(?:_[a-z0-9]+)?) ", text, re.M)) - {"once_upstream"}
    known = set(re.findall(r'(?:DIRECTIVE|ngx_string)\("(once\w*)"', (ROOT / "gateway/ngx_http_once_module.c").read_text()))
    assert len(used) > 5 and used <= known, used - known


def test_each_value_is_described_and_in_the_schema():
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["additionalProperties"] is False and "global" in schema["properties"] and "enabled" in schema["properties"]
    top = re.findall(r"^([a-zA-Z]\w*):", (CHART / "values.yaml").read_text(), re.M)
    assert sorted(top) == sorted(set(schema["properties"]) - {"global", "enabled", "tags"})


def test_names_users_ports_and_paths_are_those_of_the_images():
    images, values = ROOT / "packaging/images", (CHART / "values.yaml").read_text()
    plain, nginx = (images / "Containerfile").read_text(), (images / "Containerfile.nginx").read_text()
    assert re.findall(r"^ +repository: (\S+)$", values, re.M) == ["pgonce", "pgonce-nginx"]
    assert "AS pgonce\n" in plain and "AS pgonce-nginx\n" in nginx
    [user] = re.findall(r"^  runAsUser: (\d+)$", values, re.M)
    assert f"USER {user}:{user}\n" in plain[plain.index("AS pgonce\n"):]
    [module] = re.findall(r"^  modulePath: (\S+)$", values, re.M)
    assert f"={module} " in nginx
    for text, program in ((plain, "pgonce"), (nginx, "nginx")):
        folder, _ = re.search(r'^ENTRYPOINT \["(\S+)/(\w+)"', text[text.index("AS pgonce"):], re.M).groups()
        assert f"/{program}" in text and re.search(rf"PATH=(\S*:)?{folder}(:|\s)", text), "a command is found by its name"
    page = (ROOT / "docs/how/containers.md").read_text()
    files = {"keep": "keep.yaml", "relay": "_jobs.tpl", "consume": "_jobs.tpl", "console": "console.yaml", "gateway": "_gateway.tpl"}
    rows = re.findall(r"^\| `?(\w+)[^|]* \| (\d+) \| `(\S+)` \| `(\S+)` \|", page, re.M)
    assert sorted(name for name, *_ in rows) == sorted(files)
    for name, port, alive, ready in rows:
        template = (CHART / "templates" / files[name]).read_text()
        # What it listens on, and what a probe asks.
        assert len(re.findall(rf"(?<!\d){port}(?!\d)", template)) == 2 + (name == "gateway"), f"{name}: {port}"
        assert f'"{alive}"' in template and f'"{ready}"' in template, f"{name}: {alive}, {ready}"
