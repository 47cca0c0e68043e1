#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# Compiles the application with the sources of the Java client: build.sh ROOT BUILD. The jars are fetched again where a pom has changed.
set -eu
cd "$(dirname "$0")"
root=$1 build=$2
poms=$(cat pom.xml "$root/clients/java/pom.xml" | cksum)
if [ "$(cat "$build/poms" 2> /dev/null)" != "$poms" ]; then
  rm -rf "$build/jars"
  MAVEN_OPTS="${MAVEN_OPTS:--Xmx512m}" mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$build/jars"
  echo "$poms" > "$build/poms"
fi
rm -rf "$build/classes"
mkdir -p "$build/classes"
cp -R "$root/clients/java/pgonce-spring-boot-starter/src/main/resources/." "$build/classes"
find "$root"/clients/java/pgonce/src/main/java "$root"/clients/java/pgonce-spring-boot-starter/src/main/java src -name '*.java' > "$build/sources"
javac -J-Xmx512m --release 17 -parameters -nowarn -cp "$build/jars/*" -d "$build/classes" "@$build/sources"
