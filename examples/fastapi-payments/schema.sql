-- SPDX-License-Identifier: PostgreSQL
-- The service's own tables.
CREATE TABLE IF NOT EXISTS wallet (account text PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO wallet SELECT 'account-' || n, 0 FROM generate_series(0, 63) AS n ON CONFLICT DO NOTHING;
