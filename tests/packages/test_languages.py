# SPDX-License-Identifier: PostgreSQL
"""The clients' packages, quickly: their names have one home, their descriptions say what is true, and what npm would publish is whole."""

import json
import os
import re
import shutil
import subprocess
import tarfile

import pytest

from harness.postgres import ROOT
from harness.release import VERSION

from .languages import BUILD, build, environment

SETTINGS = "packaging/languages/settings.json"
NODE = json.loads((ROOT / "clients/node/package.json").read_text())
PYPROJECT = (ROOT / "clients/python/pyproject.toml").read_text()


def tool(name, *words, root=ROOT):
    return subprocess.run(["/usr/bin/python3", "-B", root / "tools" / name, *words], cwd=root, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the sources that may be changed. It has no .git, as an unpacked archive."""
    place = tmp_path_factory.mktemp("tree")
    listed = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    return place


def set_in(tree, **changed):
    (tree / SETTINGS).write_text(json.dumps({**json.loads((ROOT / SETTINGS).read_text()), **changed}))


def named(tree, *words):
    """(files that name one of the words, without the settings and the history of changes)"""
    done = subprocess.run(["grep", "-rlE", "--exclude=CHANGELOG.md", "--exclude=settings.json", "--exclude-dir=__pycache__", "|".join(words), "."], cwd=tree, capture_output=True, text=True, check=False)
    return set(done.stdout.split())


def test_every_file_has_the_module_path_and_the_group_of_the_settings():
    assert (done := tool("packages.py", "--check")).returncode == 0, done.stdout + done.stderr


def test_a_new_module_path_and_group_are_written_into_every_file_and_back(tree):
    now = json.loads((ROOT / SETTINGS).read_text())
    old = (re.escape(now["go_module"]) + r"\b", rf"<groupId>{re.escape(now['java_group'])}\b", rf"\b{re.escape(now['java_group'])}:pgonce")
    # This file names both.
    before = {path: path.read_bytes() for path in map(tree.joinpath, named(tree, *old)) if "tests/packages" not in str(path)}
    assert len(before) > 40
    set_in(tree, go_module="example.org/shop/once", java_group="org.example.shop")
    assert tool("packages.py", "--check", root=tree).returncode == 1  # before they are written
    wrote = tool("packages.py", root=tree)
    assert wrote.returncode == 0, wrote.stderr
    # The tests' words for what they look for stay.
    assert {name for name in named(tree, *old) if not name.startswith("./tests/packages/")} == set()
    assert tool("packages.py", "--check", root=tree).returncode == 0
    assert tool("version.py", "--check", root=tree).stdout == ""
    assert "module example.org/shop/once/onceotel\n" in (tree / "clients/go/onceotel/go.mod").read_text()
    assert "package io.pgonce;" in (tree / "clients/java/pgonce/src/main/java/io/pgonce/Once.java").read_text()  # its interface
    if shutil.which("gofmt", path=environment()["PATH"]):
        assert subprocess.run(["gofmt", "-l", "clients/go"], cwd=tree, env=environment(), capture_output=True, text=True, check=True).stdout == ""
    set_in(tree)
    assert tool("packages.py", root=tree).returncode == 0
    assert {path: path.read_bytes() for path in before} == before


def test_a_file_with_another_module_path_is_named(tree):
    path = tree / "clients/go/onceotel/go.mod"
    text = path.read_text()
    set_in(tree, go_module="example.org/once")
    done = tool("packages.py", "--check", root=tree)
    assert done.returncode == 1 and "+module example.org/once/onceotel" in done.stdout and done.stderr == f"files differ from {SETTINGS}: run tools/packages.py\n"
    set_in(tree)
    assert tool("packages.py", "--check", root=tree).returncode == 0 and path.read_text() == text


@pytest.mark.parametrize("changed, says", [
    ({"go_module": "once"}, "go_module 'once' is not a host and a path that ends in the package's name"),
    ({"go_module": "example.org/shop"}, "go_module 'example.org/shop' is not a host and a path that ends in the package's name"),
    ({"go_module": "example.org/once/v2"}, f"go_module 'example.org/once/v2' ends in /v2, and the version is {VERSION}"),
    ({"java_group": "pgonce"}, "java_group 'pgonce' is not a name such as org.example"),
    ({"home": "pgonce"}, "home 'pgonce' is not the address of a repository: leave it empty until there is one"),
], ids=str)  # fmt: skip
def test_a_setting_that_no_registry_would_take_gets_one_line(tree, changed, says):
    set_in(tree, **changed)
    done = tool("packages.py", "--check", root=tree)
    set_in(tree)
    assert done.returncode == 1 and done.stderr.startswith(f"{SETTINGS}: {says}") and done.stderr.count("\n") == 1


def test_the_second_major_version_of_a_go_module_needs_its_path(tree):
    path = tree / "meson.build"
    text = path.read_text()
    path.write_text(text.replace(f"version: '{VERSION}'", "version: '2.0.0'", 1))
    done = tool("packages.py", "--check", root=tree)
    path.write_text(text)
    assert done.stderr.endswith("a Go module needs a path that ends in /v2, and go_module is 'pgonce.internal/once'\n"), done.stderr


@pytest.mark.parametrize("program, language", [("npm", "node"), ("mvn", "java")])
def test_a_missing_tool_gets_one_line_that_says_how_to_get_it(tree, tmp_path, program, language):
    """With a PATH that has only what the build itself starts."""
    for name in ("env", "python3"):
        (tmp_path / name).symlink_to(shutil.which(name, path="/usr/bin"))
    done = subprocess.run([tree / "packaging/languages/build", tmp_path / "out", language], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"packaging/languages/build: {program} is missing, for the package of {language}: run tools/setup.sh release\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words, said", [
    (["rust"], "'rust' is not one of node python go java"),
    (["node"], "SOURCE_DATE_EPOCH is 'today': give it seconds since 1970"),
])  # fmt: skip
def test_a_wrong_word_gets_one_line(tmp_path, words, said):
    done = subprocess.run([BUILD, tmp_path / "out", *words], env=environment(SOURCE_DATE_EPOCH="today"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"packaging/languages/build: {said}\n")


def test_the_licence_is_the_same_everywhere():
    for name in ("clients/node", "clients/python", "clients/go", "clients/go/onceotel"):
        assert (ROOT / name / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes(), name


def test_the_descriptions_say_what_is_true():
    assert NODE["license"] == "PostgreSQL" and NODE["engines"] == {"node": ">=18"} and NODE["type"] == "commonjs"
    assert NODE["exports"] == {".": {"types": "./index.d.ts", "default": "./index.js"}, "./package.json": "./package.json"}
    assert set(NODE["peerDependencies"]) == {"pg", "@types/pg"} and NODE["peerDependenciesMeta"] == {"@types/pg": {"optional": True}}
    assert "dependencies" not in NODE
    minimum = re.search(r'^requires-python = ">=(3\.\d+)"', PYPROJECT, re.M)[1]
    assert min(re.findall(r"Python :: (3\.\d+)", PYPROJECT), key=lambda each: int(each[2:])) == minimum
    # An address that nobody has registered would be somebody else's one day: none is invented.
    home = json.loads((ROOT / SETTINGS).read_text())["home"]
    if not home:
        assert not {"homepage", "repository", "bugs"} & set(NODE) and "urls" not in PYPROJECT
        assert not re.search(r"<(?:scm|url|issueManagement)>", (ROOT / "clients/java/pom.xml").read_text())


@pytest.fixture(scope="module")
def tarball(tmp_path_factory):
    if shutil.which("npm", path=environment()["PATH"]) is None:
        pytest.skip("there is no npm here")
    (path,) = build(tmp_path_factory.mktemp("npm"), "node")
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read().decode() for member in tar.getmembers()}


def test_the_npm_tarball_has_each_file_that_its_files_need(tarball):
    """github.com/userlike/messenger/pull/68, github.com/cronitorio/cronitor-js/issues/11: files that others require were not in it."""
    assert {"package/LICENSE", "package/README.md", "package/package.json", "package/index.js", "package/index.d.ts"} <= set(tarball)
    needed = {
        os.path.normpath(os.path.join(os.path.dirname(name), word)) + ".js"
        for name, text in tarball.items() if name.endswith(".js")
        for word in re.findall(r"require\('(\.[^']*)'\)", text)
    }  # fmt: skip
    assert len(needed) > 25 and needed <= set(tarball), needed - set(tarball)
    known = {f"package/{path.name}" if path.parent.name == "node" else f"package/lib/{path.name}" for path in [*(ROOT / "clients/node/lib").glob("*.js"), ROOT / "clients/node/index.js"]}
    assert known == {name for name in tarball if name.endswith(".js")}


def test_the_npm_tarball_has_no_tests_and_no_settings_of_ours(tarball):
    assert not [name for name in tarball if re.search(r"test|agent|\.npmrc|lock", name)]
    described = json.loads(tarball["package/package.json"])
    assert described["version"] == VERSION and not {"preinstall", "install", "postinstall", "prepare"} & set(described["scripts"])


def test_a_readme_in_a_package_links_to_nothing_that_the_package_lacks(tarball):
    readme = tarball["package/README.md"]
    assert "](../" not in readme and "problem documents (`docs/reference/problems.md`)" in readme
    assert set(re.findall(r"\]\(([^)#]+)", readme)) == {"LICENSE"}


@pytest.fixture(scope="module")
def elsewhere(tree, tmp_path_factory):
    """(the names in a tarball, what it says of itself): of a clone with a home, in which a file lies about that git does not know."""
    if shutil.which("npm", path=environment()["PATH"]) is None:
        pytest.skip("there is no npm here")
    given = "LICENSE meson.build clients packaging tools contract/pgonce.control native"
    subprocess.run(f"git init -q . && git add {given} && git -c user.name=a -c user.email=a@example.org commit -qm a", shell=True, cwd=tree, check=True)
    set_in(tree, home="https://example.org/shop/pgonce")
    lies = tree / "clients/node/lib/secret.js"
    lies.write_text("// mine\n")
    before = {path: path.stat().st_mtime_ns for path in tree.rglob("*") if ".git/" not in str(path)}
    try:
        (path,) = build(tmp_path_factory.mktemp("elsewhere"), "node", root=tree)
        assert {path: path.stat().st_mtime_ns for path in tree.rglob("*") if ".git/" not in str(path)} == before, "the build left something in the tree"
    finally:
        lies.unlink()
        set_in(tree)
        shutil.rmtree(tree / ".git")
    assert path.stat().st_mode & 0o777 == 0o644
    with tarfile.open(path) as tar:
        return tar.getnames(), json.load(tar.extractfile("package/package.json"))


def test_a_file_that_lies_about_is_not_released_and_none_is_left(elsewhere):
    assert "package/lib/secret.js" not in elsewhere[0] and "package/lib/key.js" in elsewhere[0]


def test_the_public_home_is_in_the_package_once_there_is_one(elsewhere):
    assert elsewhere[1]["homepage"] == "https://example.org/shop/pgonce"
    assert elsewhere[1]["repository"] == {"type": "git", "url": "git+https://example.org/shop/pgonce.git", "directory": "clients/node"}
