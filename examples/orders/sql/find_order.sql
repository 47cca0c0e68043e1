-- SPDX-License-Identifier: PostgreSQL
-- The order that a request's cart became.
SELECT o.order_id, orders.describe(o.*) FROM orders.customer_order AS o
 WHERE o.customer = $1::jsonb ->> 'customer' AND o.cart = $1::jsonb ->> 'cart'
