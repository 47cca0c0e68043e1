-- SPDX-License-Identifier: PostgreSQL
COMMIT
