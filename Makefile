# SPDX-License-Identifier: PostgreSQL
# Names the tasks; meson and ninja do the building. `make` alone lists them.
PYTHON := /usr/bin/python3
BUILD := build
BUILD_SANITIZED := $(BUILD)-sanitized
PREFIX ?= /usr/local
# How many run the tests beside each other: "auto" reckons it from the processors and the memory (tests/conftest.py); 1: without pytest-xdist.
PYTEST_WORKERS ?= auto
PYTEST := $(PYTHON) -m pytest -q -rs -p no:cacheprovider $(if $(DURATIONS),--durations=$(DURATIONS))
WORKERS := $(if $(filter 1,$(PYTEST_WORKERS)),,-n $(PYTEST_WORKERS) --dist loadgroup)
TORTURE := PGONCE_BUILD=$(CURDIR)/$(BUILD) $(PYTHON) -m torture
TESTED := PGONCE_BUILD=$(CURDIR)/$(BUILD) PGONCE_BUILD_SANITIZED=$(CURDIR)/$(BUILD_SANITIZED)
# bench PG=17: on that server instead of the system's.
ON_SERVER = $(if $(PG),server=$$(tools/matrix.py --bindir $(PG)) && PGONCE_PG_BINDIR=$$server) PGONCE_BUILD=$(CURDIR)/$(BUILD)
# Of every benchmark. QUICK=yes only shows that it runs: its results go to bench/quick/, which bench/plots.py does not take.
TAKES = $(if $(filter yes,$(QUICK)),--quick) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(FSYNC_MS),--fsync-ms $(FSYNC_MS))
# FSYNC_MS=2: as on a disk whose syncs take 2 ms longer, with files of its own for what it measured.
KEEPS = --json bench/$(if $(filter yes,$(QUICK)),quick/)$(1)$(if $(FSYNC_MS),_fsync_$(FSYNC_MS)_ms).json
SANITIZED := -Db_sanitize=address,undefined -Db_lundef=false -Doptimization=1 -Dsbom=false

.PHONY: help images run test test-native test-clients test-console test-frameworks test-citus test-nginx-source test-packages check test-sanitized test-threads test-valgrind lint lint-deep format bench bench-gateway bench-events bench-keeper bench-nodes bench-console bench-clients bench-instructions coverage fuzz install uninstall sql client deb release spec torture torture-selftest model test-matrix build build-sanitized docs recording site clean stop

CHECKED := tests/contract tests/lib tests/http tests/gateway tests/extension

help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A quick build of its own: what is shown is what it does, not how fast.
run: ## start a private PostgreSQL and the gateway, play the examples, show the proof
	@tools/setup.sh run
	@tools/build.sh build-run -Doptimization=1 -Ddebug=false -Dtests=disabled -Dsbom=false -- demonstration
	@tools/run.sh build-run

stop: ## stop what `make run` left up
	@[ ! -x build-run/cli/pgonce ] || [ ! -d .pgonce ] || { examples/demo.py stop build-run; build-run/cli/pgonce dev --stop; }

test: setup-test build build-sanitized ## every test, on private servers (TESTS: some of them; DURATIONS=20: and the slowest)
	$(TESTED) $(PYTEST) $(WORKERS) $(or $(TESTS),tests)
	@[ -n "$(TESTS)" ] || [ ! -e $(BUILD)/native/pgonce_native.so ] || { echo "Some of them again, on pgonce_native:" && $(TESTED_IN_C) $(IN_C); }

# On C what decides and stores, and is soon over; the rest of it with `make test-native`.
IN_C := $(addprefix tests/contract/test_,batches.py emit.py errors.py fences.py inbox.py isolation.py locks.py one_effect.py outcomes.py started.py)
TESTED_IN_C := PGONCE_NATIVE=yes $(TESTED) $(PYTEST) $(WORKERS)
test-native: setup-test build build-sanitized ## the tests of the contract, the library and the gateway on pgonce_native instead of SQL (TESTS)
	$(TESTED_IN_C) $(or $(TESTS),$(CHECKED) tests/native)

check: setup-test build build-sanitized ## after each edit: the tests of the contract, the library and the gateway, without the long ones
	$(TESTED) $(PYTEST) $(WORKERS) -m "not long and not alone" $(or $(TESTS),$(CHECKED))

test-clients: setup-test-clients build ## the clients of clients/ (LANGUAGES="node go"; QUICK=yes: without hammers and torture; MUTATIONS=yes: and again with each guarantee taken out; JOBS=2: two languages at once), with what they need from their registries; says what is left out where a toolchain is missing
	@PGONCE_BUILD=$(CURDIR)/$(BUILD) JOBS=$(or $(JOBS),1) QUICK=$(QUICK) MUTATIONS=$(MUTATIONS) tools/test_clients.sh $(LANGUAGES)

test-console: setup-test-console build ## the web console in a real browser, Chromium (SCREENSHOTS=docs/pictures: writes those of the documentation)
	$(if $(SCREENSHOTS),PGONCE_SCREENSHOTS=$(abspath $(SCREENSHOTS))) $(TESTED) $(PYTEST) $(or $(TESTS),tests/console/test_browser.py)

test-frameworks: setup-test-frameworks ## the frameworks' own test suites, without pgonce and with it (LANGUAGES="node go"; SOURCES=DIR: clones of what comes from git); says what is left out
	@SOURCES="$(SOURCES)" $(PYTHON) tests/frameworks/run.py $(addprefix --language ,$(LANGUAGES)) || [ $$? -eq 77 ]

test-citus: setup-test-citus build ## the contract on Citus, built into build-citus from SOURCE=DIR, a clone of its public repository (13.2 for PostgreSQL 15, 14.0 for 17)
	@tools/citus.sh "$(SOURCE)" build-citus
	PGONCE_CITUS_BINDIR=$(CURDIR)/build-citus/bin $(TESTED) $(PYTEST) tests/citus

# The main tests of the gateway.
ON_NGINX := $(addprefix tests/gateway/test_,one_execution.py protocol.py stored.py config.py redirects.py statuses.py worker.py waiting.py own_answers.py odd_ends.py handoff.py)
NGINX_KIND ?= dynamic
test-nginx-source: setup-test build build-sanitized ## the gateway's main tests on an nginx built from NGINX_SOURCE=DIR, an unpacked release of nginx.org (NGINX_KIND=static: with the module built in; TESTS)
	@gateway/source.sh "$(NGINX_SOURCE)" $(BUILD)-nginx $(NGINX_KIND) $(BUILD)/lib/http/libpgonce_http.a $(BUILD)/lib/libpgonce_parts.a -- -lpq -lcrypto
	$(if $(filter static,$(NGINX_KIND)),PGONCE_NGINX=$(CURDIR)/$(BUILD)-nginx/nginx,PATH=$(CURDIR)/$(BUILD)-nginx:$$PATH PGONCE_NGINX_MODULE=$(CURDIR)/$(BUILD)-nginx/ngx_http_once_module.so) \
		$(TESTED) $(PYTEST) $(WORKERS) $(or $(TESTS),$(ON_NGINX))

images: ## build the images pgonce, pgonce-example and pgonce-nginx from this tree, with buildah, podman or docker (BASE: another base image)
	@packaging/images/images $(BASE)

test-packages: setup-test-packages build ## what is released, whole: fresh machines, registries, images, charts, a release built twice (TESTS); says what is left out
	PGONCE_PACKAGES=yes $(TESTED) $(PYTEST) $(or $(TESTS),tests/packages)

test-sanitized: setup-test build build-sanitized ## every test on programs and an nginx built with AddressSanitizer and UBSan (fetches nginx's source with apt; TESTS)
	@ninja -C $(BUILD)-sanitized --quiet
	@ninja -C $(BUILD) --quiet gateway/nginx-sanitized
	@# What pgonce gateway loads into the system's nginx, which takes no sanitized module; the gateway's own tests have an nginx of theirs.
	@mkdir -p $(BUILD)-sanitized/gateway && cp $(BUILD)/gateway/ngx_http_once_module.so $(BUILD)-sanitized/gateway/
	PGONCE_SANITIZED=yes PGONCE_BUILD=$(CURDIR)/$(BUILD)-sanitized PGONCE_BUILD_SANITIZED=$(CURDIR)/$(BUILD)-sanitized \
		PGONCE_NGINX=$(CURDIR)/$(BUILD)/gateway/nginx-sanitized $(PYTEST) $(WORKERS) $(or $(TESTS),tests)

THREADED := tests/lib tests/http tests/runtime tests/relay tests/consume tests/keeper tests/console tests/cli
test-threads: setup-test build ## the programs with threads under ThreadSanitizer (TESTS)
	@tools/build.sh $(BUILD)-threads -Db_sanitize=thread -Db_lundef=false -Dsbom=false
	@mkdir -p $(BUILD)-threads/gateway && cp $(BUILD)/gateway/ngx_http_once_module.so $(BUILD)-threads/gateway/
	PGONCE_SANITIZED=yes PGONCE_BUILD=$(CURDIR)/$(BUILD)-threads PGONCE_BUILD_SANITIZED=$(CURDIR)/$(BUILD)-threads $(PYTEST) $(WORKERS) $(or $(TESTS),$(THREADED))

test-valgrind: setup-test build ## libpgonce's C tests under valgrind
	PGONCE_BUILD=$(CURDIR)/$(BUILD) PGONCE_VALGRIND=all $(PYTEST) tests/lib/test_valgrind.py

coverage: setup-test ## count the branches of the library and the gateway that their tests take (tools/coverage.py)
	@tools/coverage.py $(BUILD)-coverage

lint: setup-lint ## warnings as errors (gcc, clang), format, static analysis, SQL, shell, Python, generated documents
	@tools/lint.sh

lint-deep: setup-lint build ## the static analysis alone, as deep as clang's analyzer goes by itself
	PGONCE_ANALYZER_STATES=225000 $(PYTHON) tools/analyze.py $(BUILD)

format: setup-lint ## format the C files in place
	@tools/lint.sh --format

# Each takes QUICK=yes, ROUNDS and (but for bench-keeper and bench-console) SECONDS.
bench: setup-bench build ## measure calls of the contract against their goals (QUICK=yes; ROUNDS, SECONDS; PG=17: on that server; NATIVE=yes: with pgonce_native; FSYNC_MS=2: on a disk slower by that; writes bench/results.json or native.json)
	$(ON_SERVER) $(PYTHON) bench/run.py $(TAKES) $(if $(filter yes,$(NATIVE)),--native $(call KEEPS,native),$(call KEEPS,results))

bench-gateway: setup-bench-gateway build ## measure the gateway against plain nginx and a peer (QUICK=yes; ROUNDS, SECONDS; NATIVE=yes: with pgonce_native; FSYNC_MS=2: on a disk slower by that; writes bench/gateway.json or gateway_native.json)
	$(ON_SERVER) $(PYTHON) bench/gateway.py $(TAKES) $(if $(filter yes,$(NATIVE)),--native $(call KEEPS,gateway_native),$(call KEEPS,gateway))

bench-events: setup-bench-events build ## measure the relay and the consumer against their goals and a peer (QUICK=yes; ROUNDS, SECONDS; writes bench/events.json)
	$(ON_SERVER) $(PYTHON) bench/events.py $(TAKES) $(call KEEPS,events)

bench-keeper: setup-bench build ## measure retirement, and claims among many stored intents (QUICK=yes; ROUNDS; PGONCE_BENCH_ROWS; writes bench/keeper.json)
	$(ON_SERVER) $(PYTHON) bench/keeper.py $(TAKES) $(call KEEPS,keeper)

bench-nodes: setup-bench build ## measure divided nodes, and moving a slot while clients work (QUICK=yes; ROUNDS, SECONDS; PGONCE_BENCH_ROWS; writes bench/nodes.json)
	$(ON_SERVER) $(PYTHON) bench/nodes.py $(TAKES) $(call KEEPS,nodes)

bench-console: setup-bench build ## measure the console's pages over many stored intents while clients work (QUICK=yes; ROUNDS; PGONCE_BENCH_ROWS; writes bench/console.json)
	$(ON_SERVER) $(PYTHON) bench/console.py $(TAKES) $(call KEEPS,console)

bench-clients: setup-bench-clients build ## measure what the clients cost their applications, against a peer on Redis (LANGUAGES="node go"; QUICK=yes; ROUNDS, SECONDS; NATIVE=yes: with pgonce_native; FSYNC_MS=2: on a disk slower by that; writes bench/clients.json or clients_native.json)
	$(ON_SERVER) $(PYTHON) bench/clients.py $(LANGUAGES) $(TAKES) $(if $(filter yes,$(NATIVE)),--native $(call KEEPS,clients_native),$(call KEEPS,clients))

bench-instructions: setup-bench-instructions build ## count the instructions of each call, with valgrind (NATIVE=yes: with pgonce_native; writes bench/instructions.json or instructions_native.json)
	$(ON_SERVER) $(PYTHON) bench/instructions.py $(if $(filter yes,$(QUICK)),--quick) $(if $(filter yes,$(NATIVE)),--native $(call KEEPS,instructions_native),$(call KEEPS,instructions))

fuzz: setup-test build ## fuzz every parser of outside input, a minute of a CPU each (PGONCE_FUZZ_SECONDS)
	PGONCE_BUILD=$(CURDIR)/$(BUILD) PGONCE_FUZZ_SECONDS=$${PGONCE_FUZZ_SECONDS:-60} $(PYTEST) -rA tests/fuzz

torture: setup-test build ## the whole system under faults, and a judge of its promises (SEED, MINUTES, TOPOLOGY=servers or citus, FAULTS, BROKER, DOORS=node,go/http, SHRINK, KEEP: tests/torture/README.md)
	cd tests && $(TORTURE) $(if $(SEED),--seed $(SEED)) --minutes $(or $(MINUTES),2) --broker $(or $(BROKER),nats) \
		$(if $(FAULTS),--faults $(FAULTS)) $(if $(DOORS),--doors $(DOORS)) $(if $(TOPOLOGY),--topology $(TOPOLOGY)) $(if $(SHRINK),--shrink $(SHRINK)) $(if $(KEEP),--keep $(abspath $(KEEP)))

torture-selftest: setup-test build ## again and again a guarantee is taken out of the system: the judge must notice within two minutes (MUTATION)
	cd tests && $(TORTURE) --selftest $(if $(SEED),--seed $(SEED)) $(if $(MUTATION),--mutation $(MUTATION))

model: setup-test ## search the model of the protocol within larger bounds too, and its mutations (some minutes)
	$(PYTHON) model/check.py --large

test-matrix: setup-test ## the contract's tests on PostgreSQL 13 to 18 (fetches the servers)
	$(PYTHON) tools/matrix.py

install: ## build as who the tree belongs to, and install: the command, the library, the nginx module, the extension's files, documents, man pages, units (PREFIX, DESTDIR)
	@[ -x $(PYTHON) ] || tools/setup.sh build
	@$(PYTHON) tools/install.py "$(BUILD)" "$(PREFIX)"

uninstall: ## remove what was installed from here (PREFIX, DESTDIR); no database is touched
	@$(PYTHON) tools/install.py --remove "$(BUILD)" "$(PREFIX)"

# DIST: where the files go.
DIST ?= dist
sql: ## write the contract as SQL files into dist/, with Python alone: for psql or any tool (DIST)
	@packaging/sql/build "$(DIST)"

client: ## pack the client of LANGUAGE (node, python, go or java) into dist/, with that language's own tools and no C compiler (DIST)
	@[ -n "$(LANGUAGE)" ] || { echo "make client: which one? For example: make client LANGUAGE=node" >&2; exit 2; }
	@packaging/languages/build "$(DIST)" $(LANGUAGE)

deb: setup-deb ## build the Debian packages for this system into dist/ (DIST)
	@packaging/debian/build "$(DIST)"

release: setup-release ## build all that a release has into dist/, with checksums and the bill of materials (DIST; ALSO: a folder with what make deb built on other releases of Debian)
	@$(PYTHON) tools/release.py "$(DIST)" "$(ALSO)"

docs: setup-docs build ## write the generated parts of docs/, its pictures (with Graphviz), the man pages and the dashboard
	@tools/docs.py --build $(BUILD)
	@tools/dashboard.py
	@tools/pictures.py
	@tools/pages.py

recording: ## record what make run prints on an empty private PostgreSQL, for the picture of it (docs/pictures/make-run.cast)
	@[ ! -e .pgonce ] || { echo "make recording begins with nothing: stop it (make stop), and remove .pgonce if its data can go" >&2; exit 1; }
	@tools/setup.sh run
	@tools/build.sh build-run -Doptimization=1 -Ddebug=false -Dtests=disabled -Dsbom=false -- demonstration
	@tools/record.py docs/pictures/make-run.cast "make run" $(MAKE) --no-print-directory run
	@tools/pictures.py

site: setup-site ## make the documents a site with a search, of static files (SITE=site: where)
	@tools/site.py "$(or $(SITE),site)"

spec: ## write the facts of spec/ into the sources that need them
	@tools/spec.py

setup-%:
	@tools/setup.sh $*

build: setup-build ## build all of it
	@tools/build.sh $(BUILD)

build-sanitized: setup-test
	@tools/build.sh $(BUILD_SANITIZED) $(SANITIZED) -- test_programs

clean: ## remove what was built (not .pgonce, which holds data)
	rm -rf $(BUILD) $(BUILD)-sanitized $(BUILD)-threads $(BUILD)-coverage build-werror* build-run
