-- SPDX-License-Identifier: PostgreSQL
-- One order, however often this file is run: the key is the order's, and every run gets the first one's answer.
SELECT convert_from(orders.place('place-1', '{"customer": "ada", "cart": "A-17", "total": 19.99}'), 'UTF8') AS answer;
