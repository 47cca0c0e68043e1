#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# Builds the jars from the checkout and runs all tests of the Java clients, against private servers. Exit status 77: what is missing is named.
set -eu
cd "$(dirname "$0")"
for program in java mvn; do
  if ! command -v "$program" > /dev/null; then
    echo "clients/java: $program is missing; the Java clients (JDBC, the Spring Boot starter) were left out"
    exit 77
  fi
done
version=$(java -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java.specification.version = //p')
if [ "${version%%.*}" -lt 17 ]; then
  echo "clients/java: Java 17 or later is needed and this is $version; the Java clients were left out"
  exit 77
fi
# The machine's memory is shared.
export MAVEN_OPTS="${MAVEN_OPTS:--Xmx512m}"
exec mvn -q -B -T1 package "$@"
