-- SPDX-License-Identifier: PostgreSQL
-- The pattern of seed000.sql, with the same order and an event.
SELECT seed000.create_order_once({key}, '00112233445566778899aabbccddeeff', {request});
