-- SPDX-License-Identifier: PostgreSQL
-- How many charges there are (of one order, where $1 is its name), and the last hundred of them, as JSON.
WITH wanted AS (SELECT charge_id, order_name, amount, currency FROM payments.charge WHERE $1::text IS NULL OR order_name = $1::text),
     last AS (SELECT charge_id AS charge, order_name AS order, amount, currency FROM wanted ORDER BY charge_id DESC LIMIT 100)
SELECT row_to_json(r)
  FROM (SELECT (SELECT count(*) FROM wanted),
               (SELECT coalesce(json_agg(row_to_json(l) ORDER BY l.charge), '[]') FROM last AS l) AS charges) AS r
