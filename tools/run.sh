#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# The main job: starts the private PostgreSQL and the gateway, plays the orders example and the payments example, shows the proof, and leaves everything up.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
pgonce=$build/cli/pgonce

"$pgonce" dev --detach
status() {
	"$pgonce" dev --status --json | /usr/bin/python3 -c "import json, sys; status = json.load(sys.stdin); print($1)"
}
dsn=$(status 'status["dsn"]')
gateway=$(status '(status["gateway"] or {"url": ""})["url"]')
echo
echo "Playing examples/orders/requests.jsonl: duplicates, retries, conflicting payloads, and clients killed in mid-transaction."
echo
psql -X -q -v ON_ERROR_STOP=1 -d "$dsn" -f examples/orders/orders.sql
"$build/examples/orders-example" --dsn "$dsn" examples/orders/requests.jsonl
echo
if [ -n "$gateway" ]; then
	echo "Playing examples/payments: a service that knows nothing of retries, behind the gateway; clients and the service are killed."
	echo
	/usr/bin/python3 examples/payments/play.py "$pgonce"
	echo
fi
echo "All is up. Type next:"
echo "  psql '$dsn' -c 'SELECT * FROM orders.customer_order'"
echo "  $pgonce show --dsn '$dsn' --scope orders --key checkout-1003"
if [ -n "$gateway" ]; then
	echo "  curl -i $gateway/payments -H 'Idempotency-Key: pay-1' -H 'Content-Type: application/json' -d '{\"order\": \"A-17\", \"amount\": 1999, \"currency\": \"EUR\"}'"
	echo "  curl $gateway/once/status"
fi
echo "  make stop"
