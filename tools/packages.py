#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Writes the path of the Go module and the group of the jars into every file that names them, or checks that they are there.

  packages.py            writes them
  packages.py --check    lists what would change; exit status 1 if anything would

packaging/languages/settings.json is their home. clients/go/go.mod and clients/java/pom.xml tell which ones the tree has now. The package of the Java
classes (io.pgonce) is part of their interface: it does not change with the group. tools/version.py does the same for the version."""
import argparse
import difflib
import json
import re
import sys

import sources
import version

ROOT = sources.ROOT
SETTINGS = "packaging/languages/settings.json"
GIVEN_BY_HAND = (SETTINGS, "CHANGELOG.md")


def now():
    """The settings that the tree follows."""
    return {
        "go_module": re.search(r"^module (\S+)$", (ROOT / "clients/go/go.mod").read_text(), re.M)[1],
        "java_group": re.search(r"<groupId>([^<]*)</groupId>", (ROOT / "clients/java/pom.xml").read_text())[1],
    }


def written(text, old, new):
    """A file's text with the names of `new` for those of `old`."""
    module, group = re.escape(old["go_module"]), re.escape(old["java_group"])
    if old["go_module"] in text:
        text = re.sub(rf"(?<![\w./-]){module}(?![\w-])", new["go_module"], text)
    if old["java_group"] not in text:
        return text
    return re.sub(rf"(?<=<groupId>){group}(?=</|\.examples</)|(?<![\w.-]){group}(?=:pgonce)", new["java_group"], text)


def fault(settings, release):
    """What is wrong with the settings themselves; None if nothing is."""
    path, group, major = settings["go_module"], settings["java_group"], release.split(".", maxsplit=1)[0]
    suffix = re.search(r"/v\d+$", path)
    if not re.fullmatch(r"[a-z0-9-]+(?:\.[a-z0-9-]+)+(?:/[A-Za-z0-9._~-]+)*/once(?:/v\d+)?", path):
        return f"go_module {path!r} is not a host and a path that ends in the package's name, such as example.org/pgonce/once"
    if int(major) >= 2 and (not suffix or suffix[0] != f"/v{major}"):
        return f"version {release} of a Go module needs a path that ends in /v{major}, and go_module is {path!r}"
    if int(major) < 2 and suffix:
        return f"go_module {path!r} ends in {suffix[0]}, and the version is {release}"
    if not re.fullmatch(r"[a-z][a-z0-9_-]*(?:\.[a-z0-9_-]+)+", group):
        return f"java_group {group!r} is not a name such as org.example"
    if settings["home"] and not re.fullmatch(r"https://[^\s/]+/\S*[^\s/]", settings["home"]):
        return f"home {settings['home']!r} is not the address of a repository: leave it empty until there is one"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    settings = json.loads((ROOT / SETTINGS).read_text())
    if told := fault(settings, version.released()):
        sys.exit(f"{SETTINGS}: {told}")
    old, stale = now(), False
    for name, text in version.texts(ROOT):
        made = text if name in GIVEN_BY_HAND else written(text, old, settings)
        if made == text:
            continue
        stale = True
        if check:
            sys.stdout.writelines(difflib.unified_diff(text.splitlines(True), made.splitlines(True), name, f"as {SETTINGS} says", n=0))
        else:
            (ROOT / name).write_bytes(made.encode())
            print(f"wrote {name}")
    if check and stale:
        sys.exit(f"files differ from {SETTINGS}: run tools/packages.py")


if __name__ == "__main__":
    main()
