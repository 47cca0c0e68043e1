#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# Tests the clients of clients/: test_clients.sh [LANGUAGE...]; all that are there unless named. Each has a test.sh, which installs what it needs from its
# registry and ends with 77 where its toolchain is missing; with what it brings the blocks of docs/how/inbox.md run, each of its frameworks is compared with itself
# without pgonce (tests/transparency), its example is hammered (tests/clients/test_examples.py), and the torture goes through it for a while (docs/torture.md): these
# two not with QUICK=yes. With MUTATIONS=yes each guarantee is taken out of the client, and a test of its own must notice (tests/clients/mutations.py). In the end the matrix of docs/clients.md is compared with what has passed.
set -eu
cd "$(dirname "$0")/.."

PGONCE_BUILD=${PGONCE_BUILD:-$PWD/build}
PGONCE_CONFORMANCE_RESULTS=$(mktemp -d)
export PGONCE_BUILD PGONCE_CONFORMANCE_RESULTS
trap 'rm -rf "$PGONCE_CONFORMANCE_RESULTS"' EXIT

failed="" left_out="" tested=""
[ $# -gt 0 ] || set -- node python go java
for language in "$@"; do
	if [ ! -x "clients/$language/test.sh" ]; then
		left_out="$left_out $language (there is none)"
		continue
	fi
	echo "== clients/$language"
	status=0
	"clients/$language/test.sh" || status=$?
	[ "$status" -ne 0 ] || /usr/bin/python3 tests/clients/inbox/run.py "$language" || status=1
	[ "$status" -ne 0 ] || /usr/bin/python3 tests/transparency/run.py --language "$language" || status=1
	[ "$status" -ne 0 ] || [ "${MUTATIONS:-}" != yes ] || /usr/bin/python3 tests/clients/mutations.py "$language" || status=1
	if [ $status -eq 0 ] && [ "${QUICK:-}" != yes ]; then
		case $language in
		node) example=express ;;
		python) example=fastapi ;;
		go) example=go-orders ;;
		java) example=spring ;;
		esac
		PGONCE_EXAMPLES=$language /usr/bin/python3 -m pytest -q -rs -p no:cacheprovider tests/clients/test_examples.py -k "$example" || status=1
	fi
	case $status in
	0)
		tested="$tested $language"
		[ "${QUICK:-}" = yes ] || PGONCE_CLIENT_DOORS=$language /usr/bin/python3 -m pytest -q -p no:cacheprovider tests/torture/test_languages.py -k "[$language" ||
			failed="$failed $language (torture)"
		;;
	77) left_out="$left_out $language (its toolchain is missing)" ;;
	*) failed="$failed $language" ;;
	esac
done
/usr/bin/python3 tools/clients_matrix.py --results "$PGONCE_CONFORMANCE_RESULTS" --check || failed="$failed docs/clients.md"

echo "tested:${tested:- nothing}; left out:${left_out:- nothing}; failed:${failed:- nothing}"
[ -z "$failed" ]
