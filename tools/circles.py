#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Checks that C files do not call each other in a circle of any length: circles.py BUILD. The calls are read from the built objects (nm).
Also checks that the calls between the folders of contract/ run one way, and that the modules of the Python client do not import each other."""
import ast
import collections
import pathlib
import re
import subprocess
import sys

import contract

# Files that may call each other: a statement's answer ends operations, and the end of an operation begins others.
ROOMS = [{"lib/src/batcher.c", "lib/src/operation.c", "lib/src/pack.c", "lib/src/settle.c", "lib/src/wire.c"}]
# nginx requires every file of a module to know the module's number.
KNOWN_TO_ALL = {"ngx_http_once_module"}
FOLDERS = ("lib", "runtime", "broker", "relay", "consume", "keeper", "console", "cli", "gateway", "native")
# In contract/ a function may call functions of its folder and of earlier folders. All may call access/ and keep/, which creates days.
LAYERS = ("policy", "key", "doubt", "lease", "start", "outbox", "inbox", "parked", "see")


def symbols(build):
    """For each source: the names it defines, and the names it needs from others."""
    for built in sorted(build.rglob("*.c.o")):
        folder, name = built.relative_to(build).parts[0], built.name.removesuffix(".o")
        # meson's object of lib/src/x.c is src_x.c.o
        source = next((path for path in (f"{folder}/{name}", f"{folder}/{name.replace('_', '/', 1)}") if pathlib.Path(path).exists()), None)
        if folder in FOLDERS and source:
            out = subprocess.run(["nm", built], capture_output=True, text=True, check=True).stdout
            yield source, set(re.findall(r" [BDRTV] (\w+)$", out, re.M)), set(re.findall(r" U (\w+)$", out, re.M)) - KNOWN_TO_ALL


def calls(build):
    """The names used from file to file."""
    known = list(symbols(build))
    homes = {name: source for source, defined, _ in known for name in defined}
    found = collections.defaultdict(dict)
    for source, _, needed in known:
        for name in sorted(needed & homes.keys()):
            if homes[name] != source:
                found[source].setdefault(homes[name], []).append(name)
    return found


def reachable(found, start):
    seen, waiting = set(), [start]
    while waiting:
        for each in found.get(waiting.pop(), ()):
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    return seen


def circles(found):
    """The largest sets of files that all reach each other."""
    reach = {source: reachable(found, source) for source in found}
    seen = set()
    for source in sorted(found):
        circle = {source} | {other for other in reach[source] if source in reach.get(other, ())}
        if len(circle) > 1 and source not in seen:
            seen |= circle
            yield circle


def against_the_layers(root):
    """The calls between functions of contract/ from a folder to a later one."""
    contract.ROOT = root
    paths = contract.functions()
    homes = {path.stem: path for path in paths}
    for path in paths:
        if path.parent.name in LAYERS:
            code = re.sub(r"--.*|'[^']*'", "", contract.text_of(path))
            for name in sorted(set(re.findall(r"\bonce(?:_job)?\.(\w+)\(", code)) & homes.keys()):
                home = homes[name].parent.name
                if home in LAYERS[LAYERS.index(path.parent.name) + 1 :]:
                    yield f"{path.parent.name}/{path.stem} -> {home}/{name}"


def imports(package):
    """Of each module of a Python package: the others that it imports, also within a function, but not for the types alone."""
    modules = {path.stem: path for path in sorted(package.glob("*.py"))}
    found = {}
    for name, path in modules.items():
        tree = ast.parse(path.read_text())
        typed = {node for block in ast.walk(tree) if isinstance(block, ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING" for node in ast.walk(block)}
        needed = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node not in typed:
                needed |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
        found[name] = {each: [each] for each in sorted(needed & modules.keys() - {name})}
    return found


def main():
    found = calls(pathlib.Path(sys.argv[1]))
    if not found:
        sys.exit(f"{sys.argv[1]} holds nothing that was built")
    bad = [circle for circle in circles(found) if not any(circle <= room for room in ROOMS)]
    for circle in bad:
        print("these files call each other:", *sorted(circle))
        for caller in sorted(circle):
            for called in sorted(circle & found[caller].keys()):
                print(f"  {caller} -> {called}: {', '.join(found[caller][called][:5])}")
    modules = imports(pathlib.Path("clients/python/src/pgonce"))
    for circle in circles(modules):
        bad.append(circle)
        print("these modules of clients/python import each other:", *sorted(circle))
    upwards = list(against_the_layers(pathlib.Path("contract").resolve()))
    if upwards:
        print("these calls of contract/ run the wrong way:", *upwards, sep="\n  ")
    sys.exit(1 if bad or upwards else 0)


if __name__ == "__main__":
    main()
