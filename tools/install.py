#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Installs what tools/build.sh builds: install.py BUILD PREFIX, and DESTDIR in the environment for packages. `make install` calls it.

It builds first, as the owner of the build: under sudo that is the user, who could not rebuild files owned by root."""

import json
import os
import pathlib
import pwd
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXTENSION_PATHS = 18  # the first PostgreSQL that searches several folders for extensions
FOR_ALL = ("/usr", "/usr/local")  # as in contract/meson.build: the extension's files go where the server looks


def main():
    build, prefix = ROOT / sys.argv[1], pathlib.Path(sys.argv[2]).expanduser().absolute()
    owner = other_owner(build if build.exists() else ROOT)
    if not owner:
        refuse_unless_writable([prefix])  # before the steps that take minutes
    if not (build / "build.ninja").exists():
        run_as(owner, "tools/setup.sh", "build")
    run_as(owner, "tools/build.sh", build)
    if option(build, "prefix") != str(prefix):
        run_as(owner, "meson", "configure", build, f"--prefix={prefix}", stdout=subprocess.DEVNULL)
        run_as(owner, "meson", "setup", "--reconfigure", build, stdout=subprocess.DEVNULL)
        run_as(owner, "ninja", "-C", build, "--quiet")
    refuse_unless_writable(destinations(build))
    run_as(None, "meson", "install", "--no-rebuild", "--quiet", "-C", build)
    if owner:
        give_back(build, owner)
    if not os.environ.get("DESTDIR"):
        if os.geteuid() == 0:
            run_as(None, "/sbin/ldconfig")
        tell(build, prefix)


def other_owner(path):
    """The owner of this tree, if root calls and is not the owner."""
    uid = path.stat().st_uid
    try:
        return pwd.getpwuid(uid) if os.geteuid() == 0 and uid != 0 else None
    except KeyError:
        return None


def run_as(owner, *command, **options):
    if owner:
        options |= {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": os.getgrouplist(owner.pw_name, owner.pw_gid)}
        options["env"] = os.environ | {"HOME": owner.pw_dir, "USER": owner.pw_name, "LOGNAME": owner.pw_name}
    done = subprocess.run([str(word) for word in command], check=False, cwd=ROOT, **options)
    if done.returncode != 0:
        sys.exit(done.returncode)


def option(build, name):
    told = subprocess.run(["meson", "introspect", "--buildoptions", build], capture_output=True, text=True, check=True).stdout
    return next(each["value"] for each in json.loads(told) if each["name"] == name)


def destinations(build):
    told = subprocess.run(["meson", "introspect", "--installed", build], capture_output=True, text=True, check=True).stdout
    return [pathlib.Path(path) for path in json.loads(told).values()]


def refuse_unless_writable(paths):
    """Reports it before installing, instead of an exception halfway."""
    for path in paths:
        if os.environ.get("DESTDIR"):
            path = pathlib.Path(os.environ["DESTDIR"]).absolute() / path.relative_to("/")
        directory = next(parent for parent in (path, *path.parents) if parent.is_dir())
        if not os.access(directory, os.W_OK):
            sys.exit(f"make install: {directory} may not be written by {pwd.getpwuid(os.geteuid()).pw_name}. Either\n"
                     "  make build && sudo make install            # for all users of this machine\n"
                     "  make install PREFIX=$HOME/.local           # for yourself alone")  # fmt: skip


def give_back(build, owner):
    """The files installed there, from the log."""
    for path in (build, *build.rglob("*")):
        if path.lstat().st_uid == 0:
            os.lchown(path, owner.pw_uid, owner.pw_gid)


def tell(build, prefix):
    """Says where the files are, and which programs need to be told."""
    library = prefix / option(build, "libdir")
    extension = next(path.parent for path in destinations(build) if path.name == "pgonce.control")
    print(f"pgonce is installed below {prefix}; the extension's files are in {extension}.")
    if str(prefix) in FOR_ALL:
        return
    print(f"For the shell: PATH={prefix}/bin:$PATH\n"
          f"For programs in C: PKG_CONFIG_PATH={library}/pkgconfig LD_LIBRARY_PATH={library}\n"
          f"PostgreSQL {EXTENSION_PATHS} and later finds the extension with: extension_control_path = '$system:{extension.parent}'")  # fmt: skip
    if (library / "postgresql/pgonce_native.so").exists():
        print(f"  and pgonce_native with: dynamic_library_path = '$libdir:{library}/postgresql'")
    print("Earlier ones look in their own folder alone: pgonce_native is left out there, until `sudo make install`. `pgonce init` needs no extension.")


if __name__ == "__main__":
    main()
