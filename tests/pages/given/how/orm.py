# SPDX-License-Identifier: PostgreSQL
from harness import postgres

# clients/python/test.sh, clients/node/test.sh and tests/transparency make what these lead to.
BEFORE_SH = f"""
ln -s {postgres.ROOT}/clients/python/.venv .venv
mkdir node_modules
ln -s {postgres.ROOT}/clients/node node_modules/pgonce
ln -s {postgres.ROOT}/clients/node/node_modules/pg node_modules/pg
ln -s {postgres.ROOT}/tests/transparency/node/node_modules/drizzle-orm node_modules/drizzle-orm
"""
SHOWN = {"@Idempotent": "it needs Spring Boot with JPA: such controllers run in tests/transparency/spring-boot and in the suite of clients/java"}
