-- SPDX-License-Identifier: PostgreSQL
-- One order, even if this file is run again: the key names the order, and every run gets the first run's answer.
SELECT convert_from(orders.place('place-1', '{"customer": "ada", "cart": "A-17", "total": 19.99}'), 'UTF8') AS answer;
