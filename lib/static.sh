#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# static.sh PARTS OUTPUT: the static library that is installed: the objects of the archive PARTS as one, whose hidden names are its own, so that
# they meet no name of the program that links it.
set -eu
object=$2.o
ld -r --whole-archive "$1" -o "$object"
objcopy --localize-hidden "$object"
rm -f "$2"
ar rcs "$2" "$object"
rm "$object"
