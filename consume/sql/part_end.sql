-- SPDX-License-Identifier: PostgreSQL
RELEASE SAVEPOINT part
