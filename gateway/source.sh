#!/bin/bash
# SPDX-License-Identifier: PostgreSQL
# Builds nginx from its own source, and the module for it: source.sh SOURCE OUTPUT static|dynamic ARCHIVE... -- LIBRARY_OPTION...
# SOURCE is an unpacked release of nginx.org, or a clone of its repository; nothing is written there. `dynamic` configures nginx as nginx.org's binary
# packages are, and the module with the three options of docs/reference/gateway.md, as for such a package: OUTPUT gets nginx and ngx_http_once_module.so.
# `static` builds the module in: OUTPUT gets nginx.
set -euo pipefail

[ -n "$1" ] || {
	echo "source.sh: no source of nginx was named: make test-nginx-source NGINX_SOURCE=DIR" >&2
	exit 2
}
source=$(realpath "$1")
output=$(realpath -m "$2")
kind=$3
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

configure=$source/configure # of a release
[ -x "$configure" ] || configure=$source/auto/configure
if [ ! -x "$configure" ] || [ ! -e "$source/src/core/nginx.h" ]; then
	echo "source.sh: $source is no source of nginx: unpack a release of nginx.org there, or clone its repository" >&2
	exit 2
fi
PGONCE_INCLUDES="$root/include $root/lib/http $(pkg-config --cflags-only-I libpq | sed 's/-I//g')"
PGONCE_HEADERS="$root/include/pgonce.h $root/include/pgonce_batcher.h $(echo "$root"/lib/http/*.h)"
PGONCE_ARCHIVES="${archives[*]}"
# The library's names stay inside the module.
PGONCE_LIBRARIES="-Wl,--exclude-libs,ALL $*"
export PGONCE_INCLUDES PGONCE_HEADERS PGONCE_ARCHIVES PGONCE_LIBRARIES

mkdir -p "$output"
# tree NAME OPTION...: a copy of the source, configured.
tree() {
	local work=$output/$1
	shift
	rm -rf "$work"
	mkdir "$work"
	(cd "$source" && tar -c --exclude=./.git --exclude=./objs .) | tar -x -C "$work"
	(cd "$work" && "./${configure#"$source/"}" "$@") >"$work.log" 2>&1 || {
		tail -30 "$work.log" >&2
		exit 1
	}
}
build() {
	make -s -j2 -C "$output/$1" -f objs/Makefile "$2" >"$output/$1.log" 2>&1 || {
		tail -60 "$output/$1.log" >&2
		exit 1
	}
}

# Those of nginx.org's packages.
packaged=(--with-compat --with-file-aio --with-threads --with-http_addition_module --with-http_auth_request_module --with-http_dav_module
	--with-http_flv_module --with-http_gunzip_module --with-http_gzip_static_module --with-http_mp4_module --with-http_random_index_module
	--with-http_realip_module --with-http_secure_link_module --with-http_slice_module --with-http_ssl_module --with-http_stub_status_module
	--with-http_sub_module --with-http_v2_module --with-http_v3_module --with-mail --with-mail_ssl_module --with-stream
	--with-stream_realip_module --with-stream_ssl_module --with-stream_ssl_preread_module)
if [ "$kind" = static ]; then
	tree static "${packaged[@]}" --with-cc-opt='-g -O2' --add-module="$here"
	build static binary
	cp "$output/static/objs/nginx" "$output/"
else
	tree packaged "${packaged[@]}" --with-cc-opt='-g -O2'
	build packaged binary
	tree module --with-compat --with-http_ssl_module --with-http_v2_module --with-cc-opt='-g -O2' --add-dynamic-module="$here"
	build module modules
	cp "$output/packaged/objs/nginx" "$output/module/objs/ngx_http_once_module.so" "$output/"
fi
