#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# Installs the system packages that are missing, on Debian and Ubuntu. Says what and why; uses sudo only for that. Does nothing where all is there.
set -eu

# package: what it is for
packages="
postgresql:the private server of 'make run' and of the tests
postgresql-contrib:pgbench, for 'make bench'
libpq-dev:the PostgreSQL client library
libssl-dev:SHA-256
libjansson-dev:JSON of the command
pkg-config:finds the libraries
gcc:the compiler, and the sanitizers that the tests use
g++:checks that pgonce.h compiles as C++
meson:the build
ninja-build:the build
python3:build steps and tests
python3-pytest:the tests
python3-psycopg2:the tests' PostgreSQL client
libcmocka-dev:the C tests
pgbouncer:the tests behind a transaction pooler
clang-format:the format check
clang-tidy:static analysis
shellcheck:the shell check
"

missing=""
for entry in $(printf '%s' "$packages" | sed 's/:.*//'); do
	if ! dpkg-query -W -f '${Status}' "$entry" 2>/dev/null | grep -q 'ok installed'; then
		missing="$missing $entry"
	fi
done
missing=$(printf '%s' "$missing" | sed 's/^ *//')
[ -z "$missing" ] && exit 0

if ! command -v apt-get >/dev/null 2>&1; then
	printf 'pgonce needs these packages, and this system has no apt-get to install them with:\n%s\n' "$packages" >&2
	exit 1
fi
echo "pgonce needs these system packages; installing them with apt-get:"
for name in $missing; do
	printf '%s' "$packages" | awk -F: -v name="$name" '$1 == name {printf "  %-20s %s\n", $1, $2}'
done
as_root=""
if [ "$(id -u)" -ne 0 ]; then
	if ! command -v sudo >/dev/null 2>&1; then
		echo "Not root, and sudo is not there. Have an administrator run: apt-get install $missing" >&2
		exit 1
	fi
	as_root="sudo"
fi
# The packaged cluster is not wanted: every server here is private and started by what needs it.
$as_root mkdir -p /etc/postgresql-common
if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
	echo "create_main_cluster = false" | $as_root tee /etc/postgresql-common/createcluster.conf >/dev/null
fi
$as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
# shellcheck disable=SC2086  # a list of words
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
