-- SPDX-License-Identifier: PostgreSQL
-- The service's own tables.
CREATE TABLE IF NOT EXISTS account (name text PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE IF NOT EXISTS payment (id bigint GENERATED ALWAYS AS IDENTITY, account text NOT NULL, amount integer NOT NULL);
INSERT INTO account SELECT 'account-' || n, 1000000 FROM generate_series(0, 63) AS n ON CONFLICT DO NOTHING;
