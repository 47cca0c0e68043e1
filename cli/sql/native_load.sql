-- SPDX-License-Identifier: PostgreSQL
SELECT once_native.load()
