# SPDX-License-Identifier: PostgreSQL
"""A private NATS server with JetStream, and a client of its plain-text protocol that shares nothing with the one under test."""

import base64
import json
import signal
import socket
import ssl
import time

from .broker import Broker, accepts, certificates, free_port, program
from .postgres import PATIENCE_S, wait_until

HEADER = b"NATS/1.0"


class Message:
    """headers: (name, value) in their order. sequence: in its stream, where it was read from one."""

    def __init__(self, subject, headers, data, reply=None, sequence=None):
        self.subject, self.headers, self.data, self.reply, self.sequence = subject, headers, data, reply, sequence

    def header(self, name):
        """The only value; None where there is none."""
        values = [value for each, value in self.headers if each == name]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None

    def __repr__(self):
        return f"<{self.subject} {self.headers} {self.data[:200]!r}>"


def parse_headers(block):
    """(the status line's status or "", the headers)."""
    lines = block.decode().split("\r\n")
    assert lines[0].startswith("NATS/1.0"), lines[0]
    pairs = [line.split(":", 1) for line in lines[1:] if line]
    return lines[0][len("NATS/1.0") :].strip(), [(name, value.strip()) for name, value in pairs]


class Client:
    """One connection. A request's answer, and messages of a subscription, as they come."""

    def __init__(self, port, tls=None, timeout=PATIENCE_S, **login):
        """login: user and pass, or auth_token. tls: an ssl.SSLContext."""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.stream = self.socket.makefile("rb")
        info = self.line()
        assert info.startswith(b"INFO "), info
        self.info = json.loads(info[5:])
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
            self.stream = self.socket.makefile("rb")
        options = {"verbose": False, "pedantic": True, "headers": True, "no_responders": True, **login}
        self.inbox = f"_INBOX.{id(self)}.{time.monotonic_ns()}"
        self.write(b"CONNECT %s\r\nSUB %s.* 1\r\nPING\r\n" % (json.dumps(options).encode(), self.inbox.encode()))
        line = self.line()
        assert line == b"PONG", line
        self.asked = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.stream.close()
        self.socket.close()

    def write(self, data):
        self.socket.sendall(data)

    def line(self):
        line = self.stream.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the NATS server closed the connection")
        return line[:-2]

    def subscribe(self, subject, number=2):
        self.write(b"SUB %s %d\r\n" % (subject.encode(), number))
        return self

    def publish(self, subject, data=b"", headers=(), reply=""):
        data = data if isinstance(data, bytes) else data.encode()
        if headers:
            block = HEADER + b"\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers).encode() + b"\r\n"
            head = f"HPUB {subject} {reply} {len(block)} {len(block) + len(data)}\r\n".encode()
            self.write(head + block + data + b"\r\n")
        else:
            self.write(f"PUB {subject} {reply} {len(data)}\r\n".encode() + data + b"\r\n")
        return self

    def next(self, timeout=PATIENCE_S):
        """The next message that any subscription brings."""
        self.socket.settimeout(timeout)
        while True:
            words = self.line().split()
            kind = words[0].upper()
            if kind == b"PING":
                self.write(b"PONG\r\n")
            elif kind == b"-ERR":
                raise ConnectionError(b" ".join(words[1:]).decode())
            elif kind in (b"MSG", b"HMSG"):
                sizes = [int(word) for word in words[-(2 if kind == b"HMSG" else 1) :]]
                names = words[1 : -len(sizes)]  # subject, subscription, and perhaps reply
                whole = self.stream.read(sizes[-1])
                assert self.stream.read(2) == b"\r\n"
                headers, data = [], whole
                if kind == b"HMSG":
                    status, headers = parse_headers(whole[: sizes[0]])
                    headers += [("Status", status)] if status else []
                    data = whole[sizes[0] :]
                return Message(names[0].decode(), headers, data, names[2].decode() if len(names) > 2 else None)

    def request(self, subject, data=b"", headers=(), timeout=PATIENCE_S):
        self.asked += 1
        reply = f"{self.inbox}.{self.asked}"
        self.publish(subject, data, headers, reply)
        while True:
            message = self.next(timeout)
            if message.subject == reply:
                return message

    def api(self, subject, **arguments):
        """JetStream's own requests, under $JS.API; AssertionError where it says no."""
        answer = json.loads(self.request(f"$JS.API.{subject}", json.dumps(arguments).encode()).data)
        assert "error" not in answer, f"{subject}: {answer['error']}"
        return answer


class Nats(Broker):
    """user and password, or token: what clients must give. tls: only TLS is taken (certificates in the directory). verify: and only with
    client.pem. certificate: which one it shows. storage_bytes: what all streams together may take. more: lines of the server's configuration;
    login: how this class logs in where they have users."""

    name = "nats"

    def __init__(self, user=None, password=None, token=None, tls=False, verify=False, certificate="server", storage_bytes=None, more="", login=None):
        super().__init__()
        self.port = free_port()
        self.user, self.password, self.token, self.tls, self.login = user, password, token, tls, login
        limit = f", max_file_store: {storage_bytes}" if storage_bytes else ""
        self.jetstream = f'jetstream {{ store_dir: "{self.directory}/data"{limit} }}'
        lines = [f"listen: 127.0.0.1:{self.port}", self.jetstream, more]
        if user:
            lines.append(f'authorization {{ user: "{user}", password: "{password}" }}')
        if token:
            lines.append(f'authorization {{ token: "{token}" }}')
        if tls:
            certificates(self.directory)
            lines.append(
                f'tls {{ cert_file: "{self.directory}/{certificate}.pem", key_file: "{self.directory}/{certificate}.key",'
                f' ca_file: "{self.directory}/ca.pem", verify: {"true" if verify else "false"} }}'
            )
        (self.directory / "conf").write_text("\n".join(lines) + "\n")

    @property
    def url(self):
        return f"{'tls' if self.tls else 'nats'}://127.0.0.1:{self.port}"

    def command(self):
        return [program("nats-server", "nats-server"), "-c", self.directory / "conf"]

    def is_ready(self):
        if not accepts(self.port):
            return False
        with self.connect() as client:
            answer = client.request("$JS.API.INFO", timeout=5)
            return answer.header("Status") is None

    def connect(self, timeout=PATIENCE_S):
        context = None
        if self.tls:
            context = ssl.create_default_context(cafile=self.directory / "ca.pem")
            context.check_hostname = False
            context.load_cert_chain(self.directory / "client.pem", self.directory / "client.key")
        login = {"auth_token": self.token} if self.token else {"user": self.user, "pass": self.password} if self.user else {}
        return Client(self.port, context, timeout, **(self.login or login))

    def switch(self, jetstream):
        """With JetStream or without, as the configuration is read again: clients stay connected."""
        conf = self.directory / "conf"
        off = "# " + self.jetstream
        conf.write_text(conf.read_text().replace(off, self.jetstream) if jetstream else conf.read_text().replace(self.jetstream, off))
        done = self.log.read_text().count("Reloaded server configuration")
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.log.read_text().count("Reloaded server configuration") > done, "the configuration to be read")

    def add_stream(self, name, *subjects, **settings):
        """settings: as JetStream's stream configuration names them: max_msgs, discard, max_msg_size, duplicate_window (ns), ..."""
        with self.connect() as client:
            client.api(f"STREAM.CREATE.{name}", name=name, subjects=list(subjects), storage="file", num_replicas=1, **settings)

    def change_stream(self, name, **settings):
        with self.connect() as client:
            config = client.api(f"STREAM.INFO.{name}")["config"]
            client.api(f"STREAM.UPDATE.{name}", **{**config, **settings})

    def delete_stream(self, name):
        with self.connect() as client:
            client.api(f"STREAM.DELETE.{name}")

    def state(self, stream):
        """messages, bytes, first_seq, last_seq, ..."""
        with self.connect() as client:
            return client.api(f"STREAM.INFO.{stream}")["state"]

    def messages(self, stream):
        """All that are in the stream, in its order."""
        found = []
        with self.connect() as client:
            state = client.api(f"STREAM.INFO.{stream}")["state"]
            for sequence in range(state["first_seq"], state["last_seq"] + 1) if state["messages"] else ():
                raw = client.api(f"STREAM.MSG.GET.{stream}", seq=sequence)["message"]
                headers = parse_headers(base64.b64decode(raw["hdrs"]))[1] if "hdrs" in raw else []
                data = base64.b64decode(raw.get("data", ""))
                found.append(Message(raw["subject"], headers, data, sequence=raw["seq"]))
        return found

    def publish(self, messages):
        """(subject, data) or (subject, data, headers) each; returns when the stream has them all."""
        with self.connect() as client:
            for subject, data, *headers in messages:
                answer = json.loads(client.request(subject, data, *headers).data)
                assert "error" not in answer, answer

    def consumers(self, stream):
        """Of each: name, num_ack_pending, num_pending, ack_floor, ..."""
        with self.connect() as client:
            return client.api(f"CONSUMER.LIST.{stream}")["consumers"] or []


class Cluster:
    """Servers with JetStream in one cluster; the tag of each, for a stream's placement, is n0, n1, ... Use it in a with statement."""

    def __init__(self, count):
        ports = [free_port() for _ in range(count)]
        routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports)
        self.servers = [
            Nats(more=f"server_name: n{n}\nserver_tags: [n{n}]\ncluster {{ name: c, listen: 127.0.0.1:{port}, routes: [{routes}] }}")
            for n, port in enumerate(ports)
        ]

    def __enter__(self):
        try:
            for server in self.servers:
                server.start(wait=False)
            for server in self.servers:
                wait_until(lambda server=server: accepts(server.port), "the server to listen")
                self.wait_leader(server)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.destroy()

    @staticmethod
    def has_leader(server):
        """Does JetStream answer there, by whichever server leads it?"""
        try:
            with server.connect(1) as client:
                return "error" not in json.loads(client.request("$JS.API.STREAM.NAMES", timeout=1).data or b'{"error": 0}')
        except OSError:
            return False

    def wait_leader(self, server, there=True):
        wait_until(lambda: self.has_leader(server) == there, f"JetStream to have a leader: {there}", 3 * PATIENCE_S)
