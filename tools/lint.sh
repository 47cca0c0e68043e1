#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# Static checks. lint.sh BUILD runs them all; lint.sh --format formats the C files in place. Every check runs; the exit status says whether one failed.
set -u
cd "$(dirname "$0")/.." || exit 1

# The layout depends on the version of clang-format: 14 is the one whose word counts.
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

build=${1:-build}
failed=0
check() {
	name=$1
	shift
	if output=$("$@" 2>&1); then
		echo "ok    $name"
	else
		echo "FAIL  $name"
		printf '%s\n' "$output" | tail -40
		failed=$((failed + 1))
	fi
}

if [ -n "$format" ]; then
	# shellcheck disable=SC2086
	check "format (clang-format 14)" "$format" --dry-run -Werror $c_files
else
	echo "skip  format: clang-format 14 is not here, and other versions lay code out differently"
fi
tidy_files=$(printf '%s\n' "$c_files" | grep '\.c$' | grep -v -e '^tests/' -e '^gateway/')
# shellcheck disable=SC2086
check "static analysis (clang-tidy)" sh -c "printf '%s\n' \"\$@\" | xargs -P 2 -n 8 clang-tidy --quiet -p $build --warnings-as-errors='*'" tidy $tidy_files
# The module is compiled by nginx's own build, where its headers are.
nginx=$build/gateway/ngx_http_once_module.so.p/nginx
if [ -d "$nginx/objs" ]; then
	set --
	for folder in src/core src/event src/event/modules src/os/unix objs src/http src/http/modules src/http/v2; do
		set -- "$@" "-I$nginx/$folder"
	done
	# shellcheck disable=SC2046
	check "static analysis of the module (clang-tidy)" clang-tidy --quiet --warnings-as-errors='*' $(git ls-files 'gateway/*.c') -- \
		-std=gnu11 -D_GNU_SOURCE -Iinclude -Ilib/http "-I$(pg_config --includedir)" "$@"
else
	echo "skip  static analysis of the module: it is not built here"
fi
# shellcheck disable=SC2046
check "shell (shellcheck)" shellcheck -x $(git ls-files '*.sh' .ci/run)
# shellcheck disable=SC2046
check "Python compiles" /usr/bin/python3 -m py_compile $(git ls-files '*.py')
check "SQL, texts and file heads" /usr/bin/python3 tools/check_files.py
check "generated documents are current" /usr/bin/python3 tools/docs.py --build "$build" --check
if [ "$failed" -gt 0 ]; then
	echo "$failed check(s) failed"
	exit 1
fi
