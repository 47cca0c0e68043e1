-- SPDX-License-Identifier: PostgreSQL
INSERT INTO pgonce_bench.orders (customer, amount_cents) VALUES ($1, $2)
