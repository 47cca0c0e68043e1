# SPDX-License-Identifier: PostgreSQL
"""What a public repository is expected to have: workflows of a forge, templates, a devcontainer, the editors' settings, the changelog. Each file says what
is true of this tree, and gives nobody more rights than its work needs."""

import fnmatch
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tokenize

import pytest

from harness.postgres import ROOT
from harness.release import VERSION

yaml = pytest.importorskip("yaml", reason="python3-yaml is missing: tools/setup.sh test installs it")
sys.path.insert(0, str(ROOT / "tools"))
import sources  # noqa: E402

WORKFLOWS = sorted(path.name for path in (ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M))
# Of the forge itself; another's action would run with this repository's rights.
ACTION = re.compile(r"actions/(checkout|upload-artifact|download-artifact)@v\d+")


def workflow(name):
    told = yaml.safe_load((ROOT / ".github/workflows" / name).read_text())
    told["on"] = told.pop(True, told.get("on"))  # YAML 1.1 takes the word for a truth value
    return told


def steps(name):
    return [step for job in workflow(name)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_has_the_least_rights_and_an_end(name):
    told = workflow(name)
    assert told["permissions"] == {"contents": "read"}
    for job, each in told["jobs"].items():
        assert each["timeout-minutes"] <= 120, job
        if "permissions" in each:
            # It takes nothing from the tree, so that no code of a pull request runs with its rights.
            assert each["permissions"] == {"contents": "write"} and not any("checkout" in step.get("uses", "") for step in each["steps"])
            assert set(told["on"]) == {"push"} and "tags" in told["on"]["push"]
    assert "pull_request_target" not in told["on"]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_uses_the_forges_own_actions_and_leaves_no_token_behind(name):
    for step in steps(name):
        if "uses" in step:
            assert ACTION.fullmatch(step["uses"]), step
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_a_workflow_types_is_a_command_of_this_tree(name):
    for step in steps(name):
        if "run" not in step:
            continue
        assert "${{" not in step["run"], "what somebody else has named would be part of the script"
        assert subprocess.run(["sh", "-n"], input=step["run"], text=True, check=False).returncode == 0
        for target in re.findall(r"\bmake ([a-z-]+)(?: [A-Z]+=\S+)?$", step["run"], re.M):
            assert target in TARGETS, target
        for program in re.findall(r"(?:^|\$\()((?:\.ci|tools)/\S+?)\)?$", step["run"], re.M):
            assert os.access(ROOT / program, os.X_OK), program


def test_continuous_integration_runs_everything_and_a_release_is_made_by_make_release():
    assert steps("ci.yml")[-1]["run"] == ".ci/run" and set(workflow("ci.yml")["on"]) == {"push", "pull_request"}
    typed = "\n".join(step.get("run", "") for step in steps("release.yml"))
    assert "make release" in typed and "sha256sum -c" in typed and "--draft" in typed
    # The notes that it publishes are a file of dist/.
    (notes,) = re.findall(r"--notes-file dist/(\S+)", typed)
    assert f'"{notes}"' in (ROOT / "tools/release.py").read_text()


def test_issues_ask_for_what_a_bug_needs_and_send_vulnerabilities_elsewhere():
    forms = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")}
    assert set(forms) == {"bug", "question", "config"} and forms["config"] == {"blank_issues_enabled": False}
    for name in ("bug", "question"):
        form = forms[name]
        assert form["name"] and form["description"] and form["labels"]
        fields = [each for each in form["body"] if each["type"] != "markdown"]
        assert len({each["id"] for each in fields}) == len(fields) and all(each["attributes"]["label"] for each in fields)
        assert {each["type"] for each in form["body"]} <= {"markdown", "textarea", "input", "dropdown", "checkboxes"}
    bug = {each.get("id"): each for each in forms["bug"]["body"]}
    assert bug["version"]["validations"]["required"] and "pgonce version" in bug["version"]["attributes"]["description"]
    assert "pgonce doctor" in bug["doctor"]["attributes"]["description"]
    assert "SECURITY.md" in bug[None]["attributes"]["value"]
    assert "SECURITY.md" in (ROOT / ".github/PULL_REQUEST_TEMPLATE.md").read_text()


def test_the_documents_that_templates_name_exist():
    for path in (ROOT / ".github").rglob("*.*"):
        for name in re.findall(r"\b(?:docs/[\w-]+\.md|[A-Z_]+\.md)\b", path.read_text()):
            assert (ROOT / name).exists() or name == "RELEASE_NOTES.md", f"{path.name} names {name}"
        for target in re.findall(r"`make ([a-z-]+)`", path.read_text()):
            assert target in TARGETS, target


def test_updates_are_looked_for_where_there_is_something_to_update():
    told = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())
    file_of = {"npm": "package.json", "gomod": "go.mod", "maven": "pom.xml", "github-actions": ".github/workflows"}
    assert told["version"] == 2
    for each in told["updates"]:
        assert (ROOT / each["directory"].lstrip("/") / file_of[each["package-ecosystem"]]).exists(), each


def test_the_devcontainer_builds_as_a_user_that_may_install_packages():
    told = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    made = (ROOT / ".devcontainer" / told["build"]["dockerfile"]).read_text()
    assert told["postCreateCommand"] == "make build" and "build" in TARGETS
    assert re.search(r"^FROM debian:\d+$", made, re.M) and re.search(rf"useradd .*\b{told['remoteUser']}\b", made)
    assert f"USER {told['remoteUser']}" in made and "sudo" in made


def test_no_file_names_a_registry_or_a_place_that_does_not_exist():
    for name in sources.files():
        if name.startswith((".github/", ".devcontainer/")):
            assert not re.search(r"https?://|\b[\w-]+\.(?:io|com|org|dev)/", (ROOT / name).read_text()), name


class EditorConfig:
    """The last section that takes a file decides, for each of its properties."""

    def __init__(self, text):
        self.sections = []
        for line in text.splitlines():
            line = line.split("#")[0].strip() if line.startswith("#") else line.strip()
            if line.startswith("["):
                self.sections.append((line[1:-1], {}))
            elif "=" in line and self.sections:
                name, value = (word.strip() for word in line.split("=", 1))
                self.sections[-1][1][name] = value

    def properties(self, path):
        told = {}
        for pattern, properties in self.sections:
            braces = re.search(r"\{([^}]*)\}", pattern)
            patterns = [pattern.replace(braces[0], each) for each in braces[1].split(",")] if braces else [pattern]
            if any(fnmatch.fnmatchcase(path if "/" in each else path.rsplit("/", 1)[-1], each.replace("**", "*")) for each in patterns):
                told |= properties
        return told


def indents(name, content):
    """What the lines of a file begin with; without comments' stars, and in Python without what is inside of strings."""
    inside = set()
    if name.endswith(".py") and b"\n\t" in content:
        for token in tokenize.tokenize(io.BytesIO(content).readline):
            if token.type == tokenize.STRING:
                inside.update(range(token.start[0] + 1, token.end[0] + 1))
    lines = [line for number, line in enumerate(content.split(b"\n"), 1) if number not in inside]
    return {{b"\t": "tab", b" ": "space"}[line[:1]] for line in lines if line[:1] in (b"\t", b" ") and not re.match(rb" \*| [^ ]", line)}


def test_what_editors_are_told_is_what_the_files_do():
    config = EditorConfig((ROOT / ".editorconfig").read_text())
    wrong = []
    for name in sources.files():
        content = (ROOT / name).read_bytes()
        if name.startswith(("tests/fuzz/corpus/", "tests/contract/upgrade/")) or b"\0" in content:
            continue
        told = config.properties(name)
        if told.get("end_of_line") == "lf" and b"\r\n" in content:
            wrong.append(f"{name}: CRLF")
        if told.get("insert_final_newline") == "true" and content and not content.endswith(b"\n"):
            wrong.append(f"{name}: no newline at its end")
        if told.get("charset") == "utf-8":
            content.decode()
        first = indents(name, content)
        if name.rsplit(".", 1)[-1] in ("py", "js", "ts", "sql", "java", "go", "json", "yml", "xml", "css", "build") and first - {told["indent_style"]}:
            wrong.append(f"{name}: indented with {first}, not {told['indent_style']}")
        limit = int(told.get("max_line_length", 0))
        if name.endswith(".sql") and any(len(line) > limit for line in content.decode().splitlines()):
            wrong.append(f"{name}: a line of more than {limit}")
    assert not wrong, "\n".join(wrong)


def test_editors_and_clang_format_agree():
    wanted = dict(re.findall(r"^(\w+): (\w+)$", (ROOT / ".clang-format").read_text(), re.M))
    told = EditorConfig((ROOT / ".editorconfig").read_text()).properties("lib/src/session.c")
    assert (told["tab_width"], told["max_line_length"], told["indent_style"]) == (wanted["TabWidth"], wanted["ColumnLimit"], "tab") and wanted["UseTab"] == "ForIndentation"


def test_the_changelog_has_a_section_with_a_day_for_this_version():
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## \[([^\]]+)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.M)
    assert sections[0] == ("Unreleased", "") and all(day for _, day in sections[1:])
    assert VERSION in dict(sections[1:])


def test_the_policy_the_security_page_and_the_library_tell_the_same():
    policy, security = (ROOT / "docs/how/upgrade.md").read_text(), (ROOT / "SECURITY.md").read_text()
    major, minor, _ = VERSION.split(".")
    assert re.search(rf"^\| {major}\.{minor} \| yes \|$", security, re.M) and "docs/how/upgrade.md#how-long" in security
    assert f"`libpgonce.so.{major}`" in policy and re.search(rf"soversion: '{major}'", (ROOT / "lib/meson.build").read_text())
    for months in ("twelve months", "24 months"):
        assert months in policy and months in security
    servers = re.search(r"PostgreSQL (\d+) to (\d+)", (ROOT / "CHANGELOG.md").read_text()).groups()
    assert f"{servers[0]} to {servers[1]}" in security


@pytest.mark.whole
def test_actionlint_finds_nothing(tmp_path):
    if not shutil.which("go"):
        pytest.skip("there is no Go to build actionlint with")
    path = os.environ["PATH"] + ":/usr/local/go/bin"
    built = subprocess.run(["go", "install", "github.com/rhysd/actionlint/cmd/actionlint@v1.7.1"], env={**os.environ, "GOBIN": str(tmp_path), "PATH": path}, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        pytest.skip(f"actionlint could not be built: {built.stderr[-200:]}")
    done = subprocess.run([tmp_path / "actionlint", *(ROOT / ".github/workflows" / name for name in WORKFLOWS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
