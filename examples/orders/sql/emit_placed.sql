-- SPDX-License-Identifier: PostgreSQL
-- The event of an order: its description, its id, the key of its intent.
SELECT once.emit('order.placed', $1::jsonb, 'order', $2::text, scope => 'orders', key => $3::text)
