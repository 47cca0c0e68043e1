#!/usr/bin/env bash
# SPDX-License-Identifier: PostgreSQL
# Tests the clients of clients/: test_clients.sh [LANGUAGE...]; by default those of tools/languages.json. Each has a test.sh, which installs its dependencies from its
# registry and exits with 77 if its toolchain is missing; with its dependencies its agent plays the cases of
# spec/cases (tests/clients/test_agents.py), the pages with its blocks (tests/pages) and the programs of docs/how/inbox.md and webhooks.md run, each of its frameworks is compared with itself
# without pgonce (tests/transparency), its example is hammered (tests/clients/test_examples.py), and the torture goes through it for a while (tests/torture/README.md): these
# two not with QUICK=yes. With MUTATIONS=yes each guarantee is removed from the client, and one of its tests must fail (tests/clients/mutations.py). In the end the matrix of docs/reference/clients.md is compared with the results.
# JOBS=2: two languages at a time; a language's output is printed when it has finished.
set -euo pipefail
cd "$(dirname "$0")/.."

PGONCE_BUILD=${PGONCE_BUILD:-$PWD/build}
PGONCE_CONFORMANCE_RESULTS=$(mktemp -d)
export PGONCE_BUILD PGONCE_CONFORMANCE_RESULTS
told=$(mktemp -d) # LANGUAGE.verdict: one line, such as "tested"; LANGUAGE.log
trap 'rm -rf "$PGONCE_CONFORMANCE_RESULTS" "$told"' EXIT
trap 'trap - INT TERM; kill 0' INT TERM
verdict() { echo "$2" > "$told/$1.verdict"; }
# The languages, or the example of one, from the table.
table() { /usr/bin/python3 -c "import json; table = json.load(open('tools/languages.json')); print($1)"; }

test_language() {
	local language=$1 status=0
	if [ ! -x "clients/$language/test.sh" ]; then
		verdict "$language" "left out (there is none)"
		return
	fi
	echo "== clients/$language"
	"clients/$language/test.sh" || status=$?
	[ "$status" -ne 0 ] || PGONCE_CLIENT_DOORS=$language /usr/bin/python3 -m pytest -q -p no:cacheprovider tests/clients/test_agents.py -k "[$language-" || status=1
	[ "$status" -ne 0 ] || /usr/bin/python3 tests/clients/inbox/run.py "$language" || status=1
	[ "$status" -ne 0 ] || /usr/bin/python3 tests/transparency/run.py --language "$language" || status=1
	# They use packages that the step before has installed.
	[ "$status" -ne 0 ] || PGONCE_PAGES=$language /usr/bin/python3 -m pytest -q -rs -p no:cacheprovider tests/pages -k "test_the_page and $language" || status=1
	[ "$status" -ne 0 ] || [ "${MUTATIONS:-}" != yes ] || /usr/bin/python3 tests/clients/mutations.py "$language" || status=1
	if [ $status -eq 0 ] && [ "${QUICK:-}" != yes ]; then
		PGONCE_EXAMPLES=$language /usr/bin/python3 -m pytest -q -rs -p no:cacheprovider tests/clients/test_examples.py -k "$(table "table['$language']['example']")" || status=1
	fi
	case $status in
	0) verdict "$language" tested ;;
	77) verdict "$language" "left out (its toolchain is missing)" ;;
	*) verdict "$language" failed ;;
	esac
	[ $status -eq 0 ] && [ "${QUICK:-}" != yes ] || return 0
	PGONCE_CLIENT_DOORS=$language /usr/bin/python3 -m pytest -q -p no:cacheprovider tests/torture/test_languages.py -k "[$language" ||
		verdict "$language" "failed (torture)"
}

read -ra languages <<< "$(table "*table")"
[ $# -gt 0 ] || set -- "${languages[@]}"
running=0
for language in "$@"; do
	verdict "$language" "failed (ended early)"
	if [ "${JOBS:-1}" -eq 1 ]; then
		test_language "$language"
		continue
	fi
	[ $running -lt "$JOBS" ] || { wait -n || true; running=$((running - 1)); }
	{
		test_language "$language" > "$told/$language.log" 2>&1 || true
		flock "$told" cat "$told/$language.log"
	} &
	running=$((running + 1))
done
wait

failed=""
matrix=$(/usr/bin/python3 tools/clients_matrix.py --results "$PGONCE_CONFORMANCE_RESULTS" --check 2>&1) || failed=yes
[ -z "$matrix" ] || echo "$matrix"
[ -z "$failed" ] || echo "docs/reference/clients.md: failed"
for language in "$@"; do
	echo "$language: $(cat "$told/$language.verdict")"
	! grep -q failed "$told/$language.verdict" || failed=yes
done
[ -z "$failed" ]
