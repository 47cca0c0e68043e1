#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# Builds Citus for the newest PostgreSQL of this system: citus.sh SOURCE PREFIX. SOURCE is a clone of its public repository, checked out at a version
# for that PostgreSQL (13.2 takes 15 to 17, 14.0 takes 16 to 18); it stays as it is. PREFIX/bin has a copy of the server's programs beside it, which
# find Citus; nothing is installed into the system. Does nothing if PREFIX has that version already.
set -eu

source=${1:-}
prefix=$(realpath -m "${2:?citus.sh SOURCE PREFIX}")
if ! [ -f "$source/configure" ] || ! [ -d "$source/src/backend/distributed" ]; then
	echo "SOURCE is a clone of Citus's public repository, not '$source': make test-citus SOURCE=DIR" >&2
	exit 2
fi
version=$(printf '%s\n' /usr/lib/postgresql/*/bin/pg_config | sort -V | tail -1 | cut -d/ -f5)
config=/usr/lib/postgresql/$version/bin/pg_config
if ! [ -x "$config" ] || ! [ -e "$("$config" --includedir-server)/postgres.h" ]; then
	echo "PostgreSQL and its headers are missing: apt-get install postgresql postgresql-server-dev-all" >&2
	exit 2
fi
now="$("$config" --version) $(git -C "$source" rev-parse HEAD)"
if [ "$now" != "$(cat "$prefix/built" 2>/dev/null)" ]; then
	rm -rf "$prefix"
	mkdir -p "$prefix"
	git clone -q "$source" "$prefix/source"
	cd "$prefix/source"
	# PostgreSQL 15 exports this function since 15.11; Citus 13.2 has its own copy.
	if grep -q have_createdb_privilege "$("$config" --includedir-server)/commands/dbcommands.h"; then
		/usr/bin/python3 - <<-'P'
			import pathlib, re
			header = pathlib.Path("src/include/pg_version_compat.h")
			own = r"\n(?:/\*(?:(?!\*/).)*\*/\n)?static (?:inline )?bool\nhave_createdb_privilege\(void\)\n\{.*?\n\}\n"
			header.write_text(re.sub(own, '\n#include "commands/dbcommands.h"\n', header.read_text(), flags=re.S))
		P
	fi
	touch configure src/include/*.h.in # else make would run autoconf
	./configure -q PG_CONFIG="$config" --without-libcurl --without-lz4 --without-zstd
	make -s -j"$(nproc)" with_llvm=no COPT=-Wno-error
	mkdir -p "$prefix/usr/lib/postgresql" "$prefix/usr/share/postgresql"
	cp -a "/usr/lib/postgresql/$version" "$prefix/usr/lib/postgresql/"
	cp -a "/usr/share/postgresql/$version" "$prefix/usr/share/postgresql/"
	make -s install DESTDIR="$prefix" with_llvm=no
	ln -s "usr/lib/postgresql/$version/bin" "$prefix/bin"
	rm -rf "$prefix/source"
	echo "$now" >"$prefix/built"
fi
echo "Citus: $now"
