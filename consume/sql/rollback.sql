-- SPDX-License-Identifier: PostgreSQL
ROLLBACK
