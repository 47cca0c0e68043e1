# SPDX-License-Identifier: PostgreSQL
"""Builds and runs the images here, with buildah and podman of Debian, in a store of their own: no registry is asked, since the base image is
a fresh Debian (fresh.tree). Needs root."""

import contextlib
import io
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import uuid

import pytest

from . import fresh

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMAGES = ROOT / "packaging/images"
BASE = "localhost/debian:trixie-slim"
EPOCH = "1700000000"
# As careful as compose.yaml: not even the tmpfs that podman mounts by itself.
SAFE = ("--read-only", "--read-only-tmpfs=false", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
TMP = ("--tmpfs", "/tmp:mode=1777")


sys.path.insert(0, str(ROOT / "tools"))
import sources  # noqa: E402  # pylint: disable=wrong-import-position


class Podman:
    def __init__(self, folder, runtime):
        self.source = tempfile.TemporaryDirectory(prefix="pgonce-source-")
        folder.mkdir(parents=True, exist_ok=True)
        most = [min(4096, resource.getrlimit(each)[1]) for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)]
        # The defaults are above what this machine may allow. Without systemd: no cgroups of its own.
        (folder / "containers.conf").write_text(
            f'[containers]\ndefault_ulimits = ["nofile={most[0]}:{most[0]}", "nproc={most[1]}:{most[1]}"]\n'
            f'[engine]\nruntime = "{runtime}"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        )
        (folder / "storage.conf").write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n')
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PG")},
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "BUILDAH_ISOLATION": "chroot",
        }

    def call(self, *words, program="podman", timeout=120, **more):
        return subprocess.run(
            [program, *map(str, words)], env={**self.environment, **more.pop("env", {})}, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT, **more
        )

    def must(self, *words, **more):
        done = self.call(*words, **more)
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-6000:]}"
        return done.stdout.strip()

    def context(self):
        """The files that git knows, as they are now: what else lies about is no part of an image, and an edit meanwhile changes nothing."""
        made = pathlib.Path(self.source.name) / "pgonce"
        if not made.exists():
            with tarfile.open(fileobj=io.BytesIO(sources.tar(ROOT, "pgonce", int(EPOCH)))) as packed:
                packed.extractall(self.source.name)
        return made

    def build(self, containerfile, tag, *more, context=None, **options):
        self.must("build", "--layers", "--build-arg", f"BASE={BASE}", "--build-arg", f"SOURCE_DATE_EPOCH={EPOCH}", "-f", containerfile, "-t", tag, *more, context or self.context(), program="buildah", timeout=1500, **options)

    def image(self, name):
        return json.loads(self.must("image", "inspect", name))[0]

    def run(self, image, *words, flags=(), safe=SAFE, **more):
        """In the foreground, to its end."""
        return self.call("run", "--rm", *safe, *flags, image, *words, **more)

    @contextlib.contextmanager
    def started(self, image, *words, flags=(), safe=SAFE):
        container = Container(self, f"test-{uuid.uuid4().hex[:12]}")
        self.must("run", "-d", "--name", container.name, *safe, *flags, image, *words)
        try:
            yield container
        finally:
            self.call("rm", "-f", container.name)

    @contextlib.contextmanager
    def mounted(self, image):
        place = self.must("image", "mount", image)
        try:
            yield pathlib.Path(place)
        finally:
            self.call("image", "unmount", image)


class Container:
    def __init__(self, podman, name):
        self.podman, self.name = podman, name

    def logs(self):
        done = self.podman.call("logs", self.name)
        return done.stdout, done.stderr

    def said(self):
        return "".join(self.logs())

    def signal(self, name):
        self.podman.must("kill", "--signal", name, self.name)

    def execute(self, *words):
        return self.podman.call("exec", self.name, *words)

    def is_running(self):
        return self.podman.must("inspect", "--format", "{{.State.Running}}", self.name) == "true"

    def end(self, patience_s):
        """Its exit status. TimeoutExpired if it does not end."""
        return int(self.podman.must("wait", self.name, timeout=patience_s))

    def pid(self):
        return int(self.podman.must("inspect", "--format", "{{.State.Pid}}", self.name))


def podman():
    """Skips where no container can run."""
    fresh.require()
    for program in ("podman", "buildah"):
        if not shutil.which(program):
            pytest.skip(f"there is no {program}: tools/setup.sh test-packages")
    folder = fresh.cache() / "images"
    why = "there is neither crun nor runc"
    for runtime in filter(shutil.which, ("crun", "runc")):
        made = Podman(folder, runtime)
        if made.call("image", "exists", BASE).returncode != 0:
            made.must("import", fresh.tree("trixie"), BASE, timeout=600)
        done = made.call("run", "--rm", BASE, "true")
        if done.returncode == 0:
            return made
        why = done.stderr.strip()
    pytest.skip(f"this machine runs no containers: {why}")
