#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# The main demonstration: starts the private PostgreSQL and the services of examples/demo.py; plays the orders example and the payments example, shows
# the proof, and leaves everything running.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
pgonce=$build/cli/pgonce

"$pgonce" dev --detach
demo=$(examples/demo.py start "$build")
told() { # OBJECT MEMBER: empty if it does not run
	printf '%s' "$demo" | /usr/bin/python3 -c 'import json, sys; print((json.load(sys.stdin)[sys.argv[1]] or {}).get(sys.argv[2], ""))' "$1" "$2"
}
dsn=$(told server dsn)
warehouse=$(told events warehouse)
payments=$(told payments url)
echo
echo "Playing examples/orders/requests.jsonl: duplicates, retries, conflicting payloads, and clients killed in mid-transaction."
echo
psql -X -q -v ON_ERROR_STOP=1 -d "$dsn" -f examples/orders/orders.sql
"$build/examples/orders-example" --dsn "$dsn" examples/orders/requests.jsonl
echo
if [ -n "$warehouse" ]; then
	# An order is shipped a moment after its COMMIT; orders are counted first, so that orders of other runs do no harm.
	orders=$(psql -X -q -A -t -d "$dsn" -c 'SELECT count(*) FROM orders.customer_order')
	shipped=0
	for _ in $(seq 100); do
		shipped=$(psql -X -q -A -t -d "$warehouse" -c 'SELECT count(DISTINCT order_id) FROM shop.shipment')
		[ "$shipped" -lt "$orders" ] || break
		sleep 0.1
	done
	echo "Out of one database, through NATS, into another: $orders orders placed, $shipped shipped by the warehouse,"
	psql -X -q -A -t -d "$warehouse" -c "SELECT count(*) - count(DISTINCT order_id) FROM shop.shipment" | sed 's/$/ of them twice./'
	[ "$shipped" -ge "$orders" ] || { echo "The others are late: see $(told server log)" >&2; exit 1; }
	echo
fi
if [ -n "$payments" ]; then
	echo "Playing examples/payments: a service that knows nothing of retries, behind the gateway; clients and the service are killed."
	echo
	/usr/bin/python3 examples/payments/play.py "$pgonce" "$demo"
	echo
fi
echo "All is up. Type next:"
echo "  psql '$dsn' -c 'SELECT * FROM orders.customer_order'"
echo "  $pgonce show --dsn '$dsn' --scope orders --key checkout-1003"
if [ -n "$warehouse" ]; then
	echo "  psql '$warehouse' -c 'SELECT * FROM shop.shipment'"
	echo "  $pgonce parked list --dsn '$dsn'"
fi
if [ -n "$payments" ]; then
	echo "  curl -i $payments -H 'Idempotency-Key: pay-1' -H 'Content-Type: application/json' -d '{\"order\": \"A-17\", \"amount\": 1999, \"currency\": \"EUR\"}'"
	echo "  curl $(told payments status)"
fi
echo "  make stop"
console=$("$pgonce" dev --check --json | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["console"] or "")')
[ -z "$console" ] || printf '\nLook at all of it in a browser: %s\n' "$console"
