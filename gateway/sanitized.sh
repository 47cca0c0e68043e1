#!/bin/bash
# SPDX-License-Identifier: PostgreSQL
# Builds a whole nginx from Debian's source with the module inside, for tests: sanitized.sh SOURCE OUTPUT WORK_DIRECTORY ARCHIVE... -- LIBRARY_OPTION...
# AddressSanitizer and UBSan watch it, and NGX_DEBUG_PALLOC makes each allocation of a pool its own, so that they see those too.
# The source comes from apt, whose lists for it are kept in the work directory; PGONCE_NGINX_SOURCE names an unpacked one instead.
set -euo pipefail

conf_flags=$1/conf_flags
output=$(realpath -m "$2")
work=$(realpath -m "$3")
shift 3
archives=()
while [ "$1" != "--" ]; do
	archives+=("$(realpath "$1")")
	shift
done
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
unset MAKEFLAGS MFLAGS
mkdir -p "$work"

fetch() {
	local apt=(-o Dir::Etc::sourcelist=- -o "Dir::Etc::sourceparts=$work/apt" -o "Dir::State::lists=$work/apt/lists"
		-o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User=root)
	mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
	sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/{debian,ubuntu}*.sources >"$work/apt/deb-src.sources" 2>/dev/null || true
	sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$work/apt/deb-src.list" 2>/dev/null || true
	apt-get "${apt[@]}" -q update
	(cd "$work/apt" && apt-get "${apt[@]}" -q source --download-only --tar-only nginx)
	# Debian's patches are welcome, and nothing here depends on them: a mirror may have replaced them since its list was made.
	(cd "$work/apt" && apt-get "${apt[@]}" -q source --download-only --diff-only nginx) || true
	rm -rf "$work/fetched"
	mkdir "$work/fetched"
	tar -xzf "$work"/apt/nginx_*.orig.tar.gz -C "$work/fetched" --strip-components 1
	for patches in "$work"/apt/nginx_*.debian.tar.xz; do
		[ -f "$patches" ] || continue
		tar -xJf "$patches" -C "$work/fetched"
		(cd "$work/fetched" && grep -v '^#' debian/patches/series | while read -r patch; do patch -s -p1 <"debian/patches/$patch"; done)
	done
}

source=${PGONCE_NGINX_SOURCE:-$work/fetched}
if [ ! -x "$source/configure" ]; then
	fetch >"$work/fetch.log" 2>&1 & wait $! || { tail -20 "$work/fetch.log"; exit 1; }
fi
PGONCE_INCLUDES="$root/include $root/lib/http $(pkg-config --cflags-only-I libpq | sed 's/-I//g')"
PGONCE_HEADERS="$root/include/pgonce.h $root/include/pgonce_batcher.h $(echo "$root"/lib/http/*.h)"
PGONCE_ARCHIVES="${archives[*]}"
PGONCE_LIBRARIES="$*"
export PGONCE_INCLUDES PGONCE_HEADERS PGONCE_ARCHIVES PGONCE_LIBRARIES
stamp=$(cat "$here/config" "$here/sanitized.sh" <(env | grep ^PGONCE_ | sort) | sha256sum)
if [ "$stamp" != "$(cat "$work/stamp" 2>/dev/null)" ]; then
	rm -rf "$work/nginx"
	cp -r "$source" "$work/nginx"
	# shellcheck disable=SC1090,SC1091
	. "$conf_flags"
	(
		cd "$work/nginx"
		./configure "${NGX_CONF_FLAGS[@]}" --add-module="$here" \
			--with-cc-opt='-g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-sanitize=nonnull-attribute,pointer-overflow,alignment,shift -DNGX_DEBUG_PALLOC=1 -Wshadow' \
			--with-ld-opt='-fsanitize=address,undefined'
	) >"$work/configure.log" 2>&1 || { tail -30 "$work/configure.log"; exit 1; }
	echo "$stamp" >"$work/stamp"
fi
make -s -j2 -C "$work/nginx" -f objs/Makefile binary >"$work/make.log" 2>&1 || { tail -60 "$work/make.log"; exit 1; }
cp "$work/nginx/objs/nginx" "$output"
