#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# Tests the Go client, its modules' dependencies fetched by go itself. 77: the toolchain is missing, and it says which.
set -eu
cd "$(dirname "$0")"
PATH="$PATH:/usr/local/go/bin"

if ! command -v go >/dev/null; then
	echo "Go 1.21 or later is missing: the Go client was left out" >&2
	exit 77
fi
# The race detector is C.
race=
if [ "$(go env CGO_ENABLED)" = 1 ] && command -v "$(go env CC)" >/dev/null; then
	race=-race
fi
for module in . onceotel; do
	(
		cd "$module"
		unformatted=$(gofmt -l .)
		if [ -n "$unformatted" ]; then
			echo "not as gofmt lays it out: $unformatted" >&2
			exit 1
		fi
		go vet ./...
		go test $race -count=1 -timeout 20m ./...
	)
done
