-- SPDX-License-Identifier: PostgreSQL
-- Charges: an order's name, an amount in the currency's smallest unit, the currency. Gives the charge as JSON, and its id.
INSERT INTO payments.charge AS c (order_name, amount, currency) VALUES ($1, $2::bigint, $3)
RETURNING (SELECT row_to_json(r) FROM (SELECT c.charge_id AS charge, c.order_name AS order, c.amount, c.currency) AS r), c.charge_id
