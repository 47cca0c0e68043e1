#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# Installs the system packages that are missing, on Debian and Ubuntu. Says what and why; uses sudo only for that. Does nothing where all is there.
# setup.sh bench-gateway, setup.sh bench-events: also what that task needs. It leaves no packaged server running, nor starting with the machine.
set -euf

# package: what it is for. "?": left out, with a word, where the system has no such package.
packages="
postgresql:the private server of 'make run' and of the tests
postgresql-contrib:pgbench, for 'make bench'
libpq-dev:the PostgreSQL client library
libcurl4-openssl-dev:webhooks
librdkafka-dev:the Kafka client library
librabbitmq-dev:the RabbitMQ client library
libnats-dev:the NATS client library
libssl-dev:SHA-256
libjansson-dev:JSON of the command
pkg-config:finds the libraries
gcc:the compiler, and the sanitizers that the tests use
g++:checks that pgonce.h compiles as C++
make:the tasks, and nginx's own build of its modules
meson:the build
ninja-build:the build
nginx:the gateway's server
nginx-dev?:the build of the gateway's module
libmicrohttpd-dev:the metrics of pgonce keep, relay and consume, and the example services
python3:build steps and tests
python3-pytest:the tests
python3-pytest-xdist:runs the tests on both cores
python3-psycopg2:the tests' PostgreSQL client
libcmocka-dev:the C tests
curl:the tests' HTTP/2 client
openssl:the tests' certificates
pgbouncer:the tests behind a transaction pooler
nats-server:the tests' private NATS
rabbitmq-server:the tests' private RabbitMQ
python3-pika:the tests' RabbitMQ client
default-jre-headless?:runs the tests' private Kafka
maven?:fetches the tests' private Kafka
kcat?:the tests' Kafka client
spin:searches the model of the protocol
prometheus:the tests' private Prometheus, and promtool
clang-format:the format check
clang-tidy:static analysis
clang:the tests' fuzzer, libFuzzer
valgrind:the library's tests in memory checked by value
gcovr:counts the branches that the tests take
shellcheck:the shell check
"
bench_gateway_packages="
wrk:the load of 'make bench-gateway'
redis-server:where the peer of 'make bench-gateway' keeps its keys
nodejs:runs the peer of 'make bench-gateway'
npm:fetches the peer of 'make bench-gateway'
"
bench_events_packages="
nodejs:runs the peer of 'make bench-events'
npm:fetches the peer of 'make bench-events'
"
is_installed() {
	case $1 in
	# Often not from the system's packages.
	default-jre-headless) command -v java >/dev/null 2>&1 && return 0 ;;
	maven) command -v mvn >/dev/null 2>&1 && return 0 ;;
	nodejs) command -v node >/dev/null 2>&1 && return 0 ;;
	npm) command -v npm >/dev/null 2>&1 && return 0 ;;
	# Each of its kinds does, and only one can be installed.
	libcurl4-openssl-dev) dpkg-query -W -f '${Status}\n' 'libcurl4-*-dev' 2>/dev/null | grep -q 'ok installed' && return 0 ;;
	esac
	dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'
}

# libFuzzer's runtime is a package of its own since clang 14.0.6, named after the version; before, clang brings it.
if ! find "$(clang -print-resource-dir 2>/dev/null || echo /nowhere)" -name 'libclang_rt.fuzzer*.a' 2>/dev/null | grep -q .; then
	version=$(apt-cache depends clang 2>/dev/null | sed -n 's/^ *Depends: clang-\([0-9][0-9]*\)$/\1/p' | head -1)
	[ -z "$version" ] || packages="${packages}libclang-rt-$version-dev?:the fuzzer's runtime
"
fi
if [ "${1:-}" = bench-gateway ]; then
	packages="$packages$bench_gateway_packages"
elif [ "${1:-}" = bench-events ]; then
	packages="$packages$bench_events_packages"
elif [ $# -gt 0 ]; then
	echo "setup.sh [bench-gateway | bench-events]" >&2
	exit 2
fi

# Does this system lack the package? Not to be known before its lists have been fetched once.
is_unknown() {
	find /var/lib/apt/lists -name '*_Packages*' 2>/dev/null | grep -q . && ! apt-cache show "$1" >/dev/null 2>&1
}

missing=""
optional=""
for entry in $(printf '%s\n' "$packages" | sed 's/:.*//'); do
	name=${entry%\?}
	if is_installed "$name"; then
		continue
	fi
	if [ "$name" = "$entry" ]; then
		missing="$missing $name"
	elif ! is_unknown "$name"; then
		optional="$optional $name"
	fi
done
missing=$(printf '%s' "$missing$optional" | sed 's/^ *//')
[ -z "$missing" ] && exit 0

if ! command -v apt-get >/dev/null 2>&1; then
	printf 'pgonce needs these packages, and this system has no apt-get to install them with:\n%s\n' "$packages" >&2
	exit 1
fi
echo "pgonce needs these system packages; installing them with apt-get:"
for name in $missing; do
	printf '%s\n' "$packages" | awk -F: -v name="$name" '{ sub(/\?$/, "", $1) } $1 == name {printf "  %-20s %s\n", $1, $2}'
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

# Nor is an nginx on port 80, a Redis, a PgBouncer, a Prometheus or a broker: those that are new here must neither start now nor with the machine.
# One that was installed before is somebody's, and is left as it is.
new_services=""
for name in nginx redis-server pgbouncer nats-server rabbitmq-server prometheus; do
	case " $missing " in *" $name "*) new_services="$new_services $name" ;; esac
done
# What comes with RabbitMQ: Erlang's port mapper, whose units are epmd's.
case " $missing " in
*" rabbitmq-server "*) is_installed erlang-base || new_services="$new_services epmd.socket epmd.service" ;;
esac
refusal=/usr/sbin/policy-rc.d
if [ -n "$new_services" ] && [ ! -e "$refusal" ]; then
	# What Debian's packages ask before they start a server; gone again at the end.
	trap '$as_root rm -f "$refusal"' EXIT
	trap 'exit 1' INT TERM
	printf '#!/bin/sh\nexit 101\n' | $as_root tee "$refusal" >/dev/null
	$as_root chmod 755 "$refusal"
fi
$as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
for name in $optional; do
	if is_unknown "$name"; then
		echo "There is no package $name here: what needs it is left out."
		missing=$(printf '%s\n' "$missing" | tr ' ' '\n' | grep -vx "$name" | tr '\n' ' ')
	fi
done
# shellcheck disable=SC2086  # a list of words
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
for name in $new_services; do
	if command -v systemctl >/dev/null 2>&1; then
		$as_root systemctl disable "$name" >/dev/null 2>&1 || true
	elif command -v update-rc.d >/dev/null 2>&1; then
		$as_root update-rc.d "$name" disable >/dev/null 2>&1 || true
	fi
done
if [ -n "$new_services" ]; then
	echo "Installed, but neither started nor set to start with the machine:$new_services"
fi
