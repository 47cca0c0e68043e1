#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Installs what tools/build.sh builds: install.py BUILD PREFIX, and DESTDIR in the environment for packages. `make install` calls it; with --remove,
`make uninstall` does.

It builds first, as the owner of the build: under sudo that is the user, who could not rebuild files owned by root. Each obstacle is told in
one line, before anything is written."""

import contextlib
import json
import os
import pathlib
import pwd
import re
import shlex
import shutil
import stat
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXTENSION_PATHS = 18  # the first PostgreSQL that searches several folders for extensions
FOR_ALL = ("/usr", "/usr/local")  # as in contract/meson.build: the extension's files go where the server looks
task = "make install"


def refuse(text):
    sys.exit(f"{task}: {text}")


def main():
    global task
    given = sys.argv[1:]
    remove = given[:1] == ["--remove"]
    if remove:
        task = "make uninstall"
        given = given[1:]
    build, prefix = folder("BUILD", given[0], ROOT), folder("PREFIX", given[1], pathlib.Path.cwd())
    if os.environ.get("DESTDIR"):
        os.environ["DESTDIR"] = str(folder("DESTDIR", os.environ["DESTDIR"], pathlib.Path.cwd()))
    if remove:
        uninstall(build, prefix)
    else:
        install(build, prefix)


def folder(name, text, base):
    """As a user writes it: relative, or from a home."""
    if not text.strip() or re.search(r"[\n\r\0:]", text):
        refuse(f"{name} is {text!r}: it must be one folder, without a colon or a line break")
    try:
        return pathlib.Path(os.path.normpath(base / pathlib.Path(text).expanduser()))
    except RuntimeError:
        refuse(f"{name} is {text}, and there is no such user: write the whole path")


def install(build, prefix):
    owner = other_owner(build if build.exists() else ROOT)
    if not owner:
        refuse_unless_writable([prefix])  # before the steps that take minutes
    refuse_unless_ours(build, owner)
    if not (build / "build.ninja").exists():
        run_as(owner, "tools/setup.sh", "build")
    run_as(owner, "tools/build.sh", build)
    if option(build, "prefix") != str(prefix):
        run_as(owner, "meson", "configure", build, f"--prefix={prefix}", stdout=subprocess.DEVNULL)
        run_as(owner, "meson", "setup", "--reconfigure", build, stdout=subprocess.DEVNULL)
        run_as(owner, "ninja", "-C", build, "--quiet")
    refuse_unless_writable(destinations(build))
    # Without an input it asks for no password.
    done = run_as(None, "meson", "install", "--no-rebuild", "--quiet", "-C", build, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stops=False)
    if owner:
        give_back(build, owner)
    if done.returncode != 0:
        refuse(f"some files could not be installed: {([line.strip() for line in done.stdout.splitlines() if line.strip()] or ['meson says nothing'])[-1]}")
    if not os.environ.get("DESTDIR"):
        if os.geteuid() == 0:
            run_as(None, "/sbin/ldconfig")
        refuse_unless_it_runs(prefix)
        tell(build, prefix)
        warn_of_others(build, prefix)


def other_owner(path):
    """The owner of this tree, if root calls and is not the owner."""
    uid = path.stat().st_uid
    try:
        return pwd.getpwuid(uid) if os.geteuid() == 0 and uid != 0 else None
    except KeyError:
        return None


def name_of(uid):
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def run_as(owner, *command, stops=True, **options):
    """A command that fails says why; then this ends, too."""
    if owner:
        options |= {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": os.getgrouplist(owner.pw_name, owner.pw_gid)}
        options["env"] = os.environ | {"HOME": owner.pw_dir, "USER": owner.pw_name, "LOGNAME": owner.pw_name}
    try:
        done = subprocess.run([str(word) for word in command], check=False, cwd=ROOT, **options)
    except FileNotFoundError:
        told = f"{command[0]} is not in PATH"
        refuse(f'{told} of root: sudo env "PATH=$PATH" make install' if os.geteuid() == 0 and os.environ.get("SUDO_USER") else f"{told}: tools/setup.sh build installs it")
    if done.returncode != 0 and stops:
        sys.exit(done.returncode)
    return done


def introspected(build, what):
    done = run_as(None, "meson", "introspect", what, build, capture_output=True, text=True, stops=False)
    try:
        return json.loads(done.stdout)
    except ValueError:
        refuse(f"meson cannot read {build}, which another version of it may have made: remove the folder (make clean), and try again")


def option(build, name):
    return next(each["value"] for each in introspected(build, "--buildoptions") if each["name"] == name)


def destinations(build):
    return [pathlib.Path(path) for path in introspected(build, "--installed").values()]


def staged(path):
    """Below DESTDIR, if there is one."""
    return pathlib.Path(os.environ["DESTDIR"]) / path.relative_to("/") if os.environ.get("DESTDIR") else path


def refuse_unless_writable(paths):
    """Reports it before installing, instead of an exception halfway."""
    for directory in dict.fromkeys(nearest(staged(path)) for path in paths):
        if os.statvfs(directory).f_flag & os.ST_RDONLY:
            refuse(f"{directory} is on a file system that is mounted read-only: choose another folder with PREFIX=, or DESTDIR= for a copy to install elsewhere")
        if not os.access(directory, os.W_OK | os.X_OK):
            may_not_write(directory)


def nearest(path):
    """The folder in which the first part of path would be made."""
    for each in (path, *path.parents):
        try:
            if stat.S_ISDIR(each.stat().st_mode):
                return each
            if each != path:
                refuse(f"{each} is a file, and would have to be a folder: choose another with PREFIX=")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            may_not_write(each)
        except OSError as failed:
            refuse(f"{each}: {failed.strerror}: choose another folder with PREFIX=")
    return pathlib.Path("/")


def may_not_write(directory):
    if os.geteuid() == 0:
        refuse(f"{directory} may not be written, even by root: choose another folder with PREFIX=")
    prefix = "" if sys.argv[-1] in FOR_ALL[1:] else f" PREFIX={shlex.quote(sys.argv[-1])}"
    refuse(f"{directory} may not be written by {name_of(os.geteuid())}: type `sudo {task}{prefix}`, for all users of this machine, or `{task} PREFIX=$HOME/.local`, for yourself alone")


def refuse_unless_ours(build, owner):
    """A build of another user, or of a tree that was moved, would fail without a word about that."""
    if not build.exists():
        if not owner and not os.access(nearest(build.parent), os.W_OK | os.X_OK):
            refuse(f"{nearest(build.parent)} may not be written by {name_of(os.geteuid())}, so nothing can be built there: choose another folder, for example BUILD=$HOME/pgonce-build")
        return
    if os.geteuid() != 0:
        for path in (build, *(build / name for name in ("build.ninja", ".ninja_log", ".ninja_deps", "meson-private", "meson-logs", "meson-info"))):
            if path.exists() and not os.access(path, os.W_OK):
                refuse(f"{path} belongs to {name_of(path.stat().st_uid)}, and {name_of(os.geteuid())} may not write it: type `sudo chown -R {name_of(os.geteuid())} {shlex.quote(str(build))}`, or choose another folder with BUILD=")
    with contextlib.suppress(OSError, ValueError, KeyError):
        source = json.loads((build / "meson-info/meson-info.json").read_text())["directories"]["source"]
        if pathlib.Path(source).resolve() != ROOT:
            refuse(f"{build} was made for {source}, and not for {ROOT}: remove that folder (make clean), and try again")


def give_back(build, owner):
    """The files installed there, from the log."""
    for path in (build, *build.rglob("*")):
        if path.lstat().st_uid == 0:
            os.lchown(path, owner.pw_uid, owner.pw_gid)


def version_of(program):
    """None: it does not run."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([str(program), "version"], capture_output=True, text=True, check=False, timeout=20, stdin=subprocess.DEVNULL,
                              env={name: value for name, value in os.environ.items() if not name.startswith("PG")})  # fmt: skip
        found = re.match(r"pgonce (\S+)", done.stdout)
        return found and done.returncode == 0 and found[1]
    return None


def refuse_unless_it_runs(prefix):
    program = prefix / "bin/pgonce"
    if program.exists() and not version_of(program):
        refuse(f"{program} is installed and does not run: is {prefix} on a file system that is mounted noexec? `{shlex.quote(str(program))} version` says more")


def tell(build, prefix):
    """Says where the files are, and which programs need to be told."""
    library = prefix / option(build, "libdir")
    extension = next(path.parent for path in destinations(build) if path.name == "pgonce.control")
    print(f"pgonce is installed below {prefix}; the extension's files are in {extension}.")
    if str(prefix) in FOR_ALL:
        return
    print(f"For the shell: PATH={shlex.quote(str(prefix / 'bin'))}:$PATH\n"
          f"For programs in C: PKG_CONFIG_PATH={library}/pkgconfig LD_LIBRARY_PATH={library}\n"
          f"PostgreSQL {EXTENSION_PATHS} and later finds the extension with: extension_control_path = '$system:{extension.parent}'")  # fmt: skip
    if (prefix / "share/systemd/user/pgonce-keep.service").exists() and prefix == pathlib.Path("~/.local").expanduser():
        print("For your own systemd: systemctl --user daemon-reload && systemctl --user start pgonce-keep, with the connection in ~/.config/pgonce/environment")
    if (library / "postgresql/pgonce_native.so").exists():
        print(f"  and pgonce_native with: dynamic_library_path = '$libdir:{library}/postgresql'")
    print("Earlier ones look in their own folder alone: pgonce_native is left out there, until `sudo make install`. `pgonce init` needs no extension.")


def warn_of_others(build, prefix):
    """Another pgonce that is found before this one. The programs have their own libpgonce inside; other people's may load a library."""
    program, first = prefix / "bin/pgonce", shutil.which("pgonce")
    if program.exists() and first and not os.path.samefile(first, program):
        print(f"Warning: {first} ({version_of(first) or 'of an unknown version'}) comes before {program} in PATH: remove that one, or put {program.parent} before it.", file=sys.stderr)
    library = prefix / option(build, "libdir")
    for path in loaded(library):
        if path.exists() and not os.path.samefile(path, built_library(build, library)):
            where = f"remove it{', then type ldconfig' if os.geteuid() == 0 else ''}" if path.parent == library or str(prefix) in FOR_ALL else f"remove it, or set LD_LIBRARY_PATH={library}"
            print(f"Warning: programs in C that are linked with libpgonce load {path.resolve()}, and not the one just installed in {library}: {where}.", file=sys.stderr)


def built_library(build, library):
    return library / next(path.name for path in destinations(build) if re.fullmatch(r"libpgonce\.so\.\d+\.\d+\.\d+", path.name))


def loaded(library):
    """Where the loader looks first for libpgonce, by its variable and its cache; and the link beside the new library, which may lead to a newer one."""
    soname = next((path.name for path in library.glob("libpgonce.so.*") if re.fullmatch(r"libpgonce\.so\.\d+", path.name)), None)
    if not soname:
        return []
    found = [pathlib.Path(each, soname) for each in os.environ.get("LD_LIBRARY_PATH", "").split(":") if each and pathlib.Path(each, soname).exists()]
    with contextlib.suppress(OSError):
        told = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
        found += [pathlib.Path(path) for path in re.findall(rf"^\s*{re.escape(soname)} \(.*\) => (.*)$", told, re.M)]
    return list(dict.fromkeys([*found[:1], library / soname]))


def uninstall(build, prefix):
    """What the last installation from this build has put below PREFIX, by meson's log."""
    log = build / "meson-logs/install-log.txt"
    if not log.exists():
        refuse(f"{build} knows of no installation: it must be the folder from which pgonce was installed (BUILD=)")
    installed = pathlib.Path(option(build, "prefix"))
    if installed != prefix:
        refuse(f"pgonce was installed below {installed}: type `make uninstall PREFIX={shlex.quote(str(installed))}`")
    paths = [pathlib.Path(line) for line in log.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    if paths and not all(path.is_relative_to(staged(pathlib.Path("/"))) for path in paths):
        refuse(f"the last installation from {build} was into another DESTDIR, see {log}")
    if not os.environ.get("DESTDIR") and not any(path.is_relative_to(prefix) for path in paths):
        refuse(f"the last installation from {build} was into a DESTDIR, see {log}")
    files = [path for path in paths if path.is_symlink() or path.is_file()]
    for directory in dict.fromkeys(path.parent for path in files):
        if not os.access(directory, os.W_OK | os.X_OK):
            may_not_write(directory)
    for path in files:
        path.unlink()
    # The folders that are pgonce's, and those that the installation has made; others may be empty in a new system.
    below = {parent for path in files for parent in path.parents if parent.is_relative_to(staged(prefix))}
    made = (set(paths) - set(files)) | {path for path in below if "pgonce" in path.relative_to(staged(prefix)).parts}
    for path in sorted(made, key=lambda path: -len(path.parts)):
        with contextlib.suppress(OSError):
            path.rmdir()
    if os.geteuid() == 0 and not os.environ.get("DESTDIR"):
        run_as(None, "/sbin/ldconfig")
    print(f"{len(files)} files of pgonce are removed from {staged(prefix)}. Databases are as they were: docs/how/services.md says how to remove pgonce from one.")


if __name__ == "__main__":
    main()
