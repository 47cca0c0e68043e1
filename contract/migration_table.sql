-- SPDX-License-Identifier: PostgreSQL
-- Which migrations ran, and with which text; version 0 is the functions, views and grants as a whole.
CREATE TABLE once.migration (
    version      integer PRIMARY KEY CHECK (version >= 0),
    name         text NOT NULL,
    checksum     text NOT NULL,
    pgonce       text NOT NULL,
    installed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    installed_by text NOT NULL DEFAULT session_user
);
