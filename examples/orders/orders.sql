-- SPDX-License-Identifier: PostgreSQL
-- Orders, each placed once: the order, its outbox event and the answer are stored in one transaction, or none of them
-- is. Copy orders.place, and put your own effect between once.start and once.finish. Running this file again changes
-- nothing.

CREATE SCHEMA IF NOT EXISTS orders;

CREATE TABLE IF NOT EXISTS orders.customer_order (
    order_id  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    customer  text NOT NULL CHECK (customer <> ''),
    cart      text NOT NULL CHECK (cart <> ''),
    total     numeric(12, 2) NOT NULL CHECK (total > 0),
    placed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (customer, cart)         -- the business's rule: one order per cart, under any key
);

-- orders.problem_with(request): the problem of an order request, or NULL. It depends on the request alone, so an order
-- that is wrong now is still wrong at the next attempt.
CREATE OR REPLACE FUNCTION orders.problem_with(request jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN coalesce(request ->> 'customer', '') = '' THEN 'a customer is required'
        WHEN coalesce(request ->> 'cart', '') = '' THEN 'a cart is required'
        WHEN jsonb_typeof(request -> 'total') IS DISTINCT FROM 'number' THEN 'a total is required'
        WHEN (request ->> 'total')::numeric NOT BETWEEN 0.01 AND 1000000
        THEN 'the total is not between 0.01 and 1000000'
    END
$$;

-- orders.describe(placed): an order as its customers and its subscribers see it.
CREATE OR REPLACE FUNCTION orders.describe(placed orders.customer_order) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('order', placed.order_id, 'customer', placed.customer, 'cart', placed.cart,
                              'total', placed.total)
$$;

-- orders.place(key, request, fingerprint): places the order {"customer", "cart", "total"} and returns the answer, as
-- the bytes that every attempt with this key gets. It takes effect at COMMIT; after a ROLLBACK or a crash, attempt it
-- again with the same key.
--   status 201  the order is placed, and an event order.placed is in the outbox
--   status 200  this cart was ordered before, under another key: that order is the answer to this intent too, with its
--                total, and there is no second event
--   status 422  the request can never become an order. This is stored as a final failure, so commit it too
-- The status of an answer is stored with it: once.peek('orders', key). Every other case is an error, and nothing has
-- happened:
--   P4002  the key was used with another request      P4030  it failed for good earlier (once.peek has that answer)
--   P4029  another attempt is running: come again     P4041, P4001, P4003  a key too old, malformed, no request
-- fingerprint: of the caller's request, if the caller has computed it already; else it is computed here.
CREATE OR REPLACE FUNCTION orders.place(key text, request jsonb, fingerprint bytea DEFAULT NULL) RETURNS bytea
LANGUAGE plpgsql AS $$
DECLARE
    started   record;
    problem text;
    placed  orders.customer_order;
    status  integer := 201;
    answer  jsonb;
BEGIN
    fingerprint := coalesce(fingerprint, once.fingerprint(request));
    started := once.start('orders', key, fingerprint);
    IF started.verdict = 'replay_success' THEN
        RETURN started.response_body;
    END IF;

    problem := orders.problem_with(request);
    IF problem IS NOT NULL THEN
        answer := jsonb_build_object('error', problem);
        RETURN once.finish('orders', key, fingerprint, 422, response_json => answer,
                           state => 'failed_final', error_code => 'invalid_order', error_message => problem);
    END IF;

    INSERT INTO orders.customer_order (customer, cart, total)
    VALUES (request ->> 'customer', request ->> 'cart', (request ->> 'total')::numeric)
    ON CONFLICT (customer, cart) DO NOTHING
    RETURNING * INTO placed;
    IF NOT FOUND THEN
        -- DO NOTHING has waited for a concurrent insert of this cart: a new statement sees that order.
        status := 200;
        SELECT o.* INTO STRICT placed FROM orders.customer_order AS o
         WHERE o.customer = request ->> 'customer' AND o.cart = request ->> 'cart';
    END IF;

    answer := orders.describe(placed);
    IF status = 201 THEN
        PERFORM once.emit('order.placed', answer, 'order', placed.order_id::text, scope => 'orders', key => key);
    END IF;
    RETURN once.finish('orders', key, fingerprint, status, response_json => answer,
                       result_type => 'order', result_id => placed.order_id::text);
END $$;

-- orders.place_bare(request): the same work without an intent, to measure the cost of start and finish (make bench). A
-- repeated attempt places no second order only because the cart is unique; a lost answer stays lost.
CREATE OR REPLACE FUNCTION orders.place_bare(request jsonb) RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
    problem text;
    placed  orders.customer_order;
    status  integer := 201;
    answer  jsonb;
BEGIN
    problem := orders.problem_with(request);
    IF problem IS NOT NULL THEN
        RETURN convert_to(jsonb_build_object('error', problem)::text, 'UTF8');
    END IF;

    INSERT INTO orders.customer_order (customer, cart, total)
    VALUES (request ->> 'customer', request ->> 'cart', (request ->> 'total')::numeric)
    ON CONFLICT (customer, cart) DO NOTHING
    RETURNING * INTO placed;
    IF NOT FOUND THEN
        status := 200;
        SELECT o.* INTO STRICT placed FROM orders.customer_order AS o
         WHERE o.customer = request ->> 'customer' AND o.cart = request ->> 'cart';
    END IF;

    answer := orders.describe(placed);
    IF status = 201 THEN
        PERFORM once.emit('order.placed', answer, 'order', placed.order_id::text);
    END IF;
    RETURN convert_to(answer::text, 'UTF8');
END $$;

-- Roles that may call the contract may place orders.
GRANT USAGE ON SCHEMA orders TO once_app;
GRANT SELECT, INSERT ON orders.customer_order TO once_app;
