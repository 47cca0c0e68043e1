# SPDX-License-Identifier: PostgreSQL
"""What stands in front of ElasticMQ, or in the place of a service of AWS that nobody can run privately (SNS, STS, the metadata endpoints): it
verifies signatures as AWS describes them, by a clock of its own, refuses, throttles, delays, and changes answers as a test says."""

import collections
import email.utils
import hashlib
import hmac
import http.client
import http.server
import json
import re
import select
import socket
import socketserver
import ssl
import threading
import time
import urllib.parse

from .broker import free_port
from .postgres import ROOT

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
AUTHORIZATION = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, SignedHeaders=([^,]+), Signature=([0-9a-f]{64})$")
SKEW_S_MAX = 300

Request = collections.namedtuple("Request", "method path headers body target")  # target: "SendMessage"; of a form: its Action


def environment(region="eu-central-1", **more):
    """Of a process that has credentials in its environment, and no proxy; more: "name": None takes one away."""
    given = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": region, "AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent",
             "NO_PROXY": "*", "no_proxy": "*", **more}  # fmt: skip
    return {name: str(value) for name, value in given.items() if value is not None}


def signature(secret, date, region, service, canonical):
    def keyed(key, text):
        return hmac.new(key, text.encode(), hashlib.sha256).digest()

    scope = f"{date[:8]}/{region}/{service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = keyed(keyed(keyed(keyed(f"AWS4{secret}".encode(), date[:8]), region), service), "aws4_request")
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


class Door:
    """forward: the port of a server, or a function of a Request that gives (status, body) or (status, body, headers). keys: {access key:
    (secret, session token or None)}: signatures are verified. service: what they must be for. Use it in a with statement."""

    def __init__(self, forward, keys=None, service="sqs", region="eu-central-1", certificates=None, certificate="server", port=None, remembers=True):
        self.forward, self.keys, self.service, self.region = forward, {KEY: (SECRET, None)} if keys is None else keys, service, region
        self.port, self.remembers = port or free_port(), remembers
        self.requests, self.rules, self.lock = [], [], threading.Lock()
        self.ahead_s = 0  # of its clock
        self.delay_s = 0  # before each answer
        self.frozen = threading.Event()
        self.frozen.set()
        door = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                try:
                    door.serve(self)
                except (ConnectionError, TimeoutError):
                    self.close_connection = True

            do_GET = do_POST = do_PUT = answer

            def log_message(self, *_):
                pass

            def date_time_string(self, timestamp=None):
                return email.utils.formatdate(time.time() + door.ahead_s, usegmt=True)

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", self.port), Handler)
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates / f"{certificate}.pem", certificates / f"{certificate}.key")
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.scheme = "http" if certificates is None else "https"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.frozen.set()
        self.server.shutdown()
        self.server.server_close()

    # ---- what a test says

    def fail(self, target, status=503, code="ServiceUnavailable", times=1, message="said by the test", before=True, when=None):
        """The next `times` calls of this action are refused; before False: after they were done (the answer is lost). when:
        those alone whose Request it says yes to."""
        self.rules.append({"target": target, "status": status, "code": code, "message": message, "left": times, "before": before, "when": when})

    def drop(self, target, times=1, when=None):
        """The answers to the next `times` calls of this action are lost with their connections; the calls were done."""
        self.rules.append({"target": target, "drop": True, "left": times, "when": when})

    def edit(self, target, change, times=1):
        """change: a function of the answer (JSON) that gives another, or None for the same."""
        self.rules.append({"target": target, "change": change, "left": times})

    def calls(self, target):
        with self.lock:
            return [request for request in self.requests if request.target == target]

    def freeze(self):
        """Takes calls and answers none, until thaw."""
        self.frozen.clear()

    def thaw(self):
        self.frozen.set()

    # ---- serving

    def rule(self, request, target, kind):
        with self.lock:
            for rule in self.rules:
                if rule["target"] == target and kind in rule and rule["left"] > 0 and (rule.get("when") is None or rule["when"](request)):
                    rule["left"] -= 1
                    return rule
        return None

    def serve(self, handler):
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        target = (handler.headers.get("X-Amz-Target") or "").rpartition(".")[2]
        if not target and body:
            target = urllib.parse.parse_qs(body.decode()).get("Action", [""])[0]
        request = Request(handler.command, handler.path, handler.headers, body, target)
        if self.remembers:
            with self.lock:
                self.requests.append(request)
        self.frozen.wait()
        time.sleep(self.delay_s)
        refusal = self.refusal(request) if self.keys else None
        rule = None if refusal else self.rule(request, target, "status")
        if refusal is None and rule is not None and rule["before"]:
            refusal = self.error(request, rule["status"], rule["code"], rule["message"])
        status, text, *headers = refusal or self.pass_on(request)
        if refusal is None and rule is not None:
            status, text, *headers = self.error(request, rule["status"], rule["code"], rule["message"])
        if refusal is None and self.rule(request, target, "drop"):
            handler.close_connection = True
            return
        change = self.rule(request, target, "change") if status == 200 else None
        if change is not None:
            answer = json.loads(text)
            changed = change["change"](answer)
            text = json.dumps(answer if changed is None else changed).encode()
        handler.send_response(status)
        for name, value in (headers[0] if headers else {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def pass_on(self, request):
        if callable(self.forward):
            status, text, *headers = self.forward(request)
            return (status, text if isinstance(text, bytes) else text.encode(), *headers)
        connection = http.client.HTTPConnection("127.0.0.1", self.forward, timeout=60)
        try:
            wanted = ("Content-Type", "X-Amz-Target")
            connection.request(request.method, request.path, request.body, {name: request.headers[name] for name in wanted if name in request.headers})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return self.error(request, 503, "ServiceUnavailable", "nobody is behind the door")
        finally:
            connection.close()

    @staticmethod
    def error(request, status, code, message):
        if request.headers.get("X-Amz-Target"):
            return status, json.dumps({"__type": f"com.amazonaws.sqs#{code}", "message": message}).encode()
        return status, f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>".encode()

    def refusal(self, request):
        """What AWS would say of its signature; None: it is good."""
        found = AUTHORIZATION.match(request.headers.get("Authorization") or "")
        if found is None:
            return self.error(request, 403, "MissingAuthenticationToken", "no signature")
        key, day, region, service, names, given = found.groups()
        if key not in self.keys:
            return self.error(request, 403, "InvalidClientTokenId", "The security token included in the request is invalid.")
        secret, token = self.keys[key]
        if token is not None and request.headers.get("X-Amz-Security-Token") != token:
            return self.error(request, 403, "ExpiredToken", "The security token included in the request is expired")
        date = request.headers.get("X-Amz-Date") or ""
        signed = names.split(";")
        must = {"host", "x-amz-date", "content-type"} | {name.lower() for name in request.headers if name.lower().startswith("x-amz-")}
        values = "".join(f"{name}:{' '.join((request.headers.get(name) or '').split())}\n" for name in signed)
        canonical = f"{request.method}\n/\n\n{values}\n{names}\n{hashlib.sha256(request.body).hexdigest()}"
        right = signature(secret, date, self.region, self.service, canonical)
        if signed != sorted(signed) or not must <= set(signed) or (region, service, day) != (self.region, self.service, date[:8]) or right != given:
            return self.error(request, 403, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided.")
        off_s = time.time() + self.ahead_s - time.mktime(time.strptime(date, "%Y%m%dT%H%M%SZ")) + time.timezone
        if abs(off_s) > SKEW_S_MAX:
            what = "Signature expired" if off_s > 0 else "Signature not yet current"
            return self.error(request, 403, "SignatureDoesNotMatch", f"{what}: {date}")
        return None


def allowed(starting):
    """The actions that the policy on the page about SQS allows which comes after this text: {"SendMessage"}."""
    page = (ROOT / "docs/how/sqs-sns.md").read_text()
    policy = json.loads(page[page.index(starting) :].partition("```json\n")[2].partition("```")[0])
    actions = [statement["Action"] for statement in policy["Statement"]]
    return {action.partition(":")[2] for each in actions for action in ([each] if isinstance(each, str) else each)}


def permission(target):
    """What a call needs: a batch the same as one alone."""
    return {"DeleteMessageBatch": "DeleteMessage", "SendMessageBatch": "SendMessage", "PublishBatch": "Publish",
            "ChangeMessageVisibilityBatch": "ChangeMessageVisibility"}.get(target, target)  # fmt: skip


class Tunnel:
    """A proxy of HTTP, for CONNECT and for whole URLs of http://. asked: what it was asked for; seen: all bytes that came from clients. Use it in a with
    statement."""

    def __init__(self):
        self.asked, self.seen, self.lock = [], b"", threading.Lock()
        tunnel = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                try:
                    tunnel.lead(self.request)
                except OSError:
                    pass

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self.port = free_port()
        self.server = Server(("127.0.0.1", self.port), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def note(self, data):
        with self.lock:
            self.seen += data

    def lead(self, client):
        head = b""
        while b"\r\n\r\n" not in head:
            more = client.recv(65536)
            if not more:
                return
            head += more
        self.note(head)
        method, target = head.split(b" ", 2)[:2]
        target = target.decode()
        with self.lock:
            self.asked.append(f"{method.decode()} {target}")
        host, _, port = (target if method == b"CONNECT" else urllib.parse.urlsplit(target).netloc).partition(":")
        with socket.create_connection((host, int(port))) as server:
            if method == b"CONNECT":
                client.sendall(b"HTTP/1.1 200 Connection established\r\nDate: Thu, 01 Jan 1970 00:00:01 GMT\r\n\r\n")
            else:
                server.sendall(head.replace(target.encode(), (urllib.parse.urlsplit(target).path or "/").encode(), 1))
            self.pass_on(client, server)

    def pass_on(self, client, server):
        while True:
            for end in select.select([client, server], [], [])[0]:
                data = end.recv(65536)
                if not data:
                    return
                if end is client:
                    self.note(data)
                (server if end is client else client).sendall(data)
