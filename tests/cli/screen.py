# SPDX-License-Identifier: PostgreSQL
"""A terminal for tests: runs a command in a pseudo-terminal and waits for what it shows."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

HOME = b"\x1b[H"
PATIENCE_S = 60


def plain(text):
    """Without escape sequences."""
    return re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", text).decode().replace("\r", "")


class Terminal:
    """The words run as the session's leader, in a terminal of so many rows and columns."""

    def __init__(self, words, environment, rows=24, columns=80):
        self.seen = b""
        self.ended = False
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(master)
            self._login(slave)
            os.execve(words[0], words, environment)
        self.fd = master
        self.slave = slave  # kept open, so that its settings can be looked at after the end

    @staticmethod
    def _login(slave):
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for fd in (0, 1, 2):
            os.dup2(slave, fd)
        if slave > 2:
            os.close(slave)

    def read(self, patience_s):
        """What comes within that time; False: nothing."""
        if not select.select([self.fd], [], [], patience_s)[0]:
            return False
        try:
            got = os.read(self.fd, 65536)
        except OSError:
            got = b""
        self.seen += got
        return got != b""

    def frames(self):
        """What was drawn, screen by screen; the last may be half there."""
        return [plain(frame).split("\n") for frame in self.seen.split(HOME)[1:]]

    def wait(self, *texts, since=None):
        """Until one screen that is drawn from now on (or since a mark) shows all the texts."""
        mark = len(self.seen) if since is None else since
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for frame in self.seen[mark:].split(HOME):
                shown = plain(frame)
                if all(text in shown for text in texts):
                    return
            left = deadline - time.monotonic()
            assert left > 0 and not self.ended, f"waited for {texts}; shown: {plain(self.seen[-4000:])}"
            self.read(min(left, 0.5))

    def type(self, text):
        os.write(self.fd, text.encode())

    def resize(self, rows, columns):
        """The mark from which on its effect is seen."""
        mark = len(self.seen)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        return mark

    def settings(self):
        return termios.tcgetattr(self.slave)

    def end(self):
        """Reads to the command's end, and gives its exit status (or minus the signal)."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self.read(0):
                    pass
                self.ended = True
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, f"it does not end; shown: {plain(self.seen[-2000:])}"
            self.read(0.05)

    def close(self):
        if not self.ended:
            try:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        os.close(self.fd)
        os.close(self.slave)
