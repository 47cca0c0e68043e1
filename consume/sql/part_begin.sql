-- SPDX-License-Identifier: PostgreSQL
SAVEPOINT part
