#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Records what a command prints, with its times, as asciicast version 2: record.py OUT.cast TITLE COMMAND...

It runs the command in a new terminal, 150 columns wide. Names of folders are shortened, and the key in an address of the console is left out. tools/pictures.py makes a picture of it."""

import json
import os
import pty
import re
import sys
import time

COLUMNS, LINES = 150, 30


def main():
    out, title, *command = sys.argv[1:]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="dumb", COLUMNS=str(COLUMNS), LINES=str(LINES))
        os.execvp(command[0], command)
    start, events, kept = time.monotonic(), [[0.0, "o", f"$ {title}\r\n"]], b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux: all that wrote to it are gone
            break
        if not piece:
            break
        whole, newline, kept = (kept + piece).rpartition(b"\n")
        if newline:
            text = (whole + newline).decode(errors="replace").replace(os.getcwd() + "/", "").replace(os.getcwd(), ".")
            text = re.sub(re.escape(os.path.expanduser("~")) + r"(?=/)", "~", text)
            events.append([round(time.monotonic() - start, 2), "o", re.sub(r"\baccess=\w+", "access=...", text)])
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"record.py: {' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}: nothing is written")
    with open(out, "w", encoding="utf-8") as file:
        file.write("# SPDX-License-Identifier: PostgreSQL\n")
        file.write(json.dumps({"version": 2, "width": COLUMNS, "height": LINES, "title": title}) + "\n")
        file.writelines(json.dumps(event, ensure_ascii=False) + "\n" for event in events)


if __name__ == "__main__":
    main()
