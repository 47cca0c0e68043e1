-- SPDX-License-Identifier: PostgreSQL
-- Places the order of a request under an id that the client chose; an error where the cart was ordered before or the
-- request is no order.
INSERT INTO orders.customer_order (order_id, customer, cart, total)
SELECT $1::uuid, r.request ->> 'customer', r.request ->> 'cart', (r.request ->> 'total')::numeric
  FROM (SELECT $2::jsonb) AS r (request)
