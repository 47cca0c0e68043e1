-- SPDX-License-Identifier: PostgreSQL
-- What both services keep: one row per charge. Run at each start; the lock lets one of several do it.
SELECT pg_advisory_xact_lock(7235419880214417);
CREATE SCHEMA IF NOT EXISTS payments;
CREATE TABLE IF NOT EXISTS payments.charge (
    charge_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_name text NOT NULL CHECK (order_name <> ''),
    amount bigint NOT NULL CHECK (amount > 0),
    currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    charged_at timestamptz NOT NULL DEFAULT clock_timestamp())
