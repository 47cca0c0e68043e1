#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Makes a Go whose net/http calls its user's handler through Inject: goroot.py DIRECTORY puts it into DIRECTORY/goroot. inject_test.go sets Inject there, and what it
needs is among std's vendored packages. (`go test -overlay` does not reach vendor/modules.txt.) All other files are links to those of the Go that is here."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
CLIENT = HERE.parents[2] / "clients/go"
DRIVER = "github.com/lib/pq", "v1.10.9"  # of all drivers the one that needs no other module
CALL = "\thandler.ServeHTTP(rw, req)\n}\n\nfunc badServeHTTP("
HOOK = "\tif Inject != nil {\n\t\thandler = Inject(handler)\n\t}\n"
DECLARED = "// Inject wraps the handler of every server.\nvar Inject func(Handler) Handler\n\n"


def go(*words):
    return subprocess.run(["go", *words], check=True, capture_output=True, text=True, cwd="/").stdout


def linked(original, copy):
    """A hard link: what is embedded may be no symbolic one."""
    try:
        os.link(original, copy)
    except OSError:
        shutil.copy2(original, copy)


def write(file, text):
    file.unlink()
    file.write_text(text)


def main():
    place = pathlib.Path(sys.argv[1]).resolve() / "goroot"
    shutil.rmtree(place, ignore_errors=True)
    root = pathlib.Path(go("env", "GOROOT").strip())
    driver = pathlib.Path(json.loads(go("mod", "download", "-json", "@".join(DRIVER)))["Dir"])
    shutil.copytree(root / "src", place / "src", copy_function=linked, symlinks=True)
    for name in ("bin", "pkg", "lib", "VERSION", "go.env"):
        if (root / name).exists():
            (place / name).symlink_to(root / name)
    source, listed, required = place / "src", "", ""
    for name, version, folder, packages in (("pgonce.internal/once", "v1.0.0", CLIENT, ("", "internal/control", "oncesql")), (*DRIVER, driver, ("", "oid", "scram"))):
        listed += f"# {name} {version}\n## explicit; go 1.21\n"
        required += f"require {name} {version}\n"
        for package in packages:
            listed += f"{name}/{package}".rstrip("/") + "\n"
            into = source / "vendor" / name / package
            into.mkdir(parents=True, exist_ok=True)
            for file in (folder / package).glob("*.go"):
                if not file.name.endswith("_test.go"):
                    shutil.copyfile(file, into / file.name)
    server = (source / "net/http/server.go").read_text()
    if server.count(CALL) != 1:
        sys.exit("net/http's serverHandler is another one than goroot.py knows")
    before, after = CALL.split("}\n", 1)
    write(source / "net/http/server.go", server.replace(CALL, HOOK + before + "}\n\n" + DECLARED + after.lstrip("\n")))
    write(source / "go.mod", (source / "go.mod").read_text() + "\n" + required)
    write(source / "vendor/modules.txt", (source / "vendor/modules.txt").read_text() + listed)
    shutil.copyfile(HERE / "inject_test.go", source / "net/http/inject_test.go")


if __name__ == "__main__":
    main()
