# SPDX-License-Identifier: PostgreSQL
from harness import postgres

DATABASE = "empty"
NEEDS = ("tcp", "python3")
# The workers of a gateway that root starts are another user, who cannot get to the private server's socket.
ENVIRONMENT = {"PGONCE": str(postgres.ROOT), "PGHOST": "127.0.0.1", "PGPORT": "5432"}
# The reader's service.
FILES = {"service.py": """
import http.server


class Orders(http.server.BaseHTTPRequestHandler):
    count = 0

    def do_POST(self):
        Orders.count += 1
        body = f"order {Orders.count}\\n".encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Orders).serve_forever()
"""}
BEFORE_SH = "python3 service.py > service.log 2>&1 &"
AFTER_SH = """
curl -s -H 'Idempotency-Key: order-1' -d '{"amount": 5}' http://127.0.0.1:8080/orders | grep -x 'order 1'
curl -s -H 'Idempotency-Key: order-2' -d '{"amount": 5}' http://127.0.0.1:8080/orders | grep -x 'order 2'
"""
