-- SPDX-License-Identifier: PostgreSQL
-- The types that the calls of leased attempts return.

-- What once.claim returns.
CREATE TYPE once.claimed AS (
    verdict          text,
    fence            integer,       -- pass it to each report and renewal
    state            text,
    response_status  integer,
    response_body    bytea,
    response_headers jsonb,
    result_type      text,
    result_id        text,
    error_code       text,
    error_message    text,
    lease_until      timestamptz,
    attempts         integer,
    traceparent      text
);
