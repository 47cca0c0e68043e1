#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# The main job: starts the private PostgreSQL, plays the orders example on its requests, shows the proof, and leaves the database up.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
pgonce=$build/cli/pgonce

"$pgonce" dev --detach
dsn=$("$pgonce" dev --status --json | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["dsn"])')
echo
echo "Playing examples/orders/requests.jsonl: duplicates, retries, conflicting payloads, and clients killed in mid-transaction."
echo
psql -X -q -v ON_ERROR_STOP=1 -d "$dsn" -f examples/orders/orders.sql
"$build/examples/orders-example" --dsn "$dsn" examples/orders/requests.jsonl
echo
echo "The database is up. Type next:"
echo "  psql '$dsn' -c 'SELECT * FROM orders.customer_order'"
echo "  $pgonce show --dsn '$dsn' --scope orders --key checkout-1003"
echo "  make stop"
