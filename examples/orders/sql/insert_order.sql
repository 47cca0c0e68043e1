-- SPDX-License-Identifier: PostgreSQL
-- Places the order of a request; no row where its cart was ordered before.
INSERT INTO orders.customer_order AS o (customer, cart, total)
SELECT r.request ->> 'customer', r.request ->> 'cart', (r.request ->> 'total')::numeric
  FROM (SELECT $1::jsonb) AS r (request)
ON CONFLICT (customer, cart) DO NOTHING
RETURNING o.order_id, orders.describe(o.*)
