#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# Makes sure that a task has the packages it needs: setup.sh TASK, one of run, build, test, lint, bench, bench-gateway, bench-events, bench-clients,
# bench-instructions, docs, site, test-clients, test-console, test-frameworks, test-citus, deb, release, test-packages.
# On Debian and Ubuntu it installs the missing packages: it says which and why, and uses sudo only for that. On other systems it only names
# them.
# Servers that it installs are neither started nor set to start with the machine.
set -euf

# package: tasks: how to detect it: its purpose
#   tasks   run, and build, are part of test, lint and the benchmarks. With "?" the task goes on without it if the system has no such package.
#   tell    program P, library L (of pkg-config), file F, module M (of Python), server (of PostgreSQL), headers (of the server)
table="
gcc:run build:program gcc:the compiler
libc6-dev:run build:file /usr/include/stdlib.h:the C library
pkg-config:run build:program pkg-config:finds the libraries
meson:run build:program meson:the build
ninja-build:run build:program ninja:the build
python3:run build test-frameworks:program python3:build steps, and the clients of the examples
libpq-dev:run build:library libpq:the PostgreSQL client library
libssl-dev:run build:library libcrypto:SHA-256, and TLS to RabbitMQ
libjansson-dev:run build:library jansson:JSON
libcurl4-openssl-dev:run build:library libcurl:webhooks, and handlers that are HTTP services
libmicrohttpd-dev:run build:library libmicrohttpd:the metrics of keep, relay and consume, and the example services
libpcre2-dev:run? build?:library libpcre2-8:what nginx's headers include
zlib1g-dev:run? build?:library zlib:what nginx's headers include
libnats-dev:run? build?:library libnats:the NATS client library
librdkafka-dev:build?:library rdkafka:the Kafka client library
librabbitmq-dev:build?:library librabbitmq:the RabbitMQ client library
postgresql:run test bench test-frameworks:server:the private PostgreSQL
postgresql-server-dev:test? bench? test-citus? deb?:headers:its headers, for pgonce_native and Citus
postgresql-repack:test?:file /usr/lib/postgresql/*/bin/pg_repack:rewrites tables beside a relay at work
nginx:run test bench:program nginx:the gateway's server
nats-server:run? test bench-events:program nats-server:the private NATS
g++:test:program g++:checks that the headers compile as C++
libcmocka-dev:test lint:library cmocka:the C tests
python3-pytest:test:module pytest:the tests
python3-pytest-xdist:test:module xdist:runs tests beside each other
python3-yaml:test:module yaml:reads the workflows and charts that the tests check
python3-psycopg2:test bench test-frameworks:module psycopg2:the tests' PostgreSQL client
curl:run test bench:program curl:asks the gateway; the tests' HTTP/2 client
openssl:test:program openssl:the tests' certificates
pgbouncer:test:program pgbouncer:the tests behind a transaction pooler
rabbitmq-server:test bench-events:program rabbitmq-server:the tests' private RabbitMQ
python3-pika:test bench-events:module pika:the tests' RabbitMQ client
default-jre-headless:test? bench-events?:program java:runs the tests' private Kafka, ElasticMQ (SQS) and Debezium's engine
default-jdk-headless:test? bench-clients? test-clients? test-frameworks? release?:program javac:compiles what drives the tests' Debezium engine, and the Java client
maven:test? bench-events? bench-clients? test-clients? test-frameworks? release?:program mvn:fetches the tests' private Kafka, ElasticMQ and Debezium's engine, and builds the Java client
kcat:test? bench-events?:program kcat:the Kafka client of tests and benchmarks
spin:test:program spin:searches the model of the protocol
prometheus:test:program promtool:the tests' private Prometheus
mkdocs:site test?:program mkdocs:makes the site of the documents
mkdocs-material:site test?:file /usr/share/doc/mkdocs-material:the site's theme, with its search
graphviz:docs:program dot:draws what is written as a graph
clang:test lint:program clang:the tests' fuzzer, and the second compiler
libclang-rt-dev:test?:file /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a:the fuzzer's runtime
valgrind:test bench-instructions:program valgrind:the library's tests in memory checked by value; counts instructions
gcovr:test:program gcovr:counts the branches that the tests take
clang-format:lint:program clang-format:the format check
clang-tidy:lint:program clang-tidy:static analysis
shellcheck:lint:program shellcheck:the shell check
postgresql-contrib:bench:file /usr/lib/postgresql/*/bin/pgbench:pgbench
wrk:bench-gateway bench-clients:program wrk:the load of 'make bench-gateway' and 'make bench-clients'
redis-server:bench bench-gateway bench-clients:program redis-server:what the benchmarks compare with, and where a peer keeps its keys
nodejs:bench-gateway bench-events bench-clients test-clients? test-frameworks? release?:program node:runs the peers, and the Node client
npm:bench-gateway bench-events bench-clients test-clients? test-frameworks? release?:program npm:fetches the peers, and what the Node client needs
golang:test-packages? bench-clients? release?:program go:builds the Go client's service
python3-venv:bench-clients test-clients? test-frameworks? release:module ensurepip:a virtual environment for the Python client
chromium:test-console:program chromium:the browser of the console's tests
chromium-driver:test-console:program chromedriver:drives it
python3-selenium:test-console:module selenium:the tests' client of that driver
fonts-dejavu-core:test-console:file /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf:letters in its screenshots
git:test-frameworks test-citus deb? release?:program git:fetches the frameworks; tells the version of Citus
make:test-citus:program make:builds Citus
libkrb5-dev:test-citus:file /usr/include/gssapi/gssapi.h:headers of PostgreSQL's own headers, for Citus
libzstd-dev:test-citus:library libzstd:compresses columns of Citus
liblz4-dev:test-citus:library liblz4:compresses columns of Citus
dpkg-dev:deb:program dpkg-buildpackage:builds Debian packages
debhelper:deb:program dh:builds Debian packages
fakeroot:deb:program fakeroot:files of root in a package that a user builds
lintian:deb:program lintian:checks Debian packages
xz-utils:release:program xz:packs the source archive
ruby-railties:test-packages?:file /usr/share/rubygems-integration/all/specifications/railties-*.gemspec:runs the migrations of Rails' page
ruby-pg:test-packages?:file /usr/share/rubygems-integration/*/specifications/pg-*.gemspec:its driver
ruby-activerecord:test-packages?:file /usr/share/rubygems-integration/all/specifications/activerecord-*.gemspec:its models
bundler:test-packages?:program bundle:finds its gems
debootstrap:test-packages:program debootstrap:a fresh Debian
unzip:test-packages:program unzip:unpacks the Go modules, as docs/start/install.md says
python3-yaml:test-packages:module yaml:reads what the Helm chart renders
buildah:test-packages?:program buildah:builds and runs the images
podman:test-packages?:program podman:runs the images
podman-compose:test-packages?:program podman-compose:runs compose.yaml
runc:test-packages?:program runc:starts containers
netavark:test-packages?:file /usr/lib/podman/netavark:networks of containers
aardvark-dns:test-packages?:file /usr/lib/podman/aardvark-dns:names of containers
iptables:test-packages?:program iptables:publishes ports of containers
"
servers="nginx redis-server pgbouncer nats-server rabbitmq-server prometheus"

usage="setup.sh run | build | test | lint | bench | bench-gateway | bench-events | bench-clients | bench-instructions | docs | site | test-clients | test-console | test-frameworks | test-citus | deb | release | test-packages"
task=${1:?$usage}
case $task in
run | build) tasks=$task ;;
test | lint | bench) tasks="build $task" ;;
bench-gateway | bench-events | bench-clients | bench-instructions) tasks="build bench $task" ;;
test-clients | test-console | test-citus) tasks="build test $task" ;;
test-frameworks | site) tasks=$task ;;
deb | docs) tasks="build $task" ;;
release) tasks="build deb release" ;;
test-packages) tasks="build test deb release test-packages" ;;
*) echo "$usage" >&2 && exit 2 ;;
esac
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/go/bin

field() {
	printf '%s\n' "$table" | awk -F: -v package="$1" -v number="$2" '$1 == package { print $number }'
}

a_file_is() {
	set +f
	# shellcheck disable=SC2086  # a pattern, and one word
	ls -d $1 >/dev/null 2>&1
	found=$?
	set -f
	return $found
}

is_here() {
	rest=${1#* }
	case $1 in
	"program "*) command -v "$rest" >/dev/null 2>&1 ;;
	"library "*) pkg-config --exists "$rest" 2>/dev/null ;;
	"module "*) /usr/bin/python3 -c "import $rest" 2>/dev/null ;;
	"file "*) a_file_is "$rest" ;;
	headers) [ -e "$(pg_config --includedir-server 2>/dev/null)/postgres.h" ] ;;
	server)
		[ -x "$(pg_config --bindir 2>/dev/null)/initdb" ] || [ -x "${PGONCE_PG_BINDIR:-}/initdb" ] ||
			a_file_is '/usr/lib/postgresql/*/bin/initdb' || a_file_is '/usr/pgsql-*/bin/initdb' || command -v initdb >/dev/null 2>&1
		;;
	esac
}

# The missing packages, in two lists: the task can go on without the second.
missing=""
optional=""
for package in $(printf '%s\n' "$table" | cut -d: -f1); do
	for each in $tasks; do
		case " $(field "$package" 2) " in
		*" $each "*) is_here "$(field "$package" 3)" || missing="$missing $package" ;;
		*" $each? "*) is_here "$(field "$package" 3)" || optional="$optional $package" ;;
		*) continue ;;
		esac
		break
	done
done

# The nginx source for modules, for the gateway. Its package depends on a hundred others, so it is unpacked, not installed.
unpack_nginx_source() {
	[ "$task" != test-frameworks ] || return 0 # it builds nothing here
	to=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/pgonce/nginx # meson requires a place outside this tree
	wanted=$(dpkg-query -W -f '${Version}' nginx 2>/dev/null || true)
	if [ -e /usr/share/nginx/src/configure ] || { [ -e "$to/version" ] && [ "$wanted" = "$(cat "$to/version")" ]; }; then
		return
	fi
	work=$(mktemp -d)
	chmod 755 "$work"
	if (
		cd "$work"
		set +f
		apt-get download -qq "nginx-dev=$wanted" || apt-get download -qq nginx-dev
		dpkg-deb -x nginx-dev_*.deb files
	) >/dev/null 2>&1; then
		rm -rf "$to"
		mkdir -p "$to"
		cp -r "$work/files/usr/share/nginx/src" "$to/"
		echo "$wanted" >"$to/version"
	else
		echo "There is no package nginx-dev here: the gateway is left out."
	fi
	rm -rf "$work"
}
done_with_it() {
	! command -v apt-get >/dev/null 2>&1 || unpack_nginx_source
	exit 0
}
[ -n "$missing$optional" ] || done_with_it

name_them() {
	for package in $1; do
		printf '  %-22s %s\n' "$package" "$(field "$package" 4)"
	done
}

if ! command -v apt-get >/dev/null 2>&1; then
	say() {
		for package in $1; do
			printf '  %-34s %s\n' "$(field "$package" 3 | sed 's/^server$/a PostgreSQL server, 13 or later/; s/^headers$/the headers of that server/')" "$(field "$package" 4)"
		done
	}
	if [ -n "$missing" ]; then
		echo "'make $task' needs what is missing here. There is no apt-get to install it with; please install:" >&2
		say "$missing" >&2
	fi
	if [ -n "$optional" ]; then
		echo "Left out, since this is not here:" >&2
		say "$optional" >&2
	fi
	[ -z "$missing" ]
	exit
fi

# The fuzzer's runtime is a package named after clang's version.
runtime() {
	version=$(apt-cache depends clang 2>/dev/null | sed -n 's/^ *Depends: clang-\([0-9][0-9]*\)$/\1/p' | head -1)
	echo "libclang-rt-${version:-0}-dev"
}

# The packages of the server's headers and pg_repack contain its version in their names; the one for all versions installs all compilers.
versioned() {
	set +f
	version=$(printf "%s\n" /usr/lib/postgresql/*/bin/initdb | cut -d/ -f5 | grep -x "[0-9]*" | sort -n | tail -1)
	set -f
	[ -n "$version" ] || version=$(apt-cache depends postgresql 2>/dev/null | sed -n 's/^ *Depends: postgresql-\([0-9][0-9]*\)$/\1/p' | head -1)
	case $1 in
	postgresql-repack) echo "postgresql-${version:-0}-repack" ;;
	*) echo "$1-${version:-0}" ;;
	esac
}

# An older one cannot fetch the toolchain that a module asks for.
wanted_go=1.21
go_is_new() {
	candidate=$(apt-cache policy golang 2>/dev/null | sed -n 's/^ *Candidate: //p')
	dpkg --compare-versions "${candidate:-0}" ge "2:$wanted_go"
}

as_root=""
if [ "$(id -u)" -ne 0 ]; then
	as_root="sudo"
	if ! command -v sudo >/dev/null 2>&1; then
		echo "'make $task' needs packages that are missing, and this user is not root and has no sudo. Have an administrator run:" >&2
		echo "  apt-get install --no-install-recommends$missing$optional" >&2
		exit 1
	fi
fi
echo "'make $task' needs these system packages; installing them with apt-get:"
name_them "$missing $optional"
# shellcheck disable=SC2086  # a list of words
if [ -n "$(find /var/lib/apt/lists -name '*_Packages*' -mmin -1440 2>/dev/null)" ] && apt-cache show $missing >/dev/null 2>&1; then
	: # the package lists are from today
else
	$as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
fi
install=$missing
for package in $optional; do
	[ "$package" != libclang-rt-dev ] || package=$(runtime)
	case $package in
	postgresql-server-dev | postgresql-repack) package=$(versioned "$package") ;;
	esac
	# To pack a module, an older one will do.
	if [ "$package" = golang ] && [ "$task" != release ] && ! go_is_new; then
		echo "The package golang here is older than $wanted_go: what needs it is left out."
	elif apt-cache show "$package" >/dev/null 2>&1; then
		install="$install $package"
	else
		echo "There is no package $package here: what needs it is left out."
	fi
done
[ -n "$install" ] || done_with_it

# No packaged cluster: every server here is private, and started by the task that needs it.
if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
	$as_root mkdir -p /etc/postgresql-common
	echo "create_main_cluster = false" | $as_root tee /etc/postgresql-common/createcluster.conf >/dev/null
fi
# No other server on its usual port either. A server that was installed before is left as it is.
new_servers=""
for name in $servers; do
	case " $install " in *" $name "*) new_servers="$new_servers $name" ;; esac
done
# Erlang's port mapper, which comes with RabbitMQ.
case " $install " in
*" rabbitmq-server "*) command -v epmd >/dev/null 2>&1 || new_servers="$new_servers epmd.socket epmd.service" ;;
esac
refusal=/usr/sbin/policy-rc.d
if [ -n "$new_servers" ] && [ ! -e "$refusal" ]; then
	# Debian's packages ask this program before they start a server; it is removed at the end.
	trap '$as_root rm -f "$refusal"' EXIT
	trap 'exit 1' INT TERM
	printf '#!/bin/sh\nexit 101\n' | $as_root tee "$refusal" >/dev/null
	$as_root chmod 755 "$refusal"
fi
log=$(mktemp)
# shellcheck disable=SC2086  # a list of words
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $install >"$log" 2>&1 || {
	cat "$log" >&2
	rm -f "$log"
	exit 1
}
rm -f "$log"
for name in $new_servers; do
	if command -v systemctl >/dev/null 2>&1; then
		$as_root systemctl disable "$name" >/dev/null 2>&1 || true
	elif command -v update-rc.d >/dev/null 2>&1; then
		$as_root update-rc.d "$name" disable >/dev/null 2>&1 || true
	fi
done
[ -z "$new_servers" ] || echo "Installed, but neither started nor set to start with the machine:$new_servers"
unpack_nginx_source
