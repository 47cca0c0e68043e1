-- SPDX-License-Identifier: PostgreSQL
CREATE TABLE pgonce_bench.lines (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, sku text NOT NULL,
    quantity integer NOT NULL)
