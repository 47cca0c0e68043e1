-- SPDX-License-Identifier: PostgreSQL
INSERT INTO plain.event (topic, order_id, payload)
VALUES ('order.placed', $1::uuid, jsonb_build_object('cart', $2::text))
