#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""The version has one home, meson.build. Package files of other tools must repeat it: this knows where. version.py prints it; --check names each place
that has another; --set X.Y.Z writes a new one into all of them, before a release."""

import fnmatch
import pathlib
import re
import sys

import sources

ROOT = sources.ROOT
HOME = re.compile(r"^  version: '([^']+)'", re.M)
NUMBER = r"(\d+\.\d+\.\d+)"
# Where files repeat it: a pattern of paths, and what stands around it. Each pattern is found in each of its files.
PLACES = (
    ("meson.build", rf"^  version: '{NUMBER}'"),
    ("contract/pgonce.control", rf"^default_version = '{NUMBER}'"),
    ("native/pgonce_native.control", rf"^default_version = '{NUMBER}'"),
    ("clients/node/package.json", rf'^  "version": "{NUMBER}"'),
    ("clients/node/package-lock.json", rf'"name": "pgonce",\s+"version": "{NUMBER}"'),
    ("clients/python/src/pgonce/__init__.py", rf'^__version__ = "{NUMBER}"'),
    ("packaging/helm/pgonce/Chart.yaml", rf'^version: {NUMBER}'),
    ("packaging/helm/pgonce/Chart.yaml", rf'^appVersion: "{NUMBER}"'),
    ("packaging/images/Containerfile", rf"^ARG VERSION={NUMBER}"),
    ("packaging/images/Containerfile.nginx", rf"^ARG VERSION={NUMBER}"),
    ("clients/go/version.go", rf'^const Version = "{NUMBER}"'),
)
# These may, too: wherever they name a part of pgonce with a version.
NAMED = (
    ("*go.mod", rf"^\s*(?:require )?\S+/once(?:/\S+)? v(?!0\.0\.0\b){NUMBER}$"),
    ("*pom.xml", rf"<artifactId>(?:pgonce[\w-]*)</artifactId>\s*<version>{NUMBER}</version>"),
    ("tests/frameworks/net-http/goroot.py", rf'/once", "v{NUMBER}"'),
    ("*.md", rf"/once(?:/\w+)?@v{NUMBER}"),
    ("*.md", rf"<artifactId>(?:pgonce[\w-]*)</artifactId>\s*<version>{NUMBER}</version>"),
    ("*", rf"\b(?:lib)?pgonce(?:_native|-[a-z-]*[a-z])?(?:\.so\.|--|[-_@ ]v?|[=:]{{1,2}}){NUMBER}(?![\w.]*\d)"),
)
# Other versions are told of there, on purpose.
OTHERS = ("tests/*", "CHANGELOG.md", "bench/*", "*.sum")
SCRIPT = "native/pgonce_native--{}.sql"
# Each release with the version of its contract: from the earlier ones the extensions upgrade.
RELEASES = "contract/releases.txt"


def released(root=ROOT):
    return HOME.search((root / "meson.build").read_text(encoding="utf-8"))[1]


def texts(root):
    for path in sources.files(root):
        try:
            yield path, (root / path).read_bytes().decode()
        except UnicodeDecodeError:
            continue


def repeated(path, text):
    """(what is found, whether it must be)"""
    for pattern, around in PLACES + NAMED:
        if fnmatch.fnmatchcase(path, pattern) and not (pattern == "*" and any(fnmatch.fnmatchcase(path, each) for each in OTHERS)):
            yield from re.finditer(around, text, re.M)


def differing(root=ROOT):
    """A line for each place that does not have the version of meson.build."""
    version, told, found = released(root), [], set()
    for path, text in texts(root):
        for match in repeated(path, text):
            found.add(path)
            if match[1] != version:
                told.append(f"{path}:{text.count(chr(10), 0, match.start(1)) + 1} has version {match[1]}, and meson.build {version}")
    told += [f"{path} has no version where it is looked for: tools/version.py" for path, _ in PLACES if path not in found]
    listed = re.search(rf"^{re.escape(version)} (\d+)$", (root / RELEASES).read_text(encoding="utf-8"), re.M)
    if not listed or int(listed[1]) != contract(root):
        told.append(f"{RELEASES} must list '{version} {contract(root)}': tools/version.py --set {version} writes it")
    if not (root / SCRIPT.format(version)).exists():
        told.append(f"{SCRIPT.format(version)} is missing: tools/version.py --set {version} renames the file")
    return sorted(set(told))


def contract(root):
    """Its newest migration; the first release's tables are 1."""
    return max((int(path.name[:4]) for path in (root / "contract/migrations").glob("[0-9]*.sql")), default=1)


def list_release(new, root):
    path = root / RELEASES
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith(f"{new} ")]
    path.write_text("\n".join([*lines, f"{new} {contract(root)}"]) + "\n", encoding="utf-8")


def write(new, root=ROOT):
    old = released(root)
    list_release(new, root)
    for path, text in list(texts(root)):
        changed = text
        for at, end in sorted({match.span(1) for match in repeated(path, text)}, reverse=True):
            changed = changed[:at] + new + changed[end:]
        if changed != text:
            (root / path).write_text(changed, encoding="utf-8")
    if old != new and (root / SCRIPT.format(old)).exists():
        (root / SCRIPT.format(old)).rename(root / SCRIPT.format(new))


def main():
    given = sys.argv[1:]
    if given == ["--check"]:
        told = differing()
        print("\n".join(told), end="\n" if told else "")
        sys.exit(1 if told else 0)
    if len(given) == 2 and given[0] == "--set" and re.fullmatch(NUMBER, given[1]):
        write(given[1])
        return
    if given:
        sys.exit("version.py [--check | --set X.Y.Z]")
    print(released())


if __name__ == "__main__":
    main()
