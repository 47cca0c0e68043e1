-- SPDX-License-Identifier: PostgreSQL
-- The service's own tables: the shop's, and the warehouse's.
CREATE TABLE IF NOT EXISTS shop_order (id bigint GENERATED ALWAYS AS IDENTITY, item text NOT NULL, quantity integer NOT NULL);
CREATE TABLE IF NOT EXISTS shipment (order_id bigint NOT NULL, item text NOT NULL, quantity integer NOT NULL);
