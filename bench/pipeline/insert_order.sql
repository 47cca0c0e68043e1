-- SPDX-License-Identifier: PostgreSQL
INSERT INTO orders.customer_order (order_id, customer, cart, total) VALUES ($1::uuid, 'ada', $2::text, 12.50)
