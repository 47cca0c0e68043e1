# SPDX-License-Identifier: PostgreSQL
"""The Debian packages of this tree, for a release of Debian: built here if this machine runs that release, else on a fresh machine, by `make deb`. Kept
beside the trees of fresh.py as long as no file of the source changes."""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from . import fresh

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import sources  # noqa: E402
import version  # noqa: E402

RELEASE = version.released(ROOT)
NEXT = re.sub(r"\d+$", lambda last: str(int(last[0]) + 1), RELEASE)
# What packages are made of.
OTHERS = ("tests/", "bench/", "clients/", ".ci/")


def here():
    told = pathlib.Path("/etc/os-release").read_text() if os.path.exists("/etc/os-release") else ""
    return "".join(re.findall(r"^VERSION_CODENAME=(\S+)$", told, re.M))


def copy_source(to):
    for name in sources.files(ROOT):
        target = pathlib.Path(to) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)


def digest():
    whole = hashlib.sha256()
    for name in sources.files(ROOT):
        if not name.startswith(OTHERS) or name.endswith((".md", "LICENSE")):
            whole.update(f"{name}\0".encode() + (ROOT / name).read_bytes())
    return whole.hexdigest()[:12]


def _build(suite, made):
    """Both versions, each into a folder of its number."""
    when = str(sources.epoch(ROOT))
    with contextlib.ExitStack() as stack:
        if suite == here():
            tree = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgonce-source-")))
            copy_source(tree)
            for number in (RELEASE, NEXT):
                subprocess.run([sys.executable, tree / "tools/version.py", "--set", number], check=True)
                done = subprocess.run(["env", f"SOURCE_DATE_EPOCH={when}", "make", "-C", tree, "deb", f"DIST={made / number}"], capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stdout + done.stderr
            return
        machine = stack.enter_context(fresh.Machine(suite, include=("make", "python3")))
        copy_source(machine.path("/root/pgonce"))
        for number in (RELEASE, NEXT):
            machine.run(f"pgonce/tools/version.py --set {number} && SOURCE_DATE_EPOCH={when} make -C pgonce deb DIST=/root/dist/{number}", online=True, timeout=3000)
            shutil.copytree(machine.path(f"/root/dist/{number}"), made / number)


def packages(suite, number=RELEASE):
    """The folder with them: of this release, or of the NEXT."""
    fresh.require()
    kept = fresh.cache()
    kept.mkdir(parents=True, exist_ok=True)
    folder = kept / f"{suite}-pgonce-{digest()}"
    with open(kept / f"{suite}-pgonce.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            for old in kept.glob(f"{suite}-pgonce-*"):
                shutil.rmtree(old)
            made = pathlib.Path(tempfile.mkdtemp(dir=kept))
            try:
                _build(suite, made)
                made.chmod(0o755)
                made.rename(folder)
            except BaseException:
                shutil.rmtree(made)
                raise
    return folder / number


def give(machine, folder, to="/home/dev/dist"):
    """Copies them into the machine; their names."""
    shutil.rmtree(machine.path(to), ignore_errors=True)
    names = sorted(path.name for path in folder.glob("*.deb"))
    for name in names:
        machine.copy(folder / name, f"{to}/")
    return names


def typed(page, heading):
    """The commands of a page's section, in order: what a user types."""
    text = (ROOT / page).read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.S) for line in block.splitlines()]
    return [re.sub(r"\s{2,}#.*$", "", line) for line in lines if line]


def quoted(*words):
    return shlex.join(words)
