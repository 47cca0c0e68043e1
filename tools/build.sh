#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# Builds: build.sh DIRECTORY [MESON_OPTION...] [-- TARGET...]. Configures the directory with these options if that was not done yet, and again, with
# its present options, if a library that decides what is built was added or removed since.
set -eu
cd "$(dirname "$0")/.."
directory=$1
shift
# The options stay parameters, since a path may have spaces; a target is one word.
targets=""
left=$#
while [ "$left" -gt 0 ]; do
	each=$1
	shift
	left=$((left - 1))
	if [ -n "$targets" ]; then
		targets="$targets $each"
	elif [ "$each" = "--" ]; then
		targets=" "
	else
		set -- "$@" "$each"
	fi
done

# If the system has no nginx source for modules, setup.sh has unpacked one.
unpacked=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/pgonce/nginx
# Debian's loader and pkg-config look there. Without dpkg-dev meson uses lib64, where neither looks.
multiarch=$(gcc -print-multiarch 2>/dev/null || true)
[ -e /usr/share/nginx/src/configure ] || [ ! -e "$unpacked/src/configure" ] || set -- "-Dnginx_source=$unpacked/src" "$@"
[ -z "$multiarch" ] || [ ! -d "/usr/lib/$multiarch" ] || set -- "--libdir=lib/$multiarch" "$@"

what_is_here() {
	for library in libpq libcrypto jansson libcurl libmicrohttpd rdkafka librabbitmq libssl libnats cmocka; do
		echo "$library $(pkg-config --modversion "$library" 2>/dev/null || echo no)"
	done
	headers=$(pg_config --includedir-server 2>/dev/null) && ls "$headers/postgres.h" 2>/dev/null || echo "no headers of a server"
	ls /usr/share/nginx/src/configure 2>/dev/null || cat "$unpacked/version" 2>/dev/null || echo "no nginx"
}
again=""
if [ -f "$directory/build.ninja" ]; then
	[ "$(what_is_here)" = "$(cat "$directory/what_was_here" 2>/dev/null)" ] || again=--reconfigure
fi
if [ ! -f "$directory/build.ninja" ] || [ -n "$again" ]; then
	# shellcheck disable=SC2086  # one word, or none
	meson setup $again "$directory" "$@" >"$directory.log" 2>&1 || {
		cat "$directory.log"
		exit 1
	}
	mv "$directory.log" "$directory/configured.log"
	what_is_here >"$directory/what_was_here"
fi
# shellcheck disable=SC2086  # a list of words
exec ninja -C "$directory" --quiet $targets
