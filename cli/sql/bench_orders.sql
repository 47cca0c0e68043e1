-- SPDX-License-Identifier: PostgreSQL
CREATE TABLE pgonce_bench.orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL,
    amount_cents integer NOT NULL)
