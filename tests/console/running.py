# SPDX-License-Identifier: PostgreSQL
"""`pgonce console` as a process, and how a test asks it: over one socket per request, with the headers that it names."""

import http.client
import json
import os
import re
import signal
import subprocess
import urllib.parse

from harness.broker import free_port
from harness.postgres import PATIENCE_S, ROOT, clean_environment, tied, wait_until

PROGRAM = os.path.join(os.environ.get("PGONCE_BUILD", ROOT / "build"), "cli/pgonce")
LINE = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
TOKEN = re.compile(r'name="token" value="([0-9a-f]{64})"')
ROLES = {"watcher": "once_reader", "boss": "once_admin"}


def make_roles(db):
    """Roles of people: watcher sees, boss decides."""
    for name, role in ROLES.items():
        db.execute(f"DO $$ BEGIN CREATE ROLE {name} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        db.execute(f"GRANT {role} TO {name}")


class Answer:
    def __init__(self, answer):
        self.status, self.headers, self.body = answer.status, answer.headers, answer.read()
        self.text = self.body.decode()

    def json(self):
        return json.loads(self.text)

    def cookie(self):
        given = self.headers.get("Set-Cookie")
        return given and given.split(";")[0]


class Console:
    """It listens on a free port of 127.0.0.1."""

    def __init__(self, directory, dsn, *arguments, port=None):
        self.port = port or free_port()
        self.words = [PROGRAM, "console", "--dsn", dsn, "--listen", f"127.0.0.1:{self.port}", *arguments]
        self.err = directory / f"console-{self.port}.err"
        self.process = None

    def __enter__(self):
        with open(self.err, "ab") as err:
            self.process = subprocess.Popen(tied(self.words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err,
                                            env=clean_environment(), start_new_session=True)
        self.until(lambda: self.log("listening"), "the console to listen")
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)

    def until(self, condition, what):
        def asked():
            assert self.process.poll() is None, f"the console ended ({self.process.returncode}):\n{self.err.read_text()}"
            return condition()

        wait_until(asked, what)

    def log(self, event):
        lines = [dict(LINE.findall(line)) for line in self.err.read_text().splitlines()]
        return [line for line in lines if line.get("event") == event]

    def stop(self):
        """The exit status of an orderly end."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    @property
    def host(self):
        return f"127.0.0.1:{self.port}"

    def ask(self, path, method="GET", body=None, timeout=PATIENCE_S, **headers):
        """headers: Sec_Fetch_Site=...; None leaves one out."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            given = {"Host": self.host, "Accept": "text/html", **{name.replace("_", "-"): value for name, value in headers.items()}}
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            if body is not None:
                given.setdefault("Content-Type", FORM)
                given["Content-Length"] = str(len(body))
            for name, value in given.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(body)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def document(self, path, **parameters):
        answer = self.ask(f"{path}?{urllib.parse.urlencode(parameters)}", Accept=JSON)
        assert answer.status == 200, answer.text
        return answer.json()

    def form_of(self, path, **headers):
        """(cookie, token) of a page with a form."""
        answer = self.ask(path, **headers)
        assert answer.status == 200, answer.text
        return answer.cookie(), TOKEN.search(answer.text)[1]

    def send(self, path, fields, **headers):
        return self.ask(path, "POST", urllib.parse.urlencode(fields).encode(), **headers)
