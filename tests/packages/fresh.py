# SPDX-License-Identifier: PostgreSQL
"""A fresh Debian: a minimal tree of a release (debootstrap), in which nothing of this machine helps. Its processes have their own mounts,
process numbers and network (loopback alone), and end with it. Needs root.

    with fresh.Machine("bookworm") as machine:          # "trixie"; fresh.SUITES: both
        machine.copy(package, "/root/")
        machine.run("apt install -y ./pgonce_*.deb", online=True)
        machine.run("pgonce version", user="dev")        # an ordinary user, who is made at the first call; sudo=True in Machine: with sudo
        with machine.started("pgonce keep", user="dev") as process: ...

A bare tree and the packages that machines have fetched are kept for a day in /var/tmp/pgonce-fresh, or where PGONCE_FRESH says."""

import contextlib
import fcntl
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

SUITES = ("bookworm", "trixie")
AGE_SECONDS = 24 * 3600
SERVERS = {"bookworm": "15", "trixie": "17"}  # the PostgreSQL of each

# The first process in there. It ends, and everything there with it, when the test process does: then nobody has the other end of its input.
FIRST = """
import fcntl, os, signal, socket, struct, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(asked, 0x8914, struct.pack("16sh22x", b"lo", 0x41))
asked.close()
print("up", flush=True)
sys.stdin.read()
"""


def cache():
    return pathlib.Path(os.environ.get("PGONCE_FRESH", "/var/tmp/pgonce-fresh"))


def require():
    """Skips where no such tree can be made."""
    if os.geteuid() != 0:
        pytest.skip("a fresh Debian needs root: sudo make test-packages")
    if not shutil.which("debootstrap"):
        pytest.skip("a fresh Debian needs the package debootstrap: tools/setup.sh test-packages")


def _said(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", **more)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(map(str, command))}: exit status {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done


def _settings(root):
    """How this machine reaches the packages (a proxy, certificates), and nothing else of it."""
    settings = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True).stdout
    settings += 'Binary::apt::APT::Keep-Downloaded-Packages "true";\nAPT::Get::Assume-Yes "false";\nDpkg::Use-Pty "0";\n'
    (root / "etc/apt/apt.conf.d/00fresh").write_text(settings)
    (root / "etc/dpkg/dpkg.cfg.d/fresh").write_text("force-unsafe-io\n")
    # Debian's packages ask it before they start a server; nothing is started in a tree without an init.
    (root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
    (root / "usr/sbin/policy-rc.d").chmod(0o755)
    for certificates in ("/usr/local/share/ca-certificates", "/etc/ssl/certs"):
        to = root / certificates[1:]
        to.mkdir(parents=True, exist_ok=True)
        for each in pathlib.Path(certificates).glob("*.crt"):
            shutil.copy(each, to)
    if os.path.exists("/etc/resolv.conf"):
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost {os.uname().nodename}\n::1 localhost\n")


def _updates(root, suite):
    """The suites of updates, which Debian's installer adds; at the same mirror."""
    mirror = (root / "etc/apt/sources.list").read_text().split()[1].rstrip("/")
    with open(root / "etc/apt/sources.list", "a", encoding="utf-8") as listed:
        listed.write(f"deb {mirror} {suite}-updates main\ndeb {mirror}-security {suite}-security main\n")


def tree(suite):
    """The archive of a bare tree of that suite, with its package lists; made once a day, by one process, however many ask."""
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    packed = folder / f"{suite}.tar"
    with open(folder / f"{suite}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if packed.exists() and 0 <= time.time() - packed.stat().st_mtime < AGE_SECONDS:
            return packed
        for old in (folder / f"{suite}-debs").glob("*.deb"):
            old.unlink()
        work = pathlib.Path(tempfile.mkdtemp(prefix=f"{suite}-", dir=folder))
        try:
            root = work / "tree"
            _said(["debootstrap", "--variant=minbase", "--include=ca-certificates", suite, root], timeout=600)
            _settings(root)
            _updates(root, suite)
            _said(["chroot", root, "apt-get", "update", "-qq"], timeout=300, env=_environment())
            _said(["tar", "-C", root, "--one-file-system", "--exclude=./var/cache/apt/archives/*.deb", "-cf", work / "tar", "."])
            (work / "tar").rename(packed)
        finally:
            shutil.rmtree(work)
    return packed


def _environment(**more):
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **more}


class Done:
    """What a command said: out, err, both (out + err), status."""

    def __init__(self, command, status, out, err):
        self.command, self.status, self.out, self.err = command, status, out, err

    @property
    def both(self):
        return self.out + self.err

    def __repr__(self):
        return f"$ {self.command}\n{self.out}{self.err}(exit status {self.status})"


class Failed(AssertionError):
    pass


class Machine:
    """`include`: packages installed from the start (they are fetched from the suite's registry)."""

    def __init__(self, suite="bookworm", include=(), sudo=False):
        self.suite, self.include, self.sudo = suite, tuple(include), sudo
        self._users = {"root"}

    def __enter__(self):
        require()
        packed = tree(self.suite)
        self._debs = cache() / f"{self.suite}-debs"
        self._debs.mkdir(exist_ok=True)
        self._work = pathlib.Path(tempfile.mkdtemp(prefix=f"machine-{self.suite}-", dir=cache()))
        self.root = self._work / "tree"
        self._first = None
        try:
            self.root.mkdir(mode=0o755)
            self._work.chmod(0o755)
            _said(["tar", "-C", self.root, "-xpf", packed])
            self._link(self._debs, self._archives)
            self._begin()
            if self.include or self.sudo:
                self.run("apt-get install -y -qq --no-install-recommends " + shlex.join(self.include + (("sudo",) if self.sudo else ())), online=True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self._first:
            self._first.stdin.close()  # its first process ends, and so all of them
            self._first.wait(30)
        self._link(self._archives, self._debs)
        shutil.rmtree(self._work)  # what was mounted there was so in its own namespace alone

    @property
    def _archives(self):
        return self.root / "var/cache/apt/archives"

    @staticmethod
    def _link(of, to):
        for deb in of.glob("*.deb"):
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                os.link(deb, to / deb.name)

    def _begin(self):
        root = shlex.quote(str(self.root))
        mounts = (
            f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev && mount -t tmpfs -o mode=1777 tmpfs {root}/dev/shm && "
            f"mount -t tmpfs -o mode=755 tmpfs {root}/run && mkdir -m 1777 {root}/run/lock && exec /usr/bin/python3 -c {shlex.quote(FIRST)}"
        )
        self._first = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child", "sh", "-c", mounts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self._first.stdout.readline() != "up\n":
            raise RuntimeError("the machine did not start")
        self._pid = pathlib.Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text().split()[0]

    def _entered(self, command, user, online, env):
        if user not in self._users:
            self._users.add(user)
            made = self.run(f"id -u {user} >/dev/null 2>&1 || (useradd -m -s /bin/bash {user} && echo made)").out
            if self.sudo and made:  # none of a package's users
                self.write(f"/etc/sudoers.d/{user}", f"{user} ALL=(ALL) NOPASSWD: ALL\n")
        settings = _environment(**(env or {}))
        exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
        inner = f"export {exports}; cd; {command}"
        enter = ["nsenter", "--target", self._pid, "--mount", "--pid", "--ipc", *([] if online else ["--net"]), "--", "chroot", str(self.root)]
        shell = "/bin/bash" if user != "postgres" else "/bin/sh"
        return enter + ["/bin/su", "-s", shell, "-", user, "-c", inner]

    def run(self, command, user="root", online=False, check=True, timeout=600, input=None, env=None):
        """A line of shell, as that user, in the home folder. online: in this machine's network, where the registries are."""
        done = subprocess.run(
            self._entered(command, user, online, env), input="" if input is None else input, capture_output=True, text=True, errors="replace", timeout=timeout, env=_environment()
        )
        said = Done(command, done.returncode, done.stdout, done.stderr)
        if online:
            self._link(self._archives, self._debs)
        if check and done.returncode:
            raise Failed(repr(said))
        return said

    @staticmethod
    def _program(pid):
        """Below those that lead in, which pass no signal on."""
        while pathlib.Path(f"/proc/{pid}/comm").read_text().strip() in ("nsenter", "chroot", "su"):
            below = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if not below:
                break
            pid = int(below[0])
        return pid

    @contextlib.contextmanager
    def started(self, command, user="root", env=None, **more):
        """A process that goes on beside the test, and gets SIGTERM in the end; write `exec` before a program that is to get it itself."""
        process = subprocess.Popen(self._entered(command, user, False, env), text=True, env=_environment(), **{"stdin": subprocess.DEVNULL, **more})
        try:
            yield process
        finally:
            if process.poll() is None:
                os.kill(self._program(process.pid), signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def path(self, name):
        return self.root / str(name).lstrip("/")

    def copy(self, source, to):
        """A file or a folder of this machine; `to` that ends in a slash: into that folder. All can read it."""
        target = self.path(to)
        if str(to).endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
            target = target / pathlib.Path(source).name
        if pathlib.Path(source).is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)
            target.chmod(0o755 if os.access(source, os.X_OK) and pathlib.Path(source).stat().st_mode & 0o111 else 0o644)

    def write(self, name, text, mode=0o644):
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text)
        self.path(name).chmod(mode)

    def read(self, name):
        return self.path(name).read_text(errors="replace")

    def files(self):
        """All names of the tree, without what is mounted there."""
        return {str(pathlib.Path(folder).relative_to(self.root) / name) for folder, folders, names in os.walk(self.root) for name in names + folders}

    def server(self):
        """Installs the release's PostgreSQL and starts a cluster, as its package would with an init; `postgres` is its superuser, by the socket."""
        self.run("apt-get install -y -qq --no-install-recommends postgresql", online=True)
        self.run(f"pg_ctlcluster {SERVERS[self.suite]} main start")
