#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# Compiles Spring's samples of MockMvc, and what is injected into them with the sources of the Java client: build.sh ROOT BUILD SOURCE.
set -eu
cd "$(dirname "$0")"
root=$1 build=$2 source=$3/spring-test/src/test
poms=$(cat pom.xml "$root/clients/java/pom.xml" | cksum)
if [ "$(cat "$build/poms" 2> /dev/null)" != "$poms" ]; then
  rm -rf "$build/jars"
  MAVEN_OPTS="${MAVEN_OPTS:--Xmx512m}" mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$build/jars"
  echo "$poms" > "$build/poms"
fi
rm -rf "$build/ours" "$build/theirs"
mkdir -p "$build/ours" "$build/theirs"
find "$root"/clients/java/pgonce/src/main/java "$root"/clients/java/pgonce-spring-boot-starter/src/main/java src -name '*.java' > "$build/sources"
javac -J-Xmx512m --release 17 -parameters -nowarn -cp "$build/jars/*" -d "$build/ours" "@$build/sources"
jar --create --file "$build/ours.jar" --manifest manifest.mf -C "$build/ours" .
{
  find "$source/java/org/springframework/test/web/servlet/samples" -name '*.java'
  find "$source/java/org/springframework/test/web" -maxdepth 1 -name '*.java'
} > "$build/sources"
javac -J-Xmx512m --release 17 -parameters -nowarn -Xlint:none -cp "$build/jars/*" -d "$build/theirs" "@$build/sources"
