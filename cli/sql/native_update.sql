-- SPDX-License-Identifier: PostgreSQL
ALTER EXTENSION pgonce_native UPDATE
