#!/bin/bash
# SPDX-License-Identifier: PostgreSQL
# Makes the two headers in which nginx's configure writes down what this system has: configure.sh SOURCE OUTPUT_DIRECTORY WORK_DIRECTORY COMPILER...
# SOURCE is that of an installed nginx for building modules, with the options that it was configured with (conf_flags): so the module fits it.
set -euo pipefail

source=$1
output=$(realpath -m "$2")
work=$(realpath -m "$3")
shift 3

rm -rf "$work"
mkdir -p "$work"
cd "$work"
# configure writes beside itself.
ln -s "$source/auto" "$source/configure" "$source/src" .
# shellcheck disable=SC1091
. "$source/conf_flags"
./configure "${NGX_CONF_FLAGS[@]}" --with-cc="$*" --with-cc-opt=-fPIC >configure.log 2>&1 || {
	tail -30 configure.log
	exit 1
}
cp objs/ngx_auto_config.h objs/ngx_auto_headers.h "$output/"
