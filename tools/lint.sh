#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# Static checks. lint.sh runs them all; lint.sh --format formats the C files in place. Every check runs; the exit status says whether one failed.
set -u
cd "$(dirname "$0")/.." || exit 1

# The layout depends on the version of clang-format: 14 decides.
format=""
for candidate in clang-format-14 clang-format; do
	if command -v "$candidate" >/dev/null 2>&1 && "$candidate" --version | grep -q 'version 14\.'; then
		format=$candidate
		break
	fi
done
c_files=$(git ls-files '*.c' '*.h')

if [ "${1:-}" = "--format" ]; then
	[ -n "$format" ] || { echo "make format needs clang-format 14" >&2; exit 1; }
	# shellcheck disable=SC2086
	exec "$format" -i $c_files
fi

told=$(mktemp -d)
trap 'rm -rf "$told"' EXIT
trap 'exit 1' INT TERM
check() {
	name=$1
	shift
	if output=$("$@" 2>&1); then
		echo "ok    $name"
	else
		echo "FAIL  $name"
		: >"$told/failed-$(echo "$name" | tr -c 'a-z\n' -)"
		printf '%s\n' "$output" | tail -40
	fi
}

# These checks need no build: they run beside the builds, and their results come after them.
{
	if [ -n "$format" ]; then
		# shellcheck disable=SC2086
		check "format (clang-format 14)" "$format" --dry-run -Werror $c_files
	else
		echo "skip  format: clang-format 14 is missing, and other versions format differently"
	fi
	# shellcheck disable=SC2046
	check "shell (shellcheck)" shellcheck -x $(git ls-files '*.sh' .ci/run ':!tests/pages/standins')
	# shellcheck disable=SC2046
	check "Python compiles" /usr/bin/python3 -m py_compile $(git ls-files '*.py')
	check "SQL, texts and file heads" /usr/bin/python3 tools/check_files.py
	check "pages: lengths, links, tests that they name, and their map" /usr/bin/python3 tools/pages.py --check
	check "pictures are what their texts make" /usr/bin/python3 tools/pictures.py --check
	check "turns of phrase (tools/prose.json)" /usr/bin/python3 tools/prose.py --check
	check "facts of spec/ in the sources are current" /usr/bin/python3 tools/spec.py --check
	check "module path and group of the settings are in every file" /usr/bin/python3 tools/packages.py --check
	check "the dashboard is what its table makes" /usr/bin/python3 tools/dashboard.py --check
} >"$told/beside" 2>&1 &
# Only here a warning is an error. The other checks read the build made with gcc.
build="build-werror"
check "no warning (gcc)" env CC=gcc tools/build.sh "$build" -Dwerror=true
check "no warning (clang)" env CC=clang tools/build.sh "$build-clang" -Dwerror=true -Dsbom=false
wait
cat "$told/beside"
check "no files that call each other" /usr/bin/python3 tools/circles.py "$build"
check "static analysis (clang-tidy, gcc -fanalyzer)" /usr/bin/python3 tools/analyze.py "$build"
check "generated documents are current" /usr/bin/python3 tools/docs.py --build "$build" --check
failed=$(find "$told" -name 'failed-*' | wc -l)
if [ "$failed" -gt 0 ]; then
	echo "$failed check(s) failed"
	exit 1
fi
