#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Builds all that a release has into one folder: release.py DIST [ALSO]. `make release` calls it. ALSO is a folder with
packages that `make deb` has built on other releases of Debian.

It refuses a tree that is not ready, with one line, before it builds. Then each packaging/*/build makes its files, in a private folder; the source
archive, the Containerfiles, the notes, the bill of materials and SHA256SUMS come from here. DIST is written at the end, SHA256SUMS last. Two runs on one
commit write the same bytes: nothing depends on the folder, the user, the time, the locale or the umask."""

import concurrent.futures
import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import sbom_release
import sources
import version

ROOT = sources.ROOT
SUMS, NOTES = "SHA256SUMS", "RELEASE_NOTES.md"
# A part may use the other processor while one waits for a registry.
AT_ONCE = 2
at_work, ending = set(), threading.Event()


def refuse(text):
    sys.exit(f"make release: {text}")


def section(text, wanted):
    """The lines of one section of the changelog, without its heading; None if it is missing."""
    found = re.search(rf"^## \[{re.escape(wanted)}\][^\n]*\n(.*?)(?=^## \[|\Z)", text, re.M | re.S)
    return found and found[1].strip()


def built_elsewhere(also, release):
    """Packages for other releases of Debian, by name."""
    if not also.is_dir():
        refuse(f"{also} is not a folder: ALSO= names one with packages that make deb has built elsewhere")
    found = {path.name: path for path in sorted(also.iterdir())}
    for name in found:
        if not re.match(rf"[a-z0-9.+-]+_{re.escape(release)}-[^_]+_[a-z0-9]+\.deb$", name):
            refuse(f"{also} holds {name}, which is no Debian package of {release}: ALSO= names a folder with packages alone")
    return found


def refuse_unless_ready(dist, release):
    changed = (sources.git(ROOT, "status", "--porcelain", "--untracked-files=normal") or "").splitlines()
    if changed:
        refuse(f"{len(changed)} file(s) are changed or new, first {changed[0][3:]}: commit them, or put them away with git stash -u")
    others = version.differing(ROOT)
    if others:
        refuse(f"{others[0]}{f' ({len(others) - 1} more)' if others[1:] else ''}: tools/version.py --set {release} writes it everywhere")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not section(changes, release):
        refuse(f"CHANGELOG.md has no section [{release}] with what this release brings: move the lines of [Unreleased] there, with the day")
    if section(changes, "Unreleased"):
        refuse(f"CHANGELOG.md has lines under [Unreleased]: move them to [{release}], or to the release that they belong to")
    if dist.exists() and not dist.is_dir():
        refuse(f"{dist} is not a folder: choose another with DIST=")
    here = dist if dist.exists() else next(parent for parent in dist.parents if parent.exists())
    if not os.access(here, os.W_OK):
        refuse(f"{here} may not be written: choose another folder with DIST=")
    known = {line.split("  ", 1)[1] for line in (dist / SUMS).read_text().splitlines()} if (dist / SUMS).exists() else set()
    for path in sorted(dist.iterdir()) if dist.exists() else []:
        told = re.search(r"(?<![\d.])\d+\.\d+\.\d+(?!\d)", path.name)
        if (told and told[0] != release) or (path.name not in known | {SUMS} and release not in path.name):
            refuse(f"{dist} holds {path.name}, which is not of {release}: empty it, or choose another folder with DIST=")


def environment(when):
    """What a part may depend on."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "MAKE", "GIT_")) and name not in ("TZ", "DESTDIR", "PREFIX", "BUILD")}
    return kept | {"LC_ALL": "C.UTF-8", "TZ": "UTC", "SOURCE_DATE_EPOCH": str(when), "PYTHONDONTWRITEBYTECODE": "1"}


def end(part):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(part.pid, signal.SIGTERM)


def made_by(build, out, when):
    """Its files. Its output is shown if it fails."""
    began = time.monotonic()
    out.mkdir()
    with subprocess.Popen([build, out], cwd=ROOT, env=environment(when), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True) as part:
        at_work.add(part)
        if ending.is_set():
            end(part)
        told = part.communicate()[0]
        at_work.discard(part)
    name = build.relative_to(ROOT)
    if part.returncode != 0:
        sys.stderr.write(told)
        refuse(f"{name} failed, as it says above")
    files = sorted(out.iterdir())
    if not files or any(not path.is_file() for path in files):
        refuse(f"{name} made {'a folder' if files else 'nothing'}: it must put files into the folder that it is given, and only files")
    print(f"{name}: {len(files)} files in {time.monotonic() - began:.0f} s", flush=True)
    return files


def made_here(out, release, when):
    out.mkdir()
    began = time.monotonic()
    for path in sorted(ROOT.glob("packaging/images/Containerfile*")):
        shutil.copyfile(path, out / path.name)
    (out / NOTES).write_text(notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), release), encoding="utf-8")
    (out / f"pgonce-{release}.tar.xz").write_bytes(sources.archive(ROOT, f"pgonce-{release}", when))
    print(f"the source archive, notes and Containerfiles in {time.monotonic() - began:.0f} s", flush=True)
    return sorted(out.iterdir())


def notes(changes, release):
    """The section of this release, to be read alone: links into the tree become the paths of files in the source archive."""
    day = re.search(rf"^## \[{re.escape(release)}\](?: - ([\d-]+))?", changes, re.M)[1]
    text = re.sub(r"\[([^\]]*)\]\((?![a-z]+:)([^)#]+)(?:#[^)]*)?\)", lambda link: link[1] if link[1] == link[2] else f"{link[1]} (`{link[2]}`)", section(changes, release))
    return (f"# pgonce {release}{f' ({day})' if day else ''}\n\n{text}\n\n### Check the files\n\n"
            f"`sha256sum -c --ignore-missing {SUMS}` beside them. `pgonce-{release}.spdx.json` is the bill of materials. Pages that are named here are in `pgonce-{release}.tar.xz`.\n")  # fmt: skip


def main():
    if len(sys.argv) not in (2, 3) or not sys.argv[1]:
        sys.exit("release.py DIST [ALSO]")
    began = time.monotonic()
    dist, release = pathlib.Path(sys.argv[1]).absolute(), version.released(ROOT)
    try:
        when = sources.epoch(ROOT)
    except ValueError:
        refuse("SOURCE_DATE_EPOCH is no number: give it seconds since 1970, or unset it")
    os.umask(0o022)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it has begun is ended and removed
    refuse_unless_ready(dist, release)
    files = built_elsewhere(pathlib.Path(sys.argv[2]).absolute(), release) if sys.argv[2:] and sys.argv[2] else {}
    with tempfile.TemporaryDirectory(prefix="pgonce-release-") as place, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as at_once:
        work = pathlib.Path(place)
        # The packages of Debian take longest.
        running = [at_once.submit(made_by, build, work / build.parent.name, when) for build in sorted(ROOT.glob("packaging/*/build"))]
        running.append(at_once.submit(made_here, work / "here", release, when))
        try:
            # As they end: one that fails ends the others.
            for part in concurrent.futures.as_completed(running):
                for path in part.result():
                    if path.name in files:
                        refuse(f"{' and '.join(sorted((path.parent.name, files[path.name].parent.name)))} both made {path.name}: one must have another name")
                    files[path.name] = path
        except BaseException:  # an interruption, too
            at_once.shutdown(wait=False, cancel_futures=True)
            ending.set()
            for part in list(at_work):
                end(part)
            raise
        bill = work / f"pgonce-{release}.spdx.json"
        bill.write_text(sbom_release.text(files, release, when), encoding="utf-8")
        files[bill.name] = bill
        stale = sorted(path.name for path in dist.iterdir() if path.name not in files and path.name != SUMS) if dist.exists() else []
        if stale:
            refuse(f"{dist} holds {stale[0]}, which this release does not have: empty it, or choose another folder with DIST=")
        put(files, dist)
    print(f"{dist} has {len(files) + 1} files, built in {time.monotonic() - began:.0f} s. To check them: cd {dist} && sha256sum -c {SUMS}")


def put(files, dist):
    """Until SHA256SUMS is there, the release is not whole."""
    dist.mkdir(parents=True, exist_ok=True)
    (dist / SUMS).unlink(missing_ok=True)
    lines = []
    for name in sorted(files, key=os.fsencode):
        content = files[name].read_bytes()
        (dist / name).unlink(missing_ok=True)  # it may be somebody else's, or a link
        (dist / name).write_bytes(content)
        lines.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
    (dist / SUMS).write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
