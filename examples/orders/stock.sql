-- SPDX-License-Identifier: PostgreSQL
-- The warehouse: ships placed orders, in another database. It needs the contract (pgonce init) there, and pgonce consume
-- with examples/orders/pgonce.conf. Running this file again changes nothing.

CREATE SCHEMA IF NOT EXISTS shop;

CREATE TABLE IF NOT EXISTS shop.stock (
    item     text PRIMARY KEY,
    quantity bigint NOT NULL CHECK (quantity >= 0)
);

-- Nothing here prevents that an order is shipped twice: the consumer does. shop.take_stock is written as if every
-- message came once.
CREATE TABLE IF NOT EXISTS shop.shipment (
    shipment_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id    uuid NOT NULL,
    customer    text NOT NULL,
    cart        text NOT NULL,
    shipped_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

INSERT INTO shop.stock VALUES ('box', 1000000) ON CONFLICT DO NOTHING;

-- shop.take_stock(message): ships an order that was placed: takes a box from the stock and notes the shipment. Called by
-- the consumer, in the transaction in which it remembers the message. If it raises an error, the message is tried again:
-- without a box left (23514) this order waits, and is then dead until there are boxes again (pgonce parked retry); all
-- other orders go on.
CREATE OR REPLACE FUNCTION shop.take_stock(message once.message) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    placed jsonb := (message).body;
BEGIN
    -- This warehouse ignores an order's later events.
    IF (message).headers ->> 'Pgonce-Event-Type' <> 'order.placed' THEN
        RETURN;
    END IF;
    UPDATE shop.stock SET quantity = quantity - 1 WHERE item = 'box';
    INSERT INTO shop.shipment (order_id, customer, cart)
    VALUES ((placed ->> 'order')::uuid, placed ->> 'customer', placed ->> 'cart');
END $$;

-- The role of pgonce consume is a member of once_consumer, and has the rights that the handler needs.
GRANT USAGE ON SCHEMA shop TO once_consumer;
GRANT SELECT, UPDATE ON shop.stock TO once_consumer;
GRANT SELECT, INSERT ON shop.shipment TO once_consumer;
