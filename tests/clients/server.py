#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""A private PostgreSQL for the tests of any language: starts it, installs the contract, and says where it is in one line of JSON on standard output.
It listens on a unix socket and on a free port of 127.0.0.1, and ends when its standard input is closed, so it never outlives who started it.

    server.py              {"host", "port", "user", "database", "socket", "dsn", "url"}: dsn of libpq by the socket, url by TCP
    server.py --gateway    the same, and "gateway": {"host", "port"}, the gateway before a small service (see cross.json); null where it is not built

Commands, a line each on standard input, each answered by one line:
    database               a new database with the contract; the same members as above
    terminate NAME         ends the sessions whose application_name is NAME: {"ended": 1}
    stop, start, restart   the server itself, at once as in a crash: {"done": "stop"}"""

import http.server
import json
import os
import pathlib
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from harness import postgres  # noqa: E402
from harness.broker import free_port  # noqa: E402

EFFECT = "CREATE TABLE effect (key text NOT NULL, attempt integer)"


def described(server, database, port):
    user = "postgres"
    return {
        "host": "127.0.0.1",
        "port": port,
        "user": user,
        "database": database.name,
        "socket": str(server.directory),
        "dsn": server.dsn(database.name),
        "url": f"postgresql://{user}@127.0.0.1:{port}/{database.name}",
    }


def new_database(server):
    database = server.new_database()
    database.execute(EFFECT)
    return database


class Service(http.server.BaseHTTPRequestHandler):
    """What stands behind the gateway."""

    BODY = b'{"by": "the service behind the gateway"}'
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(201)
        for name, value in (("Content-Type", "application/json"), ("X-Order", "7"), ("Set-Cookie", "a=b"), ("Content-Length", str(len(self.BODY)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.BODY)

    def log_message(self, *_):
        pass


def start_gateway(server, database, scope, service_port):
    """(an nginx with the module on a port of 127.0.0.1, where that is) before a service; (None, None) where the module is not built."""
    os.environ.setdefault("PGONCE_BUILD", str(ROOT / "build"))
    from harness import nginx

    if not pathlib.Path(nginx.MODULE).exists():
        return None, None
    port = free_port()
    config = f"""
        listen 127.0.0.1:{port};
        once required; once_scope {scope}; once_tenant $http_x_tenant;
        location / {{ proxy_pass http://127.0.0.1:{service_port}; proxy_set_header Host $http_host; }}
    """
    gateway = nginx.Nginx(server=config, http=f'once_database "{server.dsn(database.name)}";')
    gateway.start()
    return gateway, {"host": "127.0.0.1", "port": port}


def start_service():
    service = http.server.ThreadingHTTPServer(("127.0.0.1", free_port()), Service)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    return service.server_port


def obey(server, port, command, database, gateways):
    word, _, rest = command.partition(" ")
    if word == "gateway":
        gateway, where = start_gateway(server, database, *rest.split())
        gateways += [gateway] if gateway else []
        return {"gateway": where}
    if word == "database":
        return described(server, new_database(server), port)
    if word == "terminate":
        connection = server.connect()
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = %s", (rest,))
            ended = cursor.fetchone()[0]
        connection.close()
        return {"ended": ended}
    if word in ("stop", "restart"):
        server.stop("immediate")
    if word in ("start", "restart"):
        server.start()
    return {"done": word} if word in ("stop", "start", "restart") else {"error": f"no such command: {word}"}


def say(answer):
    print(json.dumps(answer), flush=True)


def main():
    port = postgres.PORT = free_port()  # of the socket's file and of TCP
    with postgres.Postgres(settings={"listen_addresses": "127.0.0.1", "max_connections": "300"}) as server:
        database = new_database(server)
        answer, gateways = described(server, database, port), []
        if "--gateway" in sys.argv[1:]:
            gateway, answer["gateway"] = start_gateway(server, database, "conformance", start_service())
            gateways += [gateway] if gateway else []
        try:
            say(answer)
            for line in sys.stdin:
                say(obey(server, port, line.strip(), database, gateways))
        finally:
            for gateway in gateways:
                gateway.close(check=False)
                gateway.destroy()


if __name__ == "__main__":
    main()
