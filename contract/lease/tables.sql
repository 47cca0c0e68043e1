-- SPDX-License-Identifier: PostgreSQL
-- What the calls of leased attempts answer.

-- What a claim answers.
CREATE TYPE once.claimed AS (
    verdict          text,
    fence            integer,
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
