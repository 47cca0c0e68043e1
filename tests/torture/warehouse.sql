-- SPDX-License-Identifier: PostgreSQL
-- The database into which the torture's events go, beside the contract: each message that is applied leaves a row, and nothing
-- keeps it single but the inbox.
CREATE SCHEMA torture;
GRANT USAGE ON SCHEMA torture TO once_consumer;

CREATE TABLE torture.applied (
    position   bigint GENERATED ALWAYS AS IDENTITY,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    message_id text NOT NULL,
    key        text,
    body       jsonb
);
GRANT SELECT, INSERT ON torture.applied TO once_consumer;

-- Until then each message takes so long. A clock that was ahead when it was set makes nobody slow for hours.
CREATE TABLE torture.pace (until timestamptz NOT NULL, seconds float8 NOT NULL);
GRANT SELECT ON torture.pace TO once_consumer;

-- torture.apply(message): the handler. One message in 200 fails at first, so that it is parked, and those behind it wait.
CREATE FUNCTION torture.apply(message once.message) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep(p.seconds) FROM torture.pace AS p
      WHERE clock_timestamp() BETWEEN p.until - interval '1 minute' AND p.until;
    IF random() < 0.005 THEN
        RAISE EXCEPTION 'not now';
    END IF;
    INSERT INTO torture.applied (message_id, key, body) VALUES ((message).id, (message).key, (message).body);
END $$;
