# SPDX-License-Identifier: PostgreSQL
"""A payment provider that knows nothing about retries: it charges for each request. POST /charges {"reference", "account", "amount"}; GET /charges?reference=... lists
what was charged for it, and GET /totals counts. As real ones do, it refuses some requests (503), and loses some answers after it has charged. provider.py [PORT]"""

import http.server
import json
import sys
import threading
import time
import urllib.parse

REFUSES, LOSES = 7, 11  # every 7th, every 11th request
LIMIT = 1000000  # above it a card is declined
WORK_S = 0.02

charges = []  # {"charge", "reference", "account", "amount"}
asked = 0
lock = threading.Lock()


class Provider(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def say(self, status, answer, *headers):
        body = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path, _, query = self.path.partition("?")
        with lock:
            if path == "/totals":
                self.say(200, {"charges": len(charges), "references": len({each["reference"] for each in charges})})
            else:
                (reference,) = urllib.parse.parse_qs(query)["reference"]
                self.say(200, [each for each in charges if each["reference"] == reference])

    def do_POST(self):
        global asked
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(WORK_S)
        with lock:
            asked += 1
            refused, lost = asked % REFUSES == 0, asked % LOSES == 0
            declined = wanted["amount"] > LIMIT
            made = {"charge": len(charges) + 1, **wanted}
            if not refused and not declined:
                charges.append(made)
        if refused:
            self.say(503, {"error": "not now"}, ("Retry-After", "1"))
        elif declined:
            self.say(402, {"error": "declined"})
        elif lost:
            self.close_connection = True
        else:
            self.say(201, made)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8090), Provider).serve_forever()
