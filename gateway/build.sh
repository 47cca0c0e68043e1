#!/bin/bash
# SPDX-License-Identifier: PostgreSQL
# Builds the nginx module against Debian's nginx-dev: build.sh OUTPUT WORK_DIRECTORY ARCHIVE... -- LIBRARY_OPTION... -- COMPILER_OPTION... -- LINKER_OPTION...
# PGONCE_COVERAGE=1: branches are counted (tools/coverage.py), and the module's allocations can be made to fail (tests/gateway/faults.c).
# meson calls it; the last two are the hardening that all of pgonce is built with. configure runs only when its input changed; make rebuilds only what changed.
set -euo pipefail

output=$(realpath -m "$1")
work=$(realpath -m "$2")
shift 2
archives=()
while [ "$1" != "--" ]; do
	archives+=("$(realpath "$1")")
	shift
done
shift
words=("" "" "")
for list in 0 1 2; do
	while [ $# -gt 0 ] && [ "$1" != "--" ]; do
		words[list]+="$1 "
		shift
	done
	[ $# -eq 0 ] || shift
done
libraries=${words[0]}
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
source=/usr/share/nginx/src

# Ninja and make must not share a job server that make cannot reach.
unset MAKEFLAGS MFLAGS
PGONCE_INCLUDES="$root/include $root/lib/http $(pkg-config --cflags-only-I libpq | sed 's/-I//g')"
PGONCE_HEADERS="$root/include/pgonce.h $(echo "$root"/lib/http/*.h)"
PGONCE_ARCHIVES="${archives[*]}"
PGONCE_LIBRARIES="-Wl,--exclude-libs,ALL -Wl,--version-script=$here/exports.map $libraries"
PGONCE_COMPILER="-g -O2 -fPIC -Wformat -Werror=format-security -Wshadow -Wstrict-prototypes -Wmissing-prototypes ${words[1]}"
PGONCE_LINKER="-fPIC ${words[2]}"
PGONCE_TEST_SOURCES=""
if [ -n "${PGONCE_COVERAGE:-}" ]; then
	PGONCE_COMPILER="$PGONCE_COMPILER -O0 -U_FORTIFY_SOURCE --coverage" PGONCE_LINKER="$PGONCE_LINKER --coverage"
	PGONCE_TEST_SOURCES="$root/tests/gateway/faults.c"
	wrapped=$(sed -n 's/^FAULT([^,]*, \([a-z_]*\),.*/\1/p' "$PGONCE_TEST_SOURCES")
	for name in $wrapped; do
		PGONCE_LIBRARIES="$PGONCE_LIBRARIES -Wl,--wrap=$name"
	done
fi
export PGONCE_INCLUDES PGONCE_HEADERS PGONCE_ARCHIVES PGONCE_LIBRARIES PGONCE_COMPILER PGONCE_LINKER PGONCE_TEST_SOURCES

mkdir -p "$work"
stamp=$(cat "$here/config" "$here/build.sh" "$source/conf_flags" <(env | grep ^PGONCE_ | sort) <(nginx -v 2>&1) | sha256sum)
if [ "$stamp" != "$(cat "$work/stamp" 2>/dev/null)" ]; then
	rm -rf "$work/nginx"
	cp -r "$source" "$work/nginx"
	# shellcheck disable=SC1091
	. "$source/conf_flags"
	(
		cd "$work/nginx"
		./configure "${NGX_CONF_FLAGS[@]}" --add-dynamic-module="$here" \
			--with-cc-opt="$PGONCE_COMPILER" --with-ld-opt="$PGONCE_LINKER"
	) >"$work/configure.log" 2>&1 || { tail -30 "$work/configure.log"; exit 1; }
	echo "$stamp" >"$work/stamp"
fi
make -s -C "$work/nginx" -f objs/Makefile modules >"$work/make.log" 2>&1 || { cat "$work/make.log"; exit 1; }
cp "$work/nginx/objs/ngx_http_once_module.so" "$output"
