-- SPDX-License-Identifier: PostgreSQL
-- orders.place and orders.place_bare (examples/orders/orders.sql) with an event table of the plainest kind in place of
-- once.emit: two INSERTs are the whole effect. It shows start and finish against the cheapest work that they may have
-- to protect.

CREATE SCHEMA plain;

CREATE TABLE plain.event (
    event_id   uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    topic      text NOT NULL,
    order_id   uuid NOT NULL,
    payload    jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE FUNCTION plain.place(key text, request jsonb, fingerprint bytea) RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
    started  record;
    placed orders.customer_order;
    answer jsonb;
BEGIN
    started := once.start('plain', key, fingerprint);
    IF started.verdict = 'replay_success' THEN
        RETURN started.response_body;
    END IF;
    INSERT INTO orders.customer_order (customer, cart, total)
    VALUES (request ->> 'customer', request ->> 'cart', (request ->> 'total')::numeric)
    RETURNING * INTO placed;
    answer := orders.describe(placed);
    INSERT INTO plain.event (topic, order_id, payload) VALUES ('order.placed', placed.order_id, answer);
    RETURN once.finish('plain', key, fingerprint, 201, response_json => answer);
END $$;

CREATE FUNCTION plain.place_bare(request jsonb) RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
    placed orders.customer_order;
    answer jsonb;
BEGIN
    INSERT INTO orders.customer_order (customer, cart, total)
    VALUES (request ->> 'customer', request ->> 'cart', (request ->> 'total')::numeric)
    RETURNING * INTO placed;
    answer := orders.describe(placed);
    INSERT INTO plain.event (topic, order_id, payload) VALUES ('order.placed', placed.order_id, answer);
    RETURN convert_to(answer::text, 'UTF8');
END $$;

-- start and finish around no effect at all, for the WAL and the dead tuples of an intent.
CREATE FUNCTION plain.nothing(key text, fingerprint bytea) RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
    started record;
BEGIN
    started := once.start('nothing', key, fingerprint);
    RETURN once.finish('nothing', key, fingerprint, 201, response_body => fingerprint);
END $$;

-- The arrays of a batch: `count` keys from one pair of random numbers, and `count` times the same.
CREATE FUNCTION plain.keys(a bigint, b bigint, count integer) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg((lpad(to_hex(a), 16, '0') || to_hex(b + i))::uuid::text) FROM generate_series(1, count) AS i
$$;
CREATE FUNCTION plain.repeat(element anyelement, count integer) RETURNS anyarray LANGUAGE sql IMMUTABLE AS $$
    SELECT array_fill(element, ARRAY[count])
$$;

-- A thousand finished intents to be retried.
CREATE FUNCTION plain.finish_some(keys text[], fingerprint bytea) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    key text;
BEGIN
    FOREACH key IN ARRAY keys LOOP
        PERFORM once.finish_new('replay', key, fingerprint, 201,
                                response_json => jsonb_build_object('cart', key, 'total', 12.50));
    END LOOP;
END $$;

GRANT USAGE ON SCHEMA plain TO once_app;
GRANT SELECT, INSERT ON plain.event TO once_app;
