-- SPDX-License-Identifier: PostgreSQL
-- Webhooks, each registered once. Providers deliver at least once, and again if an answer is lost: the delivery's id
-- names the message, and its payload is compared, so that an id that comes again with other content is noticed.

CREATE SCHEMA IF NOT EXISTS webhook;

CREATE TABLE IF NOT EXISTS webhook.delivery (
    provider    text NOT NULL,
    delivery_id text NOT NULL,
    kind        text NOT NULL,
    payload     jsonb NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (provider, delivery_id)
);

-- webhook.register(provider, delivery_id, kind, payload): remembers a delivery and emits it as an event, in the caller's
-- transaction.
--   'registered'  it is new. COMMIT, then answer the provider 2xx
--   'duplicate'   it was registered before: answer 2xx, there is nothing to do
-- Raises P4050 if this id came before with another kind or payload (answer 4xx, and investigate), P4029 if another
-- delivery of it is being registered now (answer 503: the provider tries again), P4041 if the id is too old to be
-- remembered. Verify the provider's signature before calling this: anyone who can register can use up an id. Values that
-- change with each delivery (a count, the date of sending) belong in headers, not in the payload that is passed here.
CREATE OR REPLACE FUNCTION webhook.register(provider text, delivery_id text, kind text, payload jsonb) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    consumer    text := 'webhook/' || provider;
    fingerprint bytea := once.fingerprint(jsonb_build_array(kind, payload));
BEGIN
    IF once.receive(consumer, delivery_id, fingerprint) = 'duplicate' THEN
        RETURN 'duplicate';
    END IF;
    INSERT INTO webhook.delivery (provider, delivery_id, kind, payload)
    VALUES (provider, delivery_id, kind, payload);
    PERFORM once.emit('webhook.received',
                      jsonb_build_object('provider', provider, 'id', delivery_id, 'kind', kind, 'payload', payload),
                      'webhook', provider, scope => consumer, key => delivery_id);
    RETURN 'registered';
END $$;

GRANT USAGE ON SCHEMA webhook TO once_app;
GRANT SELECT, INSERT ON webhook.delivery TO once_app;
