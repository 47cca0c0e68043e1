# SPDX-License-Identifier: PostgreSQL
# Names the tasks; meson and ninja do the building. `make` alone lists them.
PYTHON := /usr/bin/python3
BUILD := build
PREFIX ?= /usr/local
PYTEST := $(PYTHON) -m pytest -q -p no:cacheprovider
# How many run the tests beside each other; 1: without pytest-xdist.
PYTEST_WORKERS ?= 2
TORTURE := PGONCE_BUILD=$(CURDIR)/$(BUILD) $(PYTHON) -m torture
WORKERS := $(if $(filter 1,$(PYTEST_WORKERS)),,-n $(PYTEST_WORKERS) --dist loadgroup)

.PHONY: help run test test-sanitized test-threads test-valgrind lint lint-deep format bench bench-gateway bench-events bench-keeper coverage fuzz install torture torture-selftest model test-matrix setup build build-sanitized docs clean stop

help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: setup build ## start a private PostgreSQL and the gateway, play the examples, show the proof
	@tools/run.sh $(BUILD)

stop: ## stop what `make run` left up
	@$(BUILD)/cli/pgonce dev --stop

test: setup build build-sanitized ## build with warnings as errors and run every test, on private servers
	PGONCE_BUILD=$(CURDIR)/$(BUILD) PGONCE_BUILD_SANITIZED=$(CURDIR)/$(BUILD)-sanitized $(PYTEST) $(WORKERS) tests

test-sanitized: setup build build-sanitized ## every test on programs and an nginx built with AddressSanitizer and UBSan (fetches nginx's source with apt; TESTS)
	@ninja -C $(BUILD) --quiet gateway/nginx-sanitized
	@# What pgonce dev loads into the system's nginx, which takes no sanitized module; the gateway's own tests have an nginx of theirs.
	@cp $(BUILD)/gateway/ngx_http_once_module.so $(BUILD)-sanitized/gateway/
	PGONCE_SANITIZED=yes PGONCE_BUILD=$(CURDIR)/$(BUILD)-sanitized PGONCE_BUILD_SANITIZED=$(CURDIR)/$(BUILD)-sanitized \
		PGONCE_NGINX=$(CURDIR)/$(BUILD)/gateway/nginx-sanitized $(PYTEST) $(WORKERS) $(or $(TESTS),tests)

THREADED := tests/lib tests/http tests/service tests/relay tests/consume tests/keeper tests/cli
test-threads: setup build ## the programs with threads under ThreadSanitizer (TESTS)
	@test -f $(BUILD)-threads/build.ninja || meson setup $(BUILD)-threads -Db_sanitize=thread -Db_lundef=false \
		>$(BUILD)-threads.log 2>&1 || { cat $(BUILD)-threads.log; exit 1; }
	@rm -f $(BUILD)-threads.log
	@ninja -C $(BUILD)-threads --quiet
	@cp $(BUILD)/gateway/ngx_http_once_module.so $(BUILD)-threads/gateway/
	PGONCE_SANITIZED=yes PGONCE_BUILD=$(CURDIR)/$(BUILD)-threads PGONCE_BUILD_SANITIZED=$(CURDIR)/$(BUILD)-threads $(PYTEST) $(WORKERS) $(or $(TESTS),$(THREADED))

test-valgrind: setup build ## libpgonce's C tests under valgrind
	PGONCE_BUILD=$(CURDIR)/$(BUILD) PGONCE_VALGRIND=all $(PYTEST) tests/lib/test_valgrind.py

coverage: setup ## count the branches of the library and the gateway that their tests take (tools/coverage.py)
	@tools/coverage.py $(BUILD)-coverage

lint: setup build ## format, static analysis, SQL, shell, Python, generated documents
	@tools/lint.sh $(BUILD)

lint-deep: setup build ## the static analysis alone, as deep as clang's analyzer goes by itself
	PGONCE_ANALYZER_STATES=225000 $(PYTHON) tools/analyze.py $(BUILD)

format: setup ## format the C files in place
	@tools/lint.sh --format

bench: setup build ## measure against the goals of docs/evidence.md (writes bench/results.json)
	$(PYTHON) bench/run.py --json bench/results.json

bench-gateway: setup build ## measure the gateway against plain nginx and a peer (writes bench/gateway.json)
	@tools/setup.sh bench-gateway
	PGONCE_BUILD=$(CURDIR)/$(BUILD) $(PYTHON) bench/gateway.py --json bench/gateway.json

bench-events: setup build ## measure the relay and the consumer against their goals and a peer (writes bench/events.json)
	@tools/setup.sh bench-events
	PGONCE_BUILD=$(CURDIR)/$(BUILD) $(PYTHON) bench/events.py --json bench/events.json

bench-keeper: setup build ## measure retirement, and claims among many stored intents (PGONCE_BENCH_ROWS; writes bench/keeper.json)
	PGONCE_BUILD=$(CURDIR)/$(BUILD) $(PYTHON) bench/keeper.py --json bench/keeper.json

fuzz: setup build ## fuzz every parser of outside input, a minute of a CPU each (PGONCE_FUZZ_SECONDS)
	PGONCE_BUILD=$(CURDIR)/$(BUILD) PGONCE_FUZZ_SECONDS=$${PGONCE_FUZZ_SECONDS:-60} $(PYTEST) -rA tests/fuzz

torture: setup build ## the whole system under faults, and a judge of its promises (SEED, MINUTES, FAULTS, BROKER, DOORS, SHRINK, KEEP: docs/torture.md)
	cd tests && $(TORTURE) $(if $(SEED),--seed $(SEED)) --minutes $(or $(MINUTES),2) --broker $(or $(BROKER),nats) \
		$(if $(FAULTS),--faults $(FAULTS)) $(if $(DOORS),--doors $(DOORS)) $(if $(SHRINK),--shrink $(SHRINK)) $(if $(KEEP),--keep $(abspath $(KEEP)))

torture-selftest: setup build ## eight times a guarantee is taken out of the system: the judge must notice within two minutes (MUTATION)
	cd tests && $(TORTURE) --selftest $(if $(SEED),--seed $(SEED)) $(if $(MUTATION),--mutation $(MUTATION))

model: setup ## search the model of the protocol within larger bounds too, and its mutations (some minutes)
	$(PYTHON) model/check.py --large

test-matrix: setup ## the contract's tests on PostgreSQL 13 to 18 (fetches the servers)
	$(PYTHON) tools/matrix.py

install: build ## install the command, the library, the nginx module, the man pages and the extension's files (PREFIX, DESTDIR)
	meson configure $(BUILD) --prefix=$(PREFIX)
	meson install -C $(BUILD)

docs: build ## write the generated parts of docs/ and the man pages
	@tools/docs.py --build $(BUILD)

setup:
	@tools/setup.sh

build:
	@test -f $(BUILD)/build.ninja || meson setup $(BUILD) >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log
	@ninja -C $(BUILD) --quiet

build-sanitized:
	@test -f $(BUILD)-sanitized/build.ninja || meson setup $(BUILD)-sanitized -Db_sanitize=address,undefined -Db_lundef=false \
		>$(BUILD)-sanitized.log 2>&1 || { cat $(BUILD)-sanitized.log; exit 1; }
	@rm -f $(BUILD)-sanitized.log
	@ninja -C $(BUILD)-sanitized --quiet

clean: ## remove what was built (not .pgonce, which holds data)
	rm -rf $(BUILD) $(BUILD)-sanitized $(BUILD)-threads $(BUILD)-coverage
