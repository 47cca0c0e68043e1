-- SPDX-License-Identifier: PostgreSQL
-- The database of pgonce dev.
CREATE DATABASE app
