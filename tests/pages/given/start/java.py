# SPDX-License-Identifier: PostgreSQL
from harness import postgres

DATABASE = None
ENVIRONMENT = {"PGONCE": str(postgres.ROOT), "PGHOST": "127.0.0.1", "PGPORT": "5432"}
AFTER_SH = "test \"$(psql -Atc 'SELECT count(*) FROM payment' shop)\" = 2"
# The same bytes, once more, and another request refused; then the reply of a request whose service was killed.
SAYS = {
    'pay pay-1': [r"HTTP/1.1 201", 'payment 1', r"HTTP/1.1 201(?s:.)*?(?i:Idempotency-Replayed: true)", 'payment 1', r"HTTP/1.1 422", r"^1$"],
    'pay pay-2': [r"HTTP/1.1 201(?s:.)*?(?i:Idempotency-Replayed: true)", r"^2$"],
}
