-- SPDX-License-Identifier: PostgreSQL
SELECT 1
