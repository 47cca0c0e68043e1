-- SPDX-License-Identifier: PostgreSQL
-- How many orders these customers have, and how many of them are among these ids (two JSON arrays).
SELECT count(*), count(*) FILTER (WHERE o.order_id::text IN (SELECT jsonb_array_elements_text($2::jsonb)))
  FROM orders.customer_order AS o WHERE o.customer IN (SELECT jsonb_array_elements_text($1::jsonb))
