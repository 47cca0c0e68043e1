#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# Installs what the Node client is tested with, and tests it. 77: the toolchain is missing, and it says which.
set -eu
cd "$(dirname "$0")"

if ! { command -v node && command -v npm; } >/dev/null || ! node -e 'process.exit(Number(process.versions.node.split(".")[0]) >= 18 ? 0 : 1)'; then
	echo "Node 18 or later, with npm, is missing: the Node client was left out" >&2
	exit 77
fi
npm ci --no-audit --no-fund --loglevel=error
npm run --silent types
exec node --test test/
