# SPDX-License-Identifier: PostgreSQL
"""The clients' packages as they are built: the same bytes for everyone, whole, and as the checkers of each ecosystem want them. Each fault that a test
names was in a package that others have published."""

import hashlib
import os
import pwd
import re
import shutil
import subprocess
import tarfile
import zipfile

import pytest

from harness.postgres import ROOT, private_directory
from harness.release import VERSION

from .languages import build, environment, released  # noqa: F401

pytestmark = pytest.mark.whole
LICENCE = (ROOT / "LICENSE").read_bytes()
JARS = {"pgonce": "io.pgonce", "pgonce-spring-boot-starter": "io.pgonce.spring"}


def sums(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_packages_are_the_same_bytes_for_another_user_in_another_folder(tmp_path):
    """From an archive without git, with another umask, time zone and place for what is temporary."""
    epoch = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    build(tmp_path / "one")
    away = private_directory("pgonce-twice-")  # of its own: pytest closes its folders to others
    try:
        away.chmod(0o777)
        for name in filter(None, subprocess.run(["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")):
            if (ROOT / name).is_file():
                (away / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, away / "tree" / name)
        for folder in ("two", "temporary"):
            (away / folder).mkdir()
            (away / folder).chmod(0o777)
        options = {"umask": 0o077, "env": environment(SOURCE_DATE_EPOCH=epoch, TMPDIR=away / "temporary", TZ="Asia/Kolkata", LANG="C")}
        build(away / "two", "java", root=away / "tree", **options)
        if os.geteuid() == 0:  # somebody else, whose caches are empty
            options |= {"user": pwd.getpwnam("nobody").pw_uid, "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}
            options["env"]["HOME"] = str(away / "temporary")
        build(away / "two", "node", "python", "go", root=away / "tree", **options)
        assert len(sums(tmp_path / "one")) == 12
        assert sums(tmp_path / "one") == sums(away / "two")
    finally:
        shutil.rmtree(away, ignore_errors=True)


def test_each_package_has_the_licence(released):
    """github.com/cython/cython/issues/3854: it was missing from the wheel alone."""
    found = set()
    for path in released.iterdir():
        if path.name.endswith((".tgz", "pgonce-%s.tar.gz" % VERSION)):
            with tarfile.open(path) as tar:
                held = [tar.extractfile(member).read() for member in tar.getmembers() if member.name.endswith("/LICENSE")]
        elif path.name.startswith("pgonce-go-"):
            with zipfile.ZipFile(path) as outer:
                modules = [outer.open(name) for name in outer.namelist() if name.endswith(".zip")]
                held = [inner.read(name) for inner in map(zipfile.ZipFile, modules) for name in inner.namelist() if re.fullmatch(r"[^@]*@[^/]*/LICENSE", name)]
            assert len(held) == 2
        elif path.suffix in (".jar", ".whl"):
            with zipfile.ZipFile(path) as archive:
                held = [archive.read(name) for name in archive.namelist() if re.search(r"(?:META-INF|licenses)/LICENSE$", name)]
        else:
            continue
        assert held and set(held) == {LICENCE}, path.name
        found.add(path.name)
    assert len(found) >= 10


def test_the_wheel_has_the_package_alone_and_its_marker_of_types(released):
    """github.com/lasp/cdflib/issues/273: tests at the top level. github.com/pypa/readme_renderer/issues/227: py.typed in the sdist, not in the wheel."""
    (path,) = released.glob("*.whl")
    assert path.name == f"pgonce-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        described = archive.read(f"pgonce-{VERSION}.dist-info/METADATA").decode()
    assert {name.split("/")[0] for name in names} == {"pgonce", f"pgonce-{VERSION}.dist-info"} and "pgonce/py.typed" in names
    sources = {f"pgonce/{file.name}" for file in (ROOT / "clients/python/src/pgonce").glob("*.py")}
    assert sources == {name for name in names if name.endswith(".py")}
    head, _, readme = described.partition("\n\n")
    assert f"Version: {VERSION}\n" in head and "Requires-Python: >=3.9\n" in head and "License-Expression: PostgreSQL\n" in head
    assert "Description-Content-Type: text/markdown" in head and readme.startswith("# pgonce for Python") and "](../" not in readme
    assert not re.search(r"^Requires-Dist: (?!.*extra ==)", head, re.M) and "Home-page" not in head


def test_the_sdist_has_what_its_build_needs_and_no_tests_that_cannot_run(released):
    """github.com/jeffbass/imagezmq/issues/37: the build read a file that was not in it. That it builds, test_languages_installed.py shows."""
    with tarfile.open(released / f"pgonce-{VERSION}.tar.gz") as tar:
        members = tar.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO", "src/pgonce/py.typed"} <= names
    assert not [name for name in names if re.match(r"tests?/|agent/|test\.sh", name)]
    assert {(member.uid, member.gid, member.uname, member.mode) for member in members} == {(0, 0, "", 0o644)}


@pytest.mark.parametrize("part", JARS)
def test_a_jar_says_what_it_is_and_has_its_sources_and_pages(released, part):
    """github.com/kaitoy/pcap4j/issues/207: no name as a module, and packages in two jars."""
    classes, manifest = {}, ""
    with zipfile.ZipFile(released / f"{part}-{VERSION}.jar") as jar:
        classes = {name for name in jar.namelist() if name.endswith(".class")}
        manifest = jar.read("META-INF/MANIFEST.MF").decode().replace("\r\n", "\n")
        assert not [name for name in classes if "Test" in name and "TestManaged" not in name]
        assert {jar.read(name)[6:8] for name in classes} == {b"\x00\x3d"}  # of Java 17
    assert f"Implementation-Version: {VERSION}\n" in manifest and f"Automatic-Module-Name: {JARS[part]}\n" in manifest
    with zipfile.ZipFile(released / f"{part}-{VERSION}-sources.jar") as jar:
        sources = {name for name in jar.namelist() if name.endswith(".java")}
    assert {re.sub(r"(\$\w+)*\.class$", ".java", name) for name in classes} | {name for name in sources if "package-info" in name} == sources
    with zipfile.ZipFile(released / f"{part}-{VERSION}-javadoc.jar") as jar:
        pages = set(jar.namelist())
    public = {f"{JARS[part]}/{name[:-5]}.html" for name in sources if re.search(r"^public (?:final |abstract |sealed |static )*(?:class|interface|@interface|record|enum) ", source_of(part, name), re.M)}
    assert len(public) >= 8 and "index.html" in pages and public <= pages, public - pages
    other = next(each for each in JARS if each != part)
    with zipfile.ZipFile(released / f"{other}-{VERSION}.jar") as jar:
        assert not {os.path.dirname(name) for name in classes} & {os.path.dirname(name) for name in jar.namelist() if name.endswith(".class")}


def source_of(part, name):
    return (ROOT / "clients/java" / part / "src/main/java" / name).read_text()


@pytest.mark.parametrize("part", JARS)
def test_a_pom_stands_alone(released, part):
    """github.com/devonfw/ide/issues/369: it named a parent that was never published."""
    text = (released / f"{part}-{VERSION}.pom").read_text()
    assert "<parent>" not in text and "${" not in text and "SNAPSHOT" not in text and "<scope>test" not in text
    assert f"<artifactId>{part}</artifactId>\n  <version>{VERSION}</version>" in text
    for needed in ("<name>", "<description>", "<licenses>"):
        assert needed in text
    with zipfile.ZipFile(released / f"{part}-{VERSION}.jar") as jar:
        (inside,) = [name for name in jar.namelist() if name.endswith("/pom.xml")]
        assert jar.read(inside).decode() == text
    dependencies = re.findall(r"<dependency>.*?</dependency>", text, re.S)
    required = [re.search(r"<artifactId>([^<]*)", each)[1] for each in dependencies if "<optional>" not in each and "provided" not in each]
    assert required == ([] if part == "pgonce" else ["pgonce", "spring-boot-starter-jdbc"])


def test_a_java_module_can_require_the_core(released, tmp_path):
    if shutil.which("javac") is None:
        pytest.skip("there is no javac here")
    (tmp_path / "shop").mkdir()
    (tmp_path / "module-info.java").write_text("module shop {\n    requires io.pgonce;\n    requires java.sql;\n}\n")
    (tmp_path / "shop/Shop.java").write_text('package shop;\n\nclass Shop {\n    static String said(io.pgonce.Answer answer) {\n        return Shop.class.getModule() + " " + io.pgonce.Once.class.getPackage().getImplementationVersion();\n    }\n}\n')
    done = subprocess.run(["javac", "-Xlint:all,-requires-automatic", "-Werror", "-p", released / f"pgonce-{VERSION}.jar", "-d", tmp_path / "out", "module-info.java", "shop/Shop.java"], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_module_proxy_has_what_go_asks_for_and_git_has_nothing_else(released, tmp_path):
    """A published version has the same checksum: the archive is the folder, byte for byte. github.com/apricote/hcloud-upload-image/issues/57: a `replace`
    in what is used."""
    with zipfile.ZipFile(released / f"pgonce-go-{VERSION}.zip") as outer:
        outer.extractall(tmp_path)
    for module, folder in (("pgonce.internal/once", "clients/go"), ("pgonce.internal/once/onceotel", "clients/go/onceotel")):
        at = tmp_path / module / "@v"
        assert sorted(path.name for path in at.iterdir()) == sorted(["list", f"v{VERSION}.info", f"v{VERSION}.mod", f"v{VERSION}.zip"])
        assert (at / f"v{VERSION}.mod").read_bytes() == (ROOT / folder / "go.mod").read_bytes()
        listed = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
        expected = {name.removeprefix(folder + "/") for name in listed if folder != "clients/go" or not name.startswith("clients/go/onceotel/")}
        with zipfile.ZipFile(at / f"v{VERSION}.zip") as inner:
            held = {name.removeprefix(f"{module}@v{VERSION}/"): inner.read(name) for name in inner.namelist()}
        assert set(held) == expected
        assert all((ROOT / folder / name).read_bytes() == content for name, content in held.items())
    assert "replace" not in (ROOT / "clients/go/go.mod").read_text()


def test_go_refuses_a_module_with_names_that_differ_in_case_alone(tmp_path):
    """github.com/prometheus/common/issues/851: the archive could not be unpacked on some systems, and was published."""
    if shutil.which("go", path=environment()["PATH"]) is None:
        pytest.skip("there is no go here")
    tree = tmp_path / "tree"
    for name in ("clients", "packaging", "tools", "native", "contract", "meson.build", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name) if tree.exists() else (tree.mkdir(), copy(ROOT / name, tree / name))
    (tree / "clients/go/README.MD").write_text("another\n")
    done = subprocess.run([tree / "packaging/languages/build", tmp_path / "out", "go"], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "case-insensitive file name collision" in done.stderr and not list((tmp_path / "out").iterdir())


# ---- what each ecosystem checks ----


def test_the_checkers_of_pypi_are_content(released, tmp_path):
    def run(*words):
        return subprocess.run([str(word) for word in words], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)

    assert run("python3", "-m", "venv", "v").returncode == 0
    assert run("v/bin/pip", "install", "-q", "twine", "check-wheel-contents").returncode == 0
    wheel, sdist = next(released.glob("*.whl")), released / f"pgonce-{VERSION}.tar.gz"
    for words in (["v/bin/twine", "check", "--strict", wheel, sdist], ["v/bin/check-wheel-contents", wheel]):
        done = run(*words)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_checkers_of_npm_are_content(released, tmp_path):
    """github.com/rapideditor/country-coder/issues/133: types that `exports` hides. github.com/10up/headstartwp/issues/504: two copies, for import and
    require; here both get one."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm here")

    def run(*words):
        return subprocess.run([str(word) for word in words], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)

    tarball = released / f"pgonce-{VERSION}.tgz"
    assert run("npm", "install", "--silent", "--prefix", tmp_path, "publint@0.3", "@arethetypeswrong/cli@0.18").returncode == 0
    for words in (["npx", "publint", "--strict", tarball], ["npx", "attw", tarball], ["npm", "publish", "--dry-run", "--offline", tarball]):
        done = run(*words)
        assert done.returncode == 0, done.stdout + done.stderr


def test_maven_s_enforcer_is_content_with_a_project_that_uses_the_starter(released, tmp_path):
    """With the versions that Spring Boot manages, as its applications have them: no dependency in two versions, none below what another one needs."""
    if shutil.which("mvn") is None:
        pytest.skip("there is no mvn here")
    where = environment(MAVEN_OPTS="-Xmx512m")
    for part in JARS:
        done = subprocess.run(["mvn", "-q", "-B", "install:install-file", f"-Dfile={released / f'{part}-{VERSION}.jar'}", f"-DpomFile={released / f'{part}-{VERSION}.pom'}", f"-DlocalRepositoryPath={tmp_path / 'own'}"], cwd=tmp_path, env=where, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    boot = re.search(r"<spring-boot.version>([^<]*)", (ROOT / "clients/java/pom.xml").read_text())[1]
    (tmp_path / "pom.xml").write_text(f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>shop</groupId><artifactId>shop</artifactId><version>1</version>
  <repositories><repository><id>own</id><url>file://{tmp_path / 'own'}</url></repository></repositories>
  <dependencyManagement><dependencies><dependency>
    <groupId>org.springframework.boot</groupId><artifactId>spring-boot-dependencies</artifactId><version>{boot}</version><type>pom</type><scope>import</scope>
  </dependency></dependencies></dependencyManagement>
  <dependencies><dependency><groupId>io.pgonce</groupId><artifactId>pgonce-spring-boot-starter</artifactId><version>{VERSION}</version></dependency></dependencies>
</project>
""")  # fmt: skip
    rules = "dependencyConvergence,requireReleaseDeps,requireUpperBoundDeps,banDuplicatePomDependencyVersions"
    done = subprocess.run(["mvn", "-B", "org.apache.maven.plugins:maven-enforcer-plugin:3.5.0:enforce", f"-Denforcer.rules={rules}"], cwd=tmp_path, env=where, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "BUILD SUCCESS" in done.stdout, done.stdout[-3000:]
