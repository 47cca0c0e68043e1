-- SPDX-License-Identifier: PostgreSQL
INSERT INTO pgonce_bench.lines (sku, quantity) VALUES ($1, $2)
