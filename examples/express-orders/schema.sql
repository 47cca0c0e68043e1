-- SPDX-License-Identifier: PostgreSQL
-- The service's own tables.
CREATE TABLE IF NOT EXISTS customer (token text PRIMARY KEY, name text NOT NULL);
CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, quantity integer NOT NULL);
CREATE TABLE IF NOT EXISTS customer_order (
    id bigint GENERATED ALWAYS AS IDENTITY,
    customer text NOT NULL,
    item text NOT NULL,
    quantity integer NOT NULL
);
INSERT INTO customer VALUES ('token-of-ann', 'ann'), ('token-of-bob', 'bob') ON CONFLICT DO NOTHING;
INSERT INTO stock SELECT 'lamp-' || n, 1000000 FROM generate_series(0, 15) AS n ON CONFLICT DO NOTHING;
