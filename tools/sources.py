#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""What belongs to the source: the files that git knows or, in an unpacked archive, all that .gitignore does not name; their time; and the archive of
them, the same bytes on each machine. sources.py FILE.tar.xz writes that; tools/release.py and tools/version.py call the rest."""

import fnmatch
import io
import lzma
import os
import pathlib
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def git(root, *command):
    """Its output; None if this folder is no clone. A .git of a folder above does not count."""
    if not (root / ".git").exists():
        return None
    # Under sudo the tree belongs to somebody else, which git refuses to read.
    told = ["git", "-c", f"safe.directory={root}", "-c", "core.quotePath=false", "-C", str(root), *command]
    try:
        return subprocess.run(told, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as failed:
        sys.exit(f"git {' '.join(command)} failed in {root}: {(getattr(failed, 'stderr', '') or str(failed)).strip()}")


def files(root=ROOT):
    """Relative paths, in the order of their bytes."""
    told = git(root, "ls-files", "-z")
    found = walked(root) if told is None else told.split("\0")
    return sorted((name for name in found if name and (root / name).is_file()), key=os.fsencode)


def walked(root):
    rules = []
    for folder, folders, names in os.walk(root):
        here = os.path.relpath(folder, root)
        here = "" if here == "." else here + "/"
        if ".gitignore" in names:
            lines = pathlib.Path(folder, ".gitignore").read_text(encoding="utf-8").splitlines()
            rules += [(here, line) for line in lines if line and not line.startswith("#")]
        folders[:] = [name for name in folders if name != ".git" and not ignored(rules, here + name, True)]
        yield from (here + name for name in names if not ignored(rules, here + name, False))


def ignored(rules, path, is_folder):
    """As the last line that fits says: one with ! takes back what an earlier one says."""
    last = False
    for base, line in rules:
        wanted = line.removeprefix("!")
        if not path.startswith(base) or (wanted.endswith("/") and not is_folder):
            continue
        name, inside = wanted.rstrip("/"), path[len(base):]
        inside = inside if "/" in name else inside.rsplit("/", 1)[-1]
        name = name.lstrip("/")
        if inside.count("/") == name.count("/") and fnmatch.fnmatchcase(inside, name):  # a * takes no /
            last = not line.startswith("!")
    return last


def epoch(root=ROOT):
    """SOURCE_DATE_EPOCH, the commit's time, or what the archive gave meson.build."""
    told = os.environ.get("SOURCE_DATE_EPOCH") or git(root, "log", "-1", "--format=%ct")
    return int(told or (root / "meson.build").stat().st_mtime)


def archive(root, name, when):
    return lzma.compress(tar(root, name, when), format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, preset=6)


def tar(root, name, when):
    """Its bytes depend on the files alone: no owner, no umask, no order of a file system, no time but one."""
    inside = io.BytesIO()
    with tarfile.open(fileobj=inside, mode="w", format=tarfile.GNU_FORMAT) as made:
        for path in files(root):
            content = (root / path).read_bytes()
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size, entry.mtime = len(content), when
            # As git: who may read it is not told, only whether it is a program.
            entry.mode = 0o755 if os.access(root / path, os.X_OK) or (root / path).stat().st_mode & 0o100 else 0o644
            made.addfile(entry, io.BytesIO(content))
    return inside.getvalue()


def main():
    import version  # here: it imports this one

    path = pathlib.Path(sys.argv[1])
    path.write_bytes(archive(ROOT, f"pgonce-{version.released(ROOT)}", epoch()))


if __name__ == "__main__":
    main()
